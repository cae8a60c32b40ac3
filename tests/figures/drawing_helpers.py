"""Explanations, nets and figures that several tests of figures use."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool import figures
from camtool.explaining.explanation import Explanation
from camtool.geometry.crop_and_resize import Geometry
from camtool.rendering.views import Photo

matplotlib = pytest.importorskip("matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")

LONG_NAME = "German short-haired pointer, which has a $very$ long_name and more"


TIMES = "\N{MULTIPLICATION SIGN}"


DEEP_LAYER = "features.denseblock4.denselayer16.conv2"


def make_photo(high: int = 48, wide: int = 64, shade: int = 90) -> np.ndarray:
    pixels = np.full((high, wide, 3), shade, np.uint8)
    pixels[high // 4 : high // 2, wide // 4 : wide // 2] = (220, 180, 60)
    return pixels


def make_explanation(
    label: str = "cat",
    *,
    method: str = "gradcam",
    layer: str = "layer4",
    pixels: Any = None,
    raw: Any = None,
    **more: Any,
) -> Explanation:
    """Return an explanation without running a model."""
    pixels = make_photo() if pixels is None else pixels
    raw = np.outer([0, 1, 2, 0], [0, 1, 2, 0]).astype(np.float32) if raw is None else np.asarray(raw, np.float32)
    view = Photo(pixels, Geometry.whole(*pixels.shape[:2]))
    about = {"index": 0, "score": 1.0, "probability": 0.42, **more}
    return Explanation(raw=raw, view=view, label=label, method=method, layer=layer, **about)


class SmallNet(nn.Module):
    """Two convolutions, the first with known weights; a part that never runs; and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 1, bias=False)
        self.block = nn.Sequential(nn.ReLU(), nn.Conv2d(6, 5, 3, 2, 1))
        self.unused = nn.Conv2d(3, 3, 1)
        self.head = nn.Linear(5, 4)
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([1.0, -2, 3, 0, 5, -6])[:, None, None, None].expand(6, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.first(x)).mean((2, 3)))


def draw_scenes(count: int) -> list[np.ndarray]:
    from camtool.demo.scenes import draw_scene

    return [draw_scene(seed, size=96).image for seed in range(count)]


def get_drawn_axes(figure: Any) -> list[Any]:
    """Return the axes with images or plots, in drawing order."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def get_color_bars(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]


def get_titles(figure: Any) -> list[str]:
    """Return the title of each image, alone in its axes or one of many."""
    above = ([text.get_text() for text in axes.texts] or [axes.get_title()] for axes in get_drawn_axes(figure))
    return [title for some in above for title in some]


def find_texts(figure: Any) -> list[Any]:
    """Return all texts that are not empty."""
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_visible() and text.get_text()]
    return [text for text in texts if not isinstance(text, matplotlib.text.Annotation)]


def to_png(figure: Any, dpi: float = 100) -> bytes:
    stream = BytesIO()
    figures.canvas.write_file(figure, stream, "png", dpi=dpi)
    return stream.getvalue()


def build_figures() -> dict[str, Callable[[], Any]]:
    """Return functions that draw figures of all kinds, also unusual ones, by name."""
    torch.manual_seed(1)
    net, many = SmallNet().eval(), [make_explanation(f"thing {i}") for i in range(11)]
    three = torch.linspace(-1, 1, 3 * 32 * 48).reshape(1, 3, 32, 48)
    signal = nn.Conv1d(2, 7, 5, padding=2)
    wave = torch.sin(torch.linspace(0, 20, 200)).repeat(1, 2, 1)
    images = [three[0], three[0].flip(2)]
    mixed = [
        make_explanation(pixels=make_photo(high, wide)) for high, wide in ((40, 160), (160, 40), (64, 64), (48, 64))
    ]
    named = camtool.Loaded(net, labels=[LONG_NAME, "cat", "dog", "bird"])
    return {
        "gallery": lambda: figures.gallery(many),
        "gallery of one": lambda: figures.gallery(many[0]),
        "gallery of mixed formats": lambda: figures.gallery(mixed, width="single"),
        "gallery with long names": lambda: figures.gallery([make_explanation(LONG_NAME)] * 4, columns=4),
        "gallery of regressions": lambda: figures.gallery(
            [make_explanation("value 0", probability=None)] * 2, scale="shared"
        ),
        "comparison": lambda: figures.comparison(
            [make_explanation(method=m, layer=DEEP_LAYER) for m in ("cam", "gradcam-elementwise")]
        ),
        "comparison of layers": lambda: figures.comparison(
            [make_explanation(layer="layer1"), make_explanation(layer=DEEP_LAYER)]
        ),
        "methods": lambda: figures.methods_grid(net, images, ["gradcam", "layercam"], width="single"),
        "twelve methods": lambda: figures.methods_grid(
            named, images, {f"method {i}": "gradcam" for i in range(12)}, target_class=0
        ),
        "methods of a low photo": lambda: figures.methods_grid(
            camtool.Loaded(net, labels=["strainer"] * 4), torch.rand(1, 3, 8, 48), ["gradcam", "layercam"], width=2.5
        ),
        "layers": lambda: figures.layers_sweep(net, images, {DEEP_LAYER: "block", "first": "first"}),
        "classes": lambda: figures.classes_grid(named, images, 4, width=5.5),
        "feature maps": lambda: figures.feature_maps(net, three),
        "feature maps of one layer": lambda: figures.feature_maps(net, three, "first", width="single"),
        "feature maps, flat": lambda: figures.feature_maps(
            net, torch.rand(1, 3, 8, 64), order="strongest", scale="each"
        ),
        "feature maps of a class": lambda: figures.feature_maps(
            named, three, "first", order="class", target_class=0, width="single"
        ),
        "lines": lambda: figures.feature_maps(signal, wave),
        "kernels in color": lambda: figures.kernels(nn.Conv2d(3, 64, 7), width="single"),
        "kernels of one channel": lambda: figures.kernels(nn.Conv2d(12, 12, 3, groups=12), scale="each"),
        "kernels in a table": lambda: figures.kernels(nn.Conv2d(40, 24, 3)),
        "kernels of one pixel": lambda: figures.kernels(nn.Conv2d(70, 9, 1), inputs=64, width="single"),
        "kernels of one filter": lambda: figures.kernels(nn.Conv2d(900, 1, 1), inputs=900, width="single"),
        "kernels of signals": lambda: figures.kernels(nn.Conv1d(1, 9, 15), width="single"),
    }


KINDS = [*build_figures()]


def get_images(figure: Any) -> list[Any]:
    return [image for axes in get_drawn_axes(figure) for image in axes.images]


def get_arrays(figure: Any) -> list[np.ndarray]:
    return [np.asarray(image.get_array()) for image in get_images(figure)]
