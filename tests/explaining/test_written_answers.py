"""Words of a vision-language model, each with its map on the photo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

import camtool
from camtool.errors import CamtoolError, ModelError, TargetError
from camtool.progress import Stage, send_progress
from camtool.targets import TextTokens
from tests.helpers.comparison import assert_same_raw
from tests.helpers.text_processors import make_llava_processor, make_qwen_processor
from tests.hooks.state.test_no_trace import unchanged
from tests.zoo.vision_language import IMAGE_TOKEN, WITH_GRID

PROMPT, ANSWER = "<image> what is this ?", "a red dogs sitting ."
LAYER = "model.language_model.layers.1"


@pytest.fixture(scope="module")
def llava() -> tuple[nn.Module, Any]:
    model = WITH_GRID["llava"].build()
    # Hugging Face's models register hooks on their own blocks at their first forward pass, and these stay.
    with torch.no_grad():
        model.get_image_features(torch.zeros(1, 3, 64, 64), output_hidden_states=True)
    return model, make_llava_processor()


@pytest.fixture
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8))


def compute_gradcam(model: nn.Module, given: dict[str, Any], answer: list[int], places: list[int]) -> np.ndarray:
    """Compute the Grad-CAM of the logits of some tokens of an answer, at the image's tokens of a text."""
    ids = torch.cat([given["input_ids"], torch.tensor([answer])], 1)
    kept: list[Tensor] = []
    handle = model.get_submodule(LAYER).register_forward_hook(lambda _module, _given, output: kept.append(output))
    others = {key: value for key, value in given.items() if key in ("pixel_values", "image_grid_thw")}
    if "mm_token_type_ids" in given:
        others["mm_token_type_ids"] = (ids == IMAGE_TOKEN).long()
    with torch.enable_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **others).logits[0]
    handle.remove()
    start = given["input_ids"].shape[1]
    score = sum(logits[start + place - 1, answer[place]] for place in places)
    (gradient,) = torch.autograd.grad(score, kept[0])
    image = ids[0] == IMAGE_TOKEN
    weights = gradient[0, image].mean(0)
    return (kept[0][0, image] * weights).sum(-1).relu().detach().numpy()


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("words", [("a", [0]), ("red", [1]), ("dogs", [2, 3]), ("sitting", [4, 5])]),
        ("tokens", [("a", [0]), ("red", [1]), ("dog", [2]), ("##s", [3]), ("sit", [4]), ("##ting", [5])]),
    ],
)
def test_each_word_has_the_gradcam_of_its_tokens(llava: Any, photo: Image.Image, by: str, expected: Any) -> None:
    model, processor = llava
    found = camtool.tokens(model, processor, photo, PROMPT, ANSWER, by=by, layer=LAYER)
    assert found.words == tuple(word for word, _ in expected)
    given = processor(images=photo, text=PROMPT, return_tensors="pt")
    answer = processor.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    for explanation, (_, places) in zip(found, expected, strict=True):
        by_hand = compute_gradcam(model, given, answer, places).reshape(8, 8)
        assert by_hand.any()
        assert np.abs(explanation.raw - by_hand).max() <= 1e-5 * by_hand.max()


def test_the_maps_lie_on_the_photo_where_the_processor_cropped_it(llava: Any, photo: Image.Image) -> None:
    found = camtool.tokens(*llava, photo, PROMPT, "a dog")
    assert found["dog"].heatmap.shape == (90, 120)
    np.testing.assert_array_equal(found[0].photo, np.asarray(photo))
    seen = found[0].seen
    assert seen[:, 15:104].all()
    assert not seen[:, :14].any()
    assert not seen[:, 106:].any()


@pytest.mark.parametrize(("size", "grid"), [((96, 64), (6, 4)), ((48, 128), (3, 8))])
def test_a_model_of_dynamic_resolution_keeps_the_proportions(size: tuple[int, int], grid: tuple[int, int]) -> None:
    model, processor = WITH_GRID["qwen2_vl"].build(), make_qwen_processor()
    photo = Image.fromarray(np.random.default_rng(1).integers(0, 255, (*size, 3), dtype=np.uint8))
    prompt = "<|vision_start|> <|image_pad|> <|vision_end|> what is this ?"
    (word,) = camtool.tokens(model, processor, photo, prompt, "dog", layer=LAYER)
    given = processor(images=photo, text=prompt, return_tensors="pt")
    by_hand = compute_gradcam(model, given, processor.tokenizer("dog")["input_ids"], [0]).reshape(grid)
    assert np.abs(word.raw - by_hand).max() <= 1e-5 * by_hand.max()
    assert word.heatmap.shape == size
    assert word.seen.all()


def test_the_model_writes_the_answer_if_none_is_given(llava: Any, photo: Image.Image) -> None:
    model, processor = llava
    with unchanged(model):
        found = camtool.tokens(model, processor, photo, PROMPT, max_new_tokens=4, by="tokens")
    given = processor(images=photo, text=PROMPT, return_tensors="pt")
    ids = given["input_ids"]
    for _ in range(4):  # the most likely token each time
        with torch.no_grad():
            logits = model(input_ids=ids, pixel_values=given["pixel_values"]).logits
        logits[..., IMAGE_TOKEN] = -torch.inf  # an answer holds no image
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    written = processor.tokenizer.decode(ids[0, given["input_ids"].shape[1] :])
    assert found.answer == written
    assert " ".join(found.words) in written.replace(" .", "")


def test_the_time_to_write_is_shown(llava: Any, photo: Image.Image) -> None:
    steps: list[str] = []

    class Ignored:
        def update(self, passes: int, /) -> None: ...
        def close(self) -> None: ...

    def listen(count: int, stage: Stage | None = None, /) -> Ignored:
        steps.append("" if stage is None else stage.activity)
        return Ignored()

    with send_progress(listen):
        camtool.tokens(*llava, photo, PROMPT, max_new_tokens=1)
    assert "Writing an answer" in steps


def test_only_the_logits_of_the_answer_are_computed(llava: Any, photo: Image.Image) -> None:
    model, processor = llava
    answer = processor.tokenizer("a red dog", add_special_tokens=False)["input_ids"]
    lengths: list[int] = []
    handle = model.lm_head.register_forward_hook(lambda _module, _given, output: lengths.append(output.shape[1]))
    camtool.tokens(model, processor, photo, PROMPT, "a red dog", method="gradcam")
    handle.remove()
    assert set(lengths) == {1, len(answer) + 1}


def test_the_picture_has_the_photo_and_an_overlay_for_each_word(llava: Any, photo: Image.Image, tmp_path: Path) -> None:
    found = camtool.tokens(*llava, photo, PROMPT, "a red dog")
    assert repr(found) == "<AnswerMaps of 3 words: 'a red dog'>"
    assert len(found) == 3
    found.save(tmp_path / "answer.png")
    assert found.to_pixels().shape[1] > found.to_pixels().shape[0]
    with pytest.raises(KeyError, match="the answer has no word 'cat'; its words are 'a', 'red', 'dog'"):
        found["cat"]


def test_other_methods_and_settings_are_those_of_explain(llava: Any, photo: Image.Image) -> None:
    found = camtool.tokens(*llava, photo, PROMPT, "a dog", method="layercam", placement="stretch")
    assert [each.method for each in found] == ["layercam", "layercam"]


def test_words_are_explained_by_tam_where_the_model_allows_it(llava: Any, photo: Image.Image) -> None:
    model, processor = llava
    default, tam, gradcam = (
        camtool.tokens(model, processor, photo, PROMPT, "a dog", **how)[1]
        for how in ({}, {"method": "tam"}, {"method": "gradcam"})
    )
    assert default.method == "tam"
    assert_same_raw(default.raw, tam.raw)
    assert [any(each.code == "word-method" for each in found.warnings) for found in (default, gradcam)] == [False, True]
    with_layer = camtool.tokens(model, processor, photo, PROMPT, "a dog", layer=LAYER)[1]
    assert with_layer.method == "gradcam"


@pytest.mark.parametrize("pick", [lambda _: None, lambda processor: processor.tokenizer, lambda _: "llava"])
def test_a_processor_that_is_none_is_refused(llava: Any, photo: Image.Image, pick: Any) -> None:
    model, processor = llava
    with pytest.raises(ModelError, match=r"processor: \w+ does not prepare an image and a text"):
        camtool.tokens(model, pick(processor), photo, PROMPT, "a dog")


def test_errors_say_what_is_missing(llava: Any, photo: Image.Image) -> None:
    model, processor = llava
    with pytest.raises(
        CamtoolError, match=r"no place for the image; write the placeholder into it, e.g. '<image> what"
    ):
        camtool.tokens(model, processor, photo, "what is this ?", "a dog")
    with pytest.raises(CamtoolError, match=r"answer: there is no word in '\.'"):
        camtool.tokens(model, processor, photo, PROMPT, ".")
    with pytest.raises(CamtoolError, match=r"by must be one of .words., .tokens."):
        camtool.tokens(model, processor, photo, PROMPT, "a dog", by="letters")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="Sequential does not write text about images"):
        camtool.tokens(nn.Sequential(nn.Conv2d(3, 4, 1)), processor, photo, PROMPT, "a dog")


def test_a_target_of_tokens_needs_logits_of_a_text() -> None:
    with pytest.raises(TargetError, match="as many tokens as positions, from 1 on"):
        TextTokens((0,), (5,), "dog")
    with pytest.raises(TargetError, match=r"no logits of a text \(N, T, V\)"):
        TextTokens((1,), (5,), "dog")(torch.rand(1, 9))
