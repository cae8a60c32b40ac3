"""Score-CAM and its relatives: the channels of a layer mask the image, and the masked images are scored.

``x`` is the input and ``f`` the score. ``up`` resizes a map to the input's size, and ``s`` scales a map to [0, 1]; a
constant map becomes zeros. The masks are computed in chunks from the small maps, so the memory does not grow with their
number. The rows of one image share the forward passes.

As in the papers, ``up`` stretches the grid over the input. With ``masks="centers"`` each cell masks the pixels around
its center, see :mod:`camtool.layers.centers`. This was measured, and did not make the maps more faithful. The map
itself is drawn by the centers in either case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from camtool.arguments.checks import Count, CountOrZero, NotNegative, OptionalCount, Positive, ShareBelowOne
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import score_inputs
from camtool.geometry.cell_centers import Placement
from camtool.maps import is_constant, resize_to_grid, scale_by_peak, scale_min_max, unsqueeze_like, upcast
from camtool.methods.families.gradient import average_over_positions
from camtool.methods.options import Scored, convert_to_probability, prefer_probability
from camtool.methods.registry import method, weighting
from camtool.targets import Target

# A function that resizes maps ``(M, *grid)`` to the input's size, ``(M, *size)``.
Enlarge: TypeAlias = Callable[[Tensor], Tensor]

# ``mask_input(enlarge, x, maps, samples)`` masks an input ``(C, *size)`` by maps ``(M, *grid)``: ``(M, C, *size)``.
#
# ``samples`` ``(M,)`` are the indices of the random samples or steps, for methods that score a mask several times.
MaskInput: TypeAlias = Callable[[Enlarge, Tensor, Tensor, Tensor], Tensor]

# The number of masks at the input's size that are summed at once, to bound the memory.
MASKS_AT_ONCE = 64


# --------------------------------------------------------------------------------------- Score-CAM, SS-CAM, IS-CAM


@weighting("scorecam", paper="arXiv 1910.01279", needs=("activations", "forwards"), cost="many passes")
def scorecam(
    evidence: Evidence,
    *,
    weighting: Literal["softmax", "probability"] = "softmax",
    scale_first: bool = False,
    max_channels: OptionalCount = None,
    chunk: OptionalCount = None,
    masks: Placement = "stretch",
) -> Tensor:
    """Weigh channels by their score as masks.

    ``w = softmax_k(f(x · s(up(A_k))) - f(x_b))`` (Wang et al. 2020, Algorithm 1). The baseline ``x_b`` is the same for
    all channels and cancels in the softmax, so it is not run. All constant channels make the same empty mask, so one
    pass serves them all.

    Args:
        evidence: The activations, and the model to run on masked inputs.
        weighting: ``"softmax"`` as in the paper: a softmax of the target's scores over the channels. It works for any
            score, and few channels get most of the weight. ``"probability"`` as in the authors' code: the weight is the
            probability of the class, without a softmax over the channels, and constant channels are left out.
        scale_first: Scale a channel to [0, 1] before it is resized; the paper scales it afterwards. Resizing lowers a
            peak between two pixels, so the results differ slightly.
        max_channels: Use only this number of channels, those with the largest standard deviation over the positions
            (Faster-Score-CAM); the others get no weight.
        chunk: The number of masked inputs in one pass; by default as many as fit into memory.
        masks: ``"stretch"`` as in the paper: the grid is stretched over the input. ``"centers"``: each cell masks the
            pixels around its center.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: An option is out of range, or ``weighting="probability"`` and the target has no probability.
    """
    A = evidence.activations
    chosen = _select_varied_channels(A, max_channels)
    mask_input: MaskInput = partial(_mask_input, scale_first=scale_first)
    enlarge = get_enlargement(evidence, masks)
    convert = _require_probability if weighting == "probability" else None
    # Channels that are not chosen become zeros, so all of them share one pass.
    maps = A.where(unsqueeze_like(chosen, A), 0)
    scores = _score_masks(evidence, maps, mask_input, enlarge, chunk=chunk, convert_target=convert)
    if weighting == "probability":
        varies = ~is_constant(A.flatten(0, 1)).reshape(chosen.shape)
        return unsqueeze_like(scores.where(chosen & varies, 0), A)
    return unsqueeze_like(scores.masked_fill(~chosen, -torch.inf).softmax(1), A)


@weighting("sscam", paper="arXiv 2006.14255", needs=("activations", "forwards"), cost="many passes")
def sscam(
    evidence: Evidence,
    *,
    samples: Count = 10,
    noise: NotNegative = 2.0,
    on: Literal["activations", "input"] = "activations",
    seed: CountOrZero = 0,
    chunk: OptionalCount = None,
    masks: Placement = "stretch",
) -> Tensor:
    """Average Score-CAM over noise.

    ``w = softmax_k(mean_n f(x · s(up(A_k + ε_n))))`` with ``ε ~ N(0, noise²)`` on the activations, SS-CAM (1), or
    ``mean_n f(x · s(up(A_k)) + ε_n)`` with noise on the masked input, SS-CAM (2) (Wang et al. 2020). As in the paper,
    the noise has the units of the activations or of the input. torchcam adds noise of the same size to masks in [0, 1],
    which hides them.

    All channels share the noise, so their weights differ only by what the channels show.

    Args:
        evidence: The activations, and the model to run on masked inputs.
        samples: The number of noise samples.
        noise: The standard deviation. Choose a smaller one if the activations, or the inputs, are much smaller than 10.
        on: Add the noise to the ``"activations"`` or to the masked ``"input"``.
        seed: The seed of the noise, which is the same for every image.
        chunk: The number of masked inputs in one pass; by default as many as fit into memory.
        masks: ``"stretch"`` as in the paper: the grid is stretched over the input. ``"centers"``: each cell masks the
            pixels around its center.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: An option is out of range.
    """
    A = evidence.activations
    shape = A.shape[2:] if on == "activations" else evidence.inputs.shape[1:]
    generator = torch.Generator().manual_seed(seed)
    drawn = noise * torch.randn(samples, *shape, generator=generator, device="cpu").to(A)

    def mask_input(enlarge: Enlarge, x: Tensor, maps: Tensor, sample: Tensor) -> Tensor:
        if on == "activations":
            return _mask_input(enlarge, x, maps + drawn[sample])
        return _mask_input(enlarge, x, maps) + drawn[sample].to(x.device)

    scores = _score_masks(evidence, A, mask_input, get_enlargement(evidence, masks), samples=samples, chunk=chunk)
    return unsqueeze_like(scores.softmax(1), A)


@weighting("iscam", paper="arXiv 2010.03023", needs=("activations", "forwards"), cost="many passes")
def iscam(
    evidence: Evidence, *, samples: Count = 10, chunk: OptionalCount = None, masks: Placement = "stretch"
) -> Tensor:
    """Average Score-CAM while masks are turned up.

    ``w = softmax_k(1/n Σ_i f(i/n · x · s(up(A_k))))`` for ``i = 1 ... n`` (Naidu et al. 2020). This approximates the
    integral over masks from zero to the full mask. torchcam sums the masks of all previous steps instead: of 10 steps,
    the last shows the image 5.5 times too bright.

    Args:
        evidence: The activations, and the model to run on masked inputs.
        samples: The number of steps ``n``.
        chunk: The number of masked inputs in one pass; by default as many as fit into memory.
        masks: ``"stretch"`` as in the paper: the grid is stretched over the input. ``"centers"``: each cell masks the
            pixels around its center.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: An option is out of range.
    """
    A = evidence.activations

    def mask_input(enlarge: Enlarge, x: Tensor, maps: Tensor, sample: Tensor) -> Tensor:
        return _mask_input(enlarge, align_with_input((sample + 1).to(maps) / samples, x) * x, maps)

    scores = _score_masks(evidence, A, mask_input, get_enlargement(evidence, masks), samples=samples, chunk=chunk)
    return unsqueeze_like(scores.softmax(1), A)


# ------------------------------------------------------------------------------------------------------- Group-CAM


@method("groupcam", paper="arXiv 2103.13859", needs=("gradients", "forwards"), cost="some passes", at_input_size=True)
def groupcam(
    evidence: Evidence,
    *,
    groups: Count = 32,
    denoise: ShareBelowOne = 0.7,
    radius: Count = 25,
    sigma: Positive = 50.0,
    score: Scored = "probability",
    chunk: OptionalCount = None,
    masks: Placement = "stretch",
) -> Tensor:
    """Score the image unblurred by channel groups.

    The mask of a group is ``M_l = s(up(φ(relu(Σ_k w_k A_k))))`` over its adjacent channels, where ``w_k`` is the mean
    gradient and ``φ`` removes the lower positions. The map is ``relu(Σ_l α_l M_l)`` with
    ``α_l = f(x · M_l + b · (1 - M_l)) - f(b)``, where ``b`` is the blurred input (Zhang et al. 2021, section 3).

    Args:
        evidence: The activations and gradients, and the model to run on masked inputs.
        groups: The number of groups; with fewer channels, each channel is a group.
        denoise: The fraction of a group's positions, the lowest, that is removed as noise.
        radius: The radius of the blur, in pixels.
        sigma: The standard deviation of the blur, in pixels. With the default it is almost a box filter.
        score: The score ``f``. ``"probability"`` as in the paper: the probability of the class if the target has one,
            else the target's own score. ``"target"``: always the target's own score.
        chunk: The number of masked inputs in one pass; by default as many as fit into memory.
        masks: ``"stretch"`` as in the paper: the grid is stretched over the input. ``"centers"``: each cell masks the
            pixels around its center.

    Returns:
        The maps ``(R, *size)``, at the input's size.

    Raises:
        MethodError: An option is out of range.
    """
    convert, enlarge = prefer_probability if score == "probability" else None, get_enlargement(evidence, masks)
    results = []
    for row, maps in enumerate(_compute_group_maps(evidence, groups, denoise)):
        x = evidence.inputs[evidence.images[row]]
        # An empty mask gives the blurred input, the baseline b.
        with_empty = torch.cat([maps, torch.zeros_like(maps[:1])])
        unblur: MaskInput = partial(_unblur_by_mask, blur_input(x, radius, sigma))
        options = {"chunk": chunk, "convert_target": convert}
        scores = _score_masks_of_image(evidence, [row], with_empty, unblur, enlarge, 1, options)[:, 0]
        results.append(_sum_masks(evidence, scores[:-1] - scores[-1], maps).relu())
    return torch.stack(results)


def _compute_group_maps(evidence: Evidence, groups: int, denoise: float) -> Tensor:
    """Return each group's part of the Grad-CAM map without its lower positions, ``(R, groups, *grid)``."""
    weighed = average_over_positions(evidence.gradients) * evidence.activations
    parts = weighed.tensor_split(min(groups, weighed.shape[1]), 1)
    maps = torch.stack([part.sum(1) for part in parts], 1).relu()
    return maps.where(maps > unsqueeze_like(compute_percentile(maps.flatten(2), denoise), maps), 0)


def compute_percentile(values: Tensor, fraction: float) -> Tensor:
    """Return a percentile along the last axis, linear between the ranks.

    ``Tensor.quantile`` computes the same but rejects tensors of more than 2²⁴ elements.
    """
    rank = fraction * (values.shape[-1] - 1)
    lower, upper = (values.kthvalue(1 + whole, -1).values for whole in (math.floor(rank), math.ceil(rank)))
    return lower + (rank - math.floor(rank)) * (upper - lower)


def _unblur_by_mask(blurred: Tensor, enlarge: Enlarge, x: Tensor, maps: Tensor, _: Tensor) -> Tensor:
    mask = align_with_input(scale_min_max(enlarge(maps)), x)
    return mask * x + (1 - mask) * blurred


def _sum_masks(evidence: Evidence, weights: Tensor, maps: Tensor) -> Tensor:
    """Return the weighted sum ``(*size)`` of the masks of maps ``(M, *grid)``, with weights ``(M,)``."""
    total = maps.new_zeros(evidence.inputs.shape[2:])
    for part, part_weights in zip(maps.split(MASKS_AT_ONCE), weights.split(MASKS_AT_ONCE), strict=True):
        total += torch.tensordot(part_weights, scale_min_max(evidence.resize_to_input(part, holds=True)), 1)
    return total


def blur_input(x: Tensor, radius: int, sigma: float) -> Tensor:
    """Return an input ``(C, *size)`` smoothed by a Gaussian of a limited radius, with reflection at the borders."""
    blurred = upcast(x)
    # The Gaussian is separable, so the axes are smoothed one after the other.
    for axis in range(1, x.ndim):
        lines = blurred.movedim(axis, -1)
        # Reflection padding must be shorter than the line.
        reach = min(radius, lines.shape[-1] - 1)
        offsets = torch.arange(-reach, reach + 1, device="cpu").to(lines)
        kernel = (-(offsets**2) / (2 * sigma**2)).exp()
        padded = torch.nn.functional.pad(lines.reshape(-1, 1, lines.shape[-1]), (reach, reach), mode="reflect")
        smooth = torch.nn.functional.conv1d(padded, (kernel / kernel.sum())[None, None])
        blurred = smooth.reshape(lines.shape).movedim(-1, axis)
    return blurred.to(x.dtype)


# -------------------------------------------------------------------------------------------------------- Poly-CAM

# The weights of Poly-CAM: the gain of the score if a channel is shown, the loss if it is hidden, or their sum.
Variant: TypeAlias = Literal["+", "-", "+-"]


@weighting("polycam", paper="arXiv 2204.13359", needs="forwards", cost="many passes")
def polycam(
    evidence: Evidence,
    *,
    variant: Variant = "+-",
    score: Scored = "probability",
    chunk: OptionalCount = None,
    masks: Placement = "stretch",
) -> Tensor:
    """Weigh channels by score gained and lost.

    With the channel as a mask ``M_k`` of the input ``x``, ``w+_k = f(x ⊙ M_k) - f(0)`` and
    ``w-_k = f(x) - f(x ⊙ (1 - M_k))``; ``w±_k`` is their sum (Englebert et al. 2022). Negative weights become 0, as in
    the authors' code, which leaves out ``f(0)``. A constant channel gets no weight.

    This is the map of one layer. The fine maps of the paper combine several layers, the last before each change of the
    grid, with the merge :class:`camtool.methods.merges.Cascade`:
    ``explain(resnet, img, method="polycam", layer=["relu", "layer1", "layer2", "layer3", "layer4"], merge="polycam")``.

    Args:
        evidence: The activations, and the model to run on masked inputs.
        variant: ``"+"``, ``"-"`` or ``"+-"``.
        score: The score ``f``. ``"probability"`` as in the paper: the probability of the class if the target has one,
            else the target's own score. ``"target"``: always the target's own score.
        chunk: The number of masked inputs in one pass; by default as many as fit into memory.
        masks: ``"stretch"`` as in the paper: the grid is stretched over the input. ``"centers"``: each cell masks the
            pixels around its center.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: An option is out of range.
    """
    A = evidence.activations
    convert = prefer_probability if score == "probability" else None
    score_variants = partial(score_inputs, evidence, chunk=chunk, convert_target=convert)
    enlarge = get_enlargement(evidence, masks)
    weights = A.new_zeros(A.shape[:2])
    for rows in evidence.rows_by_image:
        weights[rows] = _compute_gains(evidence, rows, variant, score_variants, enlarge).relu().T.to(A)
    return unsqueeze_like(weights, A)


def _compute_gains(
    evidence: Evidence, rows: Sequence[int], variant: Variant, score_variants: Callable[..., Tensor], enlarge: Enlarge
) -> Tensor:
    """Return the weight of each channel for the rows of one image, ``(C, rows)``.

    ``score_variants`` is :func:`score_inputs` with the evidence and its options set.
    """
    A, x = evidence.activations[rows[0]], evidence.inputs[evidence.images[rows[0]]]
    varied = is_constant(A).logical_not().nonzero()[:, 0]

    def score_masks(count: int, make_masks: Callable[[slice], Tensor]) -> Tensor:
        return score_variants(rows, count, lambda part: make_masks(part)[:, None].to(x) * x).to(A)

    def make_masks(part: slice) -> Tensor:
        return scale_min_max(enlarge(A[varied[part]]))

    gains = A.new_zeros(len(A), len(rows))
    if len(varied):
        empty_and_full = A.new_tensor([0, 1]).reshape(2, *[1] * (A.ndim - 1))
        empty, full = score_masks(2, lambda part: empty_and_full[part])
        if "+" in variant:
            gains[varied] += score_masks(len(varied), make_masks) - empty
        if "-" in variant:
            gains[varied] += full - score_masks(len(varied), lambda part: 1 - make_masks(part))
    return gains


# ------------------------------------------------------------------------------------------------- shared functions


def get_enlargement(evidence: Evidence, masks: Placement) -> Enlarge:
    """Return the function that resizes maps of the layer to the input's size.

    Raises:
        MethodError: ``masks`` is unknown, or ``"centers"`` although maps are stretched.
    """
    if masks == "centers" and evidence.forward_pass.settings.placement == "stretch":
        raise MethodError("masks='centers' needs placement='centers', got placement='stretch'; leave masks= out.")
    if masks == "centers":
        return partial(evidence.resize_to_input, holds=True)
    return partial(resize_to_grid, grid=evidence.inputs.shape[2:])


def _score_masks(
    evidence: Evidence, maps: Tensor, mask_input: MaskInput, enlarge: Enlarge, *, samples: int = 1, **options: Any
) -> Tensor:
    """Return each row's mean score of its input masked by each of the maps ``(R, C, *grid)``: ``(R, C)``.

    ``options`` are those of :func:`score_inputs`.
    """
    scores = maps.new_empty(maps.shape[:2])
    for rows in evidence.rows_by_image:
        scores[rows] = _score_masks_of_image(evidence, rows, maps[rows[0]], mask_input, enlarge, samples, options).T
    return scores


def _score_masks_of_image(
    evidence: Evidence,
    rows: Sequence[int],
    maps: Tensor,
    mask_input: MaskInput,
    enlarge: Enlarge,
    samples: int,
    options: Mapping[str, Any],
) -> Tensor:
    """Return the mean scores of one image's rows, which share the maps ``(C, *grid)`` and the passes: ``(C, rows)``."""
    constant = is_constant(maps)
    # All constant maps make the same empty mask, so one empty map, the last one, represents all of them.
    distinct = torch.cat([maps[~constant], torch.zeros_like(maps[:1])]) if constant.any() else maps
    count = len(distinct)
    index = torch.where(constant, count - 1, (~constant).cumsum(0) - 1)
    x = evidence.inputs[evidence.images[rows[0]]]

    def make_variants(part: slice) -> Tensor:
        numbers = torch.arange(part.start, part.stop, device=maps.device)
        return mask_input(enlarge, x, distinct[numbers % count], numbers // count).to(x.dtype)

    scores = score_inputs(evidence, rows, samples * count, make_variants, **options).to(maps)
    mean: Tensor = scores.unflatten(0, (samples, count)).mean(0)
    return mean[index]


def _mask_input(
    enlarge: Enlarge, x: Tensor, maps: Tensor, _: Tensor | None = None, *, scale_first: bool = False
) -> Tensor:
    """Return an input ``(C, *size)``, or one per map, times the maps as masks: ``(M, C, *size)``."""
    mask = enlarge(scale_min_max(maps)) if scale_first else scale_min_max(enlarge(maps))
    return align_with_input(mask, x) * x


def _select_varied_channels(maps: Tensor, count: int | None) -> Tensor:
    """Return True for the channels with the largest standard deviation over the positions, ``(R, C)``."""
    if count is None or count >= maps.shape[1]:
        return maps.new_ones(maps.shape[:2], dtype=torch.bool)
    spread = scale_by_peak(maps).flatten(2).std(2, correction=0)
    chosen = torch.zeros_like(spread, dtype=torch.bool)
    return chosen.scatter(1, spread.topk(count, 1).indices, True)


def align_with_input(values: Tensor, x: Tensor) -> Tensor:
    """Return numbers ``(M,)`` or masks ``(M, *size)`` with axes that broadcast with an input ``(C, *size)``.

    They come to its device, as the layers of a model may lie on several.
    """
    values = values.to(x.device)
    return values.reshape(-1, *[1] * x.ndim) if values.ndim == 1 else values[:, None]


def _require_probability(target: Target) -> Target:
    probability = convert_to_probability(target)
    if probability is None:
        raise MethodError(
            f"weighting='probability' needs the score or the probability of a class as the target, got {target}; "
            "use weighting='softmax', which works with any target."
        )
    return probability
