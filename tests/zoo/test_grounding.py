"""Grounding DINO: a prompt of several phrases, each a class; every token of the prompt has a logit for each box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

import camtool
from camtool.errors import TargetError
from camtool.targets import Detection
from tests.zoo.catalogue import picture
from tests.zoo.hugging_face import _DETR, _SWIN
from tests.zoo.test_queries import assert_equal, compute_by_hand

CLS, SEP, DOT = 101, 102, 1012

CAT, CONTROL = [7, 8], [7, 9, 10]
"""The tokens of "a cat" and "a remote control"."""

PROMPT = [CLS, *CAT, DOT, *CONTROL, DOT, SEP]

PLACES = {"a cat": [1, 2], "a remote control": [4, 5, 6]}
"""The tokens of each phrase, counted from the start of the prompt."""

SIZES = [(256, 256), (256, 384)]


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with BERT's numbers for the special tokens and the full stop."""
    from transformers import BertTokenizer

    names = {0: "[PAD]", 7: "a", 8: "cat", 9: "remote", 10: "control", 100: "[UNK]", CLS: "[CLS]", SEP: "[SEP]"}
    names |= {103: "[MASK]", DOT: ".", 1029: "?"}
    vocabulary = {names.get(number, f"word{number}"): number for number in range(1100)}
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)


def build(kind: str) -> Any:
    import transformers

    torch.manual_seed(0)
    stages = {"image_size": 256, "out_features": ["stage2", "stage3", "stage4"]}
    text = {"vocab_size": 1100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, f"{kind}Config")(
        **_DETR | {"num_queries": 12, "max_text_len": 32, "num_feature_levels": 4},
        backbone_config=transformers.SwinConfig(**_SWIN | stages),
        text_config=transformers.BertConfig(**text, intermediate_size=64, max_position_embeddings=64),
    )
    model: nn.Module = getattr(transformers, f"{kind}ForObjectDetection")(config).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    return model


def make_inputs(size: tuple[int, int], *prompts: list[int]) -> dict[str, Tensor]:
    longest = max(map(len, prompts))
    tokens = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    images = torch.cat([picture(2 + number, *size) for number in range(len(prompts))])
    return {"pixel_values": images, "input_ids": tokens, "attention_mask": (tokens > 0).long()}


@pytest.mark.parametrize("size", SIZES, ids=["square", "oblong"])
@pytest.mark.parametrize("kind", ["GroundingDino", "MMGroundingDino"])
def test_a_phrase_has_the_score_the_box_and_the_map_computed_by_hand(kind: str, size: tuple[int, int]) -> None:
    model, inputs = build(kind), make_inputs(size, PROMPT)
    output = model(**inputs)
    logits, boxes = output.logits[0].detach(), output.pred_boxes[0].detach()
    explainer = camtool.Explainer(model, labels=[*PLACES])
    (results,) = explainer(inputs, [["a cat", "a remote control", Detection(0, confidence=0)]])
    surest = max(PLACES, key=lambda name: logits[:, PLACES[name]].max())
    is_map = False
    for name, result in zip([*PLACES, surest], results, strict=True):
        query, token = divmod(int(logits[:, PLACES[name]].argmax()), len(PLACES[name]))
        token = PLACES[name][token]
        x, y, width, height = (boxes[query] * torch.tensor([*size[::-1], *size[::-1]])).tolist()
        assert result.label == name
        assert result.box == pytest.approx((x - width / 2, y - height / 2, x + width / 2, y + height / 2), abs=1e-2)
        assert result.score == pytest.approx(logits[query, token].item(), rel=1e-4)
        assert result.probability == pytest.approx(logits[query, token].sigmoid().item(), rel=1e-4)

        def score(output: Any, query: int = query, token: int = token) -> Tensor:
            return output.logits[0, query, token]

        assert result.layer == "model.encoder"
        by_hand = compute_by_hand(model, inputs, result.layer, (size[0] // 64, size[1] // 64), score)
        assert_equal(result.raw, by_hand)
        is_map = is_map or bool(by_hand.any())
    assert is_map


def test_a_phrase_is_found_by_its_words_in_the_prompt_of_its_image(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    build("GroundingDino").save_pretrained(tmp_path)
    import transformers

    model = transformers.GroundingDinoForObjectDetection.from_pretrained(tmp_path).eval()
    other = [CLS, *CONTROL, DOT, *CAT, DOT, 8, DOT, SEP]
    inputs = make_inputs((256, 256), PROMPT, other)
    logits = model(**inputs).logits.detach()
    first, second = camtool.explain(model, inputs, ["A cat", "a cat"])
    assert (first.label, first.index, second.label, second.index) == ("a cat", 0, "a cat", 1)
    # The surest query whose best phrase it is, which need not be the surest of all.
    for result, of_tokens in ((first, logits[0][:, 1:3]), (second, logits[1][:, 5:7])):
        assert torch.isclose(of_tokens.amax(1), torch.tensor(result.score), rtol=1e-4).any()
    alone = camtool.explain(model, make_inputs((256, 256), PROMPT), [["a cat"]])[0][0]
    assert alone.score == pytest.approx(first.score, rel=1e-4)
    with pytest.raises(TargetError, match="'a dog' is not among the 2 labels"):
        camtool.explain(model, make_inputs((256, 256), PROMPT), "a dog")


def test_without_a_tokenizer_the_texts_of_the_phrases_are_asked_for() -> None:
    model, inputs = build("GroundingDino"), make_inputs((256, 256), PROMPT)
    with pytest.raises(TargetError, match=r"'a cat' is a name, but no labels are known; pass labels="):
        camtool.explain(model, inputs, "a cat")
    with pytest.raises(TargetError, match=r"labels has 1 name, but the prompt has 2 phrases \(each ends with"):
        camtool.explain(model, inputs, "a cat", labels=["a cat"])
    with pytest.raises(TargetError, match="2 does not exist: the model has 2 classes"):
        camtool.explain(model, inputs, 2)
    (result,) = camtool.explain(model, inputs, [[Detection(0, confidence=0)]])[0]
    assert result.label in ("class 0", "class 1")


def test_a_prompt_without_a_phrase_is_refused() -> None:
    with pytest.raises(TargetError, match="the prompt names nothing to look for"):
        camtool.explain(build("GroundingDino"), make_inputs((256, 256), [CLS, DOT, SEP]))
