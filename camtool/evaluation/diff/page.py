"""The page of a comparison: findings, and both maps of the most changed images side by side; one HTML file."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

from camtool.rendering.colormaps import DEFAULT_COLORMAP, get_palette
from camtool.runs.report.page import read_template, render_template
from camtool.runs.text_escapes import escape_hidden

GENERATOR = "camtool diff"


def render_page(diff: Any) -> str:
    """Return the page of a :class:`camtool.CamDiff` as HTML. It holds its pictures, and loads nothing."""
    images = [_describe(image, diff.pictures[image.index]) for image in diff.images if image.index in diff.pictures]
    stops = ", ".join(f"rgb({red} {green} {blue})" for red, green, blue in get_palette(DEFAULT_COLORMAP)[::51].tolist())
    colors = f".legend .colors {{ background: linear-gradient(90deg, {stops}); }}\n"
    return render_template(
        "diff.html",
        ("dom.js", "theme.js", "diff.js"),
        read_template("report.css") + read_template("diff.css") + colors,
        {},
        generator=GENERATOR,
        title=" → ".join(map(escape_hidden, diff.names)),
        labels=sorted({image["label"] for image in images}),
        images=images,
        diff={
            "findings": [_escape_finding(finding) for finding in diff.findings],
            "unconfirmed": [_escape_finding(finding) for finding in diff.unconfirmed],
            "facts": diff.list_facts(),
            "names": [*map(escape_hidden, diff.names)],
            "image_count": len(diff.images),
            "not_tested": [*map(escape_hidden, diff.not_tested)],
            "notes": diff.notes,
            "level": diff.level,
            "passes": diff.passes,
            "seed": diff.seed,
            "command": escape_hidden(diff.command),
        },
    )


def _escape_finding(finding: Any) -> Any:
    return replace(finding, label=escape_hidden(finding.label))


def _describe(image: Any, pictures: tuple[bytes, bytes]) -> dict[str, Any]:
    return {
        "image": escape_hidden(image.image),
        "label": escape_hidden(image.label),
        "answers": [*map(escape_hidden, image.answers)],
        "is_other": image.has_other_answer,
        "probabilities": image.probabilities,
        "moved": image.moved,
        "correlation": image.correlation,
        "pictures": [b64encode(picture).decode() for picture in pictures],
    }
