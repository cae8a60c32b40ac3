"""List the calls of all modules in one forward pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from camtool.arguments.explain_arguments import HasModel, get_module
from camtool.errors import ForwardError
from camtool.hooks.model_passes import retry_with_gradients, run_model
from camtool.hooks.private_torch import get_write_count, is_in_transform
from camtool.hooks.registration import add_forward_hook, add_forward_pre_hook
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.modules import iterate_hookable_modules, iterate_queues, read_tree
from camtool.hooks.structures.nested_tensors import ModelInputs, find_main_tensor

# The number of latest outputs among which a trace looks for the source of an input. One is not enough: query, key and
# value are computed one after the other from the same tensor, and may pass through a norm each.
_LATEST = 8


@dataclass(frozen=True)
class TracedCall:
    """One call of one module, see :func:`trace`.

    Attributes:
        name: The dotted name of the module. The model itself is ``""``.
        module: The module.
        shape: The shape of its output. ``None`` if that is no floating tensor.
        passes_through: Its output is the unchanged output of the call before it in the list, or a view of all of it.
        follows_previous: Its input is the unchanged output of the call before it in the list.
        source: The index in the list of the call whose unchanged output is the input of this one. Only the latest few
            calls are searched. ``None`` if the input is something else.
        output: The output of the model itself. ``None`` for its submodules: only the shapes of their outputs are kept.
        strides: The strides of its output, in elements. Empty if that is no floating tensor.
        source_strides: The strides of its input, if it has a ``source``, else empty. They differ from the strides of
            the source's output if the input is a view with permuted axes.
    """

    name: str
    module: nn.Module
    shape: tuple[int, ...] | None
    passes_through: bool
    follows_previous: bool
    source: int | None
    output: Any = None
    strides: tuple[int, ...] = ()
    source_strides: tuple[int, ...] = ()


def trace(model: nn.Module | HasModel, inputs: ModelInputs) -> list[TracedCall]:
    """Run ``model`` once, without a graph, and list the calls of its modules in the order in which they ended.

    Only shapes are kept, so this takes the time and the memory of inference. The state of the model is preserved.

    Raises:
        ForwardError: The model fails on these inputs, or returns what an earlier forward pass kept in a queue.
    """
    model = get_module(model)
    try:
        return _trace(model, inputs)
    except ForwardError as error:
        return retry_with_gradients(model, partial(_trace, model, inputs), error)


def ran_no_layer(model: nn.Module, calls: Sequence[TracedCall]) -> bool:
    """Check that the model called none of its modules, though some have weights: it may call their ``forward``."""
    containers = nn.ParameterDict, nn.ParameterList
    modules = [module for module in read_tree(model).modules[1:] if not isinstance(module, containers)]
    return len(calls) == 1 and any(list(module.parameters(recurse=False)) for module in modules)


def _trace(model: nn.Module, inputs: ModelInputs) -> list[TracedCall]:
    calls: list[TracedCall] = []
    # The latest outputs. The tensors are kept, so that their memory is not given to other tensors.
    latest: deque[tuple[Tensor | None, object]] = deque(maxlen=_LATEST)
    sources: dict[str, tuple[int, bool, tuple[int, ...]]] = {}

    def find_source(name: str, _: nn.Module, *arguments: Any) -> None:
        tensor = _find_plain_tensor(arguments)
        content = None if tensor is None else _identify_content(tensor)
        for back, (_kept, earlier) in enumerate(reversed(latest), start=1):
            if tensor is not None and content == earlier:
                sources[name] = len(calls) - back, back == 1, tensor.stride()
                return

    def add_call(name: str, module: nn.Module, output: Any) -> None:
        tensor = _find_plain_tensor(output)
        shape = None if tensor is None else tuple(tensor.shape)
        content = None if tensor is None else _identify_content(tensor)
        passes_through = content is not None and bool(latest) and content == latest[-1][1]
        source, follows_previous, source_strides = sources.pop(name, (None, False, ()))
        kept = None if name else output
        strides = () if tensor is None else tensor.stride()
        calls.append(
            TracedCall(name, module, shape, passes_through, follows_previous, source, kept, strides, source_strides)
        )
        latest.append((tensor, content))

    with guard(model) as cleanup, torch.no_grad():
        add_module_hooks(cleanup, model, find_source, add_call)
        queue = next((name for name, entries in iterate_queues(model) if entries), None)
        output = run_model(model, inputs)
    if not calls:
        add_call("", model, output)
    if queue is not None and ran_no_layer(model, calls):
        raise ForwardError(
            f"no layer of the model ran, as it returns what an earlier forward pass kept in its queue {queue!r}. Empty "
            "the queue before, e.g. by the policy's reset(), or explain the module that computes the entries."
        )
    return calls


def add_module_hooks(
    cleanup: Cleanup, model: nn.Module, before: Callable[..., None], after: Callable[[str, nn.Module, Any], None]
) -> None:
    """Call functions around each call of each module in this thread, until the end of the cleanup's block.

    They are called as ``before(name, module, args, kwargs)`` and ``after(name, module, output)``.
    """
    for name, module in iterate_hookable_modules(model):
        add_forward_pre_hook(cleanup, module, partial(before, name))
        add_forward_hook(cleanup, module, partial(after, name))


def _find_plain_tensor(structure: Any) -> Tensor | None:
    """Return the main tensor; None if it is inside of ``torch.vmap``, where its shape is not that of all members."""
    tensor = find_main_tensor(structure)
    return None if tensor is None or is_in_transform(tensor) else tensor


def _identify_content(tensor: Tensor) -> tuple[int, int, int]:
    """Return what two tensors have in common if they hold the same numbers in the same memory, unwritten in between."""
    return tensor.data_ptr(), tensor.numel(), get_write_count(tensor)
