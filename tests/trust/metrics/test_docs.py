"""The table of metrics in docs/trust.md agrees with the registry."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from camtool.methods import METHODS
from camtool.trust.metrics import METRICS
from camtool.warning_codes import WARNING_KINDS

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "trust.md").read_text(encoding="utf-8")


def read_rows() -> dict[str, list[str]]:
    """Return the cells of each metric's row."""
    table = TEXT[TEXT.index("| name | what it measures |") :].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {name.strip("`"): cells for name, *cells in rows}


ROWS = read_rows()


def format_number(value: float) -> str:
    return "∞" if value == math.inf else f"{value:g}"


def test_each_metric_has_a_row() -> None:
    assert list(ROWS) == list(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_a_row_agrees_with_the_registry(name: str) -> None:
    one, (words, better, bounds, chance, source) = METRICS[name], ROWS[name]
    assert words
    assert better == ("↑" if one.higher_is_better else "↓")
    assert bounds == " to ".join(map(format_number, one.bounds))
    if one.chance is None:
        assert chance == "measured"
    elif callable(one.chance):
        assert "share" in chance
    else:
        assert chance == format_number(one.chance)
    number = one.paper.removeprefix("arXiv ")
    assert source == (f"[{one.paper}](https://arxiv.org/abs/{number})" if one.paper else "-")


def test_metrics_that_random_maps_pass_are_named() -> None:
    words = TEXT[TEXT.index("## Which one to believe") : TEXT.index("## Leaderboard")]
    names = {"cascading-randomization", "independent-randomization", "random-agreement"}
    assert names <= {*re.findall(r"`([^`]+)`", words)}


def test_names_of_metrics_outside_the_table_exist() -> None:
    after = TEXT[TEXT.index("## Equal to other libraries") :]
    named = set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", after))
    assert named - {*METRICS, *METHODS, *WARNING_KINDS, "camnet-cheat"} == set()
