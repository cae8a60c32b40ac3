"""Ctrl-C at any moment: no change of the model or of the thread is left."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.hooks.private_torch import save_function_modes
from camtool.hooks.state.cleanup import Cleanup
from tests.helpers.block_ends import ends_block
from tests.helpers.warm_processes import run_program
from tests.hooks.state.test_no_trace import Attend, Counts, Draws, net, pictures, same, snapshot

PACKAGE = Path(camtool.__file__).parent

GUARDED = {"hooks", "recorder", "evidence", "explaining"}
"""The packages and modules of which every line is interrupted: they change the model or the thread, and undo it."""

MOMENTS = 100
"""How many of a run's lines are tried, evenly spread: with all of them it takes a quarter of an hour, and passes."""

SIGNALS = 150
"""How many signals each run gets, at random moments: 750 in all."""


# ------------------------------------------------------------------------------------------------- the cleanup itself


def test_steps_run_in_reverse_order_even_if_some_raise() -> None:
    ran: list[int] = []

    def fail() -> None:
        ran.append(1)
        raise ValueError("a step")

    steps = (lambda: ran.append(0), fail, lambda: ran.append(2))
    with pytest.raises(ValueError, match="a step"), Cleanup(lambda cleanup: [*map(cleanup.push, steps)]):
        pass
    assert ran == [2, 1, 1, 0]  # a step that raised is tried once more


def test_a_step_cut_short_by_an_interrupt_runs_again_and_the_interrupt_is_raised() -> None:
    ran: list[str] = []

    def interrupted() -> None:
        ran.append("step")
        if len(ran) == 1:
            raise KeyboardInterrupt

    steps = (lambda: ran.append("first"), interrupted)
    with pytest.raises(KeyboardInterrupt), Cleanup(lambda cleanup: [*map(cleanup.push, steps)]):
        pass
    assert ran == ["step", "step", "first"]


def test_an_outer_block_closes_an_inner_block_whose_exit_never_ran() -> None:
    ran: list[str] = []
    with Cleanup():
        inner = Cleanup()
        inner.__enter__()
        inner.push(lambda: ran.append("inner"))
    assert ran == ["inner"]
    with Cleanup() as later:
        later.push(lambda: ran.append("later"))
        inner.close()  # as a generator's end may do it, when somebody drops the traceback
        assert ran == ["inner"]
    assert ran == ["inner", "later"]


def test_a_block_that_fails_at_its_beginning_undoes_its_changes() -> None:
    ran: list[str] = []

    def prepare(cleanup: Cleanup) -> None:
        cleanup.push(lambda: ran.append("undone"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Cleanup(prepare):
        pytest.fail("the block ran")
    assert ran == ["undone"]


# ----------------------------------------------------------------------------------------------- what is interrupted


def mixed() -> nn.Sequential:
    """A model with mixed training flags, which draws random numbers and writes to its buffers."""
    model = net(draws=Draws(), counts=Counts()).train()
    model.norm.eval()
    return model


def explain(model: nn.Module, x: Tensor) -> None:
    camtool.explain(model, x, 1, layer="relu2")


def explain_attention(model: nn.Module, x: Tensor) -> None:
    camtool.explain(model, x, 1, method="legrad")


def explain_in_inference_mode(model: nn.Module, x: Tensor) -> None:
    with torch._C._InferenceMode(True):  # Python's own around it can lose its end to an interrupt
        camtool.explain(model, x, 1, method="ablationcam", layer="relu2")


def record(model: nn.Module, x: Tensor) -> None:
    with camtool.Recorder(model, inputs=True, gradients=True):
        model(x).sum().backward(inputs=[x])


def record_until_the_last(model: nn.Module, x: Tensor) -> None:
    camtool.Recorder(model, ["conv1", "relu1"], stop_after_last=True).run(x)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], None]]] = {
    "mixed flags": (mixed, explain),
    "attention": (lambda: net(attend=Attend(4)), explain_attention),
    "inference mode": (mixed, explain_in_inference_mode),
    "recorder": (lambda: net(), record),
    "recorder's run": (lambda: net(), record_until_the_last),
}


@contextmanager
def interrupted_at(count: int, met: list[str]) -> Iterator[None]:
    """Raise KeyboardInterrupt ahead of the line or call of that number in the guarded files; list what was met."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(PACKAGE) or Path(path.relative_to(PACKAGE).parts[0]).stem not in GUARDED:
            return None
        if event == "call" or (event == "line" and not ends_block(frame)):
            met.append(f"{path.name}:{frame.f_lineno} {event}")
            if len(met) - 1 == count:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # where Python cannot pass it on
@pytest.mark.parametrize("case", CASES)
def test_an_interrupt_before_any_line_leaves_no_change(case: str) -> None:
    """In a thread of its own: where an exception is raised between two lines, Python may handle it for ever there."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(interrupt_each_line, case).result()


def interrupt_each_line(case: str) -> None:
    make, run = CASES[case]
    model, x = make(), pictures().requires_grad_()
    run(model, x)
    run(model, x)  # caches are warm
    met: list[str] = []
    with interrupted_at(-1, met):
        run(model, x)
    before, left = snapshot(model), []
    for count in range(0, len(met), max(1, len(met) // MOMENTS)):
        reached: list[str] = []
        try:
            with interrupted_at(count, reached):
                run(model, x)
        except KeyboardInterrupt as interrupt:  # the traceback is alive: nothing is left to the garbage collector
            after = snapshot(model)
            traces = [key for key in before if not same(before[key], after[key])]
            left += [(reached[-1], traces)] if traces else []
            del interrupt
    assert left == []
    assert len(met) > 100


def time_of(run: Callable[[nn.Module, Tensor], None], model: nn.Module, x: Tensor) -> float:
    began = time.perf_counter()
    run(model, x)
    return time.perf_counter() - began


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no interval timers")
@pytest.mark.parametrize("case", CASES)
def test_a_signal_at_a_random_moment_leaves_no_change(case: str) -> None:
    """In a process of its own, as signals could reach the other threads of one that has run many tests."""
    run_program(f"from tests.hooks.state.test_interrupts import send_signals; send_signals({case!r})")


def send_signals(case: str) -> None:
    """Interrupt the runs of a case at random moments, and check that they leave no change."""
    make, run = CASES[case]
    model, x = make(), pictures().requires_grad_()
    run(model, x)
    duration, dice = min(time_of(run, model, x) for _ in range(10)), np.random.default_rng(0)
    before, left, interrupted = snapshot(model), [], 0

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(SIGNALS):
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 1.2 * duration))
                run(model, x)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt as error:
                interrupted += 1
                after = snapshot(model)
                left += [key for key in before if not same(before[key], after[key])]
                del error
            # Now that the traceback is freed, so are the generators of torch in it.
            left += ["function modes"] if save_function_modes() else []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert left == []
    assert interrupted > SIGNALS / 10  # on a busy machine some runs end early
