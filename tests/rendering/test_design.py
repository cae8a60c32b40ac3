"""The look that all pages share: tokens stand in one file, and styles, scripts and templates do not grow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import camtool
from camtool.rendering.design.style_sheets import LOGO, encode_logo, read_design

PACKAGE = Path(camtool.__file__).parent
FILES = sorted(path for kind in ("css", "js", "html") for path in PACKAGE.rglob(f"*.{kind}"))
SHEETS = [path for path in FILES if path.suffix == ".css"]

# Bytes of all styles, scripts and templates of the package. It may fall, and never rise: what is added is paid for.
MOST_BYTES = 203_400
SLACK = 1_000

# Set by a script, a template or the sheet itself, beside the tokens.
SET_ELSEWHERE = {"share", "frame", "ratio", "split", "part", "mark", "shade"}


def test_styles_scripts_and_templates_do_not_grow() -> None:
    total = sum(path.stat().st_size for path in FILES)
    assert total <= MOST_BYTES, f"{total} bytes; share a part of parts.css, or remove one"
    assert total > MOST_BYTES - SLACK, f"{total} bytes: lower MOST_BYTES, so that what is saved stays saved"


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda path: path.name)
def test_every_variable_is_a_token(sheet: Path) -> None:
    tokens = set(re.findall(r"--([\w-]+):", read_design("tokens.css")))
    used = set(re.findall(r"var\(--([\w-]+)", sheet.read_text(encoding="utf-8")))
    assert used - tokens <= SET_ELSEWHERE


def test_every_token_is_used() -> None:
    tokens = set(re.findall(r"--([\w-]+):", read_design("tokens.css")))
    used = {name for sheet in SHEETS for name in re.findall(r"var\(--([\w-]+)", sheet.read_text(encoding="utf-8"))}
    assert tokens <= used


def test_a_selector_of_the_parts_stands_in_no_other_sheet() -> None:
    def list_selectors(text: str) -> set[str]:
        return {found.strip() for found in re.findall(r"^([^\s@{}/][^{}\n]*?) \{", text, re.MULTILINE)}

    parts = list_selectors(read_design("base.css", "parts.css"))
    for sheet in SHEETS:
        if sheet.parent != LOGO.parent:
            assert not parts & list_selectors(sheet.read_text(encoding="utf-8")) - {":root"}, sheet.name


def test_the_logo_is_a_url_that_needs_no_escape_in_an_attribute() -> None:
    assert re.fullmatch(r"data:image/svg\+xml,[^\"'<>#&]+", encode_logo())
