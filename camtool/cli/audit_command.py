"""Command ``camtool audit``: does a model recognize classes by something that it should not use?"""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camtool.arguments.messages import format_count
from camtool.cli import terminal
from camtool.cli.options import map_options, model_options, photo_options, truth_options
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import Out, Overwrite, PrintOptions
from camtool.cli.progress.run_progress import FileProgress
from camtool.cli.progress.run_summary import Terminated, stop_at_sigterm
from camtool.errors import CamtoolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from camtool.evaluation.audit import Audit
    from camtool.evaluation.diff import CamDiff
    from camtool.runs.job_list import Plan

Passes = Annotated[int, typer.Option(metavar="N", min=1, help="Most forward passes.")]
Level = Annotated[float, typer.Option(metavar="Q", help="Largest q of a finding.")]
Controls = Annotated[int, typer.Option(metavar="N", min=1, help="Control regions in each image.")]


@takes_options
def audit_model(
    *,
    folder: Annotated[str, typer.Argument(metavar="FOLDER")],
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    truth: truth_options.Classes = None,
    metadata: Annotated[Path | None, model_options.build_file_option()] = None,
    group: Annotated[str | None, typer.Option(metavar="COLUMN")] = None,
    masks: Annotated[Path | None, typer.Option(metavar="FOLDER", exists=True)] = None,
    passes: Passes = 20_000,
    level: Level = 0.02,
    controls: Controls = 19,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", "--kinds", metavar="NAME", show_default="all but concept, which takes several times as long"
        ),
    ] = None,
    method: Annotated[str, typer.Option(metavar="NAME")] = "faithcam",
    recursive: photo_options.Recursive = False,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1)] = None,
    verdicts: Annotated[
        Path | None, model_options.build_file_option(show_default="verdicts.json in the folder for the results")
    ] = None,
    fail_on: Annotated[str | None, typer.Option(metavar="WHAT")] = None,
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
        kind: Kinds of cues: place, border, position, patch, property, color, concept.
        method: Method of the maps.
        limit: Audit N photos only, with --truth as many of each class as possible.
        verdicts: Your verdicts about findings of an earlier audit.
        fail_on: 'finding': exit code 1 if a finding has not the verdict 'object', or if nothing was tested; for CI.
    """
    from camtool.arguments.checks import check_choice
    from camtool.evaluation.audit import audit
    from camtool.evaluation.audit.state import replace_state

    if fail_on is not None:
        check_choice("--fail-on", fail_on, ["finding"], error=CamtoolError)
    plan = photo_options.plan_folder(folder, out, recursive=recursive or truth is not None, limit=None)
    # Tables and masks are read before the model, which may take long, and for all photos, as names may be ambiguous.
    table = metadata or _find_truth_table(truth)
    columns = None if table is None else _read_metadata(table, plan)
    regions = _find_masks(masks, plan)
    loaded = loading.load(naming.labels, preparing.parse(), is_quiet=printed.hides_progress)
    classes, loaded = truth_options.read_classes(truth, plan, loaded)
    rows = [*range(len(plan.jobs))][:limit] if classes is None else choose_evenly(classes, limit)
    photos = [Path(plan.jobs[row].source) for row in rows]
    bar = FileProgress(format_count(len(photos), "photo"), is_quiet=printed.hides_progress)
    with end_at_interrupt(), replace_state(out, is_asked=overwrite), bar:
        result = audit(
            loaded,
            photos,
            _select(classes, rows),
            columns and {name: [values[row] for row in rows] for name, values in columns.items()},
            group=group,
            passes=passes,
            level=level,
            controls=controls,
            method=method,
            kinds=map_options.split_names(kind) if kind else None,
            masks=_select(regions, rows),
            verdicts=verdicts,
            out=out,
            batch_size=batch_size,
            engine=engine,
            seed=seed,
        )
    lines = ["Pictures, and what was not tested"]
    write_result(result, out, printed, "there is no shortcut", lines, untested=result.untested, unread=result.unread)
    has_failed = fail_on is not None and (result.suspects or result.untested)
    raise typer.Exit(1 if has_failed or result.unread else 0)


def _find_truth_table(truth: str | None) -> Path | None:
    """Return the file of ``--truth``; None for a folder, and for a file that is missing, which is refused later."""
    if truth is None or truth == truth_options.IMAGE_FOLDER:
        return None
    return Path(truth) if Path(truth).is_file() else None


def _select(values: Sequence[Any] | None, rows: Sequence[int]) -> list[Any] | None:
    return None if values is None else [values[row] for row in rows]


@contextmanager
def end_at_interrupt() -> Iterator[None]:
    """Say that the same command goes on if the block is stopped.

    Raises:
        typer.Exit: At Ctrl-C with 130, at SIGTERM with 143.
    """
    try:
        with stop_at_sigterm():
            yield
    except KeyboardInterrupt as stop:
        terminal.print_notice("Stopped; the same command goes on from here.")
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None


def choose_evenly(classes: Sequence[int], limit: int | None) -> list[int]:
    """Return the places of the first photos of each class, as many of each as possible, in their order."""
    counts, ranked = Counter[int](), list[tuple[int, int]]()
    for place, target in enumerate(classes):
        ranked.append((counts[target], place))
        counts[target] += 1
    return sorted(place for _, place in sorted(ranked)[:limit])


def write_result(
    result: Audit | CamDiff,
    out: Path,
    printed: PrintOptions,
    unproven: str,
    lines: Sequence[str],
    *,
    untested: str = "",
    unread: int = 0,
) -> None:
    """Write a result to its folder, with the command that repeats it, and print it.

    Args:
        result: The result.
        out: The folder.
        printed: The options of printing.
        unproven: The clause that an absence of findings does not prove.
        lines: The lines below the findings; the last one introduces the page.
        untested: The reason why nothing was tested.
        unread: Photos that could not be read.
    """
    result = replace(result, command=shlex.join(["camtool", *sys.argv[1:]]))
    result.save(out)
    if printed.as_json:
        terminal.print_json(json.loads(result.to_json()))
        return
    if unread:
        listed = next(out.glob("*.md"))
        terminal.print_notice(f"{format_count(unread, 'photo')} could not be read, see {listed}.")
    if not printed.quiet:
        for note in result.notes:
            terminal.print_note(note)
        for finding in result.findings:
            verdict = getattr(finding, "verdict", None)
            given = f" (your verdict: {verdict})" if verdict else ""
            terminal.print_line(f"[bold]{terminal.escape(finding.sentence)}[/]{given}")
        if untested:
            terminal.print_line(f"Nothing was tested: {terminal.escape(untested)}")
        elif not result.findings:
            terminal.print_line(f"No finding at q ≤ {result.level:g}, which does not mean that {unproven}.")
        for line in lines[:-1]:
            terminal.print_line(line)
        terminal.print_line(f"{lines[-1]}: [bold]{terminal.escape(str(out / 'index.html'))}[/]")


def _find_masks(masks: Path | None, plan: Plan) -> list[Path | None] | None:
    """Return the file of each photo's mask, None for a photo without one; None without a folder of masks.

    Raises:
        CamtoolError: No photo has a mask, one has several, or a mask fits several photos.
    """
    from camtool.runs.true_labels import match_masks

    if masks is None:
        return None
    matched = match_masks(masks, plan, f"--masks {masks}")
    if not matched:
        raise CamtoolError(f"--masks {masks} fits no photo; name them as the photos are, e.g. {plan.jobs[0].stem}.png.")
    return [matched.get(job.source) for job in plan.jobs]


def _read_metadata(path: Path, plan: Plan) -> dict[str, list[str | None]]:
    """Return the columns of a table but for image, label and index, in the order of the photos; None without a row.

    Raises:
        CamtoolError: The file is no table with a column image, a name is that of several photos, two rows about a photo
            differ, or none is about one.
    """
    from camtool.runs.true_labels import find_image_column, match_photos

    place = f"--metadata {path}"
    rows = _read_rows(path, place)
    names = [name for name in rows[0] if name is not None] if rows else []
    at = find_image_column(names)
    if at is None:
        columns_found = f"the columns {', '.join(map(repr, names))}" if rows else "no rows"
        raise CamtoolError(f"{place} has {columns_found}; it needs a column 'image' with paths or names of photos.")
    by_photo = _join_rows(match_photos(plan, [row[names[at]] or "" for row in rows], place), rows, place)
    columns = [name for name in names if name not in (names[at], "label", "index")]
    return {column: [by_photo.get(job.source, {}).get(column) or None for job in plan.jobs] for column in columns}


def _join_rows(
    photos: Sequence[Path | str | None], rows: Sequence[dict[str, str]], place: str
) -> dict[Path | str, dict[str, str]]:
    """Return the row of each photo that has one.

    Raises:
        CamtoolError: Two rows about a photo differ, or none is about one.
    """
    by_photo: dict[Path | str, dict[str, str]] = {}
    for photo, row in zip(photos, rows, strict=True):
        if photo is not None and by_photo.setdefault(photo, row) != row:
            raise CamtoolError(f"{place} has two different rows about {photo}; leave one there.")
    if not by_photo:
        raise CamtoolError(f"{place}: no row is about a photo; give paths in the folder of the photos, or file names.")
    return by_photo


def _read_rows(path: Path, place: str) -> list[dict[str, str]]:
    """Return the rows of a table, whose cells are separated by commas, semicolons or tabs.

    Raises:
        CamtoolError: It is no text.
    """
    from camtool.arguments.regular_files import read_regular

    try:
        text = read_regular(path).decode("utf-8-sig")
        delimiter = max(",;\t", key=text.split("\n", 1)[0].count)
        return [*csv.DictReader(StringIO(text, newline=""), delimiter=delimiter)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise CamtoolError(f"{place} is no text; give a CSV file with a column image.") from error
