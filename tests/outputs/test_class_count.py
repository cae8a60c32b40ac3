"""The number of classes that a model or a module inside of it declares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from camtool.outputs.class_count import find_class_count


def build(width: int = 3, **declared: Any) -> nn.Module:
    """Return a module with a linear layer of some outputs, and attributes."""
    module = nn.Sequential(nn.Linear(2, width))
    for name, value in declared.items():
        setattr(module, name, value)
    return module


def config(labels: int) -> SimpleNamespace:
    return SimpleNamespace(num_labels=labels)


DEFAULT = config(2)
"""What Hugging Face's configurations have unless they are given a number of labels."""

NETS: dict[str, tuple[nn.Module, int | None]] = {
    "the model itself": (build(config=config(3)), 3),
    "one less, beside no object": (build(config=config(2)), 2),
    "an attribute": (build(num_classes=3), 3),
    "names": (build(names=["cat", "dog", "cow"]), 3),
    "inside of a wrapper": (nn.Sequential(build(config=config(3))), 3),
    "inside of two wrappers": (nn.ModuleDict({"a": nn.ModuleDict({"b": build(num_classes=2)})}), 2),
    "nothing is declared": (nn.Sequential(build()), None),
    "another number is declared": (nn.Sequential(build(config=config(80))), None),
    "a backbone without a head does not count": (
        nn.ModuleDict({"backbone": build(7, config=DEFAULT), "head": nn.Linear(7, 3)}),
        None,
    ),
    "a head beside a backbone": (
        nn.ModuleDict({"backbone": build(7, config=DEFAULT), "head": build(num_classes=3)}),
        3,
    ),
    "two modules disagree": (nn.Sequential(build(num_classes=2), build(num_classes=3)), None),
    "the outer one of two": (nn.Sequential(build(num_classes=3).append(build(num_classes=2))), 3),
}


@pytest.mark.parametrize("name", NETS)
def test_class_count_of_a_detector_whose_queries_have_three_logits(name: str) -> None:
    net, expected = NETS[name]
    assert find_class_count(net, 3) == expected


def test_the_wrapper_overrides_what_is_inside() -> None:
    wrapper = nn.Sequential(build(num_classes=2))
    wrapper.num_classes = 3
    assert find_class_count(wrapper, 3) == 3


def test_class_count_of_other_models_is_the_nearest() -> None:
    assert find_class_count(nn.Sequential(nn.Sequential(build(names={0: "cat", 1: "dog"})))) == 2
    assert find_class_count(nn.Sequential(build(config=config(5)))) == 5
    assert find_class_count(build()) is None
