"""Escapes for text of unknown origin."""

from __future__ import annotations

import json

import pytest

from camtool.runs.text_escapes import escape_bytes, escape_hidden, to_json, unescape_bytes


@pytest.mark.parametrize(
    "odd", ["\x1b[31m", "\n", "\x07", "\x9b31m", "\u202e", "\u2028", "\x7f", "\udce9", "\U000e0041"]
)
def test_control_characters_are_escaped(odd):
    shown = escape_hidden(f"a{odd}b")
    assert shown.isprintable()
    assert shown.encode("ascii").decode("unicode_escape") == f"a{odd}b"
    line = to_json({"label": f"猫{odd}b"})
    assert line.isprintable()
    assert "猫" in line
    assert json.loads(line) == {"label": f"猫{odd}b"}


@pytest.mark.parametrize(
    "text", ["tabby", "Käfer, 猫", "\u0645\u06cc\u200c\u062e", "👩\u200d🚀", "C:\\photos\\a.png", "narrow\u202fspace"]
)
def test_ordinary_text_is_unchanged(text):
    assert escape_hidden(text) == text
    assert escape_bytes(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\u202eb", "a%E2%80%AEb"), ("\n\x7f", "%0A%7F"), ("\x9b", "%C2%9B"), ("\udcff\udce9.png", "%FF%E9.png")],
)
def test_escapes_of_a_name_can_be_read_back(text, shown):
    assert escape_bytes(text) == shown
    assert unescape_bytes(shown) == text
    assert unescape_bytes("100%.png %20 %G0") == "100%.png %20 %G0"
