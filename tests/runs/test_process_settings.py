"""Settings of the command's own process: what the C library and torch's threads do in it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from camtool.runs import process_settings

_COUNT_MAPPED = """
import ctypes, os
import numpy as np
{tune}
class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
before = library.mallinfo2().hblks
block = np.ones(2**24)
print(library.mallinfo2().hblks - before, os.environ.get("OMP_WAIT_POLICY"))
"""
"""Prints how many blocks the system gave for an array of 128 MB: one, or none if the C library keeps such blocks."""


def run(tune: str, **environment: str) -> list[str]:
    code = _COUNT_MAPPED.format(tune=tune)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "OMP_"))}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, check=True
    )
    return answer.stdout.split()


TUNE = "from camtool.runs.process_settings import tune_process; tune_process()"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_large_blocks_are_kept_unless_the_user_has_settings_of_his_own():
    assert run("") == ["1", "None"]
    assert run(TUNE) == ["0", "passive"]
    assert run(TUNE, MALLOC_ARENA_MAX="2", OMP_WAIT_POLICY="active") == ["1", "active"]


KEEP_LARGE_BLOCKS = process_settings._keep_large_blocks  # left out while tests run


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(process_settings, "_keep_large_blocks", KEEP_LARGE_BLOCKS)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(process_settings.ctypes, "CDLL", lambda _: pytest.fail("there may be no mallopt"))
    process_settings.tune_process()


# As a library that is made with nanobind, e.g. Triton 3.9.
REPORTS_LEAKS = """
import sys, types
kind = type("nb_type_0", (type,), {"__module__": "nanobind"})
sys.modules["triton._C.libtriton.ir"] = types.SimpleNamespace(attribute=kind("attribute", (), {}))
"""


@pytest.mark.parametrize(("libraries", "is_frozen"), [("", True), (REPORTS_LEAKS, False)], ids=["others", "nanobind"])
def test_the_end_of_the_process_does_not_look_for_cycles_unless_leaks_are_reported(libraries, is_frozen):
    code = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 1000))"
    program = f"{code}\n{TUNE}\n{libraries}"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == f"{is_frozen}\n"
