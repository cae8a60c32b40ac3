"""What notebooks show of an audit, a diff, a repair, an evaluation and a comparison of methods."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camtool.evaluation.leaderboard.table import Evaluation, EvaluationRow
from camtool.figures.explanation_figures import Comparison
from camtool.rendering.image_writing import write_image
from tests.evaluation.audit.results import build_audit, build_finding, write_pictures
from tests.evaluation.diff.test_browser import build_diff
from tests.evaluation.repair.test_browser import build_repair
from tests.rendering.notebook.test_cards import BYTES, draw_photo, explain, read_picture, show


def build_evaluation() -> Evaluation:
    """Return an evaluation of three methods on eight images; one metric has no value for one of them."""
    draws = np.random.default_rng(0).random((3, 2, 8))
    draws[0, 0] += 2
    draws[2, 1] = np.nan
    names = ("gradcam", "layercam at layer3", "random")
    metrics = ("insertion", "sparsity")
    rows = [
        EvaluationRow(name, name.split()[0], "", 1.0, dict(zip(metrics, values, strict=True)))
        for name, values in zip(names, draws, strict=True)
    ]
    return Evaluation((*rows,), metrics, {}, {}, (), 8, 0)


BUILDERS = {"audit": build_audit, "diff": build_diff, "repair": build_repair, "evaluation": build_evaluation}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_a_result_is_cards_that_load_nothing_and_markdown(build: Callable[[], Any]) -> None:
    result = build()
    shown = show(result)
    assert shown["text/markdown"] == result.to_markdown()
    html = shown["text/html"]
    assert len(html) < BYTES
    assert not re.search(r"(src|href)=[\"'](?!data:)|url\((?![\"']?data:)|@import|https?://(?!www.w3.org)", html)
    # Several results stand in one document, whose identifiers must differ.
    assert not re.search(r' id="|<script|<main|<button', html)


def test_every_rule_of_the_style_is_inside_of_the_cards() -> None:
    style = re.search(r"<style>(.*?)</style>", show(build_diff())["text/html"], re.DOTALL)[1]
    style = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    assert style.startswith(".camtool-cards")
    depths = np.cumsum([(letter == "{") - (letter == "}") for letter in style])
    assert depths[:-1][style.index("{") :].min() == 1
    assert ":root" not in style


def test_pictures_of_an_audit_are_small_and_a_missing_one_is_left_out(tmp_path: Path) -> None:
    findings = [build_finding(key=f"key {number}", name=f"place {number}") for number in range(6)]
    write_pictures(tmp_path, *(finding.key for finding in findings))
    noise = np.random.default_rng(0).integers(0, 256, (288, 288, 3), np.uint8)
    for number in (0, 1):
        write_image(tmp_path / f"index_files/{number}.jpg", noise)
    (tmp_path / "index_files/2.jpg").unlink()
    audit = replace(build_audit(*findings), folder=tmp_path).mark("key 0", "shortcut")
    html = show(audit)["text/html"]
    assert "6 suspicious findings" in html
    assert html.count("<article") == 4
    sources = re.findall(r"data:image/webp;base64,([^\"]*)", html)
    assert [read_picture(source).size if source else None for source in sources[:3]] == [(128, 128), (128, 128), None]
    assert "shortcut" in html
    assert len(html) < BYTES


def test_an_evaluation_has_a_bar_for_each_interval_and_bold_means() -> None:
    evaluation = build_evaluation()
    html = show(evaluation)["text/html"]
    assert html.count("<svg") == 5
    assert re.findall("<strong>(.*?)<", html) == [evaluation._format_cell(evaluation.rows[0], "insertion", "{}")]
    ends = [float(end) for end in re.findall(r'class="interval" x="(.*?)%"', html)]
    assert min(ends) == 0
    assert max(ends) < 100


def test_a_comparison_of_methods_is_pictures_beside_the_photo() -> None:
    results = [explain(draw_photo(), method=method) for method in ("gradcam", "layercam")]
    shown = show(Comparison((*results,)))
    assert re.findall("<figcaption>(.*?)<", shown["text/html"])[0] == "photo"
    assert shown["text/html"].count("<figure>") == 3
    assert "image/png" in shown
