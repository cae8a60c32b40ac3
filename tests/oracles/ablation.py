"""Oracles of the ablation methods."""

from __future__ import annotations

from tests.oracles.base import Case, Map, oracle, positions, relu, weighted_sum, zeros_like
from tests.oracles.scorecam import softmax


@oracle("ablationcam")
def ablationcam(case: Case) -> Map:
    """Desai and Ramaswamy 2020: ``w_k = (y - y_k) / y`` with map k set to zero; the size of ``y``, not its sign.

    The paper's activations are behind a ReLU; a map whose sum is negative has the negative weight.
    """
    A, y = case.A, case.tail(case.A)[case.index]
    weights = []
    for k in range(len(A)):
        without = [zeros_like(A[i]) if i == k else A[i] for i in range(len(A))]
        total = 0.0
        for i, j in positions(A[k]):
            total += A[k][i][j]
        weights.append((y - case.tail(without)[case.index]) / abs(y) * (-1 if total < 0 else 1))
    return relu(weighted_sum(weights, A))


@oracle("reciprocam")
def reciprocam(case: Case, score: str = "target") -> Map:
    """Byun and Lee 2022: at each position the score of the activations ``A ⊙ M`` with a mask that shows it alone.

    The authors' code takes the softmax of the class scores.
    """
    A, result = case.A, zeros_like(case.A[0])
    for i, j in positions(A[0]):
        alone = [zeros_like(A[k]) for k in range(len(A))]
        for k in range(len(A)):
            alone[k][i][j] = A[k][i][j]
        logits = case.tail(alone)
        result[i][j] = (softmax(logits) if score == "probability" else logits)[case.index]
    return result
