"""Overwriting a run: the old one is lost only when the new one has a result, also if the process is killed."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

import camtool
from camtool.runs.executor import run_jobs
from camtool.runs.job_list import plan_run
from camtool.runs.run_folder import photo_records
from camtool.runs.run_folder.description import encode_description, write_description
from camtool.runs.run_folder.photo_records import LISTS, PHOTOS, PhotoRecord, encode_record, replace_old_run
from camtool.runs.run_folder.resumable_folder import RunStart
from camtool.runs.save_kinds import OutputSettings
from tests.cli.test_commands import camtool_, explained, photos
from tests.runs.photos import write_photo
from tests.runs.run_folder.test_resumable_folder import read_files
from tests.runs.test_executor import build_explainer, read_manifest, write_broken_photo

# ruff: noqa: F401, F811  fixtures of other files are used by name


def start_run(photos: Path, out: Path, target: object, **options: object) -> None:
    """Run over photos, and replace the run that is in the folder."""
    start = RunStart({"target": str(target)}, overwrite=True)
    plan = plan_run([str(photos)], out=out)
    for _ in run_jobs(build_explainer(), plan.jobs, [target], OutputSettings(out), start=start, **options):
        pass


@pytest.fixture
def finished(tmp_path) -> Path:
    """The folder of a finished run over two photos, with a file of the user."""
    for name in ("a.png", "b.png"):
        write_photo(tmp_path / "photos" / name)
    start_run(tmp_path / "photos", tmp_path / "out", 0)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    return tmp_path / "out"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_target_that_does_not_exist_changes_no_file(tmp_path, finished, workers):
    before = read_files(finished)
    for wrong in ("tabbi", 99):
        with pytest.raises(camtool.TargetError):
            start_run(tmp_path / "photos", finished, wrong, workers=workers)
        assert read_files(finished) == before


def test_a_method_that_serves_no_photo_changes_no_file(tmp_path, finished, monkeypatch):
    def refuse(*_: object) -> None:
        raise camtool.MethodError("no")

    before = read_files(finished)
    monkeypatch.setattr(camtool.Explainer, "__call__", refuse)
    with pytest.raises(camtool.MethodError):
        start_run(tmp_path / "photos", finished, 0)
    assert read_files(finished) == before


def test_failures_before_the_first_explanation_do_not_count(tmp_path, finished):
    """The first batch holds only a broken photo; the second one shows that the target does not exist."""
    before = read_files(finished)
    write_broken_photo(tmp_path / "photos" / "0.png")
    with pytest.raises(camtool.TargetError):
        start_run(tmp_path / "photos", finished, 99, batch_size=1, workers=0)
    assert read_files(finished) == before


def test_the_old_run_is_gone_when_a_photo_is_explained(tmp_path, finished):
    start = RunStart({"target": "1"}, overwrite=True)
    plan = plan_run([str(tmp_path / "photos" / "b.png"), str(tmp_path / "photos" / "a.png")], out=finished)
    outcomes = run_jobs(
        build_explainer(), plan.jobs, [1], OutputSettings(finished), batch_size=1, workers=0, start=start
    )
    next(outcomes)
    outcomes.close()
    assert [(line["image"], line["index"]) for line in read_manifest(finished)] == [(str(tmp_path / "photos/b.png"), 1)]
    (picture,) = (name for name in read_files(finished) if name.endswith(".png"))
    assert picture.startswith("b.")
    assert not [path.name for path in finished.iterdir() if path.is_dir()]


def test_overwriting_a_stopped_run_removes_no_file_that_is_not_of_its_photos(tmp_path):
    """``2.png`` waits: its results would be ``2.gradcam...``. The user's file ends with its name, and no hash."""
    for name in ("1.png", "2.png"):
        write_photo(tmp_path / "photos" / name)
    plan, out = plan_run([str(tmp_path / "photos")]), tmp_path / "out"
    out.mkdir()
    (out / "holiday-2.gradcam.0-ant.png").write_text("mine")
    start, output = RunStart({"method": ["gradcam"]}), OutputSettings(out)
    outcomes = run_jobs(build_explainer(), plan.jobs, [0], output, batch_size=1, workers=0, start=start)
    next(outcomes)
    outcomes.close()
    (out / "2.gradcam.0-ant.png").write_text("what a killed process had written")
    start_run(tmp_path / "photos", out, 1)
    assert (out / "holiday-2.gradcam.0-ant.png").read_text() == "mine"
    assert not (out / "2.gradcam.0-ant.png").exists()


@pytest.mark.parametrize("ending", ["jpg", "raw.npy"])
def test_a_run_does_not_begin_beside_a_file_that_its_removal_would_take(photos, explained, ending):
    path = Path("out", f"b.gradcam.0-ant.{ending}")
    path.parent.mkdir()
    path.write_text("mine")
    for option in ([], ["--overwrite"]):
        result = explained(*option)
        assert (result.code, path.read_text()) == (2, "mine")
        assert f"{path} has the name of a result, and is not of a run in this folder. Move it" in result.err


def test_a_run_that_only_fails_replaces_the_old_one(tmp_path, finished):
    for name in ("a.png", "b.png"):
        write_broken_photo(tmp_path / "photos" / name)
    start_run(tmp_path / "photos", finished, 0)
    assert read_manifest(finished) == []
    assert len((finished / "failures.jsonl").read_text().splitlines()) == 2
    assert (finished / "notes.txt").read_text() == "mine"


def test_the_command_leaves_a_finished_run_as_it_was(photos, explained):
    assert explained().code == 0
    before = read_files(Path("out"))
    result = explained("--target", "no-such-class", "--overwrite")
    assert result.code == 2
    assert "no-such-class" in result.err
    assert read_files(Path("out")) == before
    assert explained().out.startswith("Nothing to do")


# ------------------------------------------------------------------------------------------------------------- kills


class Killed(BaseException):
    """The moment after which a process does nothing."""


def build_old_run(folder: Path) -> dict[str, bytes]:
    """Write the files of a run that was itself killed: with a journal, and a result in a subfolder."""
    facts = {"bytes": 3, "sha256": ""}
    record = PhotoRecord("a.jpg", "a", 0, explanations=[], files={"a.png": facts, "below/a.npy": facts})
    (folder / "below").mkdir(parents=True)
    for name in (*LISTS, "a.png", "below/a.npy", "mine.txt"):
        (folder / name).write_text("old")
    (folder / PHOTOS).write_bytes(encode_record(record))
    write_description(folder, {})
    return read_files(folder)


def replace_with_new_run(folder: Path) -> None:
    with replace_old_run(folder, is_asked=True) as discard:
        (folder / "run.json").write_text(encode_description({"is": "new"}).decode())
        for name in LISTS[:-1]:
            (folder / name).write_text("new")
        (folder / "a.png").write_text("new")
        discard()
        (folder / "z.png").write_text("new")


def kill_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die before the given change of a file: no later one happens, also not while cleaning up."""
    left = count(steps, -1)

    def wrap(function):
        def step(*arguments, **options):
            if next(left) <= 0:
                raise Killed
            return function(*arguments, **options)

        return step

    for name in ("replace", "rename", "unlink", "write_text"):
        monkeypatch.setattr(Path, name, wrap(getattr(Path, name)))
    monkeypatch.setattr(photo_records.shutil, "rmtree", wrap(shutil.rmtree))


def test_a_kill_at_any_moment_leaves_one_of_the_runs_whole(tmp_path):
    new = {**dict.fromkeys((*LISTS, "a.png", "z.png"), b"new"), "mine.txt": b"old"}
    new["run.json"] = encode_description({"is": "new"})
    found = []
    for steps in count():
        for again in range(0, 12, 3):  # the process that recovers is killed as well
            folder = tmp_path / f"{steps}-{again}"
            old = build_old_run(folder)
            with pytest.MonkeyPatch.context() as patch:
                kill_after(steps, patch)
                try:
                    replace_with_new_run(folder)
                    is_done = True
                except Killed:
                    is_done = False
            with pytest.MonkeyPatch.context() as patch:
                kill_after(again, patch)
                try:
                    with replace_old_run(folder, is_asked=False):
                        pass
                except Killed:
                    pass
            with replace_old_run(folder, is_asked=False):
                pass
            files = read_files(folder)
            # Before the new run has a result, what it wrote under a new name may stay; it is not listed.
            assert files in (old, new, {name: text for name, text in new.items() if name != "z.png"})
            found.append(files == old)
        if is_done:
            break
    assert any(found)
    assert not all(found)
