"""Unwrapping: from what the user gave as a model, such as ``DataParallel`` or two towers, to what is explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from camtool.arguments.explain_arguments import get_module, is_function
from camtool.errors import ModelError
from camtool.models.functions import FunctionModel
from camtool.models.loaded import Loaded, TextEncoder
from camtool.models.sources import SOURCES
from camtool.models.two_towers import ENCODERS, TextTower, find_encoders, get_image_tower
from camtool.models.vision_language import get_vision_language_model, takes_image_and_text

_WRAPPERS = {
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    # What torch.compile returns.
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    # YOLO and RTDETR of Ultralytics: what they add is for training and for showing results.
    "ultralytics.engine.model.Model": "model",
    # Averaged weights: swa_utils.AveragedModel holds a copy of the model.
    "torch.optim.swa_utils.AveragedModel": "module",
}
"""Full name of a wrapper class → its attribute that holds the model.

These wrappers compute what the model computes: on several devices, in a compiled form, or with averaged weights. Names
instead of classes, so that nothing is imported for them. To see through a new wrapper, add it here.
"""


def to_loaded(model: nn.Module | Loaded | Callable[[Tensor], Any]) -> Loaded:
    """Return the part of a model that can be explained: without wrappers, and of two towers the one for images.

    Args:
        model: A model, a :class:`Loaded`, or a function from images to scores. It is not changed, and the caller must
            keep it alive.

    Raises:
        ModelError: It is not a model.
    """
    if not isinstance(model, nn.Module) and is_function(model):
        return Loaded(FunctionModel(model))
    module = get_module(model)
    loaded = model if isinstance(model, Loaded) else Loaded(module)
    if loaded.labels is not None and hasattr(loaded.labels, "iloc"):  # a series of pandas, of which [i] is not the i-th
        loaded = replace(loaded, labels=list(loaded.labels))
    inner = unwrap_model(module)
    if any(hasattr(inner, name) for name in ENCODERS) and find_encoders(inner):
        return replace(loaded, model=get_image_tower(inner), text=loaded.text or build_text_encoder(inner))
    if hasattr(inner, "config") and takes_image_and_text(inner):
        return replace(loaded, model=get_vision_language_model(inner))
    return loaded if inner is loaded.model else replace(loaded, model=inner)


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the model inside of any number of wrappers; the model itself if there is none.

    Wrappers are ``DataParallel``, ``DistributedDataParallel``, compiled models, averaged models, and models of PEFT.
    The adapters of PEFT are modules inside the model, so they stay active.
    """
    while True:
        # Models of PEFT are of many classes, so the attributes they share are used.
        get_base_model = getattr(model, "get_base_model", None)
        if hasattr(model, "peft_config") and callable(get_base_model):
            inner = get_base_model()
        else:
            # With the base classes: a subclass of a wrapper is a wrapper.
            names = (f"{base.__module__}.{base.__qualname__}" for base in type(model).__mro__)
            attribute = next((_WRAPPERS[name] for name in names if name in _WRAPPERS), None)
            inner = None if attribute is None else getattr(model, attribute, None)
        if inner is model or not isinstance(inner, nn.Module):
            return model
        model = inner


def unwrap_layer(wrapper: nn.Module, layer: str | nn.Module) -> str | nn.Module:
    """Return a layer in a form that the model inside of a wrapper knows.

    A name that leads through the wrapper, such as ``"module.layer4"``, becomes the module that it names.
    """
    if isinstance(layer, nn.Module) or wrapper is unwrap_model(wrapper):
        return layer
    try:
        return wrapper.get_submodule(layer)
    except AttributeError:
        # The name is one of the model inside, or unknown.
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
