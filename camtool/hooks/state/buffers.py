"""A snapshot of the buffers of a model, and how to restore them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby, islice
from operator import attrgetter, is_

import torch
from torch import Tensor, nn

from camtool.hooks.private_torch import get_buffers, get_write_count, get_write_counts, start_inference_mode


class BufferSnapshot:
    """The buffers of some modules: which tensors they are, and the values in them.

    Small floating buffers are compared by value, because batch norm writes its statistics without increasing the
    version counter of the tensor. They are copied in groups: one copy of many small tensors takes a quarter of the time
    of many copies.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._counts, self._names, self._tensors = self._read()
        tensors = {id(each): each for each in self._tensors if each is not None}.values()
        groups: dict[object, list[Tensor]] = {}
        for kind, size, each in zip(map(_get_kind, tensors), map(Tensor.numel, tensors), tensors, strict=True):
            groups.setdefault(kind if size <= _SMALL else id(each), []).append(each)
        self._groups = [_BufferGroup(group) for each in groups.values() for group in _divide(each)]

    def restore(self) -> None:
        """Restore tensors and values. Unchanged ones are not written to, as other threads may be reading them."""
        for group in self._groups:
            group.restore()
        counts, names, tensors = self._read()
        if counts != self._counts or names != self._names or not all(map(is_, tensors, self._tensors)):
            before = iter(zip(self._names, self._tensors, strict=True))
            for module, count in zip(self._modules, self._counts, strict=True):
                _restore_tensors(module, dict(islice(before, count)))

    def _read(self) -> tuple[list[int], list[str], list[Tensor | None]]:
        """Return the number of buffers of each module, and the names and tensors of all."""
        own = [*map(get_buffers, self._modules)]
        owners = [*filter(len, own)]
        # TorchScript's are no mappings, but have the same methods.
        names = [name for each in owners for name in each.keys()]  # noqa: SIM118
        return [*map(len, own)], names, [each for buffers in owners for each in buffers.values()]


def _divide(buffers: list[Tensor]) -> list[list[Tensor]]:
    """Return buffers of one kind in groups if they are plain and small, or else each as a group of its own."""
    if not _is_small(buffers[0]):
        return [[each] for each in buffers]
    ends = accumulate(map(Tensor.numel, buffers))
    runs = groupby(zip(ends, buffers, strict=True), key=lambda pair: pair[0] // (_JOINED - _SMALL))
    return [[each for _, each in run] for _, run in runs]


class _BufferGroup:
    """Small buffers of one kind, or a single large one, with a copy of their values."""

    @torch.no_grad()
    def __init__(self, buffers: list[Tensor]) -> None:
        self._buffers, self._are_small = buffers, _is_small(buffers[0])
        self._rows = buffers if buffers[0].ndim < 2 or not self._are_small else [each.reshape(-1) for each in buffers]
        self._values = self._join() if self._are_small else buffers[0].clone()
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
            return not torch.equal(self._join(), self._values)
        return any(map(Tensor.is_inference, self._buffers)) or get_write_counts(self._buffers) != self._write_counts

    def _join(self) -> Tensor:
        """Return the values of small buffers as one row."""
        return torch.cat(self._rows) if self._rows[0].ndim else torch.stack(self._rows)


_SMALL = 4096
"""Up to this number of elements, buffers are copied in groups and, if floating, compared by value. The batch norms of
usual networks have at most a few thousand channels. For larger buffers, e.g. masks, a comparison takes too long, so
their version counter alone decides whether they were written to."""

_JOINED = 32768
"""Fewer elements than this are joined in one thread. Torch divides the work for more of them, which takes longer."""

_get_kind = attrgetter("dtype", "device", "layout", "ndim", "is_nested")
"""Properties that are the same for all buffers of a group."""


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
