"""Hugging Face vision models are explained without wrapper, layer or reshaping."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

import camtool
from camtool.errors import LayerError, TargetError
from camtool.layers.selection import find_layers
from camtool.models import Loaded
from tests.zoo.catalogue import picture
from tests.zoo.check import check, depth, follows_the_picture
from tests.zoo.hugging_face import CLASSIFIERS, DETECTORS, OF_LATENTS, PAIRS, SEGMENTERS, TOWERS, UNFIT, Small


def of(group: dict[str, Small]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("small", group.values(), ids=group)


def hold(small: Small) -> None:
    verdict = check(small.build(), small.size)
    assert not verdict.faults


@of(CLASSIFIERS)
def test_classifier_is_explained_without_configuration(small: Small) -> None:
    hold(small)


@of(TOWERS)
def test_vision_tower_is_explained_without_configuration(small: Small) -> None:
    hold(small)


@of(SEGMENTERS)
def test_segmenter_is_explained_without_configuration(small: Small) -> None:
    hold(small)


@of(DETECTORS)
def test_detector_is_explained_without_configuration(small: Small) -> None:
    hold(small)


@of(PAIRS)
def test_image_text_model_is_explained_without_configuration(small: Small) -> None:
    def embeddings(texts: Sequence[str]) -> Tensor:
        return torch.randn(len(texts), 64, generator=torch.Generator().manual_seed(0))

    model, img = small.build(), picture(2, small.size, small.size)
    (results,) = camtool.explain(Loaded(model, text=embeddings), img, [["a dog", "a cat", "a cow", "a drop of water"]])
    assert any(np.ptp(result.raw) > 0 for result in results)
    assert all(np.isfinite(result.raw).all() for result in results)
    tower, name = model.vision_model, results[0].layer.removeprefix("vision_model.")
    (layer,) = find_layers(tower, img, [name])
    assert depth(tower, name, img) > 2 / 3
    assert follows_the_picture(tower, [layer], img)


@of(OF_LATENTS)
def test_latents_are_not_read_as_positions(small: Small) -> None:
    model, img = small.build(), picture(2, small.size, small.size)
    (layer,) = find_layers(model, img)
    assert math.prod(layer.layout.grid) > 2 * model.config.num_latents
    assert follows_the_picture(model, [layer], img)


@pytest.mark.parametrize("name", UNFIT)
def test_model_without_an_output_for_the_image_is_rejected(name: str) -> None:
    small, _ = UNFIT[name]
    with pytest.raises((LayerError, TargetError), match=r"no gradient reaches it|a function from th"):
        camtool.explain(small.build(), picture(2, small.size, small.size))


def test_function_selects_the_output_of_a_tower_without_pooling() -> None:
    small, _ = UNFIT["ijepa"]
    (result,) = camtool.explain(
        small.build(), picture(2, small.size, small.size), lambda output: output.last_hidden_state.mean(0)[3]
    )
    assert result.raw.shape == (8, 8)
    assert np.ptp(result.raw) > 0
