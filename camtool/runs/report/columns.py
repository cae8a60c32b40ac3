"""The rows and the columns of a report. The page builds its filters, its sort menu and its details from it.

To add a column, add an entry to :data:`COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from camtool.runs.text_escapes import escape_hidden


@dataclass(frozen=True)
class RowWarning:
    """A warning of an explanation.

    Attributes:
        text: The sentence.
        code: A key of :data:`camtool.warning_codes.WARNING_KINDS`; None if the run did not store codes.
    """

    text: str
    code: str | None = None


@dataclass(frozen=True)
class StoredHeatmap:
    """A heatmap at the layer's size, as a cluster run stores it.

    Attributes:
        data: The values as uint8, row by row, compressed with zlib.
        height: The number of rows of cells.
        width: The number of cells in a row.
        place: Where it lies on the photo, see :data:`camtool.runs.cluster.rows.COLUMNS`; None if unknown.
        photo_size: Height and width of the photo that ``place`` is about; None if unknown.
    """

    data: bytes
    height: int
    width: int
    place: tuple[float, ...] | None = None
    photo_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class ReportRow:
    """One explanation: a photo, a target and a method.

    Attributes:
        image: The path of the photo, as the run got it.
        method: The method's name.
        layer: The layer's name.
        label: The label of the target.
        index: The class index; None for other targets.
        score: The score of the target; None if it was not finite.
        probability: The probability of the class; None if unknown.
        predicted_label: The class that the model predicts; None if unknown.
        true_label: The class that the photo shows; None if unknown.
        correct: Whether the prediction is the true class; None if unknown.
        warnings: Reasons not to trust the map.
        box: ``(x0, y0, x1, y1)`` on the photo in pixels, of the explained detection; None for other targets.
        pictures: Kind, such as ``"overlay"`` → path of the picture.
        heatmap: The heatmap alone, if there are no pictures; None otherwise.
        heat_in: Name of a region of the photo → share of the heat in it.
        sufficient: Share of the model's input that alone keeps 90 % of the probability; None if unknown.
        sufficient_text: What was found about this part, in words; None if unknown.
    """

    image: str
    method: str
    layer: str = ""
    label: str = ""
    index: int | None = None
    score: float | None = None
    probability: float | None = None
    predicted_label: str | None = None
    true_label: str | None = None
    correct: bool | None = None
    warnings: tuple[RowWarning, ...] = ()
    box: tuple[float, ...] | None = None
    pictures: Mapping[str, Path] = field(default_factory=dict)
    heatmap: StoredHeatmap | None = None
    heat_in: Mapping[str, float] = field(default_factory=dict)
    sufficient: float | None = None
    sufficient_text: str | None = None


@dataclass(frozen=True)
class ReportFailure:
    """A photo that could not be explained, and why."""

    image: str
    reason: str


@dataclass(frozen=True)
class ReportContents:
    """Everything that a report is made of.

    Attributes:
        rows: The explanations.
        failures: The photos that failed.
        run: What made the results, as in ``run.json``; empty if unknown.
        notices: Sentences about what the report leaves out.
    """

    rows: Sequence[ReportRow]
    failures: Sequence[ReportFailure] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    notices: Sequence[str] = ()


# How the page shows a value, and filters by it: text by a list, a percentage by a range.
ColumnKind: TypeAlias = Literal["text", "number", "percent", "warnings"]


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


def _escape(text: str | None) -> str | None:
    return escape_hidden(text) if text else None


def _read_box(row: ReportRow) -> str | None:
    if row.box is None:
        return None
    x0, y0, x1, y1 = (f"{value:.0f}" for value in row.box)
    return f"({x0}, {y0}) to ({x1}, {y1})"


def _read_cells(row: ReportRow) -> str | None:
    return None if row.heatmap is None else f"{row.heatmap.width} x {row.heatmap.height}"


_VERDICTS = {True: "Right", False: "Wrong", None: None}

# All columns, in the order in which the page shows them.
COLUMNS: tuple[Column, ...] = (
    Column("verdict", "Right or wrong", "text", lambda row: _VERDICTS[row.correct], is_filter=True),
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


def list_columns(rows: Iterable[ReportRow]) -> list[Column]:
    """Return all columns of a report: :data:`COLUMNS`, and one for each region whose heat was measured."""
    names = dict.fromkeys(name for row in rows for name in row.heat_in)
    regions = [_build_region_column(number, name) for number, name in enumerate(names)]
    behind = 1 + [column.key for column in COLUMNS].index("warnings")
    return [*COLUMNS[:behind], *regions, *COLUMNS[behind:]]


def _build_region_column(number: int, name: str) -> Column:
    title = f"Heat in {escape_hidden(name)}"
    return Column(f"heat-{number}", title, "percent", lambda row: row.heat_in.get(name), is_filter=True, is_sort=True)
