"""A small vision-language model that names the objects of a scene of the demo, to try ``camtool.tokens`` on.

    scene = draw_scene(1_000_000_000, objects=2)
    model, processor = load_captioner()
    maps = camtool.tokens(model, processor, scene.image, PROMPT, method="tam")  # "one fish and one lightning"

It is a LLaVA of Hugging Face, whose vision tower is the demo's network. Its weights come with the package;
``transformers`` must be installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from camtool.arguments.libraries import import_library
from camtool.demo.camnet import SIZE, WEIGHTS, CamNet, load_honest_model
from camtool.demo.shapes import LABELS
from camtool.errors import ModelError
from camtool.models import read_state

# Tokens of the image along each side, each of 8 x 8 pixels.
GRID = 16

# The prompt of the training.
PROMPT = "<image> what is shown ?"

# The word that an image token without an object is trained to predict. It is in no caption.
BACKGROUND = "background"

# How the names of weights begin that are those of the bundled model ``"demo"``. They are not stored twice.
NETWORK = ("model.vision_tower.stem.", "model.vision_tower.features.")

_CHANNELS = 96
_SPECIAL = ("[PAD]", "[BOS]", "[EOS]", "[UNK]", "<image>")
_WORDS = ("what", "is", "shown", "?", "one", "and", BACKGROUND, *LABELS)


class CaptionerTower(nn.Module):
    """The features of the demo's network, with an embedding of the row and the column, as tokens.

    Args:
        network: The demo's network.
    """

    def __init__(self, network: CamNet) -> None:
        super().__init__()
        self.stem, self.features = network.stem, network.features
        self.rows = nn.Parameter(0.02 * torch.randn(GRID, 1, _CHANNELS))
        self.columns = nn.Parameter(0.02 * torch.randn(GRID, _CHANNELS))

    def forward(self, pixel_values: Tensor, **_: Any) -> Any:
        """Return the output of a tower of ``transformers``, with the tokens ``(N, 256, 96)`` where LLaVA reads them."""
        return self.embed(self.features(self.stem(pixel_values)).permute(0, 2, 3, 1))

    def embed(self, features: Tensor) -> Any:
        """Return features ``(N, 16, 16, 96)`` with their positions, as tokens."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        tokens = (features + self.rows + self.columns).flatten(1, 2)
        return BaseModelOutputWithPooling(last_hidden_state=tokens, hidden_states=(tokens,))


def load_captioner(weights: Path | None = None) -> tuple[nn.Module, Any]:
    """Return the model in evaluation mode, and its processor. Nothing is downloaded.

    Args:
        weights: A file of ``tools/train_demo_captioner.py``; by default the bundled one.

    Raises:
        ModelError: ``transformers`` is not installed, or the file cannot be read.
    """
    model = build_captioner()
    network = {name: value for name, value in model.state_dict().items() if name.startswith(NETWORK)}
    model.load_state_dict(network | read_state(WEIGHTS / "captioner.safetensors" if weights is None else weights))
    return model.eval(), build_processor()


def build_captioner() -> Any:
    """Return the model with the trained network in its tower, and random weights elsewhere.

    Raises:
        ModelError: ``transformers`` is not installed.
    """
    _check_transformers()
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    # LLaVA builds a tower from this, which is replaced; its projector reads the number of channels.
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
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
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
        tie_word_embeddings=False,
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
    half = [0.5] * 3
    images = hub.CLIPImageProcessor(
        size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}, image_mean=half, image_std=half
    )
    return hub.LlavaProcessor(images, tokenizer, patch_size=SIZE // GRID, vision_feature_select_strategy="full")


def write_caption(labels: list[str]) -> str:
    """Return the caption of objects in this order: ``"one star and one arrow"``."""
    return " and ".join(f"one {label}" for label in labels)


def _check_transformers() -> None:
    """Check that transformers is installed.

    Raises:
        ModelError: It is not.
    """
    import_library("transformers", "the captioner is a model of transformers", "'camtool[hf]'", ModelError)
