"""Panels of the page, one file for each subject.

A file has plain functions, from a model and a photo to plain data, and one function ``build`` that shows them on the
page. Only ``build`` needs Gradio. :func:`camtool.app.workbench.find_kind` says which panel fits a model.
"""

__all__: list[str] = []
