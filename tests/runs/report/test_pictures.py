"""Thumbnails, drawn heatmaps and copied photos."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from PIL import Image

from camtool.errors import CamtoolError
from camtool.rendering.colormaps import get_palette
from camtool.runs.report.columns import ReportRow, StoredHeatmap
from camtool.runs.report.pictures import PICTURE_FOLDER, PictureSettings, RowPictures, prepare_pictures
from tests.runs.report.folders import compress, write_picture

LARGE = (1200, 900)


def make_row(folder: Path, size: tuple[int, int] = (40, 30), name: str = "a.png", **fields: Any) -> ReportRow:
    write_picture(folder / name, size)
    return ReportRow("nowhere.jpg", "gradcam", pictures={"overlay": folder / name}, **fields)


def prepare(row: ReportRow, folder: Path, **settings: Any) -> RowPictures:
    (found,) = prepare_pictures([row], PictureSettings(folder, **settings))
    return found


def make_heatmap(heat: np.ndarray) -> ReportRow:
    columns = compress(heat)
    return ReportRow("a.jpg", "gradcam", heatmap=StoredHeatmap(columns["heatmap"], *heat.shape))


# ---------------------------------------------------------------------------------------------------- thumbnails


def test_a_small_picture_is_its_own_thumbnail(tmp_path: Path) -> None:
    found = prepare(make_row(tmp_path), tmp_path)
    assert found.thumbnail == "a.png"
    assert found.pictures == (("overlay", "a.png"),)
    assert found.ratio == 40 / 30
    assert not (tmp_path / PICTURE_FOLDER).exists()


def test_a_large_picture_gets_a_thumbnail(tmp_path: Path) -> None:
    found = prepare(make_row(tmp_path, LARGE), tmp_path)
    assert found.thumbnail is not None
    assert found.thumbnail.startswith(f"{PICTURE_FOLDER}/")
    assert found.pictures == (("overlay", "a.png"),)
    with Image.open(tmp_path / found.thumbnail) as image:
        assert image.size == (480, 360)
        color = np.asarray(image.convert("RGB"))[180, 240].astype(int)
        assert np.abs(color - (90, 120, 60)).max() < 8


def test_a_thumbnail_is_kept_until_its_picture_changes(tmp_path: Path) -> None:
    row = make_row(tmp_path, LARGE)
    thumbnail = tmp_path / str(prepare(row, tmp_path).thumbnail)
    first = (thumbnail.stat().st_ino, thumbnail.read_bytes())
    prepare(row, tmp_path)
    assert (thumbnail.stat().st_ino, thumbnail.read_bytes()) == first
    write_picture(tmp_path / "a.png", LARGE, color=(250, 0, 0))
    prepare(row, tmp_path)
    assert thumbnail.read_bytes() != first[1]


def test_a_stopped_run_makes_no_new_thumbnails(tmp_path: Path) -> None:
    row = make_row(tmp_path, LARGE)
    assert prepare(row, tmp_path, is_quick=True).thumbnail == "a.png"
    made = prepare(row, tmp_path).thumbnail
    assert made != "a.png"
    assert prepare(row, tmp_path, is_quick=True).thumbnail == made


def test_thumbnails_that_no_row_shows_are_removed_and_other_files_kept(tmp_path: Path) -> None:
    first, second = make_row(tmp_path, LARGE), make_row(tmp_path, LARGE, "b.png")
    settings = PictureSettings(tmp_path)
    both = prepare_pictures([first, second], settings)
    own = write_picture(tmp_path / PICTURE_FOLDER / "my.png")
    own.with_name(f".camtool-{uuid4().hex}.tmp").touch()  # of a process that was killed
    (left,) = prepare_pictures([second], settings)
    assert left == both[1]
    assert {path.name for path in own.parent.iterdir()} == {own.name, Path(str(left.thumbnail)).name}


def test_a_row_without_pictures_has_no_thumbnail(tmp_path: Path) -> None:
    assert prepare(ReportRow("a.jpg", "gradcam"), tmp_path) == RowPictures()
    gone = ReportRow("a.jpg", "gradcam", pictures={"overlay": tmp_path / "gone.png"})
    assert prepare(gone, tmp_path) == RowPictures()


def test_a_damaged_picture_does_not_stop_the_report(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(write_picture(tmp_path / "b.png", LARGE).read_bytes()[:200])
    row = ReportRow("a.jpg", "gradcam", pictures={"overlay": tmp_path / "a.png"})
    assert prepare(row, tmp_path).thumbnail == "a.png"


def test_the_overlay_is_the_main_picture(tmp_path: Path) -> None:
    names = ("mask", "contours", "overlay", "heatmap")
    row = ReportRow("a.jpg", "m", pictures={name: write_picture(tmp_path / f"{name}.png") for name in names})
    assert [kind for kind, _ in prepare(row, tmp_path).pictures] == ["overlay", "heatmap", "mask", "contours"]


def test_a_subfolder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / PICTURE_FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CamtoolError, match="is a link"):
        prepare(make_row(tmp_path / "out", LARGE), tmp_path / "out")


# -------------------------------------------------------------------------------------------------------- photos


def make_photo_row(tmp_path: Path, photo: Path, size: tuple[int, int]) -> tuple[ReportRow, Path]:
    out = tmp_path / "out"
    return ReportRow(str(photo), "gradcam", pictures={"overlay": write_picture(out / "a.png", size)}), out


def test_the_page_links_to_the_photo(tmp_path: Path) -> None:
    row, out = make_photo_row(tmp_path, write_picture(tmp_path / "photos" / "a b.jpg", (80, 60)), (40, 30))
    found = prepare(row, out)
    assert found.photo == "../photos/a%20b.jpg"
    assert found.is_placed


@pytest.mark.parametrize(
    ("photo", "overlay", "is_placed"),
    [
        ((80, 60), (80, 60), True),
        ((30, 20), (300, 200), True),  # enlarged
        ((4000, 3001), (1280, 960), True),  # reduced, to whole pixels
        ((60, 80), (80, 60), True),  # turned upright
        ((80, 60), (80, 84), False),  # with a caption
        ((80, 60), (60, 60), False),
    ],
)
def test_pictures_are_laid_over_each_other_only_if_the_proportions_agree(
    tmp_path: Path, photo: tuple[int, int], overlay: tuple[int, int], is_placed: bool
) -> None:
    row, out = make_photo_row(tmp_path, write_picture(tmp_path / "photo.png", photo), overlay)
    assert prepare(row, out).is_placed is is_placed


def test_a_photo_that_is_gone_is_left_out(tmp_path: Path) -> None:
    row, out = make_photo_row(tmp_path, tmp_path / "gone.png", (40, 30))
    assert (prepare(row, out).photo, prepare(row, out).is_placed) == (None, False)


def test_photos_are_copied_if_asked_so_that_the_folder_can_be_moved(tmp_path: Path) -> None:
    photo = write_picture(tmp_path / "photo.png", (2000, 1000))
    row, out = make_photo_row(tmp_path, photo, (200, 100))
    found = prepare(row, out, copy_photos=True)
    assert found.is_placed
    assert found.photo is not None
    assert found.photo.startswith(f"{PICTURE_FOLDER}/")
    moved = shutil.move(out, tmp_path / "moved")
    with Image.open(Path(moved) / found.photo) as image:
        assert image.size == (1600, 800)


def test_a_copy_is_of_the_photo_that_is_there_now(tmp_path: Path) -> None:
    """Files from archives may all have the same time."""
    photo = write_picture(tmp_path / "photo.png", (200, 100))
    row, out = make_photo_row(tmp_path, photo, (20, 10))
    for size in ((200, 100), (100, 200)):
        write_picture(photo, size)
        os.utime(photo, (0, 0))
        found = prepare(row, out, copy_photos=True)
        assert found.photo is not None
        with Image.open(out / found.photo) as image:
            assert image.size == size


def test_a_moved_photo_is_not_that_of_two_rows(tmp_path: Path) -> None:
    out, moved = tmp_path / "out", tmp_path / "moved"
    rows = [ReportRow(str(tmp_path / name / "1.jpg"), "gradcam", pictures={}) for name in "abc"]
    write_picture(moved / "1.jpg", (40, 30))
    photos = lambda: [found.photo for found in prepare_pictures(rows, PictureSettings(out, photos=moved))]  # noqa: E731
    assert photos() == [None, None, None]
    for name in "bc":
        write_picture(tmp_path / name / "1.jpg", (40, 30))
    assert photos() == ["../moved/1.jpg", "../b/1.jpg", "../c/1.jpg"]


@pytest.mark.parametrize("suffix", ["tif", "ppm"])
def test_photos_that_browsers_do_not_show_are_copied(tmp_path: Path, suffix: str) -> None:
    photo = write_picture(tmp_path / "photo.jpg").rename(tmp_path / "photo.jpg")
    Image.open(photo).save(tmp_path / f"other.{suffix}")
    # The content counts, not the name.
    disguised = (tmp_path / f"other.{suffix}").rename(tmp_path / "other.jpg")
    row, out = make_photo_row(tmp_path, disguised, (48, 36))
    assert prepare(row, out, is_quick=True).photo is None
    found = prepare(row, out)
    assert str(found.photo).startswith(f"{PICTURE_FOLDER}/")
    assert found.is_placed


def test_a_photo_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "photo.tif").write_bytes(b"II*\0 and no more")
    row, out = make_photo_row(tmp_path, tmp_path / "photo.tif", (40, 30))
    assert prepare(row, out).photo is None


# ------------------------------------------------------------------------------------------------------ heatmaps


def test_a_heatmap_is_drawn_in_the_default_colors(tmp_path: Path) -> None:
    heat = np.array([[0, 0, 0, 255], [0, 0, 0, 255]], np.uint8)
    found = prepare(make_heatmap(heat), tmp_path)
    ((kind, url),) = found.pictures
    assert (kind, found.ratio, found.is_placed) == ("heatmap", 2, False)
    with Image.open(tmp_path / url) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape == (64, 128, 3)
    palette = get_palette("heat")
    assert (pixels[:, 0] == palette[0]).all()
    assert (pixels[:, -1] == palette[255]).all()


def test_a_stored_heatmap_without_its_place_is_not_laid_over_the_photo(tmp_path: Path) -> None:
    """It covers the model's crop, so equal proportions prove nothing."""
    photo = write_picture(tmp_path / "photo.png", (70, 70))
    row = replace(make_heatmap(np.zeros((7, 7), np.uint8)), image=str(photo))
    found = prepare(row, tmp_path)
    assert (found.photo, found.is_placed) == ("photo.png", False)


def test_equal_heatmaps_share_a_file(tmp_path: Path) -> None:
    heat = np.arange(49, dtype=np.uint8).reshape(7, 7)
    found = prepare_pictures([make_heatmap(heat), make_heatmap(heat), make_heatmap(heat.T)], PictureSettings(tmp_path))
    assert found[0] == found[1] != found[2]
    assert len([*(tmp_path / PICTURE_FOLDER).iterdir()]) == 2


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (b"not zlib", (7, 7)),
        (compress(np.zeros((7, 7), np.uint8))["heatmap"], (7, 8)),
        (compress(np.zeros((7, 7), np.uint8))["heatmap"], (7, 6)),
        (compress(np.zeros((7, 7), np.uint8))["heatmap"], (-7, -7)),
        (compress(np.zeros((1000, 1000), np.uint8))["heatmap"], (2**20, 2**20)),
    ],
)
def test_a_damaged_heatmap_is_left_out(tmp_path: Path, data: bytes, shape: tuple[int, int]) -> None:
    row = ReportRow("a.jpg", "gradcam", heatmap=StoredHeatmap(data, *shape))
    assert prepare(row, tmp_path).pictures == ()


def test_progress_is_told(tmp_path: Path) -> None:
    rows = [make_row(tmp_path, name=f"{number}.png") for number in range(3)]
    steps: list[tuple[int, int]] = []
    prepare_pictures(rows, PictureSettings(tmp_path), lambda done, total: steps.append((done, total)))
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
