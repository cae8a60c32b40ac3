"""Settings and trees of modules: what an explanation reads to notice that a model was changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from camtool.hooks.model_passes import run_model
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.module_settings import ModuleSettings, describe_settings
from camtool.hooks.structures.modules import WeightStates, list_weights, read_tree


def rename_size(net: Net) -> None:
    net.extent = net.size
    del net.size


class Net(nn.Module):
    """A model with attributes of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.factor, self.size, self.table = nn.Conv2d(3, 2, 3), 2.0, (1, 1000), [1, {"a": 2}]
        self.act, self.gain = torch.tanh, np.float32(2)
        self.pair, self.hidden, self.spare = ([1], 2), [nn.ReLU()], torch.ones(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.conv(x)


def other_forward(self: Net, x: Tensor) -> Tensor:
    return 3.0 * self.conv(x)


CHANGES: dict[str, Callable[[Net], object]] = {
    "another value": lambda net: setattr(net, "factor", 3.0),
    "another type": lambda net: setattr(net, "factor", 2),
    "a tensor instead": lambda net: setattr(net, "factor", torch.ones(3)),
    "a value of a child": lambda net: setattr(net.conv, "stride", (2, 2)),
    "a new attribute": lambda net: setattr(net, "new", 1),
    "another name": rename_size,
    "an item of a list": lambda net: net.table.append(2.0),
    "an item of a mapping in a list": lambda net: net.table[1].update(a=3),
    "an item of a list in a tuple": lambda net: net.pair[0].append(2),
    "a module in a list": lambda net: net.hidden.insert(0, nn.Sigmoid()) or net.hidden.pop(),
    "a number instead of a tensor": lambda net: setattr(net, "spare", 2.0),
    "another function": lambda net: setattr(net, "act", torch.relu),
    "another number of NumPy": lambda net: setattr(net, "gain", np.float32(3)),
    "one less": lambda net: delattr(net, "size"),
    "a forward of its own": lambda net: setattr(net, "forward", lambda x: x),
    "a module as a forward of its own": lambda net: vars(net).update(forward=nn.ReLU()),
    "a forward of the class": lambda _: setattr(Net, "forward", other_forward),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=[*CHANGES])
def test_changes_are_noticed(change: Callable[[Net], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Net, "forward", Net.forward)  # so that it is restored
    net = Net()
    before, description = ModuleSettings([*net.modules()]), repr(describe_settings([*net.modules()]))  # hashed as text
    assert before.equal_those_of([*net.modules()])
    change(net)
    assert not before.equal_those_of([*net.modules()])
    assert description != repr(describe_settings([*net.modules()]))


def test_equal_values_and_the_mode_are_no_changes() -> None:
    net = Net()
    before = ModuleSettings([*net.modules()])
    net.size = (1, int("1000"))  # another object
    net.train()
    net.eval()
    net.training = True
    assert before.equal_those_of([*net.modules()])


def test_what_a_pass_makes_anew_is_no_change() -> None:
    net = Net()
    net.state = (torch.zeros(2), torch.ones(2))  # as a recurrent model keeps it
    net._cache = {"last": torch.zeros(2)}
    before = ModuleSettings([*net.modules()])
    net.state, net._cache["next"] = (torch.ones(2), torch.ones(2)), torch.ones(2)
    assert before.equal_those_of([*net.modules()])


def test_other_processes_have_the_same_description() -> None:
    code = """
import torchvision
from camtool.hooks.structures.module_settings import describe_settings
print(describe_settings([*torchvision.models.mobilenet_v3_small(weights=None).modules()]))
"""
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second


@torch.no_grad()
def add_one(tensor: Tensor) -> None:
    tensor += 1


WEIGHT_CHANGES: dict[str, tuple[Callable[[nn.Sequential], object], bool]] = {
    "none": (lambda _: None, True),
    "values of a buffer": (lambda net: add_one(net[1].running_mean), True),
    "values that are not compared": (lambda net: add_one(net[1].weight), True),
    "values": (lambda net: add_one(net[0].weight), False),
    "other memory": (lambda net: setattr(net[0].weight, "data", net[0].weight.data.clone()), False),
    "another parameter": (lambda net: setattr(net[1], "weight", nn.Parameter(torch.ones(2))), False),
    "a parameter more": (lambda net: net[1].register_parameter("last", nn.Parameter(torch.ones(2))), False),
    "a parameter less": (lambda net: net[1].register_parameter("bias", None), False),
}


@pytest.mark.parametrize(("change", "is_equal"), WEIGHT_CHANGES.values(), ids=[*WEIGHT_CHANGES])
def test_parameters_are_compared_with_the_states_of_all_weights(
    change: Callable[[nn.Sequential], object],
    is_equal: bool,
) -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))
    before = WeightStates(list_weights(net, buffers=False), [0])
    change(net)
    assert before.equal_parameters_of(WeightStates(list_weights(net))) == is_equal
    assert before.equal_those_of(list_weights(net, buffers=False)) == is_equal


def test_a_tree_lists_the_modules_as_torch_does() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), nn.Identity())
    net.append(net[0])
    net.register_module("none", None)
    tree = read_tree(net)
    assert tree.modules == [*net.modules()]
    assert tree.names == ["0", "1", "2", "3", "none", "0", "1"]
    assert tree.counts == [5, 0, 2, 0, 0, 0]
    assert tree.children.count(net[0]) == 2


def test_a_held_model_is_read_once_and_again_after_it_ran() -> None:
    class Grows(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.tail = nn.Identity()
            return super().forward(x)

    net = Grows().eval()
    with guard(net):
        held = read_tree(net)
        assert read_tree(net) is held
        with guard(net):
            assert read_tree(net) is held
        run_model(net, torch.zeros(1, 3, 4, 4))
        assert read_tree(net).modules == [*net.modules()]
    assert read_tree(net) is not read_tree(net)
