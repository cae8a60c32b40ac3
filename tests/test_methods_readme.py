"""The reference of the methods says what the methods are: names, costs, needs, options, papers and deviations."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from departures import DEPARTURES
from deviations import DEVIATIONS

import camtool
from camtool import targets
from camtool.maps import MERGES
from camtool.methods import COSTS, METHODS, WRAPPERS, wrapped

README = (Path(camtool.__file__).parent / "methods" / "README.md").read_text(encoding="utf-8")


NAMED = {
    *("gradcam++", "zoomcam", "odam", "integratedgradcam", "cameras", "groupcam", "reciprocam", "polycam", "opticam"),
    *("rise", "legrad", "sess", "refinecam"),
}
"""Methods, wrappers and merges that trials with the authors' programs found to be different."""


def section(title: str) -> str:
    """What stands below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def table(title: str) -> dict[str, list[str]]:
    """The rows of a section's table, by the name in the first column, which stands in backticks."""
    rows = [tuple(row) for row in cells(title)]
    names = [re.fullmatch(r"`([^`]+)`", row[0]) for row in rows]
    assert all(names), rows
    assert len({name[1] for name in names}) == len(names)
    return {name[1]: list(row[1:]) for name, row in zip(names, rows, strict=True)}


def cells(title: str) -> list[list[str]]:
    _, ruler, *rows = [line for line in section(title).splitlines() if line.startswith("|")]
    assert set(ruler) <= set("| -")
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in rows]


def options(found: dict[str, object]) -> str:
    return ", ".join(f"`{name}={default!r}`" for name, default in found.items()) or "-"


def paper(source: str) -> str:
    if source.startswith("arXiv "):
        return f"[{source}](https://arxiv.org/abs/{source.removeprefix('arXiv ')})"
    return f"[{source}](https://doi.org/{source})" if source.startswith("10.") else source or "-"


def heading(cost: str) -> str:
    return cost[0].upper() + cost[1:]


@pytest.mark.parametrize("cost", COSTS)
def test_each_method_stands_in_the_table_of_its_cost(cost: str) -> None:
    listed = table(heading(cost))
    assert set(listed) == {name for name, method in METHODS.items() if method.cost == cost}
    for name, (formula, needs, has, source) in listed.items():
        method = METHODS[name]
        assert (needs, has, source) == (method.needs, options(method.options), paper(method.paper)), name
        is_pattern = "singular vector" in formula or "the same of `X" in formula
        assert (formula.startswith("`w") or is_pattern) == (method.weights is not None), name


def test_methods_that_look_at_no_layer_are_told() -> None:
    (told,) = re.findall(r"^These look at no layer.*?\.$", section("Methods by cost"), re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([^`]+)`", told)) == {name for name, method in METHODS.items() if method.at_input}


def test_each_wrapper_stands_in_its_table() -> None:
    listed = table("Wrappers")
    assert list(listed) == list(WRAPPERS)
    for name, (_, has, source) in listed.items():
        assert (has, source) == (options(wrapped(name, "gradcam").options), paper(WRAPPERS[name].paper)), name


def test_each_merge_stands_in_its_table() -> None:
    listed = table("Merges")
    assert list(listed) == list(MERGES)
    for name, (_, source) in listed.items():
        told = inspect.getdoc(MERGES[name]) or ""
        found = re.search(r"arXiv \d{4}\.\d{4,5}|10\.\d{4}/[\w.]+\w", told)
        assert source == paper(found[0] if found else ""), name


def test_each_target_takes_what_its_line_says() -> None:
    for call, (_, known_as) in table("Targets that papers call methods").items():
        name, *arguments = re.findall(r"\w+", call)
        target = getattr(targets, name)
        assert list(inspect.signature(target).parameters)[: len(arguments)] == arguments
        for source in re.findall(r"\[(arXiv [\d.]+)\]", known_as):
            assert source in inspect.getdoc(target)
            assert paper(source) in known_as


def test_the_deviations_are_those_that_are_tested() -> None:
    rows = cells("Where camtool differs from grad-cam 1.5.7 and torchcam 0.5.0")
    assert rows == [[each.peer, each.methods, each.what, each.here] for each in DEVIATIONS]


def test_the_departures_from_released_programs_are_those_that_are_known() -> None:
    rows = cells("Where camtool differs from the programs that the authors released")
    assert rows == [[f"`{each.name}`", each.what, each.here] for each in DEPARTURES]
    assert {each.name for each in DEPARTURES} == NAMED


def test_departures_rest_on_defaults_that_are_so() -> None:
    for each in DEPARTURES:
        if each.name in MERGES:
            continue
        method = wrapped(each.name, "gradcam") if each.name in WRAPPERS else METHODS[each.name]
        assert each.options.items() <= method.options.items(), each.name


def test_names_in_the_advice_are_methods() -> None:
    named = re.findall(r"\*\*`([^`]+)`\*\*", section("Which one should I take?"))
    assert named
    assert set(named) <= set(METHODS)


def test_prose_is_wrapped() -> None:
    prose = [line for line in README.splitlines() if not line.startswith("|")]
    assert max(map(len, prose)) <= 120
