"""Concepts of small nets whose concepts are known, and the pages that show them."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.concept_maps.concepts import Concepts, concepts
from camtool.concept_maps.factorization import factorize
from camtool.errors import CamtoolError, LayerError, MethodError, TargetError
from tests.helpers.nets import Apply
from tests.helpers.photos import unseen

COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
WEIGHT = torch.tensor([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0], [1.0, 1.0, 1.0]])
BIAS = torch.tensor([0.1, -0.2, 0.3, 0.5])
LABELS = ["red", "green", "blue", "any"]


class ColorNet(nn.Module):
    """Net whose trunk returns the mean red, green and blue of 4 by 4 pixels."""

    def __init__(self, end: nn.Module | None = None, head: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.AvgPool2d(4), end or nn.ReLU())
        self.pool, self.linear = head or Apply(lambda a: a.mean((2, 3))), nn.Linear(3, 4)
        self.linear.load_state_dict({"weight": WEIGHT, "bias": BIAS})

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.pool(self.trunk(x)))


def draw_halves(left: str, right: str, size: tuple[int, int] = (32, 24)) -> Image.Image:
    photo = Image.new("RGB", size, COLORS[left])
    photo.paste(COLORS[right], (size[0] // 2, 0, *size))
    return photo


class Resize:
    """Transform to 24 by 32 pixels, or at the photo's own size, in [0, 1]."""

    def __init__(self, size: tuple[int, int] | None = (32, 24)) -> None:
        self.size = size

    def __call__(self, photo: Image.Image) -> Tensor:
        photo = photo.resize(self.size, Image.Resampling.BOX) if self.size else photo
        return torch.from_numpy(np.asarray(photo, np.float32) / 255).permute(2, 0, 1)


def find_concepts(*photos: Any, n: int = 3, model: nn.Module | None = None, **settings: Any) -> Concepts:
    settings = {"layer": "trunk", "transform": Resize(), "labels": LABELS, **settings}
    return concepts(model or ColorNet(), list(photos), n, **settings)


PHOTOS = (draw_halves("red", "blue"), draw_halves("red", "red"), draw_halves("blue", "green"))


def test_concepts_are_shared_by_the_images_and_located() -> None:
    ours = find_concepts(*PHOTOS)
    assert ours.labels == ["red", "blue", "green"]
    assert ours.maps.shape == (3, 3, 6, 8)
    left, right = slice(0, 4), slice(4, 8)
    for image, (color_left, color_right) in enumerate((("red", "blue"), ("red", "red"), ("blue", "green"))):
        for k, label in enumerate(ours.labels):
            assert_close(ours.maps[image, k][:, left], np.full((6, 4), float(label == color_left), np.float32))
            assert_close(ours.maps[image, k][:, right], np.full((6, 4), float(label == color_right), np.float32))
    assert_close(ours.shares, np.array([3, 2, 1], np.float32) / 6, rtol=0, atol=1e-4)
    assert ours.explained > 0.9999
    assert [each[:31] for each in ours.warnings] == ["The input is the same everywhere"[:31]]  # one photo is all red


def test_votes_equal_the_linear_head_on_the_vectors() -> None:
    ours = find_concepts(*PHOTOS)
    expected = (torch.from_numpy(ours.vectors) @ WEIGHT.T + BIAS).softmax(1)
    for votes, probabilities in zip(ours.votes, expected, strict=True):
        assert [vote.probability for vote in votes] == pytest.approx(sorted(probabilities.tolist(), reverse=True)[:3])
        assert [vote.index for vote in votes] == probabilities.argsort(descending=True)[:3].tolist()
        assert [LABELS[vote.index] for vote in votes] == [vote.label for vote in votes]


def test_votes_of_other_heads_come_from_a_layer_filled_with_the_vector() -> None:
    head = nn.Sequential(nn.Flatten(), nn.Linear(3 * 48, 3), nn.Tanh())
    model = ColorNet(head=head)
    ours = find_concepts(*PHOTOS, model=model)
    filled = torch.from_numpy(ours.vectors)[:, :, None, None].expand(3, 3, 6, 8)
    expected = model.linear(head(filled)).softmax(1).detach()
    assert [votes[0].probability for votes in ours.votes] == pytest.approx(expected.amax(1).tolist())


@pytest.mark.parametrize(
    ("end", "pool"),
    [
        (lambda a: a.movedim(1, -1), lambda a: a.mean((1, 2))),
        (lambda a: torch.cat([a.new_ones(len(a), 1, 3), a.flatten(2).mT], 1), lambda a: a[:, 1:].mean(1)),
    ],
    ids=["channels last", "tokens"],
)
def test_other_layouts_give_the_same_concepts(end: Any, pool: Any) -> None:
    ours, expected = find_concepts(*PHOTOS, model=ColorNet(Apply(end), Apply(pool))), find_concepts(*PHOTOS)
    assert ours.labels == expected.labels
    assert_close(ours.maps, expected.maps, rtol=0, atol=1e-5)
    assert ours.votes[0][0].probability == pytest.approx(expected.votes[0][0].probability)


def test_batch_size_and_dtype_do_not_change_the_maps() -> None:
    expected = find_concepts(*PHOTOS)
    assert_close(find_concepts(*PHOTOS, batch_size=1).maps, expected.maps, rtol=0, atol=1e-5)
    assert_close(find_concepts(*PHOTOS, model=ColorNet().double()).maps, expected.maps, rtol=0, atol=1e-5)
    ours = find_concepts(*PHOTOS, model=ColorNet().bfloat16())
    assert ours.maps.dtype == ours.vectors.dtype == np.float32
    assert_close(ours.maps, expected.maps, rtol=0, atol=0.02)


def test_photos_may_have_several_shapes() -> None:
    shapes = [(40, 20), (20, 40), (33, 57)]
    ours = find_concepts(*(draw_halves("red", "blue", size) for size in shapes), n=2)
    assert ours.maps.shape == (3, 2, 6, 8)
    assert [ours.heatmaps(i).shape for i in range(3)] == [(2, 20, 40), (2, 40, 20), (2, 57, 33)]
    assert ours.overlay(2).shape == (57, 33, 3)


def test_maps_of_several_input_sizes_are_resized_to_the_finest_grid() -> None:
    small, large = draw_halves("red", "blue", (16, 16)), draw_halves("red", "green", (32, 24))
    ours = find_concepts(small, large, small, transform=Resize(None))
    assert ours.maps.shape == (3, 3, 6, 8)
    assert_close(ours.maps[0], ours.maps[2])
    where = {label: k for k, label in enumerate(ours.labels)}
    assert ours.maps[0, where["red"], 3, 0] == pytest.approx(1, abs=1e-4)
    assert ours.maps[0, where["blue"], 3, 7] == pytest.approx(1, abs=1e-4)
    assert not ours.maps[0, where["green"]].max() > 1e-4


def test_a_grid_that_images_of_two_sizes_share_lies_in_each_as_it_does_alone() -> None:
    model = nn.Sequential(ColorNet().trunk, nn.AdaptiveAvgPool2d(3), Apply(lambda a: a.mean((2, 3))))
    small, large = draw_halves("red", "blue", (16, 16)), draw_halves("red", "green", (48, 48))
    settings = {"model": model, "layer": "1", "transform": Resize(None), "labels": None, "n": 1}
    together = find_concepts(small, large, **settings)
    assert together.centers == (*find_concepts(small, **settings).centers, *find_concepts(large, **settings).centers)


def test_concepts_lie_where_heatmaps_lie() -> None:
    """Three strided convolutions with padding look 3.5 pixels up and to the left of the stretched grid."""
    convolutions = [nn.Conv2d(3, 3, 3, 2, 1, bias=False) for _ in range(3)]
    for convolution in convolutions:
        nn.init.constant_(convolution.weight, 1)
    model = nn.Sequential(*convolutions, Apply(lambda a: a.mean((2, 3))), nn.Linear(3, 2, bias=False))
    nn.init.constant_(model[-1].weight, 1)
    spot = torch.zeros(1, 3, 64, 64)
    spot[..., 30, 34] = 1
    ours = concepts(model, spot, 1, layer="2", transform=None)
    assert ours.centers[0] is not None
    assert (ours.centers[0].axes[0].offset, ours.centers[0].axes[0].stride) == (0.5, 8)
    heat = camtool.explain(model, spot[0], 1, layer="2").heatmap
    assert_close(ours.heatmaps(0)[0], heat, rtol=0, atol=1e-4)
    rows = heat.sum(1) @ (np.arange(64) + 0.5) / heat.sum()
    assert rows == pytest.approx(30.5, abs=1)
    stretched = concepts(model, spot, 1, layer="2", transform=None, placement="stretch")
    expected = camtool.explain(model, spot[0], 1, layer="2", placement="stretch").heatmap
    drawn = stretched.heatmaps(0)[0]  # scaled on the grid, before its peak between two pixels is interpolated
    assert_close(drawn / drawn.max(), expected, rtol=0, atol=1e-4)
    with pytest.raises(CamtoolError, match=r"placement must be one of 'centers', 'stretch', got 'center'"):
        concepts(model, spot, 1, layer="2", transform=None, placement="center")  # type: ignore[arg-type]


def test_concepts_of_a_model_made_in_inference_mode_are_stretched() -> None:
    with torch.inference_mode():
        model = ColorNet()
    ours = find_concepts(*PHOTOS, model=model)
    assert ours.labels == ["red", "blue", "green"]
    assert ours.centers == (None,) * 3


def test_one_image_tensors_and_a_module_as_layer_are_accepted() -> None:
    model = ColorNet()
    batch = torch.stack([Resize()(photo) for photo in PHOTOS])
    expected = find_concepts(*PHOTOS)
    assert_close(concepts(model, batch, 3, layer=model.trunk).maps, expected.maps, rtol=0, atol=1e-5)
    alone = concepts(model, PHOTOS[0], 2, transform=Resize())
    assert (alone.layer, len(alone), len(alone.inputs)) == ("trunk", 2, 1)
    assert alone.labels == ["class 0", "class 2"]
    names = pandas.Series([*"abcd"], index=[3, 2, 1, 0])  # which is read by position
    assert concepts(model, PHOTOS[0], 2, transform=Resize(), labels=names).labels == ["a", "c"]


def test_concepts_passes_the_seed_to_factorize(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(
        "camtool.concept_maps.concepts.factorize",
        lambda *args, seed: seeds.append(seed) or factorize(*args, seed=seed),
    )
    find_concepts(*PHOTOS, seed=7)
    assert seeds == [7]


def test_concepts_does_not_change_the_model() -> None:
    model = ColorNet().train()
    find_concepts(*PHOTOS, model=model)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_votes_of_segmentation_models_are_means_over_pixels() -> None:
    model = ColorNet(head=nn.Identity())
    model.linear = nn.Conv2d(3, 4, 1)  # type: ignore[assignment]
    model.linear.load_state_dict({"weight": WEIGHT[:, :, None, None], "bias": BIAS})
    expected = find_concepts(*PHOTOS)
    assert find_concepts(*PHOTOS, model=model).votes[0][0].probability == pytest.approx(
        expected.votes[0][0].probability
    )


def test_votes_of_a_model_that_ends_in_a_sigmoid_are_its_probabilities() -> None:
    model = ColorNet()
    model.linear = nn.Sequential(model.linear, nn.Sigmoid())  # type: ignore[assignment]
    ours = find_concepts(*PHOTOS, model=model)
    expected = (torch.from_numpy(ours.vectors) @ WEIGHT.T + BIAS).sigmoid()
    assert [votes[0].probability for votes in ours.votes] == pytest.approx(expected.amax(1).tolist())


def test_negative_activations_are_left_out_with_a_warning() -> None:
    ours = find_concepts(*PHOTOS, n=2, model=ColorNet(Apply(lambda a: a - 0.5)))
    assert any("% of the squared activations at 'trunk' are negative and were left out" in w for w in ours.warnings)
    assert ours.vectors.min() >= 0
    few = find_concepts(*PHOTOS, n=2, model=ColorNet(Apply(lambda a: a - 0.1)))
    assert not any("negative" in each for each in few.warnings)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"n": 4}, MethodError, "n=4 concepts cannot be found in 144 positions of 3 channels; pass 1 to 3"),
        ({"layer": "trunc"}, LayerError, "no layer 'trunc'"),
        ({"layer": nn.ReLU()}, LayerError, "this ReLU is not a module of the model"),
        ({"labels": ["a"]}, TargetError, "labels has 1 name, the model 4 classes"),
        ({"batch_size": 0}, CamtoolError, "batch_size must be a whole number of 1 or more"),
        ({"model": ColorNet(Apply(lambda a: -a - 1))}, LayerError, "'trunk' has no positive activations"),
        ({"model": ColorNet(Apply(lambda a: a / 0))}, LayerError, "'trunk' returned NaN or infinite values"),
    ],
)
def test_invalid_arguments_raise(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        find_concepts(*PHOTOS, **settings)


def test_no_image_raises() -> None:
    with pytest.raises(CamtoolError, match="img holds no image; pass one or more"):
        find_concepts()


def test_overlay_has_the_color_of_the_strongest_concept() -> None:
    ours = find_concepts(*PHOTOS)
    red, blue, _ = ours.colors
    overlay = ours.overlay(0, alpha=1.0)
    assert overlay.dtype == np.uint8
    assert tuple(overlay[12, 4]) == red
    assert tuple(overlay[12, 28]) == blue
    assert np.array_equal(ours.overlay(0, alpha=0.0), np.asarray(PHOTOS[0]))
    half = (np.array(COLORS["red"]) + np.array(red)) / 2
    assert_close(ours.overlay(0, alpha=0.5)[12, 4].astype(float), half, rtol=0, atol=0.51)


def test_heatmap_of_an_absent_concept_stays_zero() -> None:
    ours = find_concepts(*PHOTOS)
    assert ours.heatmaps(1)[0].min() > 0.99
    assert ours.heatmaps(1)[1:].max() < 1e-3


def test_unseen_part_has_no_color() -> None:
    class ResizeMiddle(Resize):
        def __call__(self, photo: Image.Image) -> Tensor:
            return super().__call__(photo.crop((16, 0, 48, 24)))

    ours = find_concepts(draw_halves("red", "blue", (64, 24)), n=2, transform=ResizeMiddle())
    assert not ours.heatmaps(0)[:, :, :16].any()
    edge = ours.overlay(0, alpha=1.0)[:, :8]
    assert (edge == edge[..., :1]).all()  # gray
    assert tuple(ours.overlay(0, alpha=1.0)[12, 20]) in ours.colors


def test_page_grows_in_height_and_has_a_maximum_width(tmp_path: Any) -> None:
    few, many = find_concepts(*PHOTOS, n=2), find_concepts(*PHOTOS * 10, n=2)
    assert few.to_pixels().shape[1] <= many.to_pixels().shape[1] <= 1300
    assert many.to_pixels().shape[0] > 500
    path = few.save(tmp_path / "concepts.png")
    assert np.array_equal(np.asarray(Image.open(path)), few.to_pixels())
    assert np.array_equal(np.asarray(Image.open(BytesIO(few._repr_png_()))), few.to_pixels())
    drawn = {tuple(pixel) for pixel in few.to_pixels().reshape(-1, 3)}
    assert {*few.colors} <= drawn


def test_long_class_name_and_panorama_fit_on_the_page() -> None:
    ours = find_concepts(
        draw_halves("red", "blue", (900, 30)), n=2, labels=["so long a name that it ends nowhere " * 4] * 4
    )
    assert ours.to_pixels().shape[1] <= 1300


def test_forty_concepts_have_forty_colors() -> None:
    ours = find_concepts(*PHOTOS)
    many = Concepts(ours.maps, np.zeros((40, 3), np.float32), (), ours.shares, 0.5, ours.inputs, "trunk")
    assert len({*many.colors}) == 40


def test_repr_and_str_name_the_classes() -> None:
    words = "<3 concepts in 3 images ('red', 'blue', 'green'): 100% of trunk, 1 warning>"
    assert repr(find_concepts(*PHOTOS)) == words
    assert str(find_concepts(*PHOTOS).votes[0][0]).startswith("red ")


def test_dog_and_whale_photos_have_concepts_of_their_classes(shared: Any, mobilenet: Any) -> None:
    names = ("n02102318_cocker_spaniel", "n02114712_red_wolf", "n02066245_grey_whale", "n03787032_mortarboard")
    ours = concepts(mobilenet, [shared / "images" / f"{name}.jpg" for name in names], 4)
    assert {"cocker spaniel", "red wolf", "grey whale"} <= {*ours.labels}
    for label, image in (("cocker spaniel", 0), ("red wolf", 1), ("grey whale", 2)):
        assert ours.maps[:, ours.labels.index(label)].mean((1, 2)).argmax() == image


def test_scenes_have_concepts_of_their_objects(demo: Any) -> None:
    """Repeat the test with photos, on the bundled model."""
    shapes = ("star", "heart", "star", "drop")
    ours = concepts(demo, [unseen(number, [shape]).image for number, shape in enumerate(shapes)], 4)
    assert {*shapes} <= {*ours.labels}
    strengths = ours.maps.mean((2, 3))
    for image, shape in enumerate(shapes):
        others = [other for other, its in enumerate(shapes) if its != shape]
        of_shape = strengths[:, ours.labels.index(shape)]
        assert of_shape[image] > 2 * of_shape[others].max()


def test_explained_part_of_animal_photos_is_that_of_the_best_of_many_starts(shared: Any) -> None:
    """Expect more than 0.276, the part that a single start from the most different positions explains."""
    photos = sorted((shared / "images").glob("n*.jpg"))[:4]
    squeezenet = camtool.load("squeezenet1_1", shared / "models" / "squeezenet1_1-imagenet.safetensors")
    assert concepts(squeezenet, photos, 4, layer="features.12").explained > 0.288
