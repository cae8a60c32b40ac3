"""Which layer to look at, and how its output is laid out.

One forward on the real input lists what every module returned. Outputs that can be read as a grid over the picture are
candidates. A second forward asks the model what shapes alone cannot tell: whether the score's gradient reaches the
grid's positions and, where a shape reads as a grid in two ways, which reading moves in the corner where the picture was
changed. The deepest candidate that passes is chosen, and the answer is kept per model and input shape.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from camtool.errors import LayerError
from camtool.hooks import Call, Inputs, main_tensor, map_tensors, module_named, observe, trace

__all__ = ["Candidate", "Layer", "Layout", "resolve", "survey"]

Score: TypeAlias = Callable[[object], Tensor]
"""The model's output for N images → one score per image, ``(N,)``."""

_MOST_ASKED = 32
"""How many of the deepest candidates the second forward asks about: it bounds the graph that it records."""

_MOST_PREFIX_TOKENS = 16

_SILENT = "no gradient reaches it"

_POOLS = (
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._MaxPoolNd,
)
"""Layers that only coarsen what an earlier layer already showed."""


@dataclass(frozen=True)
class Layout:
    """How a tensor is read as a grid over the picture.

    Attributes:
        kind: ``"channels first"`` is ``(N, C, *grid)``, ``"channels last"`` is ``(N, *grid, C)`` and ``"tokens"`` is
            ``(N, prefix + h·w, C)``.
        grid: The positions along each axis of the picture, ``(h, w)`` for images.
        prefix: How many tokens (class, distillation, registers) stand before those of the grid.
    """

    kind: Literal["channels first", "channels last", "tokens"]
    grid: tuple[int, ...]
    prefix: int = 0

    def to_grid(self, tensor: Tensor) -> Tensor:
        """The layer's tensor as ``(N, C, *grid)``, without the prefix tokens."""
        if self.kind == "tokens":
            return tensor[:, self.prefix :].transpose(1, 2).reshape(len(tensor), -1, *self.grid)
        return tensor.movedim(-1, 1) if self.kind == "channels last" else tensor

    def from_grid(self, maps: Tensor, like: Tensor) -> Tensor:
        """The inverse: ``(M, C, *grid)`` in the layer's own layout, with the prefix tokens of ``like`` ``(1, ...)``."""
        if self.kind == "tokens":
            prefix = like[:, : self.prefix].expand(len(maps), -1, -1)
            return torch.cat([prefix, maps.flatten(2).transpose(1, 2)], dim=1)
        return maps.movedim(1, -1) if self.kind == "channels last" else maps

    def __str__(self) -> str:
        prefix = f" after {self.prefix}" if self.prefix else ""
        return f"{self.kind}, {_times(self.grid)}{prefix}"


@dataclass(frozen=True)
class Layer:
    """A layer that carries a map: its dotted name in the model, and how to read what it returns."""

    name: str
    layout: Layout


@dataclass(frozen=True)
class Candidate:
    """A module whose output can be read as a grid.

    Attributes:
        name: Its dotted name; of several modules that hand on the very same values, the outermost.
        kind: The module's class.
        shape: The shape of what it returned for one image.
        layout: How that is read.
        verdict: Why it was chosen or not, in a few words.
        chosen: Whether maps are drawn there when no layer is asked for.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    layout: Layout
    verdict: str = ""
    chosen: bool = False


# ---------------------------------------------------------------------------------------------------- resolving


def resolve(
    model: nn.Module, inputs: Inputs, names: Sequence[str] | None = None, *, like: Layout | None = None
) -> list[Layer]:
    """The layers to look at: those asked for, or else the best one.

    The answer is remembered as long as the model lives, per shape of input.

    Args:
        model: Any module.
        inputs: What the model will be called with.
        names: Dotted names. ``None`` for the deepest layer with a grid that the score's gradient reaches.
        like: How the named layers are laid out, where that is known from a picture of another size.

    Raises:
        LayerError: A name is unknown or its output is no grid; or nothing in the model qualifies. The message lists
            the near misses.
    """
    known = _RESOLVED.setdefault(model, {})
    key = (_shapes(inputs), None if names is None else tuple(names), like and replace(like, grid=()))
    if key not in known or not known[key].holds(model):
        found = [_best(model, inputs)] if names is None else _asked_for(model, inputs, names, like)
        known[key] = _Resolved.of(model, found)
    return known[key].layers


@dataclass(frozen=True)
class _Resolved:
    layers: list[Layer]
    modules: list[weakref.ref[nn.Module]]

    @classmethod
    def of(cls, model: nn.Module, layers: list[Layer]) -> _Resolved:
        return cls(layers, [weakref.ref(model.get_submodule(layer.name)) for layer in layers])

    def holds(self, model: nn.Module) -> bool:
        """Whether the layers are still the modules they were: a head or a block may have been replaced since."""
        try:
            modules = [module_named(model, layer.name) for layer in self.layers]
        except LayerError:
            return False
        return all(module is ref() for module, ref in zip(modules, self.modules, strict=True))


_RESOLVED: weakref.WeakKeyDictionary[nn.Module, dict[object, _Resolved]] = weakref.WeakKeyDictionary()


def _best(model: nn.Module, inputs: Inputs) -> Layer:
    candidates = survey(model, inputs)
    for candidate in candidates:
        if candidate.chosen:
            return Layer(candidate.name, candidate.layout)
    if not candidates:
        raise LayerError(
            "no layer of the model can carry a map: none returned a grid over the "
            f"{_times(_picture_size(inputs))} input. If one does in a way of its own, name it with layer=..."
        )
    misses = "; ".join(f"{c.name} {c.shape}: {c.verdict}" for c in candidates[-5:])
    hint = " Is the model's head still all zeros, untrained?" if all(c.verdict == _SILENT for c in candidates) else ""
    raise LayerError(f"no layer of the model can carry a map ({misses}).{hint} Name a layer with layer=...")


def _asked_for(model: nn.Module, inputs: Inputs, names: Sequence[str], like: Layout | None) -> list[Layer]:
    size, one = _picture_size(inputs), _first_image(inputs)
    calls = {id(call.module): call for call in trace(model, one)}  # the last call of each module
    layers = []
    for name in names:
        call = calls.get(id(module_named(model, name)))
        if call is None:
            raise LayerError(f"layer {name!r} did not run in this forward; choose one that the model uses.")
        readings = _readings(call.shape, size)
        if like is not None:
            readings = [each for each in readings if (each.kind, each.prefix) == (like.kind, like.prefix)]
        if not readings:
            carriers = ", ".join(c.name for c in _candidates(list(calls.values()), size)[-5:])
            raise LayerError(
                f"layer {name!r} returned {call.shape or 'no tensor'}, which is no grid over the {_times(size)} input. "
                f"Layers near the output that are: {carriers or 'none'}."
            )
        layout = readings[0] if len(readings) == 1 else _ask_which(model, inputs, name, readings)
        layers.append(Layer(name, layout))
    return layers


def _ask_which(model: nn.Module, inputs: Inputs, name: str, readings: list[Layout]) -> Layout:
    tensor = observe(model, [name], _with_changed_corner(inputs), grad=False).calls[name][-1]
    return _reading_that_moves_there(tensor, readings)


# ---------------------------------------------------------------------------------------------------- surveying


def survey(model: nn.Module, inputs: Inputs) -> list[Candidate]:
    """All modules whose output is a grid, shallow to deep, each with a verdict, the best one marked as chosen.

    It takes two forwards: one for the shapes, one, on the picture and on the picture with a changed corner, for the
    gradient and for shapes that can be read in two ways.
    """
    size = _picture_size(inputs)
    candidates = _candidates(trace(model, _first_image(inputs)), size)
    asked = _verdicts(model, inputs, candidates[-_MOST_ASKED:], size)
    best = max((i for i, candidate in enumerate(asked) if not candidate.verdict), default=None)
    for i, candidate in enumerate(asked):
        if i == best:
            asked[i] = replace(candidate, chosen=True, verdict="the deepest that the score's gradient reaches")
        elif not candidate.verdict:
            asked[i] = replace(candidate, verdict="good, but not the deepest")
    shallow = [replace(candidate, verdict="shallow, not looked into") for candidate in candidates[:-_MOST_ASKED]]
    return shallow + asked


def _candidates(calls: list[Call], size: tuple[int, ...]) -> list[Candidate]:
    candidates = []
    for group in _groups(calls):
        grids = [call for call in group if _readings(call.shape, size)]
        call = min(grids, key=lambda call: call.name.count("."), default=None)  # the outermost; of equals, the first
        if call and call.shape and not isinstance(call.module, _POOLS):
            layout = _readings(call.shape, size)[0]
            candidates.append(Candidate(call.name, type(call.module).__name__, call.shape, layout))
    return candidates


def _groups(calls: list[Call]) -> list[list[Call]]:
    """Calls that handed on the very same values, together; of a module's calls only the last; without the model."""
    last = {call.name: i for i, call in enumerate(calls)}
    groups: list[list[Call]] = []
    for i, call in enumerate(calls):
        if not call.handed_on:
            groups.append([])
        if groups and call.name and last[call.name] == i:
            groups[-1].append(call)
    return [group for group in groups if group]


def _verdicts(model: nn.Module, inputs: Inputs, candidates: list[Candidate], size: tuple[int, ...]) -> list[Candidate]:
    """Each candidate with its layout settled, and a verdict where something speaks against it."""
    if not candidates:
        return []
    names = [candidate.name for candidate in candidates]
    observation = observe(model, names, _with_changed_corner(inputs))
    tensors = [observation.calls[name][-1] for name in names]
    output = main_tensor(observation.output)
    gradients = _gradients_of_top_score(output, tensors)
    classes = output.shape[1] if output is not None and output.ndim > 1 else 1
    judged = []
    for candidate, tensor, gradient in zip(candidates, tensors, gradients, strict=True):
        layout = _reading_that_moves_there(tensor.detach(), _readings(candidate.shape, size))
        maps, slopes = layout.to_grid(tensor.detach()), None if gradient is None else layout.to_grid(gradient[:1])
        judged.append(replace(candidate, layout=layout, verdict=_fault(maps, slopes, classes)))
    return judged


def _gradients_of_top_score(output: Tensor | None, tensors: list[Tensor]) -> Sequence[Tensor | None]:
    """How the first image's highest score depends on each tensor; ``None`` for all where there is no graph to ask."""
    if output is None or not output.requires_grad or not output.numel():
        return [None] * len(tensors)
    with torch.inference_mode(False), torch.enable_grad():
        score = output[0].amax(0).sum()
        return torch.autograd.grad(score, tensors, materialize_grads=True)


def _fault(maps: Tensor, gradient: Tensor | None, classes: int) -> str:
    """What speaks against a layer with these maps of both pictures and this gradient; nothing: the empty string."""
    if len(maps) != 2 or torch.equal(maps[0], maps[1]):
        return "it does not depend on the picture"
    if gradient is None:
        return ""
    reached = gradient[0].ne(0)
    positions = reached.any(0)
    if not positions.any():
        return _SILENT
    # One row of an attention matrix, or the class token's neighbour, is not a grid that the score looks at.
    one_row = len(positions) > 2 and positions.ndim == 2 and positions.any(1).sum() == 1
    if one_row or positions.sum() <= max(1.0, 0.05 * positions.numel()):
        return "the score's gradient reaches hardly any of its positions"
    if len(reached) == classes > 1 and reached.flatten(1).any(1).sum() == 1:
        return "it holds the classes' own score maps, not features"
    return ""


# ------------------------------------------------------------------------------------------------ reading shapes


def _readings(shape: tuple[int, ...] | None, size: tuple[int, ...]) -> list[Layout]:
    """The ways in which one image's output can be read as a grid, of more than one position, over ``size``."""
    if shape is None or shape[:1] != (1,):  # windows or regions in the place of images are not a grid
        return []
    readings: list[Layout] = []
    if len(shape) == len(size) + 2:
        if _follows(shape[2:], size):
            readings.append(Layout("channels first", shape[2:]))
        if _follows(shape[1:-1], size):
            readings.append(Layout("channels last", shape[1:-1]))
    elif len(shape) == 3 and len(size) == 2:
        for prefix in range(min(_MOST_PREFIX_TOKENS, shape[1]) + 1):
            grid = _token_grid(shape[1] - prefix, size)
            if grid:
                return [Layout("tokens", grid, prefix)]
    return readings


def _follows(grid: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """Whether the grid has the picture's proportions, up to the position that padding and rounding may cost."""
    if math.prod(grid) <= 1 or any(cells > pixels for cells, pixels in zip(grid, size, strict=True)):
        return False
    stride = (math.prod(size) / math.prod(grid)) ** (1 / len(size))
    return all(abs(pixels / stride - cells) <= 1 + 0.05 * cells for cells, pixels in zip(grid, size, strict=True))


def _token_grid(tokens: int, size: tuple[int, ...]) -> tuple[int, int] | None:
    """The ``(h, w)`` of so many square patches over the picture, ``None`` where they do not fill it."""
    if tokens <= 1:
        return None
    patch = round(math.sqrt(math.prod(size) / tokens))
    if patch < 1:
        return None
    height, width = size[0] // patch, size[1] // patch
    return (height, width) if height * width == tokens else None


def _reading_that_moves_there(tensor: Tensor, readings: list[Layout]) -> Layout:
    """Of several readings the one whose changed corner moved most; ``tensor`` is of both pictures, ``(2, ...)``."""
    if len(readings) == 1 or len(tensor) != 2:
        return readings[0]

    def share(layout: Layout) -> float:
        maps = layout.to_grid(tensor)
        moved = (maps[1] - maps[0]).abs().mean(0)
        corner = moved[tuple(slice(math.ceil(cells / 2)) for cells in layout.grid)]
        return float(corner.mean() / moved.mean().clamp_min(torch.finfo(moved.dtype).tiny))

    return max(readings, key=share)


# ------------------------------------------------------------------------------------------------------- inputs


def _picture(inputs: Inputs) -> Tensor:
    picture = main_tensor(inputs)
    if picture is None or picture.ndim < 3:
        came = "no tensor" if picture is None else f"shape {tuple(picture.shape)}"
        raise LayerError(f"inputs must hold a batch of pictures (N, C, H, W), got {came}; pass a 4-D tensor.")
    return picture


def _picture_size(inputs: Inputs) -> tuple[int, ...]:
    return tuple(_picture(inputs).shape[2:])


def _first_image(inputs: Inputs) -> Inputs:
    first: Inputs = map_tensors(inputs, lambda tensor: tensor[:1])
    return first


def _with_changed_corner(inputs: Inputs) -> Inputs:
    """The first image twice; in the second copy the quadrant at the top left is turned over and made negative."""
    picture = _picture(inputs)

    def double(tensor: Tensor) -> Tensor:
        if tensor is not picture:
            return torch.cat([tensor[:1], tensor[:1]])
        changed = tensor[:1].clone()
        corner = changed
        for axis, pixels in enumerate(picture.shape[2:], start=2):
            corner = corner.narrow(axis, 0, max(1, pixels // 2))
        corner.copy_(-corner.flip(-1))
        if torch.equal(changed, tensor[:1]):  # a black picture, say
            corner.add_(1)
        return torch.cat([tensor[:1], changed])

    doubled: Inputs = map_tensors(inputs, double)
    return doubled


def _shapes(inputs: Inputs) -> tuple[tuple[int, ...], ...]:
    shapes: list[tuple[int, ...]] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append(tuple(tensor.shape[1:]))
        return tensor

    map_tensors(inputs, note)
    return tuple(shapes)


def _times(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))
