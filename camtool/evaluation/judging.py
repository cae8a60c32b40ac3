"""Metrics of the maps of candidates on a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from camtool.arguments.messages import suggest_names
from camtool.errors import CamtoolError, MetricError
from camtool.evaluation.annotations import InputTruth
from camtool.evaluation.candidates import Candidate, CandidateMaps, map_candidates
from camtool.evaluation.subject import LabeledBatch, Subject
from camtool.trust.metrics import METRICS, Metric, MetricInputs
from camtool.trust.metrics.registry import draw_random_maps

MetricOptions: TypeAlias = "Mapping[str, Mapping[str, Any]]"
"""Name of a metric → its options."""

DEFAULT = ("single-deletion", "deletion", "insertion", "average-drop")
DEFAULT_WITH_TRUTH = ("energy-in-mask", "pointing-game")

_NOT_OFFERED = {
    "difull": "it needs a model that sees each image of a mosaic alone, and no rule tells where the trunk of any model "
    "ends. Split yours by hand, e.g. DisconnectedModel(net.features, head), and call compute_difull; both are in "
    "camtool.trust.metrics.mosaics, and docs/trust.md shows how. grid-pointing-game needs no such model"
}
_OF_TRUTH = frozenset(["masks", "boxes"])
_RANDOM_MAPS = 3
"""Maps for each image that ``random-agreement`` compares with."""


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
    names = [metrics] if isinstance(metrics, str) or not isinstance(metrics, Iterable) else [*metrics]
    if not all(isinstance(name, str) for name in names):
        raise MetricError(f"metrics must be names, or a dictionary from names to options, got {metrics!r}.")
    if not names:
        raise MetricError("metrics asks for nothing; give one or more names.")
    chosen = {name: metrics[name] if isinstance(metrics, Mapping) else {} for name in names}
    for name, options in chosen.items():
        _check_metric(name, options, has_truth=has_truth)
    return {name: dict(options) for name, options in chosen.items()}


def _check_metric(name: str, options: Any, *, has_truth: bool) -> None:
    if name not in METRICS:
        known = ", ".join(METRICS)
        raise MetricError(f"metrics: {name!r} is unknown.{suggest_names(name, METRICS)} The metrics are {known}.")
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
    ) -> Iterator[tuple[str, Tensor | CamtoolError]]:
        """Yield each metric of maps ``(N, H, W)`` as numbers ``(N,)``, or as the error that says why there are none."""
        inputs = replace(self._inputs, maps=maps, explain=self._subject.make_explain(candidate, self._labeled.classes))
        for name, options in metrics.items():
            metric = METRICS[name]
            try:
                seed = {"seed": self._seed} if "seed" in metric.options else {}
                yield name, metric.compute(self._complete(inputs, candidate, metric), **{**seed, **options})
            except CamtoolError as error:
                yield name, error

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
