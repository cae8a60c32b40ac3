"""The output folder, ``run.json``, and workers that compute shards in this process."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import camtool
from camtool.rendering import image_writing
from camtool.runs.cluster.cluster_plan import FileList, Shard
from camtool.runs.cluster.explain_batch import ShardWorker
from camtool.runs.cluster.remote_files import MAX_ATTEMPTS, OutputFolder
from camtool.runs.photo_tables import TrueClass
from camtool.runs.run_folder.description import describe_run, encode_description, list_versions
from camtool.runs.run_folder.hashes import hash_weights
from camtool.runs.save_kinds import OutputSettings
from tests.runs.cluster.photos import open_output, plan_shards, read_shards, write_scenes

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")

SETTINGS = {"model": "demo"}


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path) -> OutputFolder:
    """A folder on disk, and one in a file system of fsspec."""
    fsspec.filesystem("memory").store.clear()
    return open_output(str(tmp_path / "out") if request.param == "local" else "memory://bucket/out")


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
    folder = open_output(str(tmp_path))
    pickle.loads(pickle.dumps(folder)).write("a", b"1")
    assert folder.list_files() == {"a"}


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(camtool.CamtoolError, match="cannot be created"):
        open_output(str(tmp_path / "file"))


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
    ShardWorker(settings, open_output(str(out)), OutputSettings(out)).compute_shard(shard)
    named = [row["overlay"] for row in read_shards(out)]
    assert len({*named}) == 4
    assert {out / name for name in named} == {*out.glob("overlays/*/*")}
    explained = camtool.explain(camtool.load("demo"), str(photos / "001.png"))
    explained.save(tmp_path / "wanted.png", legend=False)
    row = next(row for row in read_shards(out) if row["path"] == str(photos / "001.png"))
    assert (out / row["overlay"]).read_bytes() == (tmp_path / "wanted.png").read_bytes()


def test_a_worker_that_is_cut_off_while_it_writes_leaves_no_shard(tmp_path, shards, monkeypatch):
    folder = open_output(str(tmp_path / "out"))

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
    folder = open_output(str(tmp_path / "out"))
    outcome = ShardWorker(settings, folder, expected=expected).compute_shard(shards[0])
    assert message in outcome.error
    assert not any(name.startswith("shard") for name in folder.list_files())


def test_the_expected_versions_and_weights_are_accepted(tmp_path, shards, demo):
    expected = {"versions": list_versions(demo, "eager"), "weights": hash_weights(demo.model)}
    folder = open_output(str(tmp_path / "out"))
    assert ShardWorker(SETTINGS, folder, expected=expected).compute_shard(shards[0]).error == ""


# ----------------------------------------------------------------------------------------------------- run.json


def describe(demo, method="gradcam", **changes):
    command = {"paths": ["/photos"], "method": [method], "shard_size": 9, **changes}
    return {**describe_run(demo, [method], {}, command), "inputs": {"shards": 2, "sha256": "ab"}}


def test_the_same_settings_continue_and_others_are_refused_by_name(folder, demo):
    folder.check_unchanged(describe(demo))  # there is no run
    folder.write("run.json", encode_description(describe(demo)))
    folder.check_unchanged(describe(demo))
    with pytest.raises(camtool.CamtoolError, match=r"(?s)--method: gradcam then, layercam now.*--out"):
        folder.check_unchanged(describe(demo, "layercam"))
    with pytest.raises(camtool.CamtoolError, match="--size: none then, 32 now"):
        folder.check_unchanged(describe(demo, size="32"))


def test_a_local_run_is_not_continued_on_a_cluster_and_not_removed(folder, demo):
    local = describe(demo)
    del local["inputs"], local["command"]["shard_size"]
    folder.write("run.json", encode_description(local))
    with pytest.raises(camtool.CamtoolError, match="--shard-size: none then, 9 now"):
        folder.check_unchanged(describe(demo))
    with pytest.raises(camtool.CamtoolError, match="a run of camtool run"):
        folder.remove_run()
    assert folder.list_files() == {"run.json"}


def test_a_damaged_run_file_is_an_error(folder, demo):
    folder.write("run.json", b"{")
    with pytest.raises(camtool.CamtoolError, match="damaged"):
        folder.check_unchanged(describe(demo))


def test_shards_without_a_description_are_not_continued(folder, demo, shards):
    folder.write(shards[0].name, b"")
    with pytest.raises(camtool.CamtoolError, match="settings are unknown"):
        folder.check_unchanged(describe(demo))


def test_a_run_is_removed_and_other_files_stay(folder, demo, shards):
    stem = shards[0].name.removesuffix(".parquet")
    cut = "shard-000009-0123456789abcdef"  # its worker was killed before it wrote the shard
    others = {"mine.parquet", "shard-1.parquet", "notes.txt"}
    for name in (shards[0].name, "run.json", f".{shards[0].name}.1.attempt", *others):
        folder.write(name, encode_description(describe(demo)) if name == "run.json" else b"")
    for name in (f"overlays/{stem}/a.png", f"overlays/{cut}/b.png", "overlays/mine/c.png"):
        folder.write(name, b"")
    folder.remove_run()
    assert folder.list_files() == others
    assert folder.read("overlays/mine/c.png") == b""
    assert folder.read(f"overlays/{stem}/a.png") is None
    assert folder.read(f"overlays/{cut}/b.png") is None


def test_a_link_among_the_pictures_is_not_followed(tmp_path, shards):
    folder = open_output(str(tmp_path / "out"))
    (tmp_path / "photos").rename(tmp_path / "mine")
    (tmp_path / "out" / "overlays").mkdir()
    (tmp_path / "out" / "overlays" / shards[0].name.removesuffix(".parquet")).symlink_to(tmp_path / "mine")
    folder.remove_run()
    assert len([*(tmp_path / "mine").iterdir()]) == 5


# ------------------------------------------------------------------------------------------------- true classes


def add_classes(shard: Shard, known: dict[str, TrueClass]) -> Shard:
    photos = [replace(photo, true_class=known.get(Path(photo.path).name)) for photo in shard.source.iterate_photos()]
    return replace(shard, source=FileList(tuple(photos)))


def test_rows_say_right_or_wrong_and_only_the_wrong_ones_may_be_kept(tmp_path, shards, demo):
    labels = list(demo.labels)
    top = {name: camtool.explain(demo, str(tmp_path / "photos" / name)).index for name in ("000.png", "001.png")}
    other = (top["001.png"] + 1) % len(labels)
    classes = {"000.png": top["000.png"], "001.png": other}
    known = {name: TrueClass(index, labels[index]) for name, index in classes.items()}
    shard = add_classes(shards[0], known)
    out = tmp_path / "out"
    outcome = ShardWorker(SETTINGS, open_output(str(out))).compute_shard(shard)
    assert (outcome.photos, outcome.rows, outcome.failures, outcome.right, outcome.wrong) == (3, 3, 0, 1, 1)
    rows = read_shards(out)
    assert [row["correct"] for row in rows] == [True, False, None]
    assert [row["true_label"] for row in rows] == [known["000.png"].label, known["001.png"].label, None]
    assert [row["predicted_label"] for row in rows] == [row["label"] for row in rows]

    wrong = ShardWorker(SETTINGS, open_output(str(tmp_path / "wrong")), only_wrong=True)
    outcome = wrong.compute_shard(shard)
    assert (outcome.photos, outcome.rows, outcome.failures, outcome.right, outcome.wrong) == (3, 2, 1, 1, 1)
    kept, failed = read_shards(tmp_path / "wrong")
    assert kept == {**rows[1]}
    assert "neither right nor wrong" in failed["failure"]
    assert wrong.compute_shard(shard) == outcome  # read from the file


def test_captions_stand_below_the_overlays(tmp_path, shards):
    out = tmp_path / "out"
    ShardWorker(SETTINGS, open_output(str(out)), OutputSettings(out, has_captions=True)).compute_shard(shards[0])
    ShardWorker(SETTINGS, open_output(str(tmp_path / "plain")), OutputSettings(out)).compute_shard(shards[0])
    for row, plain in zip(read_shards(out), read_shards(tmp_path / "plain"), strict=True):
        with (
            Image.open(out / row["overlay"]) as captioned,
            Image.open(tmp_path / "plain" / plain["overlay"]) as picture,
        ):
            assert captioned.height > picture.height
