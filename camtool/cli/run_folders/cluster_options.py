"""Options of ``camtool run --cluster``, and the run on a cluster with its progress and summary."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from camtool.arguments.messages import format_count
from camtool.cli import shared_options, terminal
from camtool.cli.progress.run_summary import Terminated, stop_at_sigterm
from camtool.cli.terminal import escape, print_line
from camtool.errors import CamtoolError

if TYPE_CHECKING:
    # Ray would report to its makers how it is used; workers of a cluster that runs already follow its own setting.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from camtool.runs.cluster.cluster_run import ClusterRun
    from camtool.runs.cluster.shard_worker import ShardOutcome
    from camtool.runs.save_kinds import OutputSettings

__all__ = [
    "Address",
    "Cluster",
    "ClusterOption",
    "ClusterWorkers",
    "CpusPerWorker",
    "GpusPerWorker",
    "ImageColumn",
    "ShardSize",
    "check_options",
    "run_on_cluster",
    "to_uri",
]

_PANEL = "Cluster"


class Cluster(str, Enum):
    """Engine that distributes the work."""

    ray = "ray"


ClusterOption = Annotated[
    Cluster | None,
    typer.Option(
        "--cluster",
        help="Run on a cluster and write Parquet. PATH may be a URI, .tar or .parquet file. See docs/scale.md.",
        rich_help_panel=_PANEL,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of the cluster.",
        show_default="RAY_ADDRESS, or this machine",
        rich_help_panel=_PANEL,
    ),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        min=0,
        help="GPUs of a worker; 0.5 for two workers on each.",
        show_default="1 if there are any",
        rich_help_panel=_PANEL,
    ),
]
CpusPerWorker = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Cores of a worker.", show_default="1", rich_help_panel=_PANEL),
]
ClusterWorkers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Workers at most, e.g. of a cluster that grows.",
        show_default="as many as fit now",
        rich_help_panel=_PANEL,
    ),
]
ShardSize = Annotated[
    int, typer.Option(metavar="N", min=1, help="Photos in a shard, one Parquet file.", rich_help_panel=_PANEL)
]
ImageColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column of Parquet files with the bytes of images.",
        show_default="found by type",
        rich_help_panel=_PANEL,
    ),
]

CLUSTER_ONLY = ("address", "gpus_per_worker", "cpus_per_worker", "cluster_workers", "shard_size", "image_column")

_RECORDED = frozenset(
    {"model", "weights", "batch_size", "engine", "method", "target", "layer", "merge", "placement", "option", "save"}
    | {"format", "alpha", "colormap", "enlarge", "max_side", "recursive", "shard_size", "image_column"}
)
"""Options that ``run.json`` records: those that change rows or pictures."""

_SUPPORTED = _RECORDED | {"paths", "labels", "device", "out", "quiet", "as_json", "cluster", "config", *CLUSTER_ONLY}
"""Options of a run that have the same meaning on a cluster. All others are refused, so that none is ignored."""

_MAX_REASONS = 20
"""Reasons of failures that are printed; all are in the rows."""

_SECONDS_BETWEEN_LINES = 10
"""Time between two lines of progress where there is no terminal."""


def check_options(context: typer.Context) -> None:
    """Check that the options fit the kind of run: on a cluster or here.

    Raises:
        CamtoolError: An option does not.
    """
    given = [name for name in context.params if _is_given(context, name)]
    is_cluster = context.params.get("cluster") is not None
    wrong = [name for name in given if (name not in _SUPPORTED if is_cluster else name in CLUSTER_ONLY)]
    if wrong:
        named = "--json" if wrong[0] == "as_json" else f"--{wrong[0].replace('_', '-')}"
        raise CamtoolError(
            f"{named} has no effect on a run with --cluster; leave it out."
            if is_cluster
            else f"{named} needs --cluster ray."
        )
    if is_cluster and _is_given(context, "save") and context.params["save"] != "overlay":
        raise CamtoolError(
            f"--save {context.params['save']}: a run with --cluster writes Parquet, and pictures with --save overlay."
        )


def _is_given(context: typer.Context, name: str) -> bool:
    """Return True if the user set an option, on the command line, in the environment or in a file of options."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def to_uri(path: Path) -> str:
    """Return the folder that the user gave for the results, as a local path or as a URI.

    ``pathlib`` turns the slashes of ``s3://bucket`` into one.
    """
    text = path.as_posix()
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", text)
    if scheme is None:
        return str(path)
    return f"{scheme[1]}://{'/' if scheme[1] == 'file' else ''}{text[scheme.end() :]}"


def run_on_cluster(
    context: typer.Context, settings: Mapping[str, Any], output: OutputSettings, *, quiet: bool, as_json: bool
) -> int:
    """Plan a run on a cluster, follow it, print the summary, and return the exit code.

    Args:
        context: The options of the command.
        settings: The settings of :class:`camtool.runs.cluster.explain_batch.ExplainBatch` but those of the model.
        output: How overlays are drawn, if they are asked for.
        quiet: Print errors only.
        as_json: Print the summary as JSON, and nothing else.

    Raises:
        CamtoolError: The request cannot be served.
    """
    # Ray would report to its makers how it is used; workers of a cluster that runs already follow its own setting.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from camtool.runs.cluster.cluster_run import ClusterRun
    from camtool.runs.cluster.output_folder import OutputFolder
    from camtool.runs.cluster.plan import plan_shards
    from camtool.runs.cluster.ray_run import Resources

    asked = context.params
    labels, weights = asked["labels"], asked["weights"]
    settings = {
        **settings,
        "model": asked["model"],
        # Workers run in other folders.
        "weights": None if weights is None else str(Path(weights).absolute()),
        "labels": None if labels is None else shared_options.read_labels(labels),
        "device": asked["device"].value,
        "max_side": output.max_side,
    }
    plan = plan_shards(
        asked["paths"],
        recursive=asked["recursive"],
        shard_size=asked["shard_size"],
        out=output.folder,
        image_column=asked["image_column"],
    )
    run = ClusterRun(
        plan,
        OutputFolder.open(to_uri(output.folder)),
        settings,
        command={name: _to_json(asked[name]) for name in sorted(_RECORDED)},
        resources=Resources(asked["gpus_per_worker"], asked["cpus_per_worker"], asked["cluster_workers"]),
        address=asked["address"],
        pictures=output if _is_given(context, "save") else None,
    )
    return _Follower(run, quiet=quiet, as_json=as_json).follow()


def _to_json(value: Any) -> Any:
    """Return the value of an option as JSON: lists, texts and numbers."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [_to_json(each) for each in value]
    return str(value) if isinstance(value, Path) else value


class _Follower:
    """Progress and summary of a run on a cluster."""

    def __init__(self, run: ClusterRun, *, quiet: bool, as_json: bool) -> None:
        self._run, self._quiet, self._as_json = run, quiet, as_json
        self._photos, self._rows, self._failures = 0, 0, 0
        self._reasons: list[str] = []
        self._todo = len(run.list_unfinished())
        self._finished, self._last_line = 0, time.monotonic()

    def follow(self) -> int:
        """Run, show the progress, print the summary, and return the exit code."""
        started, stop_code = time.perf_counter(), 0
        outcomes = self._run.start()
        try:
            with stop_at_sigterm(), closing(outcomes), self._build_progress() as progress:
                task = progress.add_task("Starting Ray", total=self._todo)
                for outcome in outcomes:
                    self._add(outcome)
                    progress.update(task, advance=1, description=f"Explaining, {self._photos} photos done; shards")
        except KeyboardInterrupt as stop:
            # By convention 128 plus the number of the signal.
            stop_code = 143 if isinstance(stop, Terminated) else 130
        self._print_summary(time.perf_counter() - started, interrupted=stop_code > 0)
        return stop_code or (1 if self._failures else 0)

    def _build_progress(self) -> Progress:
        return Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=terminal.err,
            transient=True,
            disable=self._quiet or self._as_json or not terminal.err.is_terminal,
        )

    def _add(self, outcome: ShardOutcome) -> None:
        self._finished += 1
        self._photos += outcome.photos
        self._rows += outcome.rows
        self._failures += outcome.failures
        self._reasons += outcome.reasons[: _MAX_REASONS - len(self._reasons)]
        is_silent = self._quiet or self._as_json or terminal.err.is_terminal
        if not is_silent and time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            terminal.err.print(f"{self._finished} of {format_count(self._todo, 'shard')}, {self._photos} photos")

    def _print_summary(self, seconds: float, *, interrupted: bool) -> None:
        earlier = len(self._run.plan.shards) - self._todo
        if self._as_json:
            summary = self._build_json_summary(seconds, earlier, interrupted=interrupted)
            terminal.out.print_json(json.dumps(summary), ensure_ascii=True)
            return
        if not self._quiet:
            if interrupted:
                print_line(f"[yellow]Stopped[/] after {self._finished} of {format_count(self._todo, 'shard')}.")
            self._print_explained(seconds, earlier)
            for skipped in self._run.plan.skipped[:_MAX_REASONS]:
                print_line(f"[yellow]Skipped:[/] {escape(str(skipped.path))} is {escape(skipped.reason)}")
        if self._failures:
            terminal.err.print(f"[bold red]{format_count(self._failures, 'photo')} could not be explained:[/]")
            for reason in self._reasons:
                terminal.err.print(f"  {escape(reason)}", soft_wrap=True)
            if self._failures > len(self._reasons):
                terminal.err.print(f"  and {self._failures - len(self._reasons)} more, in the column failure")

    def _print_explained(self, seconds: float, earlier: int) -> None:
        explained = self._photos - self._failures
        rate = f" ([bold]{self._photos / seconds:.1f}[/] a second)" if self._photos else ""
        print_line(f"[bold green]{format_count(explained, 'photo')} explained[/] in {seconds:.1f} s{rate}.")
        known = f" ({earlier} from an earlier start)" if earlier else ""
        shards = format_count(earlier + self._finished, "shard")
        print_line(f"{shards} of Parquet{known} in [bold]{escape(self._run.folder.name)}[/]")

    def _build_json_summary(self, seconds: float, earlier: int, *, interrupted: bool) -> dict[str, Any]:
        return {
            "out": self._run.folder.name,
            "photos": self._photos,
            "rows": self._rows,
            "failures": self._failures,
            "reasons": self._reasons,
            "shards": self._finished,
            "shards_finished_earlier": earlier,
            "shards_in_all": len(self._run.plan.shards),
            "seconds": round(seconds, 2),
            "interrupted": interrupted,
        }
