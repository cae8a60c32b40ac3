"""Faith-CAM: a literal oracle over two depths, properties, rivals of all kinds, and real photos."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from benchmarks.networks import TUNED, MapJudge, explain_by, read_networks
from camtool.demo.camnet import load_honest_model, prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.errors import MethodError
from camtool.evidence.contributions import trace_contributions
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import PassSettings, run_forward_pass
from camtool.layers.selection import find_layers
from camtool.methods import METHODS
from camtool.methods.families.competition import _scale_to_equal_means, faithcam
from camtool.outputs.detections import Detections
from camtool.targets import ClassScore, Contrast, Detection, ImageOutput, Negated, Probability, Region, Value
from camtool.trust.metrics.localization import compute_energy_in_mask, is_peak_in_mask
from tests.helpers.nets import small_detector
from tests.hooks.state.test_no_trace import unchanged
from tests.oracles.base import Map, Maps, positions, zeros_like
from tests.oracles.competition import correlation, deviation, view

NO_RIVALS = "The target has no rivals of its kind, so faithcam shows all evidence, also where something else wins."


class Deep(nn.Module):
    """Two stages: convolutions with stride 1 and 2, biases everywhere, and a pooled linear head."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(inplace=True))
        self.coarse = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Tanh())
        self.head = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.coarse(self.fine(x)).mean((2, 3)))


def deep(classes: int = 4) -> nn.Module:
    return Deep(classes).double().eval()


def look(net: nn.Module, x: Tensor, wanted: list[Any], images: list[int] | None = None, **settings: Any) -> Evidence:
    forward_pass = run_forward_pass(net, x, find_layers(net, x), PassSettings(**{"depths": 4, **settings}))
    return gather_evidence(forward_pass, wanted, images)[0]


# -------------------------------------------------------------------------------------------------------- the oracle


def run_by_hand(net: Deep, x: Tensor, index: int) -> Map:
    """The map of one image, term by term; gradients are differences of two function values."""
    layers, blank = [net.fine(x)[0].tolist()], [net.fine(torch.zeros_like(x))[0].tolist()]
    coarse = [compute_coarse(net, each) for each in (layers[0], blank[0])]
    A, B = coarse
    weights, biases = net.head.weight.tolist(), net.head.bias.tolist()
    size = len(A[0]) * len(A[0][0])
    gradient = [[w / size for w in row] for row in weights]  # of the mean, at every position
    parts = [weigh(row, A) for row in gradient]
    scores = [sum(map(sum, part)) + bias for part, bias in zip(parts, biases, strict=True)]
    share = compete_by_hand(parts, scores, index)
    own = parts[index]
    won = zeros_like(own)
    for i, j in positions(own):
        won[i][j] = share[i][j] ** 1.5 * (own[i][j] > 0)

    def evidence(fine: Maps) -> float:
        changed = weigh(gradient[index], compute_coarse(net, fine))
        return sum(won[i][j] * changed[i][j] for i, j in positions(own))

    deepest = weigh(gradient[index], [[[a - b for a, b in zip(*rows, strict=True)] for rows in zip(*both, strict=True)]
                                      for both in zip(A, B, strict=True)])  # fmt: skip
    for i, j in positions(deepest):
        deepest[i][j] *= won[i][j]
    shallow = zeros_like(layers[0][0])
    for k, channel in enumerate(layers[0]):
        for i, j in positions(channel):
            slope = differentiate(evidence, layers[0], k, i, j)
            shallow[i][j] += slope * (channel[i][j] - blank[0][k][i][j])
    maps = [smooth(smooth_rows(scale(shallow))), scale(deepest)]
    peak = max(max(map(max, own)), 0.0)
    gate = zeros_like(own)
    for i, j in positions(own):
        gate[i][j] = share[i][j] ** 1.5 * (max(own[i][j], 0.0) / peak) ** 0.25
    # A fine cell is one pixel; coarse cell j looks at pixels 2 j - 1 to 2 j + 1, so it lies on fine cell 2 j.
    result = zeros_like(shallow)
    for i, j in positions(result):
        result[i][j] = (maps[0][i][j] + read(maps[1], i / 2, j / 2)) * read(gate, i / 2, j / 2)
    return result


def compute_coarse(net: Deep, fine: Maps) -> Maps:
    return net.coarse(torch.tensor([fine], dtype=torch.float64))[0].tolist()


def weigh(weights: list[float], A: Maps) -> Map:
    result = zeros_like(A[0])
    for weight, channel in zip(weights, A, strict=True):
        for i, j in positions(channel):
            result[i][j] += weight * channel[i][j]
    return result


def compete_by_hand(parts: list[Map], scores: list[float], index: int) -> Map:
    views = [view(part, score) for part, score in zip(parts, scores, strict=True)]
    temperature = 2.0 * deviation(views[index])
    share = zeros_like(parts[0])
    for i, j in positions(share):
        against = 0.0
        for other, its_view in enumerate(views):
            if other != index:
                standing = (1 - max(correlation(its_view, views[index]), 0.0)) ** 3
                against += standing * np.exp((its_view[i][j] - views[index][i][j]) / temperature)
        share[i][j] = 1 / (1 + against)
    return share


def differentiate(function: Any, maps: Maps, k: int, i: int, j: int, step: float = 1e-5) -> float:
    values = []
    for sign in (1, -1):
        changed = [[[*row] for row in channel] for channel in maps]
        changed[k][i][j] += sign * step
        values.append(function(changed))
    return (values[0] - values[1]) / (2 * step)


def scale(values: Map) -> Map:
    positive = [[max(value, 0.0) for value in row] for row in values]
    mean = sum(map(sum, positive)) / (len(values) * len(values[0]))
    return [[value / mean for value in row] for row in positive]


def smooth_rows(values: Map) -> Map:
    """Each row smoothed with 1, 4, 6, 4, 1 sixteenths; beyond the edges the outermost value goes on."""
    last = len(values[0]) - 1
    return [
        [sum(w / 16 * row[min(max(j + d, 0), last)] for d, w in zip(range(-2, 3), (1, 4, 6, 4, 1), strict=True))
         for j in range(last + 1)]
        for row in values
    ]  # fmt: skip


def smooth(values: Map) -> Map:
    """The columns, smoothed likewise."""
    turned = [[*column] for column in zip(*values, strict=True)]
    return [[*column] for column in zip(*smooth_rows(turned), strict=True)]


def read(values: Map, row: float, column: float) -> float:
    """The value between cells, linear. The input ends 3/4 of a cell beyond the last one, which fades there from 1/4."""
    rows, columns = len(values) - 1, len(values[0]) - 1
    left = np.interp(row - rows, [0.25, 0.75], [1, 0]) * np.interp(column - columns, [0.25, 0.75], [1, 0])
    row, column = min(row, rows), min(column, columns)
    i, j = min(int(row), rows - 1), min(int(column), columns - 1)
    v, h = row - i, column - j
    upper = (1 - h) * values[i][j] + h * values[i][j + 1]
    lower = (1 - h) * values[i + 1][j] + h * values[i + 1][j + 1]
    return left * ((1 - v) * upper + v * lower)


@pytest.mark.parametrize("seed", range(5))
def test_two_depths_equal_the_oracle(seed: int) -> None:
    torch.manual_seed(seed)
    net, x = deep(), torch.randn(2, 2, 6, 8).double()
    for parameter in net.parameters():  # filters of few taps would show a center by chance
        if parameter.ndim == 4:
            parameter.data[:, :, 1, 1] += 0.5
    evidence = look(net, x, [ClassScore(2), ClassScore(0)])
    assert [depth.name for depth in evidence.depths] == ["fine"]
    assert evidence.find_centers(torch.zeros(1, 6, 8), at_depths=True).axes[0].offset == 0.5
    expected = torch.tensor([run_by_hand(net, x[:1], 2), run_by_hand(net, x[1:], 0)]).double()
    assert expected.amax((1, 2)).min() > 0
    assert_close(faithcam(evidence), expected, rtol=0, atol=1e-7 * float(expected.max()))


# -------------------------------------------------------------------------------------------------------- properties


def test_contributions_of_linear_layers_add_up_to_the_same_evidence() -> None:
    """What a blank image leaves, the biases, is taken off at both depths."""
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    evidence = look(net.double().eval(), torch.randn(2, 2, 8, 8).double(), [ClassScore(1)] * 2)
    shallow, own = trace_contributions(evidence, evidence.gradients)
    assert shallow.shape == (2, 8, 8)
    assert_close(shallow.sum((1, 2)), own.sum((1, 2)))
    less_blank = evidence.scores - net(torch.zeros(1, 2, 8, 8).double())[0, 1]
    assert_close(own.sum((1, 2)), less_blank.detach())


def test_a_batch_equals_single_images_and_classes() -> None:
    net, x = deep(), torch.randn(3, 2, 8, 8).double()
    rows = [(0, 2), (0, 1), (1, 3), (2, 0), (2, 2), (2, 3)]
    together = faithcam(look(net, x, [ClassScore(c) for _, c in rows], [image for image, _ in rows]))
    alone = [faithcam(look(net, x[image : image + 1], [ClassScore(c)])) for image, c in rows]
    assert_close(together, torch.cat(alone))


def test_the_map_is_deterministic_and_leaves_no_trace(demo: camtool.Loaded) -> None:
    x = prepare_images(draw_scene(UNSEEN, objects=2).image[None])
    with unchanged(demo.model):
        first, second = (camtool.explain(demo.model, x, 3, method="faithcam")[0] for _ in range(2))
    assert np.array_equal(first.raw, second.raw)
    assert first.raw.shape == (32, 32)
    assert first.centers is not None
    assert first.centers.axes[0].stride == 4


def test_one_depth_has_the_grid_of_the_layer(demo: camtool.Loaded) -> None:
    x = prepare_images(draw_scene(UNSEEN, objects=2).image[None])
    assert camtool.explain(demo.model, x, 3, method="faithcam", depths=1)[0].raw.shape == (16, 16)


def test_named_depths_are_those_that_count() -> None:
    net, x = deep(), torch.randn(1, 2, 8, 8).double()
    (named,), (counted,), (one,) = (
        camtool.explain(net, x, 1, method="faithcam", depths=depths) for depths in (["fine"], 4, 1)
    )
    assert np.array_equal(named.raw, counted.raw)
    assert one.raw.shape == (4, 4)


def test_other_methods_do_not_see_the_depths() -> None:
    net, x = deep(), torch.randn(1, 2, 8, 8).double()
    together = camtool.explain(net, x, 1, method=["gradcam", "faithcam"])[0]
    assert np.array_equal(together[0].raw, camtool.explain(net, x, 1)[0].raw)
    assert [result.layer for result in together] == ["coarse", "coarse"]


def test_the_depths_do_not_move_the_maps_of_other_methods() -> None:
    """A map on the grid of a depth is stretched if the method knows no depths."""
    net, x = deep(), torch.randn(1, 2, 8, 8).double()

    def fine(evidence: Evidence) -> Tensor:
        return evidence.inputs[:, 0]

    alone, (together, _) = (camtool.explain(net, x, 1, method=each)[0] for each in (fine, [fine, "faithcam"]))
    assert alone.raw.shape == (8, 8)
    assert alone.centers is together.centers is None


def test_the_blank_image_follows_the_weights() -> None:
    net, x = deep(), torch.randn(1, 2, 8, 8).double()
    before = camtool.explain(net, x, 1, method="faithcam")[0].raw
    with torch.no_grad():
        net.fine[0].bias += 1
    after = camtool.explain(net, x, 1, method="faithcam")[0].raw
    fresh = deep()
    fresh.load_state_dict(net.state_dict())
    assert np.array_equal(after, camtool.explain(fresh, x, 1, method="faithcam")[0].raw)
    assert not np.allclose(after, before)


def test_the_blank_image_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = deep(), torch.randn(2, 2, 8, 8).double()
    explainer, calls = camtool.Explainer(net, "faithcam"), []
    explainer(x, 1)
    forward = net.forward
    monkeypatch.setattr(net, "forward", lambda images: calls.append(1) or forward(images))
    explainer(x, 1)
    assert len(calls) == 1


def test_the_blank_image_follows_the_size_of_the_input() -> None:
    net, wide = deep(), torch.randn(1, 2, 8, 10).double()
    fresh = copy.deepcopy(net)
    camtool.explain(net, torch.randn(1, 2, 8, 8).double(), 1, method="faithcam")
    assert np.array_equal(*(camtool.explain(each, wide, 1, method="faithcam")[0].raw for each in (net, fresh)))


def test_the_blank_image_follows_a_replaced_parameter_that_is_still_alive() -> None:
    net, x = deep(), torch.randn(1, 2, 8, 8).double()
    camtool.explain(net, x, 1, method="faithcam")
    old = net.fine[0].bias
    net.fine[0].bias = nn.Parameter(old.detach() + 2)
    fresh = copy.deepcopy(net)
    assert np.array_equal(*(camtool.explain(each, x, 1, method="faithcam")[0].raw for each in (net, fresh)))


class Gain(nn.Module):
    """A number beside the image."""

    def __init__(self) -> None:
        super().__init__()
        self.net = deep()

    def forward(self, x: Tensor, gain: float) -> Tensor:
        return self.net(x + gain)


def test_the_blank_image_follows_other_inputs_that_are_no_tensors() -> None:
    net, x = Gain(), torch.randn(1, 2, 8, 8).double()
    fresh, inputs = copy.deepcopy(net), camtool.Inputs(x, gain=5.0)
    camtool.explain(net, camtool.Inputs(x, gain=1.0), 1, method="faithcam")
    assert np.array_equal(*(camtool.explain(each, inputs, 1, method="faithcam")[0].raw for each in (net, fresh)))


def test_the_blank_image_follows_hooks_of_the_user() -> None:
    net, x = deep(), torch.randn(1, 2, 8, 8).double()
    fresh = copy.deepcopy(net)
    camtool.explain(net, x, 1, method="faithcam")
    for each in (net, fresh):
        each.fine[0].register_forward_hook(lambda _, __, output: output + 1)
    assert np.array_equal(*(camtool.explain(each, x, 1, method="faithcam")[0].raw for each in (net, fresh)))


def test_the_blank_image_is_run_once_for_all_depths(monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs, calls = Gain(), camtool.Inputs(torch.randn(1, 2, 8, 8).double(), torch.zeros(1, 1, 1, 1)), []
    explainer = camtool.Explainer(net, "faithcam")
    explainer(inputs, 1)
    forward = net.forward
    monkeypatch.setattr(net, "forward", lambda *args: calls.append(1) or forward(*args))
    explainer(inputs, 1)
    assert len(calls) == 2  # the image and the blank one


def test_a_layer_with_two_names_has_depths() -> None:
    net, x = deep(), torch.randn(1, 2, 8, 8).double()
    net.last = net.coarse
    first, last = (camtool.explain(net, x, 1, method="faithcam", layer=layer)[0] for layer in ("coarse", "last"))
    assert np.array_equal(first.raw, last.raw)


def test_a_depth_of_rounding_is_not_enlarged() -> None:
    """A norm without a scale behind the first layer takes all that is along its output."""

    class Cancel(nn.Module):
        def forward(self, a: Tensor) -> Tensor:
            return a / a.norm(dim=1, keepdim=True)

    net = nn.Sequential(nn.Conv2d(3, 1, 3, padding=1), Cancel(), nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()  # fmt: skip
    nn.init.zeros_(net[0].bias)
    evidence = look(net, torch.randn(1, 3, 8, 8), [ClassScore(1)], depths=["0"])
    shallow, _ = trace_contributions(evidence, evidence.gradients)
    assert shallow.abs().max() < 1e-6
    assert torch.isfinite(faithcam(evidence, depths=["0"])).all()


def test_a_map_with_little_evidence_is_not_enlarged_to_the_size_of_the_others() -> None:
    tiny, own = _scale_to_equal_means([1e-7 * torch.rand(1, 8, 8), torch.rand(1, 4, 4)])
    assert 0 < tiny.max() < 0.01
    assert_close(own.mean(), torch.tensor(1.0))


@pytest.mark.parametrize("wrapper", ["tta:", "noise:", "sess:"])
def test_wrappers_keep_the_depths(wrapper: str, demo: camtool.Loaded) -> None:
    x = prepare_images(draw_scene(UNSEEN, objects=2).image[None])
    options = {"noise_samples": 2} if wrapper == "noise:" else {}
    (result,) = camtool.explain(demo.model, x, 3, method=f"{wrapper}faithcam", **options)
    assert result.raw.shape == ((128, 128) if wrapper == "sess:" else (32, 32))
    assert result.raw.any()


def test_several_layers_have_depths_of_their_own(demo: camtool.Loaded) -> None:
    x = prepare_images(draw_scene(UNSEEN, objects=2).image[None])
    (result,) = camtool.explain(demo.model, x, 3, method="faithcam", layer=["stem", "features"])
    assert result.raw.shape == (64, 64)  # the first convolution's
    assert result.layer == "stem + features"


def test_signals_and_volumes_have_depths() -> None:
    for axes, convolution in ((1, nn.Conv1d), (3, nn.Conv3d)):
        net = nn.Sequential(
            convolution(1, 3, 3, padding=1), nn.ReLU(), convolution(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(2)
        )
        whole = nn.Sequential(net[:-1], Pool(), nn.Linear(4, 3)).eval()
        (result,) = camtool.explain(whole, torch.randn(1, 1, *[8] * axes), 1, method="faithcam")
        assert result.raw.shape == (8,) * axes


class Pool(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return a.flatten(2).mean(2)


def test_a_number_of_numpy_is_a_number_of_depths() -> None:
    net, x = deep(), torch.randn(1, 2, 8, 8).double()
    ours, usual = (camtool.explain(net, x, 1, method="faithcam", depths=depths)[0] for depths in (np.int64(4), 4))
    assert np.array_equal(ours.raw, usual.raw)


@pytest.mark.parametrize("depths", [0, True, "fine", [3], 2.5])
def test_wrong_depths_are_rejected_before_anything_runs(depths: Any) -> None:
    with pytest.raises(MethodError, match="depths must be a whole number of 1 or more, or a list of names of layers"):
        camtool.Explainer(deep(), "faithcam", depths=depths)


# ------------------------------------------------------------------------------------------------------------ rivals


def test_classes_are_rivals_by_their_scores() -> None:
    evidence = look(deep(), torch.randn(1, 2, 8, 8).double(), [ClassScore(1)])
    rivals = ClassScore(1).find_rivals(evidence.forward_pass.get_image_output(0), 2)
    order = [int(index) for index in evidence.logits[0].argsort(descending=True) if index != 1]
    assert [rival.index for rival in rivals] == order[:2]


@pytest.mark.parametrize("target", [Value(1), Probability(1), Negated(ClassScore(1)), Contrast(1, (0,))])
def test_a_target_without_rivals_competes_with_nothing_and_says_so(target: Any) -> None:
    net, x = deep(), torch.randn(1, 2, 8, 8).double()
    (result,) = camtool.explain(net, x, target, method="faithcam")
    assert result.warnings.count(NO_RIVALS) == 1
    quiet = camtool.explain(net, x, target, method="faithcam", rivals=0)[0]
    assert NO_RIVALS not in quiet.warnings
    assert np.array_equal(quiet.raw, result.raw)


def test_a_model_of_one_logit_has_no_rivals() -> None:
    net, x = deep(classes=1), torch.randn(1, 2, 8, 8).double()
    for index in (0, 1):
        assert NO_RIVALS in camtool.explain(net, x, index, method="faithcam")[0].warnings


def test_rows_with_and_without_rivals_do_not_mix() -> None:
    net, x = deep(), torch.randn(2, 2, 8, 8).double()
    together = camtool.explain(net, x, [[1, Value(2), 3], [Value(0), 2]], method="faithcam")
    for image, wanted in ((0, [1, Value(2), 3]), (1, [Value(0), 2])):
        for result, target in zip(together[image], wanted, strict=True):
            (alone,) = camtool.explain(net, x[image : image + 1], target, method="faithcam")
            np.testing.assert_allclose(result.raw, alone.raw, rtol=1e-5, atol=1e-6 * alone.raw.max())
            assert (NO_RIVALS in result.warnings) == isinstance(target, Value)


class Segmenter(nn.Module):
    """Two classes on the two halves of the image, and one that is nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.head(self.trunk(x))
        half = scores.shape[3] // 2
        bonus = torch.zeros_like(scores)
        bonus[:, 0, :, :half] = bonus[:, 1, :, half:] = 100
        return scores + bonus


def test_rivals_of_a_segmenter_are_the_classes_in_the_image() -> None:
    net, x = Segmenter().double().eval(), torch.rand(1, 2, 8, 8).double()
    output = run_forward_pass(net, x, find_layers(net, x)).get_image_output(0)
    corner, right = torch.zeros(8, 8), torch.arange(8).expand(8, 8) >= 4
    corner[:2, :4] = 1
    (rival,) = Region(0, corner).find_rivals(output, 10)
    assert rival.class_index == 1
    # The rival is the whole half, and counts as much as the eight positions of the target.
    assert_close(torch.as_tensor(rival.mask).float(), right * 8 / 32)
    assert Region(0, corner).find_rivals(output, 0) == []
    assert camtool.explain(net, x, 0, method="faithcam")[0].warnings == ()
    assert NO_RIVALS in camtool.explain(net, x, 2, method="faithcam")[0].warnings  # predicted nowhere


def test_a_single_plane_of_logits_has_two_regions() -> None:
    plane = torch.full((1, 4, 4), -1.0)
    plane[0, :, :1] = 1
    output = ImageOutput(plane, link="sigmoid")
    (rival,) = Region(1, torch.ones(4, 4), "sigmoid").find_rivals(output, 3)
    assert rival.class_index == 0
    assert torch.equal(torch.as_tensor(rival.mask) > 0, plane[0] < 0)


def test_boxes_of_one_object_compete_once() -> None:
    boxes = torch.tensor([[0, 0, 10, 10], [40, 40, 60, 60], [41, 40, 61, 60], [40, 41, 60, 61], [80, 0, 90, 10.0]])
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])
    found = Detections(boxes, scores, torch.zeros(5, dtype=torch.long), scores)
    output = ImageOutput(found, link="softmax")
    rivals = Detection(4).resolve_on(output).find_rivals(output, 5)
    assert [tuple(rival.model_box) for rival in rivals] == [(0, 0, 10, 10), (40, 40, 60, 60)]


def test_rivals_of_a_detection_are_detections_of_other_objects() -> None:
    detector = small_detector()
    x = torch.rand(1, 3, 224, 224)
    output = run_forward_pass(detector, x, find_layers(detector, x)).get_image_output(0)
    target = Detection(1).resolve_on(output)
    rivals = target.find_rivals(output, 5)
    assert len(rivals) == 5
    confidences = [rival.confidence for rival in rivals]
    assert confidences == sorted(confidences, reverse=True)
    boxes = torch.tensor([rival.model_box for rival in rivals])
    assert torchvision.ops.box_iou(boxes, torch.tensor([target.model_box])).max() < 0.5
    (result,) = camtool.explain(detector, x, Detection(0), method="faithcam")
    assert result.raw.any()
    assert NO_RIVALS not in result.warnings


# --------------------------------------------------------------------------------------------------- what it is for


def test_energy_and_peak_on_scenes_are_at_least_those_of_the_others() -> None:
    model, found = load_honest_model().model, {}
    for name in ("faithcam", "rivalcam", "gradcam"):
        energies, peaks = [], []
        for seed in range(UNSEEN, UNSEEN + 12):
            scene = draw_scene(seed, objects=2)
            x = prepare_images(scene.image[None])
            results = camtool.explain(model, x, [[item.index for item in scene.objects]], method=name)[0]
            for item, result in zip(scene.objects, results, strict=True):
                energies.append(compute_energy_in_mask(result.heatmap, item.mask))
                peaks.append(is_peak_in_mask(result.heatmap, item.mask))
        found[name] = np.mean(energies), np.mean(peaks)
    for other in ("rivalcam", "gradcam"):
        assert found["faithcam"][0] > found[other][0] + 0.1
        assert found["faithcam"][1] >= found[other][1] - 1 / 24  # a peak may lie one pixel beside an object's edge


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "deletion", "pointing"), [("mobilenet_v2", 0.38, 0.94), ("squeezenet1_1", 0.64, 0.80)]
)
def test_photos_are_explained_more_faithfully_and_classes_told_apart(
    name: str, deletion: float, pointing: float, shared: Path
) -> None:
    weights = shared / "models" / f"{name}-imagenet.safetensors"
    (network,) = read_networks([f"{name}={weights}"], shared / "images")
    judge = MapJudge(network, TUNED, ("cells", "pointing"))
    ours, usual = (judge.measure(explain_by(method)) for method in ("faithcam", "gradcam"))
    assert ours["cells"].mean() > max(usual["cells"].mean(), deletion)
    assert ours["pointing"].mean() > pointing


def test_faithcam_is_registered_with_its_needs() -> None:
    assert METHODS["faithcam"].needs == {"gradients of several classes"}
    assert METHODS["faithcam"].options["depths"] == 4
