"""Methods that show the model a masked picture and ask what is left of the score.

``x`` is the picture; ``up`` brings a map to its size, and ``s`` scales a map into [0, 1]: its lowest value becomes 0,
its highest 1, and a constant map empty. Masks are made from small maps when their turn comes, so that memory does not
grow with their number, and several targets on one image share the passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from camtool.errors import MethodError
from camtool.evidence import Evidence, Make
from camtool.maps import in_units_of_its_peak, is_constant, min_max, per_row, resize, widened
from camtool.methods.gradient import over_positions
from camtool.methods.options import check_choice, check_count, check_number
from camtool.methods.registry import method, weighting
from camtool.outputs import logits
from camtool.targets import ClassScore, Probability, Target

__all__ = ["blur", "groupcam", "iscam", "probability_of", "probability_or_score", "rise", "scorecam", "sscam"]

Cut: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``cut(picture, maps, sample)``: a picture ``(C, *size)`` seen through maps ``(M, *grid)``, each of which is at its
``sample``-th turn ``(M,)``; gives ``(M, C, *size)``."""

_SLICE = 64
"""How many masks are summed at once."""


# ----------------------------------------------------------------------------------------- Score-CAM and its kin


@weighting("scorecam", paper="arXiv 1910.01279", needs="activations, forwards", cost="many passes")
def scorecam(
    evidence: Evidence,
    *,
    weighting: Literal["softmax", "probability"] = "softmax",
    scale_first: bool = False,
    max_channels: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Weigh channels by their score as masks.

    ``w = softmax_k(f(x · s(up(A_k))) - f(x_b))`` (Wang et al. 2020, Algorithm 1). The baseline ``x_b`` is the same for
    all channels and cancels in the softmax, so it is not run. Constant channels all make the same mask, the empty one,
    so one pass serves them all.

    Args:
        evidence: What to explain.
        weighting: ``"softmax"``, the paper's: a softmax over the channels of the targets' own scores. It makes weights
            of whatever the score is, and few channels get most of them. ``"probability"`` as in the authors' code: the
            weight is the class' probability, there is no softmax over channels, and constant channels are left out.
        scale_first: Scale a channel into [0, 1] before it is brought to the picture's size and not, as in the paper,
            after. The peak of a map is lost where it falls between two pixels, so the two differ a little.
        max_channels: Only so many channels, those with the largest standard deviation over the positions, which is
            Faster-Score-CAM; the others get no weight.
        chunk: How many masked pictures run at once; by default as many as fit into memory.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: An option is out of its range, or a probability is asked of a target that has none: one that is
            neither a class' score nor its probability.
    """
    check_count("max_channels", max_channels, optional=True)
    check_count("chunk", chunk, optional=True)
    check_choice("weighting", weighting, ("softmax", "probability"))
    A = evidence.activations
    chosen = _most_varied(A, max_channels)
    cut: Cut = partial(_masked, scale_first=scale_first)
    of = _probability if weighting == "probability" else None
    scores = _scores(evidence, A.where(per_row(chosen, A), 0), cut, chunk=chunk, of=of)
    if weighting == "probability":
        return per_row(scores.where(chosen & ~is_constant(A.flatten(0, 1)).reshape(chosen.shape), 0), A)
    return per_row(_shares(scores, chosen), A)


@weighting("sscam", paper="arXiv 2006.14255", needs="activations, forwards", cost="many passes")
def sscam(
    evidence: Evidence,
    *,
    samples: int = 10,
    noise: float = 2.0,
    on: Literal["activations", "input"] = "activations",
    seed: int = 0,
    chunk: int | None = None,
) -> Tensor:
    """Average Score-CAM over noise.

    ``w = softmax_k(mean_n f(x · s(up(A_k + ε_n))))`` with ``ε ~ N(0, noise²)``, where noise is put on the activations,
    SS-CAM (1); or ``mean_n f(x · s(up(A_k)) + ε_n)`` where it is put on the masked input, SS-CAM (2) (Wang et al.
    2020). The noise is in the units of what it is put on, as in the paper: torchcam, which puts as much on masks that
    are scaled into [0, 1], drowns them. The channels share their noise, so that they differ by what they show and not
    by chance; an average is the same with and without.

    Args:
        evidence: What to explain.
        samples: How many times noise is drawn.
        noise: Its standard deviation. Choose a smaller one where activations, or the input, are not of the order of 10.
        on: What it is put on.
        seed: Where the noise starts from; it is the same for every image.
        chunk: How many masked pictures run at once; by default as many as fit into memory.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: An option is out of its range.
    """
    check_count("samples", samples)
    check_number("noise", noise, least=0)
    check_choice("on", on, ("activations", "input"))
    check_count("seed", seed, least=0)
    check_count("chunk", chunk, optional=True)
    A = evidence.activations
    shape = A.shape[2:] if on == "activations" else evidence.inputs.shape[1:]
    drawn = noise * torch.randn(samples, *shape, generator=_generator(seed)).to(A)

    def cut(picture: Tensor, maps: Tensor, sample: Tensor) -> Tensor:
        if on == "activations":
            return _masked(picture, maps + drawn[sample])
        return _masked(picture, maps) + drawn[sample]

    return per_row(_shares(_scores(evidence, A, cut, samples=samples, chunk=chunk)), A)


@weighting("iscam", paper="arXiv 2010.03023", needs="activations, forwards", cost="many passes")
def iscam(evidence: Evidence, *, samples: int = 10, chunk: int | None = None) -> Tensor:
    """Average Score-CAM while masks are turned up.

    ``w = softmax_k(1/n Σ_i f(i/n · x · s(up(A_k))))`` for ``i = 1 ... n`` (Naidu et al. 2020). torchcam
    adds up the masks of all steps so far, so that of 10 steps the last one shows the picture 5.5 times as bright as it
    is; an integral from nothing to the mask ends at the mask, and that is what is done here.

    Args:
        evidence: What to explain.
        samples: In how many steps.
        chunk: How many masked pictures run at once; by default as many as fit into memory.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: An option is out of its range.
    """
    check_count("samples", samples)
    check_count("chunk", chunk, optional=True)
    A = evidence.activations

    def cut(picture: Tensor, maps: Tensor, sample: Tensor) -> Tensor:
        return _masked(_along((sample + 1).to(maps) / samples, picture) * picture, maps)

    return per_row(_shares(_scores(evidence, A, cut, samples=samples, chunk=chunk)), A)


# -------------------------------------------------------------------------------------------------------- Group-CAM


@method("groupcam", paper="arXiv 2103.13859", needs="gradients, forwards", cost="some passes")
def groupcam(
    evidence: Evidence,
    *,
    groups: int = 32,
    denoise: float = 0.7,
    radius: int = 25,
    sigma: float = 50.0,
    score: Literal["probability", "target"] = "probability",
    chunk: int | None = None,
) -> Tensor:
    """Score the image unblurred by channel groups.

    A group's mask is ``M_l = s(up(φ(relu(Σ_k w_k A_k))))`` over its neighbouring channels, with ``w_k`` the mean
    gradient and ``φ`` the removal of the lower positions. The map is ``relu(Σ_l α_l M_l)`` with
    ``α_l = f(x · M_l + b · (1 - M_l)) - f(b)``, where ``b`` is the blurred picture (Zhang et al. 2021, section 3).

    Args:
        evidence: What to explain.
        groups: How many; where there are fewer channels, one each.
        denoise: The part of a group's positions, the lowest, that is taken for noise and removed.
        radius: How far the blur reaches, in pixels.
        sigma: The standard deviation of its bell, in pixels; the default is all but a box.
        score: What counts, ``f``: the ``"probability"`` of the class, as in the paper, where the target is a class'
            score or its probability; any other counts by its own score. Or the ``"target"``'s own score in any case.
        chunk: How many masked pictures run at once; by default as many as fit into memory.

    Returns:
        The maps ``(R, *size)``, of the picture's size.

    Raises:
        MethodError: An option is out of its range.
    """
    check_count("groups", groups)
    check_number("denoise", denoise, least=0, below=1)
    check_count("radius", radius)
    check_number("sigma", sigma, above=0)
    check_choice("score", score, ("probability", "target"))
    check_count("chunk", chunk, optional=True)
    of = probability_or_score if score == "probability" else None
    answers = []
    for row, maps in enumerate(_of_groups(evidence, groups, denoise)):
        picture = evidence.inputs[evidence.images[row]]
        # The empty mask leaves the blurred picture, the baseline.
        with_empty = torch.cat([maps, torch.zeros_like(maps[:1])])
        cut: Cut = partial(_unveiled, blur(picture, radius, sigma))
        scores = _scores_of_image(evidence, [row], with_empty, cut, chunk=chunk, of=of)[:, 0]
        answers.append(_summed(scores[:-1] - scores[-1], maps, picture).relu())
    return torch.stack(answers)


def _of_groups(evidence: Evidence, groups: int, denoise: float) -> Tensor:
    """The part of Grad-CAM's map that each group of channels makes, without its lower positions: ``(R, G, *grid)``."""
    weighed = over_positions(evidence.gradients, "mean") * evidence.activations
    parts = weighed.tensor_split(min(groups, weighed.shape[1]), 1)
    maps = torch.stack([part.sum(1) for part in parts], 1).relu()
    return maps.where(maps > per_row(_percentile(maps.flatten(2), denoise), maps), 0)


def _percentile(values: Tensor, part: float) -> Tensor:
    """Along the last axis, linear between the ranks; ``Tensor.quantile`` does not take large tensors."""
    rank = part * (values.shape[-1] - 1)
    lower, upper = (values.kthvalue(1 + whole, -1).values for whole in (math.floor(rank), math.ceil(rank)))
    return lower + (rank - math.floor(rank)) * (upper - lower)


def _unveiled(blurred: Tensor, picture: Tensor, maps: Tensor, _: Tensor) -> Tensor:
    mask = _along(min_max(resize(maps, picture.shape[1:])), picture)
    return mask * picture + (1 - mask) * blurred


def _summed(weights: Tensor, maps: Tensor, picture: Tensor) -> Tensor:
    """The masks of maps ``(M, *grid)``, each by its weight ``(M,)``, summed: ``(*size)``."""
    total = maps.new_zeros(picture.shape[1:])
    for some, their in zip(maps.split(_SLICE), weights.split(_SLICE), strict=True):
        total += torch.tensordot(their, min_max(resize(some, picture.shape[1:])), 1)
    return total


def blur(picture: Tensor, radius: int, sigma: float) -> Tensor:
    """A picture ``(C, *size)`` under a Gaussian bell that is cut off at a radius; it is mirrored at its edges."""
    blurred = widened(picture)
    for axis in range(1, picture.ndim):
        lines = blurred.movedim(axis, -1)
        reach = min(radius, lines.shape[-1] - 1)  # a mirror holds no more
        offsets = torch.arange(-reach, reach + 1).to(lines)
        bell = (-(offsets**2) / (2 * sigma**2)).exp()
        mirrored = torch.nn.functional.pad(lines.reshape(-1, 1, lines.shape[-1]), (reach, reach), mode="reflect")
        smooth = torch.nn.functional.conv1d(mirrored, (bell / bell.sum())[None, None])
        blurred = smooth.reshape(lines.shape).movedim(-1, axis)
    return blurred.to(picture.dtype)


# ------------------------------------------------------------------------------------------------------------- RISE


@method("rise", paper="arXiv 1806.07421", needs="forwards", cost="many passes", at_input=True)
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

    ``S = Σ_i f(x · M_i) M_i / Σ_i M_i``, the mean score where a pixel is seen (Petsiuk et al. 2018, section 3). A mask
    is a coarse grid whose cells are seen with probability ``keep``, brought to a size one cell above the picture's and
    cropped at random. The paper divides by the expected ``keep · N`` in place of what the masks did show of each pixel,
    which prints their own unevenness onto the map, in proportion to the score. No layer and no gradient is needed.

    Args:
        evidence: What to explain.
        samples: How many masks. Few make a grainy map: the paper takes 4000 and 8000.
        cells: How many cells along each axis.
        keep: The probability that a cell is seen.
        seed: Where chance starts from; the masks are the same for every image.
        score: What counts, ``f``: the ``"probability"`` of the class, as in the paper, where the target is a class'
            score or its probability; any other counts by its own score. Or the ``"target"``'s own score in any case.
        chunk: How many masked pictures run at once; by default as many as fit into memory.

    Returns:
        The maps ``(R, *size)``, of the picture's size.

    Raises:
        MethodError: An option is out of its range.
    """
    check_count("samples", samples)
    check_count("cells", cells)
    check_number("keep", keep, above=0, most=1)
    check_count("seed", seed, least=0)
    check_choice("score", score, ("probability", "target"))
    check_count("chunk", chunk, optional=True)
    of = probability_or_score if score == "probability" else None
    pictures = evidence.inputs
    masks = _random_masks(pictures, samples, cells, keep, seed)
    answers = widened(pictures).new_empty(len(evidence.images), *pictures.shape[2:])
    for rows in evidence.by_image:
        make = partial(_through, masks, pictures[evidence.images[rows[0]]])
        scores = evidence.passes(rows, samples, make, chunk=chunk, of=of).to(answers)
        answers[rows] = _mean_when_seen(scores, masks)
    return answers


def _mean_when_seen(scores: Tensor, masks: Make) -> Tensor:
    """Each row's mean of scores ``(N, rows)``, weighed at each pixel by how far it is seen: ``(rows, *size)``."""
    mean = scores.mean(0)
    above, seen = scores.new_zeros(()), scores.new_zeros(())
    for start in range(0, len(scores), _SLICE):
        part = slice(start, start + _SLICE)
        some = masks(part)
        # Differences from the mean are summed, so that equal scores make a constant map in spite of rounding.
        above = above + torch.tensordot((scores[part] - mean).T, some, 1)
        seen = seen + some.sum(0)
    return per_row(mean, above) + above / torch.where(seen > 0, seen, 1)


def _through(masks: Make, picture: Tensor, part: slice) -> Tensor:
    return (_along(masks(part), picture) * picture).to(picture.dtype)


def _random_masks(pictures: Tensor, samples: int, cells: int, keep: float, seed: int) -> Make:
    """What makes some of the masks, ``(m, *size)``. All that is kept is a small grid and a shift for each."""
    size = pictures.shape[2:]
    cell = [-(-length // cells) for length in size]
    chance = _generator(seed)
    grids = (torch.rand(samples, *[cells] * len(size), generator=chance) < keep).to(widened(pictures))
    turned = torch.rand(samples, len(size), generator=chance, dtype=torch.float64)
    shifts = (turned * torch.tensor(cell)).long().tolist()

    def make(part: slice) -> Tensor:
        large = resize(grids[part], [(cells + 1) * length for length in cell])
        windows = [
            tuple(slice(start, start + length) for start, length in zip(shift, size, strict=True))
            for shift in shifts[part]
        ]
        return torch.stack([mask[window] for mask, window in zip(large, windows, strict=True)])

    return make


# ---------------------------------------------------------------------------------------------------- what they share


def _scores(
    evidence: Evidence,
    maps: Tensor,
    cut: Cut,
    *,
    samples: int = 1,
    chunk: int | None = None,
    of: Callable[[Target], Target] | None = None,
) -> Tensor:
    """Each row's mean score of its picture, cut out by each of its image's maps ``(R, C, *grid)``: ``(R, C)``."""
    scores = maps.new_empty(maps.shape[:2])
    for rows in evidence.by_image:
        own = maps[rows[0]]
        scores[rows] = _scores_of_image(evidence, rows, own, cut, samples=samples, chunk=chunk, of=of).T
    return scores


def _scores_of_image(
    evidence: Evidence,
    rows: Sequence[int],
    maps: Tensor,
    cut: Cut,
    *,
    samples: int = 1,
    chunk: int | None = None,
    of: Callable[[Target], Target] | None = None,
) -> Tensor:
    """The same for the rows of one image, which share its maps ``(C, *grid)`` and so the passes: ``(C, rows)``."""
    constant = is_constant(maps)
    # All constant maps make the same mask, so an empty map, the last one, stands for each of them.
    different = torch.cat([maps[~constant], torch.zeros_like(maps[:1])]) if constant.any() else maps
    count = len(different)
    place = torch.where(constant, count - 1, (~constant).cumsum(0) - 1)
    picture = evidence.inputs[evidence.images[rows[0]]]

    def make(part: slice) -> Tensor:
        turns = torch.arange(part.start, part.stop, device=maps.device)
        return cut(picture, different[turns % count], turns // count).to(picture.dtype)

    scores = evidence.passes(rows, samples * count, make, chunk=chunk, of=of).to(maps)
    mean: Tensor = scores.unflatten(0, (samples, count)).mean(0)
    return mean[place]


def _masked(picture: Tensor, maps: Tensor, _: Tensor | None = None, *, scale_first: bool = False) -> Tensor:
    """A picture, or one for each map, times the maps as masks: ``(M, C, *size)``."""
    size = picture.shape[-(maps.ndim - 1) :]
    mask = resize(min_max(maps), size) if scale_first else min_max(resize(maps, size))
    return mask[:, None] * picture


def _most_varied(maps: Tensor, most: int | None) -> Tensor:
    """Which channels have the largest standard deviation over the positions: ``(R, C)``."""
    if most is None or most >= maps.shape[1]:
        return maps.new_ones(maps.shape[:2], dtype=torch.bool)
    spread = in_units_of_its_peak(maps).flatten(2).std(2, correction=0)
    chosen = torch.zeros_like(spread, dtype=torch.bool)
    return chosen.scatter(1, spread.topk(most, 1).indices, True)


def _shares(scores: Tensor, among: Tensor | None = None) -> Tensor:
    """Softmax of scores ``(R, C)`` over the channels, among those that count."""
    return (scores if among is None else scores.masked_fill(~among, -torch.inf)).softmax(1)


def _along(of_variants: Tensor, picture: Tensor) -> Tensor:
    """Numbers ``(M,)`` or masks ``(M, *size)``, so that they can be multiplied by a picture ``(C, *size)``."""
    if of_variants.ndim == 1:
        return of_variants.reshape(-1, *[1] * picture.ndim)
    return of_variants[:, None]


def probability_of(target: Target) -> Target | None:
    """The probability of the class whose score, or whose probability, a target is; any other target has none.

    A contrast of two classes, say, or the negative of a score, is about a class too, but asks another question of it.
    """
    if isinstance(target, ClassScore):
        target = Probability(target.index, target.of)
    return _Wide(target) if isinstance(target, Probability) else None


def _probability(target: Target) -> Target:
    probability = probability_of(target)
    if probability is None:
        raise MethodError(
            f"target {target} is neither a class' score nor its probability, so it has no probability; let the score "
            "itself count: weighting='softmax'."
        )
    return probability


def probability_or_score(target: Target) -> Target:
    """The probability of the class that a target is about, or where it has none the target itself."""
    return probability_of(target) or target


@dataclass(frozen=True)
class _Wide(Target):
    """A target in single precision at least: a probability of half precision differs from none that is near."""

    target: Target

    def __call__(self, output: Any) -> Tensor:
        return self.target(widened(logits(output)))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
