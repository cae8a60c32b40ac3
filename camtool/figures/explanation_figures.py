"""Figures of explanations side by side: galleries, comparisons, and grids of methods, layers and classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from camtool.arguments.checks import check_choice, check_count, iterate_leaves
from camtool.arguments.explain_arguments import explain_foreign_arguments, get_module
from camtool.errors import CamtoolError, ImageError, MethodError
from camtool.explaining.explainer import Explainer, explain
from camtool.explaining.explanation import Explanation
from camtool.explaining.layer_table import candidate_layers, is_good
from camtool.figures import paper_style
from camtool.figures.image_grid import GAP, MARGIN, Caption, ColorKey, GridCell, GridRow, draw_grid
from camtool.figures.paper_style import Scale, Width, balance_columns, format_number, to_inches
from camtool.figures.saving import save
from camtool.inputs.input_preparer import InputPreparer, Source
from camtool.methods import MethodFunction, find_method
from camtool.models import Loaded
from camtool.recorder import LayerSelection, select
from camtool.rendering import image_writing, overlay
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.targets import Group, Top, Within
from camtool.targets.group_targets import Classes

if TYPE_CHECKING:
    from camtool.figures.canvas import Figure


Images: TypeAlias = "Source | Sequence[Source]"
Methods: TypeAlias = "Sequence[str | MethodFunction] | Mapping[str, str | MethodFunction]"

# Smallest width of an image in inches, even if the user asks for more columns.
_MIN_WIDTH = 0.2

# Default widths in inches: in tables, and of images that have their own captions.
_TABLE_WIDTH, _CAPTIONED_WIDTH = 0.72, 1.0

# Contact sheets and plots contain text. It is readable only at the full width of a page.
_SHEET_WIDTH = paper_style.WIDTHS["double"]

# Smaller probabilities would be rounded to 0%.
_MIN_PERCENT = 0.005

_NO_CAPTION = Caption("")


def gallery(
    explanations: Any,
    *,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
    scale: Scale = "each",
    width: Width | None = None,
    alpha: float | None = None,
    colormap: Colormap = DEFAULT_COLORMAP,
) -> Figure:
    """Draw explanations of any images in rows, each below its target and the target's probability.

    Args:
        explanations: Results of :func:`camtool.explain`, also in nested lists.
        titles: Titles to use instead.
        columns: Number of images in a row; the default is the number that is large enough to see.
        scale: ``"each"`` colors each map from its own lowest to its own highest value. ``"shared"`` colors equal values
            equally in all maps, which makes sense for maps of one method at one layer.
        width: ``"single"`` or ``"double"`` column, see :data:`camtool.figures.WIDTHS`, or inches; the default is
            chosen by the number of images.
        alpha: Opacity of the color at full heat, 0 to 1; the default is that of :func:`camtool.rendering.blend`.
        colormap: Name, or matplotlib color map; see :func:`camtool.rendering.colormaps.get_palette`.

    Raises:
        CamtoolError: There are no explanations, or an argument is invalid.
    """
    shown, style = _flatten(explanations), _OverlayStyle(alpha, colormap, scale)
    captions = _choose_titles(titles, shown, list(map(_describe_target, shown)))
    cells = list(map(GridCell, style.draw_overlays(shown), captions))
    return _draw_rows(cells, columns, _choose_width(shown, _CAPTIONED_WIDTH), width, style.build_key_of(shown))


def comparison(
    explanations: Any,
    *,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
    scale: Scale = "each",
    width: Width | None = None,
    alpha: float | None = None,
    colormap: Colormap = DEFAULT_COLORMAP,
) -> Figure:
    """Draw an image and explanations of it, each below its differences: method, class or layer.

    :func:`camtool.compare` explains an image by several methods; its ``figure()`` calls this function.

    Args:
        explanations: Explanations of one image by several methods, of several classes, at several layers or of several
            models, also in nested lists.
        titles: Titles to use instead, e.g. names of models.
        columns: As for :func:`gallery`; so are the others.
        scale: ``"each"`` or ``"shared"``.
        width: ``"single"``, ``"double"`` or inches.
        alpha: Opacity of the color at full heat.
        colormap: Color map.

    Raises:
        CamtoolError: There are no explanations, the images differ, or an argument is invalid.
    """
    shown, style = _flatten(explanations), _OverlayStyle(alpha, colormap, scale)
    if any(not np.array_equal(draw_without_map(explanation), draw_without_map(shown[0])) for explanation in shown):
        raise CamtoolError("explanations are of different images; comparison takes one image, gallery takes many.")
    captions = _choose_titles(titles, shown, describe_differences(shown))
    cells = [_build_plain_cell(shown[0]), *map(GridCell, style.draw_overlays(shown), captions)]
    return _draw_rows(cells, columns, _choose_width(shown, _CAPTIONED_WIDTH), width, style.build_key_of(shown))


def methods_grid(
    model: nn.Module | Loaded,
    images: Images,
    methods: Methods,
    target_class: Any = None,
    *,
    width: Width = "double",
    alpha: float | None = None,
    colormap: Colormap = DEFAULT_COLORMAP,
    **settings: Any,
) -> Figure:
    """Draw a table with a row for each image and a column for each method. Columns that do not fit follow below.

    Args:
        model: As for :func:`camtool.explain`.
        images: One image or several.
        methods: Names or functions, or a mapping with titles as keys: ``{"Grad-CAM": "gradcam"}``.
        target_class: One target for all images, or a list with one for each.
        width: ``"single"``, ``"double"`` or inches.
        alpha: Opacity of the color at full heat.
        colormap: Color map.
        **settings: Other arguments of :class:`camtool.Explainer`: ``layer``, ``transform``, ``labels``, options.

    Raises:
        CamtoolError: There are no images, or an argument is invalid.
    """
    named = methods if isinstance(methods, Mapping) else {_get_method_name(method): method for method in methods}
    inches, style = to_inches(width), _OverlayStyle(alpha, colormap)
    explained = Explainer(model, list(named.values()), **settings)(_to_list(model, images, settings), target_class)
    return _draw_table(explained, list(map(Caption, named)), inches, style)


def layers_sweep(
    model: nn.Module | Loaded,
    images: Images,
    layers: LayerSelection | Mapping[str, str | nn.Module] | None = None,
    target_class: Any = None,
    *,
    method: str | MethodFunction = "gradcam",
    width: Width = "double",
    alpha: float | None = None,
    colormap: Colormap = DEFAULT_COLORMAP,
    **settings: Any,
) -> Figure:
    """Draw a table with a row for each image and a column for each layer.

    Args:
        model: As for :func:`camtool.explain`.
        images: One image or several.
        layers: Names, patterns, types or functions, as for :func:`camtool.recorder.select`; or a mapping with titles as
            keys: ``{"stage 4": "layer4"}``. By default the deepest of each grid, of those that
            :func:`camtool.candidate_layers` does not exclude.
        target_class: One target for all images, or a list with one for each.
        method: Method for all layers.
        width: ``"single"``, ``"double"`` or inches.
        alpha: Opacity of the color at full heat.
        colormap: Color map.
        **settings: Other arguments of :class:`camtool.Explainer`.

    Raises:
        CamtoolError: There are no images, or an argument is invalid.
    """
    inches, style, shown = to_inches(width), _OverlayStyle(alpha, colormap), _to_list(model, images, settings)
    if layers is None:
        options = {name: settings[name] for name in ("transform", "image", "call_index", "kind") if name in settings}
        good = filter(is_good, candidate_layers(model, shown[0], **options))
        layers = [*{candidate.layout.grid: candidate.name for candidate in good}.values()]
    if not isinstance(layers, Mapping):
        layers = {name: name for name in select(model, layers)}
    if not layers:
        raise CamtoolError("layers is empty; pass one or more.")
    by_layer = [Explainer(model, method, layer, **settings)(shown, target_class) for layer in layers.values()]
    grids = [paper_style.format_shape(_flatten(of_layer)[0].raw.shape, between="") for of_layer in by_layer]
    return _draw_table(list(zip(*by_layer, strict=True)), list(map(Caption, layers, grids)), inches, style)


def classes_grid(
    model: nn.Module | Loaded,
    images: Images,
    k: int | Sequence[Any] = 5,
    *,
    method: str | MethodFunction = "gradcam",
    scale: Scale = "each",
    width: Width = "double",
    alpha: float | None = None,
    colormap: Colormap = DEFAULT_COLORMAP,
    **settings: Any,
) -> Figure:
    """Draw explanations of the most probable classes of each image, or of given ones, one image after another.

    Args:
        model: As for :func:`camtool.explain`.
        images: One image or several.
        k: Number of classes, or the classes, e.g. their names.
        method: Method for all classes.
        scale: ``"each"``, or ``"shared"`` by the classes of an image; see :func:`gallery`.
        width: ``"single"``, ``"double"`` or inches.
        alpha: Opacity of the color at full heat.
        colormap: Color map.
        **settings: Other arguments of :class:`camtool.Explainer`.

    Raises:
        CamtoolError: There are no images, or an argument is invalid.
    """
    several, inches, style = _to_list(model, images, settings), to_inches(width), _OverlayStyle(alpha, colormap, scale)
    asked: Any = [k] * len(several)
    if isinstance(k, int):
        check_count("k", k)
        asked = Top(k)
    explained = Explainer(model, method, **settings)(several, asked)
    key = style.build_key(whose="each image" if scale == "shared" else "each map")
    return _draw_by_image(explained, _describe_target, inches, style, key)


def questions_grid(
    model: nn.Module | Loaded,
    images: Images,
    group: Classes,
    against: Classes,
    *,
    method: str | MethodFunction = "gradcam",
    width: Width = "double",
    alpha: float | None = None,
    colormap: Colormap = DEFAULT_COLORMAP,
    **settings: Any,
) -> Figure:
    """Draw three questions about each image: why a dog, why this dog and not that one, why a dog and not a wolf.

    Args:
        model: As for :func:`camtool.explain`.
        images: One image or several.
        group: The group, e.g. ``"dog"``, see :class:`camtool.targets.Group`; the second question compares its two
            strongest classes, see :class:`camtool.targets.Within`.
        against: The group of the third question, e.g. ``"wolf"``.
        method: Method for all questions.
        width: ``"single"``, ``"double"`` or inches.
        alpha: Opacity of the color at full heat.
        colormap: Color map.
        **settings: Other arguments of :class:`camtool.Explainer`.

    Raises:
        CamtoolError: There are no images, or an argument is invalid.
    """
    inches, style, shown = to_inches(width), _OverlayStyle(alpha, colormap), _to_list(model, images, settings)
    questions = [Group(group), Within(group), Group(group, against)]
    explained = Explainer(model, method, **settings)(shown, [questions] * len(shown))
    return _draw_by_image(explained, lambda answer: Caption(answer.label), inches, style, style.build_key())


def _draw_by_image(explained: Any, describe: Any, inches: float, style: _OverlayStyle, key: ColorKey) -> Figure:
    """Draw the explanations of each image in rows of their own, behind the image."""
    rows: list[GridRow] = []
    for shown in explained:
        cells = [_build_plain_cell(shown[0]), *map(GridCell, style.draw_overlays(shown), map(describe, shown))]
        rows += _split_rows(cells, _count_fitting(inches, _choose_width(shown, _CAPTIONED_WIDTH)))
    return draw_grid(rows, inches, key)


def _draw_rows(cells: list[GridCell], columns: int | None, least: float, width: Width | None, key: ColorKey) -> Figure:
    """Draw images in rows; few images have the width of one column of a paper, others that of two."""
    check_count("columns", columns, optional=True)
    if width is None:
        width = "single" if (columns or len(cells)) * (least + GAP) <= paper_style.WIDTHS["single"] + GAP else "double"
    inches = to_inches(width)
    paper_style.check_columns(columns or 1, _count_fitting(inches, _MIN_WIDTH))
    return draw_grid(_split_rows(cells, columns or _count_fitting(inches, least)), inches, key)


def _build_plain_cell(explanation: Explanation) -> GridCell:
    """Return the image without a map, titled with its kind."""
    return GridCell(draw_without_map(explanation), Caption(explanation.view.kind))


def _choose_width(explanations: Sequence[Explanation], of_photos: float) -> float:
    """Return the default width of images: that of photos, or the full width for other inputs."""
    return of_photos if all(explanation.view.kind == "photo" for explanation in explanations) else _SHEET_WIDTH


@dataclass(frozen=True)
class _OverlayStyle:
    """Colors and color scale of overlays."""

    alpha: float | None
    colormap: Colormap
    scale: str = "each"

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, paper_style.SCALES)

    def draw_overlays(self, explanations: Sequence[Explanation]) -> list[NDArray[np.uint8]]:
        """Return the overlays; on a shared scale, equal values have equal colors in all."""
        if self.scale == "each":
            return [explanation.overlay(self.alpha, self.colormap) for explanation in explanations]
        limits = _find_limits(explanations)
        return [
            entry.view.draw_overlay(_rescale_heatmap(entry, *limits), alpha=self.alpha, colormap=self.colormap)
            for entry in explanations
        ]

    def build_key_of(self, explanations: Sequence[Explanation]) -> ColorKey:
        """Return the key to the colors of these explanations."""
        return self.build_key(_find_limits(explanations) if self.scale == "shared" else None)

    def build_key(self, limits: tuple[float, float] | None = None, *, whose: str = "each map") -> ColorKey:
        """Return the key to the colors on white, with the limits at its ends if the scale is shared."""
        white, ramp = np.full((1, 256, 3), 255, np.uint8), np.linspace(0, 1, 256)[None]
        colors = overlay.blend(white, ramp, alpha=self.alpha, colormap=self.colormap)[0]
        if limits is None:
            return ColorKey(colors, f"{whose}:", ("low", "high"))
        return ColorKey(colors, "all maps:", (format_number(limits[0]), format_number(limits[1])))


def _find_limits(explanations: Sequence[Explanation]) -> tuple[float, float]:
    """Return the lowest and the highest value of all raw maps."""
    maps = [explanation.raw for explanation in explanations]
    return min(float(raw.min()) for raw in maps), max(float(raw.max()) for raw in maps)


def _rescale_heatmap(explanation: Explanation, low: float, high: float) -> NDArray[np.float32]:
    """Return the heatmap rescaled so that the raw values ``low`` and ``high`` are 0 and 1; 0 in the unseen part."""
    own_low, own_high = _find_limits([explanation])
    values = own_low + explanation.heatmap * (own_high - own_low)
    heat: NDArray[np.float32] = np.clip((values - low) / (high - low or 1), 0, 1) * explanation.seen
    return heat.astype(np.float32)


def draw_without_map(explanation: Explanation) -> NDArray[np.uint8]:
    """Draw the explained input without a map."""
    if explanation.view.kind == "photo":
        return explanation.photo
    return explanation.view.draw_overlay(np.zeros(explanation.view.size, np.float32))


def _flatten(explanations: Any) -> list[Explanation]:
    """Return all explanations in nested lists.

    Raises:
        CamtoolError: There are none, or another object is among them.
    """
    leaves = list(iterate_leaves(explanations))
    other = next((leaf for leaf in leaves if not isinstance(leaf, Explanation)), None)
    if not leaves or other is not None:
        given = "nothing" if other is None else type(other).__name__
        raise CamtoolError(f"explanations holds {given}; pass results of camtool.explain.")
    return leaves


def _to_list(model: nn.Module | Loaded, images: Any, settings: Mapping[str, Any]) -> Any:
    """Return the images as several, even if one was given, so that :class:`camtool.Explainer` returns lists."""
    prepare = InputPreparer(get_module(model), settings.get("transform"), None, kind=settings.get("kind"))
    several = images if prepare.is_batch(images) else [images]
    if not len(several):
        raise CamtoolError("images is empty; pass one or more.")
    return several


def _count_fitting(inches: float, least: float) -> int:
    """Return how many images of at least this width fit side by side, at least 1."""
    return max(1, int((inches + GAP) / (least + GAP)))


def _split_rows(cells: Sequence[GridCell], most: int) -> list[GridRow]:
    """Return rows of at most ``most`` cells, all about equally full."""
    columns = balance_columns(len(cells), most)
    return [GridRow(cells[start : start + columns]) for start in range(0, len(cells), columns)]


def _draw_table(rows: Sequence[Any], headings: Sequence[Caption], inches: float, style: _OverlayStyle) -> Figure:
    """Draw rows of an image and its explanations; columns that do not fit follow below."""
    by_image = [_flatten(row) for row in rows]
    if any(len(row) != len(headings) for row in by_image):
        raise CamtoolError("target_class gives several targets for one image; pass one for each, or use classes_grid.")
    # One of the columns is the image itself.
    fitting = _count_fitting(inches - MARGIN, _choose_width(by_image[0], _TABLE_WIDTH)) - 1
    columns = balance_columns(len(headings), max(1, fitting))
    grid_rows = []
    for start in range(0, len(headings), columns):
        part = slice(start, start + columns)
        for number, row in enumerate(by_image):
            images = [draw_without_map(row[0]), *style.draw_overlays(row[part])]
            titles = [Caption(row[0].view.kind), *headings[part]] if number == 0 else [_NO_CAPTION] * len(images)
            grid_rows.append(GridRow(list(map(GridCell, images, titles)), _describe_target(row[0])))
    return draw_grid(grid_rows, inches, style.build_key())


def _describe_target(explanation: Explanation) -> Caption:
    """Return the label of the target and its probability."""
    probability = explanation.probability
    if probability is None or math.isnan(probability):
        return Caption(explanation.label, "")
    return Caption(explanation.label, f"{probability:.0%}" if probability >= _MIN_PERCENT else "<1%")


def describe_differences(explanations: Sequence[Explanation]) -> list[Caption]:
    """Return for each explanation its class, method and layer, as far as they are not the same for all."""
    differing = {name for name in ("method", "layer") if len({getattr(entry, name) for entry in explanations}) > 1}
    if len({entry.label for entry in explanations}) > 1 or not differing:
        differing.add("label")

    def describe(explanation: Explanation) -> Caption:
        target = _describe_target(explanation)
        parts = [target.words] if "label" in differing else []
        parts += [getattr(explanation, name) for name in ("method", "layer") if name in differing]
        # Methods that look at no layer have an empty one.
        return Caption(", ".join(filter(None, parts)), target.kept if "label" in differing else "")

    return list(map(describe, explanations))


def _choose_titles(given: Sequence[str] | None, shown: list[Explanation], default: list[Caption]) -> list[Caption]:
    """Return the user's titles, or the default ones.

    Raises:
        CamtoolError: The number of titles is not that of the explanations.
    """
    if given is None:
        return default
    if len(given) != len(shown):
        raise CamtoolError(f"titles has {len(given)} entries for {len(shown)} explanations; pass one for each.")
    return list(map(Caption, given))


def _get_method_name(method: str | MethodFunction) -> str:
    return method if isinstance(method, str) else find_method(method).name


# Five images of 240 pixels fill the width of a screen.
_MAX_COLUMNS = 5


@dataclass(frozen=True, eq=False)
class Comparison(image_writing.Displayable):
    """Explanations of one image, shown side by side in a notebook.

    Attributes:
        explanations: One for each method; for several targets, one for each target and method.
    """

    explanations: tuple[Explanation, ...]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.explanations)

    def __len__(self) -> int:
        return len(self.explanations)

    def __getitem__(self, number: int) -> Explanation:
        return self.explanations[number]

    def to_pixels(self) -> NDArray[np.uint8]:
        """Draw the image and the overlays, each above its method, class or layer, ``(H, W, 3)`` uint8."""
        images = [draw_without_map(self[0]), *(explanation.overlay() for explanation in self)]
        captions = ["photo", *(caption.line for caption in describe_differences(self.explanations))]
        return draw_captioned_images(images, captions, columns=balance_columns(len(images), _MAX_COLUMNS))

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the comparison to a file: an image (png, jpg, webp), or :meth:`figure` (pdf, svg).

        Raises:
            ImageError: The suffix is unknown.
            CamtoolError: matplotlib is not installed, which figures need.
        """
        if Path(path).suffix.lower() in (".pdf", ".svg"):
            return save(self.figure(), path)
        return super().save(path)

    def figure(self, **options: Any) -> Figure:
        """Draw the comparison as a matplotlib figure; the options are those of :func:`camtool.figures.comparison`.

        Raises:
            CamtoolError: matplotlib is not installed.
        """
        return comparison(self.explanations, **options)

    def __repr__(self) -> str:
        captions = "; ".join(caption.line for caption in describe_differences(self.explanations))
        return f"<Comparison of {len(self)} explanations of {self[0].label!r}: {captions}>"


@explain_foreign_arguments
def compare(
    model: nn.Module | Loaded,
    img: Any,
    target_class: Any = None,
    *,
    methods: Sequence[str | MethodFunction] = ("gradcam", "hirescam", "layercam", "eigencam"),
    **settings: Any,
) -> Comparison:
    """Explain one image by several methods and show the results side by side.

        camtool.compare(model, "cat.jpg", methods=["gradcam", "layercam", "scorecam"])

    Args:
        model: As for :func:`camtool.explain`; so are the others.
        img: One image.
        target_class: Target, or a list of targets.
        methods: Names in :data:`camtool.METHODS`, or functions.
        **settings: ``layer``, ``transform``, ``labels``, options of the methods.

    Raises:
        CamtoolError: An argument is invalid.
    """
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise MethodError(f"methods={methods!r} is no list of methods; give e.g. ['gradcam', 'layercam'].")
    shown = list(iterate_leaves(explain(model, img, target_class, method=list(methods), **settings)))
    if not shown:
        raise ImageError("img holds no image; pass one.")
    if any(not np.array_equal(draw_without_map(explanation), draw_without_map(shown[0])) for explanation in shown):
        raise CamtoolError("img holds several images; pass one, or use camtool.figures.methods_grid.")
    return Comparison(tuple(shown))
