"""Forward passes that end after the last recorded layer."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

from camtool import Recorder
from tests.helpers.memory import live_tensors
from tests.recorder.models import (
    hooks_on,
    identity_layer,
)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return x + 1


def test_a_run_can_end_after_the_last_recorded_layer() -> None:
    model = nn.Sequential(Counted(), nn.Sequential(Counted(), Counted()), Counted())
    recorder = Recorder(model, ["1.0", "0"], stop_after_last=True)
    assert recorder.run(torch.zeros(1)) is None
    assert [record.outputs[0].item() for _, record in recorder] == [2, 1]
    assert [module.runs for module in model.modules() if isinstance(module, Counted)] == [1, 1, 0, 0]
    with recorder:
        assert model(torch.zeros(1)).item() == 4  # the model's own call is not cut short
        assert recorder.run([torch.zeros(1)]) is None
    assert len(recorder["0"].outputs) == 3
    assert hooks_on(model) == 0


def test_a_complete_run_returns_the_output() -> None:
    model = nn.Sequential(Counted(), Counted())
    recorder = Recorder(model, "0")
    assert recorder.run(torch.zeros(1)).item() == 2
    whole = Recorder(model, stop_after_last=True)
    assert whole.run(torch.zeros(1)).item() == 2  # as the model itself is recorded
    assert whole["1"].outputs[0].item() == 2


class Guarded(nn.Module):
    """Goes on where a part of it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.rest = Counted(), Counted()

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.part(x)
        except Exception:  # noqa: BLE001
            return x
        return self.rest(x)


def test_a_model_that_catches_exceptions_does_not_catch_the_early_end() -> None:
    model = Guarded()
    assert Recorder(model, "part", stop_after_last=True).run(torch.zeros(1)) is None
    assert model.rest.runs == 0


def test_each_of_nested_recorders_ends_its_own_run() -> None:
    model = nn.Sequential(Counted(), Counted(), Counted())
    outer, inner = Recorder(model, "1", stop_after_last=True), Recorder(model, ["0"], stop_after_last=True)
    with outer:
        assert inner.run(torch.zeros(1)) is None
        assert outer["1"].calls == 0
        assert inner["0"].calls == 1
        with inner:
            assert outer.run(torch.zeros(1)) is None
    assert (outer["1"].calls, inner["0"].calls, model[2].runs) == (1, 2, 0)


class Runs(nn.Module):
    """Has a part of it run by a recorder."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.recorder = part, Recorder(part, "1", stop_after_last=True)

    def forward(self, x: Tensor) -> Tensor:
        assert self.recorder.run(x) is None
        return x + 1


def test_a_run_inside_another_does_not_catch_the_end_of_the_other() -> None:
    model = Runs(nn.Sequential(Counted(), Counted(), Counted()))
    assert Recorder(model, "part.0", stop_after_last=True).run(torch.zeros(1)) is None
    assert [module.runs for module in model.part] == [1, 0, 0]
    assert model(torch.zeros(1)).item() == 1
    assert [module.runs for module in model.part] == [2, 1, 0]


def test_calls_that_never_ended_keep_nothing_alive() -> None:
    model = nn.Sequential(nn.Sequential(identity_layer(2), nn.ReLU()), Counted())
    outer = Recorder(model, ["0", ""], gradients=True, keep="last")
    inner = Recorder(model, "0.0", stop_after_last=True)

    def run(times: int) -> int:
        for _ in range(times):
            inner.run(torch.ones(1, 2, requires_grad=True))
        inner["0.0"]._recorded_calls.clear()
        gc.collect()
        return live_tensors()

    with outer:
        assert run(2) == run(5)
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert outer["0"].grad_inputs[-1].tolist() == [[1, 1]]
    assert (outer["0"].calls, outer[""].calls) == (8, 8)


def test_an_error_in_a_run_is_raised() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(2, 1))
    recorder = Recorder(model, "1", stop_after_last=True)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        recorder.run(torch.ones(1, 3))
    assert hooks_on(model) == 0
    assert recorder.run(torch.ones(1, 2)) is None
