"""Tables of text: aligned, and no wider than they may be."""

from __future__ import annotations

import pytest

from camtool.rendering.text_tables import align_columns, fit_columns, wrap_paragraph

ROWS = [("name", "told", "more"), ("a", "one two three four five six", "x"), ("much longer", "seven", "yz")]


def test_columns_are_aligned() -> None:
    assert align_columns(ROWS) == [
        "name         told                         more",
        "a            one two three four five six  x",
        "much longer  seven                        yz",
    ]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (46, ["name         told                         more"]),
        (45, ["name         told", "a            one two three four five six", "much longer  seven"]),
        (35, ["name         told", "a            one two three four", "             five six", "much longer  seven"]),
        (8, ["name         told", "a            one two three", "             four five six", "much longer  seven"]),
    ],
)
def test_columns_that_do_not_fit_are_left_out_and_then_wrapped(width: int, lines: list[str]) -> None:
    found = fit_columns(ROWS, width, keep=2, wrapped=1)
    assert [line for row in found for line in row][: len(lines)] == lines
    assert len(found) == len(ROWS)


def test_wrapped_cells_break_no_word() -> None:
    name = "encoder.layers.encoder_layer_11.self_attention-x"
    assert wrap_paragraph(f"see {name}\n  now", 10, "  ") == ["see", f"  {name}", "  now"]
    assert wrap_paragraph("one\n  two", None) == ["one two"]
