"""The manifest of an output folder: one run at a time, whole lines, and nothing lost however a run ends."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import camtool
from camtool import images, locking
from camtool.escapes import show_hidden, to_json
from camtool.locking import LockedError, locked
from camtool.manifest import MANIFEST, Entry, open_manifest

posix = pytest.mark.skipif(os.name != "posix", reason="signals, links and killed processes are POSIX's")


def entry(image: str, label: str = "cat", **changes: Any) -> Entry:
    values: dict[str, Any] = {"index": 0, "score": 1.0, "probability": None, "warnings": (), "box": None, **changes}
    return Entry(image, "gradcam", "x", label, files={"overlay": f"{image}.{label}.png"}, **values)


def write(folder: Path, *entries: Entry, complete: bool = True, error: BaseException | None = None) -> None:
    with open_manifest(folder) as manifest:
        for each in entries:
            manifest.add(each)
            if complete:
                manifest.complete(each.image)
        if error is not None:
            raise error


def told(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    return [(line["image"], line["label"]) for line in map(json.loads, lines)]


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


# ---------------------------------------------------------------------------------------------------- several runs


def test_a_run_outdates_what_it_explained_and_keeps_the_rest(tmp_path):
    write(tmp_path, entry("a"), entry("b"), entry("b", "dog"))
    write(tmp_path, entry("b", "cow"), entry("c"))
    assert told(tmp_path) == [("a", "cat"), ("b", "cow"), ("c", "cat")]
    assert hidden(tmp_path) == []


def test_of_a_photo_that_was_explained_in_part_only_what_was_overwritten_is_outdated(tmp_path):
    write(tmp_path, entry("a"), entry("a", "dog"))
    write(tmp_path, entry("a", "dog", score=2.0), complete=False)
    assert told(tmp_path) == [("a", "cat"), ("a", "dog")]


def test_a_run_without_results_leaves_the_manifest_as_it_was(tmp_path):
    write(tmp_path / "new")
    assert told(tmp_path / "new") == []
    write(tmp_path / "old", entry("a"))
    before = (tmp_path / "old" / MANIFEST).read_bytes()
    write(tmp_path / "old")
    assert (tmp_path / "old" / MANIFEST).read_bytes() == before


@pytest.mark.parametrize("reason", [OSError(28, "No space left"), KeyboardInterrupt(), camtool.TargetError("no such")])
@pytest.mark.parametrize("new", [[], [entry("c")]], ids=["at once", "later"])
def test_nothing_is_lost_at_an_error(tmp_path, reason, new):
    write(tmp_path, entry("a"), entry("b"))
    with pytest.raises(type(reason)):
        write(tmp_path, *new, error=reason)
    assert told(tmp_path) == [("a", "cat"), ("b", "cat"), *([("c", "cat")] if new else [])]
    assert hidden(tmp_path) == []


def test_a_run_that_ends_at_once_in_a_new_folder_leaves_no_manifest(tmp_path):
    with pytest.raises(camtool.TargetError):
        write(tmp_path, error=camtool.TargetError("no such class"))
    assert [*tmp_path.iterdir()] == []


def test_garbled_lines_of_an_earlier_run_are_left_alone(tmp_path):
    garbled = b'{"image": "a", "lab{"image": "b"}\n\xff\xfe\n[1]\n{"files": 3}\n{"image": "a"}'
    (tmp_path / MANIFEST).write_bytes(garbled)
    write(tmp_path, entry("b"))
    assert (tmp_path / MANIFEST).read_bytes().startswith(garbled + b"\n")


# ------------------------------------------------------------------------------------------------------- full disks


class FullFile:
    """An unbuffered file on a disk that takes so many bytes more."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: memoryview) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(data[: self._room])
        self._room -= written
        return written

    def close(self) -> None:
        self._file.close()


def write_on_a_full_disk(folder: Path, room: int) -> None:
    with open_manifest(folder) as manifest:
        manifest.add(entry("a"))
        manifest._file = FullFile(manifest._file, room)
        manifest.add(entry("b"))


def test_a_disk_that_is_full_in_the_middle_of_a_line_names_the_manifest_and_leaves_whole_lines(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught:
        write_on_a_full_disk(tmp_path, room=20)
    assert caught.value.filename == str(tmp_path / MANIFEST)
    assert told(tmp_path) == [("a", "cat")]


def test_where_the_new_manifest_does_not_fit_the_next_run_recovers_the_lines(tmp_path, monkeypatch):
    write(tmp_path, entry("a"))
    with monkeypatch.context() as patch:
        patch.setattr("camtool.manifest.writing", full)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path, entry("b"))
    assert told(tmp_path) == [("a", "cat")]
    write(tmp_path, entry("c"))
    assert told(tmp_path) == [("a", "cat"), ("b", "cat"), ("c", "cat")]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("when", ["write", "replace"])
def test_an_error_of_the_disk_names_the_file_that_the_user_knows(tmp_path, monkeypatch, when):
    if when == "replace":
        monkeypatch.setattr(Path, "replace", full)
    inside = full if when == "write" else str
    with pytest.raises(OSError, match="No space left") as caught, images.writing(tmp_path / "a.png"):
        inside()
    assert (caught.value.filename, caught.value.errno) == (str(tmp_path / "a.png"), errno.ENOSPC)
    assert [*tmp_path.iterdir()] == []


# ------------------------------------------------------------------------------------------------------------ locks


def test_a_second_run_into_the_folder_is_refused_and_told_who_writes(tmp_path):
    with open_manifest(tmp_path) as manifest:
        manifest.add(entry("a"))
        with pytest.raises(camtool.CamtoolError, match=rf"another run .*process {os.getpid()} on .*--out"):
            write(tmp_path, entry("b"))
        write(tmp_path / "below", entry("b"))
        manifest.add(entry("c"))
    assert told(tmp_path) == [("a", "cat"), ("c", "cat")]
    write(tmp_path, entry("b"))


HOLD = """
import sys, time
from pathlib import Path
sys.path[:0] = [r"{tests}"]
from test_manifest import entry, open_manifest
with open_manifest(Path(r"{folder}")) as manifest:
    manifest.add(entry("killed"))
    print("held", flush=True)
    time.sleep(60)
"""


@posix
def test_a_killed_run_holds_no_lock_and_its_lines_are_recovered(tmp_path):
    write(tmp_path, entry("a"))
    program = HOLD.format(tests=Path(__file__).parent, folder=tmp_path)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        with pytest.raises(camtool.CamtoolError, match=f"process {process.pid} "):
            write(tmp_path, entry("b"))
        process.kill()
    with (tmp_path / f".{MANIFEST}.part").open("ab") as part:
        part.write(b'{"image": "cut sh')
    write(tmp_path, entry("b"))
    assert told(tmp_path) == [("a", "cat"), ("killed", "cat"), ("b", "cat")]
    assert hidden(tmp_path) == []


@posix
def test_a_lock_file_that_its_holder_removes_before_we_lock_it_is_made_anew(tmp_path, monkeypatch):
    path, real, removed = tmp_path / "lock", locking._try_lock, []

    def lock(descriptor: int) -> bool:
        if not removed:
            removed.append(path.unlink())
        return real(descriptor)

    monkeypatch.setattr(locking, "_try_lock", lock)
    with locked(path), pytest.raises(LockedError, match=str(os.getpid())), locked(path):
        pass
    assert (path.exists(), removed) == (False, [None])


@posix
@pytest.mark.parametrize("name", [f".{MANIFEST}.lock", f".{MANIFEST}.part"])
def test_a_link_in_a_folder_that_somebody_else_prepared_is_not_written_through(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(precious)
    with suppress(OSError):
        write(tmp_path / "out", entry("a"))
    assert precious.read_text() == "keep"


# ---------------------------------------------------------------------------------------------------------- escapes


@pytest.mark.parametrize(
    "odd", ["\x1b[31m", "\n", "\x07", "\x9b31m", "\u202e", "\u2028", "\x7f", "\udce9", "\U000e0041"]
)
def test_what_a_terminal_would_obey_is_spelled_out(odd):
    shown = show_hidden(f"a{odd}b")
    assert shown.isprintable()
    assert shown.encode("ascii").decode("unicode_escape") == f"a{odd}b"
    line = to_json({"label": f"猫{odd}b"})
    assert line.isprintable()
    assert "猫" in line
    assert json.loads(line) == {"label": f"猫{odd}b"}


@pytest.mark.parametrize(
    "text", ["tabby", "Käfer, 猫", "\u0645\u06cc\u200c\u062e", "👩\u200d🚀", "C:\\photos\\a.png", "narrow\u202fspace"]
)
def test_what_people_write_is_left_as_it_is(text):
    assert show_hidden(text) == text


def test_a_label_of_several_lines_is_one_line_of_the_manifest(tmp_path):
    label = "cat\n\u2028\x85dog\x1b[2J"
    write(tmp_path, entry("a", label))
    assert told(tmp_path) == [("a", label)]
    assert show_hidden((tmp_path / MANIFEST).read_text(encoding="utf-8").rstrip("\n")).count("\\x") == 0
