"""Whatever a model returns is read: scores, planes and detections, in each structure that models put them."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from math import exp, log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nets import Apply
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import TargetError
from camtool.outputs import (
    Detections,
    answers,
    class_count,
    class_scores,
    count,
    detections,
    image_of,
    levels,
    link_of,
    logits,
    probabilities,
    query_count,
    top_score,
)
from camtool.targets import ClassScore, Custom, Finer, Probability, Value, score

LOGITS = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
"""Two images, three classes."""

AUX = torch.randn(2, 9)

Pair = namedtuple("Pair", "logits state")
Odd = namedtuple("Odd", "state logits")


class Answer(OrderedDict):
    """A dictionary whose entries are attributes too, as Hugging Face's models return."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


@dataclass(frozen=True)
class Plain:
    """A data class that is nothing else."""

    hidden: Any
    logits: Any
    name: str = "plain"


# ------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS, AUX),
        [LOGITS, AUX],
        Pair(LOGITS, AUX),
        Odd(AUX, LOGITS),
        {"out": LOGITS, "aux": AUX},
        {"aux": AUX, "out": LOGITS},
        {"hidden": AUX, "logits": LOGITS},
        {"logits": LOGITS, "loss": None},
        OrderedDict(aux=AUX, logits=LOGITS),
        Answer(loss=torch.tensor(0.3), logits=LOGITS, hidden=AUX),
        Answer(hidden=AUX, logits=LOGITS),
        UserDict({"hidden": AUX, "logits": LOGITS}),
        {"logits": (LOGITS, AUX)},
        Plain(AUX, LOGITS),
        (torch.tensor(0.3), LOGITS),  # a loss first
        (None, torch.tensor([1, 2]), LOGITS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_scores_are_found_in_whatever_a_model_returns(output: Any) -> None:
    assert torch.equal(logits(output), LOGITS)
    assert torch.equal(answers(output), LOGITS)  # type: ignore[arg-type]
    assert count(output) == 2
    assert detections(output) is None
    assert score([ClassScore(1), ClassScore(0)], output).tolist() == [5, 4]
    assert score([ClassScore(1), Value(0)], output).tolist() == [5, 4]


def test_a_callable_sees_one_image_in_the_models_own_structure() -> None:
    seen: list[Any] = []

    def first(one: Any) -> Tensor:
        seen.append((type(one), one.hidden.shape, one.logits.shape))
        return one.logits[0]

    for kind in (Answer, Plain):
        assert Custom(first)(kind(hidden=AUX, logits=LOGITS)).tolist() == [1, 4]
        assert seen[-2:] == [(kind, (9,), (3,))] * 2


def test_one_image_of_a_batch_keeps_its_structure_and_what_is_no_images_own() -> None:
    scale = torch.tensor(10.0)
    one = image_of(Plain((AUX, scale), LOGITS), 1, keep=True)
    assert torch.equal(one.logits, LOGITS[1:])
    assert torch.equal(one.hidden[0], AUX[1:])
    assert one.hidden[1] is scale
    assert one.name == "plain"


@pytest.mark.parametrize("shape", [(2,), (2, 1)], ids=str)
def test_a_single_logit_tells_two_classes_apart(shape: tuple[int, ...]) -> None:
    output = torch.tensor([0.0, 2.0]).reshape(shape)
    assert class_scores(output).tolist() == [[0, 0], [-2, 2]]
    p = 1 / (1 + exp(-2))
    for of in ("softmax", "sigmoid"):
        assert_close(probabilities(output, of), torch.tensor([[0.5, 0.5], [1 - p, p]]))


def test_labels_that_do_not_exclude_one_another_have_a_sigmoid_each() -> None:
    output = torch.tensor([[0.0, log(3)]])
    assert_close(probabilities(output), torch.tensor([[1 / 4, 3 / 4]]))
    assert_close(probabilities(output, "sigmoid"), torch.tensor([[1 / 2, 3 / 4]]))


@pytest.mark.parametrize(
    "output", ["yes", None, {}, (1, 2), torch.tensor([1, 2]), torch.tensor(1.0), {"loss": torch.tensor(1.0)}], ids=repr
)
def test_an_output_without_scores_is_refused(output: Any) -> None:
    for read in (logits, answers, count):
        with pytest.raises(TargetError, match=f"the model returned {type(output).__name__} without a tensor of scores"):
            read(output)


def test_what_is_answered_has_no_graph() -> None:
    output = {"logits": LOGITS.clone().requires_grad_()}
    assert logits(output).requires_grad
    assert not answers(output).requires_grad  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------- detections, three ways

TWO = [
    {
        "boxes": torch.tensor([[0.0, 0.0, 4.0, 4.0], [2.0, 2.0, 6.0, 6.0], [8.0, 0.0, 9.0, 2.0]]),
        "labels": torch.tensor([3, 1, 3]),
        "scores": torch.tensor([0.5, 0.9, 0.6]),
    },
    {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long), "scores": torch.zeros(0)},
]
"""As torchvision's detectors return it: three things in the first image, none in the second."""

QUERIES = Answer(
    loss=torch.tensor(1.0),
    logits=torch.tensor([[[0.0, log(2), log(5)], [log(3), 0.0, 0.0]]]),
    pred_boxes=torch.tensor([[[0.5, 0.5, 0.2, 0.4], [0.25, 0.5, 0.5, 1.0]]]),
)
"""As DETR returns it: one image, two queries, two classes and "no object", boxes by centre and size."""


def test_torchvisions_detections_are_read() -> None:
    for output in (TWO, tuple(TWO), ({}, TWO)):  # the last as scripts return it, behind the losses
        assert count(output) == 2
        first, second = detections(output)  # type: ignore[misc]
        assert len(first) == 3
        assert len(second) == 0
        assert first.of_class(3).boxes.tolist() == [[0, 0, 4, 4], [8, 0, 9, 2]]
        assert_close(first.of_class(3).scores, torch.tensor([0.5, 0.6]))
        assert len(first.of_class(2)) == 0
        assert first.surest_first().classes.tolist() == [1, 3, 3]  # type: ignore[union-attr]
        assert_close(first.surest_first().confidences, torch.tensor([0.9, 0.6, 0.5]))
        assert not first.relative
        assert len(second.surest_first()) == 0
        assert image_of(output, 0) is TWO[0]
        assert image_of(output, 1, keep=True) == [TWO[1]]


def test_the_queries_of_detr_are_read() -> None:
    (found,) = detections(QUERIES, classes=2)  # type: ignore[misc]
    assert_close(found.boxes, torch.tensor([[0.4, 0.3, 0.6, 0.7], [0.0, 0.0, 0.5, 1.0]]))
    assert_close(found.confidences, torch.tensor([[1 / 8, 2 / 8], [3 / 5, 1 / 5]]))
    assert_close(found.scores, torch.tensor([[0.0, log(2)], [log(3), 0.0]]))  # logits
    assert found.relative
    surest = found.surest_first()
    assert surest.classes.tolist() == [0, 1]  # type: ignore[union-attr]
    assert_close(surest.scores, torch.tensor([log(3), log(2)]))
    assert_close(found.of_class(1).scores, torch.tensor([log(2), 0.0]))
    assert query_count(QUERIES) == 2
    with pytest.raises(TargetError, match="2 does not exist: the model has 2 classes, 0 to 1"):
        found.of_class(2)


def test_queries_without_a_class_for_nothing_have_a_sigmoid_each() -> None:
    (found,) = detections(QUERIES, classes=3)  # type: ignore[misc]
    assert_close(found.confidences, torch.tensor([[1 / 2, 2 / 3, 5 / 6], [3 / 4, 1 / 2, 1 / 2]]))
    assert found.surest_first().classes.tolist() == [2, 0]  # type: ignore[union-attr]


def test_where_the_classes_are_not_known_the_last_one_is_no_object() -> None:
    original = {"pred_logits": QUERIES["logits"], "pred_boxes": QUERIES["pred_boxes"]}
    (unknown,), (known,) = detections(original), detections(QUERIES, classes=2)  # type: ignore[misc]
    assert_close(unknown.confidences, known.confidences)


def anchors() -> tuple[Tensor, list[Tensor]]:
    """As Ultralytics' models return it: two images, two classes, six positions; and the maps they were read from."""
    read = torch.rand(2, 4 + 2, 6)
    read[0, :, 3] = torch.tensor([10.0, 20.0, 4.0, 8.0, 0.25, 0.97])
    read[0, 4:, 4] = torch.tensor([0.98, 0.01])
    return read, [torch.rand(2, 18, 2, 2), torch.rand(2, 18, 1, 2)]


def test_the_anchors_of_ultralytics_models_are_read() -> None:
    read, maps = anchors()
    for output in ((read, maps), (read, {"feats": maps, "scores": torch.rand(2, 2, 6)})):
        assert count(output) == 2
        found = detections(output)[0]  # type: ignore[index]
        assert found.boxes[3].tolist() == [8, 16, 12, 24]
        assert found.of_class(1).scores[3] == pytest.approx(0.97)
        surest = found.surest_first()
        assert surest.classes[:2].tolist() == [0, 1]  # type: ignore[index]
        assert not surest.relative


def test_what_stands_behind_the_classes_is_no_class() -> None:
    read, maps = anchors()
    found = detections((torch.cat([read, torch.full((2, 32, 6), 9.0)], 1), maps), classes=2)[0]  # type: ignore[index]
    assert found.confidences.shape == (6, 2)
    assert found.confidences.amax() == pytest.approx(0.98)


@pytest.mark.parametrize(
    "output",
    [
        anchors()[0],  # alone it may be anything
        (anchors()[0], anchors()[1][:1]),  # four positions are not six anchors
        (anchors()[0][:, :4], anchors()[1]),  # no room for classes
        {"logits": torch.zeros(1, 2, 3), "pred_boxes": torch.zeros(1, 3, 4)},  # other queries
        {"logits": torch.zeros(1, 2, 3), "pred_boxes": None},
        [{"boxes": torch.zeros(1, 4), "scores": torch.zeros(1)}],  # no labels
        [],
    ],
    ids=["alone", "fewer positions", "no classes", "other queries", "no boxes", "no labels", "nothing"],
)
def test_what_only_looks_like_detections_is_none(output: Any) -> None:
    assert detections(output) is None


def test_a_detector_has_no_scores_of_classes() -> None:
    for output in (TWO, QUERIES, anchors()):
        with pytest.raises(TargetError, match=r"the model returned detections, .* Detection\(n\) or Box\(xyxy\)"):
            logits(output)


def test_overlap_is_intersection_over_union() -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4], [2, 2, 6, 6], [4, 0, 8, 4], [1, 1, 1, 1], [1, 1, 3, 2]])
    found = Detections(boxes, boxes[:, 0], boxes[:, 0], boxes[:, 0].long())
    assert_close(found.overlap((0, 0, 4, 4)), torch.tensor([1, 4 / 28, 0, 0, 2 / 16]))
    assert found.overlap((1, 1, 1, 1)).tolist() == [0, 0, 0, 1, 0]  # an empty box overlaps nothing but itself


@pytest.mark.parametrize("classes", [2, 3])
def test_the_least_that_a_box_can_score_is_on_the_graph(classes: int) -> None:
    boxes = TWO[0]["boxes"].clone().requires_grad_()
    confidences = boxes.sum(1) / 100
    (listed,) = detections([TWO[0] | {"boxes": boxes, "scores": confidences}])  # type: ignore[misc]
    none = listed.of_class(7).least_score()
    assert none.item() == 0
    torch.autograd.grad(none, boxes)  # raises where there is no graph
    anchored = detections(anchors())[0]  # type: ignore[index]
    assert anchored.of_class(1).least_score().item() == anchored.surest_first().least_score().item() == 0
    (queries,) = detections(QUERIES, classes)  # type: ignore[misc]
    assert queries.of_class(1).least_score().item() == 0  # the lower logit of log(2) and 0


# ------------------------------------------------------------------------------------------------- masks by queries


def test_a_segmenter_of_queries_has_planes() -> None:
    classes = torch.tensor([[[log(2), 0.0, 0.0], [0.0, log(6), 0.0]]])  # (1, 2 queries, 2 classes and nothing)
    masks = torch.tensor([[[[0.0, 50.0]], [[50.0, -50.0]]]])  # half, all | all, nothing
    planes = logits({"class_queries_logits": classes, "masks_queries_logits": masks})
    assert planes.shape == (1, 2, 1, 2)
    expected = torch.tensor([[[[2 / 4 / 2 + 1 / 8, 2 / 4]], [[1 / 4 / 2 + 6 / 8, 1 / 4]]]])
    assert_close(planes.exp(), expected)
    assert_close(probabilities(planes), expected / expected.sum(1, keepdim=True))


# --------------------------------------------------------------------------------------------- what a model says


def test_a_model_may_say_how_many_classes_it_knows_and_whether_they_exclude_one_another() -> None:
    model = nn.Linear(2, 2)
    assert class_count(model) is None
    assert link_of(model) == "softmax"
    model.config = SimpleNamespace(num_labels=7, problem_type="multi_label_classification")
    assert class_count(model) == 7
    assert link_of(model) == "sigmoid"
    model.config.problem_type = None
    assert link_of(model) == "softmax"
    other = nn.Linear(2, 2)
    other.names = {0: "cat", 1: "dog"}
    assert class_count(other) == 2


# ------------------------------------------------------------------------------------------- what it is surest of


def test_a_model_is_surest_of_its_highest_class_and_that_is_on_the_graph() -> None:
    output = LOGITS.clone().requires_grad_()
    found = top_score({"logits": output})
    assert found is not None
    (gradient,) = torch.autograd.grad(found, output)
    assert (found.item(), gradient.nonzero().tolist()) == (5.0, [[0, 1]])


def test_of_planes_it_is_the_highest_mean_and_of_a_tower_its_embedding() -> None:
    planes = torch.tensor([[[[9.0, 0.0]], [[5.0, 5.0]]]])  # one image, two classes, two places
    assert top_score({"out": planes}) == 5
    assert top_score({"last_hidden_state": torch.full((1, 7, 3), 9.0), "pooler_output": LOGITS[:1]}) == 5


def test_of_detections_it_is_the_surest_ones_and_none_where_nothing_is_found() -> None:
    boxes, labels = torch.rand(2, 4), torch.tensor([1, 2])
    assert top_score([{"boxes": boxes, "labels": labels, "scores": torch.tensor([0.25, 0.5])}]) == 0.5
    nothing = {"boxes": boxes[:0], "labels": labels[:0], "scores": torch.zeros(0)}
    assert top_score([nothing]) is None
    assert top_score("no scores") is None


# ---------------------------------------------------------------------------------------- on the road to a picture


class Net(nn.Module):
    """Colours, averaged and weighed; ``shape`` makes an output of that."""

    def __init__(self, weight: list[list[float]], shape: Any = lambda scores: scores) -> None:
        super().__init__()
        self.colours, self.head, self.shape = nn.Conv2d(3, 3, 1, bias=False), nn.Linear(3, len(weight)), shape
        with torch.no_grad():
            self.colours.weight.copy_(torch.eye(3)[:, :, None, None])
            self.head.weight.copy_(torch.tensor(weight))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Any:
        return self.shape(self.head(self.colours(x).mean((2, 3))))


RED_OR_NOT = [[1.0, -1.0, 0.0]]


def half_red() -> Tensor:
    """``(3, 4, 8)``: the left half red, the right one green and as bright again."""
    picture = torch.zeros(3, 4, 8)
    picture[0, :, :4], picture[1, :, 4:] = 1, 2
    return picture


@pytest.mark.parametrize(
    "shape", [lambda z: z, lambda z: z[:, 0], lambda z: {"logits": z}, lambda z: Plain(z * 2, z)], ids=range(4)
)
def test_a_single_logit_is_explained_for_the_class_that_its_sign_says(shape: Any) -> None:
    net, picture = Net(RED_OR_NOT, shape), half_red()  # the logit is 0.5 - 1
    default, yes, no = camtool.explain(net, picture, [None, 1, 0], method="hirescam", labels=["red"])
    assert (default.label, default.index, default.score) == ("not red", 0, pytest.approx(0.5))
    assert (yes.label, yes.score, no.score) == ("red", pytest.approx(-0.5), pytest.approx(0.5))
    assert no.probability == pytest.approx(1 / (1 + exp(-0.5)))
    assert yes.probability == pytest.approx(1 - no.probability)
    assert default.warnings == yes.warnings == ()
    assert (yes.heatmap[:, :3] == 1).all()
    assert (yes.heatmap[:, 5:] == 0).all()
    assert (no.heatmap[:, :3] == 0).all()
    assert (no.heatmap[:, 5:] == 1).all()
    assert camtool.explain(net, picture, "green", labels=["green", "red"]).index == 0
    with pytest.raises(TargetError, match=r"has 3 names, but the model has 1 class\."):
        camtool.explain(net, picture, labels=["a", "b", "c"])


def test_a_regression_is_explained_by_its_value() -> None:
    result = camtool.explain(Net(RED_OR_NOT), half_red(), Value(), method="hirescam")
    assert (result.score, result.probability, result.index) == (pytest.approx(-0.5), None, None)
    assert (result.heatmap[:, :3] == 1).all()


def test_labels_that_do_not_exclude_one_another_are_each_as_probable_as_the_model_says() -> None:
    net, picture = Net([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), half_red()  # the logits are 0.5 and 1
    assert camtool.explain(net, picture).probability == pytest.approx(1 / (1 + exp(0.5 - 1)))
    assert camtool.explain(net, picture, Probability(1, of="sigmoid")).probability == pytest.approx(1 / (1 + exp(-1)))
    net.config = SimpleNamespace(problem_type="multi_label_classification")
    assert camtool.explain(net, picture).probability == pytest.approx(1 / (1 + exp(-1)))


def test_a_layer_may_return_a_data_class() -> None:
    net = Net(RED_OR_NOT)
    net.block = Apply(lambda x: Plain(None, net.colours(x)))
    net.forward = lambda x: net.head(net.block(x).logits.mean((2, 3)))  # type: ignore[method-assign]
    one, other = (camtool.explain(net, half_red(), 1, layer=layer) for layer in ("block", "colours"))
    assert one.raw.any()
    assert (one.raw == other.raw).all()


def test_the_top_score_of_one_logit_is_its_classs_and_of_queries_a_logit() -> None:
    assert top_score(torch.tensor([[-2.0]])).item() == 2  # type: ignore[union-attr]
    assert top_score(QUERIES).item() == pytest.approx(log(3))  # type: ignore[union-attr]


def test_the_levels_are_the_maps_that_anchors_were_read_from() -> None:
    read, maps = anchors()
    assert all(one is other for one, other in zip(levels((read, maps)), maps, strict=True))
    for other in (LOGITS, TWO, QUERIES, (LOGITS, maps)):
        assert levels(other) == []


# -------------------------------------------------------------------------------------- scores that are probabilities

RED_OR_GREEN = [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 2.0]]
"""The logits of the picture that is half red are 1, 2, 0 and 0."""


def one_picture_squeezed(scores: Tensor) -> Tensor:
    return scores.squeeze()


@pytest.mark.parametrize(
    "end",
    [
        Tensor.sigmoid,
        lambda z: z.sigmoid().squeeze(1),
        lambda z: z.sigmoid().flatten(),
        lambda z: z.sigmoid().squeeze(),
    ],
    ids=range(4),
)
@pytest.mark.parametrize("method", ["gradcam", "rise"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_single_probability_is_taken_as_it_is(end: Any, method: str, frozen: bool) -> None:
    net, p = Net(RED_OR_NOT, end).requires_grad_(not frozen), 1 / (1 + exp(0.5))
    default, yes, no = camtool.explain(net, half_red(), [None, 1, 0], method=method)
    assert default.index == 0
    assert (yes.score, yes.probability) == (pytest.approx(p), pytest.approx(p))
    assert (no.score, no.probability) == (pytest.approx(1 - p), pytest.approx(1 - p))


def test_a_single_logit_between_0_and_1_is_no_probability() -> None:
    net = Net([[0.0, 0.7, 0.0]])  # the logit is 0.7
    for method in ("gradcam", "rise"):
        assert camtool.explain(net, half_red(), 1, method=method).probability == pytest.approx(1 / (1 + exp(-0.7)))


@pytest.mark.parametrize("method", ["gradcam", "rise"])
def test_a_softmax_is_not_taken_twice(method: str) -> None:
    net = Net(RED_OR_GREEN, lambda z: z.softmax(1))
    p = exp(2) / (exp(1) + exp(2) + 2)
    result, asked = camtool.explain(net, half_red(), [None, Probability(1)], method=method)
    assert (result.index, result.score, result.probability) == (1, pytest.approx(p), pytest.approx(p))
    assert (asked.score, asked.probability) == (pytest.approx(p), pytest.approx(p))


def test_sigmoids_are_not_made_a_softmax() -> None:
    result = camtool.explain(Net(RED_OR_GREEN, Tensor.sigmoid), half_red())
    assert (result.score, result.probability) == (pytest.approx(1 / (1 + exp(-2))),) * 2


def test_rise_weighs_its_masks_by_a_probability_that_the_model_returns_itself() -> None:
    own, logit = (Net(RED_OR_NOT, end) for end in (Tensor.sigmoid, lambda z: z))
    maps = [camtool.explain(net, half_red(), 0, method="rise", samples=50).raw for net in (own, logit)]
    assert_close(*map(torch.from_numpy, maps))


def test_planes_of_single_probabilities_have_two_classes() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 1, 1), nn.Sigmoid())
    picture = torch.rand(3, 8, 8)
    p = net(picture[None])[0, 0].detach()
    for index, plane in enumerate((1 - p, p)):
        result = camtool.explain(net, picture, index)
        seen = plane > 0.5 if (plane > 0.5).any() else torch.ones_like(p).bool()
        assert result.score == pytest.approx(float(plane[seen].sum()), rel=1e-4)
        assert result.probability == pytest.approx(float(plane[seen].mean()), rel=1e-4)


# ------------------------------------------------------------------------------------------------ axes of the output


def test_planes_of_one_place_are_scores() -> None:
    output = LOGITS[:, :, None, None]
    assert torch.equal(logits(output), LOGITS)
    net = Net(RED_OR_GREEN, lambda z: z[:, :, None, None])
    for target in (None, Finer(1)):
        result, plain = (camtool.explain(each, half_red(), target) for each in (net, Net(RED_OR_GREEN)))
        assert (result.index, result.probability) == (plain.index, pytest.approx(plain.probability))


@pytest.mark.parametrize("method", ["gradcam", "scorecam", "rise", "smoothgrad"])
@pytest.mark.parametrize("weight", [RED_OR_NOT, RED_OR_GREEN], ids=["one logit", "classes"])
def test_a_model_may_squeeze_what_it_returns_for_one_picture(weight: Any, method: str) -> None:
    plain, squeezed = (
        camtool.explain(Net(weight, end), half_red(), method=method) for end in (lambda z: z, one_picture_squeezed)
    )
    assert (squeezed.index, squeezed.score) == (plain.index, pytest.approx(plain.score))
    assert_close(torch.from_numpy(squeezed.raw), torch.from_numpy(plain.raw))


@pytest.mark.parametrize(
    ("shape", "came"), [(lambda z: z[0:1], r"scores \(1, 4\)"), (lambda z: z[:, :0], r"scores \(2, 0\)")], ids=range(2)
)
def test_an_output_that_is_not_about_the_images_is_refused(shape: Any, came: str) -> None:
    with pytest.raises(TargetError, match=f"returned {came} for 2 images; wrap it"):
        camtool.explain(Net(RED_OR_GREEN, shape), torch.stack([half_red()] * 2))


# -------------------------------------------------------------------------------------------------------- embeddings


@pytest.mark.parametrize(
    "shape",
    [lambda z: {"pooler_output": z}, lambda z: Answer(last_hidden_state=z[:, None], pooler_output=z)],
    ids=["by name", "beside the tokens"],
)
def test_an_embedding_is_explained_by_a_dimension_without_a_probability(shape: Any) -> None:
    net = Net(RED_OR_GREEN, shape)
    highest, asked = camtool.explain(net, half_red(), [None, 0])
    assert (highest.label, highest.index, highest.probability) == ("dimension 1", None, None)
    assert (asked.label, asked.score) == ("dimension 0", pytest.approx(1))
    with pytest.raises(TargetError, match="returns an embedding and has no classes"):
        camtool.explain(net, half_red(), ClassScore(1))


def test_a_model_may_say_that_it_has_no_classes() -> None:
    net = Net(RED_OR_GREEN)
    net.num_classes, net.num_features = 0, 4  # type: ignore[assignment]
    assert camtool.explain(net, half_red()).label == "dimension 1"
    net.num_features = 7  # type: ignore[assignment]  # so the four are of a head of a person's own
    assert camtool.explain(net, half_red()).label == "class 1"


def test_features_that_have_more_axes_are_no_planes_of_classes() -> None:
    net = Net(RED_OR_GREEN, lambda z: {"last_hidden_state": z[:, None].expand(-1, 5, -1)})
    with pytest.raises(TargetError, match=r"has no classes and returns features \(5, 4\)"):
        camtool.explain(net, half_red())
    assert camtool.explain(net, half_red(), lambda one: one["last_hidden_state"].sum()).score == pytest.approx(15)
