"""Contact sheets: which overlays are on which page, in which order, and what is replaced."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from camtool.rendering.contact_sheet import RIGHT, WRONG
from camtool.runs.run_folder import sheets
from camtool.runs.run_folder.sheets import build_caption, write_sheets
from camtool.runs.stored_files import MANIFEST, ManifestLine

LINE = ManifestLine(
    image="dog.jpg",
    method="gradcam",
    layer="features",
    label="boxer",
    index=242,
    score=7.5,
    probability=0.9412,
    warnings=(),
    box=None,
    files={},
)
COLORS = [(200, 30, 30), (30, 200, 30), (30, 30, 200), (200, 200, 30), (200, 30, 200)]


@pytest.fixture
def out(tmp_path) -> Path:
    """An output folder with five overlays of one color each."""
    lines = []
    for number, color in enumerate(COLORS):
        Image.new("RGB", (60, 60), color).save(tmp_path / f"{number}.png")
        lines.append({**vars(LINE), "image": f"photos/{number}.jpg", "files": {"overlay": f"{number}.png"}})
    (tmp_path / MANIFEST).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return tmp_path


IMAGES = [f"photos/{number}.jpg" for number in range(5)]


def find_colors(path: Path) -> list[int]:
    """Return the numbers of the overlays on a sheet, in reading order."""
    pixels = np.asarray(Image.open(path)).astype(int)
    places = {}
    for number, color in enumerate(COLORS):
        rows, columns = np.nonzero((abs(pixels - color) <= 2).all(2))
        if len(rows) > 10_000:
            places[number] = (rows.min(), columns.min())
    return sorted(places, key=lambda number: places[number])


def test_all_overlays_are_on_one_sheet_in_the_order_of_the_manifest(out):
    assert write_sheets(out, IMAGES) == [out / "contact-sheet.png"]
    assert find_colors(out / "contact-sheet.png") == [0, 1, 2, 3, 4]


def test_pages_are_numbered_and_replace_earlier_ones(out):
    keep = out / "contact-sheet-of-mine.png"
    keep.write_bytes(b"")
    assert [path.name for path in write_sheets(out, IMAGES, per_page=2)] == [
        f"contact-sheet-00{number}.png" for number in (1, 2, 3)
    ]
    assert [find_colors(out / f"contact-sheet-00{number}.png") for number in (1, 2, 3)] == [[0, 1], [2, 3], [4]]
    write_sheets(out, IMAGES, per_page=3)
    assert sorted(path.name for path in out.glob("contact-sheet-0*")) == [
        "contact-sheet-001.png",
        "contact-sheet-002.png",
    ]
    write_sheets(out, IMAGES)
    assert sorted(path.name for path in out.glob("contact-sheet*")) == [keep.name, "contact-sheet.png"]


def test_photos_of_other_runs_and_missing_files_are_left_out(out):
    (out / "3.png").unlink()
    write_sheets(out, IMAGES[1:])
    assert find_colors(out / "contact-sheet.png") == [1, 2, 4]
    assert write_sheets(out, []) == []
    assert not (out / "contact-sheet.png").exists()


def test_a_manifest_does_not_lead_out_of_the_folder(out, tmp_path):
    inner = out / "inner"
    inner.mkdir()
    lines = [{**vars(LINE), "image": "a", "files": {"overlay": path}} for path in ("../0.png", str(out / "1.png"))]
    (inner / MANIFEST).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert write_sheets(inner, ["a"]) == []


def test_only_one_page_is_in_memory(out, monkeypatch):
    loaded, real = [], sheets._load_picture
    monkeypatch.setattr(
        sheets, "_load_picture", lambda *args, **named: loaded.append(args[0].name) or real(*args, **named)
    )
    written, write = [], sheets._write_sheet
    monkeypatch.setattr(sheets, "_write_sheet", lambda *args: written.append(len(loaded)) or write(*args))
    write_sheets(out, IMAGES, per_page=2)
    assert written == [2, 4, 5]


def test_a_caption_tells_label_probability_method_and_verdict():
    first, second = build_caption(vars(LINE))
    assert (first.text, first.end, second.text) == ("boxer", "94.1%", "gradcam")
    line = ManifestLine(**{**vars(LINE), "predicted_label": "boxer", "true_label": "boxer", "correct": True})
    assert (build_caption(vars(line))[1].text, build_caption(vars(line))[1].color) == ("right", RIGHT)
    line = ManifestLine(**{**vars(LINE), "predicted_label": "boxer", "true_label": "pug", "correct": False})
    assert (build_caption(vars(line))[1].text, build_caption(vars(line))[1].color) == ("wrong, true: pug", WRONG)
    line = ManifestLine(**{**vars(line), "predicted_label": "cat"})
    assert build_caption(vars(line))[1].text == "wrong, true: pug, predicted: cat"


def test_a_caption_shows_no_control_characters_and_no_letters_that_no_font_has():
    assert build_caption({**vars(LINE), "label": "a\x1b\nb"})[0].text == r"a\x1b\nb"
    assert build_caption({**vars(LINE), "label": "\U0010fffd"})[0].text == "class 242"
