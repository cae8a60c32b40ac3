"""What the channels of layers say of a picture: feature maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from camtool import structures, targets
from camtool.arguments import as_module
from camtool.errors import CamtoolError, LayerError, TargetError
from camtool.evidence import Evidence, Scene
from camtool.figures.panels import DIVERGING, Panel, around_zero, limits_of, page
from camtool.figures.paper import SCALES, Scale, Width, check_choice, check_count, in_inches
from camtool.figures.signs import lost, sides
from camtool.hooks import Call, observe, trace
from camtool.inputs import Inputs
from camtool.layers import Layer, Layout, resolve
from camtool.models import Loaded, Transform, labels_for
from camtool.modules import module_named
from camtool.pictures import Batch, Preparer, Source
from camtool.recorder import Which, select

if TYPE_CHECKING:
    from camtool.figures.canvas import Figure

__all__ = ["CONVOLUTIONS", "feature_maps", "feature_pages", "meant"]

Order: TypeAlias = Literal["first", "strongest", "class"]

ORDERS = ("first", "strongest", "class")
"""Which channels are shown."""

CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
"""The modules that are meant by ``"conv"``."""


def feature_maps(
    model: nn.Module | Loaded,
    img: Source | Inputs | Mapping[str, Any],
    layers: Which = "conv",
    channels: int = 16,
    order: Order = "first",
    *,
    target_class: Any = None,
    scale: Scale = "shared",
    columns: int | None = None,
    width: Width = "double",
    colormap: str | None = None,
    transform: Transform | None = None,
) -> Figure:
    """What the channels of layers make of a picture: a grid a layer, all on one page; signals are lines.

    Above each grid stand the layer's name and the shape of what it returned; above each map is the channel's number,
    and beside them the scale, which all channels of a layer share. :func:`feature_pages` gives a figure a layer.

    A grid is one of the figure's ``axes``, with the scale's after it: ``images`` are its maps and ``texts`` what stands
    above them. Signals have axes each.

    Args:
        model: Any module, or what :func:`camtool.load` returned. It is left as it was found.
        img: One picture, as for :func:`camtool.explain`.
        layers: ``"conv"`` for all convolutions that run; or names, patterns such as ``"layer*.conv1"``, types: whatever
            :func:`camtool.recorder.select` takes.
        channels: How many of each layer's channels, at most.
        order: Which: the ``"first"``; the ``"strongest"`` first, by their mean absolute value; or those that speak most
            for the ``"class"``, by the sum of gradient times activation.
        target_class: The class, for that order: as for :func:`camtool.explain`, one alone.
        scale: ``"shared"`` by the channels of a layer; or ``"each"`` from its own lowest to its own highest value, and
            where values of both signs are colored around zero, to its own largest magnitude on both sides.
        columns: How many maps stand in a row; by default as many as can be well seen.
        width: ``"single"`` or ``"double"`` column, see :data:`camtool.figures.WIDTHS`, or inches.
        colormap: Any that matplotlib knows. By default viridis; but RdBu_r, with zero in the middle of its scale, for a
            layer with values of both signs: red is positive, white is zero, blue is negative.
        transform: From PIL image to the model's input, where ``model`` does not bring it.

    Raises:
        LayerError: A name is unknown, no layer fits a pattern, or a layer's output has no grid.
        CamtoolError: An argument does not fit.
    """
    inches = in_inches(width)
    check_count("columns", columns)
    panels = _panels(model, img, layers, _Choice(channels, order, target_class, scale, colormap), transform)
    return page(list(panels), inches, columns)


def feature_pages(
    model: nn.Module | Loaded,
    img: Source | Inputs | Mapping[str, Any],
    layers: Which = "conv",
    channels: int = 16,
    order: Order = "first",
    *,
    target_class: Any = None,
    scale: Scale = "shared",
    columns: int | None = None,
    width: Width = "double",
    colormap: str | None = None,
    transform: Transform | None = None,
) -> Iterator[tuple[str, Figure]]:
    """:func:`feature_maps` with a figure a layer, from one run of the model; each is made when its turn comes.

    Yields:
        The layer's name and its figure.
    """
    inches = in_inches(width)
    check_count("columns", columns)
    panels = _panels(model, img, layers, _Choice(channels, order, target_class, scale, colormap), transform)
    for panel in panels:
        yield panel.name, page([panel], inches, columns)


@dataclass(frozen=True)
class _Choice:
    """What is shown of each layer."""

    channels: int
    order: str
    target_class: Any
    scale: str
    colormap: str | None

    def __post_init__(self) -> None:
        check_choice("order", self.order, ORDERS)
        check_choice("scale", self.scale, SCALES)
        check_count("channels", self.channels)
        if self.target_class is not None and self.order != "class":
            raise CamtoolError(f"target_class makes no difference to order={self.order!r}; give order='class'.")

    def panel(self, name: str, maps: Tensor, gradient: Tensor | None, words: str) -> Panel:
        """The chosen ones of a layer's channels, ``(C, *grid)``."""
        numbers = self._numbers(maps, gradient)
        values = maps[numbers].float().cpu().numpy()
        shape = sides(maps.shape)
        if values.ndim == 4:
            middle = values.shape[1] // 2
            shape, values = f"{shape}, slice {middle}", values[:, middle]
        words = f"{shape}{words}{lost(values)}"
        if self.colormap is None and values.ndim > 2 and _has_both_signs(values):
            values, reach, ends = around_zero(values, self.scale)
            return Panel(name or "the model", words, values, numbers, DIVERGING, (-reach, reach), ends)
        panel = Panel(name or "the model", words, values, numbers, self.colormap or "viridis", limits_of(values))
        if self.scale == "shared":
            return panel
        return replace(panel, values=_each_scaled(values), limits=(0.0, 1.0), ends=("low", "high"))

    def _numbers(self, maps: Tensor, gradient: Tensor | None) -> list[int]:
        most = min(self.channels, len(maps))
        if self.order == "first":
            return list(range(most))
        rank = maps.abs() if gradient is None else maps * gradient
        means = rank.flatten(1).float().mean(1).nan_to_num(nan=-torch.inf)  # what is no number has no rank
        numbers: list[int] = means.argsort(descending=True, stable=True)[:most].tolist()
        return numbers


def _panels(
    model: nn.Module | Loaded,
    img: Source | Inputs | Mapping[str, Any],
    layers: Any,
    choice: _Choice,
    transform: Transform | None,
) -> Iterator[Panel]:
    """The panels of the layers, in the order in which these ran."""
    loaded = model if isinstance(model, Loaded) else Loaded(as_module(model))
    batch = _prepared(loaded, img, transform)
    calls = trace(loaded.model, batch.inputs)
    names = _chosen(loaded.model, layers, calls)
    read_as = _read(loaded.model, batch.inputs, names, calls, _as_list(layers))
    if choice.order == "class":
        evidence, label = _evidence(loaded, batch, read_as, choice.target_class)
        seen: list[tuple[Tensor, Tensor | None]] = [(each.activations[0], each.gradients[0]) for each in evidence]
        words = f", most for {label} first"
    else:
        returned = observe(loaded.model, [layer.name for layer in read_as], batch.inputs, grad=False).calls
        seen = [(layer.layout.to_grid(returned[layer.name][-1])[0], None) for layer in read_as]
        words = ", the strongest first" if choice.order == "strongest" else ""
    for layer, (maps, slopes) in zip(read_as, seen, strict=True):
        yield choice.panel(layer.name, maps, slopes, words)


def _prepared(loaded: Loaded, img: Source | Inputs | Mapping[str, Any], transform: Transform | None) -> Batch:
    """What the model is called with for one picture.

    Raises:
        CamtoolError: There are several pictures.
    """
    prepare = Preparer(loaded.model, transform or loaded.transform, None)
    if isinstance(img, (Inputs, Mapping)):
        inputs = Inputs.of(img)
        batch, _ = prepare.several(inputs, inputs.pictures[0])
    else:
        batch = Batch.of(list(prepare.each(img)))
    if len(batch.pictures) != 1:
        raise CamtoolError(f"img holds {len(batch.pictures)} pictures; feature maps are of one at a time.")
    return batch


def _chosen(model: nn.Module, layers: Any, calls: Sequence[Call]) -> list[str]:
    """The names of the layers that are meant, each once, in the order in which they ran.

    Patterns, types and functions mean what ran; a layer that is meant by its own name must have run.

    Raises:
        LayerError: A name is unknown or did not run, or nothing that ran is meant.
    """
    asked = _as_list(layers)
    names = meant(model, layers)
    ran = {id(call.module): place for place, call in enumerate(calls)}
    places = {name: ran.get(id(module_named(model, name))) for name in names}
    for name in asked:
        if isinstance(name, str) and name in places and places[name] is None:
            raise LayerError(f"layer {name!r} did not run in this forward; choose one that the model uses.")
    found = sorted((place, name) for name, place in places.items() if place is not None)
    if not found:
        raise LayerError(f"layers={layers!r}: none of these ran in this forward.")
    return [name for _, name in found]


def meant(model: nn.Module, layers: Which) -> list[str]:
    """The names of layers, of which ``"conv"`` means all convolutions.

    Raises:
        LayerError: A name is unknown, or nothing is meant.
    """
    asked = _as_list(layers)
    if not asked:
        raise LayerError("layers is empty; give one or more.")
    if "conv" in asked and not any(isinstance(module, CONVOLUTIONS) for module in model.modules()):
        raise LayerError("layers='conv', but the model has no convolution; give names, patterns or types of layers.")
    return select(model, [_is_convolution if each == "conv" else each for each in asked])


def _as_list(layers: Any) -> list[Any]:
    return list(layers) if isinstance(layers, (list, tuple)) else [layers]


def _is_convolution(name: str, module: nn.Module) -> bool:
    return isinstance(module, CONVOLUTIONS)


def _read(
    model: nn.Module, inputs: structures.Inputs, names: Sequence[str], calls: Sequence[Call], exact: Any
) -> list[Layer]:
    """How what the layers returned is read.

    What a convolution returns needs no reading, even where it is 1 x 1. Of layers that were not asked for by their own
    name, those that returned no grid are left out.

    Raises:
        LayerError: A layer that was asked for by its name returned no grid, or none of the others did.
    """
    shapes, layers = {id(call.module): call.shape for call in calls}, []
    for name in names:
        module = module_named(model, name)
        shape = shapes[id(module)]
        if shape is not None and isinstance(module, CONVOLUTIONS):
            layers.append(Layer(name, Layout("channels first", shape[2:])))
            continue
        try:
            layers += resolve(model, inputs, [name])
        except LayerError:
            if name in exact or (name == names[-1] and not layers):
                raise
    return layers


def _evidence(loaded: Loaded, batch: Batch, layers: Sequence[Layer], want: Any) -> tuple[list[Evidence], str]:
    """What each layer shows about a class, and the class' name.

    Raises:
        TargetError: Several things are asked for.
    """
    scene = Scene(loaded.model, batch.inputs, layers)
    labels = labels_for(loaded.model, loaded.labels, scene.classes)
    geometry = batch.pictures[0].view.geometry
    chosen = targets.choose(want, scene.answers[0], labels, geometry, class_vectors=lambda: scene.class_vectors)
    if len(chosen) != 1:
        raise TargetError(f"target_class asks for {len(chosen)} things; channels are ordered by one.")
    return scene.evidence(chosen), targets.name_of(chosen[0], labels)


def _has_both_signs(values: Any) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size) and float(finite.min()) < 0 < float(finite.max())


def _each_scaled(values: Any) -> Any:
    """Each channel from 0, its lowest finite value, to 1; one that is constant is 0, and what is not finite is NaN."""
    finite, within = np.isfinite(values), tuple(range(1, values.ndim))
    low = values.min(within, keepdims=True, where=finite, initial=np.inf)
    high = values.max(within, keepdims=True, where=finite, initial=-np.inf)
    return (np.where(finite, values, np.nan) - low) / np.where(high > low, high - low, 1)
