"""Scores of the phrases of a prompt, from a logit for each box and token."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from camtool.outputs.detections import find_detections

NONE = -torch.inf

LOGITS = torch.tensor(
    [  # [CLS], two tokens, ".", one token, "?", [SEP], and padding
        [9.0, 1.0, 3.0, 9.0, -2.0, 9.0, 9.0, NONE],
        [9.0, 0.0, -1.0, 9.0, 2.0, 9.0, 9.0, NONE],
    ]
)

BOXES = torch.tensor([[0.5, 0.5, 0.2, 0.4], [0.25, 0.5, 0.5, 1.0]])

PROMPT = torch.tensor([101, 7, 8, 1012, 5, 1029, 102])


def test_a_phrase_has_the_highest_logit_of_its_tokens() -> None:
    output = {"logits": LOGITS[None], "pred_boxes": BOXES[None], "input_ids": PROMPT[None]}
    (found,) = find_detections(output, class_count=2) or []
    assert_close(found.scores, torch.tensor([[3.0, -2.0], [0.0, 2.0]]))
    assert_close(found.confidences, found.scores.sigmoid())
    assert found.phrases == ((7, 8), (5,))
    assert found.class_count == 2
    best = found.sort_by_confidence()
    assert best.classes is not None
    assert best.classes.tolist() == [0, 1]
    assert_close(best.boxes[0], torch.tensor([0.4, 0.3, 0.6, 0.7]))


def test_each_image_has_its_own_prompt() -> None:
    padded = LOGITS.clone()
    padded[:, 4:] = NONE  # the second prompt ends behind its first phrase, and its padding is no phrase
    prompts = torch.stack([PROMPT, torch.tensor([101, 7, 8, 102, 0, 0, 0])])
    output = {"logits": torch.stack([LOGITS, padded]), "pred_boxes": BOXES.expand(2, 2, 4), "input_ids": prompts}
    first, second = find_detections(output) or []
    assert (first.phrases, second.phrases) == (((7, 8), (5,)), ((7, 8),))
    assert_close(second.scores, torch.tensor([[3.0], [0.0]]))


def test_without_its_tokens_a_prompt_is_one_phrase() -> None:
    """The authors' own code returns logits and boxes alone; a softmax over the tokens would mean nothing."""
    (found,) = find_detections({"pred_logits": LOGITS[None, :, 1:], "pred_boxes": BOXES[None]}) or []
    assert_close(found.scores, torch.tensor([[9.0], [9.0]]))
    assert_close(found.confidences, found.scores.sigmoid())
    assert found.phrases == ((),)
