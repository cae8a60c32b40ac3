"""Detectors and segmenters with queries: what is explained, where its box is, and a Grad-CAM computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

import camtool
from camtool.targets import Detection
from tests.zoo.catalogue import picture
from tests.zoo.hugging_face import DETECTORS, SEGMENTERS

SIZES = [(192, 192), (128, 192)]
"""Grids of 6 x 6 and 4 x 6 cells. Of 4 x 4 in an untrained encoder, chance and places can hardly be told apart."""

LABELS = ["tree", "cat", "dog", "cow", "car", "bus", "cup", "pen", "bed", "sky"]


@dataclass(frozen=True)
class Expected:
    """What is known of a model beforehand.

    Attributes:
        layer: The layer of the map.
        stride: Pixels between its cells.
        has_no_object: True if its last logit is "no object", so that a softmax gives the confidences.
        tokens_before: Tokens before those of the grid.
    """

    layer: str
    stride: int
    has_no_object: bool = True
    tokens_before: int = 0


def sigmoid(layer: str, stride: int) -> Expected:
    return Expected(layer, stride, has_no_object=False)


EXPECTED: dict[str, Expected] = {
    "conditional_detr": sigmoid("model.encoder", 32),
    "d_fine": sigmoid("model.decoder_input_proj.2", 32),
    "dab_detr": sigmoid("model.encoder", 32),
    "deformable_detr": sigmoid("model.encoder", 32),
    "deformable_detr-two-stage": sigmoid("model.encoder", 32),
    "detr": Expected("model.encoder", 32),
    "lw_detr": sigmoid("model.backbone", 16),
    "lw_detr-two-levels": sigmoid("model.backbone", 8),
    "rf_detr": sigmoid("model.backbone", 16),
    "rt_detr": sigmoid("model.decoder_input_proj.2", 32),
    "rt_detr_v2": sigmoid("model.decoder_input_proj.2", 32),
    "table_transformer": Expected("model.encoder", 32),
}


def build(name: str) -> nn.Module:
    """A model with random weights whose queries find different boxes."""
    # DAB-DETR computes the positions of its queries in single precision.
    model = {**DETECTORS, **SEGMENTERS}[name].build().to(torch.float32 if name == "dab_detr" else torch.float64)
    generator = torch.Generator().manual_seed(1)
    for key, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data += torch.randn(parameter.shape, generator=generator) * _find_spread(key)
    model.config.id2label = dict(enumerate(LABELS))
    return model


def _find_spread(name: str) -> float:
    """Return how far weights are spread: the queries of a random DETR would all find the same box."""
    return 1 if "query" in name else 0.5 if "bbox_predictor" in name else 0.05


def compute_by_hand(
    model: nn.Module, inputs: Mapping[str, Tensor], layer: str, grid: tuple[int, int], score: Any
) -> NDArray[np.float32]:
    """Return the Grad-CAM of ``score(output)``; the last tokens of a layer with tokens are its grid."""
    kept: list[Tensor] = []

    def keep(_module: nn.Module, _given: object, output: Any) -> Tensor | None:
        # A module without an operation returns its input, which may be used elsewhere, too: a new tensor is not.
        new = output.clone() if isinstance(output, Tensor) else None
        while not isinstance(output, Tensor):
            output = output[0]
        kept.append(output if new is None else new)
        return new

    handle = model.get_submodule(layer).register_forward_hook(keep)
    with torch.enable_grad():
        scored = score(model(**inputs))
    handle.remove()
    (gradient,) = torch.autograd.grad(scored, kept[-1])
    cells = grid[0] * grid[1]
    activations, gradient = (
        each[0].flatten(1) if each.ndim == 4 else each[0, -cells:].T for each in (kept[-1].detach(), gradient)
    )
    by_hand = (gradient.mean(1) @ activations).relu().reshape(grid)
    return by_hand.numpy()


def assert_equal(raw: NDArray[Any], by_hand: NDArray[Any]) -> None:
    assert raw.shape == by_hand.shape
    assert np.abs(raw - by_hand).max() <= 1e-5 * max(1e-30, np.abs(by_hand).max())


@pytest.mark.parametrize("size", SIZES, ids=["square", "oblong"])
@pytest.mark.parametrize("name", EXPECTED)
def test_detections_have_the_confidence_the_box_and_the_map_computed_by_hand(name: str, size: tuple[int, int]) -> None:
    model, known = build(name), EXPECTED[name]
    img, grid = picture(2, *size).to(model.dtype), (size[0] // known.stride, size[1] // known.stride)
    output = model(img)
    logits, boxes = output.logits[0].detach(), output.pred_boxes[0].detach()
    confidences = logits.softmax(1)[:, :-1] if known.has_no_object else logits.sigmoid()
    assert confidences.shape[1] == len(LABELS)
    # Of a dog: the query that is surest of it. Of the model: the queries in order, each for its surest class; with a
    # sigmoid, the pairs of a query and a class.
    dog = (int(confidences[:, 2].argmax()), 2)
    if known.has_no_object:
        ranked = confidences.amax(1).argsort(descending=True)
        wanted = [(int(query), int(confidences[query].argmax())) for query in ranked[[0, 3]]]
    else:
        ranked = confidences.flatten().argsort(descending=True)
        wanted = [divmod(int(pair), len(LABELS)) for pair in ranked[[0, 3]]]
    (results,) = camtool.explain(model, img, [[Detection(0, confidence=0), Detection(3, confidence=0), "dog"]])
    any_map = False
    for (query, index), result in zip([*wanted, dog], results, strict=True):
        x, y, width, height = boxes[query].tolist()
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        assert result.box == pytest.approx([a * b for a, b in zip(corners, 2 * size[::-1], strict=True)], abs=1e-3)
        assert (result.index, result.label) == (index, LABELS[index])
        assert result.score == pytest.approx(logits[query, index].item(), rel=1e-4)
        assert result.probability == pytest.approx(confidences[query, index].item(), rel=1e-4)
        assert result.layer == known.layer

        def score(output: Any, query: int = query, index: int = index) -> Tensor:
            return output.logits[0, query, index]

        by_hand = compute_by_hand(model, {"pixel_values": img}, known.layer, grid, score)
        assert_equal(result.raw, by_hand)
        any_map = any_map or bool(by_hand.any())
    assert any_map


def test_a_box_is_in_pixels_of_the_photo() -> None:
    """The model gets a crop of the middle of the photo, reduced to half its size."""
    model = build("rf_detr")
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (256, 400, 3), dtype=np.uint8))

    def prepare(image: Image.Image) -> Tensor:
        from torchvision.transforms.v2 import functional

        small = functional.resize(functional.center_crop(functional.pil_to_tensor(image), [256, 256]), [128, 128])
        return small.double() / 255

    result = camtool.explain(camtool.Loaded(model, prepare), photo, Detection(0, confidence=0))
    output = model(prepare(photo)[None])
    query = int(output.logits[0].amax(1).argmax())
    x, y, width, height = (output.pred_boxes[0, query] * 256).tolist()
    left = (400 - 256) / 2
    assert result.box == pytest.approx(
        (left + x - width / 2, y - height / 2, left + x + width / 2, y + height / 2), abs=0.1
    )


# ---------------------------------------------------------------------------------------------------------- segmenters


SEGMENTER_LAYERS = {
    "eomt": Expected("layers.2", 8),
    "mask2former": Expected("model.transformer_module.input_projections.2", 8),
    "maskformer": Expected("model.transformer_module.input_projection", 32),
}


def compute_shares(output: Any) -> Tensor:
    """Return the share of each class at each position, ``(K, h, w)``, as the authors' semantic inference adds it up."""
    classes, masks = output.class_queries_logits[0], output.masks_queries_logits[0]
    shares = classes.new_zeros(classes.shape[1] - 1, *masks.shape[1:])
    for query, mask in zip(classes, masks, strict=True):
        shares = shares + query.softmax(0)[:-1, None, None] * mask.sigmoid()
    return shares


@pytest.mark.parametrize("size", [None, (128, 192)], ids=["square", "oblong"])
@pytest.mark.parametrize("name", SEGMENTER_LAYERS)
def test_a_class_is_explained_where_the_masks_predict_it(name: str, size: tuple[int, int] | None) -> None:
    if name == "eomt" and size is not None:
        pytest.skip("EoMT takes images of one square size")
    model, known = build(name), SEGMENTER_LAYERS[name]
    size = size or (SEGMENTERS[name].size,) * 2
    img, grid = picture(2, *size).to(model.dtype), (size[0] // known.stride, size[1] // known.stride)
    with torch.no_grad():
        shares = compute_shares(model(img))
    index = int(shares.argmax(0).flatten().bincount(minlength=10).argmax())
    where = shares.argmax(0) == index
    (results,) = camtool.explain(model, img, [[None, LABELS[index]]])
    for result in results:
        assert (result.index, result.label, result.layer) == (index, LABELS[index], known.layer)
        assert result.probability == pytest.approx(float((shares / shares.sum(0))[index][where].mean()), rel=1e-4)

        def score(output: Any) -> Tensor:
            return compute_shares(output)[index][where].log().sum()

        by_hand = compute_by_hand(model, {"pixel_values": img}, known.layer, grid, score)
        assert by_hand.any()
        assert_equal(result.raw, by_hand)


def test_queries_before_the_tokens_of_the_image_are_not_cells() -> None:
    """EoMT without masked attention, as released models run: its last blocks have the queries among their tokens."""
    model, img = build("eomt"), picture(2, 64, 64).double()
    model.attn_mask_probs.zero_()
    (result,) = camtool.explain(model, img, 3)
    assert result.layer == "layernorm"

    def score(output: Any) -> Tensor:
        shares = compute_shares(output)
        where = shares.argmax(0) == 3
        return (shares[3].log() * (where if where.any() else torch.ones_like(where))).sum()

    assert_equal(result.raw, compute_by_hand(model, {"pixel_values": img}, "layernorm", (8, 8), score))


class Table(nn.Module):
    """RT-DETR as a wrapper returns it: rows of corners in fractions of the image, confidence and class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        from torchvision.ops import box_convert

        output = self.model(x)
        confidences, classes = output.logits.sigmoid().max(2, keepdim=True)
        return torch.cat([box_convert(output.pred_boxes, "cxcywh", "xyxy"), confidences, classes.to(x.dtype)], 2)


def test_a_bare_table_of_fractions_is_explained_as_its_model() -> None:
    model, img = build("rt_detr"), picture(2, 128, 192).double()
    (result,) = camtool.explain(Table(model), img)
    output = model(img)
    query, index = divmod(int(output.logits[0].argmax()), 10)
    x, y, width, height = (output.pred_boxes[0, query] * torch.tensor([192, 128, 192, 128])).tolist()
    assert result.box == pytest.approx((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    assert (result.index, result.layer) == (index, "model.model.decoder_input_proj.2")
    assert result.score == pytest.approx(output.logits[0, query, index].sigmoid().item())
    by_hand = compute_by_hand(
        model,
        {"pixel_values": img},
        "model.decoder_input_proj.2",
        (4, 6),
        lambda output: output.logits[0, query, index].sigmoid(),
    )
    assert_equal(result.raw, by_hand)
