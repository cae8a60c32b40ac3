"""Structures of tensors: every walk meets the same tensors in the same order, and hands on all else as it is."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from camtool.structures import Shared, by_name, main_tensor, map_batch, map_tensors, tensors_in, with_main_tensor

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
def test_both_walks_meet_the_same_tensors_in_the_same_order(structure) -> None:
    met: list[Tensor] = []
    map_tensors(structure, lambda tensor: met.append(tensor) or tensor)
    assert len(met) == len(tensors_in(structure))
    assert all(one is other for one, other in zip(met, tensors_in(structure), strict=True))


def test_structures_keep_their_type_and_what_is_no_tensor() -> None:
    given = {"pair": Pair(3, a()), "list": [a(), "text"], "answer": Answer(a(), "note"), "none": None}
    changed = map_tensors(given, lambda tensor: float(tensor.sum()))
    assert changed == {"pair": Pair(3, 2.0), "list": [2.0, "text"], "answer": Answer(2.0, "note"), "none": None}
    assert torch.equal(given["answer"].scores, a())  # it is not written to, frozen or not
    assert type(map_tensors(UserDict(x=a()), Tensor.clone)) is UserDict
    assert map_tensors(MappingProxyType({"x": a()}), len) == {"x": 2}  # what cannot be written to becomes a dictionary


def test_the_main_tensor_is_the_first_floating_one() -> None:
    first, second = a(1), a(2)
    assert main_tensor([torch.arange(2), (None, first), second]) is first
    assert main_tensor(Answer({"ids": torch.arange(2), "x": first})) is first
    assert main_tensor("text") is main_tensor([torch.arange(2)]) is None
    assert main_tensor(with_main_tensor([torch.arange(2), (None, first), second], second)) is second


def test_what_has_names_is_found_by_them() -> None:
    assert by_name({"x": 1}) == {"x": 1}
    assert by_name(Pair(1, 2)) == {"ids": 1, "features": 2}
    assert by_name(Answer(1)) == {"scores": 1, "note": None}
    assert by_name((1, 2)) == by_name([1]) == by_name(3) == by_name(Answer) == {}


def test_a_batch_is_what_has_an_entry_for_each_image() -> None:
    table, temperature = torch.ones(3, 3), torch.tensor(2.0)
    inputs = {"image": torch.zeros(2, 3), "ids": torch.arange(2), "table": table, "temperature": temperature}
    first = map_batch(inputs, lambda tensor: tensor[:1])
    assert (first["image"].shape, first["ids"].tolist()) == ((1, 3), [0])
    assert first["table"] is table
    assert first["temperature"] is temperature


def test_what_is_shared_is_never_cut_and_each_call_gets_its_own_copy() -> None:
    value = a()
    shared = map_batch({"image": torch.zeros(2, 3), "prompt": Shared([value, "text"])}, lambda tensor: tensor[:1])
    copied = shared["prompt"].copied()
    assert (torch.equal(copied[0], value), copied[1]) == (True, "text")
    assert copied[0] is not value
