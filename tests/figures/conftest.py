"""Fixtures of the tests of figures."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def net():
    """A small net with known weights."""
    from tests.figures.drawing_helpers import SmallNet

    torch.manual_seed(1)
    return SmallNet().eval()
