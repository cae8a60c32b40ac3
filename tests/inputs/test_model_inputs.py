"""Calls of the model with several inputs, by position or name, and a backbone that runs twice in one forward pass."""

from __future__ import annotations

import copy
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import ImageError, LayerError
from camtool.evidence.evidence import gather_evidence
from camtool.evidence.forward_pass import PassSettings, run_forward_pass
from camtool.evidence.rescoring import run_forward, run_tail, score_inputs, score_with_graph
from camtool.hooks.model_passes import run_model
from camtool.hooks.structures.nested_tensors import map_batch
from camtool.layers.selection import find_layers
from camtool.targets import ClassScore
from tests.helpers.comparison import assert_same_explanation
from tests.helpers.method_lists import FOR_CLASSIFIERS

CLASSES = 4
OPTIONS: dict[str, dict[str, Any]] = {"rise": {"samples": 12, "cells": 3}}


def trunk(channels: int = 3) -> nn.Sequential:
    layers = [nn.Conv2d(channels, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers)


class Siamese(nn.Module):
    """One trunk for both images; a score is the sum of ``left`` for the first and ``right`` for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = trunk()
        self.left, self.right = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)
        # With positive weights no rectified map is empty.
        for head in (self.left, self.right):
            head.weight.data[1].abs_()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        first, second = (self.trunk(image).mean((2, 3)) for image in (a, b))
        return self.left(first) + self.right(second)


class Joined(nn.Module):
    """A trunk for each image, concatenated so that both batches must have one size."""

    def __init__(self) -> None:
        super().__init__()
        self.ones, self.others = trunk(), trunk()
        self.head = nn.Linear(12, CLASSES)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.head(torch.cat([self.ones(one).mean((2, 3)), self.others(other).mean((2, 3))], 1))


class Masked(nn.Module):
    """Keyword arguments of all kinds: integers, images, a mask for each, and arguments without a batch axis."""

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


def make_masked_inputs(count: int = 3, size: tuple[int, int] = (24, 32)) -> dict[str, Any]:
    return {
        "ids": torch.randint(10, (count, 5)),
        "mask": (torch.rand(count, *size) > 0.3).float(),
        "pixel_values": torch.randn(count, 3, *size),
        "temperature": torch.tensor(0.7),
        "mode": "signed",
    }


def select_image(inputs: dict[str, Any], image: int) -> dict[str, Any]:
    own = {"ids", "mask", "pixel_values"}
    return {key: value[image] if key in own else value for key, value in inputs.items()}


@pytest.fixture
def siamese() -> Siamese:
    return Siamese().eval()


@pytest.fixture
def masked() -> Masked:
    return Masked().eval()


# --------------------------------------------------------------------------------------------------- calls of the model


def test_integer_keys_are_positional_arguments() -> None:
    class Echo(nn.Module):
        def forward(self, *args: Any, **keywords: Any) -> Any:
            return args, keywords

    given = {1: "second", "k": "named", 0: "first"}
    assert run_model(Echo(), given) == (("first", "second"), {"k": "named"})


def test_arguments_without_a_batch_axis_are_passed_unchanged() -> None:
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
    """Similarity of each image to each text, ``(N, T)``; the forward pass overwrites the texts."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = trunk()

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        return self.trunk(images).mean((2, 3)) @ texts.mul_(2).T


@pytest.mark.parametrize("method", ["gradcam", "scorecam", "rise", "ablationcam", "noise:gradcam"])
def test_shared_arguments_are_not_split_with_the_batch(method) -> None:
    net, images, texts = Compared().eval(), torch.randn(2, 3, 16, 16), torch.rand(2, 6)
    kept, options = texts.clone(), OPTIONS.get(method, {})
    given = camtool.Inputs(images, texts, shared=[1])
    results = camtool.explain(net, given, 1, method=method, **options)
    assert torch.equal(texts, kept)
    expected = net(images, texts.clone())[:, 1]
    assert_close(torch.tensor([result.score for result in results]), expected.detach())
    single = camtool.explain(net, camtool.Inputs(images[1], texts=texts, shared="texts"), 1, method=method, **options)
    assert_same_explanation(single, results[1])


class Weighted(Compared):
    """The same, with a weight of each image."""

    def forward(self, images: Tensor, weights: Tensor, texts: Tensor) -> Tensor:
        return weights[:, None] * super().forward(images, texts)


@pytest.mark.parametrize("method", ["gradcam", "occlusion", "ablationcam"])
def test_as_many_texts_as_images_are_found_to_be_shared(method) -> None:
    """Two texts beside two images look like pairs; the weights are pairs."""
    net, images, texts = Weighted().eval(), torch.randn(2, 3, 16, 16), torch.rand(2, 6)
    weights, options = torch.tensor([1.0, -3.0]), OPTIONS.get(method, {})
    expected = net(images, weights, texts.clone())
    for size in (1, 2):
        results = camtool.explain(
            net, camtool.Inputs(images, weights, texts, image=0), 1, method=method, batch_size=size, **options
        )
        assert_close(torch.tensor([result.score for result in results]), expected[:, 1].detach())
        for at, result in enumerate(results):
            inputs = camtool.Inputs(images[at : at + 1], weights[at : at + 1], texts, image=0, shared=[2])
            assert_same_explanation(camtool.explain(net, inputs, 1, method=method, **options)[0], result)


class Coupled(Compared):
    """Scores of an image depend on the other images of the batch."""

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        return super().forward(images - images.mean(0), texts)


def test_scores_that_depend_on_the_batch_leave_it_open_what_is_shared() -> None:
    with pytest.raises(ImageError, match=r"not certain which of .*1.* have a row for each of the 2.*shared=\[1\]"):
        camtool.explain(Coupled().eval(), camtool.Inputs(torch.randn(2, 3, 16, 16), torch.rand(2, 6), image=0), 1)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = trunk(), trunk()

    def forward(self, images: Tensor, branch: str = "a") -> Tensor:
        return getattr(self, branch)(images).mean((2, 3))


def test_plain_arguments_choose_the_layer() -> None:
    net, images = Branches().eval(), torch.rand(1, 3, 16, 16)
    layers = [camtool.explain(net, camtool.Inputs(images, branch=name), 0)[0].layer for name in "aba"]
    assert [layer[0] for layer in layers] == ["a", "b", "a"]


class Dealt(nn.Module):
    """Similarity of each image to its texts, which are dealt out to the images, as in OWL-ViT."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = trunk()

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        texts = texts.unflatten(0, (len(images), -1))
        features = self.trunk(images).mean((2, 3)) * texts.sum(1)
        return torch.einsum("nc,nkc->nk", features, texts.expand(-1, 2, -1))


@pytest.mark.parametrize("method", ["gradcam", "inputxgradient", "fullgrad", "opticam"])
def test_several_classes_of_one_image_get_all_shared_arguments(method: str) -> None:
    """More images at once would be fewer texts for each of them, silently."""
    inputs = camtool.Inputs(torch.rand(1, 3, 16, 16), torch.rand(2, 6), shared=[1])
    net, options = Dealt().eval(), {"steps": 2} if method == "opticam" else {}
    (results,) = camtool.explain(net, inputs, [[0, 1]], method=method, **options)
    for target, result in enumerate(results):
        (single,) = camtool.explain(net, inputs, target, method=method, **options)
        assert_close(result.raw, single.raw)


# ---------------------------------------------------------------------------------------------------- dictionaries


def test_a_dictionary_of_a_batch_equals_its_single_images(masked) -> None:
    inputs = make_masked_inputs()
    results = camtool.explain(masked, inputs, [1, 2, 3])
    assert [result.index for result in results] == [1, 2, 3]
    for image, result in enumerate(results):
        single = camtool.explain(masked, select_image(inputs, image), image + 1)
        assert isinstance(single, camtool.Explanation)
        assert_close(result.raw, single.raw)
        assert result.score == pytest.approx(single.score, rel=1e-5)
        assert result.heatmap.shape == (24, 32)


def test_the_other_inputs_change_the_explanation(masked) -> None:
    inputs = make_masked_inputs()
    other = {**inputs, "ids": torch.randint(10, (3, 5))}
    one, two = (camtool.explain(masked, each, 0, method="hirescam")[0] for each in (inputs, other))
    assert one.score != pytest.approx(two.score)
    assert not np.allclose(one.raw, two.raw)


def test_the_order_of_keywords_does_not_matter(masked) -> None:
    inputs = make_masked_inputs()
    reference = camtool.explain(masked, inputs, 1)
    for keys in (sorted(inputs), sorted(inputs, reverse=True)):
        for result, expected in zip(camtool.explain(masked, {k: inputs[k] for k in keys}, 1), reference, strict=True):
            assert np.array_equal(result.raw, expected.raw)


def test_the_gradient_equals_that_of_autograd_with_the_same_inputs(masked) -> None:
    inputs = make_masked_inputs()
    result = camtool.explain(masked, inputs, 2, layer="trunk", method=lambda evidence: evidence.gradients.sum(1))
    features = masked.trunk(inputs["pixel_values"] * inputs["mask"][:, None]).detach().requires_grad_()
    pooled = features.mean((2, 3)) * masked.words(inputs["ids"]).mean(1)
    (expected,) = torch.autograd.grad((masked.head(pooled) / 0.7)[:, 2].sum(), features)
    assert_close(torch.from_numpy(np.stack([each.raw for each in result])), expected.sum(1))


def test_batch_size_splits_all_inputs(masked) -> None:
    inputs = make_masked_inputs(5)
    sizes = []
    masked.register_forward_hook(lambda module, args, output: sizes.append(len(output["logits"])))
    whole = camtool.explain(masked, inputs, 1)
    sizes.clear()
    parts = camtool.explain(masked, inputs, 1, batch_size=2)
    assert sizes == [2, 2, 1]
    for one, other in zip(whole, parts, strict=True):
        assert_close(one.raw, other.raw)


def test_the_output_of_a_hugging_face_processor_is_a_dictionary(masked) -> None:
    inputs = make_masked_inputs()
    results = camtool.explain(masked, UserDict(inputs), 1)
    assert np.array_equal(results[2].raw, camtool.explain(masked, inputs, 1)[2].raw)


def test_a_list_of_dictionaries_gives_one_explanation_each(masked) -> None:
    inputs = make_masked_inputs()
    singles = [select_image(inputs, image) for image in range(3)]
    batches_of_one = [{k: v[None] if k in ("ids", "mask", "pixel_values") else v for k, v in singles[1].items()}]
    results = camtool.explain(masked, [*singles, *batches_of_one], [0, 1, [2, 3], 1])
    assert [isinstance(result, camtool.Explanation) for result in results] == [True, True, False, True]
    assert [result.index for result in results[2]] == [2, 3]
    assert np.array_equal(results[1].raw, results[3].raw)


def test_a_list_of_batches_raises_an_error(masked) -> None:
    with pytest.raises(camtool.ImageError, match="an entry of the list holds 3 images"):
        camtool.explain(masked, [make_masked_inputs()])


def test_dictionaries_of_a_loader_are_explained(masked) -> None:
    explainer = camtool.Explainer(masked, method=["gradcam", "layercam"])
    for _ in range(2):
        results = explainer(make_masked_inputs(2), torch.tensor([0, 3]))
        assert [[each.method for each in by_image] for by_image in results] == [["gradcam", "layercam"]] * 2
        assert [by_image[0].index for by_image in results] == [0, 3]


def test_a_dictionary_may_hold_an_image(masked) -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))

    def transform(image: Image.Image) -> Tensor:
        return torch.from_numpy(np.asarray(image).copy()).movedim(2, 0).float() / 255

    result = camtool.explain(masked, {"pixel_values": photo, "mode": "signed"}, 1, transform=transform)
    plain = camtool.explain(masked, {"pixel_values": transform(photo), "mode": "signed"}, 1)
    assert np.array_equal(result.photo, np.asarray(photo))
    assert np.array_equal(result.raw, plain.raw)


def test_the_image_in_a_dictionary_may_be_a_path_or_an_array(masked, tmp_path) -> None:
    path = tmp_path / "photo.png"
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    results = [
        camtool.explain(masked, {"pixel_values": photo, "mode": "signed"}, 1, image=image)
        for photo in (str(path), path, pixels)
        for image in (None, "pixel_values")
    ]
    assert all(np.array_equal(result.photo, pixels) for result in results)
    assert all(np.array_equal(result.raw, results[0].raw) for result in results)
    with pytest.raises(camtool.ImageError, match=r"none of 'pixel_values', 'mode' is an image.* or a path"):
        camtool.explain(masked, {"pixel_values": "a text", "mode": "signed"}, 1)


def test_inputs_name_the_image_by_its_key() -> None:
    images = torch.zeros(2, 3, 8, 8)
    with pytest.raises(camtool.CamtoolError, match=r"image= names the input .* Tensor came.*give a dictionary"):
        camtool.Inputs(image=images, text=torch.zeros(2, 5))
    with pytest.raises(camtool.CamtoolError, match=r"picture= is called image= here: .*image=1"):
        camtool.Inputs(images, images, picture=1)
    assert camtool.Inputs(picture=images).entries == {"picture": images}


def test_an_argument_of_the_model_may_be_named_image() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.head = trunk(), nn.Linear(6, CLASSES)

        def forward(self, mask: Tensor, image: Tensor) -> Tensor:
            return self.head(self.trunk(image * mask).mean((2, 3)))

    net, given = Net().eval(), {"mask": torch.ones(2, 1, 16, 16), "image": torch.randn(2, 3, 16, 16)}
    assert camtool.explain(net, given, 1, image="image")[0].heatmap.shape == (16, 16)


# --------------------------------------------------------------------------------------------------- inputs by position


def test_the_image_to_explain_is_selected_by_position_or_name() -> None:
    net = Joined().eval()
    one, other = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 24, 32)
    first, second = (camtool.explain(net, camtool.Inputs(one, other), 1, image=place)[0] for place in (0, 1))
    assert (first.layer, first.heatmap.shape) == ("ones", (16, 16))
    assert (second.layer, second.heatmap.shape) == ("others", (24, 32))
    inputs = camtool.Inputs(one, other, image=np.int64(1))
    named = camtool.explain(net, camtool.Inputs(one, other=other, image="other"), 1)[0]
    for same in (named, camtool.explain(net, inputs, 1)[0], camtool.explain(net, inputs, 1, image=np.int64(1))[0]):
        assert np.array_equal(same.raw, second.raw)
    assert camtool.explain(net, {"one": one, "other": other}, 1)[0].layer == "ones"


def test_the_layer_selects_the_image_that_it_depends_on() -> None:
    net = Joined().eval()
    given = camtool.Inputs(torch.randn(1, 3, 16, 16), torch.randn(1, 3, 24, 32))
    assert camtool.explain(net, given, 1, layer="ones")[0].heatmap.shape == (16, 16)
    assert camtool.explain(net, given, 1, layer="others.2")[0].heatmap.shape == (24, 32)


def test_shared_names_an_existing_input() -> None:
    with pytest.raises(camtool.CamtoolError, match=r"shared='tetxs' is none of the inputs.* Did you mean 'texts'"):
        camtool.Inputs(torch.zeros(1, 3, 8, 8), texts=torch.zeros(1, 6), shared="tetxs")
    for shared in ([1], 1, np.int64(1)):
        given = camtool.Inputs(torch.zeros(1, 1, 8, 8), torch.zeros(1, 3, 8, 8), shared=shared)
        assert given.find_image_candidates() == [0]


def test_a_mask_is_not_selected_as_the_image() -> None:
    mask, image = torch.rand(2, 1, 16, 16), torch.randn(2, 3, 16, 16)
    assert camtool.Inputs(mask=mask, pixel_values=image).find_image_candidates() == ["pixel_values"]
    assert camtool.Inputs(mask[0], image[0]).find_image_candidates() == [1]
    assert camtool.Inputs(mask, mask).find_image_candidates() == [0, 1]
    assert camtool.Inputs(torch.rand(2, 5), "text", image, 0.5).find_image_candidates() == [2]


def test_one_of_several_inputs_may_be_a_signal() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            convolutions = [nn.Conv1d(2, 6, 5, 2, 2), nn.ReLU(), nn.Conv1d(6, 6, 3, 2, 1), nn.ReLU()]
            self.waves = nn.Sequential(*convolutions, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, CLASSES))
            self.trunk = trunk()
            self.head = nn.Linear(6, CLASSES)

        def forward(self, wave: Tensor, photo: Tensor) -> Tensor:
            return self.waves(wave) + self.head(self.trunk(photo).mean((2, 3)))

    given = {"wave": torch.randn(2, 2, 50), "photo": torch.randn(2, 3, 16, 16)}
    by_place = [camtool.explain(Both().eval(), given, 1, image=place)[1] for place in (None, "wave")]
    assert [result.view.kind for result in by_place] == ["photo", "signal"]
    assert [result.heatmap.shape for result in by_place] == [(16, 16), (50,)]


def test_the_same_tensor_twice_is_two_inputs(siamese) -> None:
    """Only the explained input is perturbed, even if the other one is the same tensor object."""
    x = torch.randn(1, 3, 16, 16)
    results = [
        camtool.explain(siamese, given, 1, method="rise", image=0, samples=12, cells=3)[0]
        for given in (camtool.Inputs(x, x), camtool.Inputs(x, x.clone()))
    ]
    assert np.array_equal(results[0].raw, results[1].raw)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (camtool.Inputs(torch.zeros(1, 3, 8, 8)), {"image": 3}, "image=3 is none of the inputs: 0"),
        ({"image": torch.zeros(1, 3, 8, 8)}, {"image": "imgae"}, "Did you mean 'image'"),
        ({"ids": torch.zeros(1, 3, dtype=torch.long)}, {}, "none of 'ids' is an image"),
        ({"ids": torch.zeros(1, 3, dtype=torch.long)}, {"image": "ids"}, "'ids' holds no floating tensor"),
        ({}, {}, "img holds no arguments"),
        (
            torch.zeros(1, 3, 8, 8),
            {"image": 0},
            "image=0 chooses among several inputs of a model; img is a single input",
        ),
        (torch.zeros(1, 3, 8, 8), {"call_index": "first"}, "call_index='first' is no integer"),
        ({3: torch.zeros(1, 3, 8, 8)}, {}, "img has the key 3"),
        (UserDict({"a": torch.zeros(2, 5)}), {"image": "b"}, "image='b' is none of the inputs: 'a'"),
    ],
)
def test_invalid_inputs_raise_an_error(given, options, message) -> None:
    with pytest.raises(camtool.CamtoolError, match=message):
        camtool.explain(trunk().eval(), given, **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (camtool.Inputs(torch.zeros(3, 16, 16), torch.zeros(2, 3, 16, 16)), r"0 \(3, 16, 16\) does not match .* 1 "),
        (camtool.Inputs(torch.zeros(2, 3, 16, 16), torch.zeros(1, 3, 16, 16)), r"give one for .* shared=\[1\]"),
        (camtool.Inputs(torch.zeros(3, 16, 16), torch.zeros(2, 3, 16, 16), image=0), r"shared=\[1\]"),
        ((torch.zeros(2, 3, 16, 16), torch.zeros(2, 3, 16, 16)), r"a batch \(2, 3, 16, 16\); .* camtool.Inputs\("),
        ((torch.zeros(3, 16, 16), torch.zeros(3, 16, 16)), r"missing .* 'b'\. .* camtool.Inputs\("),
        ({"foo": torch.zeros(2, 3, 16, 16)}, r"unexpected keyword argument 'foo'"),
    ],
)
def test_inputs_that_do_not_match_raise_an_error(siamese, given, message) -> None:
    with pytest.raises(camtool.CamtoolError, match=message):
        camtool.explain(siamese, given, 1)


def test_a_shared_input_is_used_for_all_images(siamese) -> None:
    a, b = torch.randn(2, 3, 16, 16), torch.randn(1, 3, 16, 16)
    results = camtool.explain(siamese, camtool.Inputs(a, b, image=0, shared=[1]), 1, call_index=0)
    expected = camtool.explain(siamese, camtool.Inputs(a, b.expand(2, -1, -1, -1), image=0), 1, call_index=0)
    assert_close([each.raw for each in results], [each.raw for each in expected])


def test_an_image_may_be_shared_and_arrays_of_floats_become_tensors(siamese, masked) -> None:
    photos = np.random.default_rng(0).integers(0, 256, (2, 24, 24, 3), np.uint8)
    prepared = [torch.from_numpy(photo).movedim(2, 0) / 255 for photo in photos]

    def transform(photo: Image.Image) -> Tensor:
        return torch.from_numpy(np.asarray(photo).copy()).movedim(2, 0) / 255

    given = camtool.Inputs(*photos, image=0, shared=[1])
    expected = camtool.explain(siamese, camtool.Inputs(*prepared, image=0), 1)
    assert_close(camtool.explain(siamese, given, 1, transform=transform).raw, expected.raw)
    batch = make_masked_inputs()
    as_arrays = batch | {"mask": batch["mask"].double().numpy()}
    assert np.array_equal(camtool.explain(masked, as_arrays, 1)[1].raw, camtool.explain(masked, batch, 1)[1].raw)


# ------------------------------------------------------------------------------------------- a trunk that runs twice


def test_the_gradients_at_each_call_equal_those_of_autograd(siamese) -> None:
    a, b = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
    positions = 4 * 4
    for call_index, head, image in ((0, siamese.left, a), (1, siamese.right, b), (-1, siamese.right, b)):
        forward_pass = run_forward_pass(
            siamese,
            {call_index % 2: image, 1 - call_index % 2: b if call_index == 0 else a},
            [],
            PassSettings(call_index=call_index),
        )
        layers = find_layers(siamese, forward_pass.inputs, ["trunk"], call_index=call_index)
        again = run_forward_pass(siamese, forward_pass.inputs, layers, PassSettings(call_index=call_index))
        evidence = gather_evidence(again, [ClassScore(1), ClassScore(2)])[0]
        assert_close(evidence.activations, siamese.trunk(image).detach())
        expected = (head.weight[[1, 2]] / positions)[:, :, None, None].expand(-1, -1, 4, 4)
        assert_close(evidence.gradients, expected.detach())


def test_call_index_selects_the_image_of_that_call(siamese) -> None:
    a, b = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 24, 32)
    for options, size in (
        ({}, (24, 32)),
        ({"call_index": 0}, (16, 16)),
        ({"call_index": 1}, (24, 32)),
        ({"call_index": -2}, (16, 16)),
    ):
        result = camtool.explain(siamese, camtool.Inputs(a, b), 1, **options)[0]
        assert (result.heatmap.shape, result.layer) == (size, "trunk")
        assert any("call_index=" in warning for warning in result.warnings) == (not options)


def test_two_images_of_one_size_are_distinguished(siamese) -> None:
    a, b = torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16)
    explainer = camtool.Explainer(siamese, layer="trunk")
    alike = camtool.Explainer(siamese, layer="trunk", call_index=0)
    views = [each(camtool.Inputs(a, b), 1)[0].photo for each in (explainer, alike)]
    shown = [camtool.explain(trunk(), x, 1, layer="2")[0].photo for x in (b, a)]
    assert [np.array_equal(*pair) for pair in zip(views, shown, strict=True)] == [True, True]


@pytest.mark.parametrize("layer", [None, "trunk"])
@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (1, 3, 24, 32)])
def test_a_named_image_is_explained_at_the_call_that_depends_on_it(siamese, layer, shape) -> None:
    given = camtool.Inputs(torch.randn(shape), torch.randn(1, 3, 16, 16))
    for image in (0, 1):
        (result,) = camtool.explain(siamese, given, 1, layer=layer, image=image)
        (expected,) = camtool.explain(siamese, given, 1, layer="trunk", call_index=image)
        assert np.array_equal(result.raw, expected.raw)
        assert np.array_equal(result.photo, expected.photo)
    assert camtool.candidate_layers(siamese, given, image=0).chosen.name == "trunk"


@pytest.mark.parametrize("layer", ["trunk", "trunk.2"])
def test_a_layer_that_does_not_depend_on_the_named_image_raises_an_error(siamese, layer) -> None:
    given = camtool.Inputs(torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16), image=1)
    with pytest.raises(
        camtool.LayerError, match=rf"layer {layer} does not depend on input 1 at call_index=0; .* call_index="
    ):
        camtool.explain(siamese, given, 1, layer=layer, call_index=0)
    joined = Joined().eval()
    with pytest.raises(camtool.LayerError, match="layer ones does not depend on input 1; "):
        camtool.explain(joined, given, 1, layer="ones")
    with pytest.raises(camtool.LayerError, match=r"layer ones \+ others does not depend on input 1; "):
        camtool.explain(joined, given, 1, layer=["ones", "others"])


def test_a_layer_that_ran_twice_gives_a_warning_that_names_call_index(siamese) -> None:
    (result,) = camtool.explain(siamese, camtool.Inputs(torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16)), 1)
    (warning,) = result.warnings
    assert warning.startswith("Layer 'trunk' ran 2 times in one forward pass; the map is of the last call.")
    assert warning.endswith("Choose another with call_index=: 0 is the first, 1 the last.")


@pytest.mark.parametrize(
    ("layer", "message"),
    [("trunk", "ran 2 times .* no call_index=2; choose -2 to 1"), (None, "at call_index=2, which")],
)
def test_a_call_index_out_of_range_raises_an_error(siamese, layer, message) -> None:
    given = camtool.Inputs(torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16))
    with pytest.raises(camtool.LayerError, match=message):
        camtool.explain(siamese, given, 1, layer=layer, call_index=2)


@pytest.mark.parametrize("call_index", [0, 1])
def test_the_tail_continues_from_the_selected_call(siamese, call_index) -> None:
    a, b = torch.randn(2, 2, 3, 16, 16)
    inputs = {0: a, 1: b} if call_index == 0 else {1: b, 0: a}
    layers = find_layers(siamese, inputs, ["trunk"], call_index=call_index)
    forward_pass = run_forward_pass(siamese, inputs, layers, PassSettings(call_index=call_index))
    (evidence,) = gather_evidence(forward_pass, [ClassScore(1)] * 2)
    heads = (siamese.left, siamese.right)
    still = heads[1 - call_index](siamese.trunk((a, b)[1 - call_index]).mean((2, 3))).detach()
    for row in range(2):
        variants = torch.randn(3, 6, 4, 4)
        expected = heads[call_index](variants.mean((2, 3))).detach() + still[row]
        assert_close(run_tail(evidence, variants, row), expected[:, 1])


def test_the_tail_continues_if_the_other_branch_has_one_image() -> None:
    """The three variants of one branch are joined with three copies of the single image in the other."""
    net, (one, other) = Joined().eval(), torch.randn(2, 2, 3, 16, 16)
    inputs = {1: other, 0: one}
    (evidence,) = gather_evidence(
        run_forward_pass(net, inputs, find_layers(net, inputs, ["others"])), [ClassScore(1)] * 2
    )
    variants = torch.randn(3, 6, 4, 4)
    still = net.ones(one)[1].mean((1, 2)).expand(3, -1)
    expected = net.head(torch.cat([still, variants.mean((2, 3))], 1)).detach()[:, 1]
    assert_close(run_tail(evidence, variants, row=1), expected)


# ----------------------------------------------------------------------------------------------- further forward passes


def test_the_other_inputs_follow_their_image(masked) -> None:
    inputs = make_masked_inputs()
    ordered = {"pixel_values": inputs["pixel_values"], **inputs}
    forward_pass = run_forward_pass(masked, ordered, find_layers(masked, ordered, ["trunk"]))
    (evidence,) = gather_evidence(forward_pass, [ClassScore(1)] * 3)
    changed = torch.randn(3, 3, 24, 32)

    def compute_expected(image: int, images: Tensor) -> Tensor:
        count = len(images)
        own = {"ids": inputs["ids"][image].expand(count, -1), "mask": inputs["mask"][image].expand(count, -1, -1)}
        return masked(pixel_values=images, temperature=0.7, mode="signed", **own)["logits"][:, 1].detach()

    for image in range(3):
        assert_close(run_forward(evidence, changed, row=image), compute_expected(image, changed))
        assert_close(
            score_inputs(evidence, [image], 3, lambda part: changed[part])[:, 0], compute_expected(image, changed)
        )
    each = torch.cat([compute_expected(image, changed[image : image + 1]) for image in range(3)])
    assert_close(evidence.for_inputs(changed).scores, each)
    assert_close(score_with_graph(evidence, changed).detach(), each)
    (shuffled,) = gather_evidence(forward_pass, [ClassScore(1)] * 4, [2, 0, 0, 1])
    expected = torch.cat([compute_expected(image, changed[:1]) for image in (2, 0, 0, 1)])
    assert_close(score_with_graph(shuffled, changed[:1].expand(4, -1, -1, -1)).detach(), expected)


METHODS = [*FOR_CLASSIFIERS, "noise:gradcam", "tta:gradcam"]


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("cam", "cameras")])
def test_every_method_explains_several_inputs_alone_as_in_a_batch(masked, method) -> None:
    inputs, options = make_masked_inputs(2), OPTIONS.get(method, {})
    before = copy.deepcopy(masked.state_dict())
    together = camtool.explain(masked, inputs, 1, method=method, **options)
    for image, result in enumerate(together):
        single = camtool.explain(masked, select_image(inputs, image), 1, method=method, **options)
        assert result.raw.ndim == 2
        assert_same_explanation(result, single)
    assert not masked._forward_hooks
    assert all(torch.equal(before[key], value) for key, value in masked.state_dict().items())


@pytest.mark.parametrize("method", ["scorecam", "rise", "ablationcam", "noise:gradcam", "gradcam", "opticam"])
@pytest.mark.parametrize("call_index", [0, 1])
def test_perturbation_methods_explain_a_trunk_that_runs_twice(siamese, method, call_index) -> None:
    a, b = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 24, 24)
    given = camtool.Inputs(a, b, image=call_index)
    results = camtool.explain(siamese, given, 1, method=method, call_index=call_index, **OPTIONS.get(method, {}))
    for result in results:
        assert result.heatmap.shape == ((16, 16), (24, 24))[call_index]
        assert np.isfinite(result.raw).all()
        assert np.ptp(result.raw) > 0


def test_the_model_is_unchanged_even_after_an_error(siamese) -> None:
    siamese.train()
    given = camtool.Inputs(torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16))
    wrong = camtool.Inputs(torch.randn(1, 5, 16, 16), torch.randn(1, 3, 16, 16), image=0)
    state = torch.get_rng_state()
    camtool.explain(siamese, given, 1)
    with pytest.raises(camtool.LayerError):
        camtool.explain(siamese, given, 1, layer="trunk", call_index=7)
    with pytest.raises(RuntimeError):
        camtool.explain(siamese, wrong, 1)
    assert all(module.training for module in siamese.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in siamese.modules())
    assert all(parameter.grad is None for parameter in siamese.parameters())
    assert torch.equal(state, torch.get_rng_state())


class Triplet(nn.Module):
    """Returns the features of three images, by three calls of one trunk."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU())

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.trunk(each).mean((2, 3)) for each in images)


@pytest.mark.parametrize("image", [0, 1])
@pytest.mark.parametrize("is_call_named", [True, False])
def test_a_function_of_the_outputs_of_several_calls_is_explained_at_the_call_of_the_image(image, is_call_named) -> None:
    model, images = Triplet().eval(), torch.rand(3, 1, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    call = {"call_index": image} if is_call_named else {}
    inputs = camtool.Inputs(*images, image=image)
    (found,) = camtool.explain(model, inputs, lambda output: (output[0] * output[1]).sum(), **call)
    features = [model.trunk(each).detach().requires_grad_() for each in images]
    (features[0].mean((2, 3)) * features[1].mean((2, 3))).sum().backward()
    weights = features[image].grad.mean((2, 3), keepdim=True)
    np.testing.assert_allclose(found.raw, (weights * features[image]).sum(1)[0].relu().detach(), atol=1e-7)


class JoinedViews(nn.Module):
    """Runs two views through one trunk: stacked or one batch after the other, as one batch, or apart."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.trunk, self.head = how, nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU()), nn.Linear(8, 3)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        if self.how == "stack":
            maps = self.trunk(torch.stack([u, v], 1).flatten(0, 1)).unflatten(0, (-1, 2))
        elif self.how == "cat":
            maps = torch.stack(self.trunk(torch.cat([u, v])).chunk(2), 1)
        else:
            maps = torch.stack([self.trunk(u), self.trunk(v)], 1)
        return self.head(maps.mean((3, 4)).flatten(1))


@pytest.mark.parametrize("how", ["stack", "cat", "apart"])
@pytest.mark.parametrize(("layer", "count", "image"), [(None, 1, 0), ("trunk", 2, 1)])
def test_views_that_are_joined_have_the_maps_of_views_apart(how, layer, count, image) -> None:
    model, images = JoinedViews(how).eval(), torch.rand(2, count, 3, 12, 12)
    inputs = camtool.Inputs(*images, image=image)
    maps, weight = model.trunk(images[image]).detach(), model.head.weight.detach()[1].view(2, 4)[image]
    for result, activation in zip(camtool.explain(model, inputs, 1, layer=layer), maps, strict=True):
        expected = torch.einsum("c,chw->hw", weight / activation[0].numel(), activation).relu()
        assert_close(torch.from_numpy(result.raw), expected)


class CutViews(JoinedViews):
    """Runs both views through its trunk in halves, so that no row of its batch is the image's."""

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        halves = torch.cat([torch.cat([u, v], 1).unflatten(1, (2, 3)).flatten(0, 1)] * 2)
        maps = self.trunk(halves).unflatten(0, (2, -1, 2)).mean(0)
        return self.head(maps.mean((3, 4)).flatten(1))


def test_rows_that_are_no_views_are_refused_and_the_way_that_the_error_names_works() -> None:
    model, images = CutViews("stack").eval(), torch.rand(2, 1, 3, 12, 12)
    advice = r"joins several images, views or tiles .* 4 rows for one .* layers\(u\) and layers\(v\), or .*occlusion"
    with pytest.raises(LayerError, match=advice):
        camtool.explain(model, camtool.Inputs(*images), 1)
    assert camtool.explain(model, camtool.Inputs(*images), 1, method="inputxgradient")[0].raw.any()
