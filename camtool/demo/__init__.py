"""Scenes with known objects, and small models trained on them.

:mod:`~camtool.demo.scenes` draws the images, :mod:`~camtool.demo.camnet` is the network,
:mod:`~camtool.demo.captioner` a vision-language model on top of it.
``tools`` in the repository trains and evaluates them.
"""

__all__: list[str] = []
