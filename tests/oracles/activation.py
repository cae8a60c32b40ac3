"""Methods that look for what the activations have in common.

Eigenvectors are found by Jacobi's rotations, which know nothing of the library that the package asks.
"""

from __future__ import annotations

import math

from tests.oracles.base import Case, Map, oracle, positions, relu, weighted_sum, zeros_like


@oracle("activation-map")
def activation_map(case: Case) -> Map:
    """Zagoruyko and Komodakis 2017, section 3.1: ``F²_sum(A) = Σ_k |A_k|²``."""
    result = zeros_like(case.A[0])
    for channel in case.A:
        for i, j in positions(channel):
            result[i][j] += abs(channel[i][j]) ** 2
    return result


@oracle("fem")
def fem(case: Case) -> Map:
    """Fuad et al. 2020: ``Σ_k μ_k`` over the channels with ``A_k(i, j) ≥ μ_k + 2 σ_k``."""
    A = case.A
    result = zeros_like(A[0])
    for k in range(len(A)):
        values = [A[k][i][j] for i, j in positions(A[k])]
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        for i, j in positions(A[k]):
            if A[k][i][j] >= mean + 2 * deviation:
                result[i][j] += mean
    return result


@oracle("random")
def random(case: Case) -> Map:
    """``relu(Σ_k w_k A_k)`` with ``w`` from a Mersenne Twister of seed 0, two draws for each number's 53 bits."""
    words = mersenne_twister(seed=0, count=2 * len(case.A))
    weights = []
    for k in range(len(case.A)):
        bits = (words[2 * k] << 32 | words[2 * k + 1]) & (1 << 53) - 1
        weights.append(2 * bits / 2**53 - 1)
    return relu(weighted_sum(weights, case.A))


def mersenne_twister(seed: int, count: int) -> list[int]:
    """The first numbers, of 32 bits, of Matsumoto and Nishimura's MT19937."""
    state = [seed]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) % 2**32)
    for i in range(624):
        joined = state[i] & 0x80000000 | state[(i + 1) % 624] & 0x7FFFFFFF
        state[i] = state[(i + 397) % 624] ^ joined >> 1 ^ (0x9908B0DF if joined & 1 else 0)
    return [tempered(state[i]) for i in range(count)]


def tempered(word: int) -> int:
    word ^= word >> 11
    word ^= word << 7 & 0x9D2C5680
    word ^= word << 15 & 0xEFC60000
    return word ^ word >> 18
