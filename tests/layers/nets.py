"""Small networks for the tests of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.models.swin_transformer import SwinTransformer

from tests.helpers.nets import Apply


def to_tokens(prefix: int) -> Callable[[Tensor], Tensor]:
    """Return a function from ``(N, C, h, w)`` to ``(N, prefix + h·w, C)``.

    The prefix tokens hold the mean of the others, so that a head may read any of them.
    """

    def flatten(maps: Tensor) -> Tensor:
        flat = maps.flatten(2).transpose(1, 2)
        return torch.cat([flat.mean(1, keepdim=True).expand(-1, prefix, -1), flat], 1)

    return flatten


class PatchNet(nn.Module):
    """A patch embedding, a function as the layer ``shaped``, a function that pools, and a linear head."""

    def __init__(
        self, shape: Callable[[Tensor], Tensor], pool: Callable[[Tensor], Tensor], *, width: int = 8, patch: int = 8
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.shaped: nn.Module = Apply(shape)
        self.pool = pool
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pool(self.shaped(self.patches(x))))
        return logits


class TokenNet(nn.Module):
    """Patches of an image as tokens, after a class token, and a body that works on them."""

    def __init__(self, body: nn.Module, patches: nn.Module) -> None:
        super().__init__()
        self.patches = patches
        self.tokens = Apply(lambda maps: nn.functional.pad(maps.flatten(2).transpose(1, 2), (0, 0, 1, 0)))
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self.body(self.tokens(self.patches(x)))


def build_small_cnn(head: nn.Module | None = None) -> nn.Sequential:
    """Return a network whose body "0" returns 6 channels over 8 x 8 positions of a 64 x 64 image."""
    layers = [nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(nn.Sequential(*layers), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head or nn.Linear(6, 5))


def build_wide_cnn(seed: int) -> nn.Sequential:
    """Return a network with 8 channels over 8 x 8 positions, which see nearly the whole 32 x 32 image each."""
    torch.manual_seed(seed)
    body = [nn.Conv2d(3, 8, 4, stride=4), nn.ReLU(), nn.Conv2d(8, 8, 7, padding=3), nn.ReLU()]
    body += [nn.Conv2d(8, 8, 7, padding=3), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()


def build_small_vit() -> VisionTransformer:
    """Return a vision transformer with two layers and a head that is not zero."""
    vit = VisionTransformer(64, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=5)
    nn.init.normal_(vit.heads.head.weight)  # torchvision leaves it all zeros
    return vit


def build_small_swin() -> SwinTransformer:
    """Return a Swin transformer with 16 channels over 16 x 16 positions of a 64 x 64 image."""
    return SwinTransformer([4, 4], 16, [2], [2], [4, 4], num_classes=5).eval()


class Residual(nn.Module):
    """A residual block."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.Sequential(*inside)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + self.inside(x)
        return total


class AttentionNet(nn.Module):
    """One transformer block that classifies from its class token; its attention matrix and bias are modules."""

    def __init__(self, patch: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, patch, stride=patch)
        self.embedded = Apply(to_tokens(1))
        self.norm = nn.LayerNorm(8)
        self.bias = Apply(lambda tokens: torch.randn(1, 2, tokens, tokens))  # a relative position bias
        self.attention = Apply(lambda logits: logits.softmax(-1))  # (N, heads, T, T)
        self.mixed = Apply(lambda pair: (pair[0] @ pair[1]).mean(1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.embedded(self.patches(x)))
        keys = x.unflatten(2, (2, 4)).transpose(1, 2)  # (N, 2, T, 4)
        weights = self.attention(keys @ keys.mT + self.bias(x.shape[1]))
        logits: Tensor = self.head(self.mixed((weights, x[:, None]))[:, 0])
        return logits


class MultiHeadAttention(nn.Module):
    """Attention whose queries ``(N, heads, tokens, C)`` and products, over tokens and over channels, are modules."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.over_tokens, self.over_channels = nn.Identity(), nn.Softmax(-1), nn.Softmax(-1)
        self.back = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        apart = self.queries(x.unflatten(2, (self.heads, -1)).transpose(1, 2).contiguous())
        mixed = self.over_tokens(apart @ apart.mT) @ apart @ self.over_channels(apart.mT @ apart)
        result: Tensor = self.back(mixed.transpose(1, 2).flatten(2))
        return result


class AttentionPooling(nn.Module):
    """Attention with one learned query, so no tokens are returned; its keys ``(N, heads, tokens, C)`` are a module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, width))
        self.both, self.keys = nn.Linear(width, 2 * width), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        keys, values = self.both(x).unflatten(2, (2, 2, -1)).permute(2, 0, 3, 1, 4).unbind()
        weights = self.query.unflatten(2, (2, -1)).transpose(1, 2) @ self.keys(keys).mT
        result: Tensor = (weights.softmax(-1) @ values).flatten(1)
        return result


class TokenMixer(nn.Module):
    """A linear layer along the tokens, as in MLP-Mixer: inside, channels stand where tokens do."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.along = nn.Linear(tokens, tokens)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.along(x.transpose(1, 2)).transpose(1, 2)
        return mixed


class ClassAttention(nn.Module):
    """Attention whose only query is the class token."""

    def __init__(self, width: int, *, together: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width) if together else None
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1) if self.qkv else (self.query(x), self.key(x), self.value(x))
        result: Tensor = self.out(nn.functional.scaled_dot_product_attention(q[:, :1], k, v))
        return result


class ClassTokenNet(nn.Module):
    """A patch embedding, a norm, an attention, and a head that reads the class token alone."""

    def __init__(self, attention: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.patches, self.embedded = nn.Conv2d(3, width, 16, stride=16), Apply(to_tokens(1))
        self.norm, self.attention, self.head = nn.LayerNorm(width), attention, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.attention(self.norm(self.embedded(self.patches(x))))[:, 0])
        return logits


class LatentNet(nn.Module):
    """A Perceiver: learned latents read the tokens of the image once; after that there are only latents."""

    def __init__(self, latents: int) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8)
        self.latents = nn.Parameter(torch.randn(1, latents, 8))
        self.start = Apply(lambda x: self.latents.expand(len(x), -1, -1))
        self.read, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        latents = self.start(x)
        logits: Tensor = self.head(self.read(latents + (latents @ tokens.mT).softmax(-1) @ tokens).mean(1))
        return logits


class QueryNet(nn.Module):
    """A resampler: learned queries, or weights that pool, read the tokens of the image; then only they are mixed.

    No module returns the queries before they have read the image.
    """

    def __init__(self, queries: int, patch: int, *, pools: bool = False) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 16, patch, stride=patch), nn.LayerNorm(16)
        self.queries, self.pools = nn.Parameter(torch.randn(1, queries, 16)), pools
        self.read = nn.MultiheadAttention(16, 2, batch_first=True)
        self.mix = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        if self.pools:  # TokenLearner
            queries = (tokens @ self.queries.mT).softmax(1).mT @ tokens
        else:
            queries = self.read(self.queries.expand(len(x), -1, -1), tokens, tokens)[0]
        logits: Tensor = self.head(self.mix(queries).mean(1))
        return logits


class RegisterNet(nn.Module):
    """A transformer with a class token and registers before some patch.

    Attributes:
        cells: Where the patches lie among the tokens.
    """

    def __init__(
        self, registers: int, before: int, patch: int = 8, cells: int = 64, *, starts_as_mean: bool = False
    ) -> None:
        super().__init__()
        self.starts_as_mean = starts_as_mean
        self.patches, self.before = nn.Conv2d(3, 16, patch, stride=patch), before
        self.token, self.registers = (nn.Parameter(torch.randn(1, count, 16)) for count in (1, registers))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)
        self.cells = [1 + cell + (registers if cell >= before else 0) for cell in range(cells)]

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        token, registers = (each.expand(len(x), -1, -1) for each in (self.token, self.registers))
        registers = registers + tokens.mean(1, keepdim=True) if self.starts_as_mean else registers
        tokens = torch.cat([token, tokens[:, : self.before], registers, tokens[:, self.before :]], 1)
        logits: Tensor = self.head(self.norm(self.block(tokens)).mean(1))
        return logits


class QueryDetector(nn.Module):
    """A detector like DETR with two stages: its queries start from the image, and each gives a box and scores."""

    def __init__(self, queries: int) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 8, 8, stride=8), nn.LayerNorm(8)
        self.queries = nn.Parameter(torch.randn(1, queries, 8))
        self.decoder, self.classes, self.boxes = nn.LayerNorm(8), nn.Linear(8, 5), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        tokens = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        queries = self.queries + tokens.mean(1, keepdim=True)
        queries = self.decoder(queries + (queries @ tokens.mT).softmax(-1) @ tokens)
        queries = queries + (queries @ queries.mT).softmax(-1) @ queries  # each score depends on all queries
        return {"logits": self.classes(queries), "pred_boxes": self.boxes(queries).sigmoid()}
