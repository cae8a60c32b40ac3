"""Folders of runs as camtool writes them, made without a model."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PHOTO_SIZE = (48, 36)


def write_picture(path: Path, size: tuple[int, int] = PHOTO_SIZE, color: tuple[int, int, int] = (90, 120, 60)) -> Path:
    """Write a picture of one color."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


def write_run(
    root: Path,
    lines: Sequence[Mapping[str, Any]],
    *,
    failures: Sequence[Mapping[str, Any]] = (),
    run: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run's folder ``root/out`` with an overlay for each line, and the photos beside it; return the folder.

    A line may leave out fields; those that camtool always writes get a value.
    """
    out = root / "out"
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for number, line in enumerate(lines):
        image = line.get("image", str(root / "photos" / f"{number}.png"))
        usual = {
            "image": image,
            "method": "gradcam",
            "layer": "layer4",
            "label": "cat",
            "index": number,
            "score": 3.0,
            "probability": 0.5,
            "warnings": [],
            "box": None,
            "files": {"overlay": f"{number}.gradcam.png"},
        }
        fields = {**usual, **line}
        if Path(image).is_absolute():
            write_picture(Path(image))
        for file in fields["files"].values():
            if file.endswith((".png", ".jpg", ".webp")):
                write_picture(out / file, color=(200, 40, 40))
        written.append(fields)
    _write_lines(out / "explanations.jsonl", written)
    if failures:
        _write_lines(out / "failures.jsonl", failures)
    if run is not None:
        (out / "run.json").write_text(json.dumps(run))
    return out


def _write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def write_shard(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as a Parquet shard of a cluster run. A row may leave out fields."""
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema(
        [
            ("path", pyarrow.string()),
            ("method", pyarrow.string()),
            ("layer", pyarrow.string()),
            ("class_index", pyarrow.int32()),
            ("label", pyarrow.string()),
            ("score", pyarrow.float64()),
            ("probability", pyarrow.float64()),
            ("heatmap", pyarrow.binary()),
            ("heatmap_height", pyarrow.int32()),
            ("heatmap_width", pyarrow.int32()),
            ("image_width", pyarrow.int32()),
            ("image_height", pyarrow.int32()),
            ("warnings", pyarrow.list_(pyarrow.string())),
            ("warning_codes", pyarrow.list_(pyarrow.string())),
            ("overlay", pyarrow.string()),
            ("failure", pyarrow.string()),
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    full = [{name: row.get(name) for name in schema.names} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(full, schema=schema), path)
    return path


def compress(heat: np.ndarray) -> dict[str, Any]:
    """Return the columns of a heatmap of bytes."""
    return {"heatmap": zlib.compress(heat.tobytes()), "heatmap_height": heat.shape[0], "heatmap_width": heat.shape[1]}


def read_payload(page: Path) -> dict[str, Any]:
    """Return the data of a page."""
    html = page.read_text(encoding="utf-8")
    text = html.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    payload: dict[str, Any] = json.loads(text)
    return payload
