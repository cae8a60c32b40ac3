"""The centers of cells by arithmetic agree with the centroids of gradients, in architectures of many families.

Batch norms are calibrated, so that activations neither grow nor vanish. A middle cell is measured: the sum over random
projections of its channels, and over random images, of the squared gradient at the input.
"""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from camtool.hooks.observation import run_with_graph_from_image
from camtool.layers.centers import find_centers
from camtool.layers.layouts import Layer
from camtool.layers.survey import find_candidates
from tests.zoo.averaging import average, build_trunk, find_exact_center

READ = [
    *("alexnet", "resnet50", "resnetblur18", "deit_tiny_patch16_224", "convnextv2_atto", "cspresnet50", "densenet121"),
    *("edgenext_xx_small", "poolformer_s12", "twins_svt_small", "ese_vovnet19b_dw", "focalnet_tiny_srf"),
    *("inception_next_atto", "coatnet_pico_rw_224", "davit_tiny", "caformer_s18", "mambaout_femto", "visformer_tiny"),
    *("resmlp_12_224", "nest_tiny", "cait_xxs24_224"),
]
"""Families whose graph is understood."""

STRETCHED = ["swin_tiny_patch4_window7_224", "crossvit_tiny_240", "tresnet_m"]
"""Families whose graph is not understood, so that nothing is moved: rightly, as their cells tile the input."""

FEWER_BLOCKS = {
    "cait_xxs24_224": {"depth": 4},
    "davit_tiny": {"depths": (1, 1, 1, 1)},
    "swin_tiny_patch4_window7_224": {"depths": (2, 2, 2, 2)},
    "tresnet_m": {"layers": (1, 1, 2, 1)},
    "twins_svt_small": {"depths": (1, 1, 2, 1)},
}
"""Options of networks that repeat their blocks, which are alike."""

FIRST_BLOCKS = {
    "caformer_s18": {"stages.0.blocks": 1, "stages.1.blocks": 1, "stages.2.blocks": 1, "stages.3.blocks": 1},
    "focalnet_tiny_srf": {"layers.2.blocks": 2},
    "nest_tiny": {f"levels.{level}.transformer_encoder": 1 for level in range(3)},
    "resmlp_12_224": {"blocks": 4},
    "resnet50": {f"layer{stage}": 1 for stage in range(1, 5)},
}
"""Networks without such options → list of blocks → how many of them are left."""

SIZES = {"crossvit_tiny_240": 240, "cspresnet50": 160, "poolformer_s12": 160}
"""Sides of the pictures, by default 224: another one, or a smaller one where cells that are seen still lie inside."""

AVERAGED = [
    ("nasnetalarge", 512, 0.15),  # cells still see the border, and concatenated branches count by their channels
    ("efficientnet_b3", 512, 0.05),
    ("mobilenet_v3_large", 512, 0.01),
    ("mobilenetv3_small_050", 448, 0.01),
]
"""Networks whose measured centers differ, a side of the image, and the most that read ones may, in cells."""

FEWER_CHANNELS = {"nasnetalarge": {"num_features": 96, "stem_size": 4}}

MOST_PIXELS = 1.0
"""Measured at 32 pixels a cell, and with less than 1 pixel of noise, as what these cells see is narrow."""


def build(name: str) -> nn.Module:
    import timm
    import torchvision

    torch.manual_seed(0)
    if name in torchvision.models.list_models():
        model = torchvision.models.get_model(name, weights=None)
    else:
        model = timm.create_model(name, pretrained=False, **FEWER_BLOCKS.get(name, {}))
    for path, count in FIRST_BLOCKS.get(name, {}).items():
        model.set_submodule(path, model.get_submodule(path)[:count])
    return model.eval()


def calibrate(model: nn.Module, images: Tensor) -> None:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_running_stats()
            module.momentum = None
            module.train()
    with torch.no_grad():
        model(images)
    model.eval()


def measure(model: nn.Module, layer: Layer, images: Tensor, cell: tuple[int, ...]) -> list[float]:
    total: Tensor | float = 0.0
    for image in images.split(1):
        leaf, observed = run_with_graph_from_image(model, [layer.name], image)
        of_cell = layer.layout.to_grid(observed.calls[layer.name][-1])[(slice(None), slice(None), *cell)]
        for _ in range(4):
            (gradient,) = torch.autograd.grad(of_cell, leaf, torch.randn_like(of_cell), retain_graph=True)
            total = total + gradient.double().square().sum((0, 1))
    assert isinstance(total, Tensor)
    places = torch.arange(total.shape[0]) + 0.5
    return [float((total.sum(1 - axis) * places).sum() / total.sum()) for axis in (0, 1)]


@pytest.mark.parametrize("name", [*READ, *STRETCHED])
def test_arithmetic_agrees_with_gradients(name: str) -> None:
    model, size = build(name), SIZES.get(name, 224)
    images = torch.randn(4, 3, size, size)
    calibrate(model, images)
    candidates = find_candidates(model, images[:1])
    chosen = next((each for each in candidates if each.chosen), candidates[-1])
    layer, grid = Layer(chosen.name, chosen.layout), chosen.layout.grid
    centers, cell = find_centers(model, images[:1], layer), tuple((cells - 1) // 2 for cells in grid)
    assert (centers is None) == (name in STRETCHED)
    stretched = [size / cells * (index + 0.5) for cells, index in zip(grid, cell, strict=True)]
    read = stretched if centers is None else [
        axis.offset + axis.stride * index for axis, index in zip(centers.axes, cell, strict=True)
    ]  # fmt: skip
    assert measure(model, layer, images, cell) == pytest.approx(read, abs=MOST_PIXELS)


@pytest.mark.parametrize(("name", "side", "most"), AVERAGED)
def test_arithmetic_is_exact_far_from_the_border(name: str, side: int, most: float) -> None:
    """Each cell of an averaging network is a weighted mean of pixels, whose centroid has no chance in it."""
    exact = find_exact_center(average(build_trunk(name, **FEWER_CHANNELS.get(name, {}))), side)
    assert exact.reach < 0.2
    assert exact.difference == pytest.approx(0, abs=most)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_as_many_networks_agree_as_the_page_says() -> None:
    """A fourth of the networks: `python -m benchmarks centers` takes all."""
    from benchmarks import centers as benchmark
    from benchmarks.coverage import list_groups

    stored = json.loads(benchmark.RESULTS.read_text(encoding="utf-8"))["networks"][::4]
    entries = list_groups()
    kinds = [benchmark.measure_agreement(entries[row["group"]][row["name"]])["kind"] for row in stored]
    known = [row["kind"] for row in stored]
    assert kinds.count("agree") >= 0.95 * known.count("agree")
    assert kinds.count("differ") <= known.count("differ") + 2
