"""The axis of the channels in each module's output, found from the modules that compute or read it.

The input and the output of a convolution have channels first. A ReLU has the layout of its input. If a shape alone can
be read in two ways, because there are as many channels as rows and columns, this decides.

======================================= =============== ==========================================================
modules                                 channels        certainty
======================================= =============== ==========================================================
convolutions, batch and instance norms, axis 1          certain
group norms, pooling, padding,
up-sampling, pixel shuffles
names that end in 1d, 2d, 3d            axis 1          likely: the naming convention of torch, e.g. torchvision's
                                                        ``FrozenBatchNorm2d`` and ``LayerNorm2d``
``LayerNorm``, ``RMSNorm``, ``Linear``  the last axis   likely: they may be applied along another axis of the image
activations, dropout, ``Identity``      as in the input that of the input
others that contain modules             as in these     likely: if all outputs inside of the same shape agree
======================================= =============== ==========================================================

What is known of an output holds for each view of it with permuted axes, as its strides show: of a container that
returns the output of its last child, or of ``permute``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from camtool.hooks.tracing import TracedCall

# Names of modules that torch.nn has for signals, images and volumes: each with ``1d``, ``2d`` or ``3d`` at its end.
_FIRST_BY_DIMENSION = (
    *("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm", "Dropout"),
    *("AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "LPPool", "MaxPool", "MaxUnpool"),
    *("CircularPad", "ConstantPad", "ReflectionPad", "ReplicationPad"),
)

# Modules that take and return ``(N, C, *grid)``.
_FIRST: tuple[type[nn.Module], ...] = (
    *(
        getattr(nn, f"{name}{axes}d")
        for name in _FIRST_BY_DIMENSION
        for axes in (1, 2, 3)
        if hasattr(nn, f"{name}{axes}d")  # LPPool3d is missing in older releases
    ),
    *(nn.SyncBatchNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d),
    *(nn.ChannelShuffle, nn.PixelShuffle, nn.PixelUnshuffle, nn.Upsample, nn.Softmax2d, nn.FeatureAlphaDropout),
)

# Modules that work along the last axis, unless a subclass overrides their ``forward``. torch 2.4 added RMSNorm.
_LAST: tuple[type[nn.Module], ...] = (nn.LayerNorm, *([nn.RMSNorm] if hasattr(nn, "RMSNorm") else []), nn.Linear)


def _is_activation(value: object) -> bool:
    """Check that a value in torch's module of activations is an activation function."""
    # Attention is defined in the same module.
    is_module = isinstance(value, type) and issubclass(value, nn.Module) and value is not nn.MultiheadAttention
    return is_module and value.__module__ == nn.modules.activation.__name__


# Modules whose output has the layout of their input.
_ELEMENTWISE = (
    *(member for member in vars(nn.modules.activation).values() if _is_activation(member)),
    nn.Dropout,
    nn.AlphaDropout,
    nn.Identity,
)

# Class names like ``Conv2d``.
_NAMED_FIRST = re.compile(r"[1-3][dD]$")

_WIDTHS_IN = ("in_channels", "num_features", "num_channels")
# Attributes with the number of channels of a module's input, and of its output.
_WIDTHS_OUT = ("out_channels", "num_features", "num_channels")


@dataclass(frozen=True)
class ChannelAxis:
    """The axis of the channels, and whether that is certain or only likely."""

    axis: int
    is_certain: bool


def find_channel_axes(calls: Sequence[TracedCall]) -> list[ChannelAxis | None]:
    """Return for each call the axis of the channels in its output, ``None`` if it is unknown.

    Certain axes override likely ones. Among equally certain ones, that of the module itself comes first, then that of
    the nearest module.

    Args:
        calls: One forward pass, from :func:`camtool.hooks.tracing.trace`.
    """
    links = _find_links(calls)
    channel_axes: list[ChannelAxis | None] = [None] * len(calls)
    # Certain axes first, because what was found before is not overridden.
    for is_certain in (True, False):
        certain = [*_read_outputs(calls, is_certain=is_certain), *_read_inputs(calls, is_certain=is_certain)]
        _spread([(index, ChannelAxis(axis, is_certain)) for index, axis in certain], links, channel_axes)
    _spread(_read_containers(calls, channel_axes), links, channel_axes)
    return channel_axes


def _read_outputs(calls: Sequence[TracedCall], *, is_certain: bool) -> Iterator[tuple[int, int]]:
    """Yield the axes that are known from the modules that returned an output: index of the call, and axis."""
    for index, call in enumerate(calls):
        axis = _find_own_axis(call.module, len(call.shape or ()), is_certain=is_certain)
        if axis is not None and _has_width(call.module, _WIDTHS_OUT, call.shape, axis):
            yield index, axis


def _read_inputs(calls: Sequence[TracedCall], *, is_certain: bool) -> Iterator[tuple[int, int]]:
    """Yield the axes that are known from the modules that got an output: index of its call, and axis."""
    for call in calls:
        if call.source is None:
            continue
        source = calls[call.source]
        order = _find_permutation(source.strides, call.source_strides)
        axis = None if order is None else _find_own_axis(call.module, len(order), is_certain=is_certain)
        if order is not None and axis is not None and _has_width(call.module, _WIDTHS_IN, source.shape, order[axis]):
            yield call.source, order[axis]


def _read_containers(
    calls: Sequence[TracedCall], channel_axes: Sequence[ChannelAxis | None]
) -> Iterator[tuple[int, ChannelAxis]]:
    """Yield the axes of containers, e.g. of residual blocks, if all outputs inside of the same shape agree."""
    for index, call in enumerate(calls):
        # Only where all axes have one length: elsewhere the shape itself shows the grid.
        if call.name and channel_axes[index] is None and call.shape and len(set(call.shape[1:])) == 1:
            axis = _find_axis_inside(calls[:index], call, channel_axes)
            if axis is not None:
                yield index, ChannelAxis(axis, is_certain=False)


def _find_axis_inside(
    before: Sequence[TracedCall], call: TracedCall, channel_axes: Sequence[ChannelAxis | None]
) -> int | None:
    """Return the axis of the channels on which all outputs inside of a container agree that have its shape."""
    around = f"{call.name}."
    inside = [i for i, child in enumerate(before) if child.shape == call.shape and child.name.startswith(around)]
    axes = {None if channels is None else channels.axis for channels in (channel_axes[i] for i in inside)}
    return axes.pop() if len(axes) == 1 else None


def _find_own_axis(module: nn.Module, axes: int, *, is_certain: bool) -> int | None:
    """Return the axis of the channels in a module's input and output with ``axes`` axes; ``None`` if unknown."""
    # A batch of vectors has no grid.
    if axes < 3:
        return None
    if isinstance(module, _FIRST) or hasattr(module, "axes_without_grid"):
        # Layers of Keras say it of their outputs with a grid; their tokens and signals have the channels last.
        return 1 if is_certain and axes > getattr(module, "axes_without_grid", 2) else None
    if is_certain:
        return None
    if _NAMED_FIRST.search(type(module).__name__):
        return 1
    return axes - 1 if any(type(module).forward is module_class.forward for module_class in _LAST) else None


def _has_width(module: nn.Module, names: Iterable[str], shape: tuple[int, ...] | None, axis: int) -> bool:
    """Check that an axis is as long as the module's number of channels, if the module has such an attribute."""
    width = next((getattr(module, name) for name in names if hasattr(module, name)), None)
    return shape is not None and (not isinstance(width, int) or shape[axis] == width)


# -------------------------------------------------------------------------------------------------- spreading

# Index of another call and, for each axis of its output, the same axis in the output of this call.
_Link = tuple[int, tuple[int, ...]]


def _find_links(calls: Sequence[TracedCall]) -> list[list[_Link]]:
    """Return for each call the calls whose outputs have the same axes, possibly permuted."""
    links: list[list[_Link]] = [[] for _ in calls]
    for index, call in enumerate(calls):
        if call.passes_through and index:
            _link(links, index - 1, index, _find_permutation(calls[index - 1].strides, call.strides))
        has_same_axes = isinstance(call.module, _ELEMENTWISE) and len(call.strides) == len(call.source_strides)
        if call.source is not None and has_same_axes:
            _link(links, call.source, index, _find_permutation(calls[call.source].strides, call.source_strides))
    return links


def _link(links: list[list[_Link]], first: int, second: int, order: tuple[int, ...] | None) -> None:
    """Add a link between two calls, in both directions, if the order of their axes is known."""
    if order is not None:
        links[first].append((second, order))
        links[second].append((first, tuple(map(order.index, range(len(order))))))


def _find_permutation(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return for each axis of a view its axis in the original; ``None`` if the strides are ambiguous."""
    if before == after:
        return tuple(range(len(before)))
    # Equal strides occur at axes of length 1, which cannot be distinguished.
    is_reordered = sorted(before) == sorted(after) and len(set(before)) == len(before)
    return tuple(map(before.index, after)) if is_reordered else None


def _spread(
    certain: Iterable[tuple[int, ChannelAxis]], links: Sequence[Sequence[_Link]], channel_axes: list[ChannelAxis | None]
) -> None:
    """Store known axes and those that follow from them along the links. What was found before stays."""
    waiting = deque(certain)
    while waiting:
        index, channels = waiting.popleft()
        if channel_axes[index] is None:
            channel_axes[index] = channels
            for other, order in links[index]:
                waiting.append((other, ChannelAxis(order.index(channels.axis), channels.is_certain)))
