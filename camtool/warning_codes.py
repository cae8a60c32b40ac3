"""The codes of all warnings and findings, in one table, and the string with a code that explanations carry.

To add a warning, add its code and texts to ``warning_codes.json``, and yield a :class:`MapWarning` where the fact is
known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

# ``"warning"``: a reason not to trust the map. ``"note"``: a fact to know, with which the map may still be right.
Severity: TypeAlias = Literal["warning", "note"]


_PAGE = "https://camtool.github.io/camtool/reference/warnings.html"


@dataclass(frozen=True)
class WarningKind:
    """One kind of warning.

    Attributes:
        code: The name, e.g. ``"zero-gradient"``. It stays the same from version to version.
        condition: When it is raised, one sentence.
        remedy: What the user can do, one sentence.
        severity: See :data:`Severity`.
    """

    code: str
    condition: str
    remedy: str
    severity: Severity = "warning"

    @property
    def address(self) -> str:
        """The address of its paragraph on the documentation site."""
        return f"{_PAGE}#{self.code}"


class HeatPlaces(NamedTuple):
    """Two points ``(x, y)`` of a photo, in its pixels, which differ if heat is drawn elsewhere than it belongs.

    Attributes:
        drawn: Where the hottest cell of a map is drawn.
        measured: Where the pixels lie on which this cell depends: their centroid.
    """

    drawn: tuple[float, float]
    measured: tuple[float, float]


class CodedWarning:
    """A warning with a code, and the remedy, address and severity that the table gives for this code.

    Attributes:
        code: The name of its kind, a key of :data:`WARNING_KINDS`.
        places: Of ``"heat-elsewhere"`` on a photo, the two places; ``None`` for any other warning.
    """

    code: str
    places: HeatPlaces | None = None

    @property
    def remedy(self) -> str:
        """What the user can do, one sentence."""
        return WARNING_KINDS[self.code].remedy

    @property
    def address(self) -> str:
        """The address of its paragraph on the documentation site."""
        return WARNING_KINDS[self.code].address

    @property
    def severity(self) -> Severity:
        """``"warning"``, a reason not to trust the map, or ``"note"``, see :data:`Severity`."""
        return WARNING_KINDS[self.code].severity


class MapWarning(CodedWarning, str):
    """A warning of an explanation: the sentence as a string, with a code."""

    def __new__(cls, text: str, code: str, places: HeatPlaces | None = None) -> MapWarning:
        """Return a warning.

        Raises:
            KeyError: The code is not in the table.
        """
        warning = super().__new__(cls, text)
        warning.code, warning.places = WARNING_KINDS[code].code, places
        return warning

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # str has one argument, this class has two
        return str(self), self.code


def find_heat_places(warnings: Iterable[CodedWarning]) -> HeatPlaces | None:
    """Return the places of the first warning or finding that has some; ``None`` without any."""
    return next((warning.places for warning in warnings if warning.places is not None), None)


def to_map_warning(text: str, code: str) -> MapWarning:
    """Return a warning itself, or a plain string, e.g. of a user's own target, with a code."""
    return text if isinstance(text, MapWarning) else MapWarning(text, code)


def _read_kinds() -> Iterator[WarningKind]:
    sections = json.loads((Path(__file__).parent / "warning_codes.json").read_text(encoding="utf-8"))
    for kinds in sections.values():
        for code, texts in kinds.items():
            yield WarningKind(code, **texts)


# Code → kind: every warning and finding there is.
WARNING_KINDS: Mapping[str, WarningKind] = MappingProxyType({kind.code: kind for kind in _read_kinds()})
