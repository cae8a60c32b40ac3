"""LIFT-CAM: DeepLIFT's contributions, exact by formula behind linear heads and by captum behind others."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

import camtool
from camtool.errors import MethodError
from camtool.evidence.deeplift import compute_deeplift_contributions
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import PassSettings, run_forward_pass
from camtool.layers.layouts import Layer, Layout
from camtool.methods import METHODS
from camtool.targets import ClassScore, Probability, Target
from tests.helpers.nets import Apply
from tests.hooks.state.test_no_trace import unchanged
from tests.methods.test_all_methods import CLASSES, IMAGES, KINDS, C, Net, close_to_peak, conv, look, pooled_net
from tests.oracles.deeplift import contribute, lift_cam

FUNCTIONS: dict[str, tuple[Callable[[], nn.Module], Callable[[float], float]]] = {
    "relu": (nn.ReLU, lambda z: max(z, 0.0)),
    "relu in place": (lambda: nn.ReLU(inplace=True), lambda z: max(z, 0.0)),
    "leaky relu": (lambda: nn.LeakyReLU(0.2), lambda z: max(z, 0.2 * z)),
    "tanh": (nn.Tanh, math.tanh),
    "sigmoid": (nn.Sigmoid, lambda z: 1 / (1 + math.exp(-z))),
}


def build(function: Callable[[], nn.Module], kind: str = "rectified", hidden: int = 16) -> tuple[Net, Layer]:
    """Return a net with a head of two linear layers, in float64."""
    torch.manual_seed(0)
    end, _, layout = KINDS[kind]
    trunk = nn.Sequential(conv(), end())
    size = trunk(torch.zeros(1, *IMAGES)).numel()
    tail = nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), function(), nn.Linear(hidden, CLASSES))
    return Net(trunk, tail).double(), Layer("trunk", layout)


def make_images(count: int = 3) -> Tensor:
    return torch.randn(count, *IMAGES, generator=torch.Generator().manual_seed(1)).double()


def compute_weights(evidence: Evidence) -> Tensor:
    return METHODS["liftcam"].weight_function(evidence)  # type: ignore[misc]


def score_zeros(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net.tail(torch.zeros_like(net.trunk(x)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_nonlinear_head_gives_deeplift_neuron_by_neuron(name: str) -> None:
    make, function = FUNCTIONS[name]
    net, layer = build(make)
    x, classes = make_images(), [4, 1, 6]
    first, last = net.tail[1], net.tail[3]
    expected = []
    for image, index in zip(x, classes, strict=True):
        A = net.trunk(image[None])[0].detach()
        shares = contribute(
            A.flatten().tolist(), first.weight.tolist(), first.bias.tolist(), function, last.weight[index].tolist()
        )
        expected.append(lift_cam(A.tolist(), shares))
    ours = METHODS["liftcam"](look(net, layer, x, [ClassScore(index) for index in classes]))
    close_to_peak(ours, torch.tensor(expected, dtype=torch.float64), 1e-9)


def test_numbers_by_hand() -> None:
    """Two positions 3 and 1, ``z = 3 - 2 = 1`` above a reference of ``-1``: the multiplier of the ReLU is 1 / 2."""
    head = nn.Sequential(nn.Flatten(), nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    head[1].weight.data, head[1].bias.data = torch.tensor([[1.0, -1.0]]).double(), torch.tensor([-1.0]).double()
    head[3].weight.data, head[3].bias.data = torch.tensor([[4.0], [0.0]]).double(), torch.tensor([9.0, 0.0]).double()
    net, x = Net(nn.Identity(), head), torch.tensor([[[[3.0, 1.0]]]], dtype=torch.float64)
    evidence = look(net, Layer("trunk", Layout("channels first", (1, 2))), x, ClassScore(0))
    assert compute_deeplift_contributions(evidence).tolist() == [[[[3 * 4 / 2, -1 * 4 / 2]]]]
    assert METHODS["liftcam"](evidence).tolist() == [[[4 * 3, 4 * 1]]]
    assert METHODS["hirescam"](evidence).tolist() == [[[12, 0]]]  # the gradient, for comparison


@pytest.mark.parametrize("kind", KINDS)
def test_captum_gives_the_formula_behind_a_linear_head(kind: str) -> None:
    torch.manual_seed(0)
    net, layer = pooled_net(kind)
    evidence = look(net.double(), layer, make_images(), ClassScore(3))
    assert_close(compute_deeplift_contributions(evidence), evidence.gradients * evidence.activations)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_sum_to_the_change_of_the_score_in_any_layout(kind: str) -> None:
    net, layer = build(nn.ReLU, kind)
    x = make_images()
    evidence = look(net, layer, x, ClassScore(3))
    A = net.trunk(x).detach()
    zeros = layer.layout.from_grid(torch.zeros_like(layer.layout.to_grid(A)), A[:1])
    change = evidence.scores - net.tail(zeros)[:, 3].detach()
    gradient = (evidence.gradients * evidence.activations).flatten(1).sum(1)
    assert not torch.allclose(gradient, change), "a tail that the gradient explains proves nothing"
    assert_close(compute_weights(evidence).flatten(1).sum(1), change)


def test_a_deep_tail_with_pooling_and_dropout() -> None:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(3, C, 3, padding=1), nn.ReLU())
    tail = nn.Sequential(
        *(nn.Conv2d(C, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(8 * 3 * 4, 16), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(16, CLASSES)),
    )
    net, x = Net(trunk, tail).double(), make_images()
    net.eval()
    evidence = look(net.train(), Layer("trunk", Layout("channels first", IMAGES[1:])), x, ClassScore(3))
    net.eval()
    assert_close(compute_weights(evidence).flatten(1).sum(1), evidence.scores - score_zeros(net, x)[:, 3])


def test_rows_of_one_image_equal_single_rows() -> None:
    net, layer = build(nn.ReLU)
    x, images = make_images(2), [1, 0, 1]
    wanted: list[Target] = [ClassScore(n) for n in (2, 5, 4)]
    (evidence,) = gather_evidence(run_forward_pass(net, x, [layer], PassSettings(placement="stretch")), wanted, images)
    ours = compute_weights(evidence)
    for row, image in enumerate(images):
        assert_close(ours[row], compute_weights(look(net, layer, x[image : image + 1], wanted[row]))[0])


def test_the_model_keeps_its_hooks_and_attributes() -> None:
    net, _ = build(lambda: nn.ReLU(inplace=True))
    attributes = [[*vars(module)] for module in net.modules()]
    with unchanged(net):
        results = camtool.explain(net, make_images(), 4, method="liftcam", layer="trunk")
    assert any(result.raw.any() for result in results)
    assert attributes == [[*vars(module)] for module in net.modules()]
    assert net.tail[2].inplace


class Functional(Net):
    """The same head with a function instead of a module, which captum cannot see."""

    def forward(self, x: Tensor) -> Tensor:
        return self.tail[3](functional.relu(self.tail[1](self.tail[0](self.trunk(x)))))


class Shared(Net):
    """One ReLU before the layer and after it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.trunk(self.tail[2](x)))


class Twice(Net):
    """One ReLU twice after the layer."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tail[2](self.tail[1](self.tail[0](self.trunk(x))))
        return self.tail[3](self.tail[2](hidden - 0.1))


def test_tails_that_captum_cannot_see_are_refused() -> None:
    net, layer = build(nn.ReLU)
    x = make_images()
    for model, target in [
        (Functional(net.trunk, net.tail), ClassScore(3)),
        (net, Probability(3)),
        (build(nn.GELU)[0], ClassScore(3)),
        (Net(net.trunk, nn.Sequential(Apply(torch.square), *net.tail)), ClassScore(3)),
    ]:
        with pytest.raises(MethodError, match=r"layer 'trunk': its contributions do not sum .* method='ablationcam'"):
            METHODS["liftcam"](look(model, layer, x, target))


@pytest.mark.parametrize("make", [Shared, Twice])
def test_a_module_that_runs_twice_is_refused(make: Any) -> None:
    net, layer = build(nn.ReLU)
    with pytest.raises(MethodError, match=r"fails on what follows layer 'trunk' .*called once") as raised:
        METHODS["liftcam"](look(make(net.trunk, net.tail), layer, make_images(), ClassScore(3)))
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_without_captum_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    net, layer = build(nn.ReLU)
    with pytest.raises(MethodError, match=r"pip install 'camtool\[captum\]'"):
        METHODS["liftcam"](look(net, layer, make_images(), ClassScore(3)))
    pooled, layer = pooled_net()
    assert METHODS["liftcam"](look(pooled.double(), layer, make_images(), ClassScore(3))).any()


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    net, layer = build(nn.ReLU)

    class Rigid(Net):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    with pytest.raises(MethodError, match=r"cannot be copied \(no copies\)"):
        METHODS["liftcam"](look(Rigid(net.trunk, net.tail), layer, make_images(), ClassScore(3)))
