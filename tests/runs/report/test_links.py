"""Links to files, and the search for photos."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from camtool.runs.report.pictures import find_photo, link_to

NAMES = ["a b.png", "50%.png", "a#b.png", "a?b.png", "a\"b'.png", "a\nb.png", "é.png", "<b>.png", "javascript:x", "a&b"]
posix = pytest.mark.skipif(os.name != "posix", reason="names that Windows does not allow")


@posix
@pytest.mark.parametrize("name", [*NAMES, os.fsdecode(b"\xff.png")])
def test_every_name_is_quoted(tmp_path: Path, name: str) -> None:
    link = link_to(tmp_path / "sub" / name, tmp_path)
    assert link.isascii()
    assert not set(link) & set(" #?\"'\n<>&:\\")
    assert unquote_to_bytes(link) == b"sub/" + os.fsencode(name)


def test_a_file_beside_the_folder_is_reached_upwards(tmp_path: Path) -> None:
    assert link_to(tmp_path / "photos" / "a.png", tmp_path / "out") == "../photos/a.png"


def test_a_link_is_kept_as_the_browser_sees_it(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    assert link_to(tmp_path / "a.png", tmp_path / "link") == "../a.png"


def test_a_photo_is_found_where_the_run_found_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = tmp_path / "photos" / "a.png"
    photo.parent.mkdir()
    photo.touch()
    out = tmp_path / "out"
    assert find_photo(str(photo), out) == photo
    monkeypatch.chdir(tmp_path)
    assert find_photo("photos/a.png", out) == Path("photos/a.png")
    monkeypatch.chdir("/")
    # The output folder usually is in the working directory of the run.
    assert find_photo("photos/a.png", out) == photo
    assert find_photo("photos/b.png", out) is None


def test_the_directory_of_the_run_goes_before_the_present_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("run", "now"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.png").touch()
    monkeypatch.chdir(tmp_path / "now")
    out = tmp_path / "elsewhere" / "out"
    assert find_photo("a.png", out, directory=tmp_path / "run") == tmp_path / "run" / "a.png"
    # A photo of the same name in the present directory is another one.
    assert find_photo("a.png", out, directory=tmp_path / "gone") is None


def test_a_moved_photo_is_found_by_the_end_of_its_path(tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    for name in ("cats/1.png", "1.png"):
        (moved / name).parent.mkdir(parents=True, exist_ok=True)
        (moved / name).touch()
    assert find_photo("/data/set/cats/1.png", tmp_path / "out", moved_to=moved) == moved / "cats" / "1.png"
    assert find_photo("../dogs/1.png", tmp_path / "out", moved_to=moved) == moved / "1.png"
    assert find_photo("dogs/2.png", tmp_path / "out", moved_to=moved) is None


@pytest.mark.parametrize("image", ["a\0b", "x" * 5000, "", "https://example.org/a.png"])
def test_what_is_no_path_is_not_found(tmp_path: Path, image: str) -> None:
    assert find_photo(image, tmp_path) is None
