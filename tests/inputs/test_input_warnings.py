"""Warnings about inputs that are probably not what the user meant, and none about others; display of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import CenterCrop, Compose, Normalize, PILToTensor, Resize, ToTensor

import camtool
from camtool.errors import ImageError
from camtool.inputs import input_preparer
from camtool.inputs.image_files import read_image

SAME, BYTES, TWICE, UNIT, DARK, PART = (
    "same everywhere",
    "like the bytes of a photo",
    "Were they normalized twice",
    "are in [0, 1]",
    "nearly black",
    "saw only",
)
NEW = (SAME, BYTES, TWICE, UNIT, DARK, PART)

IMAGENET = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CROPPED = Compose([Resize(72), CenterCrop(64), ToTensor(), IMAGENET])
WHOLE = Compose([Resize((64, 64)), ToTensor(), IMAGENET])


class Net(nn.Module):
    """A classifier of three classes."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(channels, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu().mean((2, 3)))


def photo(height: int = 60, width: int = 80) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def list_warnings(img: Any, model: Any = None, **options: Any) -> list[str]:
    """Return the warnings about the input."""
    found = camtool.explain(Net() if model is None else model, img, 0, **options)
    results = found if isinstance(found, list) else [found]
    return [part for result in results for each in result.warnings for part in NEW if part in each]


# ------------------------------------------------------------------------------------------------------ photos


@pytest.mark.parametrize("size", [(60, 80), (60, 90), (90, 160), (160, 90), (64, 64), (64, 128)])
def test_common_aspect_ratios_give_no_warning(size: tuple[int, int]) -> None:
    assert list_warnings(photo(*size), transform=CROPPED) == []


@pytest.mark.parametrize("size", [(200, 1500), (1500, 200)])
def test_a_long_photo_gives_a_warning_that_explains_how_to_resize_it(size: tuple[int, int]) -> None:
    result = camtool.explain(Net(), photo(*size), 0, transform=CROPPED)
    (warning,) = [each for each in result.warnings if PART in each]
    share = float(result.seen.mean())
    assert f"{share:.0%} of the photo" in warning
    assert 0.09 < share < 0.13
    assert "Resize((224, 224))" in warning
    assert list_warnings(photo(*size), transform=WHOLE) == []
    assert camtool.explain(Net(), photo(*size), 0, transform=WHOLE).seen.all()


def test_a_photo_of_one_color_gives_a_warning() -> None:
    assert list_warnings(Image.new("RGB", (80, 60), (200, 30, 90)), transform=CROPPED) == [SAME]
    assert list_warnings(Image.new("L", (80, 60), 7), transform=CROPPED) == [SAME]


def test_a_nearly_black_photo_gives_a_warning() -> None:
    twelve_bits = np.random.default_rng(0).integers(0, 4096, (60, 80)).astype(np.uint16)
    assert list_warnings(Image.fromarray(twelve_bits), transform=CROPPED) == [DARK]
    assert list_warnings((twelve_bits / 4095).astype(np.float32), transform=CROPPED) == []


def test_real_photos_give_no_warning(mobilenet: Any, shared: Any) -> None:
    photos = sorted((shared / "images").glob("*.jpg"))
    assert len(photos) >= 23
    for result in camtool.explain(mobilenet, [*photos, shared / "images" / "both.png"]):
        assert result.warnings == ()


RANGES = {
    "bytes": (lambda values: 255 * values, [BYTES]),
    "twice ImageNet": (lambda values: IMAGENET(IMAGENET(values)), [TWICE]),
    "ImageNet without a division by 255": (lambda values: IMAGENET(255 * values), [TWICE]),
    "ImageNet": (IMAGENET, []),
    "[0, 1]": (lambda values: values, []),
    "[-1, 1]": (lambda values: 2 * values - 1, []),
    "bytes minus a mean": (lambda values: 255 * values - 120, []),
    "a small standard deviation": (lambda values: (values - 0.1) / 0.07, []),
}


@pytest.mark.parametrize("name", RANGES)
def test_values_that_no_usual_normalization_makes_give_a_warning(name: str) -> None:
    change, expected = RANGES[name]
    assert list_warnings(photo(), transform=lambda image: change(ToTensor()(image))) == expected
    assert list_warnings(change(ToTensor()(photo()))) == expected


# ------------------------------------------------------------------------------------------------------ tensors


@pytest.mark.parametrize("options", [{}, {"transform": CROPPED}], ids=["bare", "with its preparation"])
def test_normalized_tensors_give_no_warning(options: dict[str, Any]) -> None:
    batch = torch.stack([WHOLE(photo()), WHOLE(photo(90, 60))])
    assert list_warnings(batch, **options) == []
    assert list_warnings(2 * torch.rand(2, 3, 64, 64) - 1, **options) == []


@pytest.mark.parametrize("channels", [1, 3])
def test_a_tensor_with_values_of_bytes_gives_a_warning(channels: int) -> None:
    batch = torch.stack([PILToTensor()(photo())[:channels].float() for _ in range(2)])
    assert list_warnings(batch, Net(channels)) == [BYTES, BYTES]
    assert list_warnings(batch[0], Net(channels)) == [BYTES]
    assert list_warnings(batch / 255, Net(channels)) == []


def test_values_of_bytes_give_no_warning_if_the_transform_makes_them() -> None:
    to_bytes = Compose([Resize((64, 64)), PILToTensor(), Normalize([0.0] * 3, [1 / 255] * 3)])
    assert list_warnings(255 * torch.rand(1, 3, 64, 64), transform=to_bytes) == []


def test_large_values_of_other_inputs_give_no_warning() -> None:
    reflectances = 200 * torch.rand(1, 13, 32, 32)
    assert list_warnings(reflectances, Net(13)) == []


@pytest.mark.parametrize(
    ("values", "is_byte"),
    [
        (torch.linspace(-1024, 1024, 1024), False),
        (torch.linspace(-10, 10, 1024), False),
        (torch.linspace(0, 63, 1024), False),
        (torch.linspace(0, 80, 1024), True),
    ],
    ids=["CT", "two normalizations", "a depth in meters", "bytes"],
)
def test_one_channel_gives_a_warning_only_for_bytes(values: Tensor, is_byte: bool) -> None:
    assert list_warnings(values.reshape(1, 1, 32, 32), Net(1)) == [BYTES] * is_byte


@pytest.mark.parametrize("kind", ["signal", "volume", "clip"])
@pytest.mark.parametrize("values", [torch.linspace(0, 200, 1536), torch.linspace(-9, 900, 1536)])
def test_signals_and_volumes_have_no_range_of_photos_but_clips_do(kind: Any, values: Tensor) -> None:
    shape = {"signal": (1, 3, 512), "volume": (1, 3, 8, 8, 8), "clip": (1, 3, 8, 8, 8)}[kind]
    conv = nn.Conv1d(3, 4, 3) if kind == "signal" else nn.Conv3d(3, 4, 3)
    pool = nn.AdaptiveAvgPool1d(1) if kind == "signal" else nn.AdaptiveAvgPool3d(1)
    model = nn.Sequential(conv, nn.ReLU(), pool, nn.Flatten(), nn.Linear(4, 3))
    assert len(list_warnings(values.reshape(shape), model, kind=kind)) == (kind == "clip")


def test_a_tensor_without_normalization_gives_a_warning_if_the_transform_normalizes() -> None:
    batch = torch.rand(1, 3, 64, 64)
    assert list_warnings(batch, transform=CROPPED) == [UNIT]
    assert list_warnings(batch, transform=Compose([Resize((64, 64)), ToTensor()])) == []
    assert list_warnings(batch) == []


@pytest.mark.parametrize("value", [0.0, 0.5, -3.0, 200.0])
def test_a_constant_tensor_gives_a_warning(value: float) -> None:
    assert list_warnings(torch.full((1, 3, 64, 64), value)) == [SAME]
    assert list_warnings(torch.tensor([0.1, 0.7, 0.3])[:, None, None].expand(3, 64, 64)) == [SAME]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_floating_type_is_checked(dtype: torch.dtype) -> None:
    assert list_warnings((255 * torch.rand(1, 3, 32, 32)).to(dtype)) == [BYTES]


# -------------------------------------------------------------------------------------------------------------- display


@pytest.mark.parametrize("options", [{}, {"transform": CROPPED}], ids=["bare", "with its preparation"])
@pytest.mark.parametrize("scale", [255.0, 1.0], ids=["[0, 1]", "[0, 255]"])
def test_values_of_an_image_are_displayed_unchanged(options: dict[str, Any], scale: float) -> None:
    levels = np.asarray(photo(), np.uint8) // 2 + 40  # neither black nor white
    tensor = torch.from_numpy(levels.copy()).permute(2, 0, 1).float() / scale
    shown = camtool.explain(Net(), tensor[None], 0, **options)[0].photo
    np.testing.assert_array_equal(shown, levels)


def test_normalized_values_are_denormalized_for_display_if_the_transform_is_known() -> None:
    levels = np.asarray(photo(64, 64), np.uint8)
    tensor = WHOLE(Image.fromarray(levels))
    shown = camtool.explain(Net(), tensor[None], 0, transform=CROPPED)[0].photo
    np.testing.assert_allclose(shown.astype(int), np.asarray(read_image(Image.fromarray(levels))), atol=1)


def test_other_values_are_stretched_for_display() -> None:
    shown = camtool.explain(Net(), torch.randn(1, 3, 32, 32), 0)[0].photo
    assert (shown.min(), shown.max()) == (0, 255)


@pytest.mark.parametrize("plane", range(3))
def test_a_tensor_with_a_missing_value_is_displayed_black(plane: int) -> None:
    tensor = torch.linspace(-3, 3, 3 * 32 * 32).reshape(3, 32, 32)
    tensor[plane, 5, 5] = torch.nan
    result = camtool.explain(Net(), tensor, 0)
    assert not result.photo.any()
    assert not list_warnings(tensor)


@pytest.mark.parametrize("size", [(3, 700), (701, 4)])
def test_of_a_very_long_photo_the_middle_is_scaled(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))
    net = Net()
    whole = camtool.explain(net, image, 0, transform=CROPPED)
    monkeypatch.setattr(input_preparer, "_MOST_SCALED", 100_000)
    part = camtool.explain(net, image, 0, transform=CROPPED)
    assert part.geometry == whole.geometry
    np.testing.assert_allclose(part.heatmap, whole.heatmap, atol=1e-3)
    squashed = camtool.explain(net, image, 0, transform=Compose([Resize((64, 64)), ToTensor()]))
    assert squashed.geometry.sees_all
    with pytest.raises(ImageError, match=r"its preparation would enlarge it .* cut it into parts"):
        camtool.explain(net, image, 0, transform=Compose([Resize(64), ToTensor()]))
