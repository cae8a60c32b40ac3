"""The page of a report: its data, its HTML, and the way to it from the folder of a run.

It is one HTML file with its style, script and data inside, that loads nothing but pictures. The data are columns,
values and links of all rows, as JSON that is safe inside a script element.
"""

from __future__ import annotations

import json
import re
import statistics
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from camtool.arguments.message_parts import add_article, format_count, format_percent, merge_texts, suggest_names
from camtool.errors import CamtoolError, ColormapError, OverlayError
from camtool.rendering.colormaps import DEFAULT_COLORMAP, get_palette
from camtool.rendering.design.style_sheets import encode_logo, read_design
from camtool.rendering.image_writing import open_atomically
from camtool.rendering.overlay import blend_scale
from camtool.runs.file_names import make_distinct
from camtool.runs.report import result_reader
from camtool.runs.report.columns import Column, ReportContents, ReportRow, RowWarning, list_columns
from camtool.runs.report.pictures import PictureSettings, Progress, RowPictures, prepare_pictures
from camtool.runs.run_folder.description import flatten
from camtool.runs.run_folder.hashes import hash_text
from camtool.runs.run_folder.photo_records import FAILURES
from camtool.runs.stored_files import MANIFEST
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
    kinds = _summarize_warnings(contents.rows)
    doubts = {kind.key for kind in kinds if kind.severity == "warning"}
    return RunSummary(
        photos=len({row.image for row in contents.rows}),
        explanations=len(contents.rows),
        failures=len(contents.failures),
        warned=sum(not doubts.isdisjoint(map(_get_key, row.warnings)) for row in contents.rows),
        right=sum(verdicts.values()),
        judged=len(verdicts),
        methods=tuple(dict.fromkeys(escape_hidden(row.method) for row in contents.rows)),
        layers=tuple(dict.fromkeys(escape_hidden(row.layer) for row in contents.rows if row.layer)),
        warnings=kinds,
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
        "failures": [{name: escape_hidden(text) for name, text in asdict(item).items()} for item in contents.failures],
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
    return {value: index for index, value in enumerate(dict.fromkeys(values))}


def _identify(rows: Sequence[ReportRow]) -> list[str]:
    """Return a short name of each row for links, the same in every report of the run."""
    texts = ("\0".join((row.image, row.method, row.layer, row.label, str(row.index))) for row in rows)
    return make_distinct([hash_text(text)[:10] for text in texts])


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
    kinds = {kind.key: index for index, kind in enumerate(summary.warnings)}
    texts = _number(warning for row in rows for warning in row.warnings)
    return {
        "warningKinds": [asdict(kind) for kind in summary.warnings],
        "warningTexts": [[escape_hidden(warning.text), kinds[_get_key(warning)]] for warning in texts],
        "warnings": [[texts[warning] for warning in row.warnings] for row in rows],
    }


# ------------------------------------------------------------------------------------------------------ pictures


def _encode_pictures(pictures: Sequence[RowPictures]) -> Mapping[str, Any]:
    ratios = [row.ratio for row in pictures if row.ratio is not None]
    typical = statistics.median(ratios or [1])
    return {
        "tileRatio": round(min(max(typical, _MIN_RATIO), _MAX_RATIO), 3),
        "photos": _encode_texts([row.photo for row in pictures]),
        "thumbnails": [_encode_thumbnail(row) for row in pictures],
        "pictures": [[*map(list, row.pictures)] for row in pictures],
        "ratios": [None if row.ratio is None else round(row.ratio, 4) for row in pictures],
        "placed": [int(row.is_placed) for row in pictures],
    }


def _encode_thumbnail(row: RowPictures) -> str | int | None:
    """Return the link to the thumbnail; 0 if it is the first picture itself."""
    return 0 if row.pictures and row.thumbnail == row.pictures[0][1] else row.thumbnail


# Content of the page's meta element ``generator``, by which a report is known.
GENERATOR = "camtool report"

# In this order the parts become one script.
_SCRIPTS = ("dom.js", "theme.js", "data.js", "filters.js", "sidebar.js", "grid.js", "viewer.js", "main.js")

# Characters of a value of run.json that the page shows; a list of labels may hold thousands.
_MAX_TEXT = 300


def render_page(payload: Mapping[str, Any], summary: RunSummary, run: Mapping[str, Any], notices: Sequence[str]) -> str:
    """Return the page as HTML.

    Args:
        payload: The data, see :func:`camtool.runs.report.page.build_payload`.
        summary: The numbers at the top.
        run: What made the results, as in ``run.json``.
        notices: Sentences about what the page leaves out.
    """
    return render_template(
        "index.html",
        _SCRIPTS,
        read_template("report.css") + color_legend(run),
        payload,
        generator=GENERATOR,
        title=_find_title(run),
        summary=summary,
        details=describe_run(run),
        notices=[escape_hidden(notice) for notice in notices],
    )


def render_template(template: str, scripts: Sequence[str], style: str, data: Any, **values: Any) -> str:
    """Return a page as HTML.

    All text is escaped: by Jinja in the markup, as JSON in the data. The script makes no markup out of text. A content
    security policy allows this script and this style alone.

    Args:
        template: The name of its template.
        scripts: The names of the parts that become one script, in this order.
        style: The style of its own, beside that of all pages.
        data: What the script reads, as JSON.
        **values: What the template reads.
    """
    # The parts of the script are in one function, so that their names stay inside.
    parts = "\n".join(map(read_template, scripts))
    script = f"(() => {{\n'use strict';\n{parts}}})();\n"
    style = read_design("tokens.css", "base.css", "parts.css") + style
    marked = {"script": Markup(script), "style": Markup(style), "data": Markup(encode_json(data))}
    policy = _build_policy(script, style)
    return _get_environment().get_template(template).render(policy=policy, logo=encode_logo(), **marked, **values)


def color_legend(run: Mapping[str, Any]) -> str:
    """Return the style of the legend's color bar: its overlays on gray, or its heatmaps alone."""
    command = run.get("command")
    given = command if isinstance(command, Mapping) else {}
    try:
        colormap = str(given.get("colormap") or DEFAULT_COLORMAP)
        is_blended = "overlay" in str(given.get("save", "overlay"))
        colors = blend_scale(16, given.get("alpha"), colormap)[0] if is_blended else get_palette(colormap)[::17]
    except (ColormapError, OverlayError):
        colors = blend_scale(16)[0]
    stops = ", ".join(f"rgb({red} {green} {blue})" for red, green, blue in colors.tolist())
    return f".legend .colors {{ background: linear-gradient(90deg, {stops}); }}\n"


def encode_json(value: Any) -> str:
    """Return JSON that ends no script element and no JavaScript line, whatever the texts hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII, so U+2028 and surrogates are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def describe_run(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what made the results as pairs of a name, such as ``model.name``, and a text."""
    texts = [(name, escape_hidden(_to_text(value))) for name, value in flatten(run) if value not in (None, "")]
    return [(escape_hidden(name), text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} …") for name, text in texts]


def _to_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in value)
    return value if isinstance(value, str) else json.dumps(value)


def _find_title(run: Mapping[str, Any]) -> str:
    """Return the name of the model; a general title if it is unknown."""
    model = run.get("model")
    name = model.get("name") if isinstance(model, Mapping) else model
    return escape_hidden(str(name)) if name else "Explanations"


def _get_environment() -> Environment:
    loader = FunctionLoader(read_template)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(count=format_count, percent=format_percent)
    return environment


def read_template(name: str) -> str:
    """Return the text of a file of the page: a template, a style or a part of the script."""
    return (files("camtool.runs.report") / "templates" / name).read_text(encoding="utf-8")


def _build_policy(script: str, style: str) -> str:
    """Return a content security policy: no code but ours, no connections, pictures from disk or the same server."""
    allowed = {
        "default-src": "'none'",
        # "file:" for browsers in which 'self' is not the disk; "data:" for the icon of the tab.
        "img-src": "'self' file: data:",
        "script-src": hash_source(script),
        "style-src": hash_source(style),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def hash_source(text: str) -> str:
    """Return the source of a content security policy that allows this script or style."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


# Name of the page in the folder of the run.
PAGE = "index.html"

# The meta element that names us stands in the first lines.
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class WrittenReport:
    """A report that was written.

    Attributes:
        path: The page.
        explanations: The number of explanations on it.
        failures: The number of failed photos on it.
        notices: Sentences about what it leaves out.
    """

    path: Path
    explanations: int
    failures: int
    notices: tuple[str, ...]


def write_report(
    folder: Path | str,
    *,
    photos: Path | None = None,
    copy_photos: bool = False,
    is_quick: bool = False,
    max_rows: int = result_reader.MAX_ROWS,
    progress: Progress = lambda done, total: None,
) -> WrittenReport:
    """Write ``index.html`` in the folder of a run, and small pictures in the subfolder ``index_files``.

    The page works from disk and without a network. It links to the pictures of the run, and to the photos where they
    are.

    Args:
        folder: The output folder of a run, the folder with the Parquet shards of a cluster run, or one shard.
        photos: The folder that the photos have been moved to; by default they are looked up where the run found them.
        copy_photos: Put reduced copies of the photos beside the page, so that the folder can be given to others.
        is_quick: Make no new thumbnails and copies of photos. Large pictures then take longer to show.
        max_rows: The number of explanations on the page at most.
        progress: Called with the number of finished steps and of all steps.

    Returns:
        What was written.

    Raises:
        CamtoolError: The folder holds no results, or a page that is not a report.
        OSError: A file cannot be read or written.
    """
    source = Path(folder)
    target = source.parent if source.is_file() else source
    page = target / PAGE
    contents = _read_contents(source, max_rows)
    check_page(page, GENERATOR)
    named = contents.run.get("directory")
    directory = Path(named) if isinstance(named, str) else None
    settings = PictureSettings(target, directory, photos, copy_photos, is_quick)
    pictures = prepare_pictures(contents.rows, settings, progress)
    summary = summarize(contents)
    html = render_page(build_payload(contents, pictures, summary), summary, contents.run, contents.notices)
    with open_atomically(page) as stream:
        stream.write(html.encode())
    return WrittenReport(page, len(contents.rows), len(contents.failures), tuple(contents.notices))


def _read_contents(source: Path, max_rows: int) -> ReportContents:
    """Read a run's folder, or shards.

    Raises:
        CamtoolError: There is neither.
    """
    if not source.exists():
        folders = [path.name for path in source.parent.iterdir() if path.is_dir()] if source.parent.is_dir() else []
        near = suggest_names(source.name, folders)
        raise CamtoolError(f"run {str(source)!r}: no such folder.{near}")
    if any((source / name).is_file() for name in (MANIFEST, FAILURES)):
        return result_reader.read_run_folder(source, max_rows=max_rows)
    if shards := result_reader.list_shards(source):
        run = result_reader.read_run_description(source.parent if source.is_file() else source)
        return replace(result_reader.read_shards(shards, max_rows=max_rows), run=run)
    raise CamtoolError(
        f"run {str(source)!r} holds neither {MANIFEST} nor Parquet files; give the output folder of camtool run."
    )


def check_page(page: Path, generator: str) -> None:
    """Check that there is no page, or one that the same command wrote.

    Args:
        page: The page.
        generator: The command, as in the page's meta element.

    Raises:
        CamtoolError: There is something else.
    """
    name = generator.rpartition(" ")[2]
    if page.is_symlink() or (page.exists() and not _is_written_by(page, generator)):
        raise CamtoolError(f"{str(page)!r} exists and is not {add_article(name)}; move it, and run {generator}.")


def _is_written_by(page: Path, generator: str) -> bool:
    if not page.is_file():
        return False
    with page.open("rb") as stream:
        return f'<meta name="generator" content="{generator}">'.encode() in stream.read(_HEAD_BYTES)
