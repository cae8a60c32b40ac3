"""The result of a repair: what the model depends on before and after, and its cost; as JSON, Markdown, a page."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from camtool.arguments.explain_arguments import get_module
from camtool.arguments.message_parts import format_count, format_ends, format_points
from camtool.evaluation.audit.report.page import PAGE_NAME, check_results, describe_effect, escape_texts, format_percent
from camtool.evaluation.audit.result import WorstGroup, list_sections, write_files
from camtool.evaluation.audit.trials import Effect
from camtool.evaluation.leaderboard.table import Interval, encode_json, to_record
from camtool.models import Loaded
from camtool.models.weights import encode_state
from camtool.rendering.image_writing import open_atomically
from camtool.rendering.written_files import replace_files
from camtool.runs.report.page import read_template, render_template

JSON_NAME, MARKDOWN_NAME, WEIGHTS_NAME = "repair.json", "repair.md", "mended.safetensors"
NAMES = (JSON_NAME, MARKDOWN_NAME, WEIGHTS_NAME)

GENERATOR = "camtool repair"

# Endings of files of weights.
_WEIGHTS = (".safetensors", ".pt", ".pth")

# The loss of accuracy that a repair may cost: on images without a cue, and of a class on its images as they are, of
# which some are recognized by the cue alone.
_MOST_LOSS, _MOST_CLASS_LOSS = 0.01, 0.15

_SHOWN = 10


class Effects(NamedTuple):
    """The effects of removing a cue, and of giving it to other images; None for what is not possible."""

    removal: Effect | None
    transplant: Effect | None

    @property
    def size(self) -> float:
        """The larger one, see :attr:`Effect.size`; 0 without any."""
        return max((effect.size for effect in self if effect is not None), default=0.0)


class Accuracy(NamedTuple):
    """The accuracies of both models.

    Attributes:
        images: The number of images.
        before: The share of right answers, with Wilson interval.
        after: That of the mended model.
        change: The paired difference, with bootstrap interval.
    """

    images: int
    before: Interval
    after: Interval
    change: Interval

    def __str__(self) -> str:
        before, after, change = self.cells
        return f"{before} → {after}, {change}"

    def falls(self, most: float) -> bool:
        """Return True if it falls by more than a share, and not by chance."""
        return self.change.mean < -most and self.change.high < 0

    @property
    def cells(self) -> tuple[str, str, str]:
        """The three numbers with their intervals, as texts."""
        return _format_share(self.before), _format_share(self.after), _format_points(self.change)


@dataclass(frozen=True)
class CueRepair:
    """A cue before and after.

    Attributes:
        key: The key of the finding.
        kind: Its kind.
        label: The class.
        name: Its description in words.
        before: Its effects on the audited model.
        after: Those on the mended one, on the same images.
        change: The paired change of the size of the effects, with bootstrap interval; NaN for its ends without any.
    """

    key: str
    kind: str
    label: str
    name: str
    before: Effects
    after: Effects
    change: Interval

    @property
    def falls(self) -> bool:
        """True if the mended model depends on it less, not by chance: evidence against the class counts as well."""
        return self.change.high < 0

    @property
    def sentence(self) -> str:
        """The effects in one sentence."""
        parts = [
            f"{title[0].lower()}{title[1:]}: {_format_share(before.answers)} → {_format_share(after.answers)} of the "
            f"images (controls {format_percent(before.controls)} → {format_percent(after.controls)}), and {moves} the "
            f"probability by {_format_change(before.change, after.change)} (controls "
            f"{_format_change(before.change_of_controls, after.change_of_controls)})"
            for title, moves, before, after in self.list_effects()
        ]
        return f"'{self.label}': {self.name}: {'; '.join(parts)}."

    def list_effects(self) -> Iterator[tuple[str, str, Effect, Effect]]:
        """Yield the title of an effect, how it moves the probability, and the effect before and after."""
        titles = ("Removing it changes the answer", f"Giving it makes others '{self.label}'")
        pairs = zip(self.before, self.after, strict=True)
        for title, moves, (before, after) in zip(titles, ("lowers", "raises"), pairs, strict=True):
            if before is not None and after is not None:
                yield title, moves, before, after


def _format_share(share: Interval) -> str:
    return f"{format_percent(share.mean)}{format_ends(100 * share.low, 100 * share.high)}"


def _format_points(change: Interval) -> str:
    """Return a difference of shares in points with its interval."""
    return f"{format_points(change.mean)}{format_ends(100 * change.low, 100 * change.high, sign='+')}"


def _format_change(before: float, after: float) -> str:
    """Return two changes of a probability, e.g. ``"37 → -2 points"``."""
    return f"{round(100 * before)} → {round(100 * after)} points"


class ChangedAnswer(NamedTuple):
    """An image that both models answer differently, and one of them right.

    Attributes:
        image: Its path, or its number.
        label: Its class.
        edit: What was done to it.
        answers: The answers before and after.
        is_better: True if it became right.
        picture: The image as the model sees it, a JPEG file; empty for those beyond the first few.
    """

    image: str
    label: str
    edit: str
    answers: tuple[str, str]
    is_better: bool
    picture: bytes


@dataclass(frozen=True, repr=False)
class Repair:
    """A mended model, and what it depends on less.

        repair = camtool.repair(model, photos, labels, audit)
        print(repair)
        repair.save("mended.safetensors")

    All numbers are of the half of the images that the repair did not learn from.

    Attributes:
        cues: The cues, before and after.
        accuracy: The accuracies on the images as they are.
        with_cue: Those on images with a cue, also on those that are given one.
        without_cue: Those on images without any, also on those from which one is removed.
        by_class: Those on the images as they are, by class.
        worst_groups: The classes with or without a cue that have the lowest accuracy before and after.
        changed: The answers that became right or wrong.
        tested: The number of images that it reports on.
        learned: The number of images that it learned from.
        head: The name of the layer that was fitted again.
        layers: What was changed: ``"last"`` or ``"norms"``.
        notes: Notes for the user.
        model: The mended model, a copy.
        command: The command that repeats it; empty after a call from Python.
    """

    cues: tuple[CueRepair, ...]
    accuracy: Accuracy
    with_cue: Accuracy
    without_cue: Accuracy
    by_class: Mapping[str, Accuracy]
    worst_groups: tuple[WorstGroup, ...]
    changed: tuple[ChangedAnswer, ...]
    tested: int
    learned: int = 0
    head: str = ""
    layers: str = "last"
    notes: tuple[str, ...] = ()
    model: nn.Module | Loaded | None = field(default=None, compare=False)
    command: str = ""

    def __repr__(self) -> str:
        return f"<Repair of {format_count(len(self.cues), 'cue')}: {self.verdict}>"

    def __str__(self) -> str:
        return self.to_markdown()

    _repr_markdown_ = __str__

    @property
    def is_better(self) -> bool:
        """True if each cue has less effect, images without one are not answered worse, and no class is lost."""
        return not self.reasons

    @property
    def reasons(self) -> list[str]:
        """The reasons why it is no repair; none if it is one."""
        reasons = [
            f"the effect of {cue.name} on '{cue.label}' does not fall ({100 * cue.before.size:.0f} → "
            f"{100 * cue.after.size:.0f} points of probability, {_format_points(cue.change)})"
            for cue in self.cues
            if not cue.falls
        ]
        if self.without_cue.falls(_MOST_LOSS):
            reasons.append(f"the accuracy on images without a cue falls: {self.without_cue}")
        return reasons + [
            f"{name} is recognized less on its images as they are: {accuracy}"
            for name, accuracy in self.by_class.items()
            if accuracy.falls(_MOST_CLASS_LOSS)
        ]

    @property
    def verdict(self) -> str:
        """A sentence that says whether it is a repair."""
        if self.is_better:
            return "The model depends less on what was found."
        return f"This is no repair: {'; '.join(self.reasons)}. Use the model as it was."

    @property
    def accuracies(self) -> dict[str, Accuracy]:
        """All accuracies, by what the images are."""
        of_all = {"All, as they are": self.accuracy, "Without a cue": self.without_cue, "With a cue": self.with_cue}
        return {**of_all, **{f"{name}, as they are": accuracy for name, accuracy in self.by_class.items()}}

    @property
    def worst(self) -> str:
        """The worst groups in words."""
        before, after = self.worst_groups
        return f"Worst group before: {before}. After: {after}."

    def to_json(self) -> str:
        """Return everything but the model and the pictures as JSON; unknown numbers are null."""
        content = {each.name: to_record(getattr(self, each.name)) for each in fields(self) if each.name != "model"}
        content["cues"] = [{**to_record(cue), "sentence": cue.sentence} for cue in self.cues]
        for answer in content["changed"]:
            del answer["picture"]
        return encode_json({**content, "is_better": self.is_better, "reasons": self.reasons})

    def to_markdown(self) -> str:
        """Return the repair as a page of Markdown."""
        better = sum(answer.is_better for answer in self.changed)
        changed = f"layer {self.head!r}" if self.layers == "last" else f"layer {self.head!r} and the norm layers"
        halves = f"Learned from {format_count(self.learned, 'image')}; all numbers are of the other {self.tested}."
        title = "# Repair" if self.is_better else "# No repair"
        lines = [title, "", self.verdict, "", f"Changed: {changed}. {halves}", ""]
        lines += [f"{number}. {cue.sentence}" for number, cue in enumerate(self.cues, 1)]
        lines += ["", "| right answers | images | before | after | change |", "| --- | --- | --- | --- | --- |"]
        lines += [f"| {name} | {each.images} | {' | '.join(each.cells)} |" for name, each in self.accuracies.items()]
        counts = f"{better} became right and {len(self.changed) - better} wrong"
        lines += ["", self.worst, "", f"Of all images, as they are and changed, {counts}."]
        worse = [_describe(answer) for answer in self.changed if not answer.is_better]
        sections = {"Became wrong": worse[:_SHOWN], "Notes": self.notes}
        return "\n".join([*lines, *list_sections(sections, self.command)]) + "\n"

    def save(self, path: str | Path) -> Path:
        """Write the weights to a file, ``.safetensors``, ``.pt`` or ``.pth``, or all of the result to a folder.

        Raises:
            CamtoolError: A file in the folder is not as camtool wrote it, or a link leads out of it.
        """
        path = Path(path)
        if path.suffix in _WEIGHTS:
            with open_atomically(path) as stream:
                stream.write(encode_state(get_module(self.model), path.suffix))
            return path
        check_results(path, NAMES, GENERATOR)
        files = {JSON_NAME: self.to_json(), MARKDOWN_NAME: self.to_markdown()}
        with replace_files(path, [WEIGHTS_NAME]):
            self.save(path / WEIGHTS_NAME)
        return write_files(path, files, {PAGE_NAME: self._render_page(json.loads(files[JSON_NAME]))})

    def _render_page(self, content: Mapping[str, Any]) -> str:
        """Return the page as HTML. It holds its pictures, and loads nothing."""
        shown = escape_texts(content)
        pictures = [b64encode(answer.picture).decode() for answer in self.changed]
        answers = zip(shown["changed"], pictures, strict=True)
        changed = [{**answer, "picture": picture} for answer, picture in answers if picture]
        return render_template(
            "repair.html",
            ("dom.js", "theme.js"),
            read_template("findings.css"),
            {},
            generator=GENERATOR,
            title="Repair" if self.is_better else "This is no repair",
            repair=shown,
            verdict=escape_texts(self.verdict),
            cues=escape_texts([*map(_describe_cue, self.cues)]),
            accuracies=escape_texts([(name, each.images, *each.cells) for name, each in self.accuracies.items()]),
            worst=escape_texts(self.worst),
            changed=changed,
            better=sum(answer.is_better for answer in self.changed),
        )


def _describe(answer: ChangedAnswer) -> str:
    before, after = answer.answers
    return f"{answer.image} ({answer.edit}), '{answer.label}': {before} → {after}"


def _describe_cue(cue: CueRepair) -> dict[str, Any]:
    """Return a cue with the bars of its effects, before and after, by what is done, and how the probability changes."""
    effects, numbers = list[list[dict[str, Any]]](), list[tuple[str, str]]()
    for title, moves, *sides in cue.list_effects():
        verb, names = " ".join(title.split()[:2]), ("before", "after")
        effects.append(
            [describe_effect(f"{title}, {name}", verb, side._asdict()) for name, side in zip(names, sides, strict=True)]
        )
        before, after = sides
        numbers.append((f"{verb} {moves} the probability by", _format_change(before.change, after.change)))
        numbers.append(("Controls", _format_change(before.change_of_controls, after.change_of_controls)))
    return {"label": cue.label, "name": cue.name, "sentence": cue.sentence, "effects": effects, "numbers": numbers}
