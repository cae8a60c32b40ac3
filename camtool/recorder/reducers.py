"""Reducers: what is kept of tensors that come one after another, when all of them would not fit into memory.

A reducer has two methods, ``update(tensor)`` and ``result()``. Tensors are a layer's, their first dimension the
images': ``(N, ...)``. The ready-made ones add up in double precision, so it does not matter how images are put into
batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from camtool.errors import CamtoolError

__all__ = ["Counts", "Fold", "Histogram", "Max", "Mean", "Reducer"]

_AT_ONCE = 2**22
"""How many numbers are sorted into bins at once: what that takes on the way is several times as large as they are."""


@runtime_checkable
class Reducer(Protocol):
    """What takes tensors one by one and tells in the end what they come to."""

    def update(self, tensor: Tensor, /) -> None:
        """Take one more tensor."""
        ...

    def result(self) -> Any:
        """What all tensors so far come to; ``None`` before the first."""
        ...


class Mean:
    """The mean over all images.

    >>> mean = Mean()
    >>> mean.update(torch.tensor([[1.0, 10.0], [2.0, 20.0]]))
    >>> mean.update(torch.tensor([[6.0, 60.0]]))
    >>> mean.result().tolist()
    [3.0, 30.0]

    Args:
        per: The dimension that stays, over all others the mean is taken: 1 for the channels of ``(N, C, h, w)``, -1 for
            those of tokens ``(N, L, C)``. By default it is taken over the images alone, so each element has its own.
    """

    def __init__(self, per: int | None = None) -> None:
        self._per, self._count, self._dtype = per, 0, torch.float32
        self._total: Tensor | None = None

    def update(self, tensor: Tensor) -> None:
        """Take one more tensor.

        Raises:
            CamtoolError: Its shape does not go with that of those before.
        """
        values = _grouped(tensor, self._per)
        total = values.sum(-1, dtype=torch.float32 if values.device.type == "mps" else torch.float64)
        self._total = total if self._total is None else self._total + _same_shape(total, self._total, "Mean")
        self._count += values.shape[-1]
        self._dtype = torch.promote_types(tensor.dtype, torch.float32)

    def result(self) -> Tensor | None:
        """The mean, at least in single precision."""
        return (self._total / self._count).to(self._dtype) if self._total is not None and self._count else None


class Max:
    """The maximum over all images.

    >>> largest = Max(per=1)
    >>> largest.update(torch.tensor([[[1.0, 2.0], [10.0, 20.0]]]))
    >>> largest.update(torch.tensor([[[4.0, 3.0], [0.0, 0.0]]]))
    >>> largest.result().tolist()
    [4.0, 20.0]

    Args:
        per: The dimension that stays, as for :class:`Mean`; by default each element has its own maximum.
    """

    def __init__(self, per: int | None = None) -> None:
        self._per = per
        self._most: Tensor | None = None

    def update(self, tensor: Tensor) -> None:
        """Take one more tensor.

        Raises:
            CamtoolError: Its shape does not go with that of those before.
        """
        values = _grouped(tensor, self._per)
        if values.shape[-1]:
            most = values.amax(-1)
            known = self._most
            self._most = most if known is None else torch.maximum(known, _same_shape(most, known, "Max"))

    def result(self) -> Tensor | None:
        """The maximum."""
        return self._most


class Counts(NamedTuple):
    """What a :class:`Histogram` comes to.

    Attributes:
        counts: How many numbers lie in each bin, ``(B,)``, or ``(C, B)`` with one row for each channel.
        edges: Where the bins begin and end, ``(B + 1,)``; a number on an edge lies in the bin above it, and only the
            very last edge belongs to the bin below.
        missed: How many numbers lie in no bin: outside of the range, infinite, or no numbers at all.
    """

    counts: Tensor
    edges: Tensor
    missed: int


class Histogram:
    """How often which values occur.

    >>> histogram = Histogram(bins=4, range=(0, 8))
    >>> histogram.update(torch.tensor([0.0, 1.0, 2.0, 7.0, 8.0, 9.0]))
    >>> counts, edges, missed = histogram.result()
    >>> counts.tolist(), edges.tolist(), missed
    ([2, 1, 0, 2], [0.0, 2.0, 4.0, 6.0, 8.0], 1)

    Without a range the bins fit themselves to what comes: they are as narrow as ``bins`` of them allow, and whenever
    that is not enough, neighbours become one. Their width is a power of two and their edges its multiples, so every
    number is counted in the bin where it lies, whatever came first.

    >>> histogram = Histogram(bins=4)
    >>> for value in (1.0, 2.0, 9.0):
    ...     histogram.update(torch.tensor([value]))
    >>> histogram.result().counts.tolist(), histogram.result().edges.tolist()
    ([2, 0, 1], [0.0, 4.0, 8.0, 12.0])

    Args:
        bins: How many; without a range, how many at most, and then 4 at least.
        range: The first bin's lower and the last bin's upper edge.
        per: The dimension that stays, as for :class:`Mean`: each channel has counts of its own, in the same bins. By
            default all numbers are counted together.

    Raises:
        CamtoolError: There are too few ``bins``, or ``range`` does not go from a finite number to a larger one.
    """

    def __init__(self, bins: int = 64, range: tuple[float, float] | None = None, per: int | None = None) -> None:  # noqa: A002
        if bins < (
            fewest := 4 if range is None else 1
        ):  # two on either side of zero hold the largest numbers there are
            raise CamtoolError(f"Histogram: bins is {bins}; it must be {fewest} or more.")
        if range is not None and not -math.inf < range[0] < range[1] < math.inf:
            raise CamtoolError(f"Histogram: range is {range}; it must go from a finite number to a larger one.")
        self._bins, self._per, self._missed = bins, per, 0
        self._counts: Tensor | None = None
        self._scale = None if range is not None else _Scale(bins)
        self._edges = torch.empty(0) if range is None else torch.linspace(*range, bins + 1, dtype=torch.float64)

    def update(self, tensor: Tensor) -> None:
        """Take one more tensor.

        Raises:
            CamtoolError: It has another number of channels than those before.
        """
        if not tensor.numel():
            return
        values = tensor.detach().reshape(1, -1) if self._per is None else _grouped(tensor.detach(), self._per)
        known = self._counts
        if self._scale is not None and (finite := values[values.isfinite()]).numel():
            known = self._scale.stretch(float(finite.min()), float(finite.max()), known)
            self._edges = self._scale.edges
        if not len(self._edges):  # nothing finite has come yet
            self._missed += values.numel()
            return
        new = _counted(values, self._edges.to(values.device))
        self._missed += values.numel() - int(new.sum())
        self._counts = new if known is None else known + _same_shape(new, known, "Histogram")

    def result(self) -> Counts | None:
        """The counts, the bins' edges, and how many numbers lie in none."""
        if self._counts is None:
            return None
        used = self._bins if self._scale is None else self._scale.used
        counts = self._counts[:, :used]
        return Counts(counts[0] if self._per is None else counts, self._edges[: used + 1], self._missed)


class _Scale:
    """Bins that grow with what they must hold: multiples of a width that is a power of two."""

    def __init__(self, bins: int) -> None:
        self._bins, self._low, self._high, self._width = bins, math.inf, -math.inf, 0.0

    @property
    def edges(self) -> Tensor:
        return (self._first + torch.arange(self._bins + 1, dtype=torch.float64)) * self._width

    @property
    def used(self) -> int:
        return math.floor(self._high / self._width) - self._first + 1

    @property
    def _first(self) -> int:
        """The first bin's number; number 0 begins at zero."""
        return math.floor(self._low / self._width)

    def stretch(self, low: float, high: float, counts: Tensor | None) -> Tensor | None:
        """Make room for values from ``low`` to ``high``; gives the counts ``(G, B)`` in the bins as they are then."""
        if self._low <= low and high <= self._high:
            return counts
        numbers = [] if counts is None else [self._first + place for place in range(self._bins)]
        before = self._width
        self._low, self._high = min(low, self._low), max(high, self._high)
        largest = max(abs(self._low), abs(self._high))
        exponent = math.frexp(largest)[1] if largest else -60
        self._width = self._width or 2.0 ** max(exponent - 40, -1000)  # narrower than anyone needs: it only ever grows
        while self.used > self._bins:
            self._width *= 2
        if counts is None:
            return None
        merged = int(self._width / before)
        places = [min(number // merged - self._first, self._bins - 1) for number in numbers]  # those beyond are empty
        return torch.zeros_like(counts).index_add_(1, torch.tensor(places, device=counts.device), counts)


class Fold:
    """A function of what there is so far, ``None`` at first, and one more tensor, as a reducer.

    >>> total = Fold(lambda so_far, tensor: tensor.sum() + (so_far or 0))
    >>> for _ in range(3):
    ...     total.update(torch.ones(2, 2))
    >>> total.result()
    tensor(12.)
    """

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        self._function = function
        self._so_far: Any = None

    def update(self, tensor: Tensor) -> None:
        """Take one more tensor."""
        self._so_far = self._function(self._so_far, tensor)

    def result(self) -> Any:
        """What the function returned last."""
        return self._so_far


def _grouped(tensor: Tensor, per: int | None) -> Tensor:
    """``(..., M)``: the last dimension is the one to reduce."""
    if per is not None:
        return tensor.movedim(per, 0).flatten(1)
    return tensor.movedim(0, -1) if tensor.ndim else tensor.reshape(1)


def _same_shape(new: Tensor, known: Tensor, reducer: str) -> Tensor:
    if new.shape == known.shape:
        return new
    raise CamtoolError(
        f"{reducer}: a tensor came that gives {tuple(new.shape)} values, after others that gave {tuple(known.shape)}; "
        f"with per=1 it gives one for each channel, whatever the image's size."
    )


def _counted(values: Tensor, edges: Tensor) -> Tensor:
    """How many of the values ``(G, M)`` lie between the edges ``(B + 1,)``: ``(G, B)``."""
    groups, bins = len(values), len(edges) - 1
    counts = torch.zeros(groups * bins, dtype=torch.int64, device=values.device)
    starts = torch.arange(groups, device=values.device)[:, None] * bins
    for part in values.split(max(1, _AT_ONCE // groups), 1):
        exact = part.to(edges.dtype)
        place = torch.bucketize(exact, edges, right=True) - 1
        place = torch.where(exact == edges[-1], bins - 1, place)
        counts += torch.bincount((starts + place)[(place >= 0) & (place < bins)], minlength=groups * bins)
    return counts.reshape(groups, bins)
