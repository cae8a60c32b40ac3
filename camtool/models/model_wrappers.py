"""Wrappers of models: the model inside, and the prefixes that they leave in the names of its weights.

To see through a wrapper of another library, add a row to the table.
"""

from __future__ import annotations

from torch import nn

from camtool.models.sources.keras.model import KerasModel, get_keras_module

# Full name of a wrapper class → its attribute that holds the model inside. These wrappers compute what the model
# computes: on several devices, in a compiled form, or with averaged weights. Names instead of classes, so that nothing
# is imported for them.
_INNER_MODELS = {
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    # What torch.compile returns.
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    # YOLO and RTDETR of Ultralytics: what they add is for training and for showing results.
    "ultralytics.engine.model.Model": "model",
    # Averaged weights: swa_utils.AveragedModel holds a copy of the model.
    "torch.optim.swa_utils.AveragedModel": "module",
}

# Models and layers of Keras: inside of nothing, but their layers are modules that can be hooked in another one.
_KERAS = "keras.src.layers.layer.Layer"

# What stands before the names in a file of weights of a wrapped model. Lightning's prefix is "model.", too.
NAME_PREFIXES = {f"{attribute}." for attribute in _INNER_MODELS.values()}


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
            inner = next((_get_inner(model, name) for name in names if name == _KERAS or name in _INNER_MODELS), None)
        if inner is model or not isinstance(inner, nn.Module):
            return model
        model = inner


def _get_inner(model: nn.Module, wrapper: str) -> object:
    return get_keras_module(model) if wrapper == _KERAS else getattr(model, _INNER_MODELS[wrapper], None)


def unwrap_layer(wrapper: nn.Module, layer: str | nn.Module) -> str | nn.Module:
    """Return a layer in a form that the model inside of a wrapper knows.

    A name that leads through the wrapper, such as ``"module.layer4"``, becomes the module that it names.
    """
    inner = unwrap_model(wrapper)
    if isinstance(inner, KerasModel):
        return inner.find_layer(layer)
    if isinstance(layer, nn.Module) or wrapper is inner:
        return layer
    try:
        return wrapper.get_submodule(layer)
    except AttributeError:
        # The name is one of the model inside, or unknown.
        return layer
