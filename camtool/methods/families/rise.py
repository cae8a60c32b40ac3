"""Masks of the image: random ones, averaged by what the model finds (RISE, D-RISE), or one window after another.

They need no layer and no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from camtool.arguments.checks import Count, CountOrZero, OptionalCount, Share
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import MakeVariants, score_inputs
from camtool.maps import ROUNDING_STEPS, resize_to_grid, unsqueeze_like, upcast
from camtool.methods.families.scorecam import MASKS_AT_ONCE, align_with_input
from camtool.methods.options import Scored, check_number, prefer_probability
from camtool.methods.registry import method
from camtool.outputs.predictions import Prediction
from camtool.targets import Target


@method("rise", paper="arXiv 1806.07421", needs="forwards", cost="many passes", ignores_layer=True)
def rise(
    evidence: Evidence,
    *,
    samples: Count = 2000,
    cells: Count = 7,
    keep: Share = 0.5,
    seed: CountOrZero = 0,
    score: Scored = "probability",
    chunk: OptionalCount = None,
) -> Tensor:
    """Average random masks by the score they leave.

    ``S = Σ_i f(x · M_i) M_i / Σ_i M_i``: the mean score of the masks that show a pixel (Petsiuk et al. 2018, section
    3). A mask is a coarse grid whose cells are shown with probability ``keep``. It is resized to one cell more than the
    input's size and cropped at random.

    The paper divides by the expected value ``keep · N``. Here the sum of the masks is the divisor, because random
    differences in how often pixels are shown would otherwise appear in the map, in proportion to the score.

    Args:
        evidence: The model to run on masked inputs.
        samples: The number of masks. With few masks the map is grainy; the paper uses 4000 and 8000.
        cells: The number of cells along each axis.
        keep: The probability that a cell is shown.
        seed: The seed of the masks, which are the same for every image.
        score: The score ``f``. ``"probability"`` as in the paper: the probability of the class if the target has one,
            else the target's own score. ``"target"``: always the target's own score.
        chunk: The number of masked inputs in one pass; by default as many as fit into memory.

    Returns:
        The maps ``(R, *size)``, at the input's size.

    Raises:
        MethodError: An option is out of range.
    """
    convert = prefer_probability if score == "probability" else None
    make_masks = _prepare_random_masks(evidence.inputs, samples, cells, keep, seed)
    return _average_random_masks(evidence, make_masks, samples, lambda _: convert, chunk)


@method("drise", paper="arXiv 2006.03204", needs=("forwards", "a detector"), cost="many passes", ignores_layer=True)
def drise(
    evidence: Evidence,
    *,
    samples: Count = 5000,
    cells: Count = 16,
    keep: Share = 0.5,
    seed: CountOrZero = 0,
    chunk: OptionalCount = None,
) -> Tensor:
    """Average masks by the detection they leave.

    ``S = Σ_i w_i M_i / Σ_i M_i``, where ``w_i`` is the largest similarity of a detection ``d`` on the masked image
    ``x · M_i`` to the explained detection ``t``: ``max_d IoU(t, d) · cos(p_t, p_d) · o_d``, with the probabilities
    ``p`` of the classes and the objectness ``o`` (Petsiuk et al. 2021, section 3). The model is a black box: any
    detector whose detections camtool reads can be explained.

    The paper leaves ``o`` out for detectors without an objectness score. Here the confidence of the best class takes
    its place, because for detectors that return one class per box, as in torchvision, all that is known of ``p`` is
    the class: the cosine is then 1 for the same class, else 0, and a weaker detection would count as much as a strong
    one. As in :func:`rise` the sum is divided by how often the masks show each pixel.

    Args:
        evidence: The detector to run on masked inputs.
        samples: The number of masks; the default is the paper's.
        cells: The number of cells along each axis; the default is the paper's.
        keep: The probability that a cell is shown.
        seed: The seed of the masks, which are the same for every image.
        chunk: The number of masked inputs in one pass; by default as many as fit into memory.

    Returns:
        The maps ``(R, *size)``, at the input's size.

    Raises:
        MethodError: An option is out of range, or a target is not a detection.
    """

    def convert_for(image: int) -> Callable[[Target], Target]:
        return partial(_require_similarity, evidence.forward_pass.predictions[image])

    make_masks = _prepare_random_masks(evidence.inputs, samples, cells, keep, seed)
    return _average_random_masks(evidence, make_masks, samples, convert_for, chunk)


@method("occlusion", paper="arXiv 1311.2901", needs="forwards", cost="many passes", ignores_layer=True)
def occlusion(
    evidence: Evidence, *, window: Share = 0.25, stride: float = 0.125, chunk: OptionalCount = None
) -> Tensor:
    """Average by how much the score drops if a window of the image is covered.

    ``M(p) = mean_{w ∋ p} y_c(x) - y_c(x without w)``: the mean over the windows that cover a pixel, as in captum
    (Zeiler and Fergus 2014, section 4.2, draw each drop at the window's place). They cover with gray; here the model's
    input is set to 0, which is gray after the usual normalizations. The score is the target's own, not its probability,
    which hardly changes where it is close to 1.

    Args:
        evidence: The model to run on covered inputs.
        window: The side of a window, as a share of the image's.
        stride: The distance between windows, as a share of the image's side. The last one ends at the border.
        chunk: The number of covered inputs in one pass; by default as many as fit into memory.

    Returns:
        The maps ``(R, *size)``, at the input's size; negative where the score rises without the pixels.

    Raises:
        MethodError: An option is out of range.
    """
    check_number("stride", stride, above=0, most=window)
    inputs = evidence.inputs
    windows = _list_windows(inputs.shape[2:], window, stride)
    results = upcast(inputs).new_empty(len(evidence.images), *inputs.shape[2:])
    for rows in evidence.rows_by_image:
        make_variants = partial(_cover_windows, inputs[evidence.images[rows[0]]], windows)
        scores = score_inputs(evidence, rows, len(windows) + 1, make_variants, chunk=chunk).to(results)
        results[rows] = _average_drops(_compute_drops(scores), windows, inputs.shape[2:])
    return results


def _list_windows(size: Sequence[int], window: float, stride: float) -> list[tuple[slice, ...]]:
    """Return the windows over an input of this size, at regular distances along each axis."""
    axes = []
    for length in size:
        side, step = (max(1, round(share * length)) for share in (window, stride))
        starts = [*range(0, length - side, step), length - side]
        axes.append([slice(start, start + side) for start in starts])
    return list(product(*axes))


def _cover_windows(x: Tensor, windows: Sequence[tuple[slice, ...]], part: slice) -> Tensor:
    """Return the input ``(C, *size)`` as it is, number 0, or without one window: ``(m, C, *size)``."""
    covered = []
    for number in range(part.start, part.stop):
        copy = x.clone()
        if number:
            window = (slice(None), *windows[number - 1])
            copy[window] = 0
        covered.append(copy)
    return torch.stack(covered)


def _compute_drops(scores: Tensor) -> Tensor:
    """Return by how much each row's score drops for each window ``(W, rows)``, from the scores ``(1 + W, rows)``.

    Drops that differ by no more than the rounding of the scores are equal: the map would show noise at full heat.
    """
    drops = scores[:1] - scores[1:]
    rounding = ROUNDING_STEPS * torch.finfo(scores.dtype).eps * scores.abs().amax(0)
    return torch.where(drops.amax(0) - drops.amin(0) > rounding, drops, drops.mean(0))


def _average_drops(drops: Tensor, windows: Sequence[tuple[slice, ...]], size: Sequence[int]) -> Tensor:
    """Return at each pixel the mean of the drops ``(W, rows)`` of the windows that cover it: ``(rows, *size)``."""
    total, count = drops.new_zeros(drops.shape[1], *size), drops.new_zeros(tuple(size))
    for drop, region in zip(drops, windows, strict=True):
        cells = (slice(None), *region)
        total[cells] += unsqueeze_like(drop, total[cells])
        count[region] += 1
    return total / count


def _require_similarity(prediction: Prediction, target: Target) -> Target:
    similarity = target.to_similarity(prediction)
    if similarity is None:
        raise MethodError(
            f"method 'drise' explains one detection of a detector, and target_class is {target}; pass a class that the "
            "detector found, Detection(n) or Box(xyxy), or use method='rise', which works with any target."
        )
    return similarity


def _average_random_masks(
    evidence: Evidence,
    make_masks: MakeVariants,
    samples: int,
    convert_for: Callable[[int], Callable[[Target], Target] | None],
    chunk: int | None,
) -> Tensor:
    """Return each row's mean of random masks, weighted by the score of the masked input: ``(R, *size)``.

    ``convert_for`` gives, for an image, what to score instead of a row's target.
    """
    inputs = evidence.inputs
    results = upcast(inputs).new_empty(len(evidence.images), *inputs.shape[2:])
    for rows in evidence.rows_by_image:
        image = evidence.images[rows[0]]
        make_variants = partial(_mask_input, make_masks, inputs[image])
        scores = score_inputs(evidence, rows, samples, make_variants, chunk=chunk, convert_target=convert_for(image))
        results[rows] = _average_masks(scores.to(results), make_masks)
    return results


def _average_masks(scores: Tensor, make_masks: MakeVariants) -> Tensor:
    """Return each row's mean of the scores ``(N, rows)``, weighted at each pixel by the masks: ``(rows, *size)``."""
    mean = scores.mean(0)
    above, shown = scores.new_zeros(()), scores.new_zeros(())
    for start in range(0, len(scores), MASKS_AT_ONCE):
        part = slice(start, start + MASKS_AT_ONCE)
        masks = make_masks(part)
        # Differences from the mean are summed, so that equal scores give a constant map in spite of rounding.
        above = above + torch.tensordot((scores[part] - mean).T, masks, 1)
        shown = shown + masks.sum(0)
    return unsqueeze_like(mean, above) + above / torch.where(shown > 0, shown, 1)


def _mask_input(make_masks: MakeVariants, x: Tensor, part: slice) -> Tensor:
    return (align_with_input(make_masks(part), x) * x).to(x.dtype)


def _prepare_random_masks(inputs: Tensor, samples: int, cells: int, keep: float, seed: int) -> MakeVariants:
    """Return a function that makes a slice of the masks, ``(m, *size)``; only grids and shifts are kept in memory."""
    size = inputs.shape[2:]
    # Rounded up, so that the cells cover the input.
    cell = [-(-length // cells) for length in size]
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(samples, *[cells] * len(size), generator=generator, device="cpu")
    grids = (uniform < keep).to(upcast(inputs))
    fractions = torch.rand(samples, len(size), generator=generator, dtype=torch.float64, device="cpu")
    shifts = (fractions * torch.tensor(cell, device="cpu")).long().tolist()

    def make_masks(part: slice) -> Tensor:
        large = resize_to_grid(grids[part], [(cells + 1) * length for length in cell])
        windows = [
            tuple(slice(start, start + length) for start, length in zip(shift, size, strict=True))
            for shift in shifts[part]
        ]
        return torch.stack([mask[window] for mask, window in zip(large, windows, strict=True)])

    return make_masks
