"""Reading the outputs of one forward pass as grids, each in the light of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from torch import nn

from camtool.hooks.observation import EntriesPerImage
from camtool.hooks.tracing import TracedCall
from camtool.layers import candidate_rules as rules
from camtool.layers.channel_axes import find_channel_axes
from camtool.layers.image_tokens_in_text import ImageTokens
from camtool.layers.layouts import Grid, Layout, find_concatenated_level, find_token_layout, is_scaled_down
from camtool.outputs.detections import QueryTokens

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

# Number of first modules with as many tokens that are asked whether the tokens depend on the image: a patch embedding
# and the modules that add positions and a class token.
_ORIGINS = 4

_NO_QUERIES = QueryTokens()


class LayoutReader:
    """Reader of the outputs of one forward pass of one image.

    Args:
        calls: The forward pass, from :func:`camtool.hooks.tracing.trace`.
        size: Size of the image, ``(H, W)``.
        queries: Numbers of tokens that a detector adds to those of the image, one for each object.
        text: The tokens of the image in the text that the model reads, if it reads one.
        disordered: Number of tokens that the model writes into the text in place of the image, if they are no grid in
            the order of its rows, e.g. queries. As many tokens before the text may be these, and are not read either.
        views: Number of inputs of the image's shape, itself included, which the model may join to one batch.
        find_cells: From a layout and the first modules with as many tokens to the layout with the grid at the tokens
            that another image changes; None if they are not as many. It may run the model, and remembers answers.
    """

    def __init__(
        self,
        calls: Sequence[TracedCall],
        size: Sequence[int],
        queries: QueryTokens = _NO_QUERIES,
        text: ImageTokens | None = None,
        disordered: int = 0,
        views: int = 1,
        find_cells: Callable[[Layout, tuple[str, ...]], Layout | None] = lambda *_: None,
    ) -> None:
        self._disordered, self._views, self.find_cells = disordered, views, find_cells
        self._size, self._queries = tuple(size), queries
        self._shapes = {call.name: call.shape for call in calls}
        self._children: dict[str, list[tuple[int, ...]]] = {}
        for call in calls:
            self._children.setdefault(call.name.rpartition(".")[0], []).append(call.shape or ())
        shaped = [(call, call.shape) for call in calls if call.shape]
        # Convolutions have one layout only, so these grids are certain, even if the model resized the image before.
        self._convolved = [shape[2:] for call, shape in shaped if self._is_convolved(call)]
        self._proportions = self._find_proportions()
        self._convolved_frames = [shape[2:] for call, shape in shaped if self._is_convolved_frame(call)]
        self._channels = {id(call): axis for call, axis in zip(calls, find_channel_axes(calls), strict=True)}
        self._text, start = text, _find_start_of_text(calls, text)
        self._before_text, self._in_text = calls[:start], {id(call): call for call in calls[start:]}
        self._calls = calls  # keeps the calls alive, so that no id is used twice

    def _find_proportions(self) -> Grid:
        """Return the size whose proportions grids have: that of the image, or of what the model made of it."""
        # Convolutions that all have other proportions show that the model cut or stretched the image before.
        is_as_input = not self._convolved or any(is_scaled_down(grid, self._size) for grid in self._convolved)
        return self._size if is_as_input else self._convolved[0]

    def find_layouts(self, call: TracedCall) -> list[Layout]:
        """Return the ways to read one image's output as a grid of more than one position, the likely one first."""
        shape, channels = call.shape or (), self._channels.get(id(call))
        enclosing, siblings = self._find_context(call)
        readings = [
            rules.Reading(call, shape, layout, self._size, channels, enclosing, siblings)
            for layout in self._find_possible_layouts(call, shape)
        ]
        kept = [reading for reading in readings if not rules.is_excluded(rules.READING, reading)]
        return [reading.layout for reading in rules.keep_preferred(rules.READING, kept)]

    def find_origins(self, call: TracedCall, layouts: Sequence[Layout]) -> list[str]:
        """Return the first modules with as many tokens as an output with these layouts; nothing if it has no tokens."""
        shape = call.shape or ()
        if self._is_text(call):
            # The features that the model writes into the text: queries that have looked at the image form no grid.
            tokens = math.prod(layouts[0].grid) if layouts else 0
            return find_first_with_tokens(self._before_text, (1, tokens))
        has_tokens = any(layout.has_tokens for layout in layouts)
        return find_first_with_tokens(self._calls, shape[:-1]) if has_tokens else []

    def may_be_latents(self, call: TracedCall, layouts: Sequence[Layout]) -> bool:
        """Check that it is uncertain whether the tokens of an output with these layouts come from the image."""
        return self._is_text(call) or not all(map(self._is_certain, layouts))

    def find_text_layout(self) -> tuple[Layout, list[str]] | None:
        """Return how the image lies in the text, and the first modules of the language model; None without a text."""
        layout = self._find_layout_in_text()
        if layout is None:
            return None
        return layout, find_first_with_tokens([*self._in_text.values()], (1, layout.token_count))

    def is_in_text(self, layout: Layout) -> bool:
        """Check that a layout is that of the image in the text, whose order is known when a forward pass is read."""
        return layout == self._find_layout_in_text()

    def find_layout_of_tokens(self, tokens: int) -> Layout | None:
        """Return the likely layout of a number of tokens over the image; None if they form no grid.

        Some tokens of a detector or segmenter may be queries.
        """
        without = find_token_layout(tokens, self._size, self._convolved)
        without = self._find_among_others(tokens, without) or without
        if not any(self._queries):
            return without
        # An exact sum of feature levels is no accident. A grid, a prefix and the queries may add up to it by accident.
        levels, among = find_concatenated_level(tokens, self._convolved), self._find_layout_with_queries(tokens)
        if levels is not None or without is None or among is None:
            return levels or without or among
        # Fewer tokens beside the grid and the queries are more plausible.
        return among if among.prefix - self._queries.before <= without.prefix else without

    def find_convolution(self, grid: Grid) -> str | None:
        """Return the last convolution that returned a grid of this size; None if there is none."""
        names = (call.name for call in reversed(self._calls) if self._is_convolved(call) and call.shape[2:] == grid)  # type: ignore[index]
        return next(names, None)

    def _find_among_others(self, tokens: int, likely: Layout | None) -> Layout | None:
        """Return the layout of tokens if those that change with the image are a grid that a convolution made.

        The others, at most as many, may be any number of learned tokens, e.g. one for each joint. This is asked if the
        likely grid is none that a convolution made.
        """
        grid = max((g for g in self._convolved if tokens / 2 <= math.prod(g) < tokens), key=math.prod, default=None)
        if grid is None or self._text is not None or (likely is not None and likely.grid in self._convolved):
            return None
        origins = find_first_with_tokens(self._calls, (1, tokens))
        return self.find_cells(Layout("tokens", grid, tokens - math.prod(grid)), tuple(origins))

    def _is_certain(self, layout: Layout) -> bool:
        """Check that the layout is no accident: a convolution made the grid, or no tokens were counted."""
        # The tokens of a text form no grid, even if there are as many as patches.
        is_text = self._text is not None and layout.kind == "tokens" and layout.token_count == self._text.length
        return not is_text and (layout.kind != "tokens" or layout.grid in self._convolved)

    def _is_text(self, call: TracedCall) -> bool:
        """Check that the tokens of a call are those of the text, with those of the image between them."""
        shape = call.shape or ()
        return self._text is not None and id(call) in self._in_text and shape[1:2] == (self._text.length,)

    def _is_read_by_another_text(self, call: TracedCall) -> bool:
        """Check that the tokens are keys or values in the cross-attention of a decoder, which has tokens of its own."""
        parent = self._shapes.get(call.name.rpartition(".")[0]) or ()
        return len(parent) == 3 and self._text is not None and parent[1] != self._text.length

    def _find_layout_in_text(self) -> Layout | None:
        """Return the layout of the image's tokens in the text; None if their grid is not certain."""
        if self._text is None or not self._text.positions:
            return None
        count = len(self._text.positions)
        merged = map(partial(_merge, count), self._convolved)
        grid = self._text.grid or next(filter(None, merged), None)
        if grid is None or math.prod(grid) != count:
            return None
        return Layout.from_positions(grid, self._text.positions, self._text.length)

    def _find_possible_layouts(self, call: TracedCall, shape: tuple[int, ...]) -> list[Layout]:
        """Return the layouts with which a shape is a grid over the image."""
        if self._is_text(call):
            return self._find_layouts_of_text(call, shape)
        if shape and 1 < shape[0] <= self._views:
            views = self._find_layouts_of_views(self._find_possible_layouts(call, (1, *shape[1:])), shape[0])
            if views:
                return views
        return self._find_layouts_of_image(shape)

    def _find_layouts_of_image(self, shape: tuple[int, ...]) -> list[Layout]:
        if len(self._size) == 3 and len(shape) in (3, 4) and shape[0] == self._size[0] > 1:
            return self._find_layouts_of_frames(shape)
        if len(shape) == 3 and len(self._size) > 1:
            token_layout = None if shape[1] == self._disordered else self.find_layout_of_tokens(shape[1])
            return [] if token_layout is None else [token_layout]
        if len(shape) != len(self._size) + 2:
            return []
        either = Layout("channels first", shape[2:]), Layout("channels last", shape[1:-1])
        return [layout for layout in either if self._is_grid(layout.grid)]

    def _find_layouts_of_text(self, call: TracedCall, shape: tuple[int, ...]) -> list[Layout]:
        is_read = len(shape) == 3 and not self._is_read_by_another_text(call)
        in_text = self._find_layout_in_text() if is_read else None
        return [] if in_text is None else [in_text]

    def _find_layouts_of_views(self, plain: Sequence[Layout], count: int) -> list[Layout]:
        """Return layouts of one view as those of each view of a batch, whose entries may be in two orders."""
        orders = EntriesPerImage(count), EntriesPerImage(count, False)
        return [replace(layout, views=each, view=view) for layout in plain for each in orders for view in range(count)]

    def _find_layouts_of_frames(self, shape: tuple[int, ...]) -> list[Layout]:
        """Return the layouts with which the entries ``(T, ...)`` of an output are the frames of one clip."""
        if len(shape) == 4:
            either = Layout("frames", (shape[0], *shape[2:])), Layout("frames channels last", shape[:-1])
            return [layout for layout in either if is_scaled_down(layout.grid[1:], self._size[1:])]
        token_layout = find_token_layout(shape[1], self._size[1:], self._convolved_frames)
        # Only a convolution shows that these entries are frames and their tokens patches.
        if token_layout is None or token_layout.grid not in self._convolved_frames:
            return []
        return [Layout("frame tokens", (shape[0], *token_layout.grid), token_layout.prefix, token_layout.suffix)]

    def _find_layout_with_queries(self, tokens: int) -> Layout | None:
        """Return the layout of tokens if the first or the last of them are queries."""
        before, behind = self._queries
        if not 0 < before + behind < tokens:
            return None
        layout = find_token_layout(tokens - before - behind, self._size, self._convolved)
        return layout and replace(layout, prefix=before + layout.prefix, suffix=behind)

    def _is_grid(self, grid: Grid) -> bool:
        """Check that a grid has the proportions of what convolutions see or, in a volume, is that of one."""
        # Each axis of a volume may have a stride of its own, so its proportions are no evidence.
        return is_scaled_down(grid, self._proportions) or (len(self._size) == 3 and grid in self._convolved)

    def _is_convolved(self, call: TracedCall) -> bool:
        """Check that a convolution returned a grid of more than one position."""
        shape = call.shape
        if not shape or not 1 <= shape[0] <= self._views or len(shape) != len(self._size) + 2:
            return False
        return isinstance(call.module, _CONVOLUTIONS) and min(shape[2:]) > 1

    def _is_convolved_frame(self, call: TracedCall) -> bool:
        """Check that a convolution returned a grid of more than one position for each frame of a clip."""
        shape = call.shape
        if shape is None or len(self._size) != 3 or len(shape) != 4 or shape[0] != self._size[0]:
            return False
        return isinstance(call.module, nn.Conv2d) and min(shape[2:]) > 1 and is_scaled_down(shape[2:], self._size[1:])

    def _find_context(self, call: TracedCall) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Return the shapes of the outputs around a call: of the modules that contain it, and of its siblings."""
        parents = [*iterate_parent_names(call.name)]
        return [self._shapes.get(name) or () for name in parents], self._children[parents[0]] if parents else []


def _find_start_of_text(calls: Sequence[TracedCall], text: ImageTokens | None) -> int:
    """Return the index of the first call behind which the tokens are those of the text, with the image among them."""
    if text is None:
        return len(calls)
    embeddings = [call for call in calls if isinstance(call.module, nn.Embedding)]
    of_text = next((call.name for call in embeddings if (call.shape or ())[1:2] == (text.length,)), None)
    if of_text is None:  # all that have as many tokens may be the text
        return 0
    inside = f"{of_text.rpartition('.')[0]}."
    for index, call in enumerate(calls):
        if call.name.startswith(inside) and not isinstance(call.module, nn.Embedding):
            return index
    return len(calls)


def find_first_with_tokens(calls: Iterable[TracedCall], before_channels: tuple[int, ...]) -> list[str]:
    """Return the first modules whose outputs have this batch size and number of tokens."""
    similar = (call.name for call in calls if call.name and call.shape and call.shape[:-1] == before_channels)
    return list(islice(similar, _ORIGINS))


def _merge(count: int, patches: Grid) -> Grid | None:
    """Return the grid of ``count`` tokens into which a model merges the patches, e.g. 2 x 2 each; None if it cannot."""
    side = math.isqrt(math.prod(patches) // count)
    is_possible = side > 0 and math.prod(patches) == count * side**2 and not any(cells % side for cells in patches)
    return tuple(cells // side for cells in patches) if is_possible else None


def iterate_parent_names(name: str) -> Iterator[str]:
    """Yield the names of the modules that contain a module, the innermost first, without the model itself."""
    while name := name.rpartition(".")[0]:
        yield name
