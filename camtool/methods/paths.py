"""Methods that look at several pictures: noisy ones, those on the way from black, those of other sizes.

``A`` are the activations and ``g`` the gradient of the score towards them, both ``(R, C, *grid)``. What one look at the
layer shows may be an accident of the picture, so these methods look again and average.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from camtool.errors import MethodError, TargetError
from camtool.evidence import Evidence
from camtool.maps import peaks, resize
from camtool.methods.gradient import over_positions
from camtool.methods.options import check_count, check_number, check_numbers, refuse_places
from camtool.methods.registry import method, weighted, weighting
from camtool.rng import noisy
from camtool.streaming import room_for

__all__ = ["cameras", "integrated_gradcam", "smooth_gradcam_plus_plus"]


# ----------------------------------------------------------------------------------------------------- with noise


@weighting("smoothgradcam++", paper="arXiv 1908.01224", needs="gradients, forwards", cost="some passes")
def smooth_gradcam_plus_plus(evidence: Evidence, *, samples: int = 10, noise: float = 0.15, seed: int = 0) -> Tensor:
    """Average Grad-CAM++ over noisy images.

    ``w_k = Σ α relu(D1)`` with ``α = D2 / (2 D2 + D3 Σ A)``, summed over the positions, where ``D1``, ``D2`` and ``D3``
    are the means of ``g``, ``g²`` and ``g³`` over the copies (Omeiza et al. 2019). As in Grad-CAM++ the score goes
    through an exponential, whose derivatives these are; the activations are those of the picture itself. ``g`` is taken
    in units of its peak on the picture, and ``α = 1 / (2 + Σ A · D3/D2)`` is computed: the same numbers, and ``g²`` and
    ``g³`` do not vanish in single precision. ``α`` is 0 where its denominator is, or where ``D1`` is not positive.

    Args:
        evidence: What the model showed.
        samples: How many noisy copies of each picture; each costs a forward and a backward pass.
        noise: The standard deviation of the noise, as a part of the range of the picture's values; 0.1 to 0.2 is what
            SmoothGrad's authors recommend.
        seed: Of the noise, which is the same for every picture.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: An option is out of range.
    """
    check_count("samples", samples)
    check_number("noise", noise, least=0)
    check_count("seed", seed, least=0)
    A, unit = evidence.activations, peaks(evidence.gradients)
    D1 = D2 = D3 = torch.zeros_like(evidence.gradients)
    for pictures in noisy(evidence.inputs, samples, noise, seed):
        g = evidence.again(pictures).gradients / unit
        D1, D2, D3 = D1 + g / samples, D2 + g**2 / samples, D3 + g**3 / samples
    denominator = 2 + unit * (D3 / torch.where(D2 > 0, D2, 1)) * over_positions(A, "sum")
    usable = (D1 > 0) & (denominator.abs() > torch.finfo(A.dtype).eps)
    alpha = torch.where(usable, 1 / torch.where(usable, denominator, 1), 0)
    return over_positions(alpha * D1.relu(), "sum") * unit


# ---------------------------------------------------------------------------------------------- on the way from black


@method("integratedgradcam", paper="arXiv 2102.07805", needs="gradients, forwards", cost="some passes")
def integrated_gradcam(evidence: Evidence, *, steps: int = 20) -> Tensor:
    """Average Grad-CAM on the way from black.

    A saturated score then hides no feature.

    ``∫ relu(Σ_k α_k(t) (A_k(t) - A_k(0))) dt`` for ``t`` from 0 to 1, where ``A(t)`` are the activations for the
    picture ``black + t (picture - black)`` and ``α_k(t)`` is the mean over the positions of the gradient there
    (Sattarzadeh et al. 2021). The integral is the mean of ``steps`` values, at ``t = 1/steps, 2/steps, ..., 1``. The
    authors' code takes zeros for ``A(0)``; here it is what the layer returns for black.

    Black is what the model gets for a black pixel, where the preparation of pictures is known, and 0 elsewhere: with
    inputs that were shifted to a mean of zero, that is the mean colour.

    Args:
        evidence: What the model showed.
        steps: How many pictures on the way, the picture itself included; each costs a forward and a backward pass.

    Returns:
        The maps ``(R, *grid)``.

    Raises:
        MethodError: ``steps`` is less than 1.
    """
    check_count("steps", steps)
    pictures, start = evidence.inputs, evidence.black_pictures
    nothing = evidence.again(start).activations
    result = _gradcam_from(nothing, evidence)
    for step in range(1, steps):
        result = result + _gradcam_from(nothing, evidence.again(start + (pictures - start) * (step / steps)))
    return result / steps


def _gradcam_from(nothing: Tensor, evidence: Evidence) -> Tensor:
    """Grad-CAM of what the activations have beyond those of nothing."""
    return weighted(over_positions(evidence.gradients, "mean"), evidence.activations - nothing).relu()


# ------------------------------------------------------------------------------------------------ at other sizes


@method("cameras", paper="arXiv 2106.10649", needs="gradients, forwards", cost="some passes")
def cameras(evidence: Evidence, *, scales: Sequence[float] = (1.0, 1.5, 2.0)) -> Tensor:
    """Combine Grad-CAM over several image sizes.

    The map is as fine as the image.

    ``relu(Σ_k Ā_k ḡ_k)``, where ``Ā`` and ``ḡ`` are the means of the activations and of the gradients over the scales,
    each brought to the size of the picture (Jalwana et al. 2021). Pictures and maps are resized linearly between the
    centres of cells. A scaled side is rounded to whole cells of the layer's grid, so that a cell stays as large.

    Args:
        evidence: What the model showed.
        scales: The sizes at which the model looks, in units of the picture's own; each but 1 costs a forward and a
            backward pass, in proportion to its square.

    Returns:
        The maps ``(R, *size)``.

    Raises:
        MethodError: There is no scale, one is not positive, the model does not take pictures of such a size, or a
            target is about a part of the picture.
    """
    check_numbers("scales", scales, above=0)
    refuse_places(evidence, "cameras resizes the picture")
    seen = [_seen_at(evidence, scale) for scale in scales]
    size, (rows, channels) = evidence.inputs.shape[2:], evidence.activations.shape[:2]
    result = evidence.activations.new_zeros(rows, *size)
    at_once = room_for(rows * size.numel(), result)
    for first in range(0, channels, at_once):  # all channels at the picture's size would fill the memory
        A, g = (_mean_at(size, [maps[:, first : first + at_once] for maps in kind]) for kind in zip(*seen, strict=True))
        result = result + weighted(g, A)
    return result.relu()


def _mean_at(size: Sequence[int], several: Sequence[Tensor]) -> Tensor:
    """The mean of several maps ``(R, C, *grid)``, each on a grid of its own: ``(R, C, *size)``."""
    return torch.stack([_resized(maps, size) for maps in several]).mean(0)


def _seen_at(evidence: Evidence, scale: float) -> tuple[Tensor, Tensor]:
    """Activations and gradients, ``(R, C, *grid)`` each, for the picture at another size."""
    pictures, grid = evidence.inputs, evidence.activations.shape[2:]
    size = [
        max(1, round(pixels / cells * max(1, round(cells * scale))))
        for pixels, cells in zip(pictures.shape[2:], grid, strict=True)
    ]
    if list(pictures.shape[2:]) == size:
        return evidence.activations, evidence.gradients
    try:
        other = evidence.again(_resized(pictures, size))
    except (TargetError, torch.OutOfMemoryError):  # which are no fault of the size
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        raise MethodError(
            f"method 'cameras' asked the model for pictures of {' x '.join(map(str, size))}, scales={scale}, and it "
            f"did not take them ({error}). Where a model has one size of input, scales=(1,) or method='hirescam' works."
        ) from error
    return other.activations, other.gradients


def _resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps ``(N, C, *grid)`` at another size."""
    return resize(maps.flatten(0, 1), size).reshape(*maps.shape[:2], *size)
