"""How what a module returned is read as a grid over the picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from camtool.channel_axes import channel_axes
from camtool.hooks import Call

__all__ = ["Layout", "Reader", "enclosing", "reading_that_moves", "token_layout"]

_MOST_PREFIX_TOKENS = 16

_CLEARLY = 1.2
"""Another reading must move so many times as much as the likely one. In random networks that mix positions widely,
the wrong one moved up to 1.2 times as much in 90 of 100, the right one at least 1.28 times in all that were tried."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

Grid = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How a tensor is read as a grid over the picture.

    Attributes:
        kind: ``"channels first"`` is ``(N, C, *grid)``, ``"channels last"`` is ``(N, *grid, C)`` and ``"tokens"`` is
            ``(N, prefix + h·w + suffix, C)``.
        grid: The positions along each axis of the picture, ``(h, w)`` for images.
        prefix: How many tokens (class, distillation, registers) stand before those of the grid.
        suffix: How many (a detector's queries) stand behind them.
    """

    kind: Literal["channels first", "channels last", "tokens"]
    grid: Grid
    prefix: int = 0
    suffix: int = 0

    def fits(self, shape: Sequence[int]) -> bool:
        """Check that a tensor of this shape has this layout's grid."""
        if self.kind == "tokens":
            return len(shape) == 3 and shape[1] == self.prefix + math.prod(self.grid) + self.suffix
        return tuple(shape[2:] if self.kind == "channels first" else shape[1:-1]) == self.grid

    def to_grid(self, tensor: Tensor) -> Tensor:
        """The layer's tensor as ``(N, C, *grid)``, without the tokens that are not of the grid."""
        if self.kind == "tokens":
            of_grid = tensor[:, self.prefix : tensor.shape[1] - self.suffix]
            return of_grid.transpose(1, 2).reshape(len(tensor), -1, *self.grid)
        return tensor.movedim(-1, 1) if self.kind == "channels last" else tensor

    def from_grid(self, maps: Tensor, like: Tensor) -> Tensor:
        """The inverse: ``(M, C, *grid)`` in the layer's own layout, with the other tokens of ``like`` ``(1, ...)``."""
        if self.kind == "tokens":
            around = like.expand(len(maps), -1, -1)
            before, behind = around[:, : self.prefix], around[:, around.shape[1] - self.suffix :]
            return torch.cat([before, maps.flatten(2).transpose(1, 2), behind], dim=1)
        return maps.movedim(1, -1) if self.kind == "channels last" else maps

    def __str__(self) -> str:
        prefix = f" after {self.prefix}" if self.prefix else ""
        suffix = f" before {self.suffix}" if self.suffix else ""
        return f"{self.kind}, {' x '.join(map(str, self.grid))}{prefix}{suffix}"


def token_layout(tokens: int, size: Sequence[int], known: Sequence[Grid] = ()) -> Layout | None:
    """How so many tokens lie over a picture of that size, a few of a prefix first; ``None`` where they do not.

    Args:
        tokens: How many there are.
        size: The picture's, ``(H, W)``.
        known: Grids that the model has elsewhere: tokens that can be one of them are, whatever its proportions.
    """
    by_positions = {math.prod(grid): grid for start in known for grid in _pooled(start)}
    for prefix in range(min(_MOST_PREFIX_TOKENS, tokens) + 1):
        grid = by_positions.get(tokens - prefix) or _square_patches(tokens - prefix, size)
        if grid:
            return Layout("tokens", grid, prefix)
    return _coarsest_level(tokens, known)


def _coarsest_level(tokens: int, known: Sequence[Grid]) -> Layout | None:
    """Tokens that are several of the model's grids, one behind the other and finest first, read as the last of these.

    A detection that looks at a few points of each level leaves hardly any trace in a fine one.
    """
    finest_first = sorted(set(known), key=math.prod, reverse=True)
    for first in range(len(finest_first)):
        for last in range(first + 1, len(finest_first)):
            before = sum(map(math.prod, finest_first[first:last]))
            if before + math.prod(finest_first[last]) == tokens:
                return Layout("tokens", finest_first[last], before)
    return None


class Reader:
    """Reads what the modules returned in one forward of one image, each in the light of the others.

    A shape alone often reads as a grid by accident: queries ``(N, heads, tokens, channels)`` do, where there happen to
    be about as many tokens as channels. What the modules around have returned tells them apart.

    Args:
        calls: The forward, as :func:`camtool.hooks.trace` lists it.
        size: The picture's, ``(H, W)``.
        queries: How many tokens a detector puts behind the picture's, to find a thing each.
    """

    def __init__(self, calls: Sequence[Call], size: Sequence[int], queries: int = 0) -> None:
        self._size, self._queries = tuple(size), queries
        self._shapes = {call.name: call.shape for call in calls}
        self._beside: dict[str, list[tuple[int, ...]]] = {}
        for call in calls:
            self._beside.setdefault(call.name.rpartition(".")[0], []).append(call.shape or ())
        # A convolution has no other layout, so its grid is one even where the model reshaped the picture before it.
        self._convolved = [call.shape[2:] for call in calls if call.shape and self._is_convolved(call)]
        self._channels = {id(call): axis for call, axis in zip(calls, channel_axes(calls), strict=True)}
        self._calls = calls  # they stay alive, so that an id is not given to another one

    def readings(self, call: Call) -> list[Layout]:
        """Return the ways to read one image's output as a grid of more than one position, the likely one first.

        There is only one where the modules around tell which axis holds the channels.
        """
        shape = call.shape
        if shape is None or shape[:1] != (1,):  # windows or regions in the place of images are not a grid
            return []
        if len(shape) == 3 and len(self._size) > 1:
            either = self._with_queries(shape[1]), token_layout(shape[1], self._size, self._convolved)
            layout = min(filter(None, either), key=lambda layout: layout.prefix, default=None)
            return [] if layout is None or self._swaps_channels(call, shape) else [layout]
        if len(shape) != len(self._size) + 2:
            return []
        either = Layout("channels first", shape[2:]), Layout("channels last", shape[1:-1])
        found = [each for each in either if self._is_grid(each.grid) and not self._attends(call, shape, each.grid)]
        return self._as_told(call, found)

    def _as_told(self, call: Call, found: list[Layout]) -> list[Layout]:
        """Return those of several readings whose channels lie where the modules around have them."""
        channels = self._channels.get(id(call))
        axes = {"channels first": 1, "channels last": len(call.shape or ()) - 1}
        told = [each for each in found if channels is not None and axes[each.kind] == channels.axis]
        if told or (channels is not None and channels.is_certain):
            return told
        # Ten channels over 8 x 8 positions can be read as 10 x 8; what has the picture's very proportions comes first.
        return [layout for layout in found if _is_in_proportion(layout.grid, self._size)] or found

    def is_sure(self, layout: Layout) -> bool:
        """Whether a convolution made the grid, or no tokens stand before it that would make room for an accident."""
        return not layout.prefix or layout.grid in self._convolved

    def _with_queries(self, tokens: int) -> Layout | None:
        """How tokens lie over the picture if the last of them are queries."""
        if not 0 < self._queries < tokens:
            return None
        layout = token_layout(tokens - self._queries, self._size, self._convolved)
        return layout and replace(layout, suffix=self._queries)

    def _is_grid(self, grid: Grid) -> bool:
        """Whether this lies over the picture; in a volume each axis may have a stride of its own, so by its like."""
        return _follows(grid, self._size) or (len(self._size) == 3 and grid in self._convolved)

    def _is_convolved(self, call: Call) -> bool:
        shape = call.shape
        is_maps = shape is not None and shape[:1] == (1,) and len(shape) == len(self._size) + 2
        return is_maps and isinstance(call.module, _CONVOLUTIONS) and min(shape[2:]) > 1  # type: ignore[index]

    def _attends(self, call: Call, shape: tuple[int, ...], grid: Grid) -> bool:
        """Whether this is the inside of an attention: heads by tokens, or by the channels of a head, twice."""
        parent = call.name.rpartition(".")[0]
        around = [*self._around(call), *(self._beside[parent] if parent else ())]
        of_a_head = len(set(grid)) == 1 and grid[0] * shape[1]
        return any(len(each) == 3 and (each[1] in grid or each[2] == of_a_head) for each in around)

    def _swaps_channels(self, call: Call, shape: tuple[int, ...]) -> bool:
        """Whether this is the inside of a layer that mixes positions by working on them as if they were channels."""
        return any(len(each) == 3 and each[2] == shape[1] != each[1] for each in self._around(call))

    def _around(self, call: Call) -> list[tuple[int, ...]]:
        """What the modules returned that a call was made within, but for the model itself."""
        return [self._shapes.get(outer) or () for outer in enclosing(call.name)]


def enclosing(name: str) -> Iterator[str]:
    """The names of the modules that a module lies within, the innermost first; without the model's own."""
    while name := name.rpartition(".")[0]:
        yield name


def reading_that_moves(tensor: Tensor, readings: Sequence[Layout]) -> Layout:
    """Return the first of several readings, or another one that moved clearly more where the picture was changed.

    Args:
        tensor: ``(V, ...)``, what a layer returned for a picture and for others with another corner at the top left.
        readings: The ways to read it, the likely one first; one or more.
    """
    if len(readings) == 1 or len(tensor) < 2:
        return readings[0]

    def share(layout: Layout) -> float:
        maps = layout.to_grid(tensor)
        moved = (maps[1:] - maps[:1]).abs().mean((0, 1))
        corner = moved[tuple(slice(math.ceil(cells / 2)) for cells in layout.grid)]
        return float(corner.mean() / moved.mean().clamp_min(torch.finfo(moved.dtype).tiny))

    first, best = readings[0], max(readings, key=share)
    return best if share(best) > _CLEARLY * share(first) else first


def _follows(grid: Grid, size: Grid) -> bool:
    """Whether the grid has the picture's proportions, up to the position that padding and rounding may cost.

    Time, and the depth of a volume, which come before the other two axes, have a stride of their own.
    """
    if math.prod(grid) <= 1 or any(cells > pixels for cells, pixels in zip(grid, size, strict=True)):
        return False
    grid, size = grid[-2:], size[-2:]
    stride = (math.prod(size) / math.prod(grid)) ** (1 / len(size))
    return all(abs(pixels / stride - cells) <= 1 + 0.05 * cells for cells, pixels in zip(grid, size, strict=True))


def _is_in_proportion(grid: Grid, size: Grid) -> bool:
    """Whether each position stands for as many pixels along one axis as along the others."""
    return all(cells * size[0] == pixels * grid[0] for cells, pixels in zip(grid, size, strict=True))


def _pooled(grid: Grid) -> Iterator[Grid]:
    """A grid, and of one over time what is left when only the frames are pooled, to a half and again."""
    yield grid
    if len(grid) == 3 and grid[1] % 2 == grid[2] % 2 == 0:
        yield from _pooled((grid[0], grid[1] // 2, grid[2] // 2))


def _square_patches(tokens: int, size: Sequence[int]) -> Grid | None:
    """The ``(h, w)`` of so many square patches over a picture, ``None`` where they do not fill it."""
    if tokens <= 1 or len(size) != 2:
        return None
    patch = round(math.sqrt(math.prod(size) / tokens))
    if patch < 1 or any(pixels % patch for pixels in size):
        return None
    height, width = size[0] // patch, size[1] // patch
    return (height, width) if height * width == tokens else None
