"""The report of a check: findings with codes, sentences, remedies and numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from camtool.arguments.message_parts import count_warnings
from camtool.warning_codes import CodedWarning, HeatPlaces

# The columns of a terminal that the text of a report fits into.
_WIDTH = 80

_INDENT = "    "


@dataclass(frozen=True)
class Finding(CodedWarning):
    """One reason not to trust a map, or a fact to know about it.

    Attributes:
        code: The name of its kind, a key of :data:`camtool.warning_codes.WARNING_KINDS`, e.g. ``"border-heat"``.
        sentence: What was found.
        numbers: The measured values behind it, by name.
        places: Of ``"heat-elsewhere"`` on a photo, where the hottest cell is drawn and where its pixels lie.
    """

    code: str
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    places: HeatPlaces | None = None

    def __str__(self) -> str:
        lines = [f"{self.severity}: {self.code}", _wrap(self.sentence, _INDENT)]
        # The remedy of "method-note" and "target-warning" is in the sentence itself.
        if self.remedy != "See the sentence.":
            lines.append(_wrap(self.remedy, f"{_INDENT}-> "))
        return "\n".join(lines)


@dataclass(frozen=True)
class CheckReport:
    """The findings about one explanation. A report is true if there is no warning among them.

        report = camtool.explain(model, "cat.jpg").check()
        if not report:
            print(report)

    Attributes:
        title: What was checked.
        findings: Warnings first, then notes.
        skipped: The name of a check → why it could not run.
    """

    title: str
    findings: tuple[Finding, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if no finding is a warning; notes do not count."""
        return not self.warnings

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are reasons not to trust the map."""
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of all findings."""
        return tuple(finding.code for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        head = _wrap(f"{self.title}: {self._summarize()}", "")
        skipped = [_wrap(f"{name}: {reason}", _INDENT) for name, reason in self.skipped.items()]
        tail = ["\n".join(["not checked", *skipped])] if skipped else []
        return "\n\n".join([head, *map(str, self.findings), *tail])

    def _repr_markdown_(self) -> str:
        findings = [
            f"- **{finding.severity}** [`{finding.code}`]({finding.address}): {finding.sentence} *{finding.remedy}*"
            for finding in self.findings
        ]
        skipped = [f"- not checked: {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join([f"**{self.title}**: {self._summarize()}", "", *findings, *skipped])

    def _summarize(self) -> str:
        return count_warnings(self.findings) or "no findings"


def sort_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings with the warnings first, otherwise in order, each code and sentence once."""
    once = {(finding.code, finding.sentence): finding for finding in findings}.values()
    return tuple(sorted(once, key=lambda finding: finding.severity != "warning"))


def _wrap(text: str, start: str) -> str:
    """Return text in lines of 80 columns; later lines are indented as far as the text after ``start``."""
    hanging = " " * len(start) or _INDENT
    return textwrap.fill(text, _WIDTH, initial_indent=start, subsequent_indent=hanging, break_on_hyphens=False)
