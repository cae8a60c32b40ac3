"""Scenes with known objects, and small models trained on them.

:mod:`~camtool.demo.scenes` draws the images, :mod:`~camtool.demo.camnet` is the network,
:mod:`~camtool.demo.captioner` a vision-language model on top of it, and :mod:`~camtool.demo.measure` evaluates them.
``tools/train_demo_models.py`` and ``tools/train_demo_captioner.py`` in the repository train them.
"""

__all__: list[str] = []
