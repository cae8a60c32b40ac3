"""The page of an audit: findings with their effects and pictures, and the user's verdicts; one HTML file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from camtool.arguments.messages import format_count, format_ends, map_json
from camtool.evaluation.audit.trials import ANSWER_FLOOR, PROBABILITY_FLOOR
from camtool.rendering.written_files import check_inside, check_replaceable
from camtool.runs.report.page import check_page, read_template, render_template
from camtool.runs.text_escapes import escape_hidden

PAGE_NAME = "index.html"

_GENERATOR = "camtool audit"

_SCRIPTS = ("dom.js", "theme.js", "audit.js")

_TEXTS = json.loads(Path(__file__).with_name("page_texts.json").read_text(encoding="utf-8"))
"""Titles and explanations of pictures, and of those of a kind of candidates where they differ.

And what removing and giving a candidate is called, by its kind, where it is not covering and pasting.
"""

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
        pictures: The pictures, see :func:`camtool.evaluation.audit.report.pictures.read_pictures`.
        verdicts: All verdicts in the folder, also those of other findings.
    """
    findings = content["findings"]
    shown, images = escape_texts(content), format_count(content["image_count"], "image")
    rejected = [{**one, "why": explain_rejection(one["q"], content["level"])} for one in shown["rejected"]]
    return render_template(
        "audit.html",
        _SCRIPTS,
        read_template("report.css") + read_template("audit.css"),
        {"keys": [finding["key"] for finding in findings], "verdicts": verdicts},
        generator=_GENERATOR,
        title="Nothing was tested" if content["untested"] else f"{format_count(len(findings), 'finding')} in {images}",
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
    effects = [_describe_effect(f"{verb} {what}", verb, effect) for verb, what, effect in named if effect is not None]
    return {
        **finding,
        "effects": effects,
        "numbers": _list_numbers(finding, effects),
        "smallest": format_percent(finding["smallest_share"]),
        "accuracies": _list_accuracies(finding),
        "pictures": pictures,
    }


def _describe_effect(title: str, verb: str, effect: Mapping[str, Any]) -> dict[str, Any]:
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


def _list_numbers(finding: Mapping[str, Any], effects: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    numbers = [("Images with it", f"{finding['present']} of {finding['class_count']} of the class")]
    numbers += [("q, corrected for all candidates", f"{finding['q']:.2g}")]
    numbers += [(f"{effect['verb']}: probability beyond controls", effect["probability"]) for effect in effects]
    if finding["area"] is not None:
        numbers.append(("Share of the input", format_percent(finding["area"])))
    if finding["smallest_share"] is not None:
        numbers.append(("Smallest effect that would show", f"{format_percent(finding['smallest_share'])} of answers"))
    return numbers


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
