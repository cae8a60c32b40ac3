"""Processors of vision-language models: the classes of Hugging Face with a tiny vocabulary, without a network."""

from __future__ import annotations

from typing import Any

from tests.zoo.vision_language import IMAGE_TOKEN, PATCH, SIDE, VOCABULARY

_WORDS = "what is this ? a red dog and cat ##s on the table sit ##ting near big small ."


def make_tokenizer(*special: str) -> Any:
    """Return a tokenizer that splits words into pieces; the first special token has the number of images."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.decoders import WordPiece
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"[PAD]": 0, "[BOS]": 1, "[EOS]": 2, "[UNK]": 3}
    for word in _WORDS.split():
        vocabulary[word] = len(vocabulary)
    for other in special[1:]:
        vocabulary[other] = len(vocabulary)
    while len(vocabulary) < IMAGE_TOKEN:
        vocabulary[f"word{len(vocabulary)}"] = len(vocabulary)
    vocabulary[special[0]] = IMAGE_TOKEN
    assert len(vocabulary) == VOCABULARY
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # type: ignore[call-arg]
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    tokenizer.decoder = WordPiece()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        bos_token="[BOS]",
        eos_token="[EOS]",
        additional_special_tokens=[*special],
    )


def make_llava_processor() -> Any:
    """Return a processor that resizes the shorter side to 64 pixels and crops the center."""
    from transformers import CLIPImageProcessor, LlavaProcessor

    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    return LlavaProcessor(
        images,
        make_tokenizer("<image>"),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def make_qwen_processor() -> Any:
    """Return a processor that keeps the proportions of a photo, with up to 32 tokens."""
    from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

    pixels = {"min_pixels": 16 * 16, "max_pixels": 32 * 16 * 16, "patch_size": PATCH, "merge_size": 2}
    tokenizer = make_tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    return Qwen2VLProcessor(Qwen2VLImageProcessor(**pixels), tokenizer, Qwen2VLVideoProcessor(**pixels))


def make_blip_processor() -> Any:
    """Return a processor whose texts begin with ``[BOS]`` and end with a separator, as those of BERT."""
    from transformers import BlipProcessor

    return BlipProcessor(_make_image_processor(), _add_separators(make_tokenizer("<image>")))


def make_instructblip_processor(queries: int) -> Any:
    """Return a processor that gives the Q-Former a text of its own."""
    from transformers import InstructBlipProcessor

    tokenizers = make_tokenizer("<image>"), _add_separators(make_tokenizer("<image>"))
    return InstructBlipProcessor(_make_image_processor(), *tokenizers, num_query_tokens=queries)


def make_florence_processor(tokens: int) -> Any:
    """Return a processor that writes the tokens of the image before the text."""
    from transformers import Florence2Processor

    images, tokenizer = _make_image_processor(), make_tokenizer("<image>")
    images.image_seq_length = tokens
    tokenizer.image_token, tokenizer.image_token_id = "<image>", IMAGE_TOKEN
    return Florence2Processor(images, tokenizer)


def make_kosmos_processor() -> Any:
    """Return a processor that marks the 64 tokens of the image by a mask; its vocabulary has 14 more tokens."""
    from transformers import Kosmos2Processor

    return Kosmos2Processor(_make_image_processor(), make_tokenizer("<image>"), num_patch_index_tokens=4)


def _make_image_processor() -> Any:
    from transformers import CLIPImageProcessor

    size = {"height": SIDE, "width": SIDE}
    return CLIPImageProcessor(size=size, do_center_crop=False)


def _add_separators(tokenizer: Any) -> Any:
    """Put special tokens around each text."""
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 1), ("[EOS]", 2)]
    )
    return tokenizer
