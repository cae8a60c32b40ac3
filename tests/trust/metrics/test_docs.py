"""The metrics that docs/trust.md names, and the page that is made from their docstrings, are those of the registry."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from camtool.methods import METHODS
from camtool.trust.metrics import METRICS
from camtool.warning_codes import WARNING_KINDS
from tools.docs_site.reference import _draw_metrics

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "trust.md").read_text(encoding="utf-8")


def test_each_metric_is_in_one_row() -> None:
    table = TEXT[TEXT.index("| what is asked | metrics |") :].partition("\n\n")[0]
    assert sorted(re.findall(r"`([a-z0-9-]+)`", table)) == sorted(METRICS)


def test_the_page_that_the_docstrings_make_has_what_the_registry_holds() -> None:
    page = _draw_metrics(METRICS.values())
    sections = dict(zip(*[iter(re.split(r"^## (.*)\n", page, flags=re.MULTILINE)[1:])] * 2, strict=True))
    assert sections.keys() == METRICS.keys()
    for name, metric in METRICS.items():
        assert inspect.getdoc(metric.function).partition("\n")[0].replace("``", "`") in sections[name]
        assert f"| better | {'higher' if metric.higher_is_better else 'lower'} |" in sections[name]
        assert metric.paper.removeprefix("arXiv ") in sections[name]


def test_metrics_that_random_maps_pass_are_named() -> None:
    words = TEXT[TEXT.index("## Which one to believe") : TEXT.index("## Leaderboard")]
    names = {"cascading-randomization", "independent-randomization", "random-agreement"}
    assert names <= {*re.findall(r"`([^`]+)`", words)}


def test_names_of_metrics_outside_the_table_exist() -> None:
    after = TEXT[TEXT.index("## Equal to other libraries") :]
    named = set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", after))
    assert named - {*METRICS, *METHODS, *WARNING_KINDS, "camnet-cheat"} == set()
