"""Cross-attention of a diffusion U-Net by word: its definition, and the user's image stays bitwise."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention

import camtool
from camtool.errors import LayerError, TargetError
from tests.hooks.state.test_no_trace import unchanged


class Attention(nn.Module):
    """Attention as diffusers writes it."""

    norm_q = norm_k = None

    def __init__(self, width: int, text: int | None) -> None:
        super().__init__()
        self.is_cross_attention, self.heads, self.scale = text is not None, 2, (width / 2) ** -0.5
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k, self.to_v = (nn.Linear(text or width, width, bias=False) for _ in range(2))

    def forward(self, x: Tensor, text: Tensor | None = None) -> Tensor:
        text = x if text is None else text
        q, k, v = (
            projected.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projected in (self.to_q(x), self.to_k(text), self.to_v(text))
        )
        return x + scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2).flatten(2)


class UNet(nn.Module):
    """Cross-attention on a latent image, and on one of half its sides, with self-attention in between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.own, self.second = Attention(4, 3), Attention(4, None), Attention(4, 3)
        self.double().eval()

    def forward(self, sample: Tensor, timestep: int, encoder_hidden_states: Tensor) -> Tensor:
        x = self.own(self.first(sample.flatten(2).mT, encoder_hidden_states))
        x = x.mT.unflatten(2, sample.shape[2:])
        small = nn.functional.avg_pool2d(x, 2, ceil_mode=True)
        y = self.second(small.flatten(2).mT, encoder_hidden_states).mT.unflatten(2, small.shape[2:])
        return x + interpolate(y, x.shape[2:]) + timestep


LATENT, TEXT = (6, 5), 7


def make_inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    sample = torch.randn(2, 4, *LATENT, generator=generator, dtype=torch.float64)
    return sample, torch.randn(2, TEXT, 3, generator=generator, dtype=torch.float64)


def run_steps(unet: Any, sample: Tensor, text: Tensor) -> Tensor:
    with torch.no_grad():
        for step in (2, 1):
            sample = unet(sample, step, encoder_hidden_states=text)
    return sample


def compute_daam(unet: UNet, sample: Tensor, text: Tensor, row: int) -> Tensor:
    """arXiv 2210.04885, section 2.2: softmax over tokens of each head, layer and step, upsampled; their mean."""
    placed = []
    with torch.no_grad():
        for step in (2, 1):
            x = sample.flatten(2).mT
            after = unet.own(unet.first(x, text)).mT.unflatten(2, LATENT)
            small = nn.functional.avg_pool2d(after, 2, ceil_mode=True)
            for layer, inputs, grid in ((unet.first, x, LATENT), (unet.second, small.flatten(2).mT, (3, 3))):
                for head in range(2):
                    part = slice(2 * head, 2 * head + 2)
                    q, k = layer.to_q(inputs)[row][:, part], layer.to_k(text)[row][:, part]
                    shares = torch.stack([torch.softmax(one @ k.T * layer.scale, 0) for one in q])
                    placed.append(interpolate(shares.T.reshape(1, TEXT, *grid), LATENT, mode="bicubic")[0])
            sample = unet(sample, step, text)
    return torch.stack(placed).mean(0).clamp(min=0)


def test_maps_are_the_mean_over_heads_layers_and_steps() -> None:
    unet, (sample, text) = UNet(), make_inputs()
    plain = run_steps(unet, sample, text)
    with unchanged(unet), camtool.word_attention(unet) as words:
        assert torch.equal(run_steps(unet, sample, text), plain)
    assert words.passes == 2
    for row in (0, -1):
        torch.testing.assert_close(
            words.compute_maps(row).double(), compute_daam(unet, sample, text, row), rtol=1e-5, atol=1e-7
        )
    run_steps(unet, sample, text)  # after the block nothing is recorded
    assert words.passes == 2


class Tokenizer:
    """A token for each word, two for a dachshund, and one at each end."""

    words = ("<s>", "</s>", "a", "dog", "dachs", "##hund", "chair")

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        pieces = text.replace("dachshund", "dachs ##hund").split()
        if add_special_tokens:
            pieces = ["<s>", *pieces, "</s>"]
        return {"input_ids": [self.words.index(piece) if piece in self.words else 99 for piece in pieces]}


def test_a_word_is_the_mean_of_its_tokens() -> None:
    unet, (sample, text) = UNet(), make_inputs()
    with camtool.word_attention(unet) as words:
        run_steps(unet, sample, text)
    image, prompt = np.full((48, 40, 3), 200, np.uint8), "a dachshund a dog chair"
    maps = words.compute_maps()
    result = words.map("dachshund", image, prompt, Tokenizer())
    np.testing.assert_allclose(result.raw, maps[2:4].mean(0))
    assert (result.label, result.heatmap.shape) == ("dachshund", (48, 40))
    np.testing.assert_allclose(words.map("a", image, prompt, Tokenizer()).raw, maps[[1, 4]].mean(0))
    np.testing.assert_allclose(words.map([6], image).raw, maps[6])
    for arguments, message in [
        (("cat", image, prompt, Tokenizer()), "word='cat' is not in the prompt 'a dachshund a dog chair'."),
        (("dog", image), "word='dog': pass the prompt and the pipeline's tokenizer"),
        (([7], image), "word: tokens [7] are none of the 7 that the U-Net attends to."),
    ]:
        with pytest.raises(TargetError, match=re.escape(message)):
            words.map(*arguments)


def test_refused_networks() -> None:
    with (
        pytest.raises(LayerError, match="Linear has no cross-attention as diffusers marks it"),
        camtool.word_attention(nn.Linear(1, 1)),
    ):
        pass
    with camtool.word_attention(UNet()) as words:
        pass
    with pytest.raises(LayerError, match="the U-Net has not run in the block"):
        words.compute_maps()
    unet, (sample, text) = UNet(), make_inputs()
    with unchanged(unet), pytest.raises(RuntimeError), camtool.word_attention(unet):
        run_steps(unet, sample, text[..., :2])  # a text of another width


def test_diffusers() -> None:
    """A tiny U-Net of diffusers with random weights: the matrices are those of its own slow processor."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=6, attention_head_dim=2,
    ).eval()  # fmt: skip
    sample, text = torch.randn(2, 4, 8, 8), torch.randn(2, 5, 6)
    layers = [module for module in unet.modules() if getattr(module, "is_cross_attention", False)]
    kept: list[Tensor] = []

    class Slow(diffusers.models.attention_processor.AttnProcessor):
        def __call__(self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Any = None, **rest: Any) -> Tensor:
            query, key = attn.to_q(hidden_states), attn.to_k(encoder_hidden_states)
            heads = (attn.head_to_batch_dim(part) for part in (query, key))
            kept.append(attn.get_attention_scores(*heads).unflatten(0, (2, -1)).mean(1))  # (2, T, S)
            return super().__call__(attn, hidden_states, encoder_hidden_states, **rest)

    with torch.no_grad():
        plain = unet(sample, 3, text).sample
        with unchanged(unet), camtool.word_attention(unet) as words:
            assert torch.equal(unet(sample, 3, encoder_hidden_states=text).sample, plain)
        for layer in layers:
            layer.set_processor(Slow())
        unet(sample, 3, text)
    assert len(kept) == len(layers) >= 4
    grids = [round(matrix.shape[1] ** 0.5) for matrix in kept]
    placed = [
        interpolate(matrix[-1].T.reshape(1, 5, grid, grid), (8, 8), mode="bicubic")[0]
        for matrix, grid in zip(kept, grids, strict=True)
    ]
    assert {*grids} == {4, 8}
    expected = torch.stack(placed).mean(0).clamp(min=0)
    torch.testing.assert_close(words.compute_maps(), expected, rtol=1e-4, atol=1e-6)
