"""Score-CAM, SS-CAM, IS-CAM, Group-CAM and RISE: properties, shared passes, numbers by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import PassSettings, run_forward_pass
from camtool.hooks import fast_repeated_passes
from camtool.layers.layouts import Layer, Layout
from camtool.maps import scale_min_max
from camtool.methods import METHODS
from camtool.methods.families.scorecam import blur_input, compute_percentile
from camtool.targets import (
    AgainstRest,
    ClassScore,
    Contrast,
    Custom,
    Finer,
    Negated,
    Probability,
    Region,
    Target,
    Value,
)
from tests.helpers.nets import Apply
from tests.oracles import rise

ALL = ["scorecam", "sscam", "iscam", "groupcam", "rise"]
AT_LAYER = [name for name in ALL if name != "rise"]
FEW = {"sscam": {"samples": 3}, "iscam": {"samples": 3}, "rise": {"samples": 30, "cells": 3}}
CHANNELS, CLASSES = 5, 4

NETS = {
    1: (nn.Conv1d, nn.AdaptiveAvgPool1d, (12,)),
    2: (nn.Conv2d, nn.AdaptiveAvgPool2d, (6, 8)),
    3: (nn.Conv3d, nn.AdaptiveAvgPool3d, (4, 6, 8)),
}


def net(rank: int = 2) -> nn.Sequential:
    convolution, pool, _ = NETS[rank]
    trunk = nn.Sequential(convolution(3, CHANNELS, 3, stride=2, padding=1), nn.ReLU())
    return nn.Sequential(trunk, pool(2), nn.Flatten(), nn.Linear(CHANNELS * 2**rank, CLASSES)).eval()


def pictures(count: int = 1, rank: int = 2) -> Tensor:
    return torch.randn(count, 3, *NETS[rank][2])


def look(
    model: nn.Module, x: Tensor, targets: list[Target] | None = None, images: list[int] | None = None, layer: str = "0"
) -> Evidence:
    grid = tuple(-(-length // 2) for length in x.shape[2:])
    forward_pass = run_forward_pass(
        model, x, [Layer(layer, Layout("channels first", grid))], PassSettings(placement="stretch")
    )
    return gather_evidence(forward_pass, targets or [ClassScore(1)] * len(x), images)[0]


def run(name: str, evidence: Evidence, **options: Any) -> Tensor:
    return METHODS[name](evidence, **{**FEW.get(name, {}), **options})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Record the inputs of each chunk that runs through the folded model."""
    seen: list[Tensor] = []
    real = fast_repeated_passes.FoldedModel.__call__

    def spy(self: fast_repeated_passes.FoldedModel, inputs: Any) -> Any:
        seen.append(inputs)
        return real(self, inputs)

    monkeypatch.setattr(fast_repeated_passes.FoldedModel, "__call__", spy)
    return seen


# ------------------------------------------------------------------------------------------------- what all promise


@pytest.mark.parametrize("rank", NETS)
@pytest.mark.parametrize("name", ALL)
def test_maps_of_any_rank_are_finite_on_their_grid(name: str, rank: int) -> None:
    x = pictures(3, rank)
    maps = run(name, look(net(rank), x))
    at_layer = name in ("scorecam", "sscam", "iscam")
    assert maps.shape == (3, *(-(-n // 2) if at_layer else n for n in x.shape[2:]))
    assert maps.isfinite().all()
    assert maps.any()
    assert maps.amin() >= 0


@pytest.mark.parametrize("name", ALL)
def test_chunk_size_does_not_change_the_map(name: str) -> None:
    evidence = look(net(), pictures(2))
    expected = run(name, evidence)
    for chunk in (1, 3, 1000):
        assert_close(run(name, evidence, chunk=chunk), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ALL)
def test_targets_of_one_image_share_passes_and_equal_single_targets(name: str, asked: list[Tensor]) -> None:
    model, x = net(), pictures(2)
    targets = [ClassScore(0), ClassScore(2), Contrast(3, 1), Probability(1)]
    together = run(name, look(model, x, targets, [1, 0, 1, 1]))
    passes, expected = len(asked), []
    for target, image in zip(targets, [1, 0, 1, 1], strict=True):
        expected.append(run(name, look(model, x[image : image + 1], [target])))
    assert_close(together, torch.cat(expected), rtol=1e-5, atol=1e-6)
    assert passes == (4 if name == "groupcam" else 2)  # its masks are made of a target's own gradients


@pytest.mark.parametrize("name", ALL)
def test_random_methods_use_the_seed_and_not_the_global_generator(name: str) -> None:
    evidence, state = look(net(), pictures()), torch.get_rng_state()
    first = run(name, evidence)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(run(name, evidence), first)
    if name in ("sscam", "rise"):
        assert not torch.equal(run(name, evidence, seed=1), first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ALL)
def test_half_precision_gives_single_precision_maps(name: str, dtype: torch.dtype) -> None:
    model, x = net(), pictures()
    expected = run(name, look(model, x))
    maps = run(name, look(model.to(dtype), x.to(dtype)))
    assert maps.dtype == torch.float32
    assert_close(maps, expected, rtol=0, atol=(0.3 if name == "groupcam" else 0.05) * float(expected.amax()))


@pytest.mark.parametrize("name", ALL)
def test_masked_inputs_run_in_chunks(name: str, asked: list[Tensor]) -> None:
    run(name, look(net(), pictures()), chunk=1)
    assert {*map(len, asked)} == {1}
    assert len(asked) > 1


@pytest.mark.parametrize("scale_by", [0.0, 1e-30, 1e30])
@pytest.mark.parametrize("name", AT_LAYER)
def test_maps_of_tiny_and_huge_activations_are_finite(name: str, scale_by: float) -> None:
    model = net()
    model.insert(1, Apply(lambda a: a / (scale_by or 1)))
    model[0].append(Apply(lambda a: a * scale_by))
    assert run(name, look(model, pictures())).isfinite().all()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("scorecam", {"weighting": "sigmoid"}, "weighting must be one of 'softmax', 'probability', got 'sigmoid'"),
        ("scorecam", {"max_channels": 0}, "max_channels must be a whole number of 1 or more, or None, got 0"),
        ("sscam", {"noise": -1.0}, "noise must be a finite number at least 0, got -1.0"),
        ("sscam", {"on": "weights"}, "on must be one of 'activations', 'input', got 'weights'"),
        ("sscam", {"samples": 0}, "samples must be a whole number of 1 or more, got 0"),
        ("iscam", {"samples": -1}, "samples must be a whole number of 1 or more, got -1"),
        ("groupcam", {"groups": 0}, "groups must be a whole number of 1 or more, got 0"),
        ("groupcam", {"denoise": 1.0}, "denoise must be a finite number at least 0 and below 1, got 1.0"),
        ("groupcam", {"sigma": 0.0}, "sigma must be a finite number above 0, got 0.0"),
        ("groupcam", {"score": "logit"}, "score must be one of 'probability', 'target', got 'logit'"),
        ("rise", {"keep": 0.0}, "keep must be a finite number above 0 and at most 1, got 0.0"),
        ("rise", {"cells": 0}, "cells must be a whole number of 1 or more, got 0"),
        *((name, {"chunk": 0}, "chunk must be a whole number of 1 or more, or None, got 0") for name in ALL),
    ],
)
def test_option_out_of_range_is_rejected(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        run(name, look(net(), pictures()), **options)


NO_CLASS_ALONE: list[Target] = [
    *(Value(1), Custom(lambda one: one.max())),
    *(Negated(ClassScore(1)), Contrast(1, 0), AgainstRest(1), Finer(1)),
]


@pytest.mark.parametrize("target", NO_CLASS_ALONE, ids=str)
def test_targets_without_a_probability_use_their_score(target: Target) -> None:
    """Check it for a contrast and a negated score: the probability of their class would answer another question."""
    evidence = look(net(), pictures(), [target])
    with pytest.raises(
        MethodError,
        match=r"weighting='probability' needs the score or the probability of a class .* use weighting='softmax'",
    ):
        run("scorecam", evidence, weighting="probability")
    assert run("scorecam", evidence).isfinite().all()
    for name in ("groupcam", "rise"):
        assert torch.equal(run(name, evidence), run(name, evidence, score="target"))


def test_region_of_a_segmentation_uses_its_own_score() -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, CHANNELS, 3, stride=2, padding=1), nn.ReLU()), nn.Conv2d(5, 2, 1))
    mask = torch.zeros(3, 4)
    mask[:, 2:] = 1
    evidence = look(model, pictures(), [Region(1, mask)])
    for name in ("groupcam", "rise"):
        assert torch.equal(run(name, evidence), run(name, evidence, score="target"))
    assert run("rise", evidence).any()


# ---------------------------------------------------------------------------------------------------------- Score-CAM


def test_scorecam_equals_numbers_by_hand() -> None:
    """The trunk is the identity, on two channels; the score is the first channel's sum less the second's."""
    model = nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(4, 1, bias=False))
    model[2].weight.data = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    x = torch.tensor([[[1.0, 3.0], [2.0, 0.0]]])  # the masks are [0, 1] and [1, 0]
    forward_pass = run_forward_pass(model, x, [Layer("0", Layout("channels first", (2,)))])
    (evidence,) = gather_evidence(forward_pass, [ClassScore(1)])
    # What is left of the picture is [0, 3], [0, 0], a score of 3, and [1, 0], [2, 0], a score of -1.
    first = 1 / (1 + torch.tensor(-4.0).exp())
    expected = first * x[0, 0] + (1 - first) * x[0, 1]
    assert_close(METHODS["scorecam"](evidence), expected[None])


def test_scorecam_weights_are_a_softmax_or_probabilities() -> None:
    evidence = look(net(), pictures())
    weights = METHODS["scorecam"].weight_function(evidence)
    assert_close(weights.sum(1), torch.ones(1, 1, 1))
    mask = scale_min_max(torch.nn.functional.interpolate(evidence.activations, (6, 8), mode="bilinear")[0])
    chances = evidence.model(mask[:, None] * evidence.inputs).softmax(1)[:, 1].detach()
    assert_close(METHODS["scorecam"].weight_function(evidence, weighting="probability").flatten(), chances)


def test_constant_channels_share_one_pass(asked: list[Tensor]) -> None:
    model = net()
    model[0][0].weight.data[[1, 3, 4]] = 0
    model[0][0].bias.data[[1, 3, 4]] = torch.tensor([0.5, 0.0, -1.0])
    evidence = look(model, pictures())
    weights = METHODS["scorecam"].weight_function(evidence).flatten()
    assert [len(chunk) for chunk in asked] == [3]
    assert not asked[0][2].any()

    mask = scale_min_max(torch.nn.functional.interpolate(evidence.activations, (6, 8), mode="bilinear")[0])
    assert not mask[[1, 3, 4]].any()
    every = model(mask[:, None] * evidence.inputs)[:, 1].detach()
    assert_close(weights, every.softmax(0))
    chances = METHODS["scorecam"].weight_function(evidence, weighting="probability").flatten()
    assert chances.ne(0).tolist() == [True, False, True, False, False]  # as the authors' code leaves them out


def test_faster_scorecam_selects_the_most_varied_channels(asked: list[Tensor]) -> None:
    evidence = look(net(), pictures(2))
    spread = evidence.activations.flatten(2).std(2)
    weights = METHODS["scorecam"].weight_function(evidence, max_channels=2).flatten(1)
    assert weights.gt(0).tolist() == spread.ge(spread.topk(2).values[:, 1:]).tolist()
    assert_close(weights.sum(1), torch.ones(2))
    assert [len(chunk) for chunk in asked] == [3, 3]  # two channels, and the empty mask
    every = METHODS["scorecam"].weight_function(evidence).flatten(1)
    assert_close(weights, (every * weights.gt(0)) / (every * weights.gt(0)).sum(1, keepdim=True))
    assert torch.equal(METHODS["scorecam"].weight_function(evidence, max_channels=99).flatten(1), every)


def test_scale_first_is_an_option() -> None:
    evidence = look(net(), pictures())
    first, last = (run("scorecam", evidence, scale_first=first) for first in (True, False))
    assert not torch.equal(first, last)
    assert_close(first, last, rtol=0.2, atol=0.05)


# --------------------------------------------------------------------------------------------- SS-CAM and IS-CAM


def test_sscam_without_noise_equals_scorecam() -> None:
    evidence = look(net(), pictures())
    expected = METHODS["scorecam"](evidence)
    for on in ("activations", "input"):
        assert_close(METHODS["sscam"](evidence, samples=3, noise=0.0, on=on), expected)
        assert not torch.allclose(METHODS["sscam"](evidence, samples=3, noise=1.0, on=on), expected)


def test_iscam_with_one_step_equals_scorecam() -> None:
    evidence = look(net(), pictures())
    assert_close(METHODS["iscam"](evidence, samples=1), METHODS["scorecam"](evidence))
    assert not torch.allclose(METHODS["iscam"](evidence, samples=2), METHODS["scorecam"](evidence))


def test_iscam_never_exceeds_the_mask(asked: list[Tensor]) -> None:
    evidence = look(net(), pictures())
    METHODS["iscam"](evidence, samples=4)
    assert torch.cat(asked).abs().amax() <= evidence.inputs.abs().amax()


def test_constant_channels_share_noise_and_passes(asked: list[Tensor]) -> None:
    model = net()
    model[0][0].weight.data[[1, 3]] = 0
    model[0][0].bias.data[[1, 3]] = torch.tensor([0.5, 0.0])
    weights = METHODS["sscam"].weight_function(look(model, pictures()), samples=2, noise=0.5).flatten()
    assert [len(chunk) for chunk in asked] == [2 * 4]
    assert weights[1] == weights[3]
    assert asked[0][3].any(), "noise alone makes a mask"


# ---------------------------------------------------------------------------------------------------------- Group-CAM


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("count", [1, 2, 11, 12])
def test_percentile_is_linear_between_ranks(part: float, count: int) -> None:
    values = torch.randn(2, 3, count, dtype=torch.float64)
    assert_close(compute_percentile(values, part), values.quantile(part, 2))


def test_group_without_effect_gives_an_empty_map() -> None:
    model = net()
    model[3].weight.data.zero_()  # whatever is shown the answer is the same
    assert not run("groupcam", look(model, pictures())).any()


def test_groupcam_runs_once_per_group_and_once_for_the_blur(asked: list[Tensor]) -> None:
    evidence = look(net(), pictures())
    for groups in (1, 2, 5, 32):
        asked.clear()
        run("groupcam", evidence, groups=groups)
        assert sum(map(len, asked)) <= min(groups, CHANNELS) + 1
    assert_close(asked[0][-1], blur_input(evidence.inputs[0], 25, 50.0))


def test_score_option_selects_the_targets_own_score() -> None:
    evidence = look(net(), pictures(), [ClassScore(2)])
    by_chance = look(net(), pictures(), [Probability(2)])
    for name in ("groupcam", "rise"):
        assert not torch.allclose(run(name, evidence, score="target"), run(name, evidence))
        assert_close(run(name, by_chance, score="target"), run(name, by_chance))


def test_blur_equals_torchvision_and_keeps_constant_inputs() -> None:
    from torchvision.transforms.functional import gaussian_blur

    picture = torch.rand(3, 20, 24)
    assert_close(blur_input(picture, 3, 2.0), gaussian_blur(picture, [7, 7], [2.0, 2.0]))
    assert_close(blur_input(torch.full((2, 5, 4, 3), 0.3), 25, 50.0), torch.full((2, 5, 4, 3), 0.3))
    assert_close(blur_input(torch.rand(2, 1), 25, 50.0).shape, torch.Size([2, 1]))
    assert blur_input(picture.bfloat16(), 3, 2.0).dtype == torch.bfloat16


# --------------------------------------------------------------------------------------------------------------- RISE


@pytest.mark.parametrize("size", [(6, 8), (9, 5), (21, 14)])
def test_rise_equals_its_oracle(size: tuple[int, int]) -> None:
    torch.manual_seed(1)
    model, x = net().double(), torch.randn(2, 3, *size, dtype=torch.float64)
    ours = METHODS["rise"](look(model, x), samples=40)
    for image in range(2):
        case: Any = SimpleNamespace(
            x=x[image].tolist(),
            index=1,
            model=lambda picture: model(torch.tensor([picture], dtype=torch.float64))[0].tolist(),
        )
        assert_close(ours[image], torch.tensor(rise.rise(case, samples=40), dtype=torch.float64), rtol=1e-10, atol=0)


def test_rise_needs_no_layer_and_finds_the_only_relevant_pixel() -> None:
    model = nn.Sequential(Apply(lambda x: 8 * x[:, :, 3, 17]), nn.Linear(1, 2)).eval()
    model[1].weight.data, model[1].bias.data = torch.tensor([[-1.0], [1.0]]), torch.tensor([4.0, -4.0])
    result = camtool.explain(model, torch.ones(1, 1, 16, 20), 1, method="rise", samples=300)[0]
    assert result.layer == ""
    row, column = divmod(int(result.raw.argmax()), 20)
    assert abs(row - 3) <= 2
    assert abs(column - 17) <= 2


def test_rise_with_full_masks_gives_the_probability_everywhere() -> None:
    evidence = look(net(), pictures())
    chance = float(evidence.logits.softmax(1)[0, 1])
    assert_close(METHODS["rise"](evidence, samples=3, keep=1.0), torch.full((1, 6, 8), chance))


def test_rise_map_of_a_constant_score_is_constant() -> None:
    (result,) = camtool.explain(net(), torch.zeros(1, 3, 6, 8), 1, method="rise", samples=20)
    assert not result.heatmap.any()
    assert any("constant" in warning for warning in result.warnings)


def test_random_masks_have_the_requested_rate_and_differ() -> None:
    shown: list[Tensor] = []
    model = nn.Sequential(Apply(lambda x: shown.append(x) or x.mean((2, 3))), nn.Linear(1, 2)).eval()
    METHODS["rise"](look(model, torch.ones(1, 1, 33, 50)), samples=400, cells=5, keep=0.3)
    masks = torch.cat(shown[-1:])[:, 0]
    assert_close(torch.stack([masks.amin(), masks.amax()]), torch.tensor([0.0, 1.0]))
    assert abs(float(masks.mean()) - 0.3) < 0.02
    assert_close(masks.mean(0), torch.full((33, 50), 0.3), rtol=0, atol=0.1)
    assert len(masks.flatten(1).unique(dim=0)) == len(masks) == 400


# -------------------------------------------------------------------------------------------------------- arithmetic


def test_scaling_reaches_0_and_1_and_treats_rounding_as_constant() -> None:
    base = torch.tensor([[1.0, 2.0, 5.0]])
    for factor in (1e-38, 1.0, 6e37):
        assert_close(scale_min_max(base * factor), torch.tensor([[0.0, 0.25, 1.0]]))
    assert_close(scale_min_max(torch.tensor([[-3e38, 0.0, 3e38]])), torch.tensor([[0.0, 0.5, 1.0]]))
    assert not scale_min_max(torch.tensor([[7.0, 7.0], [0.0, 0.0], [1.0, 1.0 + 1e-7]])).any()


@pytest.mark.parametrize(("size", "options"), [((8, 16), {}), ((9, 12), {"window": 1 / 3, "stride": 1 / 3})])
def test_occlusion_equals_captum(size: tuple[int, int], options: dict[str, float]) -> None:
    attribution = pytest.importorskip("captum.attr")
    torch.manual_seed(0)
    model, x = net().double(), torch.randn(1, 3, *size, dtype=torch.float64)
    window, stride = options.get("window", 0.25), options.get("stride", 0.125)
    sides = (3, *(max(1, round(window * length)) for length in size))
    steps = (3, *(max(1, round(stride * length)) for length in size))
    # captum does not fill the last window if it ends beyond the border; these sizes divide evenly.
    assert all((length - side) % step == 0 for length, side, step in zip((3, *size), sides, steps, strict=True))
    theirs = attribution.Occlusion(model).attribute(x, sides, steps, target=1)
    ours = METHODS["occlusion"](look(model, x, [ClassScore(1)]), **options)
    assert_close(ours, theirs[:, 0].detach(), check_dtype=False, rtol=1e-5, atol=1e-6)  # captum returns float32


def test_occlusion_shows_where_the_score_falls_and_where_it_rises() -> None:
    """The score is the mean of the left half less that of the right half."""
    halves = torch.cat([torch.ones(1, 8, 4), -torch.ones(1, 8, 4)], 2) / 32
    model = nn.Sequential(
        nn.Identity(), Apply(lambda x: torch.stack([-(x * halves).sum((1, 2, 3)), (x * halves).sum((1, 2, 3))], 1))
    )
    result = METHODS["occlusion"](look(model, torch.ones(1, 1, 8, 8), [ClassScore(1)]), window=0.5, stride=0.5)
    # A window of 4 x 4 holds 16 of the 32 pixels of its half.
    assert_close(result, torch.cat([torch.full((1, 8, 4), 0.5), torch.full((1, 8, 4), -0.5)], 2))
