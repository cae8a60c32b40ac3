"""Pictures whose right answer is known, and two small models trained on them.

:mod:`~camtool.demo.scenes` draws the pictures, :mod:`~camtool.demo.camnet` is the network, ``train`` makes its weights,
and :mod:`~camtool.demo.measure` says how good they are.
"""

__all__: list[str] = []
