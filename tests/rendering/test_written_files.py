"""What camtool writes under names of its own: it replaces its own files, and never those of the user."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from camtool.arguments import regular_files
from camtool.errors import CamtoolError
from camtool.evaluation.audit.state import hold_folder
from camtool.evaluation.watch.watching import open_folder
from camtool.rendering.written_files import RECORD, check_replaceable, replace_files

TEMPORARY = f".camtool-{{}}{'0' * 31}.tmp"


def write(folder: Path, text: str = "ours") -> None:
    with replace_files(folder, ["a.md"]):
        (folder / "a.md").write_text(text)


def test_own_files_are_replaced_also_in_a_copy_of_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "out")
    write(tmp_path / "out", "again")
    shutil.copytree(tmp_path / "out", tmp_path / "copy", copy_function=shutil.copyfile)
    write(tmp_path / "copy", "elsewhere")
    assert (tmp_path / "copy/a.md").read_text() == "elsewhere"


@pytest.mark.parametrize("was_written", [False, True])
def test_a_file_of_the_user_stays(tmp_path: Path, was_written: bool) -> None:
    if was_written:
        write(tmp_path)
    (tmp_path / "a.md").write_text("mine")
    with pytest.raises(CamtoolError, match=r"not as camtool wrote them, .*: '\S*a\.md'; move them, or give another"):
        write(tmp_path)
    assert (tmp_path / "a.md").read_text() == "mine"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("gone")])
def test_what_is_no_file_is_not_replaced_either(tmp_path: Path, make) -> None:
    make(tmp_path / "a.md")
    with pytest.raises(CamtoolError, match=r"not as camtool wrote them, .*a\.md'"):
        check_replaceable(tmp_path, ["a.md"])


def test_all_files_in_the_way_are_named_at_once(tmp_path: Path) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("of an earlier version")
    with pytest.raises(CamtoolError, match=r"or that an earlier version wrote: '\S*a\.md', '\S*b\.md'; move them"):
        check_replaceable(tmp_path, ["a.md", "b.md", "c.md"])


def test_what_has_no_hash_is_not_taken_for_what_was_never_written(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), replace_files(tmp_path, ["a.md"]):
        raise KeyboardInterrupt
    os.mkfifo(tmp_path / "a.md")
    with pytest.raises(CamtoolError, match=r"a\.md'"):
        check_replaceable(tmp_path, ["a.md"])


def test_a_file_of_any_size_has_a_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_files.open_regular, "__defaults__", (1_000,))
    write(tmp_path, "ours" * 1_000)
    check_replaceable(tmp_path, ["a.md"])
    (tmp_path / "a.md").write_text("mine" * 1_000)
    with pytest.raises(CamtoolError, match=r"a\.md'"):
        check_replaceable(tmp_path, ["a.md"])


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / RECORD).symlink_to(tmp_path / "mine.txt")
    with pytest.raises(CamtoolError, match="a link in the output folder leads out of it"):
        write(tmp_path / "out")
    assert not (tmp_path / "mine.txt").exists()


def test_what_a_stopped_or_killed_process_wrote_is_replaced(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), replace_files(tmp_path, ["a.md", "b.md"]):
        (tmp_path / "a.md").write_text("half")
        raise KeyboardInterrupt
    (tmp_path / "b.md").write_text("mine")
    write(tmp_path)
    with pytest.raises(CamtoolError, match=r"b\.md'; move"):
        check_replaceable(tmp_path, ["a.md", "b.md"])
    # A process that is killed leaves the lines that say what it was about to write.
    (tmp_path / RECORD).write_text('{"name": "b.md", "sha256": null}\n{"name": "a.m')
    check_replaceable(tmp_path, ["b.md"])


@pytest.mark.parametrize(
    "line", ["[" * 100_000, "[]", '{"name": 3, "sha256": null}', '{"name": "a.md", "sha256": 3}', "é"]
)
def test_a_list_that_somebody_else_wrote_allows_nothing(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.md").write_text("mine")
    (tmp_path / RECORD).write_text(line, encoding="latin-1")
    with pytest.raises(CamtoolError, match=r"a\.md'; move"):
        check_replaceable(tmp_path, ["a.md"])


@pytest.mark.parametrize(
    ("use", "is_locked"),
    [
        (lambda folder: replace_files(folder, ["pictures"]), False),
        (lambda folder: nullcontext(open_folder(folder)), False),
        (hold_folder, True),
    ],
)
def test_what_a_killed_process_left_goes_unless_another_may_write_it(tmp_path: Path, use: Any, is_locked: bool) -> None:
    old, new, other = (tmp_path / name for name in (TEMPORARY.format("0"), TEMPORARY.format("1"), ".camtool-1.tmp"))
    for path in (old, new, other):
        path.touch()
    os.utime(old, (0, 0))
    with use(tmp_path):
        assert [path.exists() for path in (old, new, other)] == [False, not is_locked, True]


def test_it_also_goes_from_folders_that_are_written(tmp_path: Path) -> None:
    left = tmp_path / "pictures" / TEMPORARY.format("0")
    with replace_files(tmp_path, ["pictures"]):
        left.parent.mkdir()
    left.touch()
    os.utime(left, (0, 0))
    with replace_files(tmp_path, ["pictures"]):
        assert not left.exists()
