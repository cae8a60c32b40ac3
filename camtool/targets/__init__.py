"""What is explained: from the model's output to one score per image.

Every target is a small frozen dataclass that is called with the model's whole output and gives ``(N,)`` scores. A
plain callable serves as well: it is given one image's output and gives one number. To write a target of your own see
:class:`Target`.

What a person asks for becomes targets by :func:`choose`, image by image. There is settled what depends on the image:
which class the model ranks highest, where it sees a class, which of its detections is meant. A method that asks about
changed images then asks about the same thing throughout.
"""

from __future__ import annotations

from camtool.targets.about import box_of, class_of, has_a_place, name_of, probability
from camtool.targets.base import Target, score
from camtool.targets.choosing import Top, Want, choose, from_texts
from camtool.targets.classes import ClassScore, Probability
from camtool.targets.contrasts import AgainstRest, Contrast, Finer
from camtool.targets.detections import Box, Detected, Detection
from camtool.targets.places import Point, Region
from camtool.targets.values import Similarity, Value
from camtool.targets.wrappers import Custom, Negated, innermost

__all__ = [
    "AgainstRest",
    "Box",
    "ClassScore",
    "Contrast",
    "Custom",
    "Detected",
    "Detection",
    "Finer",
    "Negated",
    "Point",
    "Probability",
    "Region",
    "Similarity",
    "Target",
    "Top",
    "Value",
    "Want",
    "box_of",
    "choose",
    "class_of",
    "from_texts",
    "has_a_place",
    "innermost",
    "name_of",
    "probability",
    "score",
]
