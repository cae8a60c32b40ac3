"""Nested structures of tensors: the same order in all walks, and unchanged other objects."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from camtool.hooks.structures.nested_tensors import (
    SharedInput,
    find_main_tensor,
    find_tensors,
    get_named_items,
    map_batch,
    map_tensors,
    replace_main_tensor,
)

Pair = namedtuple("Pair", ["ids", "features"])


@dataclass(frozen=True)
class Answer:
    scores: Any
    note: Any = None


def a(value: float = 1) -> Tensor:
    return torch.full((2,), float(value))


STRUCTURES = [
    a(),
    (a(1), a(2)),
    [a(1), [a(2), "text"], None],
    {"x": a(1), "y": (a(2), 7)},
    Pair(torch.arange(2), a(3)),
    Answer(a(1), [a(2)]),
    OrderedDict(x=Answer(Pair(a(1), 2.0))),
    UserDict(x=a(1)),
    MappingProxyType({"x": a(1)}),
    "text",
    None,
]


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: type(structure).__name__)
def test_finding_and_mapping_visit_tensors_in_the_same_order(structure) -> None:
    met: list[Tensor] = []
    map_tensors(structure, lambda tensor: met.append(tensor) or tensor)
    assert len(met) == len(find_tensors(structure))
    assert all(one is other for one, other in zip(met, find_tensors(structure), strict=True))


def test_mapping_keeps_types_and_other_objects() -> None:
    given = {"pair": Pair(3, a()), "list": [a(), "text"], "answer": Answer(a(), "note"), "none": None}
    changed = map_tensors(given, lambda tensor: float(tensor.sum()))
    assert changed == {"pair": Pair(3, 2.0), "list": [2.0, "text"], "answer": Answer(2.0, "note"), "none": None}
    assert torch.equal(given["answer"].scores, a())  # it is not written to, frozen or not
    assert type(map_tensors(UserDict(x=a()), Tensor.clone)) is UserDict
    assert map_tensors(MappingProxyType({"x": a()}), len) == {"x": 2}  # what cannot be written to becomes a dictionary


def test_the_main_tensor_is_the_first_floating_one() -> None:
    first, second = a(1), a(2)
    assert find_main_tensor([torch.arange(2), (None, first), second]) is first
    assert find_main_tensor(Answer({"ids": torch.arange(2), "x": first})) is first
    assert find_main_tensor("text") is find_main_tensor([torch.arange(2)]) is None
    assert find_main_tensor(replace_main_tensor([torch.arange(2), (None, first), second], second)) is second


def test_named_items_are_found_by_name() -> None:
    assert get_named_items({"x": 1}) == {"x": 1}
    assert get_named_items(Pair(1, 2)) == {"ids": 1, "features": 2}
    assert get_named_items(Answer(1)) == {"scores": 1, "note": None}
    assert get_named_items((1, 2)) == get_named_items([1]) == get_named_items(3) == get_named_items(Answer) == {}


def test_map_batch_changes_tensors_with_one_entry_per_image() -> None:
    table, temperature = torch.ones(3, 3), torch.tensor(2.0)
    inputs = {"image": torch.zeros(2, 3), "ids": torch.arange(2), "table": table, "temperature": temperature}
    first = map_batch(inputs, lambda tensor: tensor[:1])
    assert (first["image"].shape, first["ids"].tolist()) == ((1, 3), [0])
    assert first["table"] is table
    assert first["temperature"] is temperature


def test_shared_inputs_are_not_split_and_are_copied_for_each_call() -> None:
    value = a()
    shared = map_batch({"image": torch.zeros(2, 3), "prompt": SharedInput([value, "text"])}, lambda tensor: tensor[:1])
    copied = shared["prompt"].copy()
    assert (torch.equal(copied[0], value), copied[1]) == (True, "text")
    assert copied[0] is not value
