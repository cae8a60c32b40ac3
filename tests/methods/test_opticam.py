"""Poly-CAM and Opti-CAM: numbers by hand, properties, and invalid options."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.rescoring import score_inputs, score_with_graph
from camtool.layers.layouts import Layer, Layout
from camtool.maps import resize_to_grid
from camtool.methods import METHODS
from camtool.targets import ClassScore, Probability
from tests.helpers.nets import Apply
from tests.methods.test_ablation import line
from tests.methods.test_all_methods import IMAGES, C, Net, close_to_peak, conv, deep_net, look

polycam, opticam = METHODS["polycam"], METHODS["opticam"]

BOTH = [("polycam", {"variant": "+"}), ("polycam", {"variant": "-"}), ("polycam", {}), ("opticam", {"steps": 3})]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures are scored at each call of :func:`score_inputs`, from now on."""
    counts: list[int] = []

    def counting(evidence: Evidence, rows: Any, count: int, make: Any, **options: Any) -> Tensor:
        counts.append(count)
        return score_inputs(evidence, rows, count, make, **options)

    monkeypatch.setattr("camtool.methods.families.scorecam.score_inputs", counting)
    return counts


# ------------------------------------------------------------------------------------------------------- by hand


def halves() -> tuple[Net, Layer, Tensor]:
    """Two channels are the picture's own, and the score is three times the left half of one, less the right."""
    trunk = nn.Conv2d(2, 2, 1, bias=False)
    trunk.weight.data = torch.eye(2).reshape(2, 2, 1, 1)
    linear = nn.Linear(8, 1)
    linear.weight.data = torch.tensor([[3.0, -1.0, 3.0, -1.0, 0.0, 0.0, 0.0, 0.0]])
    linear.bias.data.fill_(7.0)
    picture = torch.tensor([[[[4.0, 0.0], [2.0, 1.0]], [[0.0, 1.0], [2.0, 2.0]]]])
    return Net(trunk, nn.Sequential(nn.Flatten(), linear)), Layer("trunk", Layout("channels first", (2, 2))), picture


@pytest.mark.parametrize(("variant", "times"), [("+", 1), ("-", 1), ("+-", 2)])
def test_polycam_equals_numbers_by_hand(variant: str, times: int) -> None:
    """A linear score gains by a mask what it loses by the rest of it, so both weights are the same."""
    net, layer, x = halves()
    # M_0 = [[1, 0], [1/2, 1/4]], so w_0 = 3 4 + 3 2 / 2 - 1 / 4; M_1 = [[0, 1/2], [1, 1]], so w_1 = 3 2 - 1.
    expected = times * (59 / 4 * x[:, 0] + 5 * x[:, 1])
    assert_close(polycam(look(net, layer, x, ClassScore(1)), variant=variant, score="target"), expected)


def test_one_step_of_opticam_equals_numbers_by_hand() -> None:
    """Adam's first step is as long as its rate along each axis: up for the channel that shows the left half."""
    net, layer, x = halves()
    show = torch.tensor([[[[2.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]]])  # what is seen at the layer
    net.trunk = Apply(lambda a: a * 0 + show if a.shape[0] == 1 and torch.equal(a, x) else a)
    evidence = look(net, layer, x, ClassScore(1))
    assert torch.equal(evidence.activations, show)
    share = torch.tensor([0.3, -0.3]).softmax(0)
    assert_close(opticam(evidence, steps=1, rate=0.3), share[0] * show[:, 0] + share[1] * show[:, 1])


# -------------------------------------------------------------------------------------------- what Opti-CAM promises


def masked_score(evidence: Evidence, maps: Tensor) -> Tensor:
    """The score of the picture behind the map: resized, and scaled into [0, 1]."""
    up = resize_to_grid(maps, evidence.inputs.shape[2:]).flatten(1)
    lowest, highest = up.amin(1, keepdim=True), up.amax(1, keepdim=True)
    mask = ((up - lowest) / (highest - lowest)).reshape(-1, 1, *evidence.inputs.shape[2:])
    return score_with_graph(evidence, evidence.inputs * mask).detach()


def test_opticam_mask_keeps_a_higher_score_than_single_channels_and_their_mean() -> None:
    net, layer = deep_net("signed")
    evidence = look(net, layer, torch.randn(4, *IMAGES), ClassScore(3))
    best = masked_score(evidence, opticam(evidence))
    assert (best > masked_score(evidence, evidence.activations.mean(1)) + 1e-3).all()
    assert (best > masked_score(evidence, opticam(evidence, steps=5))).all()


def test_opticam_map_is_a_weighted_mean_of_the_channels() -> None:
    net, layer = deep_net("signed")
    evidence = look(net, layer, torch.randn(4, *IMAGES), ClassScore(3))
    A, ours = evidence.activations, opticam(evidence)
    assert ((A.amin(1) <= ours) & (ours <= A.amax(1))).all()


def test_constant_score_gives_equal_weights() -> None:
    net = Net(conv(), Apply(lambda a: a.flatten(1)[:, :1] * 0 + 1))
    evidence = look(net, Layer("trunk", Layout("channels first", (3, 4))), torch.randn(2, *IMAGES), ClassScore(0))
    assert_close(opticam(evidence), evidence.activations.mean(1))


@pytest.mark.parametrize("factor", [1e-12, 1e6])
def test_units_of_the_score_have_no_effect(factor: float) -> None:
    """Adam's constant 1e-8 would be large compared with a tiny gradient."""
    net, layer = deep_net("signed")
    x = torch.randn(2, *IMAGES, dtype=torch.float64)
    expected = opticam(look(net.double(), layer, x, ClassScore(3)), steps=10)
    net.tail[-1].weight.data *= factor
    net.tail[-1].bias.data *= factor
    close_to_peak(opticam(look(net, layer, x, ClassScore(3)), steps=10), expected, 1e-9)


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_model_gets_no_gradient_in_any_gradient_mode(mode: Any) -> None:
    net, layer = deep_net()
    x = torch.randn(2, *IMAGES)
    expected = opticam(look(net, layer, x, ClassScore(3)), steps=5)
    with mode():
        ours = opticam(look(net, layer, x.clone(), ClassScore(3)), steps=5)
    assert torch.equal(ours, expected)
    assert not ours.requires_grad
    assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())
    assert x.grad is None


# --------------------------------------------------------------------------------------------- what Poly-CAM runs


@pytest.mark.parametrize(("variant", "expected"), [("+", [2, 3]), ("-", [2, 3]), ("+-", [2, 3, 3])])
def test_constant_channel_is_not_run_and_has_no_weight(
    variant: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, layer = deep_net()
    net.trunk[0].weight.data[[0, 4]] = 0
    counts = counted(monkeypatch)
    weights = polycam.weight_function(look(net, layer, torch.randn(1, *IMAGES), ClassScore(0)), variant=variant)
    assert counts == expected
    assert not weights[0, [0, 4]].any()
    assert weights[0, 1:4].any()


@pytest.mark.parametrize("variant", ["+", "-", "+-"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunk_size_does_not_change_the_map(variant: str, chunk: int) -> None:
    net, layer = deep_net()
    evidence = look(net.double(), layer, torch.randn(2, *IMAGES, dtype=torch.float64), ClassScore(4))
    expected = polycam.weight_function(evidence, variant=variant)
    close_to_peak(polycam.weight_function(evidence, variant=variant, chunk=chunk), expected, 1e-12)


def test_polycam_variants_sum_to_the_combined_weights() -> None:
    net, layer = deep_net()
    evidence = look(net.double(), layer, torch.randn(2, *IMAGES, dtype=torch.float64), ClassScore(4))
    plus, minus, both = (polycam.weight_function(evidence, variant=each) for each in ("+", "-", "+-"))
    assert plus.shape == (2, C, 1, 1)
    assert (plus - minus).abs().amax() > 1e-3 * both.abs().amax()
    agreed = (plus > 0) & (minus > 0)
    assert agreed.any()
    assert_close(both[agreed], (plus + minus)[agreed])
    assert (both <= plus + minus + 1e-12).all()
    assert not both[(plus == 0) & (minus == 0)].any()


# ------------------------------------------------------------------------------------------------------ both of them


@pytest.mark.parametrize(("name", "options"), BOTH)
def test_rows_of_one_image_equal_single_rows(name: str, options: dict[str, Any]) -> None:
    net, layer = deep_net("signed")
    evidence = look(net.double(), layer, torch.randn(2, *IMAGES, dtype=torch.float64), ClassScore(0))
    wanted, images = [ClassScore(4), Probability(1), ClassScore(2)], [1, 0, 1]
    (several,) = gather_evidence(evidence.forward_pass, wanted, images)
    single = [
        gather_evidence(evidence.forward_pass, [one], [image])[0] for one, image in zip(wanted, images, strict=True)
    ]
    alone = [METHODS[name](each, **options) for each in single]
    close_to_peak(METHODS[name](several, **options), torch.cat(alone), 1e-10)


@pytest.mark.parametrize(("name", "options"), BOTH)
def test_rank_of_the_grid_does_not_change_values(name: str, options: dict[str, Any]) -> None:
    weight, x = torch.randn(C, 4, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    maps = []
    for rank in (1, 2, 3):
        net, layer = line(rank, weight)
        grid = layer.layout.grid
        maps.append(METHODS[name](look(net, layer, x.reshape(2, 3, *grid), ClassScore(1)), **options))
        assert maps[-1].shape == (2, *grid)
    close_to_peak(maps[1].flatten(1), maps[0], 1e-10)
    close_to_peak(maps[2].flatten(1), maps[0], 1e-10)


@pytest.mark.parametrize(("name", "options"), BOTH)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_maps_are_finite_for_any_activations(name: str, options: dict[str, Any], scale: float) -> None:
    net, layer = deep_net()
    net.trunk[0].bias.data.zero_()
    evidence = look(net, layer, scale * torch.rand(2, *IMAGES), ClassScore(1))
    assert METHODS[name](evidence, **options).isfinite().all()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("polycam", {"variant": "±"}, r"variant must be one of '\+', '-', '\+-', got '±'"),
        ("polycam", {"chunk": 0}, r"chunk must be a whole number of 1 or more, or None, got 0"),
        ("opticam", {"steps": 0}, r"steps must be a whole number of 1 or more, got 0"),
        ("opticam", {"rate": 0.0}, r"rate must be a finite number above 0, got 0.0"),
        ("opticam", {"rate": float("inf")}, r"rate must be a finite number above 0, got inf"),
    ],
)
def test_invalid_options_are_rejected(name: str, options: dict[str, Any], says: str) -> None:
    net, layer = deep_net()
    with pytest.raises(MethodError, match=says):
        METHODS[name](look(net, layer, torch.randn(1, *IMAGES), ClassScore(0)), **options)
