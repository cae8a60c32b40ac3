"""Where the time of an explanation by an engine goes: ``python -m benchmarks engine_limits``.

Grad-CAM of a prepared batch in ONNX Runtime, and in eager PyTorch. Timers inside of one call give the time of each
stage, without the stages inside it; they are medians over many calls. The last stage is everything else. The graphs of
the engine, or the model's forward pass, are the limit of what can be reached: the other stages are camtool's and
PyTorch's own work. With "graphs replayed" the graphs return at once what they returned before, so that what is left is
all but the graphs. Run nothing else meanwhile.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import torch
import torchvision
import typer
from torch import Tensor

import camtool
from benchmarks.engines import make_engine_forward
from benchmarks.paired import describe_machine, make_forward, time_run
from camtool.engines import compiled
from camtool.engines.engine_runner import EngineRunner
from camtool.evidence.forward_pass import ForwardPass
from camtool.explaining import pipeline as batch_explainer
from camtool.explaining.pipeline import BatchExplainer
from camtool.hooks import observation
from camtool.hooks.state.cleanup import Cleanup
from camtool.inputs.input_preparer import InputPreparer

_CASES = (
    *(("onnxruntime", name, batch) for name in ("mobilenet_v2", "resnet18", "resnet50") for batch in (1, 8)),
    ("eager", "mobilenet_v2", 1),
)
_OUT = Path(__file__).with_suffix(".json")

_STAGES: dict[str, list[tuple[Any, str]]] = {
    "graphs of the engine": [(compiled, "_run")],
    "forward pass of the model": [(observation, "run_model")],
    "check that modules and weights are unchanged": [(EngineRunner, "_find"), (ForwardPass, "find_place")],
    "state of the model, random states": [(Cleanup, "__enter__"), (Cleanup, "__exit__")],
    "preparation and checks of the input": [(InputPreparer, "_prepare_tensor")],
    "PyTorch's backward call": [(torch.autograd, "grad")],
    "method": [(BatchExplainer, "compute_merged_maps")],
    "warnings": [(batch_explainer, "find_map_warnings")],
}
"""Stage → the owners and the names of the functions that do it."""

_REST = "the rest: hooks on modules, targets, result"


class _Timers:
    """Time of each stage in one call, without the stages inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = [0.0]

    def wrap(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that adds its time to a stage."""

        @wraps(function)
        def run_timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - started
                self.seconds[stage] = self.seconds.get(stage, 0.0) + taken - self._inside.pop()
                self._inside[-1] += taken

        return run_timed


def main(
    turns: Annotated[int, typer.Option(help="Measured explanations, of batches a quarter of them.")] = 200,
    threads: Annotated[int, typer.Option(help="Threads of torch and the engine.")] = 2,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file."""
    torch.set_num_threads(threads)
    rows = {", ".join(map(str, case)): _measure(*case, turns) for case in _CASES}
    for name, row in rows.items():
        print(name)
        for stage, milliseconds in row.items():
            print(f"  {milliseconds:6.2f} ms  {stage}")
    result = {"machine": describe_machine(threads), "turns": turns, "rows": rows}
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _measure(engine: Any, name: str, images: int, turns: int) -> dict[str, float]:
    """Return the milliseconds of each stage, of all together, and of the plain forward passes."""
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None).eval()
    batch = torch.randn(images, 3, 224, 224)
    classes = model(batch).detach().argmax(1).tolist()
    explainer = camtool.Explainer(model, engine=engine)
    for _ in range(5):  # the first calls compile and compare
        explainer(batch, classes)
        explainer.compute_maps(batch, classes)
    turns = turns if images == 1 else turns // 4
    forwards = {"plain forward pass of PyTorch": make_forward(model, batch)}
    if engine != "eager":
        forwards["plain forward pass of the engine"] = make_engine_forward(engine, model, batch)
    plain = {label: statistics.median(time_run(run) for _ in range(turns)) for label, run in forwards.items()}
    plain["maps without explanations"] = statistics.median(
        time_run(lambda: explainer.compute_maps(batch, classes)) for _ in range(turns)
    )
    if engine != "eager":
        plain |= _time_replayed(explainer, batch, classes, turns)
    calls = [_time_stages(lambda: explainer(batch, classes)) for _ in range(turns)]
    row = {stage: statistics.median(call[stage] for call in calls) for stage in calls[0]}
    return {stage: round(1000 * each, 2) for stage, each in {**row, **plain}.items() if each}


def _time_replayed(explainer: camtool.Explainer, batch: Tensor, classes: list[int], turns: int) -> dict[str, float]:
    """Return the seconds of an explanation and of maps whose graphs return at once what they returned before."""
    run_graph, results = compiled._run, dict[int, list[Tensor]]()

    def replay(graph: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
        if id(graph) not in results:
            results[id(graph)] = run_graph(graph, tensors)
        return results[id(graph)]

    with mock.patch.object(compiled, "_run", replay):
        maps = statistics.median(time_run(lambda: explainer.compute_maps(batch, classes)) for _ in range(turns))
        explanation = statistics.median(time_run(lambda: explainer(batch, classes)) for _ in range(turns))
    return {"explanation, graphs replayed": explanation, "maps, graphs replayed": maps}


def _time_stages(run: Callable[[], object]) -> dict[str, float]:
    timers = _Timers()
    with ExitStack() as stack:
        for stage, functions in _STAGES.items():
            for owner, function in functions:
                timed = timers.wrap(stage, getattr(owner, function))
                stack.enter_context(mock.patch.object(owner, function, timed))
        whole = time_run(run)
    found = {stage: timers.seconds.get(stage, 0.0) for stage in _STAGES}
    return {**found, _REST: whole - sum(found.values()), "explanation": whole}


if __name__ == "__main__":
    typer.run(main)
