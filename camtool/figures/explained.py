"""The figures of papers on class activation maps: explanations side by side, and what sets them apart above each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import nn

from camtool import overlay
from camtool.arguments import as_module
from camtool.errors import CamtoolError
from camtool.explanation import Explainer, Explanation
from camtool.figures.grids import GAP, MARGIN, Cell, Key, Row, Words, grid
from camtool.figures.paper import (
    SCALES,
    WIDTHS,
    Scale,
    Width,
    balanced,
    check_choice,
    check_columns,
    check_count,
    in_inches,
)
from camtool.figures.signs import short, sides
from camtool.methods import find
from camtool.models import Loaded
from camtool.pictures import Preparer, Source
from camtool.recorder import Which, select
from camtool.targets import Top

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.figures.canvas import Figure
    from camtool.methods import MethodFunction
    from camtool.overlay import Colormap

__all__ = ["classes_grid", "comparison", "gallery", "layers_sweep", "methods_grid", "plain", "what_sets_apart"]

Images: TypeAlias = "Source | Sequence[Source]"
Methods: TypeAlias = "Sequence[str | MethodFunction] | Mapping[str, str | MethodFunction]"

_TINY = 0.2  # how wide pictures are at least, in inches, whatever a person asks for
_SMALLEST, _SMALL = 0.72, 1.0  # where nothing is asked for: of many columns, and of those with words of their own
_NOT_A_PHOTO = WIDTHS["double"]  # and of sheets of slices and of plotted lines, whose words must be read
_NOTHING = Words("")


def gallery(
    explanations: Any,
    *,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
    scale: Scale = "each",
    width: Width | None = None,
    alpha: float | None = None,
    colormap: Colormap = "heat",
) -> Figure:
    """Explanations of any images, in rows: each with what was explained, and how probable the model finds it.

    Args:
        explanations: What :func:`camtool.explain` returned, lists in lists too.
        titles: What stands above each, in place of that.
        columns: How many stand in a row; by default as many as can be well seen.
        scale: ``"each"`` colours each map from its own lowest to its own highest value; ``"shared"`` colours the same
            value the same in all, which is for maps of one method at one layer.
        width: ``"single"`` or ``"double"`` column, see :data:`camtool.figures.WIDTHS`, or inches; by default as wide as
            it needs to be.
        alpha: How much the colors cover where a map is hot, 0 to 1; by default as in :func:`camtool.overlay.blend`.
        colormap: A name or a color map of matplotlib; see :func:`camtool.overlay.palette`.

    Raises:
        CamtoolError: There is nothing to show, or an argument does not fit.
    """
    shown, style = _flat(explanations), _Style(alpha, colormap, scale)
    cells = list(map(Cell, style.overlays(shown), _titles(titles, shown, list(map(_asked, shown)))))
    return _sheet(
        cells, columns, _least(shown, _SMALL), width, style.key(_limits(shown) if scale == "shared" else None)
    )


def comparison(
    explanations: Any,
    *,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
    scale: Scale = "each",
    width: Width | None = None,
    alpha: float | None = None,
    colormap: Colormap = "heat",
) -> Figure:
    """Explanations of one image beside it, each with what sets it apart: the method, the class or the layer.

    Args:
        explanations: Of one and the same image, by several methods, of several classes, at several layers or of several
            models; lists in lists too.
        titles: What stands above each, in place of what sets it apart: the models' names, say.
        columns: As for :func:`gallery`, as are all that follow.
        scale: ``"each"`` or ``"shared"``.
        width: ``"single"``, ``"double"`` or inches.
        alpha: How much the colors cover.
        colormap: The colours.

    Raises:
        CamtoolError: There is nothing to show, the images differ, or an argument does not fit.
    """
    shown, style = _flat(explanations), _Style(alpha, colormap, scale)
    if any(not np.array_equal(plain(each), plain(shown[0])) for each in shown):
        raise CamtoolError("explanations are of different images; comparison shows one image, gallery shows many.")
    words = _titles(titles, shown, what_sets_apart(shown))
    cells = [_beside(shown[0]), *map(Cell, style.overlays(shown), words)]
    return _sheet(
        cells, columns, _least(shown, _SMALL), width, style.key(_limits(shown) if scale == "shared" else None)
    )


def methods_grid(
    model: nn.Module | Loaded,
    images: Images,
    methods: Methods,
    target_class: Any = None,
    *,
    width: Width = "double",
    alpha: float | None = None,
    colormap: Colormap = "heat",
    **settings: Any,
) -> Figure:
    """Images by methods: a row an image, a column a method. Where there are many methods, the rest follow below.

    Args:
        model: As for :func:`camtool.explain`.
        images: One, or several.
        methods: Names or functions; or a mapping from what stands above the column: ``{"Grad-CAM": "gradcam"}``.
        target_class: What is explained: one thing for all images, or a list of one for each.
        width: ``"single"``, ``"double"`` or inches.
        alpha: How much the colors cover.
        colormap: The colours.
        **settings: Others of :class:`camtool.Explainer`: ``layer``, ``transform``, ``labels``, a method's options.

    Raises:
        CamtoolError: There is nothing to show, or something does not fit.
    """
    named = methods if isinstance(methods, Mapping) else {_method_name(method): method for method in methods}
    inches, style = in_inches(width), _Style(alpha, colormap)
    explained = Explainer(model, list(named.values()), **settings)(_several(model, images, settings), target_class)
    return _table(explained, list(map(Words, named)), inches, style)


def layers_sweep(
    model: nn.Module | Loaded,
    images: Images,
    layers: Which | Mapping[str, str | nn.Module],
    target_class: Any = None,
    *,
    method: str | MethodFunction = "gradcam",
    width: Width = "double",
    alpha: float | None = None,
    colormap: Colormap = "heat",
    **settings: Any,
) -> Figure:
    """Images by layers: how what counts grows from edges to things. A row an image, a column a layer and its grid.

    Args:
        model: As for :func:`camtool.explain`.
        images: One, or several.
        layers: Names, patterns, types: whatever :func:`camtool.recorder.select` takes; or a mapping from what stands
            above the column: ``{"stage 4": "layer4"}``.
        target_class: What is explained: one thing for all images, or a list of one for each.
        method: The one method.
        width: ``"single"``, ``"double"`` or inches.
        alpha: How much the colors cover.
        colormap: The colours.
        **settings: Others of :class:`camtool.Explainer`.

    Raises:
        CamtoolError: There is nothing to show, or something does not fit.
    """
    inches, style, shown = in_inches(width), _Style(alpha, colormap), _several(model, images, settings)
    if not isinstance(layers, Mapping):
        layers = {name: name for name in select(model, layers)}
    if not layers:
        raise CamtoolError("layers is empty; give one or more.")
    by_layer = [Explainer(model, method, layer, **settings)(shown, target_class) for layer in layers.values()]
    grids = [sides(_flat(each)[0].raw.shape, between="") for each in by_layer]
    return _table(list(zip(*by_layer, strict=True)), list(map(Words, layers, grids)), inches, style)


def classes_grid(
    model: nn.Module | Loaded,
    images: Images,
    k: int = 5,
    *,
    method: str | MethodFunction = "gradcam",
    scale: Scale = "each",
    width: Width = "double",
    alpha: float | None = None,
    colormap: Colormap = "heat",
    **settings: Any,
) -> Figure:
    """Images by classes: for each image the classes that the model finds likeliest, and where it sees each of them.

    Args:
        model: As for :func:`camtool.explain`.
        images: One, or several.
        k: How many classes.
        method: The one method.
        scale: ``"each"`` or ``"shared"``, as for :func:`gallery`, among the classes of an image.
        width: ``"single"``, ``"double"`` or inches.
        alpha: How much the colors cover.
        colormap: The colours.
        **settings: Others of :class:`camtool.Explainer`.

    Raises:
        CamtoolError: There is nothing to show, or something does not fit.
    """
    check_count("k", k)
    inches, style = in_inches(width), _Style(alpha, colormap, scale)
    rows: list[Row] = []
    for each in Explainer(model, method, **settings)(_several(model, images, settings), Top(k)):
        cells = [_beside(each[0]), *map(Cell, style.overlays(each), map(_asked, each))]
        rows += _in_rows(cells, _fitting(inches, _least(each, _SMALL)))
    return grid(rows, inches, style.key(whose="each image" if scale == "shared" else "each map"))


# --------------------------------------------------------------------------------------------------- the parts


def _sheet(cells: Sequence[Cell], columns: int | None, least: float, width: Width | None, key: Key) -> Figure:
    """Pictures in rows, in one column of a page where few are shown, else in two."""
    check_count("columns", columns)
    if width is None:
        width = "single" if (columns or len(cells)) * (least + GAP) <= WIDTHS["single"] + GAP else "double"
    inches = in_inches(width)
    check_columns(columns or 1, _fitting(inches, _TINY))
    return grid(_in_rows(cells, columns or _fitting(inches, least)), inches, key)


def _beside(explanation: Explanation) -> Cell:
    """What was explained, as it stands beside explanations of it."""
    return Cell(plain(explanation), Words(explanation.view.kind))


def _least(explanations: Sequence[Explanation], of_photos: float) -> float:
    """How wide these are drawn at least."""
    return of_photos if all(each.view.kind == "photo" for each in explanations) else _NOT_A_PHOTO


@dataclass(frozen=True)
class _Style:
    """How heat becomes colour."""

    alpha: float | None
    colormap: Colormap
    scale: str = "each"

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, SCALES)

    def overlays(self, explanations: Sequence[Explanation]) -> list[NDArray[np.uint8]]:
        """Their overlays; on a shared scale the same value has the same colour in all."""
        if self.scale == "each":
            return [each.overlay(self.alpha, self.colormap) for each in explanations]
        limits = _limits(explanations)
        heats = [_heat(each, *limits) for each in explanations]
        return [
            each.view.overlay(heat, alpha=self.alpha, colormap=self.colormap)
            for each, heat in zip(explanations, heats, strict=True)
        ]

    def key(self, limits: tuple[float, float] | None = None, *, whose: str = "each map") -> Key:
        """What the colours mean, as they are on white; on a shared scale with the numbers at its ends."""
        white, ramp = np.full((1, 256, 3), 255, np.uint8), np.linspace(0, 1, 256)[None]
        colors = overlay.blend(white, ramp, alpha=self.alpha, colormap=self.colormap)[0]
        if limits is None:
            return Key(colors, f"{whose}:", ("low", "high"))
        return Key(colors, "all maps:", (short(limits[0]), short(limits[1])))


def _limits(explanations: Sequence[Explanation]) -> tuple[float, float]:
    """The lowest and the highest value in any of the maps."""
    return min(float(each.raw.min()) for each in explanations), max(float(each.raw.max()) for each in explanations)


def _heat(explanation: Explanation, low: float, high: float) -> NDArray[np.float32]:
    """The heatmap in units in which 0 is ``low`` and 1 is ``high``; 0 where the model did not look."""
    own_low, own_high = _limits([explanation])
    values = own_low + explanation.heatmap * (own_high - own_low)
    heat: NDArray[np.float32] = np.clip((values - low) / (high - low or 1), 0, 1) * explanation.seen
    return heat.astype(np.float32)


def plain(explanation: Explanation) -> NDArray[np.uint8]:
    """What was explained, without a map."""
    if explanation.view.kind == "photo":
        return explanation.photo
    return explanation.view.overlay(np.zeros(explanation.view.size, np.float32))


def _flat(explanations: Any) -> list[Explanation]:
    """All the explanations in lists of lists of them, in order.

    Raises:
        CamtoolError: There are none, or something else is among them.
    """
    found = list(_leaves(explanations))
    strange = next((each for each in found if not isinstance(each, Explanation)), None)
    if not found or strange is not None:
        came = "nothing" if strange is None else type(strange).__name__
        raise CamtoolError(f"explanations holds {came}; give what camtool.explain returned.")
    return found


def _leaves(nested: Any) -> Iterator[Any]:
    if isinstance(nested, Iterable) and not isinstance(nested, (str, bytes)):
        for each in nested:
            yield from _leaves(each)
    else:
        yield nested


def _several(model: nn.Module | Loaded, images: Any, settings: Mapping[str, Any]) -> Any:
    """Images as :class:`camtool.Explainer` takes several, where one was given."""
    prepare = Preparer(as_module(model), settings.get("transform"), None, kind=settings.get("kind"))
    several = images if prepare.is_batch(images) else [images]
    if not len(several):
        raise CamtoolError("images is empty; give one or more.")
    return several


def _fitting(inches: float, smallest: float) -> int:
    """How many pictures no smaller than this stand side by side."""
    return max(1, int((inches + GAP) / (smallest + GAP)))


def _in_rows(cells: Sequence[Cell], most: int) -> list[Row]:
    columns = balanced(len(cells), most)
    return [Row(cells[start : start + columns]) for start in range(0, len(cells), columns)]


def _table(rows: Sequence[Any], headings: Sequence[Words], inches: float, style: _Style) -> Figure:
    """Rows of explanations of one image each, beside the image; columns that find no room follow below."""
    by_image = [_flat(row) for row in rows]
    if any(len(row) != len(headings) for row in by_image):
        raise CamtoolError("target_class asks for several things in one image; give one for each, or see classes_grid.")
    columns = balanced(len(headings), max(1, _fitting(inches - MARGIN, _least(by_image[0], _SMALLEST)) - 1))
    set_rows = []
    for start in range(0, len(headings), columns):
        part = slice(start, start + columns)
        for number, row in enumerate(by_image):
            pictures = [plain(row[0]), *style.overlays(row[part])]
            titles = [Words(row[0].view.kind), *headings[part]] if number == 0 else [_NOTHING] * len(pictures)
            set_rows.append(Row(list(map(Cell, pictures, titles)), _asked(row[0])))
    return grid(set_rows, inches, style.key())


# --------------------------------------------------------------------------------------------------- the words


def _asked(explanation: Explanation) -> Words:
    """What was explained, and how probable it is."""
    chance = explanation.probability
    if chance is None or math.isnan(chance):
        return Words(explanation.label, "")
    return Words(explanation.label, f"{chance:.0%}" if chance >= 0.005 else "<1%")


def what_sets_apart(explanations: Sequence[Explanation]) -> list[Words]:
    """For each the method, the class or the layer, or all of them, where they are not the same throughout."""
    several = {name for name in ("method", "layer") if len({getattr(each, name) for each in explanations}) > 1}
    if len({each.label for each in explanations}) > 1 or not several:
        several.add("label")

    def words(explanation: Explanation) -> Words:
        asked = _asked(explanation)
        parts = [asked.words] if "label" in several else []
        parts += [getattr(explanation, name) for name in ("method", "layer") if name in several]
        return Words(", ".join(parts), asked.kept if "label" in several else "")

    return list(map(words, explanations))


def _titles(given: Sequence[str] | None, shown: Sequence[Explanation], otherwise: Sequence[Words]) -> list[Words]:
    """What stands above each.

    Raises:
        CamtoolError: There are more or fewer titles than explanations.
    """
    if given is None:
        return list(otherwise)
    if len(given) != len(shown):
        raise CamtoolError(f"titles has {len(given)} entries for {len(shown)} explanations; give one for each.")
    return list(map(Words, given))


def _method_name(method: str | MethodFunction) -> str:
    return method if isinstance(method, str) else find(method).name
