"""The check-up in words, and the curves of deletion and insertion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import camtool
from camtool.app.panels.trust import (
    Curve,
    TrustCurves,
    draw_bars,
    draw_check_up,
    draw_curves,
    draw_places,
    iterate_curves,
)
from camtool.models import Loaded
from camtool.targets import Detection
from camtool.trust.checks.check_report import CheckReport, Finding
from camtool.trust.metrics import METRICS, ClassScore, MetricInputs
from camtool.warning_codes import HeatPlaces
from tests.app.panels.models import box_model, draw_demo_scene, draw_noise

STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def short_curves() -> Iterator[None]:
    """Make curves of few points, and compare with few random maps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("camtool.app.panels.trust._STEPS", STEPS)
        patch.setattr("camtool.app.panels.trust._RANDOM_MAPS", 2)
        yield


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return draw_demo_scene()[1]


@pytest.fixture(scope="module")
def states(demo: Loaded, photo: Image.Image) -> list[TrustCurves]:
    return [*iterate_curves(demo, photo, camtool.explain(demo, photo))]


# -------------------------------------------------------------------------------------------------------- check-up


def test_nothing_found_is_said_in_words(demo: Loaded, photo: Image.Image) -> None:
    drawn = draw_check_up(camtool.explain(demo, photo).check())
    assert "ct-fine" in drawn
    assert "<p>Nothing speaks against this map. This does not prove that it is right" in drawn
    assert "<code>" not in drawn, "no finding"


def test_a_finding_has_code_sentence_and_remedy(demo: Loaded) -> None:
    drawn = draw_check_up(camtool.explain(demo, Image.new("RGB", (128, 128))).check())
    assert "ct-doubt" in drawn
    assert "<p>There is 1 reason not to trust this map.</p>" in drawn
    warning = drawn.split('<li class="ct-warning">')[1].split("</li>")[0]
    assert drawn.count('<li class="ct-warning">') == 1
    assert warning.startswith("<code>constant-image</code><p>")
    assert "the same everywhere" in warning
    assert warning.endswith('<p class="ct-remedy">Check the file and the code that reads it.</p>')


def test_the_finding_about_the_place_shows_both_places(demo: Loaded, photo: Image.Image) -> None:
    explanation = camtool.explain(demo, photo)
    places = Finding("heat-elsewhere", "It lies elsewhere.", places=HeatPlaces((10, 10), (60, 40)))
    report = CheckReport("cat", (Finding("border-heat", "It is at the border."), places))
    before, after = draw_check_up(report, draw_places(explanation, report)).split("<code>heat-elsewhere</code>")
    assert "<img" not in before
    assert 'alt="A ring where the hottest cell is drawn' in after.split("</li>")[0]
    assert draw_places(explanation, explanation.check()) == ""


def test_what_could_not_be_checked_is_listed(photo: Image.Image) -> None:
    boxes = box_model([(2, 2, 12, 12, 1, 0.9)])
    assert "<li>channels: " in draw_check_up(camtool.explain(boxes, draw_noise(16, 16)).check())


# ---------------------------------------------------------------------------------------------------------- curves


def test_the_curves_end_at_the_values_of_the_metrics(
    demo: Loaded, photo: Image.Image, states: list[TrustCurves]
) -> None:
    result, images = camtool.explain(demo, photo), demo.transform(photo)[None]
    inputs = MetricInputs(
        images,
        torch.from_numpy(result.heatmap)[None],
        probability=ClassScore(demo.model, images, [result.index]),
    )
    for curve in (states[-1].deletion, states[-1].insertion):
        metric = METRICS[curve.name]
        value = float(metric.compute(inputs, steps=STEPS))
        draws = [float(metric.compute_chance(inputs, seed=seed, draws=1, steps=STEPS)) for seed in (0, 1)]
        assert curve.area == pytest.approx(value, abs=1e-5)
        assert curve.chance == pytest.approx(np.mean(draws), abs=1e-5)
        assert curve.beats_chance == (value > np.mean(draws) if metric.higher_is_better else value < np.mean(draws))
        assert curve.beats_chance
    assert states[-1].score_name == "probability"


def test_the_curves_grow_and_the_progress_ends_at_one(states: list[TrustCurves]) -> None:
    progress = [each.progress for each in states]
    assert progress == sorted(progress)
    assert progress[0] > 0
    assert progress[-1] == 1
    final = states[-1]
    assert final.deletion.scores[0] == pytest.approx(final.insertion.scores[-1], abs=1e-5), "both are the whole photo"
    for each in states[:-1]:
        for curve, complete in ((each.deletion, final.deletion), (each.insertion, final.insertion)):
            assert curve.area is None
            assert curve.describe() == ""
            assert curve.scores == complete.scores[: len(curve.scores)]
            assert curve.fractions == complete.fractions[: len(curve.fractions)]


def test_an_inverted_map_is_no_better_than_chance(demo: Loaded, photo: Image.Image) -> None:
    result = camtool.explain(demo, photo)
    *_, final = iterate_curves(demo, photo, replace(result, raw=-result.raw))
    assert not final.deletion.beats_chance
    assert not final.insertion.beats_chance
    assert "no better than chance" in final.insertion.describe()


def test_a_detection_is_followed_by_its_score() -> None:
    loaded, photo = box_model([(2, 2, 12, 12, 1, 0.9), (0, 0, 4, 4, 2, 0.3)]), draw_noise(16, 16)
    result = camtool.explain(loaded, photo, Detection(1))
    *_, final = iterate_curves(loaded, photo, result, Detection(1))
    assert final.score_name == "score"
    assert final.deletion.scores == pytest.approx([0.3] * (STEPS + 1)), "the confidence of the second detection"


# ---------------------------------------------------------------------------------------------------------- charts


def read_points(svg: str, style: str) -> list[list[tuple[float, float]]]:
    """Return the points of the lines of a style, one list for each chart that has it."""
    lines = [part.split('points="')[1].split('"')[0] for part in svg.split(f'class="{style}"')[1:]]
    return [[(float(pair.split(",")[0]), float(pair.split(",")[1])) for pair in line.split()] for line in lines]


def test_the_chart_has_a_point_for_each_value(states: list[TrustCurves]) -> None:
    drawn = draw_curves(states[-1])
    for style in ("ct-map", "ct-random"):
        assert [len(line) for line in read_points(drawn, style)] == [STEPS + 1, STEPS + 1]
    ((left, first), *_, (right, last)) = read_points(drawn, "ct-map")[0]
    scores = states[-1].deletion.scores
    assert left < right
    assert (first < last) is (scores[0] > scores[-1]), "larger values are higher up"
    assert states[-1].deletion.describe() in drawn


def test_a_chart_without_values_is_drawn_and_stays_in_its_frame() -> None:
    empty = TrustCurves(0.0, Curve("deletion"), Curve("insertion"), "probability")
    assert draw_curves(empty).count("<svg") == 2
    flat = Curve("deletion", (0.0, 1.0), (5.0, 5.0))
    for line in read_points(draw_curves(TrustCurves(1.0, flat, Curve("insertion"), "score")), "ct-map"):
        assert all(0 < y < 190 for _, y in line)


@pytest.mark.parametrize(
    ("rows", "lefts"),
    [([("a", 2.0, "2"), ("b", 1.0, "1")], [0.0, 0.0]), ([("a", 2.0, "2"), ("b", -1.0, "-1")], [50.0, 25.0])],
)
def test_bars_start_at_zero(rows: Any, lefts: list[float]) -> None:
    drawn = draw_bars(rows)
    assert [float(part.split("%")[0]) for part in drawn.split("left:")[1:]] == lefts


def test_names_in_charts_are_escaped() -> None:
    assert "<script>" not in draw_bars([("<script>", 1.0, "<b>")])
