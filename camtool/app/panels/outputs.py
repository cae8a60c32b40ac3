"""Kinds of model outputs, which decide which panels are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from PIL import Image
from torch import Tensor

import camtool
from camtool.explaining.explainer import ask_model
from camtool.explaining.pipeline import BatchExplainer
from camtool.hooks.observation import observe
from camtool.inputs.prepared_inputs import InputBatch
from camtool.models import Loaded, resolve_labels
from camtool.models.vision_language import takes_image_and_text
from camtool.outputs.class_scores import Link, compute_class_scores
from camtool.targets import Target, get_class_label

Kind: TypeAlias = Literal["classes", "boxes", "segments", "texts", "answer", "other"]
"""Kind of a model's output: scores of classes, boxes, a class for each pixel, similarity to texts, a written answer,
or something else, e.g. an embedding."""


@dataclass(frozen=True, eq=False)
class ModelOutput:
    """Output of a classifier or a segmenter for N photos.

    Attributes:
        scores: ``(N, K)`` or score planes ``(N, K, h, w)``; None if the model returns boxes.
        probabilities: The same as probabilities; None for boxes and for embeddings.
        labels: The names of the classes; None if they are unknown.
        link: The link from scores to probabilities; None for boxes and for embeddings.
    """

    scores: Tensor | None
    probabilities: Tensor | None
    labels: Sequence[str] | None
    link: Link | None = None

    def get_label(self, index: int) -> str:
        """Return the name of a class, or e.g. ``"class 7"``."""
        return get_class_label(index, self.labels)


def find_kind(loaded: Loaded, image: Image.Image) -> Kind:
    """Return what a model returns for a photo. Its name plays no role.

    Raises:
        CamtoolError: The model does not run on the photo.
    """
    if loaded.text is not None:
        return "texts"
    if takes_image_and_text(loaded.model) and callable(getattr(loaded.model, "generate", None)):
        return "answer"
    output = read_outputs(loaded, [image])
    if output.scores is None:
        return "boxes"
    if output.probabilities is None:
        return "other"
    return {2: "classes", 4: "segments"}.get(output.scores.ndim, "other")  # type: ignore[return-value]


def read_outputs(loaded: Loaded, images: Sequence[Image.Image]) -> ModelOutput:
    """Run one forward pass on photos of one size, and return what the model returned.

    Raises:
        CamtoolError: The model does not run on the photos.
    """

    def read(explainer: BatchExplainer, batch: InputBatch) -> ModelOutput:
        forward_pass = explainer.run_forward_pass(observe, batch)
        scores, link = forward_pass.predictions, forward_pass.find_link().link
        if not isinstance(scores, Tensor):
            return ModelOutput(None, None, loaded.labels)
        if link is None:
            return ModelOutput(scores, None, None)
        labels = resolve_labels(loaded.model, loaded.labels, scores.shape[1])
        # A single score becomes those of two classes.
        return ModelOutput(compute_class_scores(scores, link), forward_pass.classify().probabilities, labels, link)

    return ask_model(loaded, images, read)


def resolve_target(loaded: Loaded, image: Image.Image, target: Any) -> Target:
    """Return a target with everything decided that depends on the photo, e.g. which class is on top.

    Raises:
        CamtoolError: The target does not fit the model or the photo.
    """

    def resolve(explainer: BatchExplainer, batch: InputBatch) -> Target:
        return explainer.resolve_rows([target], explainer.run_forward_pass(observe, batch), batch)[0].target

    return ask_model(loaded, [image], resolve)


def check_point(image: Image.Image, x: float, y: float) -> None:
    """Check that a point is on a photo.

    Raises:
        TargetError: It is not.
    """
    width, height = image.size
    if not (0 <= x < width and 0 <= y < height):
        raise camtool.TargetError(
            f"the point ({x:g}, {y:g}) is outside of the photo of {width} x {height} pixels; click on the photo."
        )
