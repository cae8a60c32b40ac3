"""The section of a model card about a run, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from camtool.arguments.message_parts import format_count
from camtool.runs.text_escapes import escape_hidden

_DISCLAIMER = (
    "This is supporting evidence about one run. It promises no compliance with any law, standard or policy, certifies "
    "nothing, and does not replace an assessment by people."
)

_AGNOSTIC = " All classes get the same map: it says nothing about the class in particular."

_NOT_SHOWN = (
    "Why the model answers as it does, and which concepts it has: a map shows places.",
    "That an answer is right, or that the model is fair, safe or fit for a purpose.",
    "That places without heat do not matter: a method measures one kind of influence, at one layer.",
    "How the model behaves on other photos than those listed.",
)

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~!&])")

# The section of a finding: whether it is suspicious → its title.
_SECTIONS = {False: "Recognized by", True: "Suspicious"}


def write_card(evidence: Mapping[str, Any]) -> str:
    """Return the section as Markdown. Texts of the run may come from anybody, so markup in them is escaped."""
    sections = {
        "Model and data": [*_describe_model(evidence)],
        "How the maps were made": [*_describe_making(evidence)],
        "What the maps show": [*_describe_meaning(evidence)],
        "What the maps do not show": [f"* {text}" for text in _NOT_SHOWN],
        "Warnings": [*_list_warnings(evidence)],
        "Measurements": [*_list_measurements(evidence["measurements"])],
        "Audits": [*_list_audits(evidence["audits"])],
        "Repeat": [*_describe_replay(evidence)],
    }
    lines = ["## Explanations: supporting evidence", "", _DISCLAIMER]
    for title, body in sections.items():
        lines += ["", f"### {title}", "", *body]
    return "\n".join(lines) + "\n"


def _describe_model(evidence: Mapping[str, Any]) -> Iterator[str]:
    model, data, preparation = (evidence[name] for name in ("model", "data", "preprocessing"))
    options = ", ".join(f"{name} {value}" for name, value in preparation["options"].items())
    rows = {
        "model": f"{model['name']} ({model['class']})",
        "weights, SHA-256 of names, types, shapes and values": model["weights_sha256"],
        "file of weights, SHA-256": model["weights_file_sha256"] or "none was named",
        "labels, SHA-256": model["labels_sha256"] or "none",
        "preprocessing": " ".join(str(preparation["transform"]).split()),
        "preprocessing, SHA-256 of this text": preparation["sha256"],
        "options of the preprocessing": options or "none",
        "photos": f"{format_count(data['photos'], 'photo')} of {data['bytes']:,} bytes, {data['failed']:,} failed",
        "photos, SHA-256 of the list of hashes and paths": data["list_sha256"],
    }
    rows |= {f"code, SHA-256 of {name}": sha for name, sha in preparation["code_sha256"].items()}
    return _format_table(("", ""), rows.items())


def _describe_making(evidence: Mapping[str, Any]) -> Iterator[str]:
    rows = {
        "methods": "; ".join(_describe_options(method) for method in evidence["methods"]),
        "layers": ", ".join(evidence["layers"]),
        "engine, device": f"{evidence['engine']}, {evidence['device']}",
        "seeds": ", ".join(f"{name} {seed}" for name, seed in (evidence["seeds"] or {}).items()) or "none",
        "camtool": evidence["camtool"],
    }
    versions = {**(evidence["versions"] or {}), **(evidence["machine"] or {})}
    return _format_table(("", ""), {**rows, **versions}.items())


def _describe_options(method: Mapping[str, Any]) -> str:
    options = ", ".join(f"{name}={value}" for name, value in method["options"].items())
    return f"{method['name']}({options})"


def _describe_meaning(evidence: Mapping[str, Any]) -> Iterator[str]:
    count, photos = format_count(evidence["explanations"], "map"), format_count(evidence["data"]["photos"], "photo")
    yield f"{count} of {photos}. What the heat at a place stands for depends on the method:"
    yield ""
    for method in evidence["methods"]:
        paper = f" ({method['paper']})" if method["paper"] not in ("", "camtool") else ""
        summary = f"{method['summary'].removesuffix('.') or 'a method of the user'}{paper}."
        yield f"* {_escape(method['name'])}: {_escape(summary)}{_AGNOSTIC if method['is_class_agnostic'] else ''}"


def _list_warnings(evidence: Mapping[str, Any]) -> Iterator[str]:
    if not evidence["warnings"]:
        yield "No map has one. Checks with further forward passes are not part of a run."
        return
    names = ("code", "explanations", "severity", "condition", "remedy")
    rows = [[warning[name] for name in names] for warning in evidence["warnings"]]
    yield from _format_table(("code", "maps", "severity", "raised when", "remedy"), rows)


def _list_measurements(measurements: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not measurements:
        yield "Nothing was measured: `--truth` gives the accuracy, `camtool evaluate` compares maps with chance."
        return
    header = ("measure", "mean", "95 % interval", "photos", "chance", "chance is")
    yield from _format_table(header, map(_list_cells, measurements))
    if any(one["file"] for one in measurements):
        yield ""
        yield "Files of evaluations name no model: that they are about this one is the word of who wrote the bundle."


def _list_cells(measurement: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row: the measure, its mean with its interval, and what chance gives."""
    name = f"{measurement['name']} ({measurement['file']})" if measurement["file"] else measurement["name"]
    mean, low, high, chance = (_format(measurement[key]) for key in ("mean", "low", "high", "chance"))
    interval = low if low == "-" else f"{low} to {high}"
    return [name, mean, interval, f"{measurement['photos']:,}", chance, measurement["chance_text"]]


def _list_audits(audits: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not audits:
        yield "There is none beside the run, so nothing was tested for shortcuts."
    for number, audit in enumerate(audits):
        images = format_count(audit["image_count"], "image")
        if number:
            yield ""
        findings = format_count(len(audit["findings"]), "finding")
        yield f"{_escape(audit['file'])}: {images}, {findings} at q ≤ {audit['level']:g}."
        yield ""
        for finding in audit["findings"]:
            section, verdict = _SECTIONS[finding["is_suspicious"]], finding["verdict"] or "none"
            yield f"* {section}: {_escape(finding['sentence'])} Verdict of the user: {verdict}."
        if audit["untested"]:
            yield f"* Nothing was tested: {_escape(audit['untested'])}"
        elif not audit["findings"]:
            yield "* No finding does not mean no shortcut."
        yield from (f"* Not tested: {_escape(text)}" for text in audit["not_tested"])
        if audit["command"]:
            yield f"* Command: {_escape(audit['command'])}. Its weights were not hashed by the audit."


def _describe_replay(evidence: Mapping[str, Any]) -> Iterator[str]:
    yield "This makes the explanations again, and says whether they are bit-identical:"
    yield ""
    yield from (f"    {escape_hidden(command)}" for command in evidence["replay"])


def _format_table(header: Sequence[str], rows: Any) -> Iterator[str]:
    """Yield the lines of a table, with the cells escaped."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(_escape(str(cell)) for cell in row)} |"


def _escape(text: str) -> str:
    """Return text on one line that Markdown shows as it is."""
    return _MARKUP.sub(r"\\\1", escape_hidden(text))


def _format(number: float | None) -> str:
    return "-" if number is None or number != number else f"{number:.3f}"
