"""A snapshot of the buffers of a model, and how to restore them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from camtool.private_torch import get_buffers, get_write_count, get_write_counts, start_inference_mode

__all__ = ["BufferSnapshot"]


class BufferSnapshot:
    """The buffers of some modules: which tensors they are, and the values in them.

    Small floating buffers are compared by value, because batch norm writes its statistics without increasing the
    version counter of the tensor. They are copied in groups: one copy of many small tensors takes a quarter of the time
    of many copies.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules_without_buffers = [module for module in modules if not get_buffers(module)]
        self._modules_with_buffers = [
            (module, dict(get_buffers(module).items())) for module in modules if get_buffers(module)
        ]
        # TorchScript makes a new object each time it is asked for the buffers, which then cannot be looked up again.
        are_dictionaries = all(isinstance(get_buffers(module), dict) for module, _ in self._modules_with_buffers)
        self._slots = [(get_buffers(module), name) for module, own in self._modules_with_buffers for name in own]
        self._slots = self._slots if are_dictionaries else []
        self._tensors = [each for _, own in self._modules_with_buffers for each in own.values()]
        groups: dict[Any, list[Tensor]] = {}
        for each in {id(each): each for each in self._tensors if each is not None}.values():
            groups.setdefault((each.dtype, each.device) if _is_small(each) else id(each), []).append(each)
        self._groups = list(map(_BufferGroup, groups.values()))

    def restore(self) -> None:
        """Restore tensors and values. Unchanged ones are not written to, as other threads may be reading them."""
        for group in self._groups:
            group.restore()
        if not self._has_same_tensors():
            for module, before in [
                *self._modules_with_buffers,
                *((each, {}) for each in self._modules_without_buffers),
            ]:
                _restore_tensors(module, before)

    def _has_same_tensors(self) -> bool:
        now = [buffers.get(name) for buffers, name in self._slots]
        if len(now) != len(self._tensors) or not all(map(is_, now, self._tensors)):
            return False
        count = sum(len(get_buffers(module)) for module, _ in self._modules_with_buffers)
        return count == len(now) and not any(get_buffers(module) for module in self._modules_without_buffers)


class _BufferGroup:
    """Small buffers of one dtype on one device, or a single large one, with a copy of their values."""

    @torch.no_grad()
    def __init__(self, buffers: list[Tensor]) -> None:
        self._buffers, self._are_small = buffers, _is_small(buffers[0])
        self._rows = [each if each.ndim == 1 else each.reshape(-1) for each in buffers] if self._are_small else []
        self._values = torch.cat(self._rows) if self._are_small else buffers[0].clone()
        self._are_compared = self._are_small and buffers[0].is_floating_point()
        self._write_counts = get_write_counts(buffers)

    def restore(self) -> None:
        """Copy back the values of the buffers that were written to."""
        if not self._is_written():
            return
        parts = [self._values]
        if self._are_small:
            parts = list(self._values.split([each.numel() for each in self._buffers]))
        for buffer, part, write_count in zip(self._buffers, parts, self._write_counts, strict=True):
            before = part.reshape(buffer.shape) if self._are_small else part
            _restore_values(buffer, before, is_counted=get_write_count(buffer) != write_count)
        self._write_counts = get_write_counts(self._buffers)

    @torch.no_grad()
    def _is_written(self) -> bool:
        if self._are_compared:
            return not torch.equal(torch.cat(self._rows), self._values)
        return any(map(Tensor.is_inference, self._buffers)) or get_write_counts(self._buffers) != self._write_counts


_SMALL = 4096
"""Up to this number of elements, buffers are copied in groups and, if floating, compared by value. The batch norms of
usual networks have at most a few thousand channels. For larger buffers, e.g. masks, a comparison takes too long, so
their version counter alone decides whether they were written to."""


def _is_small(buffer: Tensor) -> bool:
    is_plain = buffer.layout == torch.strided and not (buffer.is_quantized or buffer.is_nested or buffer.is_meta)
    return is_plain and buffer.numel() <= _SMALL


def _restore_values(buffer: Tensor, before: Tensor, *, is_counted: bool) -> None:
    """Copy values back. A write that the version counter did not count is undone without counting, too.

    If the version of a saved tensor changes, a graph that was recorded in between refuses to run backward.
    """
    if not _is_small(buffer) or not torch.equal(buffer, before):
        # In inference mode, both inference tensors and ordinary tensors can be written to.
        with start_inference_mode(True):
            target = buffer if is_counted or buffer.is_inference() else buffer.data
            target.copy_(before)


def _restore_tensors(module: nn.Module, before: dict[str, Tensor | None]) -> None:
    present = dict(get_buffers(module).items())
    for name in present.keys() - before.keys():
        delattr(module, name)
    for name, buffer in before.items():
        if present.get(name) is not buffer:
            get_buffers(module)[name] = buffer
