"""Nonnegative matrix factorization on matrices whose factors are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from camtool.concept_maps.factorization import factorize
from camtool.errors import MethodError


def build_factors(P: int = 60, C: int = 20, n: int = 4) -> tuple[Tensor, Tensor]:
    """Return factors with disjoint positions and channels, in decreasing order of weight, so that they are unique."""
    W, H = torch.zeros(P, n, dtype=torch.float64), torch.zeros(n, C, dtype=torch.float64)
    for k in range(n):
        W[k :: n + 1, k] = 1 + torch.rand(len(W[k :: n + 1]), dtype=torch.float64)
        H[k, k::n] = 2.0**-k * (1 + torch.rand(len(H[k, k::n]), dtype=torch.float64) / 4)
    return W / W.amax(0), H


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_factorize_recovers_known_factors(scale: float) -> None:
    W, H = build_factors()
    ours, vectors, explained = factorize(scale * W @ H, 4)
    assert_close(ours, W, rtol=0, atol=1e-6)
    assert_close(vectors / scale, H, rtol=0, atol=1e-6)
    assert explained > 0.999999


def test_factors_are_nonnegative_and_columns_have_maximum_one() -> None:
    A = torch.rand(50, 30)
    W, H, explained = factorize(A, 6)
    assert (W >= 0).all()
    assert (H >= 0).all()
    assert_close(W.amax(0), torch.ones(6))
    assert_close(torch.tensor(explained), 1 - (A - W @ H).square().sum() / A.square().sum(), rtol=0, atol=1e-5)
    masses = W.sum(0) * H.sum(1)
    assert masses.tolist() == sorted(masses.tolist(), reverse=True)


def test_more_concepts_explain_more() -> None:
    A = torch.rand(50, 30)
    explained = [factorize(A, n)[2] for n in (1, 3, 6, 30)]
    assert explained == sorted(explained)
    assert explained[-1] > 0.99


@pytest.mark.parametrize("n", [2, 5])
def test_error_is_as_low_as_that_of_scikit_learn(n: int) -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    A = torch.randn(120, 40, dtype=torch.float64).relu()
    peer = decomposition.NMF(n, init="nndsvda", random_state=0, max_iter=1000).fit(A.numpy())
    theirs = 1 - peer.reconstruction_err_**2 / float(A.square().sum())
    assert factorize(A, n)[2] > theirs - 0.005


def test_the_same_data_and_seed_give_the_same_factors() -> None:
    A, before = torch.rand(40, 20), torch.get_rng_state()
    first, again = factorize(A, 4), factorize(A, 4)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("seed", range(5))
def test_two_strong_positions_do_not_hide_two_large_groups(seed: int) -> None:
    """Factorize two groups of 40 positions of length 1 and two positions of length 3, all on separate channels."""
    A = torch.eye(4, dtype=torch.float64).repeat_interleave(torch.tensor([40, 40, 1, 1]), 0)
    A[80:] *= 3
    W, H, explained = factorize(A, 2, seed=seed)
    assert explained == pytest.approx(80 / 98)  # 18 / 98 if started from the most different positions
    assert_close(W @ H, A * torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64))


def test_zero_rows_and_fewer_active_rows_than_concepts_are_allowed() -> None:
    A = torch.zeros(30, 6, dtype=torch.float64)
    A[7], A[11] = torch.rand(6), torch.rand(6)
    W, H, explained = factorize(A, 4)
    assert explained > 0.999
    assert_close(W @ H, A, rtol=0, atol=0.01)


@pytest.mark.parametrize("n", [0, -1, 21])
def test_impossible_number_of_concepts_raises(n: int) -> None:
    with pytest.raises(
        MethodError, match=rf"n={n} concepts cannot be found in 40 positions of 20 channels; pass 1 to 20"
    ):
        factorize(torch.rand(40, 20), n)


def test_more_concepts_than_the_rank_are_allowed() -> None:
    W, H, explained = factorize(torch.outer(torch.rand(12), torch.rand(6)), 3)
    assert W.isfinite().all()
    assert H.isfinite().all()
    assert explained > 0.999
