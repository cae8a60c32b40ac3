"""A LLaVA of 0.2 billion parameters with random weights, its processor, and what it is asked, without a network.

The picture has 576 tokens, as in LLaVA-1.5. The language model has 16 blocks of width 768 and 32,000 words.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import nn

PROMPT = "<image> what is on the street ?"
WORDS = 20
"""Length of the answer."""

_SIDE, _PATCH, _VOCABULARY, _IMAGE_TOKEN = 336, 14, 32_000, 31_999


def make_llava() -> tuple[nn.Module, Any]:
    """Return the model and its processor."""
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tower = CLIPVisionConfig(
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=6,
        image_size=_SIDE,
        patch_size=_PATCH,
    )
    text = LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=16,
        num_attention_heads=12,
        num_key_value_heads=12,
        vocab_size=_VOCABULARY,
    )
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=tower, text_config=text, image_token_index=_IMAGE_TOKEN)
    )
    images = CLIPImageProcessor(size={"shortest_edge": _SIDE}, crop_size={"height": _SIDE, "width": _SIDE})
    processor = LlavaProcessor(
        images,
        _make_tokenizer(),
        patch_size=_PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return model.eval(), processor


def _make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", *PROMPT.split()[1:]]
    words += [f"word{index}" for index in range(len(words), _IMAGE_TOKEN)]
    vocabulary = {word: index for index, word in enumerate([*words, "<image>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # type: ignore[call-arg]
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        bos_token="[BOS]",
        eos_token="[EOS]",
        additional_special_tokens=["<image>"],
    )


def make_photo() -> Image.Image:
    """Return a photo of noise, the same each time."""
    pixels = torch.randint(0, 256, (480, 640, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Image.fromarray(pixels.numpy())


def generate(model: nn.Module, processor: Any, photo: Image.Image) -> None:
    """Write an answer."""
    inputs = processor(images=photo, text=PROMPT, return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=WORDS, do_sample=False)  # type: ignore[operator]
    if written.shape[1] != inputs["input_ids"].shape[1] + WORDS:
        raise SystemExit("The answer ended early.")
