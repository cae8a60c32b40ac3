"""The layers of a model that can carry a map, listed for people: which there are, and why one of them is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from torch import nn

from camtool import structures
from camtool.arguments import names_ours
from camtool.errors import ImageError, LayerError, format_count
from camtool.inputs import Inputs, Key, Kind
from camtool.layers import GOOD, Candidate, survey
from camtool.models import Loaded, Transform, as_loaded
from camtool.pictures import Batch, Preparer
from camtool.tables import Styled, align, fit, paragraph

if TYPE_CHECKING:
    import torch

__all__ = ["HEADINGS", "Candidates", "candidate_layers", "cells", "list_candidates"]

HEADINGS = ("layer", "output", "read as", "stride", "gradient", "verdict")
"""What :func:`cells` tells of a candidate."""

_WIDTH = 80
"""The most characters on a line of the printed table."""

_CELL = "text-align: left; white-space: nowrap"
"""The style of a cell in a notebook, which aligns text to the right by default."""


class Candidates(tuple[Candidate, ...]):
    """Candidates from shallow to deep; printed, they are a table with a line for each, at most 80 columns wide."""

    __slots__ = ()

    @property
    def chosen(self) -> Candidate | None:
        """The one at which maps are drawn when no layer is asked for; ``None`` where none qualifies."""
        return next((candidate for candidate in self if candidate.chosen), None)

    def __str__(self) -> str:
        return "\n".join(line for line, _ in list_candidates(self, _WIDTH))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = _html_row(HEADINGS, "th")
        body = "".join(_html_row(cells(each), "td", _html_style(each)) for each in self)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


@names_ours
def candidate_layers(
    model: nn.Module | Loaded,
    img: Any,
    *,
    transform: Transform | None = None,
    device: torch.device | str | None = None,
    picture: Key | None = None,
    call: int | None = None,
    kind: Kind | None = None,
) -> Candidates:
    """List the layers of a model that can carry a map, and say which one is looked at by default and why.

        print(camtool.candidate_layers(model, "cat.jpg"))

    Args:
        model: A module, or what :func:`camtool.load` returned. It is left exactly as it was found.
        img: An image in any form that :func:`camtool.explain` takes; of several, the first.
        transform: From PIL image to the model's input, where ``model`` does not bring it.
        device: Where the inputs go; by default where the model is.
        picture: Which of several inputs is the picture; by default the first that a layer shows.
        call: Which call of a layer is looked at, where it runs more than once: 0 is the first, -1 the last. By default
            the last that shows the picture.
        kind: What the input is, where that cannot be told: see :func:`camtool.explain`.

    Raises:
        CamtoolError: The image, or the model's input, cannot be had.
    """
    loaded = as_loaded(model)
    prepare = Preparer(loaded.model, transform or loaded.transform, device, kind=kind)
    inputs, nth = _inputs(prepare, img, picture, call)
    return Candidates(survey(loaded.model, inputs, nth=-1 if nth is None else nth))


def list_candidates(candidates: Sequence[Candidate], width: int | None = None) -> list[Styled]:
    """Return candidates as lines of text: those with the same grid together, and below them what the marks mean.

    Args:
        candidates: The candidates, from shallow to deep.
        width: The most characters on a line. ``None`` gives one line for each candidate with all there is to tell,
            below the headings, so that the lines can be searched.
    """
    if width is None:
        return [(line, "") for line in align([HEADINGS, *map(cells, candidates)])]
    if not candidates:
        return [("No layer can carry a map.", "")]
    marks = _marks(candidates)
    outputs = [_times(each.shape[1:]) for each in candidates]
    column = min(width - max(map(len, outputs)) - 4, max(len(each.name) for each in candidates))
    lines: list[Styled] = []
    for grid, members in groupby(zip(candidates, outputs, strict=True), lambda pair: _grid(pair[0])):
        lines += [("", "")] * bool(lines) + [(line, "bold cyan") for line in paragraph(grid, width)]
        lines += [line for each, output in members for line in _lines_of(each, marks[_verdict(each)], output, column)]
    meanings = [(mark, verdict if mark else f"no mark: {verdict}") for verdict, mark in marks.items() if verdict]
    return [*lines, ("", ""), *((line, "") for row in fit(meanings, width, keep=2, wrapped=1) for line in row)]


def cells(candidate: Candidate) -> tuple[str, ...]:
    """What there is to say about a candidate, in the order of :data:`HEADINGS`."""
    reached = {True: "yes", False: "no", None: "-"}[candidate.reached]
    output, layout, stride = _times(candidate.shape[1:]), str(candidate.layout), _stride(candidate.stride)
    return candidate.name, output, layout, stride, reached, _verdict(candidate)


def _verdict(candidate: Candidate) -> str:
    return f"chosen: {candidate.verdict}" if candidate.chosen else candidate.verdict


def _marks(candidates: Iterable[Candidate]) -> dict[str, str]:
    """Return the mark of each verdict: ``>`` for the chosen layer, none for good ones, a letter for the others."""
    marks: dict[str, str] = {}
    letters = (first + second for first in ("", *ascii_lowercase) for second in ascii_lowercase)
    for each in candidates:
        if _verdict(each) not in marks:
            marks[_verdict(each)] = ">" if each.chosen else "" if _is_good(each) else next(letters)
    return marks


def _is_good(candidate: Candidate) -> bool:
    """Return whether nothing speaks against a candidate."""
    return candidate.chosen or candidate.verdict in ("", GOOD)


def _grid(candidate: Candidate) -> str:
    """Return how the positions of a candidate lie over the image."""
    layout = candidate.layout
    around = [(layout.prefix, "prefix token"), (layout.suffix, "suffix token")]
    others = ", ".join(format_count(number, noun) for number, noun in around if number)
    kind = f"{layout.kind} ({others})" if others else layout.kind
    return f"{_times(layout.grid)} grid, stride {_stride(candidate.stride)}, {kind}"


def _lines_of(candidate: Candidate, mark: str, output: str, column: int) -> list[Styled]:
    """Return the line of a candidate; the output of one whose name exceeds its column is on a line of its own."""
    style = "bold green" if candidate.chosen else "" if _is_good(candidate) else "dim"
    names = [f"{mark:<2}{candidate.name}"] if len(candidate.name) > column else []
    last = f"{'':{column + 2}}  {output}" if names else f"{mark:<2}{candidate.name:<{column}}  {output}"
    return [(line, style) for line in (*names, last)]


def _times(sizes: Iterable[int]) -> str:
    return " x ".join(map(str, sizes))


def _stride(stride: Iterable[float]) -> str:
    """Pixels between positions; once where they are the same along all axes."""
    return " x ".join(dict.fromkeys(f"{pixels:.3g}" for pixels in stride))


def _inputs(prepare: Preparer, img: Any, picture: Key | None, call: int | None) -> tuple[structures.Inputs, int | None]:
    """What the model is called with for an image, or for the first of several, and which call shows it."""
    if isinstance(img, (Inputs, Mapping)):
        return _of_several(prepare, Inputs.of(img, picture), call)
    if prepare.is_batch(img):
        if len(img) == 0:
            raise ImageError("img holds no image; give one.")
        if isinstance(img[0], (Inputs, Mapping)):
            return _inputs(prepare, img[0], picture, call)
    return Batch.of([next(prepare.each(img))]).inputs, call


def _of_several(prepare: Preparer, inputs: Inputs, call: int | None) -> tuple[structures.Inputs, int | None]:
    try:
        at, nth = prepare.looked_at(inputs, None, call)
    except LayerError:  # the table tells why none qualifies
        at, nth = inputs.pictures[0], call
    return prepare.several(inputs, at)[0].inputs, nth


def _html_style(candidate: Candidate) -> str:
    return "font-weight: bold" if candidate.chosen else "" if _is_good(candidate) else "opacity: 0.6"


def _html_row(texts: Iterable[str], tag: str, style: str = "") -> str:
    row = "".join(f'<{tag} style="{_CELL}">{escape(text)}</{tag}>' for text in texts)
    return f'<tr style="{style}">{row}</tr>' if style else f"<tr>{row}</tr>"
