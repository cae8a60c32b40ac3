"""Networks with a known answer: interventions prove the truths, and verdicts are what the formulas say."""

from __future__ import annotations

import json
import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import camtool
from benchmarks.wired import RESULTS, Answer, explain_with_camtool, format_table, judge, mark
from benchmarks.wired_networks import CELL, SIDE, TARGET, WiredNetwork, compute_shapley, find_role, list_networks

NETWORKS = {network.name: network for network in list_networks()}
PAGE = Path(__file__).parents[1] / "docs" / "known-answers.md"

each_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def standardize(red: float, blue: float) -> float:
    """Group normalization of 192 activations, four of them red and four blue; the score reads the positive red ones."""
    values = np.zeros(192)
    values[:4], values[-4:] = red, blue
    normalized = (values - values.mean()) / math.sqrt(values.var() + 1e-5)
    return float(normalized[:64].clip(0).sum()) / 4


def attend(red: float, _: float) -> float:
    """Copy 2 · 0.5 from each of four red tokens of 65, with the attention of a logit of 8 · 8 · 0.5 / sqrt(4)."""
    weight = math.exp(16 * red)
    return red * 4 * weight / (4 * weight + 61)


FORMULAS = {
    "copy": lambda a, _: a,
    "negative": lambda a, b: 3 * a - b,
    "cancel": lambda a, _: a,
    "and": lambda a, b, _: a and b,
    "or": lambda a, b, _: a or b,
    "xor": lambda a, b, _: a == b,
    "maximum": lambda a, b, _: max(a, b),
    "saturation": lambda a, _: a,
    "place": lambda a, _: a,
    "absence": lambda a, _: a,
    "emptiness": lambda a, _: a,
    "bypass": lambda a, b, _: a + b,
    "norm": lambda a, b: standardize(0.5 * a, b),
    "shift": lambda a, _: a,
    "attention": attend,
    "idle": lambda a, _: a * 16 * 4 / 65,
}
"""The score for each subset of the squares, by hand: 1 for a square that is there."""


@each_network
def test_the_score_of_every_subset_is_that_of_the_formula(network: WiredNetwork) -> None:
    scores = network.play()
    for there in product((0, 1), repeat=len(network.squares)):
        kept = frozenset(place for place, is_there in enumerate(there) if is_there)
        assert scores[kept] == pytest.approx(float(FORMULAS[network.name](*there)), abs=1e-5)


@each_network
def test_interventions_prove_what_each_square_means(network: WiredNetwork) -> None:
    scores = network.play()
    roles = [square.role for square in network.squares]
    assert [find_role(scores, player) for player in range(len(roles))] == roles
    parts, everything = [player for player, role in enumerate(roles) if role == "evidence"], max(scores, key=len)
    if len(parts) == 2:
        without_one = [scores[everything - {part}] < scores[everything] - 0.1 for part in parts]
        assert without_one == [network.needs_both] * 2
    assert scores[everything - set(parts)] < scores[everything] or network.name == "xor"


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "norm"])
@torch.inference_mode()
def test_the_rest_of_the_image_does_not_count(name: str) -> None:
    network = NETWORKS[name]
    assert network.elsewhere is not None
    changed = network.draw(frozenset(range(len(network.squares))), rest=network.elsewhere)
    scores = network.build()(torch.cat([network.inputs, changed]))[:, TARGET]
    assert float(scores[1]) == pytest.approx(float(scores[0]), abs=1e-6)


def test_shapley_values_are_means_over_orders() -> None:
    # Two players of whom one has to come first: 0 earns 2 alone, 1 earns 3 behind it.
    scores = {frozenset(): 1.0, frozenset({0}): 3.0, frozenset({1}): 1.0, frozenset({0, 1}): 6.0}
    assert compute_shapley(scores, 0) == pytest.approx((2 + 5) / 2)
    assert compute_shapley(scores, 1) == pytest.approx((3 + 0) / 2)


def paint(*squares: tuple[int, int, float]) -> np.ndarray:
    """Return a map with heat in squares of 2 x 2 cells, given by row, column and heat."""
    heat = np.zeros((SIDE, SIDE), np.float32)
    for row, column, value in squares:
        heat[row * CELL : (row + 2) * CELL, column * CELL : (column + 2) * CELL] = value
    return heat


# The parts of "maximum" are at (1, 1) and (5, 5), and nothing depends on (1, 5).
@pytest.mark.parametrize(
    ("heat", "verdict"),
    [
        (paint((1, 1, 1), (5, 5, 0.3)), "found"),
        (paint((1, 1, 1), (5, 5, 0.3), (1, 5, 0.45)), "found"),
        (paint((1, 1, 1), (5, 5, 0.2)), "partly"),
        (paint((1, 1, 1), (5, 5, 1), (1, 5, 0.6)), "partly"),
        (paint((1, 1, 1), (5, 5, 1), (1, 5, 0.95)), "fooled"),
        (paint((1, 5, 1)), "fooled"),
        (paint((1, 1, 0.5), (5, 5, 0.5), (5, 0, 1)), "fooled"),
        (paint((1, 1, -1)), "nothing"),
        (np.ones((SIDE, SIDE), np.float32), "nothing"),
        (None, "refused"),
    ],
)
def test_a_map_painted_by_hand_gets_its_verdict(heat: np.ndarray | None, verdict: str) -> None:
    assert judge(heat, NETWORKS["maximum"]) == verdict


def ask(method: str, name: str) -> tuple[str, Answer]:
    answer = explain_with_camtool(method, NETWORKS[name])
    return judge(answer.heat, NETWORKS[name]), answer


@pytest.mark.parametrize(
    ("name", "right", "wrong", "verdict"),
    [
        ("copy", "gradcam", "eigencam", "fooled"),
        ("cancel", "hirescam", "layercam", "fooled"),
        ("and", "occlusion", "reciprocam", "nothing"),
        ("or", "integrated-gradients", "occlusion", "nothing"),
        ("xor", "occlusion", "integrated-gradients", "nothing"),
        ("maximum", "gradcam", "hirescam", "partly"),
        ("saturation", "occlusion", "inputxgradient", "nothing"),
        ("place", "hirescam", "gradcam", "fooled"),
        ("emptiness", "hirescam", "gradcam", "fooled"),
        ("idle", "chefer", "rollout", "fooled"),
    ],
)
def test_one_method_finds_it_and_another_one_does_not(name: str, right: str, wrong: str, verdict: str) -> None:
    assert ask(right, name)[0] == "found"
    assert ask(wrong, name)[0] == verdict


@pytest.mark.parametrize("name", ["or", "saturation"])
def test_a_gradient_of_zero_has_a_warning(name: str) -> None:
    verdict, answer = ask("gradcam", name)
    assert (verdict, answer.warnings) == ("nothing", ["LayerError", "zero-gradient"])


@pytest.mark.parametrize("method", ["integratedgradcam", "liftcam"])
def test_a_gradient_of_zero_has_no_warning_if_the_method_reads_more_than_that(method: str) -> None:
    verdict, answer = ask(method, "saturation")
    assert (verdict, answer.warnings, answer.check) == ("found", ["LayerError"], [])


@pytest.mark.parametrize("method", ["gradcam", "hirescam", "layercam", "gradcam++", "ablationcam", "faithcam"])
def test_no_class_activation_map_shows_that_something_is_absent(method: str) -> None:
    verdict, answer = ask(method, "absence")
    assert (verdict, answer.warnings) == ("nothing", ["constant-map"])


def test_evidence_that_passes_the_layer_by_is_missing_and_check_says_so() -> None:
    verdict, answer = ask("gradcam", "bypass")
    assert verdict == "partly"
    assert answer.check == ["other-paths"]
    assert ask("occlusion", "bypass")[0] == "found"


@pytest.mark.parametrize(("placement", "verdict"), [("centers", "found"), ("stretch", "fooled")])
def test_heat_follows_what_a_convolution_moves_if_it_is_placed_by_centers(placement: str, verdict: str) -> None:
    network = NETWORKS["shift"]
    result = camtool.explain(network.build().eval(), network.inputs, TARGET, placement=placement)[0]
    assert judge(result.heatmap, network) == verdict


def test_the_page_shows_the_table_of_the_results_and_every_network() -> None:
    results, page = json.loads(RESULTS.read_text(encoding="utf-8")), PAGE.read_text(encoding="utf-8")
    match = re.search(r"<!-- wired -->\n(.*?)\n<!-- /wired -->", page, re.DOTALL)
    assert match is not None
    assert match[1] == format_table(results["methods"])
    assert [network["name"] for network in results["networks"]] == list(NETWORKS)
    assert re.findall(r"^\* \*\*(\w+):", page, re.MULTILINE) == list(NETWORKS)
    assert f"{results['chance']} of the 16" in page


@pytest.mark.parametrize(
    ("verdict", "warnings", "check", "sign"),
    [
        ("found", ["constant-map"], [], "●"),
        ("fooled", ["constant-map"], ["same-map"], "✗!"),
        ("partly", [], ["same-map"], "◐?"),
        ("nothing", [], [], "○"),
        ("refused", ["MethodError"], [], "."),
    ],
)
def test_a_mark_tells_verdict_and_warning(verdict: str, warnings: list[str], check: list[str], sign: str) -> None:
    assert mark({"verdict": verdict, "warnings": warnings, "check": check}) == sign
