"""Input gradient methods: numbers by hand, captum's results, and the properties of their papers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captum import attr
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import camtool
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import PassSettings, run_forward_pass
from camtool.layers.layouts import Layer, Layout
from camtool.methods import METHODS
from camtool.targets import ClassScore, Target
from tests.helpers.nets import Apply

ON_ANY_NET = ["smoothgrad", "inputxgradient", "integrated-gradients"]
AT_INPUT = [*ON_ANY_NET, "guided-backprop"]
WITH_OPTIONS: dict[str, dict[str, Any]] = {"smoothgrad": {"samples": 4}, "integrated-gradients": {"steps": 4}}


def net_of(first: nn.Module, *others: nn.Module, classes: int = 5, features: int = 4 * 6 * 6) -> nn.Module:
    return nn.Sequential(first, *others, nn.Flatten(), nn.Linear(features, classes)).double()


def relu_net(relu: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    return net_of(nn.Conv2d(3, 4, 3), relu(), nn.Conv2d(4, 4, 3, padding=1), relu())


def ask(
    net: nn.Module, x: Tensor, targets: list[Target] | None = None, images: list[int] | None = None, **known: Any
) -> Evidence:
    return gather_evidence(
        run_forward_pass(net, x, [], PassSettings(**known)), targets or [ClassScore(0)] * len(x), images
    )[0]


def pictures(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 8, 8).double()


def run(name: str, evidence: Evidence, **options: Any) -> Tensor:
    return METHODS[name](evidence, **{**WITH_OPTIONS.get(name, {}), **options})


# ------------------------------------------------------------------------------------------------------- by hand


def hand_net() -> nn.Module:
    """``relu(x_0 - x_1)`` and ``relu(x_1 - x_0)``, of which the score takes ``3 a - 2 b``, at each of two places."""
    net = nn.Sequential(nn.Conv1d(2, 2, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(4, 1, bias=False))
    net[0].weight.data = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])[..., None]
    net[3].weight.data = torch.tensor([[3.0, 3.0, -2.0, -2.0]])
    return net


HAND_PICTURE = torch.tensor([[[5.0, 1.0], [1.0, 2.0]]])  # colors by places
# At the first place a = 4 fires, with gradient 3: (3, -3) at the colors. At the second b = 1, with -2: (2, -2).

BY_HAND = {
    "inputxgradient": [[12, 0]],  # relu(5·3 - 1·3), relu(1·2 - 2·2)
    "integrated-gradients": [[12, 0]],  # from black the gradient stays what it is
    "guided-backprop": [[6, 0]],  # the negative gradient does not pass the ReLU
}


@pytest.mark.parametrize("name", BY_HAND)
def test_map_equals_numbers_by_hand(name: str) -> None:
    assert METHODS[name](ask(hand_net(), HAND_PICTURE, [ClassScore(1)]), cap=1).tolist() == BY_HAND[name]


def test_smoothgrad_without_noise_equals_the_gradient_by_hand() -> None:
    assert METHODS["smoothgrad"](
        ask(hand_net(), HAND_PICTURE, [ClassScore(1)]), noise=0, samples=2, cap=1
    ).tolist() == [[6, 4]]


def test_guided_gradcam_equals_numbers_by_hand() -> None:
    net = hand_net()
    forward_pass = run_forward_pass(net, HAND_PICTURE, [Layer("1", Layout("channels first", (2,)))])
    (evidence,) = gather_evidence(forward_pass, [ClassScore(1)])
    # Activations (4, 0) and (0, 1), mean gradients 3 and -2: Grad-CAM is (12, 0).
    assert METHODS["guided-gradcam"](evidence).tolist() == [[72, 0]]


# ---------------------------------------------------------------------------------------------------- beside captum


def gradients(net: nn.Module, x: Tensor, index: int = 0) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(net(x)[:, index].sum(), x)[0]


def captums(theirs: Any, x: Tensor, **settings: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of the hooks that it sets, and of inputs without a gradient
        return theirs.attribute(x.clone(), target=0, **settings).detach()


def test_contributions_equal_captum() -> None:
    net, x = relu_net(), pictures()
    signed = run("inputxgradient", ask(net, x), signed=True)
    assert_close(signed, captums(attr.InputXGradient(net), x).sum(1))
    black = torch.tensor([-2.0, -1.5, -1.0]).double()
    theirs = captums(
        attr.IntegratedGradients(net), x, baselines=black.reshape(1, 3, 1, 1).expand_as(x), n_steps=7,
        method="riemann_middle",
    )  # fmt: skip
    ours = run("integrated-gradients", ask(net, x, black=black), steps=7, signed=True)
    assert_close(ours, theirs.sum(1), rtol=1e-5, atol=1e-6)  # captum takes its steps in single precision


def test_guided_backprop_equals_captum_for_relu_modules() -> None:
    net, x = relu_net(), pictures()
    theirs = captums(attr.GuidedBackprop(net), x)
    assert not torch.allclose(theirs, gradients(net, x))
    assert_close(run("guided-backprop", ask(net, x), cap=1), theirs.abs().sum(1))


def test_smoothgrad_is_the_mean_gradient_over_seeded_noise() -> None:
    net, x = relu_net(), pictures()
    generator = torch.Generator().manual_seed(7)
    spread = 0.3 * torch.stack([image.max() - image.min() for image in x]).reshape(-1, 1, 1, 1)
    noisy = [x + spread * torch.randn(3, 8, 8, generator=generator) for _ in range(3)]
    expected = torch.stack([captums(attr.Saliency(net), each, abs=False) for each in noisy]).mean(0)
    assert_close(run("smoothgrad", ask(net, x), samples=3, noise=0.3, seed=7, cap=1), expected.abs().sum(1))


# ------------------------------------------------------------------------------------------------- every kind of ReLU


def in_place(write: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        x = x * 1
        write(x)  # and not: return what it returns
        return x

    return function


RELUS: dict[str, Callable[[], nn.Module]] = {
    "module in place": lambda: nn.ReLU(inplace=True),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.ReLU())),
    "ReLU6": lambda: Apply(lambda x: 100 * nn.ReLU6()(x / 100)),
    "relu6": lambda: Apply(lambda x: 100 * functional.relu6(x / 100, inplace=True)),
    "functional": lambda: Apply(functional.relu),
    "functional, by keyword": lambda: Apply(lambda x: functional.relu(input=x)),
    "functional, in place": lambda: Apply(in_place(lambda x: functional.relu(x, inplace=True))),
    "torch": lambda: Apply(torch.relu),
    "torch, in place": lambda: Apply(in_place(torch.relu_)),
    "method": lambda: Apply(lambda x: x.relu()),
    "method, in place": lambda: Apply(in_place(lambda x: x.relu_())),
    "view, in place": lambda: Apply(in_place(lambda x: x[:, :].flatten(2).relu_())),
    "checkpoint": lambda: Apply(lambda x: checkpoint(functional.relu, x, use_reentrant=False)),
}


@pytest.mark.parametrize("kind", RELUS)
def test_every_kind_of_relu_is_guided(kind: str) -> None:
    net, x = relu_net(RELUS[kind]), pictures()
    plain = relu_net()
    plain.load_state_dict(net.state_dict())
    expected = run("guided-backprop", ask(plain, x))
    assert_close(net(x), plain(x))
    assert_close(run("guided-backprop", ask(net, x)), expected)
    assert_close(gradients(net, x), gradients(plain, x))  # and none when it is over


def test_in_place_relu_on_the_input_is_guided() -> None:
    x = pictures()
    net = net_of(nn.ReLU(inplace=True), features=192)
    expected = net[2].weight[0].detach().reshape(3, 8, 8).relu() * (x > 0)
    assert_close(run("guided-backprop", ask(net, x.clone()), cap=1), expected.sum(1))


def test_relu6_passes_no_gradient_at_its_upper_bound() -> None:
    net = net_of(nn.ReLU6(), features=192)
    net[2].weight.data.abs_()
    x = torch.tensor([-1.0, 3.0, 7.0]).double().reshape(1, 3, 1, 1).expand(1, 3, 8, 8)
    assert_close(run("guided-backprop", ask(net, x), cap=1), net[2].weight[:1].detach().reshape(1, 3, 8, 8)[:, 1])


@pytest.mark.parametrize("other", [nn.GELU(), nn.SiLU(), nn.Hardtanh(-1, 1), nn.LeakyReLU()], ids=str)
def test_guided_backprop_rejects_a_model_without_relu(other: nn.Module) -> None:
    net, x = relu_net(lambda: other), pictures()
    for name in ("guided-backprop", "guided-gradcam"):
        with pytest.raises(MethodError, match=r"no ReLU was observed in this model .* Use method='smoothgrad'"):
            camtool.explain(net, x, 0, method=name)


def test_guided_backprop_ends_if_the_model_fails() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.relu()
            if x.requires_grad:
                raise RuntimeError("too late")
            return y.flatten(1)

    with pytest.raises(RuntimeError, match="too late"):
        run("guided-backprop", ask(Failing(), pictures()))
    x = torch.ones(2).requires_grad_()
    assert torch.autograd.grad(-x.relu().sum(), x)[0].tolist() == [-1, -1]


def test_guided_gradcam_shows_detail_where_gradcam_is_high() -> None:
    net, x = relu_net(), pictures()
    forward_pass = run_forward_pass(
        net, x, [Layer("3", Layout("channels first", (6, 6)))], PassSettings(placement="stretch")
    )
    (inside,) = gather_evidence(forward_pass, [ClassScore(2)] * 2)
    cam = functional.interpolate(METHODS["gradcam"](inside)[:, None], size=(8, 8), mode="bilinear")[:, 0]
    guided = METHODS["guided-backprop"](ask(net, x, [ClassScore(2)] * 2), cap=1)
    assert cam.any()
    assert_close(METHODS["guided-gradcam"](inside, cap=1), guided * cam)


# --------------------------------------------------------------------------------------------- what papers promise


class Quadratic(nn.Module):
    """Its gradient is linear along the way, which the middles of the steps integrate exactly."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.stack([flat.square().sum(1) + flat[:, 0] * flat[:, 1], flat.sum(1)], 1)


@pytest.mark.parametrize("black", [None, torch.tensor([-2.0, 0.5, 1.0]).double()])
def test_integrated_gradients_sum_to_the_difference_from_black(black: Tensor | None) -> None:
    x = pictures()
    start = torch.zeros_like(x) if black is None else black.reshape(1, 3, 1, 1).expand_as(x)
    exact = run("integrated-gradients", ask(Quadratic(), x, black=black), steps=1, signed=True)
    assert_close(exact.sum((1, 2)), (Quadratic()(x) - Quadratic()(start))[:, 0])
    net = relu_net()
    difference = (net(x) - net(start))[:, 0].detach()
    off = [
        (run("integrated-gradients", ask(net, x, black=black), steps=steps, signed=True).sum((1, 2)) - difference)
        for steps in (4, 400)
    ]
    assert_close(off[1], torch.zeros(2).double(), rtol=0, atol=1e-3)
    assert off[1].abs().amax() < off[0].abs().amax() / 10


def test_contributions_of_a_linear_model_sum_to_the_score() -> None:
    net, x = net_of(nn.Conv2d(3, 4, 3, bias=False)), pictures()
    net[2].bias.data.zero_()
    for name in ("inputxgradient", "integrated-gradients"):
        signed = run(name, ask(net, x), signed=True)
        assert_close(signed.sum((1, 2)), net(x)[:, 0].detach())
        assert (signed < 0).any()
        assert_close(run(name, ask(net, x), cap=1), signed.relu())


def test_noise_depends_on_the_seed_and_the_images_range() -> None:
    net, x = relu_net(), pictures()
    one, again, other = (run("smoothgrad", ask(net, x), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    brighter = nn.Sequential(Apply(lambda x: x / 10), net)
    assert_close(run("smoothgrad", ask(brighter, 10 * x)) * 10, one)


def test_global_generator_is_not_used() -> None:
    evidence = ask(relu_net(), pictures(1))
    before = torch.get_rng_state()
    run("smoothgrad", evidence)
    assert torch.equal(torch.get_rng_state(), before)


# -------------------------------------------------------------------------------------------------- rows, ranks, cap


@pytest.mark.parametrize("name", AT_INPUT)
def test_rows_of_one_image_equal_single_rows(name: str) -> None:
    net, x = relu_net(), pictures(3)
    asked = [(0, 1), (2, 4), (0, 3), (1, 1)]
    together = run(name, ask(net, x, [ClassScore(c) for _, c in asked], [n for n, _ in asked]))
    assert_close(together, torch.cat([run(name, ask(net, x[n : n + 1], [ClassScore(c)])) for n, c in asked]))


@pytest.mark.parametrize("name", AT_INPUT)
@pytest.mark.parametrize(
    ("conv", "size"), [(nn.Conv1d, (9,)), (nn.Conv2d, (7, 9)), (nn.Conv3d, (5, 7, 4))], ids=["1-D", "2-D", "3-D"]
)
def test_methods_accept_any_rank(name: str, conv: Any, size: tuple[int, ...]) -> None:
    net = nn.Sequential(conv(2, 4, 3), nn.ReLU(), Apply(lambda x: x.flatten(2).mean(2)), nn.Linear(4, 5))
    maps = run(name, ask(net, torch.randn(2, 2, *size)))
    assert maps.shape == (2, *size)
    assert maps.any()
    assert (maps >= 0).all()


@pytest.mark.parametrize("name", [*AT_INPUT, "fullgrad"])
def test_model_keeps_its_mode_gradients_and_flags(name: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(), nn.Flatten())
    net.append(nn.Linear(144, 5)).train()
    modules, x = list(net.modules()), pictures().float()
    states = {key: value.clone() for key, value in net.state_dict().items()}
    result, again = (camtool.explain(net, x, 0, method=name)[0] for _ in range(2))
    assert (result.raw == again.raw).all()  # no dropout
    assert all(module.training for module in net.modules())
    assert [*net.modules()] == modules
    assert net[2].inplace
    assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(value, states[key]) for key, value in net.state_dict().items())
    assert not any(module._backward_hooks or module._forward_hooks for module in net.modules())
    assert not x.requires_grad


@pytest.mark.parametrize("name", [*AT_INPUT, "fullgrad"])
def test_methods_work_in_inference_mode(name: str) -> None:
    net, x = relu_net(), pictures()
    expected = [each.raw for each in camtool.explain(net, x, 0, method=name)]
    with torch.inference_mode():
        found = [each.raw for each in camtool.explain(net, x * 1, 0, method=name)]
    assert all((one == other).all() for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", [*AT_INPUT, "guided-gradcam"])
def test_largest_values_are_clipped_to_the_percentile(name: str) -> None:
    net = net_of(nn.Conv2d(3, 4, 3), nn.ReLU(), features=4 * 18 * 18)
    layer = Layer("1", Layout("channels first", (18, 18)))
    forward_pass = run_forward_pass(net, torch.randn(2, 3, 20, 20).double(), [layer])
    (evidence,) = gather_evidence(forward_pass, [ClassScore(0)] * 2)
    whole, cut = run(name, evidence, cap=1), run(name, evidence)
    ranked = whole.flatten(1).sort(1).values
    assert_close(cut, whole.minimum(ranked[:, 395][:, None, None]))  # 99 of 100 pixels of 400 are 396
    assert (cut < whole).flatten(1).sum(1).tolist() == [4, 4]


def test_signed_maps_are_not_clipped_and_empty_maps_stay_empty() -> None:
    net, x = relu_net(), pictures()
    assert torch.equal(
        run("inputxgradient", ask(net, x), signed=True, cap=0.5), run("inputxgradient", ask(net, x), signed=True)
    )
    for name in AT_INPUT:
        assert run(name, ask(net, 0 * x)).isfinite().all()


# ------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("name", "option", "value", "says"),
    [
        ("smoothgrad", "samples", 0, r"samples must be a whole number of 1 or more, got 0"),
        ("smoothgrad", "samples", 2.5, r"samples must be a whole number of 1 or more, got 2\.5"),
        ("smoothgrad", "noise", -0.1, r"noise must be a finite number at least 0, got -0\.1"),
        ("smoothgrad", "noise", float("nan"), r"noise must be a finite number at least 0, got nan"),
        ("integrated-gradients", "steps", -1, r"steps must be a whole number of 1 or more, got -1"),
        *[(name, "cap", 0, r"cap must be a finite number above 0 and at most 1, got 0") for name in AT_INPUT],
        *[(name, "cap", 99, r"cap must be a finite number above 0 and at most 1, got 99") for name in AT_INPUT],
    ],
)
def test_option_out_of_range_is_rejected(name: str, option: str, value: float, says: str) -> None:
    with pytest.raises(MethodError, match=says):
        METHODS[name](ask(relu_net(), pictures()), **{option: value})


class Frozen(nn.Module):
    """Network with a trunk that no gradient passes, and a head that has one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 5).double()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = x.relu()
        return self.head(x.flatten(1))


@pytest.mark.parametrize("name", [*AT_INPUT, "fullgrad"])
@pytest.mark.parametrize("net", [Frozen(), Apply(lambda x: x.detach().flatten(1))], ids=["frozen", "detached"])
def test_input_without_a_gradient_is_rejected(name: str, net: nn.Module) -> None:
    with pytest.raises(MethodError, match=r"no gradient passes from the score to the input.* method='gradcam'"):
        run(name, ask(net, pictures()))
