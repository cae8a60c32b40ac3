"""What a model is called with: several inputs, a backbone that runs twice, signals, volumes and clips."""

from __future__ import annotations

import copy
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from comparison import assert_same_explanation
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models import video
from torchvision.models.video.mvit import MSBlockConfig, MViT

import camtool
from camtool.evidence import Scene
from camtool.hooks import call
from camtool.inputs import example_shape, kind_of
from camtool.layers import resolve
from camtool.layouts import token_layout
from camtool.structures import map_batch
from camtool.targets import ClassScore

CLASSES = 4
OPTIONS: dict[str, dict[str, Any]] = {"rise": {"samples": 12, "cells": 3}}


def trunk(channels: int = 3) -> nn.Sequential:
    layers = [nn.Conv2d(channels, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers)


class Siamese(nn.Module):
    """One trunk for both pictures; a score is the sum of ``left`` for the first and ``right`` for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = trunk()
        self.left, self.right = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)
        for head in (self.left, self.right):  # with positive weights no rectified map is empty
            head.weight.data[1].abs_()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        first, second = (self.trunk(picture).mean((2, 3)) for picture in (a, b))
        return self.left(first) + self.right(second)


class Joined(nn.Module):
    """A trunk for each picture, joined so that batches of two sizes do not go together."""

    def __init__(self) -> None:
        super().__init__()
        self.ones, self.others = trunk(), trunk()
        self.head = nn.Linear(12, CLASSES)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.head(torch.cat([self.ones(one).mean((2, 3)), self.others(other).mean((2, 3))], 1))


class Masked(nn.Module):
    """Keyword arguments of all kinds: whole numbers, the picture, a mask for each image, and what belongs to none."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.words, self.head = trunk(), nn.Embedding(10, 6), nn.Linear(6, CLASSES)

    def forward(
        self,
        ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        mask: Tensor | None = None,
        temperature: Tensor | float = 1.0,
        mode: str = "plain",
    ) -> dict[str, Tensor]:
        assert mode == "signed"
        assert pixel_values is not None
        features = self.trunk(pixel_values if mask is None else pixel_values * mask[:, None]).mean((2, 3))
        features = features if ids is None else features * self.words(ids).mean(1)
        return {"logits": self.head(features) / temperature}


def masked_inputs(count: int = 3, size: tuple[int, int] = (24, 32)) -> dict[str, Any]:
    return {
        "ids": torch.randint(10, (count, 5)),
        "mask": (torch.rand(count, *size) > 0.3).float(),
        "pixel_values": torch.randn(count, 3, *size),
        "temperature": torch.tensor(0.7),
        "mode": "signed",
    }


def alone(inputs: dict[str, Any], image: int) -> dict[str, Any]:
    own = {"ids", "mask", "pixel_values"}
    return {key: value[image] if key in own else value for key, value in inputs.items()}


@pytest.fixture
def siamese() -> Siamese:
    return Siamese().eval()


@pytest.fixture
def masked() -> Masked:
    return Masked().eval()


# --------------------------------------------------------------------------------------------- how a model is called


def test_whole_numbers_among_the_keys_are_positions() -> None:
    class Echo(nn.Module):
        def forward(self, *args: Any, **keywords: Any) -> Any:
            return args, keywords

    given = {1: "second", "k": "named", 0: "first"}
    assert call(Echo(), given) == (("first", "second"), {"k": "named"})


def test_what_belongs_to_no_image_is_handed_on() -> None:
    inputs = {"x": torch.zeros(4, 3, 8, 8), "t": torch.tensor(2.0), "table": torch.ones(7, 2), "own": torch.ones(4, 2)}
    first = map_batch(inputs, lambda tensor: tensor[:1])
    assert {key: tuple(value.shape) for key, value in first.items()} == {
        "x": (1, 3, 8, 8),
        "t": (),
        "table": (7, 2),
        "own": (1, 2),
    }
    assert first["table"] is inputs["table"]


class Compared(nn.Module):
    """The similarity of each image to each of some texts, ``(N, T)``; it writes to the texts that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = trunk()

    def forward(self, pictures: Tensor, texts: Tensor) -> Tensor:
        return self.trunk(pictures).mean((2, 3)) @ texts.mul_(2).T


@pytest.mark.parametrize("method", ["gradcam", "scorecam", "rise", "ablationcam", "noise:gradcam"])
def test_what_is_shared_is_not_cut_though_it_is_as_long_as_the_batch(method) -> None:
    net, pictures, texts = Compared().eval(), torch.randn(2, 3, 16, 16), torch.rand(2, 6)
    kept, options = texts.clone(), OPTIONS.get(method, {})
    given = camtool.Inputs(pictures, texts, shared=[1])
    results = camtool.explain(net, given, 1, method=method, **options)
    assert torch.equal(texts, kept)
    expected = net(pictures, texts.clone())[:, 1]
    assert_close(torch.tensor([result.score for result in results]), expected.detach())
    single = camtool.explain(net, camtool.Inputs(pictures[1], texts=texts, shared="texts"), 1, method=method, **options)
    assert_same_explanation(single, results[1])


# ---------------------------------------------------------------------------------------------------- dictionaries


def test_a_dictionary_of_a_batch_gives_a_list_and_each_is_as_alone(masked) -> None:
    inputs = masked_inputs()
    results = camtool.explain(masked, inputs, [1, 2, 3])
    assert [result.index for result in results] == [1, 2, 3]
    for image, result in enumerate(results):
        single = camtool.explain(masked, alone(inputs, image), image + 1)
        assert isinstance(single, camtool.Explanation)
        assert_close(result.raw, single.raw)
        assert result.score == pytest.approx(single.score, rel=1e-5)
        assert result.heatmap.shape == (24, 32)


def test_the_other_inputs_make_a_difference(masked) -> None:
    inputs = masked_inputs()
    other = {**inputs, "ids": torch.randint(10, (3, 5))}
    one, two = (camtool.explain(masked, each, 0, method="hirescam")[0] for each in (inputs, other))
    assert one.score != pytest.approx(two.score)
    assert not np.allclose(one.raw, two.raw)


def test_the_order_of_keywords_is_of_no_account(masked) -> None:
    inputs = masked_inputs()
    reference = camtool.explain(masked, inputs, 1)
    for keys in (sorted(inputs), sorted(inputs, reverse=True)):
        for result, expected in zip(camtool.explain(masked, {k: inputs[k] for k in keys}, 1), reference, strict=True):
            assert np.array_equal(result.raw, expected.raw)


def test_the_gradient_is_that_of_plain_autograd_with_the_same_inputs(masked) -> None:
    inputs = masked_inputs()
    result = camtool.explain(masked, inputs, 2, layer="trunk", method=lambda evidence: evidence.gradients.sum(1))
    features = masked.trunk(inputs["pixel_values"] * inputs["mask"][:, None]).detach().requires_grad_()
    pooled = features.mean((2, 3)) * masked.words(inputs["ids"]).mean(1)
    (expected,) = torch.autograd.grad((masked.head(pooled) / 0.7)[:, 2].sum(), features)
    assert_close(torch.from_numpy(np.stack([each.raw for each in result])), expected.sum(1))


def test_batches_are_cut_as_batch_size_says(masked) -> None:
    inputs = masked_inputs(5)
    sizes = []
    masked.register_forward_hook(lambda module, args, output: sizes.append(len(output["logits"])))
    whole = camtool.explain(masked, inputs, 1)
    sizes.clear()
    parts = camtool.explain(masked, inputs, 1, batch_size=2)
    assert sizes == [2, 2, 1]
    for one, other in zip(whole, parts, strict=True):
        assert_close(one.raw, other.raw)


def test_what_a_hugging_face_processor_returns_is_a_dictionary(masked) -> None:
    inputs = masked_inputs()
    results = camtool.explain(masked, UserDict(inputs), 1)
    assert np.array_equal(results[2].raw, camtool.explain(masked, inputs, 1)[2].raw)


def test_a_list_of_dictionaries_gives_one_result_each(masked) -> None:
    inputs = masked_inputs()
    singles = [alone(inputs, image) for image in range(3)]
    batches_of_one = [{k: v[None] if k in ("ids", "mask", "pixel_values") else v for k, v in singles[1].items()}]
    results = camtool.explain(masked, [*singles, *batches_of_one], [0, 1, [2, 3], 1])
    assert [type(result) for result in results] == [camtool.Explanation, camtool.Explanation, list, camtool.Explanation]
    assert [result.index for result in results[2]] == [2, 3]
    assert np.array_equal(results[1].raw, results[3].raw)


def test_a_list_does_not_take_batches(masked) -> None:
    with pytest.raises(camtool.ImageError, match="an entry of the list holds 3 pictures"):
        camtool.explain(masked, [masked_inputs()])


def test_a_loaders_dictionaries(masked) -> None:
    explainer = camtool.Explainer(masked, method=["gradcam", "layercam"])
    for _ in range(2):
        results = explainer(masked_inputs(2), torch.tensor([0, 3]))
        assert [[each.method for each in by_image] for by_image in results] == [["gradcam", "layercam"]] * 2
        assert [by_image[0].index for by_image in results] == [0, 3]


def test_a_dictionary_may_hold_a_photo(masked) -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))

    def transform(image: Image.Image) -> Tensor:
        return torch.from_numpy(np.asarray(image).copy()).movedim(2, 0).float() / 255

    result = camtool.explain(masked, {"pixel_values": photo, "mode": "signed"}, 1, transform=transform)
    plain = camtool.explain(masked, {"pixel_values": transform(photo), "mode": "signed"}, 1)
    assert np.array_equal(result.photo, np.asarray(photo))
    assert np.array_equal(result.raw, plain.raw)


def test_a_photo_among_several_may_be_a_path_or_an_array(masked, tmp_path) -> None:
    path = tmp_path / "photo.png"
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    results = [
        camtool.explain(masked, {"pixel_values": photo, "mode": "signed"}, 1, picture=picture)
        for photo in (str(path), path, pixels)
        for picture in (None, "pixel_values")
    ]
    assert all(np.array_equal(result.photo, pixels) for result in results)
    assert all(np.array_equal(result.raw, results[0].raw) for result in results)
    with pytest.raises(camtool.ImageError, match=r"none of 'pixel_values', 'mode' is a picture.* or a path"):
        camtool.explain(masked, {"pixel_values": "a text", "mode": "signed"}, 1)


def test_a_models_own_argument_may_be_called_picture() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.head = trunk(), nn.Linear(6, CLASSES)

        def forward(self, mask: Tensor, picture: Tensor) -> Tensor:
            return self.head(self.trunk(picture * mask).mean((2, 3)))

    net, given = Net().eval(), {"mask": torch.ones(2, 1, 16, 16), "picture": torch.randn(2, 3, 16, 16)}
    assert camtool.explain(net, given, 1, picture="picture")[0].heatmap.shape == (16, 16)


# -------------------------------------------------------------------------------------------- several, by position


def test_which_of_two_pictures_is_looked_at() -> None:
    net = Joined().eval()
    one, other = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 24, 32)
    first, second = (camtool.explain(net, camtool.Inputs(one, other), 1, picture=place)[0] for place in (0, 1))
    assert (first.layer, first.heatmap.shape) == ("ones", (16, 16))
    assert (second.layer, second.heatmap.shape) == ("others", (24, 32))
    named = camtool.explain(net, camtool.Inputs(one, other=other, picture="other"), 1)[0]
    assert np.array_equal(named.raw, second.raw)
    assert camtool.explain(net, {"one": one, "other": other}, 1)[0].layer == "ones"


def test_the_picture_is_the_one_that_the_layer_depends_on() -> None:
    net = Joined().eval()
    given = camtool.Inputs(torch.randn(1, 3, 16, 16), torch.randn(1, 3, 24, 32))
    assert camtool.explain(net, given, 1, layer="ones")[0].heatmap.shape == (16, 16)
    assert camtool.explain(net, given, 1, layer="others.2")[0].heatmap.shape == (24, 32)


def test_what_is_shared_is_among_the_inputs() -> None:
    with pytest.raises(camtool.CamtoolError, match=r"shared='tetxs' is none of the inputs.* Did you mean 'texts'"):
        camtool.Inputs(torch.zeros(1, 3, 8, 8), texts=torch.zeros(1, 6), shared="tetxs")
    given = camtool.Inputs(torch.zeros(1, 1, 8, 8), torch.zeros(1, 3, 8, 8), shared=[1])
    assert given.pictures == [0]


def test_a_mask_is_not_taken_for_the_picture() -> None:
    mask, picture = torch.rand(2, 1, 16, 16), torch.randn(2, 3, 16, 16)
    assert camtool.Inputs(mask=mask, pixel_values=picture).pictures == ["pixel_values"]
    assert camtool.Inputs(mask[0], picture[0]).pictures == [1]
    assert camtool.Inputs(mask, mask).pictures == [0, 1]
    assert camtool.Inputs(torch.rand(2, 5), "text", picture, 0.5).pictures == [2]


def test_one_of_several_inputs_may_be_a_signal() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.waves, self.trunk = net_over(1, 2), trunk()
            self.head = nn.Linear(6, CLASSES)

        def forward(self, wave: Tensor, photo: Tensor) -> Tensor:
            return self.waves(wave) + self.head(self.trunk(photo).mean((2, 3)))

    given = {"wave": torch.randn(2, 2, 50), "photo": torch.randn(2, 3, 16, 16)}
    by_place = [camtool.explain(Both().eval(), given, 1, picture=place)[1] for place in (None, "wave")]
    assert [result.view.kind for result in by_place] == ["photo", "signal"]
    assert [result.heatmap.shape for result in by_place] == [(16, 16), (50,)]


def test_the_same_picture_twice_is_two_inputs(siamese) -> None:
    """What is perturbed is the one that is looked at, though the other is the very same tensor."""
    x = torch.randn(1, 3, 16, 16)
    results = [
        camtool.explain(siamese, given, 1, method="rise", picture=0, samples=12, cells=3)[0]
        for given in (camtool.Inputs(x, x), camtool.Inputs(x, x.clone()))
    ]
    assert np.array_equal(results[0].raw, results[1].raw)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (camtool.Inputs(torch.zeros(1, 3, 8, 8)), {"picture": 3}, "picture=3 is none of the inputs, which are 0"),
        ({"image": torch.zeros(1, 3, 8, 8)}, {"picture": "imgae"}, "Did you mean 'image'"),
        ({"ids": torch.zeros(1, 3, dtype=torch.long)}, {}, "none of 'ids' is a picture"),
        ({"ids": torch.zeros(1, 3, dtype=torch.long)}, {"picture": "ids"}, "'ids' holds no floating tensor"),
        ({}, {}, "img holds no arguments"),
        (torch.zeros(1, 3, 8, 8), {"picture": 0}, "picture=0 chooses among several inputs, and img is one"),
        (torch.zeros(1, 3, 8, 8), {"call": "first"}, "call='first' is no whole number"),
        ({3: torch.zeros(1, 3, 8, 8)}, {}, "img has the key 3"),
        (UserDict({"a": torch.zeros(2, 5)}), {"picture": "b"}, "picture='b' is none of the inputs, which are 'a'"),
    ],
)
def test_inputs_that_cannot_be_are_said(given, options, message) -> None:
    with pytest.raises(camtool.CamtoolError, match=message):
        camtool.explain(trunk().eval(), given, **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (camtool.Inputs(torch.zeros(3, 16, 16), torch.zeros(2, 3, 16, 16)), r"0 \(3, 16, 16\) does not go with .* 1 "),
        (camtool.Inputs(torch.zeros(2, 3, 16, 16), torch.zeros(1, 3, 16, 16)), r"give one for .* shared=\[1\]"),
        (camtool.Inputs(torch.zeros(3, 16, 16), torch.zeros(2, 3, 16, 16), picture=0), r"shared=\[1\]"),
        ((torch.zeros(2, 3, 16, 16), torch.zeros(2, 3, 16, 16)), r"a batch \(2, 3, 16, 16\); .* camtool.Inputs\("),
        ((torch.zeros(3, 16, 16), torch.zeros(3, 16, 16)), r"missing .* 'b'\. .* camtool.Inputs\("),
        ({"foo": torch.zeros(2, 3, 16, 16)}, r"unexpected keyword argument 'foo'"),
    ],
)
def test_inputs_that_do_not_go_together_are_said(siamese, given, message) -> None:
    with pytest.raises(camtool.CamtoolError, match=message):
        camtool.explain(siamese, given, 1)


def test_one_that_is_for_all_pictures_is_shared(siamese) -> None:
    a, b = torch.randn(2, 3, 16, 16), torch.randn(1, 3, 16, 16)
    results = camtool.explain(siamese, camtool.Inputs(a, b, picture=0, shared=[1]), 1, call=0)
    expected = camtool.explain(siamese, camtool.Inputs(a, b.expand(2, -1, -1, -1), picture=0), 1, call=0)
    assert_close([each.raw for each in results], [each.raw for each in expected])


def test_a_photo_may_be_shared_and_arrays_of_numbers_keep_their_kind(siamese, masked) -> None:
    photos = np.random.default_rng(0).integers(0, 256, (2, 24, 24, 3), np.uint8)
    prepared = [torch.from_numpy(photo).movedim(2, 0) / 255 for photo in photos]

    def transform(photo: Image.Image) -> Tensor:
        return torch.from_numpy(np.asarray(photo).copy()).movedim(2, 0) / 255

    given = camtool.Inputs(*photos, picture=0, shared=[1])
    expected = camtool.explain(siamese, camtool.Inputs(*prepared, picture=0), 1)
    assert_close(camtool.explain(siamese, given, 1, transform=transform).raw, expected.raw)
    batch = masked_inputs()
    as_arrays = batch | {"mask": batch["mask"].double().numpy()}
    assert np.array_equal(camtool.explain(masked, as_arrays, 1)[1].raw, camtool.explain(masked, batch, 1)[1].raw)


# ------------------------------------------------------------------------------------------- a trunk that runs twice


def test_the_gradients_at_each_call_are_those_of_plain_autograd(siamese) -> None:
    a, b = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
    positions = 4 * 4
    for nth, head, picture in ((0, siamese.left, a), (1, siamese.right, b), (-1, siamese.right, b)):
        scene = Scene(siamese, {nth % 2: picture, 1 - nth % 2: b if nth == 0 else a}, [], nth=nth)
        layers = resolve(siamese, scene.inputs, ["trunk"], nth=nth)
        evidence = Scene(siamese, scene.inputs, layers, nth=nth).evidence([ClassScore(1), ClassScore(2)])[0]
        assert_close(evidence.activations, siamese.trunk(picture).detach())
        expected = (head.weight[[1, 2]] / positions)[:, :, None, None].expand(-1, -1, 4, 4)
        assert_close(evidence.gradients, expected.detach())


def test_the_picture_is_that_of_the_call(siamese) -> None:
    a, b = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 24, 32)
    for options, size in (({}, (24, 32)), ({"call": 0}, (16, 16)), ({"call": 1}, (24, 32)), ({"call": -2}, (16, 16))):
        result = camtool.explain(siamese, camtool.Inputs(a, b), 1, **options)[0]
        assert (result.heatmap.shape, result.layer) == (size, "trunk")
        assert any("call=" in warning for warning in result.warnings) == (not options)


def test_two_pictures_of_one_size_are_told_apart(siamese) -> None:
    a, b = torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16)
    explainer = camtool.Explainer(siamese, layer="trunk")
    alike = camtool.Explainer(siamese, layer="trunk", call=0)
    views = [each(camtool.Inputs(a, b), 1)[0].photo for each in (explainer, alike)]
    shown = [camtool.explain(trunk(), x, 1, layer="2")[0].photo for x in (b, a)]
    assert [np.array_equal(*pair) for pair in zip(views, shown, strict=True)] == [True, True]


@pytest.mark.parametrize("layer", [None, "trunk"])
@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (1, 3, 24, 32)])
def test_a_picture_that_is_named_is_looked_at_where_the_layer_sees_it(siamese, layer, shape) -> None:
    given = camtool.Inputs(torch.randn(shape), torch.randn(1, 3, 16, 16))
    for picture in (0, 1):
        (result,) = camtool.explain(siamese, given, 1, layer=layer, picture=picture)
        (expected,) = camtool.explain(siamese, given, 1, layer="trunk", call=picture)
        assert np.array_equal(result.raw, expected.raw)
        assert np.array_equal(result.photo, expected.photo)
    assert camtool.candidate_layers(siamese, given, picture=0).chosen.name == "trunk"


@pytest.mark.parametrize("layer", ["trunk", "trunk.2"])
def test_the_map_of_one_picture_is_never_drawn_on_another(siamese, layer) -> None:
    given = camtool.Inputs(torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16), picture=1)
    with pytest.raises(camtool.LayerError, match=rf"layer {layer} does not depend on input 1 at call=0; .* call="):
        camtool.explain(siamese, given, 1, layer=layer, call=0)
    joined = Joined().eval()
    with pytest.raises(camtool.LayerError, match="layer ones does not depend on input 1; "):
        camtool.explain(joined, given, 1, layer="ones")
    with pytest.raises(camtool.LayerError, match=r"layer ones \+ others does not depend on input 1; "):
        camtool.explain(joined, given, 1, layer=["ones", "others"])


def test_a_layer_that_ran_twice_names_the_option(siamese) -> None:
    (result,) = camtool.explain(siamese, camtool.Inputs(torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16)), 1)
    (warning,) = result.warnings
    assert warning.startswith("Layer 'trunk' ran 2 times in one forward; the map is of the last time.")
    assert warning.endswith("Choose another with call=: 0 is the first, 1 the last.")


@pytest.mark.parametrize(
    ("layer", "message"), [("trunk", "ran 2 times .* no call=2; choose -2 to 1"), (None, "at call=2, which")]
)
def test_a_call_that_is_not_there(siamese, layer, message) -> None:
    given = camtool.Inputs(torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16))
    with pytest.raises(camtool.LayerError, match=message):
        camtool.explain(siamese, given, 1, layer=layer, call=2)


@pytest.mark.parametrize("nth", [0, 1])
def test_the_tail_goes_on_from_the_call_that_is_looked_at(siamese, nth) -> None:
    a, b = torch.randn(2, 2, 3, 16, 16)
    inputs = {0: a, 1: b} if nth == 0 else {1: b, 0: a}
    scene = Scene(siamese, inputs, resolve(siamese, inputs, ["trunk"], nth=nth), nth=nth)
    (evidence,) = scene.evidence([ClassScore(1)] * 2)
    heads = (siamese.left, siamese.right)
    still = heads[1 - nth](siamese.trunk((a, b)[1 - nth]).mean((2, 3))).detach()
    for row in range(2):
        variants = torch.randn(3, 6, 4, 4)
        expected = heads[nth](variants.mean((2, 3))).detach() + still[row]
        assert_close(evidence.tail(variants, row), expected[:, 1])


def test_the_tail_goes_on_where_the_other_branch_has_one_image_only() -> None:
    """Three variants of one branch do not go together with a single image in the other."""
    net, (one, other) = Joined().eval(), torch.randn(2, 2, 3, 16, 16)
    inputs = {1: other, 0: one}
    (evidence,) = Scene(net, inputs, resolve(net, inputs, ["others"])).evidence([ClassScore(1)] * 2)
    variants = torch.randn(3, 6, 4, 4)
    still = net.ones(one)[1].mean((1, 2)).expand(3, -1)
    expected = net.head(torch.cat([still, variants.mean((2, 3))], 1)).detach()[:, 1]
    assert_close(evidence.tail(variants, row=1), expected)


# ------------------------------------------------------------------------------------ asking again, every method


def test_extras_follow_their_image(masked) -> None:
    inputs = masked_inputs()
    ordered = {"pixel_values": inputs["pixel_values"], **inputs}
    scene = Scene(masked, ordered, resolve(masked, ordered, ["trunk"]))
    (evidence,) = scene.evidence([ClassScore(1)] * 3)
    changed = torch.randn(3, 3, 24, 32)

    def truth(image: int, pictures: Tensor) -> Tensor:
        count = len(pictures)
        own = {"ids": inputs["ids"][image].expand(count, -1), "mask": inputs["mask"][image].expand(count, -1, -1)}
        return masked(pixel_values=pictures, temperature=0.7, mode="signed", **own)["logits"][:, 1].detach()

    for image in range(3):
        assert_close(evidence.score(changed, row=image), truth(image, changed))
        assert_close(evidence.passes([image], 3, lambda part: changed[part])[:, 0], truth(image, changed))
    each = torch.cat([truth(image, changed[image : image + 1]) for image in range(3)])
    assert_close(evidence.again(changed).scores, each)
    assert_close(evidence.on_graph(changed).detach(), each)
    (shuffled,) = scene.evidence([ClassScore(1)] * 4, [2, 0, 0, 1])
    expected = torch.cat([truth(image, changed[:1]) for image in (2, 0, 0, 1)])
    assert_close(shuffled.on_graph(changed[:1].expand(4, -1, -1, -1)).detach(), expected)


NEED_ATTENTION = ("rollout", "chefer", "agcam", "legrad", "gradeclip", "vitreciprocam")
METHODS = [*camtool.METHODS, "noise:gradcam", "tta:gradcam"]


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("cam", "cameras", *NEED_ATTENTION)])
def test_every_method_takes_several_inputs_and_a_batch_is_the_singles(masked, method) -> None:
    inputs, options = masked_inputs(2), OPTIONS.get(method, {})
    before = copy.deepcopy(masked.state_dict())
    together = camtool.explain(masked, inputs, 1, method=method, **options)
    for image, result in enumerate(together):
        single = camtool.explain(masked, alone(inputs, image), 1, method=method, **options)
        assert result.raw.ndim == 2
        assert_same_explanation(result, single)
    assert not masked._forward_hooks
    assert all(torch.equal(before[key], value) for key, value in masked.state_dict().items())


@pytest.mark.parametrize("method", ["scorecam", "rise", "ablationcam", "noise:gradcam", "gradcam", "opticam"])
@pytest.mark.parametrize("nth", [0, 1])
def test_perturbing_methods_take_a_trunk_that_runs_twice(siamese, method, nth) -> None:
    a, b = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 24, 24)
    given = camtool.Inputs(a, b, picture=nth)
    results = camtool.explain(siamese, given, 1, method=method, call=nth, **OPTIONS.get(method, {}))
    for result in results:
        assert result.heatmap.shape == ((16, 16), (24, 24))[nth]
        assert np.isfinite(result.raw).all()
        assert np.ptp(result.raw) > 0


def test_nothing_is_left_behind_even_by_a_failure(siamese) -> None:
    siamese.train()
    given = camtool.Inputs(torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16))
    wrong = camtool.Inputs(torch.randn(1, 5, 16, 16), torch.randn(1, 3, 16, 16), picture=0)
    state = torch.get_rng_state()
    camtool.explain(siamese, given, 1)
    with pytest.raises(camtool.LayerError):
        camtool.explain(siamese, given, 1, layer="trunk", call=7)
    with pytest.raises(RuntimeError):
        camtool.explain(siamese, wrong, 1)
    assert all(module.training for module in siamese.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in siamese.modules())
    assert all(parameter.grad is None for parameter in siamese.parameters())
    assert torch.equal(state, torch.get_rng_state())


# ------------------------------------------------------------------------------------------------ kinds of input

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
POOLS = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


def net_over(axes: int, channels: int) -> nn.Module:
    convolution = CONVOLUTIONS[axes]
    layers = [convolution(channels, 6, 5, 2, 2), nn.ReLU(), convolution(6, 6, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, POOLS[axes](1), nn.Flatten(), nn.Linear(6, CLASSES)).eval()


def spotter(axes: int) -> nn.Module:
    """Its score is the sum of what is above 2, so only a spike can be the evidence; the stride is 2."""
    net = nn.Sequential(CONVOLUTIONS[axes](1, 1, 2, 2), nn.ReLU(), POOLS[axes](1), nn.Flatten(), nn.Linear(1, 2))
    nn.init.ones_(net[0].weight)
    nn.init.constant_(net[0].bias, -2)
    net[4].weight.data = torch.tensor([[1.0], [-1.0]])
    return net.eval()


@pytest.mark.parametrize(
    ("shape", "kind", "size"),
    [
        ((2, 3, 100), "signal", (100,)),
        ((2, 1, 8, 10, 12), "volume", (8, 10, 12)),
        ((2, 3, 8, 10, 12), "clip", (8, 10, 12)),
        ((2, 3, 16, 20), "photo", (16, 20)),
    ],
)
def test_the_model_tells_what_its_input_is(shape, kind, size) -> None:
    net = net_over(len(size), shape[1])
    batch = torch.randn(shape)
    results = camtool.explain(net, batch, 1, method=["gradcam", "layercam"])
    assert [[each.view.kind for each in by_image] for by_image in results] == [[kind] * 2] * 2
    assert all(result.heatmap.shape == size for by_image in results for result in by_image)
    single = camtool.explain(net, batch[1], 1)
    assert isinstance(single, camtool.Explanation)
    assert_close(single.raw, results[1][0].raw)
    listed = camtool.explain(net, [batch[0], batch[1]], [1, 2])
    assert [each.index for each in listed] == [1, 2]
    assert_close(listed[0].raw, results[0][0].raw)


@pytest.mark.parametrize("place", [20, 61, 90])
def test_the_evidence_of_a_signal_is_where_it_is_known_to_be(place) -> None:
    signal = torch.full((1, 100), 0.1)
    signal[0, place] = 5
    result = camtool.explain(spotter(1), signal, 0, method="hirescam", layer="1")
    assert abs(int(result.heatmap.argmax()) - place) <= 1
    assert result.heatmap[: place - 3].max() < 0.01
    assert result.heatmap[place + 4 :].max() < 0.01


@pytest.mark.parametrize("place", [(2, 5, 7), (6, 1, 12)])
def test_the_evidence_of_a_volume_is_where_it_is_known_to_be(place) -> None:
    volume = torch.full((1, 8, 10, 14), 0.1)
    volume[0][place] = 5
    result = camtool.explain(spotter(3), volume, 0, method="hirescam", layer="1")
    peak = np.unravel_index(result.heatmap.argmax(), result.heatmap.shape)
    assert max(abs(int(at) - known) for at, known in zip(peak, place, strict=True)) <= 1
    assert result.frames().shape == (8, 10, 14, 3)
    assert result.masked().shape[2] == 3


def test_an_array_is_a_signal_where_the_model_takes_signals(tmp_path) -> None:
    net, values = net_over(1, 2), np.random.default_rng(0).standard_normal((2, 100))
    result = camtool.explain(net, values, 1)
    expected = camtool.explain(net, torch.from_numpy(values).float(), 1)
    assert np.array_equal(result.raw, expected.raw)
    assert len(camtool.explain(net, values[None], 1)) == 1
    backwards = camtool.explain(net, values[:, ::-1], 1)
    assert np.array_equal(backwards.raw, camtool.explain(net, values[:, ::-1].copy(), 1).raw)
    assert result.save(tmp_path / "signal.png").stat().st_size > 1000
    assert result._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(camtool.CamtoolError, match="a signal has no boxes"):
        result.boxes()


def test_the_kind_can_be_said() -> None:
    net = net_over(3, 3)
    batch = torch.randn(1, 3, 8, 10, 12)
    assert camtool.explain(net, batch, 1, kind="volume")[0].view.kind == "volume"
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 100, CLASSES)).eval()
    result = camtool.explain(flat, torch.randn(2, 3, 100), 1, method="inputxgradient", kind="signal")
    assert [each.heatmap.shape for each in result] == [(100,), (100,)]


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        ("singal", (1, 3, 8, 8), "kind='singal' is unknown; it is one of 'signal', 'picture'"),
        ("signal", (1, 3, 8, 8), r"kind='signal' is \(N, C, L\), .* \(1, 3, 8, 8\)"),
        ("clip", (3, 8, 8), r"kind='clip' is \(N, C, D, H, W\)"),
    ],
)
def test_a_kind_that_cannot_be_is_said(kind, shape, message) -> None:
    with pytest.raises(camtool.ImageError, match=message):
        camtool.explain(trunk().eval(), torch.zeros(shape), kind=kind)


def test_a_signal_of_whole_numbers_is_refused() -> None:
    with pytest.raises(camtool.ImageError, match=r"a prepared signal is floating \(C, L\), got torch.int64 \(3, 100\)"):
        camtool.explain(net_over(1, 3), torch.zeros(3, 100, dtype=torch.long))


def test_the_convolutions_are_looked_through_once(monkeypatch) -> None:
    net = net_over(1, 3)
    assert kind_of(net, (1, 3, 50)) == "signal"
    monkeypatch.setattr(nn.Module, "modules", lambda module: pytest.fail("the model is walked through again"))
    assert kind_of(net, (3, 50)) == "signal"


@pytest.mark.parametrize("first", [True, False])
def test_a_convolution_over_channels_does_not_make_a_signal(first) -> None:
    """Some networks weigh their channels by a convolution over one axis, and one may be written down first."""

    class Weighing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Conv1d(1, 1, 3, padding=1) if first else nn.Identity()
            self.trunk, self.head = trunk(), nn.Linear(6, CLASSES)
            self.behind = nn.Identity() if first else nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.behind(self.before(self.trunk(x).mean((2, 3))[:, None]))[:, 0])

    net, batch = Weighing().eval(), torch.rand(2, 3, 32, 40)
    assert kind_of(net, (3, 16, 20)) == "picture"
    results = camtool.explain(net, batch, 1)
    assert_close(camtool.explain(net, batch[1], 1).raw, results[1].raw)
    for pixels in (np.zeros((32, 40, 3), np.uint8), np.arange(32 * 40, dtype=np.uint8).reshape(32, 40)):
        assert camtool.explain(net, pixels, 1).heatmap.shape == (32, 40)


@pytest.mark.parametrize("shape", [(2, 8, 3, 16, 16), (8, 3, 16, 16)])
def test_frames_before_the_channels_are_refused(shape) -> None:
    with pytest.raises(camtool.ImageError, match=r"\(N, T, C, H, W\); camtool reads clips as \(N, C, T, H, W\)"):
        camtool.explain(net_over(3, 3), torch.zeros(shape))


def test_a_model_that_wants_frames_first_may_be_wrapped() -> None:
    class Turned(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, clip: Tensor) -> Tensor:
            return self.net(clip.transpose(1, 2))

    net, clip = net_over(3, 3), torch.randn(1, 3, 8, 16, 16)
    frames_first = Turned(net)
    with pytest.raises(camtool.ImageError, match="frames before its channels"):
        camtool.explain(frames_first, clip.transpose(1, 2), 1)
    assert_close(camtool.explain(Turned(frames_first), clip, 1)[0].raw, camtool.explain(net, clip, 1)[0].raw)


@pytest.mark.parametrize(
    ("axes", "channels", "shape"), [(3, 2, (2, 16, 32, 48)), (2, 1, (1, 32, 48)), (1, 3, (3, 32, 48))]
)
def test_an_example_is_of_the_kind_that_the_model_takes(axes, channels, shape) -> None:
    assert example_shape(net_over(axes, channels), 32, 48) == shape


@pytest.mark.parametrize("kind", [None, "clip", "volume"])
def test_frames_are_refused_though_there_are_as_many_as_channels(kind) -> None:
    net = net_over(3, 3)
    net.config = SimpleNamespace(num_frames=3, num_channels=3)
    with pytest.raises(camtool.ImageError, match="Wrap a model that wants frames first"):
        camtool.explain(net, torch.zeros(1, 3, 3, 16, 16), kind=kind)


def test_a_model_of_clips_takes_no_photo() -> None:
    for axes, message in ((1, r"takes a signal \(C, L\)"), (3, r"takes a volume \(C, D, H, W\)")):
        with pytest.raises(camtool.ImageError, match=f"img: a photo, but the model {message}"):
            camtool.explain(net_over(axes, 3), Image.new("RGB", (32, 32)))


# ------------------------------------------------------------------------------------------- channels and types


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_photo_is_made_grey_for_a_model_of_one_channel(mode) -> None:
    colours = Image.fromarray(np.random.default_rng(0).integers(0, 256, (240, 260, 3), np.uint8))
    photo, net = colours.convert("L").convert(mode), net_over(2, 1)
    result = camtool.explain(net, photo, 1)
    grey = np.asarray(photo.convert("L").resize((277, 256), Image.Resampling.BILINEAR))[16:240, 26:250]
    prepared = (torch.from_numpy(grey / np.float32(255)) - 0.449) / 0.226
    assert_close(result.raw, camtool.explain(net, prepared[None], 1).raw, atol=1e-3, rtol=1e-2)
    assert result.heatmap.shape == (240, 260)
    assert any("made grey" in warning for warning in result.warnings)


@pytest.mark.parametrize("given", [torch.float64, torch.float16])
def test_a_tensor_becomes_of_the_type_that_the_model_computes_in(given) -> None:
    net, batch = net_over(2, 3), torch.randn(2, 3, 16, 16)
    expected = camtool.explain(net, batch.to(given).float(), 1)[1].raw
    assert np.array_equal(camtool.explain(net, batch.to(given), 1)[1].raw, expected)
    assert np.array_equal(camtool.explain(net, {"input": batch.to(given)}, 1)[1].raw, expected)
    assert camtool.explain(net.double(), batch.double(), 1)[1].view.photo.shape == (16, 16, 3)
    assert kind_of(net, (2, 3, 16, 20)) == "picture"


@pytest.mark.parametrize("name", [name for name in camtool.METHODS if name not in ("cam", *NEED_ATTENTION)])
@pytest.mark.parametrize("shape", [(2, 3, 60), (1, 1, 8, 10, 12)], ids=["signal", "volume"])
def test_every_method_takes_signals_and_volumes(name, shape) -> None:
    net = net_over(len(shape) - 2, shape[1])
    for result in camtool.explain(net, torch.randn(shape), 1, method=name, **OPTIONS.get(name, {})):
        assert result.raw.ndim == len(shape) - 2
        assert result.heatmap.shape == shape[2:]
        assert np.isfinite(result.raw).all()


@pytest.mark.parametrize("stride", [(1, 4, 4), (4, 4, 1), (1, 2, 4)])
def test_each_axis_of_a_volume_may_have_a_stride_of_its_own(stride) -> None:
    net = nn.Sequential(nn.Conv3d(1, 6, 3, stride, 1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    net = nn.Sequential(*net, nn.Linear(6, CLASSES)).eval()
    result = camtool.explain(net, torch.randn(1, 1, 16, 16, 16), 1)[0]
    assert result.raw.shape == tuple(16 // step for step in stride)


def test_tokens_over_time_are_laid_out_as_the_convolution_that_made_them() -> None:
    layout = token_layout(1 + 8 * 7 * 7, (16, 224, 224), [(8, 56, 56)])
    assert (layout.grid, layout.prefix) == ((8, 7, 7), 1)
    assert token_layout(1 + 8 * 7 * 6, (16, 224, 224), [(8, 56, 56)]) is None


def small_mvit() -> nn.Module:
    """Tokens over time: the frames are pooled from block to block, the time is not, and a class token comes first."""

    def block(channels: int, wider: int, pool: list[int]) -> MSBlockConfig:
        return MSBlockConfig(2, channels, wider, [3, 3, 3], [3, 3, 3], pool, [1, 2, 2])

    blocks = [block(16, 32, [1, 1, 1]), block(32, 32, [1, 2, 2]), block(32, 32, [1, 2, 2])]
    switches = {"residual_with_cls_embed": True, "rel_pos_embed": False, "proj_after_attn": False}
    return MViT((64, 64), 8, blocks, residual_pool=False, **switches).eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("r3d_18", (8, 64, 80)),
        ("mc3_18", (8, 64, 64)),
        ("r2plus1d_18", (8, 64, 64)),
        ("s3d", (16, 224, 224)),
        ("small_mvit", (8, 64, 64)),
        ("swin3d_t", (8, 64, 96)),
    ],
)
def test_video_models(name, shape) -> None:
    net = small_mvit() if name == "small_mvit" else getattr(video, name)(weights=None).eval()
    results = camtool.explain(net, torch.randn(1, 3, *shape), [list(range(6))])[0]
    for result in results:
        assert (result.view.kind, result.heatmap.shape, len(result.raw.shape)) == ("clip", shape, 3)
        assert min(result.raw.shape[1:]) > 1
    assert any(np.ptp(result.raw) > 0 for result in results)
