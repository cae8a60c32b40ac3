"""Oracle of Rival-CAM."""

from __future__ import annotations

from math import exp, sqrt

from tests.oracles.base import Case, Map, oracle, positions, zeros_like

RIVALS, TEMPERATURE, KINSHIP = 10, 0.5, 3.0


@oracle("rivalcam")
def rivalcam(case: Case) -> Map:
    """``relu(s_c) exp(m_c/T) / Σ_j (1 - relu(ρ_j))^kinship exp(m_j/T)``, over the class and the highest others."""
    logits = case.model(case.x)
    others = sorted((j for j in range(len(logits)) if j != case.index), key=lambda j: -logits[j])[:RIVALS]
    own_parts = parts(case, case.index)
    own_view = view(own_parts, logits[case.index])
    T = TEMPERATURE * deviation(own_view)
    result = zeros_like(own_parts)
    views = {j: view(parts(case, j), logits[j]) for j in others}
    standing = {j: (1 - max(correlation(views[j], own_view), 0.0)) ** KINSHIP for j in others}
    for p, q in positions(result):
        against = sum(standing[j] * exp((views[j][p][q] - own_view[p][q]) / T) for j in others)
        result[p][q] = max(own_parts[p][q], 0.0) / (1 + against)
    return result


def parts(case: Case, index: int) -> Map:
    """``s_j(p) = Σ_k g_jk(p) A_k(p)``."""
    g = case.class_gradient(index)
    result = zeros_like(case.A[0])
    for k in range(len(case.A)):
        for i, j in positions(result):
            result[i][j] += g[k][i][j] * case.A[k][i][j]
    return result


def view(part: Map, score: float) -> Map:
    """``m_j(p) = P s_j(p) + y_j - Σ_q s_j(q)``."""
    values = [value for row in part for value in row]
    return [[len(values) * value + score - sum(values) for value in row] for row in part]


def deviation(values: Map) -> float:
    numbers = [value for row in values for value in row]
    mean = sum(numbers) / len(numbers)
    return sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers))


def correlation(one: Map, other: Map) -> float:
    first, second = ([value for row in each for value in row] for each in (one, other))
    mean_1, mean_2 = sum(first) / len(first), sum(second) / len(second)
    covariance = sum((a - mean_1) * (b - mean_2) for a, b in zip(first, second, strict=True)) / len(first)
    return covariance / (deviation(one) * deviation(other))
