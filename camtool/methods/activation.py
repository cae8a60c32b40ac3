"""Methods that look for what the activations have in common; most of them ask for no gradient.

``A`` are the activations and ``g`` the gradient of the score towards them, both ``(R, C, *grid)``. An eigen method
takes each position's C features as a point, and the map is how far the points lie along the direction in which they lie
furthest out: :func:`first_component`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from camtool.errors import MethodError
from camtool.evidence import Evidence
from camtool.maps import peaks, per_row
from camtool.methods.options import check_choice, check_count, check_number
from camtool.methods.registry import method, weighting

__all__ = [
    "KERNELS",
    "eigencam",
    "eigengradcam",
    "fem",
    "first_component",
    "kpcacam",
    "random",
    "segeigencam",
]


@method(
    "eigencam",
    paper="arXiv 2008.00299",
    needs="activations",
    weights=lambda evidence: torch.ones_like(evidence.activations),
)
def eigencam(evidence: Evidence) -> Tensor:
    """Take the main pattern of the activations.

    The pattern is the same for every class.

    ``M = A v``, with ``A`` as a matrix of positions by channels and ``v`` its first right singular vector (Muhammad and
    Yeasin 2020, section III). As in the paper the activations are not centred first, so that of rectified ones the map
    is nowhere negative; a singular vector has no sign of its own, and gets it as :func:`first_component` says.

    Returns:
        Maps ``(R, *grid)``.
    """
    return first_component(evidence.activations)


@method("eigengradcam", paper="arXiv 2008.00299", needs="gradients", weights=lambda evidence: evidence.gradients)
def eigengradcam(evidence: Evidence) -> Tensor:
    """Take gradient x activation's main pattern.

    ``M = relu(X v)`` with ``X = g A`` as a matrix of positions by channels and ``v`` its first right singular vector.
    The cited paper has it for ``X = A``; this variant is common practice and has no paper of its own. A pattern has no
    sign, so what speaks strongly against the target shows like what speaks for it: where a linear head pools rectified
    activations, the map is the same for the weights ``w`` and ``|w|``. Grad-CAM and HiResCAM tell which it is.

    Returns:
        Maps ``(R, *grid)``.
    """
    return first_component(evidence.gradients * evidence.activations).relu()


@method(
    "segeigencam", paper="10.3390/app15137562", needs="gradients", weights=lambda evidence: evidence.gradients.abs()
)
def segeigencam(evidence: Evidence) -> Tensor:
    """Take the main pattern, weighed by |gradient|.

    ``M = relu(± X v)`` with ``X = |g| A`` (Chung and Ying 2025, eq. 10) as a matrix of positions by channels, ``v`` its
    first right singular vector, and the sign by which the value that is largest in magnitude is positive (eq. 13). As
    in Eigen-CAM, which the paper extends, ``X`` is not centred.

    Returns:
        Maps ``(R, *grid)``.
    """
    component = first_component(evidence.gradients.abs() * evidence.activations)
    values = component.flatten(1)
    turned = per_row(-values.amin(1) > values.amax(1), component)
    return torch.where(turned, -component, component).relu()


@method("kpcacam", paper="arXiv 2410.00267", needs="activations", cost="some passes")
def kpcacam(
    evidence: Evidence, *, kernel: str = "sigmoid", gamma: float | None = None, positions: int = 4096
) -> Tensor:
    """Take the activations' main nonlinear pattern.

    Kernel PCA of the positions' features ``x_i``, centred (Karmani et al. 2024): ``M_i = √λ u_i``, with ``λ`` and ``u``
    the largest eigenvalue and its eigenvector of the centred kernel matrix ``K - 1K - K1 + 1K1``, where ``1`` is the
    matrix of ``1 / P``. With the paper's sigmoid kernel ``K_ij = tanh(γ x_i · x_j + 1)``. The sign is the one by which
    the map goes with the energy ``Σ_k A_k²``.

    Args:
        evidence: What the method may look at.
        kernel: A name in :data:`KERNELS`.
        gamma: The factor ``γ`` of the kernel; by default ``1 / C``. It makes no difference to the cosine.
        positions: The most positions that are compared, each with each: the memory grows with their square, the time
            with their cube.

    Returns:
        Signed maps ``(R, *grid)`` with a mean of 0.

    Raises:
        MethodError: The kernel is unknown, ``gamma`` is not positive, or the layer has more positions.
    """
    A = evidence.activations
    grid = A.shape[2:]
    check_choice("kernel", kernel, KERNELS)
    check_number("gamma", gamma, above=0, optional=True)
    check_count("positions", positions)
    gamma = 1 / A.shape[1] if gamma is None else gamma
    if grid.numel() > positions:
        raise MethodError(
            f"kpcacam compares each position with each, and the layer's grid {tuple(grid)} has {grid.numel()} of them, "
            f"more than positions={positions}; choose a deeper layer, or raise positions if there is time and memory."
        )
    components = [_kernel_component(one, KERNELS[kernel], gamma) for one in A.flatten(2)]  # one at a time, for memory
    return _oriented(torch.stack(components).unflatten(1, grid), _in_units_of_the_peak(A)[0])


@method("fem", paper="10.1109/IPTA50016.2020.9286629", needs="activations")
def fem(evidence: Evidence, *, threshold: float = 2.0) -> Tensor:
    """Mark where channels fire unusually strongly.

    ``M = Σ_k μ_k [A_k ≥ μ_k + T σ_k]`` with ``μ_k`` and ``σ_k`` the mean and the standard deviation of channel k over
    the positions (Fuad et al. 2020).

    Args:
        evidence: What the method may look at.
        threshold: ``T``, how many standard deviations above its mean a channel is to be counted.

    Returns:
        Maps ``(R, *grid)``; where activations are not rectified, a channel with a negative mean counts against.

    Raises:
        MethodError: ``threshold`` is not a finite number.
    """
    check_number("threshold", threshold)
    A, unit = _in_units_of_the_peak(evidence.activations)  # squares of large numbers overflow
    axes = tuple(range(2, A.ndim))
    deviation, mean = torch.std_mean(A, axes, correction=0, keepdim=True)
    return unit * (mean * (mean + threshold * deviation <= A)).sum(1)


@weighting("random", paper="arXiv 1810.03292", needs="activations")
def random(evidence: Evidence, *, seed: int = 0) -> Tensor:
    """Weigh channels at random, as a baseline.

    Every other method has to beat this map.

    ``w_k`` is uniform between -1 and 1, the same for every image. It is a baseline, and no paper's method: the cited
    one (Adebayo et al. 2018) asks of an explanation that it differ from one which knows nothing of the model's choice.

    Args:
        evidence: What the method may look at.
        seed: Of the dice.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: The seed is no whole number of 0 or more.
    """
    check_count("seed", seed, least=0)
    A = evidence.activations
    dice = torch.Generator().manual_seed(seed)
    weights = 2 * torch.rand(A.shape[1], generator=dice, dtype=torch.float64) - 1
    return per_row(weights.to(A)[None], A).expand(len(A), *[-1] * (A.ndim - 1))


# --------------------------------------------------------------------------------------------- the first component


def first_component(features: Tensor) -> Tensor:
    """How far each position lies along the direction in which the positions lie furthest out.

    With ``X`` a row's positions by channels, that is ``X v = σ u``, of the first singular vectors ``u`` and ``v``. They
    come from the eigenvectors of ``X Xᵀ`` or ``Xᵀ X``, whichever is smaller, and not from a decomposition of ``X``. A
    singular vector is known but for its sign: here the component goes with the energy ``e = Σ_k x_k²`` rather than
    against it, ``Σ M e ≥ 0`` over the positions, so that it is positive where much goes on.

    Args:
        features: ``(R, C, *grid)``.

    Returns:
        ``(R, *grid)``; zeros for a row of zeros, and for one that holds infinities or NaN.
    """
    scaled, unit = _in_units_of_the_peak(features)
    points = scaled.flatten(2).mT
    component = (points @ _axis(points)).reshape(len(features), *features.shape[2:])
    return unit * _oriented(component, scaled)


def _axis(points: Tensor) -> Tensor:
    """The first right singular vector ``(R, C, 1)`` of each row's points ``(R, P, C)``."""
    few_channels = points.shape[1] >= points.shape[2]
    gram = points.mT @ points if few_channels else points @ points.mT
    first: Tensor = torch.linalg.eigh(gram).eigenvectors[..., -1:]
    return first if few_channels else torch.nn.functional.normalize(points.mT @ first, dim=1)


def _oriented(component: Tensor, scaled: Tensor) -> Tensor:
    """The component ``(R, *grid)`` with the sign by which it goes with the energy of features ``(R, C, *grid)``."""
    against = (component * scaled.square().sum(1)).flatten(1).sum(1) < 0
    return torch.where(per_row(against, component), -component, component)


# -------------------------------------------------------------------------------------------------------- kernels


def _sigmoid(products: Tensor) -> Tensor:
    return (products + 1).tanh()


def _rbf(products: Tensor) -> Tensor:
    squares = products.diagonal()
    return (2 * products - squares[:, None] - squares).clamp(max=0).exp()


def _cosine(products: Tensor) -> Tensor:
    lengths = products.diagonal().sqrt()
    lengths = torch.where(lengths > 0, lengths, 1)
    return products / lengths[:, None] / lengths


KERNELS: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": _sigmoid, "rbf": _rbf, "cosine": _cosine}
"""Name → function from the products of the points times gamma, ``(P, P)``, to the kernel's values."""

_LARGE = 1e30
"""What every kernel takes for endless, and single precision still holds, times a layer's channels."""


def _kernel_component(features: Tensor, kernel: Callable[[Tensor], Tensor], gamma: float) -> Tensor:
    """The first component of kernel PCA of one row's positions: from features ``(C, P)`` to ``(P,)``."""
    scaled, unit = _in_units_of_the_peak(features[None])
    points, eps = scaled[0].T, torch.finfo(features.dtype).eps
    points = points - points.mean(0)
    points = torch.where(points.abs() > 8 * eps, points, 0)  # or else a constant channel is rounding noise
    K = kernel(points @ points.T * (gamma * unit * unit).clamp(max=_LARGE))
    centred = K - K.mean(0) - K.mean(1, keepdim=True) + K.mean()
    values, vectors = torch.linalg.eigh(centred)
    varies = values[-1] > len(K) * eps * K.abs().amax()
    return torch.where(varies, values[-1].clamp(min=0).sqrt() * vectors[:, -1], 0)


# -------------------------------------------------------------------------------------------------------- numbers


def _in_units_of_the_peak(features: Tensor) -> tuple[Tensor, Tensor]:
    """Each row in units of its largest magnitude, and those, as ``(R, 1, ...)`` of one axis less.

    Squares of what is left neither overflow nor all vanish. A row that is not finite comes out as zeros.
    """
    unit = peaks(features)
    usable = unit.isfinite()
    return torch.where(usable, features / unit, 0), torch.where(usable, unit, 1)[:, 0]
