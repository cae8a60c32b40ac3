"""Candidates of the kind *concept*: directions in the activations of an early layer that one class has more of.

The activations of a class and of the others are factorized together, as :func:`camtool.concepts` does it for photos.
A concept need not have a place or a form: it may be the texture of a background. It is removed from the activations
and added to them, against other directions of the same length at the same positions.

In late layers each class is a concept of its own, which says nothing. So the deepest layer is used in which a class
stands out.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from camtool.concept_maps.factorization import compute_amounts, factorize
from camtool.errors import CamtoolError
from camtool.evaluation.audit.cues.candidates import Change, Discovery, RegionCandidate
from camtool.evaluation.audit.images import AuditImages, ImageRecord
from camtool.evaluation.audit.statistics import average_units, run_maximum_test
from camtool.inputs.prepared_inputs import PreparedInput

# Sides of the grids of the layers that are compared.
_LEAST_GRID, _MOST_GRID = 7, 32

# Part of the squared activations that may be negative: concepts are sums, so layers after a ReLU are used.
_MOST_NEGATIVE = 0.1

# Layers that are compared, evenly spaced in depth.
_LAYERS = 6

# Concepts that the activations of a class and of the others are split into.
_CONCEPTS = 8

# Images of a class, and of all classes, that concepts are looked for in.
_MOST_OF_CLASS, _MOST_IMAGES = 60, 600

# Fewest and most positions that are drawn from each image, and the values that are kept of all: 128 MB.
_POSITIONS, _MOST_VALUES = (20, 100), 2**26

# The largest number in half precision.
_LARGEST = 65_504.0

# Share of the class that must have more of a concept than this share of the other images.
_LEAST_SHARE, _RARE = 0.25, 0.95

# Share of the classes, or else one, that may have a concept at a layer, and how many times clearer it must be than
# those of all others. In networks of ten classes with a texture behind one, that class stands out at the end of the
# first of three blocks, half of the classes have one after the second, and all after the last; honest networks are
# alike.
_FEW, _CLEARLY = 0.1, 2.0

# Classes that are needed to tell a concept that one of them has from what every class has at that layer.
LEAST_CLASSES = 5

# Share of the largest amount in an image from which on a position shows the concept.
_OF_PEAK = 0.5


@dataclass(frozen=True, eq=False)
class ConceptSpace:
    """The concepts at a layer.

    Attributes:
        layer: The layer.
        classes: ``(N,)``, the class of each image that was used.
        vectors: Class → ``(n, C)``, the concepts that its activations and those of others are split into.
        amounts: Class → ``(N, n)``, the mean amounts of these in each image.
        directions: ``(M, C)``, of length 1: differences of activations, of which the controls are drawn.
    """

    layer: str
    classes: NDArray[np.int_]
    vectors: dict[int, Tensor]
    amounts: dict[int, NDArray[np.float64]]
    directions: Tensor


@dataclass(frozen=True, eq=False)
class ConceptCandidate(RegionCandidate):
    """A direction in the activations of a layer.

    Attributes:
        space: The concepts at the layer.
        source: The class of whose concepts it is one.
        number: Which of them it is.
    """

    kind: ClassVar[str] = "concept"
    fills: ClassVar[tuple[str, ...]] = ("its mean amount in other classes", "its amounts in an image of another class")

    space: ConceptSpace
    source: int
    number: int

    @property
    def title(self) -> str:
        """The layer that it is at."""
        return f"at {self.space.layer}"

    @property
    def changed_layer(self) -> str:
        """The layer whose activations are changed."""
        return self.space.layer

    def encode(self) -> bytes:
        """Return the layer and the direction."""
        return self.space.layer.encode() + self.space.vectors[self.source][self.number].detach().cpu().numpy().tobytes()

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return the mean amount of the concept in an image."""
        return float(self._read(images, images.prepare(record.index))[1].mean())

    def locate(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the pixels that show at least half of the largest amount."""
        amounts = self._read(images, image)[1]
        shown = (amounts >= _OF_PEAK * amounts.max()) & (amounts > 0)
        pixels = interpolate(shown[None, None].float(), image.tensor.shape[-2:], mode="nearest-exact")[0, 0] > 0
        return pixels.to(image.tensor.device)

    def remove(self, change: Change) -> Tensor | None:
        """Return activations with the mean amount of other classes, and with the amounts of an image of another."""
        images, index, other, controls, random = change
        activations, amounts = self._read(images, images.prepare(index))
        others = self._read(images, images.prepare(other))[1]
        if others.shape != amounts.shape:
            return None
        usual = self.space.amounts[self.source][self.space.classes != self.target, self.number].mean()
        scaled = amounts * (float(usual) / amounts.mean().clamp_min(1e-12)).clamp_max(1)
        return torch.stack([self._change(activations, goal - amounts, controls, random) for goal in (scaled, others)])

    def transplant(self, change: Change) -> Tensor | None:
        """Return activations with the amounts of the donor."""
        images, index, donor, controls, random = change
        activations, amounts = self._read(images, images.prepare(index))
        wanted = self._read(images, images.prepare(donor))[1]
        return None if wanted.shape != amounts.shape else self._change(activations, wanted - amounts, controls, random)

    def _change(self, activations: Tensor, change: Tensor, controls: int, random: np.random.Generator) -> Tensor:
        """Return activations ``(1 + controls, C, h, w)``, changed along the concept, then along other directions."""
        vector, directions = self.space.vectors[self.source][self.number], self.space.directions
        drawn = directions[random.choice(len(directions), controls)] * torch.linalg.vector_norm(vector)
        return activations + torch.cat([vector[None], drawn])[:, :, None, None] * change

    def _read(self, images: AuditImages, image: PreparedInput) -> tuple[Tensor, Tensor]:
        """Return the activations ``(C, h, w)`` of an image and the amounts of the concept ``(h, w)``, on the CPU."""
        (activations,) = images.read_activations(image.tensor[None], self.space.layer).float().cpu()
        amounts = compute_amounts(activations.flatten(1).T.relu(), self.space.vectors[self.source])
        return activations, amounts[:, self.number].reshape(activations.shape[1:])

    def isolate(self, images: AuditImages, donor: int) -> None:
        """Return None: its region shows the outline of what else is in the image."""

    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> ConceptCandidate | None:
        """Return the concept that another class, drawn at random, has most of; None if there is no other class."""
        others = [target for target in self.space.vectors if target != self.target]
        if not others:
            return None
        source = int(random.choice(others))
        amounts, is_source = self.space.amounts[source], self.space.classes == source
        more = amounts[is_source].mean(0) - amounts[~is_source].mean(0)
        number = int((more / (amounts.std(0) + 1e-12)).argmax())
        name = f"concept {number + 1} of class {source} at {self.space.layer}"
        return ConceptCandidate(self.target, name, self.clarity, self.space, source, number)


def find_concepts(discovery: Discovery) -> list[ConceptCandidate]:
    """Return the concepts of which a class has more than the others."""
    rows, layers = _choose_images(discovery), _choose_layers(discovery)
    if not discovery.targets or not layers:
        return []
    chosen = replace(
        discovery, records=[discovery.records[row] for row in rows], groups=[discovery.groups[row] for row in rows]
    )
    samples = _sample(chosen, layers)
    for layer in reversed([*layers]):
        candidates = _search(chosen, layer, samples.pop(layer).float())
        if candidates:
            return candidates
    return []


def _search(discovery: Discovery, layer: str, samples: Tensor) -> list[ConceptCandidate]:
    """Return the concepts at a layer by which few classes stand out; none if more do, or no class does."""
    classes, points = discovery.classes, samples.relu()
    space = ConceptSpace(layer, classes, {}, {}, _draw_directions(samples.flatten(0, 1), discovery.seed))
    if not len(space.directions):
        return []
    few, ranked, clear_count = max(1, int(_FEW * len({*classes.tolist()}))), list[_Clearest](), 0
    for target in discovery.targets:
        _factorize(discovery, space, points, target)
        ranked.append(_find_clearest(discovery, space, target))
        clear_count += _CLEARLY * ranked[-1].z > len(classes) ** 0.5
        # No standardized difference of N images is larger than the root of N, so none can stand out any more.
        if clear_count > few:
            return []
    ranked.sort(reverse=True)
    for count in range(min(few, len(ranked) - 1), 0, -1):
        if all(clear.is_clear and clear.z >= _CLEARLY * ranked[count].z for clear in ranked[:count]):
            return [_build_candidate(discovery, space, clear) for clear in ranked[:count]]
    return []


class _Clearest(NamedTuple):
    """The concept of which a class has most more than the others.

    Attributes:
        z: The standardized difference.
        target: The class.
        number: The number of the concept.
        is_clear: True if the difference is significant, and many images of the class have the concept.
    """

    z: float
    target: int
    number: int
    is_clear: bool


def _choose_images(discovery: Discovery) -> list[int]:
    """Return the first images of each class."""
    classes = [record.target for record in discovery.records]
    most = min(_MOST_OF_CLASS, max(1, _MOST_IMAGES // len({*classes})))
    return [row for row, target in enumerate(classes) if classes[:row].count(target) < most]


def _choose_layers(discovery: Discovery) -> dict[str, int]:
    """Return layers with a grid and few negative activations, evenly spaced, the earliest first → their channels."""
    index = discovery.records[0].index
    names = [name for name, activations in discovery.images.read_grids(index).items() if _is_usable(activations)]
    chosen = np.linspace(0, len(names) - 1, min(_LAYERS, len(names))).round().astype(int)
    layers, tensor = dict[str, int](), discovery.images.prepare(index).tensor[None]
    for name in (names[at] for at in chosen):
        with suppress(CamtoolError):  # e.g. tokens that have no places on the image
            layers[name] = discovery.images.read_activations(tensor, name).shape[1]
    return layers


def _is_usable(activations: Tensor) -> bool:
    """Return True for activations ``(C, h, w)`` on a grid of a fitting size, few of which are negative."""
    if min(activations.shape[1:]) < _LEAST_GRID or max(activations.shape[1:]) > _MOST_GRID:
        return False
    squares = activations.float().square()
    return float(squares[activations < 0].sum() / squares.sum().clamp_min(1e-12)) <= _MOST_NEGATIVE


def _sample(discovery: Discovery, layers: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the activations of each image at some positions of each layer, ``(N, P, C)`` float16 on the CPU."""
    random, samples = np.random.default_rng(discovery.seed), {layer: list[Tensor]() for layer in layers}
    count = int(np.clip(_MOST_VALUES // (len(discovery.records) * sum(layers.values())), *_POSITIONS))
    for record in discovery.records:
        tensor = discovery.images.prepare(record.index).tensor[None]
        for layer, activations in discovery.images.read_layers(tensor, [*layers]).items():
            points = activations[0].flatten(1).T
            rows = random.choice(len(points), count, replace=len(points) < count)
            samples[layer].append(points[rows].cpu().clamp(-_LARGEST, _LARGEST).half())
    return {layer: torch.stack(parts) for layer, parts in samples.items()}


def _draw_directions(points: Tensor, seed: int) -> Tensor:
    """Return differences of the activations ``(P, C)`` of random pairs of positions, of length 1: ``(M, C)``."""
    first, second = np.random.default_rng(seed).integers(len(points), size=(2, 1000))
    differences = points[first] - points[second]
    return normalize(differences[differences.any(1)], dim=1)


def _factorize(discovery: Discovery, space: ConceptSpace, points: Tensor, target: int) -> None:
    """Add the concepts of a class to those of a layer: of its activations ``(N, P, C)``, and of as many others."""
    own, others = np.flatnonzero(space.classes == target), np.flatnonzero(space.classes != target)
    drawn = np.random.default_rng(discovery.seed).choice(others, min(len(own), len(others)), replace=False)
    both = points[np.concatenate([own, drawn])].flatten(0, 1)
    # A layer may be silent for some images, but a factorization needs a value.
    both = both if both.any() else torch.ones_like(both)
    space.vectors[target] = factorize(both, min(_CONCEPTS, *both.shape), seed=discovery.seed)[1]
    amounts = compute_amounts(points.flatten(0, 1), space.vectors[target])
    space.amounts[target] = amounts.unflatten(0, points.shape[:2]).mean(1).double().numpy()


def _find_clearest(discovery: Discovery, space: ConceptSpace, target: int) -> _Clearest:
    """Return the clearest concept of a class; if none is clear, the one with the largest difference."""
    values, is_class = average_units(space.amounts[target], discovery.groups, space.classes == target)
    tested = run_maximum_test(values, is_class, seed=discovery.seed)
    is_frequent = (values[is_class] > np.quantile(values[~is_class], _RARE, axis=0)).mean(0) >= _LEAST_SHARE
    is_clear = is_frequent & (tested.z > tested.critical)
    number = int(np.where(is_clear | (not is_clear.any()), tested.z, -np.inf).argmax())
    return _Clearest(float(tested.z[number]), target, number, bool(is_clear.any()))


def _build_candidate(discovery: Discovery, space: ConceptSpace, clearest: _Clearest) -> ConceptCandidate:
    clarity, target, number, _ = clearest
    rows = np.flatnonzero(space.classes == target)
    record = discovery.records[rows[space.amounts[target][rows, number].argmax()]]
    name = f"a concept as in {discovery.images.shorten_name(record.index)} ({number + 1} at {space.layer})"
    return ConceptCandidate(target, name, clarity, space, target, number)
