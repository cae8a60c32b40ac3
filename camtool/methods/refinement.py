"""Refinement, camtool's own: what the score loses under a few masks corrects a map, and says how certain each cell is.

A map of one pass is a first-order guess. Here the image is divided into C cells of equal size, 14 x 14 for a photo, and
``y_i = f(x) - f(x without mask i)`` is measured for n masks. With the share ``m_ic`` of cell c that a mask covers, and
the heat ``h_c`` of the map, whose sum is 1, the model is

    ``y_i = b + (r + u f_i) ∂m_i + Σ_c m_ic w_c + e_i``,  ``w_c = a h_c + d_c``,
    ``Var e_i = s² ((0.02 + |m_i|)^1.5 (1 + 10 ∂m_i) + ∂m_i)``

where ``|m_i|`` is the share of the image under the mask, and ``∂m_i`` the length of its edges: the mean difference
between the shares of neighboring cells. The larger and the more ragged a mask is, the less do drops add up. ``b`` is
what any mask does, and ``r`` what its edges do, which depends on the fill: ``f_i`` is 1 for an input of 0, whose edges
are sharp, and -1 for a blurred one.

All are Gaussian: ``a ~ N(0, 25 s²)``, ``b ~ N(0, 0.01 s²)``, ``r, u ~ N(0, 4 s²)``, and the correction d has the
covariance ``s² t² v_c v_k exp(-|c - k|² / 2 l²) / C²``, with distances in sides of the image and ``l = 0.1``. ``v_c²``
is proportional to ``0.03 + C h_c``, with mean 1: where the map has heat, it may err more. The unit ``s`` is integrated
out, and ``t`` averaged over seven values from 0.27 to 14.8, each weighted by the likelihood of the drops and by a
normal prior of ``log t`` around ``log 2`` with deviation 0.5. The posterior mean of w, where it is positive, is the
refined map. Few or contradictory drops change little: the uncertainty shrinks the correction.

Drops of a region that is asked for add up the worse, the more evidence it hides: the residuals of masks over the cells
that the score uses most are several times those of masks beside them. So ``Var e`` of a region is ``1.4 (0.4 + 0.6 q)``
times that of a mask with ``10 |m|⁴`` more in its bracket, as none covers more than a quarter of the image. ``q`` is the
share of ``Σ_c |w_c|`` that the region hides, divided by ``|m|``; in each round of masks its mean is 1. The factor 1.4
is for regions of other kinds than the masks.

Masks are made by a low-discrepancy sequence, without random numbers: the first of each round divide the image into
Voronoi cells, so that each round covers each pixel once. Rounds have 4, 8, 4, 16, 12 and 20 masks, and then begin
again; the third and the fifth have masks of 48 and 5 pieces each: of small pieces more is lost than of their cells one
by one, and only such masks tell how much. Half of the masks show the blurred image, half an
input of 0, which is gray if the model's input is normalized: nobody knows which removal will be asked for. Constants
were chosen on 24 photos, see docs/refine.md.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d, pad

from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import score_inputs
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.resampling import resample
from camtool.hooks.structures.modules import find_detector_transform
from camtool.maps import ROUNDING_STEPS, unsqueeze_like, upcast
from camtool.methods.families.scorecam import blur_input
from camtool.methods.options import check_count

# The smallest number of masks: the first round, which hides each pixel once.
FEWEST_PASSES = 4

# The largest number of masks; the regression takes the cube of it.
MOST_PASSES = 1024

# Cells along each axis, by the number of axes.
_CELLS = {1: 64, 2: 14, 3: 6}

# The number of masks of each round, and of the pieces of each mask.
_ROUNDS = ((4, 1), (8, 1), (4, 48), (16, 1), (12, 5), (20, 1))

_POOLS: dict[int, Callable[..., Tensor]] = {1: adaptive_avg_pool1d, 2: adaptive_avg_pool2d, 3: adaptive_avg_pool3d}

# Points along each axis of a cell at which masks are made.
_LATTICE = 4

# Standard deviation of the blur in lengths of the shorter side, as in :mod:`camtool.trust.metrics.removal`.
_BLUR = 10 / 224

_HEAT_DEVIATION, _ANY_MASK_DEVIATION, _EDGE_DEVIATION = 5.0, 0.1, 2.0
_LENGTH, _LEAST_HEAT = 0.1, 0.03
_LEAST_NOISE, _NOISE_POWER, _EDGE_FACTOR, _EDGE_NOISE = 0.02, 1.5, 10.0, 1.0
_EVIDENCE_NOISE, _LARGE_NOISE, _OTHER_KINDS = 0.6, 10.0, 1.4
_USUAL_SCALE, _SCALE_DEVIATION = 2.0, 0.5
_WITHIN_90 = 1.645
_SCALES = [_USUAL_SCALE * math.exp(2 * step / 3) for step in range(-3, 4)]


@dataclass(frozen=True)
class Posterior:
    """The posterior of the cells of one image and one target, in units of the score, float64 on the CPU.

    Attributes:
        heat: ``a``, the drop that the map explains in all.
        correction: ``(C,)``, what each cell adds to its share of it.
        mean: ``(C + 3,)``, the drop of each cell, of any mask, of edges, and what the fill adds to that of edges.
        covariance: ``(C + 3, C + 3)``.
        noise: ``s²``.
        cells: The number of cells along each axis.
    """

    heat: float
    correction: Tensor
    mean: Tensor
    covariance: Tensor
    noise: float
    cells: tuple[int, ...]

    def predict(self, cover: Tensor, *, blurred: bool) -> tuple[Tensor, Tensor]:
        """Return the expected drop of the score under masks, and its standard deviation with the noise, ``(M,)`` each.

        Args:
            cover: ``(M, C)`` float64, the share of each cell that a mask covers.
            blurred: Whether the masks show the blurred image, and not an input of 0.
        """
        design = _describe_masks(cover, self.cells, torch.full_like(cover[:, 0], -1 if blurred else 1))
        area, evidence = cover.mean(1), self.mean[:-3].abs()
        # A region beside the image hides nothing, of any density.
        density = (cover @ evidence) / (area * evidence.sum()).clamp_min(torch.finfo(area.dtype).tiny)
        noise = _OTHER_KINDS * self.noise * (_compute_noise(design) + _LARGE_NOISE * area**4)
        noise *= 1 - _EVIDENCE_NOISE + _EVIDENCE_NOISE * density
        variance = ((design @ self.covariance) * design).sum(1) + noise
        return design @ self.mean, variance.sqrt()

    def find_interval(
        self, mask: NDArray[np.bool_], geometry: Geometry | None, *, blurred: bool
    ) -> tuple[float, float, float]:
        """Return the expected drop of the score without a region, and the ends of its interval of 90 %.

        Args:
            mask: Over the photo that the geometry belongs to; without a geometry over the model's input.
            geometry: The part of the photo that the input shows.
            blurred: As for :meth:`predict`.
        """
        shares = torch.from_numpy(mask).double()
        if geometry is None:
            cover = _POOLS[len(self.cells)](shares[None], self.cells)
        else:
            cover = geometry.to_input_mask(shares, (self.cells[0], self.cells[1]))
        mean, deviation = (float(number) for number in self.predict(cover.reshape(1, -1), blurred=blurred))
        return mean, mean - _WITHIN_90 * deviation, mean + _WITHIN_90 * deviation


@dataclass(frozen=True)
class RefinedMaps:
    """Maps that masks have corrected.

    Attributes:
        maps: ``(R, *grid)``, the drop of the score without a cell of the regression; 0 where it rises.
        uncertainty: ``(R, *grid)``, the standard deviation of the maps; NaN where nothing could be measured.
        centers: Where the cells lie; ``None`` for a grid that covers the input evenly.
        posteriors: One for each row; ``None`` where nothing could be measured, so the map is as before.
    """

    maps: Tensor
    uncertainty: Tensor
    centers: CellCenters | None
    posteriors: list[Posterior | None]


def check_passes(passes: Any, *, least: int = FEWEST_PASSES) -> None:
    """Check that ``passes`` is a whole number from :data:`FEWEST_PASSES` to :data:`MOST_PASSES`, or ``least``.

    Raises:
        MethodError: It is not.
    """
    check_count("passes", passes, least=least)
    if least < passes < FEWEST_PASSES:
        raise MethodError(f"passes must be {least}, or {FEWEST_PASSES} or more, got {passes}.")
    if passes > MOST_PASSES:
        raise MethodError(f"passes must be at most {MOST_PASSES}, got {passes}; 128 are enough for most maps.")


def refine_maps(evidence: Evidence, maps: Tensor, centers: CellCenters | None, passes: int) -> RefinedMaps:
    """Return maps that are corrected by what the score loses under masks.

    Args:
        evidence: The model to run on masked inputs, and each row's target.
        maps: ``(R, *grid)``, of any method; their lowest value counts as no heat.
        centers: Where their cells lie; ``None`` for a grid that covers the input evenly.
        passes: The number of masks, which the rows of an image share.

    Returns:
        Maps on the same grid, or on one with as many cells as the regression has, whichever is finer.

    Raises:
        MethodError: The model is a detector that resizes images itself, so masks do not lie where its cells are.
    """
    if find_detector_transform(evidence.model) is not None:
        raise MethodError(
            "the model resizes its images itself, so masks of the image cannot be compared with the map; "
            "use method='drise' or 'occlusion' without passes."
        )
    return correct_maps(evidence, maps, centers, *measure_drops(evidence, passes))


def correct_maps(
    evidence: Evidence, maps: Tensor, centers: CellCenters | None, cover: Tensor, drops: Tensor
) -> RefinedMaps:
    """Return what :func:`refine_maps` does, from what :func:`measure_drops` returned."""
    dims, size = maps.ndim - 1, evidence.inputs.shape[2:]
    cells = (_CELLS[dims],) * dims
    grid = [max(own, least) for own, least in zip(maps.shape[1:], cells, strict=True)]
    onto = centers if tuple(grid) == tuple(maps.shape[1:]) else None
    above = upcast(maps - maps.amin(tuple(range(1, maps.ndim)), keepdim=True)).cpu().double().nan_to_num(0, 0, 0)
    heat = _POOLS[dims](resample(above, centers, size, None), cells).flatten(1)
    total = heat.sum(1, keepdim=True)
    unit = torch.where(total > 0, total, 1)
    fine = resample(above, centers, grid, onto) / unsqueeze_like(unit[:, 0], above)
    posteriors = [regress(cover, *of_row, cells) for of_row in zip(drops.T, heat / unit, strict=True)]
    refined, deviations = fine.clone(), torch.full_like(fine, torch.nan)
    for row, posterior in enumerate(posteriors):
        if posterior is None:
            text = "The score is the same under all masks, up to rounding, or not finite, so they corrected nothing."
            evidence.add_note(row, text)
            refined[row] *= unit[row, 0]
            continue
        by_cell = torch.stack([posterior.correction, posterior.covariance.diag()[:-3].sqrt()]).unflatten(1, cells)
        correction, deviations[row] = resample(by_cell, None, grid, onto, holds=True)
        refined[row] = (posterior.heat * fine[row] + correction).relu()
        if (by_cell[0].abs() < by_cell[1]).all():
            text = f"The masks corrected no cell by more than its uncertainty; take more passes than {len(cover)}."
            evidence.add_note(row, text)
    return RefinedMaps(refined.to(maps), deviations.to(maps), onto, posteriors)


def refine_method(evidence: Evidence, maps: Tensor, passes: int) -> Tensor:
    """Return what :func:`refine_maps` does with a method's own maps ``(R, *grid)``, and keep what is known of them."""
    refined = refine_maps(evidence, maps, evidence.find_centers(maps, at_depths=True), passes)
    deviations = refined.uncertainty.float().cpu().numpy()
    for row, posterior in enumerate(refined.posteriors):
        if posterior is not None:
            evidence.refined[row] = {"uncertainty": deviations[row], "passes": passes, "posterior": posterior}
    return refined.maps


# ------------------------------------------------------------------------------------------------------------- masks


def make_masks(passes: int, cells: Sequence[int]) -> Tensor:
    """Return the masks, True where they hide the image: ``(passes, *lattice)`` with four points a cell and axis.

    Site ``n`` lies at ``1/2 + n g^-k`` modulo 1 along axis ``k``, with ``g^(d+1) = g + 1`` for ``d`` axes: the
    sequence R_d of Roberts. Piece ``j`` of a round belongs to mask ``j`` modulo the masks of the round.
    """
    dims, lattice, ratio = len(cells), [_LATTICE * count for count in cells], 2.0
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (dims + 1))
    steps, points = 1 / ratio ** (1 + _count_up(dims)), _list_middles(lattice)
    masks: list[Tensor] = []
    first = 1
    for planned, pieces in cycle(_ROUNDS):
        groups = min(planned, passes - len(masks))
        sites = (0.5 + (first + _count_up(groups * pieces))[:, None] * steps) % 1
        first += len(sites)
        nearest = ((points[:, None] - sites) ** 2).sum(2).argmin(1) % groups
        masks += [(nearest == group).reshape(lattice) for group in range(groups)]
        if len(masks) == passes:
            break
    return torch.stack(masks)


def _count_up(count: int) -> Tensor:
    """Return 0, 1, ... ``(count,)`` in float64 on the CPU, on any default device."""
    return torch.arange(count, dtype=torch.float64, device="cpu")


def _list_middles(cells: Sequence[int]) -> Tensor:
    """Return the middles of cells ``(C, axes)``, in sides of the image."""
    axes = [(_count_up(count) + 0.5) / count for count in cells]
    return torch.cartesian_prod(*axes).reshape(-1, len(cells))


def _list_fills(passes: int) -> Tensor:
    """Return -1 for masks that show the blurred image, the even ones, and 1 for those that show 0: ``(passes,)``."""
    return 2 * (_count_up(passes) % 2) - 1


def measure_drops(evidence: Evidence, passes: int) -> tuple[Tensor, Tensor]:
    """Return the cover of the cells by masks ``(passes, C)``, and the drops of the rows' scores ``(passes, R)``.

    Both are float64 on the CPU. Drops that differ from 0 by rounding are 0: they would be enlarged to a map.
    """
    size = evidence.inputs.shape[2:]
    cells = (_CELLS[len(size)],) * len(size)
    # The first of three axes may be time, or a few thick slices.
    masks, sigma = make_masks(passes, cells), _BLUR * min(size[-2:])
    cover = [_POOLS[len(cells)](_draw(mask[None], size).double(), cells).flatten() for mask in masks]
    drops = torch.empty(passes, len(evidence.images), dtype=torch.float64, device="cpu")
    for rows in evidence.rows_by_image:
        x = evidence.inputs[evidence.images[rows[0]]]
        hide = partial(_hide, x, blur_input(x, math.ceil(3 * sigma), sigma), masks)
        scores = score_inputs(evidence, rows, passes, hide)
        lost = (evidence.scores[rows] - scores).cpu().double()
        # Scores of 8 or 11 bits differ by one step of rounding; those of 24 by what the sums before them add.
        step = torch.finfo(scores.dtype).eps
        steps = ROUNDING_STEPS if step <= torch.finfo(torch.float32).eps else 1
        rounding = steps * step * scores.abs().amax(0).cpu().double()
        drops[:, rows] = torch.where(lost.abs().amax(0) <= rounding, 0, lost)
    return torch.stack(cover), drops


def _draw(masks: Tensor, size: Sequence[int]) -> Tensor:
    """Return masks at the input's size, each pixel that of the point it lies at: ``(m, *size)``, boolean."""
    for axis, length in enumerate(size, 1):
        masks = masks.index_select(axis, torch.arange(length, device="cpu") * masks.shape[axis] // length)
    return masks


def _hide(x: Tensor, blurred: Tensor, masks: Tensor, part: slice) -> Tensor:
    """Return an input ``(C, *size)`` under masks, blurred or 0 below them: ``(m, C, *size)``."""
    hidden = _draw(masks[part], x.shape[1:]).to(x.device)[:, None]
    is_blurred = unsqueeze_like(_list_fills(part.stop)[part].to(x.device) < 0, x[None])
    return torch.where(hidden, torch.where(is_blurred, blurred, 0), x)


# -------------------------------------------------------------------------------------------------------- regression


def regress(cover: Tensor, drops: Tensor, heat: Tensor, cells: tuple[int, ...]) -> Posterior | None:
    """Return what the drops of the score under masks tell of the cells; ``None`` if they are all 0 or not finite.

    Args:
        cover: ``(n, C)`` float64, the share of each cell that each mask covers; the even masks are blurred.
        drops: ``(n,)`` float64.
        heat: ``(C,)`` float64, not negative, whose sum is 1; or zeros, if no map is known.
        cells: The number of cells along each axis.
    """
    peak = drops.abs().amax()
    if not bool(torch.isfinite(peak)) or bool(peak == 0):
        return None
    y, count = drops / peak, len(drops)
    design = _describe_masks(cover, cells, _list_fills(count))
    smooth, fixed = _build_covariance(heat, cells), _build_fixed_covariance(heat)
    weights, means, covariances, noises, heats = [], [], [], [], []
    for scale in _SCALES:
        prior = scale**2 * smooth + fixed
        gain = prior @ design.T
        root = torch.linalg.cholesky(design @ gain + _compute_noise(design).diag())
        solved = torch.cholesky_solve(y[:, None], root)[:, 0]
        fit, unlikely = float(y @ solved), (math.log(scale / _USUAL_SCALE) / _SCALE_DEVIATION) ** 2
        weights.append(-count / 2 * math.log(fit) - float(root.diag().log().sum()) - unlikely / 2)
        noises.append(fit / max(count - 2, 1))
        means.append(gain @ solved)
        covariances.append(noises[-1] * (prior - gain @ torch.cholesky_solve(gain.T, root)))
        heats.append(_HEAT_DEVIATION**2 * heat @ (cover.T @ solved))
    share = torch.softmax(torch.tensor(weights, dtype=torch.float64, device="cpu"), 0)
    mean, around = share @ torch.stack(means), torch.stack(means)
    covariance = torch.tensordot(share, torch.stack(covariances), 1) + ((around - mean).T * share) @ (around - mean)
    total = float(share @ torch.stack(heats) * peak)
    correction = mean[:-3] * peak - total * heat
    noise = sum(map(operator.mul, share.tolist(), noises)) * float(peak) ** 2
    return Posterior(total, correction, mean * peak, covariance * peak**2, noise, cells)


def _build_covariance(heat: Tensor, cells: Sequence[int]) -> Tensor:
    """Return the prior covariance of the corrections, in units of ``s² t²``; masks and their edges have none."""
    places = _list_middles(cells)
    distances = ((places[:, None] - places) ** 2).sum(2)
    amplitude = torch.ones_like(heat)
    if heat.any():
        amplitude = ((_LEAST_HEAT + len(heat) * heat) / (_LEAST_HEAT + 1)).sqrt()
    covariance = amplitude[:, None] * (-distances / (2 * _LENGTH**2)).exp() * amplitude / len(heat) ** 2
    return pad(covariance, (0, 3, 0, 3))


def _build_fixed_covariance(heat: Tensor) -> Tensor:
    """Return the prior covariance of what the map explains, of any mask, and of edges twice, in units of ``s²``."""
    covariance = pad(_HEAT_DEVIATION**2 * torch.outer(heat, heat), (0, 3, 0, 3))
    covariance.diagonal()[-3:] = torch.tensor([_ANY_MASK_DEVIATION, _EDGE_DEVIATION, _EDGE_DEVIATION]).double() ** 2
    return covariance


def _describe_masks(cover: Tensor, cells: Sequence[int], fills: Tensor) -> Tensor:
    """Return the cover ``(M, C)``, 1 for any mask, the length of its edges, and this times its fill, ``(M, C + 3)``."""
    by_axis = [cover.unflatten(1, tuple(cells)).diff(dim=axis + 1).flatten(1).abs() for axis in range(len(cells))]
    edges = torch.cat(by_axis, 1).mean(1)
    return torch.cat([cover, torch.stack([torch.ones_like(edges), edges, fills * edges], 1)], 1)


def _compute_noise(design: Tensor) -> Tensor:
    """Return the variance of the noise of masks, from what :func:`_describe_masks` returned, in units of ``s²``."""
    area, edges = design[:, :-3].mean(1), design[:, -2]
    return (_LEAST_NOISE + area) ** _NOISE_POWER * (1 + _EDGE_FACTOR * edges) + _EDGE_NOISE * edges
