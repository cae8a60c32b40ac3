"""The layers of a model that can carry a map, listed for people: which there are, and why one of them is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from torch import nn

from camtool import structures
from camtool.arguments import names_ours
from camtool.errors import ImageError, LayerError
from camtool.inputs import Inputs, Key, Kind
from camtool.layers import Candidate, survey
from camtool.models import Loaded, Transform, as_loaded
from camtool.pictures import Batch, Preparer

if TYPE_CHECKING:
    import torch

__all__ = ["HEADINGS", "Candidates", "candidate_layers", "cells"]

HEADINGS = ("layer", "output", "read as", "stride", "gradient", "verdict")
"""What :func:`cells` tells of a candidate."""


class Candidates(tuple[Candidate, ...]):
    """Candidates from shallow to deep; shown, they are a table with a line for each."""

    __slots__ = ()

    @property
    def chosen(self) -> Candidate | None:
        """The one at which maps are drawn when no layer is asked for; ``None`` where none qualifies."""
        return next((candidate for candidate in self if candidate.chosen), None)

    def __str__(self) -> str:
        rows = [HEADINGS, *map(cells, self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = _html_row(HEADINGS, "th")
        body = "".join(_html_row(cells(each), "td", bold=each.chosen) for each in self)
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


def cells(candidate: Candidate) -> tuple[str, ...]:
    """What there is to say about a candidate, in the order of :data:`HEADINGS`."""
    reached = {True: "yes", False: "no", None: "-"}[candidate.reached]
    verdict = f"chosen: {candidate.verdict}" if candidate.chosen else candidate.verdict
    output = " x ".join(map(str, candidate.shape[1:]))
    return candidate.name, output, str(candidate.layout), _stride(candidate.stride), reached, verdict


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


def _html_row(texts: Iterable[str], tag: str, *, bold: bool = False) -> str:
    row = "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)
    return f'<tr style="font-weight: bold">{row}</tr>' if bold else f"<tr>{row}</tr>"
