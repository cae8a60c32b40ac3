"""A small vision-language model that says which objects a scene of the demo shows, for trying ``camtool.tokens``.

    model, processor = load_captioner()
    maps = camtool.tokens(model, processor, Image.fromarray(draw_scene(7, objects=2).image), PROMPT)

It is a LLaVA of Hugging Face whose vision tower is the demo's network. Its weights come with the package;
``transformers`` must be installed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from torch import Tensor, nn

from camtool.demo.bundled import WEIGHTS, load_honest_model
from camtool.demo.camnet import SIZE, CamNet
from camtool.demo.shapes import LABELS
from camtool.errors import ModelError
from camtool.models import read_state

__all__ = ["GRID", "PROMPT", "CaptionerTower", "build_captioner", "build_processor", "load_captioner", "write_caption"]

GRID = 8
"""Tokens of the image along each side."""

PROMPT = "<image> what is shown ?"
"""The prompt that it was trained with."""

_CHANNELS = 96
_SPECIAL = ("[PAD]", "[BOS]", "[EOS]", "[UNK]", "<image>")
_WORDS = ("what", "is", "shown", "?", "a", "an", "and", *LABELS)


class CaptionerTower(nn.Module):
    """The demo's network as a vision tower: its features, each the mean of 2 x 2 positions, as tokens.

    Args:
        network: The demo's network.
    """

    def __init__(self, network: CamNet) -> None:
        super().__init__()
        self.stem, self.features, self.pool = network.stem, network.features, nn.AdaptiveAvgPool2d(GRID)

    def forward(self, pixel_values: Tensor, **_: Any) -> SimpleNamespace:
        """Return an object with the tokens ``(N, 64, 96)`` where LLaVA looks for them."""
        grid: Tensor = self.pool(self.features(self.stem(pixel_values)))
        return SimpleNamespace(hidden_states=(grid.flatten(2).transpose(1, 2),), pooler_output=None)


def load_captioner() -> tuple[nn.Module, Any]:
    """Return the model in evaluation mode, and its processor. Nothing is downloaded.

    Raises:
        ModelError: ``transformers`` is not installed.
    """
    model = build_captioner()
    tower = {f"model.vision_tower.{name}": value for name, value in model.model.vision_tower.state_dict().items()}
    model.load_state_dict(tower | read_state(WEIGHTS / "captioner.safetensors"))
    return model.eval(), build_processor()


def build_captioner() -> Any:
    """Return the model with the trained tower and random weights elsewhere.

    Raises:
        ModelError: ``transformers`` is not installed.
    """
    _check_transformers()
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    # LLaVA's own tower is made from this and then replaced; its projector reads the number of channels.
    tower = CLIPVisionConfig(
        hidden_size=_CHANNELS,
        intermediate_size=1,
        num_hidden_layers=1,
        num_attention_heads=1,
        image_size=SIZE,
        patch_size=SIZE // GRID,
    )
    text = LlamaConfig(
        vocab_size=len(_SPECIAL) + len(_WORDS),
        hidden_size=72,
        intermediate_size=144,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    config = LlavaConfig(
        vision_config=tower,
        text_config=text,
        image_token_index=_SPECIAL.index("<image>"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    model = LlavaForConditionalGeneration(config)
    network = load_honest_model().model
    assert isinstance(network, CamNet)
    model.model.vision_tower = CaptionerTower(network)
    return model


def build_processor() -> Any:
    """Return the processor: images of 128 x 128 pixels with values from -1 to 1, and words as tokens.

    Raises:
        ModelError: ``transformers`` is not installed.
    """
    _check_transformers()
    import tokenizers
    import transformers

    # The types of these libraries are incomplete.
    words, hub = cast("Any", tokenizers), cast("Any", transformers)
    vocabulary = {word: number for number, word in enumerate((*_SPECIAL, *_WORDS))}
    splitter = words.Tokenizer(words.models.WordLevel(vocabulary, unk_token="[UNK]"))
    splitter.pre_tokenizer = words.pre_tokenizers.WhitespaceSplit()
    tokenizer = hub.PreTrainedTokenizerFast(
        tokenizer_object=splitter,
        pad_token="[PAD]",
        bos_token="[BOS]",
        eos_token="[EOS]",
        unk_token="[UNK]",
        additional_special_tokens=["<image>"],
    )
    images = hub.CLIPImageProcessor(
        size={"shortest_edge": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return hub.LlavaProcessor(images, tokenizer, patch_size=SIZE // GRID, vision_feature_select_strategy="full")


def write_caption(labels: list[str]) -> str:
    """Return the caption of objects in this order: ``"a star and an arrow"``."""
    return " and ".join(f"{'an' if label[0] in 'aeiou' else 'a'} {label}" for label in labels)


def _check_transformers() -> None:
    """Check that transformers is installed.

    Raises:
        ModelError: It is not.
    """
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise ModelError("the captioner is a model of transformers: pip install 'camtool[hf]'.") from error
