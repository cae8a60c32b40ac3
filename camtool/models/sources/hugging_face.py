"""Models of Hugging Face transformers, with their image processor, class names and tokenizer.

No code from a folder or from the hub is run.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import signature
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image
from torch import Tensor, nn

from camtool.arguments.libraries import import_library
from camtool.arguments.message_parts import add_article
from camtool.errors import Forgive, ModelError, raise_interrupt
from camtool.geometry.transform_output import Transform
from camtool.hooks.structures.caches import cached_property
from camtool.models.loaded import Loaded
from camtool.models.sources import source
from camtool.models.two_towers import TextTower, Tokenizer, find_encoders
from camtool.models.weights import load_state, read_state


class HuggingFaceSource(source.Source):
    """Models of transformers: a name on the hub, ``"hf:org/name"``, or a folder written by ``save_pretrained``.

    The configuration names the class of the model. It may classify, segment, detect, return embeddings, or compare
    images with texts.
    """

    prefix = "hf"
    usage = "'hf:NAME' or 'hf:FOLDER'"

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Load a model with its own weights, or with those of a file.

        Raises:
            ModelError: transformers is not installed, there is no such model, it does not take images, its weights
                cannot be read or do not fit, or it needs Python code of its own.
        """
        path = _check_path(name)
        model_class, config = _read_config(path)
        if weights is None:
            model = _load_pretrained(model_class, config, path)
        else:
            model = model_class(config)
            load_state(model, read_state(weights), weights)
        text = TextTower(model, _build_tokenizer(model, path)) if find_encoders(model) else None
        return Loaded(model, _read_transform(path), self.find_labels(model), text=text)

    def build_untrained(self, name: str) -> nn.Module:
        """Build a model with random weights; only its configuration is downloaded."""
        model_class, config = _read_config(_check_path(name))
        model: nn.Module = model_class(config)
        return model

    def find_transform(self, model: Any) -> Transform | None:
        """Return the image processor of a model that was loaded from a folder, or from the hub and is cached."""
        path = _find_path(model)
        return _read_transform(path, local_files_only=True) if path else None

    def find_labels(self, model: nn.Module) -> Sequence[str] | None:
        """Return the class names in a model's configuration; None if nobody has given any."""
        names = getattr(getattr(model, "config", None), "id2label", None)
        if not isinstance(names, Mapping) or not names:
            return None
        labels = [str(names.get(index, "")) for index in range(len(names))]
        return None if not all(labels) or all(map(_PLACEHOLDER_LABEL.fullmatch, labels)) else labels

    def find_input_size(self, model: nn.Module) -> tuple[int, int] | None:
        """Return the image size in a model's configuration, or in that of its image tower."""
        config = getattr(model, "config", None)
        size = getattr(getattr(config, "vision_config", config), "image_size", None)
        return source.to_height_and_width(size) if size else None

    def find_tokenizer(self, model: nn.Module) -> Tokenizer | None:
        """Return the tokenizer of a model that compares images with texts; it is read when the first text comes."""
        if not hasattr(model, "get_text_features"):
            return None
        return _build_tokenizer(model, getattr(model, "name_or_path", ""))

    def find_processor(self, model: Any) -> Any | None:
        """Return the processor of a model that was loaded from a folder, or from the hub and is cached."""
        path = _find_path(model)
        return _read_local("AutoProcessor", path) if path else None

    def decode_phrases(self, model: Any, phrases: Sequence[Sequence[int]]) -> Sequence[str] | None:
        """Return the texts of phrases if the tokenizer is in the model's folder, or from the hub and cached."""
        path = _find_path(model)
        tokenizer = _read_tokenizer(path) if path else None
        return None if tokenizer is None else [tokenizer.decode([*phrase]).strip() for phrase in phrases]


# What a model needs that camtool refuses, and what its user passes instead stands behind it.
_OWN_CODE = (
    "Python code of its own, which camtool does not run. If you trust it, load it yourself with transformers, and pass"
)

# Name that transformers gives to a class without a name.
_PLACEHOLDER_LABEL = re.compile(r"LABEL_\d+")


def _find_path(model: Any) -> str | None:
    """Return the folder or the name on the hub that a model of transformers, or of a subclass, was loaded from."""
    # Not type(model): for a weak proxy of a model that is the class of the proxy.
    is_known = any(base.__module__.startswith("transformers.") for base in model.__class__.__mro__)
    return model.name_or_path if is_known else None


# -------------------------------------------------------------------------------------------------- preprocessing


@dataclass(frozen=True)
class ProcessorTransform:
    """An image processor as a transform, from a PIL image to a tensor ``(C, H, W)``.

    Attributes:
        processor: The image processor.
    """

    processor: Any

    def __call__(self, photo: Image.Image) -> Tensor:
        """Return the processed image."""
        pixel_values: Tensor = self.processor(images=photo, return_tensors="pt")["pixel_values"][0]
        return pixel_values

    @property
    def mean(self) -> list[float]:
        """Mean that is subtracted from values in [0, 1], for each channel."""
        black, white = self._black_and_white
        return (-black / (white - black)).tolist()

    @property
    def std(self) -> list[float]:
        """Standard deviation that values in [0, 1] are then divided by, for each channel."""
        black, white = self._black_and_white
        return (1 / (white - black)).tolist()

    @cached_property
    def _black_and_white(self) -> tuple[Tensor, Tensor]:
        """Process black and white, and return the values of each, ``(C,)``.

        Processors have many options that scale values. Probing works for all of them.
        """
        black, white = (self(Image.new("RGB", (64, 64), color)).double() for color in ("black", "white"))
        # The border may be padding.
        center = (slice(None), black.shape[1] // 2, black.shape[2] // 2)
        return black[center], white[center]


def _read_transform(path: str, **options: Any) -> Transform | None:
    """Return the transform in a folder or on the hub; None if the model was saved without one."""
    from transformers import AutoImageProcessor

    read: Callable[..., Any] = AutoImageProcessor.from_pretrained
    try:
        with source.limit_silence():
            processor = read(path, trust_remote_code=False, **options)
    except ImportError as error:
        raise ModelError(f"model 'hf:{path}' needs another package: {source.get_first_line(error)}.") from None
    except (OSError, ValueError, KeyError) as error:
        raise_interrupt(error)
        if _needs_own_code(error):
            text = f"preprocesses images with {_OWN_CODE} camtool.Loaded(model, transform, labels)."
            raise ModelError(f"model 'hf:{path}' {text}") from error
        return None
    source.check_sides(path, _list_sides(processor))
    # The processor of a timm model contains timm's transform, whose geometry can be read exactly.
    timm_transform: Transform | None = getattr(processor, "val_transforms", None)
    return timm_transform or ProcessorTransform(processor)


# Settings of image processors with sides, or multiples of sides, that an image may be enlarged to.
_SIZES = (
    *("size", "crop_size", "pad_size", "mask_pad_size", "tile_size", "min_size", "max_size", "max_image_size"),
    *("size_divisor", "size_divisibility", "ensure_multiple_of", "image_grid_pinpoints", "min_pixels", "timm"),
    *("patch_size", "high_res_size", "max_patches"),
)


_PIXELS = {"min_pixels"}, {"max_pixels"}
# Settings with the smallest number of pixels, and with the largest one.
_PIXELS_OF_WHOLE_IMAGES = {"min_pixels", "shortest_edge"}, {"max_pixels", "longest_edge"}


def _list_sides(processor: Any) -> Iterator[float]:
    """Yield the sides in pixels that an image processor may enlarge any image to."""
    # A file may set any attribute, so the class tells what the settings mean.
    is_timm, merges_patches = type(processor).__name__.startswith("TimmWrapper"), hasattr(type(processor), "merge_size")
    settings = {**processor.to_dict(), "timm": processor.data_config if is_timm else None}
    crop = _read_crop(settings["timm"] or settings)
    patch = max((side for _, side in _list_numbers("", settings.get("patch_size"))), default=16)
    # Processors that merge patches state the pixels of whole images, of which the largest is a bound alone.
    least, most = _PIXELS_OF_WHOLE_IMAGES if merges_patches else _PIXELS
    for name in _SIZES:
        for kind, number in _list_numbers(name, settings.get(name)):
            if kind in least:
                yield max(0, number) ** 0.5
            elif kind == "max_patches":  # any image is enlarged to as many
                yield patch * max(0, number) ** 0.5
            elif kind not in most:
                yield number / crop


def _read_crop(settings: Mapping[str, Any]) -> float:
    """Return the share of an enlarged image that is cropped from its middle."""
    crop = settings.get("crop_pct")
    return min(1.0, crop) if isinstance(crop, float) and crop > 0 else 1.0


def _list_numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers in nested lists and dictionaries, each with the nearest name above it."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _list_numbers(key, entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _list_numbers(name, entry)
    elif isinstance(value, (int, float)):
        yield name, value


def read_processor(path: Path) -> Transform:
    """Return the transform in a file ``preprocessor_config.json``. No code is run, and nothing is downloaded.

    Raises:
        ModelError: transformers is not installed, the file is none of its, or it needs Python code of its own.
    """
    library = _import_transformers()
    with source.describe_errors(f"{path} cannot be read as an image processor"):  # a setting may be of any type
        transform = _read_transform(str(path.parent), local_files_only=True)
        if transform is not None:
            transform(Image.new("RGB", (320, 256)))
    if transform is None:
        raise ModelError(
            f"{path} cannot be read as an image processor of transformers {library.__version__}; state "
            "the preprocessing instead: --size, --mean and --std, or --transform."
        )
    return transform


# -------------------------------------------------------------------------------------------------------- texts


def _build_tokenizer(model: nn.Module, path: str) -> Tokenizer:
    """Return the tokenizer of a model; it is read when the first text comes.

    Args:
        model: A model that compares images with texts.
        path: The folder or the name on the hub that it was loaded from.
    """

    @cache
    def read() -> Any:
        from transformers import AutoTokenizer

        try:
            with source.limit_silence():
                return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        except (OSError, ValueError, TypeError, ImportError) as error:
            raise_interrupt(error)
            reason = f"from {path!r} ({source.get_first_line(error)})" if path else "because the model was not loaded"
            problem = f"the tokenizer of {type(model).__name__} could not be read {reason}."
            raise ModelError(f"{problem} {source.PASS_TEXT}") from None

    config = getattr(model, "config", None)
    longest = getattr(getattr(config, "text_config", config), "max_position_embeddings", None)
    needs_full_length = getattr(config, "model_type", None) in _TRAINED_AT_FULL_LENGTH

    def tokenize(texts: list[str]) -> dict[str, Tensor]:
        tokenizer = read()
        length = min(tokenizer.model_max_length, longest or tokenizer.model_max_length)
        padding = "max_length" if needs_full_length else True
        tokens = tokenizer(texts, padding=padding, truncation=True, max_length=length, return_tensors="pt")
        return {name: tokens[name] for name in tokens if name == "input_ids" or not needs_full_length}

    return tokenize


# Model types trained on texts padded to full length, without an attention mask. They pool at the last position, so a
# shorter padding would change the embedding.
_TRAINED_AT_FULL_LENGTH = ("siglip", "siglip2")


@cache
def _read_tokenizer(path: str) -> Any | None:
    """Return a tokenizer that is on this machine, read once; None if there is none."""
    return _read_local("AutoTokenizer", path)


def _read_local(kind: str, path: str) -> Any | None:
    """Return what a class of transformers reads on this machine; None if it is not there, or needs code of its own."""
    with Forgive(OSError, ValueError, KeyError, TypeError, ImportError):
        read = getattr(_import_transformers(), kind).from_pretrained
        return read(path, trust_remote_code=False, local_files_only=True)
    return None


# ------------------------------------------------------------------------------------------------------ loading


def _import_transformers() -> ModuleType:
    return import_library("transformers", "'hf:' models need transformers", "'camtool[hf]'", ModelError)


def _check_path(name: str) -> str:
    """Return the folder or the name on the hub, as transformers takes it."""
    _import_transformers()
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return str(folder)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise ModelError(f"model 'hf:{name}': there is no such folder, and a name on the hub is 'org/name'.")
    return name


def _read_config(path: str) -> tuple[Any, Any]:
    """Return the class that a model was saved from, and its configuration."""
    from transformers import AutoConfig

    with _translate_errors(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    # A file may ask for a kernel of the hub, whose code would be downloaded and run.
    config._attn_implementation = None
    transformers = _import_transformers()
    names = [str(name) for name in config.architectures or ()]
    kinds = [getattr(transformers, name, None) for name in names]
    base = transformers.PreTrainedModel
    model_class: Any = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, base)), None)
    if model_class is None:
        why = f"it is {add_article(' or '.join(names))}" if names else "its configuration names none"
        raise ModelError(
            f"model 'hf:{path}' is of no class of transformers {transformers.__version__} ({why}); load it yourself, "
            "and pass the model."
        )
    if not _takes_images(model_class):
        raise ModelError(
            f"model 'hf:{path}' is {add_article(model_class.__name__)}, which takes {model_class.main_input_name!r}, "
            "not images."
        )
    return model_class, config


def _takes_images(model_class: Any) -> bool:
    """Return True if models of a class take images, alone or with a text that they continue."""
    if getattr(model_class, "main_input_name", None) == "pixel_values" or find_encoders(model_class):
        return True
    return {"pixel_values", "input_ids"} <= signature(model_class.forward).parameters.keys()


def _load_pretrained(model_class: Any, config: Any, path: str) -> nn.Module:
    """Load a model with its weights, and check that none of them is missing."""
    with _translate_errors(path):
        options = {"config": config, "trust_remote_code": False}
        model, info = model_class.from_pretrained(path, output_loading_info=True, **options)
        missing = sorted({*info["missing_keys"], *(entry[0] for entry in info.get("mismatched_keys", ()))})
        # Self-supervised models such as DINO are published without the weights of the pooler.
        is_pooler = bool(missing) and all(name.startswith("pooler.") for name in missing)
        if is_pooler and "add_pooling_layer" in signature(model_class).parameters:
            model = model_class.from_pretrained(path, add_pooling_layer=False, **options)
            missing = []
    if missing:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelError(
            f"model 'hf:{path}' has no weights for {names} of its {model_class.__name__}; they would be random, and "
            "maps would be meaningless."
        )
    # Published weights may be in half precision.
    whole: nn.Module = model.float()
    return whole


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    """Raise errors of transformers as a ModelError that says what to do."""
    from safetensors import SafetensorError

    try:
        with source.limit_silence():
            yield
    except pickle.UnpicklingError:
        raise ModelError(
            f"model 'hf:{path}' has its weights in a pickle, pytorch_model.bin, which is damaged or holds more than "
            "tensors. Reading it could run any code, so it is refused. Convert it to .safetensors; if you trust it, "
            "load it yourself with transformers, and pass the model."
        ) from None
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise_interrupt(error)
        if _needs_own_code(error):
            raise ModelError(f"model 'hf:{path}' needs {_OWN_CODE} the model.") from None
        raise ModelError(
            f"model 'hf:{path}' could not be loaded: {source.get_first_line(error)}. Without internet, give a folder "
            "that save_pretrained wrote: 'hf:FOLDER'."
        ) from None
    except ImportError as error:
        raise ModelError(f"model 'hf:{path}' needs another package: {source.get_first_line(error)}.") from None


def _needs_own_code(error: Exception) -> bool:
    """Return True if transformers wants to run code from a folder or from the hub."""
    return "trust_remote_code" in str(error)
