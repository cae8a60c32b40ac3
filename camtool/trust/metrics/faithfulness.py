"""Faithfulness metrics: whether the score depends on the pixels that a map marks.

They run the model on images from which pixels were removed. The model was not trained on such images, so every one of
them measures the model's reaction to the removal, too. Compare methods by several metrics, and with the chance level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from camtool.arguments.checks import Count, NotNegative, Positive, Share, check_count, check_number
from camtool.errors import MetricError
from camtool.trust.metrics.correlation import correlate_pearson, correlate_spearman
from camtool.trust.metrics.metric_registry import metric, rank_pixels
from camtool.trust.metrics.removal import Removal, impute_linear, make_baseline, start_removal
from camtool.trust.metrics.scores import Explain, Score, check_maps, explain_again, score_images, score_variants

# The fractions of the pixels that the library grad-cam removes.
_ROAD_FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

# Sizes that one round of the bisection of sufficient-area measures.
_AREA_POINTS = 6

# No method removes several cells of a grid at once, or fills with these two.
_MASK_CELLS, _MASK_SHARES, _MASK_REMOVALS = 7, (1 / 8, 1 / 4, 1 / 2), ("blur", "mean")


# ------------------------------------------------------------------------------------- images weighted by their map


@metric("average-drop", higher_is_better=False, bounds=(0, 1), score="probability", paper="arXiv 1710.11063")
def compute_average_drop(
    score: Score, images: Tensor, maps: Tensor, *, removal: Removal = "zero", chunk: int | None = None
) -> Tensor:
    """Measure the share of the score that is lost where the image is dimmed by its map. Lower is better, 0 to 1.

    ``max(0, Y - O) / Y``, with the score Y of the image x and the score O of ``x ⊙ map + baseline ⊙ (1 - map)``. The
    source has no baseline, which is ``removal="zero"``. A map of ones has the best value, so read it beside the
    complexity of the map, as ADCC does. Chance level: measured.

    Source: Grad-CAM++, arXiv 1710.11063.

    Args:
        score: The score, at least 0 for the images themselves, e.g. a probability.
        images: ``(N, C, H, W)``.
        maps: ``(N, H, W)``, in [0, 1].
        removal: What dimmed pixels fade to, a name of :data:`~.removal.BASELINES` or a function.
        chunk: The number of images that run at once; by default as many as fit into the memory budget.

    Raises:
        MetricError: A score is not above 0, or an argument is not as described.
    """
    before, after = _score_dimmed(score, images, maps, removal, chunk)
    if not (before > 0).all():
        raise MetricError(
            f"average-drop divides by the score of the image, which must be above 0; got {float(before.min()):g}. "
            "Pass probabilities."
        )
    return (before - after).clamp_min(0) / before


@metric("increase", higher_is_better=True, bounds=(0, 1), score="probability", paper="arXiv 1710.11063")
def compute_increase(
    score: Score, images: Tensor, maps: Tensor, *, removal: Removal = "zero", chunk: int | None = None
) -> Tensor:
    """Check whether the score rises where the image is dimmed by its map: 1 or 0. Higher is better.

    ``1 if O > Y else 0``, also called increase in confidence. Arguments as for :func:`compute_average_drop`.
    Chance level: measured.

    Source: Grad-CAM++, arXiv 1710.11063.
    """
    before, after = _score_dimmed(score, images, maps, removal, chunk)
    return (after > before).to(before)


@metric("average-gain", higher_is_better=True, bounds=(0, 1), score="probability", paper="arXiv 2301.07002")
def compute_average_gain(
    score: Score, images: Tensor, maps: Tensor, *, removal: Removal = "zero", chunk: int | None = None
) -> Tensor:
    """Measure how much of the missing probability is gained where the image is dimmed by its map. Higher is better.

    ``max(0, O - Y) / (1 - Y)``, from 0 to 1; 0 where Y is 1. Arguments as for :func:`compute_average_drop`.
    Chance level: measured.

    Source: Opti-CAM, arXiv 2301.07002.

    Raises:
        MetricError: A score is not a probability.
    """
    before, after = _score_dimmed(score, images, maps, removal, chunk)
    if float(torch.maximum(before, after).max()) > 1 or float(before.min()) < 0:
        raise MetricError("average-gain needs probabilities, scores in [0, 1].")
    return (after - before).clamp_min(0) / torch.where(before < 1, 1 - before, 1)


def _score_dimmed(
    score: Score, images: Tensor, maps: Tensor, removal: Removal, chunk: int | None
) -> tuple[Tensor, Tensor]:
    """Return the scores of the images and of the images dimmed by their maps, ``(N,)`` each."""
    check_maps(maps, images, least=0, most=1)
    weights, baseline = maps.to(images)[:, None], make_baseline(images, removal)

    def make(rows: Tensor, numbers: Tensor) -> Tensor:
        dimmed = images[rows] * weights[rows] + baseline[rows] * (1 - weights[rows])
        return torch.where((numbers == 0)[:, None, None, None], images[rows], dimmed)

    before, after = score_variants(score, images, 2, make, chunk).unbind(1)
    return before, after


# -------------------------------------------------------------------------------------------- pixels in their order


@metric("deletion", higher_is_better=False, bounds=(0, 1), score="probability", paper="arXiv 1806.07421")
def compute_deletion(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    steps: int = 20,
    removal: Removal = "zero",
    seed: int = 0,
    chunk: int | None = None,
) -> Tensor:
    """Measure the area under the score while the hottest pixels are removed first. Lower is better.

    The trapezoidal area over the removed fraction. It has the range of the score: 0 to 1 for probabilities.
    Chance level: measured.

    Source: RISE, arXiv 1806.07421. Its released code removes by zero of the normalized input, and uses 224 steps.

    Args:
        score: The score.
        images: ``(N, C, H, W)``.
        maps: ``(N, H, W)``. Only the order of the pixels matters.
        steps: The number of steps, each of as many pixels.
        removal: What replaces the pixels: a name of :data:`~.removal.REMOVALS` or a function.
        seed: The seed of the order of pixels that are equally hot.
        chunk: The number of images that run at once; by default as many as fit into the memory budget.
    """
    return _measure_area(*compute_curve(score, images, maps, steps=steps, removal=removal, seed=seed, chunk=chunk))


@metric("insertion", higher_is_better=True, bounds=(0, 1), score="probability", paper="arXiv 1806.07421")
def compute_insertion(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    steps: int = 20,
    removal: Removal = "blur",
    seed: int = 0,
    chunk: int | None = None,
) -> Tensor:
    """Measure the area under the score while the hottest pixels are inserted first. Higher is better.

    As :func:`compute_deletion`, but the image starts without its pixels, by default blurred, and gets them back.
    Chance level: measured.

    Source: RISE, arXiv 1806.07421.
    """
    curve = compute_curve(score, images, maps, steps=steps, removal=removal, insert=True, seed=seed, chunk=chunk)
    return _measure_area(*curve)


def compute_curve(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    steps: int = 20,
    removal: Removal = "zero",
    insert: bool = False,
    seed: int = 0,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the fractions of pixels ``(steps + 1,)`` and the scores ``(N, steps + 1)`` of deletion or insertion.

    Args:
        score: The score.
        images: ``(N, C, H, W)``.
        maps: ``(N, H, W)``.
        steps: The number of steps.
        removal: What replaces the pixels.
        insert: Insert the pixels instead of removing them.
        seed: The seed of the order of pixels that are equally hot.
        chunk: The number of images that run at once.
    """
    counts, make = _prepare_curve(images, maps, steps, removal, seed, insert=insert)
    scores = score_variants(score, images, steps + 1, make, chunk)
    return counts.to(scores) / maps[0].numel(), scores


def iterate_curve(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    steps: int = 20,
    removal: Removal = "zero",
    insert: bool = False,
    seed: int = 0,
    chunk: int = 4,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what is known of the curve of one image after each chunk; the last one is that of :func:`compute_curve`.

    Args:
        score: The score.
        images: ``(1, C, H, W)``.
        maps: ``(1, H, W)``.
        steps: The number of steps.
        removal: What replaces the pixels.
        insert: Insert the pixels instead of removing them.
        seed: The seed of the order of pixels that are equally hot.
        chunk: The number of points of the curve that are computed at once.

    Yields:
        The fractions of pixels ``(p,)`` and the scores ``(1, p)`` of the first points; p grows up to ``steps + 1``.

    Raises:
        MetricError: There are several images, or an argument is not as described.
    """
    counts, make = _prepare_curve(images, maps, steps, removal, seed, insert=insert)
    check_count("chunk", chunk, error=MetricError)
    if len(images) != 1:
        raise MetricError(f"iterate_curve takes one image; got {len(images)}. Use compute_curve for several.")
    scores = images.new_zeros(1, 0)
    for numbers in torch.arange(steps + 1, device=images.device).split(chunk):
        rows = torch.zeros_like(numbers)
        scores = torch.cat([scores, score_images(score, make(rows, numbers), rows)[None]], 1)
        yield counts[: scores.shape[1]].to(scores) / maps[0].numel(), scores


def _prepare_curve(
    images: Tensor, maps: Tensor, steps: int, removal: Removal, seed: int, *, insert: bool
) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """Return the number of changed pixels at each step ``(steps + 1,)``, and the function that makes the variants."""
    check_maps(maps, images)
    check_count("steps", steps, error=MetricError)
    ranks, fill = rank_pixels(maps, seed=seed).to(images.device), start_removal(images, removal)
    counts = _count_pixels([step / steps for step in range(steps + 1)], ranks)

    def make(rows: Tensor, numbers: Tensor) -> Tensor:
        is_first = ranks[rows] < counts[numbers][:, None]
        return fill(rows, (~is_first if insert else is_first).reshape(-1, *images.shape[2:]))

    return counts, make


def _measure_area(fractions: Tensor, scores: Tensor) -> Tensor:
    return torch.trapezoid(scores, fractions, dim=1)


def _count_pixels(fractions: Sequence[float], ranks: Tensor) -> Tensor:
    """Return how many pixels each fraction is, rounded up."""
    count = ranks.shape[1]
    # Without the subtraction 0.7 of 10 would be 8, as 0.7 is not exact in binary.
    return torch.tensor([math.ceil(fraction * count - 1e-6) for fraction in fractions], device=ranks.device)


@metric("road", higher_is_better=True, bounds=(-0.5, 0.5), chance=0, score="probability", paper="arXiv 2202.00449")
def compute_road(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    fractions: Sequence[float] = _ROAD_FRACTIONS,
    noise: NotNegative = 0.01,
    seed: int = 0,
    chunk: int | None = None,
) -> Tensor:
    """Measure how much more the score suffers from removing the hottest pixels than the coldest. Higher is better.

    ROAD: ``mean over fractions of (LeRF - MoRF) / 2``, with the score after the least relevant pixels were removed
    (LeRF) and after the most relevant ones were (MoRF). Removed pixels are imputed from their neighbors, with noise.
    Within [-0.5, 0.5] for probabilities. The chance level is 0, as a random map and its inverse are alike.

    Source: arXiv 2202.00449. The difference of the two curves is that of the library grad-cam, which calls
    it ROADCombined, and of ARCC. The noise of both libraries has no seed.

    Args:
        score: The score.
        images: ``(N, C, H, W)``.
        maps: ``(N, H, W)``. Only the order of the pixels matters.
        fractions: The fractions of the pixels that are removed, each above 0 and below 1.
        noise: The standard deviation of the noise on imputed pixels, in units of the input.
        seed: The seed of the noise, and of the order of pixels that are equally hot.
        chunk: The number of images that run at once; by default as many as fit into the memory budget.
    """
    check_maps(maps, images)
    for fraction in fractions:
        check_number("each of fractions", fraction, above=0, below=1, error=MetricError)
    ranks, steps, size = rank_pixels(maps, seed=seed).to(images.device), len(fractions), images.shape[2:]
    counts = _count_pixels(fractions, ranks)
    # One pattern for each step, the same for all images, so that a batch equals its images one by one.
    generator = torch.Generator().manual_seed(seed)
    patterns = noise * torch.randn((2 * steps, *images.shape[1:]), generator=generator, device="cpu").to(images)

    def make(rows: Tensor, numbers: Tensor) -> Tensor:
        count, is_least = counts[numbers % steps][:, None], (numbers >= steps)[:, None]
        positions = torch.where(is_least, ranks.shape[1] - 1 - ranks[rows], ranks[rows])
        removed = (positions < count).reshape(-1, *size)
        return impute_linear(images[rows], removed) + removed[:, None] * patterns[numbers]

    scores = score_variants(score, images, 2 * steps, make, chunk)
    return (scores[:, steps:] - scores[:, :steps]).mean(1) / 2


@metric("sufficient-area", higher_is_better=False, bounds=(0, 1), score="probability", paper="arXiv 1810.03805")
def compute_sufficient_area(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    keep: Share = 0.9,
    cells: int = 16,
    removal: Removal = "zero",
    seed: int = 0,
    chunk: int | None = None,
) -> Tensor:
    """Measure the share of the image, its hottest cells, that alone keeps 90 % of the score. Lower is better, 0 to 1.

    The fewest cells that a bisection finds: as many more cells of a grid may hold or not, as scores need not rise with
    the part. The order of the cells is all that counts; :meth:`camtool.Explanation.sufficient` then drops single cells.
    Chance level: measured.

    Source: sufficient input subsets, arXiv 1810.03805, which order by the score itself.

    Args:
        score: The score, above 0 for the images themselves, e.g. a probability.
        images: ``(N, C, H, W)``.
        maps: ``(N, H, W)``. Only the order of the means in cells matters.
        keep: The share of the score, above 0 and at most 1.
        cells: The number of cells per side.
        removal: What replaces the rest: a name of :data:`~.removal.REMOVALS` or a function.
        seed: The seed of the order of cells that are equally hot.
        chunk: The number of images that run at once; by default as many as fit into the memory budget.

    Raises:
        MetricError: A score is not above 0, or an argument is not as described.
    """
    check_maps(maps, images)
    check_count("cells", cells, least=2, error=MetricError)
    regions = _make_cells(images, min(cells, *images.shape[2:]))
    heat = _sum_heat(maps, regions) / regions.flatten(1).sum(1)
    ranks, fill = rank_pixels(heat[:, None], seed=seed).to(images.device), start_removal(images, removal)
    numbers_by_pixel, count = regions.int().argmax(0), len(regions)

    def score_sizes(sizes: Tensor) -> Tensor:
        """Return the scores of the images with so many cells ``(N, P)``."""

        def make(rows: Tensor, numbers: Tensor) -> Tensor:
            is_kept = ranks[rows] < sizes[rows, numbers][:, None]
            return fill(rows, ~is_kept[:, numbers_by_pixel])

        return score_variants(score, images, sizes.shape[1], make, chunk)

    lowest = torch.zeros(len(images), dtype=torch.long, device=images.device)
    both = score_sizes(torch.stack([torch.full_like(lowest, count), lowest], 1))
    if not (both[:, 0] > 0).all():
        raise MetricError(f"sufficient-area needs scores above 0; got {float(both[:, 0].min()):g}. Pass probabilities.")
    goal = keep * both[:, :1]
    highest = torch.where(both[:, 1] >= goal[:, 0], 0, count)
    shares = torch.arange(1, _AREA_POINTS + 1, device=images.device) / (_AREA_POINTS + 1)
    while bool((highest - lowest > 1).any()):
        # Sizes beyond the bounds are those of the bounds themselves, where the distance is small.
        sizes = (lowest[:, None] + (highest - lowest)[:, None] * shares).long().clamp(max=count)
        holds = score_sizes(sizes) >= goal
        sizes = torch.cat([lowest[:, None], sizes, highest[:, None]], 1)
        first = torch.cat([torch.zeros_like(holds[:, :1]), holds, torch.ones_like(holds[:, :1])], 1).int().argmax(1)
        highest, lowest = (sizes.gather(1, at.clamp_min(0)[:, None])[:, 0] for at in (first, first - 1))
    return highest.to(both) / count


# ------------------------------------------------------------------------------------------------ parts of the image


@metric("single-deletion", higher_is_better=True, bounds=(-1, 1), chance=0, score="logit", paper="arXiv 2407.11910")
def compute_single_deletion(
    score: Score, images: Tensor, maps: Tensor, *, cells: int = 4, removal: Removal = "zero", chunk: int | None = None
) -> Tensor:
    """Correlate the heat in each cell of the image with the drop of the score without the cell. Higher is better.

    Spearman's rank correlation over ``cells x cells`` cells, from -1 to 1. The chance level is 0, which is also the
    value of a map that has the same heat in all cells.

    Source: the in-domain single-deletion score (IDSDS), arXiv 2407.11910. The paper first fine-tunes the
    model on images without single cells, so that they are in its domain. Without this the score is only its protocol.

    Args:
        score: The score, in the source the logit.
        images: ``(N, C, H, W)``.
        maps: ``(N, H, W)``.
        cells: The number of cells per side.
        removal: What replaces a cell: a name of :data:`~.removal.REMOVALS` or a function.
        chunk: The number of images that run at once; by default as many as fit into the memory budget.

    Raises:
        MetricError: The image has fewer pixels per side than cells, or an argument is not as described.
    """
    check_maps(maps, images)
    drops = measure_cell_drops(score, images, cells=cells, removal=removal, chunk=chunk)
    return compare_with_cell_drops(maps, drops, cells=cells)


def measure_cell_drops(
    score: Score, images: Tensor, *, cells: int = 4, removal: Removal = "zero", chunk: int | None = None
) -> Tensor:
    """Return by how much the score drops without each cell of the image, ``(N, cells²)``, row by row.

    The arguments and the errors are those of :func:`compute_single_deletion`. The drops depend on no map, so they are
    measured once for many of them.
    """
    check_count("cells", cells, least=2, error=MetricError)
    if min(images.shape[2:]) < cells:
        raise MetricError(f"cells={cells} is more than the sides of the images, {tuple(images.shape[2:])}.")
    return _measure_drops(score, images, _make_cells(images, cells), removal, chunk)


def compare_with_cell_drops(maps: Tensor, drops: Tensor, *, cells: int = 4) -> Tensor:
    """Return the value of :func:`compute_single_deletion` for maps ``(N, H, W)``, from drops that are measured."""
    return correlate_spearman(_sum_heat(maps, _make_cells(maps[:, None], cells)), drops)


@metric(
    "faithfulness-correlation", higher_is_better=True, bounds=(-1, 1), chance=0, score="logit", paper="arXiv 2005.00631"
)
def compute_faithfulness_correlation(
    score: Score, images: Tensor, maps: Tensor, *, masks: int = 16, seed: int = 0, chunk: int | None = None
) -> Tensor:
    """Correlate the heat under random masks with the drop of the score without what is under them. Higher is better.

    The masks are random cells of a grid of 7 x 7: an eighth, a quarter or a half of them. Only masks of one size are
    compared with each other, as otherwise the area alone would predict the drop. What is under them is replaced by the
    blurred image, then by its mean color. The value is the mean of Pearson's correlations for each size and
    replacement, from -1 to 1. The chance level is 0, which is also the value of a map that has the same heat
    everywhere.

    Source: arXiv 2005.00631, with sums of the heat, masks of single pixels, one size and one replacement.

    Args:
        score: The score, e.g. the logit.
        images: ``(N, C, H, W)``.
        maps: ``(N, H, W)``.
        masks: The number of masks of each size.
        seed: The seed of the masks, which are the same for all images.
        chunk: The number of images that run at once; by default as many as fit into the memory budget.
    """
    check_maps(maps, images)
    drops = measure_mask_drops(score, images, masks=masks, seed=seed, chunk=chunk)
    return compare_with_mask_drops(maps, drops, seed=seed)


def measure_mask_drops(
    score: Score, images: Tensor, *, masks: int = 16, seed: int = 0, chunk: int | None = None
) -> Tensor:
    """Return by how much the score drops without what is under each mask, ``(N, replacements, sizes, masks)``.

    The arguments are those of :func:`compute_faithfulness_correlation`. The drops depend on no map, so they are
    measured once for many of them.
    """
    check_count("masks", masks, least=2, error=MetricError)
    regions = _draw_cell_masks(images, masks, seed)
    drops = [_measure_drops(score, images, regions, removal, chunk) for removal in _MASK_REMOVALS]
    return torch.stack(drops, 1).reshape(len(images), len(drops), len(_MASK_SHARES), masks)


def compare_with_mask_drops(maps: Tensor, drops: Tensor, *, seed: int = 0) -> Tensor:
    """Return the value of :func:`compute_faithfulness_correlation` for maps ``(N, H, W)`` from measured drops."""
    regions = _draw_cell_masks(maps[:, None], drops.shape[3], seed)
    # Where cells differ by a pixel, so do the areas.
    heat = (_sum_heat(maps, regions) / regions.flatten(1).sum(1)).to(drops)
    heat = heat.unflatten(1, drops.shape[2:])[:, None].expand_as(drops)
    values = correlate_pearson(heat.flatten(0, 2), drops.flatten(0, 2))
    return torch.unflatten(values, 0, (len(maps), -1)).mean(1)


def _draw_cell_masks(images: Tensor, count: int, seed: int) -> Tensor:
    """Return random masks of each size, ``(sizes · count, H, W)``, boolean."""
    cells = _make_cells(images, min(_MASK_CELLS, *images.shape[2:]))
    generator = torch.Generator().manual_seed(seed)
    masks = []
    for share in _MASK_SHARES:
        for _ in range(count):
            order = torch.randperm(len(cells), generator=generator, device="cpu")
            masks.append(cells[order[: max(1, round(share * len(cells)))].to(cells.device)].any(0))
    return torch.stack(masks)


@metric("infidelity", higher_is_better=False, bounds=(0, 1), score="logit", paper="arXiv 1901.09392")
def compute_infidelity(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    samples: Count = 64,
    removal: Removal = "mean",
    seed: int = 0,
    chunk: int | None = None,
) -> Tensor:
    """Measure how badly the heat in random rectangles predicts the drop of the score without them. Lower is better.

    ``mean_k (β a_k - d_k)² / mean_k d_k²``, with the heat a_k in rectangle k, the drop d_k, and the scale ``β ≥ 0`` for
    which the error is smallest: a map in [0, 1] has no unit. From 0 to 1, where 1 means that the heat predicts nothing.
    It is 1 if no rectangle changes the score. Chance level: measured.

    Source: arXiv 1901.09392, where a_k is the sum of perturbation times attribution. The source does not divide by the
    mean of d_k², and so its number depends on the unit of the score. A negative β would reward a map that is hot where
    the score rises without the pixels.

    Args:
        score: The score.
        images: ``(N, C, H, W)``.
        maps: ``(N, H, W)``.
        samples: The number of rectangles, with sides of 1/8 to 1/2 of the image's.
        removal: What replaces a rectangle: a name of :data:`~.removal.REMOVALS` or a function.
        seed: The seed of the rectangles, which are the same for all images.
        chunk: The number of images that run at once; by default as many as fit into the memory budget.
    """
    check_maps(maps, images)
    regions = draw_rectangles(images, samples, seed)
    drops = _measure_drops(score, images, regions, removal, chunk)
    heat = _sum_heat(maps, regions).to(drops)
    energy = (heat**2).sum(1, keepdim=True)
    scale = ((heat * drops).sum(1, keepdim=True) / torch.where(energy > 0, energy, 1)).clamp_min(0)
    total = (drops**2).sum(1)
    error = ((scale * heat - drops) ** 2).sum(1)
    return torch.where(total > 0, error / torch.where(total > 0, total, 1), 1).clamp(max=1)


def draw_rectangles(images: Tensor, count: int, seed: int) -> Tensor:
    """Return random rectangles with sides of 1/8 to 1/2 of the image's, ``(count, H, W)``, boolean."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand((count, 2, 2), generator=generator, dtype=torch.float64, device="cpu")
    sides = []
    for axis, length in enumerate(images.shape[2:]):
        extents = (length * (1 / 8 + 3 / 8 * numbers[:, axis, 0])).round().clamp_min(1)
        starts = (numbers[:, axis, 1] * (length - extents + 1)).floor()
        positions = torch.arange(length, device="cpu")
        sides.append((positions >= starts[:, None]) & (positions < (starts + extents)[:, None]))
    return (sides[0][:, :, None] & sides[1][:, None, :]).to(images.device)


def _make_cells(images: Tensor, cells: int) -> Tensor:
    """Return the cells of a grid over the image, ``(cells², H, W)``, boolean, row by row."""
    rows, columns = (torch.arange(side, device=images.device) * cells // side for side in images.shape[2:])
    numbers = rows[:, None] * cells + columns
    return numbers == torch.arange(cells**2, device=images.device)[:, None, None]


def _measure_drops(score: Score, images: Tensor, regions: Tensor, removal: Removal, chunk: int | None) -> Tensor:
    """Return by how much the score drops without each region ``(K, H, W)``: ``(N, K)``."""
    fill, nothing = start_removal(images, removal), torch.zeros_like(regions[:1])
    masks = torch.cat([nothing, regions])
    scores = score_variants(score, images, len(masks), lambda rows, numbers: fill(rows, masks[numbers]), chunk)
    return scores[:, :1] - scores[:, 1:]


def _sum_heat(maps: Tensor, regions: Tensor) -> Tensor:
    """Return the heat of each map in each region, ``(N, K)``."""
    return maps.flatten(1) @ regions.flatten(1).T.to(maps)


# ---------------------------------------------------------------------------------------------------- sensitivity


@metric("max-sensitivity", higher_is_better=False, bounds=(0, math.inf), paper="arXiv 1901.09392")
def compute_max_sensitivity(
    explain: Explain, images: Tensor, maps: Tensor, *, samples: Count = 10, radius: Positive = 0.02, seed: int = 0
) -> Tensor:
    """Measure how much the map changes if the image changes a little. Lower is better, from 0.

    ``max over noise of ‖explain(x + noise) - map‖ / ‖map‖``, with uniform noise of up to ``radius`` times the range of
    the image's values. A map that is always the same has the best value, so read it beside the randomization metrics.
    A map of zeros that changes has no value, NaN. Chance level: measured.

    Source: arXiv 1901.09392. It does not divide by the norm of the map; captum does.

    Args:
        explain: The method.
        images: ``(N, C, H, W)``.
        maps: The method's maps for the images, ``(N, H, W)``.
        samples: The number of noisy copies of each image.
        radius: The largest noise, as a fraction of the range ``max x - min x`` of each image.
        seed: The seed of the noise, which is the same for all images.
    """
    check_maps(maps, images)
    values, generator = images.flatten(1), torch.Generator().manual_seed(seed)
    spread = radius * (values.amax(1) - values.amin(1))[:, None, None, None]
    changes = []
    for _ in range(samples):
        noise = 2 * torch.rand(images.shape[1:], generator=generator, device="cpu").to(images) - 1
        changes.append((explain_again(explain, images + spread * noise) - maps).flatten(1).norm(dim=1))
    largest, norms = torch.stack(changes).amax(0), maps.flatten(1).norm(dim=1)
    return torch.where(largest > 0, largest / torch.where(norms > 0, norms, torch.nan), 0)
