"""Draw ``places.png``: ``python assets/make_places.py``; needs ``camtool[figures]``.

Scenes of the demo and its network: the cells of a grid that the sizes alone place; those of a model that crops each
image around its object; and the hottest cell of a model that mirrors the image, drawn where it does not look.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor, nn

import camtool
from benchmarks.place_proof import Step, examine
from camtool.demo.camnet import prepare_images
from camtool.demo.scenes import draw_scene
from camtool.figures.canvas import INK, MUTED, Figure, add_axes, create_figure, draw_image, write_line
from camtool.geometry.cell_centers import CellCenters
from camtool.rendering import blend

_OUT = Path(__file__).parent / "places.png"
_SIDE, _DPI = 1.42, 240
_GAP, _WIDE_GAP, _TOP, _FOOT = 0.05, 0.16, 0.25, 0.2
_TITLE, _NOTE = 10.5, 9.0
_WHITE, _RED = "#ffffff", "#ff3b30"
_HALO = [withStroke(linewidth=2.2, foreground="#14161a")]
_SHAPE = "star"
_POSITIONS = ((0.5, 0.5), (0.3, 0.34), (0.68, 0.62), (0.26, 0.4))
_SEEDS = (11, 12, 13, 14)


def main() -> None:
    """Draw the picture."""
    torch.set_num_threads(1)
    lefts = [0.0, _SIDE + _WIDE_GAP, 2 * _SIDE + _WIDE_GAP + _GAP, 3 * _SIDE + 2 * _WIDE_GAP + _GAP]
    figure = create_figure(lefts[-1] + _SIDE, _TOP + _SIDE + _FOOT)
    boxes = [add_axes(figure, (left, _TOP, _SIDE, _SIDE)) for left in lefts]
    notes = ("Read once", "Read or measured for each image", "Tested")
    feet = ("where the cells look", "a crop that follows the content", "drawn, and what it depends on")
    for left, title, foot in zip((lefts[0], lefts[1], lefts[3]), notes, feet, strict=True):
        write_line(figure, left, _TOP - 0.08, title, _TITLE, color=INK)
        write_line(figure, left, _TOP + _SIDE + 0.155, foot, _NOTE, color=MUTED)
    scenes = [
        draw_scene(seed, classes=[_SHAPE], position=position).image
        for seed, position in zip(_SEEDS, _POSITIONS, strict=True)
    ]
    _draw_cells(boxes[0], scenes[0], _find_centers(nn.Identity(), scenes[0]))
    for axes, scene in zip(boxes[1:3], scenes[1:3], strict=True):
        _draw_cells(axes, scene, _find_centers(Step(_crop), scene), is_part=True)
    _draw_test(boxes[3], scenes[3])
    _write(figure)


def _write(figure: Figure) -> None:
    camtool.figures.save(figure, _OUT, dpi=_DPI)


def _explain(before: nn.Module, scene: NDArray[np.uint8], placement: Any = "centers") -> camtool.Explanation:
    model = nn.Sequential(before, camtool.load("demo").model).eval()
    (result,) = camtool.explain(model, prepare_images(scene[None]), placement=placement)
    return result


def _find_centers(before: nn.Module, scene: NDArray[np.uint8]) -> CellCenters:
    centers = _explain(before, scene).centers
    assert centers is not None
    return centers


def _crop(x: Tensor) -> Tensor:
    """Return half of each side, around what is unlike the background."""
    light = (x[0] - x[0].flatten(1).median(1).values[:, None, None]).abs().sum(0)
    light = (light > light.max() / 2).float()
    half = x.shape[-1] // 2
    first = [
        int(((light.sum(1 - axis) * torch.arange(2 * half)).sum() / light.sum()).clamp(half // 2, 3 * half // 2))
        - half // 2
        for axis in (0, 1)
    ]
    return x[..., first[0] : first[0] + half, first[1] : first[1] + half]


def _draw_cells(axes: Axes, scene: NDArray[np.uint8], centers: CellCenters, *, is_part: bool = False) -> None:
    """Draw the centers of cells on an image, and the frame of the part that they tile."""
    draw_image(axes, scene)
    down, across = (line.offset + line.stride * np.arange(_count(line.stride, scene, is_part)) for line in centers.axes)
    if is_part:
        shade = np.full((*scene.shape[:2], 4), (20, 22, 26, 140), np.uint8)
        # Cells lie at the first of the pixels that they stand for.
        top, left = (round(line[0] - 0.5) for line in (down, across))
        half = scene.shape[0] // 2
        shade[top : top + half, left : left + half] = 0
        axes.imshow(shade, interpolation="nearest")
        frame = mpl.patches.Rectangle((left - 0.5, top - 0.5), half, half, fill=False, edgecolor=_WHITE, linewidth=1.6)
        axes.add_patch(frame)
    places = np.stack(np.meshgrid(across, down), -1).reshape(-1, 2) - 0.5
    size = 4.0 if is_part else 5.0
    axes.scatter(*places.T, s=size, color=_WHITE, edgecolors="#14161a", linewidths=0.5, zorder=3, clip_on=False)


def _count(stride: float, scene: NDArray[np.uint8], is_part: bool) -> int:  # noqa: FBT001
    return round(scene.shape[0] / (2 if is_part else 1) / abs(stride))


def _draw_test(axes: Axes, scene: NDArray[np.uint8]) -> None:
    """Draw the hottest cell of a network behind a mirror, and the pixels that it depends on."""
    result = _explain(Step(lambda x: x.flip(-1)), scene, "stretch")
    tested = examine(result)
    assert tested is not None
    assert tested.code == "heat-elsewhere"
    heat = np.sqrt(tested.response.shares / tested.response.shares.max())
    gray = np.repeat(scene.mean(-1, keepdims=True), 3, -1) * 0.55
    draw_image(axes, blend(gray.astype(np.uint8), heat.astype(np.float32)))
    (row, column), (to_row, to_column) = tested.center - 0.5, tested.response.center - 0.5
    axes.add_patch(mpl.patches.Circle((column, row), 8, fill=False, edgecolor=_WHITE, linewidth=1.8))
    style: dict[str, Any] = {"arrowstyle": "-|>", "color": _RED, "linewidth": 1.8, "shrinkA": 8, "shrinkB": 8}
    axes.annotate("", (to_column, to_row), (column, row), arrowprops=style)


if __name__ == "__main__":
    typer.run(main)
