"""The output folder, ``run.json``, and workers that compute shards in this process."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import camtool
from camtool.rendering import image_writing
from camtool.runs.cluster.output_folder import MAX_ATTEMPTS, OutputFolder
from camtool.runs.cluster.plan import plan_shards
from camtool.runs.cluster.run_settings import describe_run, get_versions, hash_weights, hold_settings
from camtool.runs.cluster.shard_worker import ShardWorker
from camtool.runs.save_kinds import OutputSettings
from tests.runs.cluster.photos import read_shards, write_scenes

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")

SETTINGS = {"model": "demo"}


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path) -> OutputFolder:
    """A folder on disk, and one in a file system of fsspec."""
    fsspec.filesystem("memory").store.clear()
    return OutputFolder.open(str(tmp_path / "out") if request.param == "local" else "memory://bucket/out")


@pytest.fixture
def shards(tmp_path):
    return plan_shards([str(write_scenes(tmp_path / "photos", 5, broken=(3,)))], shard_size=3).shards


def test_a_file_that_was_written_is_listed_and_read(folder):
    assert folder.read("a.bin") is None
    folder.write("a.bin", b"1")
    folder.write("sub/b.bin", b"2")
    folder.write("a.bin", b"3")
    assert (folder.read("a.bin"), folder.read("sub/b.bin")) == (b"3", b"2")
    assert folder.list_files() == {"a.bin"}


def test_a_folder_is_picklable_and_lists_nothing_of_its_credentials(tmp_path):
    folder = OutputFolder.open(str(tmp_path))
    pickle.loads(pickle.dumps(folder)).write("a", b"1")
    assert folder.list_files() == {"a"}


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(camtool.CamtoolError, match="cannot be created"):
        OutputFolder.open(str(tmp_path / "file"))


# ------------------------------------------------------------------------------------------------------ workers


def test_a_worker_writes_each_shard_and_says_what_is_in_it(folder, shards):
    first, second = (ShardWorker(SETTINGS, folder).compute_shard(shard) for shard in shards)
    assert (first.photos, first.rows, first.failures, first.error) == (3, 3, 0, "")
    assert (second.photos, second.rows, second.failures) == (2, 2, 1)
    assert "003.png" in second.reasons[0]
    assert folder.list_files() == {shard.name for shard in shards}


def test_a_shard_that_is_finished_is_not_computed_again(folder, shards):
    outcomes = [ShardWorker(SETTINGS, folder).compute_shard(shard) for shard in shards]
    stopped = ShardWorker({"model": "no-such-model"}, folder)  # would fail if it computed
    assert [stopped.compute_shard(shard) for shard in shards] == outcomes


def test_overlays_lie_beside_the_shard_and_rows_name_them(tmp_path):
    photos = write_scenes(tmp_path / "photos", 2)
    (photos / "sub").mkdir()
    (photos / "000.png").rename(photos / "sub" / "001.png")  # two photos of one name
    out = tmp_path / "out"
    (shard,) = plan_shards([str(photos)], recursive=True).shards
    settings = {**SETTINGS, "method": ["gradcam", "layercam"]}
    ShardWorker(settings, OutputFolder.open(str(out)), OutputSettings(out)).compute_shard(shard)
    named = [row["overlay"] for row in read_shards(out)]
    assert len({*named}) == 4
    assert {out / name for name in named} == {*out.glob("overlays/*/*")}
    explained = camtool.explain(camtool.load("demo"), str(photos / "001.png"))
    explained.save(tmp_path / "wanted.png")
    row = next(row for row in read_shards(out) if row["path"] == str(photos / "001.png"))
    assert (out / row["overlay"]).read_bytes() == (tmp_path / "wanted.png").read_bytes()


def test_a_worker_that_is_cut_off_while_it_writes_leaves_no_shard(tmp_path, shards, monkeypatch):
    folder = OutputFolder.open(str(tmp_path / "out"))

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(image_writing.os, "replace", fail)
        patched.setattr(Path, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            ShardWorker(SETTINGS, folder).compute_shard(shards[0])
    assert not any(name.startswith("shard") for name in folder.list_files())


def test_a_shard_whose_workers_die_is_not_tried_without_end(folder, shards):
    name = shards[0].name
    assert [folder.begin_attempt(name) for _ in range(MAX_ATTEMPTS + 1)] == [True] * MAX_ATTEMPTS + [False]
    outcome = ShardWorker(SETTINGS, folder).compute_shard(shards[0])
    assert "died" in outcome.error
    assert "000.png" in outcome.error
    folder.remove_traces()
    assert folder.list_files() == set()
    assert ShardWorker(SETTINGS, folder).compute_shard(shards[0]).error == ""
    assert folder.list_files() == {name}


@pytest.mark.parametrize(
    ("settings", "expected", "message"),
    [
        ({"model": "no-such-model"}, {}, "no-such-model"),
        ({"model": "demo", "target": 99}, {}, "99"),
        (SETTINGS, {"versions": {"torch": "0.1"}}, "other libraries"),
        (SETTINGS, {"weights": "0" * 64}, "other weights"),
    ],
)
def test_what_concerns_all_photos_is_an_error_of_the_outcome(tmp_path, shards, settings, expected, message):
    folder = OutputFolder.open(str(tmp_path / "out"))
    outcome = ShardWorker(settings, folder, expected=expected).compute_shard(shards[0])
    assert message in outcome.error
    assert not any(name.startswith("shard") for name in folder.list_files())


def test_the_expected_versions_and_weights_are_accepted(tmp_path, shards, demo):
    expected = {"versions": get_versions(), "weights": hash_weights(demo.model)}
    folder = OutputFolder.open(str(tmp_path / "out"))
    assert ShardWorker(SETTINGS, folder, expected=expected).compute_shard(shards[0]).error == ""


# ----------------------------------------------------------------------------------------------------- run.json


def describe(demo, **changes):
    settings = {"model": "demo", "method": ["gradcam"], "engine": "eager", "batch_size": 8, "labels": None, **changes}
    return describe_run(
        demo.model, name="demo", settings=settings, command={"target": ["top1"]}, inputs={"shards": 2, "digest": "ab"}
    )


def test_the_same_settings_continue_and_others_are_refused_by_name(folder, demo):
    hold_settings(folder, describe(demo))
    written = folder.read("run.json")
    hold_settings(folder, describe(demo))
    assert folder.read("run.json") == written
    with pytest.raises(camtool.CamtoolError, match=r"method was \['gradcam'\], is \['layercam'\].*--out"):
        hold_settings(folder, describe(demo, method=["layercam"]))
    with pytest.raises(camtool.CamtoolError, match=r"options\.samples was None, is 5"):
        hold_settings(folder, describe(demo, samples=5))
    assert folder.read("run.json") == written


def test_run_json_has_the_fields_of_a_local_run(folder, demo):
    hold_settings(folder, describe(demo, seed=3))
    found = json.loads(folder.read("run.json"))
    assert {"camtool", "command", "model", "method", "options", "versions", "seeds", "engine", "device"} <= {*found}
    assert found["model"]["sha256"] == hash_weights(camtool.load("demo").model)
    assert found["seeds"] == {"method": 3}


def test_a_hash_of_weights_sees_one_changed_number(demo):
    model = camtool.load("demo").model
    before = hash_weights(model)
    next(model.parameters()).data.view(-1)[0] += 1
    assert hash_weights(model) != before


def test_a_damaged_run_file_is_an_error(folder, demo):
    folder.write("run.json", b"{")
    with pytest.raises(camtool.CamtoolError, match="damaged"):
        hold_settings(folder, describe(demo))
