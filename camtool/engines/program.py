"""A model as a program: one forward graph, and the gradient of each segment between observed layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from camtool.engines.gradient_graphs import trace_gradients
from camtool.engines.graph_capture import capture_model, get_results
from camtool.engines.graph_files import convert_to_onnx, export_graph, write_onnx
from camtool.engines.segments import split_at_layers

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


@dataclass(frozen=True)
class Program:
    """A captured model.

    Attributes:
        plan: What its graphs compute.
        graphs: The graphs by the names of their files.
        examples: The inputs of each graph, for two images where it runs on any number.
    """

    plan: Plan
    graphs: dict[str, fx.GraphModule]
    examples: dict[str, list[Tensor]]


def capture_program(model: nn.Module, images: Tensor, layers: Sequence[str]) -> Program:
    """Capture a model.

    Args:
        model: A copy of the model, in evaluation mode, that nothing else uses.
        images: ``(N, C, *size)``. A program for any number of images is tried first.
        layers: The observed layers.

    Raises:
        NotCompilableError: The model cannot be captured.
    """
    two = images[:1].expand(2, *images.shape[1:]).contiguous()
    capture = capture_model(model, two, layers)
    if not capture.has_any_batch_size and len(images) != len(two):
        capture = capture_model(model, images, layers)
    images = two if capture.has_any_batch_size else images
    segments = split_at_layers(capture)
    # A gradient may read more than layers, e.g. a skip connection. The forward graph returns these tensors, too.
    returned = get_results(capture.graph)
    capture.return_also([*dict.fromkeys(node for part in segments for node in part.others if node not in returned)])
    results = get_results(capture.graph)
    with torch.no_grad():
        values = list(capture.graph(images))
    plans = [
        SegmentPlan(f"gradient{number}.onnx", part.results, part.layers, [results.index(node) for node in part.others])
        for number, part in enumerate(segments)
    ]
    count = None if capture.has_any_batch_size else len(images)
    graphs, examples = {FORWARD: capture.graph}, {FORWARD: [images]}
    for segment, plan in zip(segments, plans, strict=True):
        inputs = [values[index] for index in [*plan.layers, *plan.others]]
        # A tensor for each, as a model may return one tensor twice, and torch.export would take the two for one input.
        weights = [torch.ones_like(values[index]) for index in plan.results]
        graphs[plan.file], examples[plan.file] = trace_gradients(segment, inputs), [*weights, *inputs]
    return Program(Plan(capture.layers, capture.output_count, count, plans), graphs, examples)


def write_program(program: Program, folder: Path) -> None:
    """Write the files of a program into an empty folder.

    Raises:
        NotCompilableError: ONNX lacks an operator.
    """
    for file, graph in program.graphs.items():
        examples = program.examples[file]
        exported = export_graph(graph, examples, has_any_batch_size=program.plan.image_count is None)
        names, results = (
            [f"{kind}{number}" for number in range(count)]
            for kind, count in (("input", len(examples)), ("result", len(get_results(graph))))
        )
        write_onnx(convert_to_onnx(exported, names, results), folder / file)
    (folder / _PLAN).write_text(json.dumps(asdict(program.plan)), encoding="utf-8")


def list_files(plan: Plan) -> list[str]:
    """Return the names of a program's graphs, which are those of their files."""
    return [FORWARD, *(segment.file for segment in plan.segments)]


def read_plan(folder: Path) -> Plan:
    """Return the plan of a program."""
    plan: dict[str, Any] = json.loads((folder / _PLAN).read_text(encoding="utf-8"))
    return Plan(**plan | {"segments": [SegmentPlan(**entry) for entry in plan["segments"]]})
