"""Ablation-CAM and Recipro-CAM: numbers by hand, with and without a pooled linear head, and grad-cam's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from camtool.errors import MethodError
from camtool.evidence.evidence import gather_evidence
from camtool.evidence.linear_head import find_scoring_head
from camtool.hooks.observation import resume
from camtool.layers.layouts import Layer, Layout
from camtool.methods import METHODS
from camtool.targets import ClassScore, Contrast, Custom, Probability, Value
from tests.helpers.nets import Apply
from tests.methods.test_all_methods import (
    CLASSES,
    GRID,
    HAND_IMAGE,
    IMAGES,
    KINDS,
    C,
    Net,
    case_of,
    close_to_peak,
    conv,
    deep_net,
    look,
    net_of_ones,
    pool,
    pooled_net,
)
from tests.oracles import ORACLES

ablationcam, reciprocam = METHODS["ablationcam"], METHODS["reciprocam"]

BOTH: list[tuple[str, dict[str, Any]]] = [
    ("ablationcam", {}),
    ("reciprocam", {}),
    ("reciprocam", {"gaussian": True}),
    ("reciprocam", {"score": "probability"}),
]

SQUARE = Layer("trunk", Layout("channels first", (2, 2)))

A_0, A_1 = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[1.0, 2.0], [2.0, 0.0]])  # means 9/4 and 5/4


def picture(count: int = 3) -> Tensor:
    return torch.randn(count, *IMAGES, dtype=torch.float64)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that the tail is run on, from now on."""
    sizes: list[int] = []

    def counting(model: nn.Module, layer: str, activations: Tensor, *rest: Any, **options: Any) -> Any:
        sizes.append(len(activations))
        return resume(model, layer, activations, *rest, **options)

    monkeypatch.setattr("camtool.evidence.rescoring.resume", counting)
    return sizes


# ------------------------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ([1.0, -1.0], 9 / 4 * A_0 - 5 / 4 * A_1),  # y = 1, without A_0 it is -5/4, without A_1 9/4
        ([-1.0, 1.0], 5 / 4 * A_1 - 9 / 4 * A_0),  # y = -1, without A_0 it is 5/4, without A_1 -9/4
        ([1.0, 1.0], 9 / 14 * A_0 + 5 / 14 * A_1),  # y = 7/2
    ],
)
def test_ablationcam_equals_numbers_by_hand(
    weight: list[float], expected: Tensor, shortcut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shortcut:
        monkeypatch.setattr("camtool.methods.families.ablation.find_scoring_head", lambda _: None)
    net = net_of_ones(nn.AdaptiveAvgPool2d(1), [weight])
    assert_close(ablationcam(look(net, SQUARE, HAND_IMAGE, ClassScore(1))), expected.relu()[None])


def test_score_of_zero_keeps_weights_finite_and_proportional() -> None:
    net = net_of_ones(nn.AdaptiveAvgPool2d(1), [[5.0, -9.0]])
    evidence = look(net, SQUARE, HAND_IMAGE, ClassScore(1))
    assert evidence.scores.tolist() == [0.0]
    ours = ablationcam(evidence)
    assert ours.isfinite().all()
    close_to_peak(ours / ours.amax(), (A_0 - A_1).relu()[None] / 2, 1e-6)


@pytest.mark.parametrize("shortcut", [True, False])
def test_reciprocam_equals_numbers_by_hand(shortcut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shortcut:
        monkeypatch.setattr("camtool.methods.families.ablation.find_scoring_head", lambda _: None)
    net = net_of_ones(nn.AdaptiveAvgPool2d(1), [[1.0, -1.0]])
    evidence = look(net, SQUARE, HAND_IMAGE, ClassScore(1))
    assert_close(reciprocam(evidence), (A_0 - A_1)[None] / 4)
    # In a corner of 2 x 2 there lie 1/4 + 1/8 + 1/8 + 1/16 of the kernel.
    assert_close(reciprocam(evidence, gaussian=True), (A_0 - A_1)[None] / 4 * 9 / 16)


def test_gaussian_spreads_over_adjacent_positions_only() -> None:
    """The score is the value in the middle of 5 x 5: nearer places reach it, each by its share."""
    one = torch.ones(1, 1, 5, 5)
    net = Net(nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU()), Apply(lambda a: a[:, :, 2, 2]))
    net.trunk[0].weight.data.fill_(16.0)
    evidence = look(net, Layer("trunk", Layout("channels first", (5, 5))), one, ClassScore(1))
    middle = torch.zeros(5, 5)
    middle[1:4, 1:4] = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]])
    assert torch.equal(reciprocam(evidence, gaussian=True), middle[None])


@pytest.mark.parametrize("make", [pooled_net, deep_net])
def test_reciprocam_of_the_probability_equals_the_oracle(make: Callable[[], tuple[Net, Layer]]) -> None:
    net, layer = make()
    x = picture(1)
    expected = ORACLES["reciprocam"](case_of(net.double(), layer, x, 2), score="probability")
    ours = [reciprocam(look(net, layer, x, target), score="probability") for target in (ClassScore(2), Probability(2))]
    for each in ours:
        close_to_peak(each, torch.tensor([expected], dtype=torch.float64), 1e-12)


def test_reciprocam_of_a_target_without_a_probability_uses_its_own_score() -> None:
    net, layer = deep_net()
    evidence = look(net.double(), layer, picture(1), Contrast(2, (0,)))
    assert torch.equal(reciprocam(evidence, score="probability"), reciprocam(evidence))


# -------------------------------------------------------------------------------- behind a pooled linear head


def squared(output: Tensor) -> Tensor:
    return (output**2).sum()


TARGETS = [ClassScore(3), Contrast(2, (0, 5), weight=0.6), Value(1), Probability(6), Custom(squared)]


@pytest.mark.parametrize(("name", "options"), BOTH)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_head_arithmetic_equals_running_the_tail(
    name: str, options: dict[str, Any], kind: str, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, layer = pooled_net(kind)
    evidence, sizes = look(net.double(), layer, picture(), target), counted(monkeypatch)
    by_arithmetic = METHODS[name](evidence, **options)
    assert sizes == [], "the tail ran"
    monkeypatch.setattr("camtool.methods.families.ablation.find_scoring_head", lambda _: None)
    close_to_peak(by_arithmetic, METHODS[name](evidence, **options), 1e-10)
    assert sum(sizes) == 3 * (C if name == "ablationcam" else 12)


@pytest.mark.parametrize(("name", "options"), BOTH)
def test_head_arithmetic_equals_the_tail_if_the_model_pools_the_positive_part(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net(conv(), nn.Sequential(nn.ReLU(), Apply(pool), nn.Linear(C, CLASSES))).double()
    evidence = look(net, Layer("trunk", Layout("channels first", GRID)), picture(), ClassScore(1))
    by_arithmetic = METHODS[name](evidence, **options)
    assert find_scoring_head(evidence) is not None
    monkeypatch.setattr("camtool.methods.families.ablation.find_scoring_head", lambda _: None)
    close_to_peak(by_arithmetic, METHODS[name](evidence, **options), 1e-10)


@pytest.mark.parametrize(("name", "options"), BOTH)
def test_function_of_the_whole_output_runs_the_tail(name: str, options: dict[str, Any]) -> None:
    """The head gives the logits; other entries of the output need a forward pass."""
    net, layer = pooled_net()
    net.double()
    net.inner = tail = net.tail  # a module of the net, so that its linear layer can be found
    net.tail = Apply(lambda a: {"logits": tail(a), "highest": a.amax((1, 2, 3))})
    x = picture(2)
    rich = look(net, layer, x, Custom(lambda output: output["logits"][3] + output["highest"]))
    assert find_scoring_head(rich) is None
    assert find_scoring_head(look(net, layer, x, ClassScore(3))) is not None
    ours = METHODS[name](rich, **options)
    net.tail = Apply(lambda a: tail(a)[:, 3:4] + a.amax((1, 2, 3))[:, None])
    close_to_peak(ours, METHODS[name](look(net, layer, x, Value(0)), **options), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_reciprocam_before_a_linear_head_equals_cam_plus_bias(kind: str) -> None:
    net, layer = pooled_net(kind)
    evidence = look(net.double(), layer, picture(), ClassScore(2))
    close_to_peak(reciprocam(evidence), METHODS["cam"](evidence) / 12 + net.tail[-1].bias[2].detach(), 1e-10)


def test_ablationcam_weights_of_a_linear_score_are_the_contributions_with_the_sign_of_the_activations() -> None:
    net, layer = pooled_net()
    evidence = look(net.double(), layer, picture(), ClassScore(2))
    given = net.tail[-1].weight[2].detach() * evidence.activations.mean((2, 3)).abs()
    weights = ablationcam.weight_function(evidence)
    assert weights.shape == (3, C, 1, 1)
    assert_close(weights[:, :, 0, 0], given / evidence.scores.abs()[:, None], rtol=1e-9, atol=0)


# ------------------------------------------------------------------------------------------- what runs, and how much


def test_zero_channels_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    net, layer = deep_net()
    net.trunk[0].weight.data[[1, 3]] = 0
    net.trunk[0].bias.data[[1, 3]] = -1
    evidence, sizes = look(net.double(), layer, picture(2), ClassScore(0)), counted(monkeypatch)
    weights = ablationcam.weight_function(evidence)
    assert sizes == [C - 2, C - 2]
    assert (weights[:, :, 0, 0] == 0).tolist() == [[False, True, False, True, False]] * 2


def test_nothing_runs_if_all_channels_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    net, layer = deep_net()
    net.trunk[0].weight.data.zero_()
    net.trunk[0].bias.data.fill_(-1)
    evidence, sizes = look(net, layer, torch.randn(2, *IMAGES), ClassScore(0)), counted(monkeypatch)
    assert not ablationcam(evidence).any()
    assert sizes == []


@pytest.mark.parametrize(("name", "options"), BOTH)
@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_chunk_size_bounds_the_variants_and_does_not_change_the_map(
    name: str, options: dict[str, Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, layer = deep_net()
    evidence = look(net.double(), layer, picture(2), ClassScore(4))
    expected, sizes = METHODS[name](evidence, **options), counted(monkeypatch)
    close_to_peak(METHODS[name](evidence, chunk=chunk, **options), expected, 1e-12)
    assert max(sizes) <= chunk


@pytest.mark.parametrize(("name", "options"), BOTH)
@pytest.mark.parametrize("make", [pooled_net, deep_net])
def test_rows_of_one_image_share_tails_and_equal_single_rows(
    name: str, options: dict[str, Any], make: Callable[[], tuple[Net, Layer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, layer = make()
    evidence = look(net.double(), layer, picture(2), ClassScore(0))
    wanted, images = [ClassScore(4), Probability(1), ClassScore(2)], [1, 0, 1]
    (several,) = gather_evidence(evidence.forward_pass, wanted, images)
    single = [
        gather_evidence(evidence.forward_pass, [one], [image])[0] for one, image in zip(wanted, images, strict=True)
    ]
    alone = [METHODS[name](each, **options) for each in single]
    sizes = counted(monkeypatch)
    close_to_peak(METHODS[name](several, **options), torch.cat(alone), 1e-10)
    assert len(sizes) == (0 if make is pooled_net else 2)


# ---------------------------------------------------------------------------------------------- grids of any rank


def line(rank: int, weight: Tensor) -> tuple[Net, Layer]:
    """The same net on ``(8,)``, ``(1, 8)`` and ``(1, 1, 8)``."""
    convolution = [nn.Conv1d, nn.Conv2d, nn.Conv3d][rank - 1](3, C, 1)
    convolution.weight.data = weight[:, :3].reshape(C, 3, *[1] * rank)
    convolution.bias.data = weight[:, 3]
    linear = nn.Linear(C * 8, CLASSES)
    linear.weight.data = torch.linspace(-1, 2, CLASSES * C * 8).sin().reshape(CLASSES, -1)
    linear.bias.data.fill_(0.1)
    net = Net(nn.Sequential(convolution, nn.ReLU()), nn.Sequential(nn.Flatten(), nn.Tanh(), linear))
    return net.double(), Layer("trunk", Layout("channels first", (1,) * (rank - 1) + (8,)))


@pytest.mark.parametrize("name", ["ablationcam", "reciprocam"])
def test_rank_of_the_grid_does_not_change_values(name: str) -> None:
    weight, x = torch.randn(C, 4, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    maps = []
    for rank in (1, 2, 3):
        net, layer = line(rank, weight)
        grid = layer.layout.grid
        maps.append(METHODS[name](look(net, layer, x.reshape(2, 3, *grid), ClassScore(4))))
        assert maps[-1].shape == (2, *grid)
    close_to_peak(maps[1].flatten(1), maps[0], 1e-12)
    close_to_peak(maps[2].flatten(1), maps[0], 1e-12)


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("grid", [(5,), (3, 4), (2, 3, 4)])
def test_gaussian_is_the_product_of_its_axes(
    grid: tuple[int, ...], shortcut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On ones, each position reaches the mean with the part of the kernel inside the grid."""
    if not shortcut:
        monkeypatch.setattr("camtool.methods.families.ablation.find_scoring_head", lambda _: None)
    convolution = [nn.Conv1d, nn.Conv2d, nn.Conv3d][len(grid) - 1](1, 1, 1, bias=False)
    convolution.weight.data.fill_(1.0)
    linear = nn.Linear(1, 1, bias=False)
    linear.weight.data.fill_(float(torch.Size(grid).numel()))
    net = Net(convolution, nn.Sequential(Apply(lambda a: a.flatten(2).mean(2)), linear))
    evidence = look(net, Layer("trunk", Layout("channels first", grid)), torch.ones(1, 1, *grid), ClassScore(1))
    expected = torch.ones(1, *grid)
    for axis, size in enumerate(grid, 1):
        for end in (0, size - 1):
            expected.select(axis, end).mul_(3 / 4)
    assert_close(reciprocam(evidence, gaussian=True), expected)


# ----------------------------------------------------------------------------------------------- peers, and faults


def test_ablationcam_on_rectified_activations_has_the_weights_of_grad_cam() -> None:
    """Before its post-processing and one by one: in larger batches it changes a later channel by an earlier one."""
    grad_cam = pytest.importorskip("pytorch_grad_cam")
    target = pytest.importorskip("pytorch_grad_cam.utils.model_targets").ClassifierOutputTarget(2)
    net, layer = deep_net()
    evidence = look(net, layer, torch.randn(1, *IMAGES), ClassScore(2))
    assert evidence.activations.amin() == 0
    theirs = grad_cam.AblationCAM(net, [net.trunk], batch_size=1)
    weights = theirs.get_cam_weights(evidence.inputs, net.trunk, [target], evidence.activations.numpy(), None)
    flipped = evidence.scores.sign()  # it divides by the score, whatever its sign
    close_to_peak(ablationcam.weight_function(evidence)[:, :, 0, 0], flipped * torch.from_numpy(weights), 1e-5)


@pytest.mark.parametrize("name", ["ablationcam", "reciprocam"])
@pytest.mark.parametrize("make", [pooled_net, deep_net])
def test_chunk_of_zero_is_rejected(name: str, make: Callable[[], tuple[Net, Layer]]) -> None:
    net, layer = make()
    with pytest.raises(MethodError, match=r"chunk must be a whole number of 1 or more, or None, got 0"):
        METHODS[name](look(net, layer, torch.randn(1, *IMAGES), ClassScore(0)), chunk=0)


@pytest.mark.parametrize(("name", "options"), BOTH)
@pytest.mark.parametrize("make", [pooled_net, deep_net])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_maps_are_finite_for_any_activations(
    name: str, options: dict[str, Any], make: Callable[[], tuple[Net, Layer]], scale: float
) -> None:
    net, layer = make()
    net.trunk[0].bias.data.zero_()
    assert METHODS[name](look(net, layer, scale * torch.rand(2, *IMAGES), ClassScore(1)), **options).isfinite().all()
