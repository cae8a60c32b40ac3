"""Kinds of model outputs, which decide which panels are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from PIL import Image
from torch import Tensor

import camtool
from camtool.evidence.evidence import Evidence
from camtool.methods import Method
from camtool.models import Loaded, resolve_labels
from camtool.models.vision_language import takes_image_and_text
from camtool.outputs.class_scores import compute_class_scores
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
    """

    scores: Tensor | None
    probabilities: Tensor | None
    labels: Sequence[str] | None

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

    def read(evidence: Evidence) -> ModelOutput:
        forward_pass = evidence.forward_pass
        scores, link = forward_pass.predictions, forward_pass.find_link().link
        if not isinstance(scores, Tensor):
            return ModelOutput(None, None, loaded.labels)
        if link is None:
            return ModelOutput(scores, None, None)
        labels = resolve_labels(loaded.model, loaded.labels, scores.shape[1])
        # A single score becomes those of two classes.
        return ModelOutput(compute_class_scores(scores, link), forward_pass.classify().probabilities, labels)

    # There is no target, so the score depends on nothing.
    output: ModelOutput = _ask_evidence(loaded, list(images), [lambda _: torch.zeros(())] * len(images), read)
    return output


def _ask_evidence(loaded: Loaded, images: Any, target: Any, ask: Callable[[Evidence], Any]) -> Any:
    """Return what a function reads from the evidence that a method at the input would get.

    Args:
        loaded: The model.
        images: What :func:`camtool.explain` takes: one photo, or several of one size.
        target: What :func:`camtool.explain` takes.
        ask: From the evidence to anything. It is called once.

    Raises:
        CamtoolError: The model or the target does not fit.
    """
    answers: list[Any] = []

    def read(evidence: Evidence) -> Tensor:
        answers.append(ask(evidence))
        return evidence.inputs.new_zeros(len(evidence.images), *evidence.inputs.shape[2:])

    camtool.explain(loaded, images, target, method=Method("read", read, ignores_layer=True))
    return answers[0]


def resolve_target(loaded: Loaded, image: Image.Image, target: Any) -> Target:
    """Return a target with everything decided that depends on the photo, e.g. which class is on top.

    Raises:
        CamtoolError: The target does not fit the model or the photo.
    """
    resolved: Target = _ask_evidence(loaded, image, target, lambda evidence: evidence.targets[0])
    return resolved


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
