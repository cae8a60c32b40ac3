"""Fixtures of the tests of the recorder."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 8, 8, dtype=torch.float64)
