"""A run on a cluster gives the rows and pictures of a local one, with each option that both have.

The workers run in this process, with what a cluster would send them: pickled settings and shards. Ray itself is in
test_cluster_run.py.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from camtool.cli import app
from camtool.demo.scenes import draw_scene
from camtool.errors import CamtoolError
from camtool.runs.cluster import cluster_run
from camtool.runs.cluster.explain_batch import ShardWorker
from tests.helpers import medical_files
from tests.runs.cluster.photos import read_shards, write_scenes

pytest.importorskip("pyarrow")

NAMES = {"class_index": "index", "path": "image"}
SAME = ("method", "layer", "label", "class_index", "score", "probability", "warnings", "warning_codes", "box")
JUDGED = ("predicted_label", "true_label", "correct")


def prepare(image: Image.Image) -> torch.Tensor:
    """Another preprocessing than that of the demo model."""
    pixels = np.asarray(image.convert("RGB").resize((96, 96))).copy()
    return (torch.from_numpy(pixels).movedim(2, 0).float() / 255 - 0.4) / 0.3


def compute_here(run, shards, description):
    """Compute shards as Ray does, with one worker in this process."""
    run.prepare_folder(description)
    expected = cluster_run.select_expected(description)
    worker = ShardWorker(run.settings, run.folder, run.pictures, run.only_wrong, expected)
    worker = pickle.loads(pickle.dumps(worker))
    for shard in shards:
        outcome = worker.compute_shard(pickle.loads(pickle.dumps(shard)))
        if outcome.error:
            raise CamtoolError(outcome.error)
        yield outcome


@pytest.fixture
def run(monkeypatch, capsys, tmp_path) -> Callable[..., tuple[int, str]]:
    """Run the command line in a folder of its own; return the exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster_run, "run_on_ray", compute_here)

    def command(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["camtool", *map(str, arguments), "--model", "demo"])
        with pytest.raises(SystemExit) as end:
            app.main()
        return int(end.value.code or 0), "".join(capsys.readouterr())

    return command


def list_local_rows(out: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the lines of a local run with absolute paths, and the photos that failed."""
    rows = [json.loads(line) for line in (out / "explanations.jsonl").read_text().splitlines()]
    failures = [json.loads(line)["image"] for line in (out / "failures.jsonl").read_text().splitlines()]
    return [{**row, "image": str(Path(row["image"]).absolute())} for row in rows], [
        str(Path(name).absolute()) for name in failures
    ]


def assert_same(cluster: Path, local: Path) -> int:
    """Check that both runs wrote the same; return the number of explanations."""
    rows, failures = list_local_rows(local)
    found = read_shards(cluster)
    explained = [row for row in found if row["failure"] is None]
    assert [row["path"] for row in found if row["failure"] is not None] == failures
    assert [row["path"] for row in explained] == [row["image"] for row in rows]
    for row, line in zip(explained, rows, strict=True):
        for name in (*SAME, *JUDGED):
            assert row[name] == line[NAMES.get(name, name)], (name, row["path"])
        assert (cluster / row["overlay"]).read_bytes() == (local / line["files"]["overlay"]).read_bytes()
    return len(rows)


def compare(run: Callable[..., tuple[int, str]], *arguments: object) -> int:
    """Run a command here and on workers, and check that both wrote the same; return the number of explanations."""
    local, _ = run("photos", "--out", "local", "--no-report", "--save", "overlay", *arguments)
    code, text = run("cluster", "photos", "--out", "cluster", "--save", "overlay", *arguments)
    assert code == local, text
    return assert_same(Path("cluster"), Path("local"))


@pytest.fixture
def scenes(tmp_path) -> Path:
    return write_scenes(tmp_path / "photos", 7, broken=(2,))


@pytest.fixture
def labels(scenes, tmp_path) -> Path:
    """True classes of some scenes: that of one is wrong, one photo is missing, one row is about no photo."""
    truth = [draw_scene(number).objects[0].label for number in range(7)]
    truth[3] = "star" if truth[3] != "star" else "heart"
    lines = [f"{number:03}.png,{name}" for number, name in enumerate(truth) if number != 5]
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(["image,label", *lines, "nowhere.png,star", ""]))
    return path


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--size", "96x112", "--mean", "0.4", "--std", "0.3", "--method", "gradcam,layercam", "--target", "top2"],
        ["--channels", "bgr"],
        ["--transform", f"{__name__}:prepare"],
        ["--caption", "--alpha", "0.4", "--colormap", "turbo", "--format", "jpg", "--max-side", "64"],
        ["--limit", "4", "--shuffle", "--seed", "5"],
    ],
    ids=["plain", "numbers", "channels", "transform", "pictures", "sample"],
)
def test_rows_and_pictures_are_those_of_a_local_run(run, scenes, options):
    assert compare(run, "--batch-size", 3, *options) >= 3


def test_the_options_of_the_preprocessing_change_the_rows(run, scenes):
    def scores(*options: object) -> list[float]:
        shutil.rmtree("cluster", ignore_errors=True)
        assert run("cluster", "photos", "--out", "cluster", *options)[0] == 1
        return [row["score"] for row in read_shards(Path("cluster")) if row["failure"] is None]

    found = [
        scores(),
        scores("--size", "96"),
        scores("--channels", "bgr"),
        scores("--transform", f"{__name__}:prepare"),
    ]
    assert len({tuple(each) for each in found}) == 4


def test_bands_windows_and_slices_are_read_on_the_workers(run, tmp_path):
    (tmp_path / "photos").mkdir()
    bands = np.random.default_rng(0).integers(0, 256, (13, 128, 128), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "photos" / "bands.tif", bands, photometric="minisblack", planarconfig="separate")
    assert compare(run) == 0  # which bands are colors is not known
    shutil.rmtree("local")
    shutil.rmtree("cluster")
    assert compare(run, "--bands", "4,3,2", "--percentiles", "2,98") == 1


def test_a_window_of_a_ct_is_read_on_the_workers(run, tmp_path):
    (tmp_path / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(-1000, 1000, (90, 80)).astype(np.int16)
    scan = medical_files.encode_dicom(medical_files.build_dicom(pixels))
    (tmp_path / "photos" / "slice.dcm").write_bytes(scan)
    assert compare(run, "--window", "40,400") == 1


def test_a_photo_above_the_limit_of_pixels_fails_on_both(run, scenes):
    Image.new("RGB", (400, 300)).save(scenes / "large.png")
    assert compare(run, "--max-pixels", 20_000) == 6
    assert "large.png" in next(row["failure"] for row in read_shards(Path("cluster")) if row["path"].endswith("e.png"))


@pytest.mark.parametrize("options", [[], ["--only-wrong"], ["--caption"]], ids=["all", "wrong", "captions"])
def test_true_classes_are_those_of_a_local_run(run, scenes, labels, options):
    count = compare(run, "--labels-csv", labels, *options)
    assert (count < 4) if "--only-wrong" in options else (count == 6)
    rows = [row for row in read_shards(Path("cluster")) if row["failure"] is None]
    known = {Path(row["path"]).name: row["correct"] for row in rows}
    assert known["003.png"] is False
    if "--only-wrong" not in options:
        assert known["005.png"] is None
        assert True in known.values()


def test_the_summary_says_how_many_are_right_and_what_is_missing(run, scenes, labels):
    run("photos", "--out", "local", "--labels-csv", labels)
    _, text = run("cluster", "photos", "--out", "cluster", "--labels-csv", labels)
    _, local = run("photos", "--out", "local", "--labels-csv", labels)
    (accuracy,) = (line for line in local.splitlines() if line.startswith("Accuracy"))
    assert accuracy in text
    assert "1 photo without a row in" in text
    assert "1 row of " in text


def test_photos_in_an_archive_have_no_names_that_a_table_could_match(run, scenes, labels):
    shutil.make_archive("more", "tar", scenes)
    for options in (["--truth", labels], ["--limit", 3], ["--shuffle"]):
        code, text = run("cluster", "photos", "more.tar", *options)
        assert (code, f"{options[0]} needs the names of all photos" in text) == (2, True)
    assert not Path("out").exists()


def test_a_run_is_overwritten_only_if_that_is_asked_for(run, scenes):
    options = ("cluster", "photos", "--shard-size", 4, "--save", "overlay")
    assert run(*options)[0] == 1
    Path("out", "mine.txt").write_text("stays")
    first = {path.name for path in Path("out").glob("overlays/*/*")}
    code, text = run(*options, "--method", "layercam")
    assert (code, "--method: gradcam then, layercam now" in text) == (2, True)
    assert {path.name for path in Path("out").glob("overlays/*/*")} == first
    assert run(*options, "--method", "no-such-method", "--overwrite")[0] == 2
    assert run(*options, "--target", "99", "--overwrite")[0] == 2
    assert {row["method"] for row in read_shards(Path("out"))} == {"gradcam", None}  # a wrong request removes nothing
    assert run(*options, "--method", "layercam", "--overwrite")[0] == 1
    assert {row["method"] for row in read_shards(Path("out"))} == {"layercam", None}
    assert all("layercam" in path.name for path in Path("out").glob("overlays/*/*"))
    assert Path("out", "mine.txt").read_text() == "stays"


def test_a_run_of_one_kind_does_not_overwrite_one_of_the_other(run, scenes):
    compare(run)
    code, text = run("photos", "--out", "cluster", "--overwrite")
    assert (code, "holds a run of camtool cluster" in text) == (2, True)
    code, text = run("cluster", "photos", "--out", "local", "--overwrite")
    assert (code, "holds a run of camtool run" in text) == (2, True)
    assert assert_same(Path("cluster"), Path("local")) == 6


def test_a_description_that_may_be_the_users_is_not_overwritten(run, scenes):
    run("cluster", "photos")
    for content in ("{", '{"name": "my experiment"}'):
        Path("out", "run.json").write_text(content)
        for options in ([], ["--overwrite"]):
            code, text = run("cluster", "photos", *options)
            assert (code, "run.json" in text, "Move it" in text) == (2, True, True)
        assert Path("out", "run.json").read_text() == content
    Path("out", "run.json").unlink()
    assert run("cluster", "photos", "--overwrite")[0] == 1


def test_failures_of_an_earlier_start_are_counted(run, scenes):
    assert run("cluster", "photos", "--shard-size", 3)[0] == 1
    Path(max(Path("out").glob("shard-*"))).unlink()
    for _ in range(2):
        code, text = run("cluster", "photos", "--shard-size", 3)
        assert code == 1
        assert "1 photo could not be explained" in text
        assert "002.png" in text
    damaged, *_, missing = sorted(Path("out").glob("shard-*"))
    damaged.write_bytes(b"damaged")
    missing.unlink()
    code, text = run("cluster", "photos", "--shard-size", 3)
    assert (code, "is damaged, or no shard of camtool" in text) == (2, True)
    assert not missing.exists()  # nothing is computed whose summary would be lost


def test_run_json_has_the_keys_of_a_local_run_and_changes_are_noticed(run, scenes, labels):
    compare(run, "--labels-csv", labels)
    local, found = (json.loads(Path(name, "run.json").read_text()) for name in ("local", "cluster"))
    assert {*found} - {*local} == {"inputs"}
    assert {*local} <= {*found}
    assert {*found["command"]} - {*local["command"]} == {"shard_size", "image_column"}
    assert {*local["command"]} - {*found["command"]} == {"volume", "region", "sufficient"}
    for key in ("model", "method", "options", "seeds", "engine", "versions", "directory", "sha256"):
        assert found[key] == local[key], key

    labels.write_text(labels.read_text().replace("000.png", "001.png"))
    command = ("cluster", "photos", "--out", "cluster", "--save", "overlay", "--labels-csv", labels)
    code, text = run(*command)
    assert (code, "sha256 labels csv: " in text) == (2, True)
    code, text = run("photos", "--out", "cluster")
    assert (code, "--shard-size: 1000 then, none now" in text) == (2, True)


def test_another_photo_in_the_folder_is_another_run(run, scenes):
    command = ("cluster", "photos")
    assert run(*command)[0] == 1
    shutil.copy(scenes / "000.png", scenes / "new.png")
    code, text = run(*command)
    assert (code, "inputs sha256: " in text) == (2, True)


# ---------------------------------------------------------------------------------------------------- stopped runs


def stop_after_three(run, shards, description):
    """Compute three shards, report one of them, and stop as at Ctrl-C."""
    outcomes = [*compute_here(run, shards[:3], description)]
    yield outcomes[0]
    raise KeyboardInterrupt


def test_a_stopped_run_says_what_is_written_and_continues(run, scenes, labels, monkeypatch):
    command = ("cluster", "photos", "--shard-size", 2, "--labels-csv", labels)
    with monkeypatch.context() as patched:
        patched.setattr(cluster_run, "run_on_ray", stop_after_three)
        code, text = run(*command)
    assert code == 130
    assert "Stopped after 3 of 4 shards. The same command continues." in text
    assert "5 photos explained" in text  # of six, one is broken
    written = {path: path.stat().st_mtime_ns for path in Path("out").glob("shard-*.parquet")}
    assert len(written) == 3
    code, text = run(*command)
    assert (code, "4 shards of Parquet (3 from an earlier start)" in text) == (1, True)  # one photo is broken
    assert {path: path.stat().st_mtime_ns for path in written} == written
    _, local = run("photos", "--out", "local", "--labels-csv", labels)
    (accuracy,) = (line for line in local.splitlines() if line.startswith("Accuracy"))
    assert accuracy in text  # of all photos, also those of the earlier start


def test_a_run_that_is_stopped_before_it_overwrites_counts_no_earlier_shard(run, scenes, monkeypatch):
    assert run("cluster", "photos", "--shard-size", 2)[0] == 1
    before = {path.name: path.read_bytes() for path in Path("out").glob("shard-*")}

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_run, "_check_request", stop)
    code, text = run("cluster", "photos", "--shard-size", 2, "--method", "layercam", "--overwrite")
    assert (code, "Stopped after 0 of 4 shards" in text) == (130, True)
    assert {path.name: path.read_bytes() for path in Path("out").glob("shard-*")} == before
