"""Text that fits into lines, balanced columns and short numbers."""

from __future__ import annotations

import pytest

from camtool.figures.image_grid import fit_text, fits_in_line
from camtool.figures.paper_style import LINE_HEIGHT, MINUS, balance_columns, format_number
from tests.figures.drawing_helpers import DEEP_LAYER, LONG_NAME

matplotlib = pytest.importorskip("matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")


@pytest.mark.parametrize(
    ("words", "room", "lines", "expected"),
    [
        ("tabby", 2, 1, "tabby"),
        ("German short-haired pointer", 0.9, 2, "German short-\nhaired pointer"),
        ("German short-haired pointer", 0.9, 1, "German short…"),
        (DEEP_LAYER, 1.1, 4, "features.\ndenseblock4.\ndenselayer16.\nconv2"),
        (DEEP_LAYER, 1.1, 1, "…nselayer16.conv2"),
        ("Hund", 0.01, 1, "…"),
        ("", 1, 1, ""),
    ],
)
def test_fit_text_breaks_at_separators_and_shortens_the_right_end(words, room, lines, expected):
    assert fit_text(words, room, lines) == expected


@pytest.mark.parametrize("room", [0.3, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("lines", [1, 2, 5])
@pytest.mark.parametrize("text", [LONG_NAME, DEEP_LAYER, "a", "WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW", "two words"])
def test_fit_text_is_never_wider_than_the_width(text, room, lines):
    shown = fit_text(text, room, lines).split("\n")
    assert len(shown) <= lines
    assert all(fits_in_line(line, room) for line in shown)
    whole = "".join(shown)
    assert "…" in whole or whole.replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("count", "most", "columns"), [(1, 6, 1), (6, 6, 6), (7, 6, 4), (12, 7, 6), (11, 6, 6), (5, 1, 1)]
)
def test_balance_columns_gives_few_even_rows(count, most, columns):
    assert balance_columns(count, most) == columns


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0"), (1.25, "1.2"), (-0.5, f"{MINUS}0.5"), (1e-7, f"1e{MINUS}7"), (2.5e6, "2.5e6")]
)
def test_format_number_has_two_digits(number, shown):
    assert format_number(number) == shown


def test_line_height_exceeds_the_text_size():
    assert LINE_HEIGHT * 72 >= 1.2 * 8
