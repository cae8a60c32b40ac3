"""Readers of slides: exact pixels of every level, resolution, and coordinates that agree across levels."""

from __future__ import annotations

import logging
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tifffile

from camtool.errors import CamtoolError, ImageError
from camtool.inputs.image_files import read_image
from camtool.slides import readers
from camtool.slides.readers import OpenSlideReader, TiffReader, find_downsample, open_slide, read_scaled
from camtool.slides.tiling import TileGrid
from tests.helpers.missing_extras import needs
from tests.slides.slide_files import write_ome_slide, write_slide


def draw_noise(height: int = 700, width: int = 900) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (height, width, 3), np.uint8)


def cut(level: np.ndarray, x: int, y: int, width: int, height: int) -> np.ndarray:
    """Return a region of a level by plain indexing; white outside."""
    padded = np.pad(level, ((500, 500), (500, 500), (0, 0)), constant_values=255)
    return padded[y + 500 : y + 500 + height, x + 500 : x + 500 + width]


WRITERS = {OpenSlideReader: write_slide, TiffReader: write_ome_slide}
READERS = [pytest.param(OpenSlideReader, marks=needs("openslide")), TiffReader]


@pytest.mark.parametrize("kind", READERS)
def test_a_region_has_the_pixels_of_its_level(tmp_path: Path, kind: type) -> None:
    levels = WRITERS[kind](tmp_path / "a.tif", draw_noise())
    random = np.random.default_rng(1)
    with open_slide(tmp_path / "a.tif") as reader:
        assert type(reader) is kind
        assert [(each.width, each.height, each.downsample) for each in reader.levels] == [
            (900, 700, 1), (450, 350, 2), (225, 175, 4),
        ]  # fmt: skip
        assert reader.mpp == pytest.approx(0.5)
        for index, level in enumerate(levels):
            for _ in range(20):
                x, y = random.integers(-100, level.shape[1]), random.integers(-100, level.shape[0])
                width, height = random.integers(1, 300, 2)
                region = reader.read(index, int(x), int(y), int(width), int(height))
                np.testing.assert_array_equal(region, cut(level, x, y, width, height))


def test_a_tiff_in_strips_and_a_gray_one_are_read(tmp_path: Path) -> None:
    pixels = draw_noise(90, 130)
    # OME, so that OpenSlide does not take the file.
    tifffile.imwrite(tmp_path / "strips.ome.tif", pixels, photometric="rgb", rowsperstrip=7, metadata={"axes": "YXS"})
    tifffile.imwrite(tmp_path / "gray.ome.tif", pixels[..., 0], rowsperstrip=32, metadata={"axes": "YX"})
    with open_slide(tmp_path / "strips.ome.tif") as reader:
        np.testing.assert_array_equal(reader.read(0, 5, 3, 100, 80), pixels[3:83, 5:105])
    with open_slide(tmp_path / "gray.ome.tif") as reader:
        np.testing.assert_array_equal(reader.read(0, 5, 3, 100, 80), np.repeat(pixels[3:83, 5:105, :1], 3, axis=2))


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("scale", [1, 2, 2.7, 4, 13.3])
def test_a_spot_lies_at_its_place_at_every_scale(tmp_path: Path, kind: type, scale: float) -> None:
    random = np.random.default_rng(int(10 * scale))
    pixels = np.zeros((1024, 1280, 3), np.uint8)
    x, y = random.integers(200, 900, 2)
    pixels[y : y + 60, x : x + 60] = 255
    WRITERS[kind](tmp_path / "a.tif", pixels)
    left, top = 150.5 / scale, 140.25 / scale
    width, height = int(900 / scale), int(880 / scale)
    with open_slide(tmp_path / "a.tif") as reader:
        assert type(reader) is kind
        spot = read_scaled(reader, scale, left, top, width, height)[..., 0].astype(float)
    rows, columns = np.indices(spot.shape) + 0.5
    found = np.array([(spot * columns).sum(), (spot * rows).sum()]) / spot.sum() + (left, top)
    np.testing.assert_allclose(found * scale, [x + 30, y + 30], atol=0.5)


def test_a_large_region_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_slide(tmp_path / "a.tif", draw_noise(), levels=1)
    with open_slide(tmp_path / "a.tif") as reader:
        whole = read_scaled(reader, 4, 0, 0, 225, 175)
        monkeypatch.setattr(readers, "_MOST_PIXELS", 5000)
        sizes = []
        monkeypatch.setattr(
            reader, "read", lambda *args, read=reader.read: (sizes.append(args[3] * args[4]), read(*args))[1]
        )
        parts = read_scaled(reader, 4, 0, 0, 225, 175)
    assert max(sizes) <= 5000
    # The filter looks at neighbors, which a part lacks at its border.
    assert np.abs(parts.astype(int) - whole).mean() < 3
    assert (parts == whole).mean() > 0.7


@pytest.mark.parametrize(
    ("whole", "reduced", "downsample"),
    [((10001, 8003), (2500, 2000), 4), ((1000, 999), (334, 333), 3), ((1000, 1000), (1000, 1000), 1)],
)
def test_levels_whose_size_was_rounded_have_a_whole_downsample(whole, reduced, downsample) -> None:
    assert find_downsample(whole, reduced) == downsample


def test_another_downsample_is_the_mean_ratio() -> None:
    assert find_downsample((2700, 5400), (1000, 2000)) == pytest.approx(2.7)


def test_the_resolution_of_a_printer_is_none(tmp_path: Path) -> None:
    for name, options in {"72.tif": {"resolution": (72, 72), "resolutionunit": "INCH"}, "none.tif": {}}.items():
        tifffile.imwrite(
            tmp_path / name, draw_noise(128, 128), tile=(128, 128), photometric="rgb", metadata=None, **options
        )
        with open_slide(tmp_path / name) as reader:
            assert reader.mpp is None


def test_ome_may_give_nanometers(tmp_path: Path) -> None:
    size = {"PhysicalSizeX": 250, "PhysicalSizeXUnit": "nm", "PhysicalSizeY": 250, "PhysicalSizeYUnit": "nm"}
    tifffile.imwrite(tmp_path / "a.ome.tif", draw_noise(128, 128), photometric="rgb", metadata={"axes": "YXS", **size})
    with open_slide(tmp_path / "a.ome.tif") as reader:
        assert reader.mpp == pytest.approx(0.25)


@needs("openslide")
def test_what_is_no_slide_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.svs").write_text("no slide")
    tifffile.imwrite(tmp_path / "deep.ome.tif", np.zeros((64, 64, 3), np.uint16), photometric="rgb")
    tifffile.imwrite(tmp_path / "stack.ome.tif", np.zeros((5, 64, 64), np.uint8), metadata={"axes": "CYX"})
    (tmp_path / "cut.ome.tif").write_bytes(b"II*\0\1\0")
    for name, message in {
        "gone.svs": "there is no such file",
        "text.svs": "no format that OpenSlide reads",
        "deep.ome.tif": "uint16",
        "stack.ome.tif": "8-bit gray or RGB in one plane",
        "cut.ome.tif": "cannot be read as a TIFF",
    }.items():
        with pytest.raises(ImageError, match=message):
            open_slide(tmp_path / name)
    with pytest.raises(CamtoolError, match="URLs are not read"):
        open_slide("https://x.org/a.svs")


@pytest.mark.parametrize("kind", READERS)
def test_a_tile_that_would_take_the_memory_of_the_machine_is_refused(tmp_path: Path, kind: type) -> None:
    WRITERS[kind](tmp_path / "a.tif", draw_noise(256, 256), levels=1)
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as file:
        file.pages[0].tags["TileLength"].overwrite(2**25)
    # OpenSlide would end the process.
    with pytest.raises(ImageError, match="in pieces of 128 x 33554432"):
        open_slide(tmp_path / "a.tif")


def test_a_slide_that_claims_millions_of_tiles_is_refused() -> None:
    grid = TileGrid(2**31, 2**31, 1.0, 224, (0, 0, 224, 224), 0.25)
    with pytest.raises(ImageError, match="choose a coarser resolution"):
        grid.list_tiles()


def test_a_damaged_region_is_an_error_and_the_others_can_still_be_read(tmp_path: Path) -> None:
    pixels = draw_noise(256, 384)
    write_slide(tmp_path / "a.tif", pixels, levels=1, compression="zlib")
    damage_tile(tmp_path / "a.tif", 1)
    with open_slide(tmp_path / "a.tif") as reader:
        with pytest.raises(ImageError, match=r"a\.tif: a region of the slide cannot be read"):
            reader.read(0, 128, 0, 128, 128)
        np.testing.assert_array_equal(reader.read(0, 0, 0, 128, 128), pixels[:128, :128])


def damage_tile(path: Path, index: int) -> None:
    """Overwrite the compressed bytes of a tile of the first page."""
    with tifffile.TiffFile(path) as file:
        offset, count = file.pages[0].dataoffsets[index], file.pages[0].databytecounts[index]
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(b"\x55" * count)


def test_a_damaged_file_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, codes = tmp_path / "hostile.tif", range(65_000, 65_100)
    tags = [(code, 3, 1, 7, True) for code in codes]
    tifffile.imwrite(path, np.zeros((256, 256, 3), np.uint8), tile=(128, 128), photometric="rgb", extratags=tags)
    content = path.read_bytes()
    for code in codes:  # a type of numbers that there is none of
        content = content.replace(struct.pack("<HH", code, 3), struct.pack("<HH", code, 99))
    path.write_bytes(content)
    with tifffile.TiffFile(path) as file:
        assert len(file.pages) == 1
    assert len(caplog.records) >= len(codes)
    caplog.clear()
    with TiffReader(str(path)) as reader:
        reader.read(0, 0, 0, 64, 64)
    with suppress(ImageError):
        read_image(path)
    assert caplog.records == []
    logging.getLogger("tifffile").error("of another")
    assert len(caplog.records) == 1
