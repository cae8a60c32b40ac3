"""NIfTI: volumes in the canonical orientation and slices of them, and heatmaps in the orientation of the file."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from camtool.errors import ImageError
from camtool.geometry.origins import Origin, fit_to_origin
from camtool.inputs.formats import contrast as contrasts
from camtool.inputs.formats.contrast import Contrast
from camtool.inputs.formats.decoding import import_reader, name_in_errors
from camtool.inputs.formats.file_image import FileImage, build_assumed_contrast
from camtool.inputs.formats.reading_options import Axis, ReadingOptions
from camtool.warning_codes import MapWarning

_GZIP = b"\x1f\x8b"
# Bytes of a NIfTI-2 header; NIfTI-1 has 348.
_HEADER_BYTES = 540
_NIFTI_2 = 4
# Position of the magic number → its values in single files and in pairs of .hdr and .img.
_MAGICS = {344: (b"n+1\0", b"ni1\0"), _NIFTI_2: (b"n+2\0", b"ni2\0")}
# The bits of xyzt_units that name the unit of lengths, and the millimeters of meters and micrometers.
_SPACE_BITS, _MILLIMETERS = 0b111, {1: 1e3, 3: 1e-3}
# Bytes that may lie between the header and the data: extensions, e.g. with a history of the processing.
_EXTENSION_BYTES = 1 << 24
# Bytes that are unpacked at once.
_PART_BYTES = 1 << 20
# Bytes that a value takes as float32, and while it is unpacked and drawn.
_VALUE_BYTES = 6


# Direction of the slices → where the axes of ``(D, H, W)`` run to, by the first letters of left, right, anterior,
# posterior, superior and inferior. As radiologists look at them, and as DICOM slices are stored: the patient's right is
# on the left of the image, the front (of sagittal slices the head) is up.
_CUTS: dict[Axis, str] = {"axial": "SPL", "coronal": "AIL", "sagittal": "RIP", "ras": "RAS"}


@dataclass(frozen=True, eq=False)
class NiftiOrigin(Origin):
    """Place of a NIfTI volume, or of a slice of it, in the world.

    Attributes:
        affine: ``(4, 4)``, from voxel indices of the file to its own unit, usually millimeters, as the file holds it.
        header: The file's header, of nibabel.
        axis: The direction of the slices.
        index: The number of the slice that was read; ``None`` for the whole volume.
    """

    affine: NDArray[np.float64]
    header: Any
    axis: Axis
    index: int | None

    format: ClassVar[str] = "NIfTI"
    suffixes: ClassVar[tuple[str, ...]] = (".nii", ".nii.gz")

    def write_heatmap(self, path: Path, heatmap: NDArray[np.float32]) -> None:
        """Write a heatmap as a volume with the file's affine, size and orientation; 0 in the slices that were not read.

        Raises:
            ImageError: The heatmap has another size than the image.
        """
        heatmap = fit_to_origin(heatmap, self.shape)
        if heatmap.shape != self.shape:
            raise ImageError(f"{path}: the heatmap is {heatmap.shape}, but the image of {self.name} is {self.shape}.")
        image = self._build_image(heatmap)
        from camtool.rendering.image_writing import open_atomically

        data = image.to_bytes()
        with open_atomically(path) as stream:
            # Without a time stamp, so that the same heatmap gives the same bytes.
            stream.write(gzip.compress(data, 6, mtime=0) if path.name.lower().endswith(".gz") else data)

    def _build_image(self, heatmap: NDArray[np.float32]) -> Any:
        """Return the heatmap as an image of nibabel in the orientation of the file."""
        nibabel = import_reader("nibabel", "nifti", self.name, "a NIfTI file")
        stored, cut = nibabel.io_orientation(self.affine), nibabel.orientations.axcodes2ornt(_CUTS[self.axis])
        sizes = np.empty(3, int)
        turn = nibabel.orientations.ornt_transform(stored, cut)
        sizes[turn[:, 0].astype(int)] = (*self.header.get_data_shape()[:3], 1, 1)[:3]
        slices = np.zeros(sizes, np.float32)
        slices[slice(None) if self.index is None else self.index] = heatmap
        volume = nibabel.apply_orientation(slices, nibabel.orientations.ornt_transform(cut, stored))
        kind = nibabel.Nifti2Image if isinstance(self.header, nibabel.Nifti2Header) else nibabel.Nifti1Image
        image = kind(volume, self.affine, self.header)
        image.set_data_dtype(np.float32)
        image.header["cal_min"], image.header["cal_max"] = 0, 1
        image.header["descrip"] = b"camtool heatmap"
        return image


def is_nifti(header: bytes) -> bool:
    """Return True if a file that starts with these bytes is a NIfTI file, also a compressed one."""
    start = _decompress_start(header) if header.startswith(_GZIP) else header
    return any(start[offset : offset + 4] in magics for offset, magics in _MAGICS.items())


def read_nifti(stream: BinaryIO, name: str, options: ReadingOptions) -> FileImage:
    """Read a NIfTI file: a volume, or a slice of it if the user chose one or there is only one.

    Raises:
        ImageError: It is damaged or a pair of files, or holds colors, complex numbers or more than four axes.
    """
    options.check_supported(name, "NIfTI", "window", "percentiles", "slice", "axis", "frame")
    nibabel = import_reader("nibabel", "nifti", name, "a NIfTI file")
    with name_in_errors(name, "NIfTI"):
        header = _read_header(nibabel, stream, name, options)
        affine = header.get_best_affine()
        orientation = nibabel.io_orientation(affine)
        if not np.isfinite(orientation).all():
            raise ImageError(f"{name} has an affine that flattens the volume, so its orientation is unknown.")
        stored = _read_volume(header, stream, name, options)
        axis: Axis = options.axis or "axial"
        cut = nibabel.orientations.axcodes2ornt(_CUTS[axis])
        turn = nibabel.orientations.ornt_transform(orientation, cut)
        slices = _scale(nibabel.apply_orientation(stored, turn), header)[..., None]
        del stored
    contrast, notes = _choose_contrast(header, slices, options)
    index = options.choose_slice(name, len(slices), f"{axis} slices")
    values = np.ascontiguousarray(slices if index is None else slices[index])
    spacing = _find_spacing(nibabel, header, affine, turn)[0 if index is None else 1 :]
    origin = NiftiOrigin(name, values.shape[:-1], spacing, affine, header, axis, index)
    is_scaled = options.window is not None or options.percentiles is not None
    notes = (*notes, *_describe_orientation(header))
    return FileImage(name, values, contrast, True, is_scaled, f"{axis} slices", origin, notes)


def _read_header(nibabel: Any, stream: BinaryIO, name: str, options: ReadingOptions) -> Any:
    """Return the header as nibabel reads it, after a check of the size that it announces."""
    start = _decompress_start(stream.read(1 << 16)) if _is_compressed(stream) else stream.read(_HEADER_BYTES)
    offset = next(offset for offset, magics in _MAGICS.items() if start[offset : offset + 4] in magics)
    if start[offset : offset + 4] != _MAGICS[offset][0]:
        raise ImageError(f"{name} is one of a pair of NIfTI files (.hdr and .img); save the volume as one .nii file.")
    kind = nibabel.Nifti2Header if offset == _NIFTI_2 else nibabel.Nifti1Header
    header = kind(start[: kind.template_dtype.itemsize])
    shape, dtype = header.get_data_shape(), header.get_data_dtype()
    if len(shape) > 4 and max(shape[4:]) > 1:
        raise ImageError(f"{name} has {len(shape)} axes {shape}; a volume has 3, and 4 with time.")
    if dtype.kind not in "iuf":
        raise ImageError(f"{name} holds values of the type {dtype}; numbers are needed, no colors or complex numbers.")
    sides = sorted((*shape, 1, 1)[:3])
    # The stored values, and one time step of them as float32.
    needed = dtype.itemsize + _VALUE_BYTES + options.percentile_bytes
    options.check_size(name, sides[2], sides[1], sides[0] * math.prod(shape[3:]), needed)
    return header


def _read_volume(header: Any, stream: BinaryIO, name: str, options: ReadingOptions) -> NDArray[Any]:
    """Return the stored values of a time step, ``(X, Y, Z)``.

    Raises:
        ImageError: The file holds fewer than its header announces.
    """
    shape, dtype = (*header.get_data_shape(), 1, 1, 1)[:4], header.get_data_dtype()
    frame = options.choose_frame(name, shape[3])
    start, count = int(header["vox_offset"]) or header.single_vox_offset, math.prod(shape)
    if not 0 <= start <= _EXTENSION_BYTES:
        raise ImageError(f"{name} is damaged: its data begin at byte {start:,}.")
    data = _read_bytes(stream, start + count * dtype.itemsize)
    if len(data) < start + count * dtype.itemsize:
        raise ImageError(
            f"{name} is damaged or cut short: its header announces {count * dtype.itemsize:,} bytes of values, and "
            f"there are {max(0, len(data) - start):,}."
        )
    return np.frombuffer(data, dtype, count, start).reshape(shape, order="F")[..., frame]


def _read_bytes(stream: BinaryIO, most: int) -> bytes | NDArray[np.uint8]:
    """Return the first bytes of a file, unpacked: no more than its header announces, as a small file may unpack to any.

    Raises:
        ValueError: What it was packed with is damaged.
    """
    if not _is_compressed(stream):
        return stream.read(most)
    # At its final size, as one that grows is copied. Memory is taken when it is written to.
    data, size, unpacked = np.zeros(most, np.uint8), 0, zlib.decompressobj(31)
    while size < most and not unpacked.eof:
        part = unpacked.unconsumed_tail or stream.read(_PART_BYTES)
        if not part:
            break
        piece = unpacked.decompress(part, min(_PART_BYTES, most - size))
        data[size : size + len(piece)] = np.frombuffer(piece, np.uint8)
        size += len(piece)
    return data[:size]


def _is_compressed(stream: BinaryIO) -> bool:
    stream.seek(0)
    start = stream.read(len(_GZIP))
    stream.seek(0)
    return start == _GZIP


def _scale(stored: NDArray[Any], header: Any) -> NDArray[np.float32]:
    """Return stored values ``(D, H, W)`` in the unit of the file."""
    slope, intercept = header.get_slope_inter()
    values = np.empty(stored.shape, np.float32)
    for part in contrasts.cut_parts(stored):
        values[part] = stored[part] if slope is None else stored[part] * float(slope) + float(intercept)
    return values


def _choose_contrast(
    header: Any, values: NDArray[np.float32], options: ReadingOptions
) -> tuple[Contrast, tuple[MapWarning, ...]]:
    """Return the user's contrast, that of the header, or the range of the whole volume, so that slices compare."""
    chosen = contrasts.choose_contrast(options, values)
    if chosen is not None:
        return chosen, ()
    low, high = float(header["cal_min"]), float(header["cal_max"])
    if high > low:
        return Contrast((low,), (high,)), ()
    contrast, note = build_assumed_contrast(*contrasts.find_range(values), "values")
    return contrast, (note,)


def _describe_orientation(header: Any) -> tuple[MapWarning, ...]:
    """Return a note if the header does not say where left and right are: nibabel then assumes an affine."""
    if header["qform_code"] or header["sform_code"]:
        return ()
    note = (
        "The file does not say how the volume lies in the patient (qform_code and sform_code are 0), so its axes were "
        "taken to run to the left, the front and the head. Left and right may be exchanged; save it with its affine."
    )
    return (MapWarning(note, "assumed-orientation"),)


def _find_spacing(nibabel: Any, header: Any, affine: NDArray[np.float64], turn: NDArray[Any]) -> tuple[float, ...]:
    """Return the distance of neighboring voxels along the axes of the slices in mm; an unknown unit counts as mm.

    Args:
        nibabel: The module.
        header: The file's header.
        affine: Its affine.
        turn: From the axes of the file to those of the slices, as nibabel writes orientations.
    """
    # nibabel's get_xyzt_units fails on codes without a meaning.
    millimeters = _MILLIMETERS.get(int(header["xyzt_units"]) & _SPACE_BITS, 1.0)
    sizes = np.empty(3)
    sizes[turn[:, 0].astype(int)] = nibabel.affines.voxel_sizes(affine) * millimeters
    return tuple(sizes.tolist())


def _decompress_start(header: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(header, _HEADER_BYTES)
    except zlib.error:
        return b""
