"""The numbers in README and docs are those that the benchmarks have stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import conservative, faithcam, numbers, placement, shape

PAGE = """
<!-- numbers: benchmarks/made.json -->
| method | precision | share | time in 2 threads |
|---|---|---|---|
| `gradcam` | 0.40 (0.34 to 0.45) | 12 % | 1,204 |
| `faithcam` | **0.53** ± 0.02 | 7 % | \u22123 |

0.99 is below the table.
"""
STORED = {
    "threads": 8,
    "rows": [
        {"method": "gradcam", "precision": [0.4049, 0.336, 0.45], "share": 0.118, "ms": 1203.6},
        {"method": "faithcam", "precision": {"mean": 0.534, "error": 0.02}, "share": 0.07, "ms": 3.4},
    ],
}


@pytest.mark.parametrize("page", numbers._PAGES, ids=lambda page: page.name)
def test_no_number_of_a_page_differs(page: Path) -> None:
    differences = [str(difference) for difference in numbers.find_differences(page, page.read_text(encoding="utf-8"))]
    assert not differences


@pytest.mark.parametrize(
    ("printed", "changed", "told"),
    [
        ("0.40 (", "0.41 (", "made.md:5: gradcam: 0.41 is not stored; the nearest is 0.4049"),
        ("7 %", "12 %", "made.md:6: faithcam: 12 is not stored; the nearest is 3.4"),  # that of the other row
        ("1,204", "1,203", "made.md:5: gradcam: 1,203 is not stored; the nearest is 1203.6"),
        ("0.99", "0.98", None),
    ],
)
def test_a_number_that_differs_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, changed: str, told: str | None
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "made.json").write_text(json.dumps(STORED))
    monkeypatch.setattr(numbers, "_ROOT", tmp_path)
    assert not [*numbers.find_differences(Path("made.md"), PAGE)]
    differences = [*map(str, numbers.find_differences(Path("made.md"), PAGE.replace(printed, changed)))]
    assert differences == ([] if told is None else [told])


def test_each_name_of_a_row_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benchmarks").mkdir()
    rows = [*STORED["rows"], STORED["rows"][0] | {"method": "xgradcam"}]
    (tmp_path / "benchmarks" / "made.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(numbers, "_ROOT", tmp_path)
    assert not [*numbers.find_differences(Path("made.md"), PAGE.replace("`gradcam`", "`gradcam`, `xgradcam`"))]
    page = PAGE.replace("| `gradcam` | 0.40", "| `faithcam`, `gradcam` | 0.40")
    assert {difference.row for difference in numbers.find_differences(Path("made.md"), page)} == {"faithcam"}


_UNMARKED = {
    "checks.md: fault": "counts of 200 folders, in percent",
    "text-and-image.md: method": "printed by tools/train_demo_captioner.py",
    "placement.md: layer": "of the weights of one network, by hand",
}
"""Tables of measured numbers that are not stored as they are shown."""


def test_each_table_of_measured_numbers_names_its_file() -> None:
    unmarked = {f"{page.name}: {name}" for page in numbers._PAGES for name in numbers.find_unmarked(page.read_text())}
    assert unmarked == {*_UNMARKED}


@pytest.mark.parametrize(
    ("page", "mark", "file", "count"),
    [
        ("trust", "counted", "faithcam", faithcam.count_networks),
        ("faithcam", "shape", "shape", shape.count_variants),
        ("placement", "measured", "placement", placement.count_methods),
        ("conservative", "measured", "conservative", conservative.format_methods),
    ],
)
def test_a_page_has_what_its_benchmark_counts(page: str, mark: str, file: str, count: Callable[[Any], str]) -> None:
    root = Path(__file__).parents[1]
    text = (root / "docs" / f"{page}.md").read_text(encoding="utf-8")
    stored = json.loads((root / "benchmarks" / f"{file}.json").read_text(encoding="utf-8"))["rows"]
    shown = text.partition(f"<!-- {mark} -->\n")[2].partition(f"\n<!-- /{mark} -->")[0]
    assert shown == count(stored), f"run python -m benchmarks {file}"
