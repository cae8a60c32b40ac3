"""Small networks whose weights are set by hand, so that what the score depends on is known exactly.

All see squares of pure color on black, :data:`SIDE` pixels wide, on a grid of 8 x 8 cells. Nothing is trained and
nothing is random. Where a tie or a zero matters, numbers are sums of powers of two, which are exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from math import factorial
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

SIDE, GRID = 64, 8
"""Side of the input in pixels, and of the grid in cells."""

CELL = SIDE // GRID
TARGET = 1
"""The class that is explained; the score of class 0 is always -1, so that two scores are no probabilities."""

_RED, _GREEN, _BLUE, _YELLOW = (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)
_DIM_RED, _DIM_GREEN, _DIM_BLUE = (0.5, 0, 0), (0, 0.5, 0), (0, 0, 0.5)
_AREA = 4
"""Cells of a square."""

Masks: TypeAlias = "NDArray[np.bool_]"
Role: TypeAlias = Literal["evidence", "counter-evidence", "none"]
Color: TypeAlias = "tuple[float, float, float]"


@dataclass(frozen=True)
class Square:
    """A square of 2 x 2 cells, or a wider rectangle.

    Attributes:
        color: Its color in the input, red, green and blue in [0, 1].
        corner: Row and column of its first cell.
        role: What it means to the score. ``"evidence"``: the score is lower without it, or would be if the spare
            evidence were gone, too. ``"counter-evidence"``: the score is higher without it. ``"none"``: the score is
            the same with and without it, for all subsets of the others.
        other: Its color when it is removed.
        width: Its width in cells.
    """

    color: Color
    corner: tuple[int, int]
    role: Role
    other: Color = (0, 0, 0)
    width: int = 2

    @property
    def mask(self) -> Masks:
        """The pixels of the square, ``(SIDE, SIDE)``."""
        mask = np.zeros((SIDE, SIDE), bool)
        top, left = (CELL * at for at in self.corner)
        mask[top : top + 2 * CELL, left : left + self.width * CELL] = True
        return mask


@dataclass(frozen=True)
class WiredNetwork:
    """A network with one input and the known answer.

    Attributes:
        name: A word.
        question: What the network asks, one sentence.
        build: Return a new copy of the network.
        squares: All that is in the input.
        needs_both: Whether every square of the evidence must be there; False if one alone is enough.
        layer: Where libraries that do not choose a layer are told to look.
        elsewhere: A color that does not count in the rest of the image; None if every color there would.
    """

    name: str
    question: str
    build: Callable[[], nn.Module]
    squares: tuple[Square, ...]
    needs_both: bool = False
    layer: str = "features"
    elsewhere: Color | None = _BLUE

    @property
    def inputs(self) -> Tensor:
        """The image, ``(1, 3, SIDE, SIDE)`` float32."""
        return self.draw(frozenset(range(len(self.squares))))

    @property
    def evidence(self) -> list[Masks]:
        """The mask of each square of the evidence."""
        return [square.mask for square in self.squares if square.role == "evidence"]

    @property
    def distractors(self) -> list[Masks]:
        """The mask of each square that is no evidence."""
        return [square.mask for square in self.squares if square.role != "evidence"]

    def draw(self, kept: frozenset[int], *, rest: Color = (0, 0, 0)) -> Tensor:
        """Return the image in which the squares that are not kept have their other color."""
        image = torch.tensor(rest, dtype=torch.float32).reshape(1, 3, 1, 1).repeat(1, 1, SIDE, SIDE)
        for number, square in enumerate(self.squares):
            color = torch.tensor(square.color if number in kept else square.other, dtype=torch.float32)
            image[0, :, torch.from_numpy(square.mask)] = color[:, None]
        return image

    @torch.inference_mode()
    def play(self) -> dict[frozenset[int], float]:
        """Return the score for every subset of squares that are kept, by forward passes."""
        model, players = self.build(), range(len(self.squares))
        subsets = chain.from_iterable(combinations(players, size) for size in range(len(players) + 1))
        return {kept: float(model(self.draw(kept))[0, TARGET]) for kept in map(frozenset, subsets)}


def compute_shapley(scores: Mapping[frozenset[int], float], player: int) -> float:
    """Return a player's mean contribution over all orders in which players join (Shapley 1953)."""
    others = max(map(len, scores)) - 1
    return sum(
        factorial(len(kept)) * factorial(others - len(kept)) / factorial(others + 1) * (scores[kept | {player}] - score)
        for kept, score in scores.items()
        if player not in kept
    )


def find_role(scores: Mapping[frozenset[int], float], player: int, tolerance: float = 1e-5) -> Role:
    """Return what interventions say of a player: by its removal alone, and where that changes nothing, by Shapley."""
    gains = [scores[kept | {player}] - score for kept, score in scores.items() if player not in kept]
    if max(map(abs, gains)) <= tolerance:
        return "none"
    everything = max(scores, key=len)
    alone = scores[everything] - scores[everything - {player}]
    decisive = alone if abs(alone) > tolerance else compute_shapley(scores, player)
    return "evidence" if decisive > 0 else "counter-evidence"


# ---------------------------------------------------------------------------------------------------- convolutions


def _make_conv(weights: Tensor, size: int = 1, bias: list[float] | None = None) -> nn.Conv2d:
    """Return a convolution of windows that tile the image: the mean of each window, mixed by weights ``(out, in)``."""
    layer = nn.Conv2d(weights.shape[1], len(weights), size, size)
    layer.weight.data = (weights / size**2)[..., None, None].repeat(1, 1, size, size)
    layer.bias = nn.Parameter(torch.tensor(bias or [0.0] * len(weights)))
    return layer


def _make_linear(rows: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows))
    layer.weight.data, layer.bias.data = torch.tensor(rows), torch.tensor(bias)
    return layer


def _make_head(weights: list[float], bias: float = 0) -> nn.Linear:
    """Return the last layer: the score of class 1, and -1 for class 0."""
    return _make_linear([[0.0] * len(weights), weights], [-1.0, bias])


def _make_features(*more: nn.Module) -> nn.Sequential:
    """Return the first layers: channel ``k`` of a cell is the mean of color ``k`` in the cell."""
    shallow, deep = _make_conv(torch.eye(3), 4), _make_conv(torch.eye(3), 2)
    return nn.Sequential(shallow, nn.ReLU(), deep, nn.ReLU(), *more)


class PooledNetwork(nn.Module):
    """Features, pooling over all cells, and a head."""

    def __init__(self, head: nn.Module, *more: nn.Module, pool: nn.Module | None = None) -> None:
        super().__init__()
        self.features = _make_features(*more)
        self.pool = pool or nn.AdaptiveAvgPool2d(1)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, ``(N, 2)``."""
        scores: Tensor = self.head(self.pool(self.features(x)).flatten(1))
        return scores


def _sum_colors(red: float, green: float, blue: float, *more: nn.Module, copies: int = 1) -> nn.Module:
    """Return a network whose score is a weighted sum; a weight of 1 adds 1 for a bright square."""
    weights = [GRID**2 / _AREA * weight / copies for weight in (red, green, blue) for _ in range(copies)]
    return PooledNetwork(_make_head(weights), *more)


def _combine(weights: tuple[float, float], bias: float = 0) -> nn.Module:
    """Return ``bias + weights · (relu(r + g), relu(r + g - 1))``, where ``r`` and ``g`` are 1 for the squares below."""
    both = [2 * GRID**2 / _AREA, GRID**2 / _AREA, 0.0]
    hidden = _make_linear([both, both], [0.0, -1.0])
    return PooledNetwork(nn.Sequential(hidden, nn.ReLU(), _make_head([*weights], bias)))


def _saturate() -> nn.Module:
    """Return ``min(1, 3 r) = relu(3 r) - relu(3 r - 1)``, where ``r`` is 1 for the square below."""
    thrice = [3 * 2 * GRID**2 / _AREA, 0.0, 0.0]
    hidden = _make_linear([thrice, thrice], [0.0, -1.0])
    return PooledNetwork(nn.Sequential(hidden, nn.ReLU(), _make_head([1.0, -1.0])))


def _read_place(channel: int, weight: float, bias: float, *more: nn.Module) -> nn.Module:
    """Return a network that reads the mean of one channel in the four cells of one place, and nothing else."""
    channels, (top, left) = 4 if more else 3, _PLACE
    weights = torch.zeros(channels, GRID, GRID)
    weights[channel, top : top + 2, left : left + 2] = weight / _AREA
    return PooledNetwork(_make_head(weights.flatten().tolist(), bias), *more, pool=nn.Identity())


def _detect_emptiness() -> nn.Module:
    """Return a network with a channel ``relu(1 - red - green - blue)``, which its score reads in one place."""
    mix = torch.cat([torch.eye(3), -torch.ones(1, 3)])
    return _read_place(3, 1.0, 0.0, _make_conv(mix, bias=[0.0, 0.0, 0.0, 1.0]), nn.ReLU())


def _shift() -> nn.Module:
    """Return a network whose last convolution, of four filters for each color, moves what it sees four cells right."""
    layer = nn.Conv2d(3, 12, (1, 9), padding=(0, 4), bias=False)
    layer.weight.data = torch.zeros(12, 3, 1, 9)
    layer.weight.data[range(12), [color for color in range(3) for _ in range(4)], 0, 0] = 1
    return _sum_colors(2, 0, 0, layer, nn.ReLU(), copies=4)


class BypassNetwork(nn.Module):
    """Green is read from the last layer, and red from the first one, past the last. Colors count from a quarter on."""

    def __init__(self) -> None:
        super().__init__()
        self.shallow = nn.Sequential(_make_conv(torch.eye(3), 4, bias=[-0.25] * 3), nn.ReLU())
        self.features = nn.Sequential(_make_conv(torch.diag(torch.tensor([0.0, 1, 1])), 2), nn.ReLU())
        self.head = _make_head([0.0, 32.0, 0.0, 64.0, 0.0, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, ``(N, 2)``."""
        shallow = self.shallow(x)
        scores: Tensor = self.head(torch.cat([self.features(shallow).mean((2, 3)), shallow.mean((2, 3))], 1))
        return scores


# ------------------------------------------------------------------------------------------------------- attention

_CLASS_TOKEN, _ANSWER, _WIDTH = 3, 4, 8
"""Dimensions of a token: 0 to 2 hold the color, one marks the class token, one holds the answer."""


class Block(nn.Module):
    """Attention with two heads and a skip connection."""

    def __init__(self, keys: tuple[int | None, int | None], values: tuple[Color, Color]) -> None:
        """Set the weights.

        Args:
            keys: The color that the class token looks for in each head; None to look everywhere.
            values: What each head adds to the answer for each color.
        """
        super().__init__()
        self.attention = nn.MultiheadAttention(_WIDTH, 2, batch_first=True)
        weights = torch.zeros(3, _WIDTH, _WIDTH)
        for head, (key, value) in enumerate(zip(keys, values, strict=True)):
            first = head * _WIDTH // 2
            if key is not None:
                weights[0, first, _CLASS_TOKEN] = weights[1, first, key] = 8
            weights[2, first, :3] = torch.tensor(value)
        self.attention.in_proj_weight.data = weights.flatten(0, 1)
        self.attention.in_proj_bias.data.zero_()
        self.attention.out_proj.weight.data = torch.zeros(_WIDTH, _WIDTH)
        self.attention.out_proj.weight.data[_ANSWER, :: _WIDTH // 2] = 1
        self.attention.out_proj.bias.data.zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the tokens with what they read, ``(N, T, D)``."""
        mixed: Tensor = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return mixed


class AttentionNetwork(nn.Module):
    """A vision transformer of two blocks, the first of which writes nothing; the head reads the class token."""

    def __init__(self, keys: tuple[int | None, int | None], values: tuple[Color, Color]) -> None:
        super().__init__()
        self.patch_embed = _make_conv(torch.eye(_WIDTH)[:, :3], CELL)
        self.class_token = nn.Parameter(torch.eye(_WIDTH)[_CLASS_TOKEN][None, None])
        nothing: Color = (0, 0, 0)
        self.blocks = nn.Sequential(Block((None, None), (nothing, nothing)), Block(keys, values))
        self.norm = nn.Identity()
        self.head = _make_head([float(place == _ANSWER) for place in range(_WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, ``(N, 2)``."""
        patches = self.patch_embed(x).flatten(2).mT
        tokens = self.norm(self.blocks(torch.cat([self.class_token.expand(len(x), -1, -1), patches], 1)))
        scores: Tensor = self.head(tokens[:, 0])
        return scores


# --------------------------------------------------------------------------------------------------------- the list

_PLACE, _SECOND, _THIRD = (1, 1), (5, 5), (1, 5)
"""Corners of squares, in cells."""

# What counts is dim and what does not is bright, and the two parts differ in size: equal ones would tie, and rounding
# would decide which of them the first eigenvector shows.
_EVIDENCE = Square(_DIM_RED, _PLACE, "evidence")
_INERT = Square(_BLUE, _THIRD, "none")
_PARTS = (_EVIDENCE, Square(_DIM_GREEN, (5, 3), "evidence", width=4), _INERT)


@cache
def list_networks() -> tuple[WiredNetwork, ...]:
    """Return all networks, the simple ones first."""
    empty = Square((0, 0, 0), _PLACE, "evidence", other=_RED)
    green = Square(_GREEN, _SECOND, "none")
    blue = Square(_BLUE, _THIRD, "counter-evidence")
    return (
        WiredNetwork(
            "copy", "How much red is there? Blue is brighter.", lambda: _sum_colors(2, 0, 0), (_EVIDENCE, _INERT)
        ),
        WiredNetwork(
            "negative",
            "Red speaks for the class, blue against it.",
            lambda: _sum_colors(6, 0, -1),
            (_EVIDENCE, blue),
            elsewhere=_GREEN,
        ),
        WiredNetwork(
            "cancel",
            "Blue counts. Yellow is red for the class and green against it, in sum nothing.",
            lambda: _sum_colors(4, -4, 2),
            (Square(_DIM_BLUE, _PLACE, "evidence"), Square(_YELLOW, _SECOND, "none")),
            elsewhere=_YELLOW,
        ),
        WiredNetwork("and", "Are both red and green there?", lambda: _combine((0, 1)), _PARTS, needs_both=True),
        WiredNetwork("or", "Is red or green there? Each alone is enough.", lambda: _combine((1, -1)), _PARTS),
        WiredNetwork("xor", "Are both there, or neither?", lambda: _combine((-1, 2), bias=1), _PARTS, needs_both=True),
        WiredNetwork(
            "maximum",
            "How red is the reddest cell? Two squares are equally red.",
            lambda: PooledNetwork(_make_head([2.0, 0.0, 0.0]), pool=nn.AdaptiveMaxPool2d(1)),
            (_EVIDENCE, Square(_DIM_RED, _SECOND, "evidence"), _INERT),
        ),
        WiredNetwork("saturation", "Is there a third of a red square?", _saturate, (_EVIDENCE, _INERT)),
        WiredNetwork(
            "place",
            "Is the upper left place red? Red elsewhere does not count.",
            lambda: _read_place(0, 2.0, 0.0),
            (_EVIDENCE, Square(_RED, _SECOND, "none")),
            elsewhere=_RED,
        ),
        WiredNetwork(
            "absence",
            "Is the upper left place free of red? Red there inhibits the score.",
            lambda: _read_place(0, -1.0, 1.0),
            (empty, green),
            elsewhere=_RED,
        ),
        WiredNetwork(
            "emptiness",
            "Is the upper left place free of any color? A channel detects empty cells.",
            _detect_emptiness,
            (empty, green),
            elsewhere=_RED,
        ),
        WiredNetwork(
            "bypass",
            "How much red and green is there? Red reaches the head past the last layer.",
            BypassNetwork,
            _PARTS,
            needs_both=True,
        ),
        WiredNetwork(
            "norm",
            "How far does red stand out? Blue raises the deviation by which it is divided.",
            lambda: _sum_colors(1, 0, 0, nn.GroupNorm(1, 3), nn.ReLU()),
            (_EVIDENCE, blue),
            elsewhere=None,
        ),
        WiredNetwork(
            "shift",
            "How much red is there? A convolution moves it onto the blue square.",
            _shift,
            (_EVIDENCE, _INERT),
        ),
        WiredNetwork(
            "attention",
            "What color has the token that the class token attends to and copies? Red.",
            lambda: AttentionNetwork((0, None), ((2, 0, 0), (0, 0, 0))),
            (_EVIDENCE, green),
            layer="patch_embed",
        ),
        WiredNetwork(
            "idle",
            "One head attends to green and copies nothing; one looks everywhere and copies red.",
            lambda: AttentionNetwork((1, None), ((0, 0, 0), (32, 0, 0))),
            (_EVIDENCE, green),
            layer="patch_embed",
        ),
    )
