"""Can this map be trusted? The check-up in sentences, the curves of deletion and insertion, and what is enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr
import torch
from PIL import Image
from torch import Tensor

import camtool

# At run time, as Gradio evaluates the annotations of event handlers.
from camtool.app.context import COMPUTE, PageContext, Session
from camtool.app.panels.charts import Curve, TrustCurves, draw_check_up, draw_curves
from camtool.app.panels.outputs import resolve_target
from camtool.app.panels.panel import Built, draw_card, draw_hint, draw_photo, get_subject
from camtool.explaining.explanation import Explanation
from camtool.hooks.folded_model import FoldedModel
from camtool.models import Loaded, to_loaded
from camtool.outputs.predictions import to_batch
from camtool.targets import Target, score_targets
from camtool.trust.checks.check_report import CheckReport
from camtool.trust.metrics import METRICS, Score
from camtool.trust.metrics.faithfulness import iterate_curve
from camtool.trust.metrics.registry import draw_random_maps
from camtool.warning_codes import find_heat_places

CURVES = {"deletion": False, "insertion": True}
"""Name of the metric → whether pixels are inserted."""

_STEPS, _RANDOM_MAPS = 20, 3
"""Points of a curve beside the first one, as in the metric, and random maps that the chance level is the mean of."""

_POINTS_AT_ONCE = 7
"""Points of a curve between two updates on the page: three updates for each curve."""


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
    jobs = [(heat, name) for heat in maps for name in CURVES]
    for number, (heat, name) in enumerate(jobs):
        removal, insert = METRICS[name].options["removal"], CURVES[name]
        for points in iterate_curve(
            score, images, heat, steps=steps, removal=removal, insert=insert, chunk=_POINTS_AT_ONCE
        ):
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
    areas = [float(torch.trapezoid(curve[0], fractions)) for _, curve in known]
    others = [curve[0] for _, curve in known[1:]]
    return replace(
        _draw_so_far(name, fractions, scores),
        random=_to_numbers(torch.stack(others).mean(0)) if others else (),
        area=areas[0],
        chance=sum(areas[1:]) / len(others) if others else None,
    )


def _to_numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())


# ------------------------------------------------------------------------------------------------------------ page


def draw_places(explanation: Explanation, report: CheckReport) -> str:
    """Return the overlay with both places of a finding ``"heat-elsewhere"`` as HTML; empty without this finding."""
    if find_heat_places(report.findings) is None:
        return ""
    picture = Image.fromarray(explanation.places_overlay(report, enlarge=True))
    return draw_photo(picture, "A ring where the hottest cell is drawn, and a cross on the pixels it depends on")


_HINT = "Checks for known faults of maps, then removes and inserts the hottest pixels to see whether the score follows."


_ENOUGH_HINT = "Finds a small part of the photo that alone keeps 90 % of the probability, by 200 passes of the model."


def build(context: PageContext) -> Built:
    """Build the panel: a button, the check-up, and the curves below it; another one, and the part that is enough."""
    button = gr.Button("Check this map", variant="primary", elem_id="trust-button", elem_classes="ct-action")
    verdict = gr.HTML(draw_hint(_HINT), elem_id="trust-verdict")
    curves = gr.HTML(elem_id="trust-curves")
    find = gr.Button("Find a part that is enough", elem_id="enough-button", elem_classes="ct-action")
    enough = gr.HTML(draw_hint(_ENOUGH_HINT), elem_id="enough")

    @context.guard
    def run(session: Session) -> Iterator[dict[Any, Any]]:
        yield {verdict: draw_hint("Checking ..."), curves: "", context.status: ""}
        explanation = context.workbench.explain(session.request)
        report = explanation.check()
        yield {verdict: draw_check_up(report, draw_places(explanation, report))}
        for state in iterate_curves(*get_subject(context, session), explanation, session.request.target):
            yield {curves: draw_curves(state)}

    @context.guard
    def find_enough(session: Session) -> Iterator[dict[Any, Any]]:
        yield {enough: draw_hint("Searching ..."), context.status: ""}
        region = context.workbench.explain(session.request).sufficient()
        yield {enough: draw_card(Image.fromarray(region.overlay()), "Enough alone", region.sentence)}

    button.click(run, context.session, [verdict, curves, context.status], **COMPUTE)
    find.click(find_enough, context.session, [enough, context.status], **COMPUTE)
    return Built({verdict: draw_hint(_HINT), curves: "", enough: draw_hint(_ENOUGH_HINT)})
