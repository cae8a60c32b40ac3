"""The warning that names which of several tensors in an output is used as scores."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.outputs.class_scores import describe_chosen_tensor
from camtool.targets import ClassScore, Custom, Negated, Probability, Value

WARNING = "The model returned several tensors"
A, B, C = torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 1)


class Pair(NamedTuple):
    sex: Tensor
    age: Tensor


@dataclass
class Record:
    sex: Tensor
    age: Tensor


@pytest.mark.parametrize(
    ("output", "chosen", "other"),
    [
        ({"sex": A, "age": C, "hair": B}, "output['sex']", "output['age'], output['hair']"),
        ((A, B), "output[0]", "output[1]"),
        ([A, B, C], "output[0]", "output[1], output[2]"),
        (Pair(A, C), "output.sex", "output.age"),
        (Record(A, C), "output.sex", "output.age"),
        ({"heads": {"sex": A, "age": C}}, "output['heads']['sex']", "output['heads']['age']"),
        ((torch.tensor(1.0), A, B), "output[1]", "output[2]"),
        (tuple(A + i for i in range(8)), "output[0]", "output[3], output[4] and 3 more"),
    ],
    ids=["dict", "tuple", "list", "named tuple", "dataclass", "nested", "behind a loss", "many"],
)
def test_ambiguous_choice_is_described(output: Any, chosen: str, other: str) -> None:
    warning = describe_chosen_tensor(output)
    assert warning is not None
    assert f"{chosen} was used" in warning
    assert other in warning


@pytest.mark.parametrize(
    "output",
    [
        A,
        (A,),
        {"scores": A},
        (torch.tensor(1.0), A),
        (A, torch.tensor([1, 2])),
        {"logits": A, "features": B},
        OrderedDict(out=A, aux=B),
        {"last_hidden_state": A, "hidden_states": (A, B)},
        {"image_embeds": A, "text_embeds": B},
        [{"boxes": torch.rand(2, 4), "labels": torch.tensor([1, 2]), "scores": torch.rand(2)}],
        {"pred_boxes": torch.rand(2, 5, 4), "pred_logits": torch.rand(2, 5, 3)},
    ],
    ids=lambda output: type(output).__name__,
)
def test_certain_choice_is_not_described(output: Any) -> None:
    assert describe_chosen_tensor(output) is None


def test_choice_in_outputs_of_libraries_is_certain() -> None:
    from torchvision.models.googlenet import GoogLeNetOutputs
    from torchvision.models.inception import InceptionOutputs
    from transformers.modeling_outputs import ImageClassifierOutput

    assert describe_chosen_tensor(GoogLeNetOutputs(A, A, A)) is None
    assert describe_chosen_tensor(InceptionOutputs(A, A)) is None
    assert describe_chosen_tensor(ImageClassifierOutput(logits=A, hidden_states=(B, B))) is None


class Faces(nn.Module):
    """A classifier with three heads: sex, age and hair of a face."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, padding=1)
        self.sex, self.age, self.hair = nn.Linear(4, 2), nn.Linear(4, 1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        pooled = self.body(x).relu().mean((2, 3))
        return {"sex": self.sex(pooled), "age": self.age(pooled), "hair": self.hair(pooled)}


def find_choice_warnings(target: Any) -> list[str]:
    result = camtool.explain(Faces(), torch.randn(3, 16, 16), target)
    return [each for each in result.warnings if WARNING in each]


@pytest.mark.parametrize("target", [None, 1, ClassScore(0), Probability(1), Value(1), Negated(ClassScore(1))], ids=str)
def test_explanation_warns_of_the_choice(target: Any) -> None:
    (warning,) = find_choice_warnings(target)
    assert "output['sex'] was used" in warning


def test_choice_of_the_user_gets_no_warning_and_the_advice_works() -> None:
    (warning,) = find_choice_warnings(None)
    advice = warning.partition("target_class=")[2].rstrip(".")
    assert find_choice_warnings(eval(advice)) == []
    assert find_choice_warnings(lambda output: output["hair"][3]) == []
    assert find_choice_warnings(Custom(lambda output: output["age"])) == []
