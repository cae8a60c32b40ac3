"""Pictures with more bands or frames than one: refused with the way to choose, or read with a note."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool.errors import ImageError
from camtool.images import notes_of, read


def bands(count: int, dtype: Any = np.uint8) -> np.ndarray[Any, Any]:
    """``(20, 30, count)``, each band another noise."""
    return np.random.default_rng(0).integers(0, 255, (20, 30, count)).astype(dtype)


def tiff(array: np.ndarray[Any, Any], **options: Any) -> bytes:
    buffer = BytesIO()
    tifffile.imwrite(buffer, array, **({"photometric": "minisblack"} | options))
    return buffer.getvalue()


def by_channels(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array.transpose(2, 0, 1))


MULTI_BAND = {
    "13 by pixel": (13, tiff(bands(13), planarconfig="contig")),
    "13 by plane": (13, tiff(by_channels(bands(13)), planarconfig="separate")),
    "13 of 16 bits": (13, tiff(bands(13, np.uint16), planarconfig="contig")),
    "13 floats": (13, tiff(bands(13, np.float32), planarconfig="contig")),
    "13 in a BigTIFF": (13, tiff(bands(13), planarconfig="contig", bigtiff=True)),
    "13 as pages": (13, tiff(by_channels(bands(13)))),
    "13 as named pages": (13, tiff(by_channels(bands(13)), metadata={"axes": "CYX"})),
    "3 of ImageJ": (3, tiff(by_channels(bands(3)), imagej=True, metadata={"axes": "CYX"})),
    "2, and no alpha": (2, tiff(bands(2), planarconfig="contig", extrasamples=["unspecified"])),
    "4, and no colors": (4, tiff(bands(4), planarconfig="contig")),
    "5 with colors": (5, tiff(bands(5), photometric="rgb")),
}


@pytest.mark.parametrize("kind", MULTI_BAND)
def test_a_tiff_of_more_bands_than_a_picture_says_how_to_choose(kind: str, tmp_path: Path) -> None:
    count, data = MULTI_BAND[kind]
    path = tmp_path / "scene.tif"
    path.write_bytes(data)
    with pytest.raises(ImageError, match=rf"scene\.tif has {count} bands.*Choose the bands.*tifffile"):
        read(path)


@pytest.mark.parametrize("kind", ["13 as pages", "2, and no alpha"])
def test_a_pil_image_of_more_bands_is_refused_too(kind: str) -> None:
    with pytest.raises(ImageError, match=r"bands.*Choose the bands"):
        read(Image.open(BytesIO(MULTI_BAND[kind][1])))


def test_a_page_that_the_user_turned_to_is_read() -> None:
    image = Image.open(BytesIO(MULTI_BAND["13 as pages"][1]))
    image.seek(4)
    np.testing.assert_array_equal(np.asarray(read(image))[..., 0], bands(13)[..., 4])


def test_a_damaged_tiff_is_named() -> None:
    with pytest.raises(ImageError, match="the bytes"):
        read(MULTI_BAND["13 by pixel"][1][:60])


@pytest.mark.parametrize(
    ("array", "options"),
    [
        (bands(3), {"photometric": "rgb"}),
        (by_channels(bands(3)), {"photometric": "rgb", "planarconfig": "separate"}),
        (bands(4), {"photometric": "rgb", "extrasamples": ["unspecified"]}),
        (bands(4), {"photometric": "rgb", "extrasamples": ["unassalpha"]}),
        (bands(2), {"planarconfig": "contig", "extrasamples": ["unassalpha"]}),
        (bands(1)[..., 0], {}),
        (bands(4), {"photometric": "separated"}),
    ],
    ids=["rgb", "rgb by plane", "rgbx", "rgba", "gray and alpha", "gray", "cmyk"],
)
def test_a_tiff_of_a_picture_is_read_without_a_note(array: np.ndarray[Any, Any], options: dict[str, Any]) -> None:
    image = read(tiff(array, **options))
    assert image.size == (30, 20)
    assert notes_of(image) == ()


def test_a_tiff_that_pillow_does_not_read_says_what_does() -> None:
    with pytest.raises(ImageError, match=r"tifffile\.imread\(path\)"):
        read(tiff(bands(3, np.float32), photometric="rgb"))


@pytest.mark.parametrize("count", [2, 5, 13])
def test_an_array_of_more_bands_says_how_to_choose(count: int) -> None:
    with pytest.raises(ImageError, match=rf"\(20, 30, {count}\).*Choose the bands"):
        read(bands(count))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (bands(3, np.uint16), "dtype uint16.*Divide by the largest value"),
        (bands(3, np.float32), "range from 0 to 254.*Divide by 255"),
    ],
)
def test_an_array_of_another_scale_says_what_to_do(array: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read(array)


class Net(nn.Module):
    """Three classes from any number of bands."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(count, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu().mean((2, 3)))


def test_what_the_messages_advise_works() -> None:
    array = tifffile.imread(BytesIO(MULTI_BAND["13 of 16 bits"][1]))
    chosen = array[..., [3, 2, 1]] / array.max()
    assert camtool.explain(Net(3), chosen).heatmap.shape == (20, 30)
    whole = torch.from_numpy(array.astype(np.float32)).permute(2, 0, 1) / 255 - 0.5
    assert camtool.explain(Net(13), whole).heatmap.shape == (20, 30)


# ------------------------------------------------------------------------------------------------------- frames


def frames(kind: str, count: int = 3) -> bytes:
    colors = [Image.new("RGB", (30, 20), color) for color in ("red", "blue", "green")[:count]]
    buffer = BytesIO()
    colors[0].save(buffer, kind, save_all=True, append_images=colors[1:])
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_several_frames_are_told_and_the_first_is_read(kind: str) -> None:
    image = read(frames(kind))
    assert "3 frames" in "".join(notes_of(image))
    assert notes_of(read(image)) == notes_of(image)  # as a folder run reads a photo before it is explained
    assert notes_of(read(Image.open(BytesIO(frames(kind))))) == notes_of(image)
    (warning,) = [each for each in camtool.explain(Net(3), frames(kind)).warnings if "frames" in each]
    assert "image.seek(1)" in warning


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_one_frame_or_one_that_was_chosen_is_not_told(kind: str) -> None:
    assert notes_of(read(frames(kind, count=1))) == ()
    image = Image.open(BytesIO(frames(kind)))
    image.seek(1)
    assert notes_of(read(image)) == ()
    assert image.tell() == 1


def test_a_preview_in_a_jpeg_is_no_frame() -> None:
    assert notes_of(read(frames("MPO"))) == ()


def test_smaller_copies_in_a_tiff_are_no_pages() -> None:
    buffer = BytesIO()
    with tifffile.TiffWriter(buffer) as writer:
        writer.write(bands(3), photometric="rgb", metadata=None)
        writer.write(bands(3)[::2, ::2], photometric="rgb", subfiletype=1, metadata=None)
    assert notes_of(read(buffer.getvalue())) == ()


def test_damage_behind_the_first_frame_does_not_matter() -> None:
    data = frames("GIF")
    np.testing.assert_array_equal(np.asarray(read(data[: len(data) // 2]))[0, 0], (255, 0, 0))


def test_a_file_whose_first_page_tells_nothing_is_read_by_pages() -> None:
    data = tiff(by_channels(bands(13)), metadata=None)
    assert "13 frames or pages" in "".join(notes_of(read(data)))
    depth = tiff(by_channels(bands(13)), metadata={"axes": "ZYX"})
    assert json.loads(Image.open(BytesIO(depth)).tag_v2[270])["axes"] == "ZYX"
    assert "13 frames or pages" in "".join(notes_of(read(depth)))
