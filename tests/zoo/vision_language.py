"""Vision-language models of Hugging Face: small, from configurations, with random weights, without a network.

Each gets a picture of 64 x 64 pixels, with 8 x 8 patches, and a text around the tokens of the picture. Where these lie
follows from the text that is made here, and not from camtool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

IMAGE_TOKEN, VOCABULARY, SIDE, PATCH = 98, 99, 64, 8

_BLOCKS: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
_TOWER: dict[str, Any] = _BLOCKS | {"num_hidden_layers": 3, "image_size": SIDE, "patch_size": PATCH}
_TEXT: dict[str, Any] = _BLOCKS | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MROPE: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
}

Config = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class SmallVLM:
    """A small vision-language model, and what it is called with.

    Attributes:
        kind: The model's class.
        parts: Configurations within the configuration: for each the class and what it is made of.
        grid: The grid of the picture's tokens in the text; None if they form none.
        options: The rest of the configuration.
        tokens: The number of the picture's tokens, by default those of the grid.
        pooled: Number of the picture's tokens before those of the grid, which stand for all of it.
        behind_each_row: Tokens of the text behind each row of the grid, which have the picture's own number.
        make_pixels: From a picture ``(N, 3, 64, 64)`` to the model's argument.
        others: Further arguments, for one picture.
        mark: The name of the argument that marks the picture's tokens, if there is one.
    """

    kind: str
    parts: dict[str, Config]
    grid: tuple[int, int] | None
    options: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0
    pooled: int = 0
    behind_each_row: int = 0
    make_pixels: Callable[[Tensor], Tensor] = lambda picture: picture
    others: dict[str, Any] = field(default_factory=dict)
    mark: str = ""

    def build(self) -> nn.Module:
        """The model with random weights, the same each time."""
        import transformers

        parts = {name: getattr(transformers, config)(**options) for name, (config, options) in self.parts.items()}
        kind = getattr(transformers, self.kind)
        torch.manual_seed(0)
        model: nn.Module = kind(kind.config_class(**self.options, **parts)).eval()
        for parameter in model.parameters():  # a small range lets the signal fade
            if parameter.ndim > 1:
                parameter.data.normal_(0, 0.08)
        return model

    @property
    def positions(self) -> list[int]:
        """Where the cells of the grid lie in the text, row by row."""
        assert self.grid is not None
        height, width = self.grid
        start = len(_BEFORE) + self.pooled
        return [start + row * (width + self.behind_each_row) + x for row in range(height) for x in range(width)]

    def make_inputs(self, picture: Tensor) -> dict[str, Any]:
        """The arguments for one picture ``(1, 3, 64, 64)``."""
        count = self.tokens or (self.grid[0] * (self.grid[1] + self.behind_each_row) if self.grid else 0) + self.pooled
        ids = torch.tensor([[*_BEFORE, *[IMAGE_TOKEN] * count, *_BEHIND]])
        return {
            "pixel_values": self.make_pixels(picture),
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            **self.others,
            **({self.mark: (ids == IMAGE_TOKEN).long()} if self.mark else {}),
        }


_BEFORE, _BEHIND = (1, 7, 12), (20, 31, 5, 44)


def _cut_patches(picture: Tensor, merge: int = 2, frames: int = 2) -> Tensor:
    """Cut a picture as the Qwen family does: patches of 2 x 2 neighbors in turn, each ``(3, frames, 8, 8)``."""
    cells = SIDE // PATCH // merge
    cut = picture[0].reshape(3, cells, merge, PATCH, cells, merge, PATCH)
    patches = cut.permute(1, 4, 2, 5, 0, 3, 6)[..., None, :, :].expand(-1, -1, -1, -1, -1, frames, -1, -1)
    return patches.reshape(-1, 3 * frames * PATCH * PATCH)


def _qwen(family: str, **tower: Any) -> SmallVLM:
    vision = {"depth": 3, "num_heads": 4, "patch_size": PATCH, "spatial_merge_size": 2} | tower
    return SmallVLM(
        f"{family}ForConditionalGeneration",
        {"vision_config": (f"{family}VisionConfig", vision), "text_config": (f"{family}TextConfig", _TEXT | _MROPE)},
        (4, 4),
        {"image_token_id": IMAGE_TOKEN, "vision_start_token_id": 12, "vision_end_token_id": 20, "video_token_id": 97},
        make_pixels=_cut_patches,
        others={"image_grid_thw": torch.tensor([[1, 8, 8]])},
        mark="mm_token_type_ids",
    )


def _idefics(family: str) -> SmallVLM:
    return SmallVLM(
        f"{family}ForConditionalGeneration",
        {"vision_config": (f"{family}VisionConfig", _TOWER), "text_config": _LLAMA},
        (4, 4),
        _BY_ID | {"scale_factor": 2},
        make_pixels=_as_tiles,
    )


_CLIP: Config = ("CLIPVisionConfig", _TOWER)
_SIGLIP: Config = ("SiglipVisionConfig", _TOWER)
_LLAMA: Config = ("LlamaConfig", _TEXT)
_QWEN2: Config = ("Qwen2Config", _TEXT)
_BY_INDEX = {"image_token_index": IMAGE_TOKEN}
_BY_ID = {"image_token_id": IMAGE_TOKEN}


def _as_tiles(picture: Tensor) -> Tensor:
    return picture[:, None]


WITH_GRID: dict[str, SmallVLM] = {
    "llava": SmallVLM(
        "LlavaForConditionalGeneration", {"vision_config": _CLIP, "text_config": _LLAMA}, (8, 8), _BY_INDEX
    ),
    "vipllava": SmallVLM(
        "VipLlavaForConditionalGeneration",
        {"vision_config": _CLIP, "text_config": _LLAMA},
        (8, 8),
        _BY_INDEX | {"vision_feature_layers": [-2, -1]},
    ),
    "paligemma": SmallVLM(
        "PaliGemmaForConditionalGeneration",
        {
            "vision_config": ("SiglipVisionConfig", _TOWER | {"projection_dim": 32}),
            "text_config": ("GemmaConfig", _TEXT | {"head_dim": 8}),
        },
        (8, 8),
        _BY_INDEX | {"projection_dim": 32, "hidden_size": 32},
    ),
    "qwen2_vl": _qwen("Qwen2VL", embed_dim=32, hidden_size=32, mlp_ratio=2),
    "qwen2_5_vl": _qwen(
        "Qwen2_5_VL",
        hidden_size=32,
        intermediate_size=64,
        out_hidden_size=32,
        window_size=32,
        fullatt_block_indexes=[2],
    ),
    "qwen3_vl": _qwen(
        "Qwen3VL",
        hidden_size=32,
        intermediate_size=64,
        out_hidden_size=32,
        num_position_embeddings=64,
        deepstack_visual_indexes=[0],
    ),
    "internvl": SmallVLM(
        "InternVLForConditionalGeneration",
        {
            "vision_config": ("InternVLVisionConfig", _TOWER | {"image_size": [SIDE, SIDE], "patch_size": [PATCH] * 2}),
            "text_config": _QWEN2,
        },
        (4, 4),
        _BY_ID,
    ),
    "idefics3": _idefics("Idefics3"),
    "smolvlm": _idefics("SmolVLM"),
    "gemma3": SmallVLM(
        "Gemma3ForConditionalGeneration",
        {"vision_config": _SIGLIP, "text_config": ("Gemma3TextConfig", _TEXT | {"head_dim": 8})},
        (4, 4),
        _BY_INDEX | {"mm_tokens_per_image": 16, "boi_token_index": 12, "eoi_token_index": 20},
    ),
    "aya_vision": SmallVLM(
        "AyaVisionForConditionalGeneration",
        {"vision_config": _SIGLIP, "text_config": ("Cohere2Config", _TEXT)},
        (4, 4),
        _BY_INDEX,
    ),
    "mistral3": SmallVLM(
        "Mistral3ForConditionalGeneration",
        {"vision_config": ("PixtralVisionConfig", _TOWER), "text_config": ("MistralConfig", _TEXT)},
        (4, 4),
        _BY_INDEX | {"spatial_merge_size": 2},
        others={"image_sizes": torch.tensor([[SIDE, SIDE]])},
    ),
    # An encoder and a decoder. The first token of the picture is the mean of the others.
    "florence2": SmallVLM(
        "Florence2ForConditionalGeneration",
        {
            "vision_config": (
                "Florence2VisionConfig",
                {"depths": (1, 1, 1, 1), "patch_stride": (4, 2, 1, 1), "embed_dim": (16, 16, 32, 32)}
                | {"num_heads": (2, 2, 2, 2), "num_groups": (2, 2, 2, 2), "window_size": 4, "projection_dim": 32},
            ),
            "text_config": (
                "BartConfig",
                {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
                | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64}
                | {"decoder_ffn_dim": 64, "max_position_embeddings": 256, "decoder_start_token_id": 2}
                | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
            ),
        },
        (8, 8),
        _BY_ID,
        pooled=1,
    ),
}
"""Models whose language model reads the picture's tokens as a grid."""

_QFORMER: Config = ("Blip2QFormerConfig", _BLOCKS | {"num_hidden_layers": 2, "encoder_hidden_size": 32})
_OPT: Config = (
    "OPTConfig",
    {"vocab_size": VOCABULARY, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"max_position_embeddings": 256, "word_embed_proj_dim": 32},
)

WITHOUT_GRID: dict[str, SmallVLM] = {
    # 16 queries: a square number, and a quarter of the patches, so arithmetic would find a grid.
    "blip_2": SmallVLM(
        "Blip2ForConditionalGeneration",
        {
            "vision_config": ("Blip2VisionConfig", _TOWER | {"initializer_range": 0.02}),
            "qformer_config": _QFORMER,
            "text_config": _OPT,
        },
        None,
        _BY_INDEX | {"num_query_tokens": 16},
        tokens=16,
    ),
    "instructblip": SmallVLM(
        "InstructBlipForConditionalGeneration",
        {
            "vision_config": ("InstructBlipVisionConfig", _TOWER | {"initializer_range": 0.02}),
            "qformer_config": ("InstructBlipQFormerConfig", _QFORMER[1] | {"vocab_size": VOCABULARY}),
            "text_config": _LLAMA,
        },
        None,
        _BY_INDEX | {"num_query_tokens": 16},
        tokens=16,
        others={"qformer_input_ids": torch.tensor([[1, 7, 12, 2]])},
    ),
    # The text marks its queries by a mask.
    "kosmos_2": SmallVLM(
        "Kosmos2ForConditionalGeneration",
        {
            "vision_config": ("Kosmos2VisionConfig", _TOWER),
            "text_config": (
                "Kosmos2TextConfig",
                {"vocab_size": VOCABULARY, "embed_dim": 32, "ffn_dim": 64, "layers": 2, "attention_heads": 4}
                | {"max_position_embeddings": 256},
            ),
        },
        None,
        {"latent_query_num": 16},
        tokens=16,
        mark="image_embeds_position_mask",
    ),
    "idefics2": SmallVLM(
        "Idefics2ForConditionalGeneration",
        {
            "vision_config": ("Idefics2VisionConfig", _TOWER),
            "perceiver_config": (
                "Idefics2PerceiverConfig",
                {"hidden_size": 32, "resampler_n_latents": 16, "resampler_depth": 1, "resampler_n_heads": 4}
                | {"resampler_head_dim": 8, "num_key_value_heads": 4},
            ),
            "text_config": ("MistralConfig", _TEXT),
        },
        None,
        _BY_ID,
        tokens=16,
        make_pixels=_as_tiles,
    ),
}
"""Models whose language model reads queries that have looked at the picture. Their vision tower has the grid."""

BLIP = SmallVLM(
    "BlipForConditionalGeneration",
    {
        "vision_config": ("BlipVisionConfig", _TOWER),
        "text_config": (
            "BlipTextConfig",
            _BLOCKS
            | {"vocab_size": VOCABULARY, "encoder_hidden_size": 32, "num_hidden_layers": 2, "projection_dim": 32}
            | {"max_position_embeddings": 256, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2}
            | {"pad_token_id": 0},
        ),
    },
    None,
)
"""A captioner whose text has no tokens of the picture: it looks at those of the vision tower by cross-attention."""
