"""The columns of a report, as a table. The page builds its filters, its sort menu and its details from it.

To add a column, add an entry to :data:`COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from camtool.runs.report.rows import ReportRow
from camtool.runs.text_escapes import escape_hidden

ColumnKind: TypeAlias = Literal["text", "number", "percent", "warnings"]
"""How the page shows a value, and filters by it: text by a list, a percentage by a range."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: The name in the page's data.
        title: The heading.
        kind: How the values are shown.
        read: Returns the value of a row; None if it has none.
        is_filter: Offer it as a filter, if its values differ.
        is_sort: Offer it in the sort menu, if its values differ.
        is_searched: The search looks into it.
    """

    key: str
    title: str
    kind: ColumnKind
    read: Callable[[ReportRow], str | float | None]
    is_filter: bool = False
    is_sort: bool = False
    is_searched: bool = False


def _read_share(name: str, row: ReportRow) -> float | None:
    return row.heat_in.get(name)


def _escape(text: str | None) -> str | None:
    return escape_hidden(text) if text else None


def _read_verdict(row: ReportRow) -> str | None:
    return None if row.correct is None else ("Right" if row.correct else "Wrong")


def _read_box(row: ReportRow) -> str | None:
    if row.box is None:
        return None
    x0, y0, x1, y1 = (f"{value:.0f}" for value in row.box)
    return f"({x0}, {y0}) to ({x1}, {y1})"


def _read_cells(row: ReportRow) -> str | None:
    return None if row.heatmap is None else f"{row.heatmap.width} x {row.heatmap.height}"


COLUMNS: tuple[Column, ...] = (
    Column("verdict", "Right or wrong", "text", _read_verdict, is_filter=True),
    Column("probability", "Probability", "percent", lambda row: row.probability, is_filter=True, is_sort=True),
    Column("label", "Class", "text", lambda row: _escape(row.label), is_filter=True, is_sort=True, is_searched=True),
    Column("predicted", "Predicted class", "text", lambda row: _escape(row.predicted_label), is_searched=True),
    Column("truth", "True class", "text", lambda row: _escape(row.true_label), is_filter=True, is_searched=True),
    Column("method", "Method", "text", lambda row: _escape(row.method), is_filter=True, is_sort=True, is_searched=True),
    # The page reads the warnings themselves from a table of its own; here is their number, to sort by.
    Column("warnings", "Warnings", "warnings", lambda row: len(row.warnings), is_filter=True, is_sort=True),
    Column("sufficient", "Enough alone", "percent", lambda row: row.sufficient, is_filter=True, is_sort=True),
    Column("sufficient-text", "What is enough", "text", lambda row: _escape(row.sufficient_text)),
    Column("layer", "Layer", "text", lambda row: _escape(row.layer), is_filter=True, is_searched=True),
    Column("score", "Score", "number", lambda row: row.score, is_sort=True),
    Column("index", "Class index", "number", lambda row: row.index),
    Column("cells", "Cells of the map", "text", _read_cells),
    Column("box", "Box on the photo", "text", _read_box),
    Column("image", "Photo", "text", lambda row: _escape(row.image), is_sort=True, is_searched=True),
)
"""All columns, in the order in which the page shows them."""


def list_columns(rows: Iterable[ReportRow]) -> list[Column]:
    """Return all columns of a report: :data:`COLUMNS`, and one for each region whose heat was measured."""
    names = dict.fromkeys(name for row in rows for name in row.heat_in)
    regions = [
        Column(
            f"heat-{number}",
            f"Heat in {escape_hidden(name)}",
            "percent",
            partial(_read_share, name),
            is_filter=True,
            is_sort=True,
        )
        for number, name in enumerate(names)
    ]
    return [*COLUMNS[:7], *regions, *COLUMNS[7:]]
