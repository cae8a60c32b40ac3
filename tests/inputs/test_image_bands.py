"""Images with many bands or frames: an error that explains how to choose, or a note on what was read."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import tifffile
import torch
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool.errors import ImageError
from camtool.inputs.image_files import get_reading_notes, read_image


def make_bands(count: int, dtype: Any = np.uint8) -> np.ndarray[Any, Any]:
    """Return ``(20, 30, count)``, with different noise in each band."""
    return np.random.default_rng(0).integers(0, 255, (20, 30, count)).astype(dtype)


def encode_tiff(array: np.ndarray[Any, Any], **options: Any) -> bytes:
    buffer = BytesIO()
    tifffile.imwrite(buffer, array, **({"photometric": "minisblack"} | options))
    return buffer.getvalue()


def by_channels(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array.transpose(2, 0, 1))


MULTI_BAND = {
    "13 by pixel": (13, encode_tiff(make_bands(13), planarconfig="contig")),
    "13 by plane": (13, encode_tiff(by_channels(make_bands(13)), planarconfig="separate")),
    "13 of 16 bits": (13, encode_tiff(make_bands(13, np.uint16), planarconfig="contig")),
    "13 floats": (13, encode_tiff(make_bands(13, np.float32), planarconfig="contig")),
    "13 in a BigTIFF": (13, encode_tiff(make_bands(13), planarconfig="contig", bigtiff=True)),
    "13 as pages": (13, encode_tiff(by_channels(make_bands(13)))),
    "13 as named pages": (13, encode_tiff(by_channels(make_bands(13)), metadata={"axes": "CYX"})),
    "3 of ImageJ": (3, encode_tiff(by_channels(make_bands(3)), imagej=True, metadata={"axes": "CYX"})),
    "2, and no alpha": (2, encode_tiff(make_bands(2), planarconfig="contig", extrasamples=["unspecified"])),
    "4, and no colors": (4, encode_tiff(make_bands(4), planarconfig="contig")),
    "5 with colors": (5, encode_tiff(make_bands(5), photometric="rgb")),
}


@pytest.mark.parametrize("kind", MULTI_BAND)
def test_a_tiff_with_many_bands_raises_an_error_that_explains_how_to_choose(kind: str, tmp_path: Path) -> None:
    count, data = MULTI_BAND[kind]
    path = tmp_path / "scene.tif"
    path.write_bytes(data)
    with pytest.raises(ImageError, match=rf"scene\.tif has {count} bands.*Choose the bands.*tifffile"):
        read_image(path)


@pytest.mark.parametrize("kind", ["13 as pages", "2, and no alpha"])
def test_a_pil_image_with_many_bands_raises_an_error(kind: str) -> None:
    if kind.startswith("2") and int(PIL.__version__.partition(".")[0]) < 13:
        pytest.skip("Pillow opens such a file from version 13 on")
    with pytest.raises(ImageError, match=r"bands.*Choose the bands"):
        read_image(Image.open(BytesIO(MULTI_BAND[kind][1])))


def test_a_page_that_the_user_selected_is_read() -> None:
    image = Image.open(BytesIO(MULTI_BAND["13 as pages"][1]))
    image.seek(4)
    np.testing.assert_array_equal(np.asarray(read_image(image))[..., 0], make_bands(13)[..., 4])


def test_the_error_on_a_damaged_tiff_names_it() -> None:
    with pytest.raises(ImageError, match="the bytes"):
        read_image(MULTI_BAND["13 by pixel"][1][:60])


@pytest.mark.parametrize(
    ("array", "options"),
    [
        (make_bands(3), {"photometric": "rgb"}),
        (by_channels(make_bands(3)), {"photometric": "rgb", "planarconfig": "separate"}),
        (make_bands(4), {"photometric": "rgb", "extrasamples": ["unspecified"]}),
        (make_bands(4), {"photometric": "rgb", "extrasamples": ["unassalpha"]}),
        (make_bands(2), {"planarconfig": "contig", "extrasamples": ["unassalpha"]}),
        (make_bands(1)[..., 0], {}),
        (make_bands(4), {"photometric": "separated"}),
    ],
    ids=["rgb", "rgb by plane", "rgbx", "rgba", "gray and alpha", "gray", "cmyk"],
)
def test_a_tiff_with_usual_bands_is_read_without_a_note(array: np.ndarray[Any, Any], options: dict[str, Any]) -> None:
    image = read_image(encode_tiff(array, **options))
    assert image.size == (30, 20)
    assert get_reading_notes(image) == ()


def test_the_error_on_a_tiff_that_pillow_cannot_read_names_another_reader() -> None:
    with pytest.raises(ImageError, match=r"tifffile\.imread\(path\)"):
        read_image(encode_tiff(make_bands(3, np.float32), photometric="rgb"))


@pytest.mark.parametrize("count", [2, 5, 13])
def test_an_array_with_many_bands_raises_an_error_that_explains_how_to_choose(count: int) -> None:
    with pytest.raises(ImageError, match=rf"\(20, 30, {count}\).*Choose the bands"):
        read_image(make_bands(count))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (make_bands(3, np.uint16), "dtype uint16.*Divide by the largest value"),
        (make_bands(3, np.float32), "range from 0 to 254.*Divide by 255"),
    ],
)
def test_an_array_with_another_range_raises_an_error(array: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read_image(array)


class Net(nn.Module):
    """A classifier of three classes for any number of bands."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(count, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu().mean((2, 3)))


def test_the_advice_in_the_messages_works() -> None:
    array = tifffile.imread(BytesIO(MULTI_BAND["13 of 16 bits"][1]))
    chosen = array[..., [3, 2, 1]] / array.max()
    assert camtool.explain(Net(3), chosen).heatmap.shape == (20, 30)
    whole = torch.from_numpy(array.astype(np.float32)).permute(2, 0, 1) / 255 - 0.5
    assert camtool.explain(Net(13), whole).heatmap.shape == (20, 30)


# ------------------------------------------------------------------------------------------------------- frames


def encode_frames(kind: str, count: int = 3) -> bytes:
    colors = [Image.new("RGB", (30, 20), color) for color in ("red", "blue", "green")[:count]]
    buffer = BytesIO()
    colors[0].save(buffer, kind, save_all=True, append_images=colors[1:])
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_the_first_of_several_frames_is_read_with_a_note(kind: str) -> None:
    image = read_image(encode_frames(kind))
    assert ("several frames" if kind == "GIF" else "3 frames") in "".join(get_reading_notes(image))
    # A folder run reads an image before it is explained.
    assert get_reading_notes(read_image(image)) == get_reading_notes(image)
    assert get_reading_notes(read_image(Image.open(BytesIO(encode_frames(kind))))) == get_reading_notes(image)
    (warning,) = [each for each in camtool.explain(Net(3), encode_frames(kind)).warnings if "frames" in each]
    assert "image.seek(1)" in warning


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_a_single_or_selected_frame_gets_no_note(kind: str) -> None:
    assert get_reading_notes(read_image(encode_frames(kind, count=1))) == ()
    image = Image.open(BytesIO(encode_frames(kind)))
    image.seek(1)
    # A folder run reads an image before it is explained.
    assert get_reading_notes(read_image(image)) == ()
    assert image.tell() == 1


def test_a_preview_in_a_jpeg_does_not_count_as_a_frame() -> None:
    assert get_reading_notes(read_image(encode_frames("MPO"))) == ()


def test_thumbnails_in_a_tiff_do_not_count_as_pages() -> None:
    buffer = BytesIO()
    with tifffile.TiffWriter(buffer) as writer:
        writer.write(make_bands(3), photometric="rgb", metadata=None)
        writer.write(make_bands(3)[::2, ::2], photometric="rgb", subfiletype=1, metadata=None)
    assert get_reading_notes(read_image(buffer.getvalue())) == ()


def test_damage_behind_the_first_frame_is_ignored() -> None:
    data = encode_frames("GIF")
    np.testing.assert_array_equal(np.asarray(read_image(data[: len(data) // 2]))[0, 0], (255, 0, 0))


def test_pages_without_a_description_count_as_frames() -> None:
    data = encode_tiff(by_channels(make_bands(13)), metadata=None)
    assert "13 frames or pages" in "".join(get_reading_notes(read_image(data)))


def test_pages_that_are_declared_as_slices_are_refused() -> None:
    depth = encode_tiff(by_channels(make_bands(13)), metadata={"axes": "ZYX"})
    assert json.loads(Image.open(BytesIO(depth)).tag_v2[270])["axes"] == "ZYX"
    with pytest.raises(ImageError, match=r"13 slices or pages.*choose one with slice=, from 0 to 12"):
        read_image(depth)
