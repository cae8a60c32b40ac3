"""Transforms that are measured."""

from __future__ import annotations

import random

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as vision

from camtool.errors import GeometryError
from camtool.geometry.measured_transforms import probe_colors, probe_geometry
from camtool.geometry.torchvision_transforms import read_geometry
from tests.geometry.photos import (
    LANDSCAPE,
    PORTRAIT,
    TRANSFORMS,
    squash,
    to_tensor,
)


def squash_by_area(photo):
    """Return the photo resized by area and normalized."""
    resized = cv2.resize(np.asarray(photo), (224, 224), interpolation=cv2.INTER_AREA)
    return (torch.from_numpy(resized).permute(2, 0, 1).float() - 120) / 57


def letterbox(photo):
    """Return the photo padded to a square and resized."""
    side = max(photo.size)
    square = Image.new("RGB", (side, side), (114, 90, 30))
    square.paste(photo, ((side - photo.width) // 2, (side - photo.height) // 2))
    return to_tensor(square.resize((256, 256), Image.Resampling.BICUBIC))


def compute_boxes(height, width):
    """Return the boxes that the functions show."""
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    return {
        "whole": (0, 0, height, width),
        "mirrored": (0, width, height, 0),
        "corner": (0, 0, 200, 180),
        "letterbox": (-top, -left, side - top, side - left),
        "replicated": (-40, -50, height + 40, width + 50),
    }


FUNCTIONS = {
    "to tensor": (to_tensor, "whole"),
    "squash": (squash, "whole"),
    "squash by area": (squash_by_area, "whole"),
    "inverted": (lambda photo: 1 - squash(photo), "whole"),
    "one channel": (lambda photo: to_tensor(photo.convert("L").resize((96, 96))), "whole"),
    "corner": (lambda photo: to_tensor(photo.crop((0, 0, 180, 200))), "corner"),
    "letterbox": (letterbox, "letterbox"),
    "mirrored": (lambda photo: squash(ImageOps.mirror(photo)), "mirrored"),
    "mirrored batch": (lambda photo: vision.hflip(squash(photo))[None], "mirrored"),
    "replicated": (lambda photo: squash(vision.pad(photo, [50, 40], padding_mode="edge")), "replicated"),
    "reflected": (lambda photo: squash(vision.pad(photo, [50, 40], padding_mode="reflect")), "replicated"),
    "array": (lambda photo: squash(photo).numpy(), "whole"),
    "dict": (lambda photo: {"image": squash(photo)}, "whole"),
    "processor": (lambda photo: {"pixel_values": squash(photo)[None], "pixel_mask": torch.ones(1, 2, 2)}, "whole"),
    "processor's list": (lambda photo: {"pixel_values": [squash(photo).numpy()]}, "whole"),
    "only value": (lambda photo: {"x": squash(photo).half()}, "whole"),
}


@pytest.mark.parametrize("photo", [LANDSCAPE, PORTRAIT, (700, 640)])
@pytest.mark.parametrize(("transform", "shown"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_the_box_of_a_function_is_measured(transform, shown, photo):
    assert read_geometry(transform, photo).box == pytest.approx(compute_boxes(*photo)[shown], abs=0.05)


@pytest.mark.parametrize("photo", [LANDSCAPE, (500, 375), (640, 1000), (150, 120)])
@pytest.mark.parametrize("transform", [t for name, t in TRANSFORMS.items() if "flip" not in name])
def test_measured_and_read_geometry_agree(transform, photo):
    exact, measured = read_geometry(transform, photo), probe_geometry(transform, photo)
    assert measured.size == exact.size
    assert measured.photo == exact.photo
    assert measured.box == pytest.approx(exact.box, abs=0.05)


@pytest.mark.parametrize("photo", [(446, 232), (719, 930), (647, 948)])
@pytest.mark.parametrize(
    "parts",
    [[v1.Resize((224, 224))], [v1.Resize(64), v1.Resize(256), v1.CenterCrop(224)], [v1.Resize((32, 32))]],
    ids=["to 224", "through 64", "to 32"],
)
def test_rounding_and_resampling_errors_average_out(parts, photo):
    # Without dither, or without weights that fade out, the errors are larger.
    transform = v1.Compose([*parts, v1.ToTensor()])
    assert probe_geometry(transform, photo).box == pytest.approx(read_geometry(transform, photo).box, abs=0.06)


@pytest.mark.parametrize("mode", [InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC])
@pytest.mark.parametrize(("photo", "size"), [((813, 767), 256), ((697, 719), 232), ((449, 430), 224)])
def test_the_error_is_bounded_if_resampling_makes_one_slow_wave(photo, size, mode):
    # Scales next to 3, 3 and 2: the sampled positions drift by up to half a pixel, so no line fits to hundredths.
    transform = v1.Compose([v1.Resize((size, size), mode), v1.ToTensor()])
    assert probe_geometry(transform, photo).box == pytest.approx(read_geometry(transform, photo).box, abs=0.6)


@pytest.mark.parametrize("photo", [(40, 1), (1, 40)])
def test_a_photo_of_one_column_cannot_be_measured(photo):
    with pytest.raises(GeometryError, match="'squash' is not a crop and a scale"):
        probe_geometry(squash, photo)


def test_random_generators_are_restored():
    def draw_numbers(photo):
        random.random(), np.random.rand(), torch.rand(3)  # noqa: NPY002
        return to_tensor(photo)

    def draw_next():
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002

    for transform in (to_tensor, draw_numbers):
        python, numpys, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        expected = draw_next()
        random.setstate(python), np.random.set_state(numpys), torch.set_rng_state(torchs)  # noqa: NPY002
        if transform is draw_numbers:
            with pytest.raises(GeometryError, match="'draw_numbers' is random"):
                probe_geometry(transform, (40, 50))
        else:
            probe_geometry(transform, (40, 50))
        assert draw_next() == expected


def rotate(degrees):
    """Return a transform that rotates."""
    return lambda photo: vision.rotate(to_tensor(photo), degrees, InterpolationMode.BILINEAR)


def keystone(photo):
    """Return the photo with a perspective distortion."""
    corners = [[0, 0], [photo.width, 0], [photo.width, photo.height], [0, photo.height]]
    moved = [[20, 10], *corners[1:]]
    return vision.perspective(to_tensor(photo), corners, moved)


@pytest.mark.parametrize(
    "transform",
    [
        rotate(5),
        rotate(-1.5),
        rotate(90),
        keystone,
        lambda photo: to_tensor(photo).mT,
        lambda photo: to_tensor(photo) ** 2.2,
        lambda photo: torch.cat([to_tensor(photo)] * 2, dim=2),
    ],
    ids=["5 degrees", "1.5 degrees", "90 degrees", "perspective", "transposed", "gamma", "twice"],
)
@pytest.mark.parametrize("photo", [(300, 400), (200, 200)])
def test_a_transform_that_is_no_crop_and_scale_raises_an_error(transform, photo):
    name = "keystone" if transform is keystone else "<lambda>"
    with pytest.raises(GeometryError, match=f"transform '{name}' is not a crop and a scale.*deterministic transform"):
        read_geometry(transform, photo)


generator = np.random.default_rng(0)


def crop_at_random(photo):
    """Return a random crop, from a generator that is not global."""
    left = int(generator.integers(0, 30))
    return to_tensor(photo.crop((left, 0, left + 200, 200)))


def resize_at_random(photo):
    """Return the photo at a random width."""
    return to_tensor(photo.resize((int(generator.integers(50, 90)), 60)))


def trim_borders(photo):
    """Return the photo without black borders, as of a scan."""
    return to_tensor(photo.crop(photo.point(lambda gray: 255 * (gray > 90)).getbbox()))


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (trim_borders, "trim_borders"),
        (v1.Compose([v1.RandomResizedCrop(100), v1.ToTensor()]), "Compose"),
        (v2.Compose([v2.ToImage(), v2.RandomResizedCrop(100)]), "Compose"),
        (v1.Compose([v1.Resize(64), v1.RandomHorizontalFlip(0.5), v1.ToTensor()]), "Compose"),
        (v1.Compose([v1.ColorJitter(0.3), v1.ToTensor()]), "Compose"),
        (crop_at_random, "crop_at_random"),
        (resize_at_random, "resize_at_random"),
    ],
)
def test_a_random_transform_raises_an_error(transform, name):
    with pytest.raises(GeometryError, match=f"transform '{name}' is random.*Pass a deterministic transform"):
        read_geometry(transform, LANDSCAPE)


@pytest.mark.parametrize(
    ("transform", "match"),
    [
        (lambda photo: photo, r"must return a tensor \(C, h, w\) or \(1, C, h, w\), got Image\. Pass"),
        (lambda photo: torch.zeros(4, 4), r"got Tensor with shape \(4, 4\)"),
        (lambda photo: torch.zeros(5, 3, 4, 4), r"got Tensor with shape \(5, 3, 4, 4\)"),
        (lambda photo: {"a": to_tensor(photo), "b": to_tensor(photo)}, "got dict"),
        (lambda photo: {}, "got dict"),
        (v1.FiveCrop(20), "transform 'FiveCrop' must return a tensor .* got tuple"),
        (lambda photo: torch.zeros(3, 9, 9), "returns the same for a black and a white photo"),
        (lambda photo: torch.full((3, 9, 9), float("nan")), "is random|returns the same for a black"),
    ],
)
def test_an_output_that_is_no_image_raises_an_error(transform, match):
    with pytest.raises(GeometryError, match=match):
        read_geometry(transform, (40, 50))


def test_errors_of_the_transform_are_not_hidden():
    def broken(photo):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        read_geometry(broken, (40, 50))


COLORS = {
    "to tensor": (to_tensor, ([0, 0, 0], [1, 1, 1], False)),
    "normalized": (
        v2.Compose([to_tensor, v2.Normalize([0.5, 0.25, 0.1], [0.5, 0.25, 0.2])]),
        ([-1, -1, -0.5], [1, 3, 4.5], False),
    ),
    "BGR bytes": (lambda photo: 255 * to_tensor(photo).flip(0), ([0, 0, 0], [255, 255, 255], True)),
    "inverted": (lambda photo: 1 - to_tensor(photo), ([1, 1, 1], [0, 0, 0], False)),
    "gray": (v2.Compose([v2.Grayscale(), to_tensor]), ([0], [1], False)),
    "gray in three channels": (
        v2.Compose([v2.Grayscale(3), to_tensor, v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]),
        ([-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], [0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225], False),
    ),
    "almost gray": (
        lambda photo: 0.9 * to_tensor(photo).mean(0, keepdim=True) + 0.1 * to_tensor(photo).flip(0),
        ([0] * 3, [1] * 3, False),
    ),
    "a crop far from the corner": (
        lambda photo: to_tensor(photo.crop((300, 300, 364, 364))),
        ([0] * 3, [1] * 3, False),
    ),
    "padded": (letterbox, ([0, 0, 0], [1, 1, 1], False)),
}


@pytest.mark.parametrize("name", COLORS)
def test_the_response_to_colors_is_that_of_the_arithmetic(name):
    transform, (black, white, is_reversed) = COLORS[name]
    response = probe_colors(transform, (400, 400))
    np.testing.assert_allclose(response.black, black, atol=1e-5)
    np.testing.assert_allclose(response.white, white, atol=1e-5)
    assert response.is_reversed == is_reversed


@pytest.mark.parametrize(
    ("transform", "match"),
    [
        (lambda photo: to_tensor(photo) ** 2.2, "not linear"),
        (lambda photo: to_tensor(photo) - to_tensor(photo).mean(), "not linear"),
        (lambda photo: to_tensor(photo) + random.random(), "is random"),
        (lambda photo: torch.ones(3, 8, 8), "not linear"),
    ],
    ids=["gamma", "a mean for each photo", "random", "constant"],
)
def test_values_that_are_not_linear_in_the_photo_have_no_response(transform, match):
    with pytest.raises(GeometryError, match=match):
        probe_colors(transform, (64, 48))
