"""DICOM: pixels by hand and by pydicom's own functions, frames, series, and files that are refused."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset
from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi_lut, pixel_array
from pydicom.sequence import Sequence
from pydicom.uid import MPEG2MPML, JPEGLosslessSV1, JPEGLSLossless

import camtool
from camtool.errors import ImageError
from camtool.inputs.image_files import get_reading_notes, read_image
from tests.helpers.band_nets import BandNet
from tests.helpers.medical_files import build_dicom, encode_dicom

RAMP = np.arange(12, dtype=np.int16).reshape(3, 4) * 100


def read_levels(dataset: Dataset, **reading: Any) -> np.ndarray[Any, Any]:
    """Return the gray levels ``(H, W)``."""
    pixels = np.asarray(camtool.open_image(encode_dicom(dataset), **reading).to_photo())
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


def find_file(name: str) -> str:
    path = get_testdata_file(name, download=False)
    assert path, f"{name} comes with pydicom"
    return str(path)


# ------------------------------------------------------------------------------------------------ the gray pipeline


def test_a_window_by_hand() -> None:
    """LINEAR, center 500, width 401: black up to 299.5, white from 699.5 (C.11.2.1.2)."""
    found = read_levels(build_dicom(RAMP, WindowCenter=500, WindowWidth=401))
    wanted = [
        0,
        0,
        0,
        255 * 0.5 / 400,
        255 * 100.5 / 400,
        255 * 200.5 / 400,
        255 * 300.5 / 400,
        255,
        255,
        255,
        255,
        255,
    ]
    np.testing.assert_array_equal(found.ravel(), np.rint(wanted))


def test_values_are_rescaled_before_the_window() -> None:
    dataset = build_dicom(RAMP, RescaleSlope=2, RescaleIntercept=-1000, WindowCenter=0, WindowWidth=1000)
    dataset.VOILUTFunction = "LINEAR_EXACT"
    image = camtool.open_image(encode_dicom(dataset))
    np.testing.assert_array_equal(image.values[..., 0], RAMP * 2 - 1000)
    np.testing.assert_array_equal(image.to_unit()[..., 0], np.clip((RAMP * 2 - 1000 + 500) / 1000, 0, 1).astype("f4"))


def test_monochrome1_is_inverted() -> None:
    attributes = {"WindowCenter": 500, "WindowWidth": 801}
    dark, bright = (read_levels(build_dicom(RAMP, f"MONOCHROME{kind}", **attributes)) for kind in (2, 1))
    np.testing.assert_allclose(bright, 255 - dark.astype(int), atol=1)
    assert bright[0, 0] == 255


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # in pydicom
@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("window", [(400, 700), (-3, 1), (550.5, 80), (100, 3000)])
def test_windows_equal_those_of_pydicom(function: str, window: tuple[float, float]) -> None:
    dataset = build_dicom(RAMP, RescaleSlope=1, RescaleIntercept=-200, VOILUTFunction=function)
    dataset.WindowCenter, dataset.WindowWidth = window
    shown = apply_voi_lut(apply_modality_lut(RAMP, dataset), dataset)
    low, high = -(2**15) - 200, 2**15 - 1 - 200  # the range that pydicom maps to
    unit = camtool.open_image(encode_dicom(dataset)).to_unit()[..., 0]
    np.testing.assert_allclose(unit, (shown - low) / (high - low), atol=1e-6)


def test_the_first_of_several_windows_counts_and_the_users_own_replaces_it() -> None:
    dataset = build_dicom(RAMP, WindowCenter=[500, 0], WindowWidth=[401, 10])
    single = build_dicom(RAMP, WindowCenter=500, WindowWidth=401)
    np.testing.assert_array_equal(read_levels(dataset), read_levels(single))
    own = read_levels(dataset, window=(200, 101))
    np.testing.assert_array_equal(own, read_levels(build_dicom(RAMP, WindowCenter=200, WindowWidth=101)))
    assert (own != read_levels(dataset)).any()


def test_windows_of_small_numbers_are_exact() -> None:
    """LINEAR takes 0.5 off the center and 1 off the width, which leaves nothing of a width of 1."""
    dataset = build_dicom(np.array([[0, 400, 1000, 1800, 2200]], np.int16), RescaleSlope=0.0005, RescaleIntercept=0)
    user, narrow = (camtool.open_image(encode_dicom(dataset), window=(0.5, width)).to_unit() for width in (1, 0.5))
    np.testing.assert_allclose(user[0, :, 0], [0, 0.2, 0.5, 0.9, 1], atol=1e-6)
    np.testing.assert_allclose(narrow[0, :, 0], [0, 0, 0.5, 1, 1], atol=1e-6)
    dataset.WindowCenter, dataset.WindowWidth = 0.5, 0.5
    np.testing.assert_array_equal(camtool.open_image(encode_dicom(dataset)).to_unit(), narrow)


def test_without_a_window_the_values_are_stretched_with_a_note() -> None:
    data = encode_dicom(build_dicom(RAMP, PixelPaddingValue=0))
    image = read_image(data)
    # 0 is padding, so black is 100.
    np.testing.assert_array_equal(np.asarray(image)[0, :, 0], np.rint([0, 0, 25.5, 51]))
    (note,) = get_reading_notes(image)
    assert note.code == "assumed-contrast"
    assert "100 to 1100" in note
    assert get_reading_notes(read_image(encode_dicom(build_dicom(RAMP, WindowCenter=500, WindowWidth=401)))) == ()


def test_percentiles_replace_the_window_of_the_file() -> None:
    found = read_levels(build_dicom(RAMP, WindowCenter=9, WindowWidth=2), percentiles=(0, 50))
    np.testing.assert_array_equal(found.ravel()[:6], np.rint(255 * np.arange(6) / 5.5))
    assert (found.ravel()[6:] == 255).all()


def build_table(entries: list[int], first: int, bits: int, *, as_bytes: bool = False) -> Sequence:
    item = Dataset()
    item.LUTDescriptor = [len(entries), first, bits]
    if as_bytes:
        item.add_new("LUTData", "OW", np.array(entries, "<u2").tobytes())
    else:
        item.add_new("LUTData", "US", entries)
    return Sequence([item])


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_voi_table_by_hand_and_by_pydicom(*, as_bytes: bool) -> None:
    dataset = build_dicom(RAMP.astype(np.uint16))
    dataset.VOILUTSequence = build_table([0, 4095, 100, 2000], 200, 12, as_bytes=as_bytes)
    data = encode_dicom(dataset)
    image = camtool.open_image(data)
    np.testing.assert_array_equal(image.values.ravel(), [0, 0, 0] + [2000] * 9)
    assert image.contrast is not None
    assert image.contrast.high == (4095.0,)
    read_back = pydicom.dcmread(BytesIO(data))
    np.testing.assert_array_equal(image.values[..., 0], apply_voi_lut(read_back.pixel_array, read_back))


def test_a_table_of_8_bits_with_many_entries_does_not_wrap() -> None:
    dataset = build_dicom(RAMP.astype(np.uint16))
    dataset.VOILUTSequence = build_table([value // 5 for value in range(1200)], 0, 8)
    np.testing.assert_array_equal(read_levels(dataset), RAMP // 5)


def test_a_modality_table() -> None:
    dataset = build_dicom(RAMP.astype(np.uint16))
    dataset.ModalityLUTSequence = build_table([3, 7, 1000], 99, 16)
    np.testing.assert_array_equal(camtool.open_image(encode_dicom(dataset)).values.ravel(), [3, 7] + [1000] * 10)


@pytest.mark.parametrize("name", ["CT_small.dcm", "MR_small.dcm", "MR_small_RLE.dcm", "JPEG2000.dcm"])
def test_files_of_pydicom_have_the_values_of_pydicom(name: str) -> None:
    dataset = pydicom.dcmread(find_file(name))
    values = apply_modality_lut(pixel_array(dataset), dataset)
    np.testing.assert_array_equal(camtool.open_image(find_file(name)).values[..., 0], values)


# ---------------------------------------------------------------------------------------------------------- colors


def test_rgb_is_read_as_it_is() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 6, 3), np.uint8)
    np.testing.assert_array_equal(np.asarray(read_image(encode_dicom(build_dicom(pixels, "RGB")))), pixels)


def test_ybr_becomes_rgb_by_hand() -> None:
    """PS3.3 C.7.6.3.1.2: Y 76, CB 85, CR 255 is red."""
    pixels = np.full((2, 2, 3), (76, 85, 255), np.uint8)
    found = np.asarray(read_image(encode_dicom(build_dicom(pixels, "YBR_FULL"))))
    np.testing.assert_allclose(found, np.broadcast_to((254, 0, 0), found.shape), atol=1)


@pytest.mark.parametrize(
    "name", ["SC_ybr_full_422_uncompressed.dcm", "SC_rgb_jpeg_dcmtk.dcm", "examples_jpeg2k.dcm", "SC_rgb_rle_16bit.dcm"]
)
def test_other_colors_equal_those_of_pydicom(name: str) -> None:
    wanted = pixel_array(find_file(name))
    scale = 255 / (65535 if wanted.dtype == np.uint16 else 255)
    np.testing.assert_allclose(np.asarray(read_image(find_file(name))), np.rint(wanted * scale), atol=1)


def test_a_palette_becomes_its_colors() -> None:
    dataset = pydicom.dcmread(find_file("examples_palette.dcm"))
    wanted = apply_color_lut(dataset.pixel_array, dataset) / 65535 * 255
    np.testing.assert_allclose(np.asarray(read_image(find_file("examples_palette.dcm"))), wanted, atol=0.51)


def test_a_window_for_colors_is_refused() -> None:
    with pytest.raises(ImageError, match="color image, which needs no window="):
        camtool.open_image(encode_dicom(build_dicom(np.zeros((2, 2, 3), np.uint8), "RGB")), window=(40, 400))


# --------------------------------------------------------------------------------------------------- frames, series


def test_a_model_of_photos_asks_for_one_of_several_frames() -> None:
    frames = np.stack([RAMP + index for index in range(5)])
    data = encode_dicom(build_dicom(frames, WindowCenter=500, WindowWidth=401))
    with pytest.raises(ImageError, match=r"holds 5 frames.*slice=, from 0 to 4.*--slice 2"):
        camtool.explain(BandNet(), data)
    np.testing.assert_array_equal(camtool.open_image(data, slice=3).values[..., 0], frames[3])
    np.testing.assert_array_equal(camtool.open_image(data, slice=-1).values[..., 0], frames[4])
    np.testing.assert_array_equal(camtool.open_image(data, slice="middle").values[..., 0], frames[2])
    with pytest.raises(ImageError, match=r"slice=5 does not exist; there are 5 frames, from 0 to 4"):
        camtool.open_image(data, slice=5)
    result = camtool.explain(BandNet(1, axes=3), data)
    assert result.heatmap.shape == (5, 3, 4)
    assert result.view.kind == "volume"


def test_frames_of_an_enhanced_file_have_values_of_their_own() -> None:
    dataset = build_dicom(np.stack([RAMP, RAMP]))

    def build_group(slope: float) -> Dataset:
        item, group = Dataset(), Dataset()
        item.RescaleSlope, item.RescaleIntercept = slope, 1
        group.PixelValueTransformationSequence = Sequence([item])
        return group

    voi, shared = Dataset(), Dataset()
    voi.WindowCenter, voi.WindowWidth = 500, 401
    shared.FrameVOILUTSequence = Sequence([voi])
    dataset.SharedFunctionalGroupsSequence = Sequence([shared])
    dataset.PerFrameFunctionalGroupsSequence = Sequence([build_group(1), build_group(3)])
    image = camtool.open_image(encode_dicom(dataset))
    np.testing.assert_array_equal(image.values[..., 0], [RAMP + 1, 3 * RAMP + 1])
    assert image.contrast is not None
    assert image.contrast.low == (299.5,)
    np.testing.assert_array_equal(camtool.open_image(encode_dicom(dataset), slice=1).values[..., 0], 3 * RAMP + 1)


def write_series(folder: Path, order: list[int], cosines: list[float], normal: list[float]) -> None:
    """Write slices whose names are in another order than their places; pixels of slice i are 100 + i."""
    folder.mkdir(exist_ok=True)
    for name, index in enumerate(order):
        dataset = build_dicom(np.full((4, 5), 100 + index, np.int16), WindowCenter=110, WindowWidth=40)
        dataset.ImageOrientationPatient = cosines
        dataset.ImagePositionPatient = [float(2.5 * index * each + 1) for each in normal]
        dataset.InstanceNumber, dataset.PixelSpacing = name, [0.7, 0.6]
        (folder / f"IM{name:04d}").write_bytes(encode_dicom(dataset))


@pytest.mark.parametrize(
    ("cosines", "normal"),
    [
        ([1, 0, 0, 0, 1, 0], [0, 0, 1]),
        ([0, 1, 0, 0, 0, -1], [-1, 0, 0]),
        ([0.8, 0.6, 0, 0, 0, -1], [-0.6, 0.8, 0]),
    ],
    ids=["axial", "sagittal", "oblique"],
)
def test_a_series_is_sorted_by_place_and_not_by_name(tmp_path: Path, cosines: list[float], normal: list[float]) -> None:
    order = [3, 0, 11, 2, 1, 10, 4, 5, 9, 6, 8, 7]
    write_series(tmp_path, order, cosines, normal)
    (tmp_path / "notes.txt").write_text("not a slice")
    image = camtool.open_image(tmp_path)
    np.testing.assert_array_equal(image.values[:, 0, 0, 0], 100 + np.arange(12))
    assert image.origin is not None
    assert image.origin.spacing == pytest.approx((2.5, 0.7, 0.6))
    assert image.notes == ()
    assert camtool.open_image(tmp_path, slice=4).values[0, 0, 0] == 104
    assert camtool.explain(BandNet(1, axes=3), str(tmp_path)).heatmap.shape == (12, 4, 5)
    with pytest.raises(ImageError, match="holds 12 slices"):
        camtool.explain(BandNet(), tmp_path)


AXIAL: list[float] = [1, 0, 0, 0, 1, 0]


def test_a_missing_slice_is_told(tmp_path: Path) -> None:
    write_series(tmp_path, [0, 1, 2, 4, 5], AXIAL, [0, 0, 1])
    (note,) = camtool.open_image(tmp_path).notes
    assert note.code == "uneven-slices"
    assert "2.5 to 5 mm" in note


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SeriesInstanceUID": "1.2.3"}, "2 DICOM series"),
        ({"ImageOrientationPatient": [0, 1, 0, 1, 0, 0]}, "not parallel"),
        ({"ImagePositionPatient": [0, 0, 2.5]}, "same position"),
        ({"ImagePositionPatient": None}, "does not say where it lies"),
        ({"Rows": 2, "Columns": 10}, "10 x 2 pixels, unlike"),
    ],
)
def test_a_folder_that_is_no_volume_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_series(tmp_path, [0, 1, 2], AXIAL, [0, 0, 1])
    dataset = build_dicom(np.zeros((4, 5), np.int16), ImageOrientationPatient=AXIAL, ImagePositionPatient=[1, 1, 99])
    for name, value in change.items():
        setattr(dataset, name, value)
    if change == {"ImagePositionPatient": [0, 0, 2.5]}:
        dataset.ImagePositionPatient = [1, 1, 3.5]
    (tmp_path / "other").write_bytes(encode_dicom(dataset))
    with pytest.raises(ImageError, match=message):
        camtool.open_image(tmp_path)


def test_a_folder_without_dicom_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="it is a folder"):
        camtool.open_image(tmp_path)


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("syntax", "package"), [(JPEGLosslessSV1, "python-gdcm"), (JPEGLSLossless, "pyjpegls")])
def test_a_compression_without_a_decoder_names_the_package(
    syntax: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pydicom.pixels.decoders.base import get_decoder

    dataset = build_dicom(RAMP)
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.PixelData = pydicom.encaps.encapsulate([b"\0" * 10])
    dataset["PixelData"].is_undefined_length = True
    monkeypatch.setattr(get_decoder(syntax), "_available", {})
    with pytest.raises(ImageError, match=rf"compressed as JPEG.*pip install {package}"):
        read_image(encode_dicom(dataset))


def test_a_video_in_dicom_is_refused() -> None:
    dataset = build_dicom(RAMP)
    dataset.file_meta.TransferSyntaxUID = MPEG2MPML
    dataset.PixelData = pydicom.encaps.encapsulate([b"\0" * 10])
    with pytest.raises(ImageError, match=r"MPEG2.*cannot decode"):
        read_image(encode_dicom(dataset))


def test_a_file_without_an_image_is_refused() -> None:
    with pytest.raises(ImageError, match=r"without an image \(modality SR\)"):
        read_image(find_file("reportsi.dcm"))


def test_damaged_files_are_image_errors() -> None:
    data = encode_dicom(build_dicom(np.arange(4096, dtype=np.int16).reshape(64, 64), WindowCenter=9, WindowWidth=9))
    assert read_image(data).size == (64, 64)
    for length in range(0, len(data) - 1, 97):
        with pytest.raises(ImageError, match=r"the bytes"):
            read_image(data[:length])


@pytest.mark.filterwarnings("ignore")  # pydicom's, of values that the standard does not allow
def test_files_with_wrong_bytes_are_read_or_are_image_errors() -> None:
    data = encode_dicom(build_dicom(RAMP, WindowCenter=500, WindowWidth=401))
    random, refused = np.random.default_rng(0), 0
    for _ in range(300):
        wrong = bytearray(data)
        for place in random.integers(132, len(data) - RAMP.nbytes, 3):
            wrong[place] = random.integers(256)
        try:
            read_image(bytes(wrong))
        except ImageError:
            refused += 1
    assert refused > 50


def test_a_file_that_is_compressed_as_a_whole_is_unpacked_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    image = camtool.open_image(find_file("image_dfl.dcm"))
    assert image.size == (512, 512)
    monkeypatch.setattr("camtool.inputs.formats.dicom._INFLATED_BYTES", 512 * 512)
    monkeypatch.setattr("camtool.inputs.formats.dicom._INFLATED_PART", 1000)
    with pytest.raises(ImageError, match="too large to be decoded safely: it unpacks to more than 262144 bytes"):
        camtool.open_image(find_file("image_dfl.dcm"))


def test_a_claimed_size_is_refused_before_it_is_decoded() -> None:
    dataset = build_dicom(RAMP, NumberOfFrames=1)
    dataset.Rows = dataset.Columns = 65535
    with pytest.raises(ImageError, match="too large to be decoded safely"):
        read_image(encode_dicom(dataset))
    with pytest.raises(ImageError, match="the limit is 11"):
        camtool.open_image(encode_dicom(build_dicom(RAMP)), max_pixels=11)
    assert camtool.open_image(encode_dicom(build_dicom(RAMP)), max_pixels=12).size == (4, 3)


@pytest.mark.parametrize("option", [{"bands": (1, 2, 3)}, {"axis": "axial"}, {"frame": 0}])
def test_options_of_other_formats_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ImageError, match=rf"{next(iter(option))}= does not apply to DICOM.*window, percentiles, slice"):
        camtool.open_image(encode_dicom(build_dicom(RAMP)), **option)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(ImageError, match=r"pip install 'camtool\[dicom\]'"):
        read_image(b"\0" * 128 + b"DICM" + b"\0" * 100)


def test_the_result_knows_the_place_in_the_patient() -> None:
    place = {"ImagePositionPatient": [1, 2, 3], "ImageOrientationPatient": AXIAL, "PixelSpacing": [0.5, 0.25]}
    origin = camtool.explain(BandNet(), encode_dicom(build_dicom(RAMP, WindowCenter=9, WindowWidth=9, **place))).origin
    assert origin is not None
    assert (origin.format, origin.spacing, origin.unit) == ("DICOM", (0.5, 0.25), "mm")
    assert origin.position == (1, 2, 3)  # type: ignore[attr-defined]
