"""Localization without annotations: mosaics of the user's own images, where the right place is known.

The class of one image is explained on a mosaic of images of different classes. The heat should be on that image. Use
images that the model classifies with confidence, see :func:`select_confident`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from camtool.arguments.checks import check_count, check_number
from camtool.errors import MetricError
from camtool.hooks.chunks import iterate_chunks
from camtool.maps import upcast
from camtool.trust.metrics.metric_registry import metric
from camtool.trust.metrics.scores import Explain, ExplainCells, Score, check_images, check_maps, score_variants


def _compute_cell_share(images: Tensor, *, grid: int = 2, **_: Any) -> Tensor:
    return images.new_full((len(images),), 1 / grid**2)


@metric(
    "grid-pointing-game", higher_is_better=True, bounds=(0, 1), chance=_compute_cell_share, paper="arXiv 2104.00032"
)
def compute_grid_pointing(
    explain: Explain,
    images: Tensor,
    classes: Tensor,
    *,
    grid: int = 2,
    shrink: bool = False,
    seed: int = 0,
    chunk: int = 8,
) -> Tensor:
    """Measure the share of the heat on the image whose class is explained, in a mosaic. Higher is better, 0 to 1.

    The share of the positive heat in the right cell. Each image gets one mosaic, with images of other classes at
    random. The chance level is ``1 / grid²``, which is also the value of a map without positive heat.

    Source: CoDA-Nets, arXiv 2104.00032, with 3 x 3 images, and GridPG of arXiv 2205.10435.

    Args:
        explain: The method. It gets mosaics, and explains the class of the image that ``rows`` names.
        images: ``(N, C, H, W)``, of at least ``grid²`` classes.
        classes: The class that each image shows, ``(N,)``.
        grid: The number of images per side of the mosaic.
        shrink: Whether the mosaic has the size of one image, for models that take a single size. By default the images
            keep their size, as in the sources, and the mosaic is larger.
        seed: The seed of the choice of images and places.
        chunk: The number of mosaics that are explained at once.

    Raises:
        MetricError: The images have fewer classes, or an argument is not as described.
    """
    return _measure_cells(lambda mosaics, rows, _: explain(mosaics, rows), images, classes, grid, seed, chunk, shrink)


@metric("difull", higher_is_better=True, bounds=(0, 1), chance=_compute_cell_share, paper="arXiv 2205.10435")
def compute_difull(
    explain_cells: ExplainCells, images: Tensor, classes: Tensor, *, grid: int = 2, seed: int = 0, chunk: int = 8
) -> Tensor:
    """Measure the share of the heat on the one image that the score can depend on. Higher is better, 0 to 1.

    As :func:`compute_grid_pointing`, for a :class:`DisconnectedModel`: its score for a cell depends on the image in
    that cell only. So heat elsewhere is wrong without any doubt, and 1 can be reached. The chance level is
    ``1 / grid²``.

    Source: arXiv 2205.10435.

    Args:
        explain_cells: ``explain_cells(mosaics, rows, cells) -> (M, grid * H, grid * W)``: the method on the
            disconnected model. ``rows`` says whose class is explained, ``cells`` in which cell of the mosaic.
        images: ``(N, C, H, W)``, of at least ``grid²`` classes.
        classes: The class that each image shows, ``(N,)``.
        grid: The number of images per side of the mosaic.
        seed: The seed of the choice of images and places.
        chunk: The number of mosaics that are explained at once.
    """
    return _measure_cells(explain_cells, images, classes, grid, seed, chunk, shrink=False)


class DisconnectedModel(nn.Module):
    """A model of mosaics whose outputs for one cell do not depend on the other cells, for DiFull.

    The trunk runs on each cell alone. The features of the cells are put together as ``stitched``, a layer that can be
    explained, and the head runs on the features of each cell alone.

    Args:
        trunk: From images ``(M, C, H, W)`` to features ``(M, K, h, w)``.
        head: From features to logits ``(M, classes)``.
        grid: The number of images per side of the mosaic.
    """

    def __init__(self, trunk: Callable[[Tensor], Tensor], head: Callable[[Tensor], Tensor], *, grid: int = 2) -> None:
        super().__init__()
        check_count("grid", grid, error=MetricError)
        self.trunk, self.head, self.stitched, self.grid = trunk, head, nn.Identity(), grid

    def forward(self, mosaics: Tensor) -> Tensor:
        """Return the logits ``(M, grid² * classes)``: those of the first cell, of the second, ..., row by row."""
        features = self.trunk(_split_cells(mosaics, self.grid))
        stitched = self.stitched(_join_cells(features, self.grid))
        return self.head(_split_cells(stitched, self.grid)).reshape(len(mosaics), -1)


def select_confident(score: Score, images: Tensor, *, least: float = 0.5, chunk: int | None = None) -> Tensor:
    """Return which images have a score of at least ``least``, ``(N,)``, boolean. Mosaics should consist of these.

    Args:
        score: The probability of the class that each image shows.
        images: ``(N, C, H, W)``.
        least: The lowest probability. The sources use the images with the highest ones.
        chunk: The number of images that run at once.
    """
    check_images(images)
    check_number("least", least, error=MetricError)
    return score_variants(score, images, 1, lambda rows, _: images[rows], chunk)[:, 0] >= least


def choose_tiles(classes: Tensor, *, grid: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Choose for each image the images of its mosaic, all of different classes, and its own cell.

    Args:
        classes: The class that each image shows, ``(N,)``.
        grid: The number of images per side of the mosaic.
        seed: The seed of the choice.

    Returns:
        The rows of the images in each mosaic, ``(N, grid²)``, and the cell of the image itself, ``(N,)``.

    Raises:
        MetricError: There are fewer than ``grid²`` classes.
    """
    check_count("grid", grid, least=2, error=MetricError)
    labels, generator = [int(label) for label in classes], torch.Generator().manual_seed(seed)
    if len({*labels}) < grid**2:
        raise MetricError(f"mosaics of {grid} x {grid} images need {grid**2} classes, got {len({*labels})}; "
                          "pass images of more classes, or a smaller grid.")  # fmt: skip
    tiles, cells = [], []
    for row in range(len(labels)):
        chosen = {labels[row]: row}
        for other in torch.randperm(len(labels), generator=generator, device="cpu").tolist():
            if len(chosen) < grid**2:
                chosen.setdefault(labels[other], other)
        cell = int(torch.randint(grid**2, (1,), generator=generator, device="cpu"))
        others = [other for other in chosen.values() if other != row]
        tiles.append([*others[:cell], row, *others[cell:]])
        cells.append(cell)
    return torch.tensor(tiles, device="cpu"), torch.tensor(cells, device="cpu")


def make_mosaics(images: Tensor, tiles: Tensor, *, shrink: bool = False) -> Tensor:
    """Return mosaics of images ``(N, C, H, W)``.

    Args:
        images: The images.
        tiles: The rows of the images in each mosaic, ``(M, grid²)``.
        shrink: Whether the mosaics have the size of one image.

    Returns:
        ``(M, C, grid * H, grid * W)``, or ``(M, C, H, W)``.
    """
    grid = round(tiles.shape[1] ** 0.5)
    mosaics = _join_cells(images[tiles.to(images.device).flatten()], grid)
    size = tuple(images.shape[2:])
    return interpolate(mosaics, size=size, mode="bilinear", antialias=True) if shrink else mosaics


def _measure_cells(
    explain: ExplainCells, images: Tensor, classes: Tensor, grid: int, seed: int, chunk: int, shrink: bool  # noqa: FBT001
) -> Tensor:  # fmt: skip
    """Return the share of the positive heat that is in the cell of each image."""
    check_images(images)
    check_count("chunk", chunk, error=MetricError)
    if len(classes) != len(images):
        raise MetricError(f"classes must be one per image, ({len(images)},); got {len(classes)}.")
    if shrink and (images.shape[2] % grid or images.shape[3] % grid):
        raise MetricError(f"shrink=True needs images whose sides are multiples of grid={grid}, "
                          f"got {tuple(images.shape[2:])}.")  # fmt: skip
    tiles, cells = choose_tiles(classes, grid=grid, seed=seed)
    shares = []
    for part in iterate_chunks(len(images), chunk):
        mosaics, own = make_mosaics(images, tiles[part], shrink=shrink), cells[part].to(images.device)
        rows = torch.arange(part.start, part.stop, device=images.device)
        maps = explain(mosaics, rows, own)
        check_maps(maps, mosaics, name="the maps that explain returned for mosaics")
        heat = _split_cells(upcast(maps.detach()).clamp_min(0)[:, None], grid).sum((1, 2, 3)).reshape(-1, grid**2)
        total = heat.sum(1)
        right = heat.gather(1, own.to(heat.device)[:, None])[:, 0]
        shares.append(torch.where(total > 0, right / torch.where(total > 0, total, 1), 1 / grid**2))
    return torch.cat(shares)


def _join_cells(cells: Tensor, grid: int) -> Tensor:
    """Return mosaics ``(M, C, grid * H, grid * W)`` from their cells ``(M * grid², C, H, W)``, row by row."""
    channels, height, width = cells.shape[1:]
    split = cells.reshape(-1, grid, grid, channels, height, width).permute(0, 3, 1, 4, 2, 5)
    return split.reshape(-1, channels, grid * height, grid * width)


def _split_cells(mosaics: Tensor, grid: int) -> Tensor:
    """Return the cells ``(M * grid², C, H, W)`` of mosaics ``(M, C, grid * H, grid * W)``, row by row."""
    channels, height, width = mosaics.shape[1], mosaics.shape[2] // grid, mosaics.shape[3] // grid
    split = mosaics.reshape(-1, channels, grid, height, grid, width).permute(0, 2, 4, 1, 3, 5)
    return split.reshape(-1, channels, height, width)
