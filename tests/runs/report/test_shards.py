"""Rows from the Parquet shards of a cluster run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from torchvision import transforms

import camtool
from camtool.demo.scenes import draw_scene
from camtool.errors import CamtoolError
from camtool.runs.cluster.cluster_plan import Photo
from camtool.runs.cluster.rows import COLUMNS, build_rows, encode_parquet, to_columns
from camtool.runs.report import result_reader
from camtool.runs.report.columns import ReportFailure, RowWarning
from camtool.runs.report.pictures import PictureSettings, prepare_pictures
from camtool.runs.report.result_reader import list_shards, read_shards
from tests.runs.report.folders import compress, write_picture, write_shard

ROW = {"path": "a.jpg", "method": "gradcam", "layer": "layer4", "label": "cat", "class_index": 7, "score": 2.5}


def test_a_row_becomes_a_row(tmp_path: Path) -> None:
    heat = np.arange(6, dtype=np.uint8).reshape(2, 3)
    warned = {"warnings": ["Ranked 7th."], "warning_codes": ["low-rank"]}
    shard = write_shard(tmp_path / "a.parquet", [{**ROW, **warned, **compress(heat), "probability": 0.25}])
    (row,) = read_shards([shard]).rows
    assert (row.image, row.method, row.layer, row.label, row.index) == ("a.jpg", "gradcam", "layer4", "cat", 7)
    assert (row.score, row.probability) == (2.5, 0.25)
    assert row.warnings == (RowWarning("Ranked 7th.", "low-rank"),)
    assert row.heatmap is not None
    assert (row.heatmap.height, row.heatmap.width) == (2, 3)


def test_an_overlay_is_preferred_to_the_heatmap(tmp_path: Path) -> None:
    write_picture(tmp_path / "shards" / "pictures" / "a.png")
    heat = compress(np.zeros((2, 2), np.uint8))
    shard = write_shard(tmp_path / "shards" / "a.parquet", [{**ROW, **heat, "overlay": "pictures/a.png"}])
    (row,) = read_shards([shard]).rows
    assert row.pictures == {"overlay": tmp_path / "shards" / "pictures" / "a.png"}
    assert row.heatmap is None


@pytest.mark.parametrize("crop", [None, (96, 76)])
def test_a_heatmap_is_drawn_on_its_photo_as_the_overlay_of_the_explanation(
    tmp_path: Path, crop: tuple[int, int] | None
) -> None:
    model = camtool.load("demo")
    if crop:
        model = replace(model, transform=transforms.Compose([transforms.CenterCrop(crop), model.transform]))
    photo = tmp_path / "photo.png"
    Image.fromarray(draw_scene(5).image).save(photo)
    explanation = camtool.explain(model, photo)
    content = encode_parquet(to_columns(build_rows(Photo(str(photo)), [explanation])), {"photos": 1})
    (tmp_path / "a.parquet").write_bytes(content)
    (row,) = read_shards([tmp_path / "a.parquet"]).rows
    (found,) = prepare_pictures([row], PictureSettings(tmp_path))
    ((kind, url),) = found.pictures
    assert (kind, found.is_placed, found.photo) == ("overlay", True, "photo.png")
    with Image.open(tmp_path / url) as image:
        drawn = np.asarray(image.convert("RGB")).astype(np.float32)
    # The mean of 81 pixels hides what WebP loses.
    lost, heat = (abs(cv2.blur(drawn - pixels, (9, 9))).max() for pixels in (explanation.overlay(), explanation.photo))
    assert lost < 10
    assert heat > 40


def test_failures_are_told_apart(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.parquet", [ROW, {"path": "b.jpg", "failure": "b.jpg is damaged."}])
    contents = read_shards([shard])
    assert [row.image for row in contents.rows] == ["a.jpg"]
    assert contents.failures == [ReportFailure("b.jpg", "b.jpg is damaged.")]


def test_several_shards_are_read_in_order_up_to_the_limit(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_shard(tmp_path / f"{name}.parquet", [{**ROW, "path": f"{name}{number}"} for number in range(3)])
    contents = read_shards(list_shards(tmp_path), max_rows=4)
    assert [row.image for row in contents.rows] == ["a0", "a1", "a2", "b0"]
    assert contents.notices == ["The page shows the first 4 of 9 explanations."]


def test_unfinished_shards_and_other_files_are_left_out(tmp_path: Path) -> None:
    for name in ("a.parquet", ".b.parquet", "_c.parquet", "sub/d.parquet", "_temporary/e.parquet", "f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list_shards(tmp_path) == [tmp_path / "a.parquet", tmp_path / "sub" / "d.parquet"]
    assert list_shards(tmp_path / "a.parquet") == [tmp_path / "a.parquet"]
    assert list_shards(tmp_path / "f.txt") == []


def test_a_damaged_file_and_another_table_are_refused(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "a.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(CamtoolError, match="is not a Parquet file, or is damaged"):
        read_shards([tmp_path / "a.parquet"])
    parquet.write_table(pyarrow.table({"path": ["a"], "size": [1]}), tmp_path / "b.parquet")
    with pytest.raises(CamtoolError, match="has no column method, label"):
        read_shards([tmp_path / "b.parquet"])


def test_a_shard_with_many_large_maps_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = np.random.default_rng(0).integers(0, 256, (300, 64, 64), np.uint8)
    rows = [
        {**dict.fromkeys(COLUMNS), **ROW, "path": f"{number}", **compress(each)} for number, each in enumerate(maps)
    ]
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    (tmp_path / "a.parquet").write_bytes(encode_parquet(columns, {"photos": len(rows)}))
    monkeypatch.setattr(result_reader, "_MAX_GROUP_BYTES", 280 * maps[0].size)
    assert len(read_shards([tmp_path / "a.parquet"]).rows) == len(rows)
    monkeypatch.setattr(result_reader, "_MAX_GROUP_BYTES", 200 * maps[0].size)
    with pytest.raises(CamtoolError, match="write it with smaller row groups"):
        read_shards([tmp_path / "a.parquet"])


def test_a_row_without_a_path_is_refused(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.parquet", [{**ROW, "path": None}])
    with pytest.raises(CamtoolError, match="a row has no path or no method"):
        read_shards([shard])


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CamtoolError, match=r"pip install 'camtool\[parquet\]'"):
        read_shards([tmp_path / "a.parquet"])
