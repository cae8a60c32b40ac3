"""Loading a model by name, and turning what the user passed into a model that can be explained.

The user may pass a ``DataParallel``, or a model with a tower for images and one for texts.
"""

from __future__ import annotations

import logging
import mimetypes
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from camtool.arguments.checks import check_not_url, parse_device
from camtool.arguments.explain_arguments import check_settings, get_module, is_function, read_by_position
from camtool.arguments.label_files import read_labels
from camtool.arguments.message_parts import suggest_names
from camtool.errors import ModelError
from camtool.geometry.transform_output import Transform
from camtool.hooks.structures.modules import describe_unhookable
from camtool.models.function_models import CallKeywords, FunctionModel
from camtool.models.loaded import Loaded, TextEncoder
from camtool.models.model_wrappers import INNER_MODELS
from camtool.models.preprocessing import StatedPreprocessing, check_fits_model, read_transform_beside
from camtool.models.sources import FACTORY, MODEL_FILES, SOURCES, Source
from camtool.models.sources.keras.model import KerasModel, check_backend, get_keras_module, is_keras
from camtool.models.sources.python_factory import FactorySource
from camtool.models.sources.source import describe_errors
from camtool.models.two_towers import ENCODERS, ImageTower, TextTower, find_encoders
from camtool.models.vision_language import VisionLanguageModel, takes_image_and_text
from camtool.models.weights import FILE_KINDS, WeightsWarning, find_file_kind


def to_loaded(model: nn.Module | Loaded | Callable[[Tensor], Any]) -> Loaded:
    """Return the part of a model that can be explained: without wrappers, and of two towers the one for images.

    Args:
        model: A model, a :class:`Loaded`, or a function from images to scores. It is not changed, and the caller must
            keep it alive.

    Raises:
        ModelError: It is not a model.
    """
    if not isinstance(model, nn.Module) and is_function(model):
        check_backend(model)
        return Loaded(FunctionModel(model))
    module = get_module(model)
    loaded = model if isinstance(model, Loaded) else Loaded(module)
    labels = read_by_position(loaded.labels)
    if labels is not loaded.labels:
        loaded = replace(loaded, labels=labels)
    inner = unwrap_model(module)
    if any(hasattr(inner, name) for name in ENCODERS) and find_encoders(inner):
        return replace(loaded, model=ImageTower.of(inner), text=loaded.text or build_text_encoder(inner))
    if hasattr(inner, "config") and takes_image_and_text(inner):
        return replace(loaded, model=VisionLanguageModel.of(inner))
    return loaded if inner is loaded.model else replace(loaded, model=inner)


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the model inside of any number of wrappers; the model itself if there is none.

    Wrappers are ``DataParallel``, ``DistributedDataParallel``, compiled models, averaged models, and models of PEFT.
    The adapters of PEFT are modules inside the model, so they stay active. For a Keras model that with its layers as
    modules is returned.

    Raises:
        ModelError: A Keras model has no weights yet, or is quantized.
    """
    while True:
        # Models of PEFT are of many classes, so the attributes they share are used.
        get_base_model = getattr(model, "get_base_model", None)
        if hasattr(model, "peft_config") and callable(get_base_model):
            inner = get_base_model()
        else:
            # With the base classes: a subclass of a wrapper is a wrapper.
            names = (f"{base.__module__}.{base.__qualname__}" for base in type(model).__mro__)
            inner = next((_get_inner(model, INNER_MODELS[name]) for name in names if name in INNER_MODELS), None)
        if inner is model or not isinstance(inner, nn.Module):
            return model
        model = inner


def _get_inner(model: nn.Module, attribute: str) -> object:
    return getattr(model, attribute, None) if attribute else get_keras_module(model)


def unwrap_layer(wrapper: nn.Module, layer: str | nn.Module) -> str | nn.Module:
    """Return a layer in a form that the model inside of a wrapper knows.

    A name that leads through the wrapper, such as ``"module.layer4"``, becomes the module that it names.
    """
    inner = unwrap_model(wrapper)
    if isinstance(inner, KerasModel):
        return inner.find_layer(layer)
    if isinstance(layer, nn.Module) or wrapper is inner:
        return layer
    with suppress(AttributeError):  # the name is one of the model inside, or unknown
        return wrapper.get_submodule(layer)
    return layer


def build_text_encoder(whole: nn.Module) -> TextEncoder:
    """Return the text tower of a model of two towers, with the tokenizer that its source knows.

    Raises:
        ModelError: None is known.
    """
    tokenizers = (source.find_tokenizer(whole) for source in SOURCES)
    tokenizer = next((candidate for candidate in tokenizers if candidate is not None), None)
    if tokenizer is None:
        raise ModelError(f"no tokenizer is known for {type(whole).__name__}; pass camtool.Loaded(model, text=...).")
    return TextTower(whole, tokenizer)


def load(
    name: str | PathLike[str] | Callable[[Tensor], Any],
    weights: str | PathLike[str] | None = None,
    *,
    labels: Sequence[str] | PathLike[str] | None = None,
    device: torch.device | str | None = None,
    transform: Transform | None = None,
    **calls: Unpack[CallKeywords],
) -> Loaded:
    """Load a model by name, with its preprocessing and its class names.

    Args:
        name: One of

            * a torchvision model: ``"resnet50"`` or ``"torchvision:resnet50"``;
            * a timm model, with or without a tag: ``"timm:convnext_tiny"``, ``"timm:resnet50.a1_in1k"``;
            * a Hugging Face model, by its name on the hub or by a folder: ``"hf:org/name"``, ``"hf:/a/folder"``,
              ``Path("/a/folder")``;
            * an open_clip model and a tag of weights: ``"open_clip:ViT-B-32/openai"``;
            * a file of Ultralytics, e.g. ``"ultralytics:yolo11n.pt"``; one that exists without the prefix, too;
            * a bundled model: ``"demo"``, ``"demo-cheat"``;
            * ``"package.module:factory"``: a function without arguments that returns a model, a pair of a model and its
              transform, or a :class:`Loaded`;
            * a file of another runtime: ``"model.onnx"``, ``"model.xml"`` of OpenVINO or ``"model.tflite"``;
            * a file of Keras, ``"model.keras"``, or a Keras model where ``KERAS_BACKEND=torch``;
            * a function from images ``(N, C, H, W)`` to scores ``(N, K)``, e.g. one that asks a service.

        weights: A ``.safetensors``, ``.pt`` or ``.pth`` file with the model's state. By default the usual pretrained
            weights are downloaded; a factory brings its own. A ``preprocessor_config.json`` of Hugging Face or a
            ``config.json`` of timm beside the file decides the preprocessing, unless a factory does.
        labels: The class names, if they are not those of the weights; or a file with them, as ``--labels`` takes it.
        device: The device that the model is moved to.
        transform: The preprocessing, if it is another than that of the weights.
        **calls: How a function or a file is called. ``batch``: the most images at once, by default 32. For a function
            ``limit``, the most images that it is asked about, and ``cache=False``, not to keep its answers. For a file
            ``layout``, ``"NCHW"`` or ``"NHWC"``, and ``output``, the name of the scores, where it does not say them;
            ``gradients=True`` converts an ONNX file to a module of torch, if that gives the same scores.

    Returns:
        The model in evaluation mode.

    Raises:
        ModelError: The name is unknown, the weights cannot be downloaded or read, they or the preprocessing beside them
            do not fit the model, or a library is missing.
    """
    name = _name_path(name) if isinstance(name, PathLike) else name
    _check_calls(name, calls)
    labels = read_labels(labels) if isinstance(labels, (str, PathLike)) else labels
    check_settings(transform, labels, 1, None, None)
    names = None if labels is None else list(labels)
    if not isinstance(name, str):
        return _wrap_model(name, transform, names, calls)
    _check_weights(weights)
    where = None if device is None else parse_device(device)
    source, rest = _find_source(name)
    if name == rest and source.prefix == "ultralytics":
        warnings.warn(f"model {name!r} is a file of Ultralytics, ultralytics:{name}.", WeightsWarning, stacklevel=2)
    with _silence_retries():
        loaded = source.load(rest, weights, **calls) if source is MODEL_FILES else source.load(rest, weights)
    loaded = loaded if names is None else replace(loaded, labels=names)
    loaded = replace(loaded, model=_move(_set_evaluation_mode(loaded.model), where), name=name)
    return _wrap_towers(_set_transform(loaded, transform, weights, source))


def _wrap_model(model: Any, transform: Transform | None, names: list[str] | None, calls: Mapping[str, Any]) -> Loaded:
    """Return a Keras model or a function as a model.

    Raises:
        ModelError: It is neither, or a Keras model on another backend than torch.
    """
    if isinstance(model, nn.Module) and is_keras(model):
        return Loaded(KerasModel(model), transform or MODEL_FILES.find_transform(model), names)
    if not is_function(model):
        kind = type(model).__name__
        raise ModelError(f"name: a model is loaded by its name, a string, or is a function; got {kind}.")
    check_backend(model)
    return Loaded(FunctionModel(model, **calls), transform, names)


def _name_path(path: PathLike[str]) -> str:
    # No folder but one of Hugging Face is a model.
    return f"hf:{os.fspath(path)}" if Path(path).is_dir() else os.fspath(path)


def _check_weights(weights: object) -> None:
    if weights is not None and not isinstance(weights, (str, os.PathLike)):
        raise ModelError(f"weights: a file of weights is given by its path; {type(weights).__name__} came.")


def _check_calls(name: str | Callable[[Tensor], Any], calls: Mapping[str, Any]) -> None:
    """Check that the keywords of calls fit a function, a file of another runtime, or another model."""
    of_files = ("batch", "layout", "output", "gradients")
    has_runtime = MODEL_FILES.is_file(str(name)) and PurePath(str(name)).suffix.lower() != ".keras"
    options = ("limit", "batch", "cache") if is_function(name) else of_files if has_runtime else ()
    for keyword in calls:
        if keyword not in options:
            listed = f"has {', '.join(options)}" if options else "is loaded without any"
            raise ModelError(
                f"{keyword}= is no setting of model {name!r}, which {listed}; limit=, batch= and cache= are for "
                "functions, batch=, layout=, output= and gradients= for files of other runtimes."
            )


@contextmanager
def _silence_retries() -> Iterator[None]:
    """Hide in the block that the client of the Hugging Face hub tries again; if all fails, an error says so."""
    log = logging.getLogger("huggingface_hub")
    with ExitStack() as undo:
        undo.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)
        yield


def _wrap_towers(loaded: Loaded) -> Loaded:
    """Return a model of images and texts as one of images, with its encoder of texts; others as they are."""
    if find_encoders(loaded.model) is None:
        return loaded
    return replace(loaded, model=ImageTower(loaded.model), text=loaded.text or build_text_encoder(loaded.model))


def _set_transform(
    loaded: Loaded, transform: Transform | None, weights: str | PathLike[str] | None, source: Source
) -> Loaded:
    """Return a model with the preprocessing that was given, that of its factory, or else that beside its weights."""
    if transform is not None:
        return replace(loaded, transform=transform)
    has_own = isinstance(source, FactorySource) and loaded.transform is not None
    pair = None if weights is None or has_own else read_transform_beside(weights)
    if pair is None:
        return loaded
    transform, path = pair
    check_fits_model(loaded.model, transform, str(path))
    return replace(loaded, transform=transform, transform_file=path)


def load_with_preprocessing(
    name: str, weights: str | None, *, labels: Sequence[str] | None, device: str, preprocessing: StatedPreprocessing
) -> Loaded:
    """Load a model as :func:`camtool.load`, with the preprocessing that the user stated.

    Raises:
        CamtoolError: The model or its weights are not available, or the preprocessing does not fit the model.
    """
    loaded = load(name, weights, labels=labels, device=device, transform=preprocessing.build_alone())
    return preprocessing.complete(loaded)


def build_untrained(name: str) -> nn.Module:
    """Build a model with random weights, to inspect its structure.

    A bundled model, and a factory's, has its own weights. Nothing is downloaded, except for the configuration of a
    model on the hub of Hugging Face.

    Raises:
        ModelError: The name is unknown, or a library is missing.
    """
    source, rest = _find_source(name)
    model = _set_evaluation_mode(source.build_untrained(rest))
    for module in () if source.has_own_weights else model.modules():
        # Vision transformers start with a head of zeros, which no gradient passes. Any other numbers will do.
        if isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight)
    return ImageTower(model) if find_encoders(model) else model


def is_model_name(name: str) -> bool:
    """Return True if a name has the prefix of a source, or is that of a torchvision or bundled model, or of a file."""
    return _has_known_prefix(name) or MODEL_FILES.is_file(name) or name in _list_plain_names()


def _move(model: nn.Module, device: torch.device | None) -> nn.Module:
    faults = (RuntimeError, AssertionError, NotImplementedError)  # torch is built without it, or has no driver
    with describe_errors(f"device={str(device)!r} is not available", *faults):
        return model.to(device)


def may_run_code(name: str) -> bool:
    """Return True if loading this name runs Python code of the user's, or code that a file may contain."""
    source, rest = _find_source(name)
    return source.runs_code(rest)


def is_offline(name: str, weights: str | None) -> bool:
    """Return True if loading this name certainly opens no connection, and runs no code but that of libraries."""
    source, rest = _find_source(name)
    return source.is_offline(rest, weights)


def _set_evaluation_mode(model: nn.Module) -> nn.Module:
    # TorchScript models and exported programs may have no such mode; graphs of torch.export raise an error.
    return model if describe_unhookable(model) else model.eval()


# ------------------------------------------------------------------------------------------------------- by name


def _find_source(name: str) -> tuple[Source, str]:
    """Return the source of a name, and the name without the prefix.

    Raises:
        ModelError: No source knows the name.
    """
    if MODEL_FILES.is_file(name):
        check_not_url("model", name, ModelError)
        return MODEL_FILES, name
    first, colon, rest = name.partition(":")
    has_prefix = bool(colon) and _has_known_prefix(name)
    plain = rest if has_prefix else name
    check_not_url("model", plain, ModelError)
    known_source = _find_known_source(first if has_prefix else None, plain)
    if known_source is not None:
        return known_source, plain
    if colon and not has_prefix:
        return FACTORY, name
    if PurePath(plain).suffix.lower() in (".safetensors", ".pt", ".pth"):
        return _find_source_of_file(plain, name), plain
    hint = _describe_file_hint(plain) or suggest_names(plain, _list_plain_names())
    *usages, last = (source.usage for source in SOURCES)
    raise ModelError(f"model {name!r} is unknown.{hint} Give {', '.join(usages)}, or {last}.")


def _find_known_source(prefix: str | None, name: str) -> Source | None:
    """Return the first source that lists a name; of a prefix, one that cannot list its names will do."""
    for source in SOURCES:
        if prefix not in (None, source.prefix):
            continue
        names = source.list_names()
        if name in names or (prefix is not None and not names):
            return source
    return None


def _find_source_of_file(path: str, name: str) -> Source:
    """Return the source that reads a file of torch.

    Raises:
        ModelError: None does: it holds weights alone, or what needs code.
    """
    kind = find_file_kind(Path(path))
    if kind == "ultralytics":
        return next(source for source in SOURCES if source.prefix == kind)
    raise ModelError(f"model {name!r} {FILE_KINDS[kind]}.")


def _has_known_prefix(name: str) -> bool:
    return name.partition(":")[0] in {source.prefix for source in SOURCES}


def _list_plain_names() -> list[str]:
    """List the names that need no prefix."""
    return [name for source in SOURCES for name in source.list_names()]


def _describe_file_hint(name: str) -> str:
    """Return a hint for a file that was given as the name of a model; nothing if it does not look like a file."""
    if Path(name).is_dir():
        return " It is a folder: put hf: before it if save_pretrained of Hugging Face wrote it."
    is_image = str(mimetypes.guess_type(name)[0]).startswith("image/")
    if is_image or PurePath(name).name != name:
        return " It looks like a photo or a path: give the name of a model here, and photos as the image to explain."
    return ""
