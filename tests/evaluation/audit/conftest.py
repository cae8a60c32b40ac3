"""An audit that several tests read, of the network and the images of ``test_audit.py``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from camtool.evaluation.audit.result import Audit
from tests.evaluation.audit.test_audit import run_audit


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Audit, Path]:
    """An audit and its folder, which nobody changes."""
    folder = tmp_path_factory.mktemp("audit")
    return run_audit(out=folder), folder


@pytest.fixture
def result(audited: tuple[Audit, Path]) -> Audit:
    """The audit itself."""
    return audited[0]


@pytest.fixture
def copied(audited: tuple[Audit, Path], tmp_path: Path) -> Path:
    """A copy of the folder of the audit, which the test may change."""
    shutil.copytree(audited[1], tmp_path, dirs_exist_ok=True)
    return tmp_path
