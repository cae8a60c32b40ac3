"""Tests of torch-cam on camtool's extractors: ``python -m benchmarks torchcam_tests TORCH_CAM/tests``.

Runs torch-cam's own, unmodified tests twice: as they are, and with the extractors of :mod:`torchcam_extractors` in
place of torch-cam's. Its other parts (wrappers such as ``FinerCAM``, metrics, ``explain``, pictures) stay torch-cam's.
Many tests are of these alone, so tests that explain a pass by ``camtool.observe`` are counted by themselves. The tests
are in torch-cam's repository, not in its package; the version must be that of the package, so that all of them pass.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import pytest
import typer

import camtool

_OUT = Path(__file__).with_suffix(".json")
_EXTRACTORS = _OUT.with_name("torchcam_extractors.py")


class _Counts:
    """A plugin of pytest that counts outcomes by file."""

    def __init__(self) -> None:
        self.files: dict[str, Counter[str]] = defaultdict(Counter)
        self.failed: list[str] = []
        self._explains = False
        explain = camtool.ObservedPass.explain

        def note(*args, **options):
            self._explains = True
            return explain(*args, **options)

        camtool.ObservedPass.explain = note

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "call" or report.outcome != "passed":
            counts = self.files[item.path.name]
            counts[report.outcome] += 1
            counts[f"{report.outcome}, explained by camtool"] += self._explains
            self.failed += [item.nodeid.partition("::")[2]] * report.failed
        if call.when == "teardown":
            self._explains = False
        return report


def main(
    tests: Annotated[Path, typer.Argument(help="The folder of torch-cam's tests.")],
    *,
    alone: Annotated[bool, typer.Option(help="Run them with torch-cam's extractors, and write nothing.")] = False,
) -> None:
    """Run the tests, print a table, and write the counts to a JSON file in this folder."""
    counts = _Counts()
    plugins = [] if alone else ["-p", "benchmarks.torchcam_extractors"]
    with tempfile.TemporaryDirectory() as cache:
        arguments = [str(tests), f"--rootdir={cache}", f"-c{os.devnull}", "-q", "--tb=no", "-pno:cacheprovider"]
        pytest.main([*arguments, *plugins], plugins=[counts])
    total = sum(counts.files.values(), Counter())
    for name, row in [*sorted(counts.files.items()), ("all", total)]:
        print(f"{name}: {dict(row)}")
    if alone:
        raise typer.Exit(bool(total["failed"]))
    lines = sum(bool(re.match(r"\s*[^#\s]", line)) for line in _EXTRACTORS.read_text(encoding="utf-8").splitlines())
    own = subprocess.run([sys.executable, "-m", "benchmarks", "torchcam_tests", str(tests), "--alone"], check=False)
    result = {"torchcam": version("torchcam"), "torchcam passes its tests": own.returncode == 0, "lines": lines}
    rows = {name: dict(sorted(row.items())) for name, row in sorted(counts.files.items())}
    result |= {"all": dict(sorted(total.items())), "files": rows, "failed": sorted(counts.failed)}
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
