"""Ceilings of the code, which only fall: ``python -m tools.ceilings`` lists what passes them, ``--lower`` lowers them.

``tests/ceilings.json`` has a row for each package and each single module of camtool, one for their sum, one for each
plain call, and one for the pages of the documentation. ``tests/test_ceilings.py`` fails where a count is above its
ceiling, and where it is so far below that the ceiling no longer holds it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tools.code_size import count_code_lines, list_functions, measure_complexity

if TYPE_CHECKING:
    from benchmarks.call_path import CallPath

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "ceilings.json"
PACKAGE = ROOT / "camtool"
DOCS = ROOT / "docs"

Rows = dict[str, dict[str, int]]
"""Name of a package or a call → quantity → count."""

TOP = "(top)"
"""The row of the files directly in camtool that are no module of their own: ``__init__`` and ``__main__``."""

COMPLEXITIES = (15, 10)

LINES_VERSION = (3, 11)
"""The Python version whose executed lines are held: that of most jobs of CI. Others trace other lines."""

# A row that had to be lowered after each small change would be edited in every branch, and they would collide.
_SLACK_PERCENT = 2
# Two percent of a module of 100 lines are two lines.
_LEAST_SLACK = 5

_SUBJECTS = {"packages": "camtool/{}", "sum": "the sum of {}", "calls": "a repeated call of {}", "docs": "{}"}
_ADVICE = {
    "packages": "remove as many there, or lower another package's row in tests/ceilings.json to raise this one",
    "sum": "lower the rows of other packages by as many",
    "calls": "shorten something else on its path, which python -m benchmarks call_path --functions lists",
    "docs": "say each fact once, on the page of its subject, and link to it",
}
_COMPLEXITY_ADVICE = "split them; radon cc -s -n C --show-closures camtool/{}* lists those above 10"


def read_ceilings(file: Path) -> dict[str, Rows]:
    """Return the rows of each section: packages, sum, calls and docs."""
    sections: dict[str, Rows] = json.loads(file.read_text(encoding="utf-8"))
    return sections


def write_ceilings(sections: dict[str, Rows], file: Path) -> None:
    """Write one row a line, so that branches that lower different rows can be merged."""
    blocks = []
    for section, rows in sections.items():
        lines = [f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
        blocks.append(f"  {json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n  }")
    file.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def list_packages() -> list[str]:
    """Return the names of the rows that camtool needs, in the order of the alphabet."""
    return sorted({_name_package(file) for file in _list_files("*.py*")})


def measure_code_lines() -> Rows:
    """Return the code lines of each package, with those of stubs."""
    return _sum_by_package("*.py*", lambda source: {"code lines": count_code_lines(source)})


def count_complex_functions() -> Rows:
    """Return for each package how many of its functions are above each of the complexities."""
    return _sum_by_package("*.py", _count_complex)


def trace_calls() -> dict[str, CallPath]:
    """Return what one repeated call of each kind passes through."""
    from benchmarks.call_path import trace_explain, trace_explainer  # imports torch

    # In a thread of its own, which handles no exception: within an ``except`` block, a call takes a further step.
    with ThreadPoolExecutor(1) as thread:
        explain, explainer = thread.submit(trace_explain), thread.submit(trace_explainer)
    return {"explain": explain.result(), "Explainer": explainer.result()}


def measure_path(path: CallPath) -> dict[str, int]:
    """Return the counts that a row of a call holds, see :mod:`benchmarks.call_path`."""
    counts = {
        "files": len(path.files),
        "functions": len(path.functions),
        "nested calls": path.depth,
        "decision points": path.count_decisions(),
    }
    return counts | ({"executed lines": len(path.lines)} if sys.version_info[:2] == LINES_VERSION else {})


def sum_code_lines(packages: Rows) -> Rows:
    """Return the row of the sum of the packages' ceilings."""
    return {"all packages": {"code lines": sum(row["code lines"] for row in packages.values())}}


def count_page_lines() -> Rows:
    """Return the row of the Markdown lines of all pages of the documentation."""
    pages = DOCS.rglob("*.md")
    return {"docs": {"lines": sum(len(page.read_text(encoding="utf-8").splitlines()) for page in pages)}}


def find_refusals(section: str, counts: Rows, ceilings: Rows) -> list[str]:
    """Return a sentence that says what to do for each count that is above its ceiling, or too far below it."""
    refusals = []
    for name, quantity, count, ceiling in _compare(counts, ceilings):
        subject = f"{_SUBJECTS[section].format(name)} has {count:,} {quantity},"
        if count > ceiling:
            advice = _COMPLEXITY_ADVICE if quantity.startswith("functions above complexity") else _ADVICE[section]
            refusals.append(f"{subject} {count - ceiling:,} above its ceiling of {ceiling:,}: {advice.format(name)}.")
        elif _is_too_high(ceiling, quantity, count):
            command = "python -m tools.ceilings --lower"
            refusals.append(f"{subject} {ceiling - count:,} below its ceiling of {ceiling:,}: {command} lowers it.")
    return refusals


def lower_ceilings(counts: Rows, ceilings: Rows) -> Rows:
    """Return the rows with those ceilings lowered that are too high for their counts. None is raised."""
    lowered = {name: dict(row) for name, row in ceilings.items()}
    for name, quantity, count, ceiling in _compare(counts, ceilings):
        if _is_too_high(ceiling, quantity, count):
            lowered[name][quantity] = count
    return lowered


def _compare(counts: Rows, ceilings: Rows) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, quantity, count and ceiling of what has both."""
    for name, row in counts.items():
        for quantity, count in row.items():
            if quantity in ceilings.get(name, {}):
                yield name, quantity, count, ceilings[name][quantity]


def _is_too_high(ceiling: int, quantity: str, count: int) -> bool:
    # Complex functions are few: one less is a success that the next change must not spend.
    is_exact = quantity.startswith("functions above complexity")
    slack = 0 if is_exact else max(_LEAST_SLACK, ceiling * _SLACK_PERCENT // 100)
    return count < ceiling - slack


def _list_files(pattern: str) -> list[Path]:
    return [file for file in PACKAGE.rglob(pattern) if file.suffix in (".py", ".pyi")]


def _name_package(file: Path) -> str:
    name = file.relative_to(PACKAGE).parts[0].partition(".")[0]
    return TOP if name.startswith("__") else name


def _sum_by_package(pattern: str, count: Callable[[str], dict[str, int]]) -> Rows:
    rows: Rows = {name: defaultdict(int) for name in list_packages()}
    for file in _list_files(pattern):
        row = rows[_name_package(file)]
        for quantity, number in count(file.read_text(encoding="utf-8")).items():
            row[quantity] += number
    return rows


def _count_complex(source: str) -> dict[str, int]:
    complexities = [measure_complexity(function) for function in list_functions(source)]
    return {f"functions above complexity {most}": sum(value > most for value in complexities) for most in COMPLEXITIES}


def main(
    *, lower: Annotated[bool, typer.Option("--lower", help="Lower what is too high; raise nothing.")] = False
) -> None:
    """List what is above its ceiling, or too far below it."""
    ceilings = read_ceilings(FILE)
    calls = {name: measure_path(path) for name, path in trace_calls().items()}
    measures = [("packages", measure_code_lines()), ("packages", count_complex_functions()), ("calls", calls)]
    measures.append(("docs", count_page_lines()))
    if lower:
        for section, counts in measures:
            ceilings[section] = lower_ceilings(counts, ceilings[section])
        ceilings["sum"] = lower_ceilings(sum_code_lines(ceilings["packages"]), ceilings["sum"])
        write_ceilings(ceilings, FILE)
    measures.append(("sum", sum_code_lines(ceilings["packages"])))
    refusals = [line for section, counts in measures for line in find_refusals(section, counts, ceilings[section])]
    sys.stdout.writelines(f"{line}\n" for line in refusals)
    raise typer.Exit(bool(refusals))


if __name__ == "__main__":
    typer.run(main)
