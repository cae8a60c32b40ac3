"""Projections inside attention: queries, keys and values, and the layer that they are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from torch import nn

from camtool.hooks.tracing import TracedCall
from camtool.layers.candidates import Candidate
from camtool.layers.layout_reader import iterate_parent_names

__all__ = ["find_projection_sources", "has_matrix"]


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
    by_call = {index: each for group, each in zip(indices, candidates, strict=True) for index in group}
    last = {call.name: index for index, call in enumerate(calls)}
    return [_find_source(calls, group[0], last, by_call) for group in indices]


def _find_source(
    calls: Sequence[TracedCall], index: int, last: Mapping[str, int], by_call: Mapping[int, Candidate]
) -> str | None:
    """Return the name of the layer that the call at ``index`` is a projection of."""
    call, own = calls[index], by_call[index].layout
    parents = (last[name] for name in iterate_parent_names(call.name) if last.get(name, -1) > index)
    without_grid = list(takewhile(lambda each: each not in by_call or by_call[each].verdict != "", parents))
    if not own.has_tokens or not without_grid or not has_matrix(call.module):
        return None
    given = (calls[each].source for each in (index, *without_grid))
    sources = (by_call[each] for each in given if each is not None and each in by_call)
    return next((each.name for each in sources if each.layout.grid == own.grid and not each.verdict), None)


def has_matrix(module: nn.Module) -> bool:
    """Check that a module has a parameter of its own with two or more axes, as linear layers and convolutions have."""
    return any(parameter.ndim > 1 for parameter in module.parameters(recurse=False))
