"""Targets of segmenters: Region and Point, on planes made by hand and on models of torchvision and Hugging Face."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models import segmentation as zoo

import camtool
from camtool.errors import TargetError
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.resampling import average_cells
from camtool.outputs.class_scores import Link
from camtool.targets import (
    ClassScore,
    Group,
    ImageOutput,
    Negated,
    Point,
    Probability,
    Region,
    Top,
    resolve_targets,
)
from tests.helpers.comparison import assert_same_explanation

LABELS = ["background", "cat", "dog"]

PREDICTED = torch.tensor([[0, 0, 0, 0], [0, 1, 1, 0], [2, 2, 2, 0]])
"""The class at each position: background, two positions of a cat, three of a dog."""

PLANES = torch.nn.functional.one_hot(PREDICTED, 4).movedim(-1, 0).float() * 3 - 1
"""``(4, 3, 4)``: 2 for the predicted class, -1 for the others. The last class is predicted nowhere."""


# ----------------------------------------------------------------------------------------------------------- resolution


def resolve_regions(
    requested: Any, labels: list[str] | None = None, planes: Tensor = PLANES
) -> list[tuple[int, list[list[float]]]]:
    """Return the classes that a request resolves to, each with its mask."""
    chosen = resolve_targets(requested, planes, labels)
    assert all(isinstance(target, Region) for target in chosen)
    return [(target.class_index, target.mask.tolist()) for target in chosen]  # type: ignore[union-attr]


def make_mask(index: int) -> list[list[bool]]:
    return (index == PREDICTED).tolist()


def test_default_is_the_class_that_covers_most_without_background() -> None:
    assert resolve_regions(None) == [(2, make_mask(2))]
    assert resolve_regions(Top(9)) == [(2, make_mask(2)), (1, make_mask(1)), (0, make_mask(0))]


def test_labels_say_which_class_is_background() -> None:
    assert resolve_regions(None, ["wall", "cat", "dog", "sky"]) == [(0, make_mask(0))]
    assert resolve_regions(None, ["wall", "cat", "__background__", "sky"]) == [(0, make_mask(0))]
    assert resolve_regions(None, ["Background", "cat", "dog", "sky"]) == [(2, make_mask(2))]
    assert resolve_regions(None, ["wall"]) == [(0, make_mask(0))]


def test_default_is_background_if_nothing_else_is_predicted() -> None:
    only = PLANES.clone()
    only[0] += 9
    assert resolve_regions(None, LABELS, only) == [(0, torch.ones(3, 4, dtype=torch.bool).tolist())]


@pytest.mark.parametrize("requested", [1, "cat", torch.tensor(1)], ids=repr)
def test_class_is_explained_where_it_is_predicted(requested: Any) -> None:
    assert resolve_regions(requested, [*LABELS, "cow"]) == [(1, make_mask(1))]
    (target,) = resolve_targets(requested, PLANES, [*LABELS, "cow"])
    assert target(PLANES[None]).tolist() == [2 * 2]  # the logit of the class at both positions
    assert target(torch.cat([PLANES, PLANES + 1])[None].unflatten(1, (2, 4))[0]).tolist() == [4, 6]


def test_class_predicted_nowhere_is_explained_on_the_whole_image() -> None:
    assert resolve_targets(3, PLANES, None) == [ClassScore(3)]
    with pytest.raises(TargetError, match="4 does not exist: the model has 4 classes, 0 to 3"):
        resolve_targets(4, PLANES, None)


@pytest.mark.parametrize(("sign", "index"), [(1, 1), (-1, 0)])
def test_single_plane_separates_an_object_from_the_background(sign: int, index: int) -> None:
    plane = torch.full((1, 2, 2), -1.0) if index == 0 else torch.tensor([[[-1.0, 3.0], [-2.0, -1.0]]])
    assert resolve_regions(None, None, plane) == [(index, (sign * plane[0] > 0).tolist())]
    if index:
        assert resolve_regions(0, None, plane) == [(0, [[True, False], [True, True]])]
        (target,) = resolve_targets(0, plane, None)
        assert target(plane[None]).item() == 1 + 2 + 1  # minus the plane, where background is predicted


# -------------------------------------------------------------------------------------------------- independent labels

OVERLAPPING = torch.tensor(
    [[[5.0, -2.0], [-2.0, -2.0]], [[1.0, 1.0], [1.0, 1.0]], [[3.0, 3.0], [-1.0, -2.0]], [[-1.0, -1.0], [-3.0, -4.0]]]
)
"""``(4, 2, 2)``: logits of labels of which the second is everywhere, although it is the highest in one row alone; the
third is in the upper row, the first at one position of it, and the last is nowhere."""

PARTS = ["core", "whole", "edge", "cyst"]

WHOLE, UPPER, CORNER = [[True, True], [True, True]], [[True, True], [False, False]], [[True, False], [False, False]]

FORMS: list[tuple[Link, Any]] = [("sigmoid", OVERLAPPING), ("identity", OVERLAPPING.sigmoid())]
"""The link of the labels, and their planes: logits, or the probabilities that a sigmoid made of them."""

each_form = pytest.mark.parametrize(("link", "planes"), FORMS, ids=["logits", "probabilities"])


@each_form
def test_labels_that_overlap_are_explained_wherever_they_are_predicted(link: Link, planes: Tensor) -> None:
    ranked: list[Any] = resolve_targets(Top(9), planes, PARTS, link=link)
    expected = [(1, WHOLE), (2, UPPER), (0, CORNER)]  # the largest first
    assert [(region.class_index, region.mask.tolist()) for region in ranked] == expected
    for index, mask in expected:
        (region,) = resolve_targets(index, planes, PARTS, link=link)
        assert region.mask.tolist() == mask  # type: ignore[attr-defined]
    assert resolve_targets(3, planes, PARTS, link=link) == [ClassScore(3, link)]
    rivals: Any = Region(2, torch.ones(2, 2), link).find_rivals(ImageOutput(planes, PARTS, link=link), 9)
    assert [(rival.class_index, (rival.mask > 0).tolist()) for rival in rivals] == [(1, WHOLE), (0, CORNER)]


@each_form
def test_group_of_labels_that_overlap_counts_where_one_of_them_is_predicted(link: Link, planes: Tensor) -> None:
    for members, mask in (([0, 1], WHOLE), ([0, 3], CORNER)):
        (group,) = resolve_targets(Group(members), planes, PARTS, link=link)
        assert group.mask.tolist() == mask  # type: ignore[attr-defined]


@each_form
def test_label_with_the_highest_mean_is_the_default_if_none_is_predicted(link: Link, planes: Tensor) -> None:
    absent = planes - 9 if link == "sigmoid" else planes / 9
    for requested in (None, Top(2)):
        assert resolve_targets(requested, absent, PARTS, link=link) == [ClassScore(1, link)]
    (only,) = resolve_targets(None, absent, ["core", "background", "edge", "cyst"], link=link)
    assert only == ClassScore(2, link), "background only if nothing else can be explained"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_classes_whose_probabilities_sum_to_1_exclude_one_another(dtype: torch.dtype) -> None:
    probabilities = (PLANES / 9).softmax(0).to(dtype)
    assert probabilities.max() < 0.5
    for planes in (probabilities, probabilities.float()):  # bfloat16 leaves sums of 1.001
        ranked: list[Any] = resolve_targets(Top(9), planes, None, link="identity")
        assert [(region.class_index, region.mask.tolist()) for region in ranked] == [
            (index, make_mask(index)) for index in (2, 1, 0)
        ]


def make_label_segmenter(end: nn.Module) -> nn.Module:
    """Return a segmenter of three labels: the first and the second are everywhere, the third is nowhere."""
    body, head = nn.Conv2d(3, 3, 1, bias=False), nn.Conv2d(3, 3, 1)
    body.weight.data, head.weight.data = (scale * torch.eye(3)[:, :, None, None] for scale in (1, 0.1))
    head.bias.data = torch.tensor([0.98, 0.92, 0.05]).logit()
    return nn.Sequential(body, nn.ReLU(), head, end).eval()


@pytest.mark.parametrize("end", [nn.Sigmoid(), nn.Identity()], ids=["probabilities", "logits"])
@pytest.mark.parametrize("as_target", [int, ClassScore, lambda index: Group([index])], ids=["index", "score", "group"])
def test_label_below_another_one_is_not_said_to_be_nowhere(end: nn.Module, as_target: Any) -> None:
    model, image = make_label_segmenter(end), torch.rand(1, 3, 8, 8)
    if isinstance(end, nn.Identity):
        model.config = SimpleNamespace(problem_type="multi_label_classification")  # type: ignore[assignment]
    for index in range(3):
        (result,) = camtool.explain(model, image, as_target(index), layer="1", method="hirescam")
        is_nowhere = "class-nowhere" in [warning.code for warning in result.warnings]
        assert is_nowhere == (index == 2)
        assert result.score == pytest.approx(model(image)[0, index].sum().item(), rel=1e-5)


# --------------------------------------------------------------------------------------------------------- on the photo


def test_average_cells_averages_a_mask_over_cells_of_another_size() -> None:
    mask = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    assert average_cells(mask, [(0, 2), (0, 4)], (1, 2)).tolist() == [[0.25, 0.25]]
    assert average_cells(mask, [(0, 2), (0, 4)], (2, 4)).tolist() == mask.tolist()
    assert average_cells(mask, [(0, 2), (4, 0)], (2, 4)).tolist() == mask.flip(1).tolist()
    assert average_cells(mask, [(0, 2), (0, 4)], (4, 4)).tolist() == mask.repeat_interleave(2, 0).tolist()
    assert average_cells(mask, [(-2, 2), (1, 3)], (2, 1)).tolist() == [[0.0], [0.0]]
    assert average_cells(mask, [(-1, 1), (0, 1)], (1, 1)).tolist() == [[0.5]]  # outside of the mask the weight is 0
    assert_close(average_cells(mask, [(0, 2), (0, 4)], (1, 3)), torch.tensor([[3 / 8, 0, 3 / 8]]))


def test_mask_is_flipped_cropped_and_resized_like_the_photo() -> None:
    """The photo (8, 12) is flipped, cropped to the center (8, 8) and halved; the planes have half that size."""
    geometry = Geometry.whole(8, 12).flip().center_crop(8).resize((4, 4))
    mask = torch.zeros(8, 12)
    mask[0:4, 2:6] = 1  # flipped at 6 to 10, in the crop 4 to 8
    (target,) = resolve_targets(Region(1, mask), torch.zeros(3, 2, 2), None, geometry)
    assert target.mask.tolist() == [[0, 1], [0, 0]]  # type: ignore[union-attr]
    thumbnail = mask[::2, ::2]  # a mask of any size covers the photo
    (target,) = resolve_targets(Negated(Region(1, thumbnail)), torch.zeros(3, 2, 2), None, geometry)
    assert target.target.mask.tolist() == [[0, 1], [0, 0]]  # type: ignore[union-attr]
    of_planes = torch.tensor([[0.0, 0.0], [1.0, 0.0]])  # a mask of the planes' size covers the planes
    (target,) = resolve_targets(Region(1, of_planes), torch.zeros(3, 2, 2), None, geometry)
    assert target.mask.tolist() == of_planes.tolist()  # type: ignore[union-attr]
    outside = torch.zeros(8, 12)
    outside[:, :2] = 1
    with pytest.raises(TargetError, match="mask is empty in the part that reaches the model"):
        resolve_targets(Region(1, outside), torch.zeros(3, 2, 2), None, geometry)


def test_point_is_mapped_from_the_photo_to_the_planes() -> None:
    geometry = Geometry.whole(8, 12).flip().center_crop(8).resize((4, 4))
    for point, place in (((2.5, 0), (0, 1)), ((9.5, 7), (1, 0)), ((5.9, 4.1), (1, 1))):
        planes = torch.zeros(3, 2, 2)
        planes[(2, *place)] = 1
        for requested in (Point(*point), Region.at(2, point)):
            (target,) = resolve_targets(requested, planes, None, geometry)
            assert (target.class_index, target.mask.nonzero().tolist()) == (2, [list(place)])  # type: ignore[union-attr]
    for point in ((1.9, 4), (10.1, 4), (5, 8.1), (5, -0.1)):
        with pytest.raises(TargetError, match="outside of the part of the photo the model sees"):
            resolve_targets(Point(*point), torch.zeros(3, 2, 2), None, geometry)


# ------------------------------------------------------------------------------------------------------------ segmenter


class ColorSegmenter(nn.Module):
    """A segmenter that predicts red, green and blue at half the image's size, and background where it is black."""

    def __init__(self, key: str | None = "out") -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.ReLU())
        self.head, self.key = nn.Conv2d(4, 4, 1), key
        with torch.no_grad():
            self.body[0].weight.zero_()
            self.body[0].weight[1:].copy_(torch.eye(3)[:, :, None, None] / 4)
            self.body[0].bias.copy_(torch.tensor([0.3, 0.0, 0.0, 0.0]))
            self.head.weight.copy_((2 * torch.eye(4) - 0.5)[:, :, None, None])
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Any:
        planes = self.head(self.body(x))
        return planes if self.key is None else {self.key: planes, "aux": planes.mean(1)}


def make_image() -> Tensor:
    """``(3, 16, 24)``: a red square at the top left, a larger green one at the bottom right."""
    image = torch.zeros(3, 16, 24)
    image[0, 2:6, 2:8] = 1
    image[1, 8:14, 12:20] = 1
    return image


@pytest.mark.parametrize("key", ["out", "logits", None])
@pytest.mark.parametrize(
    ("requested", "index", "place"),
    [(None, 2, (8, 14, 12, 20)), (2, 2, (8, 14, 12, 20)), (1, 1, (2, 6, 2, 8)), (Point(3, 4), 1, (2, 6, 2, 8))],
    ids=str,
)
def test_map_is_hot_where_the_class_is_predicted(
    key: str | None, requested: Any, index: int, place: tuple[int, ...]
) -> None:
    result = camtool.explain(ColorSegmenter(key), make_image(), requested, method="hirescam")
    top, bottom, left, right = place
    assert result.index == index
    assert result.layer == "body", "not the layer that returns the planes"
    outside = np.ones((16, 24), dtype=bool)
    outside[top - 1 : bottom + 1, left - 1 : right + 1] = False
    assert result.heatmap[outside].max() == 0
    assert result.heatmap.max() == 1
    assert result.warnings == ()
    pixels = 1 if isinstance(requested, Point) else (bottom - top) * (right - left) / 4
    assert result.score == pytest.approx(1.5 * pixels - 0.15 * pixels)
    probabilities = torch.tensor([-0.05, 1.35, -0.65, -0.65]).softmax(0)  # of the body's 0.3 and 1
    assert result.probability == pytest.approx(probabilities[1].item(), abs=1e-6)


def test_mask_selects_one_of_two_objects_of_a_class() -> None:
    image = make_image()
    image[0, 10:14, 2:8] = 1
    mask = np.zeros((160, 240), dtype=bool)  # of any size; it covers the image
    mask[90:150, 10:90] = True
    both, one = camtool.explain(ColorSegmenter(), image, [1, Region(1, mask)], method="hirescam")
    assert both.heatmap[3, 4] == 1
    assert both.heatmap[12, 4] == 1
    assert one.heatmap[3, 4] == 0
    assert one.heatmap[12, 4] == 1


def test_class_predicted_nowhere_gets_a_warning_but_a_region_does_not() -> None:
    warnings = camtool.explain(ColorSegmenter(), make_image(), 3, method="hirescam").warnings
    assert any("predicts this class nowhere in the image" in each for each in warnings)
    warnings = camtool.explain(ColorSegmenter(), make_image(), Region(3, torch.ones(4, 4)), method="hirescam").warnings
    assert not any("nowhere" in each for each in warnings)


def test_probability_is_the_mean_over_the_image() -> None:
    result = camtool.explain(ColorSegmenter(), make_image(), Probability(1), method="hirescam")
    expected = ColorSegmenter()(make_image()[None])["out"].softmax(1)[0, 1].mean().item()
    assert result.score == result.probability == pytest.approx(expected)


def test_batch_of_images_equals_single_images() -> None:
    batch = torch.stack([make_image(), make_image().flip(1), make_image().flip(0)])
    together = camtool.explain(ColorSegmenter(), batch)
    for one, image in zip(together, batch, strict=True):
        alone = camtool.explain(ColorSegmenter(), image)
        assert (one.index, one.score) == (alone.index, pytest.approx(alone.score))
        assert_same_explanation(one, alone)


@pytest.mark.parametrize("method", ["layercam", "ablationcam", "scorecam", "odam", "inputxgradient"])
def test_methods_of_all_kinds_highlight_the_object(method: str) -> None:
    result = camtool.explain(ColorSegmenter(), make_image(), 1, method=method)
    assert result.heatmap[2:6, 2:8].mean() > 3 * result.heatmap.mean()


def test_region_is_fixed_by_the_prediction_on_the_original_image() -> None:
    """A method that changes the image scores the same positions, even if the class is no longer predicted."""
    (target,) = resolve_targets(1, ColorSegmenter()(make_image()[None])["out"][0].detach(), None)
    black = ColorSegmenter()(torch.zeros(1, 3, 16, 24))
    assert target(black).item() == pytest.approx(-0.15 * 6)


def test_point_on_a_photo_passes_through_the_transform() -> None:
    from torchvision.transforms import v2

    photo = Image.fromarray(
        (make_image().repeat_interleave(4, 1).repeat_interleave(4, 2) * 255).byte().movedim(0, -1).numpy()
    )
    transform = v2.Compose([v2.Resize((16, 24)), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    result = camtool.explain(
        ColorSegmenter(), photo, Point(14, 16), transform=transform, method="hirescam", labels=[*LABELS, "x"]
    )
    assert result.label == "cat"
    assert result.heatmap.shape == (64, 96)
    y, x = np.unravel_index(result.heatmap.argmax(), (64, 96))
    assert abs(x - 14) <= 8
    assert abs(y - 16) <= 8


# --------------------------------------------------------------------------------------------------------- other models


@pytest.mark.parametrize(
    "name",
    [
        "lraspp_mobilenet_v3_large",
        "deeplabv3_mobilenet_v3_large",
        *("fcn_resnet50", "deeplabv3_resnet50"),
    ],
)
def test_torchvision_segmenters_are_explained_unchanged(name: str) -> None:
    extra = {} if name.startswith("lraspp") else {"aux_loss": True}
    model = getattr(zoo, name)(weights=None, weights_backbone=None, num_classes=6, **extra).eval()
    photos = torch.randn(2, 3, 96, 128)
    planes = model(photos)["out"].detach()
    for image, result in enumerate(camtool.explain(model, photos, method=compute_signed_hirescam)):
        predicted = planes[image].argmax(0)
        covered = predicted.flatten().bincount(minlength=6)
        covered[0] = 0 if covered[1:].any() else covered[0]
        assert result.index == covered.argmax()
        inside = predicted == result.index
        assert result.score == pytest.approx(planes[image, result.index][inside].sum().item(), rel=1e-3, abs=1e-3)
        assert result.heatmap.any()
        assert result.heatmap.shape == (96, 128)
        assert not result.layer.startswith("aux")


def test_torchvision_segmenters_get_the_whole_photo() -> None:
    model = zoo.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).eval()
    photo = Image.fromarray(torch.randint(0, 255, (60, 84, 3), dtype=torch.uint8).numpy())
    result = camtool.explain(model, photo, 1, method=compute_signed_hirescam)
    assert result.geometry.size == (520, 728)
    assert result.seen.all()
    assert not any("No transform was given" in warning for warning in result.warnings)


def compute_signed_hirescam(evidence: Any) -> Tensor:
    """Return HiResCAM without its ReLU, which would make some maps of random nets empty."""
    return (evidence.gradients * evidence.activations).sum(1)


def make_segformer(transformers: Any) -> nn.Module:
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 16, 16, 32],
        depths=[1] * 4,
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
        num_labels=5,
    )
    return transformers.SegformerForSemanticSegmentation(config)


def make_upernet(transformers: Any) -> nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1] * 4,
        layer_type="basic",
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = transformers.UperNetConfig(
        backbone_config=backbone, hidden_size=16, num_labels=5, use_auxiliary_head=False
    )
    return transformers.UperNetForSemanticSegmentation(config)


@pytest.mark.parametrize("make", [make_segformer, make_upernet], ids=["Segformer", "UperNet"])
def test_hugging_face_segmenters_are_explained_unchanged(make: Any) -> None:
    model = make(pytest.importorskip("transformers")).eval()
    photos = torch.randn(2, 3, 64, 96)
    planes = model(pixel_values=photos).logits.detach()
    for image, result in enumerate(camtool.explain(model, photos, 3, method=compute_signed_hirescam)):
        predicted = planes[image].argmax(0) == 3
        expected = planes[image, 3][predicted].sum() if predicted.any() else planes[image, 3].sum()
        assert result.score == pytest.approx(expected.item(), rel=1e-3, abs=1e-3)
        assert result.heatmap.any()
        assert "classifier" not in result.layer, "the layer that returns the planes is not chosen"
