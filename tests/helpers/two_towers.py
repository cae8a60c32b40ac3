"""Small models of two towers, and what the oracles of single patches read of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.oracles.single_patches import Clip, Linear, Norm, PreNormBlock

CHANNELS, EMBEDDING = 12, 6

_TOWER: dict[str, Any] = {
    "hidden_size": CHANNELS,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
_WORDS: dict[str, Any] = {"vocab_size": 20, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2}


def build_hugging_face(kind: str = "CLIP", attention: str = "sdpa", size: int = 24) -> nn.Module:
    """Return a small model with two towers, in double precision, with random weights and patches of 8 x 8 pixels."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    parts = {
        "text_config": getattr(transformers, f"{kind}TextConfig")(**_TOWER | _WORDS),
        "vision_config": getattr(transformers, f"{kind}VisionConfig")(**_TOWER, image_size=size, patch_size=8),
    }
    projection = {} if kind == "Siglip" else {"projection_dim": EMBEDDING}
    config = getattr(transformers, f"{kind}Config")(**parts, **projection)
    model: nn.Module = getattr(transformers, f"{kind}Model")(config)
    model.set_attn_implementation(attention)  # type: ignore[operator]
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


class OpenClip(nn.Module):
    """A model of two towers in the manner of open_clip, over images of 3 x 2 patches of 4 x 4 pixels.

    Args:
        blocks: The blocks of the image tower.
        is_batch_first: The blocks get tokens ``(N, T, C)``, otherwise ``(T, N, C)``.
        pooling: ``"class token"``, ``"mean"``, or ``"both"``: their sum.
    """

    def __init__(self, blocks: Sequence[nn.Module], *, is_batch_first: bool = True, pooling: str = "class token"):
        super().__init__()
        self.is_batch_first, self.pooling = is_batch_first, pooling
        self.patches = nn.Conv2d(3, CHANNELS, 4, 4)
        self.first, self.position = nn.Parameter(torch.randn(CHANNELS)), nn.Parameter(torch.randn(7, CHANNELS))
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.projection = nn.LayerNorm(CHANNELS), nn.Parameter(torch.randn(CHANNELS, EMBEDDING))

    def embed(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(image), 1, -1), patches], 1) + self.position

    def encode_image(self, image: Tensor) -> Tensor:
        tokens = self.embed(image)
        tokens = tokens if self.is_batch_first else tokens.permute(1, 0, 2)
        tokens = self.blocks(tokens)
        tokens = self.norm(tokens if self.is_batch_first else tokens.permute(1, 0, 2))
        parts = {"class token": tokens[:, 0], "mean": tokens[:, 1:].mean(1), "both": tokens[:, 0] + tokens.mean(1)}
        return parts[self.pooling] @ self.projection

    def encode_text(self, texts: Tensor) -> Tensor:
        return texts


class ScaledBlock(nn.Module):
    """A pre-norm block with ``nn.MultiheadAttention`` and a factor for what it adds."""

    def __init__(self, *, is_batch_first: bool = True, has_weights: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.attention = nn.MultiheadAttention(CHANNELS, 2, batch_first=is_batch_first)
        self.factor, self.has_weights = nn.Parameter(torch.rand(CHANNELS) + 0.5), has_weights
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 20), nn.GELU(), nn.Linear(20, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x)).mul_(self.factor)
        return x + self.mlp(self.norm2(x))

    def attend(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=self.has_weights)[0]  # type: ignore[no-any-return]


def make_images(count: int = 2, size: tuple[int, int] = (24, 24)) -> Tensor:
    return torch.randn(count, 3, *size, dtype=torch.float64)


def encode_texts(texts: Sequence[str]) -> Tensor:
    """Return random embeddings, the same for the same text."""
    seeds = [sum(map(ord, text)) for text in texts]
    made = [torch.randn(EMBEDDING, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(made).double()


def build_clip_oracle(model: Any, image: Tensor, texts: Tensor, index: int, against: Tensor | None = None) -> Clip:
    """Return an oracle's input for one image ``(1, 3, H, W)`` and a CLIP of Hugging Face, without the package."""
    with torch.no_grad():
        outputs = model.vision_model(image, output_hidden_states=True)
        embedding = model.visual_projection(outputs.pooler_output)[0]
    # The first n entries are the tokens that enter each of the n blocks.
    tower, patches = model.vision_model, image.shape[-1] // 8
    blocks = [
        PreNormBlock(
            x[0].tolist(),
            _read_norm(layer.layer_norm1),
            *(_read_linear(getattr(layer.self_attn, name)) for name in ("q_proj", "k_proj", "v_proj", "out_proj")),
        )
        for x, layer in zip(outputs.hidden_states, tower.encoder.layers, strict=False)
    ]
    return Clip(
        blocks=blocks,
        heads=2,
        norm=_read_norm(tower.post_layernorm),
        projection=_read_linear(model.visual_projection),
        image=embedding.tolist(),
        texts=texts.tolist(),
        index=index,
        against=[] if against is None else against.tolist(),
        grid=(patches, patches),
    )


def _read_linear(linear: nn.Linear) -> Linear:
    bias = [0.0] * linear.out_features if linear.bias is None else linear.bias.tolist()
    return Linear(linear.weight.tolist(), bias)


def _read_norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight.tolist(), norm.bias.tolist(), norm.eps)
