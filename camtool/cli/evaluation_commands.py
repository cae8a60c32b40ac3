"""Commands ``camtool evaluate``, ``audit`` and ``diff``: which maps to trust, and what models should not look at.

``evaluate`` compares methods as a leaderboard, ``audit`` tests what a model should not use, and ``diff`` shows what two
models use differently.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer import Argument, Option

from camtool.arguments.message_parts import format_count
from camtool.cli import exit_codes, terminal
from camtool.cli.options import model_options, photo_options, truth_options
from camtool.cli.options.dataclasses_to_typer import takes_options
from camtool.cli.options.result_options import Out, Overwrite, PrintOptions, split_names
from camtool.cli.progress.run_progress import FileProgress
from camtool.errors import CamtoolError

if TYPE_CHECKING:
    from camtool.evaluation.audit import Audit
    from camtool.evaluation.diff import CamDiff
    from camtool.evaluation.leaderboard import Evaluation
    from camtool.evaluation.repair import Repair
    from camtool.models import Loaded
    from camtool.runs.job_list import Plan

_WEIGHTS = (".safetensors", ".pt", ".pth")

_MODEL_HELP = "Name of a model, e.g. demo or demo-cheat; NAME=WEIGHTS; or with --model a file of weights."

_OLD_OR_NEW = Option(metavar="NAME", help=model_options.MODEL_HELP, rich_help_panel="Model", show_default="OLD or NEW")
_DEFAULT_KINDS = "all but concept, which takes several times as long"

_GOES_ON = "Stopped; the same command goes on from here."

# The exit code of an audit that could test nothing.
_UNTESTED = 3

_NO_SHORTCUT = "No finding at q ≤ {:g}, which does not mean that there is no shortcut."
_NOT_THE_SAME = "No finding at q ≤ {:g}, which does not mean that the models look at the same."


def _read_passes(value: int | str) -> int | str:
    """Return a number of forward passes, or ``"all"``; the default is a number already."""
    text = str(value)
    if text == "all":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is neither a number above 0 nor 'all'.")
    return int(text)


Passes = Annotated[Any, Option(metavar="N|all", parser=_read_passes, help="Most forward passes.")]
Level = Annotated[float, Option(metavar="Q", help="Largest q of a finding.")]
Controls = Annotated[int, Option(metavar="N", min=1, help="Control regions in each image.")]


@takes_options
def audit_model(
    *,
    folder: Annotated[str, Argument(metavar="FOLDER")],
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    truth: truth_options.Classes = None,
    metadata: Annotated[Path | None, model_options.build_file_option()] = None,
    group: Annotated[str | None, Option(metavar="COLUMN")] = None,
    masks: Annotated[Path | None, Option(metavar="FOLDER", exists=True)] = None,
    passes: Passes = 20_000,
    level: Level = 0.02,
    controls: Controls = 19,
    kind: Annotated[list[str] | None, Option("--kind", "--kinds", metavar="NAME", show_default=_DEFAULT_KINDS)] = None,
    method: Annotated[str, Option(metavar="NAME")] = "faithcam",
    recursive: photo_options.Recursive = False,
    limit: Annotated[int | None, Option(metavar="N", min=1)] = None,
    verdicts: Annotated[
        Path | None, model_options.build_file_option(show_default="verdicts.json in the folder for the results")
    ] = None,
    fail_on: Annotated[str | None, Option(metavar="WHAT")] = None,
    out: Out = Path("audit"),
    overwrite: Overwrite = False,
    engine: model_options.EngineOption = "eager",
    batch_size: model_options.BatchSize = 32,
    seed: photo_options.Seed = 0,
    printed: PrintOptions,
) -> None:
    """Audit a classifier on a folder of photos: does it recognize classes by something that it should not use?

    It goes on where it stopped if it is called again with the same folder for its results.
    The page in that folder shows the findings, and takes your verdicts: object, shortcut or unsure.

    Args:
        folder: Folder of photos.
        metadata: A CSV file with a column image and others, e.g. site; by default that of --truth.
        group: Column of what belongs together, e.g. patient; of DICOM files by default PatientID.
        masks: Masks of the objects, by the paths of the photos, not black in them.
        kind: Kinds of cues: border, place, mark, patch, position, property, color, concept.
        method: Method of the maps.
        limit: Audit N photos only, with --truth as many of each class as possible.
        verdicts: Your verdicts about findings of an earlier audit.
        fail_on: 'finding': exit code 1 if a finding is suspicious and has not the verdict 'object'; for CI.
    """
    from camtool.arguments.checks import check_choice
    from camtool.evaluation.audit import audit
    from camtool.evaluation.audit.state import replace_state

    if fail_on is not None:
        check_choice("--fail-on", fail_on, ["finding"], error=CamtoolError)
    plan = photo_options.plan_folder(folder, out, recursive=recursive or truth is not None, limit=None)
    # Tables and masks are read before the model, which may take long, and for all photos, as names may be ambiguous.
    columns = read_columns(metadata, truth, plan)
    regions = _find_masks(masks, plan)
    loaded = loading.load(naming.labels, preparing.parse(), is_quiet=printed.hides_progress)
    chosen = choose_photos(plan, loaded, truth, columns, limit)
    bar = FileProgress(format_count(len(chosen.photos), "photo"), is_quiet=printed.hides_progress)
    with exit_codes.exit_at_stop(_GOES_ON), replace_state(out, is_asked=overwrite), bar:
        result = audit(
            chosen.loaded,
            chosen.photos,
            chosen.labels,
            chosen.columns,
            group=group,
            passes=passes,
            level=level,
            controls=controls,
            method=method,
            kinds=split_names(kind) if kind else None,
            masks=regions and [regions[row] for row in chosen.rows],
            verdicts=verdicts,
            out=out,
            batch_size=batch_size,
            engine=engine,
            seed=seed,
        )
    lines = _list_findings(result, _NO_SHORTCUT)
    if result.untested:
        lines = [f"Nothing was tested: {terminal.escape(result.untested)}"]
    write_result(result, out, printed, lines, "Pictures, and what was not tested", unread=result.unread)
    if result.untested:
        raise typer.Exit(_UNTESTED)
    raise typer.Exit(int(result.unread > 0 or (fail_on is not None and bool(result.suspects))))


def read_columns(metadata: Path | None, truth: str | None, plan: Plan) -> dict[str, list[str | None]] | None:
    """Return the columns of a table, or else of that of ``--truth``; one that is missing is refused later."""
    from camtool.runs.photo_tables import read_metadata

    if metadata is None and truth not in (None, truth_options.IMAGE_FOLDER) and Path(str(truth)).is_file():
        metadata = Path(str(truth))
    return None if metadata is None else read_metadata(metadata, plan)


class ChosenPhotos(NamedTuple):
    """The photos that are audited.

    Attributes:
        loaded: The model, with the names of the classes.
        photos: The photos.
        labels: The class of each, or None.
        columns: The values of each column, or None.
        rows: The places of the photos in the plan.
    """

    loaded: Loaded
    photos: list[Path]
    labels: Any
    columns: dict[str, list[str | None]] | None
    rows: list[int]


def choose_photos(
    plan: Plan, loaded: Loaded, truth: str | None, columns: dict[str, list[str | None]] | None, limit: int | None
) -> ChosenPhotos:
    """Return at most a number of photos, of each class as many as possible."""
    classes, loaded = truth_options.list_true_classes(truth, plan, loaded)
    rows = _choose_evenly(classes or [0] * len(plan.jobs), limit)
    chosen = columns and {name: [values[row] for row in rows] for name, values in columns.items()}
    photos, labels = [Path(plan.jobs[row].source) for row in rows], classes and [classes[row] for row in rows]
    return ChosenPhotos(loaded, photos, labels, chosen, rows)


def _choose_evenly(classes: Sequence[int], limit: int | None) -> list[int]:
    """Return the rows of the first photos of each class, as many of each as possible, in their order."""
    numbers = defaultdict[int, Iterator[int]](count)
    ranked = sorted((next(numbers[target]), row) for row, target in enumerate(classes))
    return sorted(row for _, row in ranked[:limit])


def _find_masks(masks: Path | None, plan: Plan) -> list[Path | None] | None:
    """Return the file of each photo's mask, None for a photo without one; None without a folder of masks.

    Raises:
        CamtoolError: No photo has a mask, one has several, or a mask fits several photos.
    """
    from camtool.runs.photo_tables import match_masks

    if masks is None:
        return None
    matched = match_masks(masks, plan, f"--masks {masks}")
    if not matched:
        raise CamtoolError(f"--masks {masks} fits no photo; name them as the photos are, e.g. {plan.jobs[0].stem}.png.")
    return [matched.get(job.source) for job in plan.jobs]


@takes_options
def compare_models(
    *,
    old: Annotated[str, Argument(metavar="OLD", help=_MODEL_HELP)],
    new: Annotated[str, Argument(metavar="NEW")],
    folder: Annotated[str, Argument(metavar="FOLDER")],
    recursive: photo_options.Recursive = False,
    model: Annotated[str | None, _OLD_OR_NEW] = None,
    device: Annotated[model_options.Device, Option(rich_help_panel="Model")] = "auto",
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    truth: truth_options.Classes = None,
    fail_on: Annotated[list[str] | None, Option(metavar="EVENT")] = None,
    passes: Passes = 20_000,
    level: Level = 0.02,
    controls: Annotated[int, Option(metavar="N", min=1)] = 19,
    pictures: Annotated[int, Option(metavar="N", min=0)] = 60,
    method: Annotated[str, Option(metavar="NAME")] = "faithcam",
    limit: photo_options.Limit = None,
    out: Out = Path("diff"),
    overwrite: Overwrite = False,
    batch_size: model_options.BatchSize = 32,
    seed: photo_options.Seed = 0,
    printed: PrintOptions,
) -> None:
    """Compare what two models look at on a folder of photos: an old one, and a retrained, pruned or quantized one.

    [bold]camtool diff old.pt new.pt photos/ --model resnet18[/] compares two files of weights.

    It goes on where it stopped if it is called again with the same folder for its results.

    Args:
        new: The same for the new model.
        folder: Folder of photos.
        device: Device the models run on.
        fail_on: Exit with code 1 if this happened: 'moved' for a finding, 'answers' for an answer that changed.
        controls: Control regions in each photo.
        pictures: Photos on the page, the most changed ones.
        method: Method of the maps; for quantized models e.g. reciprocam.
    """
    from camtool.evaluation.audit.state import replace_state
    from camtool.evaluation.diff import diff

    events = _read_events(fail_on)
    # Which folders are there decides about the classes, so the first photos are taken after that.
    first = None if truth == truth_options.IMAGE_FOLDER else limit
    plan = photo_options.plan_folder(folder, out, recursive=recursive or truth is not None, limit=first)
    settings: Any = (model, device, naming, preparing)
    before = _load("OLD", old, *settings, is_quiet=printed.hides_progress)
    after = _load("NEW", new, *settings, is_quiet=printed.hides_progress)
    classes, before = truth_options.list_true_classes(truth, plan, before)
    if after.labels is None:
        after = replace(after, labels=before.labels)
    photos = [Path(job.source) for job in plan.jobs][:limit]
    bar = FileProgress(format_count(len(photos), "photo"), is_quiet=printed.hides_progress)
    with exit_codes.exit_at_stop(_GOES_ON), replace_state(out, is_asked=overwrite), bar:
        result = diff(
            before,
            after,
            photos,
            classes and classes[:limit],
            passes=passes,
            level=level,
            controls=controls,
            method=method,
            pictures=pictures,
            out=out,
            batch_size=batch_size,
            seed=seed,
        )
    facts = "; ".join(f"{name.lower()}: {text}" for name, text in result.list_facts())
    lines = [*_list_findings(result, _NOT_THE_SAME), facts]
    unread = len(photos) - len(result.images)
    write_result(result, out, printed, lines, "Both maps of the most changed photos", unread=unread)
    happened = {"moved": result.findings, "answers": result.other_answers}
    raise typer.Exit(int(unread > 0 or any(happened[event] for event in events)))


def _read_events(fail_on: list[str] | None) -> list[str]:
    """Return what ``--fail-on`` names.

    Raises:
        CamtoolError: It is none of the events.
    """
    from camtool.arguments.checks import check_choice

    events = split_names(fail_on or [])
    for event in events:
        check_choice("--fail-on", event, ("moved", "answers"), error=CamtoolError)
    return events


def _load(
    argument: str,
    value: str,
    model: str | None,
    device: model_options.Device,
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    *,
    is_quiet: bool,
) -> Loaded:
    """Return a model by its name, with a file of weights if one is given.

    Raises:
        CamtoolError: It is a file of weights without an architecture, or it cannot be loaded.
    """
    name, is_pair, file = value.partition("=") if value.endswith(_WEIGHTS) else (value, "", "")
    if is_pair or not value.endswith(_WEIGHTS):
        options = model_options.ModelOptions(name, file or None, device)
    elif model is not None:
        options = model_options.ModelOptions(model, value, device)
    else:
        raise CamtoolError(
            f"{argument} {value} is a file of weights; name its architecture: --model resnet18, or resnet18={value}."
        )
    loaded = options.load(naming.labels, preparing.parse(), is_quiet=is_quiet)
    return replace(loaded, name=Path(file or value).name if value.endswith(_WEIGHTS) else value)


# ------------------------------------------------------------------------------------------------- their results


def _list_findings(result: Audit | CamDiff, absence: str) -> list[str]:
    """Return the lines of the findings by section, or else the sentence that no finding proves nothing."""
    lines = list[str]()
    for title, findings in result.sections.items():
        lines += [f"[bold]{title}[/]"] if title else []
        for finding in findings:
            verdict = getattr(finding, "verdict", None)
            given = f" (your verdict: {verdict})" if verdict else ""
            lines.append(f"{'  ' if title else ''}{terminal.escape(finding.sentence)}{given}")
    return lines if result.findings else [absence.format(result.level)]


def write_result(
    result: Audit | CamDiff | Repair, out: Path, printed: PrintOptions, lines: list[str], page: str, *, unread: int = 0
) -> None:
    """Write a result to its folder, with the command that repeats it, and print it.

    Args:
        result: The result.
        out: The folder.
        printed: The options of printing.
        lines: The lines to print, with markup.
        page: What the page in the folder shows.
        unread: Photos that could not be read.
    """
    result = replace(result, command=shlex.join(["camtool", *sys.argv[1:]]))
    result.save(out)
    if unread:
        terminal.print_notice(f"{format_count(unread, 'photo')} could not be read, see {next(out.glob('*.md'))}.")
    if printed.as_json:
        terminal.print_json(json.loads(result.to_json()))
        return
    if printed.quiet:
        return
    for note in result.notes:
        terminal.print_note(note)
    for line in (*lines, f"{page}: [bold]{terminal.escape(str(out / 'index.html'))}[/]"):
        terminal.print_line(line)


# ------------------------------------------------------------------------------------------------- the leaderboard


@takes_options
def evaluate_methods(
    *,
    folder: Annotated[str, Argument(metavar="FOLDER")],
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    method: Annotated[list[str] | None, Option("--method", "--methods", metavar="NAME", show_default="fast")] = None,
    layer: Annotated[list[str] | None, Option("--layer", "--layers", metavar="NAME")] = None,
    metric: Annotated[list[str] | None, Option("--metric", "--metrics", metavar="NAME")] = None,
    truth: Annotated[str | None, Option(metavar="TRUTH")] = None,
    recursive: photo_options.Recursive = False,
    limit: photo_options.Limit = None,
    out: Out = Path("leaderboard"),
    overwrite: Overwrite = False,
    batch_size: model_options.BatchSize = 16,
    seed: photo_options.Seed = 0,
    printed: PrintOptions,
) -> None:
    """Compare methods on a model and photos: which maps can be trusted?

    It goes on where it stopped if it is called again with the same folder for its results.

    Args:
        folder: Folder of photos.
        method: Methods; 'fast' or 'all'. Repeat it, or use commas, for several.
        layer: Layers; each method is evaluated at each.
        metric: Metrics; 'all' for each.
        truth: Where the objects are: a folder of masks, a CSV file with the columns image, x0, y0, x1, y1; or
            'imagefolder' if the photos are in folders named by their class.
    """
    from camtool.evaluation.leaderboard import evaluate
    from camtool.evaluation.leaderboard.measurement import replace_checkpoint
    from camtool.evaluation.leaderboard.table import NAMES
    from camtool.figures.saving import load_canvas
    from camtool.rendering.written_files import check_inside, check_replaceable

    check_inside(out, Path("checkpoint.jsonl"))
    check_replaceable(out, NAMES)
    load_canvas()  # raises if matplotlib is missing, before hours of computing
    # Which folders and names are there decides about the truth, so the first photos are taken after that.
    has_folders = truth == truth_options.IMAGE_FOLDER
    plan = photo_options.plan_folder(folder, out, recursive=recursive or has_folders, limit=None)
    photos = [Path(job.source) for job in plan.jobs][:limit]
    loaded = loading.load(naming.labels, preparing.parse(), is_quiet=printed.hides_progress)
    classes, loaded = truth_options.list_true_classes(truth if has_folders else None, plan, loaded)
    annotations = None if truth is None or has_folders else _read_objects(truth, plan, photos)
    bar = FileProgress(format_count(len(photos), "photo"), is_quiet=printed.hides_progress)
    with replace_checkpoint(out, "checkpoint.jsonl", is_asked=overwrite), bar:
        table = evaluate(
            loaded,
            [*map(str, photos)],
            _parse_names(method, "fast"),
            split_names(layer) if layer else None,
            _parse_names(metric, None),
            annotations,
            target_class=classes and classes[:limit],
            batch_size=batch_size,
            seed=seed,
            checkpoint=out / "checkpoint.jsonl",
        )
    table.save(out)
    if printed.as_json:
        terminal.print_json(json.loads(table.to_json()))
    elif not printed.quiet:
        _print_table(table)
        terminal.print_line(f"Intervals, a figure and each photo's numbers: [bold]{terminal.escape(str(out))}[/]")


def _parse_names(texts: list[str] | None, default: str | None) -> Any:
    """Return names, or the one word that stands for several."""
    names = split_names(texts) if texts else [default]
    return names[0] if names in (["all"], ["fast"], [None]) else names


def _read_objects(truth: str, plan: Plan, photos: list[Path]) -> list[Any]:
    """Return where the objects of the photos are."""
    from camtool.evaluation.annotations import read_boxes, read_masks

    path = Path(truth)
    if path.is_dir():
        return [*read_masks(path, plan, photos)]
    if not path.is_file():
        raise CamtoolError(f"--truth {truth}: there is no such folder or file; give masks/, boxes.csv or imagefolder.")
    return [*read_boxes(path, plan, photos)]


def _print_table(table: Evaluation) -> None:
    from rich import box
    from rich.table import Table

    from camtool.trust.metrics import METRICS

    shown = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    shown.add_column("method", overflow="fold")
    for name in table.metrics:
        arrow = "↑" if METRICS[name].higher_is_better else "↓"
        shown.add_column(name.replace("-", "-\n") + f" {arrow}", justify="right", vertical="bottom")
    shown.add_column("ms per\nimage", justify="right")
    for record in table.to_records():
        numbers = [f"{record[name]:.2f}" for name in table.metrics]
        style = "dim" if record["method"] == "random" else None
        shown.add_row(terminal.escape(record["name"]), *numbers, f"{record['ms']:.1f}", style=style)
    terminal.out.print(shown)
    for name, reason in table.failed.items():
        terminal.err.print(f"[yellow]{name}[/] has no value everywhere: {terminal.escape(reason)}")
    if table.refused:
        names = ", ".join(map(terminal.escape, table.refused))
        terminal.err.print(f"[dim]Cannot explain this model: {names}.[/]")
    for note in table.notes:
        terminal.err.print(f"[yellow]Note:[/] {terminal.escape(note)}")
