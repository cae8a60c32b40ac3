"""Transforms that are read exactly, compared with what they return."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

from camtool.geometry.torchvision_transforms import read_geometry
from tests.geometry.photos import (
    LANDSCAPE,
    PORTRAIT,
    SIZES,
    TRANSFORMS,
    compute_centroid,
    compute_preset_box,
    draw_photo,
    to_input,
    to_photo,
)


@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (232, 224), (224, 224), (342, 299), (200, 256), (231, 224)])
@pytest.mark.parametrize("photo", SIZES)
def test_the_classification_preset_is_read_exactly(photo, resize, crop):
    geometry = read_geometry(ImageClassification(crop_size=crop, resize_size=resize), photo)
    assert geometry.size == (crop, crop)
    assert geometry.box == pytest.approx(compute_preset_box(photo, resize, crop), abs=1e-9)


def test_the_input_size_is_that_of_torchvision():
    draw_size = random.Random(0).randint
    for _ in range(30):
        photo = draw_size(2, 90), draw_size(2, 90)
        size, slack, crop = draw_size(2, 60), draw_size(1, 40), draw_size(1, 80)
        padding = [draw_size(0, 9) for _ in range(4)]
        parts = [v1.Pad(padding), v1.Resize(size, max_size=size + slack), v1.CenterCrop((crop, size)), v1.ToTensor()]
        for count in range(1, 5):
            output = v1.Compose(parts[:count])(draw_photo(*photo))
            made = tuple(output.shape[-2:]) if count == 4 else (output.height, output.width)
            assert read_geometry(v1.Compose(parts[:count]), photo).size == made


@pytest.mark.parametrize("photo", [LANDSCAPE, PORTRAIT, (225, 224), (120, 100)])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_an_object_is_where_the_geometry_says(transform, photo):
    geometry = read_geometry(transform, draw_photo(*photo))
    height, width = photo
    for row, column in [(0.5, 0.5), (0.35, 0.6), (0.6, 0.35)]:
        top, left = int(row * height) - 6, int(column * width) - 6
        pixels = transform(draw_photo(height, width, (top, left, top + 12, left + 12)))
        assert pixels.shape[-2:] == geometry.size
        light = pixels.double().mean(0) - transform(draw_photo(height, width)).double().mean(0)
        found = compute_centroid(light)
        assert np.abs(found - to_input(geometry, (top + 6, left + 6))).max() < 0.5


@pytest.mark.parametrize("photo", [LANDSCAPE, PORTRAIT])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_a_map_returns_to_its_object(transform, photo):
    geometry = read_geometry(transform, photo)
    maps = torch.zeros(14, 14)
    maps[6, 8] = 1
    middle = to_photo(geometry, (6.5 / 14 * geometry.size[0], 8.5 / 14 * geometry.size[1]))
    top, left = (middle - 8).round().astype(int)
    pixels = transform(draw_photo(*photo, (top, left, top + 16, left + 16)))
    light = pixels.double().mean(0) - transform(draw_photo(*photo)).double().mean(0)
    pooled = F.adaptive_avg_pool2d(light[None], 14)[0]
    assert divmod(int(pooled.argmax()), 14) == (6, 8)
    assert np.abs(compute_centroid(geometry.place_on_photo(maps)) - (top + 8, left + 8)).max() < 1


def test_a_photo_and_its_size_give_the_same_geometry():
    preset = TRANSFORMS["classification"]
    assert read_geometry(preset, LANDSCAPE) == read_geometry(preset, draw_photo(*LANDSCAPE))


@pytest.mark.parametrize("padding", [5, np.int64(5), [5], (5, 6), (1, 2, 3, 4), (-3, 2, 3, -4)])
def test_all_forms_of_padding_are_read(padding):
    pad = (v1 if isinstance(padding, np.int64) else v2).Pad(padding)  # v2 takes no integers of numpy
    geometry = read_geometry(pad, (40, 50))
    left, top, right, bottom = {1: [5] * 4, 2: [5, 6, 5, 6]}.get(len(np.atleast_1d(padding)), padding)
    assert geometry.box == (-top, -left, 40 + bottom, 50 + right)
    assert pad(draw_photo(40, 50)).size == geometry.size[::-1]


def test_timm_classes_that_move_no_pixel_are_known():
    maybe = type("MaybeToTensor", (v1.ToTensor,), {"__module__": "timm.data.transforms"})()
    transform = v1.Compose([v1.Resize(50), v1.CenterCrop(40), maybe])
    assert read_geometry(transform, (60, 80)).box == pytest.approx(compute_preset_box((60, 80), 50, 40))


class Resize(v1.Resize):
    """A class of another package with a known name that crops the upper left corner."""

    def forward(self, img):
        return img.crop((0, 0, self.size, self.size))


def test_a_class_of_another_package_with_a_known_name_is_measured():
    geometry = read_geometry(v1.Compose([Resize(100), v1.ToTensor()]), (150, 200))
    assert geometry.box == pytest.approx((0, 0, 100, 100), abs=0.05)
