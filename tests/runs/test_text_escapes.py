"""Escapes for text of unknown origin."""

from __future__ import annotations

import json

import pytest

from camtool.runs.text_escapes import escape_hidden, to_json


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
