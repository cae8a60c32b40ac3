"""The methods that mask the picture by the activations: by each channel in turn, or by the best sum of them."""

from __future__ import annotations

from tests.oracles.base import Case, Map, oracle, relu, weighted_sum, zeros_like
from tests.oracles.opticam import scaled, softmax, times, upsampled


@oracle("polycam")
def polycam(case: Case) -> Map:
    """Englebert et al. 2022: ``w± = p(x ⊙ M_k) - p(0) + p(x) - p(x ⊙ (1 - M_k))``, ``M_k`` the channel in [0, 1]."""
    A, x, c = case.A, case.x, case.index
    H, W = len(x[0]), len(x[0][0])
    whole, nothing = softmax(case.model(x))[c], softmax(case.model([zeros_like(channel) for channel in x]))[c]
    weights = []
    for k in range(len(A)):
        mask = scaled(upsampled(A[k], H, W, case.first))
        rest = [[1 - value for value in row] for row in mask]
        shown, hidden = softmax(case.model(times(x, mask)))[c], softmax(case.model(times(x, rest)))[c]
        weights.append(max(0.0, shown - nothing + whole - hidden))
    return relu(weighted_sum(weights, A))
