"""Attention over the tiles of a bag, as multiple instance learning pools them: :func:`bag_attention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.arguments.checks import check_integer, check_real_tensor
from camtool.arguments.explain_arguments import explain_foreign_arguments
from camtool.errors import ImageError, LayerError
from camtool.explaining.explanation import Explanation
from camtool.geometry.crop_and_resize import Geometry
from camtool.hooks.attention.capture import record_softmax
from camtool.inputs.image_files import read_image
from camtool.maps import normalize
from camtool.models import Loaded, to_loaded
from camtool.rendering.views import Photo

# Side of a tile, in pixels, where nothing else says how to draw it.
_TILE = 32

# Places of the largest grid; a slide of 100,000 pixels a side has 152,000 tiles of 256.
_MOST_PLACES = 2**24

_ASYMMETRY = 1e-4


@explain_foreign_arguments
def bag_attention(
    model: nn.Module | Loaded,
    bag: Tensor | NDArray[Any],
    places: Sequence[Sequence[int]],
    *,
    photo: Any = None,
    branch: int | None = None,
    index: int | None = None,
) -> Explanation:
    """Show the attention of a model that pools a bag of tiles, as a map over the places of the tiles.

        camtool.bag_attention(mil, tiles, [(0, 0), (0, 1), (2, 1)], photo="thumbnail.png").save("tiles.png")

    The weights are those of the softmax over the tiles that the model computes, see attention-based deep multiple
    instance learning, arXiv 1802.04712. That they belong to the tiles in order is tested: the model runs on the bag in
    reverse order, too, and the weights must be reversed. They tell what is pooled, not what the class depends on.

    Args:
        model: A module that takes the bag.
        bag: Tiles ``(T, C, H, W)`` or features ``(T, D)`` of tiles, also with an axis ``(1, ...)`` before them.
        places: Row and column of each tile in the grid of tiles, T pairs of integers from 0 on. Of tiles whose corners
            are known in pixels these are the corners divided by the side of a tile.
        photo: The image that the grid of tiles covers; by default tiles are drawn themselves, and features as gray.
        branch: Which of several weights of a tile, e.g. one for each class; by default their mean.
        index: Which softmax over the tiles, if the model computes several; 0 is the first.

    Returns:
        An explanation whose ``raw`` is the weight of each place, 0 where there is no tile.

    Raises:
        LayerError: The model computes no softmax over the tiles, or several; or weights depend on the order of the
            tiles in another way.
        ImageError: ``bag`` and ``places`` do not fit.
    """
    check_integer("branch", branch, optional=True, error=LayerError)
    check_integer("index", index, optional=True, error=LayerError)
    check_real_tensor("bag", bag, error=ImageError)
    module, bag, tiles = to_loaded(model).model, torch.as_tensor(bag), len(places)
    axis = 1 if bag.shape[:1] == (1,) and tiles != 1 else 0
    spots = _check_places(bag, axis, np.asarray(places))
    weights, mirrored = (_find_weights(module, given, tiles, index) for given in (bag, bag.flip(axis)))
    if not torch.allclose(weights, mirrored.flip(1), rtol=_ASYMMETRY, atol=_ASYMMETRY * float(weights.max())):
        raise LayerError(
            f"{type(module).__name__}: the weights depend on the order of the tiles, so it is not certain which weight "
            "is of which tile."
        )
    if branch is not None and not -len(weights) <= branch < len(weights):
        raise LayerError(f"branch={branch}: a tile has {len(weights)} weights, 0 to {len(weights) - 1}.")
    shares = weights.mean(0) if branch is None else weights[branch]
    raw = np.zeros(spots.max(0) + 1, np.float32)
    raw[tuple(spots.T)] = shares.numpy()
    pixels = (
        _draw_tiles(bag if axis == 0 else bag[0], spots, raw.shape) if photo is None else np.asarray(read_image(photo))
    )
    view = Photo(pixels, Geometry.whole(*pixels.shape[:2]))
    return Explanation(raw, view, f"attention to {tiles} tiles", None, float(shares.sum()), None, "bag-attention", "")


def _check_places(bag: Tensor, axis: int, places: NDArray[Any]) -> NDArray[np.int64]:
    """Return the row and the column of each tile, ``(T, 2)``.

    Args:
        bag: The tiles.
        axis: Their axis.
        places: What was given as places.

    Raises:
        ImageError: They do not fit.
    """
    # In smaller types the number of rows may overflow.
    spots = places.astype(np.int64) if places.dtype.kind in "iu" else places
    if (
        bag.ndim < 2
        or spots.shape != (bag.shape[axis], 2)
        or spots.dtype != np.int64
        or not spots.size
        or spots.min() < 0
        or len({*map(tuple, spots.tolist())}) < len(spots)
    ):
        raise ImageError(
            f"places: {len(places)} different pairs of integers (row, column) for a bag {tuple(bag.shape)}; give one "
            "for each tile."
        )
    rows, columns = (spots.max(0) + 1).tolist()
    if rows * columns > _MOST_PLACES:
        raise ImageError(
            f"places: a grid of {rows:,} rows and {columns:,} columns has more than {_MOST_PLACES:,} places; give the "
            "row and the column of each tile in the grid of tiles, e.g. y // 256 and x // 256, not its pixels."
        )
    return spots


def _find_weights(module: nn.Module, bag: Tensor, tiles: int, index: int | None) -> Tensor:
    """Return the weights ``(K, T)`` of the tiles in a pass of the model.

    Raises:
        LayerError: There are none, or several.
    """
    over_tiles = [matrix.reshape(-1, tiles) for matrix in record_softmax(module, bag) if matrix.shape[-1] == tiles]
    if not over_tiles:
        raise LayerError(f"{type(module).__name__} computes no softmax over {tiles} tiles; it pools by no attention.")
    if index is None and len(over_tiles) > 1:
        raise LayerError(
            f"{type(module).__name__} computes {len(over_tiles)} softmaxes over {tiles} tiles; choose with index=."
        )
    if index is not None and not -len(over_tiles) <= index < len(over_tiles):
        raise LayerError(f"index={index}: the model computes {len(over_tiles)} softmaxes over the tiles.")
    return over_tiles[index or 0].float().cpu()


def _draw_tiles(bag: Tensor, spots: NDArray[np.int64], grid: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return tiles of images at their places on white; gray ones for features."""
    is_image = bag.ndim == 4 and bag.shape[1] in (1, 3)
    height, width = bag.shape[2:] if is_image else (_TILE, _TILE)
    values = np.full((len(bag), height, width, 1), 0.75, np.float32)
    if is_image:
        values = normalize(bag.detach().float().cpu().numpy()).transpose(0, 2, 3, 1)
    page = np.full((grid[0], height, grid[1], width, 3), 255, np.uint8)
    for (row, column), tile in zip(spots, values, strict=True):
        page[row, :, column] = np.rint(255 * tile)
    return page.reshape(grid[0] * height, grid[1] * width, 3)
