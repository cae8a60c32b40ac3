"""Options of ``camtool run --cluster``, and which options of a run have the same meaning there."""

from __future__ import annotations

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
    *("paths", "recursive", "model", "weights", "labels", "device", "batch_size", "engine"),
    *("method", "target", "layer", "merge", "placement", "option"),
    *("out", "save", "format", "alpha", "colormap", "enlarge", "max_side", "quiet", "as_json", "config"),
}
"""Options of a run that have the same meaning on a cluster. All others are refused, so that none is ignored."""


def check_options(context: typer.Context) -> None:
    """Check that the options fit the kind of run: on a cluster or here.

    Raises:
        CamtoolError: An option does not.
    """
    given = [name for name in context.params if is_given(context, name)]
    is_cluster = context.params.get("cluster") is not None
    wrong = [name for name in given if (name not in _SUPPORTED if is_cluster else name in ALL - {"cluster"})]
    if wrong:
        named = "--json" if wrong[0] == "as_json" else f"--{wrong[0].replace('_', '-')}"
        raise CamtoolError(
            f"{named} has no effect on a run with --cluster; leave it out."
            if is_cluster
            else f"{named} needs --cluster ray."
        )
    if is_cluster and is_given(context, "save") and context.params["save"] != "overlay":
        raise CamtoolError(
            f"--save {context.params['save']}: a run with --cluster writes Parquet, and pictures with --save overlay."
        )


def is_given(context: typer.Context, name: str) -> bool:
    """Return True if the user set an option, on the command line, in the environment or in a file of options."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
