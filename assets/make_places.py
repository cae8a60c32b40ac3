"""Draw ``places.png``: ``python assets/make_places.py``; needs ``camtool[figures]``.

Scenes of the demo and its network: the cells of a grid that the sizes alone place; those of a model that crops each
image around its object; and the hottest cell of a model that mirrors the image, drawn where it does not look.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle
from matplotlib.patheffects import AbstractPathEffect, withStroke
from numpy.typing import NDArray
from PIL import Image
from skimage.filters import gaussian
from torch import Tensor, nn
from torchvision.models import resnet18

import camtool
from benchmarks.place_proof import Step, examine
from camtool.demo.camnet import SIZE, load_honest_model, prepare_images
from camtool.demo.scenes import draw_scene
from camtool.figures.canvas import INK, MUTED, add_axes, create_figure, draw_image, write_file, write_line
from camtool.rendering import blend

_OUT = Path(__file__).parent / "places.png"
_SIDE, _DPI = 1.42, 240
_MARGIN, _GAP, _WIDE_GAP, _TOP, _FOOT = 0.03, 0.05, 0.16, 0.25, 0.22
_TITLE, _NOTE = 11.5, 10.0
_WHITE, _DARK = "#ffffff", "#14161a"
_HALO: list[AbstractPathEffect] = [withStroke(linewidth=3, foreground=_DARK)]
_DOT, _RING, _LABEL, _BLUR, _DIM, _COLORS = 7.0, 8, 40, 4.0, 0.55, 220
_SHAPE = "star"
_POSITIONS = ((0.5, 0.5), (0.3, 0.34), (0.68, 0.62), (0.26, 0.4))
_SEEDS = (60, 59, 119, 99)


def main() -> None:
    """Draw the picture."""
    torch.set_num_threads(1)
    steps = [_MARGIN, _SIDE + _WIDE_GAP, _SIDE + _GAP, _SIDE + _WIDE_GAP]
    lefts = [sum(steps[: number + 1]) for number in range(len(steps))]
    figure = create_figure(lefts[-1] + _SIDE + _MARGIN, _TOP + _SIDE + _FOOT)
    boxes = [add_axes(figure, (left, _TOP, _SIDE, _SIDE)) for left in lefts]
    notes = ("Read once", "Read or measured for each image", "Tested")
    feet = ("cells of a ResNet", "a crop that follows the content", "heat-elsewhere")
    for left, title, foot in zip((lefts[0], lefts[1], lefts[3]), notes, feet, strict=True):
        write_line(figure, left, _TOP - 0.09, title, _TITLE, color=INK)
        write_line(figure, left, _TOP + _SIDE + 0.155, foot, _NOTE, color=MUTED)
    first, *crops, last = map(_draw_scene, _SEEDS, _POSITIONS, (224, SIZE, SIZE, SIZE))
    _draw_cells(boxes[0], first, _explain(resnet18(weights=None), first))
    for axes, scene in zip(boxes[1:3], crops, strict=True):
        _draw_cells(axes, scene, _explain(nn.Sequential(Step(_crop), load_honest_model().model), scene))
    _draw_test(boxes[3], last)
    stream = BytesIO()
    write_file(figure, stream, "png", dpi=_DPI)
    # A palette takes a fifth of the bytes, and looks the same.
    Image.open(stream).convert("RGB").quantize(_COLORS, kmeans=2, dither=Image.Dither.NONE).save(_OUT, optimize=True)


def _draw_scene(seed: int, position: tuple[float, float], side: int) -> NDArray[np.uint8]:
    return draw_scene(seed, classes=[_SHAPE], position=position, size=side).image


def _explain(model: nn.Module, scene: NDArray[np.uint8], placement: Any = "centers") -> camtool.Explanation:
    (result,) = camtool.explain(model.eval(), prepare_images(scene[None]), placement=placement)
    return result


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


def _draw_cells(axes: Axes, scene: NDArray[np.uint8], result: camtool.Explanation) -> None:
    """Draw the centers of cells on an image, and the frame of the part that they stand for, if it is a part."""
    draw_image(axes, scene)
    assert result.centers is not None
    lines = [
        line.offset + line.stride * np.arange(count)
        for line, count in zip(result.centers.axes, result.raw.shape, strict=True)
    ]
    down, across = lines
    part = round(result.centers.axes[0].stride * len(down))
    if part < len(scene):
        # Cells lie at the first of the pixels that they stand for.
        top, left = (round(line[0] - 0.5) for line in lines)
        shade = np.full((*scene.shape[:2], 4), (20, 22, 26, 140), np.uint8)
        shade[top : top + part, left : left + part] = 0
        axes.imshow(shade, interpolation="nearest")
        axes.add_patch(Rectangle((left - 0.5, top - 0.5), part, part, fill=False, edgecolor=_WHITE, linewidth=1.8))
    places = np.stack(np.meshgrid(across, down), -1).reshape(-1, 2) - 0.5
    size = _DOT * (2 if part == len(scene) else 1)
    axes.scatter(
        places[:, 0], places[:, 1], s=size, color=_WHITE, edgecolors=_DARK, linewidths=0.6, zorder=3, clip_on=False
    )


def _draw_test(axes: Axes, scene: NDArray[np.uint8]) -> None:
    """Draw the hottest cell of a network behind a mirror, and the pixels that it depends on."""
    mirrored = nn.Sequential(Step(lambda x: x.flip(-1)), load_honest_model().model)
    tested = examine(_explain(mirrored, scene, "stretch"))
    assert tested is not None
    assert tested.code == "heat-elsewhere"
    heat = gaussian(tested.response.shares, _BLUR)  # else single pixels, which are not seen in a small picture
    gray = np.repeat(scene.mean(-1, keepdims=True) * _DIM, 3, -1).astype(np.uint8)
    draw_image(axes, blend(gray, np.sqrt(heat / heat.max()).astype(np.float32)))
    (row, column), (to_row, to_column) = tested.center - 0.5, tested.response.center - 0.5
    ring = Circle((column, row), _RING, fill=False, edgecolor=_WHITE, linewidth=2, path_effects=_HALO)
    axes.add_patch(ring)
    style: dict[str, Any] = {"arrowstyle": "-|>", "color": _WHITE, "linewidth": 2, "shrinkA": 7, "shrinkB": 5}
    style |= {"mutation_scale": 13, "path_effects": _HALO}
    axes.annotate("", (to_column, to_row), (column, row), arrowprops=style)
    for at, name in ((column, "drawn"), (to_column, "looks")):
        text = axes.text(at, max(row, to_row) + _LABEL, name, fontsize=_NOTE, color=_WHITE, ha="center")
        text.set_path_effects(_HALO)


if __name__ == "__main__":
    typer.run(main)
