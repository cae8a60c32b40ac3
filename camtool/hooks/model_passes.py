"""Call a model with inputs of any structure, and differentiate its output; errors say what to do.

Scores come in rows, each about one image. Rows about different images share a backward pass, as the images of a batch
do not influence each other. Rows about the same image are separated by one batched backward pass.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.utils.hooks import BackwardHook
from torch.utils.weak import WeakTensorKeyDictionary

from camtool.errors import CamtoolError, Forgive, ForwardError, raise_interrupt
from camtool.hooks.norm_gradients import repair_batch_norms
from camtool.hooks.private_torch import has_backward_hooks
from camtool.hooks.registration import describe_hook, list_foreign_hooks
from camtool.hooks.state.guard import enable_gradients, find_name_in_use, guard, list_names_in_use
from camtool.hooks.structures.graph_nodes import list_nodes
from camtool.hooks.structures.modules import HELD_TREES, find_detector_transform
from camtool.hooks.structures.nested_tensors import (
    ModelInputs,
    SharedInput,
    find_main_tensor,
    map_tensors,
    replace_main_tensor,
)

_T = TypeVar("_T")

# Models that run only while gradients are recorded, e.g. because they register hooks on tensors.
NEED_GRADIENTS: WeakSet[nn.Module] = WeakSet()

# For models whose photos are resized to a size (H, W) that nothing confirms: the size, and a sentence that says so. It
# ends the error of a model that fails on an input of this size, whichever function runs the model.
ASSUMED_SIZES: WeakKeyDictionary[nn.Module, tuple[tuple[int, int], str]] = WeakKeyDictionary()


# Copies of the outputs of layers in a forward pass of the user → where in its graph each output was made. Such a copy
# is no part of the way to the model's output, so gradients are taken at the edge.
GRADIENT_EDGES: MutableMapping[Tensor, GradientEdge] = WeakTensorKeyDictionary()

# Number of elements of the gradients that one batched backward pass returns: 5 rows at the last layer of a ResNet-50,
# one at a layer of a language model. More at once take more memory and hardly less time.
_MOST_ELEMENTS = 2**19


def run_model(model: nn.Module, inputs: ModelInputs) -> Any:
    """Return ``model(inputs)``. A sequence becomes positional arguments, a mapping becomes keyword arguments.

    In a mapping, integer keys stand for positional arguments. The model gets copies of the tensors, as it may write to
    them, e.g. with an in-place ReLU.

    Raises:
        ForwardError: The model fails, e.g. because the shape of the inputs is wrong. An out-of-memory error is raised
            unchanged: the inputs are not wrong.
    """
    try:
        args: Any = map_tensors(inputs, Tensor.clone)
        named: dict[str, Any] = {}
        if isinstance(inputs, Tensor):
            args = [args] if find_detector_transform(model) is None else [list(args)]
        elif isinstance(inputs, Mapping):
            args, named = _split_arguments(args)
        if torch.is_grad_enabled() or model not in NEED_GRADIENTS:
            return model(*args, **named)
        with torch.enable_grad():
            return map_tensors(model(*args, **named), Tensor.detach)
    except Exception as error:
        raise_interrupt(error, CamtoolError, torch.OutOfMemoryError)
        raise _explain_error(error, model, inputs) from error
    finally:
        # The model's code may have replaced modules, so they are read anew.
        held = HELD_TREES.by_model
        held.update(dict.fromkeys(held))


def retry_with_gradients(model: nn.Module, run: Callable[[], _T], error: ForwardError) -> _T:
    """Return ``run()`` of a model that failed without gradients, and note that it needs them.

    The error is raised again if the model fails with gradients, too, or runs out of memory for their graph.
    """
    try:
        if model in NEED_GRADIENTS:
            raise error
        NEED_GRADIENTS.add(model)
        try:
            return run()
        except BaseException as second:
            NEED_GRADIENTS.discard(model)
            if not isinstance(second, (ForwardError, torch.OutOfMemoryError)):
                raise
        raise error
    finally:
        del error  # its traceback holds this frame: a cycle would keep the model until the next garbage collection


def _find_remedy(error: Exception, image: Tensor | None, model: nn.Module) -> str:
    """Return what to do about an error of a forward pass, as the end of its message."""
    if isinstance(error, TypeError):
        return ". For a model with several inputs, pass camtool.Inputs(...)"
    if _INFERENCE_TENSOR in str(error):
        made = any(parameter.is_inference() for parameter in model.parameters())
        return f". {_MADE_IN_INFERENCE_MODE if made else _IN_INFERENCE_MODE}"
    remedy = _find_known_remedy(str(error)) or _suggest_channels(str(error), image)
    if remedy:
        return remedy
    has_several = image is not None and image.shape[:1] > (1,)
    return ". If it takes one image at a time, pass batch_size=1" if has_several else ""


def _find_known_remedy(reason: str) -> str:
    """Return the remedy for an error of torch that its text alone explains, or ""."""
    axes = _CONVOLUTION_AXES.search(reason)
    if axes is not None and axes[2].count(",") == int(axes[1]):
        return f". {_AXIS_TOO_MANY}"
    return next((f". {remedy}" for part, remedy in _REMEDIES.items() if part in reason), "")


def _suggest_channels(reason: str, image: Tensor | None) -> str:
    """Return the remedy if an image has three channels and the model takes one, or the other way round; else ""."""
    numbers = _CHANNELS.search(reason)
    if image is None or image.ndim != 4 or numbers is None:
        return ""
    wanted, given = (int(numbers[1]), int(numbers[2])) if numbers[1] else (int(numbers[4]), int(numbers[3]))
    if image.shape[1] == 3 and given == 3 * wanted:
        kind, channels = "one channel", "gray"
    elif image.shape[1] == 1 and wanted == 3 * given:
        kind, channels = "three channels", "rgb"
    else:
        return ""
    size = image.shape[2] if image.shape[2] == image.shape[3] else tuple(image.shape[2:])
    return f'. It takes {kind}: pass a photo and transform=camtool.preprocessing(size={size}, channels="{channels}")'


def _split_arguments(inputs: Mapping[Any, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional arguments and the named ones of a mapping."""
    given = {key: value.copy() if isinstance(value, SharedInput) else value for key, value in inputs.items()}
    positions = sorted(key for key in given if isinstance(key, int))
    return [given.pop(position) for position in positions], given


def _explain_error(error: Exception, model: nn.Module, inputs: ModelInputs) -> ForwardError:
    image, cause = find_main_tensor(inputs), _describe_hook_error(error)
    shape = "" if image is None else f" of shape {tuple(image.shape)}"
    reason = cause or f"{_describe_error(error)}{_find_remedy(error, image, model)}"
    size, note = ASSUMED_SIZES.get(model, (None, ""))
    if image is not None and image.shape[2:] == size:
        reason = f"{reason.rstrip('.')}. {note}"
    return ForwardError(f"the model cannot run on an input{shape}: {reason}")


def apply_detector_transform(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return inputs ``(N, C, H, W)`` as the layers of the model get them: resized, if the model is a detector."""
    transform = find_detector_transform(model)
    if transform is None:
        return inputs
    with guard(model), torch.no_grad():
        batch: Tensor = transform(list(inputs))[0].tensors
    return batch


# ------------------------------------------------------------------------------------------------- backward pass


def differentiate(
    outputs: Any, inputs: Any, *args: Any, hooks_have_run: bool = False, has_norms: bool = True, **options: Any
) -> tuple[Tensor, ...]:
    """Return ``torch.autograd.grad`` of the same arguments; an input in :data:`GRADIENT_EDGES` stands for its edge.

    If the hooks have run for another gradient on the graph already, an error of an operation is raised as it is. With
    ``has_norms`` the graph may hold batch norms, see :mod:`camtool.hooks.norm_gradients`.

    Raises:
        ForwardError: A hook on the backward pass fails, another thread has changed the weights meanwhile, or the model
            uses a kind of checkpointing that allows no such gradients.
    """
    try:
        tensors = [inputs] if isinstance(inputs, Tensor) else inputs
        with repair_batch_norms(outputs) if has_norms else nullcontext():
            if GRADIENT_EDGES and any(tensor in GRADIENT_EDGES for tensor in tensors):
                return _differentiate_at_edges(outputs, tensors, *args, **options)
            return torch.autograd.grad(outputs, inputs, *args, **options)  # type: ignore[no-any-return]
    except Exception as error:
        raise_interrupt(error, CamtoolError, torch.OutOfMemoryError)
        reason = _explain_gradient_error(error, hooks_have_run=hooks_have_run)
        if reason is None:
            raise
        raise ForwardError(f"no gradient passes through the model: {reason}") from error


def _explain_gradient_error(error: Exception, *, hooks_have_run: bool) -> str | None:
    # Checkpointing raises its error in a function of its own, which must not be taken for a hook.
    reason = next((meaning for part, meaning in _REASONS.items() if part in str(error)), None)
    return reason or (None if hooks_have_run else _describe_hook_error(error))


def _differentiate_at_edges(
    outputs: Any,
    tensors: Sequence[Tensor],
    grad_outputs: Any = None,
    *,
    materialize_grads: bool = False,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Return the gradients at the edges of some tensors; ``materialize_grads`` is what torch refuses for edges."""
    edges: Any = [GRADIENT_EDGES.get(tensor, tensor) for tensor in tensors]
    gradients = torch.autograd.grad(outputs, edges, grad_outputs, allow_unused=True, **options)
    batch = grad_outputs.shape[:1] if options.get("is_grads_batched") else ()
    return tuple(
        tensor.new_zeros(*batch, *tensor.shape) if gradient is None and materialize_grads else gradient
        for tensor, gradient in zip(tensors, gradients, strict=True)
    )


def compute_row_gradients(
    scores: Tensor, images: Sequence[int], tensors: Sequence[Tensor], *, has_norms: bool = True
) -> list[Tensor]:
    """Return the gradient of each row's score with respect to its own image's part of each tensor.

    Args:
        scores: ``(R,)``, on the graph.
        images: The index of each row's image.
        tensors: Tensors ``(N, ...)`` on the way to the scores.
        has_norms: Whether the graph may hold batch norms, see :func:`differentiate`.

    Returns:
        For each tensor ``(R, ...)``.
    """
    # The graph is retained, because other targets may be differentiated on it. It is freed with the forward pass.
    compute = partial(differentiate, scores, tensors, has_norms=has_norms, retain_graph=True, materialize_grads=True)
    index = list(images)
    with enable_gradients():
        if len(set(index)) == len(index):
            gradients = compute(grad_outputs=torch.ones_like(scores))
            # A copy only if the rows are in another order than the images.
            return [*gradients] if index == [*range(len(tensors[0]))] else [gradient[index] for gradient in gradients]
        return _differentiate_by_rank(compute, scores, index, tensors)


def _differentiate_by_rank(
    compute: Callable[..., Sequence[Tensor]], scores: Tensor, images: Sequence[int], tensors: Sequence[Tensor]
) -> list[Tensor]:
    """Return the gradients of rows of which several are about one image, by one weighted sum of scores for each rank.

    A sum holds at most one row of every image.
    """
    ranks = _rank_within_image(images)
    weights = scores.new_zeros(max(ranks) + 1, len(ranks))
    weights[ranks, range(len(ranks))] = 1
    at_once = max(1, _MOST_ELEMENTS // max(tensor.numel() for tensor in tensors))
    by_rank = None if at_once == 1 else _differentiate_batches(compute, weights.split(at_once))
    if by_rank is None:
        return _differentiate_one_by_one(compute, weights, ranks, images)
    return [gradient[ranks, images] for gradient in by_rank]


def compute_row_products(scores: Tensor, images: Sequence[int], tensor: Tensor, directions: Tensor) -> Tensor:
    """Return the Hessian of each row's score with respect to its own image's part of a tensor, times a direction.

    Args:
        scores: ``(R,)``, on the graph.
        images: The index of each row's image.
        tensor: A tensor ``(N, ...)`` on the way to the scores.
        directions: ``(R, ...)``.

    Returns:
        ``(R, ...)``.

    Raises:
        RuntimeError: Torch has no second derivative of an operation behind the tensor.
    """
    products, ranks = torch.zeros_like(directions), _rank_within_image(images)
    for rank in set(ranks):
        rows = [row for row, its_rank in enumerate(ranks) if its_rank == rank]
        (gradient,) = differentiate(scores[rows].sum(), tensor, create_graph=True, materialize_grads=True)
        if not gradient.requires_grad:  # the gradient is constant, so the product stays 0
            continue
        vector, indices = torch.zeros_like(tensor), [images[row] for row in rows]
        vector[indices] = directions[rows]
        options: dict[str, Any] = {"grad_outputs": vector, "retain_graph": True, "materialize_grads": True}
        # What fails now is an operation without a second derivative.
        (product,) = differentiate(gradient, tensor, hooks_have_run=True, **options)
        products[rows] = product.detach()[indices]
    return products


def _differentiate_batches(compute: Callable[..., Sequence[Tensor]], batches: Sequence[Tensor]) -> list[Tensor] | None:
    """Return the gradients of weighted sums, many at once; None if vmap does not support an operation on the way."""
    with Forgive(RuntimeError):
        parts = [compute(grad_outputs=batch, is_grads_batched=True) for batch in batches]
        return [torch.cat(gradients) for gradients in zip(*parts, strict=True)]
    return None


def _differentiate_one_by_one(
    compute: Callable[..., Sequence[Tensor]], weights: Tensor, ranks: Sequence[int], images: Sequence[int]
) -> list[Tensor]:
    """Return the gradients of the rows, computed sum by sum, each in one copy."""
    rows: list[Tensor] = []
    for rank, weight in enumerate(weights):
        of_rank = [row for row, its_rank in enumerate(ranks) if its_rank == rank]
        gradients = compute(grad_outputs=weight)
        rows = rows or [like.new_empty(len(ranks), *like.shape[1:]) for like in gradients]
        for row_gradients, gradient in zip(rows, gradients, strict=True):
            row_gradients[of_rank] = gradient[[images[row] for row in of_rank]]
    return rows


def _rank_within_image(images: Sequence[int]) -> list[int]:
    """Return for each row the number of earlier rows about the same image."""
    seen: Counter[int] = Counter()
    ranks = []
    for image in images:
        ranks.append(seen[image])
        seen[image] += 1
    return ranks


def describe_missing_gradient(model: nn.Module, inputs: ModelInputs) -> str | None:
    """Run the model once and return why no gradient passes from its output to its layers; ``None`` if one may pass.

    Args:
        model: Any module. Its state is preserved.
        inputs: What it is called with.
    """
    with guard(model), enable_gradients():
        image = find_main_tensor(inputs)
        leaf = None if image is None else image.detach().clone().requires_grad_()
        try:
            output = find_main_tensor(run_model(model, inputs if leaf is None else replace_main_tensor(inputs, leaf)))
        except ForwardError as error:
            return _IN_INFERENCE_MODE if _INFERENCE_TENSOR in str(error) else None
    return _explain_graph(output)


def _explain_graph(output: Tensor | None) -> str | None:
    """Return why no gradient passes back from an output; ``None`` if one may pass."""
    if output is not None and output.is_inference():
        return _IN_INFERENCE_MODE
    if output is None or output.grad_fn is None:
        return "the output has no graph: the model's forward runs under torch.no_grad, or detaches the output"
    if any(node.name() == "CheckpointFunctionBackward" for node in list_nodes(output)):
        return "the model uses torch.utils.checkpoint with use_reentrant=True; pass use_reentrant=False"
    return None


_IN_INFERENCE_MODE = (
    "the model's forward, or a part of it, runs in torch.inference_mode, through which no gradient passes; use "
    "torch.no_grad there"
)

_MADE_IN_INFERENCE_MODE = (
    "The model's parameters were made in torch.inference_mode, so no gradient can pass through it; build or load the "
    "model outside of inference_mode"
)

# A part of torch's errors about tensors made in inference mode.
_INFERENCE_TENSOR = "nference tensor"

_CHANNELS = re.compile(r"to have (\d+) channels, but got (\d+) channels|multiplied \(\d+x(\d+) and (\d+)x")
# Torch's error about an input of a convolution: the number of axes it takes, and the shape it got.
_CONVOLUTION_AXES = re.compile(r"or (\d)D \(batched\) input to conv\dd, but got input of size: \[([^]]*)\]")

_AXIS_TOO_MANY = (
    "A convolution gets one axis too many: an input of 3 axes is a single image (C, H, W) here, and gets a batch axis. "
    "For a model of spectrograms (N, T, F), pass (N, 1, T, F) and a module that calls the model with x.squeeze(1); if "
    "its tokens run over frequencies first, as in AST, pass (N, 1, F, T) and call it with x.squeeze(1).mT"
)

MAKES_SPECTROGRAM = (
    "The model makes a spectrogram of the signal: make the spectrogram the input, and explain the module behind it"
)

_ON_META = "A part of the model is on the meta device and has no weights; load them first"
# A part of an error of torch in a forward pass, and what to do.
_REMEDIES = {"stft": MAKES_SPECTROGRAM, "is on the meta device": _ON_META, "meta tensor": _ON_META}

# A part of an error of autograd, and what it means.
_REASONS: dict[str, str] = json.loads(Path(__file__).with_name("autograd_errors.json").read_text(encoding="utf-8"))


def _describe_error(error: BaseException) -> str:
    """Return the class of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"


def _describe_hook_error(error: Exception) -> str | None:
    """Return what to do about a hook of the user that failed, or that forbids in-place operations; else ``None``."""
    running: nn.Module | None = None
    caller: nn.Module | None = None
    entered: list[str] = []
    # The locals of the first frame hold the error: to read them would make a reference cycle, which keeps the model.
    deeper = error.__traceback__.tb_next if error.__traceback__ is not None else None
    for frame, _ in walk_tb(deeper):
        owner: Any = frame.f_locals.get("self")
        failure = _describe_failed_hook(frame.f_code, owner, caller, error)
        if failure is not None:
            return failure
        caller = owner if isinstance(owner, nn.Module) else None
        running = caller or running
        entered.append(frame.f_code.co_name)
    if "BackwardHookFunction" in str(error) and running is not None:
        return _describe_write(running)
    if _ENGINE in entered and entered[-1] != _ENGINE:
        return _describe_failure("backward", None, error)
    return None


# The function of torch that runs a backward pass; what it calls in Python are hooks.
_ENGINE = "_engine_run_backward"


def _describe_failed_hook(code: Any, owner: Any, caller: nn.Module | None, error: Exception) -> str | None:
    """Return what to do about a hook if its code is that of a frame, which the method of a module may have called."""
    if caller is not None and code in map(_get_code, list_foreign_hooks(caller)):
        return _describe_failure("forward", caller, error)
    description = describe_hook(owner)
    if description:
        return f"{description} failed with {_describe_error(error)}"
    # Torch keeps the module of a hook on the backward pass in an object of its own.
    return _describe_failure("backward", owner.module, error) if isinstance(owner, BackwardHook) else None


def _describe_write(module: nn.Module) -> str:
    """Return what to do if a module writes to a tensor that a hook on the backward pass watches."""
    names = [*filter(None, list_names_in_use(has_backward_hooks))][:_MOST_NAMED]
    return (
        f"{find_name_in_use(module)} writes in place to a tensor with a backward hook, which autograd forbids. "
        "Let it make a new tensor (inplace=False), or remove the hooks, which are on: "
        f"{', '.join(names) or 'all layers'}."
    )


# Number of modules that a message lists at most.
_MOST_NAMED = 5


def _describe_failure(kind: str, module: nn.Module | None, error: Exception) -> str:
    origin = "a tensor, or a function of the model's own," if module is None else find_name_in_use(module)
    return (
        f"a {kind} hook on {origin} failed with {_describe_error(error)}. The model runs in evaluation mode here; "
        "remove or disable the hook while explaining."
    )


def _get_code(hook: Any) -> Any:
    """Return the code of a hook: a function, a method, a partial or an object that can be called."""
    function = getattr(hook, "func", hook)
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
