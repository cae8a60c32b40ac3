"""Reducers: what is kept of tensors that come one after another, when all of them would not fit into memory.

A reducer has two methods, ``update(tensor)`` and ``result()``. Tensors are a layer's, their first dimension the
images': ``(N, ...)``. The ready-made ones add up in double precision, so it does not matter how images are put into
batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from camtool.errors import CamtoolError

__all__ = ["Counts", "Fold", "Histogram", "Max", "Mean", "Reducer"]

_AT_ONCE, _AT_ONCE_ON_A_GPU = 2**17, 2**22
"""How many numbers are sorted into bins at once: few enough for a processor's cache, or for a small part of a GPU."""

_LARGE = 2**14
"""How many numbers an image has that is better added by itself: a batch of them is too large for such a cache."""


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
            CamtoolError: Its shape does not go with that of those before, or it has no dimension ``per``.
        """
        values = _images(tensor)
        for part in _sums(values, self._per):
            self._total = _zeros(part) if self._total is None else self._total
            self._total += _same_shape(part, self._total, "Mean")
        self._count += math.prod(values.shape[each] for each in _all_but(self._per, values))
        self._dtype = torch.promote_types(values.dtype, torch.float32)

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
            CamtoolError: Its shape does not go with that of those before, it has no dimension ``per``, or its numbers
                are complex.
        """
        values, known = _images(_ordered(tensor, "Max")), self._most
        if values.numel():
            most = values.amax(_all_but(self._per, values))
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
        fewest = 4 if range is None else 1  # two on either side of zero hold the largest numbers there are
        if bins < fewest:
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
            CamtoolError: It has another number of channels than those before, no dimension ``per``, or its numbers are
                complex.
        """
        if not tensor.numel():
            return
        values, known = _grouped(_ordered(tensor, "Histogram").detach(), self._per), self._counts
        if self._scale is not None and (span := _span(values)):
            known = self._scale.stretch(*span, known)
            self._edges = self._scale.edges
        if not len(self._edges):  # nothing finite has come yet
            self._missed += values.numel()
            return
        new = _counted(values, self._bins, self._places)
        self._missed += values.numel() - int(new.sum())
        self._counts = new if known is None else known + _same_shape(new, known, "Histogram")

    def result(self) -> Counts | None:
        """The counts, the bins' edges, and how many numbers lie in none."""
        if self._counts is None:
            return None
        used = self._bins if self._scale is None else self._scale.used
        counts = self._counts[:, :used]
        return Counts(counts[0] if self._per is None else counts, self._edges[: used + 1], self._missed)

    def _places(self, values: Tensor) -> Tensor:
        """The numbers of the bins that values lie in; those in none are below zero, or beyond the last."""
        if self._scale is not None:
            return self._scale.places(values)
        edges = self._edges.to(values.device)
        place = torch.bucketize(values, edges, right=True) - 1
        return torch.where(values == edges[-1], self._bins - 1, place)


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

    def places(self, values: Tensor) -> Tensor:
        """The numbers of the bins that values in double precision lie in, exactly; what is no number lies below."""
        number = (values / self._width).floor_().sub_(self._first)
        return number.nan_to_num_(nan=-1).clamp_(-1, self._bins).to(torch.int64)

    def stretch(self, low: float, high: float, counts: Tensor | None) -> Tensor | None:
        """Make room for values from ``low`` to ``high``; gives the counts ``(G, B)`` in the bins as they are then."""
        if self._low <= low and high <= self._high:
            return counts
        numbers = [] if counts is None else [self._first + place for place in range(self._bins)]
        before = self._width
        self._low, self._high = min(low, self._low), max(high, self._high)
        largest = max(abs(self._low), abs(self._high))
        exponent = math.frexp(largest)[1] if largest else -60
        self._width = max(before, 2.0 ** max(exponent - 40, -1000))  # narrower than anyone needs: it only ever grows
        while self.used > self._bins:
            self._width *= 2
        if counts is None:
            return None
        merged = 2 ** (math.frexp(self._width)[1] - math.frexp(before)[1])
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


def _images(tensor: Tensor) -> Tensor:
    """``(N, ...)``; a tensor without dimensions is one image's."""
    return tensor.detach() if tensor.ndim else tensor.detach().reshape(1)


def _all_but(per: int | None, tensor: Tensor) -> tuple[int, ...]:
    """The dimensions over which to reduce: the images' alone, or all but that which stays."""
    if per is None:
        return (0,)
    if tensor.ndim < 2 or not -tensor.ndim <= per < tensor.ndim:
        raise CamtoolError(
            f"per is {per}, but a tensor of shape {tuple(tensor.shape)} came, which has no such dimension beside the "
            f"images'; leave per out, or reduce other layers."
        )
    return tuple(each for each in range(tensor.ndim) if each != per % tensor.ndim)


def _sums(values: Tensor, per: int | None) -> Iterable[Tensor]:
    """Tensors that come to the sum: large images one by one, as that is several times as fast, on a CPU."""
    over, precise = _all_but(per, values), _precise(values)
    if not values.is_cpu or 0 not in over or values.numel() < _LARGE * len(values):
        return [values.sum(over, dtype=precise)]
    return values if per is None else [image.sum(over, dtype=precise) for image in values.split(1)]


def _precise(values: Tensor) -> torch.dtype:
    dtype = torch.float32 if values.device.type == "mps" else torch.float64
    return dtype.to_complex() if values.is_complex() else dtype


@torch.inference_mode(False)  # so that they can be added to both there and elsewhere
def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=_precise(like))


def _ordered(tensor: Tensor, reducer: str) -> Tensor:
    if tensor.is_complex():
        raise CamtoolError(f"{reducer}: a tensor of complex numbers came, which have no order; leave its layer out.")
    return tensor


def _same_shape(new: Tensor, known: Tensor, reducer: str) -> Tensor:
    if new.shape == known.shape:
        return new
    raise CamtoolError(
        f"{reducer}: a tensor came that gives {tuple(new.shape)} values, after others that gave {tuple(known.shape)}; "
        f"with per=1 it gives one for each channel, whatever the image's size."
    )


def _grouped(tensor: Tensor, per: int | None) -> Tensor:
    """``(G, M)``: what is counted together, one row for each place in the dimension that stays."""
    if per is None:
        return tensor.reshape(1, -1)
    _all_but(per, tensor)  # complains where there is no such dimension
    return tensor.movedim(per, 0).flatten(1)


def _span(values: Tensor) -> tuple[float, float] | None:
    """The smallest and the largest finite value; ``None`` where there is none."""
    low, high = map(float, torch.aminmax(values))
    if math.isfinite(low) and math.isfinite(high):
        return low, high
    finite = values[values.isfinite()]
    return _span(finite) if finite.numel() else None


def _counted(values: Tensor, bins: int, places: Callable[[Tensor], Tensor]) -> Tensor:
    """How many of the values ``(G, M)`` lie in each bin: ``(G, B)``."""
    groups, all_bins = len(values), bins + 2  # one on either side for what is missed
    counts = torch.zeros(groups * all_bins, dtype=torch.int64, device=values.device)
    starts = torch.arange(groups, device=values.device)[:, None] * all_bins + 1
    for part in values.split(max(1, (_AT_ONCE if values.is_cpu else _AT_ONCE_ON_A_GPU) // groups), 1):
        place = places(part.to(torch.float64)).clamp_(-1, bins)
        counts += torch.bincount((place + starts).flatten(), minlength=groups * all_bins)
    return counts.reshape(groups, all_bins)[:, 1:-1]
