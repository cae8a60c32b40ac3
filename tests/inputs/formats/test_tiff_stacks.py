"""TIFF of many bands, slices and 16 bits: what is chosen, how it is scaled, and where it lies in the world."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import tifffile
import torch
from PIL import Image
from rasterio.transform import Affine
from torchvision.transforms import v2

import camtool
from camtool.errors import ImageError
from camtool.inputs.image_files import get_origin, read_image
from tests.helpers.band_nets import BandNet
from tests.inputs.test_image_bands import MULTI_BAND, encode_tiff

NOISE = np.random.default_rng(0)
SCENE = NOISE.integers(0, 5000, (13, 20, 30), dtype=np.uint16)
TRANSFORM = Affine(10, 0, 600000, 0, -20, 5300000)


def write_scene(path: Path, array: np.ndarray[Any, Any] = SCENE, **profile: Any) -> Path:
    """Write a GeoTIFF by GDAL, ``(bands, H, W)``."""
    tags = profile.pop("tags", {})
    settings = {"crs": "EPSG:32633", "transform": TRANSFORM} | profile
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        count=len(array),
        height=array.shape[1],
        width=array.shape[2],
        dtype=array.dtype,
        **settings,
    ) as file:
        file.write(array)
        file.update_tags(**tags)
    return path


# ------------------------------------------------------------------------------------------------------------ bands


def test_a_scene_of_13_bands_asks_for_bands(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif")
    with pytest.raises(ImageError, match=r"13 bands.*bands=\(4, 3, 2\)\), or --bands 4,3,2"):
        camtool.explain(BandNet(), path)
    result = camtool.explain(BandNet(), path, reading={"bands": (4, 3, 2)})
    wanted = np.rint(SCENE[[3, 2, 1]].transpose(1, 2, 0) * (255 / 65535))
    np.testing.assert_array_equal(result.photo, wanted)
    gray = camtool.open_image(path, bands=8).to_photo()
    np.testing.assert_array_equal(np.asarray(gray)[..., 1], np.rint(SCENE[7] * (255 / 65535)))


@pytest.mark.parametrize("kind", [each for each in MULTI_BAND if each.startswith("13") and "float" not in each])
def test_bands_are_the_same_however_they_are_stored(kind: str) -> None:
    data = MULTI_BAND[kind][1]
    whole = tifffile.imread(BytesIO(data))
    bands = whole if whole.shape[-1] == 13 else whole.transpose(1, 2, 0)
    image = camtool.open_image(data, bands=(13, 1, 5))
    np.testing.assert_array_equal(image.values, bands[..., [12, 0, 4]])
    assert image.is_color


def test_a_model_of_13_bands_gets_all(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif")
    explainer = camtool.Explainer(BandNet(13))
    prepared = explainer.prepare(path)
    np.testing.assert_allclose(prepared.tensor.numpy(), SCENE / np.float32(65535), rtol=1e-6)
    (result,) = explainer([path])
    assert result.heatmap.shape == (20, 30)
    assert "assumed-scale" in {each.code for each in result.warnings}
    with pytest.raises(ImageError, match="13 bands, and an image has 1"):
        camtool.explain(BandNet(12), path)
    chosen = camtool.Explainer(BandNet(12), reading={"bands": list(range(2, 14))}).prepare(path)
    np.testing.assert_allclose(chosen.tensor.numpy(), SCENE[1:] / np.float32(65535), rtol=1e-6)


def test_a_transform_of_many_bands_gets_the_files_own_numbers(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif")
    steps = [v2.Resize((40, 30)), v2.CenterCrop((30, 20)), v2.Normalize([100.0] * 13, [1000.0] * 13)]
    known = camtool.Explainer(BandNet(13), transform=v2.Compose(steps)).prepare(path)
    wanted = v2.Compose(steps)(torch.from_numpy(SCENE.astype(np.float32)))
    np.testing.assert_array_equal(known.tensor.numpy(), wanted.numpy())
    assert known.geometry.box == (2.5, 5, 17.5, 25)
    # One that cannot be read is measured.
    own = camtool.Explainer(BandNet(13), transform=lambda bands: bands[:, 4:16, 10:26] / 1000).prepare(path)
    np.testing.assert_allclose(own.geometry.box, (4, 10, 16, 26), atol=0.1)
    with pytest.raises(ImageError, match=r"transform failed on the values.*float tensor \(13, 20, 30\)"):
        camtool.explain(BandNet(13), path, transform=v2.Normalize([0.5] * 3, [0.5] * 3))


def test_three_bands_of_a_microscope_are_no_colors() -> None:
    data = MULTI_BAND["3 of ImageJ"][1]
    with pytest.raises(ImageError, match="3 bands"):
        camtool.explain(BandNet(3), data)
    assert camtool.explain(BandNet(3), data, reading={"bands": (3, 2, 1)}).photo.shape == (20, 30, 3)


@pytest.mark.parametrize(
    ("bands", "message"),
    [
        ((0, 1, 2), "counted from 1"),
        ((4, 3, 14), "names band 14, but there are 13"),
        ("4,3,2", "must be band numbers"),
        ((1, 2), "has 2 bands"),
        ((), "must be band numbers"),
        ((1.0, 2.0, 3.0), "must be band numbers"),
    ],
)
def test_bands_that_do_not_exist_are_refused(bands: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=message):
        camtool.explain(BandNet(), write_scene(tmp_path / "scene.tif"), reading={"bands": bands})


# --------------------------------------------------------------------------------------------------- place in the world


@pytest.mark.parametrize("bands", [None, (4, 3, 2)])
@pytest.mark.parametrize(
    "profile",
    [
        {},
        {"crs": "EPSG:4326", "transform": Affine(0.001, 0, -70.5, 0, -0.001, -33.25)},
        {"transform": Affine(9, 3, 600000, 4, -8, 5300000)},
        {"compress": "lzw", "tiled": True, "blockxsize": 16, "blockysize": 16},
        {"compress": "deflate", "predictor": 2, "interleave": "pixel"},
        {"BIGTIFF": "YES"},
        {"tags": {"AREA_OR_POINT": "Point"}},
        {"crs": "+proj=laea +lat_0=12 +lon_0=34 +ellps=bessel +units=m"},
    ],
    ids=["UTM", "degrees", "rotated", "lzw", "predictor", "BigTIFF", "point", "user's own"],
)
def test_the_heatmap_has_the_crs_and_the_transform_of_the_scene(
    profile: dict[str, Any], bands: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """By GDAL's own reading of both files."""
    path = write_scene(tmp_path / "scene.tif", **dict(profile))
    model = BandNet(13 if bands is None else 3)
    result = camtool.explain(model, path, reading=None if bands is None else {"bands": bands})
    with rasterio.open(path) as scene, rasterio.open(result.save(tmp_path / "heat.tif")) as heat:
        assert scene.crs is not None
        assert heat.crs == scene.crs
        assert heat.transform == scene.transform
        assert heat.shape == scene.shape
        np.testing.assert_array_equal(heat.read(1), result.heatmap)
        origin: Any = result.origin
        np.testing.assert_allclose(origin.transform, scene.transform[:6])
        if "crs" not in profile or str(profile["crs"]).startswith("EPSG"):
            assert origin.crs == scene.crs.to_string()


def test_a_usual_photo_with_a_place_keeps_it(tmp_path: Path) -> None:
    colors = NOISE.integers(0, 256, (3, 20, 30), dtype=np.uint8)
    path = write_scene(tmp_path / "photo.tif", colors, photometric="rgb")
    image = read_image(path)
    np.testing.assert_array_equal(np.asarray(image), colors.transpose(1, 2, 0))
    origin: Any = get_origin(image)
    assert origin.crs == "EPSG:32633"
    result = camtool.explain(BandNet(), path)
    with rasterio.open(path) as scene, rasterio.open(result.save(tmp_path / "heat.tif")) as heat:
        assert (heat.crs, heat.transform) == (scene.crs, scene.transform)


def test_a_heatmap_of_a_reduced_photo_is_stored_on_the_grid_of_the_file(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "photo.tif", NOISE.integers(0, 256, (3, 40, 60), dtype=np.uint8), photometric="rgb")
    result = camtool.explain(BandNet(), read_image(path, max_side=30))
    assert result.heatmap.shape == (20, 30)
    with rasterio.open(result.save(tmp_path / "heat.tif")) as heat:
        assert heat.shape == (40, 60)
        assert heat.transform == TRANSFORM


def test_a_photo_that_is_shown_rotated_has_no_place(tmp_path: Path) -> None:
    data = encode_tiff(np.zeros((4, 6, 3), np.uint8), photometric="rgb", extratags=[(274, "H", 1, 6, True)])
    image = read_image(data)
    assert image.size == (4, 6)
    assert get_origin(image) is None


def test_pixels_without_data_do_not_count(tmp_path: Path) -> None:
    scene = SCENE.astype(np.float32) + 1
    scene[:, :10] = -9999
    path = write_scene(tmp_path / "scene.tif", scene, nodata=-9999)
    image = camtool.open_image(path, bands=1, percentiles=(0, 100))
    assert image.contrast is not None
    assert image.contrast.low == (scene[0, 10:].min(),)
    assert (np.asarray(image.to_photo())[:10] == 0).all()


# ------------------------------------------------------------------------------------------------- 16 bits, microscopy


def encode_png(array: np.ndarray[Any, Any]) -> bytes:
    buffer = BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("encode", [encode_tiff, encode_png])
def test_16_bits_are_scaled_by_the_range_of_the_type(encode: Any) -> None:
    """Neither the low byte (a wrap) nor the values above 255 as white (a clip)."""
    values = np.array([[0, 128, 129, 255], [256, 257, 4095, 32768], [60000, 65278, 65406, 65535]], np.uint16)
    found = np.asarray(read_image(encode(values)))[..., 0]
    np.testing.assert_array_equal(found, [[0, 0, 1, 1], [1, 1, 16, 128], [233, 254, 254, 255]])
    np.testing.assert_array_equal(np.asarray(camtool.open_image(encode(values)).to_photo())[..., 0], found)


def test_colors_of_16_bits_are_not_wrapped() -> None:
    values = np.array([[0, 255, 256, 4095, 32768, 65278, 65535]], np.uint16)
    data = encode_tiff(np.stack([values] * 3, -1), photometric="rgb")
    np.testing.assert_array_equal(np.asarray(read_image(data))[0, :, 1], values[0] // 256)
    levels = np.asarray(camtool.open_image(data, window=(32767.5, 65535)).to_photo())[0, :, 1]
    np.testing.assert_array_equal(levels, np.rint(values[0] / 257))


def encode_turned(values: np.ndarray[Any, Any], kind: str, orientation: int) -> bytes:
    if kind == "tiff":
        return encode_tiff(values, metadata=None, extratags=[(274, "H", 1, orientation, True)])
    exif, buffer = Image.Exif(), BytesIO()
    exif[274] = orientation
    Image.fromarray(values).save(buffer, "PNG", exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", range(1, 10))
@pytest.mark.parametrize(("kind", "dtype"), [("tiff", np.uint8), ("tiff", np.uint16), ("png", "u1"), ("png", "u2")])
def test_an_image_is_as_upright_with_options_as_without(kind: str, dtype: Any, orientation: int) -> None:
    """Pillow turns the images that are read without options."""
    values = (np.arange(12).reshape(3, 4) ** 2).astype(dtype) * (257 if np.dtype(dtype) == np.uint16 else 1)
    data, largest = encode_turned(values, kind, orientation), np.iinfo(dtype).max
    image = camtool.open_image(data, window=(largest / 2, largest))
    np.testing.assert_array_equal(np.asarray(image.to_photo()), np.asarray(read_image(data)))
    assert image.origin is None or image.origin.shape == image.values.shape[:-1]


@pytest.mark.parametrize("reading", [{}, {"window": (127.5, 255)}])
def test_an_orientation_that_is_no_number_turns_nothing(reading: dict[str, Any]) -> None:
    values = NOISE.integers(0, 255, (3, 4), dtype=np.uint8)
    image = camtool.open_image(encode_tiff(values, metadata=None, extratags=[(274, "s", 0, "x", True)]), **reading)
    np.testing.assert_array_equal(np.asarray(image.to_photo())[..., 0], values)
    assert image.origin is None


def test_all_slices_and_bands_of_a_stack_are_turned() -> None:
    stack = NOISE.integers(0, 255, (5, 4, 6, 3), dtype=np.uint8)
    data = encode_tiff(stack, photometric="rgb", metadata=None, extratags=[(274, "H", 1, 6, True)])
    image = camtool.open_image(data, window=(127.5, 255))
    np.testing.assert_array_equal(image.values, np.rot90(stack, -1, (1, 2)))


@pytest.mark.parametrize("encode", [encode_tiff, encode_png])
def test_percentiles_and_windows_of_16_bits(encode: Any) -> None:
    values = np.arange(1000, 1101, dtype=np.uint16).reshape(1, -1)
    found = np.asarray(camtool.open_image(encode(values), percentiles=(10, 90)).to_photo())[0, :, 0]
    np.testing.assert_array_equal(found, np.rint(np.clip((np.arange(101) - 10) / 80, 0, 1) * 255))
    found = np.asarray(camtool.open_image(encode(values), window=(1050, 20)).to_photo())[0, :, 0]
    np.testing.assert_array_equal(found, np.rint(np.clip((np.arange(101) - 40) / 20, 0, 1) * 255))


def test_the_percentiles_are_those_of_each_band() -> None:
    bands = np.stack([np.full((4, 4), 10) + np.eye(4) * scale for scale in (1, 10, 100)]).astype(np.uint16)
    data = encode_tiff(bands, metadata={"axes": "CYX"})
    levels = np.asarray(camtool.open_image(data, bands=(1, 2, 3), percentiles=(0, 100)).to_photo())
    np.testing.assert_array_equal(levels, np.broadcast_to(255 * np.eye(4, dtype=np.uint8)[..., None], (4, 4, 3)))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint32, np.float32, np.float64])
def test_gray_numbers_without_a_scale_are_refused_with_the_remedy(dtype: Any) -> None:
    """Pillow alone would take -20 of 8 bits for 236."""
    values = (np.arange(12).reshape(3, 4) * 9 - 20).astype(dtype)
    with pytest.raises(ImageError, match=r"camtool\.open_image"):
        read_image(encode_tiff(values, metadata=None))
    image = camtool.open_image(encode_tiff(values, metadata=None), window=(29.5, 99))
    np.testing.assert_array_equal(image.values[..., 0], values)
    np.testing.assert_allclose(image.to_unit()[..., 0], np.clip((values + 20.0) / 99, 0, 1), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.uint32, np.int8])
def test_numbers_without_a_scale_ask_for_one(dtype: Any) -> None:
    values = (np.arange(12).reshape(3, 4) * 9 - 20).astype(dtype)
    data = encode_tiff(np.stack([values] * 3), metadata={"axes": "CYX"})
    with pytest.raises(ImageError, match=r"nothing says which of these are black and white.*percentiles"):
        camtool.explain(BandNet(), data, reading={"bands": (1, 2, 3)})
    reading = {"bands": 1, "percentiles": (0, 100)}
    assert np.asarray(camtool.explain(BandNet(), data, reading=reading).photo).max() == 255


def test_color_pngs_of_16_bits_refuse_a_contrast() -> None:
    with pytest.raises(ImageError, match="mode RGB; window= and percentiles= apply to gray"):
        camtool.open_image(encode_png(np.zeros((2, 2, 3), np.uint8)), percentiles=(1, 99))


HYPERSTACK = NOISE.integers(0, 60000, (2, 5, 3, 8, 9), dtype=np.uint16)  # T, Z, C, Y, X


def encode_ome() -> bytes:
    buffer = BytesIO()
    tifffile.imwrite(buffer, HYPERSTACK, ome=True, photometric="minisblack", metadata={"axes": "TZCYX"})
    return buffer.getvalue()


def encode_imagej() -> bytes:
    return encode_tiff(HYPERSTACK, imagej=True, metadata={"axes": "TZCYX"})


@pytest.mark.parametrize("encode", [encode_ome, encode_imagej])
def test_stacks_of_microscopes_ask_for_time_slice_and_bands(encode: Any) -> None:
    data = encode()
    with pytest.raises(ImageError, match="2 time steps; choose one with frame="):
        read_image(data)
    with pytest.raises(ImageError, match="5 slices or pages"):
        camtool.open_image(data, frame=1).to_photo()
    with pytest.raises(ImageError, match="3 bands"):
        camtool.open_image(data, frame=1, slice=4).to_photo()
    image = camtool.open_image(data, frame=1, slice=4, bands=2)
    np.testing.assert_array_equal(image.values[..., 0], HYPERSTACK[1, 4, 1])
    assert image.to_photo().size == (9, 8)
    volume = camtool.explain(BandNet(1, axes=3), data, reading={"frame": 0, "bands": 3})
    assert volume.heatmap.shape == (5, 8, 9)
    four = camtool.Explainer(BandNet(3, axes=3), kind="volume", reading={"frame": 0}).prepare(data)
    np.testing.assert_allclose(four.tensor.numpy(), HYPERSTACK[0].transpose(1, 0, 2, 3) / np.float32(65535), rtol=1e-6)


def test_pages_without_a_meaning_can_be_chosen() -> None:
    data = encode_tiff(SCENE, metadata=None)
    np.testing.assert_array_equal(camtool.open_image(data, slice=7).values[..., 0], SCENE[7])


@pytest.mark.parametrize(("kind", "is_noted"), [(0, True), (2, True), (1, False), (4, False)])
def test_other_series_are_told_unless_they_are_thumbnails_or_masks(kind: int, *, is_noted: bool) -> None:
    buffer = BytesIO()
    with tifffile.TiffWriter(buffer) as writer:
        writer.write(SCENE[0], metadata=None)
        other = SCENE[1, :9, :9] if kind != 4 else SCENE[1, :9, :9] > 2500  # a mask has one bit
        writer.write(other, subfiletype=kind, metadata=None)
    image = camtool.open_image(buffer.getvalue(), window=(2500, 5000))
    np.testing.assert_array_equal(image.values[..., 0], SCENE[0])
    assert [note.code for note in image.notes] == ["frames-ignored"] * is_noted
    assert all("2 series" in note for note in image.notes)
    assert [note.code for note in camtool.open_image(buffer.getvalue()).notes] == ["frames-ignored"] * is_noted


def test_white_is_zero_is_inverted() -> None:
    values = np.array([[0, 65535]], np.uint16)
    data = encode_tiff(values, photometric="miniswhite")
    np.testing.assert_array_equal(
        np.asarray(camtool.open_image(data, window=(32767.5, 65535)).to_photo())[0, :, 0], [255, 0]
    )


def test_opacity_is_no_band_of_colors() -> None:
    colors = NOISE.integers(0, 256, (4, 5, 4), dtype=np.uint8)
    data = encode_tiff(colors, photometric="rgb", extrasamples=["unassalpha"])
    np.testing.assert_array_equal(camtool.open_image(data, window=(127.5, 255)).values, colors[..., :3])


@pytest.mark.parametrize("reading", [{"window": (127.5, 255)}, {"slice": 0}])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("kind", ["unassalpha", "assocalpha"])
def test_transparent_pixels_are_white_with_options_as_without(
    kind: str, orientation: int, reading: dict[str, Any]
) -> None:
    colors = NOISE.integers(0, 256, (4, 5, 4), dtype=np.uint8)
    colors[:2, :, 3] = 0
    colors[2:, :, 3] |= 64  # of few levels, Pillow's own rounding is coarse
    if kind == "assocalpha":
        colors[..., :3] = colors[..., :3] * (colors[..., 3:] / 255)
    tag = [(274, "H", 1, orientation, True)]
    data = encode_tiff(colors, photometric="rgb", extrasamples=[kind], metadata=None, extratags=tag)
    image = camtool.open_image(data, **reading)
    wanted = np.asarray(read_image(data)).astype(int)
    assert (wanted == 255).all(-1).sum() >= 10
    np.testing.assert_allclose(np.asarray(image.to_photo()), wanted, atol=2)
    np.testing.assert_allclose(image.draw(), wanted, atol=2)
    np.testing.assert_allclose(image.to_unit() * 255, wanted, atol=2)


def test_transparent_pixels_do_not_count() -> None:
    colors = np.full((4, 5, 4), 255, np.uint8)
    colors[..., :3] = np.arange(20).reshape(4, 5, 1) + 100
    colors[0] = 0
    data = encode_tiff(colors, photometric="rgb", extrasamples=["unassalpha"])
    image = camtool.open_image(data, percentiles=(0, 100))
    assert image.contrast is not None
    assert image.contrast.low == (105.0,) * 3
    assert (np.asarray(image.to_photo())[0] == 255).all()
    floats = (colors / 255).astype(np.float32)
    data_of_floats = encode_tiff(floats, photometric="rgb", extrasamples=["assocalpha"])
    assert (np.asarray(camtool.open_image(data_of_floats, slice=0).to_photo())[0] == 255).all()
    assert (np.asarray(camtool.open_image(data, bands=4).to_photo())[0] == 0).all()  # the opacity itself
    # GDAL declares the fourth of any four bands of bytes, e.g. near infrared, to be an opacity.
    np.testing.assert_array_equal(camtool.open_image(data, bands=(1, 2, 3)).to_photo(), colors[..., :3])


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("kind", ["13 by pixel", "13 as pages", "13 in a BigTIFF"])
def test_damaged_files_are_image_errors(kind: str) -> None:
    """tifffile logs a page whose tags are cut off, and goes on; but the last bytes may hold no pixels and no tags."""
    data = MULTI_BAND[kind][1]
    for length in range(8, len(data) - 21, max(1, len(data) // 60)):
        with pytest.raises(ImageError, match="the bytes"):
            camtool.open_image(data[:length], bands=(1, 2, 3))


def test_files_with_wrong_bytes_are_read_or_are_image_errors() -> None:
    data = MULTI_BAND["13 by pixel"][1]
    random, refused = np.random.default_rng(0), 0
    for _ in range(300):
        wrong = bytearray(data)
        for place in random.integers(0, 300, 3):
            wrong[place] = random.integers(256)
        try:
            camtool.open_image(bytes(wrong), bands=(1, 2, 3)).to_photo()
        except ImageError:
            refused += 1
    assert refused > 50


def test_an_axis_of_another_kind_is_refused() -> None:
    data = encode_tiff(np.zeros((4, 5, 8, 9), np.uint8), metadata={"axes": "HZYX"})
    with pytest.raises(ImageError, match="axes HZYX"):
        read_image(data)


def test_complex_numbers_and_palettes_are_refused() -> None:
    with pytest.raises(ImageError, match="complex64; real numbers"):
        camtool.open_image(encode_tiff(np.zeros((13, 8, 9), np.complex64)), bands=1)
    palette = encode_tiff(np.zeros((8, 9), np.uint8), photometric="palette", colormap=np.zeros((3, 256), np.uint16))
    with pytest.raises(ImageError, match=r"colors of the kind PALETTE; leave window= out"):
        camtool.open_image(palette, window=(40, 400))


def test_the_limit_of_pixels_holds() -> None:
    data = MULTI_BAND["13 by pixel"][1]
    with pytest.raises(ImageError, match="it has 600 pixels, and the limit is 599"):
        camtool.open_image(data, bands=1, max_pixels=599)
    with pytest.raises(ImageError, match="of memory, and the limit is 0 MB"):
        camtool.open_image(data, bands=1, max_memory=7800)
    assert camtool.open_image(data, bands=1, max_pixels=600).size == (30, 20)
