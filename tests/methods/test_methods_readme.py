"""The methods reference (``camtool/methods/README.md``): its rows match the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import camtool
from camtool import targets
from camtool.methods import COSTS, METHODS, WRAPPERS, wrap_method
from camtool.methods.merges import MERGES
from camtool.methods.method_tables import format_needs
from tests.helpers.peer_differences import PEER_DIFFERENCES
from tests.helpers.released_code_differences import RELEASED_CODE_DIFFERENCES

README = (Path(camtool.__file__).parent / "methods" / "README.md").read_text(encoding="utf-8")

DIFFERENT = {
    *("gradcam++", "zoomcam", "odam", "integratedgradcam", "cameras", "groupcam", "reciprocam", "polycam", "opticam"),
    *("vitreciprocam", "rise", "legrad", "sess", "refinecam", "maskclip", "clipsurgery"),
}
"""Methods, wrappers and merges whose results differ from those of the authors' released code."""


def find_section(title: str) -> str:
    """Return the text below a heading, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, f"camtool/methods/README.md has no section {title!r}"
    return found[1]


def read_cells(title: str) -> list[list[str]]:
    """Return the cells of a section's table, row by row, without the header."""
    _, ruler, *rows = [line for line in find_section(title).splitlines() if line.startswith("|")]
    assert set(ruler) <= set("| -")
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in rows]


def read_table(title: str) -> dict[str, list[str]]:
    """Return the rows of a section's table, by the name in backticks in the first column."""
    rows = [tuple(row) for row in read_cells(title)]
    names = [re.fullmatch(r"`([^`]+)`", row[0]) for row in rows]
    assert all(names), rows
    assert len({name[1] for name in names}) == len(names)
    return {name[1]: list(row[1:]) for name, row in zip(names, rows, strict=True)}


def format_options(options: dict[str, object]) -> str:
    return ", ".join(f"`{name}={default!r}`" for name, default in options.items()) or "-"


def format_paper(source: str) -> str:
    if source.startswith("arXiv "):
        return f"[{source}](https://arxiv.org/abs/{source.removeprefix('arXiv ')})"
    return f"[{source}](https://doi.org/{source})" if source.startswith("10.") else source or "-"


def format_heading(cost: str) -> str:
    return cost[0].upper() + cost[1:]


@pytest.mark.parametrize("cost", COSTS)
def test_the_table_of_each_cost_lists_its_methods(cost: str) -> None:
    rows = read_table(format_heading(cost))
    names = {name for name, method in METHODS.items() if method.cost == cost}
    assert set(rows) == names, (
        f"add a row for {sorted(names - set(rows))} to the table '{format_heading(cost)}' in "
        f"camtool/methods/README.md, and remove those of {sorted(set(rows) - names)}"
    )
    for name, (formula, needs, options, paper) in rows.items():
        method = METHODS[name]
        expected = (format_needs(method), format_options(method.options), format_paper(method.paper))
        assert (needs, options, paper) == expected, f"correct the row of {name!r} in camtool/methods/README.md"
        weighs = formula.startswith("`w") or "singular vector" in formula or "the same of `X" in formula
        has_weights = method.weight_function is not None
        assert weighs == has_weights, f"the formula of {name!r} begins with `w` if it has weights"


def test_the_reference_names_the_methods_that_ignore_the_layer() -> None:
    (sentence,) = re.findall(
        r"^These methods ignore the layer.*?\.$", find_section("Methods by cost"), re.MULTILINE | re.DOTALL
    )
    assert set(re.findall(r"`([^`]+)`", sentence)) == {name for name, each in METHODS.items() if each.ignores_layer}


def test_the_table_of_wrappers_matches_the_registry() -> None:
    rows = read_table("Wrappers")
    assert list(rows) == list(WRAPPERS), "add or remove a row in the table 'Wrappers' in camtool/methods/README.md"
    for name, (_, options, paper) in rows.items():
        expected = (format_options(wrap_method(name, "gradcam").options), format_paper(WRAPPERS[name].paper))
        assert (options, paper) == expected, name


def test_the_table_of_merges_matches_the_merges() -> None:
    rows = read_table("Merges")
    assert list(rows) == list(MERGES), "add or remove a row in the table 'Merges' in camtool/methods/README.md"
    for name, (_, paper) in rows.items():
        docstring = inspect.getdoc(MERGES[name]) or ""
        found = re.search(r"arXiv \d{4}\.\d{4,5}|10\.\d{4}/[\w.]+\w", docstring)
        assert paper == format_paper(found[0] if found else ""), name


def test_each_target_has_the_parameters_of_its_row() -> None:
    for call, (_, known_as) in read_table("Targets that papers call methods").items():
        name, *arguments = re.findall(r"\w+", call)
        target = getattr(targets, name)
        assert list(inspect.signature(target).parameters)[: len(arguments)] == arguments
        for source in re.findall(r"\[(arXiv [\d.]+)\]", known_as):
            assert source in inspect.getdoc(target)
            assert format_paper(source) in known_as


def test_the_differences_from_other_libraries_are_those_that_are_tested() -> None:
    rows = read_cells("Differences from grad-cam 1.5.7 and torchcam 0.5.0")
    expected = [[each.peer, each.methods, each.theirs, each.ours] for each in PEER_DIFFERENCES]
    assert rows == expected, "tests/helpers/peer_differences.py and camtool/methods/README.md list different rows"


def test_the_differences_from_released_code_are_those_that_are_known() -> None:
    rows = read_cells("Differences from the authors' released code")
    expected = [[f"`{each.name}`", each.theirs, each.ours] for each in RELEASED_CODE_DIFFERENCES]
    assert rows == expected, (
        "tests/helpers/released_code_differences.py and camtool/methods/README.md list different rows"
    )
    assert {each.name for each in RELEASED_CODE_DIFFERENCES} == DIFFERENT


def test_the_differences_from_released_code_name_the_current_defaults() -> None:
    for each in RELEASED_CODE_DIFFERENCES:
        if each.name in MERGES:
            continue
        method = wrap_method(each.name, "gradcam") if each.name in WRAPPERS else METHODS[each.name]
        assert each.options.items() <= method.options.items(), each.name


def test_the_advice_names_existing_methods() -> None:
    names = re.findall(r"\*\*`([^`]+)`\*\*", find_section("Choosing a method"))
    assert names
    assert set(names) <= set(METHODS)


def test_prose_has_lines_of_at_most_120_characters() -> None:
    prose = [line for line in README.splitlines() if not line.startswith("|")]
    assert max(map(len, prose)) <= 120
