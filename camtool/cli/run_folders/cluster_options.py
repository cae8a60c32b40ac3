"""Options of ``camtool cluster`` that other commands do not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer


@dataclass(frozen=True)
class ClusterOptions:
    """Options of the cluster, and of how the photos are divided."""

    panel: ClassVar[str] = "Cluster"

    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address of the cluster.", show_default="RAY_ADDRESS, or this machine"),
    ] = None
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            help="GPUs of a worker; 0.5 for two workers on each.",
            show_default="1 if there are any",
        ),
    ] = None
    cpus_per_worker: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Cores of a worker.", show_default="1")
    ] = None
    cluster_workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Workers at most, e.g. of a cluster that grows.",
            show_default="as many as fit now",
        ),
    ] = None
    shard_size: Annotated[int, typer.Option(metavar="N", min=1, help="Photos in a shard, one Parquet file.")] = 1000
    image_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Column of Parquet files with the bytes of images.", show_default="found by type"
        ),
    ] = None
