"""torchvision's models: their weights, the transform that these were trained with, and the names of their classes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

from torch import Tensor, nn

from camtool.errors import ModelError
from camtool.models.base import Loaded, Transform
from camtool.models.weights import classes_in, fill, read_state

if TYPE_CHECKING:
    from os import PathLike

__all__ = [
    "detection_transform",
    "from_torchvision",
    "imagenet_labels",
    "segmentation_transform",
    "torchvision_names",
    "untrained_torchvision",
    "usual_transform",
]


def torchvision_names() -> list[str]:
    """The names of torchvision's models."""
    import torchvision.models as zoo

    return list(zoo.list_models())


def untrained_torchvision(name: str) -> nn.Module:
    """One of torchvision's models with random weights."""
    return _built(name)


def _built(name: str, **options: Any) -> nn.Module:
    import torchvision.models as zoo

    if name in ("googlenet", "inception_v3"):
        # They warn, and fill themselves slowly, unless told that weights come; and torchvision's weights, which were
        # trained elsewhere, want the input rescaled inside the model.
        options |= {"init_weights": False, "transform_input": True}
    if "weights_backbone" in signature(zoo.get_model_builder(name)).parameters:  # else it would be fetched
        options["weights_backbone"] = None
    model: nn.Module = zoo.get_model(name, weights=None, **options)
    return model


def from_torchvision(name: str, weights: str | PathLike[str] | None = None) -> Loaded:
    """One of torchvision's models, with the best weights it has for the name, or those of a file.

    Raises:
        ModelError: The weights cannot be fetched or read, or do not fit.
    """
    import torchvision.models as zoo

    if weights is None:
        best = zoo.get_model_weights(name)["DEFAULT"]
        return Loaded(_download(name, best), best.transforms(), best.meta.get("categories"))
    state = {_DENSENETS_OLD_NAMES.sub(r"\1\2", key): value for key, value in read_state(weights).items()}
    options = _heads_in(name, state)
    model = _built(name, **options)
    # A file does not say how its weights were trained. The first recipe is the architecture's usual one; later ones
    # differ from it in the size of the crop by a few pixels.
    usual = next(iter(zoo.get_model_weights(name)))
    labels = usual.meta.get("categories")
    classes = classes_in(state, model)
    if labels is not None and classes not in (None, len(labels)):  # fine-tuned on a person's own classes
        model, labels = _built(name, num_classes=classes, **options), None
    fill(model, state, weights)
    return Loaded(model, usual.transforms(), labels)


_DENSENETS_OLD_NAMES = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.(\d)")
"""In torchvision's published files ``norm.1`` stands for what its DenseNets call ``norm1`` today."""


def _heads_in(name: str, state: Mapping[str, Tensor]) -> dict[str, bool]:
    """The options that give a model the auxiliary heads that its weights have, and no others."""
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": any(key.startswith(("aux1.", "AuxLogits.")) for key in state)}
    return {"aux_loss": True} if any(key.startswith("aux_classifier.") for key in state) else {}


def _download(name: str, weights: Any) -> nn.Module:
    import torchvision.models as zoo

    try:  # torchvision builds it: for some models it renames weights, or adds heads, as their files need it
        model: nn.Module = zoo.get_model(name, weights=weights, progress=False)
    except (URLError, OSError, RuntimeError) as error:  # the last: what came has another hash
        reason = getattr(error, "reason", error)
        raise ModelError(
            f"the weights of {name!r} could not be fetched ({reason}). Without internet, give a file with "
            f"--weights FILE (in Python: load({name!r}, 'FILE')), or use --model demo, which is bundled."
        ) from error
    return model


def usual_transform(side: int = 224, *, is_grey: bool = False) -> Transform:
    """Torchvision's standard preparation for classifiers: ImageNet's statistics, and the centre of a resized picture.

    Args:
        side: The side of what is cut out. The picture's shorter side is resized to a seventh more: to 256 for 224.
        is_grey: One channel is made, with the mean of the three channels' statistics.
    """
    from torchvision.transforms import Compose, Grayscale
    from torchvision.transforms._presets import ImageClassification

    preset = partial(ImageClassification, crop_size=side, resize_size=round(side * 256 / 224))
    usual: Transform = preset()
    if not is_grey:
        return usual
    grey: Transform = Compose([Grayscale(), preset(mean=(0.449,), std=(0.226,))])
    return grey


def detection_transform() -> Transform:
    """Torchvision's preparation for detectors: the whole picture, in [0, 1]; the rest they do themselves."""
    from torchvision.transforms._presets import ObjectDetection

    preset: Transform = ObjectDetection()
    return preset


def segmentation_transform() -> Transform:
    """Torchvision's preparation for segmenters: ImageNet's statistics, and the whole picture, its shorter side 520."""
    from torchvision.transforms._presets import SemanticSegmentation

    preset: Transform = SemanticSegmentation(resize_size=520)
    return preset


def imagenet_labels() -> list[str]:
    """The names of ImageNet's thousand classes, in their usual order."""
    from torchvision.models import ResNet18_Weights

    return list(ResNet18_Weights.IMAGENET1K_V1.meta["categories"])
