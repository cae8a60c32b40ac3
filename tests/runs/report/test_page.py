"""The page: its data, its numbers, and text that could become markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from camtool.runs.report import page, write_report
from camtool.runs.report.columns import COLUMNS, ReportContents, ReportFailure, ReportRow, RowWarning
from camtool.runs.report.page import summarize
from tests.runs.report.folders import read_payload, write_run

HOSTILE = "</script><script>x()</script><img src=x onerror=x()>\u2028\"'&<!--\udcff\u202e"


class Elements(HTMLParser):
    """Collects the start tags of a page, and the text of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open in self.raw:
            self.raw[self._open].append(data)

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def make_page(tmp_path: Path, lines: list[dict[str, Any]], **files: Any) -> str:
    return write_report(write_run(tmp_path, lines, **files)).path.read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------------ numbers


def test_the_numbers_at_the_top() -> None:
    slow = RowWarning("Ranked 7th.", "low-rank")
    rows = [
        ReportRow("a", "gradcam", label="cat", correct=True, layer="l4"),
        ReportRow("a", "layercam", label="cat", correct=True, layer="l4", warnings=(slow, slow)),
        ReportRow("b", "gradcam", label="dog", correct=False, layer="l4", warnings=(slow, RowWarning("Old: 3 cells."))),
        ReportRow("c", "gradcam", label="dog", layer="l4", warnings=(RowWarning("Old: 5 cells."),)),
        ReportRow("c", "layercam", label="dog", layer="l4", warnings=(RowWarning("Made gray.", "made-gray"),)),
    ]
    summary = summarize(ReportContents(rows, [ReportFailure("d", "damaged")]))
    assert (summary.photos, summary.explanations, summary.failures, summary.warned) == (3, 5, 1, 3)
    assert (summary.right, summary.judged) == (1, 2)
    assert (summary.methods, summary.layers) == (("gradcam", "layercam"), ("l4",))
    kinds = {kind.key: (kind.title, kind.count, kind.severity) for kind in summary.warnings}
    assert kinds == {
        "low-rank": ("Low rank", 2, "warning"),
        "Old: # cells.": ("Old: 3 to 5 cells.", 2, "warning"),
        "made-gray": ("Made gray", 1, "note"),
    }
    assert summary.warnings[0].remedy.startswith("Explain a class that the model considers")


def test_a_code_of_a_later_version_is_shown() -> None:
    rows = [ReportRow("a", "gradcam", warnings=(RowWarning("Something new.", "new-fact"),))]
    (kind,) = summarize(ReportContents(rows)).warnings
    assert (kind.title, kind.condition, kind.remedy, kind.severity) == ("New fact", "", "", "warning")


def test_the_values_of_each_column_come_back(tmp_path: Path) -> None:
    lines = [
        {"label": "cat", "probability": 0.123456789, "score": None, "correct": True},
        {"label": "dog", "probability": None, "correct": False, "true_label": "cat"},
        {"label": "cat", "box": [1, 2, 3, 4.6]},
    ]
    payload = read_payload(write_report(write_run(tmp_path, lines)).path)

    def read(key: str) -> list[Any]:
        values = payload["values"][key]
        if not isinstance(values, dict):
            return list(values)
        return [values["texts"][code] if code >= 0 else None for code in values["codes"]]

    assert [column["key"] for column in payload["columns"]] == [column.key for column in COLUMNS]
    assert read("label") == ["cat", "dog", "cat"]
    assert payload["values"]["label"]["texts"] == ["cat", "dog"]
    assert read("probability") == [0.123457, None, 0.5]
    assert read("score") == [None, 3.0, 3.0]
    assert read("verdict") == ["Right", "Wrong", None]
    assert read("truth") == [None, "cat", None]
    assert read("box") == [None, None, "(1, 2) to (3, 5)"]


def test_each_row_has_a_name_for_links_that_stays(tmp_path: Path) -> None:
    lines = [{"image": "a.jpg", "index": 1}, {"image": "a.jpg", "index": 1}, {"image": "b.jpg"}, {"image": "\udcff"}]
    out = write_run(tmp_path, lines)
    names = read_payload(write_report(out).path)["ids"]
    assert len({*names}) == 4
    assert names[1] == f"{names[0]}-2"
    assert read_payload(write_report(out).path)["ids"] == names


def test_photos_group_their_maps(tmp_path: Path) -> None:
    lines = [{"image": "a"}, {"image": "b"}, {"image": "a", "method": "layercam"}]
    assert read_payload(write_report(write_run(tmp_path, lines)).path)["groups"] == [0, 1, 0]


def test_the_run_is_described_by_its_names() -> None:
    run = {
        "model": {"name": "resnet50", "hash": None},
        "seeds": [1, 2],
        "options": {},
        "labels": ["x" * 400],
        "empty": "",
    }
    described = dict(page.describe_run(run))
    assert described["model.name"] == "resnet50"
    assert described["seeds"] == "1, 2"
    assert described["labels"] == f"{'x' * 300} …"
    assert {*described} == {"model.name", "seeds", "labels"}


@pytest.mark.parametrize(
    ("run", "title"),
    [
        ({"model": {"name": "resnet50"}}, "resnet50"),
        ({"model": "vit"}, "vit"),
        ({}, "Explanations"),
        ({"model": {}}, "Explanations"),
    ],
)
def test_the_title_is_the_model(tmp_path: Path, run: dict[str, Any], title: str) -> None:
    html = make_page(tmp_path, [{}], run=run)
    assert f"<h1>{title}</h1>" in html
    assert f"<title>{title} · camtool report</title>" in html


# ----------------------------------------------------------------------------------------------------- hostile text


@pytest.mark.parametrize("text", [HOSTILE, "</SCRIPT >", "<!--<script>", "\u2028\u2029", "&lt;", "\ud800", "]]>"])
def test_json_is_plain_text_inside_a_script(text: str) -> None:
    encoded = page.encode_json({text: [text]})
    assert encoded.isascii()
    assert not set(encoded) & set("<>&")
    assert json.loads(encoded) == {text: [text]}


def test_no_text_becomes_markup(tmp_path: Path) -> None:
    fields = ("label", "method", "layer", "image", "predicted_label", "true_label")
    line = dict.fromkeys(fields, HOSTILE) | {"warnings": [HOSTILE], "warning_codes": [HOSTILE], "correct": False}
    hostile = make_page(
        tmp_path / "hostile",
        [{**line, "files": {}}],
        failures=[{"image": HOSTILE, "reason": HOSTILE}],
        run={"model": {"name": HOSTILE}, HOSTILE: HOSTILE},
    )
    plain_line = dict.fromkeys(fields, "x") | {"warnings": ["x"], "warning_codes": ["x"], "correct": False}
    plain = make_page(
        tmp_path / "plain",
        [{**plain_line, "files": {}}],
        failures=[{"image": "x", "reason": "x"}],
        run={"model": {"name": "x"}, "x": "x"},
    )
    found, expected = Elements(hostile), Elements(plain)
    # The same elements with the same attributes, whatever the texts are.
    assert [(tag, [*attributes]) for tag, attributes in found.tags] == [
        (tag, [*attributes]) for tag, attributes in expected.tags
    ]
    assert [attributes for _, attributes in found.tags if "onerror" in attributes] == []


def test_hidden_characters_are_shown_as_escapes(tmp_path: Path) -> None:
    html = make_page(
        tmp_path, [{"label": "a\u202eb", "image": "c\udcff\n.png", "files": {}}], run={"model": "x\u202ey"}
    )
    payload = read_payload(tmp_path / "out" / "index.html")
    assert payload["values"]["label"]["texts"] == ["a\\u202eb"]
    assert payload["values"]["image"]["texts"] == ["c\\udcff\\n.png"]
    assert "<h1>x\\u202ey</h1>" in html


# ---------------------------------------------------------------------------------------------------- self-contained


def test_the_policy_allows_exactly_this_script_and_this_style(tmp_path: Path) -> None:
    elements = Elements(make_page(tmp_path, [{}]))
    policies = [a["content"] for tag, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    policy = str(policies[0])
    data, script = elements.raw["script"]
    json.loads(data)
    (style,) = elements.raw["style"]
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    html = make_page(tmp_path, [{}])
    elements = Elements(html)
    loaded = [attributes.get("src") or attributes.get("href") or "" for _, attributes in elements.tags]
    assert [url for url in loaded if url and not url.startswith(("#", "data:"))] == []
    style = elements.raw["style"][0]
    assert not re.search(r"url\((?!\"data:)|@import|@font-face", style)
    assert not re.search(r"\bfetch\(|XMLHttpRequest|import\(", elements.raw["script"][1])


def test_the_script_builds_no_markup_from_text() -> None:
    folder = Path(page.__file__).parent / "templates"
    for file in folder.glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser",
            file.read_text(encoding="utf-8"),
        ), file.name


def test_all_files_of_the_page_are_in_the_wheel() -> None:
    folder = Path(page.__file__).parent / "templates"
    config = (Path(page.__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"camtool.runs.report" = ["templates/*"]' in config
    assert all(path.is_file() for path in folder.iterdir())


def test_two_reports_of_a_run_are_equal(tmp_path: Path) -> None:
    out = write_run(tmp_path, [{}, {"label": "dog"}])
    first = write_report(out).path.read_bytes()
    assert write_report(out).path.read_bytes() == first
