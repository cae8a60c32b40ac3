"""Detect content-dependent geometry in a forward pass: crops, zooms, mirrors and branches that pixel values decide."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from camtool.hooks.private_torch import FunctionMode
from camtool.hooks.structures.nested_tensors import find_tensors

# Functions that give values of a tensor to Python, or as many results as the values say.
_READS = re.compile(
    "__(array|bool|contains|float|index|int)__|allclose|argwhere|equal|is_nonzero|item|masked_select|nonzero|numpy|"
    "tolist|unique|unique_consecutive"
)

# Functions whose second and further arguments say which positions of the first one they read or write.
_CHOICES = re.compile(
    "__(get|set)item__|deform_conv2d|gather|grid_sample(r|r_2d|r_3d)?|index_(add|copy|put_?|select)|narrow|"
    "(ps_)?roi_(align|pool)|repeat_interleave|roll|scatter(_add)?|select|take|take_along_dim|tensor_split"
)


# Operations of TorchScript that do this; there, it is unknown what their arguments depend on.
_SCRIPTED = [
    *("aten::Bool", "aten::Float", "aten::Int", "aten::gather", "aten::grid_sampler", "aten::index"),
    *("aten::index_select", "aten::item", "aten::masked_select", "aten::nonzero"),
]


def may_read_in_script(model: nn.Module) -> bool:
    """Return whether a part of a model in TorchScript, whose operations no mode sees, may read content."""
    scripts: list[Any] = [module for module in model.modules() if isinstance(module, torch.jit.ScriptModule)]
    return any(script.inlined_graph.findAllNodes(kind, recurse=True) for script in scripts for kind in _SCRIPTED)


def _list_parts(arguments: tuple[Any, ...]) -> list[Any]:
    """Return arguments, and the parts of an index such as ``x[..., top : top + 8]``."""
    return [part for argument in arguments for part in (argument if isinstance(argument, tuple) else (argument,))]


class ContentReads(FunctionMode):
    """Count, in the block, the operations by which the image's content chooses positions or a branch.

    What is elementwise, e.g. a ReLU or a mask of as many values as pixels, moves nothing and does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._reads_before = WeakTensorKeyDictionary()

    def come_before(self, output: Tensor) -> bool:
        """Return whether there were any before a tensor of the forward pass was computed."""
        return bool(self._reads_before.get(output, self._count))

    def __torch_function__(
        self, function: Callable[..., Any], _: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, and note whether it reads content."""
        result = function(*args, **(kwargs or {}))
        parts = [(part.start, part.stop) if isinstance(part, slice) else part for part in _list_parts(args[1:])]
        further = find_tensors([parts, kwargs])
        is_choice = any(map(self._depends_on_image, further))
        if is_choice or any(map(self._depends_on_image, find_tensors(args[:1]))):
            self._count += self._reads_content(function, args, result, is_choice=is_choice)
            for tensor in find_tensors(result):
                self._reads_before[tensor] = self._count
        return result

    def _reads_content(
        self, function: Callable[..., Any], args: tuple[Any, ...], result: Any, *, is_choice: bool
    ) -> bool:
        name = getattr(function, "__name__", "")
        if name == "where" and len(args) > 1 and isinstance(result, Tensor):  # one mask for many positions
            return self._depends_on_image(args[0]) and args[0].numel() < result.numel()
        return bool(_READS.fullmatch(name) or (is_choice and _CHOICES.fullmatch(name)))

    def _depends_on_image(self, tensor: Tensor) -> bool:
        """Return True for the image, for what Python computed from it, and for all of a graph."""
        is_of_graph = tensor.requires_grad and not isinstance(tensor, nn.Parameter)
        return is_of_graph or tensor in self._reads_before
