"""Command ``camtool report``, and the page at the end of ``camtool run``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.test_commands import (
    Command,
    Result,
    assert_refused,
    drop_progress,
    list_files,
    posix,
    read_lines,
    start_process,
    write_photo,
)
from tests.runs.report.folders import read_payload, write_run

PAGE = Path("out", "index.html")


def test_a_run_ends_with_a_page(explained: Command, photos: Path) -> None:
    result = explained("--recursive", "--method", "gradcam,layercam")
    assert result.code == 0
    assert result.out.endswith("Open out/index.html to see them all.\n")
    payload = read_payload(PAGE)
    assert payload["values"]["method"]["texts"] == ["gradcam", "layercam"]
    assert payload["values"]["image"]["texts"] == [f"photos/{name}" for name in ("a.png", "b.jpg", "sub/c.png")]
    assert [pictures[0][1] for pictures in payload["pictures"]] == [line["files"]["overlay"] for line in read_lines()]
    assert payload["photos"]["texts"][0] == "../photos/a.png"
    assert payload["placed"] == [1] * 6


def test_no_page_is_written_if_not_asked(explained: Command, photos: Path) -> None:
    result = explained("--no-report")
    assert result.code == 0
    assert "index.html" not in result.out
    assert not PAGE.exists()


def test_quiet_and_json_print_nothing_about_the_page(explained: Command, photos: Path) -> None:
    for option in ("--quiet", "--json"):
        result = explained(option)
        assert "index.html" not in result.out
        assert PAGE.exists()
        PAGE.unlink()


def test_a_page_of_somebody_else_does_not_stop_the_run(explained: Command, photos: Path) -> None:
    PAGE.parent.mkdir()
    PAGE.write_text("my page")
    result = explained()
    assert result.code == 0
    assert "There is no report: 'out/index.html' exists and is not a report" in result.err
    assert PAGE.read_text() == "my page"
    assert len(read_lines()) == 2


def test_the_page_is_no_photo_of_the_next_run(explained: Command, photos: Path) -> None:
    assert explained().code == 0
    files = list_files()
    assert explained().code == 0
    assert list_files() == files


def test_the_report_of_a_folder(camtool_: Command, tmp_path: Path) -> None:
    write_run(tmp_path, [{}, {}], failures=[{"image": "a", "reason": "damaged"}])
    result = camtool_("report", "out")
    assert result.code == 0
    assert result.out == "2 explanations and 1 failure are in out/index.html\n"
    assert camtool_("report", "out", "--quiet").out == ""


def test_photos_that_were_moved_are_found_or_copied(camtool_: Command, tmp_path: Path) -> None:
    write_run(tmp_path, [{"image": "gone/cats/1.png"}])
    write_photo(tmp_path / "new" / "cats" / "1.png")
    assert camtool_("report", "out").code == 0
    assert read_payload(PAGE)["photos"]["codes"] == [-1]
    assert camtool_("report", "out", "--photos", "new").code == 0
    assert read_payload(PAGE)["photos"]["texts"] == ["../new/cats/1.png"]
    assert camtool_("report", "out", "--photos", "new", "--copy-photos").code == 0
    assert read_payload(PAGE)["photos"]["texts"][0].startswith("index_files/")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ["run 'nowhere': no such folder"]),
        (["."], ["holds neither explanations.jsonl nor Parquet files"]),
    ],
)
def test_a_folder_without_results_is_an_error(
    camtool_: Command,
    arguments: list[str],
    words: list[str],
) -> None:
    assert_refused(camtool_("report", *arguments), *words)


@posix
@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("shards", "holds neither explanations.jsonl nor Parquet files"),
        ("shards/pipe.parquet", "holds neither explanations.jsonl nor Parquet files"),
        ("shards/loop.parquet", "no such folder"),
    ],
)
def test_shards_that_are_no_files_end_in_a_sentence_and_are_not_waited_for(
    tmp_path: Path, argument: str, words: str
) -> None:
    (tmp_path / "shards").mkdir()
    os.mkfifo(tmp_path / "shards" / "pipe.parquet")
    (tmp_path / "shards" / "loop.parquet").symlink_to("loop.parquet")
    with start_process("report", argument, cwd=tmp_path) as process:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert_refused(Result(process.returncode, out, drop_progress(err)), argument, words)
    assert not [*tmp_path.rglob("index.html")]


def test_notices_are_printed(camtool_: Command, tmp_path: Path) -> None:
    out = write_run(tmp_path, [{}])
    with (out / "explanations.jsonl").open("a") as stream:
        stream.write("cut")
    result = camtool_("report", "out")
    assert "1 line of the run's files cannot be read." in result.out
