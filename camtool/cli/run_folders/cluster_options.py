"""Options of ``camtool run --cluster``, and which options of a run have the same meaning there."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import typer

from camtool.errors import CamtoolError

__all__ = [
    "ALL",
    "WITHOUT_EFFECT",
    "Address",
    "Cluster",
    "ClusterOption",
    "ClusterWorkers",
    "CpusPerWorker",
    "GpusPerWorker",
    "ImageColumn",
    "ShardSize",
    "check_kinds",
    "check_options",
    "is_given",
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

WITHOUT_EFFECT = frozenset({"address", "gpus_per_worker", "cpus_per_worker", "cluster_workers"})
"""Options of a cluster that change no result."""

ALL = WITHOUT_EFFECT | {"cluster", "shard_size", "image_column"}
"""Options of a cluster; no other run has them."""

_SUPPORTED = ALL | {
    *("paths", "recursive", "limit", "shuffle", "seed", "labels_csv", "only_wrong"),
    *("model", "weights", "labels", "device", "batch_size", "engine"),
    *("transform", "size", "mean", "std", "channels"),
    *("bands", "window", "percentiles", "slice", "axis", "frame", "max_pixels"),
    *("method", "target", "layer", "merge", "placement", "option"),
    *("out", "save", "format", "caption", "legend", "alpha", "colormap", "enlarge", "max_side", "overwrite"),
    *("quiet", "as_json", "config"),
}
"""Options of a run that have the same meaning on a cluster. All others are refused, so that none is ignored."""

_REASONS = {
    "workers": "the threads of a worker follow from --cpus-per-worker",
    "verbose": "workers report whole shards, not photos",
    "sheet": "no worker has all overlays",
    "page": "write the page of its shards with: camtool report OUT",
    "volume": "each file is a photo there",
    "region": "the table of results has the heatmaps to measure it in",
    "retry_failed": "a shard is computed as a whole; remove its file to compute it again",
}
"""Option that has no effect on a cluster → why."""


def check_options(context: typer.Context) -> None:
    """Check that the options fit the kind of run: on a cluster or here.

    Raises:
        CamtoolError: An option does not.
    """
    asked = context.params
    # A flag that is switched off asks for nothing.
    given = [name for name in asked if is_given(context, name) and asked[name] is not False]
    is_cluster = asked.get("cluster") is not None
    wrong = [name for name in given if (name not in _SUPPORTED if is_cluster else name in ALL - {"cluster"})]
    for name in wrong:
        named = "--report" if name == "page" else f"--{name.replace('_', '-')}"
        if not is_cluster:
            raise CamtoolError(f"{named} needs --cluster ray.")
        reason = f": {_REASONS[name]}" if name in _REASONS else ""
        raise CamtoolError(f"{named} has no effect on a run with --cluster{reason}. Leave it out.")


def check_kinds(kinds: Sequence[str], *, caption: bool, has_pictures: bool) -> None:
    """Check that a cluster writes the kinds of files that were asked for.

    Raises:
        CamtoolError: It does not.
    """
    if [*kinds] != ["overlay"]:
        raise CamtoolError(
            f"--save {','.join(kinds)}: a run with --cluster writes Parquet, and pictures with --save overlay."
        )
    if caption and not has_pictures:
        raise CamtoolError("--caption needs overlays, which a run with --cluster writes with --save overlay.")


def is_given(context: typer.Context, name: str) -> bool:
    """Return True if the user set an option, on the command line, in the environment or in a file of options."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
