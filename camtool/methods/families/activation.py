"""Patterns of the activations: Eigen-CAM and its relatives, their energy, FEM, and random weights as a baseline.

``A`` are the activations and ``g`` the gradient of the score with respect to them, both ``(R, C, *grid)``. Eigen-CAM
and its relatives treat the C values at each position as a point. The map is the projection of the points onto the
direction in which they are largest: see :func:`compute_first_component`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from camtool.arguments.checks import Count, CountOrZero, Number
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.maps import find_peaks, unsqueeze_like, upcast
from camtool.methods.options import check_choice, check_number
from camtool.methods.registry import Method, method, weighting, wrapper


@method(
    "eigencam",
    paper="arXiv 2008.00299",
    needs="activations",
    weights=lambda evidence: torch.ones_like(evidence.activations),
)
def eigencam(evidence: Evidence) -> Tensor:
    """Take the main pattern of the activations.

    The pattern is the same for every class.

    ``M = A v``, where ``A`` is a matrix of positions by channels and ``v`` its first right singular vector (Muhammad
    and Yeasin 2020, section III). As in the paper the activations are not centered, so the map of rectified activations
    has no negative values. The sign of a singular vector is arbitrary; :func:`compute_first_component` chooses it.

    Returns:
        Maps ``(R, *grid)``.
    """
    return compute_first_component(evidence.activations)


@method("eigengradcam", paper="arXiv 2008.00299", needs="gradients", weights=lambda evidence: evidence.gradients)
def eigengradcam(evidence: Evidence) -> Tensor:
    """Take gradient x activation's main pattern.

    ``M = relu(X v)``, where ``X = g A`` is a matrix of positions by channels and ``v`` its first right singular vector.
    The cited paper uses ``X = A``; this variant is common practice and has no paper of its own.

    The sign of the pattern is arbitrary, so strong evidence against the target looks like evidence for it. After a
    pooled linear head on rectified activations, the map is the same for the weights ``w`` and ``|w|``. Compare with
    Grad-CAM or HiResCAM to see which it is.

    Returns:
        Maps ``(R, *grid)``.
    """
    return compute_first_component(evidence.gradients * evidence.activations).relu()


@method(
    "segeigencam", paper="10.3390/app15137562", needs="gradients", weights=lambda evidence: evidence.gradients.abs()
)
def segeigencam(evidence: Evidence) -> Tensor:
    """Take the main pattern, weighed by |gradient|.

    ``M = relu(± X v)``, where ``X = |g| A`` (Chung and Ying 2025, eq. 10) is a matrix of positions by channels and
    ``v`` its first right singular vector. The sign makes the value of largest magnitude positive (eq. 13). As in
    Eigen-CAM, which the paper extends, ``X`` is not centered.

    Returns:
        Maps ``(R, *grid)``.
    """
    component = compute_first_component(evidence.gradients.abs() * evidence.activations)
    values = component.flatten(1)
    is_negative = unsqueeze_like(-values.amin(1) > values.amax(1), component)
    return torch.where(is_negative, -component, component).relu()


@method("activation-map", paper="arXiv 1612.03928", needs="activations")
def activation_map(evidence: Evidence) -> Tensor:
    """Sum the squares of all channels.

    It is the same for every class, and shows where the layer is active at all.

    ``M = Σ_k A_k²`` (Zagoruyko and Komodakis 2017, section 3.1, ``F²_sum``).

    Returns:
        Maps ``(R, *grid)``, not negative; of activations whose squares would overflow, in units of the squared peak.
    """
    A, peak = split_by_peak(upcast(evidence.activations))
    energy = A.square().sum(1)
    scaled = energy * peak.square()
    return torch.where(unsqueeze_like(scaled.flatten(1).isfinite().all(1), scaled), scaled, energy)


@method("kpcacam", paper="arXiv 2410.00267", needs="activations", cost="some passes")
def kpcacam(
    evidence: Evidence, *, kernel: str = "sigmoid", gamma: float | None = None, positions: Count = 4096
) -> Tensor:
    """Take the activations' main nonlinear pattern.

    Kernel PCA of the centered features ``x_i`` of the positions (Karmani et al. 2024): ``M_i = √λ u_i``, where ``λ``
    and ``u`` are the largest eigenvalue and its eigenvector of the centered kernel matrix ``K - 1K - K1 + 1K1``. ``1``
    is the matrix of ``1 / P`` for P positions. The paper's sigmoid kernel is ``K_ij = tanh(γ x_i · x_j + 1)``. The sign
    is chosen so that the map correlates with the energy ``Σ_k A_k²``.

    Args:
        evidence: The activations.
        kernel: A name in :data:`KERNELS`.
        gamma: The factor ``γ`` of the kernel; by default ``1 / C``. It has no effect on the cosine kernel.
        positions: The largest number of positions of a layer. The memory grows with its square, the time with its cube.

    Returns:
        Signed maps ``(R, *grid)`` with a mean of 0.

    Raises:
        MethodError: The kernel is unknown, ``gamma`` is not positive, or the layer has more positions.
    """
    A = evidence.activations
    grid = A.shape[2:]
    check_choice("kernel", kernel, KERNELS)
    check_number("gamma", gamma, above=0, optional=True)
    gamma = 1 / A.shape[1] if gamma is None else gamma
    if grid.numel() > positions:
        raise MethodError(
            f"method 'kpcacam' compares all pairs of positions, and the layer's grid {tuple(grid)} has {grid.numel()} "
            f"positions, more than positions={positions}; choose a deeper layer, or increase positions."
        )
    # One row at a time, because each needs a matrix of positions by positions.
    components = [_compute_kernel_component(row, KERNELS[kernel], gamma) for row in A.flatten(2)]
    return _choose_sign(torch.stack(components).unflatten(1, grid), split_by_peak(A)[0])


def compute_first_component(features: Tensor) -> Tensor:
    """Return the projection of each position onto the first principal direction, without centering.

    For a row's matrix ``X`` of positions by channels this is ``X v = σ u``, with the first singular vectors ``u`` and
    ``v``. They are computed from the eigenvectors of the smaller of ``X Xᵀ`` and ``Xᵀ X``, which is cheaper than a
    decomposition of ``X``. The sign of a singular vector is arbitrary. Here it is chosen so that the component
    correlates with the energy ``e = Σ_k x_k²``: ``Σ M e ≥ 0`` over the positions, so strong activations are positive.

    Args:
        features: ``(R, C, *grid)``.

    Returns:
        ``(R, *grid)``; zeros for a row of zeros, and for a row with infinities or NaN.
    """
    scaled, peak = split_by_peak(features)
    points = scaled.flatten(2).mT
    component = (points @ _find_first_direction(points)).reshape(len(features), *features.shape[2:])
    return peak * _choose_sign(component, scaled)


def split_by_peak(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row divided by its largest magnitude, and that magnitude, as ``(R, 1, ...)`` with one axis less.

    The squares of the scaled features do not overflow, and the largest does not vanish. A row with infinities or NaN
    becomes zeros.
    """
    peak = find_peaks(features)
    is_finite = peak.isfinite()
    return torch.where(is_finite, features / peak, 0), torch.where(is_finite, peak, 1)[:, 0]


def _find_first_direction(points: Tensor) -> Tensor:
    """Return the first right singular vector ``(R, C, 1)`` of each row's points ``(R, P, C)``."""
    has_few_channels = points.shape[1] >= points.shape[2]
    gram = points.mT @ points if has_few_channels else points @ points.mT
    first: Tensor = torch.linalg.eigh(gram).eigenvectors[..., -1:]
    # The eigenvector of X Xᵀ is u; v follows from it as Xᵀ u, up to its length.
    return first if has_few_channels else torch.nn.functional.normalize(points.mT @ first, dim=1)


def _choose_sign(component: Tensor, scaled: Tensor) -> Tensor:
    """Return the component ``(R, *grid)`` with the sign that correlates with the energy of ``(R, C, *grid)``."""
    is_opposite = (component * scaled.square().sum(1)).flatten(1).sum(1) < 0
    return torch.where(unsqueeze_like(is_opposite, component), -component, component)


# ------------------------------------------------------------------------------------------------------- kernels


def _apply_rbf(products: Tensor) -> Tensor:
    # |x - y|² = x·x + y·y - 2 x·y
    squares = products.diagonal()
    return (2 * products - squares[:, None] - squares).clamp(max=0).exp()


def _apply_cosine(products: Tensor) -> Tensor:
    lengths = products.diagonal().sqrt()
    lengths = torch.where(lengths > 0, lengths, 1)
    return products / lengths[:, None] / lengths


# Name → function from the products of the points times gamma, ``(P, P)``, to the kernel's values.
KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": lambda products: (products + 1).tanh(),
    "rbf": _apply_rbf,
    "cosine": _apply_cosine,
}

# The largest factor of the products of the points.
#
# All kernels are saturated there, and float32, whose largest value is 3e38, still holds it times the layer's channels.
_LARGEST_FACTOR = 1e30


def _compute_kernel_component(features: Tensor, kernel: Callable[[Tensor], Tensor], gamma: float) -> Tensor:
    """Return the first component of kernel PCA of one row's positions: ``(P,)`` for features ``(C, P)``."""
    scaled, peak = split_by_peak(features[None])
    points, eps = scaled[0].T, torch.finfo(features.dtype).eps
    points = points - points.mean(0)
    # A constant channel leaves rounding noise after centering; without this the kernel would amplify it.
    points = torch.where(points.abs() > 8 * eps, points, 0)
    K = kernel(points @ points.T * (gamma * peak * peak).clamp(max=_LARGEST_FACTOR))
    centered = K - K.mean(0) - K.mean(1, keepdim=True) + K.mean()
    values, vectors = torch.linalg.eigh(centered)
    varies = values[-1] > len(K) * eps * K.abs().amax()
    return torch.where(varies, values[-1].clamp(min=0).sqrt() * vectors[:, -1], 0)


@method("fem", paper="10.1109/IPTA50016.2020.9286629", needs="activations")
def fem(evidence: Evidence, *, threshold: Number = 2.0) -> Tensor:
    """Mark where channels fire unusually strongly.

    ``M = Σ_k μ_k [A_k ≥ μ_k + T σ_k]``, where ``μ_k`` and ``σ_k`` are the mean and the standard deviation of channel k
    over the positions (Fuad et al. 2020).

    Args:
        evidence: The activations.
        threshold: ``T``: a position counts if it is this many standard deviations above the channel's mean.

    Returns:
        Maps ``(R, *grid)``. If the activations are not rectified, a channel with a negative mean counts negatively.

    Raises:
        MethodError: ``threshold`` is not a finite number.
    """
    # The squares of large activations overflow, so they are computed relative to the peak.
    A, peak = split_by_peak(evidence.activations)
    axes = tuple(range(2, A.ndim))
    deviation, mean = torch.std_mean(A, axes, correction=0, keepdim=True)
    return peak * (mean * (mean + threshold * deviation <= A)).sum(1)


@weighting("random", paper="arXiv 1810.03292", needs="activations")
def random(evidence: Evidence, *, seed: CountOrZero = 0) -> Tensor:
    """Weigh channels at random, as a baseline.

    Every other method has to beat this map.

    ``w_k`` is uniform between -1 and 1, and the same for every image. This is a baseline, not the method of a paper.
    The cited paper (Adebayo et al. 2018) requires that an explanation differs from one that is independent of the
    model's decision.

    Args:
        evidence: The activations.
        seed: The seed of the random weights.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: ``seed`` is not a whole number of 0 or more.
    """
    A = evidence.activations
    generator = torch.Generator().manual_seed(seed)
    # Drawn in float64 on the CPU, so that every device and type gets the same weights.
    weights = 2 * torch.rand(A.shape[1], generator=generator, dtype=torch.float64, device="cpu") - 1
    return unsqueeze_like(weights.to(A)[None], A).expand(len(A), *[-1] * (A.ndim - 1))


# ------------------------------------------------------------------------------------------ a wrapper of weightings


@wrapper("eigen", needs_weights=True)
def eigen(evidence: Evidence, method: Method) -> Tensor:
    """Take the weighted activations' main pattern.

    ``M = relu(X v)``, where ``X = w A`` is a matrix of positions by channels with the method's weights ``w``, and ``v``
    is the first right singular vector of ``X``, with the sign of :func:`compute_first_component`. It is
    pytorch-grad-cam's ``eigen_smooth``, which has no paper; that centers ``X``, and its sign is arbitrary. A pattern
    has no sign: evidence against the target in all its channels looks like evidence for it.

    Returns:
        Maps ``(R, *grid)``.
    """
    assert method.weight_function is not None  # wrap_method checks it
    return compute_first_component(method.weight_function(evidence) * evidence.activations).relu()
