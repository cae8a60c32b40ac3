"""Benchmarks: each script starts, and the quick ones run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SHARED = ("paired.py", "photos.py")
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in SHARED)

pytestmark = pytest.mark.slow


def run_script(*command: str) -> str:
    return subprocess.run([sys.executable, *command], cwd=FOLDER, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_benchmark_prints_its_help(script: str) -> None:
    assert "--help" in run_script(script, "--help")


def test_the_breakdown_times_each_stage() -> None:
    lines = run_script("breakdown.py", "--turns", "1").splitlines()
    assert len(lines) == 7
    assert all(" ms  " in line for line in lines)


def test_the_call_path_lists_its_files() -> None:
    total, *files = run_script("call_path.py").splitlines()
    assert total.startswith(f"{len(files)} files, ")
    assert "  explainer.py" in files
