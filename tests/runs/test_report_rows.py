"""Manifest of an output folder: one run at a time, complete lines, and no line lost."""

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
from camtool.rendering import image_writing
from camtool.runs.report_rows import MANIFEST, ManifestLine, open_manifest
from camtool.runs.text_escapes import escape_hidden

posix = pytest.mark.skipif(os.name != "posix", reason="signals, links and killed processes are POSIX's")


def build_line(image: str, label: str = "cat", **changes: Any) -> ManifestLine:
    values: dict[str, Any] = {"index": 0, "score": 1.0, "probability": None, "warnings": (), "box": None, **changes}
    return ManifestLine(image, "gradcam", "x", label, files={"overlay": f"{image}.{label}.png"}, **values)


def write(folder: Path, *lines: ManifestLine, complete: bool = True, error: BaseException | None = None) -> None:
    with open_manifest(folder) as manifest:
        for each in lines:
            manifest.add([each])
            if complete:
                manifest.mark_complete(each.image)
        if error is not None:
            raise error


def read_labels(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    return [(line["image"], line["label"]) for line in map(json.loads, lines)]


def list_hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


# ---------------------------------------------------------------------------------------------------- several runs


def test_a_run_replaces_lines_about_its_photos_and_keeps_the_rest(tmp_path):
    write(tmp_path, build_line("a"), build_line("b"), build_line("b", "dog"))
    write(tmp_path, build_line("b", "cow"), build_line("c"))
    assert read_labels(tmp_path) == [("a", "cat"), ("b", "cow"), ("c", "cat")]
    assert list_hidden(tmp_path) == []


def test_only_overwritten_lines_of_an_incomplete_photo_are_replaced(tmp_path):
    write(tmp_path, build_line("a"), build_line("a", "dog"))
    write(tmp_path, build_line("a", "dog", score=2.0), complete=False)
    assert read_labels(tmp_path) == [("a", "cat"), ("a", "dog")]


def test_a_run_without_results_keeps_the_manifest(tmp_path):
    write(tmp_path / "new")
    assert read_labels(tmp_path / "new") == []
    write(tmp_path / "old", build_line("a"))
    before = (tmp_path / "old" / MANIFEST).read_bytes()
    write(tmp_path / "old")
    assert (tmp_path / "old" / MANIFEST).read_bytes() == before


@pytest.mark.parametrize("reason", [OSError(28, "No space left"), KeyboardInterrupt(), camtool.TargetError("no such")])
@pytest.mark.parametrize("new", [[], [build_line("c")]], ids=["at once", "later"])
def test_an_error_loses_no_line(tmp_path, reason, new):
    write(tmp_path, build_line("a"), build_line("b"))
    with pytest.raises(type(reason)):
        write(tmp_path, *new, error=reason)
    assert read_labels(tmp_path) == [("a", "cat"), ("b", "cat"), *([("c", "cat")] if new else [])]
    assert list_hidden(tmp_path) == []


def test_a_run_that_fails_at_once_in_a_new_folder_leaves_no_manifest(tmp_path):
    with pytest.raises(camtool.TargetError):
        write(tmp_path, error=camtool.TargetError("no such class"))
    assert [*tmp_path.iterdir()] == []


def test_damaged_lines_of_an_earlier_run_are_kept(tmp_path):
    damaged = b'{"image": "a", "lab{"image": "b"}\n\xff\xfe\n[1]\n{"files": 3}\n{"image": "a"}'
    (tmp_path / MANIFEST).write_bytes(damaged)
    write(tmp_path, build_line("b"))
    assert (tmp_path / MANIFEST).read_bytes().startswith(damaged + b"\n")


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


def write_on_a_full_disk(folder: Path, free: int) -> None:
    with open_manifest(folder) as manifest:
        manifest.add([build_line("a")])
        manifest._file = FullFile(manifest._file, free)
        manifest.add([build_line("b")])


def test_a_disk_that_fills_up_within_a_line_leaves_complete_lines(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught:
        write_on_a_full_disk(tmp_path, free=20)
    assert caught.value.filename == str(tmp_path / MANIFEST)
    assert read_labels(tmp_path) == [("a", "cat")]


def test_the_next_run_recovers_lines_if_the_new_manifest_does_not_fit(tmp_path, monkeypatch):
    write(tmp_path, build_line("a"))
    with monkeypatch.context() as patch:
        patch.setattr("camtool.runs.report_rows.open_atomically", raise_disk_full)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path, build_line("b"))
    assert read_labels(tmp_path) == [("a", "cat")]
    write(tmp_path, build_line("c"))
    assert read_labels(tmp_path) == [("a", "cat"), ("b", "cat"), ("c", "cat")]


def raise_disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("when", ["write", "replace"])
def test_a_disk_error_names_the_manifest(tmp_path, monkeypatch, when):
    if when == "replace":
        monkeypatch.setattr(Path, "replace", raise_disk_full)
    inside = raise_disk_full if when == "write" else str
    with pytest.raises(OSError, match="No space left") as caught, image_writing.open_atomically(tmp_path / "a.png"):
        inside()
    assert (caught.value.filename, caught.value.errno) == (str(tmp_path / "a.png"), errno.ENOSPC)
    assert [*tmp_path.iterdir()] == []


# ------------------------------------------------------------------------------------------------------------ locks


def test_a_second_run_into_the_folder_is_refused_with_the_process_id(tmp_path):
    with open_manifest(tmp_path) as manifest:
        manifest.add([build_line("a")])
        with pytest.raises(camtool.CamtoolError, match=rf"another run .*process {os.getpid()} on .*--out"):
            write(tmp_path, build_line("b"))
        write(tmp_path / "below", build_line("b"))
        manifest.add([build_line("c")])
    assert read_labels(tmp_path) == [("a", "cat"), ("c", "cat")]
    write(tmp_path, build_line("b"))


HOLD = """
import sys, time
from pathlib import Path
sys.path[:0] = [r"{tests}"]
from tests.runs.test_report_rows import build_line, open_manifest
with open_manifest(Path(r"{folder}")) as manifest:
    manifest.add([build_line("killed")])
    print("held", flush=True)
    time.sleep(60)
"""


@posix
def test_a_killed_run_holds_no_lock_and_its_lines_are_recovered(tmp_path):
    write(tmp_path, build_line("a"))
    program = HOLD.format(tests=Path(__file__).parents[2], folder=tmp_path)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        with pytest.raises(camtool.CamtoolError, match=f"process {process.pid} "):
            write(tmp_path, build_line("b"))
        process.kill()
    with (tmp_path / f".{MANIFEST}.part").open("ab") as part:
        part.write(b'{"image": "cut sh')
    write(tmp_path, build_line("b"))
    assert read_labels(tmp_path) == [("a", "cat"), ("killed", "cat"), ("b", "cat")]
    assert list_hidden(tmp_path) == []


@posix
@pytest.mark.parametrize("name", [f".{MANIFEST}.lock", f".{MANIFEST}.part"])
def test_links_in_the_folder_are_not_followed(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(precious)
    with suppress(OSError):
        write(tmp_path / "out", build_line("a"))
    assert precious.read_text() == "keep"


def test_a_label_with_line_breaks_is_one_line_of_the_manifest(tmp_path):
    label = "cat\n\u2028\x85dog\x1b[2J"
    write(tmp_path, build_line("a", label))
    assert read_labels(tmp_path) == [("a", label)]
    assert escape_hidden((tmp_path / MANIFEST).read_text(encoding="utf-8").rstrip("\n")).count("\\x") == 0
