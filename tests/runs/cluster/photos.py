"""Photos for cluster runs: scenes of the bundled model, some broken, in folders, archives and tables."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

from camtool.demo.scenes import draw_scene
from camtool.runs.cluster.cluster_plan import ClusterPlan, divide_inputs, list_inputs
from camtool.runs.cluster.remote_files import OutputFolder


def plan_shards(paths: list[str], *, shard_size: int = 1000, **options: Any) -> ClusterPlan:
    """Divide the input into shards, as a cluster run does."""
    return divide_inputs(list_inputs(paths, **options), shard_size)


def open_output(out: str) -> OutputFolder:
    """Return an output folder, which is created if it is missing."""
    folder = OutputFolder.find(out)
    folder.create()
    return folder


def write_scenes(folder: Path, count: int, *, broken: tuple[int, ...] = ()) -> Path:
    """Write scenes as ``000.png``, ...; the broken ones are no images."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"{number:03}.png"
        if number in broken:
            path.write_bytes(b"this is no image")
        else:
            Image.fromarray(draw_scene(number).image).save(path)
    return folder


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def read_shards(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all shards, in the order of their names."""
    import pyarrow.parquet as pq

    return [row for path in sorted(folder.glob("shard-*.parquet")) for row in pq.read_table(path).to_pylist()]
