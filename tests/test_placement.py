"""``placement="centers"`` draws heat where the network looked: networks whose score depends on one planted spot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

import camtool
from camtool.errors import CamtoolError
from tests.hooks.state.test_no_trace import unchanged

SPOTS = 200
CELL = 8


class Spot(nn.Module):
    """Three strided averages with symmetric padding: a spot gives a bump over the cells around it."""

    def __init__(self, axes: int = 2, channels: int = 3) -> None:
        super().__init__()
        kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
        self.features = nn.Sequential(*(kind(c, 1, 3, 2, 1, bias=False) for c in (channels, 1, 1)))
        for layer in self.features:
            nn.init.constant_(layer.weight, 1)
        self.head = nn.Linear(1, 2, bias=False)
        nn.init.constant_(self.head.weight, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(2).sum(2))


class Rectified(Spot):
    """With ReLUs, and with a class that does not see the spot."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(c, 1, 3, 2, 1, bias=False) for c in (3, 1, 1)]
        for layer in layers:
            nn.init.constant_(layer.weight, 0.3)
        self.features = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
        self.head.weight.data[0] = 0


def find_centroid(heatmap: np.ndarray) -> np.ndarray:
    """The bump is as wide as its neighbors, so its centroid is the place of the spot between the cells."""
    lines = [np.moveaxis(heatmap, axis, 0).reshape(size, -1).sum(1) for axis, size in enumerate(heatmap.shape)]
    return np.array([(line * (np.arange(len(line)) + 0.5)).sum() / line.sum() for line in lines])


def explain_spots(model: nn.Module, size: tuple[int, ...], placement: str, count: int = SPOTS) -> np.ndarray:
    """Return the distances of the heat from planted spots, in cells, ``(count, axes)``."""
    random, found = np.random.default_rng(0), []
    for start in range(0, count, 50):
        places = np.stack([random.integers(2 * CELL, pixels - 2 * CELL, 50) for pixels in size], 1)
        batch = torch.zeros(50, 3, *size)
        for index, place in enumerate(places):
            batch[(index, slice(None), *place)] = 1
        results = camtool.explain(model, batch, 1, layer="features", placement=placement, batch_size=50)
        found += [find_centroid(each.heatmap) - place - 0.5 for each, place in zip(results, places, strict=True)]
        assert start + 50 <= count
    return np.array(found) / CELL


@pytest.mark.parametrize(
    "size",
    [(64,), (64, 96), (48, 56, 64)],
    ids=["signals", "images", "volumes"],
)
def test_heat_lies_on_the_planted_spot(size: tuple[int, ...]) -> None:
    model = Spot(len(size))
    centered, stretched = (explain_spots(model, size, placement) for placement in ("centers", "stretch"))
    assert np.abs(centered).max() < 0.2
    assert np.abs(np.median(stretched, 0) - 0.44).max() < 0.02  # 3.5 of 8 pixels too far down and right


def test_sizes_that_no_stride_divides() -> None:
    for size in ((61, 83), (66, 71)):
        assert np.abs(explain_spots(Spot(), size, "centers", 50)).max() < 0.2


@pytest.mark.parametrize(
    "transform",
    [
        [v2.Resize(80), v2.CenterCrop(64)],
        [v2.Resize((56, 88))],
        [v2.CenterCrop((64, 72))],
        [v2.Pad(8)],
    ],
    ids=["resize and crop", "other proportions", "crop", "padding"],
)
def test_photos_that_are_cropped_and_resized(transform: list[Any]) -> None:
    prepare = v2.Compose([*transform, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    random, model = np.random.default_rng(1), Spot()
    for _ in range(20):
        y, x = random.integers(32, 96 - 32), random.integers(40, 120 - 40)
        photo = np.zeros((96, 120, 3), np.uint8)
        photo[y - 1 : y + 2, x - 1 : x + 2] = 255
        result = camtool.explain(
            model, Image.fromarray(photo), 1, layer="features", transform=prepare, placement="centers"
        )
        geometry = result.geometry
        top, left, bottom, right = geometry.box
        cell = CELL * np.array([(bottom - top) / geometry.size[0], (right - left) / geometry.size[1]])
        assert np.abs((find_centroid(result.heatmap) - (y + 0.5, x + 0.5)) / cell).max() < 0.2


def test_layers_are_merged_at_their_own_places() -> None:
    """A map of 8 x 8 cells and one of 32 x 32 cells, both with their heat on the spot."""
    model, image = Spot(), torch.zeros(1, 3, 64, 64)
    image[..., 30, 37] = 1
    for merge in ("mean", "max", "refinecam"):
        together = camtool.explain(model, image, 1, layer=["features.0", "features"], merge=merge, placement="centers")
        assert np.abs(find_centroid(together[0].heatmap) - (30.5, 37.5)).max() < 0.2 * CELL
        assert together[0].raw.shape == (32, 32)


@pytest.mark.parametrize("method", ["tta:gradcam", "sess:gradcam", "cameras", "groupcam"])
def test_methods_that_resize_or_mirror_maps_themselves(method: str) -> None:
    """Mirrored images, windows, other sizes, and maps at the size of the input: the heat lies on the spot."""
    model, image = Rectified(), torch.zeros(1, 3, 64, 64)
    image[..., 30, 37] = 1
    (result,) = camtool.explain(model, image, 1, method=method, layer="features", placement="centers")
    (stretched,) = camtool.explain(model, image, 1, method=method, layer="features", placement="stretch")
    off, off_before = (np.abs(find_centroid(each.heatmap) - (30.5, 37.5)).max() / CELL for each in (result, stretched))
    assert off < 0.2
    assert off_before > 0.3


def test_raw_is_the_same_and_the_shift_is_told() -> None:
    model, image = Spot(), torch.rand(1, 3, 64, 64)
    (stretched,), (centered,) = (
        camtool.explain(model, image, 1, layer="features", placement=each) for each in ("stretch", "centers")
    )
    np.testing.assert_array_equal(stretched.raw, centered.raw)
    assert stretched.shift == (0, 0)
    assert stretched.centers is None
    assert centered.shift == (-3.5, -3.5)
    assert np.abs(stretched.heatmap - centered.heatmap).max() > 0.05


def test_a_batch_is_as_its_images_one_by_one() -> None:
    model, batch = Spot(), torch.rand(3, 3, 64, 64)
    with unchanged(model):
        together = camtool.explain(model, batch, 1, layer="features", placement="centers")
    for one, result in zip(batch, together, strict=True):
        alone = camtool.explain(model, one[None], 1, layer="features", placement="centers")[0]
        np.testing.assert_allclose(alone.heatmap, result.heatmap, atol=1e-5)


@pytest.mark.parametrize("method", ["inputxgradient", "rise"])
def test_maps_at_the_input_do_not_move(method: str) -> None:
    model, image = Spot(), torch.rand(1, 3, 64, 64)
    result = (
        camtool.explain(model, image, 1, method=method, placement="centers", seed=0)
        if method == "rise"
        else camtool.explain(model, image, 1, method=method, placement="centers")
    )
    assert result[0].centers is None


def test_an_unknown_placement_is_refused_with_a_suggestion() -> None:
    with pytest.raises(CamtoolError, match=r"placement must be one of 'centers', 'stretch', got 'center'.*centers"):
        camtool.explain(Spot(), torch.rand(1, 3, 64, 64), 1, placement="center")  # type: ignore[call-overload]


def test_a_detector_is_placed_in_the_image_that_it_resized() -> None:
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, box_score_thresh=0.0, num_classes=3
    ).eval()
    image = torch.rand(3, 200, 300)
    stretched, centered = (
        camtool.explain(model, image[None], method="eigencam", layer="backbone.body", placement=each)[0]
        for each in ("stretch", "centers")
    )
    np.testing.assert_array_equal(stretched.raw, centered.raw)
    # The backbone's stride is 32, each strided convolution with symmetric padding.
    assert [axis.stride for axis in centered.centers.axes] == [32, 32]
    # Random filters may weigh one side a little more.
    assert [axis.offset for axis in centered.centers.axes] == pytest.approx([0.5, 0.5], abs=1.6)
