"""A tiny transformer with attention in several forms, its attention by hand, and real architectures made small."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import run_forward_pass
from camtool.methods import METHODS
from camtool.targets import Target
from tests.helpers.nets import Apply
from tests.oracles.attention import Transformer

ATTENTION_METHODS = [
    name
    for name, each in METHODS.items()
    if "attention" in each.needs and not each.needs & {"text", "one head on all tokens"}
]
ATTENTION_METHODS_WITH_GRADIENTS = [name for name in ATTENTION_METHODS if "gradients" in METHODS[name].needs]

GRID, CHANNELS, HEADS, CLASSES = (3, 4), 8, 2, 7
IMAGES = (3, 6, 8)


# ------------------------------------------------------------------------------------------------ a tiny transformer


class SelfAttention(nn.Module):
    """Self-attention, fused or written out in one of several forms."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.qkv, self.proj = nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(ATTENTION_FUNCTIONS[self.how](q, k, v).transpose(1, 2).flatten(2))


def attend_fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v)


def attend_as_in_timm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend as timm does without fused kernels."""
    attention = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    attention = functional.dropout(attention.softmax(dim=-1), 0.5, training=False)
    return attention @ v


def attend_in_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with heads and images in one axis, with a mask that is added by the product."""
    flat = [each.flatten(0, 1) for each in (q, k, v)]
    logits = torch.baddbmm(q.new_zeros(1, 1, k.shape[2]), flat[0] * q.shape[-1] ** -0.5, flat[1].mT)
    return torch.bmm(torch.softmax(logits, -1), flat[2]).unflatten(0, q.shape[:2])


def attend_with_heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with the heads in the last axis, as in talking-heads attention."""
    logits = torch.matmul(q, k.mT).permute(0, 2, 3, 1) / math.sqrt(q.shape[-1])
    weights = nn.Softmax(dim=3)(logits.permute(0, 3, 1, 2))
    return torch.matmul(weights.to(v.dtype), v)


def attend_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend and write to the output in place."""
    out = scaled_dot_product_attention(q, k, v)
    out.mul_(2)
    return out / 2


def attend_by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend as in the code of Chefer et al."""
    dots = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)


def attend_by_einsum_with_ellipsis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend as in einops, with operands in a list and images and heads in an ellipsis."""
    dots = torch.einsum("... i d, ... j d -> ... i j", [q * q.shape[-1] ** -0.5, k])
    return torch.einsum("... i j, ... j d -> ... i d", [torch.softmax(dots, dim=3), v])


def attend_by_einsum_with_heads_third(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with tokens before heads: (N, T, H, D), and attention matrices (N, T, S, H), as in LoFTR."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    weights = torch.softmax(torch.einsum("nlhd,nshd->nlsh", q, k) / math.sqrt(q.shape[-1]), dim=2)
    return torch.einsum("nlsh,nshd->nlhd", weights, v).transpose(1, 2)


def attend_by_einsum_with_channels_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to channels before tokens, with keys and values as first factors."""
    q, k, v = (each.mT for each in (q, k, v))
    dots = torch.einsum("bhdj,bhdi->bhji", k, q) / math.sqrt(q.shape[-2])
    out = torch.einsum("bhcj,bhji->bhci", v, dots.softmax(2))
    return out.mT


def attend_by_einsum_in_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with heads and images in one axis; the axes are moved between the products."""
    flat = [each.flatten(0, 1) for each in (q, k, v)]
    dots = torch.einsum("b i d, b j d -> j b i", flat[0], flat[1]) * q.shape[-1] ** -0.5
    weights = dots.permute(1, 2, 0).softmax(-1)
    return torch.bmm(weights, flat[2]).unflatten(0, q.shape[:2])


def attend_transposed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Multiply values with transposed weights, as convolutional networks do: ``v Aᵀ``."""
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return (v.mT @ weights.transpose(-1, -2)).mT


ATTENTION_FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "fused": attend_fused,
    "written": attend_as_in_timm,
    "in one batch": attend_in_batch,
    "heads last": attend_with_heads_last,
    "in place": attend_in_place,
    "einsum": attend_by_einsum,
    "einsum, ellipsis": attend_by_einsum_with_ellipsis,
    "einsum, heads third": attend_by_einsum_with_heads_third,
    "einsum, channels first": attend_by_einsum_with_channels_first,
    "einsum, one batch": attend_by_einsum_in_batch,
    "transposed": attend_transposed,
}


class Block(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(CHANNELS), SelfAttention(how), nn.LayerNorm(CHANNELS)
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 12), nn.GELU(), nn.Linear(12, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class AttentionPooling(nn.Module):
    """Attention pooling by a learned query."""

    def __init__(self) -> None:
        super().__init__()
        self.latent, self.kv = nn.Parameter(torch.randn(1, 1, CHANNELS)), nn.Linear(CHANNELS, 2 * CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q = self.latent.expand(len(x), -1, -1).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)[:, 0]


POOLINGS: dict[str, Callable[[], nn.Module]] = {
    "class token": lambda: Apply(lambda x: x[:, 0]),
    "mean": lambda: Apply(lambda x: x[:, 1:].mean(1)),
    "two tokens": lambda: Apply(lambda x: (x[:, 0] + x[:, 1]) / 2),
    "attention": AttentionPooling,
}


READ_TOKENS = {"class token": [0], "mean": list(range(1, 13)), "two tokens": [0, 1], "attention": list(range(12))}
"""Pooling → the tokens of the last block that it reads."""


class TinyViT(nn.Module):
    """A few blocks over 3 x 4 patches, a class token and, for the pooling of two tokens, another prefix token."""

    def __init__(self, how: str = "fused", pooling: str = "class token", depth: int = 3) -> None:
        super().__init__()
        self.pooling = pooling
        self.patches = nn.Conv2d(3, CHANNELS, 2, stride=2)
        self.prefix = {"attention": 0, "two tokens": 2}.get(pooling, 1)
        self.first = nn.Parameter(torch.randn(1, self.prefix, CHANNELS))
        self.position = nn.Parameter(torch.randn(1, self.prefix + 12, CHANNELS))
        self.blocks = nn.Sequential(*(Block(how) for _ in range(depth)))
        self.norm, self.pool, self.head = nn.LayerNorm(CHANNELS), POOLINGS[pooling](), nn.Linear(CHANNELS, CLASSES)
        for block in self.blocks:  # else the attention is almost uniform
            block.attention.qkv.weight.data.mul_(3)

    def embed(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.position

    def answer(self, tokens: Tensor) -> Tensor:
        return self.head(self.pool(self.norm(tokens)))

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(self.blocks(self.embed(x)))


def make_tiny_vit(how: str = "fused", pooling: str = "class token", seed: int = 0, depth: int = 3) -> TinyViT:
    torch.manual_seed(seed)
    return TinyViT(how, pooling, depth).double().eval()


def make_images(count: int = 2) -> Tensor:
    return torch.randn(count, *IMAGES, dtype=torch.float64)


def build_timm(name: str, **settings: Any) -> nn.Module:
    model: nn.Module = pytest.importorskip("timm").create_model(name, **settings)
    return model


def import_hf() -> Any:
    return pytest.importorskip("transformers")


def gather_rows(net: nn.Module, x: Tensor, wanted: list[Target], images: list[int] | None = None) -> Evidence:
    (evidence,) = gather_evidence(run_forward_pass(net, x, []), wanted, images)
    return evidence


def close_to_peak(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert theirs.abs().amax() > 0, "an empty map proves nothing"
    assert_close(ours, theirs.to(ours), rtol=0, atol=tolerance * float(theirs.abs().amax()))


# ------------------------------------------------------------------------------- oracle inputs, without the package


def compute_block_attention(block: nn.Module, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return what the attention of a block adds to its input tokens, and the parts of the attention."""
    q, k, v = block.attention.qkv(tokens).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    logits = q @ k.mT / math.sqrt(CHANNELS / HEADS)
    weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
    out = weights @ v
    return block.attention.proj(out.transpose(1, 2).flatten(2)), {
        "A": weights, "Z": logits, "q": q, "k": k, "v": v, "o": out,
    }  # fmt: skip


def compute_pooling(pool: AttentionPooling, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    k, v = pool.kv(tokens).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
    q = pool.latent.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    logits = q @ k.mT / math.sqrt(CHANNELS / HEADS)
    weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
    out = weights @ v
    return out.transpose(1, 2).flatten(2)[:, 0], {"A": weights, "Z": logits, "q": q, "k": k, "v": v, "o": out}


def finish_block(block: nn.Module, tokens: Tensor, mixed: Tensor) -> Tensor:
    """Return a block's output from its input tokens and what its attention adds."""
    tokens = tokens + mixed
    return tokens + block.mlp(block.norm2(tokens))


def project_attention(block: nn.Module, weights: Tensor, values: Tensor) -> Tensor:
    """Return what an attention adds to the tokens."""
    return block.attention.proj((weights @ values).transpose(1, 2).flatten(2))


def differentiate_held(
    net: TinyViT, streams: list[Tensor], layers: list[dict[str, Tensor]], n: int, index: int
) -> Tensor:
    """Return the gradient for the n-th attention matrix if all later ones are constants."""
    weights = layers[n]["A"].detach().requires_grad_()
    tokens = streams[n]
    for m, block in enumerate(net.blocks[n:], n):
        own = layers[m]["A"].detach() if m > n else weights
        tokens = finish_block(block, tokens, project_attention(block, own, layers[m]["v"].detach()))
    return torch.autograd.grad(net.answer(tokens)[0, index], weights)[0]


def build_oracle(net: TinyViT, x: Tensor, index: int) -> Transformer:
    """Return an oracle's input for one image ``(1, C, H, W)``, computed without the package."""

    def masked(entry: list[list[float]]) -> list[float]:
        mixed, _ = compute_block_attention(last, torch.tensor([entry], dtype=torch.float64))
        logits: list[float] = net.answer(finish_block(last, into_last, mixed))[0].tolist()
        return logits

    tokens, layers, ends, streams, last = net.embed(x), [], [], [], net.blocks[-1]
    for block in net.blocks:
        streams.append(into_last := tokens.detach())
        entry = block.norm1(tokens)
        mixed, seen = compute_block_attention(block, entry)
        tokens = finish_block(block, tokens, mixed)
        layers.append(seen)
        ends.append(net.answer(tokens)[0, index])
    early = [
        torch.autograd.grad(end, seen["A"], retain_graph=True)[0][0].tolist()
        for end, seen in zip(ends, layers, strict=True)
    ]
    read, score = [READ_TOKENS[net.pooling]] * len(net.blocks), ends[-1]
    if isinstance(net.pool, AttentionPooling):
        vector, seen = compute_pooling(net.pool, net.norm(tokens))
        layers, read, score = [*layers, seen], [*read, [0]], net.head(vector)[0, index]
    g = torch.autograd.grad(score, [seen["A"] for seen in layers], retain_graph=True)
    held = [differentiate_held(net, streams, layers, n, index)[0].tolist() for n in range(len(net.blocks))]
    if isinstance(net.pool, AttentionPooling):  # no attention follows a pooling
        held.append(g[-1][0].tolist())
    (w,) = torch.autograd.grad(score, [layers[-1]["o"]])
    return Transformer(
        A=[seen["A"][0].detach().tolist() for seen in layers],
        Z=[seen["Z"][0].detach().tolist() for seen in layers],
        g=[each[0].tolist() for each in g],
        held=held,
        early=early,
        q=layers[-1]["q"][0].detach().tolist(),
        k=layers[-1]["k"][0].detach().tolist(),
        v=layers[-1]["v"][0].detach().tolist(),
        w=w[0].tolist(),
        read=read,
        prefix=net.prefix,
        grid=GRID,
        entry=entry[0].detach().tolist(),
        masked=masked,
        index=index,
    )


# --------------------------------------------------------------------------------------------------------- real models

SMALL_TIMM = {"img_size": 48, "depth": 2, "embed_dim": 32, "num_heads": 4, "num_classes": 7}
"""Settings for timm models. With a single block, mistakes in the order of layers would not show."""

SMALL_HF = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 48,
    "patch_size": 16,
    "num_labels": 7,
}

TIMM_MODELS = {
    "vit_tiny_patch16_224": {},
    "deit_tiny_distilled_patch16_224": {},
    "vit_small_patch14_reg4_dinov2": {"img_size": 56},
    "eva02_tiny_patch14_224": {"img_size": 56},
    "beit_base_patch16_224": {},
    "vit_base_patch16_siglip_224": {},
    "vit_relpos_small_patch16_224": {},
    "cait_xxs24_224": {},
}


def randomize_parameters(net: nn.Module) -> nn.Module:
    """Add noise to all parameters, as many biases and scales are initialized with zeros."""
    for parameter in net.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return net.eval()


HUGGING_FACE_MODELS: dict[str, Callable[[], nn.Module]] = {
    "ViT": lambda: import_hf().ViTForImageClassification(import_hf().ViTConfig(**SMALL_HF)),
    "DeiT": lambda: import_hf().DeiTForImageClassificationWithTeacher(import_hf().DeiTConfig(**SMALL_HF)),
    "DINOv2": lambda: import_hf().Dinov2ForImageClassification(import_hf().Dinov2Config(**SMALL_HF)),
    "DINOv2 with registers": lambda: import_hf().Dinov2WithRegistersForImageClassification(
        import_hf().Dinov2WithRegistersConfig(**SMALL_HF)
    ),
    "CLIP": lambda: import_hf().CLIPVisionModelWithProjection(
        import_hf().CLIPVisionConfig(**SMALL_HF, projection_dim=7)
    ),
    "SigLIP": lambda: import_hf().SiglipVisionModel(import_hf().SiglipVisionConfig(**SMALL_HF)),
}


def attend_to_itself(x: Tensor) -> Tensor:
    return scaled_dot_product_attention(x, x, x)
