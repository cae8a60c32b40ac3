"""The page in the browser: explain one's own images with one's own models.

The modules without Gradio hold the state: :mod:`~camtool.app.stores`, joined in :mod:`~camtool.app.workbench`.
:mod:`~camtool.app.drawing` turns results into pixels, :mod:`~camtool.app.actions` into pages and files. Only
:mod:`~camtool.app.page`, :mod:`~camtool.app.server` and :mod:`~camtool.app.panels` import Gradio.
:mod:`~camtool.app.assistant` is apart from the page: tools for an assistant.
"""

__all__: list[str] = []
