"""Photos of noise in files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

posix = pytest.mark.skipif(os.name != "posix", reason="signals, links and killed processes are POSIX's")


def write_photo(path: Path, level: int | None = None) -> Path:
    """Write a photo of noise, or of one gray level, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(str(path))).integers(0, 200, (20, 28, 3), dtype=np.uint8)
    Image.fromarray(noise if level is None else np.full_like(noise, level)).save(path)
    return path
