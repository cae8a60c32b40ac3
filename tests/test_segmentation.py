"""Semantic segmentation: which class is explained where, by planes worked out by hand and by the models as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from comparison import assert_same_explanation
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models import segmentation as zoo

import camtool
from camtool.errors import TargetError
from camtool.geometry import Geometry, averaged
from camtool.targets import ClassScore, Negated, Point, Probability, Region, Top, choose

LABELS = ["background", "cat", "dog"]

SEEN = torch.tensor([[0, 0, 0, 0], [0, 1, 1, 0], [2, 2, 2, 0]])
"""What is seen where: mostly background, two places of a cat, three of a dog."""

PLANES = torch.nn.functional.one_hot(SEEN, 4).movedim(-1, 0).float() * 3 - 1
"""``(4, 3, 4)``: 2 for the class that is seen, -1 for the others, of which the last is seen nowhere."""


# ------------------------------------------------------------------------------------------------- which class, where


def regions(want: Any, labels: list[str] | None = None, planes: Tensor = PLANES) -> list[tuple[int, list[list[float]]]]:
    """What a wish comes to: classes, each with its mask."""
    chosen = choose(want, planes, labels)
    assert all(isinstance(target, Region) for target in chosen)
    return [(target.class_index, target.mask.tolist()) for target in chosen]  # type: ignore[union-attr]


def where(index: int) -> list[list[bool]]:
    return (index == SEEN).tolist()


def test_by_default_it_is_the_class_that_covers_most_beside_the_background() -> None:
    assert regions(None) == [(2, where(2))]
    assert regions(Top(9)) == [(2, where(2)), (1, where(1)), (0, where(0))]


def test_what_is_background_the_labels_say() -> None:
    assert regions(None, ["wall", "cat", "dog", "sky"]) == [(0, where(0))]
    assert regions(None, ["wall", "cat", "__background__", "sky"]) == [(0, where(0))]
    assert regions(None, ["Background", "cat", "dog", "sky"]) == [(2, where(2))]
    assert regions(None, ["wall"]) == [(0, where(0))]


def test_where_there_is_nothing_but_background_it_is_that() -> None:
    only = PLANES.clone()
    only[0] += 9
    assert regions(None, LABELS, only) == [(0, torch.ones(3, 4, dtype=torch.bool).tolist())]


@pytest.mark.parametrize("want", [1, "cat", torch.tensor(1)], ids=repr)
def test_a_class_is_explained_where_it_is_seen(want: Any) -> None:
    assert regions(want, [*LABELS, "cow"]) == [(1, where(1))]
    (target,) = choose(want, PLANES, [*LABELS, "cow"])
    assert target(PLANES[None]).tolist() == [2 * 2]  # the class' logit at both places
    assert target(torch.cat([PLANES, PLANES + 1])[None].unflatten(1, (2, 4))[0]).tolist() == [4, 6]


def test_a_class_that_is_seen_nowhere_is_explained_all_over() -> None:
    assert choose(3, PLANES, None) == [ClassScore(3)]
    with pytest.raises(TargetError, match="4 does not exist: the model has 4 classes, 0 to 3"):
        choose(4, PLANES, None)


@pytest.mark.parametrize(("sign", "index"), [(1, 1), (-1, 0)])
def test_a_single_plane_tells_a_thing_from_the_background(sign: int, index: int) -> None:
    plane = torch.full((1, 2, 2), -1.0) if index == 0 else torch.tensor([[[-1.0, 3.0], [-2.0, -1.0]]])
    assert regions(None, None, plane) == [(index, (sign * plane[0] > 0).tolist())]
    if index:
        assert regions(0, None, plane) == [(0, [[True, False], [True, True]])]
        (target,) = choose(0, plane, None)
        assert target(plane[None]).item() == 1 + 2 + 1  # minus the plane, where the background is seen


# ---------------------------------------------------------------------------------------------- on the photo


def test_a_mask_is_averaged_over_the_cells_of_another_size() -> None:
    mask = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    assert averaged(mask, [(0, 2), (0, 4)], (1, 2)).tolist() == [[0.25, 0.25]]
    assert averaged(mask, [(0, 2), (0, 4)], (2, 4)).tolist() == mask.tolist()
    assert averaged(mask, [(0, 2), (4, 0)], (2, 4)).tolist() == mask.flip(1).tolist()
    assert averaged(mask, [(0, 2), (0, 4)], (4, 4)).tolist() == mask.repeat_interleave(2, 0).tolist()
    assert averaged(mask, [(-2, 2), (1, 3)], (2, 1)).tolist() == [[0.0], [0.0]]
    assert averaged(mask, [(-1, 1), (0, 1)], (1, 1)).tolist() == [[0.5]]  # what is beyond counts as 0
    assert_close(averaged(mask, [(0, 2), (0, 4)], (1, 3)), torch.tensor([[3 / 8, 0, 3 / 8]]))


def test_a_mask_goes_the_way_of_the_photo() -> None:
    """The photo (8, 12) is mirrored, cropped to the middle (8, 8) and halved; the planes are half of that again."""
    geometry = Geometry.whole(8, 12).flip().center_crop(8).resize((4, 4))
    mask = torch.zeros(8, 12)
    mask[0:4, 2:6] = 1  # mirrored at 6 to 10, of the crop 4 to 8
    (target,) = choose(Region(1, mask), torch.zeros(3, 2, 2), None, geometry)
    assert target.mask.tolist() == [[0, 1], [0, 0]]  # type: ignore[union-attr]
    thumbnail = mask[::2, ::2]  # any size lies over the photo
    (target,) = choose(Negated(Region(1, thumbnail)), torch.zeros(3, 2, 2), None, geometry)
    assert target.target.mask.tolist() == [[0, 1], [0, 0]]  # type: ignore[union-attr]
    of_planes = torch.tensor([[0.0, 0.0], [1.0, 0.0]])  # but one of the planes' own size lies over those
    (target,) = choose(Region(1, of_planes), torch.zeros(3, 2, 2), None, geometry)
    assert target.mask.tolist() == of_planes.tolist()  # type: ignore[union-attr]
    outside = torch.zeros(8, 12)
    outside[:, :2] = 1
    with pytest.raises(TargetError, match="mask is empty where the model looks"):
        choose(Region(1, outside), torch.zeros(3, 2, 2), None, geometry)


def test_a_point_is_where_it_is_on_the_photo() -> None:
    geometry = Geometry.whole(8, 12).flip().center_crop(8).resize((4, 4))
    for point, place in (((2.5, 0), (0, 1)), ((9.5, 7), (1, 0)), ((5.9, 4.1), (1, 1))):
        planes = torch.zeros(3, 2, 2)
        planes[(2, *place)] = 1
        for want in (Point(*point), Region.at(2, point)):
            (target,) = choose(want, planes, None, geometry)
            assert (target.class_index, target.mask.nonzero().tolist()) == (2, [list(place)])  # type: ignore[union-attr]
    for point in ((1.9, 4), (10.1, 4), (5, 8.1), (5, -0.1)):
        with pytest.raises(TargetError, match="outside of what the model sees of the photo"):
            choose(Point(*point), torch.zeros(3, 2, 2), None, geometry)


# ------------------------------------------------------------------------------------------------- a model by hand


class Colours(nn.Module):
    """Sees red, green and blue where they are, at half the picture's size; nothing where it is black."""

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


def picture() -> Tensor:
    """``(3, 16, 24)``: a red square at the top left, a larger green one at the bottom right."""
    image = torch.zeros(3, 16, 24)
    image[0, 2:6, 2:8] = 1
    image[1, 8:14, 12:20] = 1
    return image


@pytest.mark.parametrize("key", ["out", "logits", None])
@pytest.mark.parametrize(
    ("want", "index", "place"),
    [(None, 2, (8, 14, 12, 20)), (2, 2, (8, 14, 12, 20)), (1, 1, (2, 6, 2, 8)), (Point(3, 4), 1, (2, 6, 2, 8))],
    ids=str,
)
def test_the_map_lies_where_the_class_is_seen(key: str | None, want: Any, index: int, place: tuple[int, ...]) -> None:
    result = camtool.explain(Colours(key), picture(), want, method="hirescam")
    top, bottom, left, right = place
    assert result.index == index
    assert result.layer == "body", "and not the planes themselves"
    outside = np.ones((16, 24), dtype=bool)
    outside[top - 1 : bottom + 1, left - 1 : right + 1] = False
    assert result.heatmap[outside].max() == 0
    assert result.heatmap.max() == 1
    assert result.warnings == ()
    pixels = 1 if isinstance(want, Point) else (bottom - top) * (right - left) / 4
    assert result.score == pytest.approx(1.5 * pixels - 0.15 * pixels)
    chances = torch.tensor([-0.05, 1.35, -0.65, -0.65]).softmax(0)  # of the body's 0.3 and 1
    assert result.probability == pytest.approx(chances[1].item(), abs=1e-6)


def test_of_two_of_a_kind_a_mask_tells_which_is_meant() -> None:
    image = picture()
    image[0, 10:14, 2:8] = 1
    mask = np.zeros((160, 240), dtype=bool)  # of any size, over the picture
    mask[90:150, 10:90] = True
    both, one = camtool.explain(Colours(), image, [1, Region(1, mask)], method="hirescam")
    assert both.heatmap[3, 4] == 1
    assert both.heatmap[12, 4] == 1
    assert one.heatmap[3, 4] == 0
    assert one.heatmap[12, 4] == 1


def test_a_class_seen_nowhere_is_told_of_and_one_in_a_mask_is_not() -> None:
    told = camtool.explain(Colours(), picture(), 3, method="hirescam").warnings
    assert any("sees this class nowhere in the picture" in each for each in told)
    told = camtool.explain(Colours(), picture(), Region(3, torch.ones(4, 4)), method="hirescam").warnings
    assert not any("nowhere" in each for each in told)


def test_a_probability_is_the_mean_over_the_picture() -> None:
    result = camtool.explain(Colours(), picture(), Probability(1), method="hirescam")
    expected = Colours()(picture()[None])["out"].softmax(1)[0, 1].mean().item()
    assert result.score == result.probability == pytest.approx(expected)


def test_a_batch_is_its_pictures_one_by_one() -> None:
    batch = torch.stack([picture(), picture().flip(1), picture().flip(0)])
    together = camtool.explain(Colours(), batch)
    for one, image in zip(together, batch, strict=True):
        alone = camtool.explain(Colours(), image)
        assert (one.index, one.score) == (alone.index, pytest.approx(alone.score))
        assert_same_explanation(one, alone)


@pytest.mark.parametrize("method", ["layercam", "ablationcam", "scorecam", "odam", "inputxgradient"])
def test_methods_of_all_kinds_find_the_place(method: str) -> None:
    result = camtool.explain(Colours(), picture(), 1, method=method)
    assert result.heatmap[2:6, 2:8].mean() > 3 * result.heatmap.mean()


def test_what_the_model_saw_is_fixed_on_the_picture_itself() -> None:
    """A method that changes the picture asks about the same places, even where the class is no longer seen."""
    (target,) = choose(1, Colours()(picture()[None])["out"][0].detach(), None)
    black = Colours()(torch.zeros(1, 3, 16, 24))
    assert target(black).item() == pytest.approx(-0.15 * 6)


def test_a_photo_is_explained_through_its_transform() -> None:
    from torchvision.transforms import v2

    photo = Image.fromarray(
        (picture().repeat_interleave(4, 1).repeat_interleave(4, 2) * 255).byte().movedim(0, -1).numpy()
    )
    transform = v2.Compose([v2.Resize((16, 24)), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    result = camtool.explain(
        Colours(), photo, Point(14, 16), transform=transform, method="hirescam", labels=[*LABELS, "x"]
    )
    assert result.label == "cat"
    assert result.heatmap.shape == (64, 96)
    y, x = np.unravel_index(result.heatmap.argmax(), (64, 96))
    assert abs(x - 14) <= 8
    assert abs(y - 16) <= 8


# ----------------------------------------------------------------------------------------------- models as they are


@pytest.mark.parametrize(
    "name",
    [
        "lraspp_mobilenet_v3_large",
        "deeplabv3_mobilenet_v3_large",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fcn_resnet50", "deeplabv3_resnet50")),
    ],
)
def test_torchvisions_segmenters_are_explained_as_they_are(name: str) -> None:
    extra = {} if name.startswith("lraspp") else {"aux_loss": True}
    model = getattr(zoo, name)(weights=None, weights_backbone=None, num_classes=6, **extra).eval()
    photos = torch.randn(2, 3, 96, 128)
    planes = model(photos)["out"].detach()
    for image, result in enumerate(camtool.explain(model, photos, method=signed)):
        seen = planes[image].argmax(0)
        covered = seen.flatten().bincount(minlength=6)
        covered[0] = 0 if covered[1:].any() else covered[0]
        assert result.index == covered.argmax()
        inside = seen == result.index
        assert result.score == pytest.approx(planes[image, result.index][inside].sum().item(), rel=1e-3, abs=1e-3)
        assert result.heatmap.any()
        assert result.heatmap.shape == (96, 128)
        assert not result.layer.startswith("aux")


def test_torchvisions_segmenters_see_the_whole_photo() -> None:
    model = zoo.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).eval()
    photo = Image.fromarray(torch.randint(0, 255, (60, 130, 3), dtype=torch.uint8).numpy())
    result = camtool.explain(model, photo, 1, method=signed)
    assert result.geometry.size == (520, 1126)
    assert result.seen.all()
    assert not any("No transform was given" in warning for warning in result.warnings)


def signed(evidence: Any) -> Tensor:
    """HiResCAM without its ReLU, which leaves nothing of some maps of random nets."""
    return (evidence.gradients * evidence.activations).sum(1)


def segformer(transformers: Any) -> nn.Module:
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 16, 16, 32],
        depths=[1] * 4,
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
        num_labels=5,
    )
    return transformers.SegformerForSemanticSegmentation(config)


def upernet(transformers: Any) -> nn.Module:
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


@pytest.mark.parametrize("make", [segformer, upernet], ids=["Segformer", "UperNet"])
def test_hugging_faces_segmenters_are_explained_as_they_are(make: Any) -> None:
    model = make(pytest.importorskip("transformers")).eval()
    photos = torch.randn(2, 3, 64, 96)
    planes = model(pixel_values=photos).logits.detach()
    for image, result in enumerate(camtool.explain(model, photos, 3, method=signed)):
        seen = planes[image].argmax(0) == 3
        expected = planes[image, 3][seen].sum() if seen.any() else planes[image, 3].sum()
        assert result.score == pytest.approx(expected.item(), rel=1e-3, abs=1e-3)
        assert result.heatmap.any()
        assert "classifier" not in result.layer, "the planes themselves are no layer to look at"
