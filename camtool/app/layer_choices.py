"""The layers of the slider: few enough to be told apart, from early to deep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from camtool.layers.candidates import LEVEL, NOT_DEEPEST, SHALLOW, Candidate

__all__ = ["LayerChoice", "choose_layers"]

_MAX_LAYERS = 24
"""Most stops of the slider. With more, its handle jumps over some on a phone."""


@dataclass(frozen=True)
class LayerChoice:
    """One stop of the slider.

    Attributes:
        name: The dotted name of the layer.
        grid: The size of its map, e.g. ``(14, 14)``.
        is_default: Whether camtool chooses it if no layer is named.
    """

    name: str
    grid: tuple[int, ...]
    is_default: bool

    def describe(self) -> str:
        """Return the name and the grid, e.g. ``"layer4, 7 x 7"``."""
        return f"{self.name}, {' x '.join(map(str, self.grid))}"


def choose_layers(candidates: Sequence[Candidate]) -> tuple[LayerChoice, ...]:
    """Return the layers that carry a map, from early to deep.

    Where there are many, one stays of each module: the last inside it. Modules are as small as the number allows.
    """
    good = [each for each in candidates if each.chosen or each.verdict in (LEVEL, NOT_DEEPEST, SHALLOW, "")]
    deepest = max((each.name.count(".") + 1 for each in good), default=1)
    options = [_keep_last_of_modules(good, depth) for depth in range(deepest, 0, -1)]
    kept = next((option for option in options if len(option) <= _MAX_LAYERS), options[-1] if options else [])
    return tuple(LayerChoice(each.name, tuple(each.layout.grid), each.chosen) for each in kept)


def _keep_last_of_modules(candidates: Sequence[Candidate], depth: int) -> list[Candidate]:
    """Return the last candidate in each module whose name has so many parts, and the chosen one."""
    last = {tuple(each.name.split(".")[:depth]): each for each in candidates}
    kept = {each.name for each in last.values()}
    return [each for each in candidates if each.chosen or each.name in kept]
