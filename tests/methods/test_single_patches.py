"""Methods that score single patches: against their oracles on CLIP, on other towers, and where they must refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.models import Loaded
from camtool.models.two_towers import ImageTower
from camtool.targets import Similarity
from tests.helpers.two_towers import (
    build_clip_oracle,
    build_hugging_face,
    encode_texts,
    make_images,
)
from tests.helpers.vision_transformers import (
    close_to_peak,
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
