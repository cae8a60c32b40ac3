"""Can this map be trusted? The check-up in sentences, the curves of deletion and insertion, and what is enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import gradio as gr
import torch
from PIL import Image
from torch import Tensor

import camtool
from camtool.app.html_fragments import Built, build_hint, draw_card, draw_photo, get_subject

# At run time, as Gradio evaluates the annotations of event handlers.
from camtool.app.workbench import COMPUTE, PageContext, Session, resolve_target
from camtool.arguments.message_parts import format_count
from camtool.explaining.explanation import Explanation
from camtool.hooks.fast_repeated_passes import FoldedModel
from camtool.models import Loaded, to_loaded
from camtool.outputs.predictions import to_batch
from camtool.targets import Target, score_targets
from camtool.trust.checks.check_report import CheckReport, Finding
from camtool.trust.metrics import METRICS, Score
from camtool.trust.metrics.faithfulness import iterate_curve
from camtool.trust.metrics.metric_registry import draw_random_maps
from camtool.warning_codes import find_heat_places

# Name of the metric → whether pixels are inserted.
CURVES = {"deletion": False, "insertion": True}

# Points of a curve beside the first one, as in the metric, and random maps that the chance level is the mean of.
_STEPS, _RANDOM_MAPS = 20, 3

# Points of a curve between two updates on the page: three updates for each curve.
_POINTS_AT_ONCE = 7


def iterate_curves(
    loaded: Loaded, image: Image.Image, explanation: Explanation, target: Any = None
) -> Iterator[TrustCurves]:
    """Yield the curves of deletion and insertion of a map as they grow, then those of random maps.

    The values are those of the metrics ``"deletion"`` and ``"insertion"``, with their default removals, and their
    steps chance level. A target without a probability, e.g. a detection, is followed by its score.

    Args:
        loaded: The model.
        image: The photo.
        explanation: The explanation whose map is judged.
        target: What was explained, as it was given to :func:`camtool.explain`.

    Raises:
        CamtoolError: The target does not fit, or the score is not one finite number for each image.
    """
    images, maps = _prepare_maps(loaded, image, explanation)
    score, score_name = _build_score(loaded, image, target, images)
    shown = {name: Curve(name) for name in CURVES}
    steps: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in CURVES}
    jobs = [(heat, name) for heat in maps for name in CURVES]
    for number, (heat, name) in enumerate(jobs):
        removal, insert = METRICS[name].options["removal"], CURVES[name]
        curve = iterate_curve(score, images, heat, steps=_STEPS, removal=removal, insert=insert, chunk=_POINTS_AT_ONCE)
        for points in curve:
            if not steps[name]:  # the map itself, not a random one
                shown[name] = _draw_so_far(name, *points)
            progress = (number + points[1].shape[1] / (_STEPS + 1)) / len(jobs)
            yield TrustCurves(progress, shown["deletion"], shown["insertion"], score_name)
        steps[name].append(points)
    yield TrustCurves(1.0, _finish("deletion", steps["deletion"]), _finish("insertion", steps["insertion"]), score_name)


def _prepare_maps(loaded: Loaded, image: Image.Image, explanation: Explanation) -> tuple[Tensor, list[Tensor]]:
    """Return the model's input ``(1, C, H, W)``, and the map and random maps on it, ``(1, H, W)`` each."""
    prepared = camtool.Explainer(loaded).prepare(image)
    images = prepared.tensor[None]
    size = (images.shape[2], images.shape[3])
    heat = prepared.geometry.to_input_mask(torch.from_numpy(explanation.heatmap), size)[None]
    return images, [heat.to(images.device), *(draw_random_maps(images, seed=seed) for seed in range(_RANDOM_MAPS))]


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


def _finish(name: str, steps: Sequence[tuple[Tensor, Tensor]]) -> Curve:
    """Return the curve of the map, the first one, with the mean of the curves of random maps."""
    fractions, scores = steps[0]
    areas = [float(torch.trapezoid(curve[0], fractions)) for _, curve in steps]
    others = [curve[0] for _, curve in steps[1:]]
    return replace(
        _draw_so_far(name, fractions, scores),
        random=_to_numbers(torch.stack(others).mean(0)),
        area=areas[0],
        chance=sum(areas[1:]) / len(others),
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
    verdict = gr.HTML(build_hint(_HINT), elem_id="trust-verdict")
    curves = gr.HTML(elem_id="trust-curves")
    find = gr.Button("Find a part that is enough", elem_id="enough-button", elem_classes="ct-action")
    enough = gr.HTML(build_hint(_ENOUGH_HINT), elem_id="enough")

    @context.guard
    def run(session: Session) -> Iterator[dict[Any, Any]]:
        yield {verdict: build_hint("Checking ..."), curves: "", context.status: ""}
        explanation = context.workbench.explain(session.request)
        report = explanation.check()
        yield {verdict: draw_check_up(report, draw_places(explanation, report))}
        for state in iterate_curves(*get_subject(context, session), explanation, session.request.target):
            yield {curves: draw_curves(state)}

    @context.guard
    def find_enough(session: Session) -> Iterator[dict[Any, Any]]:
        yield {enough: build_hint("Searching ..."), context.status: ""}
        region = context.workbench.explain(session.request).sufficient()
        yield {enough: draw_card(Image.fromarray(region.overlay()), "Enough alone", region.sentence)}

    button.click(run, context.session, [verdict, curves, context.status], **COMPUTE)
    find.click(find_enough, context.session, [enough, context.status], **COMPUTE)
    return Built({verdict: build_hint(_HINT), curves: "", enough: build_hint(_ENOUGH_HINT)})


_WIDTH, _HEIGHT = 320, 190
# Margins of a chart in units of the SVG: numbers at the left, the axis' name below.
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 10, 12, 30

_AXES = {"deletion": "hottest pixels removed", "insertion": "hottest pixels inserted"}


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


def draw_curves(curves: TrustCurves) -> str:
    """Return both curves as HTML with two SVG charts side by side, one below the other on a narrow screen."""
    values = [value for curve in (curves.deletion, curves.insertion) for value in (*curve.scores, *curve.random)]
    low, high = _choose_range(values, is_probability=curves.score_name == "probability")
    charts = "".join(_draw_curve(curve, low, high, curves.score_name) for curve in (curves.deletion, curves.insertion))
    done = 100 * curves.progress
    progress = (
        f'<div class="ct-progress" role="progressbar" aria-valuenow="{done:.0f}">'
        f'<i style="width:{done:.0f}%"></i></div>'
    )
    return f'{"" if curves.progress >= 1 else progress}<div class="ct-charts">{charts}</div>'


def draw_check_up(report: CheckReport, picture: str = "") -> str:
    """Return a check-up as HTML: the summary, then each finding with its remedy, then what was not checked.

    Args:
        report: The check-up.
        picture: HTML that belongs to the finding with two places on the photo.
    """
    mark, style = ("&#10003;", "ct-fine") if report.ok else ("!", "ct-doubt")
    findings = "".join(_draw_finding(finding, picture if finding.places else "") for finding in report.findings)
    skipped = "".join(f"<li>{escape(f'{name}: {reason}')}</li>" for name, reason in report.skipped.items())
    details = f"<details><summary>Not checked: {len(report.skipped)}</summary><ul>{skipped}</ul></details>"
    return (
        f'<div class="ct-verdict {style}"><span class="ct-mark">{mark}</span><p>{_summarize(report)}</p></div>'
        f'<ul class="ct-findings">{findings}</ul>{details if skipped else ""}'
    )


def _summarize(report: CheckReport) -> str:
    warnings, notes = len(report.warnings), len(report.findings) - len(report.warnings)
    if warnings:
        return f"There {'is' if warnings == 1 else 'are'} {format_count(warnings, 'reason')} not to trust this map."
    fine = "Nothing speaks against this map. This does not prove that it is right: the checks find known faults only."
    return f"{fine} {format_count(notes, 'fact')} to know." if notes else fine


def _draw_finding(finding: Finding, picture: str) -> str:
    # The remedy of "method-note" and "target-warning" is in the sentence itself.
    is_shown = finding.remedy != "See the sentence."
    remedy = f'<p class="ct-remedy">{escape(finding.remedy)}</p>' if is_shown else ""
    code, sentence = escape(finding.code), escape(finding.sentence)
    return f'<li class="ct-{finding.severity}"><code>{code}</code><p>{sentence}</p>{remedy}{picture}</li>'


def _choose_range(values: Sequence[float], *, is_probability: bool) -> tuple[float, float]:
    """Return the lowest and the highest value of the vertical axis."""
    if is_probability or not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _draw_curve(curve: Curve, low: float, high: float, score_name: str) -> str:
    """Return one chart with its title and the sentence below."""
    title, sentence = curve.name.capitalize(), curve.describe()
    parts = [
        _draw_frame(low, high, _AXES[curve.name], score_name),
        _draw_line(curve.fractions[: len(curve.random)], curve.random, low, high, "ct-random"),
        _draw_line(curve.fractions, curve.scores, low, high, "ct-map"),
    ]
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(sentence or title)}">'
        f"{''.join(parts)}</svg>"
    )
    legend = '<span class="ct-key ct-map-key">this map</span><span class="ct-key ct-random-key">random maps</span>'
    return (
        f'<figure class="ct-chart"><figcaption><b>{title}</b>{legend}</figcaption>{svg}'
        f"<p>{escape(sentence) or '&nbsp;'}</p></figure>"
    )


def _draw_frame(low: float, high: float, axis: str, score_name: str) -> str:
    """Return the grid lines with their numbers, and the name of the horizontal axis."""
    lines = []
    for share in (0.0, 0.5, 1.0):
        y, value = _to_y(share, 0.0, 1.0), low + share * (high - low)
        lines.append(f'<line class="ct-grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text class="ct-tick" x="{_LEFT - 5}" y="{y + 3.5:.1f}" text-anchor="end">{value:.3g}</text>')
    for share, anchor in ((0.0, "start"), (1.0, "end")):
        lines.append(
            f'<text class="ct-tick" x="{_to_x(share):.1f}" y="{_HEIGHT - 16}" text-anchor="{anchor}">{share:.0%}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(f'<text class="ct-tick" x="{middle}" y="{_HEIGHT - 16}" text-anchor="middle">{axis}</text>')
    lines.append(f'<text class="ct-tick" x="{_LEFT}" y="{_HEIGHT - 3}">vertical: {score_name}</text>')
    return "".join(lines)


def _draw_line(fractions: Sequence[float], scores: Sequence[float], low: float, high: float, style: str) -> str:
    """Return a curve; nothing if it has no point."""
    points = " ".join(
        f"{_to_x(fraction):.1f},{_to_y(score, low, high):.1f}"
        for fraction, score in zip(fractions, scores, strict=True)
    )
    return f'<polyline class="{style}" points="{points}"/>' if points else ""


def _to_x(fraction: float) -> float:
    return _LEFT + fraction * (_WIDTH - _LEFT - _RIGHT)


def _to_y(value: float, low: float, high: float) -> float:
    return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def draw_bars(rows: Sequence[tuple[str, float, str]], full: float = 0.0) -> str:
    """Return horizontal bars as HTML: positive values to the right, negative ones to the left of a middle line.

    Args:
        rows: For each bar its name, its value, and the text that shows the value.
        full: The value of a bar of full length; larger values among the rows count instead.
    """
    largest = max(full, *(abs(value) for _, value, _ in rows), 0.0) or 1.0
    has_negative = any(value < 0 for _, value, _ in rows)
    start, full_width = (50.0, 50.0) if has_negative else (0.0, 100.0)
    lines = []
    for name, value, text in rows:
        length = abs(value) / largest * full_width
        left = start - length if value < 0 else start
        style = "ct-bar-less" if value < 0 else "ct-bar-more"
        lines.append(
            f'<div class="ct-row"><span class="ct-name" title="{escape(name)}">{escape(name)}</span>'
            f'<span class="ct-track"><i class="{style}" style="left:{left:.1f}%;width:{length:.1f}%"></i></span>'
            f'<span class="ct-value">{escape(text)}</span></div>'
        )
    return f'<div class="ct-bars">{"".join(lines)}</div>'
