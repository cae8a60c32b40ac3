"""Small DICOM and NIfTI files for tests, written with the libraries of the field."""

from __future__ import annotations

import gzip
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import tifffile
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid


def build_dicom(pixels: np.ndarray[Any, Any], photometric: str = "MONOCHROME2", **attributes: Any) -> FileDataset:
    """Return a data set with pixels ``(H, W)``, ``(frames, H, W)`` for gray, or ``(H, W, 3)`` for colors."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["image"])
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    dataset.Modality = "CT"
    dataset.SeriesInstanceUID = generate_uid(entropy_srcs=["series"])
    is_color = pixels.shape[-1] == 3 and photometric not in ("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR")
    dataset.Rows, dataset.Columns = pixels.shape[-3:-1] if is_color else pixels.shape[-2:]
    if pixels.ndim == 3 and not is_color:
        dataset.NumberOfFrames = len(pixels)
    dataset.SamplesPerPixel = 3 if is_color else 1
    if is_color:
        dataset.PlanarConfiguration = 0
    dataset.PhotometricInterpretation = photometric
    bits = 8 * pixels.dtype.itemsize
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = bits, bits, bits - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.PixelData = pixels.tobytes()
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def encode_dicom(dataset: Dataset) -> bytes:
    buffer = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some tests write values that the standard does not allow
        pydicom.dcmwrite(buffer, dataset, enforce_file_format=True)
    return buffer.getvalue()


def encode_nifti(
    volume: np.ndarray[Any, Any], affine: np.ndarray[Any, Any] | None = None, *, kind: Any = nibabel.Nifti1Image
) -> bytes:
    return bytes(kind(volume, np.eye(4) if affine is None else affine).to_bytes())


def build_affine(codes: str, spacing: tuple[float, float, float] = (1, 1, 1)) -> np.ndarray[Any, Any]:
    """Return the affine of a volume whose axes run towards these directions, e.g. ``"LPS"``."""
    affine = np.zeros((4, 4))
    for axis, (code, step) in enumerate(zip(codes, spacing, strict=True)):
        row = next(index for index, pair in enumerate(("RL", "AP", "SI")) if code in pair)
        affine[row, axis] = step if code in "RAS" else -step
    affine[:, 3] = 7, -11, 13, 1
    return affine


def write_examples(folder: Path) -> None:
    """Write the files that docs/formats.md names."""
    random = np.random.default_rng(0)
    (folder / "scans").mkdir()
    (folder / "series").mkdir()
    (folder / "patients" / "first").mkdir(parents=True)
    (folder / "brains").mkdir()
    (folder / "scenes").mkdir()
    for index in range(5):
        pixels = random.integers(-1000, 1000, (40, 50)).astype(np.int16)
        dataset = build_dicom(pixels, WindowCenter=40, WindowWidth=400, PixelSpacing=[0.5, 0.5])
        dataset.ImageOrientationPatient, dataset.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 2 * index]
        for place in ("series", "patients/first"):
            (folder / place / f"IM{index}").write_bytes(encode_dicom(dataset))
    (folder / "scan.dcm").write_bytes(encode_dicom(dataset))
    (folder / "scans" / "one.dcm").write_bytes(encode_dicom(dataset))
    volume = encode_nifti(random.integers(0, 900, (20, 24, 28)).astype(np.int16), build_affine("LAS", (1, 1, 2)))
    for name in ("brain.nii.gz", "brains/first.nii.gz"):
        (folder / name).write_bytes(gzip.compress(volume))
    bands = random.integers(0, 4000, (13, 40, 50)).astype(np.uint16)
    # Pixels of 10 m at a corner in UTM zone 33 north.
    tags = [(33550, "d", 3, (10.0, 10.0, 0.0), True), (33922, "d", 6, (0.0, 0.0, 0.0, 6e5, 5.3e6, 0.0), True)]
    keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633)
    tags.append((34735, "H", len(keys), keys, True))
    for name in ("sentinel.tif", "scenes/first.tif"):
        tifffile.imwrite(
            folder / name, bands, photometric="minisblack", metadata=None, extratags=tags, planarconfig="separate"
        )
    stack = random.integers(0, 60000, (3, 3, 40, 50)).astype(np.uint16)
    tifffile.imwrite(folder / "cells.tif", stack, imagej=True, metadata={"axes": "ZCYX"})
