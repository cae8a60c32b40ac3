"""Methods in which classes compete for each position, camtool's own: Rival-CAM, and Faith-CAM at several depths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from camtool.arguments.checks import Count, CountOrZero, NotNegative, Positive
from camtool.errors import MethodError
from camtool.evidence.contributions import trace_contributions
from camtool.evidence.evidence import Evidence
from camtool.geometry.resampling import resample
from camtool.hooks.chunks import compute_chunk_size
from camtool.maps import scale_by_peak, unsqueeze_like
from camtool.methods.options import check_depths
from camtool.methods.refinement import check_passes, refine_method
from camtool.methods.registry import method
from camtool.targets import Target

# Share of the layer's evidence at which a depth counts in full. In trained networks depths have 0.1 and more.
_LEAST_EVIDENCE = 1e-3


@method("rivalcam", paper="camtool", needs="gradients of several classes")
def rivalcam(
    evidence: Evidence, *, rivals: Count = 10, temperature: Positive = 0.5, kinship: NotNegative = 3.0
) -> Tensor:
    """Show what favors the class over its rivals.

    It is made for images of several objects.

    Grad-CAM shows the evidence for a class even where the evidence for another class is stronger. Here the target class
    c and its rivals, the other classes with the highest scores, compete for each position; those of a group of classes
    are outside of it. The contribution of position p to the score ``y_j`` of class j is ``s_j(p) = Σ_k g_jk(p)
    A_k(p)``. The rest of the score, for example a bias, is spread evenly: ``m_j(p) = P s_j(p) + y_j - Σ_q s_j(q)``,
    whose mean over the P positions is the score. After a pooled linear head this is the model's own output at the
    position. The map is

        ``M(p) = relu(s_c(p)) · exp(m_c(p)/T) / Σ_j (1 - relu(ρ_j))^kinship exp(m_j(p)/T)``

    where ``T`` is the temperature times the standard deviation of ``m_c`` over the positions, so the scale of the
    logits has no effect. ``ρ_j`` is the correlation of ``m_j`` with ``m_c``. Rivals with evidence at the same
    positions, such as tabby and tiger cat, are the same object to the model. They hardly compete, so the map has no
    holes. The target class itself counts in full.

    Args:
        evidence: The activations, and the gradients of the target class and its rivals.
        rivals: The number of rivals.
        temperature: How soft the competition is.
        kinship: How strongly a rival is discounted if its evidence is at the same positions; 0 discounts none.

    Returns:
        The maps ``(R, *grid)``, not negative.

    Raises:
        MethodError: A target is not the score of a class, or an option is out of range.
    """
    _check_comparable_scores(evidence)
    contestants = [
        [target, *target.find_rivals(evidence.forward_pass.get_image_output(image), rivals)]
        for target, image in zip(evidence.targets, evidence.images, strict=True)
    ]
    maps = torch.zeros_like(evidence.activations[:, 0])
    # Of a model with few classes, a group leaves fewer rivals than a class.
    for rows, part in _split_by_count(evidence, contestants):
        contributions, share = _compete(part, [contestants[row] for row in rows], temperature, kinship)
        maps[rows] = contributions[:, 0].relu() * share
    return maps


def _split_by_count(
    evidence: Evidence, contestants: Sequence[Sequence[Target]]
) -> Iterator[tuple[list[int], Evidence]]:
    """Yield the rows with equally many contestants, together, and the evidence of these rows."""
    counts = [len(of_row) for of_row in contestants]
    for count in dict.fromkeys(counts):
        rows = [row for row, own in enumerate(counts) if own == count]
        is_all = len(rows) == len(counts)
        targets, images = [evidence.targets[row] for row in rows], [evidence.images[row] for row in rows]
        yield rows, evidence if is_all else evidence.for_targets(targets, images)


def _check_comparable_scores(evidence: Evidence) -> None:
    """Check that all targets are class scores: probabilities and differences have other units than the rivals' scores.

    Raises:
        MethodError: A target is not a class score, or the model does not return ``(N, classes)``.
    """
    others = [target for target in evidence.targets if not target.traits.is_class_score]
    if evidence.logits.ndim != 2 or others:
        got = f"target {others[0]}" if others else f"an output of shape {tuple(evidence.logits.shape)}"
        raise MethodError(
            "method 'rivalcam' compares the scores of classes, so it needs a model that returns (N, classes) and "
            f"targets that are an index, a name, ClassScore or Group, got {got}; use method='hirescam' for others."
        )


def _compete(
    evidence: Evidence, contestants: Sequence[Sequence[Target]], temperature: float, kinship: float
) -> tuple[Tensor, Tensor]:
    """Return the contributions of the positions to each contestant's score, and what the first one wins.

    Args:
        evidence: The evidence of a layer.
        contestants: For each row the target and its rivals, as many for each row.
        temperature: See :func:`rivalcam`.
        kinship: See :func:`rivalcam`.

    Returns:
        The contributions ``s_j``, ``(R, 1 + rivals, *grid)``, and the share of the first contestant at each position,
        ``(R, *grid)``.
    """
    # The gradients of all classes at once could fill the memory.
    chunk = compute_chunk_size(evidence.activations.numel(), evidence.activations)
    parts = [slice(first, first + chunk) for first in range(0, len(contestants[0]), chunk)]
    results = [_compute_contributions(evidence, [of_row[part] for of_row in contestants]) for part in parts]
    contributions, scores = (torch.cat(kind, 1) for kind in zip(*results, strict=True))
    return contributions, _compute_share(contributions, scores, temperature, kinship)


def _compute_contributions(evidence: Evidence, contestants: Sequence[Sequence[Target]]) -> tuple[Tensor, Tensor]:
    """Return the contributions of the positions to each class's score, ``(R, classes, *grid)``, and the scores."""
    images = [image for image, targets in zip(evidence.images, contestants, strict=True) for _ in targets]
    by_row = evidence.for_targets([target for targets in contestants for target in targets], images)
    gradients = by_row.gradients.unflatten(0, (len(contestants), -1))
    contributions = (gradients * evidence.activations[:, None]).sum(2)
    return contributions, by_row.scores.to(contributions).unflatten(0, (len(contestants), -1))


def _compute_share(contributions: Tensor, scores: Tensor, temperature: float, kinship: float) -> Tensor:
    """Return the share of each position that the first class wins, ``(R, *grid)``.

    Args:
        contributions: The contributions ``s_j`` of the positions to the classes' scores, ``(R, 1 + rivals, *grid)``.
        scores: The scores ``y_j``, ``(R, 1 + rivals)``.
        temperature: See :func:`rivalcam`.
        kinship: See :func:`rivalcam`.
    """
    flat = contributions.flatten(2)
    # m_j of the docstring of rivalcam.
    local_scores = flat.shape[2] * flat + (scores - flat.sum(2))[..., None]
    centered = local_scores - local_scores.mean(2, keepdim=True)
    # Divided by the peak first, so that the squares in the norm neither overflow nor vanish.
    centered = centered / _replace_zeros(centered.abs().amax(2, keepdim=True))
    directions = centered / _replace_zeros(centered.norm(dim=2, keepdim=True))
    correlation = (directions[:, :1] * directions).sum(2).clamp(0, 1)
    strength = (1 - correlation) ** kinship
    # The correlation of the class with itself is 1, but it counts in full.
    strength[:, 0] = 1
    spread = local_scores[:, :1].std(2, correction=0, keepdim=True)
    logits = (local_scores - local_scores[:, :1]) / (temperature * _replace_zeros(spread))
    won = torch.softmax(logits + strength.log()[..., None], 1)[:, 0]
    return won.reshape(len(won), *contributions.shape[2:])


def _replace_zeros(numbers: Tensor) -> Tensor:
    """Return the numbers with 1 for those that are 0, for use as divisors."""
    return torch.where(numbers > 0, numbers, 1)


@method("faithcam", paper="camtool", needs="gradients of several classes")
def faithcam(
    evidence: Evidence,
    *,
    depths: int | Sequence[str] = 4,
    rivals: CountOrZero = 10,
    temperature: Positive = 2.0,
    power: NotNegative = 1.5,
    focus: NotNegative = 0.25,
    kinship: NotNegative = 3.0,
    passes: int = 0,
) -> Tensor:
    """Show what the score used where the class wins.

    It adds up several depths of the network.

    Two questions have different answers: what did the score use, and what belongs to this class rather than to another
    one? The deepest layer answers the second, but it is not the most faithful. Shallower layers answer the first, but
    their contributions hardly tell classes apart. So the competition of Rival-CAM at the deepest layer selects the
    evidence, which is then followed back through the network.

    1. The target c contributes ``s(p) = Σ_k g_ck(p) A_k(p)`` at position p of the layer, and wins the share ``w(p)``
       against its rivals, as in :func:`rivalcam`.

    2. The evidence that it wins is ``S = Σ_p w(p)^power relu(s(p))``, in which w and g are constants.

    3. Position q of depth l contributes ``s_l(q) = Σ_k (A_lk(q) - B_lk(q)) ∂S/∂A_lk(q)``, where ``B_l`` is what the
       depth returns for a blank image, an input of zeros. One backward pass from the layer serves all depths.

    4. ``M = up(w^power (relu(s) / max s)^focus) Σ_l up(relu(s_l) / m_l)``, where ``m_l`` is the mean of ``relu(s_l)``
       over the positions, so that each depth counts alike. ``up`` takes a map to the finest grid of the depths, with
       the cells at their centers. A map on a finer grid than the layer's is smoothed by one cell before, because the
       gradients of strided layers alternate from cell to cell.

    The depths are the middle and the end of each of the last two stages. A layer is a depth only if all paths from the
    image to the explained layer pass through it, see :mod:`camtool.layers.depths`. The layer itself is the last depth.

    Why it works: the contribution at one depth is a first-order estimate of what happens if a part of the image is
    removed. The errors of different depths differ, so on most networks the sum is closer. Blank activations matter
    where zero is not neutral: behind linear bottlenecks and in transformers, where some channels are large for any
    image. The gate is needed twice: a winning cell sees more of the image than its own place, and the backward pass
    spreads its evidence over all of that.

    What was tried, and changed little or was worse: signed contributions; maps scaled by the peak or by the standard
    deviation; products of depths; positive parts of single channels; gradients of the log-probability; the mean of the
    image in place of a blank one. More depths predict a little better what random masks do, and cost more. ``python -m
    benchmarks faithcam`` switches each choice off, one at a time.

    Limits: contributions are first-order, so a saturated score is explained badly. The contributions of a depth add up
    to the evidence S only as far as the network between is linear, and rectified maps do not add up to the score. A
    target without rivals, e.g. a regression value, competes with nothing, and its explanation says so. The rivals of a
    detection are detections of other objects, those of a segmenter's class the other classes in the image; each costs
    a backward pass through the head. Skip connections leave few depths in a U-Net.

    It puts more heat on the right object than Grad-CAM on each of nine networks that were measured, but it is not more
    faithful on all: it predicts the effect of random masks worse on two small convolutional networks for scenes and on
    a U-Net, where the hottest pixels alone also restore less of the score.

    Args:
        evidence: The activations and gradients of the layer, and of its depths.
        depths: The number of depths, with the layer itself; or the names of the others, from shallow to deep.
        rivals: The number of rivals; 0 for no competition.
        temperature: How soft the competition is, see Rival-CAM.
        power: How strongly positions are suppressed at which rivals win.
        focus: How strongly positions are suppressed at which the layer has little evidence for the target.
        kinship: How strongly a rival is discounted if its evidence is at the same positions; 0 discounts none.
        passes: The number of further forward passes, of the masked image, that correct the map and say how certain each
            cell is, see :mod:`camtool.methods.refinement`; 0 for none.

    Returns:
        The maps ``(R, *grid)``, on the finest grid of the depths, not negative. With passes, they are the drop of the
        score without one of 14 x 14 cells, on a grid of at least as many.

    Raises:
        MethodError: An option is out of range.
    """
    check_depths(depths)
    check_passes(passes, least=0)
    won = _find_shares(evidence, rivals, temperature, kinship) ** power
    contributions = (evidence.gradients * evidence.activations).sum(1).relu()
    traced = trace_contributions(evidence, (won * (contributions > 0))[:, None] * evidence.gradients)
    gate = won * scale_by_peak(contributions) ** focus
    maps = _add_depths(evidence, _scale_to_equal_means([depth_maps.relu() for depth_maps in traced]), gate)
    return refine_method(evidence, maps, passes) if passes else maps


def _find_shares(evidence: Evidence, rivals: int, temperature: float, kinship: float) -> Tensor:
    """Return what each row's target wins of each position, ``(R, *grid)``; 1 for targets without rivals."""
    contestants = [[target, *_find_rivals(evidence, row, rivals)] for row, target in enumerate(evidence.targets)]
    share = torch.ones_like(evidence.activations[:, 0])
    for rows, part in _split_by_count(evidence, contestants):
        if len(contestants[rows[0]]) > 1:
            share[rows] = _compete(part, [contestants[row] for row in rows], temperature, kinship)[1]
    return share


def _find_rivals(evidence: Evidence, row: int, count: int) -> Sequence[Target]:
    """Return the rivals of a row's target; without any, the user is told."""
    rivals = evidence.targets[row].find_rivals(evidence.forward_pass.get_image_output(evidence.images[row]), count)
    if count and not rivals:
        evidence.add_note(
            row, "The target has no rivals of its kind, so faithcam shows all evidence, also where something else wins."
        )
    return rivals


def _add_depths(evidence: Evidence, maps: Sequence[Tensor], gate: Tensor) -> Tensor:
    """Return the sum of the maps of all depths, times the gate of the layer, on the finest grid among them."""
    layers = [*evidence.depths, evidence.get_layer()]
    centers = [evidence.forward_pass.find_place(layer).centers for layer in layers]
    # Of equal grids that of the layer counts, then that of the shallowest depth, as in Evidence.find_centers.
    finest = max([maps[-1], *maps[:-1]], key=lambda depth_maps: depth_maps[0].numel())
    grid, onto = finest.shape[1:], evidence.find_centers(finest, at_depths=True)
    total = torch.zeros_like(finest)
    for depth_maps, of_depth in zip(maps, centers, strict=True):
        is_finer = depth_maps[0].numel() > gate[0].numel()
        total += resample(_smooth(depth_maps) if is_finer else depth_maps, of_depth, grid, onto)
    return total * resample(gate, centers[-1], grid, onto)


def _scale_to_equal_means(maps: Sequence[Tensor]) -> list[Tensor]:
    """Return the maps of several depths ``(R, *grid)``, not negative, each divided by its mean.

    A depth with less than a thousandth of the last one's evidence has little more than rounding, e.g. because a norm
    behind it cancels the rest. It is not enlarged further.
    """
    totals = [depth_maps.flatten(1).sum(1) for depth_maps in maps]
    scaled = []
    for depth_maps, total in zip(maps, totals, strict=True):
        mean = total.maximum(_LEAST_EVIDENCE * totals[-1]) / depth_maps[0].numel()
        scaled.append(depth_maps / unsqueeze_like(torch.where(mean > 0, mean, 1), depth_maps))
    return scaled


def _smooth(maps: Tensor) -> Tensor:
    """Return maps ``(R, *grid)`` smoothed along each axis with ``(1, 4, 6, 4, 1) / 16``; the edges are repeated."""
    for axis in range(1, maps.ndim):
        length = maps.shape[axis]
        first, last = maps.narrow(axis, 0, 1), maps.narrow(axis, length - 1, 1)
        padded = torch.cat([first, first, maps, last, last], axis)
        shifted = [weight / 16 * padded.narrow(axis, shift, length) for shift, weight in enumerate((1, 4, 6, 4, 1))]
        maps = torch.stack(shifted).sum(0)
    return maps
