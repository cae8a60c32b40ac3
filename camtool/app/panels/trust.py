"""Can this map be trusted? The check-up in sentences, and the curves of deletion and insertion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gradio as gr
import torch
from PIL import Image
from torch import Tensor

import camtool

# At run time, as Gradio evaluates the annotations of event handlers.
from camtool.app.context import PageContext, Session
from camtool.app.panels.outputs import resolve_target
from camtool.app.panels.panel import Built, draw_hint, get_subject
from camtool.arguments.messages import format_count
from camtool.explanation import Explanation
from camtool.inference.folded_model import FoldedModel
from camtool.models import Loaded, to_loaded
from camtool.outputs.predictions import to_batch
from camtool.targets import Target, score_targets
from camtool.trust.metrics import METRICS
from camtool.trust.metrics.faithfulness import iterate_curve
from camtool.trust.metrics.random_maps import draw_random_maps
from camtool.warning_codes import WARNING_KINDS

if TYPE_CHECKING:
    from camtool.trust.checks.check_report import CheckReport
    from camtool.trust.metrics import Score
    from camtool.warning_codes import Severity

__all__ = ["CheckUp", "Curve", "Sentence", "TrustCurves", "build", "check_up", "iterate_curves"]

CURVES = {"deletion": False, "insertion": True}
"""Name of the metric → whether pixels are inserted."""

_STEPS, _RANDOM_MAPS = 20, 3
"""Points of a curve beside the first one, as in the metric, and random maps that the chance level is the mean of."""

_POINTS_AT_ONCE = 7
"""Points of a curve between two updates on the page: three updates for each curve."""


# -------------------------------------------------------------------------------------------------------- check-up


@dataclass(frozen=True)
class Sentence:
    """One finding of the check-up.

    Attributes:
        code: The name of its kind, e.g. ``"border-heat"``.
        severity: ``"warning"``, a reason not to trust the map, or ``"note"``.
        text: What was found.
        remedy: What the user can do; empty if the text says it.
    """

    code: str
    severity: Severity
    text: str
    remedy: str


@dataclass(frozen=True)
class CheckUp:
    """Result of the check-up of a map.

    Attributes:
        is_fine: True if there is no reason not to trust the map.
        summary: One or two sentences in plain words.
        sentences: The findings, warnings first.
        skipped: What was not checked, and why: one sentence each.
    """

    is_fine: bool
    summary: str
    sentences: tuple[Sentence, ...]
    skipped: tuple[str, ...]


def check_up(explanation: Explanation) -> CheckUp:
    """Run the checks of an explanation, and return what they say. It takes about seven explanations.

    Raises:
        CamtoolError: The explanation was loaded from a pickle, so its model is unknown.
    """
    report = explanation.check()
    sentences = tuple(
        Sentence(each.code, each.severity, each.sentence, _find_remedy(each.code)) for each in report.findings
    )
    skipped = tuple(f"{name}: {reason}" for name, reason in report.skipped.items())
    return CheckUp(report.ok, _summarize(report), sentences, skipped)


def _find_remedy(code: str) -> str:
    """Return the remedy of a code; empty if the sentence itself says what to do."""
    remedy = WARNING_KINDS[code].remedy
    return "" if remedy == "See the sentence." else remedy


def _summarize(report: CheckReport) -> str:
    warnings, notes = len(report.warnings), len(report.findings) - len(report.warnings)
    if warnings:
        reasons = format_count(warnings, "reason")
        return f"There {'is' if warnings == 1 else 'are'} {reasons} not to trust this map."
    fine = "Nothing speaks against this map. This does not prove that it is right: the checks find known faults only."
    return f"{fine} {format_count(notes, 'fact')} to know." if notes else fine


# ---------------------------------------------------------------------------------------------------------- curves


@dataclass(frozen=True)
class Curve:
    """The curve of one metric, while it is computed and in the end.

    Attributes:
        name: ``"deletion"`` or ``"insertion"``.
        fractions: The share of the pixels that is removed or inserted, 0 to 1, at each point so far.
        scores: The score at each point so far.
        random: The mean score of random maps at each point; empty until it is known.
        area: The area under the curve, the value of the metric; None until it is known.
        chance: The mean area of random maps, the chance level; None until it is known.
    """

    name: str
    fractions: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    random: tuple[float, ...] = ()
    area: float | None = None
    chance: float | None = None

    @property
    def beats_chance(self) -> bool | None:
        """True if the map is better than random maps; None until it is known."""
        if self.area is None or self.chance is None:
            return None
        return self.area > self.chance if METRICS[self.name].higher_is_better else self.area < self.chance

    def describe(self) -> str:
        """Return one sentence with the numbers; empty until they are known."""
        if self.area is None or self.chance is None:
            return ""
        better = "higher" if METRICS[self.name].higher_is_better else "lower"
        verdict = "better than" if self.beats_chance else "no better than"
        return (
            f"{self.name.capitalize()} {self.area:.2f}, random maps {self.chance:.2f} ({better} is better): "
            f"{verdict} chance."
        )


@dataclass(frozen=True)
class TrustCurves:
    """Both curves of a map, while they are computed and in the end.

    Attributes:
        progress: The share of the work that is done, 0 to 1.
        deletion: The score while the hottest pixels are removed.
        insertion: The score while the hottest pixels are inserted.
        score_name: ``"probability"``, or ``"score"`` for targets that have none.
    """

    progress: float
    deletion: Curve
    insertion: Curve
    score_name: str


def iterate_curves(
    loaded: Loaded,
    image: Image.Image,
    explanation: Explanation,
    target: Any = None,
    *,
    steps: int = _STEPS,
    random_maps: int = _RANDOM_MAPS,
) -> Iterator[TrustCurves]:
    """Yield the curves of deletion and insertion of a map as they grow, then those of random maps.

    The values are those of the metrics ``"deletion"`` and ``"insertion"``, with their default removals, and their
    measured chance level. A target without a probability, e.g. a detection, is followed by its score.

    Args:
        loaded: The model.
        image: The photo.
        explanation: The explanation whose map is judged.
        target: What was explained, as it was given to :func:`camtool.explain`.
        steps: The number of points of a curve, beside the first.
        random_maps: The number of random maps.

    Raises:
        CamtoolError: The target does not fit, or the score is not one finite number for each image.
    """
    images, maps = _prepare_maps(loaded, image, explanation, random_maps)
    score, score_name = _build_score(loaded, image, target, images)
    shown = {name: Curve(name) for name in CURVES}
    known: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in CURVES}
    jobs = [(each, name) for each in maps for name in CURVES]
    for number, (each, name) in enumerate(jobs):
        for points in _iterate_metric(name, score, images, each, steps):
            if not known[name]:  # the map itself, not a random one
                shown[name] = _draw_so_far(name, *points)
            progress = (number + points[1].shape[1] / (steps + 1)) / len(jobs)
            yield TrustCurves(progress, shown["deletion"], shown["insertion"], score_name)
        known[name].append(points)
    yield TrustCurves(1.0, _finish("deletion", known["deletion"]), _finish("insertion", known["insertion"]), score_name)


def _prepare_maps(
    loaded: Loaded, image: Image.Image, explanation: Explanation, random_maps: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the model's input ``(1, C, H, W)``, and the map and random maps on it, ``(1, H, W)`` each."""
    prepared = camtool.Explainer(loaded).prepare(image)
    images = prepared.tensor[None]
    size = (images.shape[2], images.shape[3])
    heat = prepared.geometry.to_input_mask(torch.from_numpy(explanation.heatmap), size)[None]
    return images, [heat.to(images.device), *(draw_random_maps(images, seed=seed) for seed in range(random_maps))]


def _iterate_metric(
    name: str, score: Score, images: Tensor, maps: Tensor, steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the growing curve of a metric with the metric's own removal."""
    removal = METRICS[name].options["removal"]
    return iterate_curve(score, images, maps, steps=steps, removal=removal, insert=CURVES[name], chunk=_POINTS_AT_ONCE)


def _build_score(loaded: Loaded, image: Image.Image, target: Any, images: Tensor) -> tuple[Score, str]:
    """Return the score that the curves follow, and its name: the target's probability where it has one."""
    resolved = resolve_target(loaded, image, target)
    probability = resolved.to_probability()
    followed: Target = resolved if probability is None else probability
    model = FoldedModel(to_loaded(loaded).model, images)

    def score(variants: Tensor, rows: Tensor) -> Tensor:
        output = to_batch(model(variants), len(variants))
        return score_targets([followed] * len(variants), output)

    return score, "score" if probability is None else "probability"


def _draw_so_far(name: str, fractions: Tensor, scores: Tensor) -> Curve:
    return Curve(name, _to_numbers(fractions), _to_numbers(scores[0]))


def _finish(name: str, known: Sequence[tuple[Tensor, Tensor]]) -> Curve:
    """Return the curve of the map, the first one, with the mean of the curves of random maps."""
    fractions, scores = known[0]
    areas = [float(torch.trapezoid(each[0], fractions)) for _, each in known]
    others = [each[0] for _, each in known[1:]]
    return replace(
        _draw_so_far(name, fractions, scores),
        random=_to_numbers(torch.stack(others).mean(0)) if others else (),
        area=areas[0],
        chance=sum(areas[1:]) / len(others) if others else None,
    )


def _to_numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())


# ------------------------------------------------------------------------------------------------------------ page

_HINT = "Checks for known faults of maps, then removes and inserts the hottest pixels to see whether the score follows."


def build(context: PageContext) -> Built:
    """Build the panel: a button, the check-up, and the curves below it."""
    from camtool.app.page import COMPUTE

    button = gr.Button("Check this map", variant="primary", elem_id="trust-button", elem_classes="ct-action")
    verdict = gr.HTML(draw_hint(_HINT), elem_id="trust-verdict")
    curves = gr.HTML(elem_id="trust-curves")

    @context.guard
    def run(session: Session) -> Iterator[dict[Any, Any]]:
        from camtool.app.panels.charts import draw_check_up, draw_curves

        yield {verdict: draw_hint("Checking ..."), curves: "", context.status: ""}
        explanation = context.workbench.explain(session.request)
        yield {verdict: draw_check_up(check_up(explanation))}
        for state in iterate_curves(*get_subject(context, session), explanation, session.request.target):
            yield {curves: draw_curves(state)}

    button.click(run, context.session, [verdict, curves, context.status], **COMPUTE)
    return Built({verdict: draw_hint(_HINT), curves: ""})
