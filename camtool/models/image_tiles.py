"""Tiles: photos that the processor of a vision-language model cuts to squares of one size.

Such a processor resizes the photo to a rectangle of tiles, and adds a thumbnail of the whole photo as a further tile.
Joined, the tiles are the photo again, cropped and resized. So camtool explains the joined tiles as one image, and the
grids of the tiles as one grid, which is finer than that of the thumbnail. The thumbnail is an image of its own.

Which rows and columns the tiles form is known from the model's own arithmetic, or from markers in the text. Where the
model itself does not know it, the arrangement is taken in which the joined tiles look like the thumbnail.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from camtool.layers.image_tokens_in_text import ImageTokens, TiledImage

# Names of inputs: the joined tiles without padding, the thumbnail, and the joined tiles with padding.
TILES, THUMBNAIL, PADDED_TILES = "pixel_values", "thumbnail", "padded_tiles"

Grid: TypeAlias = tuple[int, int]

# Pixels of a side to which tiles and thumbnail are reduced to compare them: both are resampled, each in its way.
_COMPARED_SIDE = 32

# Correlation from which the joined tiles look like the thumbnail. On 24 photos, cut to 2 to 6 tiles, it is 0.9999 or
# more, as the two only differ by their resampling.
_ALIKE = 0.9

# By how much less any other arrangement must correlate. On those photos it is at least 0.49 less.
_CLEARLY = 0.1

# Largest error of coordinates in float64 that a model has interpolated.
_COORDINATE_ROUNDING = 1e-6


class UnknownTilesError(Exception):
    """The arrangement of an image's tiles is not certain; the message says why."""


class _Text(NamedTuple):
    """A text with an image: all tokens ``(T,)``, and the positions of those that stand for parts of the image."""

    ids: Tensor
    positions: Tensor


class _Arrangement(NamedTuple):
    """Rows and columns of tiles, and positions ``(h, w)`` of their cells and of the thumbnail's cells in the text.

    ``crop`` are the edges, in pixels of the joined tiles, that the cells cover.
    """

    tiles: Grid
    crop: tuple[int, int, int, int]
    cells: Tensor
    cells_of_thumbnail: Tensor


class _Family(NamedTuple):
    """Tiles in the models of one type.

    Attributes:
        arrange: From tiles ``(K, C, H, W)``, thumbnail ``(C, H, W)``, text, model and its other inputs to the
            arrangement.
        thumbnail: Whether the thumbnail comes before the tiles or after them.
        is_stacked: Whether the model takes ``(N, K, C, H, W)``; else ``(N·K, C, H, W)``.
    """

    arrange: Callable[[Tensor, Tensor, _Text, nn.Module, Mapping[str, Any]], _Arrangement]
    thumbnail: Literal["first", "last"]
    is_stacked: bool


def find_tiled_image(
    model: nn.Module, pixels: Tensor, inputs: Mapping[str, Any], placeholder: int | None
) -> TiledImage:
    """Return the arrangement of the tiles of an image, which is the same for all images of the batch.

    Args:
        model: A model of Hugging Face.
        pixels: ``(N, K, C, H, W)``, K tiles for each image, or ``(N·K, C, H, W)``.
        inputs: What the model is called with.
        placeholder: The number of the token that stands for a part of an image; None if it is unknown.

    Raises:
        UnknownTilesError: The arrangement is not certain.
    """
    if pixels.ndim == 5 and pixels.shape[1] == 1:
        crop = (0, 0, pixels.shape[3], pixels.shape[4])
        return TiledImage(1, 1, crop, thumbnail=None, is_stacked=True, tokens={})
    family, text = _find_family(model, is_stacked=pixels.ndim == 5), inputs.get("input_ids")
    if placeholder is None or not isinstance(text, Tensor) or text.ndim != 2:
        raise UnknownTilesError("there is no text that holds them")
    _check_tiles(inputs)
    images = _split_images(pixels, len(text), family)
    arrangements = [
        _find_tiled_image(family, tiles, _Text(ids, (ids == placeholder).nonzero().flatten()), model, inputs, index)
        for index, (tiles, ids) in enumerate(zip(images, text, strict=True))
    ]
    if any(arrangement != arrangements[0] for arrangement in arrangements):
        raise UnknownTilesError("the images of the batch are cut differently; explain them one by one")
    return arrangements[0]


def _find_family(model: nn.Module, *, is_stacked: bool) -> _Family:
    kind = str(getattr(getattr(model, "config", None), "model_type", ""))
    family = _FAMILIES.get(kind)
    if family is None or family.is_stacked != is_stacked:
        raise UnknownTilesError(f"the order of the tiles of {kind or 'this model'} is unknown")
    return family


def _check_tiles(inputs: Mapping[str, Any]) -> None:
    mask, counts = inputs.get("pixel_attention_mask"), inputs.get("batch_num_images")
    if isinstance(mask, Tensor) and not bool(mask.bool().all()):
        raise UnknownTilesError("some of them are padding (pixel_attention_mask)")
    if isinstance(counts, Tensor) and not bool((counts == 1).all()):
        raise UnknownTilesError("the texts have several images")


def _split_images(pixels: Tensor, count: int, family: _Family) -> Tensor:
    """Return tiles as ``(N, K, C, H, W)``.

    Raises:
        UnknownTilesError: They belong to another number of images than of texts, or there is one tile and no thumbnail.
    """
    if len(pixels) != count if family.is_stacked else len(pixels) % count:
        raise UnknownTilesError("the texts have several images, or different numbers of tiles")
    images = pixels if family.is_stacked else pixels.unflatten(0, (count, -1))
    if images.shape[3] != images.shape[4]:
        raise UnknownTilesError("they are no squares")
    return images


def _find_tiled_image(
    family: _Family, images: Tensor, text: _Text, model: nn.Module, inputs: Mapping[str, Any], index: int
) -> TiledImage:
    """Return the arrangement of one image ``(K, C, H, W)`` of a batch."""
    if len(text.positions) == 0:
        raise UnknownTilesError("the text has no tokens of an image")
    sizes = inputs.get("image_sizes")
    others = {**inputs, "image_sizes": sizes[index : index + 1]} if isinstance(sizes, Tensor) else inputs
    tiles, thumbnail = (images[1:], images[0]) if family.thumbnail == "first" else (images[:-1], images[-1])
    arrangement = family.arrange(tiles, thumbnail, text, model, others)
    (rows, columns), side = arrangement.tiles, images.shape[2]
    top, left, bottom, right = arrangement.crop
    seams = (
        tuple(row * side - top for row in range(1, rows) if top < row * side < bottom),
        tuple(column * side - left for column in range(1, columns) if left < column * side < right),
    )

    def describe(cells: Tensor, edges: tuple[tuple[int, ...], tuple[int, ...]]) -> ImageTokens:
        height, width = cells.shape
        return ImageTokens(len(text.ids), tuple(cells.flatten().tolist()), (height, width), edges)

    tokens = {TILES: describe(arrangement.cells, seams), THUMBNAIL: describe(arrangement.cells_of_thumbnail, ((), ()))}
    return TiledImage(
        rows, columns, arrangement.crop, thumbnail=family.thumbnail, is_stacked=family.is_stacked, tokens=tokens
    )


# ----------------------------------------------------------------------------------------------------- join and cut


def join_tiles(pixels: Tensor, tiled: TiledImage) -> dict[str, Tensor]:
    """Return the images that the tiles show, by the names of inputs.

    Args:
        pixels: ``(N, K, C, H, W)`` or ``(N·K, C, H, W)``.
        tiled: The arrangement.

    Returns:
        The joined tiles ``(N, C, h, w)`` and, if there are any, the thumbnail and the joined tiles with their padding.
    """
    count = tiled.rows * tiled.columns
    images = pixels if tiled.is_stacked else pixels.unflatten(0, (-1, count + 1))
    first = int(tiled.thumbnail == "first")
    whole = _join(images[:, first : first + count], tiled.rows, tiled.columns)
    top, left, bottom, right = tiled.crop
    joined = {TILES: whole[..., top:bottom, left:right]}
    if tiled.thumbnail is not None:
        joined[THUMBNAIL] = images[:, 0 if first else count]
    if joined[TILES].shape != whole.shape:
        joined[PADDED_TILES] = whole
    return joined


def cut_tiles(joined: Mapping[str, Tensor], tiled: TiledImage) -> Tensor:
    """Return the tiles of joined images: the inverse of :func:`join_tiles`."""
    whole = joined[TILES]
    if PADDED_TILES in joined:
        around, (top, left, bottom, right) = joined[PADDED_TILES], tiled.crop
        middle = torch.cat([around[..., top:bottom, :left], whole, around[..., top:bottom, right:]], -1)
        whole = torch.cat([around[..., :top, :], middle, around[..., bottom:, :]], -2)
    cells: Tensor = whole.unflatten(3, (tiled.columns, -1)).unflatten(2, (tiled.rows, -1))
    tiles = cells.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    if tiled.thumbnail is not None:
        thumbnail = joined[THUMBNAIL][:, None]
        tiles = torch.cat([thumbnail, tiles] if tiled.thumbnail == "first" else [tiles, thumbnail], 1)
    return tiles if tiled.is_stacked else tiles.flatten(0, 1)


def _join(tiles: Tensor, rows: int, columns: int) -> Tensor:
    """Return tiles ``(N, rows·columns, C, H, W)`` as ``(N, C, rows·H, columns·W)``."""
    cells: Tensor = tiles.unflatten(1, (rows, columns)).permute(0, 3, 1, 4, 2, 5)
    return cells.flatten(4, 5).flatten(2, 3)


# ------------------------------------------------------------------- families whose tiles have equal numbers of tokens


def _arrange_marked(
    tiles: Tensor, thumbnail: Tensor, text: _Text, model: nn.Module, inputs: Mapping[str, Any]
) -> _Arrangement:
    """Arrange the tiles of Idefics3 and SmolVLM.

    Their text has two tokens before each tile: one that all images share, and a marker of row and column. A line break
    comes after each row of tiles, and the thumbnail at the end.
    """
    breaks = (text.positions.diff() > 1).nonzero().flatten() + 1  # where other tokens are in between
    runs = torch.tensor_split(text.positions, breaks.tolist())
    grid, likely = _read_marked_grid(text.ids.tolist(), runs, len(tiles)), _find_likely_arrangement(tiles, thumbnail)
    if likely not in (None, grid):
        raise UnknownTilesError(f"the text has {grid} rows and columns, but the thumbnail shows {likely}")
    *cells, of_thumbnail = map(_to_square, runs)
    return _arrange_equal_tiles(tiles, torch.stack(cells), of_thumbnail, grid)


def _read_marked_grid(ids: list[int], runs: Sequence[Tensor], count: int) -> Grid:
    """Return the rows and columns of ``count`` tiles by the tokens between the runs of their tokens in a text."""
    markers = [ids[int(run[0]) - 1] for run in runs]
    if len(runs) != count + 1 or int(runs[0][0]) < 2 or len({*markers}) != len(markers):
        raise UnknownTilesError(f"the text has {len(runs)} runs of tokens, or no markers of rows and columns")
    shared = ids[int(runs[0][0]) - 2]
    between = [ids[int(run[-1]) + 1 : int(after[0])] for run, after in pairwise(runs)]
    ends = [index for index, tokens in enumerate(between, 1) if tokens[:-1] != [shared]]
    lengths = {end - start for start, end in pairwise([0, *ends])}
    if len(lengths) != 1 or ends[-1] != count:
        raise UnknownTilesError("the rows of tiles in the text have different lengths")
    return len(ends), lengths.pop()


def _arrange_by_thumbnail(
    start: int, tiles: Tensor, thumbnail: Tensor, text: _Text, model: nn.Module, inputs: Mapping[str, Any]
) -> _Arrangement:
    """Arrange the tiles of InternVL or the crops of Gemma 3 ("pan and scan"), whose text tells no rows and columns.

    ``place`` is that of the thumbnail: 0 if it is the first of them in the text, -1 if it is the last.
    """
    cells = _split_evenly(text.positions, len(tiles) + 1)
    of_thumbnail = cells.pop(start)
    return _arrange_equal_tiles(tiles, torch.stack(cells), of_thumbnail, _require_arrangement(tiles, thumbnail))


def _split_evenly(positions: Tensor, count: int) -> list[Tensor]:
    """Return the cells ``(h, h)`` of each of ``count`` tiles."""
    if len(positions) % count or count < 3:
        raise UnknownTilesError(f"the text has {len(positions)} tokens for {count} of them")
    return [*map(_to_square, positions.reshape(count, -1))]


def _to_square(positions: Tensor) -> Tensor:
    side = math.isqrt(len(positions))
    if side**2 != len(positions):
        raise UnknownTilesError(f"{len(positions)} tokens of a tile form no square")
    return positions.reshape(side, side)


def _arrange_equal_tiles(tiles: Tensor, cells: Tensor, of_thumbnail: Tensor, grid: Grid) -> _Arrangement:
    """Return the arrangement of tiles whose cells ``(K, h, w)`` are given one tile after the other."""
    rows, columns = grid
    crop = (0, 0, rows * tiles.shape[2], columns * tiles.shape[3])
    return _Arrangement(grid, crop, _join(cells[None, :, None], rows, columns)[0, 0], of_thumbnail)


def _require_arrangement(tiles: Tensor, thumbnail: Tensor) -> Grid:
    likely = _find_likely_arrangement(tiles, thumbnail)
    if likely is None:
        raise UnknownTilesError("they do not look like the last or first of them in one arrangement only")
    return likely


def _find_likely_arrangement(tiles: Tensor, thumbnail: Tensor) -> Grid | None:
    """Return the rows and columns in which the tiles look like the thumbnail; None if that is not clear."""
    count, expected = len(tiles), _reduce(thumbnail[None])
    grids = [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]
    alike = {grid: _correlate(_reduce(_join(tiles[None], *grid)), expected) for grid in grids}
    best = max(grids, key=lambda grid: alike[grid])
    is_clear = all(alike[grid] < alike[best] - _CLEARLY for grid in grids if grid != best)
    return best if is_clear and alike[best] > _ALIKE else None


def _reduce(images: Tensor) -> Tensor:
    return functional.adaptive_avg_pool2d(images.detach().cpu().double(), _COMPARED_SIDE)


def _correlate(first: Tensor, second: Tensor) -> float:
    """Return Pearson's correlation of the pixels of two images; 0 if one of them is the same everywhere."""
    return float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1].nan_to_num())


# ----------------------------------------------------------------------- families that drop the padding of joined tiles


def _arrange_packed(
    tiles: Tensor, thumbnail: Tensor, text: _Text, model: nn.Module, inputs: Mapping[str, Any]
) -> _Arrangement:
    """Arrange the tiles of LLaVA-NeXT and LLaVA-OneVision by the model's own function.

    The model joins the features of the tiles, drops those of padding, may interpolate them, and adds a token after each
    row. It does so here with coordinates in place of features, which tells the place of each token.
    """
    inner, sizes = getattr(model, "model", None), inputs.get("image_sizes")
    module = sys.modules[type(inner).__module__]
    if not isinstance(inner, nn.Module) or not isinstance(sizes, Tensor) or not hasattr(inner, "pack_image_features"):
        raise UnknownTilesError("the size of the photo is missing (image_sizes)")
    config: Any = model.config
    vision, side = config.vision_config, int(config.vision_config.image_size)
    grid = module.get_anyres_image_grid_shape(sizes[0].tolist(), config.image_grid_pinpoints, side)
    if math.prod(grid) != len(tiles) or tiles.shape[2] != side:
        raise UnknownTilesError(f"the model expects {grid[0]} x {grid[1]} tiles of {side} pixels")
    count = side // vision.patch_size  # cells along a side of a tile
    packed = _pack_coordinates(inner, inputs, grid, count)
    if len(packed) != len(text.positions):
        raise UnknownTilesError(f"the text has {len(text.positions)} tokens for them, the model makes {len(packed)}")
    of_thumbnail, of_tiles = text.positions[: count**2], packed[count**2 :]
    is_cell = ~of_tiles.isnan().any(1)
    edges, shape = _read_coordinates(of_tiles[is_cell])
    top, left, bottom, right = (_to_pixel(edge, count, vision.patch_size, side) for edge in edges)
    cells = text.positions[count**2 :][is_cell].reshape(shape)
    return _Arrangement(grid, (top, left, bottom, right), cells, of_thumbnail.reshape(count, count))


def _pack_coordinates(inner: Any, inputs: Mapping[str, Any], grid: Grid, count: int) -> Tensor:
    """Return ``(tokens, 2)``: row and column of each token in the joined tiles, in cells; nan if it is no cell."""
    centers = torch.arange(count, dtype=torch.float64, device="cpu") + 0.5
    cells = torch.stack(torch.meshgrid(centers, centers, indexing="ij"), -1).reshape(-1, 2)
    starts = torch.tensor([*product(range(grid[0]), range(grid[1]))], device="cpu") * count
    features = torch.cat([cells[None], cells + starts[:, None]])
    newline = torch.full((2,), math.nan, dtype=torch.float64, device="cpu")
    options: dict[str, Any] = {"image_newline": newline}
    for name in ("vision_feature_select_strategy", "vision_aspect_ratio"):
        if getattr(inner.config, name, None) is not None:
            options[name] = inputs.get(name, getattr(inner.config, name))
    parameters = inspect.signature(inner.pack_image_features).parameters
    options = {name: value for name, value in options.items() if name in parameters}
    packed: Tensor = inner.pack_image_features([features], inputs["image_sizes"].cpu(), **options)[0][0]
    return packed


def _read_coordinates(cells: Tensor) -> tuple[tuple[int, int, int, int], Grid]:
    """Return the edges (top, left, bottom, right) of cells ``(h·w, 2)``, and the grid ``(h, w)`` that they form.

    Raises:
        UnknownTilesError: They form no regular grid, row by row.
    """
    width = int((cells[:, 0] - cells[0, 0]).abs().le(_COORDINATE_ROUNDING).sum())
    shape = (len(cells) // max(width, 1), width)
    if math.prod(shape) != len(cells) or min(shape) < 2:
        raise UnknownTilesError("the model makes no grid of them")
    (top, bottom, rows), (left, right, columns) = map(_read_axis, (cells[::width, 0], cells[:width, 1]))
    expected = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1).reshape(-1, 2)
    edges = top, left, bottom, right
    is_exact = all(abs(edge - round(edge)) <= _COORDINATE_ROUNDING * 100 for edge in edges)
    if not is_exact or float((cells - expected).abs().max()) > _COORDINATE_ROUNDING:
        raise UnknownTilesError("the model makes no regular grid of them")
    return (round(top), round(left), round(bottom), round(right)), shape


def _read_axis(centers: Tensor) -> tuple[float, float, Tensor]:
    """Return where cells start and stop along an axis, and the centers of as many that lie between at equal steps."""
    step = float(centers[-1] - centers[0]) / (len(centers) - 1)
    start = float(centers[0]) - step / 2
    regular = start + step * (torch.arange(len(centers), dtype=torch.float64, device="cpu") + 0.5)
    return start, start + step * len(centers), regular


def _to_pixel(edge: int, count: int, patch: int, side: int) -> int:
    """Return the pixel of an edge between cells, ``count`` along a tile of ``side`` pixels.

    The last pixels of a tile belong to no cell if patches do not divide it; they are given to the last cell.
    """
    tile, cell = divmod(edge, count)
    return tile * side + cell * patch


# ``model_type`` of a configuration → how its models read tiles.
_FAMILIES = {
    "llava_next": _Family(_arrange_packed, "first", True),
    "llava_onevision": _Family(_arrange_packed, "first", True),
    "idefics3": _Family(_arrange_marked, "last", True),
    "smolvlm": _Family(_arrange_marked, "last", True),
    "internvl": _Family(partial(_arrange_by_thumbnail, -1), "last", False),
    "gemma3": _Family(partial(_arrange_by_thumbnail, 0), "first", False),
}
