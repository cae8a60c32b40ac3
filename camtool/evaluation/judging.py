"""What an evaluation asks for, candidates and metrics, and the metrics of the maps of candidates on a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from camtool.arguments.message_parts import suggest_names
from camtool.errors import CamtoolError, MethodError, MetricError
from camtool.evaluation.annotations import InputTruth
from camtool.evaluation.subject import Candidate, CandidateMaps, LabeledBatch, Subject, map_candidates
from camtool.methods import METHODS, find_method
from camtool.trust.metrics import METRICS, Metric, MetricInputs
from camtool.trust.metrics.metric_registry import draw_random_maps

# Name of a metric → its options.
MetricOptions: TypeAlias = "Mapping[str, Mapping[str, Any]]"

DEFAULT = ("single-deletion", "deletion", "insertion", "average-drop")
DEFAULT_WITH_TRUTH = ("energy-in-mask", "pointing-game")

_NOT_OFFERED = {
    "difull": "it needs a model that sees each image of a mosaic alone, and no rule tells where the trunk of any model "
    "ends. Split yours by hand, e.g. DisconnectedModel(net.features, head), and call compute_difull; both are in "
    "camtool.trust.metrics.mosaics, and docs/trust.md shows how. grid-pointing-game needs no such model"
}
_OF_TRUTH = frozenset(["masks", "boxes"])
# Maps for each image that ``random-agreement`` compares with.
_RANDOM_MAPS = 3


# What methods need that no classifier has: these methods are left out where all methods are asked for.
_OTHER_NEEDS = frozenset({"text", "a detector"})


def list_candidates(methods: Sequence[str] | str, layers: Sequence[str] | None) -> list[Candidate]:
    """Return each method at each layer, without duplicates; methods at the input once.

    Args:
        methods: Names; or ``"all"`` for every method that explains a class, or ``"fast"`` for those of at most one
            backward pass.
        layers: Names of layers; ``None`` for the layer that camtool finds.

    Raises:
        MethodError: A name is unknown, what came is no name, or there is none.
    """
    _check_names("methods", methods)
    chosen = [""] if layers is None else [layers] if isinstance(layers, str) else layers
    _check_names("layers", chosen)
    names = {name: find_method(name).ignores_layer for name in _list_methods(methods)}
    candidates = [
        Candidate(name, "" if ignores_layer else layer) for name, ignores_layer in names.items() for layer in chosen
    ]
    return list(dict.fromkeys(candidates))


def _check_names(argument: str, names: Any) -> None:
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise MethodError(f"{argument} must be a list of names, got {names!r}.")
    if not names:
        raise MethodError(f"{argument} asks for nothing; give one or more.")


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


def choose_metrics(
    metrics: Sequence[str] | MetricOptions | str | None, *, has_truth: bool
) -> dict[str, dict[str, Any]]:
    """Return the metrics that were asked for, with their options.

    Args:
        metrics: Names; names with options; ``"all"`` for each that can be computed; ``None`` for the usual ones.
        has_truth: Whether the objects in the images are known.

    Raises:
        MetricError: A name or an option is unknown, or a metric needs what is not known.
    """
    if metrics == "all":
        return {name: {} for name, metric in METRICS.items() if not _describe_obstacle(metric, has_truth=has_truth)}
    if metrics is None:
        metrics = DEFAULT + (DEFAULT_WITH_TRUTH if has_truth else ())
    chosen = _read_options(metrics)
    for name, options in chosen.items():
        _check_metric(name, options, has_truth=has_truth)
    return {name: dict(options) for name, options in chosen.items()}


def _read_options(metrics: Any) -> Mapping[str, Any]:
    """Return name → what was given as options.

    Raises:
        MetricError: A name is no text, or there is none.
    """
    names = [metrics] if isinstance(metrics, str) or not isinstance(metrics, Iterable) else [*metrics]
    if not all(isinstance(name, str) for name in names):
        raise MetricError(f"metrics must be names, or a dictionary from names to options, got {metrics!r}.")
    if not names:
        raise MetricError("metrics asks for nothing; give one or more names.")
    return metrics if isinstance(metrics, Mapping) else {name: {} for name in names}


def _check_metric(name: str, options: Any, *, has_truth: bool) -> None:
    if name not in METRICS:
        names = ", ".join(METRICS)
        raise MetricError(f"metrics: {name!r} is unknown.{suggest_names(name, METRICS)} The metrics are {names}.")
    if not isinstance(options, Mapping):
        raise MetricError(f"metrics[{name!r}] must be a dictionary of options, got {options!r}; {{}} for none.")
    METRICS[name].check_options(options)
    obstacle = _describe_obstacle(METRICS[name], has_truth=has_truth)
    if obstacle:
        raise MetricError(f"metrics: {name!r} cannot be computed: {obstacle}.")


def _describe_obstacle(metric: Metric, *, has_truth: bool) -> str:
    if metric.name in _NOT_OFFERED:
        return _NOT_OFFERED[metric.name]
    return "it needs truth=, masks or boxes of the objects" if _OF_TRUTH & {*metric.needs} and not has_truth else ""


class Judge:
    """Computes metrics of candidates on one batch.

    Args:
        subject: The model.
        labeled: The images and their classes.
        truth: The objects in the images, if they are known.
        seed: The seed of everything random.
    """

    def __init__(self, subject: Subject, labeled: LabeledBatch, truth: InputTruth | None, seed: int) -> None:
        self._subject, self._labeled, self._seed = subject, labeled, seed
        self._inputs = MetricInputs(
            labeled.images,
            torch.empty(0, device="cpu"),
            probability=subject.make_score(labeled, "probability"),
            logit=subject.make_score(labeled, "logit"),
            model=subject.model,
            classes=labeled.classes,
            masks=None if truth is None else truth.masks.to(labeled.images.device),
            boxes=None if truth is None else truth.boxes,
        )

    def map_candidates(self, group: Sequence[Candidate]) -> list[CandidateMaps]:
        """Return the maps of candidates that share a forward pass.

        Raises:
            CamtoolError: One of them cannot explain this model.
        """
        return map_candidates(self._subject.explainer, group, self._labeled.batch, self._labeled.classes.tolist())

    def judge(
        self, candidate: Candidate, maps: Tensor, metrics: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each metric of maps ``(N, H, W)`` with its ``"values"``, or with the ``"error"`` in their place."""
        inputs = replace(self._inputs, maps=maps, explain=self._subject.make_explain(candidate, self._labeled.classes))
        for name, options in metrics.items():
            metric = METRICS[name]
            try:
                seed = {"seed": self._seed} if "seed" in metric.options else {}
                values = metric.compute(self._complete(inputs, candidate, metric), **{**seed, **options})
                yield name, {"values": values.tolist()}
            except CamtoolError as error:
                yield name, {"error": str(error)}

    def _complete(self, inputs: MetricInputs, candidate: Candidate, metric: Metric) -> MetricInputs:
        """Return the inputs with what few metrics need."""
        if "other_maps" in metric.needs:
            unlikely = self._labeled.unlikely.tolist()
            (others,) = map_candidates(self._subject.explainer, [candidate], self._labeled.batch, unlikely)
            return replace(inputs, other_maps=others.maps)
        if "random_maps" in metric.needs:
            drawn = [draw_random_maps(inputs.images, seed=self._seed + draw) for draw in range(_RANDOM_MAPS)]
            return replace(inputs, random_maps=torch.stack(drawn))
        return inputs
