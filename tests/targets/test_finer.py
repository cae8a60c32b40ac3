"""Finer with a model: the rivals are the classes with the most similar weights in the linear head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import camtool
from camtool.errors import TargetError
from camtool.evidence.class_vectors import find_class_vectors
from camtool.targets import ClassScore, Contrast, Finer, ImageOutput, Negated, resolve_targets
from tests.helpers.nets import Apply

WEIGHT = torch.tensor([[3.0, 1.0], [6.0, 1.0], [-3.0, 1.0], [0.3, 0.2], [0.0, 5.0]])
"""Cosines to class 0: 0.987 for class 1, -0.8 for 2, 0.965 for 3 and 0.316 for 4."""

LOGITS = torch.tensor([2.0, -9.0, 2.1, 0.0, 1.9])
"""Nearest to class 0 are 2 and 4."""

LABELS = ["tabby", "tiger cat", "dog", "lynx", "fox"]


def test_most_similar_classes_have_weights_of_the_largest_cosine() -> None:
    target = Finer(0, rivals=2)
    assert target.rank_by_similarity(WEIGHT) == (1, 3, 4, 2)
    (chosen,) = resolve_targets(target, LOGITS, LABELS, find_class_vectors=lambda: WEIGHT)
    assert isinstance(chosen, Contrast)
    assert chosen.rivals == (1, 3)
    shares = torch.tensor([-9.0, 0.0]).softmax(0)
    torch.testing.assert_close(torch.tensor(chosen.shares), shares)
    assert float(chosen(LOGITS[None])) == pytest.approx(2.0 - float(shares @ torch.tensor([-9.0, 0.0])))


def test_negated_finer_compares_the_same_classes() -> None:
    chosen = resolve_targets(Negated(Finer(0, rivals=1)), LOGITS, LABELS, find_class_vectors=lambda: WEIGHT)
    assert chosen == [Negated(Contrast(0, (1,), shares=(1.0,)))]


@pytest.mark.parametrize("vectors", [None, lambda: None])
def test_rivals_have_the_nearest_logits_without_class_vectors(vectors: Callable[[], Tensor | None] | None) -> None:
    (chosen,) = resolve_targets(Finer(0, rivals=2), LOGITS, LABELS, find_class_vectors=vectors)
    assert chosen.rivals == (2, 4)


def test_user_may_give_the_similar_classes() -> None:
    (chosen,) = resolve_targets(
        Finer(0, similar=(4, 0, 3, 1), rivals=2), LOGITS, LABELS, find_class_vectors=lambda: WEIGHT
    )
    assert chosen.rivals == (4, 3)
    with pytest.raises(TargetError, match="target_class 5 does not exist"):
        Finer(0, similar=(5,)).resolve_on(ImageOutput(LOGITS))
    with pytest.raises(TargetError, match="Finer's similar"):
        Finer(0, similar=("dog",))  # type: ignore[arg-type]


def test_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TargetError, match="target_class 7 does not exist"):
        resolve_targets(Finer(7), LOGITS, LABELS, find_class_vectors=lambda: WEIGHT)


def test_class_vectors_are_found_only_if_a_target_needs_them() -> None:
    def fail() -> Tensor | None:
        raise AssertionError

    resolve_targets(ClassScore(1), LOGITS, LABELS, find_class_vectors=fail)
    resolve_targets(Finer(0, similar=(1, 2)), LOGITS, LABELS, find_class_vectors=fail)


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


def make_convolutional_net(end: Callable[[Tensor], Tensor]) -> nn.Module:
    head = nn.Conv2d(2, 5, 1)
    head.weight.data = WEIGHT[:, :, None, None].clone()
    return nn.Sequential(nn.Conv2d(3, 2, 1), head, Apply(end), Apply(lambda x: x.mean((2, 3))))


HEADS: dict[str, Callable[[], nn.Module]] = {
    "linear": Flat,
    "in a wrapper": lambda: nn.Sequential(Flat()),
    "1 x 1 convolution": lambda: make_convolutional_net(lambda x: x),
    "1 x 1 convolution and ReLU": lambda: make_convolutional_net(torch.relu),
}


@pytest.mark.parametrize("kind", HEADS)
def test_label_names_the_classes_with_similar_weights(kind: str) -> None:
    net, x = HEADS[kind]().eval(), torch.randn(2, 3, 4, 4)
    found = find_class_vectors(net, x[:1], net(x[:1]).detach())
    assert found is not None
    torch.testing.assert_close(found, WEIGHT)
    for result in camtool.explain(net, x, Finer(0, rivals=2), labels=LABELS):
        assert result.label == "tabby rather than tiger cat, lynx"


def make_net_without_linear_head() -> Any:
    """Return a net whose scores are squared distances to a prototype of each class."""
    return nn.Sequential(
        nn.Conv2d(3, 2, 1), Apply(lambda x: x.mean((2, 3))), Apply(lambda x: -torch.cdist(x, WEIGHT).square())
    )


def make_net_whose_output_is_not_linear() -> Any:
    """Return a net with a linear layer of the right size that does not give the output."""
    return nn.Sequential(Flat(), Apply(lambda x: functional.normalize(x + x.square(), dim=1)))


@pytest.mark.parametrize("make", [make_net_without_linear_head, make_net_whose_output_is_not_linear])
def test_label_names_the_nearest_logits_without_a_linear_head(make: Callable[[], Any]) -> None:
    net, x = make().eval(), torch.randn(1, 3, 4, 4)
    logits = net(x)[0].detach()
    assert find_class_vectors(net, x, logits[None]) is None
    nearest = [index for index in (logits - logits[0]).abs().argsort().tolist() if index != 0][:2]
    (result,) = camtool.explain(net, x, Finer(0, rivals=2), labels=LABELS)
    assert result.label == f"tabby rather than {LABELS[nearest[0]]}, {LABELS[nearest[1]]}"


def test_the_rival_on_a_single_logit_is_its_negative() -> None:
    net, x = (
        nn.Sequential(nn.Conv2d(3, 2, 1), Apply(lambda x: x.mean((2, 3))), nn.Linear(2, 1)).eval(),
        torch.ones(3, 4, 4),
    )
    logit = net(x[None]).item()
    for index, sign in ((0, -1), (1, 1)):
        assert camtool.explain(net, x, Finer(index)).score == pytest.approx(2 * sign * logit)


def test_on_a_photo_of_dogs_the_tabby_is_held_against_cats(mobilenet: camtool.Loaded, shared: Any) -> None:
    for name in ("n02102318_cocker_spaniel.jpg", "both.png"):
        result = camtool.explain(mobilenet, shared / "images" / name, Finer(281))
        assert result.label.startswith("tabby rather than ")
        rivals = result.label.removeprefix("tabby rather than ").split(", ")
        assert {"tiger cat", "Egyptian cat"} <= {*rivals}
        assert {*rivals} <= {"tiger cat", "Egyptian cat", "Persian cat", "Siamese cat", "lynx"}


def test_on_a_scene_the_bundled_model_compares_by_its_weights(demo: camtool.Loaded) -> None:
    """The same on the bundled model: the rivals are the same in every scene."""
    from tests.helpers.photos import unseen

    weight = demo.model.head.weight.detach()
    cosines = functional.normalize(weight, dim=1) @ functional.normalize(weight[8], dim=0)
    expected = [demo.labels[index] for index in cosines.argsort(descending=True).tolist() if index != 8][:3]
    scenes = [unseen(number, [shape]).image for number, shape in enumerate(("star", "fish", "drop"))]
    for result in camtool.explain(demo, scenes, Finer(8)):
        assert result.label == f"star rather than {', '.join(expected)}"
