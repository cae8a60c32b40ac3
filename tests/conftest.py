"""What several tests share: where the real weights and photos lie, and small models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, which would only be in each other's way
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real weights and photos beside the project; tests that need it skip where it is absent.

    Each of them has a twin on the bundled model and its scenes, which runs everywhere.
    """
    if not (SHARED / "models").is_dir():
        pytest.skip("real weights and photos are not beside the project (../shared)")
    return SHARED


@pytest.fixture(scope="session")
def mobilenet(shared: Path):
    """MobileNetV2 with real ImageNet weights, its transform and its labels."""
    import camtool

    return camtool.load("mobilenet_v2", shared / "models" / "mobilenet_v2-imagenet.safetensors")


@pytest.fixture(scope="session")
def demo():
    """The bundled model, with its transform and its labels."""
    import camtool

    return camtool.load("demo")
