"""What a set of pictures has in common to a model: deep feature factorisation, from photos to coloured concepts.

A layer's activations at all positions of all pictures, positions by channels, are taken apart into a few concepts,
``A ≈ W H`` with nothing negative anywhere (Collins et al. 2018, arXiv 1806.10206): ``H`` holds a vector of channels for
each concept, and ``W`` says how much of it there is at each position. As the pictures share the concepts, the same
colour means the same thing in all of them. No class is asked for; what a concept means to the model it is asked last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from camtool import images, maps, outputs, overlay, targets
from camtool.arguments import as_module, names_ours
from camtool.concept_page import MOST, Entry, page
from camtool.errors import CamtoolError, LayerError, MethodError, format_count, format_percent
from camtool.hooks import observe, resume
from camtool.layers import Layer, resolve
from camtool.models import Loaded, Transform, as_loaded, labels_for, layer_inside
from camtool.modules import name_of
from camtool.pictures import Picture, Preparer, Source, batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Concepts", "Vote", "concepts", "factorised"]

Pictures: TypeAlias = "Source | Sequence[Source]"

_VOTES = 3
"""How many classes are named for a concept."""

_ROUNDS, _ENOUGH = 500, 1e-6
"""The factorisation ends after so many rounds, or when one explains less than this part of the activity more."""

_STARTS, _HEAT = 8, 25
"""Number of starts of the factorization, and of rounds after which only a few of them go on."""

_MUCH = 0.1
"""The part of a layer's squares that may be negative before people are told."""

_WORTH_TELLING = 0.005  # below this a class rounds to 0 %
_FULL = 0.5  # from this strength on, a concept's colour is as opaque as alpha says
_CRISP = 8  # the power by which the strongest concept is ahead of the others, in the mix of colours

_COLOURS = (
    *((230, 85, 13), (49, 130, 220), (245, 205, 30), (20, 160, 110), (205, 90, 175)),
    *((120, 80, 200), (110, 200, 235), (150, 95, 40), (165, 205, 60), (215, 30, 75)),
)
"""A colour for each concept, told apart by people who see fewer colours too, at least the first five."""


@dataclass(frozen=True)
class Vote:
    """What the model says of a concept.

    Attributes:
        label: The class' name, or ``"class 281"`` where names are not known.
        index: The class' index.
        probability: How probable the class is, in the model's eyes, where all the layer sees is the concept.
    """

    label: str
    index: int
    probability: float

    def __str__(self) -> str:
        return f"{self.label} {format_percent(self.probability)}"


@dataclass(frozen=True, eq=False)
class Concepts(images.Shown):
    """A few concepts, the strongest first, in a set of pictures.

    Attributes:
        maps: ``(N, n, h, w)`` float32 in [0, 1], how strong each concept is at each position; 1 is where it is
            strongest in all of the pictures.
        vectors: ``(n, C)`` float32, the channels' activations where the concept is strongest.
        votes: For each concept, the classes that the model sees in it, the likeliest first.
        shares: ``(n,)`` float32, how much of what the concepts explain is this one's; they add up to 1.
        explained: How much of the layer's activity the concepts explain, 0 to 1, as a part of its squares.
        pictures: What was given, and how it became the model's input.
        layer: The layer's dotted name.
        warnings: What a person should know; empty where there is nothing.
    """

    maps: NDArray[np.float32]
    vectors: NDArray[np.float32]
    votes: tuple[tuple[Vote, ...], ...]
    shares: NDArray[np.float32]
    explained: float
    pictures: tuple[Picture, ...]
    layer: str
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def labels(self) -> list[str]:
        """For each concept the class that it speaks for most."""
        return [votes[0].label for votes in self.votes]

    @property
    def colors(self) -> list[tuple[int, int, int]]:
        """For each concept its colour, red, green and blue."""
        return [_colour(concept) for concept in range(len(self))]

    def heatmaps(self, image: int) -> NDArray[np.float32]:
        """The concepts in one of the photos, ``(n, H, W)`` in [0, 1]; 0 where the model did not look.

        Unlike an explanation's heatmap each is as strong as in :attr:`maps`, and not stretched to 1, as a concept may
        be absent from a photo.
        """
        placed = self.pictures[image].geometry.place(torch.from_numpy(self.maps[image]))
        strengths: NDArray[np.float32] = placed.clamp(0, 1).numpy()
        return strengths

    def overlay(self, image: int, alpha: float = 0.6) -> NDArray[np.uint8]:
        """One of the photos with each place in the colour of its strongest concept, ``(H, W, 3)`` uint8.

        Args:
            image: Which of the pictures.
            alpha: How much the colours cover where a concept is strong, 0 to 1; they fade where it is weak.
        """
        picture, heat = self.pictures[image], self.heatmaps(image)
        photo = overlay.blend(picture.photo, np.zeros_like(heat[0]), seen=picture.geometry.seen)
        return _tint(photo, heat, self.colors, alpha)

    def picture(self) -> NDArray[np.uint8]:
        """All the photos with their concepts, beside them what the colours mean, ``(H, W, 3)`` uint8."""
        shown = min(len(self.pictures), MOST)
        of = f"{len(self.pictures)} pictures" if len(self.pictures) > 1 else "one picture"
        more = f", {shown} shown" if shown < len(self.pictures) else ""
        return page(
            [self.overlay(image) for image in range(shown)],
            f"{format_count(len(self), 'concept')} in {of}{more}",
            f"They explain {self.explained:.0%} of the activity at {self.layer}.",
            list(map(_entry, self.colors, self.votes, self.shares.tolist())),
        )

    def __repr__(self) -> str:
        named = ", ".join(repr(label) for label in self.labels)
        warned = f", {format_count(len(self.warnings), 'warning')}" if self.warnings else ""
        return (
            f"<{format_count(len(self), 'concept')} in {format_count(len(self.pictures), 'picture')} ({named}): "
            f"{self.explained:.0%} of {self.layer}{warned}>"
        )


@names_ours
def concepts(
    model: nn.Module | Loaded,
    img: Pictures,
    n: int = 5,
    *,
    layer: str | nn.Module | None = None,
    transform: Transform | None = None,
    labels: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 32,
    seed: int = 0,
) -> Concepts:
    """Find what a set of pictures has in common to a model: a few concepts, each in its own colour.

        found = camtool.concepts(model, ["dog.jpg", "cat.jpg", "both.jpg"], n=4)
        found.save("concepts.png")

    The activations are factorised with nothing negative (:func:`factorised`). Where a layer has negative ones, they are
    left out, as in the paper, which takes a rectified layer; there is a warning if they were a good part. What a
    concept means to the model it is asked itself: the layer's grid is filled with the concept's vector, and what
    follows the layer runs on that. Behind global average pooling and a linear layer this gives ``w · h + b``.

    The model is left exactly as it was found.

    Args:
        model: A module, or what :func:`camtool.load` returned.
        img: Several pictures, in any form that :func:`camtool.explain` takes; or a single one.
        n: How many concepts.
        layer: Where to look: a dotted name or a module. By default the best layer is found.
        transform: From PIL image to the model's input, where ``model`` does not bring it. Its inputs may be of several
            sizes; the maps are then all brought to the finest grid.
        labels: The names of the classes, where ``model`` does not bring them.
        device: Where the inputs go; by default where the model is.
        batch_size: How many pictures run at once, at most.
        seed: Of the random starts of the factorization. The global generators are not used.

    Raises:
        MethodError: ``n`` is more than the layer can hold, or less than 1.
        LayerError: The layer is unknown, is no grid, or has no positive activation.
        CamtoolError: Something else does not fit; the kinds are in :mod:`camtool.errors`.
    """
    loaded = as_loaded(model)
    layer = layer and layer_inside(as_module(model), layer)
    prepare = Preparer(loaded.model, transform or loaded.transform, device)
    pictures = tuple(prepare.each(img))
    if not pictures or batch_size < 1:
        raise CamtoolError(f"{'batch_size' if pictures else 'img'} asks for nothing; give one or more.")
    at, grids = _looks(loaded.model, pictures, layer, batch_size)
    points = torch.cat([grid.flatten(1).T for grid in grids])
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(points.device.type, enabled=False):
        W, H, explained = factorised(_positive(points, at.name), n, seed=seed)
        probabilities = _probabilities(loaded.model, pictures[0].tensor[None], at, H)
    names = labels if labels is not None else loaded.labels
    notes = dict.fromkeys(note for picture in pictures for note in picture.notes)
    return Concepts(
        maps=_maps(W, [grid.shape[1:] for grid in grids]),
        vectors=H.float().cpu().numpy(),
        votes=_votes(probabilities, labels_for(loaded.model, names, probabilities.shape[1])),
        shares=_shares(W, H).float().cpu().numpy(),
        explained=explained,
        pictures=pictures,
        layer=at.name,
        warnings=(*notes, *_doubts(points, at.name)),
    )


# ------------------------------------------------------------------------------------------------------ factorising


def factorised(points: Tensor, n: int, *, seed: int = 0) -> tuple[Tensor, Tensor, float]:
    """Return ``W`` and ``H`` with ``A ≈ W H``, nothing negative: the best least squares found from several starts.

    The problem has many local optima, and no single start finds the best one on all data. ``H`` starts from positions
    of the data: once from those that :func:`_corners` chooses, and several times from random ones. All starts run a few
    rounds. The first one and the best two of the others then run to the end, as a start that leads early may lose in
    the end. The same data and seed give the same factors.

    Each step sets one column of ``W``, or one row of ``H``, to its best with all else fixed (hierarchical alternating
    least squares, Cichocki et al. 2007). It takes fewer rounds than the multiplicative updates that are usual for the
    paper, and does not stick at zeros.

    Args:
        points: ``A``, ``(P, C)``, not negative, not all zero.
        n: Number of concepts.
        seed: Seed of the random starts.

    Returns:
        ``W`` ``(P, n)`` whose columns have the maximum 1, ``H`` ``(n, C)``, and the part of ``Σ A²`` that is explained,
        0 to 1. The concept that explains most comes first.

    Raises:
        MethodError: ``n`` is not from 1 to the smaller of P and C.
    """
    most = min(points.shape)
    if not 1 <= n <= most:
        raise MethodError(
            f"n={n} concepts; with {points.shape[0]} positions of {points.shape[1]} channels: 1 to {most}."
        )
    peak = points.amax()  # squares of large numbers overflow
    A = points / peak
    attempts = [_Attempt(A, start) for start in _starts(A, n, seed)]
    for attempt in attempts:
        attempt.run(_HEAT)
    finalists = [attempts[0], *sorted(attempts[1:], key=lambda attempt: attempt.error)[:2]]
    for attempt in finalists:
        attempt.run(_ROUNDS - _HEAT)
    best = min(finalists, key=lambda attempt: attempt.error)
    heights = best.W.amax(0)
    W, H = best.W / torch.where(heights > 0, heights, 1), (best.H * heights).T
    order = _shares(W, H).argsort(descending=True, stable=True)
    return W[:, order], peak * H[order], min(1.0, 1 - best.error)


class _Attempt:
    """A factorization on its way from one start.

    Args:
        points: What is factorized, ``(P, C)``.
        start: The first vectors of channels, ``(n, C)``.

    Attributes:
        W: ``(P, n)``.
        H: ``(C, n)``.
        error: The part of ``Σ A²`` that is not explained.
    """

    def __init__(self, points: Tensor, start: Tensor) -> None:
        self.W, self.H = points.new_zeros(len(points), len(start)), start.T.clone()
        self.error = 1.0
        self._points, self._total = points, points.square().sum()
        self._has_converged = False

    def run(self, rounds: int) -> None:
        """Improve both factors for some rounds, or until a round gains hardly anything."""
        for _ in range(rounds):
            if self._has_converged:
                return
            _improve(self.W, self._points @ self.H, self.H.T @ self.H)
            products, gram = self._points.T @ self.W, self.W.T @ self.W
            _improve(self.H, products, gram)
            before = self.error
            self.error = float(1 - ((2 * products - self.H @ gram) * self.H).sum() / self._total)
            self._has_converged = before - self.error < _ENOUGH


def _starts(points: Tensor, n: int, seed: int) -> list[Tensor]:
    """Return the vectors ``(n, C)`` from which the factorization starts: corners of the data, then random positions."""
    active = points[points.any(1)]  # a vector of zeros would stay one
    dice = torch.Generator().manual_seed(seed)
    count = _STARTS - 1 if len(active) > n else 0
    lots = [torch.randperm(len(active), generator=dice)[:n].to(points.device) for _ in range(count)]
    return [_corners(points, n), *(active[chosen] for chosen in lots)]


def _corners(points: Tensor, n: int) -> Tensor:
    """Points ``(n, C)``, each of them the one with most that those before it do not have.

    This is the successive projection algorithm (Araújo et al. 2001): where each concept has a position to itself, it
    finds those positions.
    """
    rest, chosen = points, []
    for _ in range(n):
        lengths = rest.square().sum(1)
        chosen.append(int(lengths.argmax()))
        direction = torch.nn.functional.normalize(rest[chosen[-1]], dim=0)
        rest = rest - torch.outer(rest @ direction, direction)
    return points[chosen]


def _improve(factor: Tensor, products: Tensor, gram: Tensor) -> None:
    """Set each column of a factor ``(L, n)``, in place and in turn, to its best while the other columns stay."""
    for k in range(len(gram)):
        if gram[k, k] > 0:
            factor[:, k] += (products[:, k] - factor @ gram[:, k]) / gram[k, k]
            factor[:, k].clamp_(min=0)


def _shares(amounts: Tensor, vectors: Tensor) -> Tensor:
    """``(n,)``, which part of the sum of ``W H`` is each concept's: as nothing is negative, they add up to 1."""
    tiny = torch.finfo(vectors.dtype).tiny
    masses = amounts.sum(0) * (vectors / vectors.amax().clamp(min=tiny)).sum(1)
    return masses / masses.sum().clamp(min=tiny)


# -------------------------------------------------------------------------------------------------- asking the model


def _looks(
    model: nn.Module, pictures: Sequence[Picture], layer: str | nn.Module | None, batch_size: int
) -> tuple[Layer, list[Tensor]]:
    """The layer, as it is for the first picture, and what it returned for each of them, ``(C, h, w)``."""
    names = None if layer is None else [name_of(model, layer)]
    found: list[Layer] = []
    grids: list[Tensor] = []
    for batch in batches(pictures, batch_size):
        inputs = torch.stack([picture.tensor for picture in batch])
        (at,) = resolve(model, inputs, names)
        seen = observe(model, [at.name], inputs, grad=False).calls[at.name][-1]
        maps_there = at.layout.to_grid(seen.detach())
        grids.extend(maps_there if maps_there.dtype == torch.float64 else maps_there.float())
        names = [at.name]
        found.append(at)
    return found[0], grids


def _probabilities(model: nn.Module, inputs: Tensor, layer: Layer, vectors: Tensor) -> Tensor:
    """What the model says where the layer's grid is filled with a vector: ``(n, K)`` for vectors ``(n, C)``."""
    calls = observe(model, [layer.name], inputs, grad=False).calls[layer.name]
    like = calls[-1].detach()
    filled = vectors[:, :, None, None].expand(-1, -1, *layer.layout.grid)
    variants = layer.layout.from_grid(filled.to(like.dtype), like)
    output = resume(model, layer.name, variants, inputs, nth=len(calls) - 1)
    chances = outputs.probabilities(outputs.logits(output).float(), outputs.link_of(model, output) or "softmax")
    return chances.flatten(2).mean(2) if chances.ndim > 2 else chances


def _votes(probabilities: Tensor, names: Sequence[str] | None) -> tuple[tuple[Vote, ...], ...]:
    values, indices = probabilities.topk(min(_VOTES, probabilities.shape[1]))

    def vote(index: int, probability: float) -> Vote:
        return Vote(targets.name_of(targets.ClassScore(index), names), index, probability)

    return tuple(tuple(map(vote, *each)) for each in zip(indices.tolist(), values.tolist(), strict=True))


# ------------------------------------------------------------------------------------------------------- in and out


def _positive(points: Tensor, layer: str) -> Tensor:
    if not points.isfinite().all():
        raise LayerError(f"layer {layer!r} returned values that are not finite, which cannot be factorised.")
    positive = points.relu()
    if not positive.any():
        raise LayerError(
            f"layer {layer!r} is nowhere positive, so it holds nothing to factorise; choose another layer."
        )
    return positive


def _doubts(points: Tensor, layer: str) -> Iterator[str]:
    scaled = points / points.abs().amax()
    lost = float(scaled.clamp(max=0).square().sum() / scaled.square().sum())
    if lost > _MUCH:
        yield (
            f"Of the activity at {layer!r}, {lost:.0%} is negative, which a factorisation without negative numbers "
            "leaves out; a layer behind a ReLU would show more."
        )


def _maps(amounts: Tensor, grids: Sequence[torch.Size]) -> NDArray[np.float32]:
    """Each picture's part of ``W`` ``(P, n)`` as maps, on the finest of the grids: ``(N, n, h, w)``."""
    finest = max(grids, key=lambda grid: grid.numel())
    parts = amounts.split([grid.numel() for grid in grids])
    on_one = [maps.resize(part.T.unflatten(1, grid), finest) for part, grid in zip(parts, grids, strict=True)]
    return np.asarray(torch.stack(on_one).float().cpu().numpy(), np.float32)


# ---------------------------------------------------------------------------------------------------------- drawing


def _entry(color: tuple[int, int, int], votes: Sequence[Vote], share: float) -> Entry:
    others = ", ".join(str(vote) for vote in votes[1:] if vote.probability >= _WORTH_TELLING)
    return Entry(color, str(votes[0]), others, share)


def _colour(concept: int) -> tuple[int, int, int]:
    """A concept's colour; beyond those chosen by hand, hues that keep away from one another."""
    if concept < len(_COLOURS):
        return _COLOURS[concept]
    red, green, blue = hsv_to_rgb(concept * 0.618034 % 1, 0.7, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def _tint(photo: NDArray[np.uint8], heat: NDArray[np.float32], colours: Any, alpha: float) -> NDArray[np.uint8]:
    """The photo ``(H, W, 3)`` with strengths ``(n, H, W)`` in their colours ``(n, 3)``.

    The strongest decides, all but where two are nearly as strong: there they mix, so that the border is smooth. The
    opacity rises with the strength as in :func:`camtool.overlay.blend`.
    """
    strongest = heat.max(0)
    ahead = (heat / np.where(strongest > 0, strongest, 1)) ** _CRISP
    colour = np.tensordot(ahead / ahead.sum(0).clip(1), np.asarray(colours, np.float32), axes=(0, 0))
    t = np.minimum(1, strongest / _FULL)
    opacity = (alpha * t * t * (3 - 2 * t))[..., None]
    tinted: NDArray[np.uint8] = np.rint((1 - opacity) * photo + opacity * colour).astype(np.uint8)
    return tinted
