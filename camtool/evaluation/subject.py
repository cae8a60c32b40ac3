"""The model that is evaluated, and candidates: methods at layers, whose maps share a forward pass.

A subject has classes for a batch, maps of any images, and scores of changed images.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from camtool import targets
from camtool.arguments.explain_arguments import read_by_position
from camtool.arguments.message_parts import add_article
from camtool.errors import MetricError
from camtool.evaluation.annotations import check_length
from camtool.explaining.device_maps import DeviceMaps
from camtool.explaining.explanation import Explanation
from camtool.explaining.pipeline import BatchExplainer
from camtool.explaining.types import Model
from camtool.hooks.fast_repeated_passes import FoldedModel
from camtool.hooks.model_passes import run_model
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard
from camtool.inputs.formats.file_image import FileImage
from camtool.inputs.input_preparer import InputPreparer
from camtool.inputs.prepared_inputs import InputBatch
from camtool.maps import upcast
from camtool.methods import adapt_method, find_method
from camtool.methods.registry import read_depths
from camtool.models import Transform, to_loaded
from camtool.outputs import predictions
from camtool.outputs.class_scores import Link
from camtool.trust.metrics import ClassScore, Explain


@dataclass(frozen=True, order=True)
class Candidate:
    """A method at a layer.

    Attributes:
        method: The name of the method.
        layer: The name of the layer; ``""`` for the one that camtool finds.
    """

    method: str
    layer: str = ""

    def __str__(self) -> str:
        return f"{self.method} at {self.layer}" if self.layer else self.method


@dataclass(frozen=True, eq=False)
class CandidateMaps:
    """The maps of one candidate for a batch.

    Attributes:
        maps: ``(N, H, W)`` in [0, 1], at the size of the inputs.
        layer: The layer that was explained; ``""`` for methods at the input.
    """

    maps: Tensor
    layer: str


def map_candidates(
    explainer: BatchExplainer, group: Sequence[Candidate], batch: InputBatch, classes: Sequence[int]
) -> list[CandidateMaps]:
    """Return the maps of each candidate of a group, from one forward pass.

    Args:
        explainer: The model and its settings; methods and layers are those of the group.
        group: Candidates at one layer.
        batch: The images.
        classes: The class of each image.

    Raises:
        CamtoolError: A method cannot explain this model at this layer.
    """
    methods = [adapt_method(find_method(candidate.method), explainer.model) for candidate in group]
    layers = [group[0].layer] if group[0].layer else None
    own = replace(explainer, methods=methods, has_many_methods=True, layers=layers, depths=read_depths(methods, {}))
    with Cleanup(), guard(explainer.model):
        results: list[list[Explanation]] = own.explain(batch, [targets.ClassScore(index) for index in classes])
    return [_join(of_candidate, batch) for of_candidate in zip(*results, strict=True)]


def map_batches(
    explainer: BatchExplainer, candidate: Candidate, batches: Iterable[InputBatch], classes: Iterable[int]
) -> Iterator[Tensor]:
    """Yield the maps ``(N, H, W)`` of a candidate for each batch, see :func:`map_candidates`.

    Args:
        explainer: The model and its settings.
        candidate: The candidate.
        batches: The images.
        classes: The class of each image, batch after batch.
    """
    rest = iter(classes)
    for batch in batches:
        (mapped,) = map_candidates(explainer, [candidate], batch, [*islice(rest, len(batch.items))])
        yield mapped.maps


def _join(results: Sequence[Explanation], batch: InputBatch) -> CandidateMaps:
    size = batch.items[0].tensor.shape[-2:]
    maps = [DeviceMaps(torch.from_numpy(result.raw)[None], result.centers).to_heatmaps(size) for result in results]
    return CandidateMaps(torch.cat(maps).to(batch.items[0].tensor.device), results[0].layer)


def check_image_list(images: Any) -> None:
    """Check that images are a list, or a tensor or an array with an axis for several images.

    Raises:
        MetricError: They are a path, one image, a data loader, a data set or a generator.
    """
    if isinstance(images, (str, os.PathLike)):
        raise MetricError(f"images must be a list, got {os.fspath(images)!r}; give the files of a folder one by one.")
    if isinstance(images, (Tensor, np.ndarray)) and images.ndim in (0, 2, 3):  # one axis: e.g. paths
        given = f"{add_article(type(images).__name__)} {tuple(images.shape)}, which may be one image"
        raise MetricError(f"images must be a list, got {given}; give [image], or list(images) of several gray ones.")
    if isinstance(images, (bytes, set, frozenset, Mapping, Dataset, DataLoader)) or not hasattr(images, "__len__"):
        kinds = {DataLoader: "images, labels = next(iter(loader))", Dataset: "[image for image, _ in dataset]"}
        kinds |= {Mapping: "list(images.values())", **dict.fromkeys((bytes, Image.Image, FileImage), "[image]")}
        advice = next((text for kind, text in kinds.items() if isinstance(images, kind)), "list(images)")
        raise MetricError(f"images must be a list, got {add_article(type(images).__name__)}; give {advice}.")


def read_requests(images: Any, target_class: Any, truth: Any) -> list[Any]:
    """Return the class of each image that is asked for: that of a list, or the same one for all.

    Raises:
        MetricError: There are no images, they are no list, or there are more or fewer classes or annotations.
    """
    check_image_list(images)
    count = len(images)
    if not count:
        raise MetricError("images is empty; give one or more.")
    given = target_class.tolist() if hasattr(target_class, "tolist") else target_class
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        given = [given] * count
    check_length("target_class", given, count)
    if truth is not None:
        check_length("truth", truth, count)
    return [entry.tolist() if isinstance(entry, (Tensor, np.generic)) else entry for entry in given]


def spread_indices(count: int, most: int) -> list[int]:
    """Return the indices of at most ``most`` of so many images, evenly spread over all."""
    indices: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return indices


def check_single_labels(labels: Any) -> None:
    """Check that there is one label for each image.

    Raises:
        MetricError: There are several, e.g. one-hot rows.
    """
    if labels is not None and any(np.ndim(label) or isinstance(label, (set, frozenset)) for label in labels):
        raise MetricError("labels: give one class for each image; of one-hot or soft labels it is labels.argmax(1).")


@dataclass(frozen=True, eq=False)
class LabeledBatch:
    """Images and the class of each that is explained.

    Attributes:
        batch: The prepared images.
        rows: Their places among the images that were given.
        classes: ``(N,)``, the classes that are explained.
        unlikely: ``(N,)``, the classes of the lowest score.
        probabilities: ``(N,)``, the probability of each class that is explained.
        link: The link from scores to probabilities.
    """

    batch: InputBatch
    rows: range
    classes: Tensor
    unlikely: Tensor
    probabilities: Tensor
    link: Link

    @property
    def images(self) -> Tensor:
        """The model's input, ``(N, C, H, W)``."""
        images = self.batch.inputs
        assert isinstance(images, Tensor)
        return images


class Subject:
    """A classifier that is evaluated.

    Args:
        model: The model.
        transform: From a PIL image to the model's input, if ``model`` does not bring it.
        labels: The names of the classes, if ``model`` does not bring them.
        device: The device of the inputs; by default the model's.
    """

    def __init__(
        self,
        model: Model,
        transform: Transform | None = None,
        labels: Sequence[str] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        loaded = to_loaded(model)
        if loaded.text is not None:
            raise MetricError("model: it compares images with texts; a classifier with fixed classes is needed.")
        self.model = loaded.model
        self.preparer = InputPreparer(loaded.model, transform or loaded.transform, device, kind="image")
        names = loaded.labels if labels is None else read_by_position(labels)
        self.explainer = BatchExplainer(loaded.model, labels=names)
        self._folded: dict[torch.Size, FoldedModel] = {}

    def iterate_batches(
        self, images: Sequence[Any] | Tensor, requests: Sequence[Any], size: int
    ) -> Iterator[LabeledBatch]:
        """Yield images in batches of one size each, in order, with their classes.

        Args:
            images: Whatever :func:`camtool.explain` takes as one image.
            requests: The class of each: an index, a label, or ``None`` for the model's top class.
            size: The largest number of images in a batch.

        Raises:
            MetricError: The model is no classifier of images.
        """
        done = 0
        for batch in self.preparer.prepare_batches(images, size)[1]:
            rows = range(done, done + len(batch.items))
            yield self._label(batch, rows, [requests[row] for row in rows])
            done = rows.stop

    def _label(self, batch: InputBatch, places: range, requests: Sequence[Any]) -> LabeledBatch:
        with Cleanup(), guard(self.model), torch.no_grad():
            forward_pass = self.explainer.run_batch(batch)
            probabilities, link = forward_pass.classify().probabilities, forward_pass.find_link().link
            if not isinstance(batch.inputs, Tensor) or probabilities is None or probabilities.ndim != 2 or link is None:
                raise MetricError("model: a classifier is needed that returns one score for each class of an image.")
            labels = self.explainer.find_labels(forward_pass)
            indices = [
                None if target.traits.is_group else target.get_class_index()
                for request, output, names in zip(requests, forward_pass.predictions, labels, strict=True)
                for target in targets.resolve_targets(request, output, names, link=link)
            ]
        if len(indices) != len(batch.items) or None in indices:
            raise MetricError("target_class: give one class for each image: an index, a label, or None for the top.")
        classes = torch.tensor(indices, device=probabilities.device)
        rows = torch.arange(len(classes), device=probabilities.device)
        return LabeledBatch(batch, places, classes, probabilities.argmin(1), probabilities[rows, classes], link)

    def score_classes(self, images: Tensor) -> Tensor:
        """Return the scores ``(N, K)`` of all classes for images that are the model's input."""
        with Cleanup(), guard(self.model), torch.no_grad():
            output = predictions.to_batch(run_model(self.model, images), len(images))
            scores = predictions.get_predictions(output, self.model)
        assert isinstance(scores, Tensor)  # as for the batch that was labeled
        return upcast(scores)

    def make_score(self, labeled: LabeledBatch, kind: Any) -> ClassScore:
        """Return the score of each image's class, as a ``"probability"`` or as a ``"logit"``."""
        return ClassScore(self._folded_for(labeled.images), labeled.images, labeled.classes, kind, labeled.link)

    def make_explain(self, candidate: Candidate, classes: Tensor) -> Explain:
        """Return a function that explains these classes on images that are the model's inputs already."""

        def explain(images: Tensor, rows: Tensor) -> Tensor:
            batches = self.preparer.prepare_batches(images, len(classes))[1]
            return torch.cat([*map_batches(self.explainer, candidate, batches, classes[rows].tolist())])

        return explain

    def _folded_for(self, images: Tensor) -> FoldedModel:
        """Return the copy of the model that scores images of this size; it is made once for each size."""
        size = images.shape[1:]
        if size not in self._folded:
            self._folded[size] = FoldedModel(self.model, images[:1])
        return self._folded[size]
