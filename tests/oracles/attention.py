"""Oracles of the attention methods, on nested lists."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tests.oracles.base import Map, oracle
from tests.oracles.scorecam import softmax

Heads: TypeAlias = list[Map]
"""``heads[h][i][j]``: for each head a table, of queries and keys or of tokens and channels."""


@dataclass(frozen=True)
class Transformer:
    """One image, one class, one transformer.

    Attributes:
        A: Each layer's attention.
        Z: Each layer's logits.
        g: The gradient of the class' score towards each layer's attention.
        held: The same where what every later attention adds to its tokens is a constant.
        early: For each block the gradient, towards its attention, of the score that its tokens would get.
        q: The last layer's queries; k, v: keys and values.
        w: The gradient of the score towards the last layer's output.
        read: For each layer the queries that count.
        prefix: How many tokens stand before the grid's.
        grid: Rows and columns.
        entry: The tokens that enter the last block's attention.
        masked: The logits where those tokens are others.
        index: The class.
    """

    A: list[Heads]
    Z: list[Heads]
    g: list[Heads]
    held: list[Heads]
    early: list[Heads]
    q: Heads
    k: Heads
    v: Heads
    w: Heads
    read: list[list[int]]
    prefix: int
    grid: tuple[int, int]
    entry: Map
    masked: Callable[[Map], list[float]]
    index: int


@oracle("rollout")
def rollout(case: Transformer, fusion: str = "mean", discard: float = 0.0) -> Map:
    """Abnar and Zuidema 2020, section 3: ``Ã(l) = A(l) Ã(l-1)`` with ``A = 0.5 W + 0.5 I``; here row by row."""
    combine = {"mean": lambda several: sum(several) / len(several), "max": max, "min": min}[fusion]
    rolled: Map = []
    for heads in case.A:
        queries, keys = len(heads[0]), len(heads[0][0])
        fused = [[combine([head[i][j] for head in heads]) for j in range(keys)] for i in range(queries)]
        weakest = sorted(value for row in fused for value in row)[: int(discard * queries * keys)]
        for i in range(queries):
            for j in range(keys):
                if weakest and fused[i][j] <= weakest[-1]:
                    fused[i][j] = 0.0
                if queries == keys and i == j:
                    fused[i][j] += 1.0
        mixed = [[value / sum(row) for value in row] for row in fused]
        rolled = product(mixed, rolled) if rolled else mixed
    return on_grid(case, mean_of_rows(rolled, case.read[-1]))


@oracle("chefer")
def chefer(case: Transformer) -> Map:
    """Chefer et al. 2021, eq. 5: ``Ā = E_h((∇A ⊙ A)⁺)``; eq. 6: ``R = R + Ā R``."""
    tokens = len(case.A[0][0][0])
    R = [[float(i == j) for j in range(tokens)] for i in range(tokens)]
    for A, g in zip(case.A, case.g, strict=True):
        queries = len(A[0])
        cam = [[0.0] * tokens for _ in range(queries)]
        for h in range(len(A)):
            for i in range(queries):
                for j in range(tokens):
                    cam[i][j] += max(g[h][i][j] * A[h][i][j], 0.0) / len(A)
        added = product(cam, R)
        R = added if queries != tokens else [[R[i][j] + added[i][j] for j in range(tokens)] for i in range(tokens)]
    return on_grid(case, mean_of_rows(R, case.read[-1]))


@oracle("agcam")
def agcam(case: Transformer) -> Map:
    """Leem and Seo 2024: ``Σ_k Σ_h F_h^k ⊙ relu(α_h^k)`` with ``F`` the logits' sigmoid, in the row that is read.

    ``α`` is the gradient that passes by skip connections and MLPs, as if no later attention depended on its input
    (section 3.2: the derivative of a block's output towards its input is taken as 1).
    """
    total = [0.0] * len(case.A[0][0][0])
    for Z, g, read in zip(case.Z, case.held, case.read, strict=True):
        for h in range(len(Z)):
            for i in read:
                for j in range(len(total)):
                    total[j] += max(g[h][i][j], 0.0) / (1 + math.exp(-Z[h][i][j])) / len(read)
    return on_grid(case, total)


@oracle("legrad")
def legrad(case: Transformer, layers: int | None = None) -> Map:
    """Bousselham et al. 2024: the mean over layers, heads and queries of ``(∂s^l / ∂A^l)⁺``."""
    total = [0.0] * len(case.early[0][0][0])
    count = layers or len(case.early)
    for l in range(len(case.early) - count, len(case.early)):  # noqa: E741
        for head in case.early[l]:
            for row in head:
                for j in range(len(row)):
                    total[j] += max(row[j], 0.0) / len(head) / len(case.early[l]) / count
    return on_grid(case, total)


@oracle("gradeclip")
def gradeclip(case: Transformer) -> Map:
    """Zhao et al. 2025: ``relu(Σ_c w_c λ_i v_ic)`` with ``λ`` the cosines of query and keys, scaled into [0, 1]."""
    q, k, v, w = (joined(each) for each in (case.q, case.k, case.v, case.w))
    total = [0.0] * len(k)
    for t in range(len(q)):
        alike = [cosine(q[t], key) for key in k]
        low, high = min(alike[case.prefix :]), max(alike[case.prefix :])
        for i in range(case.prefix, len(k)):
            strength = sum(w[t][c] * v[i][c] for c in range(len(v[i])))
            total[i] += (alike[i] - low) / (high - low) * strength
    return on_grid(case, [max(value, 0.0) for value in total])


@oracle("vitreciprocam")
def vitreciprocam(case: Transformer, gaussian: bool = True, score: str = "target") -> Map:
    """Byun and Lee 2023: the score with a 3 x 3 Gaussian window on the tokens, the class token kept."""
    (rows, columns), result = case.grid, [[0.0] * case.grid[1] for _ in range(case.grid[0])]
    kernel = {0: 1 / 2, 1: 1 / 4} if gaussian else {0: 1.0}
    for i in range(rows):
        for j in range(columns):
            kept = [list(token) for token in case.entry[: case.prefix]]
            for y in range(rows):
                for x in range(columns):
                    weight = kernel.get(abs(y - i), 0.0) * kernel.get(abs(x - j), 0.0)
                    kept.append([weight * number for number in case.entry[case.prefix + y * columns + x]])
            logits = case.masked(kept)
            result[i][j] = (softmax(logits) if score == "probability" else logits)[case.index]
    return result


def product(left: Map, right: Map) -> Map:
    return [[sum(row[m] * right[m][j] for m in range(len(right))) for j in range(len(right[0]))] for row in left]


def mean_of_rows(table: Map, rows: list[int]) -> list[float]:
    return [sum(table[i][j] for i in rows) / len(rows) for j in range(len(table[0]))]


def on_grid(case: Transformer, values: list[float]) -> Map:
    rows, columns = case.grid
    return [[values[case.prefix + i * columns + j] for j in range(columns)] for i in range(rows)]


def joined(heads: Heads) -> Map:
    return [[number for head in heads for number in head[i]] for i in range(len(heads[0]))]


def cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / math.sqrt(sum(a * a for a in one)) / math.sqrt(sum(b * b for b in other))
