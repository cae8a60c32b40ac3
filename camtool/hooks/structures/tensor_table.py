"""A dictionary with tensors as keys that keeps none of them alive."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

_LEAST = 16


class _QuietRef(WeakIdRef):
    """Weak reference that calls nothing when its tensor is freed."""

    def __new__(cls, tensor: Tensor, callback: object = None) -> _QuietRef:
        return super().__new__(cls, tensor)


class TensorTable(WeakIdKeyDictionary):
    """Values by tensor, which keeps no tensor alive.

    Torch's ``WeakTensorKeyDictionary`` runs Python code when a tensor is freed. Python drops what a signal handler
    raises there, so that Ctrl-C would be lost. Here entries of freed tensors go when others are added.
    """

    def __init__(self) -> None:
        super().__init__(ref_type=_QuietRef)
        self._limit = _LEAST

    def __setitem__(self, tensor: Tensor, value: Any) -> None:
        if len(self.data) >= self._limit:
            self.data = {reference: entry for reference, entry in self.data.items() if reference() is not None}
            self._limit = _LEAST + 2 * len(self.data)
        super().__setitem__(tensor, value)
