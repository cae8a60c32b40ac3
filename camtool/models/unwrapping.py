"""Unwrapping: from a wrapper, such as ``DataParallel`` or a compiled model, to the model inside."""

from __future__ import annotations

from torch import nn

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


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the model inside of any number of wrappers; the model itself if there is none.

    Wrappers are ``DataParallel``, ``DistributedDataParallel``, compiled models, averaged models, and models of PEFT.
    The adapters of PEFT are modules inside the model, so they stay active.
    """
    inner = _get_inner_model(model)
    return model if inner is model else unwrap_model(inner)


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


def _get_inner_model(model: nn.Module) -> nn.Module:
    """Return the model inside of one wrapper; the model itself if it is not a wrapper."""
    # Models of PEFT are of many classes, so the attributes they share are used.
    get_base_model = getattr(model, "get_base_model", None)
    if hasattr(model, "peft_config") and callable(get_base_model):
        inner = get_base_model()
    else:
        # With the base classes: a subclass of a wrapper is a wrapper.
        names = (f"{base.__module__}.{base.__qualname__}" for base in type(model).__mro__)
        attribute = next((_WRAPPERS[name] for name in names if name in _WRAPPERS), None)
        inner = model if attribute is None else getattr(model, attribute, model)
    return inner if isinstance(inner, nn.Module) else model
