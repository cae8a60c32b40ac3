"""Many passes in a row: how many at once, a model that is faster at it, and how long it will still take.

Methods that perturb ask a model thousands of times. What they ask is made chunk by chunk, so that memory does not grow
with the number of variants, and they ask a twin of the model: no hooks, no graph, batch norms folded into convolutions,
channels last in memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from camtool.hooks import Call, Inputs, call, left_as_found, main_tensor, map_tensors, trace

__all__ = ["Twin", "in_chunks", "quiet", "room_for"]

_BUDGET = {"cpu": 192 * 2**20}
"""Kind of device → bytes that a chunk may take, by the estimates below."""

_BUDGET_ELSEWHERE = 2**30

_COPIES = 4
"""How many tensors as large as the largest are alive at once in a pass: what went in, what came out, two on the way."""

_SAME = 1e-5
"""The most that a twin's output may differ, in units of the output's largest magnitude."""

_PATIENCE = 2.0  # seconds after which a person wants to know

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bar within the block: for those who show progress of their own."""
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def in_chunks(count: int, size: int) -> Iterator[slice]:
    """The slices of ``range(count)`` that are at most ``size`` long.

    Where a person is looking, which is to say at a terminal or a notebook, and it takes more than two seconds, a bar
    shows how far it is and how long it will still take.
    """
    from tqdm.auto import tqdm

    hidden = True if _is_quiet.get() else None  # None hides it where no terminal is
    with tqdm(total=count, unit="pass", disable=hidden, delay=_PATIENCE, leave=False) as bar:
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            yield part
            bar.update(part.stop - part.start)


def room_for(numbers: int, like: Tensor) -> int:
    """How many variants run at once if the largest tensor on the way has so many ``numbers`` for each; 1 or more.

    ``like`` tells the type of the numbers and the device they live on.
    """
    budget = _BUDGET.get(like.device.type, _BUDGET_ELSEWHERE)
    return max(1, budget // max(1, _COPIES * numbers * like.element_size()))


class Twin:
    """A model again, equal up to rounding and quicker at many passes in a row.

    Where a batch norm directly follows a convolution the two become one, in a copy of the model; what is the user's is
    not touched. The copy is used only if its output is the model's own to a hundred-thousandth. Where a model cannot be
    copied, or differs, the model itself is asked.

    Args:
        model: Any module.
        example: What it is called with for one image.
    """

    def __init__(self, model: nn.Module, example: Inputs) -> None:
        calls = trace(model, example)
        self._model = _folded(model, example, calls) or model
        self._is_copy = self._model is not model
        picture = main_tensor(example)
        like = torch.empty(0) if picture is None else picture
        self.most_at_once: int = room_for(max(map(_size, calls)), like)

    def __call__(self, inputs: Inputs) -> Any:
        """The model's output, made without a graph."""
        with torch.inference_mode():
            if not self._is_copy:
                with left_as_found(self._model):
                    return call(self._model, inputs)
            return call(self._model, map_tensors(inputs, _channels_last))


def _size(seen: Call) -> int:
    return 0 if seen.shape is None else torch.Size(seen.shape).numel()


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _folded(model: nn.Module, example: Inputs, calls: list[Call]) -> nn.Module | None:
    """A copy in evaluation mode with batch norms folded; ``None`` if there can be none that is equal."""
    try:
        twin = copy.deepcopy(model)
    except (RuntimeError, TypeError, NotImplementedError):  # what a model holds decides whether it can be copied
        return None
    for module in twin.modules():
        module.training = False
    for convolution, norm in _foldable(calls):
        one: Any = twin.get_submodule(convolution)
        other: Any = twin.get_submodule(norm)
        twin.set_submodule(convolution, fuse_conv_bn_eval(one, other))
        twin.set_submodule(norm, nn.Identity())
    twin.to(memory_format=torch.channels_last)
    with torch.inference_mode(), left_as_found(model):
        expected, came = main_tensor(call(model, example)), main_tensor(call(twin, example))
    return twin if expected is not None and came is not None and _equal(came, expected) else None


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().amax() <= _SAME * other.abs().amax())


def _foldable(calls: list[Call]) -> Iterator[tuple[str, str]]:
    """The names of convolutions, and of the batch norms that are each given just what the convolution returned."""
    runs = [seen.name for seen in calls]
    for before, seen in pairwise(calls):
        is_pair = isinstance(before.module, _CONVOLUTIONS) and isinstance(seen.module, _NORMS) and seen.follows
        if is_pair and seen.module.track_running_stats and runs.count(before.name) == runs.count(seen.name) == 1:
            yield before.name, seen.name
