"""Torchvision's segmenters and detectors: random weights, small pictures, and nothing is fetched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from camtool.outputs.class_scores import find_logits
from tests.zoo.catalogue import calibrated

_BARE: dict[str, Any] = {"weights": None, "weights_backbone": None, "num_classes": 6}


@dataclass(frozen=True)
class Dense:
    """Model that predicts segments or boxes.

    Attributes:
        name: Torchvision's name for it.
        options: What its builder is given.
        size: The side of the square pictures it is asked about.
        sureness: What the weights of its head for classes are multiplied by: the probabilities of a random one may else
            be nearer to 1 than floats can tell, where they have no slope.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    size: int = 128
    sureness: float = 1.0

    def build(self) -> nn.Module:
        """The model with calibrated random weights, the same each time."""
        import torchvision

        torch.manual_seed(0)
        model: nn.Module = torchvision.models.get_model(self.name, **(_BARE | self.options))
        if self.sureness != 1:
            for parameter in model.head.classification_head.parameters():
                parameter.data *= self.sureness
        return calibrated(model.eval(), self.size)


class Unwrapped(nn.Module):
    """A model whose scores have been taken out of its output by hand, so that it returns a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return find_logits(self.model(x))


SEGMENTERS: dict[str, Dense] = {
    name: Dense(name, size=96)
    for name in (
        "deeplabv3_mobilenet_v3_large",
        "deeplabv3_resnet50",
        "deeplabv3_resnet101",
        "fcn_resnet50",
        "fcn_resnet101",
        "lraspp_mobilenet_v3_large",
    )
}

_SMALL = {"min_size": 128, "max_size": 256}

# A random detector is sure of nothing, so nothing is too unsure to be kept; but a few will do.
_OF_REGIONS = _SMALL | {"box_score_thresh": 0.0, "box_detections_per_img": 10, "rpn_post_nms_top_n_test": 50}

_OF_ANCHORS = {"score_thresh": 0.0, "detections_per_img": 10}

DETECTORS: dict[str, Dense] = {
    name: Dense(name, options)
    for name, options in {
        "fasterrcnn_mobilenet_v3_large_320_fpn": _OF_REGIONS,
        "fasterrcnn_mobilenet_v3_large_fpn": _OF_REGIONS,
        "fasterrcnn_resnet50_fpn": _OF_REGIONS,
        "fasterrcnn_resnet50_fpn_v2": _OF_REGIONS,
        "fcos_resnet50_fpn": _SMALL | _OF_ANCHORS,
        "keypointrcnn_resnet50_fpn": _OF_REGIONS | {"num_classes": 2, "box_detections_per_img": 3},
        "maskrcnn_resnet50_fpn": _OF_REGIONS,
        "maskrcnn_resnet50_fpn_v2": _OF_REGIONS,
        "retinanet_resnet50_fpn": _SMALL | _OF_ANCHORS,
        "retinanet_resnet50_fpn_v2": _SMALL | _OF_ANCHORS,
    }.items()
} | {
    "ssd300_vgg16": Dense("ssd300_vgg16", _OF_ANCHORS, sureness=0.01),
    "ssdlite320_mobilenet_v3_large": Dense("ssdlite320_mobilenet_v3_large", _OF_ANCHORS),
}
