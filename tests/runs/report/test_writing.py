"""Writing the page into a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camtool.errors import CamtoolError
from camtool.runs.report import write_report
from tests.runs.report.folders import compress, read_payload, write_picture, write_run, write_shard


def test_the_report_of_a_run(tmp_path: Path) -> None:
    out = write_run(tmp_path, [{}, {}], failures=[{"image": "b.jpg", "reason": "damaged"}])
    written = write_report(str(out))
    assert written.path == out / "index.html"
    assert (written.explanations, written.failures, written.notices) == (2, 1, ())
    payload = read_payload(written.path)
    assert payload["failures"] == [{"image": "b.jpg", "reason": "damaged"}]
    assert payload["pictures"] == [[["overlay", "0.gradcam.png"]], [["overlay", "1.gradcam.png"]]]
    assert payload["photos"] == {"texts": ["../photos/0.png", "../photos/1.png"], "codes": [0, 1]}


def test_the_report_of_shards(tmp_path: Path) -> None:
    heat = compress(np.arange(49, dtype=np.uint8).reshape(7, 7))
    row = {"path": "a.jpg", "method": "gradcam", "label": "cat", **heat}
    shard = write_shard(tmp_path / "part-0.parquet", [row, {"path": "b.jpg", "failure": "damaged"}])
    for source in (tmp_path, shard):
        written = write_report(source)
        assert written.path == tmp_path / "index.html"
        assert (written.explanations, written.failures) == (1, 1)
        payload = read_payload(written.path)
        assert payload["values"]["cells"]["texts"] == ["7 x 7"]
        assert (tmp_path / payload["pictures"][0][0][1]).is_file()


def test_shards_are_described_by_the_run_beside_them(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"model": {"name": "resnet50"}}')
    shard = write_shard(tmp_path / "part-0.parquet", [{"path": "a.jpg", "method": "gradcam", "label": "cat"}])
    for source in (tmp_path, shard):
        assert "<h1>resnet50</h1>" in write_report(source).path.read_text(encoding="utf-8")


def test_relative_photos_are_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_picture(tmp_path / "data" / "a.png")
    out = write_run(tmp_path / "results", [{"image": "data/a.png"}], run={"directory": str(tmp_path)})
    monkeypatch.chdir("/")
    assert read_payload(write_report(out).path)["photos"]["texts"] == ["../../data/a.png"]


def test_a_report_replaces_a_report_but_no_other_page(tmp_path: Path) -> None:
    out = write_run(tmp_path, [{}])
    write_report(out)
    write_report(out)
    page = out / "index.html"
    page.write_text("<h1>My own page</h1>")
    with pytest.raises(CamtoolError, match=r"index\.html' exists and is not a report; move it"):
        write_report(out)
    assert page.read_text() == "<h1>My own page</h1>"


def test_a_link_in_place_of_the_page_is_not_followed(tmp_path: Path) -> None:
    out = write_run(tmp_path, [{}])
    (out / "index.html").symlink_to(tmp_path / "elsewhere.html")
    with pytest.raises(CamtoolError, match="is not a report"):
        write_report(out)
    assert not (tmp_path / "elsewhere.html").exists()


def test_a_folder_that_holds_no_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CamtoolError, match=r"holds neither explanations\.jsonl nor Parquet files"):
        write_report(tmp_path)
    (tmp_path / "photo.png").touch()
    with pytest.raises(CamtoolError, match="holds neither"):
        write_report(tmp_path / "photo.png")
    (tmp_path / "results").mkdir()
    with pytest.raises(CamtoolError, match=r"no such folder\. Did you mean 'results'\?"):
        write_report(tmp_path / "result")
    assert not (tmp_path / "index.html").exists()


def test_the_limit_is_told(tmp_path: Path) -> None:
    written = write_report(write_run(tmp_path, [{}] * 3), max_rows=2)
    assert written.explanations == 2
    assert written.notices == ("The page shows the first 2 of 3 explanations.",)
    assert "The page shows the first 2 of 3 explanations." in written.path.read_text(encoding="utf-8")
