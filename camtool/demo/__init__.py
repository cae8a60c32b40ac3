"""Scenes with known objects, and two small models trained on them.

:mod:`~camtool.demo.scenes` draws the images, :mod:`~camtool.demo.camnet` is the network and
:mod:`~camtool.demo.measure` evaluates it. ``tools/train_demo_models.py`` in the repository trains it.
"""

__all__: list[str] = []
