def render_page(diff):
    return ""
