"""The kinds of candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from camtool.arguments.checks import check_choice
from camtool.errors import MetricError
from camtool.evaluation.audit.cues.candidates import CueCandidate, Discovery
from camtool.evaluation.audit.cues.concept import LEAST_CLASSES, find_concepts
from camtool.evaluation.audit.cues.mark import find_marks
from camtool.evaluation.audit.cues.patch import find_patches
from camtool.evaluation.audit.cues.place import find_frames, find_places, find_positions
from camtool.evaluation.audit.cues.property import find_colors, find_properties

Find: TypeAlias = Callable[[Discovery], Iterable[CueCandidate]]


@dataclass(frozen=True)
class Kind:
    """A kind of candidates.

    Attributes:
        find: Finds them in the discovery half.
        least_classes: Classes that exclude one another which it needs; 0 for a kind that needs none.
        reason_to_ask: The reason why it is only used if the user names it; empty if it is used by default.
    """

    find: Find
    least_classes: int = 0
    reason_to_ask: str = ""


# Name → kind of candidates. Of several kinds that find one cue equally clearly, the first one names it.
KINDS: dict[str, Kind] = {
    "border": Kind(find_frames),
    "place": Kind(find_places),
    "mark": Kind(find_marks),
    "patch": Kind(find_patches),
    "position": Kind(find_positions),
    "property": Kind(find_properties),
    "color": Kind(find_colors),
    "concept": Kind(find_concepts, LEAST_CLASSES, "they take several times as long"),
}


def choose_kinds(names: Sequence[str] | None) -> dict[str, Kind]:
    """Return the kinds with some names; by default those that are used without being asked for.

    Raises:
        MetricError: There is no such kind.
    """
    if names is None:
        return {name: kind for name, kind in KINDS.items() if not kind.reason_to_ask}
    for name in names:
        check_choice("kinds", name, KINDS, error=MetricError)
    return {name: kind for name, kind in KINDS.items() if name in names}
