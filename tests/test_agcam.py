"""AG-CAM holds the inputs of every attention constant, in deep models and in those of every library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torchvision
from oracles import ORACLES
from test_attention import (
    POOLINGS,
    SMALL,
    SMALL_HF,
    WAYS,
    ask,
    case_of,
    close_to_peak,
    from_timm,
    hugging_face,
    pictures,
    shaken,
    tiny,
)
from test_no_trace import unchanged
from torch import Tensor, nn

from camtool.attention import capture
from camtool.evidence import Evidence
from camtool.methods import METHODS
from camtool.targets import ClassScore


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("how", WAYS)
def test_agcam_holds_the_input_of_every_attention_in_a_deep_model(how: str, pooling: str) -> None:
    net, x = tiny(how, pooling, depth=12), pictures(1)
    case = case_of(net, x, 2)
    expected, whole = (
        torch.tensor([ORACLES["agcam"](each)], dtype=torch.float64) for each in (case, replace(case, held=case.g))
    )
    ours = METHODS["agcam"](ask(net, x, [ClassScore(2)]))
    close_to_peak(ours, expected, 1e-10)
    assert correlation(ours, expected) > 1 - 1e-10
    assert correlation(whole, expected) < 0.97  # with the gradients that pass through the attention, too


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])


SOURCES: dict[str, Callable[[], nn.Module]] = {
    "torchvision": lambda: torchvision.models.VisionTransformer(48, 16, 4, 4, 32, 64, num_classes=7),
    "timm": lambda: from_timm("vit_tiny_patch16_224", **SMALL | {"depth": 4}),
    "timm, not fused": lambda: unfused(from_timm("vit_tiny_patch16_224", **SMALL | {"depth": 4})),
    "timm, gated and rotary": lambda: from_timm("eva02_tiny_patch14_224", **SMALL | {"img_size": 56, "depth": 4}),
    "timm, pooled": lambda: from_timm("vit_base_patch16_siglip_224", **SMALL | {"depth": 4}),
    "Hugging Face": lambda: hugging_face().ViTForImageClassification(hugging_face().ViTConfig(**SMALL_HF)),
    "Hugging Face, eager": lambda: hugging_face().ViTForImageClassification(
        hugging_face().ViTConfig(**SMALL_HF, attn_implementation="eager")
    ),
    "Hugging Face, pooled": lambda: hugging_face().SiglipVisionModel(hugging_face().SiglipVisionConfig(**SMALL_HF)),
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
def test_agcam_is_the_full_gradient_of_a_model_whose_attention_modules_detach_their_input(source: str) -> None:
    net, x = shaken(SOURCES[source]()).double(), torch.randn(2, 3, 48, 48, dtype=torch.float64)
    x = torch.randn(2, 3, 56, 56, dtype=torch.float64) if "rotary" in source else x
    with unchanged(net):
        ours = METHODS["agcam"](ask(net, x, [ClassScore(3)] * 2))
    whole = summed_up(ask(net, x, [ClassScore(3)] * 2))
    for call in capture(net, x).calls:
        if call.matrix.shape[-1] == call.matrix.shape[-2]:
            net.get_submodule(call.name).register_forward_pre_hook(detach_inputs, with_kwargs=True)
    expected = summed_up(ask(net, x, [ClassScore(3)] * 2))
    close_to_peak(ours, expected, 1e-10)
    assert (whole - expected).abs().amax() > 0.001 * expected.abs().amax()


def summed_up(evidence: Evidence) -> Tensor:
    """The formula of AG-CAM with the gradients of the model as it is."""
    seen = evidence.attention
    layers = zip(seen.logits, seen.gradients, seen.readers, strict=True)
    return seen.on_grid(sum((read[:, None, :, None] * Z.sigmoid() * g.relu()).sum((1, 2)) for Z, g, read in layers))
