"""Models of open_clip, which compare images with texts."""

from __future__ import annotations

from os import PathLike
from typing import Any

from torch import Tensor, nn

from camtool.arguments.libraries import import_library
from camtool.arguments.message_parts import suggest_names
from camtool.errors import ModelError, raise_interrupt
from camtool.geometry.transform_output import Transform
from camtool.models.loaded import Loaded
from camtool.models.sources.source import PASS_TEXT, Source, limit_silence, tell_download_errors, to_height_and_width
from camtool.models.two_towers import TextTower, Tokenizer
from camtool.models.weights import load_state, read_state

# Number of tokens of CLIP's own tokenizer, which open_clip contains.
_CLIP_VOCABULARY = 49408


class OpenClipSource(Source):
    """Models of open_clip: an architecture and a tag of weights, ``"open_clip:ViT-B-32/openai"``."""

    prefix = "open_clip"
    usage = "'open_clip:NAME/TAG'"

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Load a model with published weights, or with those of a file; the tag is optional then.

        Raises:
            ModelError: open_clip is not installed, a name is unknown, or the weights cannot be read or do not fit.
        """
        base, tag = _split_name(name, needs_tag=weights is None)
        if weights is None:
            model = _download(base, tag)
        else:
            model = self.build_untrained(base)
            load_state(model, read_state(weights), weights)
        return Loaded(model, self.find_transform(model), text=TextTower(model, _find_named_tokenizer(base)))

    def build_untrained(self, name: str) -> nn.Module:
        """Build a model with random weights."""
        base, _ = _split_name(name, needs_tag=False)
        model: nn.Module = _import_open_clip().create_model(base, pretrained=None, pretrained_text=False)
        return model

    def find_transform(self, model: Any) -> Transform | None:
        """Return the preprocessing that the image tower was configured with."""
        config = getattr(getattr(model, "visual", None), "preprocess_cfg", None)
        if not config:
            return None
        from open_clip.transform import PreprocessCfg, image_transform_v2

        transform: Transform = image_transform_v2(PreprocessCfg(**config), is_train=False)
        return transform

    def find_input_size(self, model: Any) -> tuple[int, int] | None:
        """Return the image size of the image tower."""
        size = getattr(getattr(model, "visual", None), "image_size", None)
        return to_height_and_width(size) if size else None

    def find_tokenizer(self, model: Any) -> Tokenizer | None:
        """Return CLIP's own tokenizer for a model with a vocabulary of the same size.

        The tokenizer raises a ModelError for other models, as they do not say which tokenizer they have.
        """
        if not callable(getattr(model, "encode_text", None)):
            return None

        def tokenize(texts: list[str]) -> Tensor:
            if getattr(model, "vocab_size", None) != _CLIP_VOCABULARY:
                raise ModelError(f"{type(model).__name__} does not say which tokenizer it has. {PASS_TEXT}")
            tokens: Tensor = _import_open_clip().SimpleTokenizer(context_length=model.context_length)(texts)
            return tokens

        return tokenize


def _find_named_tokenizer(base: str) -> Tokenizer:
    """Return the tokenizer of an architecture; it is loaded when the first text comes."""

    def tokenize(texts: list[str]) -> Tensor:
        try:
            with limit_silence():
                tokens: Tensor = _import_open_clip().get_tokenizer(base)(texts)
        except (OSError, ValueError, ImportError) as error:
            raise_interrupt(error)
            raise ModelError(f"the tokenizer of 'open_clip:{base}' could not be downloaded ({error}).") from None
        return tokens

    return tokenize


def _import_open_clip() -> Any:
    return import_library("open_clip", "'open_clip:' models need open_clip", "open_clip_torch", ModelError)


def _split_name(name: str, *, needs_tag: bool) -> tuple[str, str]:
    """Return the architecture and the tag in a name, both checked."""
    open_clip = _import_open_clip()
    base, _, tag = name.partition("/")
    if base not in open_clip.list_models():
        raise ModelError(f"model 'open_clip:{name}' is unknown.{suggest_names(base, open_clip.list_models())}")
    tags = open_clip.list_pretrained_tags_by_model(base)
    if (needs_tag or tag) and tag not in tags:
        candidates = (
            f"add a tag of weights: {', '.join(f'{base}/{option}' for option in tags)}" if tags else "it has no weights"
        )
        raise ModelError(f"model 'open_clip:{name}': {candidates}.{suggest_names(tag, tags)}")
    return base, tag


def _download(base: str, tag: str) -> nn.Module:
    with tell_download_errors(f"open_clip:{base}/{tag}", f"open_clip:{base}"):
        return _import_open_clip().create_model(base, pretrained=tag, pretrained_text=False)  # type: ignore[no-any-return]
