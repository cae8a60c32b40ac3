"""Heat lies within one pixel of the source on a planted spot, over 500 random files, orientations and transforms.

The layer's grid is as fine as the model's input, so only the reading, the preparation and the way back can misplace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import rasterio
import tifffile
import torch
from PIL import Image
from rasterio.transform import Affine
from torch import Tensor, nn
from torchvision.transforms import v2

import camtool
from camtool.geometry.torchvision_transforms import read_geometry
from tests.helpers.medical_files import build_affine, build_dicom, encode_dicom
from tests.test_placement import find_centroid

COUNT = 125
MARGIN = 7
"""Pixels of the source, and of the input, between a spot and the edge of what the model sees."""


class FineSpot(nn.Module):
    """A model whose map is the image itself: a convolution that looks at single pixels."""

    def __init__(self, axes: int = 2) -> None:
        super().__init__()
        self.features = {2: nn.Conv2d, 3: nn.Conv3d}[axes](3 if axes == 2 else 1, 1, 1, bias=False)
        self.head = nn.Linear(1, 2, bias=False)
        for layer in (self.features, self.head):
            nn.init.constant_(layer.weight, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(2).sum(2))


@dataclass
class Planted:
    """A file with a spot.

    Attributes:
        file: Its bytes.
        reading: The options of reading.
        check_saved: Checks the heatmap that is saved on the file's own grid.
    """

    file: bytes
    reading: dict[str, Any] | None = None
    check_saved: Callable[[camtool.Explanation, Path], None] | None = None


def draw_spot(size: tuple[int, ...], place: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a soft spot in [0, 1] at a place in pixels, with the edges of the first pixel at 0 and 1."""
    axes = np.meshgrid(*(np.arange(each) + 0.5 for each in size), indexing="ij")
    distance = sum((axis - center) ** 2 for axis, center in zip(axes, place, strict=True))
    return np.exp(-distance / (2 * 1.6**2))


# ------------------------------------------------------------------------------------------------------------ files

EXIF_INVERSE: dict[int, Callable[[Any], Any]] = {
    1: lambda upright: upright,
    2: np.fliplr,
    3: lambda upright: upright[::-1, ::-1],
    4: np.flipud,
    5: np.transpose,
    6: np.rot90,  # shown after a rotation to the right, so stored after one to the left
    7: lambda upright: upright[::-1, ::-1].T,
    8: lambda upright: np.rot90(upright, -1),
}


def write_photo(spot: np.ndarray[Any, Any], place: np.ndarray[Any, Any], random: np.random.Generator) -> Planted:
    orientation = int(random.integers(1, 9))
    stored = np.ascontiguousarray(EXIF_INVERSE[orientation](np.rint(spot * 255).astype(np.uint8)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer, kind = BytesIO(), str(random.choice(["PNG", "JPEG", "TIFF", "WEBP"]))
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    Image.fromarray(stored).convert("RGB").save(buffer, kind, exif=exif, **options)
    return Planted(buffer.getvalue())


def write_dicom(spot: np.ndarray[Any, Any], place: np.ndarray[Any, Any], random: np.random.Generator) -> Planted:
    is_inverted = bool(random.integers(2))
    values = np.rint((1 - spot if is_inverted else spot) * 4000).astype(np.uint16)
    count, index = int(random.integers(1, 4)), 0
    if count > 1:
        index = int(random.integers(count))
        frames = np.full((count, *values.shape), 4000 if is_inverted else 0, np.uint16)
        frames[index] = values
        values = frames
    window = {"WindowCenter": 1000.5, "WindowWidth": 4001, "RescaleSlope": 1, "RescaleIntercept": -1000}
    dataset = build_dicom(values, "MONOCHROME1" if is_inverted else "MONOCHROME2", **window)
    return Planted(encode_dicom(dataset), {"slice": index} if count > 1 else None)


def write_nifti(spot: np.ndarray[Any, Any], place: np.ndarray[Any, Any], random: np.random.Generator) -> Planted:
    """Write a slice in a volume of any orientation; the patient's right is on the image's left, head or front up."""
    axis, depth = str(random.choice(["axial", "coronal", "sagittal"])), int(random.integers(2, 5))
    index = int(random.integers(depth))
    shape = {"axial": (spot.shape[1], spot.shape[0], depth), "coronal": (spot.shape[1], depth, spot.shape[0])}
    volume = np.zeros(shape.get(axis, (depth, spot.shape[1], spot.shape[0])), np.float32)
    turned = spot[::-1, ::-1].T  # columns from right to left, or from front to back; rows from head or front down
    volume[{"axial": np.s_[:, :, index], "coronal": np.s_[:, index, :], "sagittal": np.s_[index, :, :]}[axis]] = turned
    steps = tuple(float(each) for each in random.uniform(0.5, 3, 3))
    canonical = nibabel.Nifti1Image(volume, build_affine("RAS", steps))
    codes = [str(random.choice(list(pair))) for pair in random.permutation([*map(tuple, ("RL", "AP", "SI"))])]
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(canonical.affine), nibabel.orientations.axcodes2ornt(codes)
    )
    stored = canonical.as_reoriented(turn)
    wanted = find_world_centroid(stored)

    def check(result: camtool.Explanation, folder: Path) -> None:
        saved = nibabel.load(result.save(folder / "heat.nii.gz"))
        assert saved.shape == stored.shape
        assert np.abs((find_world_centroid(saved) - wanted) / steps).max() < 1

    return Planted(stored.to_bytes(), {"axis": axis, "slice": index}, check)


def find_world_centroid(image: Any) -> np.ndarray[Any, Any]:
    """Return the centroid of a volume in mm."""
    return nibabel.affines.apply_affine(image.affine, find_centroid(np.asarray(image.dataobj)) - 0.5)


def write_geotiff(spot: np.ndarray[Any, Any], place: np.ndarray[Any, Any], random: np.random.Generator) -> Planted:
    """Write the spot into one of several bands of 16 bits; the world's y goes up."""
    count, dtype = int(random.integers(4, 9)), str(random.choice(["uint16", "uint8"]))
    band = int(random.integers(1, count + 1))
    bands = np.zeros((count, *spot.shape), dtype)
    bands[band - 1] = np.rint(spot * np.iinfo(dtype).max)
    transform = Affine(*random.uniform([5, -2, 0, -2, -9, 0], [9, 2, 1e6, 2, -5, 1e6]))
    memory = rasterio.MemoryFile()
    settings = {"height": spot.shape[0], "width": spot.shape[1], "count": count, "dtype": dtype}
    with memory.open(driver="GTiff", crs="EPSG:32633", transform=transform, **settings) as file:
        file.write(bands)

    def check(result: camtool.Explanation, folder: Path) -> None:
        with rasterio.open(result.save(folder / "heat.tif")) as saved:
            row, column = find_centroid(saved.read(1))
            x, y = saved.transform @ (column, row)
        column, row = ~transform @ (x, y)
        assert np.abs(np.array([row, column]) - place).max() < 1

    return Planted(memory.read(), {"bands": band}, check)


WRITERS = {"photo": write_photo, "DICOM": write_dicom, "NIfTI": write_nifti, "GeoTIFF": write_geotiff}


# ------------------------------------------------------------------------------------------------------- transforms


def draw_transform(size: tuple[int, int], random: np.random.Generator) -> v2.Compose:
    """Return one to three random steps that crop, pad, mirror or resize, by factors from 0.4 to 1.6."""
    height, width = size
    steps: list[Any] = []
    for _ in range(int(random.integers(1, 4))):
        kind = int(random.integers(6))
        if kind == 0:
            height, width = (int(each * random.uniform(0.4, 1.6)) + 16 for each in (height, width))
            steps.append(v2.Resize((height, width), antialias=True))
        elif kind == 1:
            short = int(min(height, width) * random.uniform(0.4, 1.6)) + 16
            height, width = (max(1, int(each * short / min(height, width))) for each in (height, width))
            steps.append(v2.Resize(short, antialias=True))
        elif kind == 2:
            height, width = (int(each * random.uniform(0.6, 1.2)) for each in (height, width))
            steps.append(v2.CenterCrop((height, width)))
        elif kind == 3:
            padding = [int(each) for each in random.integers(0, 20, 4)]
            height, width = height + padding[1] + padding[3], width + padding[0] + padding[2]
            steps.append(v2.Pad(padding))
        elif kind == 4:
            steps.append(v2.RandomHorizontalFlip(1.0))
    return v2.Compose([*steps, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def choose_place(size: tuple[int, int], transform: v2.Compose, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a place that the model sees, away from the edges."""
    geometry = read_geometry(transform, size)
    edges = np.sort(np.reshape(geometry.box, (2, 2)), 0)
    margin = MARGIN * np.maximum(1, (edges[1] - edges[0]) / geometry.size)
    low, high = np.maximum(edges[0], 0) + margin, np.minimum(edges[1], size) - margin
    return random.uniform(low, high) if (low < high).all() else np.array([])


@pytest.mark.parametrize("kind", WRITERS)
def test_heat_lies_within_a_pixel_of_the_source(kind: str, tmp_path: Path) -> None:
    random, model, tried = np.random.default_rng(len(kind)), FineSpot(), 0
    while tried < COUNT:
        size = (int(random.integers(40, 200)), int(random.integers(40, 200)))
        transform = draw_transform(size, random)
        place = choose_place(size, transform, random)
        if not place.size:
            continue
        tried += 1
        planted = WRITERS[kind](draw_spot(size, place), place, random)
        result = camtool.explain(model, planted.file, 1, layer="features", transform=transform, reading=planted.reading)
        assert result.heatmap.shape == size
        off = np.linalg.norm(find_centroid(result.heatmap) - place)
        assert off < 1, (size, transform, place, planted.reading)
        if planted.check_saved is not None and tried % 5 == 0:
            planted.check_saved(result, tmp_path)


def test_volumes_of_any_orientation(tmp_path: Path) -> None:
    random, model = np.random.default_rng(0), FineSpot(3)
    for codes in [("L", "A", "S"), ("S", "R", "P"), ("A", "I", "R"), ("P", "L", "I"), ("R", "S", "A")]:
        for axis in ("axial", "coronal", "sagittal", "ras"):
            size = tuple(int(each) for each in random.integers(20, 30, 3))
            spot = draw_spot(size, random.uniform(8, np.array(size) - 8))
            steps = tuple(float(each) for each in random.uniform(0.5, 3, 3))
            image = nibabel.Nifti1Image(spot.astype(np.float32), build_affine("".join(codes), steps))
            result = camtool.explain(model, image.to_bytes(), 1, layer="features", reading={"axis": axis})
            saved = nibabel.load(result.save(tmp_path / "heat.nii"))
            assert np.abs(find_world_centroid(saved) - find_world_centroid(image)).max() < 0.5


def test_a_reduced_photo_is_placed_on_its_file(tmp_path: Path) -> None:
    """The run reduces photos while it reads them; the heatmap is stored on the grid of the file."""
    random, model = np.random.default_rng(0), FineSpot()
    for _ in range(10):
        size = (int(random.integers(80, 200)), int(random.integers(80, 200)))
        place = random.uniform(20, np.array(size) - 20)
        path = tmp_path / "photo.tif"
        colors = np.rint(np.repeat(draw_spot(size, place)[..., None] * 255, 3, 2)).astype(np.uint8)
        tifffile.imwrite(path, colors, photometric="rgb")
        prepare = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
        explainer = camtool.Explainer(model, layer="features", transform=prepare)
        result = explainer(explainer.read(path, max_side=60), 1)
        saved = tifffile.imread(result.save(tmp_path / "heat.tif"))
        assert saved.shape == size
        assert np.linalg.norm(find_centroid(saved) - place) < 1
