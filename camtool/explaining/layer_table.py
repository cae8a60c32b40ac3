"""Table of the layers that can carry a map, and the reason why one of them is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import groupby
from string import ascii_lowercase
from typing import Any

import torch
from torch import nn

from camtool.arguments.explain_arguments import check_settings, explain_foreign_arguments
from camtool.arguments.message_parts import format_count
from camtool.errors import ImageError, LayerError
from camtool.geometry.cell_centers import CellCenters
from camtool.hooks.structures import nested_tensors
from camtool.inputs.accepted_inputs import DataKind
from camtool.inputs.input_preparer import InputPreparer
from camtool.inputs.model_inputs import Inputs, Key
from camtool.inputs.prepared_inputs import InputBatch
from camtool.layers.centers import find_centers
from camtool.layers.default_layer import LEVEL, NOT_DEEPEST, Candidate
from camtool.layers.layouts import Layer
from camtool.layers.survey import find_candidates
from camtool.models import Loaded, Transform, to_loaded
from camtool.rendering.text_tables import StyledLine, align_columns, fit_columns, wrap_paragraph

# Headings of the cells that :func:`describe_candidate` returns.
HEADINGS = ("layer", "output", "layout", "stride", "gradient", "verdict")

# Largest number of characters in a line of the printed table.
_WIDTH = 80

# Style of a cell in a notebook. Its default is alignment to the right.
_CELL = "text-align: left; white-space: nowrap"


class Candidates(tuple[Candidate, ...]):
    """Candidates from shallow to deep. Printed, they are a table of at most 80 columns with a line for each."""

    __slots__ = ()

    @property
    def chosen(self) -> Candidate | None:
        """The candidate that is explained if no layer is named; ``None`` if none qualifies."""
        return next((candidate for candidate in self if candidate.chosen), None)

    def count_shallow(self, most: int = 16) -> int:
        """Return how many of the first ones a list may leave out: all before the chosen one, if ``most`` are left."""
        # By default as many are left as fit on a terminal of 24 lines, with the headings.
        chosen = next((number for number, candidate in enumerate(self) if candidate.chosen), len(self))
        return max(0, min(chosen, len(self) - most))

    def __str__(self) -> str:
        return "\n".join(line for line, _ in format_candidates(self, _WIDTH))

    def __repr__(self) -> str:
        chosen = f", {self.chosen.name!r} chosen" if self.chosen else ""
        return f"<Candidates: {format_count(len(self), 'layer')}{chosen}>"

    def _repr_html_(self) -> str:
        head = _format_html_row(HEADINGS, "th")
        body = "".join(
            _format_html_row(describe_candidate(candidate), "td", _choose_html_style(candidate)) for candidate in self
        )
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


@explain_foreign_arguments
def candidate_layers(
    model: nn.Module | Loaded,
    img: Any,
    *,
    transform: Transform | None = None,
    device: torch.device | str | None = None,
    image: Key | None = None,
    call_index: int | None = None,
    kind: DataKind | None = None,
) -> Candidates:
    """List the layers of a model that can carry a map, with the reason why one of them is chosen by default.

        print(camtool.candidate_layers(model, "cat.jpg"))

    Args:
        model: A module, or the result of :func:`camtool.load`. Its state is preserved.
        img: An image in any form that :func:`camtool.explain` takes. If there are several, the first is used.
        transform: Function from a PIL image to the model's input, if ``model`` has none of its own.
        device: Device of the inputs; by default that of the model.
        image: Which of several inputs is the image; by default the first on which a layer depends.
        call_index: Which call of a layer is read if it runs more than once: 0 is the first, -1 the last. By default the
            last that depends on the image.
        kind: Kind of the data if it is ambiguous, see :func:`camtool.explain`.

    Raises:
        CamtoolError: The image cannot be read, or the model's input cannot be prepared.
    """
    check_settings(transform, None, 1, image, call_index)
    loaded = to_loaded(model)
    prepare = InputPreparer(loaded.model, transform or loaded.transform, device, kind=kind)
    inputs, call_index = _prepare_first(prepare, img, image, call_index)
    index = -1 if call_index is None else call_index
    candidates = find_candidates(loaded.model, inputs, call_index=index)
    return Candidates(_add_centers(loaded.model, inputs, candidate, index) for candidate in candidates)


def format_candidates(candidates: Sequence[Candidate], width: int | None = None) -> list[StyledLine]:
    """Return candidates as lines of text, grouped by their grids, and below them the meanings of the marks.

    Args:
        candidates: The candidates, from shallow to deep.
        width: Largest number of characters in a line. ``None`` gives headings and one line for each candidate with all
            its cells, so that the lines can be searched, e.g. with grep.
    """
    if width is None:
        return [(line, "") for line in align_columns([HEADINGS, *map(describe_candidate, candidates)])]
    if not candidates:
        return [("No layer can carry a map.", "")]
    marks = _assign_marks(candidates)
    outputs = [_join_sizes(candidate.shape[1:]) for candidate in candidates]
    column = min(width - max(map(len, outputs)) - 4, max(len(candidate.name) for candidate in candidates))
    lines: list[StyledLine] = []
    for grid, members in groupby(zip(candidates, outputs, strict=True), lambda pair: _describe_grid(pair[0])):
        if lines:
            lines.append(("", ""))
        lines += [(line, "bold cyan") for line in wrap_paragraph(grid, width)]
        for candidate, output in members:
            lines += _format_candidate(candidate, marks[_describe_verdict(candidate)], output, column)
    lines += [("", ""), *_format_meanings(marks, width)]
    lines += [(_describe_centers(candidate.centers), "") for candidate in candidates if candidate.centers is not None]
    return lines


def _format_meanings(marks: Mapping[str, str], width: int) -> list[StyledLine]:
    """Return the marks with the verdicts that they stand for."""
    meanings = [(mark, verdict if mark else f"no mark: {verdict}") for verdict, mark in marks.items() if verdict]
    return [(line, "") for row in fit_columns(meanings, width, keep=2, wrapped=1) for line in row]


def describe_candidate(candidate: Candidate) -> tuple[str, ...]:
    """Return the cells of a candidate, in the order of :data:`HEADINGS`."""
    reached = {True: "yes", False: "no", None: "-"}[candidate.reached]
    output, layout, stride = _join_sizes(candidate.shape[1:]), str(candidate.layout), _format_stride(candidate.stride)
    return candidate.name, output, layout, stride, reached, _describe_verdict(candidate)


def _add_centers(
    model: nn.Module, inputs: nested_tensors.ModelInputs, candidate: Candidate, call_index: int
) -> Candidate:
    """Return the chosen candidate with the centers of its cells, and any other unchanged."""
    if not candidate.chosen:
        return candidate
    layer = Layer(candidate.name, candidate.layout)
    return replace(candidate, centers=find_centers(model, inputs, layer, call_index=call_index))


def _describe_centers(centers: CellCenters) -> str:
    """Return where the first cells lie in the input and how many pixels each sees; one number if all axes agree."""
    axes = [", ".join(f"{center:.1f}".removesuffix(".0") for center in axis.list_centers(2)) for axis in centers.axes]
    lie = " x ".join(f"{first_centers}, ..." for first_centers in dict.fromkeys(axes))
    see = " x ".join(dict.fromkeys(f"{axis.field:.0f}" for axis in centers.axes))
    return f"   cells at {lie} see {see} pixels"


def _describe_verdict(candidate: Candidate) -> str:
    """Return the verdict, marked if the candidate is chosen."""
    return f"chosen: {candidate.verdict}" if candidate.chosen else candidate.verdict


def _assign_marks(candidates: Iterable[Candidate]) -> dict[str, str]:
    """Return the mark of each verdict: ``>`` for the chosen layer, none for good ones, a letter for the others."""
    marks: dict[str, str] = {}
    letters = (first + second for first in ("", *ascii_lowercase) for second in ascii_lowercase)
    for candidate in candidates:
        if _describe_verdict(candidate) not in marks:
            marks[_describe_verdict(candidate)] = (
                ">" if candidate.chosen else "" if is_good(candidate) else next(letters)
            )
    return marks


def is_good(candidate: Candidate) -> bool:
    """Check that no rule excludes a candidate."""
    return candidate.chosen or candidate.verdict in ("", LEVEL, NOT_DEEPEST)


def _describe_grid(candidate: Candidate) -> str:
    """Return the heading of candidates with the same grid: grid, stride and layout."""
    layout = candidate.layout
    inner = len(layout.others) - layout.prefix - layout.suffix
    around = [(layout.prefix, "prefix token"), (inner, "inner token"), (layout.suffix, "suffix token")]
    others = ", ".join(format_count(number, noun) for number, noun in around if number)
    kind = f"{layout.kind} ({others})" if others else layout.kind
    return f"{_join_sizes(layout.grid)} grid, stride {_format_stride(candidate.stride)}, {kind}"


def _format_candidate(candidate: Candidate, mark: str, output: str, column: int) -> list[StyledLine]:
    """Return the line of a candidate, or two lines if its name exceeds the column."""
    style = "bold green" if candidate.chosen else "" if is_good(candidate) else "dim"
    names = [f"{mark:<2}{candidate.name}"] if len(candidate.name) > column else []
    last = f"{'':{column + 2}}  {output}" if names else f"{mark:<2}{candidate.name:<{column}}  {output}"
    return [(line, style) for line in (*names, last)]


def _join_sizes(sizes: Iterable[int]) -> str:
    """Return sizes as text, e.g. ``14 x 14``."""
    return " x ".join(map(str, sizes))


def _format_stride(stride: Iterable[float]) -> str:
    """Return the pixels between positions, once if they are the same along all axes."""
    return " x ".join(dict.fromkeys(f"{pixels:.3g}" for pixels in stride))


def _prepare_first(
    prepare: InputPreparer, img: Any, image: Key | None, call_index: int | None
) -> tuple[nested_tensors.ModelInputs, int | None]:
    """Return the model's inputs for an image, or for the first of several, and the call to read."""
    if isinstance(img, (Inputs, Mapping)):
        return _prepare_several(prepare, Inputs.from_user(img, image), call_index)
    if prepare.is_batch(img):
        if len(img) == 0:
            raise ImageError("img holds no image; give one.")
        if isinstance(img[0], (Inputs, Mapping)):
            return _prepare_first(prepare, img[0], image, call_index)
    return InputBatch.from_prepared([next(prepare.iterate_inputs(img))]).inputs, call_index


def _prepare_several(
    prepare: InputPreparer, inputs: Inputs, call_index: int | None
) -> tuple[nested_tensors.ModelInputs, int | None]:
    """Return several inputs of a model, prepared, and the call to read."""
    try:
        at, call_index = prepare.select_image_input(inputs, None, call_index)
    except LayerError:
        # No layer qualifies, and the table shows why.
        at, call_index = inputs.find_image_candidates()[0], call_index
    return prepare.prepare_inputs(inputs, at)[0].inputs, call_index


def _choose_html_style(candidate: Candidate) -> str:
    """Return the style of a candidate's row: bold if chosen, dim if excluded."""
    return "font-weight: bold" if candidate.chosen else "" if is_good(candidate) else "opacity: 0.6"


def _format_html_row(texts: Iterable[str], tag: str, style: str = "") -> str:
    """Return a row of an HTML table with escaped texts."""
    row = "".join(f'<{tag} style="{_CELL}">{escape(text)}</{tag}>' for text in texts)
    return f'<tr style="{style}">{row}</tr>' if style else f"<tr>{row}</tr>"
