"""The result of an audit: findings, decoys, what was not tested, and the user's verdicts; as JSON and Markdown."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from camtool.arguments.checks import check_choice
from camtool.arguments.message_parts import format_count, format_ends, suggest_names
from camtool.arguments.regular_files import read_regular
from camtool.errors import MetricError, RaiseAs
from camtool.evaluation.audit.cues.candidates import DECOYS, CueCandidate
from camtool.evaluation.audit.cues.stored import CUES_NAME, AuditSettings, encode_cues, read_cues
from camtool.evaluation.audit.report import page
from camtool.evaluation.audit.report.page import FOLDER, format_percent, read_pictures
from camtool.evaluation.audit.statistics import compute_share
from camtool.evaluation.audit.trials import Effect
from camtool.evaluation.leaderboard.table import Interval, encode_json, to_record
from camtool.rendering.image_writing import open_atomically
from camtool.rendering.written_files import check_inside, replace_files
from camtool.runs.stored_files import parse_object

# The user's word about a finding: no test can say whether a model may use it.
Verdict: TypeAlias = Literal["object", "shortcut", "unsure"]

# Kind → what is done to an image that has the cue, and to one that does not; as for a place for all other kinds.
_VERBS = {
    "place": ("covering it", "pasting it"),
    "property": ("evening it out", "shifting it"),
    "position": ("moving it away", "moving them there"),
    "concept": ("removing it from the activations", "adding it to them"),
}

JSON_NAME, MARKDOWN_NAME, VERDICTS_NAME = "audit.json", "audit.md", "verdicts.json"
NAMES = (JSON_NAME, MARKDOWN_NAME, CUES_NAME, FOLDER)

# Fields of an audit that are not in its JSON file.
_NOT_IN_JSON = ("folder", "cues", "settings")


class WorstGroup(NamedTuple):
    """The group of images with the lowest accuracy: its name, the share of right answers, the number of images."""

    name: str
    accuracy: Interval
    images: int

    def __str__(self) -> str:
        low, high = (f"{100 * number:.0f}" for number in self.accuracy[1:])
        right = f"{format_percent(self.accuracy.mean)} ({low} to {high})"
        return f"{self.name}: {right} of {format_count(self.images, 'image')} right"


@dataclass(frozen=True)
class Finding:
    """A candidate that was tested.

    Attributes:
        key: Its name in files of verdicts, e.g. ``"heart: place: the lower right corner"``.
        kind: ``"place"``, ``"border"``, ``"position"``, ``"patch"``, ``"property"``, ``"color"`` or ``"concept"``.
        label: The class.
        target: The index of the class.
        name: Its description in words.
        area: Share of the model's input that it covers; None if it has no place.
        present: Images of the confirmation half that have it, of ``class_count`` of the class.
        class_count: Images of the class in the confirmation half.
        removal: The effect of removing it, with the fill that shows it more; None if that was not possible.
        transplant: The effect of giving it to images of other classes; None if that was not possible.
        p: The p-value of the whole claim.
        q: The Benjamini-Hochberg value among all candidates that were tested.
        smallest_share: The smallest share of answers that this many images could have shown, with 80 % power.
        facts: What is remarkable about it, most telling first.
        images: Images that have it, by name or number, at most 20.
        without: Images of the class that do not have it, at most 20.
        accuracy: The accuracy on images of the class with it and without it; None without labels.
        by_group: Name of a column and value → images of the class, and those with it.
        verdict: The user's verdict; None without one.
        also: The same cue by other candidates that were confirmed, in words.
        accuracy_by_group: As ``accuracy``, for each of ``by_group``; NaN where there is no image.
        outside: Share of it that is outside of the given masks; None without a place or masks.
        sameness: Share of its pixels that look the same in the images that have it; None without a fixed form.
        suspicions: Why it is no part of an object; none if it is what objects of the class are recognized by.
    """

    key: str
    kind: str
    label: str
    target: int
    name: str
    area: float | None
    present: int
    class_count: int
    removal: Effect | None
    transplant: Effect | None
    p: float
    q: float
    smallest_share: float
    facts: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    accuracy: tuple[float, float] | None = None
    by_group: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    verdict: Verdict | None = None
    also: tuple[str, ...] = ()
    accuracy_by_group: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    outside: float | None = None
    sameness: float | None = None
    suspicions: tuple[str, ...] = ()

    @property
    def is_suspicious(self) -> bool:
        """True if it is no part of an object: by the user's verdict, or without one by its suspicions."""
        return self.verdict == "shortcut" or (self.verdict != "object" and bool(self.suspicions))

    @property
    def worst_group(self) -> WorstGroup | None:
        """The images of the class, by cue and by each column, with the lowest accuracy.

        Of several it is the one with the most images. None without labels, or if all groups have the same accuracy.
        """
        groups = {name: (*self.accuracy_by_group[name], *self.by_group[name]) for name in self.accuracy_by_group}
        if not groups and self.accuracy is not None:
            groups = {"": (*self.accuracy, self.class_count, self.present)}
        parts = [
            (accuracy, number, f"{name}, {cue}".removeprefix(", "))
            for name, (with_it, without_it, count, present) in groups.items()
            for accuracy, number, cue in ((with_it, present, "with it"), (without_it, count - present, "without it"))
            if number
        ]
        if len({accuracy for accuracy, *_ in parts}) < 2:
            return None
        accuracy, number, name = min(parts, key=lambda part: (part[0], -part[1]))
        return WorstGroup(name, compute_share(accuracy * number, number), number)

    @property
    def sentence(self) -> str:
        """The finding in one sentence, with its numbers."""
        has, effects = f"{self.present} of {self.class_count} '{self.label}' images: {self.name}", []
        remove, give = _VERBS.get(self.kind, _VERBS["place"])
        for effect, change, answers in (
            (self.removal, f"{remove} changes", "the answers"),
            (self.transplant, f"{give} makes", f"other images '{self.label}'"),
        ):
            if effect is not None:
                controls = f"(controls {format_percent(effect.controls)}){_format_probability(effect)}"
                effects.append(f"{change} {format_answers(effect)} of {answers} {controls}")
        return f"{has}; {', '.join(effects)}; q = {self.q:.2g}."

    def __str__(self) -> str:
        return self.sentence


def _format_probability(effect: Effect) -> str:
    """Return the change of the probability where the answers alone do not show the effect."""
    if effect.changes_answers or not effect.is_large:
        return ""
    mean, low, high = (100 * number for number in effect.probability)
    return f", and its probability by {mean:.0f} points{format_ends(low, high)} beyond the controls"


def format_answers(effect: Effect) -> str:
    """Return the share of the answers that changed, with its interval, in percent."""
    mean, low, high = (f"{100 * number:.0f}" for number in effect.answers)
    return f"{mean} % ({low} to {high})"


@dataclass(frozen=True, repr=False)
class Audit:
    """The cues that a model's answers were shown to depend on, and how far that can be trusted.

        audit = camtool.audit(model, photos, labels)
        print(audit)
        audit.findings[0].sentence

    Attributes:
        findings: The candidates that were confirmed, the most suspicious first.
        rejected: The candidates that were tested and not confirmed.
        decoys: The decoys: candidates that are false by construction, with the same tests.
        surviving_decoys: How many decoys passed like findings.
        false_discovery_rate: ``(surviving decoys + 1) / 9 / findings``, as each candidate has nine; None without
            findings.
        not_tested: The parts that were left out, and why.
        notes: Notes for the user about images and groups.
        image_count: The images that were read.
        level: The largest q of a finding.
        passes: Forward passes.
        seed: The seed.
        command: The command that repeats it; empty after a call from Python.
        folder: The folder that it was written to, which may hold pictures; None if there is none.
        untested: The reason why nothing was tested; empty if candidates were looked for, and some were tested if there
            were any.
        unread: Images that could not be read; ``not_tested`` has the reasons.
        cues: Key of a finding → what :func:`camtool.repair` removes from images and gives to others.
        settings: The settings that a repair shares; None for an audit of an earlier version.
    """

    findings: tuple[Finding, ...]
    rejected: tuple[Finding, ...]
    decoys: tuple[Finding, ...]
    surviving_decoys: int
    false_discovery_rate: float | None
    not_tested: tuple[str, ...]
    notes: tuple[str, ...]
    image_count: int
    level: float
    passes: int
    seed: int
    command: str = ""
    folder: Path | None = field(default=None, compare=False)
    untested: str = ""
    unread: int = 0
    cues: Mapping[str, CueCandidate] = field(default_factory=dict, compare=False)
    settings: AuditSettings | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<Audit of {format_count(self.image_count, 'image')}: {format_count(len(self.findings), 'finding')}>"

    def __str__(self) -> str:
        return self.to_markdown()

    _repr_markdown_ = __str__

    @property
    def suspects(self) -> tuple[Finding, ...]:
        """The findings that are no part of an object, see :attr:`Finding.is_suspicious`."""
        return tuple(finding for finding in self.findings if finding.is_suspicious)

    @property
    def recognized_by(self) -> tuple[Finding, ...]:
        """The findings that may be parts of objects: what the classes are recognized by."""
        return tuple(finding for finding in self.findings if not finding.is_suspicious)

    @property
    def sections(self) -> dict[str, tuple[Finding, ...]]:
        """Title → its findings: those that are no part of an object, then the others; without empty sections."""
        sections = {"Suspicious": self.suspects, "What the classes are recognized by": self.recognized_by}
        return {title: findings for title, findings in sections.items() if findings}

    def count_findings(self) -> str:
        """Return the number of findings in words, e.g. ``"1 suspicious finding and 2 others"``."""
        suspects = format_count(len(self.suspects), "suspicious finding")
        return f"{suspects} and {format_count(len(self.recognized_by), 'other')}" if self.recognized_by else suspects

    def mark(self, key: str, verdict: Verdict) -> Audit:
        """Return the audit with the user's verdict about a finding.

        Args:
            key: The key of the finding.
            verdict: ``"object"`` for what the model may use, ``"shortcut"``, or ``"unsure"``.

        Raises:
            MetricError: There is no such finding, or no such verdict.
        """
        check_choice("verdict", verdict, get_args(Verdict), error=MetricError)
        keys = [finding.key for finding in self.findings]
        if key not in keys:
            raise MetricError(f"key: the audit has no finding {key!r}.{suggest_names(key, keys)}")
        marked = (replace(each, verdict=verdict) if each.key == key else each for each in self.findings)
        return replace(self, findings=tuple(marked))

    def to_json(self) -> str:
        """Return everything as JSON; infinite and unknown numbers are null."""
        findings = tuple(chain.from_iterable(self.sections.values()))
        content = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_IN_JSON}
        for kind, listed in (("findings", findings), ("rejected", self.rejected), ("decoys", self.decoys)):
            content[kind] = [*map(_to_record, listed)]
        return encode_json(content)

    def to_markdown(self) -> str:
        """Return the audit as a page of Markdown."""
        images = format_count(self.image_count, "image")
        lines = ["# Audit", "", f"{images}, {self.count_findings()} at q ≤ {self.level:g}."]
        if self.false_discovery_rate is not None:
            decoys, rate = format_count(self.surviving_decoys, "decoy"), format_percent(self.false_discovery_rate)
            lines[-1] += (
                f" {decoys} of {len(self.decoys)} passed the same tests: the false-discovery rate is estimated as "
                f"({self.surviving_decoys} + 1) / {DECOYS} / {len(self.findings)}, at most {rate}. It is "
                "coarse for few findings."
            )
        number = 1
        for title, findings in self.sections.items():
            lines += ["", f"## {title}"]
            for finding in findings:
                lines += ["", f"{number}. {finding.sentence}", *_list_details(finding)]
                number += 1
        if self.untested:
            lines += ["", f"Nothing was tested: {self.untested}"]
        elif not self.findings:
            lines += ["", "No finding does not mean no shortcut: see what was not tested, and what could be detected."]
        rejected = [
            f"'{one.label}', {one.name} ({one.kind}): {page.explain_rejection(one.q, self.level)}; p = {one.p:.2g}, "
            f"q = {one.q:.2g}; an effect on less than {format_percent(one.smallest_share)} of the answers would not "
            "have shown."
            for one in self.rejected
        ]
        sections = {"Tested, not confirmed": rejected, "Not tested": self.not_tested, "Notes": self.notes}
        return "\n".join([*lines, *list_sections(sections, self.command)]) + "\n"

    def save(self, folder: str | Path) -> Path:
        """Write ``audit.json``, ``audit.md``, ``cues.json``, the page and the verdicts to a folder, and return it.

        Verdicts of other findings that are in the folder are kept. The page shows the pictures that are there.

        Raises:
            CamtoolError: A file in the folder is a link that leads out of it, its verdicts cannot be read, or there is
                another ``index.html``, or an ``audit.json`` or ``audit.md`` that is not as camtool wrote it.
        """
        folder = Path(folder)
        verdicts = {finding.key: finding.verdict for finding in self.findings if finding.verdict is not None}
        files = {JSON_NAME: self.to_json(), MARKDOWN_NAME: self.to_markdown()}
        if self.settings is not None:
            files[CUES_NAME] = encode_cues(self.settings, self.cues)
        page.check_results(folder, [*files])
        check_inside(folder, Path(VERDICTS_NAME))
        all_verdicts = {**read_verdicts(folder / VERDICTS_NAME), **verdicts}
        others = {VERDICTS_NAME: json.dumps(all_verdicts, indent=1) + "\n"} if verdicts else {}
        others[page.PAGE_NAME] = page.render_audit(json.loads(files[JSON_NAME]), read_pictures(folder), all_verdicts)
        return write_files(folder, files, others)


def read_verdicts(path: Path | None, *, is_required: bool = False) -> dict[str, Verdict]:
    """Return the verdicts in a file by key; none if there is no file.

    Args:
        path: The file; None for none.
        is_required: Refuse a file that does not exist.

    Raises:
        MetricError: The file holds something else, or does not exist.
    """
    if path is None or not (is_required or path.exists()):
        return {}
    if not path.exists():
        raise MetricError(f"verdicts: {path} does not exist; give a verdicts.json that an audit wrote.")
    advice = "give a file that an audit wrote"
    with RaiseAs(lambda error: MetricError(f"verdicts: {path} cannot be read: {error}; {advice}."), ValueError):
        content = parse_object(read_regular(path))
    return check_verdicts(content, f"verdicts: {path}")


def check_verdicts(verdicts: Mapping[str, Any], name: str = "verdicts") -> dict[str, Verdict]:
    """Return verdicts by key.

    Raises:
        MetricError: One is no verdict.
    """
    for key, verdict in verdicts.items():
        check_choice(f"{name}: {key!r}", verdict, get_args(Verdict), error=MetricError)
    return {**verdicts}


def read_audit(path: str | os.PathLike[str]) -> Audit:
    """Return the audit in a file ``audit.json``, or in the folder of one, with the verdicts beside it.

    Raises:
        MetricError: There is no such file, or it holds something else.
    """
    path = Path(path)
    path = path / JSON_NAME if path.is_dir() else path
    if not path.exists():
        raise MetricError(f"audit: {path} does not exist; give the folder of an audit, or its audit.json.")
    advice = "give an audit.json that an audit wrote"
    kinds = (OSError, ValueError, KeyError, TypeError, AttributeError)
    with RaiseAs(lambda error: MetricError(f"audit: {path} cannot be read: {error}; {advice}."), *kinds):
        content = parse_object(read_regular(path))
        names = [each.name for each in fields(Audit) if each.name not in _NOT_IN_JSON]
        values: dict[str, Any] = {name: content[name] for name in names}
        settings, cues = read_cues(path.parent)
        for kind in ("findings", "rejected", "decoys"):
            values[kind] = tuple(map(_read_finding, values[kind]))
        audit = Audit(**_to_tuples(values))
        audit.to_markdown()  # fails where a value has another type
    verdicts = read_verdicts(path.parent / VERDICTS_NAME)
    findings = tuple(replace(each, verdict=verdicts.get(each.key, each.verdict)) for each in audit.findings)
    return replace(audit, findings=findings, folder=path.parent, settings=settings, cues=cues)


# What audits of earlier versions do not say of a finding.
_NEW = ("sameness", "suspicions")


def _read_finding(record: Mapping[str, Any]) -> Finding:
    values = {each.name: record[each.name] for each in fields(Finding) if each.name not in _NEW or each.name in record}
    for name in ("removal", "transplant"):
        if values[name] is not None:
            pairs = {key: Interval(*_read_numbers(values[name][key])) for key in ("answers", "probability")}
            (change,) = _read_numbers([values[name].get("change")])
            values[name] = Effect(**{**values[name], **pairs, "change": change})
    if values["smallest_share"] is None:
        values["smallest_share"] = math.inf
    values["accuracy"] = values["accuracy"] and (*_read_numbers(values["accuracy"]),)
    values["by_group"] = {name: (*counts,) for name, counts in values["by_group"].items()}
    groups = values["accuracy_by_group"].items()
    values["accuracy_by_group"] = {name: (*_read_numbers(shares),) for name, shares in groups}
    return Finding(**_to_tuples(values))


def _to_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _read_numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def rank_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of suspicion: with most suspicions, then most facts, then the largest effects."""

    def compute_rank(finding: Finding) -> tuple[bool, int, int, float]:
        effects = [effect.answers.mean for effect in (finding.removal, finding.transplant) if effect is not None]
        return not finding.is_suspicious, -len(finding.suspicions), -len(finding.facts), -max(effects, default=0.0)

    return tuple(sorted(findings, key=compute_rank))


def _list_details(finding: Finding) -> list[str]:
    details = {
        f"Suspicious: {', '.join(finding.suspicions)}.": finding.suspicions,
        f"Observed: {', '.join(finding.facts)}.": finding.facts,
        f"Of it {format_percent(finding.outside)} is outside of the given masks.": finding.outside is not None,
        f"The same images were also found by: {'; '.join(finding.also)}.": finding.also,
        **dict.fromkeys(_list_accuracies(finding), True),
        f"Examples: {', '.join(finding.images[:5])}.": finding.images,
        f"Without it: {', '.join(finding.without[:5])}.": finding.without,
        f"Verdict: {finding.verdict}.": finding.verdict,
    }
    return [f"   * {detail}" for detail, is_known in details.items() if is_known]


def _list_accuracies(finding: Finding) -> Iterator[str]:
    """Yield the accuracy with the cue and without it, of the class and by group."""
    if finding.accuracy is not None and not math.isnan(sum(finding.accuracy)):
        with_it, without_it = map(format_percent, finding.accuracy)
        yield f"Accuracy with it {with_it}, without it {without_it}."
    for group, (count, present) in finding.by_group.items():
        pairs = zip(("with it", "without it"), finding.accuracy_by_group.get(group, ()), strict=False)
        texts = [f"{format_percent(share)} {cue}" for cue, share in pairs if not math.isnan(share)]
        accuracy = f"; accuracy {', '.join(texts)}" if texts else ""
        yield f"{group}: {present} of {format_count(count, 'image')} of the class{accuracy}."
    if finding.worst_group is not None:
        yield f"Worst group: {finding.worst_group}."


def _to_record(finding: Finding) -> dict[str, Any]:
    sentence = None if finding.removal is finding.transplant is None else finding.sentence
    added = {"worst_group": to_record(finding.worst_group), "sentence": sentence}
    return {**to_record(finding), **added, "is_suspicious": finding.is_suspicious}


def list_sections(sections: Mapping[str, Sequence[str]], command: str) -> list[str]:
    """Return the lines of Markdown for sections with entries, by title, and for the command that repeats the result."""
    lines = list[str]()
    for title, entries in sections.items():
        if entries:
            lines += ["", f"## {title}", "", *(f"* {entry}" for entry in entries)]
    return [*lines, "", "## Repeat", "", "```", command, "```"] if command else lines


def write_files(folder: Path, files: Mapping[str, str], others: Mapping[str, str]) -> Path:
    """Write the text of each file to a folder, and return it; ``others`` may replace what camtool did not write.

    Raises:
        CamtoolError: A file in the folder is not as camtool wrote it, or a link leads out of it.
    """
    with replace_files(folder, [*files]):
        for name, text in {**files, **others}.items():
            with open_atomically(folder / name) as stream:
                stream.write(text.encode())
    return folder
