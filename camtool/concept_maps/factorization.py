"""Nonnegative matrix factorization of activations, from several starts."""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.errors import MethodError

# A start ends after this number of rounds, or when a round reduces the error by less than the tolerance.
_MAX_ROUNDS, _LEAST_GAIN = 500, 1e-6

# After the first rounds most starts are dropped, to save time.
_STARTS, _FIRST_ROUNDS = 8, 25

# Starts that continue besides the first one. More than one, because a start that leads early may lose at the end.
_FINALISTS = 2


def factorize(points: Tensor, n: int, *, seed: int = 0) -> tuple[Tensor, Tensor, float]:
    """Return nonnegative ``W`` and ``H`` with ``A ≈ W H``: the best least-squares solution of several starts.

    The problem has many local optima, and no single start finds the best one on all data. ``H`` starts from positions
    of the data: once from those of :func:`_choose_corners`, and several times from random ones. All starts run a few
    rounds. The first one and the best two of the others then run to the end. The same data and seed give the same
    factors.

    Each step sets one column of ``W``, or one row of ``H``, to its optimum while all else is fixed (hierarchical
    alternating least squares, Cichocki et al. 2007). This needs fewer rounds than multiplicative updates, and values
    can leave zero again.

    Args:
        points: ``A``, ``(P, C)``: nonnegative, and not all zero.
        n: Number of concepts.
        seed: Seed of the random starts.

    Returns:
        ``W`` ``(P, n)``, whose columns have the maximum 1; ``H`` ``(n, C)``; and the explained part of ``Σ A²``, from
        0 to 1. The concept with the largest share comes first.

    Raises:
        MethodError: ``n`` is less than 1, or more than P or C.
    """
    most = min(points.shape)
    if not 1 <= n <= most:
        raise MethodError(
            f"n={n} concepts cannot be found in {points.shape[0]} positions of {points.shape[1]} channels; "
            f"pass 1 to {most}."
        )
    # Without scaling, the squares of large activations would overflow.
    peak = points.amax()
    A = points / peak
    attempts = [_Attempt(A, start) for start in _choose_starts(A, n, seed)]
    for attempt in attempts:
        attempt.run(_FIRST_ROUNDS)
    finalists = [attempts[0], *sorted(attempts[1:], key=lambda attempt: attempt.error)[:_FINALISTS]]
    for attempt in finalists:
        attempt.run(_MAX_ROUNDS - _FIRST_ROUNDS)
    best = min(finalists, key=lambda attempt: attempt.error)
    heights = best.W.amax(0)
    W, H = best.W / torch.where(heights > 0, heights, 1), (best.H * heights).T
    order = compute_shares(W, H).argsort(descending=True, stable=True)
    return W[:, order], peak * H[order], min(1.0, 1 - best.error)


def compute_amounts(points: Tensor, vectors: Tensor, *, rounds: int = 30) -> Tensor:
    """Return nonnegative ``W`` ``(P, n)`` with ``A ≈ W H`` for known concepts: nonnegative least squares.

    Args:
        points: ``A``, ``(P, C)``.
        vectors: ``H``, ``(n, C)``.
        rounds: Rounds in which each column of ``W`` is set to its optimum while the others are fixed.
    """
    amounts, products, gram = points.new_zeros(len(points), len(vectors)), points @ vectors.T, vectors @ vectors.T
    for _ in range(rounds):
        _improve_columns(amounts, products, gram)
    return amounts


class _Attempt:
    """Factorization that runs from one start.

    Args:
        points: Matrix to factorize, ``(P, C)``.
        start: Initial channel vectors, ``(n, C)``.

    Attributes:
        W: ``(P, n)``.
        H: ``(C, n)``, transposed.
        error: Part of ``Σ A²`` that is not explained.
    """

    def __init__(self, points: Tensor, start: Tensor) -> None:
        self.W, self.H = points.new_zeros(len(points), len(start)), start.T.clone()
        self.error = 1.0
        self._points, self._total = points, points.square().sum()
        self._has_converged = False

    def run(self, rounds: int) -> None:
        """Improve both factors for some rounds, or until they converge."""
        for _ in range(rounds):
            if self._has_converged:
                return
            _improve_columns(self.W, self._points @ self.H, self.H.T @ self.H)
            products, gram = self._points.T @ self.W, self.W.T @ self.W
            _improve_columns(self.H, products, gram)
            before = self.error
            self.error = float(1 - ((2 * products - self.H @ gram) * self.H).sum() / self._total)
            self._has_converged = before - self.error < _LEAST_GAIN


def _choose_starts(points: Tensor, n: int, seed: int) -> list[Tensor]:
    """Return the initial vectors ``(n, C)`` of each start: corners of the data, then random positions."""
    # A vector of zeros would stay zero.
    active = points[points.any(1)]
    generator = torch.Generator().manual_seed(seed)
    count = _STARTS - 1 if len(active) > n else 0
    orders = [torch.randperm(len(active), generator=generator, device="cpu") for _ in range(count)]
    return [_choose_corners(points, n), *(active[order[:n].to(points.device)] for order in orders)]


def _choose_corners(points: Tensor, n: int) -> Tensor:
    """Return ``n`` points, each the one with the largest part orthogonal to the earlier ones.

    This is the successive projection algorithm (Araújo et al. 2001). If each concept appears alone at one position,
    the algorithm finds these positions.
    """
    rest, chosen = points, []
    for _ in range(n):
        lengths = rest.square().sum(1)
        chosen.append(int(lengths.argmax()))
        direction = torch.nn.functional.normalize(rest[chosen[-1]], dim=0)
        rest = rest - torch.outer(rest @ direction, direction)
    return points[chosen]


def _improve_columns(factor: Tensor, products: Tensor, gram: Tensor) -> None:
    """Set each column of a factor ``(L, n)`` in turn, in place, to its optimum for the other columns."""
    for k in range(len(gram)):
        if gram[k, k] > 0:
            factor[:, k] += (products[:, k] - factor @ gram[:, k]) / gram[k, k]
            factor[:, k].clamp_(min=0)


def compute_shares(amounts: Tensor, vectors: Tensor) -> Tensor:
    """Return the part of the sum of ``W H`` that each concept has, ``(n,)``. The parts add up to 1."""
    tiny = torch.finfo(vectors.dtype).tiny
    masses = amounts.sum(0) * (vectors / vectors.amax().clamp(min=tiny)).sum(1)
    return masses / masses.sum().clamp(min=tiny)
