"""Reducers: statistics of many tensors that together would not fit into memory.

A reducer has two methods, ``update(tensor)`` and ``result()``. The tensors are inputs or outputs of a layer, ``(N,
...)`` with the images along the first dimension. The reducers here sum in double precision, so the result does not
depend on how the images are split into batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from camtool.errors import CamtoolError

# The number of values that are sorted into bins at once. On a CPU they fit into the cache (1 MiB in double precision).
# A GPU needs more of them to be busy, but they should take only a small part of its memory (32 MiB).
_CHUNK, _CHUNK_ON_GPU = 2**17, 2**22

# From this number of values per image on, images are summed one by one: a batch of them exceeds the cache.
_LARGE = 2**14


@runtime_checkable
class Reducer(Protocol):
    """A statistic that is updated with one tensor after another."""

    def update(self, tensor: Tensor, /) -> None:
        """Include one more tensor."""

    def result(self) -> Any:
        """Return the statistic of all tensors so far; ``None`` before the first."""


class Mean:
    """The mean over all images.

    >>> mean = Mean()
    >>> mean.update(torch.tensor([[1.0, 10.0], [2.0, 20.0]]))
    >>> mean.update(torch.tensor([[6.0, 60.0]]))
    >>> mean.result().tolist()
    [3.0, 30.0]

    Args:
        per: The dimension to keep. The mean is taken over all others. Use 1 for the channels of ``(N, C, h, w)``, and
            -1 for the channels of tokens ``(N, L, C)``. By default the mean is taken over the images only.
    """

    def __init__(self, per: int | None = None) -> None:
        self._per, self._count, self._dtype = per, 0, torch.float32
        self._total: Tensor | None = None

    def update(self, tensor: Tensor) -> None:
        """Include one more tensor.

        Raises:
            CamtoolError: Its shape does not fit the shapes before, or it has no dimension ``per``.
        """
        values = _to_batch(tensor)
        for part in _split_sum(values, self._per):
            self._total = _make_zeros(part) if self._total is None else self._total
            self._total += _check_same_shape(part, self._total, "Mean")
        self._count += math.prod(values.shape[dim] for dim in _get_reduced_dims(self._per, values))
        self._dtype = torch.promote_types(values.dtype, torch.float32)

    def result(self) -> Tensor | None:
        """Return the mean, at least in single precision."""
        return (self._total / self._count).to(self._dtype) if self._total is not None and self._count else None


class Max:
    """The maximum over all images.

    >>> largest = Max(per=1)
    >>> largest.update(torch.tensor([[[1.0, 2.0], [10.0, 20.0]]]))
    >>> largest.update(torch.tensor([[[4.0, 3.0], [0.0, 0.0]]]))
    >>> largest.result().tolist()
    [4.0, 20.0]

    Args:
        per: The dimension to keep, as in :class:`Mean`. By default the maximum is taken over the images only.
    """

    def __init__(self, per: int | None = None) -> None:
        self._per = per
        self._most: Tensor | None = None

    def update(self, tensor: Tensor) -> None:
        """Include one more tensor.

        Raises:
            CamtoolError: Its shape does not fit the shapes before, it has no dimension ``per``, or it is complex.
        """
        values, largest = _to_batch(_check_ordered(tensor, "Max")), self._most
        if values.numel():
            most = values.amax(_get_reduced_dims(self._per, values))
            self._most = most if largest is None else torch.maximum(largest, _check_same_shape(most, largest, "Max"))

    def result(self) -> Tensor | None:
        """Return the maximum."""
        return self._most


class Counts(NamedTuple):
    """The result of a :class:`Histogram`.

    Attributes:
        counts: The number of values in each bin, ``(B,)``, or ``(C, B)`` with one row per channel.
        edges: The edges of the bins, ``(B + 1,)``. A value on an edge belongs to the bin above it, except for the last
            edge, which belongs to the last bin.
        missed: The number of values in no bin: outside of the range, infinite, or NaN.
    """

    counts: Tensor
    edges: Tensor
    missed: int


class Histogram:
    """A histogram of all values.

    >>> histogram = Histogram(bins=4, range=(0, 8))
    >>> histogram.update(torch.tensor([0.0, 1.0, 2.0, 7.0, 8.0, 9.0]))
    >>> counts, edges, missed = histogram.result()
    >>> counts.tolist(), edges.tolist(), missed
    ([2, 1, 0, 2], [0.0, 2.0, 4.0, 6.0, 8.0], 1)

    Without a range the bins adapt to the values: they are as narrow as possible with ``bins`` of them. When values come
    that do not fit, neighboring bins are merged. The width of the bins is a power of two and the edges are multiples of
    it, so the order of the values does not change the result.

    >>> histogram = Histogram(bins=4)
    >>> for value in (1.0, 2.0, 9.0):
    ...     histogram.update(torch.tensor([value]))
    >>> histogram.result().counts.tolist(), histogram.result().edges.tolist()
    ([2, 0, 1], [0.0, 4.0, 8.0, 12.0])

    Args:
        bins: The number of bins. Without a range it is the largest number, and at least 4.
        range: The lower edge of the first bin, and the upper edge of the last.
        per: The dimension to keep, as in :class:`Mean`: each channel has its own counts, in the same bins. By default
            all values are counted together.

    Raises:
        CamtoolError: ``bins`` is too small, or ``range`` does not go from a finite number to a larger one.
    """

    def __init__(self, bins: int = 64, range: tuple[float, float] | None = None, per: int | None = None) -> None:  # noqa: A002
        fewest = 4 if range is None else 1  # two on either side of zero hold the largest numbers there are
        if bins < fewest:
            raise CamtoolError(f"Histogram: bins is {bins}; it must be {fewest} or more.")
        if range is not None and not -math.inf < range[0] < range[1] < math.inf:
            raise CamtoolError(f"Histogram: range is {range}; it must go from a finite number to a larger one.")
        self._bins, self._per, self._missed = bins, per, 0
        self._counts: Tensor | None = None
        self._scale = None if range is not None else _AdaptiveBins(bins)
        self._edges = torch.empty(0, device="cpu")
        if range is not None:
            self._edges = torch.linspace(*range, bins + 1, dtype=torch.float64, device="cpu")

    def update(self, tensor: Tensor) -> None:
        """Include one more tensor.

        Raises:
            CamtoolError: It has another number of channels than those before, no dimension ``per``, or it is complex.
        """
        if not tensor.numel():
            return
        values, counts = _group_values(_check_ordered(tensor, "Histogram").detach(), self._per), self._counts
        if self._scale is not None and (span := _find_range(values)):
            counts = self._scale.stretch(*span, counts)
            self._edges = self._scale.edges
        if not len(self._edges):  # nothing finite has come yet
            self._missed += values.numel()
            return
        new = _count_values(values, self._bins, self._find_bins)
        self._missed += values.numel() - int(new.sum())
        self._counts = new if counts is None else counts + _check_same_shape(new, counts, "Histogram")

    def result(self) -> Counts | None:
        """Return the counts, the edges, and the number of values in no bin."""
        if self._counts is None:
            return None
        used = self._bins if self._scale is None else self._scale.used
        counts = self._counts[:, :used]
        return Counts(counts[0] if self._per is None else counts, self._edges[: used + 1], self._missed)

    def _find_bins(self, values: Tensor) -> Tensor:
        """Return the index of the bin of each value; an index out of range if it is in none."""
        if self._scale is not None:
            return self._scale.find_bins(values)
        edges = self._edges.to(values.device)
        index = torch.bucketize(values, edges, right=True) - 1
        return torch.where(values == edges[-1], self._bins - 1, index)


class _AdaptiveBins:
    """Bins that adapt to the values. Their edges are multiples of a width that is a power of two."""

    def __init__(self, bins: int) -> None:
        self._bins, self._low, self._high, self._width = bins, math.inf, -math.inf, 0.0

    @property
    def edges(self) -> Tensor:
        return (self._first + torch.arange(self._bins + 1, dtype=torch.float64, device="cpu")) * self._width

    @property
    def used(self) -> int:
        return math.floor(self._high / self._width) - self._first + 1

    @property
    def _first(self) -> int:
        """The number of the first bin. Bin number 0 begins at zero."""
        return math.floor(self._low / self._width)

    def find_bins(self, values: Tensor) -> Tensor:
        """Return the exact index of the bin of each value in double precision; -1 for NaN."""
        number = (values / self._width).floor_().sub_(self._first)
        return number.nan_to_num_(nan=-1).clamp_(-1, self._bins).to(torch.int64)

    def stretch(self, low: float, high: float, counts: Tensor | None) -> Tensor | None:
        """Adapt the bins to values from ``low`` to ``high``, and return the counts ``(G, B)`` in the new bins."""
        if self._low <= low and high <= self._high:
            return counts
        numbers = [] if counts is None else [self._first + index for index in range(self._bins)]
        before = self._width
        self._low, self._high = min(low, self._low), max(high, self._high)
        largest = max(abs(self._low), abs(self._high))
        exponent = math.frexp(largest)[1] if largest else -60
        # The first width is far too small (2**-40 of the largest value), as it can only grow. 2**-1000 is still a
        # normal number in double precision.
        self._width = max(before, 2.0 ** max(exponent - 40, -1000))
        while self.used > self._bins:
            self._width *= 2
        if counts is None:
            return None
        merged = 2 ** (math.frexp(self._width)[1] - math.frexp(before)[1])
        # Beyond the last bin the counts are zero.
        indices = [min(number // merged - self._first, self._bins - 1) for number in numbers]
        return torch.zeros_like(counts).index_add_(1, torch.tensor(indices, device=counts.device), counts)


class Fold:
    """A reducer that calls a function of the result so far (``None`` at first) and the next tensor.

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
        """Include one more tensor."""
        self._so_far = self._function(self._so_far, tensor)

    def result(self) -> Any:
        """Return the latest result of the function."""
        return self._so_far


def _to_batch(tensor: Tensor) -> Tensor:
    """Return a tensor ``(N, ...)``. One without dimensions belongs to one image."""
    return tensor.detach() if tensor.ndim else tensor.detach().reshape(1)


def _get_reduced_dims(per: int | None, tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions to reduce: that of the images only, or all except ``per``."""
    if per is None:
        return (0,)
    if tensor.ndim < 2 or not -tensor.ndim <= per < tensor.ndim:
        raise CamtoolError(
            f"per is {per}, but a tensor of shape {tuple(tensor.shape)} has no such dimension besides that of the "
            f"images; leave per out, or reduce other layers."
        )
    return tuple(dim for dim in range(tensor.ndim) if dim != per % tensor.ndim)


def _split_sum(values: Tensor, per: int | None) -> Iterable[Tensor]:
    """Return tensors to be added up. On a CPU, to sum large images one by one is several times faster."""
    over, precise = _get_reduced_dims(per, values), _get_sum_dtype(values)
    if not values.is_cpu or 0 not in over or values.numel() < _LARGE * len(values):
        return [values.sum(over, dtype=precise)]
    return values if per is None else [image.sum(over, dtype=precise) for image in values.split(1)]


def _get_sum_dtype(values: Tensor) -> torch.dtype:
    dtype = torch.float32 if values.device.type == "mps" else torch.float64
    return dtype.to_complex() if values.is_complex() else dtype


@torch.inference_mode(False)  # so that they can be written to inside and outside of inference mode
def _make_zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=_get_sum_dtype(like))


def _check_ordered(tensor: Tensor, reducer: str) -> Tensor:
    if tensor.is_complex():
        raise CamtoolError(f"{reducer}: complex numbers have no order; leave this layer out.")
    return tensor


def _check_same_shape(new: Tensor, kept: Tensor, reducer: str) -> Tensor:
    if new.shape == kept.shape:
        return new
    raise CamtoolError(
        f"{reducer}: a tensor gives {tuple(new.shape)} values, but those before gave {tuple(kept.shape)}; "
        f"with per=1 there is one per channel, for images of any size."
    )


def _group_values(tensor: Tensor, per: int | None) -> Tensor:
    """Return values ``(G, M)``, with one row for each group that is counted together."""
    if per is None:
        return tensor.reshape(1, -1)
    _get_reduced_dims(per, tensor)  # raises an error if there is no such dimension
    return tensor.movedim(per, 0).flatten(1)


def _find_range(values: Tensor) -> tuple[float, float] | None:
    """Return the smallest and the largest finite value; None if there is none."""
    low, high = map(float, torch.aminmax(values))
    if math.isfinite(low) and math.isfinite(high):
        return low, high
    finite = values[values.isfinite()]
    return _find_range(finite) if finite.numel() else None


def _count_values(values: Tensor, bins: int, find_bins: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the number of values ``(G, M)`` in each bin, ``(G, B)``."""
    values = values.cpu() if values.device.type == "mps" else values  # which has no float64
    groups, all_bins = len(values), bins + 2  # two extra bins count the values that are too small or too large
    counts = torch.zeros(groups * all_bins, dtype=torch.int64, device=values.device)
    starts = torch.arange(groups, device=values.device)[:, None] * all_bins + 1
    for part in values.split(max(1, (_CHUNK if values.is_cpu else _CHUNK_ON_GPU) // groups), 1):
        index = find_bins(part.to(torch.float64)).clamp_(-1, bins)
        counts += torch.bincount((index + starts).flatten(), minlength=groups * all_bins)
    return counts.reshape(groups, all_bins)[:, 1:-1]
