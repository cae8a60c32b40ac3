"""Layout of a module's output: which axes are the channels and which are the grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from camtool.hooks.observation import EntriesPerImage
from camtool.layers.survey_batches import VARIANTS

# Number of positions along each axis of the image, ``(h, w)`` for photos.
Grid: TypeAlias = tuple[int, ...]

# Upper bound on prefix tokens. Known models have at most 8 registers and a class token. A larger bound would fit a
# grid to almost any number of tokens.
_MOST_PREFIX_TOKENS = 16

# Factor by which another layout must respond more strongly than the likely one to be chosen instead. In random
# networks that mix positions widely, the wrong layout responded up to 1.2 times as strongly in 90 of 100 networks. The
# right one responded at least 1.28 times as strongly in all networks that were tried.
_MIN_RESPONSE_RATIO = 1.2


# Contrast from which the response to another half of the image has a place. In attention that mixes all positions it
# stays below 4, in tokens with skip connections it is 5 to 100.
_CONTRAST = 5.0

# Share of the change that lies in the changed half, at most, if the tokens are in another order. By chance it is
# about 0.55, and 0 if the order is backwards. In 88 transformers with random weights it is larger wherever the contrast
# is large, but for layers of Hiera within its stages: their tokens are in another order, and it is 0.5.
_AGREEMENT = 0.8

# Number of cells from which a share of them says something.
FEWEST_CELLS = 16

# Correlation from which tokens have a place on the image, along each axis. The chosen layers of all transformers in
# the tests have 0.49 to 1; for 64 learned queries, which look at all of the image, it is below 0.2.
_PLACED = 0.35

# Correlation that tokens without a place exceed along all axes of a grid in about 0.2 % of random orders, times the
# root of the number of cells, by the number of axes.
_PLACED_BY_CHANCE = {1: 2.9, 2: 1.6, 3: 1.1}

# Largest correlation that is required: the cells of 2 x 2 and 3 x 3 transformers have 0.76 and more.
_MOST_REQUIRED = 0.75

# Distance from the center of a cell, relative to the image, at which the expected response falls to 1/e: a band.
_BAND_WIDTH = 0.25

# Cells count as moved if the correlation of their responses with other places is higher by this than with their own
# places. Of 79 networks of torchvision and timm with random weights, none counts, and 74 do behind a mirrored
# image; the others hardly tell places apart. A ResNet has 1.6 behind a mirrored image, 0.8 behind a turned one, and 0.4
# behind one that is rolled by an eighth.
_MOVED_MARGIN = 0.4

# Number of places along each axis to which the grid is rolled for that.
_SHIFTS = 8

# Factor by which the best of these places must fit better than a single one, so that it is no chance. With it, random
# but smooth responses of 4 x 4 cells, the fewest, seldom count as moved.
_SEARCH_MARGIN = 1.5

# Share of the pairs of a cell in the changed half and another one, of which the first responds more, from which a grid
# begins at the right token. A grid of 14 columns that begins one token early or late has 0.86 or less.
_MIN_EXACT_PAIRS = 0.99

# Change of a token, relative to the largest one, up to which it counts as rounding.
UNCHANGED = 1e-4

# Share of the cells on each side of the border that do not count there, because convolutions overlap.
_EXACT_MARGIN = 0.25

# Largest change of unchanged frames, relative to the changed ones. It is 0 for networks that run on each frame, and 1
# if the entries of the batch are no frames or in another order.
_MAX_FRAME_LEAK = 0.5


# Kinds of layouts where the frames of a clip are entries of the layer's batch.
_OF_FRAMES = ("frames", "frames channels last", "frame tokens")


@dataclass(frozen=True)
class Layout:
    """Axes of a tensor: which are the channels, and which are the grid over the image.

    Attributes:
        kind: ``"channels first"`` is ``(N, C, *grid)``, ``"channels last"`` is ``(N, *grid, C)``, ``"tokens"`` is
            ``(N, prefix + h·w + suffix, C)``. ``"frames"`` is ``(N·T, C, h, w)``, ``"frames channels last"`` is
            ``(N·T, h, w, C)``, and ``"frame tokens"`` is ``(N·T, prefix + h·w + suffix, C)``: a network for images that
            runs on each frame of clips, or each view of objects.
        grid: Number of positions along each axis of the image, ``(h, w)`` for photos and ``(T, h, w)`` for clips.
        prefix: Number of tokens before those of the grid: class token, distillation token, registers, or the queries of
            a segmenter.
        suffix: Number of tokens after those of the grid: the queries of a detector.
        positions: Where the cells lie among all tokens, row by row, if there are others in between, e.g. registers or
            line breaks in a text, or if they are not in this order, as those of several tiles; else empty.
        views: The entries of the batch that belong to one image, if the model joins several inputs to one batch.
        view: The index of the entry that shows the image itself.
    """

    kind: Literal["channels first", "channels last", "tokens", "frames", "frames channels last", "frame tokens"]
    grid: Grid
    prefix: int = 0
    suffix: int = 0
    positions: tuple[int, ...] = ()
    views: EntriesPerImage | None = None
    view: int = 0

    @classmethod
    def from_positions(cls, grid: Grid, positions: Sequence[int], tokens: int) -> Layout:
        """Return the layout of some of a number of tokens, which are the cells of the grid, row by row."""
        first, last = min(positions), max(positions)
        is_run = list(positions) == list(range(first, last + 1))
        return cls("tokens", grid, first, tokens - 1 - last, () if is_run else tuple(positions))

    @property
    def token_count(self) -> int:
        """Number of all tokens, those beside the grid's included; for frames those of one frame."""
        cells = math.prod(self.grid[1:] if self.has_frames else self.grid)
        between = max(self.positions) + 1 - self.prefix if self.positions else cells
        return self.prefix + between + self.suffix

    @property
    def cells(self) -> Sequence[int]:
        """Where the cells lie among all tokens, row by row; for frames among those of one frame."""
        return self.positions or range(self.prefix, self.token_count - self.suffix)

    @property
    def others(self) -> list[int]:
        """The indices of the tokens that are no cells."""
        return sorted({*range(self.token_count)}.difference(self.cells))

    @property
    def has_tokens(self) -> bool:
        """True if the cells are tokens in a row, not axes of the tensor."""
        return self.kind in ("tokens", "frame tokens")

    @property
    def has_frames(self) -> bool:
        """True if the frames of a clip are entries of the layer's batch."""
        return self.kind in _OF_FRAMES

    @property
    def entries(self) -> EntriesPerImage | None:
        """The entries of the layer's batch that belong to one image: frames or views; None if each image has one."""
        return EntriesPerImage(self.grid[0]) if self.kind in _OF_FRAMES else self.views

    def fits(self, shape: Sequence[int], images: int) -> bool:
        """Check that a tensor of this shape, kept by ``run_with_hooks``, has this layout's grid.

        Args:
            shape: The shape.
            images: The number of images.
        """
        if shape[0] != images:
            return False
        if self.views is not None:
            is_split = shape[1] == self.views.count
            return is_split and replace(self, views=None).fits((shape[0], *shape[2:]), images)
        if self.kind == "frames":
            return len(shape) == len(self.grid) + 2 and (shape[1], *shape[3:]) == self.grid
        if self.kind in ("tokens", "frame tokens"):
            return tuple(shape[1:-1]) == (*self.grid[: int(self.has_frames)], self.token_count)
        return tuple(shape[2:] if self.kind == "channels first" else shape[1:-1]) == self.grid

    def to_grid(self, tensor: Tensor) -> Tensor:
        """Return the layer's tensor as ``(N, C, *grid)``, without prefix and suffix tokens."""
        if self.views is not None and tensor.ndim > (3 if self.has_tokens else len(self.grid) + 2):
            tensor = tensor[:, self.view]
        if self.kind == "tokens":
            of_grid = tensor[:, [*self.positions] or slice(self.prefix, tensor.shape[1] - self.suffix)]
            return of_grid.transpose(1, 2).reshape(len(tensor), -1, *self.grid)
        if self.kind in _OF_FRAMES:
            return self._frames_to_grid(tensor)
        return tensor.movedim(-1, 1) if self.kind == "channels last" else tensor

    def from_grid(self, maps: Tensor, like: Tensor) -> Tensor:
        """Return maps ``(M, C, *grid)`` in the layer's own layout: the inverse of :meth:`to_grid`.

        Args:
            maps: The values of the grid.
            like: One output of the layer, ``(1, ...)``. Its prefix and suffix tokens, and other views, are repeated for
                each map.
        """
        if self.views is not None:
            around = like.expand(len(maps), *like.shape[1:])
            own = replace(self, views=None).from_grid(maps, like[:, self.view])
            return torch.cat([around[:, : self.view], own[:, None], around[:, self.view + 1 :]], 1)
        if self.kind == "tokens":
            return self._put_cells(like.expand(len(maps), -1, -1), maps.flatten(2).transpose(1, 2))
        if self.kind == "frames":
            return maps.movedim(2, 1)
        if self.kind == "frame tokens":
            return self._put_cells(like.expand(len(maps), -1, -1, -1), maps.movedim(1, -1).flatten(2, 3))
        return maps.movedim(1, -1) if self.kind.endswith("channels last") else maps

    def _put_cells(self, tokens: Tensor, cells: Tensor) -> Tensor:
        """Return tokens ``(..., L, C)`` with those of the grid replaced by ``(..., h·w, C)``."""
        if self.positions:
            return tokens.index_copy(-2, torch.tensor(self.positions, device=tokens.device), cells)
        # An index would have to be copied to a GPU, for which the host waits.
        after = tokens.shape[-2] - self.prefix - cells.shape[-2]
        before, _, behind = tokens.split([self.prefix, cells.shape[-2], after], -2)
        return torch.cat([before, cells, behind], -2)

    def select_view(self, tensor: Tensor) -> Tensor:
        """Return the entries ``(N, ...)`` that show the image, of a layer's tensor with the views in its batch."""
        if self.views is None or len(tensor) % self.views.count:  # the latter is no batch of the images
            return tensor
        return self.views.split(tensor)[:, self.view]

    def has_other_frames(self, tensor: Tensor) -> bool:
        """Check that the entries of a layer's batch are not the frames of each clip in turn.

        Args:
            tensor: The output for the images of :func:`camtool.layers.survey_batches.vary_corner`.
        """
        return self.has_frames and not _follows_frames(self.to_grid(tensor)[:VARIANTS])

    def _frames_to_grid(self, tensor: Tensor) -> Tensor:
        axes = 4 if self.kind == "frame tokens" else 5
        # Outputs that were not observed for this layout still have the frames in their batch.
        clips = tensor if tensor.ndim == axes else tensor.unflatten(0, (-1, self.grid[0]))
        if self.kind == "frame tokens":
            clips = clips[:, :, self.prefix : clips.shape[2] - self.suffix].unflatten(2, self.grid[1:])
        return clips.movedim(2, 1) if self.kind == "frames" else clips.movedim(-1, 1)

    def __str__(self) -> str:
        prefix = f" after {self.prefix}" if self.prefix else ""
        suffix = f" before {self.suffix}" if self.suffix else ""
        between = len(self.others) - self.prefix - self.suffix
        around = f" around {between}" if between else ""
        view = f", view {self.view} of {self.views.count}" if self.views else ""
        return f"{self.kind}, {' x '.join(map(str, self.grid))}{around}{prefix}{suffix}{view}"


@dataclass(frozen=True)
class Layer:
    """A layer that carries a map: its dotted name in the model, and how its output is read.

    Attributes:
        name: The dotted name.
        layout: How the output is read.
        passed_over: Name of the last of most layers behind it, if it was chosen instead of them only because it is
            uncertain where the image lies in their tokens; else empty.
    """

    name: str
    layout: Layout
    passed_over: str = field(default="", compare=False)


def find_token_layout(tokens: int, size: Sequence[int], known_grids: Sequence[Grid] = ()) -> Layout | None:
    """Find the grid that a number of tokens forms over an image, after as few prefix tokens as possible.

    Args:
        tokens: Number of tokens, those of a prefix included.
        size: Size of the image, ``(H, W)``.
        known_grids: Grids that other outputs of the model have. They are tried first, and may have any proportions.

    Returns:
        The layout, or ``None`` if the tokens form no grid.
    """
    by_positions = {math.prod(grid): grid for start in known_grids for grid in _iterate_pooled(start)}
    # The fewest prefix tokens first: with more of them, smaller grids fit by accident.
    for prefix in range(min(_MOST_PREFIX_TOKENS, tokens) + 1):
        grid = by_positions.get(tokens - prefix) or _find_square_patches(tokens - prefix, size)
        if grid:
            return Layout("tokens", grid, prefix)
    return find_concatenated_level(tokens, known_grids)


def find_concatenated_level(tokens: int, known_grids: Sequence[Grid]) -> Layout | None:
    """Return the last of several known grids whose positions are concatenated, the finest first; None if none are.

    Deformable DETR and its successors concatenate feature levels. A detection that samples a few points of each level
    leaves hardly any trace in a fine one, so the coarsest level is read.
    """
    finest_first = sorted(set(known_grids), key=math.prod, reverse=True)
    for first in range(len(finest_first)):
        for last in range(first + 1, len(finest_first)):
            before = sum(map(math.prod, finest_first[first:last]))
            if before + math.prod(finest_first[last]) == tokens:
                return Layout("tokens", finest_first[last], before)
    return None


def choose_layout(tensor: Tensor, layouts: Sequence[Layout]) -> Layout:
    """Return the layout whose upper left corner responds most where the upper left corner of the image was changed.

    The first layout is returned unless another one responds clearly more.

    Args:
        tensor: ``(V, ...)``, the layer's outputs for the images of :func:`camtool.layers.survey_batches.vary_corner`,
            with those of all entries of the batch. Further variants are not read.
        layouts: Possible layouts, the likely one first; at least one.
    """
    if len(layouts) == 1 or len(tensor) < 2:
        return layouts[0]

    def compute_response(layout: Layout) -> float:
        """Return the change in the corner, relative to the mean change."""
        maps = layout.to_grid(layout.select_view(tensor))[:VARIANTS]
        change = (maps[1:] - maps[:1]).abs().mean((0, 1))
        # Rounded up, because a position may cover changed and unchanged pixels.
        corner = change[tuple(slice(math.ceil(cells / 2)) for cells in layout.grid)]
        return float(corner.mean() / change.mean().clamp_min(torch.finfo(change.dtype).tiny))

    first, best = layouts[0], max(layouts, key=compute_response)
    return best if compute_response(best) > _MIN_RESPONSE_RATIO * compute_response(first) else first


def _follows_frames(clips: Tensor) -> bool:
    """Check that a layer's frames are those of the clip, in their order.

    The entries of its batch may be in another order, or be the channels of a clip with its frames first.

    Args:
        clips: ``(V, C, T, h, w)``, outputs for a clip and for variants whose first half of the frames was changed.
    """
    change = (clips[1:] - clips[:1]).abs().mean((0, 1, 3, 4))
    half = max(1, len(change) // 2)
    # Networks that mix neighboring frames change some of the others.
    return float(change[half:].mean()) < _MAX_FRAME_LEAK * float(change[:half].mean())


def measure_order(maps: Tensor, *, margin: float = 0.0) -> list[tuple[float, float]]:
    """Return how the cells of a grid respond to another upper half of the image, and to another left half.

    Args:
        maps: ``(3, C, h, w)``, a layer's outputs for an image and for these two variants of it.
        margin: Share of the rows, or columns, that is left out on both sides of the border between the halves.

    Returns:
        For each variant the contrast and the agreement. As many cells as the half has are taken, those that respond
        most: the contrast is their mean change divided by that of the others, the agreement the share of their change
        that lies in the half.
    """
    upper, left = (maps[1:] - maps[:1]).abs().mean(1)
    return [_compare_half(upper, margin), _compare_half(left.T, margin)]


def _compare_half(change: Tensor, margin: float) -> tuple[float, float]:
    """Return contrast and agreement for a change ``(h, w)`` of the upper half of the rows."""
    changed, unchanged = _split_halves(change, margin)
    cells = torch.cat([changed, unchanged]).flatten()
    count, smallest = changed.numel(), torch.finfo(change.dtype).tiny
    order = cells.argsort(descending=True)
    first, others = cells[order[:count]], cells[order[count:]]
    agreement = first[order[:count] < count].sum() / first.sum().clamp_min(smallest)
    return float(first.mean() / others.mean().clamp_min(smallest)), float(agreement)


def _split_halves(change: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Return the cells of the upper half of a change ``(h, w)``, and those of the lower half, without the margin."""
    half, near = len(change) // 2, int(margin * len(change))
    # The row behind the border sees both halves: cells overlap.
    return change[: half - near], change[half + max(near, int(len(change) > 2)) :]


def measure_agreement(change: Tensor, part: Tensor) -> float:
    """Return how much of the change of some cells lies in the part of the image that was changed.

    As many cells as the part has are taken, those that respond most; the result is the share of their change.

    Args:
        change: ``(h, w)``, not negative.
        part: ``(H, W)``, booleans over the image. A cell belongs to it if its center does.
    """
    rows, columns = (
        ((torch.arange(cells, device="cpu") + 0.5) * pixels / cells).long()
        for cells, pixels in zip(change.shape, part.shape, strict=True)
    )
    of_cells = part[rows][:, columns].flatten().to(change.device)
    most = change.flatten().argsort(descending=True)[: int(of_cells.sum())]
    strongest = change.flatten()[most]
    return float(strongest[of_cells[most]].sum() / strongest.sum().clamp_min(torch.finfo(change.dtype).tiny))


def is_in_order(maps: Tensor) -> bool | None:
    """Check that the cells of a grid respond where the image was changed.

    Args:
        maps: As for :func:`measure_order`.

    Returns:
        None if that cannot be decided: there are few cells, or all of them respond alike, as attention lets them.
    """
    if maps.shape[2:].numel() < FEWEST_CELLS:
        return None
    # None for a half where all cells respond alike.
    judgments = [share > _AGREEMENT if contrast >= _CONTRAST else None for contrast, share in measure_order(maps)]
    return False if False in judgments else None if None in judgments else True


def follows_image(maps: Tensor) -> bool:
    """Check that the cells respond most to the bands of the image that they lie in, along each axis.

    What a cell responds to all bands, and all cells to a band, is subtracted. So this finds places even in tokens that
    all respond to everything.

    Args:
        maps: ``(1 + bands * A, C, *grid)``, a layer's outputs for the images of
            :func:`camtool.layers.survey_batches.nudge_bands`; the grid has A axes.
    """
    # A single cell along an axis has no place there.
    correlations = [
        _correlate_with_places(axis_change, axis)
        for axis, axis_change in enumerate(_measure_bands(maps))
        if axis_change.shape[axis + 1] > 1
    ]
    by_chance = _PLACED_BY_CHANCE.get(len(correlations), 0.0) / math.sqrt(maps[0, 0].numel())
    return min(correlations, default=0.0) >= min(max(_PLACED, by_chance), _MOST_REQUIRED)


def lies_elsewhere(maps: Tensor) -> bool:
    """Check that the cells respond to other bands of the image than their own: it was mirrored, turned or rolled.

    Args:
        maps: As for :func:`follows_image`. Of few cells that respond, nothing is known.
    """
    change = _measure_bands(maps)
    axes = [axis for axis, cells in enumerate(maps.shape[2:]) if cells > 1]
    responding = find_responding_cells(maps).sum()
    if responding < FEWEST_CELLS:
        return False
    own = [_correlate_with_places(change[axis], axis) for axis in axes]
    best = [_correlate_with_best_places(change[axis], axes) for axis in axes]
    by_chance = _PLACED_BY_CHANCE.get(len(axes), 0.0) / math.sqrt(responding)
    gain = max(there - here for there, here in zip(best, own, strict=True))
    return gain > _MOVED_MARGIN and min(best) >= max(_PLACED, _SEARCH_MARGIN * by_chance)


def _correlate_with_best_places(change: Tensor, axes: Sequence[int]) -> float:
    """Return the largest correlation of a change ``(bands, *grid)`` with places along any axis, mirrored or rolled."""
    return max(
        _correlate_with_places(change, axis, is_mirrored=is_mirrored, shift=shift)
        for axis in axes
        for is_mirrored in (False, True)
        for shift in range(0, change.shape[axis + 1], max(1, change.shape[axis + 1] // _SHIFTS))
    )


def find_responding_cells(maps: Tensor) -> Tensor:
    """Return booleans ``(*grid)``: which cells respond to any band; a ReLU may leave the others at zero."""
    return _measure_bands(maps).flatten(0, 1).any(0)


def _measure_bands(maps: Tensor) -> Tensor:
    """Return how much cells respond to each band of each axis, ``(A, bands, *grid)``; see :func:`follows_image`."""
    # On the CPU, as not all devices have float64.
    change: Tensor = (maps[1:] - maps[:1]).abs().cpu().double().mean(1).unflatten(0, (maps.ndim - 2, -1))
    return change


def _correlate_with_places(change: Tensor, axis: int, *, is_mirrored: bool = False, shift: int = 0) -> float:
    """Return the correlation of the logarithm of a change ``(bands, *grid)`` with how near bands and cells are.

    Args:
        change: The change of each cell by each band.
        axis: The axis of the grid along which the bands lie.
        is_mirrored: Whether the cells are taken backwards.
        shift: By how many cells the grid is rolled.
    """
    bands, cells = (
        (torch.arange(count, device="cpu").double() + 0.5) / count for count in (len(change), change.shape[axis + 1])
    )
    cells = (1 - cells if is_mirrored else cells).roll(shift)
    near = (-((bands[:, None] - cells) / _BAND_WIDTH).square()).exp()
    near = near.reshape(len(bands), *(-1 if other == axis else 1 for other in range(change.ndim - 1)))
    response = change.clamp_min(torch.finfo(change.dtype).tiny).log()
    # A band that holds no pixel of a tiny image changes nothing, and a cell behind a ReLU may respond to none.
    pair = torch.stack([response, near.expand_as(response)])[:, change.flatten(1).any(1)][..., change.any(0)]
    pair = pair - pair.mean(1, keepdim=True) - pair.mean(2, keepdim=True) + pair.mean((1, 2), keepdim=True)
    norms = pair.norm(dim=(1, 2)).prod()
    return float(pair.prod(0).sum() / norms.clamp_min(torch.finfo(norms.dtype).tiny))


def place_at_changed(layout: Layout, several: Tensor) -> Layout | None:
    """Return a layout of tokens with its grid at those that differ between images; None unless they are as many.

    A class token, registers and queries are parameters of the model until attention has mixed them with the image.

    Args:
        layout: The likely layout.
        several: ``(V, T, C)``, tokens of an image and of others that together differ from it everywhere.
    """
    if layout.kind != "tokens" or several.ndim != 3 or len(several) < 2:
        return None
    change = (several[1:] - several[:1]).abs().amax((0, 2))
    cells = (change > UNCHANGED * change.amax()).nonzero().flatten().tolist()
    if len(cells) != math.prod(layout.grid):
        return None
    return replace(Layout.from_positions(layout.grid, cells, len(change)), views=layout.views, view=layout.view)


def place_cells(layout: Layout, outputs: Sequence[Tensor]) -> Layout | None:
    """Return a layout of tokens with its grid at the tokens that respond as its cells must; None if no place fits.

    A number of tokens does not tell which of them are the class token and registers: they may be the first or the last.
    If they are between the others, :func:`place_at_changed` finds the cells.

    Args:
        layout: The likely layout.
        outputs: ``(3, ...)`` each, for an image and two variants of it, see :func:`measure_order`: those of the first
            layers with as many tokens, where attention has not yet mixed them, and of the layer itself. Those of batch
            size 1, e.g. position embeddings, tell nothing.
    """
    beside = layout.prefix + layout.suffix
    if not layout.has_tokens or layout.positions or not 0 < beside <= _MOST_PREFIX_TOKENS:
        return layout
    outputs = [output for output in outputs if len(output) > 1]
    # What attention has not mixed yet decides alone: behind it, registers respond to everything, as any cell may.
    shown = next(([output] for output in outputs if _has_unchanged_tokens(output)), outputs)
    # Behind a trunk that sees so much of the image that no half changes alone, all cells respond to each half.
    changed = (place_at_changed(layout, output) for output in shown)
    return _place_exactly(layout, shown) or next(filter(None, changed), None)


def _place_exactly(layout: Layout, outputs: Sequence[Tensor]) -> Layout | None:
    """Return a layout with the grid at the tokens of an output that are exact; the likely place comes first."""
    beside = layout.prefix + layout.suffix
    prefixes = (layout.prefix, *range(beside + 1))
    candidates = (replace(layout, prefix=prefix, suffix=beside - prefix) for prefix in prefixes)
    return next((place for place in candidates if any(_is_exact(place, output) for output in outputs)), None)


def _has_unchanged_tokens(output: Tensor) -> bool:
    """Check that some tokens ``(3, T, C)`` do not respond to another half of the image, but others do."""
    change = (output[1:] - output[:1]).abs().amax(-1)
    return bool(change.any() and (change <= UNCHANGED * change.amax()).any())


def _is_exact(layout: Layout, output: Tensor) -> bool:
    """Check that the cells which respond to another half of the image are exactly those of the half."""
    if output.ndim != 3 or output.shape[1] != layout.token_count:
        return False
    maps = layout.to_grid(output).flatten(1, -3)
    upper, left = (maps[1:] - maps[:1]).abs().mean(1).cpu()
    for change in (upper, left.T):
        changed, unchanged = (half.flatten() for half in _split_halves(change, _EXACT_MARGIN))
        less = torch.searchsorted(unchanged.sort().values, changed.contiguous())
        if changed.numel() and not float(less.double().mean()) >= _MIN_EXACT_PAIRS * unchanged.numel():
            return False
    return True


def is_scaled_down(grid: Grid, size: Grid) -> bool:
    """Check that a grid has the proportions of the image, up to one position lost or gained by padding and rounding.

    Time, and the depth of a volume, precede the other two axes and have a stride of their own: they are not compared.
    """
    if math.prod(grid) <= 1 or any(cells > pixels for cells, pixels in zip(grid, size, strict=True)):
        return False
    grid, size = grid[-2:], size[-2:]
    stride = (math.prod(size) / math.prod(grid)) ** (1 / len(size))
    # Each unpadded convolution loses positions at the border: 5 % covers deep ones such as Inception's stem.
    return all(abs(pixels / stride - cells) <= 1 + 0.05 * cells for cells, pixels in zip(grid, size, strict=True))


def is_in_proportion(grid: Grid, size: Grid) -> bool:
    """Check that each position covers exactly as many pixels along one axis as along the others."""
    return all(cells * size[0] == pixels * grid[0] for cells, pixels in zip(grid, size, strict=True))


def _iterate_pooled(grid: Grid) -> Iterator[Grid]:
    """Yield a grid and, for clips, what remains if only height and width are halved, repeatedly."""
    # MViT pools its frames but not time, within attention, where no convolution shows the smaller grid.
    yield grid
    if len(grid) == 3 and grid[1] % 2 == grid[2] % 2 == 0:
        yield from _iterate_pooled((grid[0], grid[1] // 2, grid[2] // 2))


def _find_square_patches(tokens: int, size: Sequence[int]) -> Grid | None:
    """Return ``(h, w)`` if this number of square patches tiles the image, else ``None``."""
    if tokens <= 1 or len(size) != 2:
        return None
    patch = round(math.sqrt(math.prod(size) / tokens))
    if patch < 1 or any(pixels % patch for pixels in size):
        return None
    height, width = size[0] // patch, size[1] // patch
    return (height, width) if height * width == tokens else None
