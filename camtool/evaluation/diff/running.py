"""``diff()``: from images in two models to places where heat moved on one half, and tests on the other half."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from camtool.arguments.checks import check_count, check_number
from camtool.arguments.explain_arguments import read_by_position
from camtool.errors import MetricError
from camtool.evaluation.annotations import find_targets
from camtool.evaluation.audit.report.page import check_results
from camtool.evaluation.audit.state import SHOWN, Run, State, hold_folder
from camtool.evaluation.audit.statistics import compute_q_values, compute_share
from camtool.evaluation.diff.page import GENERATOR
from camtool.evaluation.diff.pairs import PASSES_PER_PAIR, PASSES_PER_PICTURE, PairedImages, PairRecord
from camtool.evaluation.diff.regions import MovedRegion, PairBench, RegionOutcome, find_moved_regions
from camtool.evaluation.diff.result import JSON_NAME, MARKDOWN_NAME, CamDiff, ImageChange, MovedHeat
from camtool.evaluation.leaderboard.measurement import hash_weights
from camtool.evaluation.subject import Subject, check_image_list, check_single_labels
from camtool.explaining.types import Model
from camtool.models import Transform, to_loaded
from camtool.progress import Stage, follow_loop

_MOST_IMAGES = 25
"""Images for each test of a region: with 19 controls and two fills they take 2,000 forward passes."""

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
    passes: int = 20_000,
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
        passes: Most forward passes. Places beyond it are in ``not_tested``; the maps are always computed.
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
    check_count("passes", passes, error=MetricError)
    check_count("controls", controls, error=MetricError)
    check_count("batch_size", batch_size, error=MetricError)
    check_count("pictures", pictures, least=0, error=MetricError)
    check_number("level", level, above=0, below=1, error=MetricError)
    check_image_list(images)
    check_single_labels(labels)
    folder = None if out is None else Path(out)
    if folder is not None:
        check_results(folder, (JSON_NAME, MARKDOWN_NAME), GENERATOR)
    before, after = to_loaded(old), to_loaded(new)
    names = _find_common_labels(before.labels, after.labels)
    if class_names is not None:
        names = read_by_position(class_names)
    subjects = (
        Subject(before, transform, names, device),
        Subject(after, transform or after.transform or before.transform, names, device),
    )
    sets, _ = find_targets(labels, names, len(images))
    targets, sources = None if sets is None else [target for (target,) in sets], [*images]
    pairs = PairedImages(subjects, sources, targets, method, batch_size)
    hashes = [hash_weights(subject.model) for subject in subjects]
    inputs = [side.hash_first_inputs() for side in pairs.sides]
    settings = "diff", repr(subjects[1].model), hashes, controls, method, seed, batch_size, targets, inputs
    titles = before.name or "old", after.name or "new"
    with hold_folder(folder):
        logits = [value for side in pairs.sides for value in side.score_first_inputs()]
        state = State(subjects[0], sources, settings, folder, logits)
        shared = state, pairs.old, names, passes, level, controls, seed, targets is not None
        result = _Comparison(*shared, pairs, titles, pictures).run()
        if folder is not None:
            result.save(folder)
    return result


def _find_common_labels(old: Sequence[str] | None, new: Sequence[str] | None) -> Sequence[str] | None:
    """Return the labels of the models, or of the only one that has some.

    Raises:
        MetricError: They differ.
    """
    if old is None:
        return new
    if new is not None and [*old] != [*new]:
        raise MetricError("new has other class names than old; give models of the same classes in the same order.")
    return old


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
        records = self._record_all()
        found, tested = self.split(records, "near-duplicates and bursts")
        regions = find_moved_regions(*found, self.choose_classes([found, tested]), self.seed)
        regions.sort(key=lambda region: -region.promise)
        # Two models, two fills.
        costs, rest = [4 * (self.controls + 2)] * len(regions), self.passes - PASSES_PER_PAIR * len(records)
        regions, most = self.share_passes(regions, costs, rest, _MOST_IMAGES, self._name_region)
        bench = PairBench(self.pairs, *tested, self.controls, most, self.seed, self.state.remember)
        outcomes = []
        with closing(follow_loop(len(regions), Stage("Testing", "place"))) as counter:
            for region in regions:
                outcomes.append(bench.test(region))
                counter.update(1)
        return self._conclude(records, outcomes, PASSES_PER_PAIR * len(records) + bench.passes)

    def _record_all(self) -> list[PairRecord]:
        known = {index: self.state.get(f"image {index}") for index in range(len(self.images))}
        missing = [index for index, values in known.items() if values is None]
        with closing(follow_loop(len(known), Stage("Explaining", "image"))) as counter:
            counter.update(len(known) - len(missing))
            for index, record in self.pairs.iterate_records(missing):
                known[index] = record if isinstance(record, str) else record.to_list()
                self.state.add(f"image {index}", known[index] or "")
                counter.update(1)
        readable = self.choose_readable(known)
        return [PairRecord.from_list(index, values) for index, values in readable.items()]

    def _conclude(self, records: Sequence[PairRecord], outcomes: Sequence[RegionOutcome], passes: int) -> CamDiff:
        tested = [outcome for outcome in outcomes if not outcome.reason]
        q_values = compute_q_values([outcome.p for outcome in tested])
        pairs = [*zip(tested, q_values, strict=True)]
        confirmed = [pair for pair in pairs if pair[1] <= self.level and pair[0].is_large]
        kept = _drop_explained(confirmed)
        kept.sort(key=lambda pair: (pair[1], -abs(pair[0].difference.mean) if pair[0].difference else 0))
        self.not_tested += [
            f"{self._name_region(outcome.region)}: {outcome.reason}." for outcome in outcomes if outcome.reason
        ]
        changed = sorted(records, key=lambda record: (-record.moved, record.index))
        pictures = self._draw_all(changed[: self.pictures])
        return CamDiff(
            tuple(self._describe(*pair) for pair in kept),
            tuple(self._describe(*pair) for pair in pairs if pair not in confirmed),
            tuple(self._describe_image(record) for record in changed),
            self.titles,
            self._measure_accuracy(records),
            (*self.not_tested, *_NEVER_TESTED),
            tuple(self.notes),
            self.level,
            passes + PASSES_PER_PICTURE * len(pictures),
            self.seed,
            pictures=pictures,
        )

    def _draw_all(self, records: Sequence[PairRecord]) -> dict[int, tuple[bytes, bytes]]:
        pictures = {}
        with closing(follow_loop(len(records), Stage("Drawing", "image"))) as counter:
            for record in records:
                pictures[record.index] = self._draw(record)
                counter.update(1)
        return pictures

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
            self.name_class(region.target),
            region.target,
            "to" if region.sign > 0 else "from",
            region.name,
            None if region.cells is None else float(region.cells.mean()),
            region.box,
            len(outcome.present),
            outcome.class_count,
            outcome.heat,
            outcome.old,
            outcome.new,
            outcome.difference,
            outcome.p,
            q,
            tuple(self.images.name(index) for index in outcome.present[:SHOWN]),
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
            record.index,
            self.images.name(record.index),
            self.name_class(record.target),
            (answers[0], answers[1]),
            (old, new),
            (before, after),
            record.moved,
            record.correlation,
        )


def _drop_explained(confirmed: Sequence[tuple[RegionOutcome, float]]) -> list[tuple[RegionOutcome, float]]:
    """Return the outcomes without what moved to other places in each image, if a place that is the same explains it."""
    placed = {(one.region.target, one.region.sign) for one, _ in confirmed if one.region.cells is not None}
    return [
        (one, q)
        for one, q in confirmed
        if one.region.cells is not None or (one.region.target, one.region.sign) not in placed
    ]
