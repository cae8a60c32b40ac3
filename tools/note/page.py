"""The page ``docs/note.md``: its template, filled with the numbers that the benchmarks have stored."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.faithcam import ABLATIONS
from benchmarks.networks import TITLES, format_counts
from benchmarks.shape import VARIANTS
from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "note.md"

_CHOICES = [name for name in ABLATIONS if name != "faithcam"]
_SHAPES = [name for name in VARIANTS if name not in ("faithcam", "gradcam", "fullgrad")]
_OF_PHOTOS = ("mobilenet_v2", "squeezenet1_1", "timm:tf_efficientnet_lite0")
_VERDICTS = ("found", "partly", "fooled", "nothing")
_JUDGED = ("gradcam", "hirescam", "rivalcam", "faithcam")


def render_page() -> str:
    """Return the page in Markdown."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    functions: list[Callable[..., Any]] = [
        *(mean, list_networks, count_questions, span_questions, count_wired, get_default),
        *(compute_shift, describe_errors, find_largest_error, find_free_variants),
        *(draw_gains, draw_choices, draw_tuned, draw_answers),
    ]
    return environment.get_template("note.md.jinja").render(
        {function.__name__: function for function in functions}, choices=_CHOICES, shapes=_SHAPES, networks=TITLES
    )


@cache
def _read(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------------------ numbers


def mean(row: str, network: str, measure: str, file: str = "faithcam") -> str:
    """Return the mean of a measure."""
    return f"{_read(file)['rows'][row][network][measure][0]:.3f}"


def _format_gain(value: float, error: float) -> str:
    """Return a gain with its standard error: bold if it is more than two of them above 0, italic if below."""
    text = f"{value:+.3f} ± {error:.3f}".replace(" ", "\N{NO-BREAK SPACE}")
    return text if abs(value) <= 2 * error else f"**{text}**" if value > 0 else f"*{text}*"


def list_networks(row: str, measure: str, sign: int, file: str = "faithcam") -> list[str]:
    """Return the networks on which a row is more than two standard errors ahead (1) or behind (-1)."""
    rows = _read(file)["rows"][row]
    entries = {title: rows[key][measure][2:] for key, title in TITLES.items() if measure in rows.get(key, {})}
    return [title for title, (value, error) in entries.items() if sign * value > 2 * error]


def find_free_variants() -> list[str]:
    """Return the variants of faithcam that are ahead of it somewhere and behind it nowhere."""
    tried = [("faithcam", name) for name in _CHOICES] + [("shape", name) for name in _SHAPES]

    def is_any(file: str, row: str, sign: int) -> bool:
        measures = {measure for entry in _read(file)["rows"][row].values() for measure in entry}
        return any(list_networks(row, measure, sign, file) for measure in measures if "questions" not in measure)

    return [row for file, row in tried if is_any(file, row, 1) and not is_any(file, row, -1)]


def count_questions(network: str, kind: str = "questions") -> int:
    """Return the number of unseen photos or scenes, or of ``"pointing questions"``, of a network."""
    count: int = _read("faithcam")["rows"]["faithcam"][network][kind]
    return count


def span_questions(kind: str) -> str:
    """Return the smallest and the largest number of questions of a kind on networks of scenes."""
    counts = [count_questions(key, kind) for key in TITLES if key not in _OF_PHOTOS]
    return f"{min(counts)} to {max(counts)}"


def count_wired() -> int:
    """Return the number of networks whose weights are set by hand."""
    return len(_read("wired")["networks"])


def find_largest_error(row: str, measure: str) -> str:
    """Return the largest standard error of a gain on unseen photos."""
    return f"{max(_read('faithcam')['rows'][row][key][measure][3] for key in _OF_PHOTOS):.3f}"


def describe_errors(rows: Sequence[str], measure: str) -> str:
    """Return the median and the largest standard error of the gains of rows on all networks."""
    stored = _read("faithcam")["rows"]
    errors = [stored[row][key][measure][3] for row in rows for key in TITLES if measure in stored[row].get(key, {})]
    return f"{median(errors):.3f} and {max(errors):.3f}"


def get_default(method: str, option: str) -> float:
    """Return the default of an option of a method."""
    default: float = inspect.signature(METHODS[method].function).parameters[option].default
    return default


def compute_shift(layers: int, side: int) -> float:
    """Return how far the grid behind layers of stride 2 lies from that of a stretched map, in pixels."""
    grid = CellCenters((side,), (AxisCenters(0.5, float(2**layers)),))
    return grid.compute_shift([side // 2**layers])[0]


# ------------------------------------------------------------------------------------------------------------- tables


def _draw_table(files: str, head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    """Return a table, with the mark by which its numbers are compared with files, if any are named."""
    marks = [f"<!-- numbers: {' '.join(f'benchmarks/{name}.json' for name in files.split())} -->"] if files else []
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join([*marks, *("| " + " | ".join(line) + " |" for line in lines)])


def draw_gains(file: str, columns: dict[str, tuple[str, str]], *, means: Sequence[str] = ()) -> str:
    """Return a table of gains with standard errors, with networks as rows.

    Args:
        file: The name of the stored file.
        columns: Title → row and measure.
        means: Titles of the columns that show means.
    """
    rows = _read(file)["rows"]

    def format_cell(title: str, network: str) -> str:
        row, measure = columns[title]
        entry = rows[row].get(network, {}).get(measure)
        return "-" if entry is None else f"{entry[0]:.3f}" if title in means else _format_gain(*entry[2:])

    body = [[title, *(format_cell(column, key) for column in columns)] for key, title in TITLES.items()]
    return _draw_table(file, ["network", *columns], body)


def draw_choices() -> str:
    """Return on how many networks each variant of faithcam is ahead of it and behind it, and the range of the gains."""
    measures = {"pointing": "Pointing", "masks": "Masks", "cells": "Single deletion"}
    return format_counts(_read("faithcam")["rows"], _CHOICES, measures)


def draw_tuned() -> str:
    """Return the gains of faithcam over gradcam on the photos on which it was tuned, and on unseen ones."""
    measures, rows = ("cells", "masks", "insertion", "pointing"), _read("faithcam")["rows"]["faithcam"]
    body = [
        [f"{TITLES[key]}, {photos}", *(_format_gain(*rows[key + suffix][measure][2:]) for measure in measures)]
        for key in TITLES
        if f"{key}, tuned" in rows
        for photos, suffix in (("tuned on", ", tuned"), ("unseen", ""))
    ]
    return _draw_table("faithcam", ["photos", "single deletion", "masks", "insertion", "pointing"], body)


def draw_answers() -> str:
    """Return the verdicts on networks whose weights are set by hand, and the precision on planted evidence."""
    verdicts = {row["method"]: row["verdicts"].values() for row in _read("wired")["methods"]}
    truths = {row["method"]: row for row in _read("truth")["methods"]}
    body = []
    for method in _JUDGED:
        counts = Counter(entry["verdict"] for entry in verdicts[method])
        truth = truths.get(method)
        precision = f"{truth['truth']:.2f} ({truth['low']:.2f} to {truth['high']:.2f})" if truth else "refused"
        body.append([f"`{method}`", *(str(counts[verdict]) for verdict in _VERDICTS), precision])
    return _draw_table("", ["method", *_VERDICTS, "precision on planted evidence"], body)
