"""The note: its page is what the command makes of the stored numbers, and its PDF file is whole."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tools.note import __main__ as command
from tools.note import page as note
from tools.note.figures import FIGURES, draw_figures
from tools.note.printing import build_html, print_page

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

ROWS = {
    "gradcam": {"demo": {"cells": [0.5, 0.1, 0.0, 0.0]}},
    "ahead": {"demo": {"cells": [0.7, 0.1, 0.2001, 0.1]}, "vit": {"cells": [0.2, 0.1, -0.01, 0.02]}},
    "level": {"demo": {"cells": [0.7, 0.1, 0.2, 0.1]}},
    "behind": {"demo": {"cells": [0.2, 0.1, -0.3, 0.1]}, "vit": {"cells": [0.2, 0.1, 0.3, 0.1], "questions": 40}},
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(note, "_read", lambda name: {"rows": ROWS})


def read_table(text: str, number: int) -> list[list[str]]:
    """Return the cells of a numbered table, without its head."""
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    (below,) = re.findall(rf"\*\*Table {number}\.\*\*.*?\n\n(.*?)\n\n", text, re.DOTALL)
    lines = [line for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_is_what_the_command_makes() -> None:
    assert note.PAGE.read_text(encoding="utf-8") == note.render_page(), "run python -m tools.note"


def test_the_main_tables_hold_the_stored_gains_of_the_network_in_the_row() -> None:
    rows = json.loads((note.ROOT / "benchmarks" / "faithcam.json").read_text())["rows"]
    networks = {"MobileNetV2": "mobilenet_v2", "SqueezeNet 1.1": "squeezenet1_1", "Swin": "swin", "U-Net": "unet"}
    text = note.PAGE.read_text(encoding="utf-8")
    for number, measures in ((2, ("cells", "masks")), (3, ("insertion", "pointing"))):
        table = {label: cells for label, *cells in read_table(text, number)}
        assert len(table) == 9
        for label, key in networks.items():
            expected = []
            for measure in measures:
                expected.append(f"{rows['gradcam'][key][measure][0]:.3f}")
                for method in ("rivalcam", "faithcam"):
                    entry = rows[method].get(key, {}).get(measure)
                    expected.append(f"{entry[2]:+.3f} ± {entry[3]:.3f}" if entry else "-")
            assert [cell.strip("*") for cell in table[label]] == expected


@pytest.mark.usefixtures("made")
def test_what_is_beyond_two_standard_errors_is_marked() -> None:
    columns = {"means": ("gradcam", "cells"), "first": ("ahead", "cells"), "second": ("level", "cells")}
    table = note.draw_gains("made", columns | {"third": ("behind", "cells")}, means=["means"])
    lines = {line.split(" | ")[0]: line.replace("\N{NO-BREAK SPACE}", " ") for line in table.splitlines()}
    assert lines["| demo"] == "| demo | 0.500 | **+0.200 ± 0.100** | +0.200 ± 0.100 | *-0.300 ± 0.100* |"
    assert lines["| ViT"] == "| ViT | - | -0.010 ± 0.020 | - | **+0.300 ± 0.100** |"
    assert [note.list_networks("behind", "cells", sign) for sign in (1, -1)] == [["ViT"], ["demo"]]


@pytest.mark.usefixtures("made")
def test_a_variant_that_is_ahead_and_nowhere_behind_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(note, "_CHOICES", ["ahead", "level"])
    monkeypatch.setattr(note, "_SHAPES", ["behind"])
    assert note.find_free_variants() == ["ahead"]


def test_a_page_becomes_html_with_captions_and_links_that_hold(tmp_path: Path) -> None:
    page = tmp_path / "note.md"
    page.write_text(
        "# Title\n\n<!-- hidden -->\n\n[a](trust.md#x) [b](https://example.org) and -3\n\n![c](../d/spot.png)\n\n"
        "*Figure 1. A spot.*\n\n**Table 1.** Of `x`.\n\n<!-- numbers: y -->\n| m | n |\n|---|---|\n| o | *-0.1* |\n"
    )
    html = build_html(page)
    assert 'href="https://github.com/camtool/camtool/blob/main/docs/trust.md#x"' in html
    assert 'href="https://example.org"' in html
    assert "<title>Title</title>" in html
    assert '<figure class="spot"><img src="../d/spot.png" alt="c" /><figcaption><em>Figure 1. A spot.</em>' in html
    assert '<figure class="whole"><figcaption><strong>Table 1.</strong> Of <code>x</code>.</figcaption><table>' in html
    assert "and \N{MINUS SIGN}3" in html
    assert "<em>\N{MINUS SIGN}0.1</em>" in html
    assert "<!--" not in html


def test_the_figures_of_the_bundled_model_are_drawn_and_all_figures_are_stored(tmp_path: Path) -> None:
    draw_figures(tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    shown = {*re.findall(r"assets/note/([\w.]+)", note.PAGE.read_text(encoding="utf-8"))}
    assert drawn == {"spot.png", "scenes.png"}
    assert shown == {path.name for path in FIGURES.iterdir()} > drawn
    for name in drawn:
        with Image.open(tmp_path / name) as ours, Image.open(FIGURES / name) as stored:
            assert ours.size == stored.size


def test_the_figures_of_photos_are_drawn_with_real_weights(tmp_path: Path, shared: Path) -> None:
    draw_figures(tmp_path, shared / "models" / "mobilenet_v2-imagenet.safetensors")
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FIGURES.iterdir()}


@needs_chromium
def test_the_command_writes_a_few_pages_with_the_same_bytes_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("playwright", reason="needs the package playwright")
    (tmp_path / "docs").mkdir()
    shutil.copytree(FIGURES, tmp_path / "assets" / "note")
    monkeypatch.setattr(command, "PAGE", tmp_path / "docs" / "note.md")
    monkeypatch.setattr(command, "FIGURES", tmp_path / "assets" / "note")
    command.main(tmp_path / "made" / "note.pdf", None)
    pdf = (tmp_path / "made" / "note.pdf").read_bytes()
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 5
    assert len(re.findall(rb"/Subtype\s*/Image\b", pdf)) >= len([*FIGURES.iterdir()])
    assert (tmp_path / "docs" / "note.md").read_text(encoding="utf-8") == note.render_page()
    print_page(tmp_path / "docs" / "note.md", tmp_path / "again.pdf")
    assert (tmp_path / "again.pdf").read_bytes() == pdf


@needs_chromium
def test_a_missing_picture_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("playwright", reason="needs the package playwright")
    (tmp_path / "note.md").write_text("# Title\n\n![a spot](spot.png)\n")
    with pytest.raises(SystemExit, match=r"shows pictures that are no files: .*spot\.png"):
        print_page(tmp_path / "note.md", tmp_path / "note.pdf")
    assert not (tmp_path / "note.pdf").exists()
