"""The benchmarks still go with the package: each starts, and the quickest runs through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "paired.py")  # what they share

pytestmark = pytest.mark.slow


def said(*command: str) -> str:
    return subprocess.run([sys.executable, *command], cwd=FOLDER, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_starts_and_says_what_it_takes(script: str) -> None:
    assert "--help" in said(script, "--help")


def test_the_breakdown_has_a_time_for_each_stage() -> None:
    lines = said("breakdown.py", "--turns", "1").splitlines()
    assert len(lines) == 7
    assert all(" ms  " in line for line in lines)
