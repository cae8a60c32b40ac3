"""Commands ``camtool run`` and ``camtool cluster``: explain photos and write the results to a folder."""

from __future__ import annotations

import typer

from camtool.cli.options.option_classes import takes_options
from camtool.cli.run_folders import run_options
from camtool.runs import process_settings


@takes_options
def run(context: typer.Context, options: run_options.RunOptions, local: run_options.LocalOptions) -> None:
    """Explain photos: write an overlay of each, and a line in explanations.jsonl.

    The same command again continues a run that was stopped.
    """
    process_settings.tune_process()  # before torch is loaded
    from camtool.cli.run_folders import local_run

    request = run_options.read_request(context, options, local)
    raise typer.Exit(local_run.run_here(context, request, local))


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
