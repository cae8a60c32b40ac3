"""The result of a comparison: where heat moved, and the images sorted by change; as JSON, Markdown and a page."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from camtool.arguments.message_parts import format_count, format_ends, format_points
from camtool.evaluation.audit.report.page import PAGE_NAME, check_results, describe_effect, escape_texts, format_percent
from camtool.evaluation.audit.result import format_answers, list_sections, write_files
from camtool.evaluation.audit.trials import ANSWER_FLOOR, Effect
from camtool.evaluation.leaderboard.table import Interval, encode_json, to_record
from camtool.runs.report.page import color_legend, read_template, render_template

JSON_NAME, MARKDOWN_NAME = "diff.json", "diff.md"

GENERATOR = "camtool diff"

_SHOWN = 10


@dataclass(frozen=True)
class MovedHeat:
    """A place to which the heat of a class moved, or from which it did.

    Attributes:
        label: The class.
        target: The index of the class.
        direction: ``"to"`` if the new model has more heat there, ``"from"`` if it has less.
        place: The place, in words; ``"no fixed place"`` if it is another one in each image.
        area: Share of the compared part of the photo; None if it is another one in each image.
        box: Top, left, bottom and right of the place, as shares of the part of the photo that both models see; None
            if it is another one in each image.
        present: Images of the confirmation half in which heat moved so, of ``class_count`` of the class.
        class_count: Images of the class in the confirmation half.
        heat: The mean share of the heat that is there, of the old model and the new one.
        old: The effect of covering it in the old model.
        new: The effect of covering it in the new model.
        difference: The share of the answers that change in the new model and not in the old one, beyond controls.
        p: The p-value of the whole claim.
        q: The Benjamini-Hochberg value among all places that were tested.
        images: Images in which heat moved so, by name or number, at most 20.
    """

    label: str
    target: int
    direction: str
    place: str
    area: float | None
    box: tuple[float, float, float, float] | None
    present: int
    class_count: int
    heat: tuple[float, float]
    old: Effect
    new: Effect
    difference: Interval
    p: float
    q: float
    images: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The finding in one sentence, with its numbers."""
        moved = f"heat moved {self.direction} {self.place if self.area is not None else 'places that differ'}"
        old, new = (f"{100 * share:.0f}" for share in self.heat)
        before, after = _format_answers(self.old, "the old model's answers"), _format_answers(self.new, "the new one's")
        covering = f"covering it changes {before} and {after}"
        if abs(self.difference.mean) < ANSWER_FLOOR:
            before, after = (_format_change(effect) for effect in (self.old, self.new))
            covering = (
                f"covering it changes the probability by {before} beyond controls in the old model, and by {after} in "
                "the new one"
            )
        return (
            f"'{self.label}', {self.present} of {format_count(self.class_count, 'image')}: {moved}, {old} % → {new} % "
            f"of it; {covering}; q = {self.q:.2g}."
        )

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class ImageChange:
    """An image in both models.

    Attributes:
        index: Its place among the images of the user.
        image: Its path, or its number.
        label: The class that is compared.
        answers: The answers of the old model and the new one.
        classes: The indices of these answers; classes may have one name.
        probabilities: Their probabilities of ``label``.
        moved: The share of the heat that moved to other cells, 0 to 1.
        correlation: The correlation of the two maps.
    """

    index: int
    image: str
    label: str
    answers: tuple[str, str]
    classes: tuple[int, int]
    probabilities: tuple[float, float]
    moved: float
    correlation: float

    @property
    def has_other_answer(self) -> bool:
        """True if the models have different answers."""
        return self.classes[0] != self.classes[1]


@dataclass(frozen=True, repr=False)
class CamDiff:
    """A comparison of what two models look at.

        diff = camtool.diff(old, new, photos)
        print(diff)
        diff.save("diff")  # index.html shows both maps of each photo

    Attributes:
        findings: Where heat moved, and covering shows that the models depend on it differently.
        unconfirmed: Where heat moved in one half of the images, and the other half or covering did not confirm it.
        images: All images, the most changed first.
        names: The names of the models.
        accuracy: The share of right answers of the old model and the new one, with intervals; None without labels.
        not_tested: The parts that were left out, and why.
        notes: Notes for the user about images and groups.
        level: The largest q of a finding.
        passes: Forward passes.
        seed: The seed.
        command: A command that repeats it.
        pictures: Index of an image → the overlays of both models, as JPEG files; those of the most changed images.
    """

    findings: tuple[MovedHeat, ...]
    unconfirmed: tuple[MovedHeat, ...]
    images: tuple[ImageChange, ...]
    names: tuple[str, str]
    accuracy: tuple[Interval, Interval] | None
    not_tested: tuple[str, ...]
    notes: tuple[str, ...]
    level: float
    passes: int
    seed: int
    command: str = ""
    pictures: Mapping[int, tuple[bytes, bytes]] = field(default_factory=dict)

    @property
    def sections(self) -> dict[str, tuple[MovedHeat, ...]]:
        """Title → findings: one section without a title."""
        return {"": self.findings}

    def __repr__(self) -> str:
        return f"<CamDiff of {format_count(len(self.images), 'image')}: {format_count(len(self.findings), 'finding')}>"

    def __str__(self) -> str:
        return self.to_markdown()

    _repr_markdown_ = __str__

    @property
    def other_answers(self) -> tuple[ImageChange, ...]:
        """The images that the models answer differently."""
        return tuple(image for image in self.images if image.has_other_answer)

    @property
    def correlation(self) -> float:
        """The mean correlation of the two maps of an image."""
        return math.fsum(image.correlation for image in self.images) / len(self.images)

    @property
    def moved(self) -> float:
        """The mean share of the heat that moved."""
        return math.fsum(image.moved for image in self.images) / len(self.images)

    def to_json(self) -> str:
        """Return everything but the pictures as JSON; unknown numbers are null."""
        content = {one.name: to_record(getattr(self, one.name)) for one in fields(self) if one.name != "pictures"}
        for name in ("findings", "unconfirmed"):
            content[name] = [{**to_record(one), "sentence": one.sentence} for one in getattr(self, name)]
        content |= {"other_answers": len(self.other_answers), "correlation": self.correlation, "moved": self.moved}
        return encode_json(content)

    def list_facts(self) -> list[tuple[str, str]]:
        """Return what describes all images, as pairs of a name and a text."""
        facts = [
            ("Images", f"{len(self.images):,}"),
            ("Other answers", f"{len(self.other_answers):,}"),
            ("Heat that moved", f"{100 * self.moved:.0f} %"),
            ("Correlation of maps", f"{self.correlation:.2f}"),
        ]
        if self.accuracy is not None:
            facts.append(("Accuracy", " → ".join(f"{100 * side.mean:.1f} %" for side in self.accuracy)))
        return facts

    def to_markdown(self) -> str:
        """Return the comparison as a page of Markdown."""
        old, new = self.names
        facts = "; ".join(f"{name.lower()}: {text}" for name, text in self.list_facts())
        lines = ["# Diff", "", f"{old} → {new}. {facts[0].upper()}{facts[1:]}.", ""]
        lines += [f"{number}. {finding.sentence}" for number, finding in enumerate(self.findings, 1)]
        if not self.findings:
            lines.append(f"No finding at q ≤ {self.level:g}, which does not mean that the models look at the same.")
        sections = {
            "Moved, not confirmed": [f"{one.sentence[:-1]}, p = {one.p:.2g}." for one in self.unconfirmed],
            "Most changed": [_describe(image) for image in self.images[:_SHOWN]],
            "Other answers": [_describe(image) for image in self.other_answers[:_SHOWN]],
            "Not tested": self.not_tested,
            "Notes": self.notes,
        }
        return "\n".join([*lines, *list_sections(sections, self.command)]) + "\n"

    def save(self, folder: str | Path) -> Path:
        """Write ``diff.json``, ``diff.md`` and the page ``index.html`` to a folder, and return it.

        Raises:
            CamtoolError: A file in the folder is not as camtool wrote it, or a link leads out of it.
        """
        folder = Path(folder)
        files = {JSON_NAME: self.to_json(), MARKDOWN_NAME: self.to_markdown()}
        check_results(folder, [*files], GENERATOR)
        page = render_page(json.loads(files[JSON_NAME]), self.pictures, self.list_facts())
        return write_files(folder, files, {PAGE_NAME: page})


def _describe(image: ImageChange) -> str:
    (old, new), (before, after) = image.answers, image.probabilities
    answers = f"{old} → {new}" if image.has_other_answer else old
    return (
        f"{image.image}: {answers}, '{image.label}' {100 * before:.0f} % → {100 * after:.0f} %, "
        f"{100 * image.moved:.0f} % of the heat moved, correlation {image.correlation:.2f}"
    )


def _format_answers(effect: Effect, whose: str) -> str:
    return f"{format_answers(effect)} of {whose} (controls {format_percent(effect.controls)})"


def _format_change(effect: Effect) -> str:
    mean, low, high = effect.probability  # by how much it falls
    return f"{format_points(-mean)}{format_ends(-100 * high, -100 * low)}"


def render_page(content: Mapping[str, Any], pictures: Mapping[int, tuple[bytes, bytes]], facts: Any) -> str:
    """Return the page of a comparison as HTML. It holds its pictures, and loads nothing.

    Args:
        content: The content of ``diff.json``.
        pictures: Index of an image → its pictures, as in :class:`CamDiff`.
        facts: See :meth:`CamDiff.list_facts`.
    """
    shown = escape_texts(content)
    images = [
        {**image, "pictures": [b64encode(picture).decode() for picture in pictures[image["index"]]]}
        for image in shown["images"]
        if image["index"] in pictures
    ]
    return render_template(
        "diff.html",
        ("dom.js", "theme.js", "diff.js"),
        read_template("findings.css") + color_legend({}),
        {},
        generator=GENERATOR,
        title=" → ".join(shown["names"]),
        labels=sorted({image["label"] for image in images}),
        images=images,
        diff=shown,
        describe=describe_effect,
        facts=facts,
    )
