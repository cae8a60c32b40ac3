"""Sanity metrics, and random parameters that leave no trace."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from camtool.errors import MetricError
from camtool.trust.metrics import sanity
from camtool.trust.metrics.sanity import list_parameter_modules, randomize_parameters
from tests.oracles import metrics as oracles


class Net(nn.Module):
    """Layers with and without ``reset_parameters``, a shared parameter and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.place = nn.Parameter(torch.arange(64.0).reshape(1, 1, 8, 8) / 64)
        self.last, self.tied = nn.Linear(4, 5), nn.Linear(4, 5)
        self.tied.weight = self.last.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.norm(self.first(x)) + self.place).relu().mean((2, 3)))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    net = Net()
    net.norm.running_mean.normal_()
    net(torch.randn(4, 3, 8, 8)).sum().backward()
    return net


IMAGES = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def take_snapshot(net: nn.Module) -> Callable[[], None]:
    """Return a function that checks that nothing of the model has changed, and no global generator."""
    tensors = {**dict(net.named_parameters(remove_duplicate=False)), **dict(net.named_buffers())}
    values = {name: (each, each.data_ptr(), each._version, each.detach().clone()) for name, each in tensors.items()}
    grads = {name: each.grad for name, each in net.named_parameters()}
    flags = [(module.training, len(module._forward_hooks), {*vars(module)}) for module in net.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    def check() -> None:
        now = {**dict(net.named_parameters(remove_duplicate=False)), **dict(net.named_buffers())}
        assert now.keys() == values.keys()
        for name, (tensor, pointer, version, value) in values.items():
            assert now[name] is tensor
            assert (tensor.data_ptr(), tensor._version) == (pointer, version)
            assert torch.equal(tensor, value)
        assert all(each.grad is grads[name] for name, each in net.named_parameters())
        assert flags == [(module.training, len(module._forward_hooks), {*vars(module)}) for module in net.modules()]
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert np.random.get_state()[1].tolist() == states[2]  # noqa: NPY002

    return check


def test_parameters_are_random_within_the_block_and_restored_after_it(net: Net) -> None:
    check = take_snapshot(net)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with randomize_parameters(net, list_parameter_modules(net), seed=0):
        inside = {name: value.clone() for name, value in net.state_dict().items()}
        assert net.tied.weight is net.last.weight
    check()
    assert {name for name in before if torch.equal(before[name], inside[name])} == {
        "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
    }  # fmt: skip
    assert torch.equal(inside["place"].flatten().sort().values, before["place"].flatten())  # shuffled
    assert inside["first.weight"].abs().max() <= 27**-0.5  # as at the start of a training


def test_random_parameters_depend_on_the_seed_and_the_name_alone(net: Net) -> None:
    def read(names: list[str], seed: int) -> Tensor:
        with randomize_parameters(net, names, seed=seed):
            return net.first.weight.detach().clone()

    assert torch.equal(read(["first"], 0), read(["last", "norm", "first"], 0))
    assert not torch.equal(read(["first"], 0), read(["first"], 1))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", [0, 3])
def test_parameters_are_restored_after_an_exception(net: Net, stop: type[BaseException], at: int) -> None:
    check, calls = take_snapshot(net), 0

    def explain(images: Tensor, rows: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > at:
            raise stop
        return images.mean(1)

    with pytest.raises(stop):
        sanity.compute_cascading_randomization(net, explain, IMAGES, IMAGES.mean(1), groups=None)
    assert calls == at + 1
    check()


def test_an_interrupt_while_parameters_are_replaced_restores_them(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    check = take_snapshot(net)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(nn.Conv2d, "reset_parameters", lambda self: interrupt())
    names = list_parameter_modules(net)
    assert names.index("last") < names.index("first")
    with pytest.raises(KeyboardInterrupt), randomize_parameters(net, names, seed=0):
        pytest.fail("the block must not run")
    check()


def test_the_order_is_from_the_output_to_the_input(net: Net) -> None:
    assert list_parameter_modules(net) == ["tied", "last", "norm", "first", ""]


@pytest.mark.parametrize("is_cumulative", [True, False])
@pytest.mark.parametrize("groups", [None, 2, 8])
def test_the_layers_are_randomized_step_by_step(net: Net, is_cumulative: bool, groups: int | None) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    steps = []

    def explain(images: Tensor, rows: Tensor) -> Tensor:
        changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
        steps.append({name for name in ("last.weight", "first.weight", "place") if name in changed})
        return net.first(images).detach().mean(1)

    maps = net.first(IMAGES).detach().mean(1)
    layers = ["last", "first", ""]
    values = sanity.compare_randomized(
        net, explain, IMAGES, maps, layers=layers, groups=groups, is_cumulative=is_cumulative
    )
    if groups == 2:
        own = [{"last.weight"}, {"first.weight", "place"}]
    else:
        own = [{"last.weight"}, {"first.weight"}, {"place"}]
    expected = [set().union(*own[: i + 1]) for i in range(len(own))] if is_cumulative else own
    assert steps == expected
    # The map depends on the first layer only.
    is_touched = torch.tensor(["first.weight" in step for step in expected])
    torch.testing.assert_close(values[:, ~is_touched], torch.ones_like(values[:, ~is_touched]))
    assert (values[:, is_touched].abs() < 1).all()
    with randomize_parameters(net, ["first"], seed=0):
        again = net.first(IMAGES).detach().mean(1)
    rho = oracles.spearman(maps[1].flatten().tolist(), again[1].flatten().tolist())
    torch.testing.assert_close(values[1, is_touched], torch.full((int(is_touched.sum()),), rho))


def test_the_metric_is_the_mean_magnitude_over_the_steps(net: Net) -> None:
    def explain(images: Tensor, rows: Tensor) -> Tensor:
        return net.first(images).detach().mean(1)

    maps = explain(IMAGES, torch.arange(2))
    options = {"layers": ["last", "first"], "seed": 4}
    for compute, is_cumulative in [
        (sanity.compute_cascading_randomization, True),
        (sanity.compute_independent_randomization, False),
    ]:
        steps = sanity.compare_randomized(net, explain, IMAGES, maps, is_cumulative=is_cumulative, **options)
        torch.testing.assert_close(compute(net, explain, IMAGES, maps, **options), steps.abs().mean(1))


def test_explanations_of_camtool_see_the_random_parameters(net: Net) -> None:
    import camtool

    explainer = camtool.Explainer(net.eval(), "gradcam", layer="norm")

    def explain(images: Tensor, rows: Tensor) -> Tensor:
        return torch.stack([torch.as_tensor(result.raw) for result in explainer(images, [0] * len(images))])

    maps = explain(IMAGES, torch.arange(2))
    check = take_snapshot(net)
    values = sanity.compare_randomized(net, explain, IMAGES, maps)
    assert (values[:, -1].abs() < 0.95).all()
    check()
    assert torch.equal(explain(IMAGES, torch.arange(2)), maps)


def test_wrong_layers_are_errors(net: Net) -> None:
    def explain(images: Tensor, rows: Tensor) -> Tensor:
        return images.mean(1)

    maps = IMAGES.mean(1)
    with pytest.raises(MetricError, match="layers: the model has no module 'frist'"):
        sanity.compare_randomized(net, explain, IMAGES, maps, layers=["frist"])
    with pytest.raises(MetricError, match="layers must be a list of names"):
        sanity.compare_randomized(net, explain, IMAGES, maps, layers="first")
    with pytest.raises(MetricError, match="model ReLU has no parameters"):
        sanity.compare_randomized(nn.ReLU(), explain, IMAGES, maps)
    with pytest.raises(MetricError, match=r"the maps of explain\(images, rows\) must have one map per image"):
        sanity.compare_randomized(net, lambda x, r: x[:, 0, :4], IMAGES, maps)


# --------------------------------------------------------------------------------------------------- other metrics


def test_class_sensitivity_is_pearsons_correlation() -> None:
    one, two = torch.rand(2, 3, 5, 6, dtype=torch.float64)
    pairs = [(a.flatten().tolist(), b.flatten().tolist()) for a, b in zip(one, two, strict=True)]
    expected = torch.tensor([oracles.pearson(*pair) for pair in pairs], dtype=torch.float64)
    torch.testing.assert_close(sanity.compute_class_sensitivity(one, two), expected)
    torch.testing.assert_close(sanity.compute_random_agreement(one, torch.stack([two, -one])), (expected.abs() + 1) / 2)


def test_repeatability_is_1_only_for_equal_bits() -> None:
    maps = torch.rand(1, 8, 8) + 0.5
    images = torch.rand(1, 3, 8, 8)
    values = [
        float(sanity.compute_repeatability(lambda x, rows, again=again: again, images, maps)[0])
        for again in (maps, maps * (1 + 1e-3), 3 * maps, torch.zeros_like(maps), -maps)
    ]
    assert values[0] == 1
    assert values[1:] == pytest.approx([1 - 1e-3 / 2.001, 0.5, 0, 0], abs=1e-5)
    zeros = torch.zeros_like(maps)
    assert sanity.compute_repeatability(lambda x, rows: zeros, images, zeros).tolist() == [1]


def test_wrong_shapes_are_errors() -> None:
    maps = torch.rand(2, 8, 8)
    with pytest.raises(MetricError, match=r"other_maps must have the shape of maps, \(2, 8, 8\); got \(2, 4, 8\)"):
        sanity.compute_class_sensitivity(maps, maps[:, :4])
    with pytest.raises(MetricError, match=r"random_maps must be a tensor \(S, N, H, W\)"):
        sanity.compute_random_agreement(maps, maps)
