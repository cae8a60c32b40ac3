"""Models of Hugging Face: a folder or a name on the hub → the model, its image processor, its labels, its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from PIL import Image
from torch import Tensor, nn

from camtool.errors import ModelError, add_article
from camtool.lazy import cached_property
from camtool.models.base import Loaded, Transform
from camtool.models.towers import TextTower, Tokenizer, has_two_towers
from camtool.models.weights import fill, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

__all__ = [
    "Preparation",
    "from_hugging_face",
    "hugging_face_labels",
    "hugging_face_tokenizer",
    "hugging_face_transform",
    "is_of_hugging_face",
    "untrained_hugging_face",
]


def from_hugging_face(name: str, weights: str | PathLike[str] | None = None) -> Loaded:
    """A model for pictures of Hugging Face.

    Its configuration says of which class it is: one that classifies, segments, detects, makes embeddings, or compares
    pictures with texts. No code of the folder or of the hub is run.

    Args:
        name: ``"org/name"`` on the hub, or a folder that ``save_pretrained`` wrote.
        weights: A file with the model's state, in the place of its own.

    Raises:
        ModelError: transformers is not installed; there is no such model; it is none for pictures; or its weights
            cannot be had or do not fit; or it needs code of its own.
    """
    source = _source(name)
    kind, config = _kind(source)
    if weights is None:
        model = _trained(kind, source)
    else:
        model = kind(config)
        fill(model, read_state(weights), weights)
    text = TextTower(model, hugging_face_tokenizer(model, source)) if has_two_towers(model) else None
    return Loaded(model, _transform(source), hugging_face_labels(model), text=text)


def untrained_hugging_face(name: str) -> nn.Module:
    """The same model with random weights, of which only the configuration is read."""
    kind, config = _kind(_source(name))
    model: nn.Module = kind(config)
    return model


# -------------------------------------------------------------------------------------------------- preparation


@dataclass(frozen=True)
class Preparation:
    """An image processor of Hugging Face as a transform: from a PIL picture to ``(C, h, w)``.

    Attributes:
        processor: The image processor.
    """

    processor: Any

    def __call__(self, photo: Image.Image) -> Tensor:
        """What the processor makes of one picture."""
        made: Tensor = self.processor(images=photo, return_tensors="pt")["pixel_values"][0]
        return made

    @property
    def mean(self) -> list[float]:
        """What is subtracted from values in [0, 1], channel by channel."""
        black, white = self._ends
        return (-black / (white - black)).tolist()

    @property
    def std(self) -> list[float]:
        """What they are divided by then."""
        black, white = self._ends
        return (1 / (white - black)).tolist()

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """What black and white become. Processors have many ways to scale; this holds for all of them."""
        black, white = (self(Image.new("RGB", (64, 64), colour)).double() for colour in ("black", "white"))
        middle = (slice(None), black.shape[1] // 2, black.shape[2] // 2)
        return black[middle], white[middle]


def is_of_hugging_face(model: nn.Module) -> bool:
    """Whether the model's class is one of transformers', or made of one."""
    mro = model.__class__.__mro__  # not type(model), which of a weak proxy is another
    return any(kind.__module__.startswith("transformers.") for kind in mro)


def hugging_face_transform(source: str) -> Transform | None:
    """The preparation of a model that was loaded from ``source``, where that needs no internet; else ``None``."""
    return _transform(source, local_files_only=True) if source else None


def _transform(source: str, **options: Any) -> Transform | None:
    from transformers import AutoImageProcessor

    read: Callable[..., Any] = AutoImageProcessor.from_pretrained
    try:
        processor = read(source, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        if _needs_own_code(error):
            raise ModelError(
                f"model 'hf:{source}' prepares images by Python code of its own, which camtool does not run. If you "
                "trust it, load it yourself with transformers, and pass camtool.Loaded(model, transform, labels)."
            ) from error
        return None  # the model was saved without one, or with none of use here
    of_timm: Transform | None = getattr(processor, "val_transforms", None)
    return of_timm or Preparation(processor)


def hugging_face_labels(model: nn.Module) -> list[str] | None:
    """The names of the classes in a model's configuration; ``None`` where nobody has given any."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(names, Mapping) or not names:
        return None
    labels = [str(names.get(index, "")) for index in range(len(names))]
    return None if not all(labels) or all(map(_NO_NAME.fullmatch, labels)) else labels


_NO_NAME = re.compile(r"LABEL_\d+")
"""What transformers calls a class that has no name."""


# -------------------------------------------------------------------------------------------------------- texts


def hugging_face_tokenizer(model: nn.Module, source: str) -> Tokenizer:
    """The tokenizer that belongs to a model; it is read when the first text comes.

    Args:
        model: A model of two towers.
        source: Where it was loaded from: a folder, or a name on the hub.
    """

    @cache
    def tokenizer() -> Any:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        except (OSError, ValueError, TypeError, ImportError) as error:
            where = f"from {source!r} ({_first_line(error)})" if source else "because the model was not loaded"
            raise ModelError(
                f"the tokenizer of {type(model).__name__} could not be read {where}. Pass "
                "camtool.Loaded(model, transform, text=...) with a function from texts to embeddings (T, D), or "
                "camtool.targets.Similarity(embedding) in the place of the text."
            ) from error

    config = getattr(model, "config", None)
    longest = getattr(getattr(config, "text_config", config), "max_position_embeddings", None)
    filled_up = getattr(config, "model_type", None) in _TRAINED_ON_FILLED_UP_TEXTS

    def tokenize(texts: list[str]) -> dict[str, Tensor]:
        found = tokenizer()
        room = min(found.model_max_length, longest or found.model_max_length)
        padding = "max_length" if filled_up else True
        tokens = found(texts, padding=padding, truncation=True, max_length=room, return_tensors="pt")
        return {name: tokens[name] for name in tokens if name == "input_ids" or not filled_up}

    return tokenize


_TRAINED_ON_FILLED_UP_TEXTS = ("siglip", "siglip2")
"""These were trained on texts that are filled up to full length and have no mask, and pool at the last position."""


# ------------------------------------------------------------------------------------------------------ loading


def _transformers() -> ModuleType:
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ModelError(
            "models of Hugging Face need transformers to be installed: pip install 'camtool[hf]'."
        ) from error
    return transformers


def _source(name: str) -> str:
    """The folder or the name on the hub, as transformers takes it."""
    _transformers()
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return str(folder)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise ModelError(f"model 'hf:{name}': there is no such folder, and a name on the hub is 'org/name'.")
    return name


def _kind(source: str) -> tuple[Any, Any]:
    """The class that a model was saved from, and its configuration."""
    from transformers import AutoConfig

    with _told(source):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    names = config.architectures or []
    kind = next((getattr(_transformers(), name) for name in names if hasattr(_transformers(), name)), None)
    if kind is None:
        version = _transformers().__version__
        said = f"it is {add_article(' or '.join(names))}" if names else "it does not say"
        raise ModelError(
            f"model 'hf:{source}' is of no class of transformers {version} ({said}); load it yourself, and pass the "
            "model."
        )
    if getattr(kind, "main_input_name", None) != "pixel_values" and not has_two_towers(kind):
        raise ModelError(
            f"model 'hf:{source}' is {add_article(kind.__name__)}, which is called with {kind.main_input_name!r}, "
            "not with pictures."
        )
    return kind, config


def _trained(kind: Any, source: str) -> nn.Module:
    with _told(source):
        model, told = kind.from_pretrained(source, output_loading_info=True, trust_remote_code=False)
        missing = sorted({*told["missing_keys"], *(entry[0] for entry in told.get("mismatched_keys", ()))})
        if missing and _is_a_pooler(missing) and "add_pooling_layer" in signature(kind).parameters:
            model = kind.from_pretrained(source, add_pooling_layer=False, trust_remote_code=False)
            missing = []
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelError(
            f"model 'hf:{source}' has no weights for {shown} of its {kind.__name__}; these would be random, and so "
            "would be its maps."
        )
    whole: nn.Module = model.float()
    return whole


def _is_a_pooler(names: list[str]) -> bool:
    """Whether weights are those of a pooler alone, which self-supervised models, DINO say, are published without."""
    return all(name.startswith("pooler.") for name in names)


@contextmanager
def _told(source: str) -> Iterator[None]:
    """What transformers raises, as one sentence that says what to do."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if _needs_own_code(error):
            raise ModelError(
                f"model 'hf:{source}' needs Python code of its own, which camtool does not run. If you trust it, load "
                "it yourself with transformers, and pass the model."
            ) from error
        raise ModelError(
            f"model 'hf:{source}' could not be had: {_first_line(error)}. Without internet, give a folder that "
            "save_pretrained wrote: 'hf:FOLDER'."
        ) from error
    except ImportError as error:
        raise ModelError(f"model 'hf:{source}' needs more to be installed: {_first_line(error)}.") from error


def _needs_own_code(error: Exception) -> bool:
    """Return True if transformers wants to run code of a folder or of the hub."""
    return "trust_remote_code" in str(error)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].rstrip(".")
