"""RISE: random masks of the image, averaged by the score of the masked image. It needs no layer and no gradient."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import MakeVariants, score_inputs
from camtool.maps import resize, unsqueeze_like, upcast
from camtool.methods.families.scorecam import MASKS_AT_ONCE, align_with_input, prefer_probability
from camtool.methods.options import check_choice, check_count, check_number
from camtool.methods.registry import method

__all__ = ["rise"]


@method("rise", paper="arXiv 1806.07421", needs="forwards", cost="many passes", ignores_layer=True)
def rise(
    evidence: Evidence,
    *,
    samples: int = 2000,
    cells: int = 7,
    keep: float = 0.5,
    seed: int = 0,
    score: Literal["probability", "target"] = "probability",
    chunk: int | None = None,
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
    check_count("samples", samples)
    check_count("cells", cells)
    check_number("keep", keep, above=0, most=1)
    check_count("seed", seed, least=0)
    check_choice("score", score, ("probability", "target"))
    check_count("chunk", chunk, optional=True)
    convert = prefer_probability if score == "probability" else None
    inputs = evidence.inputs
    make_masks = _prepare_random_masks(inputs, samples, cells, keep, seed)
    results = upcast(inputs).new_empty(len(evidence.images), *inputs.shape[2:])
    for rows in evidence.rows_by_image:
        make_variants = partial(_mask_input, make_masks, inputs[evidence.images[rows[0]]])
        scores = score_inputs(evidence, rows, samples, make_variants, chunk=chunk, convert_target=convert)
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
    grids = (torch.rand(samples, *[cells] * len(size), generator=generator) < keep).to(upcast(inputs))
    fractions = torch.rand(samples, len(size), generator=generator, dtype=torch.float64)
    shifts = (fractions * torch.tensor(cell)).long().tolist()

    def make_masks(part: slice) -> Tensor:
        large = resize(grids[part], [(cells + 1) * length for length in cell])
        windows = [
            tuple(slice(start, start + length) for start, length in zip(shift, size, strict=True))
            for shift in shifts[part]
        ]
        return torch.stack([mask[window] for mask, window in zip(large, windows, strict=True)])

    return make_masks
