"""Targets, the things that a map explains. A target turns a model's output into one score per image.

Every target is a small frozen dataclass that is called with the model's whole output and returns ``(N,)`` scores. It
also answers all other questions about itself: its label, class, probability, box and warnings. A plain function from
one image's output to a number works as well. To write your own target see :class:`Target` and :class:`Custom`.

:func:`resolve_targets` turns what a user asks for into targets, image by image. This decides what depends on the image:
which class the model ranks highest, where it predicts a class, which detection is meant. A method that scores changed
images then explains the same thing throughout.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from camtool.arguments.foreign_names import raise_missing_name
from camtool.targets.classes import ClassScore, Probability
from camtool.targets.contrasts import AgainstRest, Contrast, Finer, Negated
from camtool.targets.detections import Box, Detection, Keypoint, MatchedDetection
from camtool.targets.groups import Group, GroupProbability, GroupScore, Within
from camtool.targets.places import Point, Region
from camtool.targets.resolving import (
    AllDetections,
    TargetLike,
    Top,
    asks_for_several,
    encode_texts,
    get_score_key,
    resolve_targets,
    score_request,
)
from camtool.targets.target import ImageOutput, ScoreContext, Target, Traits, get_class_label, score_targets
from camtool.targets.user_functions import Custom
from camtool.targets.values import Action, Similarity, TextTokens, Value

__all__ = [
    "Action",
    "AgainstRest",
    "AllDetections",
    "Box",
    "ClassScore",
    "Contrast",
    "Custom",
    "Detection",
    "Finer",
    "Group",
    "GroupProbability",
    "GroupScore",
    "ImageOutput",
    "Keypoint",
    "MatchedDetection",
    "Negated",
    "Point",
    "Probability",
    "Region",
    "ScoreContext",
    "Similarity",
    "Target",
    "TargetLike",
    "TextTokens",
    "Top",
    "Traits",
    "Value",
    "Within",
    "asks_for_several",
    "encode_texts",
    "get_class_label",
    "get_score_key",
    "resolve_targets",
    "score_request",
    "score_targets",
]

if not TYPE_CHECKING:
    __getattr__ = partial(raise_missing_name, __name__)
