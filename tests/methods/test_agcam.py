"""AG-CAM treats the inputs of every attention as constants, in deep models and in those of every library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from camtool.evidence.attention import capture_attention_evidence
from camtool.evidence.evidence import Evidence
from camtool.hooks.attention.capture import capture_attention
from camtool.methods import METHODS
from camtool.targets import ClassScore
from tests.helpers.vision_transformers import (
    ATTENTION_FUNCTIONS,
    POOLINGS,
    SMALL_HF,
    SMALL_TIMM,
    build_oracle,
    build_timm,
    close_to_peak,
    gather_rows,
    import_hf,
    make_images,
    make_tiny_vit,
    randomize_parameters,
)
from tests.hooks.state.test_no_trace import unchanged
from tests.oracles import ORACLES


@pytest.mark.parametrize(
    ("how", "pooling"),
    [*product(ATTENTION_FUNCTIONS, [*POOLINGS][:1]), *product([*ATTENTION_FUNCTIONS][:1], [*POOLINGS][1:])],
)
def test_agcam_treats_attention_inputs_as_constants_in_a_deep_model(how: str, pooling: str) -> None:
    net, x = make_tiny_vit(how, pooling, depth=12), make_images(1)
    case = build_oracle(net, x, 2)
    expected, whole = (
        torch.tensor([ORACLES["agcam"](each)], dtype=torch.float64) for each in (case, replace(case, held=case.g))
    )
    ours = METHODS["agcam"](gather_rows(net, x, [ClassScore(2)]))
    close_to_peak(ours, expected, 1e-10)
    assert correlation(ours, expected) > 1 - 1e-10
    assert correlation(whole, expected) < 0.97  # with the gradients that pass through the attention, too


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])


SOURCES: dict[str, Callable[[], nn.Module]] = {
    "torchvision": lambda: torchvision.models.VisionTransformer(48, 16, 4, 4, 32, 64, num_classes=7),
    "timm": lambda: build_timm("vit_tiny_patch16_224", **SMALL_TIMM | {"depth": 4}),
    "timm, not fused": lambda: unfused(build_timm("vit_tiny_patch16_224", **SMALL_TIMM | {"depth": 4})),
    "timm, gated and rotary": lambda: build_timm("eva02_tiny_patch14_224", **SMALL_TIMM | {"img_size": 56, "depth": 4}),
    "timm, pooled": lambda: build_timm("vit_base_patch16_siglip_224", **SMALL_TIMM | {"depth": 4}),
    "Hugging Face": lambda: import_hf().ViTForImageClassification(import_hf().ViTConfig(**SMALL_HF)),
    "Hugging Face, eager": lambda: import_hf().ViTForImageClassification(
        import_hf().ViTConfig(**SMALL_HF, attn_implementation="eager")
    ),
    "Hugging Face, pooled": lambda: import_hf().SiglipVisionModel(import_hf().SiglipVisionConfig(**SMALL_HF)),
}


def unfused(net: nn.Module) -> nn.Module:
    for module in net.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return net


def detach_inputs(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """A hook that hands a module its tensors as constants."""

    def detached(each: Any) -> Any:
        return each.detach() if isinstance(each, Tensor) else each

    return tuple(map(detached, args)), {name: detached(each) for name, each in kwargs.items()}


@pytest.mark.parametrize("source", SOURCES)
def test_agcam_equals_the_gradient_of_a_model_that_detaches_attention_inputs(source: str) -> None:
    net, x = randomize_parameters(SOURCES[source]()).double(), torch.randn(2, 3, 48, 48, dtype=torch.float64)
    x = torch.randn(2, 3, 56, 56, dtype=torch.float64) if "rotary" in source else x
    with unchanged(net):
        ours = METHODS["agcam"](gather_rows(net, x, [ClassScore(3)] * 2))
    whole = summed_up(gather_rows(net, x, [ClassScore(3)] * 2))
    for call in capture_attention(net, x).calls:
        if call.matrix.shape[-1] == call.matrix.shape[-2]:
            net.get_submodule(call.name).register_forward_pre_hook(detach_inputs, with_kwargs=True)
    expected = summed_up(gather_rows(net, x, [ClassScore(3)] * 2))
    close_to_peak(ours, expected, 1e-10)
    assert (whole - expected).abs().amax() > 0.001 * expected.abs().amax()


def summed_up(evidence: Evidence) -> Tensor:
    """Compute AG-CAM's formula with the model's full gradients."""
    seen = capture_attention_evidence(evidence)
    layers = zip(seen.logits, seen.compute_gradients(), seen.compute_query_weights(), strict=True)
    return seen.to_grid(sum((read[:, None, :, None] * Z.sigmoid() * g.relu()).sum((1, 2)) for Z, g, read in layers))
