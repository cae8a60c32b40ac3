"""Folded models: a copy of a model that gives the same output faster, for thousands of forward passes.

The copy has its batch norms folded into convolutions and works in channels-last memory format. It is used only if it
gives the same output as the model.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_weights

from camtool.errors import raise_interrupt
from camtool.hooks.chunks import compute_chunk_size, count_largest_output
from camtool.hooks.model_passes import run_model
from camtool.hooks.registration import list_foreign_hooks
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.modules import is_exported_for_one_image, lacks_gradients, list_weights
from camtool.hooks.structures.nested_tensors import ModelInputs, find_main_tensor, find_tensors, map_tensors
from camtool.hooks.tracing import TracedCall, trace

# The largest difference between the outputs of copy and model, relative to the largest magnitude of the output. The
# first leaves room for rounding in single precision alone. TF32 convolutions round their factors to 10 bits, so there
# the model itself is no more exact than the second.
_TOLERANCE_IN_FLOAT32 = 1e-5
_TOLERANCE_IN_TF32 = 5e-3

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class FoldedModel:
    """A model for many forward passes in a row: equal up to rounding, and faster.

    Each batch norm that directly follows a convolution is folded into it, in a copy of the model. The user's model is
    neither changed nor kept alive. The copy is used only if it gives the model's output on two inputs. If the model
    cannot be copied, or the outputs differ, the model itself runs.

    Args:
        model: Any module.
        example: Its inputs for one image.

    Attributes:
        chunk_size: How many images fit into memory at once.
    """

    def __init__(self, model: nn.Module, example: ModelInputs) -> None:
        calls = trace(model, example)
        image = find_main_tensor(example)
        largest = max(count_largest_output(calls), 0 if image is None else image.numel())
        fitting = compute_chunk_size(largest, torch.empty(0, device="cpu") if image is None else image)
        self.chunk_size: int = 1 if is_exported_for_one_image(model) else fitting
        self._model, self._memory_format = choose_copy(model, example, calls)

    def __call__(self, inputs: ModelInputs) -> Any:
        """Return the model's output, without a graph."""
        return _run(self._model, inputs, self._memory_format)


def _run(model: nn.Module, inputs: ModelInputs, memory_format: torch.memory_format) -> Any:
    # Not in inference mode: a model that caches tensors, e.g. a table of positions, could not train with them later.
    with torch.no_grad(), guard(model):
        return run_model(model, map_tensors(inputs, lambda tensor: to_memory_format(tensor, memory_format)))


def to_memory_format(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Return a tensor of images ``(N, C, H, W)`` in a memory format; others stay unchanged."""
    # torch.channels_last is defined for 4 dimensions alone.
    is_changed = tensor.ndim == 4 and memory_format != torch.preserve_format
    return tensor.contiguous(memory_format=memory_format) if is_changed else tensor


def choose_copy(
    model: nn.Module,
    example: ModelInputs,
    calls: list[TracedCall],
    *,
    kept: Collection[str] = (),
    formats: Sequence[torch.memory_format] = (torch.channels_last, torch.contiguous_format),
) -> tuple[nn.Module, torch.memory_format]:
    """Return a folded copy of the model and its memory format, or the model if no copy gives the same output.

    Quantized models are not copied: another memory format rounds differently, and a difference of rounding may become a
    whole step of the quantization. Two probes do not show it.

    Args:
        model: Any module.
        example: Its inputs for one image.
        calls: What :func:`camtool.hooks.tracing.trace` returned for them.
        kept: Names of convolutions whose own output must stay, so no norm is folded into them.
        formats: The memory formats to try.
    """
    foldable = [pair for pair in _find_foldable(calls) if pair[0] not in kept]
    folded = _copy_model(model)
    if folded is None:
        return model, torch.preserve_format
    for convolution, norm in foldable:
        _fold(folded.get_submodule(convolution), folded.get_submodule(norm))
    # With one input alone, a path that the model takes for another kind of input would not show.
    image = find_main_tensor(example)
    probes = [example, map_tensors(example, lambda tensor: -tensor.flip(-1) if tensor is image else tensor)]
    expected = [_run(model, probe, torch.preserve_format) for probe in probes]
    # Some models fail in channels-last format, e.g. those that call view() on a feature map. In contiguous format only
    # a copy with folded norms is faster than the model.
    useful = [choice for choice in formats if choice != torch.contiguous_format or foldable]
    for memory_format in useful:
        for parameter in folded.parameters():
            parameter.data = to_memory_format(parameter.data, memory_format)
        pairs = zip(probes, expected, strict=True)
        if all(_gives_output(folded, probe, memory_format, output) for probe, output in pairs):
            return folded, memory_format
    return model, torch.preserve_format


def _copy_model(model: nn.Module) -> nn.Module | None:
    """Return a copy in evaluation mode; ``None`` if the model cannot be copied."""
    # What loads offloaded weights into a module would load them into the original of a copied one.
    if lacks_gradients(model) or any(weight.is_meta for weight in list_weights(model)):
        return None
    try:
        copied = copy.deepcopy(model)
    except (AssertionError, RuntimeError, TypeError, ValueError, AttributeError, copy.Error) as error:
        raise_interrupt(error)
        return None
    # Not copied.eval(), which a model may override.
    for module in copied.modules():
        module.training = False
    return copied


def _find_foldable(calls: list[TracedCall]) -> Iterator[tuple[str, str]]:
    """Yield the names of convolutions and of the batch norms whose only input is the convolution's output."""
    names = [call.name for call in calls]
    for before, call in pairwise(calls):
        # Exact types: subclasses, e.g. weight-standardized convolutions, compute more than the folding accounts for.
        is_pair = type(before.module) in _CONVOLUTIONS and type(call.module) in _BATCH_NORMS and call.follows_previous
        # A convolution that runs twice with two norms cannot hold both.
        is_used_once = names.count(before.name) == names.count(call.name) == 1
        if is_pair and is_used_once and _can_be_folded(before.module) and _can_be_folded(call.module):
            yield before.name, call.name


def _can_be_folded(module: nn.Module) -> bool:
    """Return True if a module has no hooks of the user, and its weights or statistics are precise enough to fold."""
    # A batch norm without running statistics normalizes by its batch: there is nothing constant to fold.
    numbers = getattr(module, "running_mean", module.weight)
    is_precise = isinstance(numbers, Tensor) and numbers.dtype in (torch.float32, torch.float64)
    return is_precise and not list_foreign_hooks(module)


def _fold(convolution: Any, norm: Any) -> None:
    """Fold a batch norm into a convolution, in place."""
    convolution.weight, convolution.bias = fuse_conv_bn_weights(
        convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    # Changing the class reaches the norm under all its names, also in lists that torch does not know.
    norm.__class__ = nn.Identity


def _gives_output(folded: nn.Module, inputs: ModelInputs, memory_format: torch.memory_format, expected: Any) -> bool:
    """Return True if the copy's output equals the expected one up to rounding, in each tensor."""
    try:
        ours = _find_filled_tensors(_run(folded, inputs, memory_format))
    except Exception as error:  # noqa: BLE001  if the copy fails for any reason, the model itself runs
        raise_interrupt(error)
        return False
    theirs = _find_filled_tensors(expected)
    return len(ours) == len(theirs) > 0 and all(map(_is_equal, ours, theirs))


def _find_filled_tensors(structure: Any) -> list[Tensor]:
    return [tensor for tensor in find_tensors(structure) if tensor.numel()]


def _is_equal(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors are equal up to the rounding of the second one's device."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not second.is_floating_point():
        return torch.equal(first, second)
    tolerance = _TOLERANCE_IN_TF32 if rounds_to_tf32(second) else _TOLERANCE_IN_FLOAT32
    return bool((first - second).abs().amax() <= tolerance * second.abs().amax())


def rounds_to_tf32(tensor: Tensor) -> bool:
    """Return True if convolutions or matrix products of such tensors may round their factors to 10 bits.

    On NVIDIA's GPUs since Ampere that is torch's default for convolutions in single precision.
    """
    if not tensor.is_cuda or tensor.dtype != torch.float32 or torch.cuda.get_device_capability(tensor.device) < (8, 0):
        return False
    try:
        return bool(torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # set by names that this old one cannot express, e.g. cudnn.conv.fp32_precision
        return True
