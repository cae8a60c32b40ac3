"""The data of the page: columns, values and links of all rows, as JSON that is safe inside a script element."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from camtool.arguments.messages import merge_texts
from camtool.runs.report.columns import Column, ReportContents, ReportRow, RowWarning, list_columns
from camtool.runs.report.pictures import RowPictures
from camtool.runs.text_escapes import escape_hidden
from camtool.warning_codes import WARNING_KINDS

# Proportions of the tiles: those of most photos, within these limits.
_MIN_RATIO, _MAX_RATIO = 0.75, 1.5

# "See the sentence." is the remedy of warnings whose sentence says all.
_NO_REMEDY = "See the sentence."


@dataclass(frozen=True)
class WarningSummary:
    """One kind of warning.

    Attributes:
        key: Its code; for warnings without codes the sentence without its numbers.
        title: What the page calls it.
        condition: When it is raised; empty if unknown.
        remedy: What the user can do; empty if unknown.
        severity: ``"warning"`` or ``"note"``.
        count: The number of explanations with it.
    """

    key: str
    title: str
    condition: str
    remedy: str
    severity: str
    count: int


@dataclass(frozen=True)
class RunSummary:
    """The numbers at the top of the page.

    Attributes:
        photos: The number of photos that were explained.
        explanations: The number of explanations.
        failures: The number of photos that failed.
        warned: The number of explanations with a warning.
        right: The number of photos whose prediction is right, among those with a known class.
        judged: The number of photos with a known class.
        methods: The methods, in the order of the run.
        layers: The layers, in the order of the run.
        warnings: The kinds of warnings, the most frequent first.
    """

    photos: int
    explanations: int
    failures: int
    warned: int
    right: int
    judged: int
    methods: tuple[str, ...]
    layers: tuple[str, ...]
    warnings: tuple[WarningSummary, ...]


def summarize(contents: ReportContents) -> RunSummary:
    """Count what the page says at its top."""
    # All rows of a photo have the same prediction; explained targets may differ.
    verdicts = {row.image: row.correct for row in contents.rows if row.correct is not None}
    return RunSummary(
        photos=len({row.image for row in contents.rows}),
        explanations=len(contents.rows),
        failures=len(contents.failures),
        warned=sum(bool(row.warnings) for row in contents.rows),
        right=sum(verdicts.values()),
        judged=len(verdicts),
        methods=tuple(dict.fromkeys(escape_hidden(row.method) for row in contents.rows)),
        layers=tuple(dict.fromkeys(escape_hidden(row.layer) for row in contents.rows if row.layer)),
        warnings=_summarize_warnings(contents.rows),
    )


def build_payload(contents: ReportContents, pictures: Sequence[RowPictures], summary: RunSummary) -> dict[str, Any]:
    """Return the data of the page. Texts that repeat are stored once, so that 5,000 rows take about a megabyte.

    Args:
        contents: What the page shows.
        pictures: The pictures of each row.
        summary: The numbers at the top; the kinds of warnings are in its order.
    """
    rows = contents.rows
    columns = list_columns(rows)
    return {
        "columns": [{name: value for name, value in asdict(column).items() if name != "read"} for column in columns],
        "values": {column.key: _encode_column(column, rows) for column in columns},
        "ids": _identify(rows),
        "groups": _encode_texts([row.image for row in rows])["codes"],
        **_encode_warnings(rows, summary),
        **_encode_pictures(pictures),
        "failures": [
            {"image": escape_hidden(failure.image), "reason": escape_hidden(failure.reason)}
            for failure in contents.failures
        ],
    }


def _encode_column(column: Column, rows: Sequence[ReportRow]) -> Any:
    values = [column.read(row) for row in rows]
    if column.kind == "text":
        return _encode_texts(values)
    # Six digits are as many as the page shows, and half as long as all of them.
    return [float(f"{value:.6g}") if isinstance(value, float) else value for value in values]


def _encode_texts(texts: Sequence[Any]) -> dict[str, Any]:
    """Return the distinct texts, and the place of each text among them; -1 for None."""
    distinct = _number(text for text in texts if text is not None)
    return {"texts": [*distinct], "codes": [-1 if text is None else distinct[text] for text in texts]}


def _number(values: Iterable[Any]) -> dict[Any, int]:
    return {value: place for place, value in enumerate(dict.fromkeys(values))}


def _identify(rows: Sequence[ReportRow]) -> list[str]:
    """Return a short name of each row for links, the same in every report of the run."""
    taken: Counter[str] = Counter()
    names = []
    for row in rows:
        text = "\0".join((row.image, row.method, row.layer, row.label, str(row.index)))
        name = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
        taken[name] += 1
        names.append(name if taken[name] == 1 else f"{name}-{taken[name]}")
    return names


# ------------------------------------------------------------------------------------------------------ warnings


def _get_key(warning: RowWarning) -> str:
    """Return the code of a warning; for others the sentence without its numbers."""
    return escape_hidden(warning.code) if warning.code else re.sub(r"\d+(?:\.\d+)?", "#", escape_hidden(warning.text))


def _summarize_warnings(rows: Sequence[ReportRow]) -> tuple[WarningSummary, ...]:
    counts = Counter(key for row in rows for key in {_get_key(warning): None for warning in row.warnings})
    texts: dict[str, dict[str, None]] = {}
    for warning in (warning for row in rows for warning in row.warnings if not warning.code):
        texts.setdefault(_get_key(warning), {})[escape_hidden(warning.text)] = None
    return tuple(_describe_warning(key, count, texts.get(key)) for key, count in counts.most_common())


def _describe_warning(key: str, count: int, texts: Iterable[str] | None) -> WarningSummary:
    """Return a kind of warning; ``texts`` are the sentences of one without a code."""
    title = key.replace("-", " ").capitalize() if texts is None else merge_texts(texts)
    kind = WARNING_KINDS.get(key)
    if kind is None:
        return WarningSummary(key, title, "", "", "warning", count)
    remedy = "" if kind.remedy == _NO_REMEDY else kind.remedy
    return WarningSummary(key, title, kind.condition, remedy, kind.severity, count)


def _encode_warnings(rows: Sequence[ReportRow], summary: RunSummary) -> dict[str, Any]:
    places = {kind.key: place for place, kind in enumerate(summary.warnings)}
    texts = _number(warning for row in rows for warning in row.warnings)
    return {
        "warningKinds": [asdict(kind) for kind in summary.warnings],
        "warningTexts": [[escape_hidden(warning.text), places[_get_key(warning)]] for warning in texts],
        "warnings": [[texts[warning] for warning in row.warnings] for row in rows],
    }


# ------------------------------------------------------------------------------------------------------ pictures


def _encode_pictures(pictures: Sequence[RowPictures]) -> Mapping[str, Any]:
    ratios = [row.ratio for row in pictures if row.ratio is not None]
    typical = statistics.median(ratios) if ratios else 1
    return {
        "tileRatio": round(min(max(typical, _MIN_RATIO), _MAX_RATIO), 3),
        "photos": _encode_texts([row.photo for row in pictures]),
        "thumbnails": [
            # 0: the thumbnail is the first picture itself.
            0 if row.pictures and row.thumbnail == row.pictures[0][1] else row.thumbnail
            for row in pictures
        ],
        "pictures": [[[kind, url] for kind, url in row.pictures] for row in pictures],
        "ratios": [None if row.ratio is None else round(row.ratio, 4) for row in pictures],
        "placed": [int(row.is_placed) for row in pictures],
    }
