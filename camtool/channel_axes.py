"""The axis of a module's output that holds the channels, told by the module that made it and by those that got it.

A convolution's layout is known. So is that of what a convolution is given, and a ReLU hands it on. Where a shape alone
could be read in two ways (as many channels as there are rows and columns) this settles it.

======================================= =============== ==========================================================
modules                                 channels        how far it is trusted
======================================= =============== ==========================================================
convolutions, batch and instance norms, axis 1          certain
group norms, pooling, padding,
up-sampling, pixel shuffles
names that end in 1d, 2d, 3d            axis 1          likely: the naming convention of torch, e.g. torchvision's
                                                        ``FrozenBatchNorm2d`` and ``LayerNorm2d``
``LayerNorm``, ``RMSNorm``, ``Linear``  the last axis   likely: they can be applied along another axis of the image
activations, dropout, ``Identity``      as given        as far as its input
others that contain modules             as in these     likely: where all inside that return the same shape agree
======================================= =============== ==========================================================

What is stated of one output holds for each view of it, with its axes in another order (a container that hands on what
its last child returned, ``permute``), as the strides of the views show.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from camtool.hooks import Call

__all__ = ["ChannelAxis", "channel_axes"]

_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._LPPoolNd,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._MaxUnpoolNd,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
    nn.modules.padding._CircularPadNd,
    nn.modules.padding._ConstantPadNd,
    nn.modules.padding._ReflectionPadNd,
    nn.modules.padding._ReplicationPadNd,
    nn.ChannelShuffle,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.Softmax2d,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.FeatureAlphaDropout,
    nn.Upsample,
)
"""Modules that work on ``(N, C, *grid)`` and return the same."""

_LAST: tuple[type[nn.Module], ...] = (nn.LayerNorm, *([nn.RMSNorm] if hasattr(nn, "RMSNorm") else []), nn.Linear)
"""Modules that work along the last axis, where their ``forward`` is not overridden."""


def _is_activation(thing: object) -> bool:
    """Check that a name of torch's module of activations is one: attention lives there as well."""
    is_module = isinstance(thing, type) and issubclass(thing, nn.Module) and thing is not nn.MultiheadAttention
    return is_module and thing.__module__ == nn.modules.activation.__name__


_ELEMENTWISE = (
    *(each for each in vars(nn.modules.activation).values() if _is_activation(each)),
    nn.Dropout,
    nn.AlphaDropout,
    nn.Identity,
)
"""Modules that return the axes they were given."""

_NAMED_FIRST = re.compile(r"[1-3][dD]$")

_WIDTHS_IN = ("in_channels", "num_features", "num_channels")
_WIDTHS_OUT = ("out_channels", "num_features", "num_channels")


@dataclass(frozen=True)
class ChannelAxis:
    """An axis that holds the channels, and whether that is certain or only likely."""

    axis: int
    is_certain: bool


def channel_axes(calls: Sequence[Call]) -> list[ChannelAxis | None]:
    """Return for each call the axis of its output that holds the channels, ``None`` where nothing tells.

    Certain statements are spread first, so they decide against likely ones; of two that are as certain, the one from
    the nearer module decides, and a module's own before all others.

    Args:
        calls: One forward pass, as :func:`camtool.hooks.trace` lists it.
    """
    links = _links(calls)
    found: list[ChannelAxis | None] = [None] * len(calls)
    for is_certain in (True, False):
        stated = [*_of_outputs(calls, is_certain=is_certain), *_of_inputs(calls, is_certain=is_certain)]
        _spread([(place, ChannelAxis(axis, is_certain)) for place, axis in stated], links, found)
    _spread(_of_containers(calls, found), links, found)
    return found


def _of_outputs(calls: Sequence[Call], *, is_certain: bool) -> Iterator[tuple[int, int]]:
    """Yield what modules state of their own outputs: the place of the call, and the axis."""
    for place, call in enumerate(calls):
        axis = _axis_of(call.module, len(call.shape or ()), is_certain=is_certain)
        if axis is not None and _has_width(call.module, _WIDTHS_OUT, call.shape, axis):
            yield place, axis


def _of_inputs(calls: Sequence[Call], *, is_certain: bool) -> Iterator[tuple[int, int]]:
    """Yield what modules state of what they were given: the place of the call that returned it, and the axis."""
    for call in calls:
        if call.given is None:
            continue
        giver = calls[call.given]
        order = _order(giver.strides, call.given_strides)
        axis = None if order is None else _axis_of(call.module, len(order), is_certain=is_certain)
        if order is not None and axis is not None and _has_width(call.module, _WIDTHS_IN, giver.shape, order[axis]):
            yield call.given, order[axis]


def _of_containers(calls: Sequence[Call], found: Sequence[ChannelAxis | None]) -> Iterator[tuple[int, ChannelAxis]]:
    """Yield what follows for outputs of containers, e.g. of a residual block, whose shape itself tells nothing."""
    for place, call in enumerate(calls):
        if call.name and found[place] is None and call.shape and len(set(call.shape[1:])) == 1:
            around = f"{call.name}."
            inside = [i for i in range(place) if calls[i].shape == call.shape and calls[i].name.startswith(around)]
            known = [found[i] for i in inside]
            axes = {channels.axis for channels in known if channels is not None}
            if len(axes) == 1 and None not in known:
                yield place, ChannelAxis(axes.pop(), is_certain=False)


def _axis_of(module: nn.Module, axes: int, *, is_certain: bool) -> int | None:
    """Return the axis that a module takes for the channels, out of so many; ``None`` where the table has no answer."""
    if axes < 3:
        return None
    if isinstance(module, _FIRST):
        return 1 if is_certain else None
    if is_certain:
        return None
    if _NAMED_FIRST.search(type(module).__name__):
        return 1
    return axes - 1 if any(type(module).forward is each.forward for each in _LAST) else None


def _has_width(module: nn.Module, names: Iterable[str], shape: tuple[int, ...] | None, axis: int) -> bool:
    """Check that an axis is as long as the module's number of channels, where it tells that."""
    width = next((getattr(module, name) for name in names if hasattr(module, name)), None)
    return shape is not None and (not isinstance(width, int) or shape[axis] == width)


# -------------------------------------------------------------------------------------------------- spreading

_Link = tuple[int, tuple[int, ...]]
"""Another call's place, and for each axis of its output the axis of this one that it is."""


def _links(calls: Sequence[Call]) -> list[list[_Link]]:
    """Return for each call the calls whose outputs have its axes, in the same order or in another."""
    links: list[list[_Link]] = [[] for _ in calls]
    for place, call in enumerate(calls):
        if call.handed_on and place:
            _join(links, place - 1, place, _order(calls[place - 1].strides, call.strides))
        if call.given is not None and _is_elementwise(call):
            _join(links, call.given, place, _order(calls[call.given].strides, call.given_strides))
    return links


def _is_elementwise(call: Call) -> bool:
    return isinstance(call.module, _ELEMENTWISE) and len(call.strides) == len(call.given_strides)


def _join(links: list[list[_Link]], one: int, other: int, order: tuple[int, ...] | None) -> None:
    if order is not None:
        links[one].append((other, order))
        links[other].append((one, tuple(map(order.index, range(len(order))))))


def _order(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return for each axis of a view the axis of the original that it is; ``None`` where the strides do not tell."""
    if before == after:
        return tuple(range(len(before)))
    is_reordered = sorted(before) == sorted(after) and len(set(before)) == len(before)
    return tuple(map(before.index, after)) if is_reordered else None


def _spread(
    stated: Iterable[tuple[int, ChannelAxis]], links: Sequence[Sequence[_Link]], found: list[ChannelAxis | None]
) -> None:
    """Fill in what was stated, and along the links what follows from it; what is known already stays."""
    waiting = deque(stated)
    while waiting:
        place, channels = waiting.popleft()
        if found[place] is None:
            found[place] = channels
            for other, order in links[place]:
                waiting.append((other, ChannelAxis(order.index(channels.axis), channels.is_certain)))
