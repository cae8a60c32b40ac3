"""The result of an evaluation: methods in rows, metrics in columns, with intervals, as a table, a file or a figure."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.libraries import import_library
from camtool.arguments.message_parts import format_count, format_ends, suggest_names
from camtool.errors import MetricError
from camtool.figures import paper_style
from camtool.figures.paper_style import HEADING_SIZE, LINE_HEIGHT, TEXT_SIZE
from camtool.figures.saving import load_canvas, save
from camtool.rendering.image_writing import open_atomically
from camtool.rendering.written_files import replace_files, replace_infinite
from camtool.runs.text_escapes import escape_formula
from camtool.trust.metrics import METRICS

if TYPE_CHECKING:
    import pandas

    from camtool.figures.canvas import Figure


# The files of a folder.
NAMES = ("leaderboard.csv", "leaderboard.json", "leaderboard.md", "leaderboard.png")

_DRAWS = 2000
# Differences that a claim needs: of five all have one sign by chance in 1 of 16 cases, which is more than 5 %.
_LEAST_PAIRS = 6

_UP, _DOWN = "↑", "↓"
_FIGURE_SUFFIXES = (".pdf", ".svg", ".png")


class Interval(NamedTuple):
    """The mean of a metric over the images, and its 95 % bootstrap interval.

    All are NaN if there is no value, ``low`` and ``high`` if there is one: a single image has no interval.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class EvaluationRow:
    """One method at one layer.

    Attributes:
        name: How the table names it: ``"gradcam"``, ``"gradcam at layer3"``.
        method: The method.
        layer: The layer; ``""`` for methods at the input.
        milliseconds: Time of a batch of its own, divided by the number of its images.
        values: Name of a metric → one number for each image, NaN where there is none. Infinite ones count as none.
    """

    name: str
    method: str
    layer: str
    milliseconds: float
    values: Mapping[str, NDArray[np.float64]] = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """A leaderboard: methods at layers against metrics.

    Attributes:
        rows: The methods, the best by the first metric first.
        metrics: The names of the metrics.
        refused: Name of a method → why it cannot explain this model.
        failed: Name of a metric → why it has no value for some method.
        notes: What the user should know about the images and their preparation.
        image_count: The number of images.
        seed: The seed.
    """

    rows: tuple[EvaluationRow, ...]
    metrics: tuple[str, ...]
    refused: Mapping[str, str]
    failed: Mapping[str, str]
    notes: tuple[str, ...]
    image_count: int
    seed: int

    def __getitem__(self, name: str) -> EvaluationRow:
        """Return the row of this name.

        Raises:
            MetricError: There is none.
        """
        by_name = {row.name: row for row in self.rows}
        if name not in by_name:
            reason = f" It was refused: {self.refused[name]}" if name in self.refused else suggest_names(name, by_name)
            raise MetricError(f"the evaluation has no row {name!r}.{reason}")
        return by_name[name]

    def compute_interval(self, name: str, metric: str) -> Interval:
        """Return the mean of a metric for one row, with its 95 % bootstrap interval over the images."""
        if metric not in self.metrics:
            raise MetricError(f"the evaluation has no metric {metric!r}.{suggest_names(metric, self.metrics)}")
        return bootstrap_mean(self[name].values[metric], self.seed)

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dictionary per row: name, method, layer, milliseconds, and mean, low and high of each metric."""
        records = []
        for row in self.rows:
            record = {"name": row.name, "method": row.method, "layer": row.layer, "ms": round(row.milliseconds, 2)}
            for metric in self.metrics:
                interval = bootstrap_mean(row.values[metric], self.seed)
                ends = zip((metric, f"{metric} low", f"{metric} high"), interval, strict=True)
                record |= {name: round(value, 6) for name, value in ends}
            records.append(record)
        return records

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a data frame, with the name of the method as index.

        Raises:
            MetricError: pandas is not installed.
        """
        pandas = import_library("pandas", "to_pandas needs pandas", "pandas", MetricError)
        return pandas.DataFrame.from_records(self.to_records(), index="name")

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the table as CSV, and write it to ``path`` if one is given."""
        records = self.to_records()
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(map(escape_formula, row) for row in (records[0], *(record.values() for record in records)))
        return _write(text.getvalue(), path)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return everything as JSON, each image's values too, and write it to ``path`` if one is given."""
        values = {row.name: {name: array.tolist() for name, array in row.values.items()} for row in self.rows}
        content = {"images": self.image_count, "seed": self.seed, "rows": self.to_records()}
        content |= {"refused": self.refused, "failed": self.failed, "notes": self.notes, "values": values}
        return _write(encode_json(content), path)

    def to_markdown(self) -> str:
        """Return the table as Markdown: each metric's mean with its interval, and a caption.

        A mean is bold if it is measurably better than those of all other rows: the 95 % bootstrap interval of the
        paired difference excludes 0, for six images or more. ``random`` is never bold.
        """
        header, *rows = self._iterate_cells("**{}**")
        lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
        lines.insert(1, f"|---|{'---:|' * (len(header) - 1)}")
        return "\n".join([*lines, "", self._caption]) + "\n"

    def to_latex(self) -> str:
        """Return the table as a LaTeX ``table`` with a caption, which needs no package: as :meth:`to_markdown`."""
        header, *rows = [[_escape_latex(cell) for cell in cells] for cells in self._iterate_cells("\\textbf{{{}}}")]
        lines = [r"\begin{table}", r"\centering", f"\\caption{{{_escape_latex(self._caption)}}}"]
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\hline"]
        lines += [f"{' & '.join(header)} \\\\", r"\hline", *(f"{' & '.join(cells)} \\\\" for cells in rows)]
        return "\n".join([*lines, r"\hline", r"\end{tabular}", r"\end{table}"]) + "\n"

    def figure(self) -> Figure:
        """Return a figure: one panel for each metric, with the mean and the interval of each method.

        Raises:
            FigureError: matplotlib is not installed.
        """
        names, methods = [row.name for row in self.rows], [row.method for row in self.rows]
        intervals = {m: np.array([bootstrap_mean(row.values[m], self.seed) for row in self.rows]) for m in self.metrics}
        return draw_chart(names, intervals, self.image_count, methods.index("random") if "random" in methods else None)

    def save(self, path: str | Path) -> Path:
        """Write the table or the figure to a file, or both to a folder.

        The suffix chooses the format: ``.csv``, ``.json``, ``.md`` and ``.tex`` hold the table, ``.pdf``, ``.svg`` and
        ``.png`` the figure. A path without a suffix, or of a folder that exists, becomes a folder with
        ``leaderboard.csv``, ``.json``, ``.md`` and ``.png``.

        Returns:
            The path.

        Raises:
            MetricError: The suffix is unknown.
            CamtoolError: A file in the folder is not as camtool wrote it, a link leads out of it, or matplotlib is not
                installed.
        """
        path = Path(path)
        if path.is_dir() or not path.suffix:
            with replace_files(path, NAMES):
                for name in NAMES:
                    self.save(path / name)
            return path
        tables = {".csv": self.to_csv, ".json": self.to_json, ".md": self.to_markdown, ".tex": self.to_latex}
        suffix = path.suffix.lower()
        if suffix in tables:
            with open_atomically(path) as stream:
                stream.write(tables[suffix]().encode())
            return path
        if suffix not in _FIGURE_SUFFIXES:
            kinds = ", ".join([*tables, *_FIGURE_SUFFIXES])
            raise MetricError(f"path {str(path)!r}: the suffix must be one of {kinds}; a folder is named without one.")
        return save(self.figure(), path)

    def __repr__(self) -> str:
        names = ", ".join(row.name for row in self.rows[:3]) + (", ..." if len(self.rows) > 3 else "")
        return f"<Evaluation on {format_count(self.image_count, 'image')} by {', '.join(self.metrics)}: {names}>"

    def __str__(self) -> str:
        reasons = "".join(f"{metric}: no value for {reason}\n" for metric, reason in self.failed.items())
        return self.to_markdown() + (f"\n{reasons}" if reasons else "")

    _repr_markdown_ = to_markdown

    @property
    def _caption(self) -> str:
        if self.image_count == 1:
            return "n = 1 image, so there are no intervals, and no mean is measurably better than another."
        return (
            f"Mean and 95 % bootstrap interval over n = {format_count(self.image_count, 'image')}. Bold: measurably "
            "better than every other row (the 95 % interval of the paired difference excludes 0)."
        )

    def _find_best(self, metric: str) -> str:
        """Return the name of the row, not ``random``, that is measurably better than all others; "" if none is."""
        sign = METRICS[metric].sign
        rated = {row: sign * row.values[metric] for row in self.rows if np.isfinite(row.values[metric]).any()}
        best = max((row for row in rated if row.method != "random"), key=lambda row: _average(rated[row]), default=None)
        if best is None or len(rated) == 1:
            return ""
        is_best = all(row is best or _is_positive(rated[best] - rated[row], self.seed) for row in rated)
        return best.name if is_best else ""

    def _iterate_cells(self, bold: str) -> Iterator[list[str]]:
        """Yield the cells of the table, its header first; ``bold`` is the format of a mean that is the best."""
        best = {metric: self._find_best(metric) for metric in self.metrics}
        arrows = {name: _UP if METRICS[name].higher_is_better else _DOWN for name in self.metrics}
        yield ["method", *(f"{name} {arrow}" for name, arrow in arrows.items()), "ms/image"]
        for row in self.rows:
            cells = [self._format_cell(row, name, bold if row.name == best[name] else "{}") for name in self.metrics]
            yield [row.name, *cells, _format_time(row.milliseconds)]

    def _format_cell(self, row: EvaluationRow, metric: str, style: str) -> str:
        mean, low, high = bootstrap_mean(row.values[metric], self.seed)
        if np.isnan(mean):
            return "-"
        count = np.isfinite(row.values[metric]).sum()
        fewer = f" [n = {count}]" if count < self.image_count else ""
        return f"{style.format(f'{mean:.2f}')}{format_ends(low, high, 2)}{fewer}"


def to_record(value: Any) -> Any:
    """Return results as mappings and lists: data classes and named tuples by their fields, intervals as lists."""
    if hasattr(value, "_asdict") and not isinstance(value, Interval):
        return to_record(value._asdict())
    if is_dataclass(value):
        return {each.name: to_record(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_record(entry) for name, entry in value.items()}
    return [to_record(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def encode_json(content: Any) -> str:
    """Return JSON as files hold it; infinite and unknown numbers are null."""
    return json.dumps(replace_infinite(content), indent=1, allow_nan=False) + "\n"


def bootstrap_mean(values: NDArray[np.float64], seed: int = 0) -> Interval:
    """Return the mean of the finite numbers, and its 95 % percentile bootstrap interval if there are two or more."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return Interval(float(finite[0]) if len(finite) else np.nan, np.nan, np.nan)
    drawn = np.random.default_rng(seed).integers(0, len(finite), (_DRAWS, len(finite)))
    low, high = np.quantile(finite[drawn].mean(1), (0.025, 0.975))
    return Interval(float(finite.mean()), float(low), float(high))


def _average(values: NDArray[np.float64]) -> float:
    """Return the mean of what could be measured."""
    return float(values[np.isfinite(values)].mean())


def _is_positive(differences: NDArray[np.float64], seed: int) -> bool:
    """Return True if paired differences are above 0, by the interval of their mean."""
    return np.isfinite(differences).sum() >= _LEAST_PAIRS and bootstrap_mean(differences, seed).low > 0


def _format_time(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.1f}"


def _escape_latex(cell: str) -> str:
    """Return the text of a cell with arrows as symbols, and the characters escaped that names may hold."""
    for old, new in ((_UP, r"$\uparrow$"), (_DOWN, r"$\downarrow$"), *((char, f"\\{char}") for char in "_%&#")):
        cell = cell.replace(old, new)
    return cell


def _write(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


# Inches. A panel is wider than _PANEL if the name of a metric is.
_PANEL, _GAP, _EDGE, _ROW = 1.25, 0.18, 0.12, 0.17
_HEAD, _FOOT = 0.5, 0.28

# Height of the name of a metric, in points.
_NAME_SIZE = HEADING_SIZE - 1

# Panels beside one another; more are drawn below.
_ACROSS = 6

# Space on both sides of the intervals, as a share of their range.
_PADDING = 0.06


def draw_chart(
    names: Sequence[str], intervals: Mapping[str, NDArray[np.floating[Any]]], image_count: int, chance: int | None
) -> Figure:
    """Return the figure of an evaluation.

    Args:
        names: The names of the rows.
        intervals: Name of a metric → mean, low and high of each row, (rows, 3).
        image_count: The number of images, for the note.
        chance: The index of the row of random maps, whose mean is the chance level; None if there is none.

    Raises:
        CamtoolError: matplotlib is not installed.
    """
    canvas = load_canvas()
    margin = 2 * _EDGE + max(canvas.measure_text(name, TEXT_SIZE) for name in names)
    # All panels are equally wide, so that names of metrics do not run into one another.
    panel = max(_PANEL, *(canvas.measure_text(metric, _NAME_SIZE) for metric in intervals))
    across = paper_style.balance_columns(len(intervals), _ACROSS)
    bands = -(-len(intervals) // across)
    height = _HEAD + len(names) * _ROW + _FOOT
    values = "Values of 1 image, no" if image_count == 1 else f"Mean of {image_count} images, 95 %"
    notes = (f"{values} interval.", "Dashed: random, whose weights are drawn.")
    widest_note = max(canvas.measure_text(note, TEXT_SIZE) for note in notes)
    width = max(margin + across * (panel + _GAP), widest_note + 2 * _EDGE)
    figure: Figure = canvas.create_figure(width, bands * height + len(notes) * LINE_HEIGHT + _EDGE)
    for number, metric in enumerate(intervals):
        band, column = divmod(number, across)
        top = band * height
        if not column:
            _write_names(canvas, figure, names, margin, top + _HEAD)
        box = margin + column * (panel + _GAP), top + _HEAD, panel, len(names) * _ROW
        _draw_panel(canvas, figure, box, metric, intervals[metric], chance)
    for number, note in enumerate(notes):
        bottom = bands * height + (number + 0.5) * LINE_HEIGHT
        canvas.write_line(figure, _EDGE, bottom, note, TEXT_SIZE, color=canvas.MUTED)
    return figure


def _write_names(canvas: Any, figure: Figure, names: Sequence[str], margin: float, top: float) -> None:
    for row, name in enumerate(names):
        left = margin - _EDGE - canvas.measure_text(name, TEXT_SIZE)
        canvas.write_line(figure, left, top + (row + 0.5) * _ROW + TEXT_SIZE / 72 / 3, name, TEXT_SIZE)


def _draw_panel(
    canvas: Any, figure: Figure, box: Any, metric: str, intervals: NDArray[np.floating[Any]], chance: int | None
) -> None:
    left, top, wide, high = box
    limits = _find_limits(intervals)
    axes = canvas.add_axes(figure, box)
    canvas.draw_intervals(axes, intervals, limits, np.nan if chance is None else intervals[chance, 0])
    canvas.write_line(figure, left, top - 0.24, metric, _NAME_SIZE)
    direction = "higher is better" if METRICS[metric].higher_is_better else "lower is better"
    canvas.write_line(figure, left, top - 0.1, direction, TEXT_SIZE - 1.5, color=canvas.MUTED)
    for value, share in zip(limits, (0.0, 1.0), strict=True):
        text = paper_style.format_number(value)
        start = left + share * (wide - canvas.measure_text(text, TEXT_SIZE - 1))
        canvas.write_line(figure, start, top + high + 0.13, text, TEXT_SIZE - 1, color=canvas.MUTED)


def _find_limits(intervals: NDArray[np.floating[Any]]) -> tuple[float, float]:
    """Return the ends of an axis that holds all intervals, with some space on both sides."""
    finite = intervals[np.isfinite(intervals)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    space = _PADDING * (high - low) or 0.1
    return low - space, high + space
