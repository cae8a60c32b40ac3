"""Labeled photos for the benchmarks: a folder with photos and a ``labels.csv`` (file, imagenet_index)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from torch import Tensor

import camtool


def read_labels(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the path of each photo with the index of its class."""
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield folder / row["file"], int(row["imagenet_index"])


def read_photos(loaded: camtool.Loaded, folder: Path) -> Iterator[tuple[Tensor, int]]:
    """Yield each photo, prepared for the model, ``(C, H, W)``, with the index of its class."""
    assert loaded.transform is not None
    for path, index in read_labels(folder):
        yield loaded.transform(Image.open(path).convert("RGB")), index
