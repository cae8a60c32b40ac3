"""Reading the outputs of one forward pass as grids, each in the light of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import nn

from camtool.hooks.tracing import TracedCall
from camtool.layers import rules
from camtool.layers.channel_axes import find_channel_axes
from camtool.layers.layouts import Grid, Layout, find_token_layout, is_scaled_down

__all__ = ["LayoutReader", "iterate_parent_names"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LayoutReader:
    """Reader of the outputs of one forward pass of one image.

    Args:
        calls: The forward pass, from :func:`camtool.hooks.trace`.
        size: Size of the image, ``(H, W)``.
        queries: Number of tokens that a detector appends to those of the image, one for each object.
    """

    def __init__(self, calls: Sequence[TracedCall], size: Sequence[int], queries: int = 0) -> None:
        self._size, self._queries = tuple(size), queries
        self._shapes = {call.name: call.shape for call in calls}
        self._children: dict[str, list[tuple[int, ...]]] = {}
        for call in calls:
            self._children.setdefault(call.name.rpartition(".")[0], []).append(call.shape or ())
        # Convolutions have one layout only, so these grids are certain, even if the model resized the image before.
        self._convolved = [call.shape[2:] for call in calls if call.shape and self._is_convolved(call)]
        self._channels = {id(call): axis for call, axis in zip(calls, find_channel_axes(calls), strict=True)}
        self._calls = calls  # keeps the calls alive, so that no id is used twice

    def find_layouts(self, call: TracedCall) -> list[Layout]:
        """Return the ways to read one image's output as a grid of more than one position, the likely one first."""
        shape, channels = call.shape or (), self._channels.get(id(call))
        enclosing, siblings = self._find_context(call)
        readings = [
            rules.Reading(call, shape, layout, self._size, channels, enclosing, siblings)
            for layout in self._find_possible_layouts(shape)
        ]
        kept = [reading for reading in readings if not rules.is_excluded(rules.READING, reading)]
        return [reading.layout for reading in rules.keep_preferred(rules.READING, kept)]

    def is_certain(self, layout: Layout) -> bool:
        """Check that a convolution made the grid, or that no prefix makes an accidental grid possible."""
        return not layout.prefix or layout.grid in self._convolved

    def _find_possible_layouts(self, shape: tuple[int, ...]) -> list[Layout]:
        """Return the layouts with which a shape is a grid over the image."""
        if len(shape) == 3 and len(self._size) > 1:
            # The shorter prefix is more plausible, whether or not the last tokens are queries.
            without_queries = find_token_layout(shape[1], self._size, self._convolved)
            both = filter(None, (self._find_layout_with_queries(shape[1]), without_queries))
            return sorted(both, key=lambda layout: layout.prefix)[:1]
        if len(self._size) == 3 and len(shape) == 4 and shape[0] == self._size[0] > 1:
            is_grid = is_scaled_down(shape[2:], self._size[1:])
            return [Layout("frames", (shape[0], *shape[2:]))] if is_grid else []
        if len(shape) != len(self._size) + 2:
            return []
        either = Layout("channels first", shape[2:]), Layout("channels last", shape[1:-1])
        return [layout for layout in either if self._is_grid(layout.grid)]

    def _find_layout_with_queries(self, tokens: int) -> Layout | None:
        """Return the layout of tokens if the last of them are queries."""
        if not 0 < self._queries < tokens:
            return None
        layout = find_token_layout(tokens - self._queries, self._size, self._convolved)
        return layout and replace(layout, suffix=self._queries)

    def _is_grid(self, grid: Grid) -> bool:
        """Check that a grid has the proportions of the image or, in a volume, is that of a convolution."""
        # Each axis of a volume may have a stride of its own, so its proportions are no evidence.
        return is_scaled_down(grid, self._size) or (len(self._size) == 3 and grid in self._convolved)

    def _is_convolved(self, call: TracedCall) -> bool:
        """Check that a convolution returned a grid of more than one position."""
        shape = call.shape
        if shape is None or shape[:1] != (1,) or len(shape) != len(self._size) + 2:
            return False
        return isinstance(call.module, _CONVOLUTIONS) and min(shape[2:]) > 1

    def _find_context(self, call: TracedCall) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Return the shapes of the outputs around a call: of the modules that contain it, and of its siblings."""
        parents = [*iterate_parent_names(call.name)]
        return [self._shapes.get(name) or () for name in parents], self._children[parents[0]] if parents else []


def iterate_parent_names(name: str) -> Iterator[str]:
    """Yield the names of the modules that contain a module, the innermost first, without the model itself."""
    while name := name.rpartition(".")[0]:
        yield name
