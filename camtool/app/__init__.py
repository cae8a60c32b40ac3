"""The page in the browser: explain one's own images with one's own models.

The modules without Gradio hold the state: :mod:`~camtool.app.model_store`, :mod:`~camtool.app.image_store`,
:mod:`~camtool.app.image_folder` and :mod:`~camtool.app.result_cache`, joined in :mod:`~camtool.app.workbench`.
:mod:`~camtool.app.drawing` and :mod:`~camtool.app.saving` turn results into pixels and files. Only
:mod:`~camtool.app.page`, :mod:`~camtool.app.server` and :mod:`~camtool.app.panels` import Gradio.
"""

__all__: list[str] = []
