"""Wrappers: what stands around a model to train or to run it, and is looked through."""

from __future__ import annotations

from torch import nn

__all__ = ["layer_inside", "unwrapped_model"]

_WRAPPERS = {
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",  # what torch.compile returns
    "torch.optim.swa_utils.AveragedModel": "module",
}
"""Wrapper → its attribute that is the model. They only hand on what they are given: to devices, to a compiled form."""


def unwrapped_model(model: nn.Module) -> nn.Module:
    """The model inside of any number of wrappers; the model itself where there is none.

    Looked through are ``DataParallel``, ``DistributedDataParallel``, what ``torch.compile`` returns, torch's averaged
    models, and models of PEFT, whose adapters lie within the model and so stay in force.
    """
    inner = _inside(model)
    return model if inner is model else unwrapped_model(inner)


def layer_inside(wrapper: nn.Module, layer: str | nn.Module) -> str | nn.Module:
    """A layer as the model inside of a wrapper knows it: a name that leads through the wrapper becomes its module."""
    if isinstance(layer, nn.Module) or wrapper is unwrapped_model(wrapper):
        return layer
    try:
        return wrapper.get_submodule(layer)
    except AttributeError:  # it is a name of the model's own, or of none
        return layer


def _inside(model: nn.Module) -> nn.Module:
    base = getattr(model, "get_base_model", None)
    if hasattr(model, "peft_config") and callable(base):
        inner = base()
    else:
        names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__)
        inner = getattr(model, next((_WRAPPERS[name] for name in names if name in _WRAPPERS), ""), model)
    return inner if isinstance(inner, nn.Module) else model
