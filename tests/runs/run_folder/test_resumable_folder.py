"""Runs that are continued: same bytes as an uninterrupted run, one run at a time, and nothing else is touched."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import camtool
from camtool.rendering import image_writing
from camtool.runs.executor import run_jobs
from camtool.runs.job_list import plan_run
from camtool.runs.result_writer import Failure, Success
from camtool.runs.run_folder import resumable_folder
from camtool.runs.run_folder.photo_records import JOURNAL, PHOTOS, read_records
from camtool.runs.run_folder.resumable_folder import RunStart
from camtool.runs.save_kinds import OutputSettings
from camtool.runs.stored_files import MANIFEST
from camtool.targets import Top
from tests.runs.photos import posix, write_photo
from tests.runs.test_executor import build_explainer, read_manifest, write_broken_photo

SETTINGS = {"method": ["gradcam"]}
NAMES = ("a.png", "b.png", "bad.png", "c.png", "d.png", "e.png", "f.png")
BATCH = 3


def start_run(photos: Path, out: Path, *, explainer: Any = None, paths: Sequence[Path] = (), **start: Any) -> Any:
    """Start, or continue, a run in batches of three."""
    planned = plan_run([str(path) for path in paths or [photos]], out=out)
    asked = RunStart(start.pop("description", SETTINGS), **start)
    output = OutputSettings(out, ("overlay", "raw"))
    return run_jobs(
        explainer or build_explainer(), planned.jobs, [Top(1)], output, batch_size=BATCH, workers=0, start=asked
    )


def run(photos: Path, out: Path, **start: Any) -> list[Success | Failure]:
    return list(start_run(photos, out, **start))


def stop_after(count: int, photos: Path, out: Path, **start: Any) -> None:
    """Start a run, and stop it after some photos, as Ctrl-C does."""
    outcomes = start_run(photos, out, **start)
    for _ in range(count):
        next(outcomes)
    outcomes.close()


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def list_new(outcomes: Sequence[Success | Failure]) -> list[str]:
    """List the photos that were explained now, and not in an earlier start."""
    return [each.job.source.stem for each in outcomes if not each.is_recorded]


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder with six photos and a broken one: batches of 3, 3 and 1."""
    for number, name in enumerate(NAMES):
        write_photo(tmp_path / "photos" / name, None if number % 2 else 20 * number)
    write_broken_photo(tmp_path / "photos" / "bad.png")
    return tmp_path / "photos"


@pytest.fixture
def whole(tmp_path, photos) -> dict[str, bytes]:
    """The files of an uninterrupted run."""
    run(photos, tmp_path / "whole")
    return read_files(tmp_path / "whole")


# ------------------------------------------------------------------------------------------------------ continuing


@pytest.mark.parametrize("count", range(1, 8))
def test_a_stopped_run_ends_with_the_same_bytes(tmp_path, photos, whole, count):
    stop_after(count, photos, tmp_path / "out")
    assert len(read_manifest(tmp_path / "out")) == count - (count > 2)
    found = run(photos, tmp_path / "out")
    assert read_files(tmp_path / "out") == whole
    assert len(list_new(found)) == 7 - (count // BATCH * BATCH if count < 7 else 7)
    assert [each.job.source.name for each in found] == list(NAMES)


@pytest.mark.parametrize(
    ("black", "broken", "count"),
    [
        # Black images show no difference between copies of the model, so the engine is refused.
        (["a"], [], 3),
        ([], [], 3),
        ([], [], 6),
        # Two batches hold a single image, which is compared with the model's own result on its own.
        ([], ["d", "e"], 6),
    ],
)
def test_a_run_with_an_engine_ends_with_the_same_bytes(tmp_path, photos, black, broken, count):
    """The first photos in a process decide whether the engine is used. Last bits show which one it is."""

    def start(out: Path) -> dict[str, Any]:
        explainer = camtool.Explainer(camtool.load("demo"), engine="prepared")
        return {"photos": photos, "out": out, "explainer": explainer, "description": {"engine": "prepared"}}

    for name in NAMES:
        write_photo(photos / name, 0 if name[0] in black else None)
    for name in (*broken, "bad"):
        write_broken_photo(photos / f"{name}.png")
    run(**start(tmp_path / "whole"))
    stop_after(count, **start(tmp_path / "out"))
    run(**start(tmp_path / "out"))
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")


def test_a_finished_run_does_nothing(tmp_path, photos, whole, monkeypatch):
    monkeypatch.setattr(camtool.Explainer, "__call__", None)
    found = run(photos, tmp_path / "whole")
    assert list_new(found) == []
    assert read_files(tmp_path / "whole") == whole
    assert [type(each) for each in found].count(Failure) == 1
    assert [line for each in found if isinstance(each, Success) for line in each.lines]


def test_the_lists_hold_each_photo_once_in_the_order_of_the_jobs(tmp_path, photos, whole):
    records = list(read_records(tmp_path / "whole" / PHOTOS))
    assert [Path(each.image).name for each in records] == list(NAMES)
    assert [each.batch for each in records] == [0, 0, 0, 1, 1, 1, 2]
    (failure,) = map(json.loads, whole["failures.jsonl"].splitlines())
    assert failure["image"] == str(photos / "bad.png")
    assert "damaged" in failure["reason"]
    assert json.loads(whole["run.json"]) == {"format": "camtool run 1", "camtool": camtool.__version__, **SETTINGS}


@pytest.mark.parametrize("damage", ["remove", "cut", "empty"])
def test_a_file_that_is_not_whole_is_made_again_with_its_batch(tmp_path, photos, whole, damage):
    path = tmp_path / "whole" / read_manifest(tmp_path / "whole")[3]["files"]["raw"]
    content = path.read_bytes()
    path.unlink() if damage == "remove" else path.write_bytes(content[:-1] if damage == "cut" else b"")
    assert list_new(run(photos, tmp_path / "whole")) == ["c", "d", "e"]
    assert read_files(tmp_path / "whole") == whole


def test_after_a_kill_files_are_compared_by_their_hash(tmp_path, photos, whole):
    path = tmp_path / "whole" / read_manifest(tmp_path / "whole")[0]["files"]["raw"]
    path.write_bytes(bytes(path.stat().st_size))  # what a power failure may leave
    (tmp_path / "whole" / JOURNAL).touch()
    assert list_new(run(photos, tmp_path / "whole")) == ["a", "b", "bad"]
    assert read_files(tmp_path / "whole") == whole


@pytest.mark.parametrize("name", [MANIFEST, "failures.jsonl"])
@pytest.mark.parametrize("damage", ["remove", "cut", "longer"])
def test_a_damaged_list_is_written_again(tmp_path, photos, whole, name, damage):
    path = tmp_path / "whole" / name
    path.unlink() if damage == "remove" else path.write_bytes(whole[name][:-9] if damage == "cut" else whole[name] * 2)
    assert list_new(run(photos, tmp_path / "whole")) == []
    assert read_files(tmp_path / "whole") == whole


def test_a_damaged_record_is_made_again(tmp_path, photos, whole):
    path = tmp_path / "whole" / PHOTOS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:6], b'{"image": "cut sh']))
    assert list_new(run(photos, tmp_path / "whole")) == ["f"]
    assert read_files(tmp_path / "whole") == whole


# ---------------------------------------------------------------------------------------------- photos that change


def test_new_photos_are_explained_and_overwrite_nothing(tmp_path, photos, whole):
    for name in ("aa.png", "a.jpg", "A.webp", "z.png"):
        write_photo(photos / name)
    assert sorted(list_new(run(photos, tmp_path / "whole"))) == ["A", "a", "aa", "z"]
    files = read_files(tmp_path / "whole")
    lists = {PHOTOS, MANIFEST}
    assert {name: files[name] for name in whole if name not in lists} == {
        name: content for name, content in whole.items() if name not in lists
    }
    assert files[MANIFEST].startswith(whole[MANIFEST])
    named = [file for line in read_manifest(tmp_path / "whole") for file in line["files"].values()]
    assert len({name.casefold() for name in named}) == len(named) == 2 * 10
    assert list_new(run(photos, tmp_path / "whole")) == []


def test_a_changed_photo_is_explained_again_with_its_batch(tmp_path, photos, whole):
    write_photo(photos / "d.png", 150)
    assert list_new(run(photos, tmp_path / "whole")) == ["c", "d", "e"]
    run(photos, tmp_path / "new")
    assert read_files(tmp_path / "whole") == read_files(tmp_path / "new") != whole


def test_a_photo_that_is_changed_and_stopped_in_its_batch_is_not_mixed_with_the_old_batch(tmp_path, photos, whole):
    write_photo(photos / "c.png", 150)
    stop_after(4, photos, tmp_path / "whole")  # c alone is explained again
    assert list_new(run(photos, tmp_path / "whole")) == ["c", "d", "e"]
    run(photos, tmp_path / "new")
    assert read_files(tmp_path / "whole") == read_files(tmp_path / "new")


def test_files_of_an_earlier_label_are_removed(tmp_path, photos, whole):
    other = build_explainer(labels=("ape", "bat", "cow"))
    write_photo(photos / "a.png", 77)
    run(photos, tmp_path / "whole", explainer=other)
    named = {file for line in read_manifest(tmp_path / "whole") for file in line["files"].values()}
    assert {name for name in read_files(tmp_path / "whole") if name.endswith((".png", ".npy"))} == named
    assert any("-ape" in name or "-bat" in name or "-cow" in name for name in named)


def test_results_of_a_removed_photo_are_kept(tmp_path, photos, whole):
    (photos / "d.png").unlink()
    assert list_new(run(photos, tmp_path / "whole")) == []
    assert read_files(tmp_path / "whole") == whole


@posix
def test_results_of_a_removed_photo_outlast_a_kill_in_its_batch(tmp_path, photos, whole):
    write_photo(photos / "c.png", 150)
    (photos / "d.png").unlink()
    out = tmp_path / "whole"
    program = HOLD.format(tests=Path(__file__).parents[3], photos=photos, out=out, count=4)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        process.kill()
    assert list_new(run(photos, out)) == ["c", "e"]
    assert sum(Path(line["image"]).name == "d.png" for line in read_manifest(out)) == 1
    assert {name: content for name, content in read_files(out).items() if name.startswith("d.")} == {
        name: content for name, content in whole.items() if name.startswith("d.")
    }
    assert list_new(run(photos, out)) == []


def test_failed_photos_are_tried_again_on_demand(tmp_path, photos, whole):
    assert list_new(run(photos, tmp_path / "whole")) == []
    assert list_new(run(photos, tmp_path / "whole", retry_failed=True)) == ["a", "b", "bad"]
    assert read_files(tmp_path / "whole") == whole


def test_a_repaired_photo_is_explained(tmp_path, photos, whole):
    write_photo(photos / "bad.png")
    assert list_new(run(photos, tmp_path / "whole")) == ["a", "b", "bad"]
    assert (tmp_path / "whole" / "failures.jsonl").read_bytes() == b""


@posix
@pytest.mark.parametrize("names", [("caf\udce9.png", "café.png"), ("n" * 240 + "a.png", "n" * 240 + "b.png")])
def test_unusual_names_are_continued(tmp_path, names):
    for name in names:
        write_photo(tmp_path / "x.png").rename(tmp_path / name)
    paths = [tmp_path / name for name in names]
    run(tmp_path, tmp_path / "whole", paths=paths)
    stop_after(1, tmp_path, tmp_path / "out", paths=paths)
    run(tmp_path, tmp_path / "out", paths=paths)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    assert len(read_manifest(tmp_path / "out")) == 2
    assert list_new(run(tmp_path, tmp_path / "out", paths=paths)) == []


# -------------------------------------------------------------------------------------- other settings, overwriting


def test_other_settings_are_refused(tmp_path, photos, whole):
    with pytest.raises(camtool.CamtoolError, match=r"method: gradcam then, layercam now\n.*--out.*--overwrite"):
        run(photos, tmp_path / "whole", description={"method": ["layercam"]})
    assert read_files(tmp_path / "whole") == whole


def test_overwriting_removes_the_files_of_the_run_and_nothing_else(tmp_path, photos, whole):
    out = tmp_path / "whole"
    (out / "notes.txt").write_text("mine")
    (out / "a.gradcam.mine.png").write_text("mine")
    run(photos, out, paths=[photos / "b.png"], description={"method": ["other"]}, overwrite=True)
    assert {line["image"] for line in read_manifest(out)} == {str(photos / "b.png")}
    pictures = {name for name in read_files(out) if name.endswith((".png", ".npy"))}
    assert {name.partition(".")[0] for name in pictures - {"a.gradcam.mine.png"}} == {"b"}
    assert (out / "notes.txt").read_text() == (out / "a.gradcam.mine.png").read_text() == "mine"


def test_results_whose_settings_are_unknown_are_not_continued(tmp_path, photos, whole):
    with pytest.raises(camtool.CamtoolError, match="settings are unknown"):
        run(photos, tmp_path / "whole", description=None)
    assert read_files(tmp_path / "whole") == whole


@posix
def test_paths_that_lead_out_of_the_folder_are_not_removed(tmp_path, photos, whole):
    precious, out = tmp_path / "precious", tmp_path / "whole"
    precious.mkdir()
    (precious / "a.png").write_text("keep")
    (out / "link").symlink_to(precious)
    lines = [json.loads(line) for line in (out / PHOTOS).read_text().splitlines()]
    for name in ("../precious/a.png", str(precious / "a.png"), "link/a.png"):
        lines[0]["files"][name] = {"bytes": 4, "sha256": ""}
    (out / PHOTOS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    run(photos, out, overwrite=True)
    assert (precious / "a.png").read_text() == "keep"


def test_temporary_files_are_removed_and_no_others(tmp_path, photos, whole):
    out = tmp_path / "whole"
    left = out / f".camtool-{'0' * 32}.tmp"
    other = out / f".{'0' * 32}.tmp"
    left.touch(), other.touch()
    run(photos, out)
    assert (left.exists(), other.exists()) == (False, True)


# ------------------------------------------------------------------------------------------------------- full disks


class FullFile:
    """An unbuffered file on a disk with a number of free bytes."""

    def __init__(self, file: Any, free: int) -> None:
        self._file, self._free = file, free

    def write(self, data: memoryview) -> int:
        if not self._free:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(data[: self._free])
        self._free -= written
        return written

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("free", [0, 20, 700, 1500, 2500])
def test_a_disk_that_fills_up_within_a_record_leaves_complete_lines(tmp_path, photos, whole, monkeypatch, free):
    real = resumable_folder._open_journal
    with monkeypatch.context() as patch:
        patch.setattr(resumable_folder, "_open_journal", lambda folder: FullFile(real(folder), free))
        with pytest.raises(OSError, match="No space left") as caught:
            run(photos, tmp_path / "out")
    assert caught.value.filename == str(tmp_path / "out" / PHOTOS)
    assert whole[MANIFEST].startswith((tmp_path / "out" / MANIFEST).read_bytes())
    run(photos, tmp_path / "out")
    assert read_files(tmp_path / "out") == whole


@posix
@pytest.mark.parametrize("most", [1, 4, 9, 14])
def test_a_full_disk_is_continued_when_there_is_space(tmp_path, photos, whole, monkeypatch, most):
    """After so many files, none can be written: neither a picture nor a list."""
    left, real = iter(range(most)), Path.replace

    def replace(self: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(OSError, match="No space left"):
            run(photos, tmp_path / "out")
    run(photos, tmp_path / "out")
    assert read_files(tmp_path / "out") == whole


@pytest.mark.parametrize("when", ["write", "replace"])
def test_a_disk_error_names_the_file(tmp_path, monkeypatch, when):
    if when == "replace":
        monkeypatch.setattr(Path, "replace", raise_disk_full)
    inside = raise_disk_full if when == "write" else str
    with pytest.raises(OSError, match="No space left") as caught, image_writing.open_atomically(tmp_path / "a.png"):
        inside()
    assert (caught.value.filename, caught.value.errno) == (str(tmp_path / "a.png"), errno.ENOSPC)
    assert [*tmp_path.iterdir()] == []


def raise_disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@posix
def test_a_read_only_folder_is_an_error_and_stays_as_it_is(tmp_path, photos, whole, monkeypatch):
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refuse)  # the superuser may write everywhere
    with pytest.raises(OSError, match="Read-only"):
        run(photos, tmp_path / "whole", retry_failed=True)
    assert read_files(tmp_path / "whole") == whole


# ------------------------------------------------------------------------------------------------------------ locks


def test_a_second_run_into_the_folder_is_refused_with_the_process_id(tmp_path, photos, whole):
    outcomes = start_run(photos, tmp_path / "out")
    next(outcomes)
    with pytest.raises(camtool.CamtoolError, match=rf"another run .*process {os.getpid()} on .*--out"):
        run(photos, tmp_path / "out", overwrite=True)
    run(photos, tmp_path / "out" / "below")
    list(outcomes)
    files = read_files(tmp_path / "out")
    assert {name: content for name, content in files.items() if not name.startswith("below")} == whole


HOLD = """
import sys, time
from pathlib import Path
sys.path[:0] = [r"{tests}"]
from tests.runs.run_folder.test_resumable_folder import start_run
outcomes = start_run(Path(r"{photos}"), Path(r"{out}"))
for _ in range({count}):
    next(outcomes)
print("held", flush=True)
time.sleep(60)
"""


@posix
def test_a_killed_run_holds_no_lock_and_is_continued(tmp_path, photos, whole):
    out = tmp_path / "out"
    program = HOLD.format(tests=Path(__file__).parents[3], photos=photos, out=out, count=5)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        with pytest.raises(camtool.CamtoolError, match=f"process {process.pid} "):
            run(photos, out)
        process.kill()
    with (out / JOURNAL).open("ab") as journal:
        journal.write(b'{"image": "cut sh')
    assert list_new(run(photos, out)) == ["c", "d", "e", "f"]
    assert read_files(out) == whole


@posix
@pytest.mark.parametrize("name", [f".{MANIFEST}.lock", JOURNAL])
def test_links_in_the_folder_are_not_followed(tmp_path, photos, name):
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(precious)
    with suppress(OSError, camtool.CamtoolError):
        run(photos, tmp_path / "out")
    assert precious.read_text() == "keep"
