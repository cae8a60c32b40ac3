"""Captions below pictures: sizes, cut texts, fonts."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import ImageFont

from camtool.rendering import text_drawing
from camtool.rendering.colormaps import get_palette
from camtool.rendering.contact_sheet import CaptionLine, add_caption, add_legend, draw_picture_sheet, remove_caption
from camtool.rendering.text_drawing import draw_text, find_undrawable, load_font_for

CAPTION = [CaptionLine("boxer", end="94.1%"), CaptionLine("gradcam")]


def make_picture(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), (10, 80, 160), np.uint8)


@pytest.mark.parametrize("size", [(1, 1), (32, 32), (160, 320), (1000, 40), (40, 1000), (1500, 2000)])
def test_a_caption_is_below_the_picture_and_can_be_taken_off(size):
    picture = make_picture(*size)
    captioned = add_caption(picture, CAPTION)
    assert captioned.shape[1] == max(200, size[1])
    assert (captioned[: size[0], : size[1]] == picture).all()
    strip = captioned[size[0] :]
    assert (strip < 100).any(), "there are dark letters"
    assert (remove_caption(captioned)[:, : size[1]] == picture).all()


@pytest.mark.parametrize(("size", "least"), [((200, 300), 8), ((3000, 4000), 80)])
def test_letters_grow_with_the_picture(size, least):
    strip = add_caption(make_picture(*size), [CaptionLine("HHH")])[size[0] :]
    rows = np.nonzero((strip < 100).any((1, 2)))[0]
    assert rows.max() - rows.min() + 1 >= least


@pytest.mark.parametrize("size", [(1, 1), (300, 400)])
def test_a_legend_below_the_picture_shows_the_colors_as_they_look_on_gray(size):
    picture = make_picture(*size)
    short, full = (add_legend(picture, colormap="turbo", alpha=1, has_unseen=unseen) for unseen in (False, True))
    assert (full[: size[0], : size[1]] == picture).all()
    assert full.shape[0] > short.shape[0]
    strip = short[size[0] :].reshape(-1, 3)
    for color in (get_palette("turbo")[-1], (128, 128, 128)):  # the most heat covers the gray, no heat shows it
        assert (abs(strip.astype(int) - color).max(1) <= 2).any()


@pytest.mark.parametrize("size", [(90, 120), (224, 224)])
def test_the_words_of_a_legend_are_whole_on_a_narrow_picture(size, monkeypatch):
    drawn = []
    shorten = text_drawing.shorten_text
    monkeypatch.setattr(text_drawing, "shorten_text", lambda *a, **k: drawn.append(shorten(*a, **k)) or drawn[-1])
    add_legend(make_picture(*size), has_unseen=True, has_places=True)
    marks = ["hottest cell as drawn", "pixels it depends on"]
    assert drawn == ["little heat", "most heat", "not seen by the model", *marks]


def test_a_long_text_is_cut_and_leaves_space_for_the_end():
    lines = [CaptionLine("wheaten terrier " * 500, end="94.1%")]
    strip = add_caption(make_picture(100, 400), lines)[100:]
    columns = (strip < 128).any((0, 2))
    assert columns[-60:-10].any(), "the end is drawn"
    gap = np.nonzero(columns)[0]
    assert np.diff(gap).max() >= 9, "a gap is before the end"
    alone = add_caption(make_picture(100, 400), [CaptionLine("", end="94.1%")])[100:]
    np.testing.assert_array_equal(strip[:, -50:], alone[:, -50:])


def test_a_sheet_holds_pictures_of_any_shape_in_rows():
    shapes = [(500, 50), (50, 500), (100, 100), (7, 7)]
    sheet = draw_picture_sheet([(make_picture(*shape), CAPTION) for shape in shapes], columns=3)
    assert sheet.shape[0] > sheet.shape[1] * 0.7
    one = draw_picture_sheet([(make_picture(9, 9), CAPTION)], columns=3)
    assert one.shape[1] < sheet.shape[1] / 2


def test_a_font_is_chosen_that_has_the_letters(monkeypatch):
    path = pytest.importorskip("matplotlib").get_data_path()
    monkeypatch.setattr(text_drawing, "_SYSTEM_FONTS", ("no such font.ttf", f"{path}/fonts/ttf/DejaVuSans.ttf"))
    text_drawing._choose_font.cache_clear()
    assert load_font_for("cat", 20).getname()[0] == "Aileron"
    assert load_font_for("кот, café", 20).getname()[0] == "DejaVu Sans"
    assert find_undrawable(["cat", "кот", "\U0010fffd", "e\u0301"]) == ["\U0010fffd"]
    monkeypatch.setattr(text_drawing, "_SYSTEM_FONTS", ())
    text_drawing._choose_font.cache_clear()
    assert find_undrawable(["cat", "кот"]) == ["кот"]
    text_drawing._choose_font.cache_clear()


def test_ascii_text_keeps_the_font_of_pillow():
    from PIL import Image

    ours, theirs = (Image.new("RGB", (120, 40), "white") for _ in range(2))
    draw_text(ours, (3, 3), "tabby 94%", 20)
    from PIL import ImageDraw

    ImageDraw.Draw(theirs).text((3, 3), "tabby 94%", fill=text_drawing.INK, font=ImageFont.load_default(20))
    assert ours.tobytes() == theirs.tobytes()
