"""The images of an audit: read again when they are needed, so that memory does not grow with their number.

The record of each has few numbers: answer, heat in cells, perceptual hash, properties of the photo. Those
that were used last are kept as well, up to a fixed number of bytes.
"""

from __future__ import annotations

import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from camtool.engines.comparison import ComparedOutput, run_by_engines
from camtool.engines.engine_runner import list_engines
from camtool.errors import ImageError, MetricError, RaiseAs
from camtool.evaluation.annotations import Region, read_region
from camtool.evaluation.audit.split import Record, compute_perceptual_hash
from camtool.evaluation.leaderboard.measurement import hash_tensors
from camtool.evaluation.photo_properties import PROPERTIES, measure_properties
from camtool.evaluation.subject import Candidate, Subject, map_batches
from camtool.hooks.observation import Observation, Runner, resume, run_with_hooks
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.caches import cached_property
from camtool.hooks.structures.modules import lacks_gradients
from camtool.inputs.prepared_inputs import InputBatch, PreparedInput, group_into_batches
from camtool.layers.selection import find_layers
from camtool.layers.survey import find_candidates
from camtool.maps import upcast
from camtool.outputs.class_scores import Link, find_logits

# Cells along each side of the model's input in which heat is compared.
GRID = 10

# Smallest side of the grid of an early layer.
_LEAST_GRID = 7

# The cost of a map in forward passes: one for the answer, then a forward and a backward pass.
PASSES_PER_MAP = 3

# Bytes of the prepared images that are kept, and as many of their activations.
_KEPT_BYTES = 2**27

# Images whose inputs are hashed.
_HASHED = 4

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class _Kept(Generic[_K, _V]):
    """The values that were used last, of at most :data:`_KEPT_BYTES` together.

    Args:
        count_bytes: Returns the bytes of a key and its value.
    """

    def __init__(self, count_bytes: Callable[[_K, _V], int]) -> None:
        self._count_bytes, self._bytes = count_bytes, 0
        self._values: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """Return the value of a key, which is made if it is not kept."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = make()
        self._bytes += self._count_bytes(key, value)
        while self._bytes > _KEPT_BYTES and len(self._values) > 1:
            self._bytes -= self._count_bytes(*self._values.popitem(last=False))
        return value


# Rounding of the sum of probabilities, and the smallest one whose logit is taken.
_SUM_ROUNDING, _LEAST_PROBABILITY = 1e-3, 1e-7

_ADVICE = (
    "Segmenters and detectors are not audited; give a module that returns one logit for each class of an image, e.g. "
    "the highest one of all positions, or of all boxes."
)


class Head(NamedTuple):
    """The meaning of a model's scores.

    Attributes:
        link: From scores to probabilities.
        class_count: The number of classes; 2 for a single logit.
        is_independent: True if an image may have several labels: a class is answered if its logit is above 0.
    """

    link: Link
    class_count: int
    is_independent: bool


@dataclass(frozen=True, eq=False)
class ImageRecord(Record):
    """The numbers that are kept of an image of an audit; ``target`` is its label, or the answer, or -1 for no label.

    Attributes:
        answer: The class of the highest score. Of a model of several labels: ``target`` if it is among the answers,
            else -1.
        heat: ``(GRID, GRID)``, the share of the heat for ``target`` in each cell of the input; zeros for no heat.
        properties: Numbers of the photo, see :mod:`camtool.evaluation.photo_properties`.
        answers: All classes with a logit above 0, of a model of several labels. There an image has a record for each
            of its labels.
    """

    answer: int
    heat: NDArray[np.float64]
    properties: NDArray[np.float64]
    answers: tuple[int, ...] = ()

    def to_list(self) -> list[float]:
        """Return all values in a flat list, see :meth:`from_list`."""
        parts = (self.heat.ravel(), self.hash, self.properties, np.array(self.answers))
        return [float(self.answer), float(self.target), *np.concatenate(parts).astype(float).tolist()]

    @classmethod
    def from_list(cls, index: int, values: Sequence[float]) -> ImageRecord:
        """Return the record with these values."""
        answer, target, *others = values
        ends = np.cumsum([GRID**2, 32, len(PROPERTIES)])
        heat, hashed, properties, answers = np.split(np.asarray(others), ends)
        shares, codes = heat.reshape(GRID, GRID), hashed.astype(np.uint8)
        return cls(index, int(target), codes, int(answer), shares, properties, tuple(map(int, answers)))


def pack_records(records: Sequence[ImageRecord]) -> list[float]:
    """Return the values of all records of an image in a flat list, see :func:`unpack_records`."""
    lists = [record.to_list() for record in records]
    return [value for values in lists for value in (float(len(values)), *values)]


def unpack_records(index: int, values: Sequence[float]) -> Iterator[ImageRecord]:
    """Yield the records of an image with these values."""
    while values:
        end = 1 + int(values[0])
        yield ImageRecord.from_list(index, values[1:end])
        values = values[end:]


@dataclass(eq=False)
class AuditImages:
    """The images and the model.

    Attributes:
        subject: The model.
        sources: Images as :func:`camtool.explain` takes them, one each.
        labels: The classes of each image, or None.
        has_sets: True if the user gave sets of labels, so classes do not exclude one another.
        method: The method of the maps.
        batch_size: Images in a forward pass.
        masks: The name of each image's mask in messages, and a region or None; empty without masks.
        engine: The engine of the answers; for ``"eager"`` a prepared copy of the model. Maps come from the model:
            with some images of a batch they differ in an engine by more than an engine may.

    Raises:
        CamtoolError: The engine is unknown, or not installed.
    """

    subject: Subject
    sources: Sequence[Any]
    labels: Sequence[tuple[int, ...]] | None
    method: str
    batch_size: int
    masks: Sequence[tuple[str, Region | None]] = ()
    _: KW_ONLY
    has_sets: bool = False
    engine: str = "eager"

    def __post_init__(self) -> None:
        # A model without gradients is not copied, so there is no prepared copy.
        self._default_engines = [] if lacks_gradients(self.subject.model) else ["prepared"]
        self._engines = list_engines(self.engine) or self._default_engines
        self.used_engines = set[str]()
        self.heats: dict[int, NDArray[np.float64]] = {}
        self.colors: dict[int, NDArray[np.float64]] = {}
        self._prepared = _Kept[int, PreparedInput](lambda _, image: _count_bytes(image))
        self._activations = _Kept[tuple[PreparedInput, str], Tensor](
            lambda key, values: _count_bytes(key[0]) + values.nbytes
        )

    def __len__(self) -> int:
        return len(self.sources)

    def name(self, index: int) -> str:
        """Return the path of an image, or its number."""
        source = self.sources[index]
        return os.fspath(source) if isinstance(source, (str, os.PathLike)) else f"image {index}"

    def shorten_name(self, index: int) -> str:
        """Return the file name of an image, with its path below the common folder if another one has that name."""
        path = Path(self.name(index))
        with suppress(ValueError):  # absolute paths beside relative ones
            return path.relative_to(os.path.commonpath(self._parents[path.name])).as_posix()
        return str(path)

    @cached_property
    def _parents(self) -> dict[str, set[Path]]:
        """File name → the folders of the images that have it."""
        parents = defaultdict[str, set[Path]](set)
        for path in (Path(self.name(index)) for index in range(len(self))):
            parents[path.name].add(path.parent)
        return parents

    def prepare(self, index: int) -> PreparedInput:
        """Return an image as the model receives it."""
        return self._prepared.get(index, lambda: self.subject.preparer.prepare(self.sources[index]))

    def score_first_inputs(self) -> tuple[list[str], list[float]]:
        """Return a hash of each of the first inputs, and the logits of all of them by the model as it is.

        The hashes change if the transform of the images does, and the logits if the code of the model does.
        """
        hashes, logits = list[str](), list[float]()
        for index in range(min(len(self), _HASHED)):
            with suppress(ImageError):
                image = self.prepare(index)
                hashes.append(hash_tensors([image.tensor]))
                labeled = next(self.subject.iterate_batches([image], [None], 1))
                logits += self.subject.score_classes(labeled.images).flatten().tolist()
        return hashes, logits

    def read_mask(self, index: int, image: PreparedInput) -> Tensor | None:
        """Return the mask of an image in the model's input, ``(H, W)`` boolean; None if there is none.

        Raises:
            CamtoolError: It has another size than the photo, or cannot be read.
        """
        name, region = self.masks[index] if self.masks else ("", None)
        if region is None:
            return None
        mask = torch.from_numpy(read_region(name, region, image.photo.shape[:2])).float()
        return image.geometry.to_input_mask(mask, (image.tensor.shape[-2], image.tensor.shape[-1])) > 0.5

    def make_input(self, image: PreparedInput, photo: NDArray[np.uint8]) -> Tensor | None:
        """Return the model's input ``(C, H, W)`` for a changed photo; None if it is not known how it is made."""
        if image.is_photo:
            return self.subject.preparer.prepare(photo).tensor
        channels, height, width = image.tensor.shape
        if image.black is None or image.white is None or photo.shape != (height, width, 3) or channels not in (1, 3):
            return None
        pixels = torch.from_numpy(photo).to(image.tensor).permute(2, 0, 1)[:channels] / 255
        return image.black[:, None, None] + (image.white - image.black)[:, None, None] * pixels

    @cached_property
    def head(self) -> Head:
        """The model's scores, read from the first image that can be read.

        Raises:
            MetricError: The model is no classifier, its classes and the labels do not fit, or no image can be read.
        """
        reason = ""
        for index in range(len(self)):
            try:
                return self._examine(self.prepare(index))
            except ImageError as error:  # noqa: PERF203  any image may be damaged
                reason = reason or str(error)
        raise MetricError(f"images: none of {len(self)} can be read. {reason}")

    def _examine(self, item: PreparedInput) -> Head:
        with RaiseAs(lambda error: MetricError(f"{error} {_ADVICE}"), MetricError):
            labeled = next(self.subject.iterate_batches([item], [None], 1))
        scores = self.subject.score_classes(labeled.images)
        count, link = scores.shape[1], labeled.link
        is_sum = link == "identity" and bool((scores.sum(1) - 1).abs().max() < _SUM_ROUNDING)
        if self.has_sets and (count == 1 or is_sum):
            raise MetricError(
                "labels: lists of labels need a model with a logit for each label; this one gives "
                f"{'a single one' if count == 1 else 'probabilities that sum to 1'}; give one label for each image."
            )
        is_independent = count > 1 and not is_sum and (self.has_sets or link != "softmax")
        return Head(link, max(count, 2), is_independent)

    def list_labels(self, record: ImageRecord) -> tuple[int, ...]:
        """Return the labels of a record's image; without labels the answers."""
        return record.answers if self.labels is None else self.labels[record.index]

    def choose_early_layer(self, index: int, most: int) -> tuple[str, int]:
        """Return the deepest of the layers with the finest grid of at most a side, and its side.

        Raises:
            CamtoolError: No layer has such a grid.
        """
        candidates = find_candidates(self.subject.model, self.prepare(index).tensor[None])
        grids = {candidate.name: candidate.layout.grid for candidate in candidates}
        sides = {name: min(grid) for name, grid in grids.items() if len(grid) == 2 and max(grid) <= most}
        finest = max(sides.values(), default=0)
        if finest < _LEAST_GRID:
            raise MetricError(f"model: no layer has a grid of {_LEAST_GRID} to {most} cells.")
        return [name for name, side in sides.items() if side == finest][-1], finest

    def read_grids(self, index: int) -> dict[str, Tensor]:
        """Return the activations ``(C, h, w)`` of each layer with a grid for an image, the earliest first.

        They include layers whose cells may have no places on the image, which :meth:`read_activations` refuses.
        """
        model, inputs = self.subject.model, self.prepare(index).tensor[None]
        with Cleanup(), guard(model), torch.no_grad():
            layouts = {one.name: one.layout for one in find_candidates(model, inputs) if len(one.layout.grid) == 2}
            calls = run_with_hooks(model, [*layouts], inputs, grad=False).calls if layouts else {}
            return {name: layout.to_grid(calls[name][-1].detach())[0] for name, layout in layouts.items()}

    def read_activations(self, inputs: Tensor, layer: str) -> Tensor:
        """Return the activations ``(N, C, h, w)`` of a layer for inputs ``(N, C, H, W)``."""
        return self.read_layers(inputs, [layer])[layer]

    def read_layers(self, inputs: Tensor, layers: Sequence[str]) -> dict[str, Tensor]:
        """Return the activations ``(N, C, h, w)`` of each layer for inputs ``(N, C, H, W)``, of one forward pass."""
        model = self.subject.model
        with Cleanup(), guard(model), torch.no_grad():
            used = find_layers(model, inputs, layers)
            # Always the same engine: one that compiles would take longer to compile than to run on each image once.
            calls = self._observe(self._default_engines, inputs, layers)[0].calls
            return {one.name: one.layout.to_grid(calls[one.name][-1].detach()) for one in used}

    def read_activations_of(self, image: PreparedInput, layer: str) -> Tensor:
        """Return the activations ``(1, C, h, w)`` of a layer for an image; those that were read last are kept."""
        return self._activations.get((image, layer), lambda: self.read_activations(image.tensor[None], layer))

    def _observe(self, engines: Sequence[str], inputs: Tensor, layers: Sequence[str]) -> tuple[Observation, str]:
        """Run the model once, by the first engine that returns the model's own results; return which that was."""
        runs = list[tuple[Observation, str]]()

        def run(runner: Runner) -> Observation:
            observed = runner(model, layers, inputs, grad=False)
            runs.append((observed, getattr(runner, "engine", "eager")))
            return observed

        def list_rows(observed: Observation) -> list[ComparedOutput]:
            outputs = [find_logits(observed.output), *(observed.calls[name][-1] for name in layers)]
            return [ComparedOutput(upcast(output.detach()).cpu().numpy()) for output in outputs]

        question = "audit", tuple(layers), len(inputs) == 1
        model = self.subject.model
        chosen = run_by_engines(engines, model, question, run, list_rows)
        return next(pair for pair in runs if pair[0] is chosen)

    def score_activations(self, image: Tensor, layer: str, activations: Tensor) -> Tensor:
        """Return the logits ``(M, K)`` of an input ``(C, H, W)`` with other activations ``(M, C, h, w)`` of a layer.

        The hook is removed again, also after an exception. The logits are on the CPU in float64.

        Raises:
            MetricError: A score is not finite.
        """
        model, inputs, scores = self.subject.model, image[None], []
        with Cleanup(), guard(model), torch.no_grad():
            (used,) = find_layers(model, inputs, [layer])
            calls = run_with_hooks(model, [layer], inputs, grad=False).calls[layer]
            like = calls[-1].detach()
            for part in activations.to(like).split(self.batch_size):
                variants = used.layout.from_grid(part, like)
                output = resume(model, layer, variants, inputs, call_index=len(calls) - 1)
                scores.append(find_logits(output))
        return self._to_logits(torch.cat(scores))

    def record_batch(self, numbers: Sequence[int]) -> Iterator[tuple[int, list[ImageRecord] | str]]:
        """Yield the number of each image with its records, one or one for each label, or with why it cannot be read.

        Raises:
            MetricError: The model is no classifier, or a score is not finite.
        """
        readable: list[tuple[int, PreparedInput]] = []
        for index in numbers:
            try:
                readable.append((index, self.subject.preparer.prepare(self.sources[index])))
            except ImageError as error:  # noqa: PERF203  any image may be damaged
                yield index, str(error)
        left = iter([index for index, _ in readable])
        for items in group_into_batches((item for _, item in readable), self.batch_size):
            yield from self._record(items, [*islice(left, len(items))])

    def _record(self, items: list[PreparedInput], numbers: Sequence[int]) -> Iterator[tuple[int, list[ImageRecord]]]:
        logits = self.score(torch.stack([item.tensor for item in items]))
        answers = [*map(self._list_answers, logits)]
        labels = answers if self.labels is None else [self.labels[number] for number in numbers]
        # An image without any label shows the heat of the highest class.
        explained = [own or (int(scores.argmax()),) for own, scores in zip(labels, logits, strict=True)]
        several = [item for item, own in zip(items, explained, strict=True) for _ in own]
        maps = self.map_classes(several, [*chain.from_iterable(explained)])
        heat = [*share_heat(torch.stack(maps)).numpy()]
        for number, item, answered, own in zip(numbers, items, answers, labels, strict=True):
            properties, hashed = measure_properties(item.photo), compute_perceptual_hash(item.photo)
            records = []
            for target in own or (-1,):
                answer, all_answers = self._get_answer(answered, target)
                records.append(ImageRecord(number, target, hashed, answer, heat.pop(0), properties, all_answers))
            yield number, records

    def map_classes(self, items: Sequence[PreparedInput], targets: Sequence[int]) -> list[Tensor]:
        """Return the map of each image for its class, at the size of the input, on the CPU in float64."""
        batches = map(InputBatch.from_prepared, group_into_batches(items, self.batch_size))
        maps = map_batches(self.subject.explainer, Candidate(self.method), batches, targets)
        return [one for part in maps for one in part.detach().cpu().double()]

    def _list_answers(self, logits: Tensor) -> tuple[int, ...]:
        """Return the class of the highest logit, or all with a logit above 0 if classes do not exclude one another."""
        if self.head.is_independent:
            return tuple(torch.nonzero(logits > 0).flatten().tolist())
        return (int(logits.argmax()),)

    def _get_answer(self, answers: tuple[int, ...], target: int) -> tuple[int, tuple[int, ...]]:
        """Return the answer for a record, and all of a model of several labels."""
        if self.head.is_independent:
            return (target if target in answers else -1), answers
        return answers[0], ()

    def score(self, images: Tensor) -> Tensor:
        """Return the logits ``(N, K)`` of inputs ``(N, C, H, W)``, batch by batch, on the CPU in float64.

        Raises:
            MetricError: A score is not finite.
        """
        with Cleanup(), guard(self.subject.model), torch.no_grad():
            parts = images.split(self.batch_size)
            runs = [self._observe(self._engines, part, ()) for part in parts]
        self.used_engines |= {engine for _, engine in runs}
        return self._to_logits(torch.cat([find_logits(observed.output) for observed, _ in runs]))

    def _to_logits(self, scores: Tensor) -> Tensor:
        """Return scores as logits ``(N, K)``, of which a single one ``z`` becomes ``-z / 2`` and ``z / 2``."""
        logits = upcast(scores).double().cpu()
        if not logits.isfinite().all():
            raise MetricError("model: it returned scores that are not finite, so answers cannot be compared.")
        if self.head.link == "identity":
            shares = logits.clamp(_LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
            logits = shares.logit() if self.head.is_independent or logits.shape[1] == 1 else shares.log()
        # The margin of the second one is z, and its softmax the sigmoid of z.
        return torch.cat([-logits, logits], 1) / 2 if logits.shape[1] == 1 else logits

    def measure_margins(self, logits: Tensor, target: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return margin, probability and answer for a class: ``(N,)`` each. The answer is 1 for a margin above 0.

        The margin is the logit of the class minus the highest one of the others; of a model of several labels it is the
        logit itself.
        """
        margins = logits[:, target]
        if self.head.is_independent:
            return margins, margins.sigmoid(), (margins > 0).double()
        margins = margins - logits.index_fill(1, torch.tensor(target), -torch.inf).amax(1)
        return margins, logits.softmax(1)[:, target], (margins > 0).double()

    def list_margins(self, logits: Tensor, target: int, fills: int) -> list[float]:
        """Return the margins, then the probabilities, of an unchanged image and its variants, for each fill.

        Args:
            logits: ``(1 + fills * columns, K)``, of the image and of its variants.
            target: The class.
            fills: The number of fills.
        """
        values = self.measure_margins(logits, target)[:2]
        parts = [torch.cat([part[:1].expand(fills, 1), part[1:].reshape(fills, -1)], 1) for part in values]
        return [float(value) for value in torch.stack(parts).flatten()]


def share_heat(maps: Tensor) -> Tensor:
    """Return the share of the heat of maps ``(N, H, W)`` in each cell, ``(N, GRID, GRID)``, on the CPU in float64."""
    cells = adaptive_avg_pool2d(maps[:, None].double(), GRID)[:, 0].cpu()
    return cells / cells.sum((1, 2), keepdim=True).clamp_min(1e-12)


def _count_bytes(image: PreparedInput) -> int:
    return int(image.tensor.nbytes) + image.photo.nbytes
