"""Attention of a layer: its matrices, and the maps of heads and queries on the photo."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.transforms import CenterCrop, Compose, ToTensor

import camtool
from camtool.errors import CamtoolError, ImageError, LayerError, TargetError
from tests.helpers.nets import Apply
from tests.helpers.vision_transformers import (
    ATTENTION_FUNCTIONS,
    GRID,
    HEADS,
    HUGGING_FACE_MODELS,
    SMALL_HF,
    SMALL_TIMM,
    Block,
    build_timm,
    compute_block_attention,
    import_hf,
    make_images,
    make_tiny_vit,
    randomize_parameters,
)
from tests.hooks.state.test_no_trace import unchanged
from tests.layers.nets import QueryNet
from tests.targets.test_detector_models import Wrapped, make_tiny_detr

# ------------------------------------------------------------------------------------------------------- small networks


class SingleNumbers(nn.Module):
    """Attention in which each patch of 2 x 2 pixels is one number, its upper left pixel, and query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 1, 2, 2, bias=False)
        self.patches.weight.data = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]])

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        return ((tokens @ tokens.mT).softmax(-1) @ tokens).mean(1)


def test_matrices_and_maps_of_a_tiny_network_computed_by_hand() -> None:
    x = torch.zeros(1, 4, 6)
    x[0, ::2, ::2] = torch.tensor([[1.0, math.log(2), math.log(3)], [math.log(4), 0.0, 0.0]])
    found = camtool.attention(SingleNumbers(), x)
    assert found.matrices.shape == (1, 6, 6)
    assert found.layout.grid == (2, 3)
    first = np.array([[math.e, 2, 3], [4, 1, 1]]) / (math.e + 11)  # exp(1 · number), as the first patch is 1
    np.testing.assert_allclose(found.map(query=0).raw, first, rtol=1e-6)
    np.testing.assert_allclose(found.map(query=(0, 0)).raw, first, rtol=1e-6)
    np.testing.assert_allclose(found.map(query=(3, 2)).raw, np.full((2, 3), 1 / 6), rtol=1e-6)  # a patch of 0
    second = np.array([[2.0, 2 ** math.log(2), 2 ** math.log(3)], [2 ** math.log(4), 1, 1]])
    np.testing.assert_allclose(found.map(query=(2, 0)).raw, second / second.sum(), rtol=1e-6)
    np.testing.assert_allclose(found.map().raw, found.matrices[0].mean(0).reshape(2, 3), rtol=1e-6)
    assert found.map().label == "mean of 6 image tokens, head 0"
    assert found.warnings == found.map().warnings == ()


def compute_by_hand(net: Any, x: Tensor, layer: int) -> Tensor:
    """Return the attention of a block of a TinyViT, ``(H, T, T)``."""
    tokens = net.embed(x)
    for block in net.blocks[:layer]:
        tokens = block(tokens)
    return compute_block_attention(net.blocks[layer], net.blocks[layer].norm1(tokens))[1]["A"][0].detach()


@pytest.mark.parametrize("how", ATTENTION_FUNCTIONS)
def test_the_row_of_the_class_token_is_the_softmax_of_its_products(how: str) -> None:
    """On a grid of 3 x 4 cells."""
    net, x = make_tiny_vit(how), make_images(1)
    for layer, name in enumerate(f"blocks.{index}.attention" for index in range(3)):
        by_hand = compute_by_hand(net, x, layer)
        found = camtool.attention(net, x, layer=layer)
        assert (found.layer, len(found)) == (name, HEADS)
        assert_close(torch.from_numpy(found.matrices), by_hand.float(), rtol=1e-5, atol=1e-7)
        for head in range(HEADS):
            expected = by_hand[head, 0, 1:].reshape(GRID).float()
            np.testing.assert_allclose(found.map(head=head, query="class").raw, expected, rtol=1e-5)
        mean = by_hand.mean(0)[0, 1:].reshape(GRID).float()
        np.testing.assert_allclose(found.map().raw, mean, rtol=1e-5)
        assert found.map().score == pytest.approx(float(mean.sum()), rel=1e-5)
    assert found.map(head=-1).label == f"class token, head {HEADS - 1}"


def test_a_pixel_of_a_cropped_photo_is_the_token_there() -> None:
    """The model sees 6 x 8 pixels, from row 3 and column 2 on, as patches of 2 x 2."""
    net = make_tiny_vit().float()
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 12, 3), dtype=np.uint8))
    found = camtool.attention(net, photo, transform=Compose([CenterCrop((6, 8)), ToTensor()]))
    for x, y, token in ((2, 3, 1), (9, 8, 12), (6.5, 4.9, 3), (7, 5, 7)):
        np.testing.assert_array_equal(found.map(query=(x, y)).raw, found.map(query=token).raw)
    assert found.map(query=(7, 5)).label == "image token (1, 2), mean of 2 heads"
    assert found.queries.find_box([7]) == (6, 5, 8, 7)
    assert found.heatmap.shape == (12, 12)
    assert not found.heatmap[:3].any()
    for outside in ((1, 5), (5, 9), (-1, 5), (5, 12)):
        with pytest.raises(TargetError, match="is outside of the part of the photo that reaches the model"):
            found.map(query=outside)


def test_nothing_is_left_behind_in_the_model() -> None:
    net, x = make_tiny_vit().train(), make_images(1)
    net.head.weight.requires_grad_(False)
    with unchanged(net):
        camtool.attention(net, x)
    assert torch.overrides._len_torch_function_stack() == 0
    with torch.inference_mode():
        camtool.attention(net, x.clone())


def test_the_picture_has_the_query_the_mean_and_all_heads(tmp_path: Path) -> None:
    net, x = make_tiny_vit(), make_images(1)
    found = camtool.attention(net, x)
    pixels = found.to_pixels()  # four images of 240 x 180 pixels
    assert pixels.shape[1] == 4 * 240 + 3 * 10
    assert camtool.attention(net, x, head=1).to_pixels().shape[1] == 2 * 240 + 10
    assert found.overlay().shape == (6, 8, 3)
    found.save(tmp_path / "heads.png")
    assert (np.asarray(Image.open(tmp_path / "heads.png")) == pixels).all()
    chosen = camtool.attention(net, x, head=1, query=5)
    assert (chosen.overlay() == found.map(head=1, query=5).overlay()).all()
    assert chosen.map(head="mean").label == "image token (1, 0), mean of 2 heads"
    assert repr(found) == (
        "<AttentionMaps of 'blocks.2.attention': 2 heads, 13 queries, 13 keys (tokens, 3 x 4 after 1); class token, "
        "mean of 2 heads>"
    )


def test_a_marked_query_is_visible_in_the_picture() -> None:
    net, x = make_tiny_vit(), torch.zeros(1, 3, 6, 8, dtype=torch.float64) + make_images(1) / 100
    marked, unmarked = (camtool.attention(net, x, query=query).to_pixels()[:180, :240] for query in (1, "class"))
    changed = (marked != unmarked).any(-1)
    assert changed[:90, :80].any()
    assert not changed[100:].any()


# --------------------------------------------------------------------------------------------------------- real models

CASES: dict[str, tuple[Any, tuple[int, int], int, int | None]] = {
    "torchvision": (
        lambda: torchvision.models.VisionTransformer(48, 16, 2, 4, 32, 64, num_classes=7), (48, 48), 1, 0,
    ),
    "timm": (lambda: build_timm("vit_tiny_patch16_224", **SMALL_TIMM | {"img_size": (48, 80)}), (48, 80), 1, 0),
    "timm, registers": (
        lambda: build_timm("vit_small_patch14_reg4_dinov2", **SMALL_TIMM | {"img_size": (56, 70)}), (56, 70), 5, 0,
    ),
    "timm, registers alone": (
        lambda: build_timm("vit_medium_patch16_reg4_gap_256", **SMALL_TIMM | {"img_size": (48, 80)}), (48, 80), 4, None,
    ),
    **{
        name: (build, (48, 48), prefix, 0)
        for (name, build), prefix in zip(HUGGING_FACE_MODELS.items(), (1, 2, 1, 5, 1), strict=False)
    },
}  # fmt: skip
"""For each model how to build it, the size of its input, the number of prefix tokens and the class token."""


@pytest.mark.parametrize("name", CASES)
def test_prefix_tokens_and_grid_of_real_models_are_known(name: str) -> None:
    build, (height, width), prefix, class_token = CASES[name]
    net, patch = randomize_parameters(build()), 14 if height == 56 else 16
    found = camtool.attention(net, torch.randn(3, height, width))
    assert (found.layout.grid, found.layout.prefix) == ((height // patch, width // patch), prefix)
    assert found.matrices.shape == (4, *[prefix + height // patch * (width // patch)] * 2)
    np.testing.assert_allclose(found.matrices.sum(-1), 1, rtol=1e-5)
    assert found.queries.class_token == class_token
    assert found.warnings == ()
    assert len(found.layers) == 2
    if class_token is None:
        with pytest.raises(TargetError, match="its 4 other tokens have no known meaning; pass the number"):
            found.map(query="class")
        assert found.map().label.startswith("mean of 15 image tokens")
    else:
        np.testing.assert_array_equal(found.map().raw, found.map(query=0).raw)


@pytest.mark.parametrize("name", ["ViT", "DINOv2 with registers", "CLIP"])
def test_matrices_are_those_that_hugging_face_returns(name: str) -> None:
    net, x = randomize_parameters(HUGGING_FACE_MODELS[name]()), torch.randn(1, 3, 48, 48)
    found = camtool.attention(net, x, layer=0)
    net.set_attn_implementation("eager")
    with torch.no_grad():
        expected = net(x, output_attentions=True).attentions[0][0]
    assert_close(torch.from_numpy(found.matrices), expected, rtol=1e-4, atol=1e-6)


def test_a_model_with_two_towers_is_read_at_its_image_tower() -> None:
    transformers = import_hf()
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text |= {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1}
    vision = {key: value for key, value in SMALL_HF.items() if key != "num_labels"}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    found = camtool.attention(transformers.CLIPModel(config).eval(), torch.randn(3, 48, 48))
    assert found.layer == "vision_model.encoder.layers.1.self_attn"
    assert found.map().label == "class token, mean of 4 heads"


def test_an_attention_pooling_has_a_single_query() -> None:
    found = camtool.attention(make_tiny_vit(pooling="attention"), make_images(1))
    assert (found.layer, found.matrices.shape) == ("pool", (HEADS, 1, 12))
    assert found.map().label == "single query, mean of 2 heads"
    with pytest.raises(TargetError, match="the queries of this layer are no tokens of the image"):
        found.map(query=(1, 1))
    with pytest.raises(TargetError, match="query='class': this layer has no class token"):
        found.map(query="class")


# ------------------------------------------------------------------------------------------------------------ detectors


def test_the_cross_attention_of_detr_shows_each_object_query() -> None:
    net, x = make_tiny_detr("Detr").eval(), torch.randn(1, 3, 64, 96)
    found = camtool.attention(net, x)
    net.set_attn_implementation("eager")
    with torch.no_grad():
        output = net(x, output_attentions=True)
    assert found.layer == "model.decoder.layers.1.encoder_attn"
    assert_close(torch.from_numpy(found.matrices), output.cross_attentions[-1][0], rtol=1e-4, atol=1e-6)
    for query in range(12):
        explanation = found.map(head=1, query=query)
        expected = output.cross_attentions[-1][0, 1, query].reshape(2, 3)
        np.testing.assert_allclose(explanation.raw, expected, rtol=1e-4)
        cx, cy, w, h = (output.pred_boxes[0, query] * torch.tensor([96, 64, 96, 64])).tolist()
        inside = max(cx - w / 2, 0), max(cy - h / 2, 0), min(cx + w / 2, 96), min(cy + h / 2, 64)
        assert explanation.box == pytest.approx(inside, rel=1e-4, abs=1e-4)
        assert explanation.label == f"object query {query}, head 1"
    best = int(output.logits.softmax(-1)[0, :, :-1].amax(1).argmax())
    assert found.map().label == f"object query {best}, mean of 2 heads"
    with pytest.raises(TargetError, match="the queries of this layer are objects; pass a number from 0 to 11"):
        found.map(query=(5, 5))


def test_the_best_object_of_a_wrapped_detector_with_sigmoids() -> None:
    net, x = make_tiny_detr("ConditionalDetr").eval(), torch.randn(1, 3, 64, 96)
    logits = net(x).logits[0]
    logits_by_kind = {"sigmoid": logits, "softmax": logits.softmax(1)[:, :-1]}
    best = {kind: int(each.amax(1).argmax()) for kind, each in logits_by_kind.items()}
    assert best["sigmoid"] != best["softmax"]
    known = camtool.attention(Wrapped(net), x)
    assert known.map().label == f"object query {best['sigmoid']}, mean of 2 heads"
    assert known.warnings == ()
    net.config.num_labels = 80  # fits neither meaning of the logits
    assumed = camtool.attention(Wrapped(net), x)
    assert assumed.map().label == f"object query {best['softmax']}, mean of 2 heads"
    assert "does not say how many classes it has" in " ".join(assumed.warnings)


def test_the_encoder_of_detr_shows_the_tokens_of_its_backbone() -> None:
    found = camtool.attention(make_tiny_detr("Detr").eval(), torch.randn(3, 64, 96), layer="model.encoder.layers.0")
    assert found.map(query=(70, 40)).label == "image token (1, 2), mean of 2 heads"
    assert found.map().centers is not None  # strided convolutions have their cells further up and to the left


@pytest.mark.parametrize("queries", [6, 12])
def test_object_queries_that_attend_to_each_other_are_no_tokens_of_the_image(queries: int) -> None:
    """Also if there are as many as tokens."""
    net = make_tiny_detr("Detr").eval()
    net.model.query_position_embeddings = nn.Embedding(queries, 16)
    with pytest.raises(LayerError, match=r"decoder\.layers\.1\.self_attn' attends to .* it is not certain how they"):
        camtool.attention(net, torch.randn(3, 64, 96), layer="model.decoder.layers.1.self_attn")


def test_the_tokens_of_a_detector_behind_those_of_the_image_are_known() -> None:
    found = camtool.attention(make_tiny_detr("Yolos").eval(), torch.randn(3, 64, 96))
    assert (found.layout.grid, found.layout.prefix, found.layout.suffix) == ((4, 6), 1, 9)
    assert found.map(query=-1).label == "suffix token 33, mean of 2 heads"


# ------------------------------------------------------------------------------------------------------------- refusals


class Patches(nn.Module):
    """Attention over patches that a reshape makes, in any order, after any number of other tokens."""

    def __init__(self, order: Any = None, first: Any = None) -> None:
        super().__init__()
        self.order, self.first = order, first
        torch.manual_seed(0)
        self.embed, self.block = nn.Linear(48, 8), Block("fused")

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(nn.functional.unfold(x, 4, stride=4).mT)
        tokens = tokens if self.order is None else tokens[:, self.order]
        tokens = tokens if self.first is None else torch.cat([self.first(x), tokens], 1)
        return self.block(tokens).mean(1)


def test_a_grid_that_no_convolution_shows_is_confirmed_by_the_order_of_its_tokens() -> None:
    assert camtool.attention(Patches(), torch.randn(3, 16, 24)).warnings == ()
    with pytest.raises(LayerError, match="they are not in the order of its rows"):
        camtool.attention(Patches(order=torch.randperm(24)), torch.randn(3, 16, 24))


def test_few_tokens_without_a_convolution_are_a_doubt() -> None:
    found = camtool.attention(Patches(), torch.randn(3, 8, 12))
    assert found.layout.grid == (2, 3)
    (warning,) = found.map().warnings
    assert warning.startswith("The grid 2 x 3 of the tokens was inferred from their number alone; check that the map")


def test_queries_that_have_read_the_image_have_no_places() -> None:
    model = QueryNet(64, 8).eval()  # as many queries as patches
    with pytest.raises(LayerError, match="they do not respond where it changes, as learned queries"):
        camtool.attention(model, torch.randn(3, 64, 64), layer="mix")


def test_prefix_tokens_that_depend_on_the_image_are_refused() -> None:
    net = Patches(first=lambda x: x.flatten(1)[:, None, :8])
    with pytest.raises(LayerError, match="fits their number, but other tokens change with the image"):
        camtool.attention(net, torch.randn(3, 16, 24))


@pytest.mark.parametrize("size", [64, 224])
def test_windowed_attention_is_refused(size: int) -> None:
    net = torchvision.models.SwinTransformer([4, 4], 16, [1, 1], [2, 2], [7, 7])
    with pytest.raises(LayerError, match=r"attends within windows of 49 tokens, so no query sees the whole image"):
        camtool.attention(net, torch.randn(3, size, size))


def test_windows_that_are_heads_are_refused() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.attention = nn.Conv2d(3, 8, 4, 4), Apply(lambda w: (w @ w.mT).softmax(-1) @ w)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.patches(x).unflatten(2, (2, -1)).unflatten(4, (2, -1)).permute(0, 2, 4, 3, 5, 1)
            return self.attention(tokens.flatten(0, 2).flatten(1, 2)).mean(1).unflatten(0, (len(x), -1)).mean(1)

    with pytest.raises(LayerError, match="layer 'attention' attends within windows of 16 tokens"):
        camtool.attention(Windows(), torch.randn(3, 32, 32))


def test_errors_name_what_exists() -> None:
    net, x = make_tiny_vit(), make_images(1)
    cases: list[tuple[dict[str, Any], type[CamtoolError], str]] = [
        ({"layer": 3}, LayerError, "layer=3: the model has 3 attention layers, 0 to 2"),
        ({"layer": "blocks"}, LayerError, "'blocks' holds several attention layers; choose one of 'blocks.0.attention"),
        ({"layer": "head"}, LayerError, "'head' runs no attention to the image; choose one of"),
        ({"head": 2}, LayerError, "head=2: layer 'blocks.2.attention' has 2 heads, 0 to 1; 'mean' is their mean"),
        ({"query": 13}, TargetError, "query=13: the layer has 13 queries, 0 to 12"),
        ({"query": "cls"}, TargetError, "query='cls' is unknown; pass 'class', a number, or a pixel"),
        ({"query": (1, 2, 3)}, TargetError, "must be 2 numbers, got"),
        ({"target_layers": []}, CamtoolError, "target_layers= is layer= here"),
    ]
    for arguments, error, message in cases:
        with pytest.raises(error, match=message):
            camtool.attention(net, x, **arguments)
    with pytest.raises(ImageError, match="img: 2 images came"):
        camtool.attention(net, make_images(2))
    with pytest.raises(LayerError, match="the model runs no attention that can be captured"):
        camtool.attention(torchvision.models.squeezenet1_1(), torch.randn(3, 64, 64))
    assert camtool.attention(net, x, layer=net.blocks[1]).layer == "blocks.1.attention"
    assert camtool.attention(net, x, layer="blocks.1").layer == "blocks.1.attention"
    assert camtool.attention(net, x, layer=np.int64(1)).layer == "blocks.1.attention"
