"""Finer, AgainstRest and Contrast: scores and gradients, checked by hand and by the formula of the authors' code."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from torch import nn

import camtool
from camtool.errors import TargetError
from camtool.outputs.class_scores import compute_probabilities
from camtool.targets import (
    AgainstRest,
    Contrast,
    Finer,
    ImageOutput,
    Negated,
    Target,
    Within,
    resolve_targets,
)
from tests.helpers.nets import Apply
from tests.targets.example_outputs import LABELS, LOGITS


def compute_finer_score_by_hand(outputs: list[float], index: int, rivals: list[int], weight: float) -> float:
    """Return the score of pytorch-grad-cam's FinerWeightedTarget: ``Σ_d p_d (y_c - weight y_d) / Σ_d p_d``."""
    total = sum(exp(value) for value in outputs)
    above, below = 0.0, 0.0
    for rival in rivals:
        p = exp(outputs[rival]) / total
        above += p * (outputs[index] - weight * outputs[rival])
        below += p
    return above / below


@pytest.mark.parametrize("weight", [0.0, 0.6, 1.0])
def test_finer_equals_the_formula_of_the_authors_code(weight: float) -> None:
    output = torch.randn(4, 9, dtype=torch.float64)
    expected = []
    for row in output.tolist():
        ranked = sorted(range(9), key=lambda index: abs(row[index] - row[2]))
        assert ranked[0] == 2
        expected.append(compute_finer_score_by_hand(row, 2, ranked[1:4], weight))
    torch.testing.assert_close(Finer(2, weight=weight)(output), torch.tensor(expected, dtype=torch.float64))


def test_finer_has_the_gradient_of_the_differences_between_logits() -> None:
    output = torch.tensor([[0.0, log(3), log(6), -9.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(Finer(0, rivals=2, weight=0.5)(output).sum(), output)
    torch.testing.assert_close(gradient, torch.tensor([[1, -0.5 / 3, -0.5 * 2 / 3, 0]]))


def test_finer_shares_are_right_for_probabilities_that_underflow() -> None:
    output = torch.tensor([[-500.0, -500.0, -499.0, 1e4]])
    target = Finer(0, rivals=2).resolve_on(ImageOutput(output[0]))
    assert target.rivals == (1, 2)
    torch.testing.assert_close(torch.tensor(target.shares), torch.tensor([1 / (1 + exp(1)), exp(1) / (1 + exp(1))]))


def test_finer_rivals_are_resolved_on_the_image() -> None:
    target = Finer(0, rivals=1, weighting="mean")
    assert resolve_targets(target, LOGITS[0], LABELS) == [Contrast(0, (2,), shares=(1.0,))]
    assert resolve_targets(Negated(target), LOGITS[1], LABELS) == [Negated(Contrast(0, (2,), shares=(1.0,)))]
    (tie,) = resolve_targets(Finer(1, rivals=1), torch.tensor([2.0, 2.0, 2.0]), None)
    assert tie.rivals == (0,), "the first of equal rivals"


def test_against_rest_ignores_what_raises_all_logits_equally() -> None:
    for how in ("mean", "max", "logsumexp"):
        torch.testing.assert_close(AgainstRest(1, how)(LOGITS + 7), AgainstRest(1, how)(LOGITS))


def test_against_rest_with_logsumexp_equals_the_log_odds() -> None:
    p = compute_probabilities(LOGITS)[:, 1]
    torch.testing.assert_close(AgainstRest(1, "logsumexp")(LOGITS), (p / (1 - p)).log())


@pytest.mark.parametrize(
    ("target", "sign"),
    [
        (Contrast(1, 0), 1),
        (Contrast(0, 1), -1),
        (AgainstRest(1), 1),
        (Finer(1), 1),
        (Negated(AgainstRest(1)), -1),
        (Within([0, 1]), 1),
    ],
    ids=str,
)
def test_the_other_class_of_one_probability_has_what_is_left_of_1(target: Target, sign: int) -> None:
    net = nn.Sequential(nn.Conv2d(3, 1, 1), Apply(lambda x: x.mean((2, 3)))).requires_grad_(requires_grad=False)
    net[0].weight.zero_()
    net[0].bias.fill_(log(3))
    net.append(nn.Sigmoid())  # p = 3 / 4
    result = camtool.explain(net.eval(), torch.ones(3, 4, 4), target, method="occlusion")
    assert result.score == pytest.approx(sign * (3 / 4 - 1 / 4))


def test_contrast_refuses_missing_rivals_and_invalid_shares() -> None:
    with pytest.raises(TargetError, match=r"Contrast's against is empty"):
        Contrast(1, ())
    for shares in ((float("nan"), 1.0), (float("inf"), 1.0), (0.0, 0.0)):
        with pytest.raises(TargetError, match=r"shares .* do not fit its 2 rivals"):
            Contrast(1, (2, 3), shares=shares)
