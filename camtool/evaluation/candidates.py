"""Candidates: methods at layers, and their maps of a batch. Candidates of one layer share a forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from camtool.errors import MethodError
from camtool.explaining.device_maps import DeviceMaps
from camtool.explaining.explanation import Explanation
from camtool.explaining.pipeline import BatchExplainer
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard
from camtool.inputs.prepared_inputs import InputBatch
from camtool.methods import METHODS, adapt_method, find_method
from camtool.methods.registry import read_depths
from camtool.targets import ClassScore

_OTHER_NEEDS = frozenset({"text", "a detector"})
"""What methods need that no classifier has: these methods are left out where all methods are asked for."""


@dataclass(frozen=True, order=True)
class Candidate:
    """A method at a layer.

    Attributes:
        method: The name of the method.
        layer: The name of the layer; ``""`` for the one that camtool finds.
    """

    method: str
    layer: str = ""

    def __str__(self) -> str:
        return f"{self.method} at {self.layer}" if self.layer else self.method


@dataclass(frozen=True, eq=False)
class CandidateMaps:
    """The maps of one candidate for a batch.

    Attributes:
        maps: ``(N, H, W)`` in [0, 1], at the size of the inputs.
        layer: The layer that was explained; ``""`` for methods at the input.
    """

    maps: Tensor
    layer: str


def list_candidates(methods: Sequence[str] | str, layers: Sequence[str] | None) -> list[Candidate]:
    """Return each method at each layer, without duplicates; methods at the input once.

    Args:
        methods: Names; or ``"all"`` for every method that explains a class, or ``"fast"`` for those of at most one
            backward pass.
        layers: Names of layers; ``None`` for the layer that camtool finds.

    Raises:
        MethodError: A name is unknown, what came is no name, or there is none.
    """
    places = [""] if layers is None else [layers] if isinstance(layers, str) else layers
    for argument, given in (("methods", methods), ("layers", places)):
        if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
            raise MethodError(f"{argument} must be a list of names, got {given!r}.")
        if not given:
            raise MethodError(f"{argument} asks for nothing; give one or more.")
    candidates = [
        Candidate(name, "" if find_method(name).ignores_layer else layer)
        for name in _list_methods(methods)
        for layer in places
    ]
    return list(dict.fromkeys(candidates))


def _list_methods(methods: Sequence[str] | str) -> list[str]:
    if isinstance(methods, str) and methods in ("all", "fast"):
        usable = [method for method in METHODS.values() if not method.needs & _OTHER_NEEDS]
        return [method.name for method in usable if methods == "all" or method.cost == "a pass"]
    return [methods] if isinstance(methods, str) else [*methods]


def list_groups(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return the candidates in groups that share a forward pass: those that need no other one, by layer."""
    shared: dict[str, list[Candidate]] = {}
    alone = []
    for candidate in candidates:
        if find_method(candidate.method).cost == "a pass":
            shared.setdefault(candidate.layer, []).append(candidate)
        else:
            alone.append([candidate])
    return [*shared.values(), *alone]


def map_candidates(
    explainer: BatchExplainer, group: Sequence[Candidate], batch: InputBatch, classes: Sequence[int]
) -> list[CandidateMaps]:
    """Return the maps of each candidate of a group, from one forward pass.

    Args:
        explainer: The model and its settings; methods and layers are those of the group.
        group: Candidates at one layer.
        batch: The images.
        classes: The class of each image.

    Raises:
        CamtoolError: A method cannot explain this model at this layer.
    """
    methods = [adapt_method(find_method(candidate.method), explainer.model) for candidate in group]
    layer = group[0].layer
    own = replace(
        explainer,
        methods=methods,
        has_many_methods=True,
        layers=[layer] if layer else None,
        depths=read_depths(methods, {}),
    )
    with Cleanup(), guard(explainer.model):
        results: list[list[Explanation]] = own.explain(batch, [ClassScore(index) for index in classes])
    return [_join(of_candidate, batch) for of_candidate in zip(*results, strict=True)]


def _join(results: Sequence[Explanation], batch: InputBatch) -> CandidateMaps:
    size = batch.items[0].tensor.shape[-2:]
    maps = [DeviceMaps(torch.from_numpy(result.raw)[None], result.centers).to_heatmaps(size) for result in results]
    return CandidateMaps(torch.cat(maps).to(batch.items[0].tensor.device), results[0].layer)
