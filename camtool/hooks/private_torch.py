"""The private API of torch that camtool uses. No other module uses any.

Torch may change these names in any release, so each use is one small function here, with the reason for it.
``tests/hooks/test_private_torch.py`` checks each of them. All were tried on torch 2.14 and 2.15.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import compress
from operator import attrgetter
from traceback import walk_tb
from types import FunctionType, GeneratorType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn, overrides
from torch.autograd.graph import Node
from torch.nn.modules.conv import _ConvNd
from torch.utils import checkpoint

# ---------------------------------------------------------------------------------------------------- modes

# Torch's own guard for inference mode. The mode begins when the guard is made, and ends with its ``__exit__``.
#
# ``torch.inference_mode`` wraps it in Python. If Ctrl-C arrives when such a block ends, the mode is left only when the
# traceback is freed, and then overwrites the modes that others have set since. A partial has no Python frame, in which
# Ctrl-C could arrive, either.
start_inference_mode: Callable[[bool], AbstractContextManager[Any]] = partial(torch._C._InferenceMode)


def is_transforming() -> bool:
    """Check that torch transforms, traces, compiles or exports what runs now, so that tensors stand for others.

    Torch has no public function that tells the transforms of ``torch.func``.
    """
    has_transform = torch._C._functorch.peek_interpreter_stack() is not None
    return has_transform or torch.compiler.is_compiling() or torch._C._is_tracing()


# Return the function modes of this thread, the innermost last.
#
# Torch takes a mode off its stack while it calls the mode. If Ctrl-C arrives then, the stack has to be restored.
save_function_modes: Callable[[], list[overrides.TorchFunctionMode]] = overrides._get_current_function_mode_stack


def restore_function_modes(modes: list[overrides.TorchFunctionMode]) -> None:
    """Put back the function modes that :func:`save_function_modes` returned, also where an exception is handled."""
    if sys.exc_info()[1] is not None:
        end_interrupted_calls(sys.exc_info()[1])
    current = save_function_modes()
    if len(current) == len(modes) and all(now is before for now, before in zip(current, modes, strict=True)):
        return
    for _ in current:
        overrides._pop_mode()
    for mode in modes:
        overrides._push_mode(mode)


def end_interrupted_calls(error: BaseException | None) -> None:
    """Let torch put back now the function modes that it took off for calls which an exception ended.

    Torch does that in a generator. If Ctrl-C arrives just before or after the call of the mode, the generator ends only
    when the traceback is freed, e.g. in a notebook by the next error, and then puts the mode on top of all others.
    """
    while error is not None:
        for frame, _ in walk_tb(error.__traceback__):
            is_context = frame.f_code.co_filename == contextlib.__file__
            generator = getattr(frame.f_locals.get("self"), "gen", None) if is_context else None
            if isinstance(generator, GeneratorType) and generator.gi_code is _TAKING_OFF:
                generator.close()
        error = error.__context__


_TAKING_OFF = inspect.unwrap(overrides._pop_mode_temporarily).__code__


class FunctionMode(overrides.TorchFunctionMode):
    """A function mode that takes nothing but itself off the stack when it ends.

    ``TorchFunctionMode`` takes off whichever mode is on top. That is another one if an interrupt came while torch had
    taken this one off for a call.
    """

    def __exit__(self, *_: object) -> None:
        if overrides._get_current_function_mode() is self:
            overrides._pop_mode()


def run_without_override_check(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a Python function of ``torch.nn.functional``, but do not hand it to the function mode that watches.

    Such a function starts with ``if has_torch_function(...)``. Within a mode the answer is yes, and the function calls
    the mode instead of its own body. Here the body runs, so the mode sees the calls that the body makes.
    """
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = {**function.__globals__, **dict.fromkeys(checks, lambda *_: False)}
    body = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body(*args, **kwargs)


# -------------------------------------------------------------------------------------------------- modules

# attrgetter is as fast as the attribute itself. Every explanation reads these two for all modules of a model.

# The children of a module by name, with ``None`` for those that were set to it. ``named_children()`` leaves these out.
#
# For TorchScript it is an object with the methods ``keys``, ``values`` and ``items``, made anew each time.
get_children: Callable[[nn.Module], Mapping[str, nn.Module | None]] = attrgetter("_modules")

get_buffers: Callable[[nn.Module], MutableMapping[str, Tensor | None]] = attrgetter("_buffers")
# The buffers, and the parameters, of a module itself by name, with ``None`` for those that were set to it.
#
# To write to the mapping replaces one. ``setattr`` refuses to do that in some modules. For TorchScript see
# :data:`get_children`.
get_parameters: Callable[[nn.Module], Mapping[str, nn.Parameter | None]] = attrgetter("_parameters")


def is_convolution(module: nn.Module) -> TypeGuard[_ConvNd]:
    """Return True for a convolution of any number of dimensions, also a transposed or a lazy one."""
    return isinstance(module, _ConvNd)


def share_children(module: nn.Module, other: nn.Module) -> None:
    """Let ``module`` have the same mapping of children as ``other``, so a replaced child is replaced in both."""
    module.__dict__["_modules"] = other._modules


# The compiled call of a module, after its method ``compile()`` ran; else ``None``. The function ``torch.compile``
# returns another module, with the original as its child ``_orig_mod``.
get_compiled_call: Callable[[nn.Module], Any] = attrgetter("_compiled_call_impl")


def convert_tensors_of_module(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Apply a function to all tensors of a module. ``to()``, ``half()`` and ``cuda()`` of a wrapper arrive here."""
    module._apply(*args, **kwargs)


def set_state_version(state: Mapping[str, Tensor], model: nn.Module) -> None:
    """Say in a state dict that the present version of the model's class wrote it.

    A file of tensors alone does not store the version, and some models convert a state dict without one.
    """
    state._metadata = {"": {"version": getattr(model, "_version", None)}}  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------- hooks


_get_all_hooks = attrgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def find_hooked_modules(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the modules that have any hook of their own."""
    every = list(modules)
    return [*compress(every, map(any, map(_get_all_hooks, every)))]  # every explanation asks for hundreds of modules


def has_backward_hooks(module: nn.Module) -> bool:
    """Return True if a module has hooks on its backward pass."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def has_global_hooks() -> bool:
    """Return True if torch has hooks on all modules."""
    everywhere = torch.nn.modules.module
    return bool(
        everywhere._global_forward_hooks
        or everywhere._global_forward_pre_hooks
        or everywhere._global_backward_hooks
        or everywhere._global_backward_pre_hooks
    )


def get_core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's rules that make operations of simpler ones, backward operations included."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


def get_forward_hooks(module: nn.Module) -> list[Any]:
    """Return the hooks on the forward of a module, those before it included."""
    return [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]


def remove_forward_hooks(module: nn.Module, hook: Any) -> None:
    """Remove a function from the forward hooks of a module, if it is among them.

    A ``RemovableHandle`` does the same, but Ctrl-C may arrive after torch has registered the hook and before it has
    returned the handle.
    """
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key in [key for key, registered in list(hooks.items()) if registered is hook]:
            for flags in (module._forward_hooks_with_kwargs, module._forward_hooks_always_called):
                flags.pop(key, None)
            module._forward_pre_hooks_with_kwargs.pop(key, None)
            hooks.pop(key, None)


def remove_gradient_hook(tensor: Tensor, hook: Any) -> None:
    """Remove a function from the gradient hooks of a leaf, if it is among them; see :func:`remove_forward_hooks`."""
    hooks: dict[int, Any] = tensor._backward_hooks or {}
    for key in [key for key, registered in list(hooks.items()) if registered is hook]:
        hooks.pop(key, None)


# -------------------------------------------------------------------------------------------------- tensors


def is_in_transform(tensor: Tensor) -> bool:
    """Check that a tensor is one of ``torch.vmap`` or another transform of ``torch.func``: it has no memory of its own.

    The batch axis of ``vmap`` is hidden in its shape.
    """
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def get_write_count(tensor: Tensor) -> int:
    """Return how often the tensor was written to; 0 for tensors made in inference mode, which do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def get_write_counts(tensors: list[Tensor]) -> list[int]:
    """Return :func:`get_write_count` of each tensor, faster for many of them."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # some were made in inference mode
        return [get_write_count(tensor) for tensor in tensors]


def get_storage_id(tensor: Tensor) -> int | None:
    """Return a number that tensors have in common if they share their memory; None for tensors that do not show it.

    ``untyped_storage().data_ptr()`` does not serve, because to read it ends a copy on write. Tensors within
    ``torch.vmap`` show no memory, and parameters of lazy modules have none yet.
    """
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, ValueError):
        return None


# Return a copy that takes neither time nor memory until one of the two tensors is written to.
#
# Where torch has no such function, the copy is a plain one.
copy_on_write: Callable[[Tensor], Tensor] = getattr(torch, "_lazy_clone", torch.clone)


# ------------------------------------------------------------------------------------------------- autograd


def get_node_number(node: Node) -> int:
    """Return the number that autograd gave to a node of the graph. Within a thread, later nodes have larger numbers."""
    return int(node._sequence_nr())


def get_node_shape(node: Node, number: int = 0) -> tuple[int, ...]:
    """Return the shape of a tensor that a node of the graph returned in the forward pass, by default the first one."""
    return tuple(node._input_metadata[number].shape)


def get_saved_value(node: Node, name: str) -> Any:
    """Return what a node of the graph saved under a name, e.g. ``weight``; None if it saved nothing."""
    if name == "variable":  # of the nodes that accumulate gradients in leaves
        return getattr(node, name, None)
    return getattr(node, f"_saved_{name}", None)


def get_saved_integers(node: Node, name: str) -> tuple[int, ...]:
    """Return the integers that a node saved under a name, e.g. ``stride``; nothing if it saved none."""
    saved = get_saved_value(node, name)
    if saved is None:
        return ()
    # Torch shows negative numbers as unsigned ones.
    numbers = saved if isinstance(saved, (tuple, list)) else (saved,)
    return tuple(int(number) - 2**64 if number >= 2**63 else int(number) for number in numbers)


def get_backward_pass_id() -> int:
    """Return the number of the backward pass that runs in this thread; -1 outside of one."""
    return int(torch._C._current_graph_task_id())


# -------------------------------------------------------------------------------------------------- checkpointing


def save_inputs_only(
    run: Callable[..., object], args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Generator[None, None, None]:
    """Return a generator around one call: what autograd saves between its first and its second step is computed again.

    ``run(*args, **keywords)`` makes the same call, in the backward pass. Torch's ``checkpoint`` is this with the call
    inside, which a pair of hooks on a module cannot use.
    """
    generator: Generator[None, None, None] = checkpoint._checkpoint_without_reentrant_generator(
        run, False, checkpoint.noop_context_fn, "default", False, True, *args, **keywords
    )
    return generator
