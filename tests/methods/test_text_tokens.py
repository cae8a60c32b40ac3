"""Maps of the words that a vision-language model writes: TAM and raw attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

import camtool
from camtool.errors import MethodError
from camtool.methods.families.text_tokens import _filter_by_rank
from camtool.targets import TextTokens
from tests.helpers.text_processors import make_llava_processor, make_qwen_processor
from tests.hooks.state.test_no_trace import unchanged
from tests.oracles.text_tokens import average_attention, compute_tam, filter_by_rank
from tests.zoo.vision_language import IMAGE_TOKEN, WITH_GRID

PROMPT, ANSWER = "<image> what is this ?", "a red dog and a cat"


@pytest.fixture(scope="module")
def llava() -> tuple[nn.Module, Any]:
    return WITH_GRID["llava"].build().double(), make_llava_processor()


@pytest.fixture
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))


def read_text(model: nn.Module, given: dict[str, Any], answer: list[int], **others: Any) -> tuple[Any, list[int]]:
    """Return the logits behind each token of prompt and answer, and the tokens."""
    ids = torch.cat([given["input_ids"], torch.tensor([answer])], 1)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **others).logits[0]
    return logits.double().numpy(), ids[0].tolist()


def check_words(found: Any, logits: Any, ids: list[int], grid: tuple[int, int], prompt: int, words: list[int]) -> None:
    """Check the map of each word of an answer, each of one token."""
    image = [place for place, token in enumerate(ids) if token == IMAGE_TOKEN]
    shown = 0
    for number, explanation in enumerate(found):
        expected = compute_tam(logits, ids, image, grid, words, prompt, prompt + number)
        shown += expected.any()
        np.testing.assert_allclose(explanation.raw, expected, atol=1e-5 * max(expected.max(), 1e-9))
    assert shown >= len(found) - 1  # a map may be empty


def test_tam_is_that_of_the_paper(llava: Any, photo: Image.Image) -> None:
    model, processor = llava
    found = camtool.tokens(model, processor, photo, PROMPT, ANSWER, method="tam")
    with unchanged(model):  # after the first forward pass, at which Hugging Face registers hooks of its own
        camtool.tokens(model, processor, photo, PROMPT, ANSWER, method="tam")
    given = processor(images=photo, text=PROMPT, return_tensors="pt")
    answer = processor.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    logits, ids = read_text(model, given, answer, pixel_values=given["pixel_values"].double())
    prompt = given["input_ids"].shape[1]
    words = [place for place in range(len(ids)) if ids[place] > 3 and ids[place] != IMAGE_TOKEN]
    assert len(words) == 4 + 6
    check_words(found, logits, ids, (8, 8), prompt, words)


def test_tam_on_a_grid_that_is_no_square() -> None:
    model, processor = WITH_GRID["qwen2_vl"].build().double(), make_qwen_processor()
    photo = Image.fromarray(np.random.default_rng(1).integers(0, 255, (96, 64, 3), dtype=np.uint8))
    prompt = "<|vision_start|> <|image_pad|> <|vision_end|> what is this ?"
    found = camtool.tokens(model, processor, photo, prompt, ANSWER, method="tam")
    given = processor(images=photo, text=prompt, return_tensors="pt")
    answer = processor.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    ids = torch.cat([given["input_ids"], torch.tensor([answer])], 1)
    others = {"image_grid_thw": given["image_grid_thw"], "mm_token_type_ids": (ids == IMAGE_TOKEN).long()}
    logits, ids = read_text(model, given, answer, pixel_values=given["pixel_values"].double(), **others)
    start = given["input_ids"].shape[1]
    words = [*range(start - 4, len(ids))]
    check_words(found, logits, ids, (6, 4), start, words)


def test_a_word_of_several_tokens_is_the_sum_of_their_maps(llava: Any, photo: Image.Image) -> None:
    model, processor = llava
    words = camtool.tokens(model, processor, photo, PROMPT, "a dogs", method="tam")
    tokens = camtool.tokens(model, processor, photo, PROMPT, "a dogs", method="tam", by="tokens")
    assert tokens.words == ("a", "dog", "##s")
    assert words["dogs"].raw.any()
    np.testing.assert_allclose(words["dogs"].raw, tokens["dog"].raw + tokens["##s"].raw, rtol=1e-6)


def test_what_the_context_explains_is_removed(llava: Any, photo: Image.Image) -> None:
    model, processor = llava
    alone = camtool.tokens(model, processor, photo, PROMPT, ANSWER, method="tam", context=[], window=1)
    less = camtool.tokens(model, processor, photo, PROMPT, ANSWER, method="tam", window=1)
    assert all((one.raw <= other.raw).all() for one, other in zip(less, alone, strict=True))
    assert any((one.raw < other.raw).any() for one, other in zip(less, alone, strict=True))


@pytest.mark.parametrize("shape", [(5, 7), (2, 2), (1, 4)])
def test_the_filter_is_that_of_the_paper(shape: tuple[int, int]) -> None:
    plane = np.random.default_rng(2).random(shape)
    plane[0, 0] = 9.0
    plane[-1, -1] = 0.0
    expected = plane if min(shape) == 1 else filter_by_rank(plane, 3)
    np.testing.assert_allclose(_filter_by_rank(torch.from_numpy(plane), 3).numpy(), expected, rtol=1e-9)


def test_the_filter_keeps_constant_planes() -> None:
    for value in (0.0, 2.5):
        np.testing.assert_array_equal(_filter_by_rank(torch.full((4, 4), value), 3), np.full((4, 4), value))


def test_raw_attention_is_the_mean_over_heads_and_layers(llava: Any, photo: Image.Image) -> None:
    model, processor = llava
    found = camtool.tokens(model, processor, photo, PROMPT, "a dogs", method="raw-attention")
    given = processor(images=photo, text=PROMPT, return_tensors="pt")
    answer = processor.tokenizer("a dogs", add_special_tokens=False)["input_ids"]
    ids = torch.cat([given["input_ids"], torch.tensor([answer])], 1)
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            output = model(input_ids=ids, pixel_values=given["pixel_values"].double(), output_attentions=True)
    finally:
        model.set_attn_implementation("sdpa")
    start, image = given["input_ids"].shape[1], (ids[0] == IMAGE_TOKEN).nonzero().flatten().tolist()
    matrices = torch.stack(output.attentions)[:, 0].numpy()
    by_hand = average_attention(matrices, [start, start + 1], image, (8, 8))  # the rows before "dog" and "##s"
    np.testing.assert_allclose(found["dogs"].raw, by_hand, rtol=1e-5)


@pytest.mark.parametrize("method", ["tam", "raw-attention"])
def test_other_models_and_targets_are_refused(llava: Any, method: str) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    with pytest.raises(
        MethodError, match="explains words that a vision-language model writes, and target_class is ClassScore"
    ):
        camtool.explain(net.eval(), torch.rand(1, 3, 32, 32), 1, method=method)
    model, _ = llava
    given = WITH_GRID["llava"].make_inputs(torch.rand(1, 3, 64, 64).double())
    with pytest.raises(MethodError, match="target_class is ClassScore"):
        camtool.explain(model, given, 5, method=method)
    target = TextTokens((70,), (5,), "this")
    with pytest.raises(MethodError, match="does not return the tokens of a text"):
        camtool.explain(model, given, target, method=method, layer="model.multi_modal_projector")


def test_an_even_window_is_refused(llava: Any, photo: Image.Image) -> None:
    with pytest.raises(MethodError, match="window must be odd"):
        camtool.tokens(*llava, photo, PROMPT, "a dog", method="tam", window=2)
