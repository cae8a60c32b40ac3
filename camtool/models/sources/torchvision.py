"""Models of torchvision, with the weights, the transform and the class names that it publishes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from camtool.geometry.transform_output import Transform
from camtool.hooks.structures.modules import find_detector_transform
from camtool.models.loaded import Loaded
from camtool.models.sources.source import Source, tell_download_errors
from camtool.models.weights import count_classes, load_state, match_names, read_state


class TorchvisionSource(Source):
    """Models of torchvision, whose names need no prefix: ``"resnet50"`` or ``"torchvision:resnet50"``."""

    prefix = "torchvision"
    usage = "a torchvision name such as 'resnet50'"

    def list_names(self) -> Sequence[str]:
        """List the names of all models."""
        import torchvision.models as zoo

        return list(zoo.list_models())

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Load a model with its best published weights, or with those of a file.

        Raises:
            ModelError: The weights cannot be downloaded or read, or do not fit.
        """
        import torchvision.models as zoo

        if weights is None:
            best = zoo.get_model_weights(name)["DEFAULT"]
            return Loaded(_download(name, best), best.transforms(), best.meta.get("categories"))
        state = match_names(read_state(weights), weights)  # no model of torchvision has one of these prefixes
        state = {_OLD_DENSENET_NAME.sub(r"\1\2", key): value for key, value in state.items()}
        options = _choose_heads(name, state)
        model = _build(name, **options)
        # A file does not say how its weights were trained. The first recipe is the architecture's usual one; later ones
        # differ from it in the size of the crop by a few pixels.
        usual = next(iter(zoo.get_model_weights(name)))
        labels = usual.meta.get("categories")
        classes = count_classes(state, model)
        if labels is not None and classes not in (None, len(labels)):
            # The weights were fine-tuned on other classes.
            model, labels = _build(name, num_classes=classes, **options), None
        load_state(model, state, weights)
        return Loaded(model, usual.transforms(), labels)

    def build_untrained(self, name: str) -> nn.Module:
        """Build a model with random weights."""
        return _build(name)

    def is_offline(self, name: str, weights: str | None) -> bool:
        """Return True if the weights are in a file, or were downloaded before."""
        import torchvision.models as zoo

        file = zoo.get_model_weights(name)["DEFAULT"].url.rpartition("/")[2]
        return weights is not None or Path(torch.hub.get_dir(), "checkpoints", file).is_file()

    def find_transform(self, model: nn.Module) -> Transform | None:
        """Return the transform of a detector or a segmenter. Classifiers do not say how they were trained."""
        transform: Transform | None = None
        if find_detector_transform(model) is not None:  # the whole image in [0, 1]; it resizes and normalizes it itself
            from torchvision.transforms._presets import ObjectDetection

            transform = ObjectDetection()
        elif type(model).__module__.startswith("torchvision.models.segmentation"):
            from torchvision.transforms._presets import SemanticSegmentation

            transform = SemanticSegmentation(resize_size=520)  # the whole image, with this shorter side
        return transform

    def find_labels(self, model: nn.Module) -> Sequence[str] | None:
        """Return ImageNet's class names, which nearly all classifiers of torchvision are trained on."""
        return read_imagenet_labels() if type(model).__module__.startswith("torchvision.") else None


def read_published_labels(name: str) -> Sequence[str]:
    """Return the class names of a model's published weights, without loading them; none for an unknown name."""
    import torchvision.models as zoo

    return zoo.get_model_weights(name)["DEFAULT"].meta.get("categories", ()) if name in zoo.list_models() else ()


def list_photo_models() -> list[str]:
    """List the models that take one photo: classifiers, segmenters and detectors, each kind in alphabetical order."""
    import torchvision.models as zoo

    return [name for kind in (zoo, zoo.segmentation, zoo.detection) for name in zoo.list_models(module=kind)]


def build_default_transform(side: int = 224, *, is_gray: bool = False) -> Transform:
    """Build torchvision's standard transform for classifiers: center crop and ImageNet normalization.

    Args:
        side: The side of the crop in pixels. The shorter side of the image is resized to 256 / 224 of it.
        is_gray: Make one channel, normalized by the mean of the three channels' statistics.
    """
    from torchvision.transforms import Compose, Grayscale
    from torchvision.transforms._presets import ImageClassification

    preset = partial(ImageClassification, crop_size=side, resize_size=round(side * 256 / 224))
    # 0.449 and 0.226 are the means of ImageNet's (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225).
    transform: Transform = Compose([Grayscale(), preset(mean=(0.449,), std=(0.226,))]) if is_gray else preset()
    return transform


def build_resize(size: int | tuple[int, int], *, crop: bool = False) -> Transform:
    """Return a transform that scales photos to a size (h, w), or their shorter side to a number, with values in [0, 1].

    Args:
        size: The size, or the length of the shorter side.
        crop: Crop a square from the center then.
    """
    from torchvision import transforms

    steps = [transforms.Resize(size), *([transforms.CenterCrop(size)] if crop else []), transforms.ToTensor()]
    transform: Transform = transforms.Compose(steps)
    return transform


def build_gray(composed: Any) -> Transform:
    """Return a composed transform that makes photos gray first."""
    from torchvision.transforms import Compose, Grayscale

    gray: Transform = Compose([Grayscale(), *composed.transforms])
    return gray


@cache
def read_imagenet_labels() -> tuple[str, ...]:
    """Return the names of ImageNet's thousand classes, in their usual order."""
    from torchvision.models import ResNet18_Weights

    return tuple(ResNet18_Weights.IMAGENET1K_V1.meta["categories"])


# -------------------------------------------------------------------------------------------------------- loading


def _build(name: str, **options: Any) -> nn.Module:
    import torchvision.models as zoo

    if name in ("googlenet", "inception_v3"):
        # Without these options they warn, and initialize slowly. Their weights were converted from TensorFlow, so the
        # model must rescale its input.
        options |= {"init_weights": False, "transform_input": True}
    if "weights_backbone" in signature(zoo.get_model_builder(name)).parameters:
        # By default the backbone's weights would be downloaded.
        options["weights_backbone"] = None
    model: nn.Module = zoo.get_model(name, weights=None, **options)
    return model


# Name of a parameter in torchvision's published DenseNet files: ``norm.1`` is called ``norm1`` in the code today.
_OLD_DENSENET_NAME = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.(\d)")


def _choose_heads(name: str, state: Mapping[str, Tensor]) -> dict[str, bool]:
    """Return the options that give a model the auxiliary heads that the weights have, and no others."""
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": any(key.startswith(("aux1.", "AuxLogits.")) for key in state)}
    return {"aux_loss": True} if any(key.startswith("aux_classifier.") for key in state) else {}


def _download(name: str, weights: Any) -> nn.Module:
    import torchvision.models as zoo

    with tell_download_errors(name, name):
        # torchvision must build the model: for some it renames weights or adds heads, as their files need it.
        return zoo.get_model(name, weights=weights, progress=False)  # type: ignore[no-any-return]
