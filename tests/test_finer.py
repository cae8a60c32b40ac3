"""Finer finds the classes most similar to one by the weights of the model's head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import Apply
from torch import Tensor, nn
from torch.nn import functional

import camtool
from camtool.errors import TargetError
from camtool.heads import class_vectors
from camtool.targets import ClassScore, Contrast, Finer, Negated, choose

WEIGHT = torch.tensor([[3.0, 1.0], [6.0, 1.0], [-3.0, 1.0], [0.3, 0.2], [0.0, 5.0]])
"""Cosines to class 0: 0.987 for class 1, -0.8 for 2, 0.965 for 3 and 0.316 for 4."""

LOGITS = torch.tensor([2.0, -9.0, 2.1, 0.0, 1.9])
"""Nearest to class 0 are 2 and 4."""

LABELS = ["tabby", "tiger cat", "dog", "lynx", "fox"]


def test_the_most_similar_weights_are_those_of_the_largest_cosine() -> None:
    target = Finer(0, rivals=2)
    assert target.compared_by(WEIGHT).similar == (1, 3, 4, 2)
    (chosen,) = choose(target, LOGITS, LABELS, class_vectors=lambda: WEIGHT)
    assert isinstance(chosen, Contrast)
    assert chosen.rivals == (1, 3)
    shares = torch.tensor([-9.0, 0.0]).softmax(0)
    torch.testing.assert_close(torch.tensor(chosen.shares), shares)
    assert float(chosen(LOGITS[None])) == pytest.approx(2.0 - float(shares @ torch.tensor([-9.0, 0.0])))


def test_a_negated_target_compares_the_same_classes() -> None:
    chosen = choose(Negated(Finer(0, rivals=1)), LOGITS, LABELS, class_vectors=lambda: WEIGHT)
    assert chosen == [Negated(Contrast(0, (1,), shares=(1.0,)))]


@pytest.mark.parametrize("vectors", [None, lambda: None])
def test_without_weights_the_logits_decide(vectors: Callable[[], Tensor | None] | None) -> None:
    (chosen,) = choose(Finer(0, rivals=2), LOGITS, LABELS, class_vectors=vectors)
    assert chosen.rivals == (2, 4)


def test_the_user_may_name_the_similar_classes() -> None:
    (chosen,) = choose(Finer(0, similar=(4, 0, 3, 1), rivals=2), LOGITS, LABELS, class_vectors=lambda: WEIGHT)
    assert chosen.rivals == (4, 3)
    with pytest.raises(TargetError, match="target_class 5 does not exist"):
        Finer(0, similar=(5,)).settled(LOGITS)
    with pytest.raises(TargetError, match="Finer's similar"):
        Finer(0, similar=("dog",))  # type: ignore[arg-type]


def test_a_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TargetError, match="target_class 7 does not exist"):
        choose(Finer(7), LOGITS, LABELS, class_vectors=lambda: WEIGHT)


def test_the_head_is_not_looked_for_where_no_target_needs_it() -> None:
    def fail() -> Tensor | None:
        raise AssertionError

    choose(ClassScore(1), LOGITS, LABELS, class_vectors=fail)
    choose(Finer(0, similar=(1, 2)), LOGITS, LABELS, class_vectors=fail)


class Flat(nn.Module):
    """Average pooling, then a linear layer; a decoy of the same number of outputs runs before, another never."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.trunk, self.decoy = nn.Linear(2, 5), nn.Conv2d(3, 2, 1), nn.Linear(2, 5)
        self.head = nn.Linear(2, 5)
        self.head.weight.data = WEIGHT.clone()

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.trunk(x).mean((2, 3))
        return self.head(pooled + 0 * self.decoy(pooled)[:, :2])


def convolved(end: Callable[[Tensor], Tensor]) -> nn.Module:
    head = nn.Conv2d(2, 5, 1)
    head.weight.data = WEIGHT[:, :, None, None].clone()
    return nn.Sequential(nn.Conv2d(3, 2, 1), head, Apply(end), Apply(lambda x: x.mean((2, 3))))


HEADS: dict[str, Callable[[], nn.Module]] = {
    "linear": Flat,
    "in a wrapper": lambda: nn.Sequential(Flat()),
    "1 x 1 convolution": lambda: convolved(lambda x: x),
    "1 x 1 convolution and ReLU": lambda: convolved(torch.relu),
}


@pytest.mark.parametrize("kind", HEADS)
def test_the_label_names_the_classes_with_similar_weights(kind: str) -> None:
    net, x = HEADS[kind]().eval(), torch.randn(2, 3, 4, 4)
    found = class_vectors(net, x[:1], net(x[:1]).detach())
    assert found is not None
    torch.testing.assert_close(found, WEIGHT)
    for result in camtool.explain(net, x, Finer(0, rivals=2), labels=LABELS):
        assert result.label == "tabby rather than tiger cat, lynx"


def without_head() -> Any:
    """Not linear: the squared distance to a prototype of each class."""
    return nn.Sequential(
        nn.Conv2d(3, 2, 1), Apply(lambda x: x.mean((2, 3))), Apply(lambda x: -torch.cdist(x, WEIGHT).square())
    )


def behind_another_layer() -> Any:
    """The layer of the right size does not give the output."""
    return nn.Sequential(Flat(), Apply(lambda x: functional.normalize(x + x.square(), dim=1)))


@pytest.mark.parametrize("make", [without_head, behind_another_layer])
def test_a_model_without_a_linear_head_is_asked_for_the_nearest_logits(make: Callable[[], Any]) -> None:
    net, x = make().eval(), torch.randn(1, 3, 4, 4)
    logits = net(x)[0].detach()
    assert class_vectors(net, x, logits[None]) is None
    nearest = [index for index in (logits - logits[0]).abs().argsort().tolist() if index != 0][:2]
    (result,) = camtool.explain(net, x, Finer(0, rivals=2), labels=LABELS)
    assert result.label == f"tabby rather than {LABELS[nearest[0]]}, {LABELS[nearest[1]]}"


def test_on_a_photo_of_dogs_the_tabby_is_held_against_cats(mobilenet: camtool.Loaded, shared: Any) -> None:
    for name in ("n02102318_cocker_spaniel.jpg", "both.png"):
        result = camtool.explain(mobilenet, shared / "images" / name, Finer(281))
        assert result.label.startswith("tabby rather than ")
        rivals = result.label.removeprefix("tabby rather than ").split(", ")
        assert {"tiger cat", "Egyptian cat"} <= {*rivals}
        assert {*rivals} <= {"tiger cat", "Egyptian cat", "Persian cat", "Siamese cat", "lynx"}


def test_on_a_scene_the_bundled_model_compares_by_its_weights(demo: camtool.Loaded) -> None:
    """The twin on the bundled model: the same rivals on every scene."""
    from photos import unseen

    weight = demo.model.head.weight.detach()
    cosines = functional.normalize(weight, dim=1) @ functional.normalize(weight[8], dim=0)
    expected = [demo.labels[index] for index in cosines.argsort(descending=True).tolist() if index != 8][:3]
    scenes = [unseen(number, [shape]).image for number, shape in enumerate(("star", "fish", "drop"))]
    for result in camtool.explain(demo, scenes, Finer(8)):
        assert result.label == f"star rather than {', '.join(expected)}"
