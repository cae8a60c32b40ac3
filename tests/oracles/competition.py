"""Oracles of Rival-CAM, and of Faith-CAM at one depth; several depths are in tests/methods/test_faithcam.py."""

from __future__ import annotations

from math import exp, sqrt

from tests.oracles.base import Case, Map, oracle, positions, zeros_like

RIVALS, TEMPERATURE, KINSHIP = 10, 0.5, 3.0
FAITH_TEMPERATURE, POWER, FOCUS = 2.0, 1.5, 0.25


@oracle("rivalcam")
def rivalcam(case: Case) -> Map:
    """``relu(s_c) exp(m_c/T) / Σ_j (1 - relu(ρ_j))^kinship exp(m_j/T)``, over the class and the highest others."""
    share, own_parts = compete(case, case.index, TEMPERATURE, KINSHIP), parts(case, case.index)
    result = zeros_like(own_parts)
    for p, q in positions(result):
        result[p][q] = max(own_parts[p][q], 0.0) * share[p][q]
    return result


def compete(case: Case, index: int, temperature: float, kinship: float) -> Map:
    """The share of each position that a class wins."""
    logits = case.model(case.x)
    others = sorted((j for j in range(len(logits)) if j != index), key=lambda j: -logits[j])[:RIVALS]
    own_parts = parts(case, index)
    own_view = view(own_parts, logits[index])
    T = temperature * deviation(own_view)
    share = zeros_like(own_parts)
    views = {j: view(parts(case, j), logits[j]) for j in others}
    standing = {j: (1 - max(correlation(views[j], own_view), 0.0)) ** kinship for j in others}
    for p, q in positions(share):
        against = sum(standing[j] * exp((views[j][p][q] - own_view[p][q]) / T) for j in others)
        share[p][q] = 1 / (1 + against)
    return share


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


@oracle("faithcam")
def faithcam(case: Case) -> Map:
    """``w^power (relu(s) / max s)^focus relu(s_1) / mean``, with ``s_1`` of the activations less those of zeros."""
    share = compete(case, case.index, FAITH_TEMPERATURE, KINSHIP)
    own = parts(case, case.index)
    blank, _ = case.observe([[[0.0 for _ in row] for row in channel] for channel in case.x])
    traced = zeros_like(own)
    for i, j in positions(own):
        if own[i][j] > 0:
            for k in range(len(case.A)):
                traced[i][j] += share[i][j] ** POWER * case.g[k][i][j] * (case.A[k][i][j] - blank[k][i][j])
    positive = [max(value, 0.0) for row in traced for value in row]
    mean, peak = sum(positive) / len(positive), max(abs(max(value, 0.0)) for row in own for value in row)
    result = zeros_like(own)
    for i, j in positions(own):
        gate = share[i][j] ** POWER * (max(own[i][j], 0.0) / peak) ** FOCUS if peak else 0.0
        result[i][j] = gate * max(traced[i][j], 0.0) / (mean or 1.0)
    return result
