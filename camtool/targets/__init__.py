"""Targets, the things that a map explains. A target turns a model's output into one score per image.

Every target is a small frozen dataclass that is called with the model's whole output and returns ``(N,)`` scores. It
also answers all other questions about itself: its label, class, probability, box and warnings. A plain function from
one image's output to a number works as well. To write your own target see :class:`Target` and :class:`Custom`.

:func:`resolve_targets` turns what a user asks for into targets, image by image. This decides what depends on the image:
which class the model ranks highest, where it predicts a class, which detection is meant. A method that scores changed
images then explains the same thing throughout.
"""

from __future__ import annotations

import functools as _functools
import typing as _typing

from camtool.arguments.foreign_names import raise_missing_name as _raise_missing_name
from camtool.targets.base_target import ImageOutput as ImageOutput
from camtool.targets.base_target import ScoreContext as ScoreContext
from camtool.targets.base_target import Target as Target
from camtool.targets.base_target import Traits as Traits
from camtool.targets.base_target import get_class_label as get_class_label
from camtool.targets.base_target import score_targets as score_targets
from camtool.targets.class_targets import ClassScore as ClassScore
from camtool.targets.class_targets import Probability as Probability
from camtool.targets.contrast_targets import AgainstRest as AgainstRest
from camtool.targets.contrast_targets import Contrast as Contrast
from camtool.targets.contrast_targets import Finer as Finer
from camtool.targets.contrast_targets import Negated as Negated
from camtool.targets.detection_targets import Box as Box
from camtool.targets.detection_targets import Detection as Detection
from camtool.targets.detection_targets import Keypoint as Keypoint
from camtool.targets.detection_targets import MatchedDetection as MatchedDetection
from camtool.targets.function_targets import Custom as Custom
from camtool.targets.group_targets import Group as Group
from camtool.targets.group_targets import GroupProbability as GroupProbability
from camtool.targets.group_targets import GroupScore as GroupScore
from camtool.targets.group_targets import Within as Within
from camtool.targets.place_targets import Point as Point
from camtool.targets.place_targets import Region as Region
from camtool.targets.resolving import AllDetections as AllDetections
from camtool.targets.resolving import TargetLike as TargetLike
from camtool.targets.resolving import Top as Top
from camtool.targets.resolving import asks_for_several as asks_for_several
from camtool.targets.resolving import encode_texts as encode_texts
from camtool.targets.resolving import get_score_key as get_score_key
from camtool.targets.resolving import resolve_targets as resolve_targets
from camtool.targets.resolving import score_request as score_request
from camtool.targets.value_targets import Action as Action
from camtool.targets.value_targets import Similarity as Similarity
from camtool.targets.value_targets import TextTokens as TextTokens
from camtool.targets.value_targets import Value as Value

if not _typing.TYPE_CHECKING:
    __getattr__ = _functools.partial(_raise_missing_name, __name__)
