"""Labeled photos for the benchmarks: a folder with photos and a ``labels.csv`` (file, imagenet_index)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from torch import Tensor

import camtool


def read_photos(loaded: camtool.Loaded, folder: Path) -> Iterator[tuple[Tensor, int]]:
    """Yield each photo, prepared for the model, ``(C, H, W)``, with the index of its class."""
    assert loaded.transform is not None
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield loaded.transform(Image.open(folder / row["file"]).convert("RGB")), int(row["imagenet_index"])
