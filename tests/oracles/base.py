"""Cases for oracles, the registry of oracles, and arithmetic on nested lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

Map: TypeAlias = list[list[float]]
"""``map[i][j]``, a value at each position."""

Maps: TypeAlias = list[Map]
"""``maps[k][i][j]``, a map for each channel."""


@dataclass(frozen=True)
class Case:
    """One image, one class, one layer of one model.

    Attributes:
        A: The layer's activations.
        g: The gradient of the class' score towards them.
        w: The class' row of the last linear layer.
        x: The picture, as the model gets it.
        index: The class.
        tail: The logits that follow from other activations of the layer.
        model: The logits of another picture.
        observe: Another picture's activations and gradients.
        class_gradient: The gradient of any class' score.
        input_gradient: The gradient of the class' score towards another picture.
        first: The center of the layer's first cell in the picture, in cells: 0.5 for a grid that is stretched over it.
    """

    A: Maps
    g: Maps
    w: list[float]
    x: Maps
    index: int
    tail: Callable[[Maps], list[float]]
    model: Callable[[Maps], list[float]]
    observe: Callable[[Maps], tuple[Maps, Maps]]
    class_gradient: Callable[[int], Maps]
    input_gradient: Callable[[Maps], Maps]
    first: float = 0.5


def faded(values: Map, cells: tuple[int, int], first: float) -> Map:
    """Take off what fades beyond the outermost centers of ``cells``, along both axes.

    A cell covers half a stride beyond its center: it is constant up to an edge as near. Toward an edge further away, by
    ``space``, it falls to 0 at ``end``, which is that edge or a stride away, and begins to fall a stride minus ``end``
    before.
    """
    shares = []
    for many, few in ((len(values), cells[0]), (len(values[0]), cells[1])):
        along = []
        for place in range(many):
            at, share = (place + 0.5) * few / many - first, 1.0
            for beyond, space in ((-at, first), (at - (few - 1), 1 - first)):
                end = min(space, 1.0)
                if end > 0.5 and beyond > 1 - end:
                    share *= max(end - beyond, 0) / (end - (1 - end))
            along.append(share)
        shares.append(along)
    return [[values[i][j] * shares[0][i] * shares[1][j] for j in range(len(values[0]))] for i in range(len(values))]


Oracle: TypeAlias = Callable[..., Map]
"""From a case, and for some from options, to a map."""

ORACLES: dict[str, Oracle] = {}


def oracle(name: str) -> Callable[[Oracle], Oracle]:
    def pair(function: Oracle) -> Oracle:
        assert name not in ORACLES, f"two oracles for {name!r}"
        ORACLES[name] = function
        return function

    return pair


def weighted_sum(weights: list[float], A: Maps) -> Map:
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            result[i][j] += weights[k] * A[k][i][j]
    return result


def relu(values: Map) -> Map:
    return [[max(value, 0.0) for value in row] for row in values]


def positions(values: Map) -> Iterator[tuple[int, int]]:
    for i in range(len(values)):
        for j in range(len(values[i])):
            yield i, j


def zeros_like(values: Map) -> Map:
    return [[0.0 for _ in row] for row in values]
