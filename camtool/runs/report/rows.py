"""What a report shows: a row for each explanation, and the photos that failed, wherever they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RowWarning:
    """A warning of an explanation.

    Attributes:
        text: The sentence.
        code: A key of :data:`camtool.warning_codes.WARNING_KINDS`; None if the run did not store codes.
    """

    text: str
    code: str | None = None


@dataclass(frozen=True)
class StoredHeatmap:
    """A heatmap at the layer's size, as a cluster run stores it.

    Attributes:
        data: The values as uint8, row by row, compressed with zlib.
        height: The number of rows of cells.
        width: The number of cells in a row.
        place: Where it lies on the photo, see :data:`camtool.runs.cluster.rows.COLUMNS`; None if unknown.
        photo_size: Height and width of the photo that ``place`` is about; None if unknown.
    """

    data: bytes
    height: int
    width: int
    place: tuple[float, ...] | None = None
    photo_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class ReportRow:
    """One explanation: a photo, a target and a method.

    Attributes:
        image: The path of the photo, as the run got it.
        method: The method's name.
        layer: The layer's name.
        label: The label of the target.
        index: The class index; None for other targets.
        score: The score of the target; None if it was not finite.
        probability: The probability of the class; None if unknown.
        predicted_label: The class that the model predicts; None if unknown.
        true_label: The class that the photo shows; None if unknown.
        correct: Whether the prediction is the true class; None if unknown.
        warnings: Reasons not to trust the map.
        box: ``(x0, y0, x1, y1)`` on the photo in pixels, of the explained detection; None for other targets.
        pictures: Kind, such as ``"overlay"`` → path of the picture.
        heatmap: The heatmap alone, if there are no pictures; None otherwise.
        heat_in: Name of a region of the photo → share of the heat in it.
        sufficient: Share of the model's input that alone keeps 90 % of the probability; None if unknown.
        sufficient_text: What was found about this part, in words; None if unknown.
    """

    image: str
    method: str
    layer: str = ""
    label: str = ""
    index: int | None = None
    score: float | None = None
    probability: float | None = None
    predicted_label: str | None = None
    true_label: str | None = None
    correct: bool | None = None
    warnings: tuple[RowWarning, ...] = ()
    box: tuple[float, ...] | None = None
    pictures: Mapping[str, Path] = field(default_factory=dict)
    heatmap: StoredHeatmap | None = None
    heat_in: Mapping[str, float] = field(default_factory=dict)
    sufficient: float | None = None
    sufficient_text: str | None = None


@dataclass(frozen=True)
class ReportFailure:
    """A photo that could not be explained, and why."""

    image: str
    reason: str


@dataclass(frozen=True)
class ReportContents:
    """Everything that a report is made of.

    Attributes:
        rows: The explanations.
        failures: The photos that failed.
        run: What made the results, as in ``run.json``; empty if unknown.
        notices: Sentences about what the report leaves out.
    """

    rows: Sequence[ReportRow]
    failures: Sequence[ReportFailure] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    notices: Sequence[str] = ()
