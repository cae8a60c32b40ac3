"""Concepts that a set of images has in common: deep feature factorization (Collins et al. 2018, arXiv 1806.10206).

A layer's activations at all positions of all images form a matrix ``A``, positions by channels. Nonnegative matrix
factorization splits it into a few concepts, ``A ≈ W H``: ``H`` holds a channel vector for each concept, ``W`` its
strength at each position. All images share the concepts, so a color means the same in all of them. No target class is
needed. At the end the model classifies each concept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor, nn

from camtool import targets
from camtool.arguments.checks import check_choice, check_count, check_integer
from camtool.arguments.explain_arguments import check_settings, explain_foreign_arguments, get_module, read_by_position
from camtool.arguments.message_parts import count_warnings, format_count, format_percent
from camtool.concept_maps.concept_colors import get_color
from camtool.concept_maps.factorization import compute_shares, factorize
from camtool.errors import CamtoolError, LayerError, MethodError
from camtool.evidence.forward_pass import run_forward_pass
from camtool.geometry.cell_centers import CellCenters, Placement
from camtool.geometry.resampling import resample
from camtool.hooks.observation import resume, run_with_hooks
from camtool.hooks.structures.modules import find_module_name
from camtool.inputs.input_preparer import InputPreparer, Source
from camtool.inputs.prepared_inputs import PreparedInput, group_into_batches
from camtool.layers.centers import LayerPlace, find_place
from camtool.layers.layouts import Layer
from camtool.layers.selection import find_layers
from camtool.models import Loaded, Transform, resolve_labels, to_loaded, unwrap_layer
from camtool.outputs import class_scores
from camtool.progress import follow_step
from camtool.rendering import image_writing, overlay
from camtool.rendering.pixel_checks import Color, Pixels
from camtool.rendering.text_drawing import MUTED, PAPER, draw_text

# Largest number of photos on a page.
MAX_PHOTOS = 24

# Gray of the bars' background.
_RULE = (228, 230, 234)

# Pixels around the page, between photos, and between photos and legend.
_MARGIN, _GAP, _GUTTER = 28, 10, 32

# Largest width of the photos, and width of the legend, in pixels.
_PHOTOS_WIDTH, _LEGEND_WIDTH = 860, 330

_HEADING_HEIGHT, _ENTRY_HEIGHT = 66, 74
# Pixels on the left of an entry's text, and width of the bar of a concept that explains everything.
_INDENT, _BAR_WIDTH = 32, 190

# Up to so many photos on a page, the height of a row of them.
_ROW_HEIGHTS = ((1, 420), (2, 340), (6, 240), (12, 190), (MAX_PHOTOS, 140))


@dataclass(frozen=True)
class LegendEntry:
    """Entry of the legend.

    Attributes:
        color: Red, green and blue.
        name: Most probable class of the concept.
        others: Other probable classes; may be empty.
        share: Part of the explained activity, 0 to 1.
    """

    color: Color
    name: str
    others: str
    share: float


def draw_page(photos: Sequence[Pixels], title: str, subtitle: str, entries: Sequence[LegendEntry]) -> Pixels:
    """Draw photos in rows, and a legend on their right.

    Args:
        photos: ``(H, W, 3)`` uint8 each; at most :data:`MAX_PHOTOS`.
        title: Title of the legend.
        subtitle: Text below the title.
        entries: Entries of the legend.

    Returns:
        ``(H, W, 3)`` uint8.
    """
    boxes, width, height = _arrange_in_rows([photo.shape[1] / photo.shape[0] for photo in photos])
    legend = _draw_legend(title, subtitle, entries)
    size = (width + 2 * _MARGIN + _GUTTER + legend.width, max(height, legend.height) + 2 * _MARGIN)
    page = Image.new("RGB", size, PAPER)
    for photo, (x, y, wide, high) in zip(photos, boxes, strict=True):
        thumbnail = Image.fromarray(photo).resize((wide, high), Image.Resampling.LANCZOS)
        page.paste(thumbnail, (_MARGIN + x, _MARGIN + y))
    page.paste(legend, (_MARGIN + width + _GUTTER, _MARGIN))
    return np.asarray(page)


def _arrange_in_rows(aspects: Sequence[float]) -> tuple[list[tuple[int, int, int, int]], int, int]:
    """Return the boxes ``(x, y, width, height)`` of photos, and the width and height of all together.

    Full rows have the same width, so their heights differ a little.

    Args:
        aspects: Width divided by height of each photo.
    """
    row_height = next(height for most, height in _ROW_HEIGHTS if len(aspects) <= most)
    boxes: list[tuple[int, int, int, int]] = []
    row: list[float] = []
    y = widest = 0
    for i, aspect in enumerate(aspects):
        row.append(aspect)
        available = _PHOTOS_WIDTH - _GAP * (len(row) - 1)
        if sum(row) * row_height < available and i < len(aspects) - 1:
            continue
        height, x = round(min(row_height, available / sum(row))), 0
        for ratio in row:
            boxes.append((x, y, max(1, round(ratio * height)), height))
            x += boxes[-1][2] + _GAP
        y, widest, row = y + height + _GAP, max(widest, x - _GAP), []
    return boxes, widest, y - _GAP


def _draw_legend(title: str, subtitle: str, entries: Sequence[LegendEntry]) -> Image.Image:
    legend = Image.new("RGB", (_LEGEND_WIDTH, _HEADING_HEIGHT + len(entries) * _ENTRY_HEIGHT), PAPER)
    draw_text(legend, (0, 0), title, 19, max_width=_LEGEND_WIDTH)
    draw_text(legend, (0, 28), subtitle, 14, MUTED, max_width=_LEGEND_WIDTH)
    for number, entry in enumerate(entries):
        _draw_entry(legend, _HEADING_HEIGHT + number * _ENTRY_HEIGHT, entry)
    return legend


def _draw_entry(legend: Image.Image, top: int, entry: LegendEntry) -> None:
    pen, available = ImageDraw.Draw(legend), _LEGEND_WIDTH - _INDENT
    pen.rectangle((0, top + 1, 19, top + 20), fill=entry.color)
    draw_text(legend, (_INDENT, top), entry.name, 17, max_width=available)
    pen.rectangle((_INDENT, top + 30, _INDENT + _BAR_WIDTH, top + 34), fill=_RULE)
    pen.rectangle((_INDENT, top + 30, _INDENT + round(entry.share * _BAR_WIDTH), top + 34), fill=entry.color)
    draw_text(legend, (_INDENT + _BAR_WIDTH + 10, top + 24), f"{entry.share:.0%} of that", 13, MUTED)
    draw_text(legend, (_INDENT, top + 42), entry.others, 13, MUTED, max_width=available)


Images: TypeAlias = "Source | Sequence[Source]"

# Part of a layer's squared activations that may be negative without a warning. SiLU and GELU leave only small negative
# values, but half the values of a layer without activation may be negative.
_MAX_NEGATIVE_PART = 0.1

# Smaller probabilities would be shown as 0 %.
_MIN_SHOWN_PROBABILITY = 0.005


@dataclass(frozen=True, eq=False)
class Concepts(image_writing.Displayable):
    """Concepts in a set of images, the strongest first.

    Attributes:
        maps: ``(N, n, h, w)`` float32 in [0, 1], strength of each concept at each position; 1 is the strongest
            position in all images.
        vectors: ``(n, C)`` float32, activations of the channels at the concept's strongest position.
        votes: For each concept its classes, the most probable first.
        shares: ``(n,)`` float32, part of the explained activity that each concept has; they add up to 1.
        explained: Part of the layer's squared activations that the concepts explain, 0 to 1.
        inputs: The images and the model inputs made from them.
        layer: Dotted name of the layer.
        warnings: Reasons not to trust the result; empty if there are none.
        centers: For each image where the cells of its maps lie in the model's input; ``None`` for a grid that is
            stretched over the input. Empty stands for ``None`` everywhere.
    """

    maps: NDArray[np.float32]
    vectors: NDArray[np.float32]
    votes: tuple[tuple[Vote, ...], ...]
    shares: NDArray[np.float32]
    explained: float
    inputs: tuple[PreparedInput, ...]
    layer: str
    warnings: tuple[str, ...] = ()
    centers: tuple[CellCenters | None, ...] = ()

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def labels(self) -> list[str]:
        """Most probable class of each concept."""
        return [votes[0].label for votes in self.votes]

    @property
    def colors(self) -> list[tuple[int, int, int]]:
        """Color of each concept: red, green and blue."""
        return [get_color(concept) for concept in range(len(self))]

    def heatmaps(self, image: int) -> NDArray[np.float32]:
        """Return the strengths of the concepts in one photo, ``(n, H, W)`` in [0, 1]; 0 in the unseen part.

        The strengths are those of :attr:`maps`. They are not normalized per photo, because a concept may be absent.

        Args:
            image: Position of the photo among the images.
        """
        centers = self.centers[image] if self.centers else None
        placed = self.inputs[image].geometry.place_on_photo(torch.from_numpy(self.maps[image]), centers)
        return placed.clamp(0, 1).numpy()

    def overlay(self, image: int, alpha: float = 0.6) -> NDArray[np.uint8]:
        """Draw one photo with each pixel in the color of its strongest concept, ``(H, W, 3)`` uint8.

        Args:
            image: Position of the photo among the images.
            alpha: Opacity of the color of a strong concept, 0 to 1. Weak concepts are more transparent.
        """
        prepared, strengths = self.inputs[image], self.heatmaps(image)
        photo = overlay.blend(prepared.photo, np.zeros_like(strengths[0]), seen=prepared.geometry.seen)
        return tint_photo(photo, strengths, self.colors, alpha)

    def to_pixels(self) -> NDArray[np.uint8]:
        """Draw all photos with their concepts, and a legend to the colors, ``(H, W, 3)`` uint8."""
        shown = min(len(self.inputs), MAX_PHOTOS)
        count = f"{len(self.inputs)} images" if len(self.inputs) > 1 else "one image"
        more = f", {shown} shown" if shown < len(self.inputs) else ""
        return draw_page(
            [self.overlay(image) for image in range(shown)],
            f"{format_count(len(self), 'concept')} in {count}{more}",
            f"They explain {self.explained:.0%} of the activity at {self.layer}.",
            list(map(_build_legend_entry, self.colors, self.votes, self.shares.tolist())),
        )

    def __repr__(self) -> str:
        named = ", ".join(repr(label) for label in self.labels)
        warned = f", {count_warnings(self.warnings)}" if self.warnings else ""
        return (
            f"<{format_count(len(self), 'concept')} in {format_count(len(self.inputs), 'image')} ({named}): "
            f"{self.explained:.0%} of {self.layer}{warned}>"
        )


@explain_foreign_arguments
@follow_step("Finding concepts")
def concepts(
    model: nn.Module | Loaded,
    img: Images,
    n: int = 5,
    *,
    layer: str | nn.Module | None = None,
    transform: Transform | None = None,
    labels: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 32,
    seed: int = 0,
    placement: Placement = "centers",
) -> Concepts:
    """Find concepts that a model sees in a set of images, each shown in its own color.

        concepts = camtool.concepts(model, ["dog.jpg", "cat.jpg", "both.jpg"], n=4)
        concepts.save("concepts.png")

    The activations are split by nonnegative matrix factorization. Negative activations are set to zero, as in the
    paper, which uses a layer after a ReLU; a warning says if they were a large part. To classify a concept, the
    concept's vector is put at all positions of the layer's output, and the part of the model after the layer runs on
    that. With global average pooling and a linear layer the logits are ``w · h + b``.

    The model is not changed.

    Args:
        model: Module, or the result of :func:`camtool.load`.
        img: Several images, in any form that :func:`camtool.explain` takes; or a single one.
        n: Number of concepts.
        layer: Layer whose activations are split: a dotted name or a module. The default is chosen by heuristics.
        transform: Function from PIL image to the model's input, if ``model`` has none. If the inputs have several
            sizes, all maps are resized to the finest grid.
        labels: Names of the classes, if ``model`` has none.
        device: Device of the inputs; the default is the model's.
        batch_size: Largest number of images in a forward pass.
        seed: Seed of the random starts. The global generators are not used.
        placement: Where the maps are drawn, as in :func:`camtool.explain`.

    Raises:
        MethodError: ``n`` is less than 1, or more than the layer's positions or channels.
        LayerError: The layer is unknown, has no grid, or has no positive activation.
        CamtoolError: Another argument is invalid; the classes are in :mod:`camtool.errors`.
    """
    check_choice("placement", placement, get_args(Placement))
    check_settings(transform, labels, batch_size, None, None)
    check_count("batch_size", batch_size)
    check_integer("n", n, error=MethodError)
    loaded = to_loaded(model)
    if layer is not None and not isinstance(layer, (str, nn.Module)):
        raise LayerError(f"layer={layer!r} is neither the name of a layer nor a module.")
    layer = layer and unwrap_layer(get_module(model), layer)
    prepare = InputPreparer(loaded.model, transform or loaded.transform, device)
    inputs = tuple(prepare.iterate_inputs(img))
    if not inputs:
        raise CamtoolError("img holds no image; pass one or more.")
    used, grids, centers = _collect_activations(loaded.model, inputs, layer, batch_size, placement)
    points = torch.cat([grid.flatten(1).T for grid in grids])
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(points.device.type, enabled=False):
        W, H, explained = factorize(_check_positive(points, used.name), n, seed=seed)
        probabilities = compute_probabilities(loaded.model, inputs[0].tensor[None], used, H)
    names = loaded.labels if labels is None else read_by_position(labels)
    notes = dict.fromkeys(note for image in inputs for note in image.notes)
    maps, centers_of_maps = _build_maps(W, [grid.shape[1:] for grid in grids], centers)
    return Concepts(
        maps=maps,
        vectors=H.float().cpu().numpy(),
        votes=rank_classes(probabilities, resolve_labels(loaded.model, names, probabilities.shape[1])),
        shares=compute_shares(W, H).float().cpu().numpy(),
        explained=explained,
        inputs=inputs,
        layer=used.name,
        warnings=(*notes, *_find_warnings(points, used.name)),
        centers=tuple(centers_of_maps),
    )


def _collect_activations(
    model: nn.Module,
    inputs: Sequence[PreparedInput],
    layer: str | nn.Module | None,
    batch_size: int,
    placement: Placement,
) -> tuple[Layer, list[Tensor], list[CellCenters | None]]:
    """Return the layer, with its layout for the first image, and for each image its activations and cell centers.

    The activations are ``(C, h, w)``.
    """
    names = None if layer is None else [find_module_name(model, layer)]
    layers: list[Layer] = []
    grids: list[Tensor] = []
    centers: list[CellCenters | None] = []
    places_by_layer: dict[object, LayerPlace] = {}
    for batch in group_into_batches(inputs, batch_size):
        tensor = torch.stack([image.tensor for image in batch])
        (used,) = find_layers(model, tensor, names)
        output = run_with_hooks(model, [used.name], tensor, grad=False).calls[used.name][-1]
        activations = used.layout.to_grid(output.detach())
        # Half precision is too coarse for the factorization.
        grids.extend(activations if activations.dtype == torch.float64 else activations.float())
        if placement == "stretch":
            centers += [None] * len(batch)
        else:
            centers += _find_centers(model, tensor, used, places_by_layer)
        # The layer is chosen once: a batch of another image size must not choose another.
        names = [used.name]
        layers.append(used)
    return layers[0], grids, centers


def _find_centers(
    model: nn.Module, batch: Tensor, layer: Layer, places_by_layer: dict[object, LayerPlace]
) -> list[CellCenters | None]:
    """Return the centers of a layer's cells for each image of a batch.

    Args:
        model: The model.
        batch: The images.
        layer: The layer.
        places_by_layer: Places by what they depend on. If the content of each image decides, each is asked for its own.
    """
    key = tuple(batch.shape[1:]), layer  # an adaptive pooling has one grid for images of all sizes
    if key not in places_by_layer:
        places_by_layer[key] = find_place(model, batch, layer)
    if not places_by_layer[key].by_content:
        return [places_by_layer[key].centers] * len(batch)
    return [find_place(model, batch[row : row + 1], layer).centers for row in range(len(batch))]


def _check_positive(points: Tensor, layer: str) -> Tensor:
    """Return the positive part of activations after checking that it is finite and not zero."""
    if not points.isfinite().all():
        raise LayerError(f"layer {layer!r} returned NaN or infinite values, which cannot be factorized.")
    positive = points.relu()
    if not positive.any():
        raise LayerError(f"layer {layer!r} has no positive activations to factorize; choose another layer.")
    return positive


def _find_warnings(points: Tensor, layer: str) -> Iterator[str]:
    """Yield a warning if a large part of the activations is negative."""
    scaled = points / points.abs().amax()
    lost = float(scaled.clamp(max=0).square().sum() / scaled.square().sum())
    if lost > _MAX_NEGATIVE_PART:
        yield (
            f"{lost:.0%} of the squared activations at {layer!r} are negative and were left out; "
            "choose a layer after a ReLU."
        )


def _build_maps(
    amounts: Tensor, grids: Sequence[torch.Size], centers: Sequence[CellCenters | None]
) -> tuple[NDArray[np.float32], list[CellCenters | None]]:
    """Return the rows of ``W`` ``(P, n)`` as maps ``(N, n, h, w)``, all on the finest grid, and the cell centers.

    Maps of another grid are resampled onto the finest one, stretched over their own input.
    """
    finest = max(grids, key=lambda grid: grid.numel())
    by_image = amounts.split([grid.numel() for grid in grids])
    parts = [part.T.unflatten(1, grid) for part, grid in zip(by_image, grids, strict=True)]
    on_one = [
        part if part.shape[1:] == finest else resample(part, own, finest, None)
        for part, own in zip(parts, centers, strict=True)
    ]
    placed = [own if grid == finest else None for grid, own in zip(grids, centers, strict=True)]
    return np.asarray(torch.stack(on_one).float().cpu().numpy(), np.float32), placed


def _build_legend_entry(color: tuple[int, int, int], votes: Sequence[Vote], share: float) -> LegendEntry:
    others = ", ".join(str(vote) for vote in votes[1:] if vote.probability >= _MIN_SHOWN_PROBABILITY)
    return LegendEntry(color, str(votes[0]), others, share)


# Number of classes that are named for a concept.
_MAX_VOTES = 3


@dataclass(frozen=True)
class Vote:
    """Class that the model predicts for a concept.

    Attributes:
        label: Name of the class, or ``"class 281"`` if names are unknown.
        index: Index of the class.
        probability: Probability of the class where the layer's output is the concept's vector at all positions.
    """

    label: str
    index: int
    probability: float

    def __str__(self) -> str:
        return f"{self.label} {format_percent(self.probability)}"


def compute_probabilities(model: nn.Module, inputs: Tensor, layer: Layer, vectors: Tensor) -> Tensor:
    """Return class probabilities ``(n, K)`` for concept vectors ``(n, C)``.

    A vector is put at all positions of the layer's output, and the part of the model after the layer runs on that.
    """
    calls = run_with_hooks(model, [layer.name], inputs, grad=False).calls[layer.name]
    like = calls[-1].detach()
    filled = vectors[:, :, None, None].expand(-1, -1, *layer.layout.grid)
    variants = layer.layout.from_grid(filled.to(like.dtype), like)
    output = resume(model, layer.name, variants, inputs, call_index=len(calls) - 1)
    # The pass above has no graph, which may be needed to see a sigmoid at the model's end.
    link = run_forward_pass(model, inputs, []).find_link().link
    probabilities = class_scores.compute_probabilities(class_scores.find_logits(output).float(), link or "softmax")
    # Segmentation models give a probability for each position.
    return probabilities.flatten(2).mean(2) if probabilities.ndim > 2 else probabilities


def rank_classes(probabilities: Tensor, names: Sequence[str] | None) -> tuple[tuple[Vote, ...], ...]:
    """Return the most probable classes of each concept, for probabilities ``(n, K)``."""
    values, indices = probabilities.topk(min(_MAX_VOTES, probabilities.shape[1]))

    def build_vote(index: int, probability: float) -> Vote:
        return Vote(targets.get_class_label(index, names), index, probability)

    return tuple(tuple(map(build_vote, *concept)) for concept in zip(indices.tolist(), values.tolist(), strict=True))


# From this strength on, a concept's color has full opacity, as in overlays.
_FULL_OPACITY_STRENGTH = 0.5

# Power of the strengths in the mix of colors. With 8, colors mix only where two concepts are almost equally strong.
_SHARPNESS = 8


def tint_photo(photo: Pixels, strengths: NDArray[np.float32], colors: Sequence[Color], alpha: float) -> Pixels:
    """Return the photo with each pixel in the color of its strongest concept.

    Where two concepts are almost equally strong, their colors mix, so that the border is smooth. The opacity rises with
    the strength as in :func:`camtool.rendering.blend`.

    Args:
        photo: ``(H, W, 3)`` uint8.
        strengths: ``(n, H, W)`` in [0, 1], one map for each concept.
        colors: ``n`` colors.
        alpha: Opacity of the color of a strong concept, 0 to 1.
    """
    strongest = strengths.max(0)
    weights = (strengths / np.where(strongest > 0, strongest, 1)) ** _SHARPNESS
    color = np.tensordot(weights / weights.sum(0).clip(1), np.asarray(colors, np.float32), axes=(0, 0))
    t = np.minimum(1, strongest / _FULL_OPACITY_STRENGTH)
    opacity = (alpha * t * t * (3 - 2 * t))[..., None]
    tinted: Pixels = np.rint((1 - opacity) * photo + opacity * color).astype(np.uint8)
    return tinted
