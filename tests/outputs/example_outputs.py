"""Outputs in the structures that models return: class scores, detections, queries and anchors."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

LOGITS = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
"""Two images, three classes."""

AUX = torch.randn(2, 9)

Pair = namedtuple("Pair", "logits state")
Odd = namedtuple("Odd", "state logits")


class ModelOutput(OrderedDict):
    """A dictionary whose entries are attributes as well, as in Hugging Face's outputs."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


@dataclass(frozen=True)
class PlainOutput:
    """A data class."""

    hidden: Any
    logits: Any
    name: str = "plain"


# ----------------------------------------------------------------------------------------------------------- detections

TWO = [
    {
        "boxes": torch.tensor([[0.0, 0.0, 4.0, 4.0], [2.0, 2.0, 6.0, 6.0], [8.0, 0.0, 9.0, 2.0]]),
        "labels": torch.tensor([3, 1, 3]),
        "scores": torch.tensor([0.5, 0.9, 0.6]),
    },
    {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long), "scores": torch.zeros(0)},
]
"""The output of a torchvision detector: three objects in the first image, none in the second."""

QUERIES = ModelOutput(
    loss=torch.tensor(1.0),
    logits=torch.tensor([[[0.0, log(2), log(5)], [log(3), 0.0, 0.0]]]),
    pred_boxes=torch.tensor([[[0.5, 0.5, 0.2, 0.4], [0.25, 0.5, 0.5, 1.0]]]),
)
"""The output of DETR: one image, two queries, two classes and "no object", boxes by center and size."""


def make_anchors() -> tuple[Tensor, list[Tensor]]:
    """Return the output of an Ultralytics model: two images, two classes, six positions, and the feature maps."""
    read = torch.rand(2, 4 + 2, 6)
    read[0, :, 3] = torch.tensor([10.0, 20.0, 4.0, 8.0, 0.25, 0.97])
    read[0, 4:, 4] = torch.tensor([0.98, 0.01])
    return read, [torch.rand(2, 18, 2, 2), torch.rand(2, 18, 1, 2)]
