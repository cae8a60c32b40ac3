"""Conservative gradients: literal networks with constants, completeness on real architectures, and no trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack
from torch.testing import assert_close

from camtool.hooks.attention.capture import capture_attention
from camtool.hooks.conservative_gradients import ConservativeMode
from tests.helpers.two_towers import build_hugging_face
from tests.helpers.vision_transformers import (
    ATTENTION_FUNCTIONS,
    CHANNELS,
    HEADS,
    HUGGING_FACE_MODELS,
    SMALL_HF,
    SMALL_TIMM,
    TinyViT,
    build_timm,
    import_hf,
    make_images,
    make_tiny_vit,
    randomize_parameters,
)


def differentiate(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value, and the gradient of a sum in which each element has another weight."""
    x = x.clone().requires_grad_()
    value = function(x)
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).reshape(value.shape)
    return value.detach(), torch.autograd.grad((value * weights).sum(), x)[0]


def compare(function: Callable[[Tensor], Tensor], literal: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Check that a function has its own values and the gradient of a literal one, where constants are detached."""
    with ConservativeMode() as mode:
        value, gradient = differentiate(function, x)
    assert mode.has_acted
    assert torch.equal(value, differentiate(function, x)[0])
    literal_value, literal_gradient = differentiate(literal, x)
    assert_close(value, literal_value, rtol=1e-10, atol=1e-10)
    assert_close(gradient, literal_gradient, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------------------------------- a literal transformer


def normalize_literally(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centered = x - x.sum(-1, keepdim=True) / x.shape[-1]
    deviation = ((centered * centered).sum(-1, keepdim=True) / x.shape[-1] + norm.eps) ** 0.5
    return centered / deviation.detach() * norm.weight + norm.bias


def attend_literally(x: Tensor, attention: Any, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the output, and the attention weights, constants unless they are given."""
    q, k, v = attention.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    if weights is None:
        exponentials = (q @ k.transpose(-1, -2) / math.sqrt(CHANNELS / HEADS)).exp()
        weights = (exponentials / exponentials.sum(-1, keepdim=True)).detach()
    return attention.proj((weights @ v).transpose(1, 2).flatten(2)), weights


def run_mlp_literally(x: Tensor, mlp: nn.Sequential) -> Tensor:
    hidden = mlp[0](x)
    return mlp[2](hidden * (0.5 * (1 + torch.erf(hidden / math.sqrt(2)))).detach())


def run_literally(net: TinyViT, x: Tensor, free: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the logits, and the attention weights of one block that are a leaf of the graph."""
    tokens, leaf = net.embed(x), None
    for index, block in enumerate(net.blocks):
        attended, weights = attend_literally(normalize_literally(tokens, block.norm1), block.attention)
        if index == free:
            leaf = weights.clone().requires_grad_()
            attended, _ = attend_literally(normalize_literally(tokens, block.norm1), block.attention, leaf)
        tokens = tokens + attended
        tokens = tokens + run_mlp_literally(normalize_literally(tokens, block.norm2), block.mlp)
    return net.head(net.pool(normalize_literally(tokens, net.norm))), leaf


# Torch has no gradient of fused attention whose output is written to.
@pytest.mark.parametrize("how", [how for how in ATTENTION_FUNCTIONS if how != "in place"])
def test_a_transformer_has_the_gradient_of_one_with_constants(how: str) -> None:
    net = make_tiny_vit(how)
    compare(net, lambda x: run_literally(net, x)[0], make_images())


def test_each_attention_matrix_has_a_gradient_though_later_ones_are_constants() -> None:
    net, x = make_tiny_vit(), make_images(1)
    with ConservativeMode():
        captured = capture_attention(net, x)
        matrices = [call.matrix for call in captured.calls]
        gradients = torch.autograd.grad(captured.output[0, 2], matrices)
    for index, gradient in enumerate(gradients):
        logits, leaf = run_literally(net, x, index)
        assert leaf is not None
        assert_close(gradient, torch.autograd.grad(logits[0, 2], leaf)[0])


# --------------------------------------------------------------------------------------------- literal operations


def deviate(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (
        (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + 1e-5
    ).sqrt().detach()


def halve(x: Tensor) -> Tensor:
    """Return a tensor with half of its gradient."""
    return 0.5 * x + 0.5 * x.detach()


FACTORS = torch.linspace(-2, 3, 6, dtype=torch.float64)
Function = Callable[[Tensor], Tensor]
# On x of shape (2, 4, 6): two images, four channels.
OPERATIONS: dict[str, tuple[Function, Function]] = {
    "layer norm": (
        lambda x: functional.layer_norm(x, (6,), FACTORS, FACTORS.flip(0)),
        lambda x: deviate(x) * FACTORS + FACTORS.flip(0),
    ),
    "group norm": (
        lambda x: functional.group_norm(x, 2, FACTORS[:4], FACTORS[1:5]),
        lambda x: deviate(x.reshape(2, 2, 12)).reshape(2, 4, 6) * FACTORS[:4, None] + FACTORS[1:5, None],
    ),
    "instance norm": (functional.instance_norm, deviate),
    "rms norm": (
        lambda x: functional.rms_norm(x, (6,), FACTORS, 1e-3),
        lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt().detach() * FACTORS,
    ),
    "rms norm, written": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3),
        lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt().detach(),
    ),
    "normalize": (
        lambda x: functional.normalize(x, dim=-1),
        lambda x: x / x.square().sum(-1, keepdim=True).sqrt().detach(),
    ),
    "division by a power": (
        lambda x: x / torch.pow(torch.sum(torch.pow(x, 2), -1, keepdim=True), 0.5),
        lambda x: x / x.square().sum(-1, keepdim=True).sqrt().detach(),
    ),
    "global response norm": (
        lambda x: x + x * (x.norm(dim=-1, keepdim=True) / (x.norm(dim=-1, keepdim=True).mean(1, keepdim=True) + 1)),
        lambda x: (
            x + x * (x.norm(dim=-1, keepdim=True) / (x.norm(dim=-1, keepdim=True).mean(1, keepdim=True) + 1)).detach()
        ),
    ),
    "gelu of tanh": (
        lambda x: functional.gelu(x, approximate="tanh"),
        lambda x: x * (0.5 * (1 + ((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)).tanh())).detach(),
    ),
    "gelu, written": (
        lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
        lambda x: x * (0.5 * (1 + torch.erf(x / math.sqrt(2)))).detach(),
    ),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), lambda x: x * (1 / (1 + (-1.702 * x).exp())).detach()),
    "silu in place": (
        lambda x: functional.silu(x * 1, inplace=True).add_(1),
        lambda x: x * (1 / (1 + (-x).exp())).detach() + 1,
    ),
    "hardswish": (functional.hardswish, lambda x: x * ((x + 3).clamp(0, 6) / 6).detach()),
    "mish": (functional.mish, lambda x: x * (1 + x.exp()).log().tanh().detach()),
    "glu": (functional.glu, lambda x: x[..., :3] * (1 / (1 + (-x[..., 3:]).exp())).detach()),
    "gate of the pooled image": (
        lambda x: (
            x.mul_(x.mean(-1, keepdim=True).sigmoid()) if not x.is_leaf else x * x.mean(-1, keepdim=True).sigmoid()
        ),
        lambda x: x * x.mean(-1, keepdim=True).sigmoid().detach(),
    ),
    "two factors": (lambda x: x * functional.relu(x), lambda x: halve(x) * halve(functional.relu(x))),
    "two factors in place": (lambda x: (x * 1).mul_(x.flip(1)), lambda x: halve(x) * halve(x.flip(1))),
    "three factors": (
        lambda x: torch.einsum("nct,nct,nct->nt", x, x.flip(1), x.flip(2)),
        lambda x: (  # the third of each gradient
            (
                x * (x.flip(1) * x.flip(2)).detach()
                + x.flip(1) * (x * x.flip(2)).detach()
                + x.flip(2) * (x * x.flip(1)).detach()
            ).sum(1)
            / 3
        ),
    ),
    "linear attention": (
        lambda x: (x @ (x.mT @ x)) / (x @ x.sum(1, keepdim=True).mT + 30),
        lambda x: (halve(x) @ halve(halve(x.mT) @ halve(x))) / (x @ x.sum(1, keepdim=True).mT + 30).detach(),
    ),
    "gate of two gates": (
        lambda x: x * (x.sigmoid() * x.flip(2).softmax(-1)),
        lambda x: x * (x.sigmoid() * x.flip(2).softmax(-1)).detach(),
    ),
    "attention of mixed heads": (
        lambda x: functional.linear((x @ x.mT).softmax(-1), FACTORS[:4].outer(FACTORS[2:])) @ x,
        lambda x: ((x @ x.mT).softmax(-1) @ FACTORS[2:].outer(FACTORS[:4])).detach() @ x,
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_the_gradient_of_a_literal_one(name: str) -> None:
    torch.manual_seed(0)
    compare(*OPERATIONS[name], torch.randn(2, 4, 6, dtype=torch.float64))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1),
        lambda x: functional.linear(x.sigmoid(), FACTORS[None]),
        lambda x: x.mean(-1).exp() * 3,
        lambda x: x * nn.Parameter(FACTORS).sigmoid() @ nn.Parameter(FACTORS).outer(FACTORS).mT,
        lambda x: functional.batch_norm(x, FACTORS[:4], FACTORS[2:].abs(), FACTORS[:4]),
        lambda x: functional.relu(functional.max_pool1d(x, 2)),
    ],
    ids=["probabilities", "sigmoid layer", "constant factor", "parameters", "batch norm", "piecewise linear"],
)
def test_what_multiplies_nothing_of_the_image_keeps_its_gradient(function: Function) -> None:
    x = torch.linspace(-2, 2, 48, dtype=torch.float64).reshape(2, 4, 6)
    with ConservativeMode() as mode:
        value, gradient = differentiate(function, x)
    plain_value, plain_gradient = differentiate(function, x)
    assert torch.equal(value, plain_value)
    assert torch.equal(gradient, plain_gradient)
    assert not mode.has_acted


# ------------------------------------------------------------------------------------------------- completeness


def import_torchvision() -> Any:
    return pytest.importorskip("torchvision").models


def build_swin(version: int) -> nn.Module:
    models = import_torchvision()
    parts = models.swin_transformer
    block, merging = (
        (parts.SwinTransformerBlock, parts.PatchMerging),
        (parts.SwinTransformerBlockV2, parts.PatchMergingV2),
    )[version - 1]
    return models.SwinTransformer(
        [4, 4], 16, [2, 1], [2, 2], [3, 3], num_classes=7, block=block, downsample_layer=merging
    )


class ImageText(nn.Module):
    """The logits of CLIP for two texts."""

    def __init__(self) -> None:
        super().__init__()
        self.clip = build_hugging_face("CLIP", size=48)
        length = self.clip.config.text_config.max_position_embeddings
        self.texts = torch.randint(3, 20, (2, length), generator=torch.Generator().manual_seed(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.clip(input_ids=self.texts, pixel_values=x).logits_per_image


MODELS: dict[str, Callable[[], nn.Module]] = {
    "torchvision ViT": lambda: import_torchvision().VisionTransformer(48, 16, 2, 2, 16, 32, num_classes=7),
    "torchvision Swin": lambda: build_swin(1),
    "torchvision Swin v2": lambda: build_swin(2),
    "timm ViT": lambda: build_timm("vit_tiny_patch16_224", **SMALL_TIMM),
    "timm EVA-02": lambda: build_timm("eva02_tiny_patch14_224", **SMALL_TIMM | {"img_size": 56}),
    "timm CaiT": lambda: build_timm("cait_xxs24_224", **SMALL_TIMM),
    "timm ConvNeXt v2": lambda: build_timm("convnextv2_atto", depths=(1, 1, 1, 1), dims=(8, 8, 8, 8), num_classes=7),
    "Hugging Face ViT, eager": lambda: import_hf().ViTForImageClassification(
        import_hf().ViTConfig(**SMALL_HF, attn_implementation="eager")
    ),
    **{f"Hugging Face {name}": HUGGING_FACE_MODELS[name] for name in ("ViT", "DINOv2", "CLIP")},
    "CLIP with texts": ImageText,
}

ADDED = ("bias", "token", "tokens", "pos_embed", "position_embeddings", "class_embedding", "in_proj_bias")
"""How names of parameters end that are added to what depends on the image."""


def is_added(name: str) -> bool:
    if "text_model" in name or "text_projection" in name or ".proj_w." in name:  # of constants
        return False
    return name.endswith(ADDED) or "position_embedding" in name or "pos_embedding" in name


@pytest.mark.parametrize("name", MODELS)
def test_input_times_gradient_is_the_score_minus_the_biases(name: str) -> None:
    torch.manual_seed(0)
    model = randomize_parameters(MODELS[name]()).double()
    for parameter in model.parameters():
        parameter.requires_grad_()
    side = 56 if "EVA" in name else 48
    x = torch.randn(2, 3, side, side, dtype=torch.float64).requires_grad_()

    def score() -> Tensor:
        output = model(x)
        logits = output if isinstance(output, Tensor) else output[0]
        return logits[0, 1] - 2 * logits[1, 0]

    added = [x, *(parameter for named, parameter in model.named_parameters() if is_added(named))]

    def explain(total: Tensor) -> Tensor:
        gradients = torch.autograd.grad(total, added, materialize_grads=True, allow_unused=True)
        return torch.stack([(tensor * gradient).sum() for tensor, gradient in zip(added, gradients, strict=True)]).sum()

    with ConservativeMode():
        total = score()
        explained = explain(total)
    assert_close(total, score(), rtol=1e-12, atol=1e-12)
    assert_close(explained, total.detach(), rtol=1e-9, atol=1e-9)
    left = (explain(score()) - total).abs() / total.abs()
    assert left.detach() > 1e-3, "the plain gradient is complete, so this proves nothing"


# ------------------------------------------------------------------------------------------------------- no trace


def test_nothing_is_left_after_an_error() -> None:
    net, x = make_tiny_vit(), make_images().requires_grad_()
    head = net.head
    before = differentiate(net, x.detach())
    net.head = nn.Linear(CHANNELS + 1, 2).double()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), ConservativeMode():
        net(x)
    net.head = head
    assert _get_current_function_mode_stack() == []
    assert all(parameter.grad is None for parameter in net.parameters())
    for old, new in zip(before, differentiate(net, x.detach()), strict=True):
        assert torch.equal(old, new)


def test_values_in_autocast_are_those_without_the_mode() -> None:
    net, x = make_tiny_vit().float(), make_images().float()
    with torch.autocast("cpu", torch.bfloat16):
        plain, _ = differentiate(net, x)
        with ConservativeMode():
            value, gradient = differentiate(net, x)
    assert torch.equal(value, plain)
    assert gradient.isfinite().all()
