"""The probe set: a few images that are explained again and again while the network changes.

The evidence over many looks at them has one alarm level for the whole training, however the looks depend.
Each look at a class has an e-value: ``1 / LEAST_P`` if its p-value is at most ``LEAST_P``, else 0. Its expectation is
at most 1 if nothing is wrong. The sum of e-values with fixed weights that add up to 1 has an expectation of at most 1
as well, whatever their dependence (Vovk and Wang 2021, 10.1214/20-AOS2020), and it never falls. So the chance that it
ever reaches ``classes / level`` for one of the classes is at most ``level`` (Markov's inequality, a union bound). A
product of e-values would need looks that are independent, which looks at one probe set are not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from camtool.errors import MetricError, TargetError
from camtool.evaluation.audit.cues.candidates import describe_place, draw_shifts
from camtool.evaluation.audit.cues.place import find_regions
from camtool.evaluation.audit.images import GRID, share_heat
from camtool.evaluation.audit.statistics import MaximumTest, run_maximum_test
from camtool.evaluation.subject import Subject, check_image_list, check_single_labels
from camtool.explaining.device_maps import compute_class_maps
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard
from camtool.inputs.prepared_inputs import InputBatch
from camtool.maps import upcast
from camtool.methods import find_method
from camtool.rendering.overlay import blend_batch
from camtool.trust.metrics.complexity import compute_entropy
from camtool.trust.metrics.correlation import correlate_spearman

MOST_IMAGES = 32

# The p-value of a look that counts as evidence.
LEAST_P = 1e-4

# Permutations of each look, and of those that may be evidence: ``1 / 20,000`` is below ``LEAST_P``.
_FEW, _MANY = 199, 19_999

_CONTROLS = 2
# Cells along each side for single deletion.
_DELETED = 4

_SHOWN_SIDE, _COLUMNS = 128, 8

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Alarm:
    """A class that is recognized by a place of the image.

    Attributes:
        step: The step of the look.
        epoch: The epoch of the look, as it was given; None if it was not.
        target: The class.
        label: Its name.
        region: Words for the place.
        p: The p-value of the look.
        evidence: The sum of weighted e-values, at least ``classes / level``.
        removal: By how much the probability of the class falls where the place is covered, beyond control regions.
        transplant: By how much it rises in other images with the place of this class, beyond that of others.
        sentence: All of it in words.
    """

    step: int
    epoch: int | None
    target: int
    label: str
    region: str
    p: float
    evidence: float
    removal: float
    transplant: float
    sentence: str


def compute_weight(look: int) -> float:
    """Return the weight of the e-values of a look, counted from 1; the weights of all looks add up to 1.

    ``6 / (π (j + 1))² / 2^j`` with ``j = floor(log2 look)``: those from look 2^j to 2^(j+1) - 1 share one part.
    """
    octave = look.bit_length() - 1
    return 6 / (math.pi * (octave + 1)) ** 2 / float(2**octave)


def compute_least_p(images: int, of_class: int) -> float:
    """Return the smallest p-value that permuting the labels of the images can give for a class."""
    return 1 / math.comb(images, of_class)


@dataclass(frozen=True, eq=False)
class Place:
    """A place that a class is recognized by.

    Attributes:
        cells: ``(GRID, GRID)``, True at the place.
        p: The p-value of the heat.
        shares: The share of the heat there, of the class and of the others.
        removal: See :class:`Alarm`.
        transplant: The same.
    """

    cells: NDArray[np.bool_]
    p: float
    shares: tuple[float, float]
    removal: float
    transplant: float

    @property
    def name(self) -> str:
        """Words for the place."""
        return describe_place(self.cells)


@dataclass(frozen=True, eq=False)
class Look:
    """The result of one look at the probe set.

    Attributes:
        scalars: Name → value.
        heat: Class → ``(N, GRID²)``, the share of the heat for this class in each cell.
        maps: ``(N, H, W)``, heatmaps for each image's own class.
    """

    scalars: dict[str, float]
    heat: dict[int, Floats]
    maps: Tensor


class Probe:
    """A classifier and the images that it is watched on.

    Args:
        subject: The model.
        sources: Images as :func:`camtool.explain` takes them, one each, at most :data:`MOST_IMAGES`.
        labels: The class of each; None for the model's answers at the first look.
        method: A method that is a formula of activations and gradients.

    Raises:
        MetricError: There are no images, too many, or other labels than images; a label is no class; the model is no
            classifier.
    """

    def __init__(
        self, subject: Subject, sources: Sequence[Any] | Tensor, labels: Sequence[int | str] | None, method: str
    ) -> None:
        check_image_list(sources)
        check_single_labels(labels)
        if not 0 < len(sources) <= MOST_IMAGES:
            raise MetricError(f"images: give 1 to {MOST_IMAGES} images to a watch, got {len(sources)}.")
        if labels is not None and len(labels) != len(sources):
            raise MetricError(f"labels: {len(labels)} came for {len(sources)} images; give one for each.")
        self._subject, self._sources, self._method = subject, sources, find_method(method)
        # To measure where the cells lie takes a third of a look, and moves heat by less than a cell of the grid.
        self._explainer = replace(subject.explainer, methods=[self._method], placement="stretch")
        if self._method.ignores_layer or self._method.cost != "a pass":
            raise MetricError(
                f"method: a watch needs a formula of activations and gradients, not {method!r}; try gradcam."
            )
        self._names = subject.explainer.labels
        self.has_labels = labels is not None
        self._requests: list[Any] = [None] * len(sources) if labels is None else [*labels]
        self._batch = self._prepare()
        self.shown = _to_pictures(self._inputs)

    def _prepare(self) -> InputBatch:
        try:
            with Cleanup(), guard(self._subject.model):
                batches = [*self._subject.iterate_batches(self._sources, self._requests, MOST_IMAGES)]
        except TargetError as error:
            text = str(error).replace("target_class", "labels:", 1)
            raise MetricError(text.replace(", but no labels are known; pass labels", "; pass class_names")) from error
        if len(batches) > 1:
            raise MetricError("images: they become inputs of several sizes; give a transform that makes one size.")
        if batches[0].link != "softmax":
            raise MetricError(
                f"model: its scores become probabilities by {batches[0].link}; a watch needs a classifier of one class "
                "per image (softmax)."
            )
        self.targets: list[int] = batches[0].classes.tolist()
        self._requests = [*self.targets]
        return batches[0].batch

    @property
    def _inputs(self) -> Tensor:
        assert isinstance(self._batch.inputs, Tensor)  # Subject has checked it
        return self._batch.inputs

    @property
    def classes(self) -> list[int]:
        """The classes of the images."""
        return sorted({*self.targets})

    @property
    def tested(self) -> list[int]:
        """The classes with enough images for an alarm: permuting labels can give p <= ``LEAST_P``."""
        counts = Counter(sorted(self.targets)) if self.has_labels else {}
        return [target for target, inside in counts.items() if compute_least_p(len(self.targets), inside) < LEAST_P]

    def name_class(self, target: int) -> str:
        """Return the name of a class, or its number."""
        return self._names[target] if self._names and target < len(self._names) else str(target)

    def is_of(self, target: int) -> NDArray[np.bool_]:
        """Return which images are of a class, ``(N,)``."""
        return np.equal(self.targets, target)

    def look(self) -> Look:
        """Explain all images for all classes of the probe set, from one forward pass, and return maps and scalars."""
        device = next((tensor.device for tensor in self._subject.model.parameters()), self._inputs.device)
        if self._inputs.device != device:  # the model was moved since
            self._batch = self._prepare()
        images, rows = self._inputs, torch.arange(len(self.targets))
        with Cleanup(), guard(self._subject.model):
            with torch.autocast(images.device.type, enabled=False):
                forward_pass = self._explainer.run_batch(self._batch)
                self._names = self._explainer.find_labels(forward_pass)[0]
                by_class = {
                    target: compute_class_maps(
                        forward_pass, self._method, {}, torch.full((len(images),), target), "mean", keep_graph=True
                    )
                    for target in self.classes
                }
            logits = upcast(next(iter(by_class.values())).logits.detach()).cpu()
            maps = {target: of_class.to_heatmaps(images.shape[-2:]).cpu() for target, of_class in by_class.items()}
            own = torch.stack([maps[target][row] for row, target in enumerate(self.targets)])
        probabilities = logits.softmax(1)[rows, torch.tensor(self.targets)]
        heat = {target: share_heat(of_class).flatten(1).numpy() for target, of_class in maps.items()}
        scalars = {
            "probability": float(probabilities.mean()),
            "accuracy": float((logits.argmax(1) == torch.tensor(self.targets)).double().mean()),
            "entropy": float(compute_entropy(own).mean()),
            "deletion": self._measure_deletion(own, logits[rows, torch.tensor(self.targets)]),
        }
        return Look(scalars | self._measure_places(heat), heat, own)

    def _measure_places(self, heat: dict[int, Floats]) -> dict[str, float]:
        """Return the heat at the border, and how concentrated the mean heat of each class is, from 0 to 1."""
        own = self._get_own_heat(heat).reshape(-1, GRID, GRID)
        scalars = {"border": float(1 - own[:, 1:-1, 1:-1].sum((1, 2)).mean())}
        for target in self.classes:
            mean = torch.from_numpy(own[self.is_of(target)].mean(0))
            scalars[f"concentration/{target}"] = float(1 - compute_entropy(mean[None])[0])
        return scalars

    def _get_own_heat(self, heat: dict[int, Floats]) -> Floats:
        return np.stack([heat[target][row] for row, target in enumerate(self.targets)])

    def _measure_deletion(self, maps: Tensor, scores: Tensor) -> float:
        """Return Spearman's correlation of the heat in a cell with the drop of the logit without it.

        Each of 16 images loses another cell: 16 forward passes instead of 16 for each image.
        """
        rows = torch.arange(0, len(scores), max(1, len(scores) // _DELETED**2))[: _DELETED**2]
        images, (height, width) = self._inputs[rows], self._inputs.shape[-2:]
        down, across = (torch.arange(side) * _DELETED // side for side in (height, width))
        cell = torch.arange(len(rows)) * 5 % _DELETED**2  # 5 and 16 have no common factor, so all cells get their turn
        masks = (down[:, None] * _DELETED + across) == cell[:, None, None]
        without = torch.where(masks[:, None].to(images.device), images.mean((2, 3), keepdim=True), images)
        logits = self._score(without)[torch.arange(len(rows)), torch.tensor(self.targets)[rows]]
        return float(correlate_spearman((maps[rows] * masks).sum((1, 2))[None], (scores[rows] - logits)[None])[0])

    def _score(self, images: Tensor) -> Tensor:
        """Return the logits of changed images, on the CPU."""
        with torch.autocast(images.device.type, enabled=False):
            return torch.cat([self._subject.score_classes(part).cpu() for part in images.split(MOST_IMAGES)])

    def test(self, look: Look, target: int, seed: int, *, has_alarm: bool = False) -> tuple[float, Place | None]:
        """Return the largest z of a class, and a place if the look is evidence; after an alarm z alone.

        There are two ways to differ from other images. The heat for *its own* class: other images have theirs
        elsewhere. The heat for *this* class: other images have it elsewhere. Only what is seen in both ways counts: the
        first alone may be the way in which a class's weights draw maps, the second alone is that the object is there.
        """
        is_class = self.is_of(target)
        own, same = self._get_own_heat(look.heat), look.heat[target]
        if not (np.isfinite(own).all() and np.isfinite(same).all()):
            return float("nan"), None
        tests = [run_maximum_test(heat, is_class, permutations=_FEW, seed=seed) for heat in (own, same)]
        z = float(np.minimum(tests[0].z, tests[1].z).max())
        if has_alarm or _combine(tests).min() > 2 / (_FEW + 1):
            return z, None
        tests = [run_maximum_test(heat, is_class, permutations=_MANY, seed=seed) for heat in (own, same)]
        p = _combine(tests)
        if p.min() > LEAST_P:
            return z, None
        difference = own[is_class].mean(0) - own[~is_class].mean(0)
        is_significant = np.all([test.z > test.critical for test in tests], 0)
        cells = find_regions(difference.reshape(GRID, GRID), is_significant.reshape(GRID, GRID))[0]
        shares = own[:, cells.ravel()].sum(1)
        means = float(shares[is_class].mean()), float(shares[~is_class].mean())
        return z, Place(cells, float(p.min()), means, *self._intervene(cells, target, seed))

    def _intervene(self, cells: NDArray[np.bool_], target: int, seed: int) -> tuple[float, float]:
        """Return by how much covering a place lowers the probability of a class, and pasting it raises that of others.

        It is covered with the same place of an image of another class; the controls are other places of the same image.
        It is pasted onto images of other classes; the control is the same place of another such image.
        """
        random, images = np.random.default_rng(seed), self._inputs
        height, width = images.shape[-2:]
        pixel_cells = np.ix_(np.arange(height) * GRID // height, np.arange(width) * GRID // width)
        mask = torch.from_numpy(cells[pixel_cells])
        inside, others = np.flatnonzero(self.is_of(target)), np.flatnonzero(~self.is_of(target))
        count = min(len(inside), len(others))
        masks = [torch.roll(mask, shift, (0, 1)) for shift in draw_shifts(mask, _CONTROLS, random)]
        fills, chosen = images[random.choice(others, len(inside))], random.permutation(others)[:count]
        sources = [images[random.permutation(inside)[:count]], images[np.roll(chosen, 1)]]
        changed = [torch.where(each.to(images.device), fills, images[inside]) for each in masks]
        changed += [torch.where(mask.to(images.device), source, images[chosen]) for source in sources]
        probabilities = self._score(torch.cat(changed)).softmax(1)[:, target]
        covered, pasted = probabilities.split([len(masks) * len(inside), 2 * count])
        without = covered.reshape(len(masks), -1).mean(1)
        return float(without[1:].mean() - without[0]), float(pasted[:count].mean() - pasted[count:].mean())

    def draw(self, look: Look) -> NDArray[np.uint8]:
        """Return all images with their heat, ``(H, W, 3)``, in rows of eight."""
        from skimage.util import montage

        heat = interpolate(look.maps[:, None].float(), self.shown.shape[-2:], mode="bilinear")[:, 0]
        pictures = blend_batch(self.shown, heat).numpy()
        columns = min(len(pictures), _COLUMNS)
        grid = -(-len(pictures) // columns), columns
        return np.asarray(montage(pictures, fill=(255,) * 3, grid_shape=grid, channel_axis=1))


def _combine(tests: Sequence[MaximumTest]) -> Floats:
    """Return the larger p-value of two tests at each cell."""
    return np.maximum(tests[0].p, tests[1].p)


def _to_pictures(images: Tensor) -> Tensor:
    """Return the inputs as small pictures, ``(N, 3, h, w)`` uint8: each from its lowest to its highest value."""
    with torch.inference_mode(False), torch.no_grad():
        scale = min(1.0, _SHOWN_SIDE / max(images.shape[-2:]))
        size = [max(1, round(scale * side)) for side in images.shape[-2:]]
        small = interpolate(images.detach().float().cpu(), size, mode="area")
        small = small if small.shape[1] == 3 else small.mean(1, keepdim=True).expand(-1, 3, -1, -1)
        low, high = small.amin((1, 2, 3), keepdim=True), small.amax((1, 2, 3), keepdim=True)
        return (255 * (small - low) / (high - low).clamp_min(1e-12)).to(torch.uint8)
