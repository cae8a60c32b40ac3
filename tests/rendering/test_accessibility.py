"""Pages that a run writes, in Chromium, by axe-core: contrast, names, landmarks, order of headings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.audit.results import build_audit, write_pictures
from tests.evaluation.audit.test_browser import KEYS
from tests.evaluation.diff.test_browser import build_diff
from tests.evaluation.repair.test_browser import build_repair
from tests.helpers.axe import list_violations
from tests.runs.report.test_browser import (
    CHROMIUM,
    browser,  # noqa: F401  a fixture
    report,  # noqa: F401  a fixture
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


@pytest.fixture
def pages(report: Path, tmp_path: Path) -> dict[str, Path]:  # noqa: F811
    """Return each page, written to a folder of its own."""
    folders = {name: tmp_path / name for name in ("audit", "diff", "repair")}
    for folder in folders.values():
        folder.mkdir()
    write_pictures(folders["audit"], *KEYS)
    build_audit().save(folders["audit"])
    build_diff().save(folders["diff"])
    build_repair().save(folders["repair"])
    return {"report": report} | {name: folder / "index.html" for name, folder in folders.items()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing(browser: Any, pages: dict[str, Path], scheme: str, width: int) -> None:  # noqa: F811
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce"
    )
    found = {}
    for name, path in pages.items():
        tab = context.new_page()
        tab.goto(path.resolve().as_uri())
        found[name] = list_violations(tab)
        if name == "report":
            tab.locator(".tile").first.click()
            found["large view"] = list_violations(tab)
    context.close()
    assert [name for name, violations in found.items() if violations] == [], found
