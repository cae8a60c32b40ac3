"""What several tests share: where the real weights and photos lie, and small models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from camtool.private_torch import restore_function_modes, save_function_modes

SHARED = Path(__file__).resolve().parents[2] / "shared"

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, which would only be in each other's way
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_function_mode_is_left() -> Iterator[None]:
    """A function mode that a test left behind would see the calls of all later tests."""
    before = save_function_modes()
    yield
    left = save_function_modes()
    restore_function_modes(before)
    assert left == before, f"the test left function modes behind: {left}"


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
