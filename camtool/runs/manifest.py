"""The manifest of a run: one JSON line for each explanation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from camtool.runs.stored_files import build_checked

if TYPE_CHECKING:
    from camtool.explaining.explanation import Explanation
    from camtool.runs.true_labels import TrueClass

MANIFEST = "explanations.jsonl"
"""Name of the file in the output folder with one JSON line for each explanation."""


@dataclass(frozen=True)
class ManifestLine:
    """One line of the manifest: one photo, target and method.

    Attributes:
        image: The path of the photo.
        method: The method's name.
        layer: The layer's name.
        label: The label of the target.
        index: The class index; None for other targets.
        score: The score of the target.
        probability: The probability of the class; None if unknown.
        warnings: Reasons not to trust the map.
        box: ``(x0, y0, x1, y1)``, of the explained detection, in pixels of the photo as it was read: a large one is
            reduced, see ``photo-reduced``. None for other targets.
        files: Kind → path of the file, relative to the output folder.
        warning_codes: The codes of the warnings, in the same order.
        predicted_label: The label of the model's top class, which may differ from the explained one; None if it
            predicts no class.
        true_label: The label of the true class; None if it is not known.
        correct: True if the top class is the true one; None if one of them is not known.
        heat_in: Name of a region → share of the heat in it; None for a region that the photo has no mask of, or if
            there is no heat. None without regions.
        sufficient: Share of the model's input that alone keeps 90 % of the probability; None if this was not asked.
        sufficient_text: What was found about this part, in words; None likewise.
    """

    image: str
    method: str
    layer: str
    label: str
    index: int | None
    score: float
    probability: float | None
    warnings: tuple[str, ...]
    box: tuple[float, float, float, float] | None
    files: dict[str, str]
    warning_codes: tuple[str, ...] = ()
    predicted_label: str | None = None
    true_label: str | None = None
    correct: bool | None = None
    heat_in: dict[str, float | None] | None = None
    sufficient: float | None = None
    sufficient_text: str | None = None


def build_line(image: str, explanation: Explanation, true_class: TrueClass | None) -> ManifestLine:
    """Return the line about an explanation, without its files.

    Args:
        image: The path of the photo.
        explanation: The explanation.
        true_class: The true class of the photo; None if it is not known.
    """
    return ManifestLine(
        image=image,
        **explanation.list_facts("method", "layer", "box", "predicted_label"),
        files={},
        true_label=None if true_class is None else true_class.label,
        correct=is_correct([explanation], true_class),
        sufficient=None if explanation.region is None else explanation.region.share,
        sufficient_text=None if explanation.region is None else explanation.region.sentence,
    )


def is_correct(explanations: Sequence[Explanation], true_class: TrueClass | None) -> bool | None:
    """Return True if the top class of a photo is the true one; None if one of them is not known.

    All explanations of a photo have the same top class.
    """
    predicted = next((explanation.predicted_index for explanation in explanations), None)
    return None if predicted is None or true_class is None else predicted == true_class.index


def to_row(line: ManifestLine) -> dict[str, Any]:
    """Return a line as values of JSON. Infinity and NaN, which JSON lacks, become None."""
    row = asdict(line)
    for name in ("score", "probability"):
        if row[name] is not None and not math.isfinite(row[name]):
            row[name] = None
    return row


def parse_row(row: Mapping[str, Any]) -> ManifestLine:
    """Return the line of a row that :func:`to_row` made. A score that JSON lacks becomes NaN.

    Raises:
        ValueError: A field is missing, or of another type.
    """
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    if values.get("score") is None:
        values["score"] = math.nan
    return build_checked(ManifestLine, values)
