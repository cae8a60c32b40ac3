"""NIfTI: orientation of volumes and slices, heatmaps in the orientation of the file, and files that are refused."""

from __future__ import annotations

import gzip
import itertools
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch

import camtool
from camtool.errors import GeometryError, ImageError
from camtool.inputs.formats import nifti
from camtool.inputs.image_files import get_reading_notes, read_image
from tests.helpers.band_nets import BandNet
from tests.helpers.medical_files import build_affine, encode_nifti

VOLUME = np.random.default_rng(0).integers(0, 1000, (6, 7, 8)).astype(np.int16)
CODES = ["".join(code) for axes in itertools.permutations(("RL", "AP", "SI")) for code in itertools.product(*axes)]


def put_spot(codes: str, sizes: tuple[int, int, int] = (6, 7, 8)) -> tuple[bytes, np.ndarray[Any, Any]]:
    """Return a file in an orientation with a spot two voxels right, front and head of a corner, and its index."""
    volume = np.zeros(sizes, np.float32)
    index = tuple(size - 3 if code in "RAS" else 2 for code, size in zip(codes, sizes, strict=True))
    volume[index] = 1
    return encode_nifti(volume, build_affine(codes)), np.array(index)


# ----------------------------------------------------------------------------------------------------- orientation


@pytest.mark.parametrize("codes", CODES)
def test_a_spot_lies_where_radiologists_see_it_whatever_the_orientation_of_the_file(codes: str) -> None:
    """Two voxels from the right, the front and the head: on the left of axial slices and at their top."""
    data, _ = put_spot(codes)
    sizes = dict(zip(codes, (6, 7, 8), strict=True))
    height = next(size for code, size in sizes.items() if code in "SI")
    axial = camtool.open_image(data).values[..., 0]
    assert tuple(np.argwhere(axial)[0]) == (height - 3, 2, 2)
    coronal = camtool.open_image(data, axis="coronal").values[..., 0]
    assert tuple(np.argwhere(coronal)[0][1:]) == (2, 2)  # head up, right on the left
    sagittal = camtool.open_image(data, axis="sagittal").values[..., 0]
    assert tuple(np.argwhere(sagittal)[0][1:]) == (2, 2)  # head up, front on the left
    ras = camtool.open_image(data, axis="ras").values[..., 0]
    np.testing.assert_array_equal(ras, nibabel.as_closest_canonical(nibabel.Nifti1Image.from_bytes(data)).get_fdata())


@pytest.mark.parametrize("axis", ["axial", "coronal", "sagittal", "ras"])
@pytest.mark.parametrize("codes", CODES[::5])
def test_a_heatmap_is_stored_in_the_orientation_of_the_file(codes: str, axis: str, tmp_path: Path) -> None:
    """A map that equals the volume comes back as the same file, with the same affine."""
    affine = build_affine(codes, (0.5, 2, 3))
    affine[:3, :3] = np.array([[0.995, -0.0998, 0], [0.0998, 0.995, 0], [0, 0, 1]]) @ affine[:3, :3]  # oblique
    data = encode_nifti(VOLUME, affine)
    image = camtool.open_image(data, axis=axis)
    assert image.origin is not None
    image.origin.write_heatmap(tmp_path / "heat.nii.gz", image.values[..., 0])
    stored = nibabel.load(tmp_path / "heat.nii.gz")
    np.testing.assert_array_equal(stored.get_fdata(), VOLUME)
    np.testing.assert_array_equal(stored.affine, nibabel.Nifti1Image.from_bytes(data).affine)
    assert nibabel.aff2axcodes(stored.affine) == tuple(codes)
    assert stored.get_data_dtype() == np.float32
    steps = dict(zip(codes, (0.5, 2, 3), strict=True))
    order = {"axial": ("SI", "AP", "RL"), "coronal": ("AP", "SI", "RL"), "sagittal": ("RL", "SI", "AP")}
    wanted = [next(steps[code] for code in pair if code in steps) for pair in order.get(axis, ("RL", "AP", "SI"))]
    np.testing.assert_allclose(image.origin.spacing, wanted, rtol=1e-3)


@pytest.mark.parametrize("axis", ["axial", "coronal", "sagittal"])
def test_the_heatmap_of_a_slice_is_stored_at_that_slice(axis: str, tmp_path: Path) -> None:
    data = encode_nifti(VOLUME, build_affine("PIR"))
    image = camtool.open_image(data, axis=axis, slice=2)
    assert image.origin is not None
    image.origin.write_heatmap(tmp_path / "heat.nii", image.values[..., 0].astype(np.float32))
    stored = nibabel.load(tmp_path / "heat.nii").get_fdata()
    assert np.count_nonzero(stored) == np.count_nonzero(image.values)
    np.testing.assert_array_equal(stored[stored != 0], VOLUME[stored != 0])


def test_the_qform_and_the_sform_stay(tmp_path: Path) -> None:
    source = nibabel.Nifti2Image(VOLUME, build_affine("LAS"))
    source.set_sform(source.affine, code="mni")
    source.set_qform(source.affine, code="scanner")
    result = camtool.explain(BandNet(1, axes=3), bytes(source.to_bytes()))
    stored = nibabel.load(result.save(tmp_path / "heat.nii.gz"))
    assert isinstance(stored, nibabel.Nifti2Image)
    assert (int(stored.header["sform_code"]), int(stored.header["qform_code"])) == (4, 1)
    assert (float(stored.header["cal_min"]), float(stored.header["cal_max"])) == (0, 1)


@pytest.mark.parametrize(("qform", "sform"), [(0, 0), (1, 0), (0, 2), (1, 2)])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_a_guessed_left_and_right_are_told(kind: Any, qform: int, sform: int) -> None:
    source = kind(VOLUME, None)
    source.header.set_qform(build_affine("LAS"), qform)
    source.header.set_sform(build_affine("LAS"), sform)
    image = camtool.open_image(bytes(source.to_bytes()), axis="ras", window=(500, 1000))
    assert [note.code for note in image.notes] == ["assumed-orientation"] * (qform == sform == 0)
    # As the note says, the first axis runs to the left, the others to the front and to the head.
    np.testing.assert_array_equal(image.values[..., 0], VOLUME[::-1])


@pytest.mark.parametrize(("code", "scale"), [(2, 1), (0, 1), (3, 1e-3), (1, 1e3), (5, 1), (3 + 8, 1e-3)])
def test_the_spacing_is_in_millimeters_whatever_the_unit_of_the_file(code: int, scale: float, tmp_path: Path) -> None:
    affine = build_affine("LAS", (200, 300, 500))
    data = bytearray(encode_nifti(VOLUME, affine))
    data[123] = code  # xyzt_units: mm, unknown, micrometers, meters, none of the standard, micrometers and seconds
    image = camtool.open_image(bytes(data))
    origin: Any = image.origin
    np.testing.assert_allclose(origin.spacing, np.array([500, 300, 200]) * scale)
    np.testing.assert_array_equal(origin.affine, affine)
    origin.write_heatmap(tmp_path / "heat.nii", image.values[..., 0])
    stored = nibabel.load(tmp_path / "heat.nii")
    np.testing.assert_array_equal(stored.affine, affine)
    assert stored.header["xyzt_units"] == code


# ---------------------------------------------------------------------------------------------------- explanations


def test_a_volume_with_a_model_of_volumes(tmp_path: Path) -> None:
    path = tmp_path / "brain.nii.gz"
    path.write_bytes(gzip.compress(encode_nifti(VOLUME, build_affine("LPI"))))
    result = camtool.explain(BandNet(1, axes=3), path)
    assert result.heatmap.shape == (8, 7, 6)
    assert result.view.kind == "volume"
    assert {each.code for each in result.warnings} >= {"assumed-contrast", "assumed-scale"}
    saved = result.save(tmp_path / "heat.nii.gz")
    stored = nibabel.load(saved).get_fdata()
    np.testing.assert_array_equal(stored, np.float32(result.heatmap[::-1].transpose(2, 1, 0)))
    loaded = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(nibabel.load(loaded.save(tmp_path / "again.nii")).get_fdata(), stored)
    first = saved.read_bytes()
    assert result.save(saved).read_bytes() == first


def test_a_model_of_photos_asks_for_a_slice() -> None:
    data = encode_nifti(VOLUME)
    with pytest.raises(ImageError, match=r"8 axial slices.*slice=, from 0 to 7.*slice=4"):
        camtool.explain(BandNet(), data)
    result = camtool.explain(BandNet(), data, reading={"axis": "coronal", "slice": "middle"})
    np.testing.assert_array_equal(
        result.photo, np.asarray(camtool.open_image(data, axis="coronal", slice=3).to_photo())
    )
    assert result.heatmap.shape == (8, 6)


def test_the_transform_of_a_model_of_volumes_gets_the_files_own_numbers() -> None:
    seen = []

    def normalize(volume: torch.Tensor) -> torch.Tensor:
        seen.append(volume)
        return (volume - 500) / 300

    data = encode_nifti(VOLUME)
    prepared = camtool.Explainer(BandNet(1, axes=3), transform=normalize, reading={"axis": "ras"}).prepare(data)
    np.testing.assert_array_equal(seen[0].numpy(), VOLUME[None])
    np.testing.assert_allclose(prepared.tensor.numpy(), (VOLUME[None] - 500) / 300, rtol=1e-5)
    assert "assumed-scale" not in {each.code for each in prepared.notes}
    with pytest.raises(GeometryError, match="may change values, but not the size"):
        camtool.explain(BandNet(1, axes=3), data, transform=lambda volume: volume[:, ::2])


# -------------------------------------------------------------------------------------------------- contrast, frames


def test_slices_share_the_contrast_of_their_volume() -> None:
    data = encode_nifti(VOLUME)
    low, high = int(VOLUME.min()), int(VOLUME.max())
    image = camtool.open_image(data, slice=0)
    np.testing.assert_allclose(image.to_unit(), (image.values - low) / (high - low), atol=1e-6)
    (note,) = get_reading_notes(image.to_photo()) or image.notes
    assert note.code == "assumed-contrast"


def test_the_header_or_the_user_names_the_contrast() -> None:
    source = nibabel.Nifti1Image(VOLUME, np.eye(4))
    source.header["cal_min"], source.header["cal_max"] = 100, 300
    data = bytes(source.to_bytes())
    image = camtool.open_image(data, slice=1)
    np.testing.assert_allclose(image.to_unit(), np.clip((image.values - 100) / 200, 0, 1), atol=1e-6)
    assert image.notes == ()
    own = camtool.open_image(data, slice=1, window=(500, 200))
    np.testing.assert_allclose(own.to_unit(), np.clip((image.values - 400) / 200, 0, 1), atol=1e-6)


def test_stored_numbers_are_rescaled() -> None:
    source = nibabel.Nifti1Image(VOLUME, np.eye(4))
    source.header.set_slope_inter(2, -10)
    data = bytearray(source.to_bytes())
    data[112:120] = np.array([2, -10], "<f4").tobytes()  # nibabel stores the data with a scale of its own
    np.testing.assert_array_equal(
        camtool.open_image(bytes(data), axis="ras").values[..., 0], nibabel.Nifti1Image.from_bytes(data).get_fdata()
    )


def test_a_series_of_times_asks_for_a_frame() -> None:
    data = encode_nifti(np.stack([VOLUME, VOLUME + 1, VOLUME + 2], -1))
    with pytest.raises(ImageError, match=r"3 time steps; choose one with frame=, from 0 to 2"):
        camtool.open_image(data)
    np.testing.assert_array_equal(camtool.open_image(data, frame=1, axis="ras").values[..., 0], VOLUME + 1)


def test_a_single_slice_is_an_image() -> None:
    assert np.asarray(read_image(encode_nifti(VOLUME[..., :1]))).shape == (7, 6, 3)


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("is_compressed", [False, True])
def test_damaged_files_are_image_errors(*, is_compressed: bool) -> None:
    data = encode_nifti(VOLUME[..., :1])
    whole = gzip.compress(data) if is_compressed else data
    assert read_image(whole).size == (6, 7)
    for length in range(1, len(whole) - 20, 7):
        with pytest.raises(ImageError, match=r"the bytes"):
            read_image(whole[:length])


def test_a_lack_of_memory_is_not_called_damage(monkeypatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(nifti, "_read_bytes", fail)
    with pytest.raises(ImageError, match="the bytes cannot be read: there is not enough memory for it"):
        read_image(encode_nifti(VOLUME[..., :1]))


def test_files_with_wrong_bytes_are_read_or_are_image_errors() -> None:
    data = encode_nifti(VOLUME[..., :1])
    random, refused = np.random.default_rng(0), 0
    for _ in range(300):
        wrong = bytearray(data)
        for place in random.integers(0, 348, 3):
            wrong[place] = random.integers(256)
        try:
            read_image(bytes(wrong))
        except ImageError:
            refused += 1
    assert refused > 50


def test_a_small_file_that_unpacks_to_more_than_it_announces_is_not_unpacked() -> None:
    data = gzip.compress(encode_nifti(VOLUME[..., :1]) + bytes(100_000_000), 1)
    tracemalloc.start()
    assert read_image(data).size == (6, 7)
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def flatten_affine() -> bytes:
    """Return a file whose affine maps all slices to the same place."""
    data = bytearray(encode_nifti(VOLUME))
    data[312:328] = bytes(16)  # srow_z
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encode_nifti(np.zeros((2, 3, 4), np.complex64)), "complex"),
        (encode_nifti(np.zeros((2, 3, 4, 1, 3), np.float32)), "5 axes"),
        (encode_nifti(VOLUME).replace(b"n+1\0", b"ni1\0"), "pair of NIfTI files"),
        (flatten_affine(), "orientation is unknown"),
    ],
)
def test_unusual_files_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        camtool.open_image(data)


def test_a_claimed_size_is_refused_before_it_is_decoded() -> None:
    data = bytearray(encode_nifti(VOLUME))
    data[42:48] = np.array([30000, 30000, 2], "<i2").tobytes()
    with pytest.raises(ImageError, match="too large to be decoded safely: it has 900,000,000 pixels"):
        camtool.open_image(bytes(data))


def test_nan_is_black() -> None:
    volume = VOLUME.astype(np.float32)
    volume[2, 3, 4] = np.nan
    image = camtool.open_image(encode_nifti(volume), axis="ras")
    unit = image.to_unit()[..., 0]
    assert unit[2, 3, 4] == 0
    assert np.isfinite(unit).all()
    assert image.contrast is not None
    assert image.contrast.high == (np.nanmax(volume),)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nibabel", None)
    with pytest.raises(ImageError, match=r"pip install 'camtool\[nifti\]'"):
        read_image(encode_nifti(VOLUME))


def test_a_heatmap_in_a_format_that_the_image_does_not_come_from_is_refused(tmp_path: Path) -> None:
    result = camtool.explain(BandNet(), encode_nifti(VOLUME), reading={"slice": 1})
    with pytest.raises(ImageError, match="the image is from a NIfTI file"):
        result.save(tmp_path / "heat.tif")
    photo = camtool.explain(BandNet(), np.zeros((5, 5, 3), np.uint8))
    with pytest.raises(ImageError, match="the image is from no such file"):
        photo.save(tmp_path / "heat.nii")
    assert not [*tmp_path.iterdir()]
