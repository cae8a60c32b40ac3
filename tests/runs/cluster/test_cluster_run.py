"""Runs on Ray with two workers: the same rows as here, a killed worker, a second start, and the batch class alone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import camtool
from camtool.cli import app
from camtool.runs.cluster import cluster_run
from camtool.runs.cluster.cluster_run import ClusterRun, Resources, run_on_ray
from camtool.runs.cluster.explain_batch import ExplainBatch
from camtool.runs.cluster.rows import build_rows, decode_heatmap
from tests.runs.cluster.photos import open_output, plan_shards, read_shards, write_scenes, write_tar
from tests.runs.cluster.test_same_as_local import compute_here

pytest.importorskip("ray.data")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.skipif(sys.platform == "win32", reason="Ray for Windows is not tested here"),
]

SETTINGS = {"model": "demo", "method": ["gradcam", "layercam"], "target": [camtool.targets.Top(2)], "batch_size": 4}


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster with two cores on this machine."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> list[str]:
    """A folder with photos, two of them broken, and an archive."""
    folder = tmp_path_factory.mktemp("inputs")
    photos = write_scenes(folder / "photos", 22, broken=(4, 13))
    archive = write_tar(
        folder / "more.tar", {f"x/{path.name}": path.read_bytes() for path in sorted(photos.iterdir())[:5]}
    )
    return [str(photos), str(archive)]


@pytest.fixture(scope="module")
def local_rows(inputs):
    """The rows of the batch class in this process."""
    explain = ExplainBatch(**SETTINGS)
    found: list[dict] = []
    for shard in plan_shards(inputs, shard_size=4).shards:
        for photo, explanations in explain.explain_photos(shard.source.iterate_photos()):
            found += build_rows(photo, explanations)
    return found


class RecordedDemo:
    """A factory of the bundled model that notes the process in which it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> camtool.Loaded:
        (self.folder / str(os.getpid())).touch()
        return camtool.load("demo")


def assert_same_rows(found, wanted) -> None:
    """Check that rows are equal, scores up to rounding and heatmaps up to one level of 255 that rounding decides."""
    assert [row["path"] for row in found] == [row["path"] for row in wanted]
    for row, each in zip(found, wanted, strict=True):
        exact = {*row} - {"score", "probability", "heatmap"}
        assert {name: row[name] for name in exact} == {name: each.get(name) for name in exact}
        if row["failure"] is None:
            assert row["score"] == pytest.approx(each["score"], rel=1e-5)
            assert row["probability"] == pytest.approx(each["probability"], rel=1e-5)
            assert np.abs(decode_heatmap(row) - decode_heatmap(each)).max() <= 1.01 / 255


def kill_a_worker(out: Path, processes: Path, killed: list[int]) -> None:
    """Kill a worker process as soon as the workers have written a shard."""
    known = {*out.glob("shard-*.parquet")}
    while {*out.glob("shard-*.parquet")} == known:
        time.sleep(0.005)
    (worker, *_) = (int(path.name) for path in processes.iterdir() if int(path.name) != os.getpid())
    os.kill(worker, signal.SIGKILL)
    killed.append(worker)


def test_the_command_gives_the_rows_of_a_local_run_and_skips_what_is_finished(
    cluster, inputs, local_rows, tmp_path, monkeypatch, capsys
):
    def run(*options: object) -> tuple[int, str, str]:
        method = () if "--method" in options else ("--method", "gradcam,layercam")
        settings = ["--model", "demo", "--target", "top2", "--batch-size", 4, "--shard-size", 4]
        arguments = [*inputs, *settings, *method, "--out", tmp_path / "out", *options]
        monkeypatch.setattr(sys, "argv", ["camtool", "cluster", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            app.main()
        return int(end.value.code or 0), *capsys.readouterr()

    code, text, errors = run()
    assert code == 1
    assert "24 photos explained" in text
    assert "7 shards of Parquet" in text
    assert "3 photos could not be explained" in errors
    assert "004.png" in errors
    found = read_shards(tmp_path / "out")
    assert len(found) == 24 * 4 + 3
    assert_same_rows(found, local_rows)

    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    code, text, errors = run()
    assert (code, "(7 from an earlier start)" in text) == (1, True)
    assert "3 photos could not be explained" in errors
    assert "004.png" in errors
    code, _, errors = run("--method", "gradcam")
    assert (code, "other settings" in errors) == (2, True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_true_classes_and_the_preprocessing_reach_the_workers(cluster, inputs, tmp_path, monkeypatch, capsys):
    labels = tmp_path / "labels.csv"
    labels.write_text("image,label\n" + "".join(f"{number:03}.png,star\n" for number in range(12)))
    options = ["--size", "96x112", "--mean", 0.4, "--std", 0.3, "--labels-csv", labels, "--only-wrong"]
    options += ["--cluster-workers", 1]  # each takes seconds to start

    def run(out: str) -> list[dict]:
        arguments = [inputs[0], "--model", "demo", "--shard-size", 6, *options]
        monkeypatch.setattr(sys, "argv", ["camtool", "cluster", *map(str, arguments), "--out", str(tmp_path / out)])
        with pytest.raises(SystemExit):
            app.main()
        assert "photos without a row in" in capsys.readouterr().out
        return read_shards(tmp_path / out)

    found = run("ray")
    monkeypatch.setattr(cluster_run, "run_on_ray", compute_here)
    assert_same_rows(found, run("here"))
    assert {row["correct"] for row in found} == {False, None}
    assert {row["true_label"] for row in found} == {"star", None}


def test_a_killed_worker_loses_and_doubles_nothing_and_a_finished_shard_stays(
    cluster, inputs, local_rows, tmp_path, monkeypatch
):
    out, processes = tmp_path / "out", tmp_path / "processes"
    processes.mkdir()
    plan, folder = plan_shards(inputs, shard_size=4), open_output(str(out))
    run = ClusterRun(plan, folder, {**SETTINGS, "model": RecordedDemo(processes)})
    with monkeypatch.context() as patched:  # an earlier start that was stopped after a shard
        patched.setattr(cluster_run, "run_on_ray", lambda run, shards, *rest: compute_here(run, [shards[1]], *rest))
        list(run.start())
    stamp = (out / plan.shards[1].name).stat().st_mtime_ns
    killed: list[int] = []
    thread = threading.Thread(target=kill_a_worker, args=(out, processes, killed))
    thread.start()
    outcomes = list(run.start())
    thread.join()
    assert killed
    names = {shard.name for shard in plan.shards}
    assert sorted(outcome.name for outcome in outcomes) == sorted(names - {plan.shards[1].name})
    assert (out / plan.shards[1].name).stat().st_mtime_ns == stamp
    assert_same_rows(read_shards(out), local_rows)
    assert {path.name for path in out.iterdir()} == {"run.json"} | names
    assert len([*processes.iterdir()]) >= 3  # this process, two workers, and perhaps the one that replaced the killed


def test_an_error_of_a_worker_reaches_the_user_in_its_own_words(cluster, inputs, tmp_path):
    plan, folder = plan_shards(inputs), open_output(str(tmp_path))
    run = ClusterRun(plan, folder, {"model": "no-such-model"}, resources=Resources(workers=1))
    with pytest.raises(camtool.CamtoolError, match="no-such-model"):
        list(run_on_ray(run, plan.shards, {"versions": {}, "model": {"weights_sha256": ""}}))


def test_ray_data_runs_the_batch_class_as_it_is(cluster, inputs):
    import ray

    photos = ray.data.read_binary_files(inputs[0], include_paths=True)
    found = photos.map_batches(
        ExplainBatch,
        fn_constructor_kwargs={"model": "demo"},
        batch_size=8,
        compute=ray.data.ActorPoolStrategy(size=1),
    ).take_all()
    assert len(found) == 22
    assert sum(row["failure"] is not None for row in found) == 2
    wanted = ExplainBatch("demo")({"path": [row["path"] for row in found]})
    assert [row["label"] for row in found] == wanted["label"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_an_address_without_a_cluster_is_an_error_at_once(inputs, tmp_path, monkeypatch, address):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", None)  # it would wait for half a minute
    plan = plan_shards(inputs)
    run = ClusterRun(plan, open_output(str(tmp_path / "out")), SETTINGS, address=address)
    with pytest.raises(camtool.CamtoolError, match=f"--address {address}: no Ray cluster can be reached"):
        list(run_on_ray(run, plan.shards, {}))
    assert not [*(tmp_path / "out").iterdir()]


def test_what_the_cluster_refuses_removes_no_earlier_run(inputs, tmp_path, monkeypatch, capsys):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    arguments = [inputs[0], "--model", "demo", "--out", str(tmp_path / "out")]

    def run(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["camtool", "cluster", *map(str, arguments), *options])
        with pytest.raises(SystemExit):
            app.main()
        return "".join(capsys.readouterr())

    with monkeypatch.context() as patched:
        patched.setattr(cluster_run, "run_on_ray", compute_here)
        run()
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert "--cpus-per-worker 99: the cluster has 1 cores" in run("--overwrite", "--cpus-per-worker", "99")
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


# ------------------------------------------------------------------------------------------- resources and settings


@pytest.mark.parametrize(
    ("asked", "cluster", "wanted"),
    [
        (Resources(), {"CPU": 8}, (0, 1, 8)),
        (Resources(cpus=3), {"CPU": 8}, (0, 3, 2)),
        (Resources(workers=2), {"CPU": 8}, (0, 1, 2)),
        (Resources(), {"CPU": 32, "GPU": 4}, (1, 8, 4)),
        (Resources(gpus=0.5), {"CPU": 32, "GPU": 4}, (0.5, 4, 8)),
        (Resources(gpus=0), {"CPU": 32, "GPU": 4}, (0, 1, 32)),
        (Resources(gpus=1, workers=16), {"CPU": 4, "GPU": 1}, (1, 1, 16)),
    ],
)
def test_workers_by_the_resources_of_the_cluster(asked, cluster, wanted):
    found = asked.resolve(cluster)
    assert (found.gpus, found.cpus, found.workers) == wanted


@pytest.mark.parametrize("asked", [Resources(gpus=1), Resources(cpus=9)])
def test_more_than_the_cluster_has_is_an_error(asked):
    with pytest.raises(camtool.CamtoolError, match="the cluster has"):
        asked.resolve({"CPU": 8})
