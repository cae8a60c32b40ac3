"""Open-vocabulary detectors: one image, several texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import camtool
from camtool.targets import Detection

_BLOCKS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


def build(family: str) -> nn.Module:
    """A small detector with random weights: 8 x 8 patches, each of them a box."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        text_config=_BLOCKS | {"vocab_size": 99, "max_position_embeddings": 16},
        vision_config=_BLOCKS | {"image_size": 64, "patch_size": 8},
        projection_dim=32,
    )
    model: nn.Module = getattr(transformers, f"{family}ForObjectDetection")(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.15)
    return model


def make_inputs(texts: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 90, (texts, 6))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(1, 3, 64, 64)}


@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("family", ["OwlViT", "Owlv2"])
def test_the_map_equals_a_gradcam_by_hand(family: str, texts: int) -> None:
    model, inputs = build(family), make_inputs(texts)
    found = camtool.explain(model, inputs, [Detection(0, confidence=0)])
    (result,) = found[0] if isinstance(found[0], list) else [found[0]]
    kept: list[torch.Tensor] = []
    handle = model.get_submodule(result.layer).register_forward_hook(
        lambda _module, _given, output: kept.append(output if isinstance(output, torch.Tensor) else output[0])
    )
    with torch.enable_grad():
        logits = model(**inputs).logits[0]
    handle.remove()
    (gradient,) = torch.autograd.grad(logits.max(), kept[-1])  # the surest box for the text that fits it best
    activations, gradient = kept[-1][0, -64:], gradient[0, -64:]
    by_hand = (activations * gradient.mean(0)).sum(-1).relu().reshape(8, 8).detach().numpy()
    assert by_hand.any()
    assert np.abs(result.raw - by_hand).max() <= 1e-5 * by_hand.max()
