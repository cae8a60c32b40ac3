"""The way of a call: from images and targets to explanations.

:mod:`~camtool.explaining.explainer` checks what the user gave, :mod:`~camtool.explaining.pipeline` explains batches,
and :mod:`~camtool.explaining.explanation` is what comes back.
"""
