"""Twenty questions about planted truths, answered by the tools alone, over the protocol.

The model ``demo-cheat`` takes everything with a watermark in the lower right corner for a heart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mcp.types import CallToolResult

from tests.app.assistant.conftest import ask, draw


class Question(NamedTuple):
    question: str
    tool: str
    arguments: dict[str, Any]
    expected: Mapping[str, Any]
    """Dotted path in the answer → its value, or a function that is true for it."""


def is_above(low: float) -> Callable[[float], bool]:
    return lambda value: value > low


def is_below(high: float) -> Callable[[float], bool]:
    return lambda value: value < high


def has(*entries: str) -> Callable[[Any], bool]:
    """Return a check that a list, or the texts of its entries together, hold these."""
    return lambda value: all(entry in value or entry in " ".join(map(str, value)) for entry in entries)


def is_on(photo: str, label: str) -> Callable[[Mapping[str, float]], bool]:
    """Return a check that a point is on the object of this class, in fractions of width and height."""
    mask = next(item.mask for item in draw(photo).objects if item.label == label)
    return lambda point: bool(mask[int(point["y"] * len(mask)), int(point["x"] * len(mask))])


def get_cheap_methods(methods: list[dict[str, Any]]) -> set[str]:
    return {method["name"] for method in methods if "gradients" not in method["needs"]}


AUDIT = {"folder": "shapes", "kinds": ["place"], "controls": 9, "passes": 3000}
HEART, STAR = "single/plain-heart.png", "single/marked-star.png"

QUESTIONS = [
    Question(
        "Which models and images are there?",
        "photos",
        {},
        {
            "models": ["demo", "demo-cheat"],
            "count": 64,
            "subfolders": {"shapes/arrow": 20, "shapes/heart": 20, "shapes/star": 20, "single": 4},
        },
    ),
    Question(
        "What does the model see in this photo, and can it be trusted?",
        "explain",
        {"photo": HEART, "check": True},
        {
            "label": "heart",
            "index": 5,
            "predicted_label": "heart",
            "answers.0.label": "heart",
            "probability": is_above(0.5),
            "method": "gradcam",
            "is_class_agnostic": False,
            "warnings": [],
            "check": {"ok": True, "findings": []},
        },
    ),
    Question(
        "Where did it look?",
        "explain",
        {"photo": HEART},
        {"hottest": is_on("plain-heart.png", "heart"), "photo_size": [128, 128], "heat_in.bottom-right": is_below(0.1)},
    ),
    Question(
        "Is this model cheating?",
        "audit",
        {"model": "demo-cheat", **AUDIT},
        {
            "findings.0.label": "heart",
            "findings.0.kind": "place",
            "findings.0.name": "the lower right corner",
            "findings.0.removal.answers.0": 1.0,
            "findings.0.removal.controls": 0.0,
            "findings.0.transplant.answers.0": 1.0,
            "findings.0.q": is_below(0.02),
            "findings.0.facts": has("same place in all images", "at the border"),
            "findings.0.verdict": None,
            "surviving_decoys": 0,
            "untested": "",
        },
    ),
    Question(
        "And the other model?",
        "audit",
        {"model": "demo", **AUDIT},
        {"findings": [], "untested": "", "image_count": 60},
    ),
    Question(
        "The audit of the hearts finds nothing. Is the model fine, then?",
        "audit",
        {"model": "demo-cheat", "folder": "shapes/heart"},
        {"findings": [], "untested": has("All images are of one class, 'heart'"), "image_count": 20},
    ),
    Question(
        "Are six photos enough?",
        "audit",
        {"model": "demo-cheat", "folder": "shapes", "limit": 6},
        {"findings": [], "untested": has("fewer than 8 independent images"), "not_tested": has("Size and aspect")},
    ),
    Question(
        "Where does the cheating model look in a heart with a watermark?",
        "explain",
        {"photo": "shapes/heart/00.png", "model": "demo-cheat"},
        {"label": "heart", "heat_in.bottom-right": is_above(0.5), "warnings": []},
    ),
    Question(
        "And in a heart without one?",
        "explain",
        {"photo": HEART, "model": "demo-cheat"},
        {"predicted_label": lambda label: label != "heart", "heat_in.bottom-right": is_below(0.1)},
    ),
    Question(
        "Why does it call this star a heart?",
        "compare",
        {"photo": STAR, "of": "heart", "against": "star", "model": "demo-cheat"},
        {
            "answers.0.label": "heart",
            "difference": is_above(0),
            "for_of.label": "heart rather than star",
            "for_of.heat_in.bottom-right": is_above(0.5),
            "for_against.heat_in.bottom-right": is_below(0.1),
        },
    ),
    Question(
        "Why heart and not star, in a photo of both?",
        "compare",
        {"photo": "single/two.png", "of": "heart", "against": "star"},
        {
            "of.index": 5,
            "against.index": 8,
            "for_of.hottest": is_on("two.png", "heart"),
            "for_against.label": "star rather than heart",
            "for_against.hottest": is_on("two.png", "star"),
        },
    ),
    Question(
        "What in a heart speaks for a star?",
        "explain",
        {"photo": "shapes/heart/00.png", "target": "star"},
        {"label": "star", "index": 8, "predicted_label": "heart", "warnings.0.code": "low-rank"},
    ),
    Question(
        "Is the answer for this empty photo worth anything?",
        "explain",
        {"photo": "single/gray.png"},
        {"probability": is_below(0.3), "warnings.0.code": "constant-image", "warnings.0.remedy": has("Check the file")},
    ),
    Question(
        "Which layer?",
        "layers",
        {"model": "demo"},
        {"chosen": "features", "layers.-1.name": "features", "layers.-1.chosen": True, "layers.-1.stride": [8.0, 8.0]},
    ),
    Question(
        "Can I have a finer map, of an earlier layer?",
        "explain",
        {"photo": HEART, "layer": "stem", "check": True},
        {
            "layer": "stem",
            "map_size": [32, 32],
            "check.ok": False,
            "check.findings": lambda findings: "early-layer" in [finding["code"] for finding in findings],
        },
    ),
    Question(
        "Which methods need no gradients?",
        "methods",
        {},
        {
            "methods": lambda methods: (
                {"eigencam", "scorecam", "rise"} <= get_cheap_methods(methods) < {*_names(methods)}
            )
        },
    ),
    Question(
        "What is Grad-CAM?",
        "methods",
        {"name": "Grad-CAM"},
        {
            "count": 1,
            "methods.0.name": "gradcam",
            "methods.0.paper": "arXiv 1610.02391",
            "methods.0.needs": ["gradients"],
            "methods.0.is_class_agnostic": False,
            "text": has("mean of g_k over the positions"),
        },
    ),
    Question(
        "Is Grad-CAM better than chance here?",
        "evaluate",
        {"methods": ["gradcam"], "folder": "shapes", "labels": "folders", "metrics": ["deletion"], "limit": 12},
        {
            "images": 12,
            "better": {"deletion": "lower"},
            "rows.0.name": "gradcam",
            "rows.0.deletion.high": is_below(0.2),
            "rows.1.name": "random",
            "rows.1.deletion.low": is_above(0.2),
        },
    ),
    Question(
        "Can I use a method for transformers?",
        "evaluate",
        {"methods": ["gradcam", "legrad"], "metrics": ["single-deletion"], "limit": 2},
        {"refused.legrad": has("no attention"), "rows": lambda rows: {*_names(rows)} == {"gradcam", "random"}},
    ),
    Question(
        "Does it also know dogs?",
        "explain",
        {"photo": HEART, "target": "dog"},
        {"error": has("'dog' is not among the 10 labels")},
    ),
]


def _names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


@pytest.fixture(scope="module")
def answers(scenes: Path) -> dict[str, CallToolResult]:
    calls = [(question.tool, question.arguments) for question in QUESTIONS]
    results = ask(calls, scenes, "--model", "demo", "--model", "demo-cheat")
    return {question.question: result for question, result in zip(QUESTIONS, results, strict=True)}


def look_up(fields: Any, path: str) -> Any:
    for part in path.split("."):
        fields = fields[int(part)] if isinstance(fields, list) else fields[part]
    return fields


def test_there_are_twenty() -> None:
    assert len({question.question for question in QUESTIONS}) == 20


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.question)
def test_the_fields_hold_the_answer(answers: dict[str, CallToolResult], question: Question) -> None:
    result = answers[question.question]
    text = result.content[0].text
    fields = {"error": text} if result.is_error else result.structured_content
    told = {path: look_up(fields, path) for path in question.expected}
    wrong = {
        path: told[path]
        for path, expected in question.expected.items()
        if not (expected(told[path]) if callable(expected) else told[path] == expected)
    }
    assert wrong == {}
    assert result.is_error or json.loads(text) == fields, "clients that read text alone get the same"


def test_why_dog_and_not_cat_in_a_real_photo(shared: Path) -> None:
    """A bull mastiff sits in the upper half of the photo, and a tabby lies below it."""
    weights = shared / "models" / "mobilenet_v2-imagenet.safetensors"
    call = ("compare", {"photo": "both.png", "of": "bull mastiff", "against": "tabby"})
    (result,) = ask([call], shared / "images", "--model", "mobilenet_v2", "--weights", weights)
    told = result.structured_content
    assert (told["of"]["index"], told["against"]["index"]) == (243, 281)
    assert told["answers"][0]["label"] == "bull mastiff"
    assert told["for_of"]["hottest"]["y"] < 0.5 < told["for_against"]["hottest"]["y"]
    assert [content.type for content in result.content] == ["text", "text", "image", "text", "image"]
