"""The methods that mask the picture by the activations: by each channel in turn, or by the best sum of them."""

from __future__ import annotations

from math import exp, floor, sqrt

from tests.oracles.base import Case, Map, Maps, oracle, positions, weighted_sum, zeros_like


@oracle("opticam")
def opticam(case: Case) -> Map:
    """Zhang et al. 2024: Adam's way up ``f(x ⊙ n(up(S_u)))``, where ``S_u = Σ_k softmax(u)_k A_k``: the chain rule.

    Gradients are in units of the first one's peak, so that Adam's 1e-8 goes with the score's units.
    """
    A, x = case.A, case.x
    H, W, K = len(x[0]), len(x[0][0]), len(A)
    u, m, v, unit = [0.0] * K, [0.0] * K, [0.0] * K, 1.0
    for t in range(1, 101):
        S = weighted_sum(softmax(u), A)
        up = upsampled(S, H, W, case.first)
        G = case.input_gradient(times(x, scaled(up)))
        towards_mask = zeros_like(up)
        for p, q in positions(up):
            for channel in range(len(x)):
                towards_mask[p][q] += G[channel][p][q] * x[channel][p][q]
        towards_S = upsampled_backwards(scaled_backwards(towards_mask, up), S, case.first)
        gradient = softmax_backwards([inner(towards_S, A[k]) for k in range(K)], softmax(u))
        if t == 1:
            unit = max(map(abs, gradient)) or 1.0
        gradient = [slope / unit for slope in gradient]
        for k in range(K):  # Kingma and Ba 2015, algorithm 1
            m[k] = 0.9 * m[k] + 0.1 * gradient[k]
            v[k] = 0.999 * v[k] + 0.001 * gradient[k] ** 2
            u[k] += 0.1 * (m[k] / (1 - 0.9**t)) / (sqrt(v[k] / (1 - 0.999**t)) + 1e-8)
    return weighted_sum(softmax(u), A)


# ----------------------------------------------------------------------------- the steps, and their derivatives


def times(x: Maps, mask: Map) -> Maps:
    return [[[channel[p][q] * mask[p][q] for q in range(len(mask[p]))] for p in range(len(mask))] for channel in x]


def inner(one: Map, other: Map) -> float:
    return sum(one[i][j] * other[i][j] for i, j in positions(one))


def softmax(u: list[float]) -> list[float]:
    total = sum(exp(value) for value in u)
    return [exp(value) / total for value in u]


def softmax_backwards(slopes: list[float], a: list[float]) -> list[float]:
    """``∂a_l / ∂u_k = a_k ([k = l] - a_l)``."""
    mean = sum(slopes[k] * a[k] for k in range(len(a)))
    return [a[k] * (slopes[k] - mean) for k in range(len(a))]


def scaled(values: Map) -> Map:
    lowest, highest = min(map(min, values)), max(map(max, values))
    return [[(value - lowest) / ((highest - lowest) or 1.0) for value in row] for row in values]


def scaled_backwards(slopes: Map, values: Map) -> Map:
    """``m = (s - lowest) / (highest - lowest)``: each place moves its own ``m``, and the extremes move all."""
    lowest, highest = min(map(min, values)), max(map(max, values))
    if lowest == highest:
        return slopes
    extent = highest - lowest
    at_lowest = [(p, q) for p, q in positions(values) if values[p][q] == lowest]
    at_highest = [(p, q) for p, q in positions(values) if values[p][q] == highest]
    result = [[slope / extent for slope in row] for row in slopes]
    for p, q in positions(values):
        m = (values[p][q] - lowest) / extent
        for i, j in at_lowest:
            result[i][j] += slopes[p][q] * (m - 1) / extent / len(at_lowest)
        for i, j in at_highest:
            result[i][j] -= slopes[p][q] * m / extent / len(at_highest)
    return result


def upsampled(values: Map, H: int, W: int, first: float) -> Map:
    """Resize linearly between the centers of cells; beyond the outermost centers values are constant."""
    rows, columns = taps(len(values), H, first), taps(len(values[0]), W, first)
    return [[sum(a * b * values[i][j] for i, a in rows[p] for j, b in columns[q]) for q in range(W)] for p in range(H)]


def upsampled_backwards(slopes: Map, like: Map, first: float) -> Map:
    rows, columns = taps(len(like), len(slopes), first), taps(len(like[0]), len(slopes[0]), first)
    result = zeros_like(like)
    for p, q in positions(slopes):
        for i, a in rows[p]:
            for j, b in columns[q]:
                result[i][j] += a * b * slopes[p][q]
    return result


def taps(coarse: int, fine: int, first: float) -> list[list[tuple[int, float]]]:
    """Return for each fine position the two coarse positions around it, with their weights."""
    result = []
    for place in range(fine):
        at = min(max((place + 0.5) * coarse / fine - first, 0.0), coarse - 1.0)
        before = floor(at)
        result.append([(before, 1 - (at - before)), (min(before + 1, coarse - 1), at - before)])
    return result
