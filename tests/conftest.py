"""What several tests share: real weights and photos, small models, files without their library, and memory."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

from camtool.hooks.private_torch import restore_function_modes, save_function_modes
from tests.helpers.frozen_objects import freeze
from tests.helpers.proc_files import read_resident_mib

pytest_plugins = [
    "pytester",
    "tests.helpers.slow_cases",  # before those that import it
    "tests.helpers.scheduling",
    "tests.helpers.case_costs",
    "tests.helpers.missing_extras",
]

SHARED = Path(__file__).resolve().parents[2] / "shared"

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, which would only be in each other's way
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the commands that tests start


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave out what is imported here, more than a million objects, wherever garbage is collected later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _memory_is_given_back() -> Iterator[None]:
    """Commands that run in this process would let the C library keep what is freed, up to 6 GB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("camtool.runs.process_settings._keep_large_blocks", lambda: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _commands_print_no_lines_of_progress() -> Iterator[None]:
    """On a machine under load commands that run in this process would add them to what they say on standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("camtool.cli.terminal.SECONDS_BEFORE_FIRST_LINE", 3600.0)
        patch.setattr("camtool.cli.terminal.SECONDS_BETWEEN_LINES", 3600.0)
        patch.setattr("camtool.cli.progress.run_progress._LONG_RUN", math.inf)
        yield


# Too slow after each test.
COLLECT_AFTER_MIB = 100
resident_after_collecting = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Return the memory of models, compiled graphs and arrays of the test to the system, if it is much."""
    global resident_after_collecting
    yield
    if read_resident_mib() > resident_after_collecting + COLLECT_AFTER_MIB:
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        gc.collect()
        freeze()  # what tests have imported meanwhile is left out, too
        ctypes.CDLL(None).malloc_trim(0)
        resident_after_collecting = read_resident_mib()


@pytest.fixture(autouse=True)
def _seed() -> None:
    # torch.manual_seed formats the stack for each kind of device, also where there is none: a millisecond in pytest.
    seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    seed(0)


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
