"""Methods that score single patches: against their oracles on CLIP, on other towers, and where they must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

import camtool
from camtool.errors import MethodError
from camtool.methods import METHODS
from camtool.models import Loaded
from camtool.models.two_towers import ImageTower
from camtool.targets import ClassScore, Similarity
from tests.helpers.two_towers import (
    CHANNELS,
    OpenClip,
    ScaledBlock,
    build_clip_oracle,
    build_hugging_face,
    encode_texts,
    make_images,
)
from tests.helpers.vision_transformers import (
    build_timm,
    close_to_peak,
    gather_rows,
    make_tiny_vit,
    randomize_parameters,
)
from tests.oracles import ORACLES

NAMES = ["maskclip", "clearclip", "clipsurgery"]
TEXTS = ["a dog", "a cat", "a drop of water"]


def explain_texts(model: nn.Module, images: Tensor, method: str, texts: Any = None, **options: Any) -> Any:
    """Return the explanations of all texts on each image."""
    loaded = Loaded(ImageTower(model), text=encode_texts)
    return camtool.explain(loaded, images, [TEXTS if texts is None else texts] * len(images), method=method, **options)


def stack_maps(results: Any) -> Tensor:
    return torch.stack([torch.stack([torch.from_numpy(each.raw) for each in own]) for own in results])


# -------------------------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("maskclip", {}),
        ("clearclip", {}),
        ("clipsurgery", {}),
        ("clipsurgery", {"blocks": 1}),
        ("clipsurgery", {"blocks": 2, "temperature": 7.5}),
    ],
)
def test_maps_of_a_clip_equal_the_oracle(name: str, options: dict[str, Any], attention: str) -> None:
    model, images, texts = build_hugging_face(attention=attention), make_images(), encode_texts(TEXTS)
    ours = stack_maps(explain_texts(model, images, name, **options))
    for n, t in np.ndindex(2, 3):
        expected = ORACLES[name](build_clip_oracle(model, images[n : n + 1], texts, t), **options)
        close_to_peak(ours[n, t], torch.tensor(expected, dtype=torch.float64), 1e-9)


@pytest.mark.parametrize("against", ["", ["", "a thing"]])
def test_redundant_texts_equal_the_oracle(against: Any) -> None:
    model, images = build_hugging_face(), make_images(1)
    ours = stack_maps(explain_texts(model, images, "clipsurgery", against=against))
    embeddings = encode_texts([against] if isinstance(against, str) else against)
    for t in range(3):
        case = build_clip_oracle(model, images, encode_texts(TEXTS), t, embeddings)
        close_to_peak(ours[0, t], torch.tensor(ORACLES["clipsurgery"](case), dtype=torch.float64), 1e-9)
    for same in (embeddings, [Similarity(each) for each in embeddings]):
        assert_close(stack_maps(explain_texts(model, images, "clipsurgery", against=same)), ours)


def test_a_text_alone_is_not_changed_by_feature_surgery_and_the_user_is_told() -> None:
    model, images = build_hugging_face(), make_images(1)
    ((alone,),) = explain_texts(model, images, "clipsurgery", TEXTS[:1])
    (own,) = encode_texts(TEXTS[:1])
    # c_t - (c_t + c_o) / 2 with all weights 1 is half the difference of the cosines.
    half = explain_texts(model, images, "clipsurgery", TEXTS[:2], temperature=0)[0]
    opposite = explain_texts(model, images, "clipsurgery", [Similarity(own), Similarity(-own)], temperature=0)[0]
    assert_close(opposite[0].raw, alone.raw)
    assert_close(half[0].raw, -half[1].raw)
    assert any("one text only" in warning for warning in alone.warnings)
    assert not any("one text only" in warning for warning in half[0].warnings)


# ------------------------------------------------------------------------------------------------- other towers


def build_open_clip(pooling: str = "class token", **options: Any) -> OpenClip:
    torch.manual_seed(1)
    is_batch_first = options.get("is_batch_first", True)
    blocks = [ScaledBlock(**options) for _ in range(2)]
    return OpenClip(blocks, is_batch_first=is_batch_first, pooling=pooling).double().eval()


def compute_by_hand(model: OpenClip, image: Tensor, name: str, text: Tensor) -> Tensor:
    """Return the map of one image ``(1, 3, 12, 8)`` from the modules' weights, ``(3, 2)``."""
    first = model.embed(image)
    entries = [first, model.blocks[0](first)]
    tokens = first[0] if name == "clipsurgery" else torch.zeros_like(first[0])
    for block, entry in [*zip(model.blocks, entries, strict=True)][0 if name == "clipsurgery" else 1 :]:
        attention = block.attention
        q, _, v = functional.linear(block.norm1(entry)[0], attention.in_proj_weight, attention.in_proj_bias).chunk(3, 1)
        like = {"maskclip": None, "clearclip": q, "clipsurgery": v}[name]
        out = torch.cat([attend_alike(like, v, half) for half in (slice(0, 6), slice(6, 12))], 1)
        tokens = tokens + attention.out_proj(out) * block.factor
    return torch.cosine_similarity(model.norm(tokens) @ model.projection, text[None])[1:].reshape(3, 2).detach()


def attend_alike(like: Tensor | None, values: Tensor, head: slice) -> Tensor:
    if like is None:
        return values[:, head]
    return (like[:, head] @ like[:, head].T / 6**0.5).softmax(1) @ values[:, head]


@pytest.mark.parametrize("options", [{}, {"is_batch_first": False}])
@pytest.mark.parametrize("name", NAMES)
def test_towers_with_multihead_attention_equal_a_computation_by_hand(name: str, options: dict[str, Any]) -> None:
    model, images = build_open_clip(**options), make_images(2, (12, 8))
    ours = stack_maps(explain_texts(model, images, name, TEXTS[:1]))[:, 0]
    reference = build_open_clip()  # the same weights, and tokens (N, T, C)
    for n in range(2):
        expected = compute_by_hand(reference, images[n : n + 1], name, encode_texts(TEXTS[:1])[0])
        close_to_peak(ours[n], expected, 1e-9)


def test_an_attention_that_returns_its_weights_scales_the_queries_first() -> None:
    images, text = make_images(1, (12, 8)), TEXTS[:1]
    model, reference = build_open_clip(has_weights=True), build_open_clip()
    ours, expected = (stack_maps(explain_texts(each, images, "maskclip", text)) for each in (model, reference))
    close_to_peak(ours, expected, 1e-9)
    for name in ("clearclip", "clipsurgery"):
        with pytest.raises(MethodError, match="scales the queries before"):
            explain_texts(model, images, name, text)


@pytest.mark.parametrize("is_batch_first", [True, False])
def test_as_many_images_as_tokens_are_not_mixed_up(is_batch_first: bool) -> None:
    """The axes of the images and of the tokens cannot be told apart by their sizes."""
    model, images = build_open_clip(is_batch_first=is_batch_first), make_images(7, (12, 8))
    alone = torch.cat([stack_maps(explain_texts(model, image[None], "clearclip")) for image in images])
    if is_batch_first:
        close_to_peak(stack_maps(explain_texts(model, images, "clearclip")), alone, 1e-9)
    else:
        with pytest.raises(MethodError, match="cannot be run on single patches"):
            explain_texts(model, images, "clearclip")


@pytest.mark.parametrize("kind", ["CLIP", "ChineseCLIP", "AltCLIP", "MetaClip2"])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_equals_its_images_one_by_one(name: str, kind: str) -> None:
    model, images = build_hugging_face(kind), make_images(3)
    together = stack_maps(explain_texts(model, images, name))
    assert together.shape == (3, 3, 3, 3)
    alone = torch.cat([stack_maps(explain_texts(model, image[None], name)) for image in images])
    close_to_peak(together, alone, 1e-9)


@pytest.mark.parametrize("pooling", ["class token", "mean"])
@pytest.mark.parametrize("name", NAMES)
def test_vision_transformers_with_classes_are_scored_patch_by_patch(name: str, pooling: str) -> None:
    net, x = make_tiny_vit(pooling=pooling), make_images(2, (6, 8))
    maps = METHODS[name](gather_rows(net, x, [ClassScore(1), ClassScore(4)]))
    block = net.blocks[-1]
    entry = block.norm1(net.blocks[:-1](net.embed(x)))
    values = block.attention.qkv(entry).chunk(3, -1)[2]
    if name == "maskclip":
        expected = net.head(net.norm(block.attention.proj(values)))[:, 1:]
        close_to_peak(maps, torch.stack([expected[0, :, 1], expected[1, :, 4]]).reshape(2, 3, 4).detach(), 1e-9)
    assert maps.shape == (2, 3, 4)


@pytest.mark.parametrize("name", NAMES)
def test_images_and_patches_may_be_rectangular_and_have_registers(name: str) -> None:
    settings = {"img_size": (48, 80), "patch_size": 16, "depth": 2, "embed_dim": 32, "num_heads": 4, "num_classes": 7}
    net = randomize_parameters(build_timm("vit_small_patch14_reg4_dinov2", **settings, init_values=0.5))
    (result,) = camtool.explain(net, torch.randn(1, 3, 48, 80), 0, method=name)
    assert result.raw.shape == (3, 5)
    assert np.ptp(result.raw) > 0


@pytest.mark.parametrize("name", NAMES)
def test_each_text_is_found_at_the_patch_that_shows_it(name: str) -> None:
    """The blocks of a net copy a patch's color to the embedding; only a map with all places right can find them."""
    model = build_open_clip()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.in_proj_weight[-CHANNELS:] = torch.eye(CHANNELS)
            block.attention.out_proj.weight.copy_(torch.eye(CHANNELS))
        model.position.zero_()
        model.norm.weight.fill_(1.0)
    images = 0.1 * make_images(1, (12, 8))
    images[0, 0, 8:, 4:], images[0, 1, :4, 4:] = 3.0, 3.0
    # A text for each color: the embedding of an image that is all of it.
    colors = torch.eye(3, dtype=torch.float64)[:2, :, None, None].expand(-1, -1, 12, 8) * 3
    texts = [Similarity(each.detach()) for each in model.encode_image(colors)]
    first, second = stack_maps(explain_texts(model, images, name, texts))[0]
    assert (first - second).flatten().argmax() == 5
    assert (second - first).flatten().argmax() == 1


# ---------------------------------------------------------------------------------------------------- refusals


class PostNorm(ScaledBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.mlp(x))


class Gated(ScaledBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x)) * x.sigmoid()
        return x + self.mlp(self.norm2(x))


class Alone(ScaledBlock):
    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.norm1(x))


@pytest.mark.parametrize("block", [PostNorm, Gated, Alone])
@pytest.mark.parametrize("name", NAMES)
def test_other_blocks_are_refused(name: str, block: Callable[[], nn.Module]) -> None:
    model = OpenClip([block(), block()]).double().eval()
    with pytest.raises(MethodError, match=r"does not add the output of its attention .* use method='gradeclip'"):
        explain_texts(model, make_images(1, (12, 8)), name)


@pytest.mark.parametrize("name", NAMES)
def test_heads_that_read_several_tokens_are_refused(name: str) -> None:
    with pytest.raises(MethodError, match=r"does not read its class token alone.*use method='gradeclip'"):
        explain_texts(build_open_clip("both"), make_images(1, (12, 8)), name)


@pytest.mark.parametrize("name", NAMES)
def test_pooling_by_attention_is_refused(name: str) -> None:
    model = build_hugging_face("Siglip")
    texts = [Similarity(torch.randn(CHANNELS))]
    with pytest.raises(MethodError, match=r"pools its tokens by attention, as SigLIP does.*use method='gradeclip'"):
        explain_texts(model, make_images(1), name, texts)
    assert explain_texts(model, make_images(1), "gradeclip", texts)[0][0].raw.shape == (3, 3)


@pytest.mark.parametrize("how", ["written", "in one batch", "heads last"])
def test_an_attention_with_another_scale_is_refused_where_products_change(how: str) -> None:
    net, x = make_tiny_vit(how), make_images(1, (6, 8))
    reference = METHODS["maskclip"](gather_rows(make_tiny_vit(), x, [ClassScore(1)]))
    assert_close(METHODS["maskclip"](gather_rows(net, x, [ClassScore(1)])), reference)
    for name in ("clearclip", "clipsurgery"):
        if how == "heads last":  # it divides the products by sqrt(D), as all do
            METHODS[name](gather_rows(net, x, [ClassScore(1)]))
        else:
            with pytest.raises(MethodError, match=r"does not scale the products .* method='maskclip'"):
                METHODS[name](gather_rows(net, x, [ClassScore(1)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 0}, "blocks must be"),
        ({"temperature": -1}, "temperature must be"),
        ({"against": 3}, r"against must be embeddings, \(D,\) or \(S, D\), got int"),
        ({"against": torch.zeros(2, 3, 4)}, "against must be embeddings"),
    ],
)
def test_options_out_of_range_raise_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        explain_texts(build_open_clip(), make_images(1, (12, 8)), "clipsurgery", **options)


def test_redundant_texts_need_a_text_encoder_and_texts_as_targets() -> None:
    net, x = make_tiny_vit(), make_images(1, (6, 8))
    with pytest.raises(MethodError, match="got str; texts work with models that were loaded with their tokenizer"):
        camtool.explain(net, x, 1, method="clipsurgery", against="a thing")
    with pytest.raises(MethodError, match="only the similarity to a text"):
        camtool.explain(net, x, 1, method="clipsurgery", against=torch.randn(7))
