"""Commands ``camtool run`` and ``camtool cluster``: explain photos and write the results to a folder."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from camtool.arguments.label_files import read_labels
from camtool.arguments.message_parts import format_count
from camtool.cli import exit_codes, report_and_replay_commands, terminal
from camtool.cli.options import run_options
from camtool.cli.options.dataclasses_to_typer import takes_options
from camtool.cli.options.result_options import PrintOptions
from camtool.cli.options.run_options import ClusterOptions, LocalOptions, RunOptions, RunRequest
from camtool.cli.options.truth_options import read_true_classes
from camtool.cli.progress import run_summary
from camtool.cli.progress.run_progress import build_countdown
from camtool.cli.terminal import escape, print_line
from camtool.runs import process_settings

if TYPE_CHECKING:
    from camtool.runs.cluster.cluster_plan import ClusterInputs
    from camtool.runs.cluster.cluster_run import ClusterRun
    from camtool.runs.cluster.explain_batch import ShardOutcome
    from camtool.runs.job_list import Plan

# Reasons of failures that are printed; all are in the rows.
_MAX_REASONS = 20


@takes_options
def run(context: typer.Context, options: RunOptions, local: LocalOptions) -> None:
    """Explain photos: write an overlay of each, and a line in explanations.jsonl.

    The same command again continues a run that was stopped.
    """
    process_settings.tune_process()  # before torch is loaded
    request = run_options.read_request(context, options, local)
    raise typer.Exit(_run_here(context, request, local))


@takes_options
def run_on_cluster(context: typer.Context, options: RunOptions, cluster: ClusterOptions) -> None:
    """Explain photos on a Ray cluster, or on the cores of this machine, and write Parquet. See docs/scale.md.

    PATH may also be a URI, or a .tar or .parquet file. The same command again continues a run that was stopped.
    """
    process_settings.tune_process()  # before torch is loaded
    request = run_options.read_request(context, options)
    raise typer.Exit(_run_there(context, request, cluster))


def _run_here(context: typer.Context, request: RunRequest, local: LocalOptions) -> int:
    """Explain the photos on this machine, print the progress and the summary, and return the exit code.

    Raises:
        CamtoolError: The request cannot be served.
    """
    from camtool.explaining.explainer import Explainer
    from camtool.runs.photo_tables import match_masks
    from camtool.runs.run_folder import description, sheets
    from camtool.runs.run_folder.replay import Replayer
    from camtool.runs.run_folder.resumable_folder import RunStart

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
        report_and_replay_commands.write_after_run(out, is_stopped=code not in (0, 1), quiet=is_quiet)
    return code


def _list_photos(request: RunRequest, local: LocalOptions) -> Plan:
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


# ------------------------------------------------------------------------------------------------------- on a cluster


def _run_there(context: typer.Context, request: RunRequest, cluster: ClusterOptions) -> int:
    """Plan a run on a cluster, follow it, print the summary, and return the exit code.

    Raises:
        CamtoolError: The request cannot be served.
    """
    # Ray would report to its makers how it is used; workers of a cluster that runs already follow its own setting.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from camtool.runs.cluster.cluster_plan import divide_inputs
    from camtool.runs.cluster.cluster_run import ClusterRun, Resources
    from camtool.runs.cluster.remote_files import OutputFolder
    from camtool.runs.run_folder.description import describe_command

    options, is_quiet = request.options, request.options.printed.hides_progress
    folder = OutputFolder.find(to_uri(request.output.folder))
    if not options.output.overwrite:
        folder.check_unchanged(describe_command(request.command))
    listed = _list_inputs(request, cluster.image_column)
    # On this machine, which may lack the device of the workers.
    model = replace(options.model, device="auto")
    loaded = model.load(options.truth.labels, request.preprocessing, is_quiet=is_quiet)
    true_classes, _ = read_true_classes(options.truth.labels_csv, listed.files, loaded)
    inputs = replace(listed, files=run_options.select_photos(options, listed.files, true_classes))
    notes = true_classes.describe_gaps(listed.files)
    if options.pictures.caption:
        notes += run_options.describe_undrawable_labels(loaded)
    run = ClusterRun(
        divide_inputs(inputs, cluster.shard_size, true_classes.by_photo),
        folder,
        _build_settings(request),
        command=request.command,
        resources=Resources(cluster.gpus_per_worker, cluster.cpus_per_worker, cluster.cluster_workers),
        address=cluster.address,
        pictures=request.output if run_options.is_given(context, "save") else None,
        only_wrong=options.truth.only_wrong,
        overwrite=options.output.overwrite,
        loaded=loaded,
    )
    return _Follower(run, options.printed, notes, has_classes=true_classes.path is not None).follow()


def _list_inputs(request: RunRequest, image_column: str | None) -> ClusterInputs:
    """List the photos; check that options which need their names get them."""
    from camtool.runs.cluster.cluster_plan import list_inputs

    photos, truth = request.options.photos, request.options.truth
    with terminal.show_activity("Listing photos", is_quiet=request.options.printed.hides_progress):
        is_deep = photos.recursive or truth.has_folders
        listed = list_inputs(photos.paths, recursive=is_deep, out=request.output.folder, image_column=image_column)
    for name, value in (("truth", truth.labels_csv), ("limit", photos.limit), ("shuffle", photos.shuffle)):
        if value:
            listed.check_files_only(f"--{name}")
    return listed


def _build_settings(request: RunRequest) -> dict[str, Any]:
    """Return the settings of the batch class on the workers. They run in other folders, so paths are absolute."""
    model, labels = request.options.model, request.options.truth.labels
    return {
        **request.settings,
        "method": request.methods,
        "target": request.targets,
        "model": model.model,
        "weights": None if model.weights is None else str(Path(model.weights).absolute()),
        "labels": None if labels is None else read_labels(labels),
        "device": model.device,
        "max_side": request.output.max_side,
        "preprocessing": request.preprocessing,
    }


def to_uri(path: Path) -> str:
    """Return the folder that the user gave for the results, as a local path or as a URI.

    ``pathlib`` turns the slashes of ``s3://bucket`` into one.
    """
    text = path.as_posix()
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", text)
    if scheme is None:
        return str(path)
    return f"{scheme[1]}://{'/' if scheme[1] == 'file' else ''}{text[scheme.end() :]}"


# Numbers of a shard's outcome that are summed up.
_COUNTED = ("photos", "rows", "failures", "right", "wrong")


class _Follower:
    """Progress and summary of a run on a cluster."""

    def __init__(self, run: ClusterRun, printed: PrintOptions, notes: list[str], *, has_classes: bool) -> None:
        self._run, self._printed, self._notes, self._has_classes = run, printed, notes, has_classes
        # Sums of the outcomes of this start, and of those of earlier ones.
        self._now, self._before = Counter[str](), Counter[str]()
        self._reasons: list[str] = []
        self._unreported = {shard.name for shard in run.list_unfinished()}
        self._earlier = [shard.name for shard in run.plan.shards if shard.name not in self._unreported]
        self._todo, self._last_line = len(self._unreported), time.monotonic()

    def follow(self) -> int:
        """Run, show the progress, print the summary, and return the exit code."""
        # Before the work, as one of them may be damaged.
        for outcome in self._run.read_outcomes(self._earlier):
            self._count(outcome, self._before)
        started = time.perf_counter()
        outcomes, bar = self._run.start(), build_countdown(is_quiet=self._printed.hides_progress)
        with exit_codes.catch_stop() as stop, closing(outcomes), bar as progress:
            task = progress.add_task("Starting Ray", total=self._todo)
            for outcome in outcomes:
                self._add(outcome)
                progress.update(task, advance=1, description=f"Explaining, {self._now['photos']} photos done; shards")
        if stop.code:
            self._add_unreported()
        self._print_summary(time.perf_counter() - started, interrupted=stop.code > 0)
        return stop.code or (1 if self._now["failures"] + self._before["failures"] else 0)

    def _add_unreported(self) -> None:
        """Count shards that workers wrote and the cluster had not reported when the run was stopped."""
        if self._run.overwrite and not self._now["shards"]:
            return  # shards of the earlier run may still be there
        written = self._unreported & self._run.folder.list_files()
        for outcome in self._run.read_outcomes(sorted(written)):
            self._add(outcome)

    def _add(self, outcome: ShardOutcome) -> None:
        self._unreported.discard(outcome.name)
        self._count(outcome, self._now)
        is_silent = self._printed.hides_progress or terminal.err.is_terminal
        if not is_silent and time.monotonic() - self._last_line >= terminal.SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            done, photos = self._now["shards"], self._now["photos"]
            terminal.err.print(f"{done} of {format_count(self._todo, 'shard')}, {photos} photos")

    def _count(self, outcome: ShardOutcome, counts: Counter[str]) -> None:
        counts.update({name: getattr(outcome, name) for name in _COUNTED}, shards=1)
        self._reasons += outcome.reasons[: _MAX_REASONS - len(self._reasons)]

    def _print_summary(self, seconds: float, *, interrupted: bool) -> None:
        if self._printed.as_json:
            terminal.print_json(self._build_json_summary(seconds, interrupted=interrupted))
            return
        if not self._printed.quiet:
            self._print_results(seconds, interrupted=interrupted)
        run_summary.print_failures(self._now["failures"] + self._before["failures"], self._reasons)
        if self._before["failures"] and not self._printed.quiet:
            terminal.err.print("Those of earlier starts were not tried again; remove a shard to compute it again.")

    def _print_results(self, seconds: float, *, interrupted: bool) -> None:
        if interrupted:
            run_summary.print_stopped(self._now["shards"], self._todo, "shard")
        self._print_explained(seconds)
        if self._has_classes:
            counts = self._now + self._before
            run_summary.print_accuracy(counts["right"], counts["wrong"], only_wrong=self._run.only_wrong)
        run_summary.print_notes(self._notes)
        for skipped in self._run.plan.skipped[:_MAX_REASONS]:
            print_line(f"[yellow]Skipped:[/] {escape(str(skipped.path))} is {escape(skipped.reason)}")

    def _print_explained(self, seconds: float) -> None:
        earlier, photos = len(self._earlier), self._now["photos"]
        rate = f" ([bold]{photos / seconds:.1f}[/] a second)" if photos else ""
        explained = format_count(photos - self._now["failures"], "photo")
        print_line(f"[bold green]{explained} explained[/] in {seconds:.1f} s{rate}.")
        of_earlier = f" ({earlier} from an earlier start)" if earlier else ""
        shards = format_count(earlier + self._now["shards"], "shard")
        print_line(f"{shards} of Parquet{of_earlier} in [bold]{escape(self._run.folder.name)}[/]")

    def _build_json_summary(self, seconds: float, *, interrupted: bool) -> dict[str, Any]:
        counts = self._now + self._before
        return {
            "out": self._run.folder.name,
            **{name: self._now[name] for name in ("photos", "rows", "failures")},
            "failures_of_earlier_starts": self._before["failures"],
            "reasons": self._reasons,
            **{name: counts[name] if self._has_classes else None for name in ("right", "wrong")},
            "notes": self._notes,
            "shards": self._now["shards"],
            "shards_finished_earlier": len(self._earlier),
            "shards_in_all": len(self._run.plan.shards),
            "seconds": round(seconds, 2),
            "interrupted": interrupted,
        }
