"""A model as ONNX files: one forward graph, and the gradient of each segment between observed layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from camtool.engines.capture import Capture, capture_model, get_results
from camtool.engines.gradients import trace_gradients
from camtool.engines.onnx_files import convert_to_onnx, export_graph, write_onnx
from camtool.engines.segments import Segment, split_at_layers

__all__ = ["Plan", "SegmentPlan", "read_plan", "write_program"]

FORWARD = "forward.onnx"
_PLAN = "plan.json"


@dataclass(frozen=True)
class SegmentPlan:
    """A segment, as numbers of results of the forward graph.

    Attributes:
        file: The file with its gradient.
        results: What it computes.
        layers: The layers that it starts from.
        others: What else its gradient reads.
    """

    file: str
    results: list[int]
    layers: list[int]
    others: list[int]


@dataclass(frozen=True)
class Plan:
    """The contents of the files of a program.

    Attributes:
        layers: The observed layers, in the order of their calls.
        output_count: The number of tensors of the model's output. They are the first results of the forward graph, the
            layers' outputs come next.
        image_count: The number of images that it runs on; ``None`` for any.
        segments: The segments, from the image to the output.
    """

    layers: list[str]
    output_count: int
    image_count: int | None
    segments: list[SegmentPlan]


def write_program(model: nn.Module, images: Tensor, layers: Sequence[str], folder: Path) -> None:
    """Compile a model and write its files.

    Args:
        model: A copy of the model, in evaluation mode, that nothing else uses.
        images: ``(N, C, *size)``. A program for any number of images is tried first.
        layers: The observed layers.
        folder: An empty folder.

    Raises:
        NotCompilableError: The model cannot be exported, or ONNX lacks an operator.
    """
    two = images[:1].expand(2, *images.shape[1:]).contiguous()
    capture = capture_model(model, two, layers)
    if not capture.has_any_batch_size and len(images) != len(two):
        capture = capture_model(model, images, layers)
    images = two if capture.has_any_batch_size else images
    segments = split_at_layers(capture)
    # A gradient may read more than layers, e.g. a skip connection. The forward graph returns these tensors, too.
    known = get_results(capture.graph)
    capture.return_also([*dict.fromkeys(each for part in segments for each in part.others if each not in known)])
    results = get_results(capture.graph)
    with torch.no_grad():
        values = list(capture.graph(images))
    _write(capture, capture.graph, [images], len(values), folder / FORWARD)
    plans = [
        _write_segment(capture, segment, results, values, f"gradient{number}.onnx", folder)
        for number, segment in enumerate(segments)
    ]
    count = None if capture.has_any_batch_size else len(images)
    plan = Plan(capture.layers, capture.output_count, count, plans)
    (folder / _PLAN).write_text(json.dumps(asdict(plan)), encoding="utf-8")


def read_plan(folder: Path) -> Plan:
    """Return the plan of a program."""
    plan: dict[str, Any] = json.loads((folder / _PLAN).read_text(encoding="utf-8"))
    return Plan(**plan | {"segments": [SegmentPlan(**each) for each in plan["segments"]]})


def _write_segment(
    capture: Capture,
    segment: Segment,
    results: Sequence[fx.Node],
    values: Sequence[Tensor],
    file: str,
    folder: Path,
) -> SegmentPlan:
    others = [results.index(node) for node in segment.others]
    inputs = [values[index] for index in [*segment.layers, *others]]
    gradients = trace_gradients(segment, inputs)
    # A tensor for each, as a model may return one tensor twice, and torch.export would take the two for one input.
    weights = [torch.ones_like(values[index]) for index in segment.results]
    _write(capture, gradients, [*weights, *inputs], len(segment.layers), folder / file)
    return SegmentPlan(file, segment.results, segment.layers, others)


def _write(capture: Capture, graph: nn.Module, examples: Sequence[Tensor], count: int, path: Path) -> None:
    program = export_graph(graph, examples, has_any_batch_size=capture.has_any_batch_size)
    names, results = (
        [f"{kind}{number}" for number in range(length)]
        for kind, length in (("input", len(examples)), ("result", count))
    )
    write_onnx(convert_to_onnx(program, names, results), path)
