"""The private API of torch: each use works with the installed torch, and stands in one module."""

from __future__ import annotations

import ast
import re
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import camtool
from camtool.hooks import private_torch

PACKAGE = Path(camtool.__file__).parent
HOME = "camtool/hooks/private_torch.py"


@contextmanager
def use_of(name: str) -> Iterator[None]:
    """Turn any failure into a sentence that names the place to repair."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        pytest.fail(
            f"torch {torch.__version__} has changed a private API: {name} in {HOME} does not work any more "
            f"({type(error).__name__}: {error}). Repair it there; no other file uses the private API of torch."
        )


def check(condition: bool, what: str = "the result is wrong") -> None:
    if not condition:
        raise AssertionError(what)


class Doubled(TorchFunctionMode):
    """A mode that notes the names of the functions it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def test_inference_mode_starts_with_the_guard_and_ends_with_its_exit():
    with use_of("start_inference_mode"):
        guard = private_torch.start_inference_mode(True)
        inside = torch.is_inference_mode_enabled()
        guard.__exit__(None, None, None)
        check(inside and not torch.is_inference_mode_enabled())
        with torch.inference_mode(), private_torch.start_inference_mode(False):
            check(torch.is_grad_enabled() and not torch.is_inference_mode_enabled())


def test_function_modes_are_restored_in_their_order():
    with use_of("save_function_modes, restore_function_modes"):
        outer, inner = Doubled(), Doubled()
        with outer, inner:
            modes = private_torch.save_function_modes()
            check(modes == [outer, inner])
            with Doubled():
                private_torch.restore_function_modes(modes)
                check(private_torch.save_function_modes() == modes)
                private_torch.restore_function_modes([inner])
                check(private_torch.save_function_modes() == [inner])
                private_torch.restore_function_modes([*modes, outer])  # what the blocks take off as they end
        check(private_torch.save_function_modes() == [])


def test_a_call_of_a_mode_that_an_interrupt_ended_puts_the_mode_back_at_once():
    def trace(frame: FrameType, event: str, _: Any) -> Any:
        is_torch = getattr(getattr(frame.f_locals.get("self"), "gen", None), "__name__", "") == "_pop_mode_temporarily"
        if is_torch and (event, frame.f_code.co_name) == ("call", "__exit__"):
            raise KeyboardInterrupt
        return trace

    before, mode = sys.gettrace(), Doubled()
    with use_of("end_interrupted_calls"):
        mode.__enter__()  # no block, because torch takes off a mode when it ends
        try:
            sys.settrace(trace)
            functional.relu(torch.ones(1))
        except KeyboardInterrupt as interrupt:
            sys.settrace(before)
            check(private_torch.save_function_modes() == [])
            private_torch.end_interrupted_calls(interrupt)
            check(private_torch.save_function_modes() == [mode])
            private_torch.restore_function_modes([])
            del interrupt
        check(private_torch.save_function_modes() == [], "the mode came back when the traceback was freed")


def test_a_function_mode_is_left_only_if_it_is_the_innermost():
    with use_of("FunctionMode"):
        outer, inner = private_torch.FunctionMode(), private_torch.FunctionMode()
        with outer:
            inner.__exit__()
            check(private_torch.save_function_modes() == [outer])
            outer.__exit__()
            check(private_torch.save_function_modes() == [])
            outer.__enter__()
    import_module("camtool.methods")  # has the last of them

    own = [mode for mode in TorchFunctionMode.__subclasses__() if mode.__module__.startswith("camtool.")]
    assert own == [private_torch.FunctionMode], "modes of camtool derive from FunctionMode"


def test_the_body_of_multi_head_attention_runs_within_a_mode():
    attention, x = nn.MultiheadAttention(4, 2), torch.randn(3, 1, 4)
    arguments = (x, x, x, 4, 2, attention.in_proj_weight, attention.in_proj_bias, None, None, False, 0.0)
    arguments = (*arguments, attention.out_proj.weight, attention.out_proj.bias)
    with use_of("run_without_override_check"):
        expected, _ = functional.multi_head_attention_forward(*arguments, need_weights=False)
        with Doubled() as mode:
            output, _ = private_torch.run_without_override_check(
                functional.multi_head_attention_forward, *arguments, need_weights=False
            )
        check(torch.equal(output, expected))
        check("scaled_dot_product_attention" in mode.seen and "multi_head_attention_forward" not in mode.seen)


def test_children_and_buffers_include_those_that_are_none():
    with use_of("get_children, get_buffers"):
        model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
        model.register_module("head", None)
        model.register_buffer("table", None)
        check(dict(private_torch.get_children(model)) == {"0": model[0], "1": model[1], "head": None})
        check(dict(private_torch.get_buffers(model)) == {"table": None})
        private_torch.get_buffers(model)["table"] = table = torch.ones(1)
        check(model.table is table)
    with use_of("get_core_decompositions"):
        rules = private_torch.get_core_decompositions()
        check(torch.ops.aten.threshold_backward.default in rules)
    with use_of("find_hooked_modules, has_backward_hooks"):
        layer = nn.Linear(1, 1)
        check(private_torch.find_hooked_modules([layer]) == [])
        handle = layer.register_full_backward_hook(lambda *_: None)
        check(private_torch.find_hooked_modules([layer]) == [layer] and private_torch.has_backward_hooks(layer))
        handle.remove()
        handle = layer.register_forward_pre_hook(lambda *_: None)
        check(private_torch.find_hooked_modules([layer]) == [layer] and not private_torch.has_backward_hooks(layer))
        handle.remove()
    with use_of("has_global_hooks"):
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
        check(private_torch.has_global_hooks())
        handle.remove()
        check(not private_torch.has_global_hooks())
    with use_of("get_parameters"):
        check(dict(private_torch.get_parameters(model[0])) == {"weight": model[0].weight, "bias": model[0].bias})


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*deprecated:FutureWarning", "ignore::DeprecationWarning"
)
def test_children_and_buffers_of_torchscript_can_be_listed():
    with use_of("get_children, get_buffers"):
        model = torch.jit.script(nn.Sequential(nn.BatchNorm1d(1)))
        check([*private_torch.get_children(model).keys()] == ["0"])
        check(len([*private_torch.get_buffers(next(model.children())).items()]) == 3)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv3d, nn.ConvTranspose2d])
def test_convolutions_of_all_dimensions_are_recognized(kind: type[nn.Module]) -> None:
    with use_of("is_convolution"):
        check(private_torch.is_convolution(kind(1, 1, 1)) and not private_torch.is_convolution(nn.Linear(1, 1)))


def test_shared_children_stay_shared_when_one_is_replaced():
    with use_of("share_children"):
        whole, part = nn.Sequential(nn.Linear(1, 1)), nn.Module()
        private_torch.share_children(part, whole)
        whole[0] = nn.ReLU()
        check([*part.children()] == [whole[0]])


def test_a_compiled_call_is_noticed():
    with use_of("get_compiled_call"):
        plain, compiled_in_place = nn.Linear(1, 1), nn.Linear(1, 1)
        compiled_in_place.compile()
        check(private_torch.get_compiled_call(plain) is None)
        check(private_torch.get_compiled_call(compiled_in_place) is not None)
        check([name for name, _ in torch.compile(plain).named_children()] == ["_orig_mod"])


def test_all_tensors_of_a_module_are_converted():
    with use_of("convert_tensors_of_module"):
        model = nn.Sequential(nn.BatchNorm1d(1))
        private_torch.convert_tensors_of_module(model, lambda tensor: tensor.to(torch.float64))
        check({tensor.dtype for tensor in model.state_dict().values()} == {torch.float64})


def test_a_state_dict_gets_the_version_of_its_class():
    with use_of("set_state_version"):
        # Version 1 of batch norm had no num_batches_tracked, so without a version torch adds it.
        model = nn.BatchNorm1d(1)
        state = {name: tensor for name, tensor in model.state_dict().items() if name != "num_batches_tracked"}
        old, present = OrderedDict(state), OrderedDict(state)
        private_torch.set_state_version(present, model)
        missing = [model.load_state_dict(each, strict=False).missing_keys for each in (old, present)]
        check(missing == [[], ["num_batches_tracked"]])


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_forward_hooks_are_listed_and_removed(kind: str) -> None:
    with use_of("get_forward_hooks, remove_forward_hooks"):
        module, calls = nn.ReLU(), []

        def hook(*_: Any) -> None:
            calls.append("ours")

        def other(*_: Any) -> None:
            calls.append("other")

        register = getattr(module, f"register_{kind}_hook")
        register(hook, with_kwargs=True)
        register(other)
        check(private_torch.get_forward_hooks(module) == [hook, other])
        private_torch.remove_forward_hooks(module, hook)
        private_torch.remove_forward_hooks(module, hook)
        module(torch.ones(1))
        check(private_torch.get_forward_hooks(module) == [other] and calls == ["other"])


def test_a_gradient_hook_is_removed_from_a_leaf():
    with use_of("remove_gradient_hook"):
        leaf, calls = torch.ones(1, requires_grad=True), []

        def hook(gradient: Tensor) -> None:
            calls.append(gradient)

        private_torch.remove_gradient_hook(leaf, hook)
        leaf.register_hook(hook)
        leaf.sum().backward()
        private_torch.remove_gradient_hook(leaf, hook)
        leaf.sum().backward()
        check(len(calls) == 1)


def test_tensors_inside_of_a_transform_are_known():
    seen = []
    with use_of("is_in_transform"):
        torch.vmap(lambda row: seen.append(private_torch.is_in_transform(row)) or row)(torch.ones(2, 3))
        check(seen == [True])
        check(not private_torch.is_in_transform(torch.ones(2)))


def test_writes_to_a_tensor_are_counted():
    with use_of("get_write_count, get_write_counts"):
        tensor = torch.zeros(2)
        before = private_torch.get_write_count(tensor)
        tensor.add_(1)
        with torch.inference_mode():
            other = torch.zeros(2)
        check(private_torch.get_write_count(tensor) == before + 1)
        check(private_torch.get_write_counts([tensor]) == [before + 1])
        check(private_torch.get_write_counts([tensor, other]) == [before + 1, 0])


def test_views_have_the_storage_of_their_tensor():
    with use_of("get_storage_id"):
        tensor = torch.zeros(2, 3)
        ids = [private_torch.get_storage_id(each) for each in (tensor, tensor[1], tensor.clone())]
        check(ids[0] == ids[1] != ids[2])
        check(private_torch.get_storage_id(nn.LazyLinear(1).weight) is None)
        torch.vmap(lambda row: check(private_torch.get_storage_id(row) is None) or row)(tensor)


def test_a_copy_on_write_does_not_change_with_its_tensor():
    with use_of("copy_on_write"):
        tensor = torch.zeros(2)
        copy = private_torch.copy_on_write(tensor)
        tensor.add_(1)
        check(copy.tolist() == [0, 0] and tensor.tolist() == [1, 1])


def test_a_copy_on_write_takes_no_memory():
    with use_of("copy_on_write"):
        check(private_torch.copy_on_write is not torch.clone, "torch has no function for it: all copies are plain ones")
        tensor = torch.zeros(2)
        check(torch._C._is_cow_tensor(private_torch.copy_on_write(tensor)))


def test_later_nodes_of_a_graph_have_larger_numbers():
    with use_of("get_node_number"):
        x = torch.ones(1, requires_grad=True)
        nodes = [x.mul(2).grad_fn, x.add(1).grad_fn]
        numbers = [private_torch.get_node_number(node) for node in nodes if node is not None]
        check(len(numbers) == 2 and numbers[0] < numbers[1])


def test_each_backward_pass_has_a_number_of_its_own():
    with use_of("get_backward_pass_id"):
        x, found = torch.ones(1, requires_grad=True), []
        for _ in range(2):
            y = x * 2
            y.register_hook(lambda _: found.append(private_torch.get_backward_pass_id()))
            (y * 3).backward()
        check(private_torch.get_backward_pass_id() == -1 and len({-1, *found}) == 3)


def test_of_a_call_only_the_inputs_are_saved():
    with use_of("save_inputs_only"):
        x, runs = torch.ones(2, requires_grad=True), []

        def run(factor: float, *, power: int) -> torch.Tensor:
            runs.append(factor)
            return (x * factor) ** power

        steps = private_torch.save_inputs_only(run, (3.0,), {"power": 2})
        next(steps)
        y = run(3.0, power=2)
        next(steps, None)
        check(runs == [3.0])
        check(torch.autograd.grad(y.sum(), x)[0].tolist() == [18.0, 18.0] and runs == [3.0, 3.0])


def test_no_other_file_uses_the_private_api_of_torch():
    node = torch.ones(1, requires_grad=True).mul(1).grad_fn
    objects = [torch, torch._C, torch.overrides, nn.Module(), torch.ones(1), torch.ones(1).untyped_storage(), node]
    private = {name for each in objects for name in dir(each) if re.fullmatch(r"_[A-Za-z]\w*", name)}
    uses = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {name}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE.parent).as_posix() != HOME
        for line, name in iterate_private_uses(ast.parse(path.read_text(encoding="utf-8")), private)
    ]
    assert not uses, f"move these to {HOME}, each as a small function with a test:\n" + "\n".join(uses)


def iterate_private_uses(tree: ast.Module, private: set[str]) -> Iterator[tuple[int, str]]:
    """Yield private names that are imported from torch, or that are looked up on an object other than ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for each in node.names:
                if re.search(r"(^|\.)_[A-Za-z]", f"{node.module}.{each.name}"):
                    yield node.lineno, f"{node.module}.{each.name}"
        if isinstance(node, ast.Attribute) and node.attr in private:
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            is_of_super = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
            if not is_own and not is_of_super:
                yield node.lineno, ast.unparse(node)


def test_transforms_of_functions_are_noticed():
    seen = []

    def function(x):
        seen.append(private_torch.is_transforming())
        return x.sum()

    with use_of("is_transforming"):
        torch.func.grad(function)(torch.rand(2))
        torch.func.vmap(function)(torch.rand(2, 2))
        function(torch.rand(2))
        check(seen == [True, True, False])


def test_nodes_of_the_graph_tell_what_they_saved():
    x = torch.rand(1, 3, 8, 8, requires_grad=True)
    convolved = functional.conv2d(x, torch.rand(4, 3, 3, 3), stride=2, padding=1)
    sliced = convolved.mean(-1)[..., 1:]
    with use_of("get_saved_integers"):
        check(private_torch.get_saved_integers(convolved.grad_fn, "stride") == (2, 2))
        check(private_torch.get_saved_integers(convolved.grad_fn, "nothing") == ())
        check(private_torch.get_saved_integers(sliced.grad_fn, "start") == (1,))
        check(private_torch.get_saved_integers(sliced.grad_fn.next_functions[0][0], "dim") == (-1,))
    with use_of("get_saved_value"):
        check(private_torch.get_saved_value(convolved.grad_fn, "weight").shape == (4, 3, 3, 3))
        leaf = convolved.grad_fn.next_functions[0][0]
        check(private_torch.get_saved_value(leaf, "variable") is x)
        check(private_torch.get_saved_value(leaf, "weight") is None)
    with use_of("get_node_shape"):
        check(private_torch.get_node_shape(convolved.grad_fn) == (1, 4, 4, 4))
