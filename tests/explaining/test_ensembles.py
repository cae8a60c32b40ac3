"""Ensembles and Monte-Carlo dropout: mean and spread of the members' maps, by their definition."""

from __future__ import annotations

from statistics import mean, stdev

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, relu

import camtool
from camtool.errors import ImageError, ModelError, TargetError
from camtool.models import Loaded
from camtool.targets import Top
from tests.hooks.state.test_no_trace import unchanged

CHANNELS = 4


class Net(nn.Module):
    def __init__(self, seed: int, *, p: float = 0.0, stride: int = 2, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.features = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, stride, 1), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(p), nn.Linear(CHANNELS, classes))
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


IMAGE = torch.rand(3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def compute_gradcam(net: Net, index: int, kept: Tensor | None = None) -> Tensor:
    """Grad-CAM by its definition, for a mean and a head behind a dropout mask, divided by its largest value."""
    maps = net.features(IMAGE[None])[0].detach()
    gradients = net.head[1].weight[index].detach() * (1 if kept is None else kept) / maps[0].numel()
    cam = relu(sum(gradients[k] * maps[k] for k in range(CHANNELS)))
    return cam / cam.max() if cam.max() > 0 else cam


def check_cells(result: camtool.Explanation, cams: list[Tensor]) -> None:
    for at in np.ndindex(result.raw.shape):
        values = [float(cam[at]) for cam in cams]
        assert result.raw[at] == pytest.approx(mean(values), abs=1e-5)
        assert result.uncertainty[at] == pytest.approx(stdev(values), abs=1e-5)


def test_mean_and_spread_of_several_models() -> None:
    nets = [Net(seed) for seed in range(3)]
    result = camtool.explain_ensemble(nets, IMAGE, 1)
    check_cells(result, [compute_gradcam(net, 1) for net in nets])
    with torch.no_grad():
        outputs = [net(IMAGE[None])[0] for net in nets]
    assert result.score == pytest.approx(mean(float(output[1]) for output in outputs))
    assert result.probability == pytest.approx(mean(float(output.softmax(0)[1]) for output in outputs))
    assert repr(result).endswith("mean of 3 maps>")
    assert result.uncertainty_overlay().shape == (8, 8, 3)


def test_the_default_class_has_the_highest_mean_probability() -> None:
    """Two members are hardly for class 0 and the third is surely for class 2."""
    nets = [Net(seed) for seed in range(3)]
    for net, bias in zip(nets, ([1, 0, 0.9], [1, 0, 0.9], [0, 0, 9]), strict=True):
        net.head[1].weight.data.mul_(1e-3)
        net.head[1].bias.data = torch.tensor(bias, dtype=torch.float64)
    assert camtool.explain_ensemble(nets, IMAGE).index == 2


def test_members_of_other_grids_meet_on_the_photo() -> None:
    nets = [Net(0, stride=2), Net(1, stride=4)]
    result = camtool.explain_ensemble(nets, IMAGE, 1)
    heat = [camtool.explain(net, IMAGE, 1).heatmap for net in nets]
    np.testing.assert_allclose(result.raw, (heat[0] + heat[1]) / 2, atol=1e-6)
    np.testing.assert_allclose(result.heatmap, (result.raw - result.raw.min()) / np.ptp(result.raw), atol=1e-6)


def test_dropout_samples_are_those_of_their_seeds() -> None:
    net = Net(0, p=0.5)
    cams = []
    for seed in (7, 8, 9):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            cams.append(compute_gradcam(net, 1, dropout(torch.ones(CHANNELS, dtype=torch.float64), 0.5)))
    assert not torch.equal(cams[0], cams[1])
    with unchanged(net):
        result = camtool.explain_ensemble(net, IMAGE, 1, samples=3, seed=7)
    check_cells(result, cams)
    again = camtool.explain_ensemble(net, IMAGE, 1, samples=3, seed=7)
    np.testing.assert_array_equal(again.raw, result.raw)
    plain = camtool.explain(net, IMAGE, 1)
    np.testing.assert_allclose(plain.raw / plain.raw.max(), compute_gradcam(net, 1), atol=1e-5)  # no dropout is left


def test_refused_ensembles() -> None:
    with pytest.raises(ModelError, match="needs several models, or samples= of one"):
        camtool.explain_ensemble(Net(0), IMAGE)
    with pytest.raises(ModelError, match=r"samples=3: Net has no dropout module"):
        camtool.explain_ensemble(Net(0), IMAGE, samples=3)
    with pytest.raises(ModelError, match=r"have \[3, 4\] classes"):
        camtool.explain_ensemble([Net(0), Net(1, classes=4)], IMAGE)
    named = [Loaded(Net(seed), None, labels) for seed, labels in enumerate((["a", "b", "c"], ["a", "c", "b"]))]
    for target in (None, 1, "b"):
        with pytest.raises(ModelError, match=r"class 1 is 'b' in one model and 'c' in another; give .* or labels= if"):
            camtool.explain_ensemble(named, IMAGE, target)
    assert camtool.explain_ensemble([named[0], Net(1)], IMAGE, 1, labels=["a", "b", "c"]).label == "b"
    assert camtool.explain_ensemble([*named], IMAGE, 1, labels=["a", "b", "c"]).label == "b"
    for img, target in ((IMAGE[None].repeat(2, 1, 1, 1), 1), (IMAGE, Top(2))):
        with pytest.raises(ImageError, match="2 maps came; an ensemble explains one target of one image"):
            camtool.explain_ensemble([Net(0), Net(1)], img, target)


def test_members_that_explain_other_classes_are_refused() -> None:
    nets = [Net(seed) for seed in range(8)]
    tops = [int(net(IMAGE[None]).argmax()) for net in nets]
    pair = [nets[0], next(net for net, top in zip(nets, tops, strict=True) if top != tops[0])]
    with pytest.raises(TargetError, match=r"^target_class: the members explain '.*' and '.*'; give the class"):
        camtool.explain_ensemble(pair, IMAGE, Top(1))
    assert camtool.explain_ensemble(pair, IMAGE, lambda scores: scores.max()).index is None
