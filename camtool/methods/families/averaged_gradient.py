"""Gradient methods that average over several versions of an image: noisy, dimmed, or resized ones.

``A`` are the activations and ``g`` the gradient of the score with respect to them, both ``(R, C, *grid)``. A single
pass may show an accident of the image; these methods run further passes and average.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from camtool.arguments.checks import Count, CountOrZero, NotNegative
from camtool.errors import MethodError, TargetError, raise_interrupt
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import iterate_noisy_copies
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.resampling import resample
from camtool.hooks.chunks import compute_chunk_size
from camtool.maps import find_peaks
from camtool.methods.families.gradient import average_over_positions, sum_over_positions
from camtool.methods.options import check_no_local_targets, check_numbers
from camtool.methods.registry import method, weighting


@weighting("smoothgradcam++", paper="arXiv 1908.01224", needs=("gradients", "forwards"), cost="some passes")
def smooth_gradcam_plus_plus(
    evidence: Evidence, *, samples: Count = 10, noise: NotNegative = 0.15, seed: CountOrZero = 0
) -> Tensor:
    """Average Grad-CAM++ over noisy images.

    ``w_k = Σ α relu(D1)`` with ``α = D2 / (2 D2 + D3 Σ A)``, summed over the positions, where ``D1``, ``D2`` and ``D3``
    are the means of ``g``, ``g²`` and ``g³`` over the copies (Omeiza et al. 2019). As in Grad-CAM++ these are the
    derivatives of the exponential of the score. The activations are those of the image itself.

    ``g`` is divided by its peak on the image, and ``α = 1 / (2 + Σ |A| · D3/D2)`` is computed: the same values, but
    ``g²`` and ``g³`` do not vanish in single precision. ``Σ |A|`` is taken, as in Grad-CAM++. ``α`` is 0 where its
    denominator or ``D1`` is not positive.

    Args:
        evidence: The activations and gradients, and the model.
        samples: The number of noisy copies of each image; each needs a forward and a backward pass.
        noise: The standard deviation of the noise, relative to the range of the image's values; the authors of
            SmoothGrad recommend 0.1 to 0.2.
        seed: The seed of the noise, which is the same for every image.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: An option is out of range.
    """
    A, unit = evidence.activations, find_peaks(evidence.gradients)
    D1 = D2 = D3 = torch.zeros_like(evidence.gradients)
    for inputs in iterate_noisy_copies(evidence.inputs, samples, noise, seed):
        g = evidence.for_inputs(inputs).gradients / unit
        D1, D2, D3 = D1 + g / samples, D2 + g**2 / samples, D3 + g**3 / samples
    denominator = 2 + unit * (D3 / torch.where(D2 > 0, D2, 1)) * sum_over_positions(A.abs())
    usable = (D1 > 0) & (denominator > torch.finfo(A.dtype).eps)
    alpha = torch.where(usable, 1 / torch.where(usable, denominator, 1), 0)
    return sum_over_positions(alpha * D1.relu()) * unit


@method("integratedgradcam", paper="arXiv 2102.07805", needs=("gradients", "forwards"), cost="some passes")
def integrated_gradcam(evidence: Evidence, *, steps: Count = 20) -> Tensor:
    """Average Grad-CAM on the way from black.

    A saturated score then hides no feature.

    ``∫ relu(Σ_k α_k(t) (A_k(t) - A_k(0))) dt`` for ``t`` from 0 to 1, where ``A(t)`` are the activations for the input
    ``black + t (input - black)`` and ``α_k(t)`` is the mean gradient over the positions there (Sattarzadeh et al.
    2021). The integral is the mean of ``steps`` values at ``t = 1/steps, 2/steps, ..., 1``. The authors' code uses
    zeros for ``A(0)``; here ``A(0)`` is what the layer returns for black.

    Black is the value of a black pixel in the model's input if the preprocessing is known, and 0 otherwise: for inputs
    that are normalized to a mean of zero, 0 is the mean color.

    Args:
        evidence: The activations and gradients, and the model.
        steps: The number of inputs on the path, including the image itself; each needs a forward and a backward pass.

    Returns:
        The maps ``(R, *grid)``.

    Raises:
        MethodError: ``steps`` is less than 1.
    """
    inputs, black = evidence.inputs, evidence.black_inputs
    baseline = evidence.for_inputs(black).activations
    result = _compute_gradcam_above(baseline, evidence)
    for step in range(1, steps):
        dimmed = evidence.for_inputs(black + (inputs - black) * (step / steps))
        result = result + _compute_gradcam_above(baseline, dimmed)
    return result / steps


def _compute_gradcam_above(baseline: Tensor, evidence: Evidence) -> Tensor:
    """Return the Grad-CAM map of the activations minus those of a baseline."""
    return (average_over_positions(evidence.gradients) * (evidence.activations - baseline)).sum(1).relu()


@method("cameras", paper="arXiv 2106.10649", needs=("gradients", "forwards"), cost="some passes", at_input_size=True)
def cameras(evidence: Evidence, *, scales: Sequence[float] = (1.0, 1.5, 2.0)) -> Tensor:
    """Combine Grad-CAM over several image sizes.

    The map is as fine as the image.

    ``relu(Σ_k Ā_k ḡ_k)``, where ``Ā`` and ``ḡ`` are the means of the activations and of the gradients over the scales,
    each resized to the image's size (Jalwana et al. 2021). Images and maps are resized linearly between the centers of
    cells. A scaled side is rounded to whole cells of the layer's grid, so a cell covers the same number of pixels.

    Args:
        evidence: The activations and gradients, and the model.
        scales: The sizes of the image, relative to its own size. Each except 1 needs a forward and a backward pass,
            whose cost grows with the square of the scale.

    Returns:
        The maps ``(R, *size)``.

    Raises:
        MethodError: There is no scale, a scale is not positive, the model does not accept images of this size, or a
            target is a region of the image.
    """
    check_numbers("scales", scales, above=0)
    check_no_local_targets(evidence, "cameras resizes the image")
    by_scale = [_observe_at_scale(evidence, scale) for scale in scales]
    size, (rows, channels) = evidence.inputs.shape[2:], evidence.activations.shape[:2]
    result = evidence.activations.new_zeros(rows, *size)
    # All channels at the image's size would fill the memory, so they are summed in chunks.
    chunk = compute_chunk_size(rows * size.numel(), result)
    for first in range(0, channels, chunk):
        part = slice(first, first + chunk)
        A = _average_at_size(size, [(activations[:, part], centers) for activations, _, centers in by_scale])
        # The heat is their product: it fades beyond the cells once, with the activations.
        g = _average_at_size(size, [(gradients[:, part], centers) for _, gradients, centers in by_scale], holds=True)
        result = result + (g * A).sum(1)
    return result.relu()


def _average_at_size(
    size: Sequence[int], several: Sequence[tuple[Tensor, CellCenters | None]], *, holds: bool = False
) -> Tensor:
    """Return the mean ``(R, C, *size)`` of several maps ``(R, C, *grid)``, each with the centers of its cells."""
    return torch.stack([_resize_channels(maps, size, centers, holds=holds) for maps, centers in several]).mean(0)


def _observe_at_scale(evidence: Evidence, scale: float) -> tuple[Tensor, Tensor, CellCenters | None]:
    """Return the activations and gradients, ``(R, C, *grid)`` each, and the centers for the image at another size."""
    inputs, grid = evidence.inputs, evidence.activations.shape[2:]
    size = [
        max(1, round(pixels / cells * max(1, round(cells * scale))))
        for pixels, cells in zip(inputs.shape[2:], grid, strict=True)
    ]
    if list(inputs.shape[2:]) == size:
        return evidence.activations, evidence.gradients, evidence.find_centers()
    try:
        other = evidence.for_inputs(_resize_channels(inputs, size))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise_interrupt(error, TargetError, torch.OutOfMemoryError)  # not caused by the size
        raise MethodError(
            f"method 'cameras' ran the model on images of {' x '.join(map(str, size))} (scales={scale}), and the model "
            f"did not accept them ({error}). For a model with a fixed input size use scales=(1,) or method='hirescam'."
        ) from error
    return other.activations, other.gradients, other.find_centers()


def _resize_channels(
    maps: Tensor, size: Sequence[int], centers: CellCenters | None = None, *, holds: bool = False
) -> Tensor:
    """Return maps ``(N, C, *grid)`` at another size, ``(N, C, *size)``; without centers they are stretched."""
    return resample(maps.flatten(0, 1), centers, size, None, holds=holds).reshape(*maps.shape[:2], *size)
