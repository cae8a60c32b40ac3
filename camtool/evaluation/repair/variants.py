"""The counterfactual images of a repair: without a cue, and with one, and what the last layer receives for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, groupby, islice
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.evaluation.audit.cues.candidates import Change, CueCandidate
from camtool.evaluation.audit.images import AuditImages, ImageRecord
from camtool.evaluation.audit.result import Finding
from camtool.evaluation.audit.setup import AuditRun, View
from camtool.evaluation.audit.trials import CueTester, Remember, hash_parts
from camtool.evaluation.repair.head import Examples
from camtool.inputs.prepared_inputs import PreparedInput

# What is done to an image.
Edit: TypeAlias = Literal["as it is", "without it", "with it"]


@dataclass(frozen=True, eq=False)
class Cue:
    """A cue that the model is repaired of.

    Attributes:
        finding: The finding of the audit.
        candidate: Removes it from images, and gives it to others.
        learned: The tests of the half that the repair learns from: which images have the cue.
        tested: Those of the other half.
    """

    finding: Finding
    candidate: CueCandidate
    learned: CueTester
    tested: CueTester

    @classmethod
    def build(cls, finding: Finding, candidate: CueCandidate, view: View, run: AuditRun) -> Cue:
        """Return the cue with the tests of both halves of a view; those of the audit are remembered."""
        tested, (records, groups) = run.make_tester(view), (view.found.records, view.found.groups)
        learned = replace(tested, records=records, groups=groups, remember=_keep_in_memory())
        return cls(finding, candidate, learned, tested)

    def list_present(self, tester: CueTester) -> set[int]:
        """Return the images of the class that have it, by number."""
        is_class, has_it = tester.find_present(self.candidate)
        return {tester.records[row].index for row in np.flatnonzero(is_class & has_it).tolist()}

    def list_variants(self, half: Literal["learned", "tested"], draws: int, cues: Sequence[Cue]) -> Iterator[Variant]:
        """Yield the images of the class without it, and those of other classes with it, each several times.

        Args:
            half: The half of the images.
            draws: How often each image is changed.
            cues: All cues. Those of the class that an image has are removed together, or the others would tell it.
        """
        tester: CueTester = getattr(self, half)
        others_present = {
            cue: cue.list_present(getattr(cue, half))
            for cue in cues
            if cue is not self and cue.candidate.target == self.candidate.target
        }
        is_class, has_it = tester.find_present(self.candidate)
        # All photos of other classes have more or less of a property.
        is_other = ~is_class & (~has_it | self.candidate.compares_classes)
        of_class, others = np.flatnonzero(is_class & has_it), np.flatnonzero(is_other)
        edits: list[tuple[Edit, NDArray[np.int_], NDArray[np.int_]]] = [
            ("without it", of_class, others),
            ("with it", others, of_class),
        ]
        for draw in range(draws):
            random = np.random.default_rng(hash_parts(tester.seed, self.candidate.key, "partners", draw))
            for edit, rows, partners in edits:
                # Each image has a partner of its own as far as there are enough.
                order = random.permutation(partners)
                for turn, row in enumerate(rows.tolist() if len(order) else ()):
                    partner, record = tester.records[int(order[turn % len(order)])].index, tester.records[row]
                    also = tuple(cue for cue, present in others_present.items() if record.index in present)
                    yield Variant(record, tester.groups[row], edit, self, also, partner, draw)


def _keep_in_memory() -> Remember:
    """Return what keeps numbers under their keys."""
    kept = dict[str, list[float]]()
    return lambda key, compute: kept.get(key) or kept.setdefault(key, compute())


class Variant(NamedTuple):
    """An image as it is, or changed.

    Attributes:
        record: The image.
        group: Its group.
        edit: What is done to it.
        cue: What is removed or given; None for an image as it is.
        also: What is removed with it.
        partner: The image that covers the cue, or that it is taken from.
        draw: Distinguishes changes of one image.
    """

    record: ImageRecord
    group: int
    edit: Edit = "as it is"
    cue: Cue | None = None
    also: Sequence[Cue] = ()
    partner: int = -1
    draw: int = 0

    @property
    def target(self) -> int:
        """The class whose answer counts: that of the cue, or of an image as it is its own."""
        return self.record.target if self.cue is None else self.cue.candidate.target

    def make(self, images: AuditImages) -> Tensor | None:
        """Return the input of the model, ``(C, H, W)``; None if the image cannot be changed so."""
        if self.cue is None:
            return images.prepare(self.record.index).tensor
        for cue in self.also:
            other = self._change(cue, images)
            images = images if other is None else ChangedImages(images, self.record.index, other)
        return self._change(self.cue, images)

    def _change(self, cue: Cue, images: AuditImages) -> Tensor | None:
        index, gives = self.record.index, self.edit == "with it"
        seed = hash_parts(cue.tested.seed, cue.candidate.key, "repair", index, self.draw)
        change = Change(images, index, self.partner, 0, np.random.default_rng(seed))
        return cue.candidate.edit(change, gives=gives, turn=self.draw)


def iterate_batches(images: AuditImages, variants: Iterable[Variant]) -> Iterator[tuple[Tensor, list[Variant]]]:
    """Yield inputs of one size ``(N, C, H, W)``, and the variant of each; what cannot be made is left out."""
    made = ((tensor, variant) for variant in variants if (tensor := variant.make(images)) is not None)
    for _, alike in groupby(made, key=lambda pair: pair[0].shape):
        while batch := [*islice(alike, images.batch_size)]:
            yield torch.stack([tensor for tensor, _ in batch]), [variant for _, variant in batch]


class ReadVariants(NamedTuple):
    """Images, and what the last layer receives for them."""

    variants: Sequence[Variant]
    examples: Examples

    def select_without(self, cue: Cue) -> Examples:
        """Return the images of the class of a cue without it, and those of other classes as they are."""
        is_class = (self.examples.labels[:, cue.candidate.target] > 0).tolist()
        kept = [
            variant.edit == "without it" and variant.cue is cue if of_class else variant.cue is None
            for variant, of_class in zip(self.variants, is_class, strict=True)
        ]
        rows, (features, labels, differences, is_independent) = [*compress(range(len(kept)), kept)], self.examples
        return Examples(features[rows], labels[rows], differences[:0], is_independent)


class ChangedImages(AuditImages):
    """The images of an audit, of which one is changed already.

    Args:
        images: The images.
        index: The number of the changed one.
        tensor: Its input, ``(C, H, W)``.
    """

    def __init__(self, images: AuditImages, index: int, tensor: Tensor) -> None:
        self.__dict__.update(images.__dict__)
        self._index, image = index, super().prepare(index)
        self._changed, self._change = replace(image, tensor=tensor), tensor - image.tensor

    def prepare(self, index: int) -> PreparedInput:
        """Return an image as the model receives it."""
        return self._changed if index == self._index else super().prepare(index)

    def make_input(self, image: PreparedInput, photo: NDArray[np.uint8]) -> Tensor | None:
        """Return the model's input for a changed photo, with the change of the input; None if it cannot be made."""
        made = super().make_input(image, photo)
        return made + self._change if made is not None and image is self._changed else made


class MendedImages(AuditImages):
    """The images of an audit, changed as the audited model tells where a cue is, and answered by the mended one.

    Args:
        audited: The images with the audited model.
        mended: The same images with the mended one.
    """

    def __init__(self, audited: AuditImages, mended: AuditImages) -> None:
        self.__dict__.update(audited.__dict__)  # what was prepared is kept once
        self._mended = mended

    def score(self, images: Tensor) -> Tensor:
        """Return the logits of the mended model, ``(N, K)``."""
        return self._mended.score(images)
