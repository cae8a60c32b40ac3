"""Fixtures of the tests of rendering: a photo, a heatmap and a mask."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


@pytest.fixture
def heatmap() -> np.ndarray:
    """Return a smooth hill from 0 to 1."""
    y, x = np.mgrid[:40, :60]
    hill = np.exp(-((y - 15) ** 2 + (x - 40) ** 2) / 200)
    return ((hill - hill.min()) / np.ptp(hill)).astype(np.float32)


@pytest.fixture
def seen() -> np.ndarray:
    """Return the mask of a central 40 x 40 crop."""
    mask = np.zeros((40, 60), dtype=bool)
    mask[:, 10:50] = True
    return mask
