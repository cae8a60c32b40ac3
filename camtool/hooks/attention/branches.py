"""Capture what follows each attention, up to the skip connection around it.

A block of a transformer adds the projected output of its attention to its input: ``x + project(attention(norm(x)))``.
:func:`capture_branches` runs a model once and keeps, for each attention, ``x`` and the operations of ``project``. So a
method can compute what the block would add if its attention returned something else.

The operations are found as the attention itself is, see :mod:`camtool.hooks.attention.capture`: a function mode follows
the attention's output from call to call, until it is added to another tensor of the same shape that depends on the
image. No names of modules are needed. What cannot be followed has no branch: a gate that multiplies the output with
something else, or a write into another tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from camtool.hooks.attention.capture import AttentionMode, CapturedAttention, run_in_mode
from camtool.hooks.structures.nested_tensors import ModelInputs, find_main_tensor, map_tensors
from camtool.hooks.structures.tensor_table import TensorTable
from camtool.hooks.tensor_products import iterate_tensors


@dataclass(frozen=True, eq=False)
class AttentionBranch:
    """The path from the output of one attention to the skip connection around it.

    Attributes:
        skip: The tokens that the skip connection carries past the attention, ``(N, T, C)`` or in the model's own order.
        project: A function from the output of an attention, ``(N, H, T, D)`` as :attr:`AttentionCall.output`, to what
            is added to ``skip``, of the same shape. It runs the model's own operations without a graph.
    """

    skip: Tensor
    project: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class CapturedBranches:
    """The result of :func:`capture_branches`.

    Attributes:
        attention: The output of the model and its attention, without a graph. A block here is the largest module with
            exactly one attention that returns ``skip``, plus the branch, plus other results of the block, e.g. that of
            an MLP. It is ``None`` if there is no such module, e.g. as the block ends with a norm.
        branches: For each call of attention its branch; ``None`` if it could not be followed to a skip connection.
    """

    attention: CapturedAttention
    branches: list[AttentionBranch | None]


def capture_branches(model: nn.Module, inputs: ModelInputs) -> CapturedBranches:
    """Run ``model`` once, in evaluation mode, and keep its attention with what follows up to the skip connections.

    Args:
        model: Any module. Its state is preserved.
        inputs: The inputs of the model.
    """
    mode, output = run_in_mode(_BranchMode, model, inputs)
    return CapturedBranches(CapturedAttention(output, mode.calls, mode.blocks), mode.branches)


# ------------------------------------------------------------------------------------------ the function mode

_ADDITIONS = frozenset({"add", "add_", "__add__", "__iadd__", "__radd__"})
_WRITES = frozenset({"__setitem__", "__iadd__", "__imul__", "__isub__", "__itruediv__"})


@dataclass(frozen=True)
class _Place:
    """A tensor on the path, in the recorded arguments of an operation: the index of its value in the replay."""

    index: int


class _Path:
    """The operations that follow the output of an attention. They can be run again on another output.

    Args:
        start: The output, in the shape in which the model gets it.
    """

    def __init__(self, start: Tensor) -> None:
        self._shape, self._dtype = start.shape, start.dtype
        self._operations: list[tuple[Callable[..., Any], Any, Any]] = []
        self._indices = TensorTable()
        self._count = 0
        self._add_values(start)

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self._indices

    def add_operation(self, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Add an operation if it returned tensors; what it said of shapes and types stays the same."""
        if any(True for _ in iterate_tensors(result)):
            replaced = map_tensors((args, kwargs), self._to_place)
            self._operations.append((function, *replaced))
            self._add_values(result)

    def end_at(self, tensor: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function that runs the operations on another output, and returns the value of a tensor."""
        operations, end = list(self._operations), int(self._indices[tensor])

        def project(output: Tensor) -> Tensor:
            values: list[Tensor] = [output.detach().to(self._dtype).reshape(self._shape).clone()]
            with torch.no_grad():
                for function, args, kwargs in operations:
                    given, named = _map_places((args, kwargs), values)
                    values.extend(iterate_tensors(function(*given, **named)))
            return values[end]

        return project

    def _add_values(self, result: Any) -> None:
        for tensor in iterate_tensors(result):
            self._indices[tensor] = self._count
            self._count += 1

    def _to_place(self, tensor: Tensor) -> Any:
        return _Place(self._indices[tensor]) if tensor in self._indices else tensor


class _BranchMode(AttentionMode):
    """A function mode that keeps every attention and follows its output.

    Attributes:
        branches: For each call its branch, or None.
    """

    def __init__(self, image: Tensor | None) -> None:
        super().__init__(image)
        self.branches: list[AttentionBranch | None] = []
        self._path: _Path | None = None
        # The sums of a skip connection and the results of the block around the latest attention.
        self._sums = TensorTable()

    def leave(self, name: str, module: nn.Module, output: Any) -> None:
        """Note that the call of a module ends. Keep its output if it is a sum around one attention."""
        block, tensor = self.blocks[-1] if self.blocks else None, find_main_tensor(output)
        super().leave(name, module, output)
        if self.blocks and (tensor is None or tensor not in self._sums):
            self.blocks[-1] = block

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = list(iterate_tensors((args, kwargs)))
        path, run = self._path, partial(super().__torch_function__, func, types, args, kwargs)
        if path is None or not any(tensor in path for tensor in given):
            is_sum = self._adds_to_sum(func, given, kwargs)
            return self._keep_sum(run()) if is_sum else run()
        others = [tensor for tensor in self._select_dependent(given) if tensor not in path]
        writes_beside = _writes(func) and given[0] not in path
        if not others and not writes_beside:
            result = run()
            path.add_operation(func, args, kwargs, result)
            return result
        self._path = None
        if len(others) == 1 and _adds_alike(func, given, kwargs):
            self._end_path(path, others[0], given)
            return self._keep_sum(run())
        return run()

    def _end_path(self, path: _Path, skipped: Tensor, given: Sequence[Tensor]) -> None:
        """Keep the path to the tensor that is added to tokens which skipped the attention."""
        (branch,) = (tensor for tensor in given if tensor is not skipped)
        # A clone, as the model may add to the tokens in place.
        self.branches[-1] = AttentionBranch(skipped.detach().clone(), path.end_at(branch))

    def _adds_to_sum(self, func: Any, given: Sequence[Tensor], kwargs: Any) -> bool:
        """Check that a call adds a tensor that depends on the image to a sum that is kept."""
        is_sum = _adds(func, kwargs) and sum(tensor in self._sums for tensor in given) == 1
        return is_sum and len(self._select_dependent(given)) == 2

    def _connect(self, matrix: Tensor) -> Tensor:
        """Return an attention matrix by head, without a graph."""
        return self._split_heads(matrix)

    def _keep_call(self, *args: Any) -> Tensor:
        output = super()._keep_call(*args)
        self.branches.append(None)
        self._path = _Path(output)
        self._sums = TensorTable()
        return output

    def _restore_output(self, restore: Callable[[Tensor], Tensor], kept: Tensor) -> Tensor:
        result = super()._restore_output(restore, kept)
        if self._path is not None:
            self._path.add_operation(restore, (kept,), {}, result)
        return result

    def _keep_sum(self, result: Tensor) -> Tensor:
        self._sums[result] = True
        return result

    def _select_dependent(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that depend on the image."""
        return [tensor for tensor in tensors if tensor in self._roles]


def _adds(function: Any, kwargs: Any) -> bool:
    """Return True for a sum of two tensors, without a factor."""
    return getattr(function, "__name__", "") in _ADDITIONS and not kwargs


def _adds_alike(function: Any, given: Sequence[Tensor], kwargs: Any) -> bool:
    """Return True for a sum of two tensors of one shape."""
    return _adds(function, kwargs) and len(given) == 2 and given[0].shape == given[1].shape


def _writes(function: Any) -> bool:
    """Return True for an operation that writes to its first argument."""
    name = getattr(function, "__name__", "")
    return name in _WRITES or (name.endswith("_") and not name.endswith("__"))


def _map_places(structure: Any, values: Sequence[Tensor]) -> Any:
    """Return recorded arguments with each place replaced by its value."""
    if isinstance(structure, _Place):
        return values[structure.index]
    if isinstance(structure, (tuple, list)):
        return type(structure)([_map_places(item, values) for item in structure])
    if isinstance(structure, dict):
        return {key: _map_places(item, values) for key, item in structure.items()}
    return structure
