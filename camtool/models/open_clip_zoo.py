"""open_clip's models, which compare pictures with texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.error import URLError

from torch import Tensor, nn

from camtool.errors import ModelError, near
from camtool.models.base import Loaded, Transform
from camtool.models.towers import TextTower, Tokenizer
from camtool.models.weights import fill, read_state

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["from_open_clip", "open_clip_tokenizer", "open_clip_transform", "untrained_open_clip"]

_VOCABULARY = 49408
"""The tokens of CLIP's own tokenizer, which open_clip brings along."""


def from_open_clip(name: str, weights: str | PathLike[str] | None = None) -> Loaded:
    """One of open_clip's models.

    Args:
        name: ``"ViT-B-32/openai"``, the architecture and whose weights; the latter may be left out with a file.
        weights: A file with the model's state.

    Raises:
        ModelError: open_clip is not installed, a name is unknown, or the weights cannot be had or do not fit.
    """
    base, tag = _checked(name, needs_tag=weights is None)
    if weights is None:
        model = _fetched(base, tag)
    else:
        model = untrained_open_clip(base)
        fill(model, read_state(weights), weights)
    return Loaded(model, open_clip_transform(model), text=TextTower(model, _named_tokenizer(base)))


def untrained_open_clip(name: str) -> nn.Module:
    """One of open_clip's models with random weights."""
    base, _ = _checked(name, needs_tag=False)
    model: nn.Module = _open_clip().create_model(base, pretrained=None, pretrained_text=False)
    return model


def open_clip_transform(model: Any) -> Transform | None:
    """The preparation of pictures for one of open_clip's models; ``None`` where it does not tell."""
    told = getattr(getattr(model, "visual", None), "preprocess_cfg", None)
    if not told:
        return None
    from open_clip.transform import PreprocessCfg, image_transform_v2

    transform: Transform = image_transform_v2(PreprocessCfg(**told), is_train=False)
    return transform


def open_clip_tokenizer(model: Any) -> Tokenizer:
    """CLIP's own tokenizer, for a model whose vocabulary has its size; any other does not say which it has."""

    def tokenize(texts: list[str]) -> Tensor:
        if getattr(model, "vocab_size", None) != _VOCABULARY:
            raise ModelError(
                f"{type(model).__name__} does not say which tokenizer it has. Pass camtool.Loaded(model, transform, "
                "text=...) with a function from texts to embeddings (T, D), or camtool.targets.Similarity(embedding) "
                "in the place of the text."
            )
        tokens: Tensor = _open_clip().SimpleTokenizer(context_length=model.context_length)(texts)
        return tokens

    return tokenize


def _named_tokenizer(base: str) -> Tokenizer:
    def tokenize(texts: list[str]) -> Tensor:
        try:
            tokens: Tensor = _open_clip().get_tokenizer(base)(texts)
        except (OSError, ValueError, ImportError) as error:
            raise ModelError(f"the tokenizer of 'open_clip:{base}' could not be fetched ({error}).") from error
        return tokens

    return tokenize


def _open_clip() -> Any:
    try:
        import open_clip
    except ModuleNotFoundError as error:
        if error.name != "open_clip":
            raise
        raise ModelError("models of open_clip need it to be installed: pip install open_clip_torch.") from error
    return open_clip


def _checked(name: str, *, needs_tag: bool) -> tuple[str, str]:
    """The architecture and the tag in a name."""
    zoo = _open_clip()
    base, _, tag = name.partition("/")
    if base not in zoo.list_models():
        raise ModelError(f"model 'open_clip:{name}' is unknown.{near(base, zoo.list_models())}")
    tags = zoo.list_pretrained_tags_by_model(base)
    if (needs_tag or tag) and tag not in tags:
        known = f"say whose weights: {', '.join(f'{base}/{each}' for each in tags)}" if tags else "it has no weights"
        raise ModelError(f"model 'open_clip:{name}': {known}.{near(tag, tags)}")
    return base, tag


def _fetched(base: str, tag: str) -> nn.Module:
    try:
        model: nn.Module = _open_clip().create_model(base, pretrained=tag, pretrained_text=False)
    except (URLError, OSError, RuntimeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).split("\n", 1)[0].rstrip(".")
        raise ModelError(
            f"the weights of 'open_clip:{base}/{tag}' could not be fetched ({reason}). Without internet, give a file "
            f"with --weights FILE (in Python: load('open_clip:{base}', 'FILE'))."
        ) from error
    return model
