"""Many passes in a row: how many at once, a model that is faster at it, and how long it will still take.

Methods that perturb ask a model thousands of times. What they ask is made chunk by chunk, so that memory does not grow
with the number of variants, and they ask a twin of the model: no graph, batch norms folded into convolutions, channels
last in memory.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_weights

from camtool.errors import MethodError
from camtool.guards import left_as_found
from camtool.hooks import Call, call, has_hooks_of_others, trace
from camtool.sealed import is_for_one_picture
from camtool.structures import Inputs, main_tensor, map_tensors, tensors_in

__all__ = ["Twin", "in_chunks", "largest_behind", "quiet", "room_for"]

_BUDGET = {"cpu": 96 * 2**20}
"""Kind of device → bytes that a chunk may take, by the estimates below."""

_BUDGET_ELSEWHERE = 2**30

_COPIES = 4
"""How many tensors as large as the largest are alive at once in a pass: what went in, what came out, two on the way."""

_SAME, _SAME_IN_TF32 = 1e-5, 5e-3
"""The most that a twin's output may differ, in units of the output's largest magnitude; the second where convolutions
are left to round their factors to ten bits, with which the model itself is no truer."""

_PATIENCE = 2.0  # seconds after which the user wants to see progress

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_SEARCH = Lock()
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

    At a terminal or in a notebook, a bar shows the progress and the remaining time of what takes more than two seconds.

    Raises:
        MethodError: ``size`` is below 1.
    """
    if size < 1:
        raise MethodError(f"chunk must be 1 or more, got {size}; leave it out to run as many at once as fit.")
    bar, began = None, time.monotonic()
    try:
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            yield part
            if bar is not None:
                bar.update(part.stop - part.start)
            elif time.monotonic() - began > _PATIENCE and not _is_quiet.get():
                # Not earlier: tqdm holds locks, on which a process that is forked from another thread would wait.
                bar = _tqdm()(total=count, initial=part.stop, unit="pass", disable=None, leave=False)
    finally:
        if bar is not None:
            bar.close()


@cache
def _tqdm() -> Any:
    """The bar that fits where we are; it is looked for once, as Python's way to hush a warning hushes all threads."""
    with _SEARCH, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a notebook in which tqdm cannot draw: then there is no bar, and no harm
        from tqdm.auto import tqdm
    return tqdm


def room_for(numbers: int, like: Tensor) -> int:
    """How many variants run at once if the largest tensor on the way has so many ``numbers`` for each; 1 or more.

    ``like`` tells the type of the numbers and the device they live on.
    """
    budget = _BUDGET.get(like.device.type, _BUDGET_ELSEWHERE)
    return max(1, budget // max(1, _COPIES * numbers * like.element_size()))


def largest_behind(calls: list[Call], layer: str, nth: int = -1) -> int:
    """How many numbers the largest tensor has that a module returns from a layer's nth call on."""
    places = [i for i, seen in enumerate(calls) if seen.name == layer] or [0]
    return max(map(_size, calls[places[nth] :]))


class Twin:
    """A model again, equal up to rounding and quicker at many passes in a row.

    Where a batch norm directly follows a convolution the two become one, in a copy of the model, which then works with
    channels last; what is the user's is not touched, nor kept alive. The copy is used only if it answers two pictures
    as the model does, to a hundred-thousandth. Where a model cannot be copied, or differs, the model itself is asked.

    Args:
        model: Any module.
        example: What it is called with for one image.
    """

    def __init__(self, model: nn.Module, example: Inputs) -> None:
        calls = trace(model, example)
        picture = main_tensor(example)
        largest = max(*map(_size, calls), 0 if picture is None else picture.numel())
        room = room_for(largest, torch.empty(0) if picture is None else picture)
        self.most_at_once: int = 1 if is_for_one_picture(model) else room
        self._model, self._layout = _quickest(model, example, calls)

    def __call__(self, inputs: Inputs) -> Any:
        """The model's output, made without a graph."""
        return _run(self._model, inputs, self._layout)


def _size(seen: Call) -> int:
    return 0 if seen.shape is None else torch.Size(seen.shape).numel()


def _run(model: nn.Module, inputs: Inputs, layout: torch.memory_format) -> Any:
    # Not in inference mode: what a model keeps of its own accord, a table of positions say, it could not train with.
    with torch.no_grad(), left_as_found(model):
        return call(model, map_tensors(inputs, lambda tensor: _laid_out(tensor, layout)))


def _laid_out(tensor: Tensor, layout: torch.memory_format) -> Tensor:
    """A tensor of pictures in that order in memory; others, and all where it is torch's own to choose, as they are."""
    return tensor.contiguous(memory_format=layout) if tensor.ndim == 4 and layout != _AS_IT_IS else tensor


_AS_IT_IS = torch.preserve_format


def _quickest(model: nn.Module, example: Inputs, calls: list[Call]) -> tuple[nn.Module, torch.memory_format]:
    """The quickest of a folded copy and the model itself that answers as the model does, and how it likes pictures."""
    pairs = list(_foldable(calls))
    twin = _copied(model)
    if twin is None:
        return model, _AS_IT_IS
    for convolution, norm in pairs:
        _fold(twin.get_submodule(convolution), twin.get_submodule(norm))
    picture = main_tensor(example)
    unlike = map_tensors(example, lambda tensor: -tensor.flip(-1) if tensor is picture else tensor)
    probes = [example, unlike]
    expected = [_run(model, probe, _AS_IT_IS) for probe in probes]
    for layout in (torch.channels_last, torch.contiguous_format) if pairs else (torch.channels_last,):
        for parameter in twin.parameters():
            parameter.data = _laid_out(parameter.data, layout)
        if all(_answers(twin, probe, layout, like) for probe, like in zip(probes, expected, strict=True)):
            return twin, layout
    return model, _AS_IT_IS


def _copied(model: nn.Module) -> nn.Module | None:
    """A copy in evaluation mode; ``None`` where what the model holds cannot be copied."""
    try:
        twin = copy.deepcopy(model)
    except (RuntimeError, TypeError, ValueError, AttributeError, copy.Error):
        return None
    for module in twin.modules():
        module.training = False
    return twin


def _foldable(calls: list[Call]) -> Iterator[tuple[str, str]]:
    """The names of convolutions, and of the batch norms that are each given just what the convolution returned."""
    runs = [seen.name for seen in calls]
    for before, seen in pairwise(calls):
        # Kinds of their own, weight-standardised or with an activation inside, do more than the arithmetic below.
        is_pair = type(before.module) in _CONVOLUTIONS and type(seen.module) in _NORMS and seen.follows
        is_used_once = runs.count(before.name) == runs.count(seen.name) == 1
        if is_pair and is_used_once and _is_plain(before.module) and _is_plain(seen.module):
            yield before.name, seen.name


def _is_plain(module: nn.Module) -> bool:
    """Whether nobody listens at the module, and whether it knows its statistics, in numbers precise enough to fold."""
    statistics = getattr(module, "running_mean", module.weight)
    is_wide = isinstance(statistics, Tensor) and statistics.dtype in (torch.float32, torch.float64)
    return is_wide and not has_hooks_of_others(module)


def _fold(convolution: Any, norm: Any) -> None:
    """Let the convolution do what the norm did as well, both in place: other modules may hold them by other names."""
    convolution.weight, convolution.bias = fuse_conv_bn_weights(
        convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    norm.__class__ = nn.Identity


def _answers(twin: nn.Module, inputs: Inputs, layout: torch.memory_format, expected: Any) -> bool:
    """Whether the twin's answer is the expected one up to rounding, in each of its tensors."""
    try:
        came = _with_values(_run(twin, inputs, layout))
    except Exception:  # noqa: BLE001  whatever the copy cannot do, the model itself is asked to do
        return False
    wanted = _with_values(expected)
    return len(came) == len(wanted) > 0 and all(map(_equal, came, wanted))


def _with_values(structure: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(structure) if tensor.numel()]


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not other.is_floating_point():
        return torch.equal(one, other)
    rounds = other.is_cuda and other.dtype == torch.float32 and torch.backends.cudnn.allow_tf32
    return bool((one - other).abs().amax() <= (_SAME_IN_TF32 if rounds else _SAME) * other.abs().amax())
