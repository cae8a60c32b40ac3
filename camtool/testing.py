"""Assertions for the tests of your own model, e.g. in pytest.

    def test_the_model_looks_at_the_lesion():
        camtool.testing.assert_looks_at(model, photos, lesions, at_least=0.5)

    def test_the_model_ignores_the_watermark():
        camtool.testing.assert_ignores(model, photos, "bottom-right")

    def test_the_model_has_no_unknown_shortcuts():
        audit = camtool.audit(model, photos, labels, out="audit")
        camtool.testing.assert_no_shortcuts(audit, known="verdicts.json")

The first one looks at heat, which shows where evidence may be, and is no proof. The second one removes pixels and runs
the model again. The third one tests what an audit reported. A failure is an ``AssertionError`` with the numbers and the
path of a picture of the worst image.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.arguments.checks import check_count, check_number
from camtool.arguments.explain_arguments import match_targets
from camtool.arguments.message_parts import format_count, format_percent, suggest_names
from camtool.errors import CamtoolError, ImageError, MetricError
from camtool.evaluation.annotations import Region, match_regions, read_region
from camtool.evaluation.audit import Audit, read_audit, read_verdicts
from camtool.evaluation.audit.report.page import find_picture
from camtool.evaluation.audit.result import check_verdicts
from camtool.evaluation.subject import LabeledBatch, Subject
from camtool.explaining.explainer import explain
from camtool.explaining.explanation import Explanation
from camtool.explaining.types import Images, Model
from camtool.outputs.class_scores import compute_probabilities
from camtool.rendering import regions as drawing
from camtool.rendering.image_writing import write_image
from camtool.trust.metrics.localization import compute_energy_in_mask
from camtool.trust.metrics.removal import Removal, start_removal

_BATCH = 16

# Places per axis from which the controls are chosen, and the fewest whose median is hardly moved by the object.
_CONTROL_GRID, _FEWEST_CONTROLS = 7, 3


def assert_looks_at(
    model: Model,
    images: Images,
    masks: Region | Sequence[Region],
    at_least: float = 0.5,
    *,
    target_class: Any = None,
    share_of_images: float = 1.0,
    folder: str | PathLike[str] | None = None,
    **options: Any,
) -> None:
    """Check that at least this share of the heat lies in the mask of each image.

    Compare ``at_least`` with the share of the photo that the masks cover: that is the share of a map that is the same
    everywhere. This says where the evidence may be; it does not prove what the model uses.

    Args:
        model: As for :func:`camtool.explain`.
        images: One or several, as for :func:`camtool.explain`.
        masks: Where the model should look: a :data:`Region` for each image, or one for all of them.
        at_least: The smallest share of the heat in the mask, above 0, at most 1.
        target_class: What is explained, one for all images or one for each; by default the predicted class.
        share_of_images: The share of the images that must pass.
        folder: Where a failure writes its picture, e.g. pytest's ``tmp_path``; by default a temporary folder.
        **options: Options of :func:`camtool.explain`, e.g. ``method="faithcam"``.

    Raises:
        AssertionError: Too few images pass.
        CamtoolError: A mask is empty, covers the whole photo or has another size, or there are no images.
    """
    __tracebackhide__ = True
    check_number("at_least", at_least, above=0, most=1)
    check_number("share_of_images", share_of_images, above=0, most=1)
    answer: Any = explain(model, images, target_class, **options)
    results: list[Explanation] = [answer] if isinstance(answer, Explanation) else answer
    if not results or not all(isinstance(result, Explanation) for result in results):
        raise CamtoolError("images: give one image or more, with one target and one method for each.")
    places = [
        _to_mask(name, region, result.heatmap.shape, result.seen)
        for (name, region), result in zip(match_regions("masks", masks, len(results)), results, strict=True)
    ]
    shares = [compute_energy_in_mask(result.heatmap, mask) for result, mask in zip(results, places, strict=True)]
    failures, worst = sum(share < at_least for share in shares), int(np.argmin(shares))
    if failures > (1 - share_of_images) * len(results) + 1e-9:
        result, mask = results[worst], places[worst]
        path = _save_picture("looks-at", result.overlay(), mask, folder)
        raise AssertionError(
            f"{failures} of {len(results)} images have less than {format_percent(at_least)} of the heat in the mask; "
            f"mean {format_percent(float(np.mean(shares)))}. The worst is images[{worst}], {result.label!r}, with "
            f"{format_percent(shares[worst])} in a mask that covers {format_percent(float(mask.mean()))} of the photo: "
            f"{path}"
        )


def assert_no_shortcuts(
    audit: Audit | str | PathLike[str], known: Mapping[str, str] | str | PathLike[str] | None = None
) -> None:
    """Check that an audit has no suspicious finding that the user has not called the object.

    A suspicious finding without a verdict fails, and so does one that is unsure, each that is called a shortcut, and an
    audit that could test nothing. No finding passes, which does not mean that there is no shortcut: see
    ``audit.not_tested``.

    Args:
        audit: What :func:`camtool.audit` returned, or the path of its ``audit.json`` or of its folder.
        known: Verdicts by the key of a finding, or the path of a ``verdicts.json``; they replace those in the audit. A
            warning, or the failure, names those that fit no finding.

    Raises:
        AssertionError: A finding is suspicious and not called the object, or nothing was tested.
        MetricError: The audit or the verdicts cannot be read.
    """
    __tracebackhide__ = True
    result = audit if isinstance(audit, Audit) else read_audit(audit)
    if isinstance(known, Mapping):
        verdicts = check_verdicts(known)
    else:
        verdicts = read_verdicts(None if known is None else Path(known), is_required=True)
    if result.untested:
        raise AssertionError(f"Nothing was tested: {result.untested}")
    keys = [finding.key for finding in result.findings]
    unused = [f"known: the audit has no finding {one!r}.{suggest_names(one, keys)}" for one in {*verdicts} - {*keys}]
    judged = [replace(one, verdict=verdicts.get(one.key, one.verdict)) for one in result.findings]
    suspects = [one for one in judged if one.is_suspicious]
    if suspects:
        picture = find_picture(result.folder, suspects[0].key)
        absent = "There are no pictures; camtool.audit(..., out=FOLDER) writes them."
        lines = [
            f"{number}. {one.sentence} Verdict: {one.verdict or 'none'}. Key: {one.key!r}"
            for number, one in enumerate(suspects, 1)
        ]
        count = format_count(len(suspects), "suspicious finding")
        first = f"The first one: {picture}" if picture else absent
        raise AssertionError("\n".join([f"{count} without the verdict 'object':", *lines, *sorted(unused), first]))
    if unused:
        warnings.warn("\n".join(sorted(unused)), stacklevel=2)


class _Effect(NamedTuple):
    """The effect of the removal of a region from one image, by the fill with the largest one.

    Attributes:
        change: The change of the probability of the class, from 0 to 1.
        control: The median change for control regions; 0 without controls.
        is_other_answer: True if the top class changes, and not for half of the controls or more.
        fill: The way of removal.
    """

    change: float
    control: float
    is_other_answer: bool
    fill: Removal

    @property
    def excess(self) -> float:
        return self.change - self.control


def assert_ignores(
    model: Model,
    images: Images,
    region: Region | Sequence[Region],
    at_most: float = 0.1,
    *,
    target_class: Any = None,
    fills: Sequence[Removal] = ("blur", "inpaint"),
    controls: int = 8,
    share_of_images: float = 1.0,
    folder: str | PathLike[str] | None = None,
    **options: Any,
) -> None:
    """Check by intervention that a classifier does not use a region: without it, its answers stay as they are.

    The region is removed in two ways or more, each time beside control regions of the same shape elsewhere in the
    same image. An image fails if, by any of the fills, the probability of the class changes by more than ``at_most``
    beyond the median of the controls, or if the top class changes and does not for most controls. An image without the
    evidence that usually lies there passes, so give images that have it. Objects that fill most of the image make the
    controls, and so the test, weak.

    Args:
        model: A classifier of images, or what :func:`camtool.load` returned.
        images: One or several, as for :func:`camtool.explain`.
        region: What the model should ignore: a :data:`Region` for all images, or one for each.
        at_most: The largest change of the probability, from 0 to 1.
        target_class: The class whose probability is read, one for all images or one for each; by default the top class.
        fills: Names in :data:`camtool.trust.metrics.removal.REMOVALS`, or functions; two or more, as each of them
            leaves traces of its own.
        controls: The number of control regions; 0 for a region such as ``"border"``, which fits nowhere else.
        share_of_images: The share of the images that must pass.
        folder: Where a failure writes its picture, e.g. pytest's ``tmp_path``; by default a temporary folder.
        **options: ``transform``, ``labels`` and ``device``, as for :func:`camtool.explain`.

    Raises:
        AssertionError: Too few images pass.
        CamtoolError: The region is empty, covers the whole photo, has another size, or fits nowhere else in the image;
            there are no images, or the model is no classifier.
    """
    __tracebackhide__ = True
    check_number("at_most", at_most, least=0, below=1)
    check_number("share_of_images", share_of_images, above=0, most=1)
    check_count("controls", controls, least=0)
    if isinstance(fills, str) or len(fills) < 2:
        raise MetricError(f"fills must be two ways of removal or more, e.g. ('blur', 'inpaint'), got {fills!r}.")
    subject = Subject(model, **options)
    several: Any = images if subject.preparer.is_batch(images) else [images]
    if len(several) == 0:
        raise ImageError("images is empty; give one image or more.")
    matched = match_regions("region", region, len(several))
    effects: list[_Effect] = []
    pictures = []
    for labeled in subject.iterate_batches(several, match_targets(target_class, len(several)), _BATCH):
        for row, item in enumerate(labeled.batch.items):
            mask = _to_mask(*matched[len(effects)], item.photo.shape[:2], item.view.seen)
            size = (item.tensor.shape[-2], item.tensor.shape[-1])
            hole = item.geometry.to_input_mask(torch.from_numpy(mask).float(), size) > 0
            places = torch.stack([hole, *_place_controls(hole, controls)])
            effects.append(_measure_removal(subject, labeled, row, places, fills))
            pictures.append((item.photo, mask))
    failed = [effect.is_other_answer or effect.excess > at_most for effect in effects]
    if sum(failed) > (1 - share_of_images) * len(effects) + 1e-9:
        worst = max(range(len(effects)), key=lambda index: (failed[index], effects[index].excess))
        path = _save_picture("ignores", *pictures[worst], folder)
        raise AssertionError(_describe_effects(effects, failed, worst, at_most, path))


def _measure_removal(
    subject: Subject, labeled: LabeledBatch, row: int, places: Tensor, fills: Sequence[Removal]
) -> _Effect:
    """Return the largest effect, over the fills, of the first place ``(H, W)`` beside the others, the controls."""
    image, chosen = labeled.images[row : row + 1], labeled.classes[row]
    places = places.to(image.device)
    rows, effects = torch.zeros(len(places), dtype=torch.long, device=image.device), []
    before = compute_probabilities(subject.score_classes(image), labeled.link)[0]
    for fill in fills:
        after = compute_probabilities(subject.score_classes(start_removal(image, fill)(rows, places)), labeled.link)
        if not (before.isfinite().all() and after.isfinite().all()):
            raise MetricError(f"model: its probabilities are not finite with the fill {fill!r}, so nothing is tested.")
        changes = (after[:, chosen] - before[chosen]).abs().tolist()
        is_other = (after.argmax(1) != before.argmax()).tolist()
        control = float(np.median(changes[1:])) if changes[1:] else 0.0
        is_other_answer = is_other[0] and 2 * sum(is_other[1:]) < max(len(is_other[1:]), 1)
        effects.append(_Effect(changes[0], control, is_other_answer, fill))
    return max(effects, key=lambda effect: (effect.is_other_answer, effect.excess))


def _describe_effects(
    effects: Sequence[_Effect], failed: Sequence[bool], worst: int, at_most: float, path: Path
) -> str:
    effect, answers = effects[worst], sum(effect.is_other_answer for effect in effects)
    mean, control = (float(np.mean([getattr(one, name) for one in effects])) for name in ("change", "control"))
    change, of_control = format_percent(effect.change), format_percent(effect.control)
    return (
        f"{sum(failed)} of {len(effects)} images depend on the region: without it {answers} get another answer, and "
        f"the probability changes by {format_percent(mean)} on average, by {format_percent(control)} for control "
        f"regions of the same shape; {format_percent(at_most)} beyond is allowed. The worst is images[{worst}] with "
        f"{change}, controls {of_control}, by the fill {effect.fill!r}: {path}"
    )


def _place_controls(hole: Tensor, count: int) -> Iterator[Tensor]:
    """Yield masks of the same shape at up to ``count`` places of the input that do not overlap it."""
    if not count:
        return
    rows, columns = hole.any(1).nonzero()[:, 0], hole.any(0).nonzero()[:, 0]
    patch = hole[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    free = [size - side for size, side in zip(hole.shape, patch.shape, strict=True)]
    tops, lefts = (np.unique(np.linspace(0, room, _CONTROL_GRID).round().astype(int)) for room in free)
    places = []
    for top, left in ((top, left) for top in tops for left in lefts):
        place = torch.zeros_like(hole)
        place[top : top + patch.shape[0], left : left + patch.shape[1]] = patch
        if not (place & hole).any():
            places.append(place)
    if len(places) < min(count, _FEWEST_CONTROLS):
        raise MetricError(
            "region fits nowhere else in the image, so there are no control regions; give a smaller one, or controls=0."
        )
    yield from (places[index] for index in np.unique(np.linspace(0, len(places) - 1, count).round().astype(int)))


def _to_mask(name: str, region: Any, size: tuple[int, ...], seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a region as a mask of this size, checked."""
    mask = read_region(name, region, size)
    if not (mask & seen).any():
        where = "is empty" if not mask.any() else "is outside of what the model sees of the photo"
        raise MetricError(f"{name} {where}; leave this image out, or give another region.")
    if mask.all():
        raise MetricError(f"{name} covers the whole photo, so the test could not fail; give a part of it.")
    return mask


def _save_picture(
    name: str, pixels: NDArray[np.uint8], mask: NDArray[np.bool_], folder: str | PathLike[str] | None
) -> Path:
    """Write a picture with the outline of a mask, and return its path."""
    if pixels.shape[:2] == mask.shape:
        pixels = drawing.draw_contours(pixels, drawing.find_contours(mask.astype(np.float32), threshold=0.5))
    place = Path(tempfile.mkdtemp(prefix="camtool-")) if folder is None else Path(folder)
    return write_image(place / f"{name}.png", pixels)
