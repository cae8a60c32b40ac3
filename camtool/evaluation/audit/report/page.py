"""The page of an audit: findings with their effects and pictures, and the user's verdicts; one HTML file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from camtool.arguments.message_parts import format_count, format_ends, map_json
from camtool.errors import Forgive
from camtool.evaluation.audit.cues.candidates import Change, CueCandidate, RegionCandidate
from camtool.evaluation.audit.images import ImageRecord
from camtool.evaluation.audit.trials import ANSWER_FLOOR, PROBABILITY_FLOOR, CueTester
from camtool.inputs.image_files import limit_side
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.rendering.image_writing import open_atomically, write_image
from camtool.rendering.regions import draw_contours, find_contours
from camtool.rendering.written_files import check_inside, check_replaceable, replace_files
from camtool.runs.file_names import is_inside
from camtool.runs.report.page import check_page, read_template, render_template
from camtool.runs.stored_files import parse_object
from camtool.runs.text_escapes import escape_hidden

PAGE_NAME = "index.html"
# The folder of the pictures.
FOLDER = "index_files"

_GENERATOR = "camtool audit"

_SCRIPTS = ("dom.js", "theme.js", "audit.js")

# Titles and explanations of pictures, and of those of a kind of candidates where they differ.
#
# And what removing and giving a candidate is called, by its kind, where it is not covering and pasting.
_TEXTS = json.loads(Path(__file__).with_name("page_texts.json").read_text(encoding="utf-8"))

_PAIRS = ("covered", "pasted")


def check_results(out: str | PathLike[str] | None, names: Iterable[str], generator: str = _GENERATOR) -> Path | None:
    """Return a folder, if there is one, that the page of a command and its other files can be written to.

    Raises:
        CamtoolError: There is a page of something else, another file is not as camtool wrote it, or a link leads out
            of the folder.
    """
    if out is None:
        return None
    folder = Path(out)
    check_inside(folder, Path(PAGE_NAME))
    check_page(folder / PAGE_NAME, generator)
    check_replaceable(folder, names)
    return folder


def render_audit(content: Mapping[str, Any], pictures: Mapping[str, Any], verdicts: Mapping[str, str]) -> str:
    """Return the page as HTML.

    Args:
        content: The content of ``audit.json``.
        pictures: The pictures, see :func:`read_pictures`.
        verdicts: All verdicts in the folder, also those of other findings.
    """
    findings = content["findings"]
    suspects = format_count(sum(finding["is_suspicious"] for finding in findings), "suspicious finding")
    shown, images = escape_texts(content), format_count(content["image_count"], "image")
    rejected = [{**one, "why": explain_rejection(one["q"], content["level"])} for one in shown["rejected"]]
    return render_template(
        "audit.html",
        _SCRIPTS,
        read_template("findings.css"),
        {"keys": [finding["key"] for finding in findings], "verdicts": verdicts},
        generator=_GENERATOR,
        title="Nothing was tested" if content["untested"] else f"{suspects} in {images}",
        audit=shown,
        findings=[
            _describe(finding, escape_texts(_choose_pictures(pictures.get(original["key"], {}), finding["kind"])))
            for finding, original in zip(shown["findings"], findings, strict=True)
        ],
        rejected=[_describe(finding, []) for finding in rejected],
        decoys=[_describe({**one, "why": ""}, []) for one in shown["decoys"] if one["removal"] or one["transplant"]],
        decoy_count=len(shown["decoys"]),
        rate=format_percent(content["false_discovery_rate"]),
    )


def explain_rejection(q: float, level: float) -> str:
    """Return why a candidate that was tested is no finding."""
    if q > level:
        return f"q is above {level:g}"
    return (
        f"the effect is too small: less than {100 * ANSWER_FLOOR:.0f} % of the answers and "
        f"{100 * PROBABILITY_FLOOR:.0f} points of probability beyond the controls"
    )


def escape_texts(value: Any) -> Any:
    """Return JSON with all hidden characters of its texts as escapes."""
    return map_json(value, lambda entry: escape_hidden(entry) if isinstance(entry, str) else entry)


def _choose_pictures(kinds: Mapping[str, Sequence[Mapping[str, Any]]], of_kind: str) -> list[dict[str, Any]]:
    """Return the kinds of pictures that a finding has, with titles, and the answers as texts."""
    return [
        {"title": title, "hint": hint, "is_pair": kind in _PAIRS, "entries": [*map(_describe_picture, kinds[kind])]}
        for kind, (title, hint) in {**_TEXTS["pictures"], **_TEXTS["pictures of a kind"].get(of_kind, {})}.items()
        if kinds.get(kind)
    ]


def _describe_picture(entry: Mapping[str, Any]) -> dict[str, Any]:
    answers = [(answer["label"], format_percent(answer["probability"])) for answer in entry["answers"]]
    return {**entry, "answers": answers, "file": entry.get("file") or re.split(r"[/\\]", entry["name"])[-1]}


def _describe(finding: Mapping[str, Any], pictures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a finding with what the page shows of it: effects, numbers and accuracies in words."""
    remove, give = _TEXTS["verbs"].get(finding["kind"], ("Covering it", "Pasting it"))
    named = (
        (remove, "changes the answer", finding["removal"]),
        (give, f"makes others '{finding['label']}'", finding["transplant"]),
    )
    effects = [describe_effect(f"{verb} {what}", verb, effect) for verb, what, effect in named if effect is not None]
    return {
        **finding,
        "effects": effects,
        "numbers": [*_iterate_numbers(finding, effects)],
        "smallest": format_percent(finding["smallest_share"]),
        "accuracies": _list_accuracies(finding),
        "pictures": pictures,
    }


def describe_effect(title: str, verb: str, effect: Mapping[str, Any]) -> dict[str, Any]:
    """Return an effect with what its bar shows."""
    mean, low, high = (100 * share for share in effect["answers"])
    shift, least, most = (math.nan if share is None else 100 * share for share in effect["probability"])
    controls = 100 * effect["controls"]
    return {
        "title": title,
        "verb": verb,
        "mean": mean,
        "low": low,
        "high": high,
        "width": high - low,
        "controls": controls,
        "value": f"{mean:.0f} %",
        "interval": f"{low:.0f} to {high:.0f}",
        "of_controls": f"{controls:.0f} %",
        "images": _count_images(effect),
        "probability": f"{shift:+.0f} points{format_ends(least, most, sign='+')}",
    }


def _count_images(effect: Mapping[str, Any]) -> str:
    """Return the number of images, and of independent groups where these are fewer."""
    groups = f" in {format_count(effect['groups'], 'group')}" if effect["groups"] < effect["images"] else ""
    return f"{format_count(effect['images'], 'image')}{groups}"


def _iterate_numbers(finding: Mapping[str, Any], effects: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    yield "Images with it", f"{finding['present']} of {finding['class_count']} of the class"
    yield "q, corrected for all candidates", f"{finding['q']:.2g}"
    yield from ((f"{effect['verb']}: probability beyond controls", effect["probability"]) for effect in effects)
    if finding["area"] is not None:
        yield "Share of the input", format_percent(finding["area"])
    if finding["smallest_share"] is not None:
        yield "Smallest effect that would show", f"{format_percent(finding['smallest_share'])} of answers"


def _list_accuracies(finding: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows of accuracies with the cue and without it: of the class, then by group, with the worst one first."""
    if finding["accuracy"] is None:
        return []
    rows = {"": (*finding["accuracy"], finding["class_count"], finding["present"])}
    rows |= {name: (*shares, *finding["by_group"][name]) for name, shares in finding["accuracy_by_group"].items()}
    worst = finding["worst_group"] and finding["worst_group"]["name"]
    table = list[dict[str, Any]]()
    for name, (with_it, without_it, count, present) in rows.items():
        pairs = {"with it": (with_it, present), "without it": (without_it, count - present)}
        is_worst = {cue: f"{name}, {cue}".removeprefix(", ") == worst for cue in pairs}
        cells = [
            {"text": format_percent(share), "images": format_count(number, "image"), "is_worst": is_worst[cue]}
            for cue, (share, number) in pairs.items()
        ]
        table.append({"name": name or "All of the class", "cells": cells})
    return table[:1] + sorted(table[1:], key=lambda row: not any(cell["is_worst"] for cell in row["cells"]))


def format_percent(share: float | None) -> str:
    """Return a share in percent, at most 100; nothing for None."""
    return "" if share is None else f"{100 * min(share, 1.0):.0f} %"


# The file that lists the pictures by finding.
_LIST_NAME = "pictures.json"

# Images with the cue, and images of each other kind, for one finding.
_EXAMPLES, _OTHERS = 4, 3

# Findings with pictures: 20 pictures of 10 KB each.
_MOST_FINDINGS = 40

# The longest side of a picture, and that of inputs which are enlarged.
_SIDE, _SMALL = 288, 128

# An image of another class is like those with the cue if it has it more strongly than this share of the others.
_PRESENT = 0.95

_QUALITY = 88

Pixels: TypeAlias = NDArray[np.uint8]
# A picture or a pair: ``name``, ``file`` (the short name), ``files``, ``answers``, and ``label``, the class.
Entry: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class FindingPictures:
    """The pictures of a finding.

    Attributes:
        folder: The folder of the audit.
        tester: The images of its class and of others, the model, and what was computed.
        candidate: The candidate that was tested.
        present: Images of the class that have it, by number.
        name_class: Returns the name of a class.
    """

    folder: Path
    tester: CueTester
    candidate: CueCandidate
    present: Sequence[int]
    name_class: Callable[[int], str]

    def draw(self, number: int) -> dict[str, list[Entry]]:
        """Write the pictures of the finding with a number, and return them by kind."""
        target, records = self.candidate.target, {record.index: record for record in self.tester.records}
        of_class, others = _split_by(records.values(), "target", target)
        without = [record for record in of_class if record.index not in self.present]
        right, otherwise = _split_by([records[index] for index in self.present], "answer", target)
        mistaken, told_apart = _split_by(others, "answer", target)
        similar = self._find_similar(others)
        _, similar_otherwise = _split_by(similar, "answer", target)
        unlike = [record for record in told_apart if record not in similar]
        return {
            "covered": [*self._change(right[:_EXAMPLES], others[:1], f"{number}-covered", is_removal=True)],
            "pasted": [*self._change(unlike[:_OTHERS], right[:1], f"{number}-pasted", is_removal=False)],
            "without": self._show_all(without, f"{number}-without", is_outlined=False),
            "otherwise": self._show_all(otherwise, f"{number}-otherwise", is_outlined=True),
            "similar": self._show_all(similar_otherwise, f"{number}-similar", is_outlined=True),
            "mistaken": self._show_all(mistaken, f"{number}-mistaken", is_outlined=False),
        }

    def _find_similar(self, others: Sequence[ImageRecord]) -> list[ImageRecord]:
        """Return the images of other classes that are most like those with the cue, the most similar first."""
        tester, candidate = self.tester, self.candidate
        values = tester.measure_strengths(candidate).tolist()
        strengths = {record.index: value for record, value in zip(tester.records, values, strict=True)}
        limit = np.quantile([strengths[record.index] for record in others], _PRESENT)
        similar = [record for record in others if strengths[record.index] > limit]
        return sorted(similar, key=lambda record: -strengths[record.index])

    def _change(
        self, records: Sequence[ImageRecord], partners: Sequence[ImageRecord], name: str, *, is_removal: bool
    ) -> Iterator[Entry]:
        """Yield a pair for each image: as it is, with the region outlined, and changed."""
        images, candidate = self.tester.images, self.candidate
        change = candidate.remove if is_removal else candidate.transplant
        for number, record in enumerate(records if partners else (), 1):
            image = images.prepare(record.index)
            variants = change(Change(images, record.index, partners[0].index, 1, np.random.default_rng(0)))
            if variants is None or variants.shape[-3:] != image.tensor.shape:  # e.g. activations, which have no picture
                if is_removal:
                    yield self._show(record, f"{name}-{number}", is_outlined=True)
                continue
            changed = variants.reshape(-1, *image.tensor.shape)[0]  # by the first fill, before the controls
            outline = self._locate(image if is_removal else images.prepare(partners[0].index))
            yield {
                **self._name(record),
                "files": [
                    self._write(f"{name}-{number}", image, image.tensor, outline if is_removal else None),
                    self._write(f"{name}-{number}-after", image, changed, None if is_removal else outline),
                ],
                "answers": self._answer(f"{name.partition('-')[2]} {record.index}", image.tensor, changed),
            }

    def _answer(self, name: str, before: Tensor, after: Tensor) -> list[Entry]:
        """Return the answers to an image and to the changed one, with their probabilities.

        Of a model of several labels they are the class, or none without a probability if it is not answered.
        """

        def score() -> list[float]:
            logits, target = self.tester.images.score(torch.stack([before, after])), self.candidate.target
            if self.tester.images.head.is_independent:
                _, shares, is_answer = self.tester.images.measure_margins(logits, target)
                return [*torch.where(is_answer > 0, target, -1).tolist(), *shares.tolist()]
            best = logits.softmax(1).max(1)
            return [*map(float, best.indices), *best.values.tolist()]

        *classes, first, second = self.tester.remember(f"{self.candidate.key} shown {name}", score)
        return [
            {"label": self.name_class(int(index)), "probability": share if index >= 0 else None}
            for index, share in zip(classes, (first, second), strict=True)
        ]

    def _show_all(self, records: Sequence[ImageRecord], name: str, *, is_outlined: bool) -> list[Entry]:
        """Show the first few records."""
        return [
            self._show(record, f"{name}-{number}", is_outlined=is_outlined)
            for number, record in enumerate(records[:_OTHERS], 1)
        ]

    def _show(self, record: ImageRecord, name: str, *, is_outlined: bool) -> Entry:
        image = self.tester.images.prepare(record.index)
        outline = self._locate(image) if is_outlined else None
        answers = [{"label": self.name_class(record.answer), "probability": None}]
        return {**self._name(record), "files": [self._write(name, image, image.tensor, outline)], "answers": answers}

    def _name(self, record: ImageRecord) -> Entry:
        file = self.tester.images.shorten_name(record.index)
        return {"name": self.tester.images.name(record.index), "file": file, "label": self.name_class(record.target)}

    def _locate(self, image: PreparedInput) -> Tensor | None:
        return self.candidate.locate(self.tester.images, image) if isinstance(self.candidate, RegionCandidate) else None

    def _write(self, name: str, image: PreparedInput, tensor: Tensor, mask: Tensor | None) -> str:
        """Write a picture, and return its path below the folder."""
        pixels = resize(to_pixels(image, tensor))
        if mask is not None:
            size = pixels.shape[1::-1]
            region = Image.fromarray(mask.cpu().numpy()).resize(size, Image.Resampling.NEAREST)
            pixels = draw_contours(pixels, find_contours(np.asarray(region, np.float32), threshold=0.5))
        path = Path(FOLDER) / f"{name}.jpg"
        check_inside(self.folder, path)
        write_image(self.folder / path, pixels, quality=_QUALITY)
        return path.as_posix()


def write_pictures(folder: Path, findings: Mapping[str, FindingPictures]) -> None:
    """Write the pictures of findings by key, and the list of them; those of an earlier list that are in it no more go.

    Raises:
        CamtoolError: A link leads out of the folder, or camtool did not make the folder of the pictures.
    """
    check_inside(folder, Path(FOLDER) / _LIST_NAME)
    before = read_pictures(folder)
    with replace_files(folder, [FOLDER]):
        (folder / FOLDER).mkdir(exist_ok=True)
        shown = islice(findings.items(), _MOST_FINDINGS)
        pictures = {key: one.draw(number) for number, (key, one) in enumerate(shown, 1)}
    with open_atomically(folder / FOLDER / _LIST_NAME) as stream:
        stream.write((json.dumps(pictures, indent=1) + "\n").encode())
    for name in {*_list_files(before)} - {*_list_files(pictures)}:
        (folder / name).unlink(missing_ok=True)


def resize(pixels: Pixels) -> Pixels:
    """Return pixels ``(H, W, 3)`` in the size of a picture: small ones are enlarged by a whole number."""
    longest = max(pixels.shape[:2])
    if longest <= _SMALL:
        factor = _SIDE // longest
        return pixels.repeat(factor, 0).repeat(factor, 1)
    return np.asarray(limit_side(Image.fromarray(pixels), _SIDE))


def to_pixels(image: PreparedInput, tensor: Tensor) -> Pixels:
    """Return an input of the model as pixels ``(H, W, 3)``.

    Where black and white are unknown they are 0 and 1, or the smallest and the largest value if these are outside.
    """
    if image.black is None or image.white is None:
        low, high = image.tensor.float().aminmax()
        black, white = low.clamp_max(0), high.clamp_min(1)
    else:
        black, white = (bound.float()[:, None, None] for bound in (image.black, image.white))
    values = ((tensor.detach().float() - black) / (white - black)).cpu()
    colors = values[:3] if len(values) >= 3 else values[:1].expand(3, -1, -1)
    return (colors.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()


def _split_by(
    records: Iterable[ImageRecord], field: Literal["target", "answer"], target: int
) -> tuple[list[ImageRecord], list[ImageRecord]]:
    """Return the records of which a field is a class, and the others."""
    chosen, others = list[ImageRecord](), list[ImageRecord]()
    for record in records:
        (chosen if getattr(record, field) == target else others).append(record)
    return chosen, others


def read_pictures(folder: Path) -> dict[str, dict[str, list[Entry]]]:
    """Return the pictures that are in the folder of an audit, by finding and kind; none if there is no list of them."""
    with Forgive(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = parse_object((folder / FOLDER / _LIST_NAME).read_bytes())
        if all(map(_is_picture, _list_files(content))):
            return content
    return {}


def find_picture(folder: Path | None, key: str) -> Path | None:
    """Return a picture of a finding: one that has another answer when it is covered, or else the first."""
    kinds = {} if folder is None else read_pictures(folder).get(key, {})
    entries = sorted(
        kinds.get("covered", []), key=lambda entry: entry["answers"][0]["label"] == entry["answers"][-1]["label"]
    )
    return folder / entries[0]["files"][0] if folder is not None and entries else None


def _is_picture(name: Any) -> bool:
    return isinstance(name, str) and is_inside(name) and Path(name).parent == Path(FOLDER) and name.endswith(".jpg")


def _list_files(pictures: dict[str, dict[str, list[Entry]]]) -> list[str]:
    entries = [entry for kinds in pictures.values() for group in kinds.values() for entry in group]
    return [name for entry in entries for name in entry["files"]]
