"""Compiled graphs are kept in files, and read again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch import nn

import camtool
from camtool.engines import engine_runner
from camtool.engines.graph_files import _delete_oldest, compute_key, find_folder, make_once
from camtool.hooks.structures.caches import forget_model
from tests.engines.nets import assert_agree, build, explain_twice


def test_damaged_files_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
    net, x = build(), torch.randn(1, 3, 16, 20)
    explain_twice(net, x, 1, engine="onnxruntime")
    (plan,) = tmp_path.rglob("plan.json")
    plan.write_text("{")
    for falls_back in (True, False):  # the damage is met by one process, and mended by the next
        forget_model(net)
        (ours,) = explain_twice(net, x, 1, engine="onnxruntime", falls_back=falls_back)
        assert_agree(ours, camtool.explain(net, x, 1)[0])


def test_a_compiled_model_is_read_from_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = build(), torch.randn(1, 3, 16, 20)
    explain_twice(net, x, 1, engine="onnxruntime")
    forget_model(net)  # as in another process
    monkeypatch.setattr(engine_runner, "write_program", lambda *_: pytest.fail("it was compiled again"))
    assert_agree(explain_twice(net, x, 1, engine="onnxruntime")[0], camtool.explain(net, x, 1)[0])
    # The other runtime reads the same files.
    assert_agree(explain_twice(net, x, 1, engine="openvino")[0], camtool.explain(net, x, 1)[0])


def test_the_key_depends_on_structure_weights_and_settings() -> None:
    net = build()
    keys = {compute_key(net, ["a"]), compute_key(net, ["b"])}
    net.last[1] = nn.ReLU()
    keys.add(compute_key(net, ["a"]))
    with torch.no_grad():
        net.head.bias[0] += 1
    keys.add(compute_key(net, ["a"]))
    assert len(keys) == 4
    assert compute_key(net, ["a"]) in keys


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_key_depends_on_weights_that_are_no_parameters() -> None:
    nets = [
        torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}, torch.qint8)
        for _ in range(2)
    ]
    assert not [*nets[0].parameters()]
    assert len({compute_key(net, []) for net in nets}) == 2
    assert compute_key(nets[0], []) == compute_key(nets[0], [])


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CAMTOOL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_folder() == tmp_path / "camtool"


def test_files_are_made_once_and_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        make_once("key", lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    assert [*(tmp_path / "engines").iterdir()] == []
    for text in ("first", "second"):
        made = make_once("key", lambda folder, text=text: (folder / "file").write_text(text))  # type: ignore[misc]
        assert (made / "file").read_text() == "first"


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")
def test_what_a_killed_process_was_making_is_removed_and_what_a_living_one_makes_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A lock belongs to an open file, so a call inside of another one meets it as another process does."""
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
    killed = tmp_path / "engines" / "unfinished-killed"  # not locked: the system unlocks what a killed process held
    (killed / "key").mkdir(parents=True)
    os.utime(killed, (1000, 1000))

    def make(folder: Path) -> None:
        os.utime(folder.parent, (1000, 1000))
        make_once("other", lambda _: None)
        assert folder.is_dir()

    make_once("living", make)
    assert {each.name for each in (tmp_path / "engines").iterdir()} == {"living", "other"}


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")
def test_what_a_process_left_that_killed_itself_is_removed_by_the_next_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
    script = """if True:
        import os, signal, torch, camtool
        from camtool.engines import engine_runner
        from tests.engines.nets import build
        write = engine_runner.write_program
        def write_and_die(*arguments):
            write(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        engine_runner.write_program = write_and_die
        camtool.explain(build(), torch.randn(1, 3, 16, 20), 1, engine="onnxruntime")
    """
    places = os.pathsep.join(map(str, (Path(__file__).parents[2], Path(camtool.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": places}, capture_output=True, timeout=300
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    (left,) = (tmp_path / "engines").iterdir()
    assert left.name.startswith("unfinished-")
    assert any(each.is_file() for each in left.rglob("*"))
    earlier = time.time() - 3  # a newer one may belong to a process that has not locked it yet
    os.utime(left, (earlier, earlier))
    make_once("next", lambda _: None)
    assert [each.name for each in (tmp_path / "engines").iterdir()] == ["next"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="folders cannot be locked there")
def test_a_folder_that_its_process_has_not_locked_yet_is_not_locked_by_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
    new, locked = tmp_path / "engines" / "unfinished-new", list[int]()
    new.mkdir(parents=True)
    monkeypatch.setattr("fcntl.flock", lambda descriptor, _: locked.append(os.fstat(descriptor).st_ino))
    make_once("other", lambda _: None)
    assert len(locked) == 1
    assert new.stat().st_ino not in locked


def test_the_oldest_files_are_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("camtool.engines.graph_files._LIMIT", 250)
    for age, name in enumerate(("new", "middle", "old", "unfinished-x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    _delete_oldest(tmp_path.iterdir(), keep=tmp_path / "middle")
    assert {each.name for each in tmp_path.iterdir()} == {"new", "middle", "unfinished-x"}


def test_graphs_that_another_process_deletes_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that find the folder too large delete the same graphs, and one may be asked for meanwhile."""

    class Vanishing(type(Path())):  # type: ignore[misc]
        def is_dir(self) -> bool:
            exists = super().is_dir()
            shutil.rmtree(self, ignore_errors=True)
            return bool(exists)

    for name in ("kept", "old", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(100))
    monkeypatch.setattr("camtool.engines.graph_files._LIMIT", 150)
    _delete_oldest([tmp_path / "kept", Vanishing(tmp_path / "old"), tmp_path / "other"], keep=tmp_path / "kept")
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]


def test_a_graph_that_is_deleted_while_it_is_asked_for_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
    made = make_once("key", lambda folder: (folder / "file").touch())  # type: ignore[arg-type, return-value]
    note_use = os.utime

    def delete_first(path: Path) -> None:
        monkeypatch.undo()
        monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
        shutil.rmtree(path)
        note_use(path)

    monkeypatch.setattr("os.utime", delete_first)
    make_once("key", lambda folder: (folder / "again").touch())  # type: ignore[arg-type, return-value]
    assert [one.name for one in made.iterdir()] == ["again"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that start at once")
def test_processes_that_make_one_graph_at_once_all_find_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
    processes_of = get_context("fork")
    everybody = processes_of.Barrier(4)

    def make(folder: Path) -> None:
        everybody.wait(60)  # each process makes it, as none has finished
        for number in range(20):
            (folder / str(number)).write_bytes(bytes(1000))

    def use() -> None:
        made = make_once("key", make)
        assert {one.stat().st_size for one in made.iterdir()} == {1000}
        assert len([*made.iterdir()]) == 20

    processes = [processes_of.Process(target=use) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    assert [one.name for one in (tmp_path / "engines").iterdir()] == ["key"]
