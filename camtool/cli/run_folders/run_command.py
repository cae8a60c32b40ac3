"""Commands ``camtool run`` and ``camtool cluster``: explain photos and write the results to a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from camtool.arguments.messages import format_count
from camtool.cli import terminal
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.photo_options import read_true_classes
from camtool.cli.progress import run_summary
from camtool.cli.run_folders import run_options, stored_run_commands
from camtool.runs import process_settings

if TYPE_CHECKING:
    from camtool.runs.job_list import Plan


@takes_options
def run(context: typer.Context, options: run_options.RunOptions, local: run_options.LocalOptions) -> None:
    """Explain photos: write an overlay of each, and a line in explanations.jsonl.

    The same command again continues a run that was stopped.
    """
    process_settings.tune_process()  # before torch is loaded
    request = run_options.read_request(context, options, local)
    raise typer.Exit(_run_here(context, request, local))


@takes_options
def run_on_cluster(
    context: typer.Context, options: run_options.RunOptions, cluster: run_options.ClusterOptions
) -> None:
    """Explain photos on a Ray cluster, or on the cores of this machine, and write Parquet. See docs/scale.md.

    PATH may also be a URI, or a .tar or .parquet file. The same command again continues a run that was stopped.
    """
    process_settings.tune_process()  # before torch is loaded
    from camtool.cli.run_folders import cluster_command

    request = run_options.read_request(context, options)
    raise typer.Exit(cluster_command.run_on_cluster(context, request, cluster))


def _run_here(context: typer.Context, request: run_options.RunRequest, local: run_options.LocalOptions) -> int:
    """Explain the photos on this machine, print the progress and the summary, and return the exit code.

    Raises:
        CamtoolError: The request cannot be served.
    """
    from camtool.explaining.explainer import Explainer
    from camtool.runs.run_folder import description, sheets
    from camtool.runs.run_folder.replay import Replayer
    from camtool.runs.run_folder.run_folder import RunStart
    from camtool.runs.true_labels import match_masks

    options, out = request.options, request.output.folder
    if local.sheet:
        sheets.check_sheets(out)
    is_quiet = options.printed.hides_progress
    # Photos are listed before the model is loaded, which may take minutes.
    listed = _list_photos(request, local)
    folders = [region for region in request.output.regions.values() if isinstance(region, Path)]
    masks = {folder: match_masks(folder, listed, f"--region {folder}") for folder in folders}
    if not is_quiet:
        _tell_series(listed, is_joined=local.volume)
    loaded = options.model.load(options.truth.labels, request.preprocessing, is_quiet=is_quiet)
    true_classes, loaded = read_true_classes(options.truth.labels_csv, listed, loaded)
    explainer = Explainer(loaded, request.methods, **request.settings)
    planned, notes = run_options.select_photos(options, listed, true_classes), true_classes.describe_gaps(listed)
    if options.pictures.caption or local.sheet:
        notes += run_options.describe_undrawable_labels(loaded)
    output = replace(request.output, true_classes=true_classes.by_photo, masks=masks)
    described = description.describe_run(loaded, request.methods, request.settings, request.command)
    if isinstance(context.obj, Replayer):  # called by `camtool replay`
        context.obj.replay(explainer, request.targets, output, options.batch_size, described)
        return 0
    if not options.output.overwrite:
        run_summary.print_machine_changes(description.list_machine_changes(out, described))
    start = RunStart(
        described,
        overwrite=options.output.overwrite,
        retry_failed=local.retry_failed,
        listed=frozenset(str(job.source) for job in listed.jobs),
    )
    report = run_summary.RunReport(
        planned, output, options.printed, verbose=local.verbose, has_sheet=local.sheet, notes=notes
    )
    code = report.follow_run(explainer, request.targets, options.batch_size, local.workers, start)
    if local.page:
        stored_run_commands.write_after_run(out, is_stopped=code not in (0, 1), quiet=is_quiet)
    return code


def _list_photos(request: run_options.RunRequest, local: run_options.LocalOptions) -> Plan:
    from camtool.runs.job_list import plan_run

    photos = request.options.photos
    with terminal.show_activity("Listing photos", is_quiet=request.options.printed.hides_progress):
        is_deep = photos.recursive or request.options.truth.has_folders
        return plan_run(photos.paths, recursive=is_deep, out=request.output.folder, as_volumes=local.volume)


def _tell_series(plan: Plan, *, is_joined: bool) -> None:
    """Say what becomes of slices of a DICOM series, as a folder of them may be photos or one volume."""
    from camtool.runs.job_list import find_series

    folders = [job.source for job in plan.jobs if isinstance(job.source, Path) and job.source.is_dir()]
    if is_joined and folders:
        count = format_count(len(folders), "folder")
        terminal.print_note(f"{count} of DICOM slices, each read as one volume, sorted by position.")
    series = None if is_joined else find_series(job.source for job in plan.jobs)
    if series is not None:
        terminal.print_note(
            f"{series[0]} holds slices of a DICOM series. Each of the {series[1]} files is explained as a photo of its "
            "own; --volume explains a folder as one volume."
        )
