"""A signal handler may raise, or explain a model, between any two lines of a call."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

import camtool
from camtool.errors import ForwardError, raise_interrupt
from camtool.hooks.model_passes import NEED_GRADIENTS
from camtool.hooks.state import guard
from camtool.hooks.structures.tensor_table import TensorTable
from tests.helpers.block_ends import ends_block
from tests.helpers.warm_processes import run_program


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Normed(Convolution):
    """With operations that a function mode replaces."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.features(x).flatten(2).mT
        return self.head((nn.functional.gelu(tokens) * tokens.softmax(1)).mean(1))


class DeadlineError(OSError):
    """As TimeoutError."""


def call_at(moment: Callable[[FrameType], bool], act: Callable[[], Any], run: Callable[[], Any]) -> Any:
    """Return ``run()``, in which ``act`` is called as a handler would be: before a line, with its frame."""
    has_acted = False

    def handle(frame: FrameType, event: str, _: object) -> Any:
        nonlocal has_acted
        if event == "line" and not has_acted and not ends_block(frame) and moment(frame):
            has_acted = True
            sys.settrace(None)
            act()
        return handle

    # Lines of callbacks that run while Python collects garbage, as hypothesis registers one, are no lines of the call:
    # Python ignores what is raised there.
    gc.disable()
    sys.settrace(handle)
    try:
        return run()
    finally:
        sys.settrace(None)
        gc.enable()


def count_down(number: int) -> Callable[[FrameType], bool]:
    left = iter(range(number, -1, -1))
    return lambda _: next(left) == 0


def count_lines(run: Callable[[], Any]) -> int:
    count = 0

    def note(_: FrameType) -> bool:
        nonlocal count
        count += 1
        return False

    call_at(note, bool, run)
    return count


def raise_it(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("make", "options", "count"),
    [
        (Convolution, {}, 40),
        (Normed, {"method": "conservative:gradcam", "layer": "features"}, 60),
        (Convolution, {"target_class": lambda output: output[1]}, 20),
    ],
)
def test_what_a_handler_raises_arrives_as_it_is(make, options, count):
    model, image = make().train(), torch.rand(1, 3, 32, 32)
    explain = partial(camtool.explain, model, image, **{"target_class": 1, **options})
    expected = explain()[0].raw
    lines = min(count_lines(explain) for _ in range(2))  # caches make later calls shorter
    for place in np.linspace(0, lines - 1, count).astype(int):
        error = DeadlineError("too late")
        with pytest.raises(DeadlineError) as raised:
            call_at(count_down(place), partial(raise_it, error), explain)
        assert raised.value is error
        assert not _get_current_function_mode_stack()
        assert not guard._USES.by_model
        assert not guard._TORCH_GENERATOR.lock._is_owned()
        assert model not in NEED_GRADIENTS
        assert all(module.training for module in model.modules())
        assert not any(module._forward_hooks for module in model.modules())
    np.testing.assert_array_equal(explain()[0].raw, expected)


def call_as_handler(handler: Callable[..., Any]) -> None:
    """Call a function as Python calls the handler of a signal, with the frame that it interrupts."""
    handler(signal.SIGALRM, sys._getframe())


def send_signal(handler: Callable[..., Any]) -> None:
    """Let the handler run for a real signal."""
    signal.signal(signal.SIGALRM, handler)
    signal.raise_signal(signal.SIGALRM)


REGISTER = ["register_forward_hook", "register_full_backward_hook"]


@pytest.mark.parametrize("register", REGISTER)
def test_a_deadline_in_a_hook_of_the_user_is_no_error_of_the_model(register):
    raise_in_a_hook(register, call_as_handler)


def test_nor_is_one_by_a_real_signal():
    """In a process of its own: Ray and Lightning put back handlers of signals, which has ended processes silently."""
    run_program(
        "from tests.hooks.test_signal_handlers import REGISTER, raise_in_a_hook, send_signal\n"
        "for register in REGISTER: raise_in_a_hook(register, send_signal)"
    )


def raise_in_a_hook(register: str, call: Callable[[Callable[..., Any]], None]) -> None:
    model, image, error = Convolution().eval(), torch.rand(1, 3, 32, 32), DeadlineError()
    getattr(model.features[1], register)(lambda *_: call(lambda *_: raise_it(error)))
    with pytest.raises(DeadlineError) as raised:
        camtool.explain(model, image, 1, layer="features.0")
    assert raised.value is error


def test_an_error_of_the_model_is_still_explained():
    model = Convolution().eval()
    model.features.register_forward_hook(lambda *_: raise_it(DeadlineError("mine")))
    with pytest.raises(ForwardError, match="failed with DeadlineError: mine"):
        camtool.explain(model, torch.rand(1, 3, 32, 32), 1)


@pytest.mark.parametrize(
    "handler",
    [
        lambda number, frame: raise_it(DeadlineError()),
        lambda *arguments: raise_it(DeadlineError()),
        partial(lambda text, number, frame: raise_it(DeadlineError(text)), "late"),
    ],
)
def test_a_handler_is_told_from_other_functions(handler):
    with pytest.raises(DeadlineError) as raised:
        call_as_handler(handler)
    with pytest.raises(DeadlineError):
        raise_interrupt(raised.value)
    with pytest.raises(DeadlineError) as raised:
        handler(0, sys)
    raise_interrupt(raised.value)


@pytest.mark.parametrize("wrap", [ValueError, ForwardError])
def test_a_library_that_wraps_what_a_handler_raises_does_not_hide_it(wrap):
    with pytest.raises(wrap) as raised:
        call_and_wrap(partial(call_as_handler, lambda *_: raise_it(DeadlineError())), wrap)
    with pytest.raises(DeadlineError):
        raise_interrupt(raised.value, ForwardError)


def call_and_wrap(run: Callable[[], Any], wrap: type[Exception]) -> None:
    try:
        run()
    except DeadlineError as error:
        raise wrap("the library failed") from error


@pytest.mark.parametrize("value", [5, count(), torch.zeros(())])
def test_what_a_function_makes_of_its_arguments_does_not_matter(value):
    def forward(*arguments):
        arguments = value
        raise ValueError(arguments)

    with pytest.raises(ValueError) as raised:  # noqa: PT011
        forward(1)
    raise_interrupt(raised.value)


def test_an_error_that_is_its_own_cause_is_no_endless_loop():
    error = ValueError()
    error.__cause__ = error
    raise_interrupt(error)


def is_under_lock(frame: FrameType) -> bool:
    return frame.f_code.co_filename == guard.__file__ and not can_enter_from_elsewhere()


def can_enter_from_elsewhere() -> bool:
    """Return True if no thread holds one of the locks."""
    free: list[bool] = []

    def try_locks() -> None:
        for lock in (guard._USES.lock, guard._EAGER_MODE.lock):
            free.append(lock.acquire(blocking=False))
            if free[-1]:
                lock.release()

    thread = threading.Thread(target=try_locks)
    thread.start()
    thread.join()
    return all(free)


def explain_under_lock(inner: Callable[[], Any], results: list[Any]) -> None:
    for lock in (guard._USES.lock, guard._EAGER_MODE.lock):
        assert lock.acquire(blocking=False)  # a lock that cannot be taken again would hang
        lock.release()
    results.append(inner()[0].raw)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("is_same", [False, True])
def test_a_handler_may_explain_while_its_thread_holds_a_lock(is_same, is_compiled):
    model, other, image = Convolution().train(), Convolution().train(), torch.rand(1, 3, 32, 32)
    if is_compiled:
        model.features.compile(backend="eager")
        other.features.compile(backend="eager")
    explain = partial(camtool.explain, model, image, 1, layer="features.0")
    inner = partial(camtool.explain, model if is_same else other, image, 1, layer="features.0")
    expected, lines = explain()[0].raw, set[int]()

    def note(frame: FrameType) -> bool:
        if is_under_lock(frame):
            lines.add(frame.f_lineno)
        return False

    call_at(note, bool, explain)
    assert len(lines) > 10
    for line in lines:
        results: list[Any] = []
        result = call_at(
            lambda frame, line=line: frame.f_lineno == line and is_under_lock(frame),
            partial(explain_under_lock, inner, results),
            explain,
        )
        np.testing.assert_array_equal(result[0].raw, expected)
        np.testing.assert_array_equal(results, [expected])
        assert not guard._USES.by_model
        assert all(module.training for net in (model, other) for module in net.modules())
        assert guard._EAGER_MODE._stance is None
        assert torch._dynamo.eval_frame._stance.stance == "default"


def test_a_table_of_tensors_forgets_those_that_are_freed():
    table, kept = TensorTable(), torch.zeros(1)
    table[kept] = "kept"
    for number in range(1000):
        table[torch.zeros(1)] = number
    assert list(table.items()) == [(kept, "kept")]
    assert len(table.data) < 100
    assert torch.zeros(1) not in table
    assert table.pop(kept) == "kept"
    assert kept not in table
