"""Eigen-CAM, its relatives, FEM and random weights: their algebra, by hand and against full decompositions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from camtool.errors import MethodError
from camtool.methods import METHODS
from camtool.methods.families.activation import KERNELS, compute_first_component

EIGEN = ("eigencam", "eigengradcam", "segeigencam", "kpcacam")
FAMILY = (*EIGEN, "fem", "random")
GRIDS = [(24,), (4, 6), (2, 3, 4)]


def fake(A: Tensor, g: Tensor | None = None) -> SimpleNamespace:
    return SimpleNamespace(activations=A, gradients=torch.ones_like(A) if g is None else g)


def maps(name: str, A: Tensor, g: Tensor | None = None, **options: Any) -> Tensor:
    return METHODS[name](fake(A, g), **options)  # type: ignore[arg-type]


def near_peak(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert theirs.abs().amax() > 0, "an empty map proves nothing"
    assert_close(ours, theirs.to(ours), rtol=0, atol=tolerance * float(theirs.abs().amax()))


def with_singular_values(values: list[float], C: int, P: int, seed: int = 0) -> Tensor:
    """One row of C channels on P positions with these singular values."""
    dice = torch.Generator().manual_seed(seed)
    U, _ = torch.linalg.qr(torch.randn(P, len(values), generator=dice, dtype=torch.float64))
    V, _ = torch.linalg.qr(torch.randn(C, len(values), generator=dice, dtype=torch.float64))
    return (V * torch.tensor(values, dtype=torch.float64) @ U.T)[None]


# ------------------------------------------------------------------------------------------------ first component


@pytest.mark.parametrize(("C", "P"), [(6, 40), (40, 6), (12, 12), (1, 9), (9, 1)])
@pytest.mark.parametrize("rectified", [True, False])
def test_first_component_equals_that_of_an_svd(C: int, P: int, rectified: bool) -> None:
    X = torch.randn(3, C, P, dtype=torch.float64)
    X = X.relu() if rectified else X
    U, S, _ = torch.linalg.svd(X.mT, full_matrices=False)
    expected = S[:, :1] * U[:, :, 0]
    agreement = (expected * X.square().sum(1)).sum(1, keepdim=True)
    near_peak(compute_first_component(X), expected * agreement.sign(), 1e-12)


def test_first_component_equals_numbers_by_hand() -> None:
    """Points (3, 0), (0, 1), (-1, 0), (0, 0): the first axis, with 9 + 1 of the energy; the heavier end is positive."""
    X = torch.tensor([[[[3.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]]])
    assert_close(compute_first_component(X), torch.tensor([[[3.0, 0.0], [-1.0, 0.0]]]))
    assert_close(compute_first_component(-X), torch.tensor([[[3.0, 0.0], [-1.0, 0.0]]]))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_first_component_scales_with_the_features_without_their_sign(scale: float) -> None:
    X = torch.randn(2, 5, 4, 6)
    near_peak(compute_first_component(scale * X) / scale, compute_first_component(X), 1e-5)
    near_peak(compute_first_component(-X), compute_first_component(X), 1e-5)


def test_first_component_correlates_with_the_energy() -> None:
    for seed in range(20):
        X = torch.randn(1, 7, 4, 6, generator=torch.Generator().manual_seed(seed))
        assert (compute_first_component(X) * X.square().sum(1)).sum() >= 0


def test_first_component_of_rectified_activations_is_not_negative() -> None:
    X = torch.rand(4, 30, 5, 5)
    assert (compute_first_component(X) >= 0).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_equal_singular_values_give_a_component_in_their_plane(transposed: bool) -> None:
    shape = (30, 8) if transposed else (8, 30)
    X = with_singular_values([2.0, 2.0, 0.5], *shape)
    component = compute_first_component(X)[0]
    assert_close(component.norm(), torch.tensor(2.0, dtype=torch.float64))
    U, _, _ = torch.linalg.svd(X[0].T, full_matrices=False)
    assert_close((U[:, :2].T @ component).norm(), component.norm())


@pytest.mark.parametrize("gap", [0.5, 0.99, 0.9999])
def test_small_gap_between_singular_values_keeps_the_component_exact(gap: float) -> None:
    X = with_singular_values([1.0, gap, 0.3, 0.1], 20, 60)
    U, _, _ = torch.linalg.svd(X[0].T, full_matrices=False)
    alike = (compute_first_component(X)[0] * U[:, 0]).sum().abs()
    assert_close(alike, torch.ones_like(alike), rtol=0, atol=1e-10)


def test_rows_of_zeros_or_infinities_give_zeros_and_do_not_affect_others() -> None:
    X = torch.rand(4, 5, 3, 3)
    alone = compute_first_component(X[3:])
    X[0], X[1, 2, 1, 1], X[2, 0, 0, 0] = 0, torch.inf, torch.nan
    together = compute_first_component(X)
    assert not together[:3].any()
    near_peak(together[3:], alone, 1e-6)


# ------------------------------------------------------------------------------------------------ the eigen methods


def test_eigencam_of_one_pattern_returns_the_pattern() -> None:
    pattern, weights = torch.rand(1, 1, 4, 6), torch.tensor([1.0, 2.0, 2.0]).reshape(1, 3, 1, 1)
    near_peak(maps("eigencam", pattern * weights), 3 * pattern[:, 0], 1e-6)


def test_eigencam_does_not_center_the_activations() -> None:
    """A pattern on a high plateau: the component is the plateau with the pattern, and not the pattern alone."""
    A = torch.ones(1, 3, 4, 6)
    A[:, :, 1, 1] = 2
    near_peak(maps("eigencam", A), 3**0.5 * A[:, 0], 1e-6)


def test_eigengradcam_and_segeigencam_weigh_activations_by_the_gradient() -> None:
    A, g = torch.rand(2, 5, 4, 6), torch.randn(2, 5, 4, 6)
    assert torch.equal(maps("eigengradcam", A, g), compute_first_component(g * A).relu())
    near_peak(maps("segeigencam", A, g), compute_first_component(g.abs() * A), 1e-6)


def test_eigengradcam_before_a_linear_head_ignores_the_sign_of_a_weight() -> None:
    A, weights = torch.rand(2, 5, 4, 6), torch.randn(2, 5, 1, 1).expand(2, 5, 4, 6)
    near_peak(maps("eigengradcam", A, weights), maps("eigengradcam", A, weights.abs()), 1e-5)
    near_peak(maps("eigengradcam", A, weights), maps("segeigencam", A, weights), 1e-5)


def test_segeigencam_makes_the_largest_magnitude_positive() -> None:
    """A single channel: many small positives outweigh one large negative in the energy, but not in magnitude."""
    A = torch.full((1, 1, 5, 5), 2.0)
    A[..., 2, 2] = -3
    expected = torch.zeros(1, 5, 5)
    expected[:, 2, 2] = 3
    assert (compute_first_component(A)[0, 2, 2]) < 0
    assert_close(maps("segeigencam", A), expected)


# ------------------------------------------------------------------------------------------------------ kernel PCA


def peer(A: Tensor, kernel: str, gamma: float | None) -> Tensor:
    decomposition = pytest.importorskip("sklearn.decomposition")
    points = A.flatten(1).T
    points = (points - points.mean(0)).numpy()
    found = decomposition.KernelPCA(n_components=1, kernel=kernel, gamma=gamma).fit_transform(points)
    return torch.from_numpy(found).reshape(A.shape[1:])


@pytest.mark.parametrize("gamma", [None, 0.3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_pca_equals_scikit_learn_up_to_the_sign(kernel: str, gamma: float | None) -> None:
    A = torch.randn(2, 8, 5, 6, dtype=torch.float64).relu()
    ours = maps("kpcacam", A, kernel=kernel, gamma=gamma)
    for row, mine in zip(A, ours, strict=True):
        theirs = peer(row, kernel, gamma)
        near_peak(mine, theirs * (theirs * mine).sum().sign(), 1e-10)
        assert (mine * row.square().sum(0)).sum() >= 0


def test_narrow_kernel_separates_all_positions_and_wide_kernel_is_linear() -> None:
    A = torch.randn(1, 6, 4, 6, dtype=torch.float64).relu()
    wide = maps("kpcacam", A, kernel="rbf", gamma=1e-8)
    linear = compute_first_component(A - A.mean((2, 3), keepdim=True))
    cosine = (wide * linear).sum() / wide.norm() / linear.norm()
    assert_close(cosine.abs(), torch.ones_like(cosine), rtol=0, atol=1e-6)
    assert torch.linalg.matrix_norm(maps("kpcacam", A, kernel="rbf", gamma=1e8)).amax() < 1.01


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"kernel": "sigmoyd"},
            r"kernel must be one of .*, 'cosine', got 'sigmoyd'\. Did you mean 'sigmoid'",
        ),
        ({"gamma": 0}, "gamma must be a finite number above 0, or None, got 0"),
        ({"gamma": float("nan")}, "gamma must be a finite number above 0, or None, got nan"),
        ({"positions": 23}, r"grid \(4, 6\) has 24 positions, more than positions=23; choose a deeper layer"),
    ],
)
def test_kpcacam_rejects_invalid_options_and_large_grids(options: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        maps("kpcacam", torch.rand(1, 5, 4, 6), **options)


# -------------------------------------------------------------------------------------------------- fem and random


def test_fem_equals_numbers_by_hand() -> None:
    """Nine positions, one of them 9: a mean of 1, a deviation of √8, so 9 is 2.83 deviations above; the rest is not."""
    A = torch.zeros(1, 2, 3, 3)
    A[0, 0, 1, 1] = 9
    A[0, 1] = torch.tensor([[1.0, 2.0, 1.0], [2.0, 1.0, 2.0], [1.0, 2.0, 1.0]])
    expected = torch.zeros(1, 3, 3)
    expected[0, 1, 1] = 1
    assert_close(maps("fem", A), expected)
    assert not maps("fem", A, threshold=2.9).any()
    assert_close(maps("fem", A, threshold=-9), torch.full((1, 3, 3), 1 + 13 / 9))


@pytest.mark.parametrize("threshold", ["2", None, True, float("inf")])
def test_fem_rejects_a_threshold_that_is_not_a_finite_number(threshold: Any) -> None:
    with pytest.raises(MethodError, match="threshold must be a finite number"):
        maps("fem", torch.rand(1, 2, 3, 3), threshold=threshold)


def test_random_weights_depend_on_the_seed_only() -> None:
    A = torch.rand(3, 200, 4, 6)
    before = torch.get_rng_state()
    weights = METHODS["random"].weight_function(fake(A))  # type: ignore[misc, arg-type]
    assert torch.equal(before, torch.get_rng_state())
    assert weights.shape == (3, 200, 1, 1)
    assert torch.equal(weights[0], weights[2])
    assert -1 <= weights.min() < -0.95
    assert 0.95 < weights.max() < 1
    assert torch.equal(maps("random", A), maps("random", A, seed=0))
    assert not torch.allclose(maps("random", A), maps("random", A, seed=1))


# ------------------------------------------------------------------------------------------------- what all promise


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("grid", GRIDS)
def test_rank_of_the_grid_does_not_change_values(name: str, grid: tuple[int, ...]) -> None:
    A, g = torch.rand(2, 5, 24, dtype=torch.float64), torch.randn(2, 5, 24, dtype=torch.float64)
    ours = maps(name, A.unflatten(2, grid), g.unflatten(2, grid))
    assert ours.shape == (2, *grid)
    near_peak(ours.flatten(1), maps(name, A, g), 1e-10)


@pytest.mark.parametrize("name", FAMILY)
def test_row_equals_the_row_alone(name: str) -> None:
    A, g = torch.rand(3, 5, 4, 6, dtype=torch.float64), torch.randn(3, 5, 4, 6, dtype=torch.float64)
    near_peak(maps(name, A, g), torch.cat([maps(name, A[[i]], g[[i]]) for i in range(3)]), 1e-12)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize(("scale", "dtype"), [(0.0, torch.float64), (1e-30, torch.float32), (1e30, torch.float32)])
def test_maps_are_finite(name: str, dtype: torch.dtype, scale: float) -> None:
    A = scale * torch.cat([torch.randn(2, 5, 4, 6, dtype=dtype), torch.ones(1, 5, 4, 6, dtype=dtype)])
    ours = maps(name, A)
    assert ours.dtype == dtype
    assert ours.isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 0.7, 1e30])
@pytest.mark.parametrize("kind", [torch.rand, torch.randn])
def test_every_kernel_gives_finite_maps_and_zeros_for_equal_positions(kernel: str, scale: float, kind: Any) -> None:
    assert maps("kpcacam", scale * kind(2, 5, 4, 6), kernel=kernel).isfinite().all()
    alike = kind(2, 5, 1, 1).expand(2, 5, 4, 6)
    assert not maps("kpcacam", scale * alike, kernel=kernel).any()


# ----------------------------------------------------------------------------------------------------------- energy


def test_activation_map_equals_numbers_by_hand_and_does_not_overflow() -> None:
    A = torch.tensor([[[[3.0, 0.0], [-1.0, 2.0]], [[4.0, 0.0], [1.0, 0.0]]]])
    expected = torch.tensor([[[25.0, 0.0], [2.0, 4.0]]])
    assert_close(maps("activation-map", A), expected)
    assert_close(maps("activation-map", (1000 * A).half()), 1e6 * expected)
    assert_close(maps("activation-map", 1e30 * A), expected / 16)  # in units of the squared peak
