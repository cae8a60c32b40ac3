"""Transforms as numbers: equal to the transform on photos, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms
from torchvision.models import EfficientNet_B3_Weights, MobileNet_V2_Weights

from camtool.geometry.plain_transforms import find_plain_transform

_HALVES = transforms.Normalize([0.5] * 3, [0.25] * 3)


@pytest.mark.parametrize(
    ("transform", "rule"),
    [
        (MobileNet_V2_Weights.IMAGENET1K_V1.transforms(), (256, None, (224, 224), "bilinear")),
        (EfficientNet_B3_Weights.IMAGENET1K_V1.transforms(), (320, None, (300, 300), "bicubic")),
        (
            transforms.Compose(
                [transforms.Resize((40, 64), transforms.InterpolationMode.LANCZOS), transforms.ToTensor()]
            ),
            (None, (40, 64), (40, 64), "lanczos"),
        ),
        # Smaller than the crop, so there is a black border.
        (
            transforms.Compose(
                [transforms.Resize(50), transforms.CenterCrop((71, 64)), transforms.ToTensor(), _HALVES]
            ),
            (50, None, (71, 64), "bilinear"),
        ),
    ],
)
def test_the_numbers_repeat_the_transform(transform: Callable[[Image.Image], Any], rule: tuple[Any, ...]) -> None:
    plain = find_plain_transform(transform)
    assert plain is not None
    assert (plain.shorter_side, plain.resized, plain.crop, plain.interpolation) == rule
    for height, width in ((211, 333), (480, 97), (31, 31)):
        pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
        photo = Image.fromarray(pixels)
        np.testing.assert_allclose(plain(photo), np.asarray(transform(photo)), atol=2e-6)


@pytest.mark.parametrize(
    "transform",
    [
        transforms.Compose([transforms.ToTensor(), transforms.Resize((64, 64)), _HALVES]),  # resized without rounding
        transforms.Compose([transforms.Grayscale(3), transforms.Resize((64, 64)), transforms.ToTensor()]),
        transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()]),
        transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor(), lambda values: 255 * values]),
        transforms.Compose([transforms.Resize((64, 64)), transforms.RandomHorizontalFlip(1.0), transforms.ToTensor()]),
        transforms.Compose([transforms.Resize((64, 64), transforms.InterpolationMode.NEAREST), transforms.ToTensor()]),
    ],
)
def test_a_transform_that_does_more_is_none(transform: Callable[[Image.Image], Any]) -> None:
    assert find_plain_transform(transform) is None
