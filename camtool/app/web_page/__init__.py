"""A page that explains a model in the browser, without a server."""
