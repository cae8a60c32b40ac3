"""Deque's axe-core, which finds what keeps people from using a page, for tests in a browser."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any


def list_violations(page: Any) -> list[tuple[str, list[str]]]:
    """Return what axe-core finds on an open page of Playwright: each rule with the elements that break it."""
    page.evaluate(_read_axe())
    violations = page.evaluate("axe.run().then((result) => result.violations)")
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in violations]


@cache
def _read_axe() -> str:
    npm = shutil.which("npm")
    assert npm is not None
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([npm, "pack", "axe-core@4.10.3", "--silent"], cwd=folder, check=True, capture_output=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            content = files.extractfile("package/axe.min.js")
            assert content is not None
            return content.read().decode()
