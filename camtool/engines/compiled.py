"""Run a model as compiled graphs: the same results as :func:`camtool.hooks.observation.run_with_hooks`.

The forward graph returns the model's output and the layers' outputs at once. Autograd then sees each segment between
layers as one operation, whose backward pass is a graph of its own. So targets, methods and all else compute with
ordinary tensors, and any function of the output can be explained.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from camtool.engines.graph_files import refuse_faults
from camtool.engines.program import FORWARD, Plan, SegmentPlan, list_files, read_plan
from camtool.engines.runtimes import FileGraph, Graph, open_session
from camtool.hooks.observation import Observation, Repeat
from camtool.hooks.structures.nested_tensors import map_tensors


class CompiledModel:
    """A model as compiled graphs.

    Args:
        plan: What the graphs compute.
        graphs: The graphs by the names of their files.
        structure: The model's output for any image; its tensors are replaced.

    Attributes:
        image_count: The number of images that it runs on; ``None`` for any.
    """

    def __init__(self, plan: Plan, graphs: Mapping[str, Graph], structure: Any) -> None:
        self._plan, self._graphs, self._structure = plan, graphs, structure
        self.image_count = plan.image_count

    @classmethod
    def open(cls, runtime: str, folder: Path, structure: Any, threads: int) -> CompiledModel:
        """Return the model whose program is in a folder.

        Args:
            runtime: The name of the runtime.
            folder: The folder.
            structure: As above.
            threads: The number of threads that the graphs run in.

        Raises:
            NotCompilableError: The runtime lacks an operator.
        """
        plan = read_plan(folder)
        graphs = {file: FileGraph(open_session(runtime, folder / file, threads)) for file in list_files(plan)}
        return cls(plan, graphs, structure)

    def warm_up(self, images: Tensor) -> None:
        """Run all graphs once, for runtimes that compile a graph when it first runs.

        Raises:
            NotCompilableError: The runtime fails.
        """
        values = _run(self._graphs[FORWARD], [images])
        for plan in self._plan.segments:
            weights = [torch.ones_like(values[index]) for index in plan.results]
            inputs = [values[index] for index in [*plan.layers, *plan.others]]
            _run(self._graphs[plan.file], [*weights, *inputs])

    def run(self, images: Tensor, *, grad: bool) -> Observation:
        """Run the model on images ``(N, C, *size)``; see :func:`camtool.hooks.observation.run_with_hooks`."""
        values = _run(self._graphs[FORWARD], [images])
        can_repeat = grad and self.image_count is None and all(value.shape[:1] == images.shape[:1] for value in values)
        repeat = partial(self._repeat, list(values)) if can_repeat else None
        if grad:
            # The first layers are those that no segment leads to.
            reached = {index for plan in self._plan.segments for index in plan.results}
            layers = range(self._plan.output_count, self._plan.output_count + len(self._plan.layers))
            self._connect(values, [index for index in layers if index not in reached], self._plan.segments)
        return self._build_observation(values, repeat)

    def _build_observation(self, values: Sequence[Tensor], repeat: Repeat | None) -> Observation:
        count = self._plan.output_count
        output = iter(values[:count])
        calls = {layer: [value] for layer, value in zip(self._plan.layers, values[count:], strict=False)}
        return Observation(map_tensors(self._structure, lambda _: next(output)), calls, repeat)

    def _repeat(self, values: Sequence[Tensor], images: Sequence[int], layers: Collection[str]) -> Observation:
        """Return the observation of some images again, each as often as it is named, without running the model.

        Args:
            values: What the forward graph returned.
            images: The index of each row's image.
            layers: The layers to which gradients lead.
        """
        starts = [index + self._plan.output_count for index, name in enumerate(self._plan.layers) if name in layers]
        used, segments = set(starts) | set(range(self._plan.output_count)), []
        for plan in self._plan.segments:
            if used.intersection(plan.layers):
                segments.append(plan)
                used |= {*plan.results, *plan.layers, *plan.others}
        index = torch.tensor(list(images), device="cpu")
        rows = [tensor.detach()[index] if slot in used else tensor.detach() for slot, tensor in enumerate(values)]
        self._connect(rows, starts, segments)
        return self._build_observation(rows, None)

    def _connect(self, values: list[Tensor], starts: Sequence[int], segments: Sequence[SegmentPlan]) -> None:
        """Put the results of the forward graph on a graph of autograd, in place, from some layers to the output."""
        for index in starts:
            values[index].requires_grad_()
        with torch.enable_grad():
            for plan in segments:
                others = [values[index].detach() for index in plan.others]
                results = [values[index].detach() for index in plan.results]
                layers = [values[index] for index in plan.layers]
                connected = _Segment.apply(self._graphs[plan.file], len(results), *results, *layers, *others)
                for index, value in zip(plan.results, cast("tuple[Tensor, ...]", connected), strict=True):
                    values[index] = value


class _Segment(torch.autograd.Function):
    """A segment, whose results are known already."""

    @staticmethod
    def forward(ctx: Any, gradient: Graph, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.gradient, ctx.count = gradient, count
        ctx.save_for_backward(*tensors[count:])
        return tuple(tensor.clone() for tensor in tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *weights: Tensor) -> tuple[Tensor | None, ...]:
        # Several weightings at once (is_grads_batched) raise a RuntimeError here; then they come one by one.
        # The file returns the gradient of each layer for weights of the results, then layers and others.
        gradients = _run(ctx.gradient, [*weights, *ctx.saved_tensors])
        unused = [None] * (len(ctx.saved_tensors) - len(gradients))
        return (None, None, *[None] * ctx.count, *gradients, *unused)


def _run(graph: Graph, tensors: Sequence[Tensor]) -> list[Tensor]:
    with refuse_faults("the runtime fails"):
        return graph.run(tensors)
