"""``repair()``: from an audit to a model that is mended on one half of its images, and measured on the other half."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from camtool.arguments.checks import check_choice
from camtool.arguments.message_parts import format_count
from camtool.errors import MetricError, RaiseAs
from camtool.evaluation.audit.cues.candidates import CueCandidate
from camtool.evaluation.audit.images import AuditImages, ImageRecord
from camtool.evaluation.audit.report.page import check_results
from camtool.evaluation.audit.result import Audit, Finding, read_audit
from camtool.evaluation.audit.setup import AuditRun, prepare_run
from camtool.evaluation.audit.split import Half
from camtool.evaluation.audit.state import hold_folder, shorten_list
from camtool.evaluation.audit.statistics import compute_share
from camtool.evaluation.repair.head import Examples, ScoreHead, find_score_head, refit, train_norms
from camtool.evaluation.repair.measuring import list_answers, measure
from camtool.evaluation.repair.result import GENERATOR, NAMES, Repair
from camtool.evaluation.repair.variants import Cue, MendedImages, ReadVariants, Variant, iterate_batches
from camtool.evaluation.subject import Subject, check_image_list
from camtool.explaining.types import Model
from camtool.models import Loaded, Transform, to_loaded
from camtool.progress import Stage, follow_each

# Changed images of each one with a cue, and of each that is given it.
_DRAWS = 2

# Images by which the last layer is found.
_EXAMPLES = 4


def repair(
    model: Model,
    images: Sequence[Any] | Tensor,
    labels: Sequence[int | str | Sequence[int | str]],
    audit: Audit | str | os.PathLike[str],
    metadata: Mapping[str, Sequence[Any]] | None = None,
    *,
    layers: Literal["last", "norms"] = "last",
    out: str | os.PathLike[str] | None = None,
    transform: Transform | None = None,
    class_names: Sequence[str] | None = None,
    device: Any = None,
) -> Repair:
    """Fit the last layer of a classifier again, so that it depends less on what an audit found.

        audit = camtool.audit(model, photos, labels)
        repair = camtool.repair(model, photos, labels, audit)
        print(repair)  # before and after, on the half that it did not learn from
        repair.model   # a copy; the model is as it was

    It learns from one half of the audit's images: as they are, those of the class without the cue, and those of other
    classes with it, under the labels that they have. The cues are the findings with the verdict ``"shortcut"``, or else
    the suspicious ones. Classes without images in that half stay as they are.

    Args:
        model: The model of the audit, whose scores a linear layer returns.
        images: The images of the audit.
        labels: The class of each image, as for :func:`camtool.audit`.
        audit: The audit, or its folder.
        metadata: The columns of the audit, if it had a group column.
        layers: ``"last"`` for the last layer alone, ``"norms"`` to train the affine parameters of norm layers as well.
        out: A folder for the weights, ``repair.json``, ``repair.md`` and the page ``index.html``.
        transform: From a PIL image to the model's input, if ``model`` does not bring it.
        class_names: The names of the classes, if ``model`` does not bring them.
        device: The device of the inputs; by default the model's.

    Raises:
        MetricError: There is nothing to repair, the images are not those of the audit, or the model has no last linear
            layer.
        CamtoolError: A file in ``out`` is not as camtool wrote it.
    """
    check_choice("layers", layers, ("last", "norms"), error=MetricError)
    check_image_list(images)
    if labels is None:
        raise MetricError("labels: a repair learns from the true classes; give one for each image (--truth).")
    folder = check_results(out, NAMES, GENERATOR)
    audited = audit if isinstance(audit, Audit) else read_audit(audit)
    chosen, notes = choose_cues(audited)
    if audited.settings is None:
        raise MetricError("audit: it is of an earlier version, without cues.json; run it again.")
    loaded = to_loaded(model)
    subject = Subject(loaded, transform, class_names, device)
    run = prepare_run(subject, images, labels, metadata, audited.settings, passes=1, level=audited.level)
    with hold_folder(audited.folder):
        run.open_state(audited.folder)
        mended = Subject(replace(loaded, model=_copy(loaded)), transform, class_names, device)
        result = RepairRun.start(run, chosen, audited).run_on(mended, uses_norms=layers == "norms")
    returned = replace(model, model=mended.model) if isinstance(model, Loaded) else mended.model
    result = replace(result, model=returned, layers=layers, notes=(*notes, *result.notes))
    if folder is not None:
        result.save(folder)
    return result


def list_asked(audit: Audit) -> list[Finding]:
    """Return the findings that are to be repaired: the user's shortcuts, or else the suspicious ones."""
    shortcuts = [finding for finding in audit.findings if finding.verdict == "shortcut"]
    return shortcuts or [*audit.suspects]


def choose_cues(audit: Audit) -> tuple[list[tuple[Finding, CueCandidate]], list[str]]:
    """Return the findings to repair with their candidates, and notes about those that cannot be repaired.

    Raises:
        MetricError: There are none, or none of them can be repaired.
    """
    asked = list_asked(audit)
    if not asked:
        raise MetricError("audit: it has no suspicious finding, so the model is left alone.")
    reasons = {"concept": "a concept is removed from activations, not from images"}
    left = [
        f"{finding.key!r} is not repaired: {reasons.get(finding.kind, 'cues.json lacks it; run the audit again')}."
        for finding in asked
        if finding.key not in audit.cues
    ]
    if len(left) == len(asked):
        raise MetricError(f"audit: {left[0]}")
    return [(finding, audit.cues[finding.key]) for finding in asked if finding.key in audit.cues], left


def _copy(loaded: Loaded) -> nn.Module:
    text = "model: it cannot be copied ({}); give one that copy.deepcopy copies."
    # A module of the user may hold anything.
    with RaiseAs(lambda error: MetricError(text.format(error)), Exception, unless=(MemoryError,)):
        return copy.deepcopy(loaded.model)


@dataclass(frozen=True, eq=False)
class RepairRun:
    """A repair on its way.

    Attributes:
        run: The audit, which splits the images.
        cues: The cues.
        learned: The half that it learns from, each image once.
        tested: The other half.
    """

    run: AuditRun
    cues: Sequence[Cue]
    learned: Sequence[Variant]
    tested: Sequence[Variant]

    @classmethod
    def start(cls, run: AuditRun, chosen: Sequence[tuple[Finding, CueCandidate]], audited: Audit) -> RepairRun:
        """Split the images as the audit did.

        Raises:
            MetricError: The images are not those of the audit.
        """
        records, halves = run.record_and_split()
        count = len({record.index for record in records})
        if count != audited.image_count:
            raise MetricError(f"images: {count} can be read, and the audit had {audited.image_count}; give the same.")
        views = {target: view for view in run.make_views(records, halves) for target in view.targets}
        missing = [repr(finding.key) for finding, _ in chosen if finding.target not in views]
        if missing:
            raise MetricError(f"labels: they are not those of the audit; too few images have {shorten_list(missing)}.")
        cues = [Cue.build(finding, candidate, views[finding.target], run) for finding, candidate in chosen]
        learned, tested = (_list_images(half) for half in halves)
        return cls(run, cues, learned, tested)

    @property
    def images(self) -> AuditImages:
        """The images with the audited model."""
        return self.run.images

    @property
    def model(self) -> nn.Module:
        """The audited model."""
        return self.images.subject.model

    def run_on(self, mended: Subject, *, uses_norms: bool) -> Repair:
        """Return the result, after the weights of a copy of the model were changed.

        Raises:
            MetricError: The model has no last linear layer, or one whose weights cannot be set.
        """
        example, _ = next(iterate_batches(self.images, self.learned[:_EXAMPLES]))
        head = find_score_head(self.model, example, self.images.subject.score_classes(example).shape[1])
        changed = chain.from_iterable(cue.list_variants("learned", _DRAWS, self.cues) for cue in self.cues)
        learned = self._read(head, self.model, [*self.learned, *changed])
        head.replace(self.model, mended.model, refit(head.read(self.model), learned.examples), example)
        if uses_norms:
            train_norms(mended.model, head, learned.examples, partial(self._iterate_epoch, learned.variants))
        changed = chain.from_iterable(cue.list_variants("tested", 1, self.cues) for cue in self.cues)
        tested = self._read(head, self.model, [*self.tested, *changed])
        # The features are the same if the last layer alone was changed.
        after = self._read(head, mended.model, tested.variants) if uses_norms else tested
        scores = [
            head.read(model).compute_logits(read.examples.features)
            for model, read in ((self.model, tested), (mended.model, after))
        ]
        images = MendedImages(self.images, replace(self.images, subject=mended))
        result = measure(self.run, self.cues, list_answers(tested, *scores), images)
        notes = [*self._list_untouched(), *self._check_features(head, learned, tested)]
        return replace(result, head=head.layer, learned=len(self.learned), notes=(*self.run.notes, *notes))

    def _read(self, head: ScoreHead, model: nn.Module, variants: Sequence[Variant]) -> ReadVariants:
        """Return what the last layer receives for images; those that cannot be made are left out."""
        features, kept = list[Tensor](), list[Variant]()
        for inputs, batch in iterate_batches(self.images, follow_each(variants, Stage("Reading features", "image"))):
            features.append(head.read_features(model, inputs)[0].double().cpu())
            kept += batch
        values = torch.cat(features)
        plain = {variant.record.index: row for row, variant in enumerate(kept) if variant.cue is None}
        pairs = [(row, plain[variant.record.index]) for row, variant in enumerate(kept) if variant.cue is not None]
        changed, unchanged = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
        examples = Examples(
            values, self._read_labels(kept), values[changed] - values[unchanged], self.images.head.is_independent
        )
        return ReadVariants(kept, examples)

    def _read_labels(self, variants: Sequence[Variant]) -> Tensor:
        """Return 1 for each label of an image, else 0, ``(M, K)``."""
        labels = torch.zeros(len(variants), self.images.head.class_count).double()
        for row, variant in enumerate(variants):
            labels[row, [*self.images.list_labels(variant.record)]] = 1
        return labels

    def _iterate_epoch(self, variants: Sequence[Variant], epoch: int) -> Iterator[tuple[Tensor, list[int]]]:
        """Yield batches of inputs in another order in each epoch, and the row of each."""
        order = np.random.default_rng([self.run.seed, epoch]).permutation(len(variants)).tolist()
        rows = iter(order)
        for inputs, batch in iterate_batches(self.images, [variants[row] for row in order]):
            yield inputs, [*islice(rows, len(batch))]

    def _list_untouched(self) -> Iterator[str]:
        """Yield a note about the classes without images in the half that is learned from."""
        present = self._read_labels(self.learned).any(0)
        names = [self.run.name_class(index) for index in (~present).nonzero().flatten().tolist()]
        if names:
            yield (
                f"{format_count(len(names), 'class')} without images in the half that was learned from: their outputs "
                f"are as they were beside those of the others, so they may be recognized less, which was not measured: "
                f"{shorten_list(names)}."
            )

    def _check_features(self, head: ScoreHead, learned: ReadVariants, tested: ReadVariants) -> Iterator[str]:
        """Yield a note for each cue without which the features do not tell the class: then only training helps."""
        for cue in self.cues:
            target, others = cue.candidate.target, tested.select_without(cue)
            logits = refit(head.read(self.model), learned.select_without(cue)).compute_logits(others.features)
            is_answer = logits[:, target] > 0 if others.is_independent else logits.argmax(1) == target
            is_class = others.labels[:, target] > 0
            right, wrong = int(is_answer[is_class].sum()), int(is_answer[~is_class].sum())
            own_count, other_count = int(is_class.sum()), int((~is_class).sum())
            if compute_share(right, own_count).low > wrong / max(1, other_count):
                continue
            label, name = cue.finding.label, cue.finding.name
            yield (
                f"What the last layer receives does not tell '{label}' without {name}: fitted to such images alone it "
                f"finds {right} of {own_count}, and takes {wrong} of {other_count} others for it. Only training helps: "
                f"collect images of '{label}' without it, and of other classes with it, and see camtool.losses."
            )


def _list_images(half: Half[ImageRecord]) -> list[Variant]:
    """Return each image of a half once, as it is."""
    variants = {record.index: Variant(record, group) for record, group in reversed(half.pairs)}
    return [variants[index] for index in sorted(variants)]
