"""Choice of the layer if none is named: the deepest that no rule excludes, see :func:`choose_default_layer`.

Its candidates are module outputs that are grids over the image, each with the reason why it was chosen or not. Some are
projections inside attention: queries, keys and values of another candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from camtool.geometry.cell_centers import CellCenters
from camtool.hooks.structures.modules import has_matrix
from camtool.hooks.tracing import TracedCall
from camtool.layers.layout_reader import iterate_parent_names
from camtool.layers.layouts import Layout

# Verdict on a layer that no rule excludes if a deeper one was chosen.
NOT_DEEPEST = "good, but not the deepest"

# Verdict on the layers before the last ones of a network with many.
SHALLOW = "shallow, not evaluated"

# Verdict on a layer behind the chosen one that a part of the detections is explained at.
LEVEL = "explains the detections of one feature level"


@dataclass(frozen=True)
class Candidate:
    """A module whose output can be read as a grid.

    Attributes:
        name: Dotted name of the module. If several modules return the same tensor, the outermost.
        kind: Name of the module's class.
        shape: Shape of its output for one image.
        layout: How the output is read.
        stride: Distance between neighboring positions along each axis, in pixels of the image.
        reached: Whether the gradient of the score reaches the layer; ``None`` if no gradient was computed.
        verdict: Why it was chosen or not, in a few words.
        chosen: Whether maps are drawn here if no layer is named.
        centers: For the chosen layer, where its cells lie in the model's input; ``None`` if a stretched grid is drawn.
        in_order: Whether its tokens lie in the order of the image's rows; ``None`` if their response does not show it.
        is_located: Whether it is certain which of its tokens are cells of the image.
        has_places: Whether its tokens, whose order is unknown, have places on the image; ``None`` if it was not tested.
        is_level: Whether detections that are read from one feature level are explained here, see :func:`mark_levels`.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    layout: Layout
    stride: tuple[float, ...]
    reached: bool | None = None
    verdict: str = ""
    chosen: bool = False
    centers: CellCenters | None = None
    in_order: bool | None = None
    is_located: bool = True
    has_places: bool | None = None
    is_level: bool = False


def choose_default_layer(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates with the default layer marked as chosen: the deepest one without a verdict."""
    best = max((i for i, candidate in enumerate(candidates) if not candidate.verdict), default=None)
    decided = [replace(candidate, verdict=candidate.verdict or NOT_DEEPEST) for candidate in candidates]
    if best is not None:
        merit = "depends on the image" if candidates[best].reached is None else "the score's gradient reaches"
        decided[best] = replace(candidates[best], chosen=True, verdict=f"the deepest that {merit}")
    return decided


def mark_levels(candidates: Sequence[Candidate], reached: Sequence[Sequence[bool]]) -> list[Candidate]:
    """Return the candidates of a detector; if its levels form a chain, the layer of each level is marked.

    In a chain, as in SSD, each feature level is computed from the one before. So the only layer that serves all levels
    is the end of the finest one, early in the network, and a large object has deeper layers. A feature pyramid is no
    chain: behind the layer that all its levels are computed from, each has layers of its own.

    Args:
        candidates: From shallow to deep, one of them chosen as the deepest that serves all levels.
        reached: For each level, which of the candidates its gradient reaches.
    """
    deepest = {max((i for i, is_reached in enumerate(of_level) if is_reached), default=-1) for of_level in reached}
    if len(deepest) < 2 or not any(candidates[i].chosen for i in deepest):
        return [*candidates]
    return [
        replace(candidate, is_level=True, verdict=candidate.verdict if candidate.chosen else LEVEL)
        if i in deepest
        else candidate
        for i, candidate in enumerate(candidates)
    ]


def find_projection_sources(
    calls: Sequence[TracedCall], indices: Sequence[Sequence[int]], candidates: Sequence[Candidate]
) -> list[str | None]:
    """Return for each candidate the name of the layer that it is a projection of, ``None`` for other candidates.

    A projection is a matrix times tokens, in a module that itself returns no grid: the score depends on what an
    attention collects from the tokens, e.g. for the class token. The source shows all that the projections share. A
    projection inside a module that returns a grid is a layer like any other.

    Args:
        calls: The forward pass.
        indices: For each candidate, the indices of the calls that returned it.
        candidates: The candidates, with a verdict if they are excluded.
    """
    by_call = {index: candidate for group, candidate in zip(indices, candidates, strict=True) for index in group}
    last = {call.name: index for index, call in enumerate(calls)}
    return [_find_source(calls, group[0], last, by_call) for group in indices]


def _find_source(
    calls: Sequence[TracedCall], index: int, last: Mapping[str, int], by_call: Mapping[int, Candidate]
) -> str | None:
    """Return the name of the layer that the call at ``index`` is a projection of."""
    call, own = calls[index], by_call[index].layout
    parents = (last[name] for name in iterate_parent_names(call.name) if last.get(name, -1) > index)
    without_grid = list(takewhile(lambda parent: parent not in by_call or by_call[parent].verdict != "", parents))
    if not own.has_tokens or not without_grid or not has_matrix(call.module):
        return None
    given = (calls[position].source for position in (index, *without_grid))
    sources = (by_call[source] for source in given if source is not None and source in by_call)
    on_grid = (candidate for candidate in sources if candidate.layout.grid == own.grid)
    return next((candidate.name for candidate in on_grid if not candidate.verdict), None)
