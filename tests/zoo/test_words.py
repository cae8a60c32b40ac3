"""Words of vision-language models of other kinds than LLaVA: each map equals a Grad-CAM by hand.

Florence-2 is an encoder and a decoder, BLIP's decoder looks at the image by cross-attention, and the texts of
InstructBLIP and Kosmos-2 hold queries instead of cells, so that their maps are those of the vision tower.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

import camtool
from camtool.errors import CamtoolError, MethodError, ModelError
from tests.helpers import text_processors
from tests.hooks.state.test_no_trace import unchanged
from tests.zoo.vision_language import BLIP, IMAGE_TOKEN, WITH_GRID, WITHOUT_GRID, SmallVLM

PROMPT, ANSWER = "what is this ?", "a red dogs"
ANSWER_IDS, WORDS = [8, 9, 10, 13], {"a": [0], "red": [1], "dogs": [2, 3]}


@dataclass(frozen=True)
class Family:
    """How a model is called to score an answer, by hand.

    Attributes:
        small: The model.
        make_processor: Its processor.
        layer: A layer whose first token is no cell (a mean in Florence-2, else a class token), and the next ones are.
        complete: From the processor's inputs and an answer to the arguments of the model.
        start: At which of the logits the first token of the answer is scored.
        side: The number of rows of cells.
        dtype: The type of the weights. Kosmos-2 has no float64.
    """

    small: SmallVLM
    make_processor: Callable[[], Any]
    layer: str
    complete: Callable[[dict[str, Tensor], list[int]], dict[str, Tensor]]
    start: int
    side: int = 8
    dtype: torch.dtype = torch.float64

    def read_cells(self, tokens: Tensor) -> Tensor:
        """Return the cells among tokens ``(T, ...)``."""
        return tokens[1 : 1 + self.side**2]

    def build(self) -> tuple[nn.Module, Any]:
        return self.small.build().to(self.dtype), self.make_processor()


def decode_florence(given: dict[str, Tensor], answer: list[int]) -> dict[str, Tensor]:
    return {**given, "decoder_input_ids": torch.tensor([[2, *answer]])}


def append_to_blip(given: dict[str, Tensor], answer: list[int]) -> dict[str, Tensor]:
    assert given["input_ids"].tolist() == [[1, 4, 5, 6, 7, 2]]  # the last is a separator, which ends a text
    return {"pixel_values": given["pixel_values"], "input_ids": torch.tensor([[1, 4, 5, 6, 7, *answer]])}


def append_to_instructblip(given: dict[str, Tensor], answer: list[int]) -> dict[str, Tensor]:
    ids = torch.cat([given["input_ids"], torch.tensor([answer], dtype=torch.long)], 1)
    question = {name: given[name] for name in ("pixel_values", "qformer_input_ids", "qformer_attention_mask")}
    return {**question, "input_ids": ids}


def append_to_kosmos(given: dict[str, Tensor], answer: list[int]) -> dict[str, Tensor]:
    ids = torch.cat([given["input_ids"], torch.tensor([answer], dtype=torch.long)], 1)
    mask = torch.zeros_like(ids)
    mask[:, 2:66] = 1  # behind [BOS] and <image>
    return {"pixel_values": given["pixel_values"], "input_ids": ids, "image_embeds_position_mask": mask}


def widen_kosmos() -> SmallVLM:
    """Return a model for the vocabulary of the processor, with 64 queries and 16 x 16 patches, as the published one."""
    small = WITHOUT_GRID["kosmos_2"]
    (text, of_text), (vision, of_vision) = small.parts["text_config"], small.parts["vision_config"]
    parts = {
        "text_config": (text, {**of_text, "vocab_size": 113}),
        "vision_config": (vision, {**of_vision, "patch_size": 4}),
    }
    return replace(small, parts=parts, options={"latent_query_num": 64})


FAMILIES = {
    "florence2": Family(
        WITH_GRID["florence2"],
        lambda: text_processors.make_florence_processor(65),
        "model.language_model.encoder.layers.0",
        decode_florence,
        0,
    ),
    "blip": Family(BLIP, text_processors.make_blip_processor, "vision_model.encoder.layers.1", append_to_blip, 4),
    "instructblip": Family(
        WITHOUT_GRID["instructblip"],
        lambda: text_processors.make_instructblip_processor(16),
        "vision_model.encoder.layers.1",
        append_to_instructblip,
        19,
    ),
    "kosmos_2": Family(
        widen_kosmos(),
        text_processors.make_kosmos_processor,
        "vision_model.model.encoder.layers.1",
        append_to_kosmos,
        70,
        16,
        torch.float32,
    ),
}


@pytest.fixture
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))


def prepare(family: Family, processor: Any, photo: Image.Image, answer: list[int]) -> dict[str, Tensor]:
    given = dict(processor(images=photo, text=PROMPT, return_tensors="pt"))
    given["pixel_values"] = given["pixel_values"].to(family.dtype)
    return family.complete(given, answer)


def explain(*args: Any, **settings: Any) -> camtool.AnswerMaps:
    """Explain words; some maps may be empty, as the weights are random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return camtool.tokens(*args, **settings)


def compute_gradcam(
    family: Family, model: nn.Module, layer: str, inputs: dict[str, Tensor], places: list[int], start: int
) -> Any:
    """Compute the Grad-CAM of the logits of some tokens of the answer."""
    kept: list[Any] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda _module, _given, output: kept.append(output))
    with torch.enable_grad():
        logits = model(**inputs).logits[0]
    handle.remove()
    score = sum(logits[start + place, ANSWER_IDS[place]] for place in places)
    tensor = kept[0] if isinstance(kept[0], Tensor) else kept[0][0]
    (gradient,) = torch.autograd.grad(score, tensor)
    weights = family.read_cells(gradient[0]).mean(0)
    plane = (family.read_cells(tensor[0]) * weights).sum(-1).relu()
    return plane.reshape(family.side, family.side).detach().numpy()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("is_named", [True, False])
def test_each_word_has_the_gradcam_of_its_tokens(name: str, is_named: bool, photo: Image.Image) -> None:
    family = FAMILIES[name]
    model, processor = family.build()
    found = explain(model, processor, photo, PROMPT, ANSWER, layer=family.layer if is_named else None)
    assert found.words == tuple(WORDS)
    inputs = prepare(family, processor, photo, ANSWER_IDS)
    shown = 0
    for word, places in WORDS.items():
        by_hand = compute_gradcam(family, model, found[word].layer, inputs, places, family.start)
        shown += by_hand.any()
        np.testing.assert_allclose(found[word].raw, by_hand, rtol=0, atol=1e-5 * max(by_hand.max(), 1e-9))
    assert shown >= 2


@pytest.mark.parametrize("name", FAMILIES)
def test_checked_words_have_the_probabilities_of_the_model(name: str, photo: Image.Image) -> None:
    family = FAMILIES[name]
    model, processor = family.build()
    answer = explain(model, processor, photo, PROMPT, ANSWER, layer=family.layer)
    with unchanged(model):
        checks = answer.verify(fills=("mean",), controls=0).checks
    mean = Image.new("RGB", photo.size, tuple(int(value) for value in np.asarray(photo).mean((0, 1)).round()))
    for image, kind in ((photo, "probability"), (mean, "blank")):
        with torch.no_grad():
            logits = model(**prepare(family, processor, image, ANSWER_IDS)).logits[0].double()
        of_tokens = [logits[family.start + place].softmax(0)[token].item() for place, token in enumerate(ANSWER_IDS)]
        for check, places in zip(checks or (), WORDS.values(), strict=True):
            by_hand = np.prod([of_tokens[place] for place in places])
            assert getattr(check, kind) == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("name", ["blip", "instructblip"])
def test_the_model_writes_the_answer_if_none_is_given(name: str, photo: Image.Image) -> None:
    family = FAMILIES[name]
    model, processor = family.build()
    explain(model, processor, photo, PROMPT, max_new_tokens=1)  # Hugging Face registers hooks of its own
    with unchanged(model):
        found = explain(model, processor, photo, PROMPT, max_new_tokens=3, by="tokens")
    written: list[int] = []
    for _ in range(3):  # the most likely token each time
        with torch.no_grad():
            logits = model(**prepare(family, processor, photo, written)).logits[0, -1]
        if name == "instructblip":  # an answer holds no placeholder
            logits[IMAGE_TOKEN] = -torch.inf
        written.append(int(logits.argmax()))
    assert found.answer == processor.tokenizer.decode(written, skip_special_tokens=True).strip()


def test_an_answer_of_yours_begins_with_the_token_that_the_model_is_forced_to_write(photo: Image.Image) -> None:
    family = FAMILIES["florence2"]
    model, processor = family.build()
    model.generation_config.forced_bos_token_id = 1
    found = explain(model, processor, photo, PROMPT, ANSWER, layer=family.layer)
    inputs = prepare(family, processor, photo, [1, *ANSWER_IDS])
    by_hand = compute_gradcam(family, model, family.layer, inputs, [1], 1)
    assert by_hand.any()
    np.testing.assert_allclose(found["red"].raw, by_hand, rtol=0, atol=1e-5 * by_hand.max())


def test_raw_attention_of_a_decoder_is_its_cross_attention(photo: Image.Image) -> None:
    family = FAMILIES["florence2"]
    model, processor = family.build()
    found = explain(model, processor, photo, PROMPT, ANSWER, method="raw-attention")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**prepare(family, processor, photo, ANSWER_IDS), output_attentions=True)
    rows = torch.stack(output.cross_attentions).mean((0, 2))[0, [2, 3]].mean(0)
    np.testing.assert_allclose(found["dogs"].raw, family.read_cells(rows).reshape(8, 8).numpy(), rtol=1e-5)


def test_raw_attention_of_a_captioner_is_its_cross_attention(photo: Image.Image) -> None:
    family = FAMILIES["blip"]
    model, processor = family.build()
    found = explain(model, processor, photo, PROMPT, ANSWER, method="raw-attention")
    inputs = prepare(family, processor, photo, ANSWER_IDS)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        image = model.vision_model(inputs["pixel_values"]).last_hidden_state
        output = model.text_decoder(inputs["input_ids"], encoder_hidden_states=image, output_attentions=True)
    rows = torch.stack(output.cross_attentions).mean((0, 2))[0, [6, 7]].mean(0)
    np.testing.assert_allclose(found["dogs"].raw, family.read_cells(rows).reshape(8, 8).numpy(), rtol=1e-5)


@pytest.mark.parametrize("name", ["instructblip", "kosmos_2"])
@pytest.mark.parametrize("method", ["tam", "raw-attention"])
def test_methods_on_cells_in_the_text_refuse_queries(name: str, method: str, photo: Image.Image) -> None:
    with pytest.raises(MethodError, match=r"reads queries instead of the image's cells.*use method='gradcam'"):
        explain(*FAMILIES[name].build(), photo, PROMPT, ANSWER, method=method)


def test_tam_refuses_models_without_logits_at_the_cells(photo: Image.Image) -> None:
    with pytest.raises(MethodError, match="has none at the image's tokens; use method='gradcam' or 'raw-attention'"):
        explain(*FAMILIES["florence2"].build(), photo, PROMPT, ANSWER, method="tam")
    with pytest.raises(MethodError, match="does not return the tokens of a text"):
        explain(*FAMILIES["blip"].build(), photo, PROMPT, ANSWER, method="tam")


def test_texts_of_encoder_and_decoder_that_look_alike_are_refused(photo: Image.Image) -> None:
    model, processor = FAMILIES["florence2"].build()
    with pytest.raises(CamtoolError, match="as many tokens as the prompt with the image, 71"):
        explain(model, processor, photo, PROMPT, " ".join(["red"] * 70))


def test_attention_that_may_be_that_of_the_tower_is_refused(photo: Image.Image) -> None:
    with pytest.raises(MethodError, match="not certain which attention leads from the 65 tokens"):
        explain(*FAMILIES["blip"].build(), photo, PROMPT, " ".join(["red"] * 60), method="raw-attention")


def test_a_model_with_a_text_encoder_is_refused(photo: Image.Image) -> None:
    model = replace(BLIP, kind="BlipForQuestionAnswering").build()
    with pytest.raises(ModelError, match=r"has a text encoder for the prompt.*pass a model whose decoder reads"):
        explain(model, text_processors.make_blip_processor(), photo, PROMPT, ANSWER)
