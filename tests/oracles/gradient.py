"""CAM, and the methods that weigh activations by gradients."""

from __future__ import annotations

from math import exp, factorial

from tests.oracles.base import Case, Map, Maps, oracle, positions, relu, weighted_sum, zeros_like


@oracle("cam")
def cam(case: Case) -> Map:
    """Zhou et al. 2016, eq. 2: ``M(i, j) = Σ_k w_k A_k(i, j)``; signed."""
    A, w = case.A, case.w
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            result[i][j] += w[k] * A[k][i][j]
    return result


@oracle("gradcam")
def gradcam(case: Case) -> Map:
    """Selvaraju et al. 2017, eq. 1: ``α_k = 1/Z Σ_ij g_k(i, j)``; eq. 2: ``relu(Σ_k α_k A_k)``."""
    A, g = case.A, case.g
    alpha = []
    for k in range(len(A)):
        Z, total = 0, 0.0
        for i, j in positions(A[k]):
            Z += 1
            total += g[k][i][j]
        alpha.append(total / Z)
    return relu(weighted_sum(alpha, A))


@oracle("signed-gradcam")
def signed_gradcam(case: Case) -> Map:
    """Selvaraju et al. 2017, eq. 1, and eq. 2 without its ReLU."""
    A, g = case.A, case.g
    alpha = []
    for k in range(len(A)):
        values = [g[k][i][j] for i, j in positions(A[k])]
        alpha.append(sum(values) / len(values))
    return weighted_sum(alpha, A)


@oracle("gradcam++")
def gradcam_plus_plus(case: Case) -> Map:
    """Chattopadhay et al. 2018, eq. 19: ``α = g² / (2 g² + Σ_ab A(a, b) g³)``, and ``w = Σ_ij α relu(g)``.

    The paper's activations are behind a ReLU; those that are not count by their size in the sum.
    """
    A, g = case.A, case.g
    weights = []
    for k in range(len(A)):
        total = 0.0
        for a, b in positions(A[k]):
            total += abs(A[k][a][b])
        weight = 0.0
        for i, j in positions(A[k]):
            derivative = g[k][i][j]
            if derivative != 0:  # and else α is 0
                alpha = derivative**2 / (2 * derivative**2 + total * derivative**3)
                weight += alpha * max(derivative, 0.0)
        weights.append(weight)
    return relu(weighted_sum(weights, A))


@oracle("xgradcam")
def xgradcam(case: Case) -> Map:
    """Fu et al. 2020, eq. 8: ``α_k = Σ_xy A_k(x, y) / Σ_ij A_k(i, j) · g_k(x, y)``, and Grad-CAM's eq. 2."""
    A, g = case.A, case.g
    alpha = []
    for k in range(len(A)):
        total = 0.0
        for i, j in positions(A[k]):
            total += A[k][i][j]
        weight = 0.0
        for x, y in positions(A[k]):
            if total != 0:
                weight += A[k][x][y] / total * g[k][x][y]
        alpha.append(weight)
    return relu(weighted_sum(alpha, A))


@oracle("hirescam")
def hirescam(case: Case) -> Map:
    """Draelos and Carin 2020, eq. 4: the positive part of ``Σ_k g_k ⊙ A_k``."""
    A, g = case.A, case.g
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            result[i][j] += g[k][i][j] * A[k][i][j]
    return relu(result)


@oracle("layercam")
def layercam(case: Case) -> Map:
    """Jiang et al. 2021, eq. 4: ``w_k(i, j) = relu(g_k(i, j))``; eq. 5: ``relu(Σ_k w_k ⊙ A_k)``."""
    A, g = case.A, case.g
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            result[i][j] += max(g[k][i][j], 0.0) * A[k][i][j]
    return relu(result)


@oracle("gradcam-elementwise")
def gradcam_elementwise(case: Case) -> Map:
    """As pytorch-grad-cam has it: ``Σ_k relu(g_k ⊙ A_k)``."""
    A, g = case.A, case.g
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            result[i][j] += max(g[k][i][j] * A[k][i][j], 0.0)
    return result


@oracle("zoomcam")
def zoomcam(case: Case) -> Map:
    """Shi et al. 2020, at one layer: ``relu(Σ_k g_k ⊙ A_k)``."""
    A, g = case.A, case.g
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            result[i][j] += g[k][i][j] * A[k][i][j]
    return relu(result)


@oracle("liftcam")
def liftcam(case: Case) -> Map:
    """Jung and Oh 2021, where the tail is affine: what the score loses when channel k is set to zero is its share."""
    A = case.A
    shares = []
    for k in range(len(A)):
        without = [zeros_like(A[n]) if n == k else A[n] for n in range(len(A))]
        shares.append(case.tail(A)[case.index] - case.tail(without)[case.index])
    return relu(weighted_sum(shares, A))


@oracle("shapleycam")
def shapleycam(case: Case) -> Map:
    """Cai 2025: ``w_k = 1/Z Σ_ij (g_k(i, j) - 1/2 (H A)_k(i, j))``.

    ``Σ_ij (H A)_k(i, j)`` is the second derivative of the score along ``A`` and along ``one``, which is 1 all over
    channel k and 0 elsewhere; and that is a quarter of the one along ``A + one`` less the one along ``A - one``.
    """
    A, g = case.A, case.g
    weights = []
    for k in range(len(A)):
        plus, minus, Z, slopes = [], [], 0, 0.0
        for n in range(len(A)):
            one = 1.0 if n == k else 0.0
            plus.append([[value + one for value in row] for row in A[n]])
            minus.append([[value - one for value in row] for row in A[n]])
        for i, j in positions(A[k]):
            Z += 1
            slopes += g[k][i][j]
        curvature = (second_derivative(case, plus) - second_derivative(case, minus)) / 4
        weights.append((slopes - curvature / 2) / Z)
    return relu(weighted_sum(weights, A))


def second_derivative(case: Case, direction: Maps, h: float = 0.02, reach: int = 5) -> float:
    """Of the score at the activations, along a direction: by central differences of the order ``2 · reach``."""

    def score(t: float) -> float:
        moved = [
            [
                [value + t * step for value, step in zip(row, steps, strict=True)]
                for row, steps in zip(values, change, strict=True)
            ]
            for values, change in zip(case.A, direction, strict=True)
        ]
        return case.tail(moved)[case.index]

    here, total = score(0.0), 0.0
    for n in range(1, reach + 1):
        sign = 1 if n % 2 else -1
        weight = 2 * sign * factorial(reach) ** 2 / (n**2 * factorial(reach - n) * factorial(reach + n))
        total += weight * (score(n * h) - 2 * here + score(-n * h))
    return total / h**2


@oracle("odam")
def odam(case: Case, smoothing: float = 1.0) -> Map:
    """Zhao and Chan 2023: ``relu(Σ_k Φ(g_k) ⊙ A_k)``, ``Φ`` being the mean under a Gaussian about each position."""
    A, g = case.A, case.g
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            total, bell = 0.0, 0.0
            for a, b in positions(A[k]):
                near = exp(-((i - a) ** 2 + (j - b) ** 2) / (2 * smoothing**2))
                total += near * g[k][a][b]
                bell += near
            result[i][j] += total / bell * A[k][i][j]
    return relu(result)
