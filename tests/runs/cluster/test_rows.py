"""Rows as a table of pyarrow and as Parquet."""

from __future__ import annotations

import io
import os

import pytest

from camtool.runs.cluster import rows
from camtool.runs.cluster.cluster_plan import Photo
from camtool.runs.cluster.explain_batch import ExplainBatch
from tests.runs.cluster.photos import write_scenes

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

TYPES = {
    "path": pa.string(),
    "method": pa.string(),
    "layer": pa.string(),
    "class_index": pa.int32(),
    "label": pa.string(),
    "score": pa.float64(),
    "probability": pa.float64(),
    "heatmap": pa.binary(),
    "heatmap_height": pa.int32(),
    "heatmap_width": pa.int32(),
    "heatmap_place": pa.list_(pa.float64()),
    "image_width": pa.int32(),
    "image_height": pa.int32(),
    "warnings": pa.list_(pa.string()),
    "warning_codes": pa.list_(pa.string()),
    "box": pa.list_(pa.float64()),
    "predicted_label": pa.string(),
    "true_label": pa.string(),
    "correct": pa.bool_(),
    "overlay": pa.string(),
    "failure": pa.string(),
}


def test_parquet_has_the_documented_types_even_if_all_photos_failed():
    failed = rows.build_rows(Photo("a.png"), "a.png: broken")
    for found in ([], failed):
        content = rows.encode_parquet(rows.to_columns(found), {"photos": len(found)})
        table = pq.read_table(io.BytesIO(content))
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == TYPES
        assert table.schema.metadata == {b"camtool.photos": str(len(found)).encode()}
    assert table.to_pylist() == [dict.fromkeys(TYPES) | {"path": "a.png", "failure": "a.png: broken"}]


def test_parquet_gives_back_the_columns_and_the_same_columns_the_same_bytes(tmp_path):
    paths = [str(path) for path in sorted(write_scenes(tmp_path, 3).iterdir())]
    columns = ExplainBatch("demo")({"path": paths})
    content = rows.encode_parquet(columns, {"photos": 3})
    assert pq.read_table(io.BytesIO(content)).to_pydict() == columns
    assert rows.encode_parquet(columns, {"photos": 3}) == content


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes on POSIX")
def test_a_name_that_is_no_valid_text_is_escaped():
    name = os.fsdecode(b"caf\xe9.png")
    columns = rows.to_columns(rows.build_rows(Photo(name), f"{name}: broken"))
    content = rows.encode_parquet(columns, {})
    (row,) = pq.read_table(io.BytesIO(content)).to_pylist()
    assert row["path"] == r"caf\udce9.png"
    assert row["failure"] == r"caf\udce9.png: broken"
