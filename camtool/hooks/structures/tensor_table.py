"""What is noted about tensors while a model runs, until they are freed."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import Tensor
from torch.utils.weak import TensorWeakRef

_LEAST = 16


class TensorTable(MutableMapping[Tensor, Any]):
    """Values by tensor, which keeps no tensor alive.

    Torch's ``WeakTensorKeyDictionary`` runs Python code when a tensor is freed. Python drops what a signal handler
    raises there, so that Ctrl-C would be lost. Here entries of freed tensors go when others are added.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[TensorWeakRef, Any]] = {}
        self._limit = _LEAST

    def __getitem__(self, tensor: Tensor) -> Any:
        reference, value = self._entries[id(tensor)]
        if reference() is not tensor:  # a new tensor at the place of one that was freed
            raise KeyError(tensor)
        return value

    def __setitem__(self, tensor: Tensor, value: Any) -> None:
        if len(self._entries) >= self._limit:
            self._entries = {key: entry for key, entry in self._entries.items() if entry[0]() is not None}
            self._limit = _LEAST + 2 * len(self._entries)
        self._entries[id(tensor)] = TensorWeakRef(tensor), value

    def __delitem__(self, tensor: Tensor) -> None:
        del self._entries[id(tensor)]

    def __iter__(self) -> Iterator[Tensor]:
        return iter([tensor for reference, _ in self._entries.values() if (tensor := reference()) is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)
