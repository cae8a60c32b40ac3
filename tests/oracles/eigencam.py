"""Methods that look for what the activations have in common.

Eigenvectors are found by Jacobi's rotations, which know nothing of the library that the package asks.
"""

from __future__ import annotations

import math

from tests.oracles.base import Case, Map, Maps, oracle, positions, relu, zeros_like


@oracle("eigencam")
def eigencam(case: Case) -> Map:
    """Muhammad and Yeasin 2020: the activations, positions by channels, times their first right singular vector."""
    return along_first_axis(case.A)


@oracle("eigengradcam")
def eigengradcam(case: Case) -> Map:
    """Positive part of the same for ``g A``."""
    return relu(along_first_axis(elementwise(case.g, case.A)))


@oracle("segeigencam")
def segeigencam(case: Case) -> Map:
    """Chung and Ying 2025: the same of ``|g| A`` (eq. 10), turned where the minimum outweighs the maximum (eq. 13)."""
    size = [[[abs(value) for value in row] for row in channel] for channel in case.g]
    X = elementwise(size, case.A)
    result = along_first_axis(X)
    highest, lowest = max(max(row) for row in result), min(min(row) for row in result)
    if abs(lowest) > abs(highest):
        result = [[-value for value in row] for row in result]
    return relu(result)


@oracle("kpcacam")
def kpcacam(case: Case) -> Map:
    """Karmani et al. 2024: the first component of kernel PCA with ``tanh(x · y / C + 1)`` of the centered features."""
    points = as_points(case.A)
    C, P = len(case.A), len(points)
    means = [sum(point[k] for point in points) / P for k in range(C)]
    points = [[point[k] - means[k] for k in range(C)] for point in points]
    K = [[math.tanh(dot(x, y) / C + 1) for y in points] for x in points]
    by_row = [sum(row) / P for row in K]
    overall = sum(by_row) / P
    centered = [[K[i][j] - by_row[i] - by_row[j] + overall for j in range(P)] for i in range(P)]
    value, vector = first_eigenvector(centered)
    return on_side_of(energy(case.A), as_map([math.sqrt(value) * each for each in vector], case.A[0]))


# ------------------------------------------------------------------------------------------------------ arithmetic


def elementwise(one: Maps, other: Maps) -> Maps:
    result = [zeros_like(channel) for channel in one]
    for k in range(len(one)):
        for i, j in positions(one[k]):
            result[k][i][j] = one[k][i][j] * other[k][i][j]
    return result


def energy(X: Maps) -> Map:
    result = zeros_like(X[0])
    for k in range(len(X)):
        for i, j in positions(X[k]):
            result[i][j] += X[k][i][j] ** 2
    return result


def along_first_axis(X: Maps) -> Map:
    points = as_points(X)
    C = len(X)
    gram = [[sum(point[k] * point[m] for point in points) for m in range(C)] for k in range(C)]
    _, axis = first_eigenvector(gram)
    return on_side_of(energy(X), as_map([dot(point, axis) for point in points], X[0]))


def on_side_of(toward: Map, result: Map) -> Map:
    agreement = sum(result[i][j] * toward[i][j] for i, j in positions(result))
    return [[-value for value in row] for row in result] if agreement < 0 else result


def as_points(X: Maps) -> list[list[float]]:
    return [[channel[i][j] for channel in X] for i, j in positions(X[0])]


def as_map(values: list[float], like: Map) -> Map:
    width = len(like[0])
    return [values[i * width : (i + 1) * width] for i in range(len(like))]


def dot(x: list[float], y: list[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def first_eigenvector(symmetric: list[list[float]]) -> tuple[float, list[float]]:
    """Return the largest eigenvalue and its unit eigenvector, by Jacobi rotations."""
    n = len(symmetric)
    S = [list(row) for row in symmetric]
    V = [[float(i == j) for j in range(n)] for i in range(n)]
    for _ in range(50):
        for p in range(n):
            for q in range(p + 1, n):
                if S[p][q] != 0:
                    rotate(S, V, p, q)
    value, best = max((S[i][i], i) for i in range(n))
    return value, [V[i][best] for i in range(n)]


def rotate(S: list[list[float]], V: list[list[float]], p: int, q: int) -> None:
    """Rotate axes p and q so that ``S[p][q]`` becomes zero."""
    angle = 0.5 * math.atan2(2 * S[p][q], S[q][q] - S[p][p])
    c, s = math.cos(angle), math.sin(angle)
    for M in (S, V):
        for row in M:
            row[p], row[q] = c * row[p] - s * row[q], s * row[p] + c * row[q]
    S[p], S[q] = (
        [c * a - s * b for a, b in zip(S[p], S[q], strict=True)],
        [s * a + c * b for a, b in zip(S[p], S[q], strict=True)],
    )
    S[p][q] = S[q][p] = 0.0
