"""Deep feature factorisation: the arithmetic, on nets whose concepts are known, and the pictures that come of it."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from nets import Apply
from photos import unseen
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import CamtoolError, LayerError, MethodError, TargetError
from camtool.factorisation import Concepts, concepts, factorised

# ------------------------------------------------------------------------------------------------------ factorising


def parts(P: int = 60, C: int = 20, n: int = 4) -> tuple[Tensor, Tensor]:
    """Factors of which each has positions and channels of its own, the first the heaviest, so that they are unique."""
    W, H = torch.zeros(P, n, dtype=torch.float64), torch.zeros(n, C, dtype=torch.float64)
    for k in range(n):
        W[k :: n + 1, k] = 1 + torch.rand(len(W[k :: n + 1]), dtype=torch.float64)
        H[k, k::n] = 2.0**-k * (1 + torch.rand(len(H[k, k::n]), dtype=torch.float64) / 4)
    return W / W.amax(0), H


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_what_was_put_together_of_parts_is_taken_apart_again(scale: float) -> None:
    W, H = parts()
    ours, vectors, explained = factorised(scale * W @ H, 4)
    assert_close(ours, W, rtol=0, atol=1e-6)
    assert_close(vectors / scale, H, rtol=0, atol=1e-6)
    assert explained > 0.999999


def test_factors_are_not_negative_and_their_columns_reach_one() -> None:
    A = torch.rand(50, 30)
    W, H, explained = factorised(A, 6)
    assert (W >= 0).all()
    assert (H >= 0).all()
    assert_close(W.amax(0), torch.ones(6))
    assert_close(torch.tensor(explained), 1 - (A - W @ H).square().sum() / A.square().sum(), rtol=0, atol=1e-5)
    masses = W.sum(0) * H.sum(1)
    assert masses.tolist() == sorted(masses.tolist(), reverse=True)


def test_more_concepts_explain_more() -> None:
    A = torch.rand(50, 30)
    explained = [factorised(A, n)[2] for n in (1, 3, 6, 30)]
    assert explained == sorted(explained)
    assert explained[-1] > 0.99


@pytest.mark.parametrize("n", [2, 5])
def test_the_optimum_is_as_good_as_that_of_scikit_learn(n: int) -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    A = torch.randn(120, 40, dtype=torch.float64).relu()
    peer = decomposition.NMF(n, init="nndsvda", random_state=0, max_iter=1000).fit(A.numpy())
    theirs = 1 - peer.reconstruction_err_**2 / float(A.square().sum())
    assert factorised(A, n)[2] > theirs - 0.005


def test_the_same_data_and_seed_give_the_same_factors() -> None:
    A, before = torch.rand(40, 20), torch.get_rng_state()
    first, again = factorised(A, 4), factorised(A, 4)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("seed", range(5))
def test_two_strong_positions_do_not_hide_what_most_positions_share(seed: int) -> None:
    """Two groups of 40 positions of length 1 and two positions of length 3, all on channels of their own."""
    A = torch.eye(4, dtype=torch.float64).repeat_interleave(torch.tensor([40, 40, 1, 1]), 0)
    A[80:] *= 3
    W, H, explained = factorised(A, 2, seed=seed)
    assert explained == pytest.approx(80 / 98)  # and 18 / 98 from the positions that differ most
    assert_close(W @ H, A * torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64))


def test_positions_without_activity_and_fewer_others_than_concepts_harm_nothing() -> None:
    A = torch.zeros(30, 6, dtype=torch.float64)
    A[7], A[11] = torch.rand(6), torch.rand(6)
    W, H, explained = factorised(A, 4)
    assert explained > 0.999
    assert_close(W @ H, A, rtol=0, atol=0.01)


def test_a_seed_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(
        "camtool.factorisation.factorised", lambda *args, seed: seeds.append(seed) or factorised(*args, seed=seed)
    )
    found(*PHOTOS, seed=7)
    assert seeds == [7]


@pytest.mark.parametrize("n", [0, -1, 21])
def test_a_number_of_concepts_that_cannot_be_is_refused(n: int) -> None:
    with pytest.raises(MethodError, match=rf"n={n} concepts; with 40 positions of 20 channels: 1 to 20"):
        factorised(torch.rand(40, 20), n)


def test_one_vector_more_than_there_are_parts_harms_nothing() -> None:
    W, H, explained = factorised(torch.outer(torch.rand(12), torch.rand(6)), 3)
    assert W.isfinite().all()
    assert H.isfinite().all()
    assert explained > 0.999


# ----------------------------------------------------------------------------------------------------- a known model

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
WEIGHT = torch.tensor([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0], [1.0, 1.0, 1.0]])
BIAS = torch.tensor([0.1, -0.2, 0.3, 0.5])
LABELS = ["red", "green", "blue", "any"]


class Seer(nn.Module):
    """Sees colours: the trunk's channels are the mean red, green and blue of 4 by 4 pixels."""

    def __init__(self, end: nn.Module | None = None, head: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.AvgPool2d(4), end or nn.ReLU())
        self.pool, self.linear = head or Apply(lambda a: a.mean((2, 3))), nn.Linear(3, 4)
        self.linear.load_state_dict({"weight": WEIGHT, "bias": BIAS})

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.pool(self.trunk(x)))


def halves(left: str, right: str, size: tuple[int, int] = (32, 24)) -> Image.Image:
    photo = Image.new("RGB", size, COLOURS[left])
    photo.paste(COLOURS[right], (size[0] // 2, 0, *size))
    return photo


class Scaled:
    """To 24 by 32 and into [0, 1]; or at the photo's own size."""

    def __init__(self, size: tuple[int, int] | None = (32, 24)) -> None:
        self.size = size

    def __call__(self, photo: Image.Image) -> Tensor:
        photo = photo.resize(self.size, Image.Resampling.BOX) if self.size else photo
        return torch.from_numpy(np.asarray(photo, np.float32) / 255).permute(2, 0, 1)


def found(*photos: Any, n: int = 3, model: nn.Module | None = None, **settings: Any) -> Concepts:
    settings = {"layer": "trunk", "transform": Scaled(), "labels": LABELS, **settings}
    return concepts(model or Seer(), list(photos), n, **settings)


PHOTOS = (halves("red", "blue"), halves("red", "red"), halves("blue", "green"))


def test_concepts_are_shared_by_the_pictures_and_lie_where_they_are() -> None:
    ours = found(*PHOTOS)
    assert ours.labels == ["red", "blue", "green"]
    assert ours.maps.shape == (3, 3, 6, 8)
    left, right = slice(0, 4), slice(4, 8)
    for image, (colour_left, colour_right) in enumerate((("red", "blue"), ("red", "red"), ("blue", "green"))):
        for k, label in enumerate(ours.labels):
            assert_close(ours.maps[image, k][:, left], np.full((6, 4), float(label == colour_left), np.float32))
            assert_close(ours.maps[image, k][:, right], np.full((6, 4), float(label == colour_right), np.float32))
    assert_close(ours.shares, np.array([3, 2, 1], np.float32) / 6, rtol=0, atol=1e-4)
    assert ours.explained > 0.9999
    assert [each[:31] for each in ours.warnings] == ["The input is the same everywhere"[:31]]  # one is all red


def test_a_concept_is_asked_of_the_models_own_head() -> None:
    ours = found(*PHOTOS)
    expected = (torch.from_numpy(ours.vectors) @ WEIGHT.T + BIAS).softmax(1)
    for votes, chances in zip(ours.votes, expected, strict=True):
        assert [vote.probability for vote in votes] == pytest.approx(sorted(chances.tolist(), reverse=True)[:3])
        assert [vote.index for vote in votes] == chances.argsort(descending=True)[:3].tolist()
        assert [LABELS[vote.index] for vote in votes] == [vote.label for vote in votes]


def test_behind_any_other_head_the_layer_is_filled_with_the_concept() -> None:
    head = nn.Sequential(nn.Flatten(), nn.Linear(3 * 48, 3), nn.Tanh())
    model = Seer(head=head)
    ours = found(*PHOTOS, model=model)
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
def test_other_layouts_give_the_same(end: Any, pool: Any) -> None:
    ours, expected = found(*PHOTOS, model=Seer(Apply(end), Apply(pool))), found(*PHOTOS)
    assert ours.labels == expected.labels
    assert_close(ours.maps, expected.maps, rtol=0, atol=1e-5)
    assert ours.votes[0][0].probability == pytest.approx(expected.votes[0][0].probability)


def test_neither_the_batch_size_nor_the_type_matters() -> None:
    expected = found(*PHOTOS)
    assert_close(found(*PHOTOS, batch_size=1).maps, expected.maps, rtol=0, atol=1e-5)
    assert_close(found(*PHOTOS, model=Seer().double()).maps, expected.maps, rtol=0, atol=1e-5)
    ours = found(*PHOTOS, model=Seer().bfloat16())
    assert ours.maps.dtype == ours.vectors.dtype == np.float32
    assert_close(ours.maps, expected.maps, rtol=0, atol=0.02)


def test_photos_of_all_shapes_go_through_one_transform() -> None:
    shapes = [(40, 20), (20, 40), (33, 57)]
    ours = found(*(halves("red", "blue", size) for size in shapes), n=2)
    assert ours.maps.shape == (3, 2, 6, 8)
    assert [ours.heatmaps(i).shape for i in range(3)] == [(2, 20, 40), (2, 40, 20), (2, 57, 33)]
    assert ours.overlay(2).shape == (57, 33, 3)


def test_inputs_of_several_sizes_are_brought_to_the_finest_grid() -> None:
    small, large = halves("red", "blue", (16, 16)), halves("red", "green", (32, 24))
    ours = found(small, large, small, transform=Scaled(None))
    assert ours.maps.shape == (3, 3, 6, 8)
    assert_close(ours.maps[0], ours.maps[2])
    where = {label: k for k, label in enumerate(ours.labels)}
    assert ours.maps[0, where["red"], 3, 0] == pytest.approx(1, abs=1e-4)
    assert ours.maps[0, where["blue"], 3, 7] == pytest.approx(1, abs=1e-4)
    assert not ours.maps[0, where["green"]].max() > 1e-4


def test_one_picture_tensors_and_a_module_as_layer_will_do() -> None:
    model = Seer()
    batch = torch.stack([Scaled()(photo) for photo in PHOTOS])
    expected = found(*PHOTOS)
    assert_close(concepts(model, batch, 3, layer=model.trunk).maps, expected.maps, rtol=0, atol=1e-5)
    alone = concepts(model, PHOTOS[0], 2, transform=Scaled())
    assert (alone.layer, len(alone), len(alone.pictures)) == ("trunk", 2, 1)
    assert alone.labels == ["class 0", "class 2"]


def test_the_model_is_left_as_it_was() -> None:
    model = Seer().train()
    found(*PHOTOS, model=model)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_segmentation_models_vote_with_the_mean_over_their_pixels() -> None:
    model = Seer(head=nn.Identity())
    model.linear = nn.Conv2d(3, 4, 1)  # type: ignore[assignment]
    model.linear.load_state_dict({"weight": WEIGHT[:, :, None, None], "bias": BIAS})
    expected = found(*PHOTOS)
    assert found(*PHOTOS, model=model).votes[0][0].probability == pytest.approx(expected.votes[0][0].probability)


# ----------------------------------------------------------------------------------------------------------- faults


def test_negative_activations_are_left_out_and_told_of() -> None:
    ours = found(*PHOTOS, n=2, model=Seer(Apply(lambda a: a - 0.5)))
    assert any("% is negative, which a factorisation without negative numbers leaves out" in w for w in ours.warnings)
    assert ours.vectors.min() >= 0
    few = found(*PHOTOS, n=2, model=Seer(Apply(lambda a: a - 0.1)))
    assert not any("negative" in each for each in few.warnings)


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"n": 4}, MethodError, "n=4 concepts; with 144 positions of 3 channels: 1 to 3"),
        ({"layer": "trunc"}, LayerError, "no layer 'trunc'"),
        ({"layer": nn.ReLU()}, LayerError, "this ReLU is not a module of the model"),
        ({"labels": ["a"]}, TargetError, "labels has 1 name, but the model has 4 classes"),
        ({"batch_size": 0}, CamtoolError, "batch_size asks for nothing"),
        ({"model": Seer(Apply(lambda a: -a - 1))}, LayerError, "'trunk' is nowhere positive"),
        ({"model": Seer(Apply(lambda a: a / 0))}, LayerError, "'trunk' returned values that are not finite"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        found(*PHOTOS, **settings)


def test_no_picture_has_no_concept() -> None:
    with pytest.raises(CamtoolError, match="img asks for nothing"):
        found()


# --------------------------------------------------------------------------------------------------------- pictures


def test_the_overlay_is_the_colour_of_the_strongest_concept() -> None:
    ours = found(*PHOTOS)
    red, blue, _ = ours.colors
    overlay = ours.overlay(0, alpha=1.0)
    assert overlay.dtype == np.uint8
    assert tuple(overlay[12, 4]) == red
    assert tuple(overlay[12, 28]) == blue
    assert np.array_equal(ours.overlay(0, alpha=0.0), np.asarray(PHOTOS[0]))
    half = (np.array(COLOURS["red"]) + np.array(red)) / 2
    assert_close(ours.overlay(0, alpha=0.5)[12, 4].astype(float), half, rtol=0, atol=0.51)


def test_an_absent_concept_is_not_stretched_into_sight() -> None:
    ours = found(*PHOTOS)
    assert ours.heatmaps(1)[0].min() > 0.99
    assert ours.heatmaps(1)[1:].max() < 1e-3


def test_what_the_model_did_not_see_has_no_colour() -> None:
    class Middle(Scaled):
        def __call__(self, photo: Image.Image) -> Tensor:
            return super().__call__(photo.crop((16, 0, 48, 24)))

    ours = found(halves("red", "blue", (64, 24)), n=2, transform=Middle())
    assert not ours.heatmaps(0)[:, :, :16].any()
    edge = ours.overlay(0, alpha=1.0)[:, :8]
    assert (edge == edge[..., :1]).all()  # grey
    assert tuple(ours.overlay(0, alpha=1.0)[12, 20]) in ours.colors


def test_the_picture_grows_with_the_pictures_and_is_no_wider_than_a_page(tmp_path: Any) -> None:
    few, many = found(*PHOTOS, n=2), found(*PHOTOS * 10, n=2)
    assert few.picture().shape[1] <= many.picture().shape[1] <= 1300
    assert many.picture().shape[0] > 500
    path = few.save(tmp_path / "concepts.png")
    assert np.array_equal(np.asarray(Image.open(path)), few.picture())
    assert np.array_equal(np.asarray(Image.open(BytesIO(few._repr_png_()))), few.picture())
    drawn = {tuple(pixel) for pixel in few.picture().reshape(-1, 3)}
    assert {*few.colors} <= drawn


def test_a_class_with_a_long_name_and_a_panorama_fit_on_the_page() -> None:
    ours = found(halves("red", "blue", (900, 30)), n=2, labels=["so long a name that it ends nowhere " * 4] * 4)
    assert ours.picture().shape[1] <= 1300


def test_there_is_a_colour_of_its_own_for_any_number_of_concepts() -> None:
    ours = found(*PHOTOS)
    many = Concepts(ours.maps, np.zeros((40, 3), np.float32), (), ours.shares, 0.5, ours.pictures, "trunk")
    assert len({*many.colors}) == 40


def test_concepts_say_in_words_what_they_are() -> None:
    words = "<3 concepts in 3 pictures ('red', 'blue', 'green'): 100% of trunk, 1 warning>"
    assert repr(found(*PHOTOS)) == words
    assert str(found(*PHOTOS).votes[0][0]).startswith("red ")


@pytest.mark.slow
def test_photos_of_dogs_share_a_dog(shared: Any, mobilenet: Any) -> None:
    names = ("n02102318_cocker_spaniel", "n02114712_red_wolf", "n02066245_grey_whale", "n03787032_mortarboard")
    ours = concepts(mobilenet, [shared / "images" / f"{name}.jpg" for name in names], 4)
    assert {"cocker spaniel", "red wolf", "grey whale"} <= {*ours.labels}
    for label, image in (("cocker spaniel", 0), ("red wolf", 1), ("grey whale", 2)):
        assert ours.maps[:, ours.labels.index(label)].mean((1, 2)).argmax() == image


def test_scenes_of_stars_share_a_star(demo: Any) -> None:
    """The twin of the photos of dogs, on the bundled model."""
    shapes = ("star", "heart", "star", "drop")
    ours = concepts(demo, [unseen(number, [shape]).image for number, shape in enumerate(shapes)], 4)
    assert {*shapes} <= {*ours.labels}
    strengths = ours.maps.mean((2, 3))
    for image, shape in enumerate(shapes):
        others = [other for other, its in enumerate(shapes) if its != shape]
        of_shape = strengths[:, ours.labels.index(shape)]
        assert of_shape[image] > 2 * of_shape[others].max()


def test_photos_of_animals_are_explained_as_well_as_from_the_best_of_many_starts(shared: Any) -> None:
    """From the positions that differ most alone it is 0.276 of the activity."""
    photos = sorted((shared / "images").glob("n*.jpg"))[:4]
    squeezenet = camtool.load("squeezenet1_1", shared / "models" / "squeezenet1_1-imagenet.safetensors")
    assert concepts(squeezenet, photos, 4, layer="features.12").explained > 0.288
