"""``diff()``: from images in two models to places where heat moved on one half, and tests on the other half."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from camtool.arguments.checks import check_count
from camtool.arguments.explain_arguments import read_by_position
from camtool.errors import MetricError
from camtool.evaluation.annotations import find_targets
from camtool.evaluation.audit.images import AuditImages
from camtool.evaluation.audit.report.page import check_results
from camtool.evaluation.audit.state import SHOWN, Run, State, check_options, hold_folder
from camtool.evaluation.audit.statistics import compute_q_values, compute_share
from camtool.evaluation.diff.pairs import PASSES_PER_PAIR, PASSES_PER_PICTURE, PairedImages, PairRecord
from camtool.evaluation.diff.regions import MovedRegion, RegionOutcome, RegionTester, find_moved_regions
from camtool.evaluation.diff.result import GENERATOR, JSON_NAME, MARKDOWN_NAME, CamDiff, ImageChange, MovedHeat
from camtool.evaluation.subject import Subject, check_image_list, check_single_labels
from camtool.explaining.types import Model
from camtool.models import Transform, to_loaded
from camtool.progress import Stage, follow_each

# Images for each test of a region: with 19 controls and two fills they take 2,000 forward passes.
_MOST_IMAGES = 25

_NEVER_TESTED = (
    "Changes that move no heat: a property of the whole photo (tint, compression), and cues that no photo here shows.",
    "What the two models do not both see of a photo.",
)


def diff(
    old: Model,
    new: Model,
    images: Sequence[Any] | Tensor,
    labels: Sequence[int | str] | None = None,
    *,
    passes: int | Literal["all"] = 20_000,
    level: float = 0.02,
    controls: int = 19,
    method: str = "faithcam",
    pictures: int = 60,
    out: str | os.PathLike[str] | None = None,
    transform: Transform | None = None,
    class_names: Sequence[str] | None = None,
    device: Any = None,
    batch_size: int = 32,
    seed: int = 0,
) -> CamDiff:
    """Compare what two models look at, e.g. before and after training, pruning or quantization.

        diff = camtool.diff(old, new, photos, labels, out="diff")
        print(diff)

    Both explain the same class of each image. Half of the images serve to find places to or from which the heat of a
    class moved. On the other half each place is covered in both models, against control regions of the same size: a
    finding needs heat that moved, and models that depend on the place differently.

    Args:
        old: A classifier, or what :func:`camtool.load` returned.
        new: A classifier of the same classes. The architecture may be another one. What it does not bring, transform
            and names of classes, is that of ``old``.
        images: A list of what :func:`camtool.explain` takes as one image. Files are read again when they are needed.
        labels: The class of each image, by index or by name; by default that of the highest mean probability of both.
        passes: Most forward passes, or ``"all"``. Places beyond it are in ``not_tested`` with what each needs; the maps
            are always computed.
        level: The largest q of a finding.
        controls: Control regions in each image, 1 or more.
        method: The method of the maps, of both models. Quantized models, which have no gradients, need
            another one, e.g. ``"reciprocam"``.
        pictures: Images whose maps the page shows, the most changed ones.
        out: A folder for ``diff.json``, ``diff.md``, the page ``index.html`` and the state: a second call with the same
            arguments goes on where the first one stopped.
        transform: From a PIL image to the input of both models, if they do not bring their own.
        class_names: The names of the classes, if the models do not bring them.
        device: The device of the inputs; by default each model's.
        batch_size: Images in a forward pass.
        seed: The seed of all that is random. On a CPU a second comparison gives the same bits.

    Raises:
        MetricError: An argument does not fit, a model is no classifier, the classes differ, there are no images, or
            another comparison works in the folder.
        CamtoolError: The method cannot explain a model, or a file in the folder is not as camtool wrote it.
    """
    most_passes = check_options(passes, controls, batch_size, level)
    check_count("pictures", pictures, least=0, error=MetricError)
    check_image_list(images)
    check_single_labels(labels)
    folder = check_results(out, (JSON_NAME, MARKDOWN_NAME), GENERATOR)
    before, after = to_loaded(old), to_loaded(new)
    names = _find_common_labels(before.labels, after.labels, class_names)
    new_transform = transform or after.transform or before.transform
    subjects = Subject(before, transform, names, device), Subject(after, new_transform, names, device)
    sets, _ = find_targets(labels, names, len(images))
    targets, sources = None if sets is None else [target for (target,) in sets], [*images]
    old_images, new_images = (AuditImages(subject, sources, None, method, batch_size) for subject in subjects)
    pairs = PairedImages(old_images, new_images, targets)
    comparison = _Comparison(
        images=pairs.old,
        names=names,
        passes=most_passes,
        level=level,
        controls=controls,
        seed=seed,
        has_labels=targets is not None,
        pairs=pairs,
        titles=(before.name or "old", after.name or "new"),
        pictures=pictures,
    )
    with hold_folder(folder):
        comparison.state = State(pairs.sides, (controls, method, seed, batch_size, targets), folder)
        result = comparison.run()
        if folder is not None:
            result.save(folder)
    return result


def _find_common_labels(
    old: Sequence[str] | None, new: Sequence[str] | None, given: Sequence[str] | None
) -> Sequence[str] | None:
    """Return the labels that the user gave, or those of the models, or of the only one that has some.

    Raises:
        MetricError: Those of the models differ.
    """
    if old is not None and new is not None and [*old] != [*new]:
        raise MetricError("new has other class names than old; give models of the same classes in the same order.")
    if given is not None:
        return [*read_by_position(given)]
    return new if old is None else old


@dataclass
class _Comparison(Run):
    """A comparison on its way.

    Attributes:
        pairs: The images and both models.
        titles: The names of the models.
        pictures: Images whose maps are drawn.
    """

    pairs: PairedImages
    titles: tuple[str, str]
    pictures: int

    def run(self) -> CamDiff:
        """Return the result: records, halves, regions, tests, findings."""
        recorded = self.record_all(self.pairs.record_batch, PairRecord.to_list)
        records = [PairRecord.from_list(index, values) for index, values in recorded.items()]
        found, tested = self.split(records, "near-duplicates and bursts")
        moved = find_moved_regions(found.records, found.groups, self.choose_classes([found, tested]), self.seed)
        regions = sorted(moved, key=lambda region: -region.clarity)
        rest = self.passes - PASSES_PER_PAIR * len(records)
        regions, left, most = self.share_passes(regions, self._count_passes, rest, _MOST_IMAGES)
        rest -= sum(self._count_passes(region, most) for region in regions)
        self.note_left_out({self._name_region(region): self._count_passes(region, most) for region in left}, rest)
        tester = RegionTester(
            images=self.pairs,
            records=tested.records,
            groups=tested.groups,
            controls=self.controls,
            most_images=most,
            seed=self.seed,
            remember=self.state.remember,
        )
        outcomes = [tester.test(region) for region in follow_each(regions, Stage("Testing", "place"))]
        return self._conclude(records, outcomes, PASSES_PER_PAIR * len(records) + tester.passes)

    def _count_passes(self, region: MovedRegion, images: int) -> int:
        """Return the forward passes of a test: of two models with two fills."""
        return 4 * (self.controls + 2) * images

    def _conclude(self, records: Sequence[PairRecord], outcomes: Sequence[RegionOutcome], passes: int) -> CamDiff:
        findings, unconfirmed = self._describe_all([outcome for outcome in outcomes if not outcome.reason])
        self.not_tested += [
            f"{self._name_region(outcome.region)}: {outcome.reason}." for outcome in outcomes if outcome.reason
        ]
        changed = sorted(records, key=lambda record: (-record.moved, record.index))
        drawn = follow_each(changed[: self.pictures], Stage("Drawing", "image"))
        pictures = {record.index: self._draw(record) for record in drawn}
        return CamDiff(
            findings=findings,
            unconfirmed=unconfirmed,
            images=tuple(map(self._describe_image, changed)),
            names=self.titles,
            accuracy=self._measure_accuracy(records),
            not_tested=(*self.not_tested, *_NEVER_TESTED),
            notes=tuple(self.notes),
            level=self.level,
            passes=passes + PASSES_PER_PICTURE * len(pictures),
            seed=self.seed,
            pictures=pictures,
        )

    def _describe_all(self, tested: Sequence[RegionOutcome]) -> tuple[tuple[MovedHeat, ...], tuple[MovedHeat, ...]]:
        """Return the findings, the clearest first, and what was not confirmed."""
        q_values = compute_q_values([outcome.p for outcome in tested])
        pairs = [*zip(tested, q_values, strict=True)]
        confirmed = [pair for pair in pairs if pair[1] <= self.level and pair[0].is_large]
        kept = _drop_explained(confirmed)
        kept.sort(key=lambda pair: (pair[1], -abs(pair[0].difference.mean) if pair[0].difference else 0))
        unconfirmed = (self._describe(*pair) for pair in pairs if pair not in confirmed)
        return tuple(self._describe(*pair) for pair in kept), tuple(unconfirmed)

    def _draw(self, record: PairRecord) -> tuple[bytes, bytes]:
        """Return the pictures of an image, which are drawn if no earlier start did so."""
        key = f"pictures {record.index}"
        if (text := self.state.get(key)) is None:
            text = " ".join(b64encode(picture).decode() for picture in self.pairs.draw_pictures(record))
            self.state.add(key, text)
        old, new = map(b64decode, str(text).split())
        return old, new

    def _measure_accuracy(self, records: Sequence[PairRecord]) -> Any:
        right = np.sum([record.answers == record.target for record in records], 0).tolist()
        return tuple(compute_share(count, len(records)) for count in right) if self.has_labels else None

    def _describe(self, outcome: RegionOutcome, q: float) -> MovedHeat:
        region = outcome.region
        assert outcome.old is not None
        assert outcome.new is not None
        assert outcome.difference is not None
        return MovedHeat(
            label=self.name_class(region.target),
            target=region.target,
            direction="to" if region.sign > 0 else "from",
            place=region.name,
            area=None if region.cells is None else float(region.cells.mean()),
            box=region.box,
            present=len(outcome.present),
            class_count=outcome.class_count,
            heat=outcome.heat,
            old=outcome.old,
            new=outcome.new,
            difference=outcome.difference,
            p=outcome.p,
            q=q,
            images=tuple(map(self.images.name, outcome.present[:SHOWN])),
        )

    def _name_region(self, region: MovedRegion) -> str:
        return f"'{self.name_class(region.target)}', {region.name}"

    def _describe_image(self, record: PairRecord) -> ImageChange:
        old, new = record.answers.tolist()
        answers = [self.name_class(answer) for answer in (old, new)]
        if old != new and answers[0] == answers[1]:
            answers = [f"{name} ({index})" for name, index in zip(answers, (old, new), strict=True)]
        before, after = map(float, record.probabilities)
        return ImageChange(
            index=record.index,
            image=self.images.name(record.index),
            label=self.name_class(record.target),
            answers=(answers[0], answers[1]),
            classes=(old, new),
            probabilities=(before, after),
            moved=record.moved,
            correlation=record.correlation,
        )


def _drop_explained(confirmed: Sequence[tuple[RegionOutcome, float]]) -> list[tuple[RegionOutcome, float]]:
    """Return the outcomes without what moved to other places in each image, if a place that is the same explains it."""
    placed = {(one.region.target, one.region.sign) for one, _ in confirmed if one.region.cells is not None}
    return [
        (one, q)
        for one, q in confirmed
        if one.region.cells is not None or (one.region.target, one.region.sign) not in placed
    ]
