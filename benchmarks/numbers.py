"""Numbers in the pages that differ from the stored ones: ``python -m benchmarks numbers``.

A table that follows a line ``<!-- numbers: benchmarks/NAME.json -->`` is compared with this file, or with several that
are separated by spaces. Each number of a row must be in the entries of the file that name the row, rounded as it is
printed, as a share or in percent; if no entry does, anywhere in the file. The row is named by its first cell; several
names, separated by commas, are rows with the same numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import typer

_ROOT = Path(__file__).parents[1]
_PAGES = (_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md")))
_MARK = re.compile(r"^<!-- numbers: (.+) -->$")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?![\w.])")
_MEASURED = re.compile(r"\s*[-+]?\d[\d,]*(\.\d+| %)")
_SIGNS = str.maketrans({"\u2212": "-", "±": " ", "`": "", "*": ""})


class Difference(NamedTuple):
    """A number of a page that is not in the file that its table names."""

    page: Path
    line: int
    row: str
    number: str
    nearest: float | None

    def __str__(self) -> str:
        nearest = "" if self.nearest is None else f"; the nearest is {self.nearest:g}"
        return f"{self.page.name}:{self.line}: {self.row}: {self.number} is not stored{nearest}"


def main() -> None:
    """Print all numbers that differ; the exit status is 1 if there are any."""
    tables = 0
    differences = []
    for page in _PAGES:
        text = page.read_text(encoding="utf-8")
        tables += sum(_MARK.match(line) is not None for line in text.splitlines())
        differences += [*find_differences(page, text)]
    for difference in differences:
        print(difference)
    print(f"{tables} tables, {len(differences)} numbers differ from the stored files.")
    raise typer.Exit(bool(differences))


def find_differences(page: Path, text: str) -> Iterator[Difference]:
    """Yield the numbers of the marked tables of a page that are not in the files that they name."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        mark = _MARK.match(line)
        if mark is None:
            continue
        stored = [json.loads((_ROOT / name).read_text(encoding="utf-8")) for name in mark[1].split()]
        # Below the mark are the head of the table, whose numbers are names, and a rule.
        first = place + 3
        for number, row in enumerate(takewhile(lambda below: below.startswith("|"), lines[first:]), first + 1):
            label, *cells = [cell.strip() for cell in row.translate(_SIGNS).strip("|").split("|")]
            for name in _split_names(label, stored):
                yield from _compare_row(page, number, name, cells, stored)


def find_unmarked(text: str) -> Iterator[str]:
    """Yield the first cell of each table without a mark in which most cells begin with a decimal or a percentage."""
    lines = ["", *text.splitlines()]
    for place, line in enumerate(lines):
        if line.startswith("|---") and not _MARK.match(lines[place - 2]):
            rows = [*takewhile(lambda below: below.startswith("|"), lines[place + 1 :])]
            cells = [cell for row in rows for cell in row.translate(_SIGNS).strip("|").split("|")[1:]]
            if 2 * sum(bool(_MEASURED.match(cell)) for cell in cells) > len(cells):
                yield lines[place - 1].strip("| ").partition("|")[0].strip()


def _split_names(label: str, stored: list[Any]) -> list[str]:
    """Return the names of the stored rows that share a row of a page: all of its first cell, if each is stored."""
    names = label.split(", ")
    are_stored = all(any(True for tree in stored for _ in _list_numbers(tree, name, is_named=False)) for name in names)
    return names if are_stored else [label]


def _compare_row(page: Path, line: int, label: str, cells: list[str], stored: list[Any]) -> Iterator[Difference]:
    named = {number for tree in stored for number in _list_numbers(tree, label, is_named=False)}
    numbers = named or {number for tree in stored for number in _list_numbers(tree, label, is_named=True)}
    for cell in cells:
        for printed in _NUMBER.findall(cell):
            value, digits = float(printed.replace(",", "")), len(printed.partition(".")[2])
            # Half a unit of the last digit, and what rounding twice adds.
            limit = 0.5 * 10.0**-digits * 1.001 + 1e-9
            scaled = {scale * number for number in numbers for scale in (1.0, 100.0)}
            if not any(abs(abs(number) - abs(value)) <= limit for number in scaled):
                yield Difference(
                    page, line, label, printed, min(numbers, key=lambda one: abs(one - value), default=None)
                )


def _list_numbers(tree: Any, label: str, *, is_named: bool) -> Iterator[float]:
    """Yield the numbers of a file that are below an entry which the label names."""
    if isinstance(tree, bool) or tree is None or isinstance(tree, str):
        return
    if isinstance(tree, (int, float)):
        if is_named:
            yield float(tree)
        return
    items = [*tree.items()] if isinstance(tree, dict) else [("", entry) for entry in tree]
    is_here = is_named or label in [entry for _, entry in items if isinstance(entry, str)]
    for key, entry in items:
        yield from _list_numbers(entry, label, is_named=is_here or key == label)


if __name__ == "__main__":
    typer.run(main)
