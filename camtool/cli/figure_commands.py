"""Commands ``camtool features`` and ``camtool kernels``: feature maps of a photo, filters of a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from camtool.arguments.messages import format_count
from camtool.cli import terminal
from camtool.cli.options import map_options, model_options, photo_options
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import Out, PrintOptions
from camtool.runs.file_names import make_distinct

LAYERS = Option(
    "--layer",
    "--layers",
    metavar="NAME",
    help="Layers: names, patterns such as 'layer*.conv1', or 'conv' for all convolutions. Repeat it, or use commas, "
    "for several.",
)


@dataclass(frozen=True)
class FigureOptions:
    """Options of the figures that a command draws.

    Attributes:
        scale: Color scale: shared by all panels, or each its own.
        width: Width: 'single' or 'double' column, or a number of inches.
        format: File format of the figures.
    """

    scale: Literal["each", "shared"] = "shared"
    width: Annotated[str, Option(metavar="WIDTH")] = "double"
    out: Out = Path("figures")
    format: Literal["png", "pdf", "svg"] = "png"

    def get_style(self) -> dict[str, Any]:
        """Return the scale and the width, as functions of :mod:`camtool.figures` take them."""
        return {"scale": self.scale, "width": parse_width(self.width)}


def parse_width(text: str) -> float | str:
    """Return the inches of a number, or else the name of a width."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text


@takes_options
def draw_features(
    *,
    image: Annotated[str, Argument(metavar="PHOTO")],
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    layer: Annotated[list[str], LAYERS] = ["conv"],  # noqa: B006
    maps: Annotated[int, Option(metavar="N", min=1)] = 16,
    order: Literal["first", "strongest", "class"] = "first",
    target: Annotated[str | None, Option(metavar="CLASS", show_default="the most probable class")] = None,
    one_page: Annotated[bool, Option("--one-page")] = False,
    drawing: FigureOptions,
    printed: PrintOptions,
) -> None:
    """Draw the feature maps of a photo: one figure for each layer, or one for all.

    Args:
        image: A photo.
        maps: Most maps drawn of a layer.
        order: Which maps: the first, the strongest, or those that matter for the class.
        target: Class index or name.
        one_page: Draw all layers in one figure.
    """
    from camtool import figures
    from camtool.figures.saving import load_canvas

    load_canvas()  # raises if matplotlib is missing, before the model is loaded
    photo_options.check_no_model_names([image])
    loaded = loading.load(naming.labels, preparing.parse(), is_quiet=printed.hides_progress)
    names, out, suffix = map_options.split_names(layer), drawing.out, drawing.format
    style = drawing.get_style() | {"target_class": None if target is None else map_options.parse_targets([target])[0]}
    with terminal.show_activity("Drawing", is_quiet=printed.hides_progress):
        if one_page:
            figure = figures.feature_maps(loaded, image, names, maps, order, **style)
            drawn = [save_figure(figure, out, f"features.{suffix}")]
        else:
            pages = figures.feature_pages(loaded, image, names, maps, order, **style)
            drawn = [
                save_figure(figure, out, f"{number:03}-{build_file_name(name)}.{suffix}")
                for number, (name, figure) in enumerate(pages, 1)
            ]
    print_drawn(drawn, out, printed)


def save_figure(figure: Any, folder: Path, name: str) -> Path:
    """Write a figure to a file in a folder, and return its path; which must be absent, or camtool's."""
    from camtool import figures
    from camtool.rendering.written_files import replace_files

    with replace_files(folder, [name]):
        return figures.save(figure, folder / name)


def build_file_name(layer: str) -> str:
    """Return the name of a layer with an underscore for each character that some file system refuses."""
    return re.sub(r"[^\w.-]", "_", layer)


def print_drawn(files: list[Path], folder: Path, printed: PrintOptions) -> None:
    """Print how many figures were drawn, and where they are."""
    if printed.as_json:
        terminal.print_json({"files": [*map(str, files)]})
    elif not printed.quiet:
        where = f": {files[0]}" if len(files) == 1 else f" in {folder}"
        figures = format_count(len(files), "figure")
        terminal.print_line(f"[bold green]{figures} drawn[/][bold]{terminal.escape(where)}[/]")


@takes_options
def draw_kernels(
    *,
    loading: model_options.ModelOptions,
    layer: Annotated[list[str] | None, LAYERS] = None,
    filters: Annotated[int | None, Option(metavar="N", min=1, show_default="64; 16 of several input channels")] = None,
    inputs: Annotated[int, Option(metavar="N", min=1)] = 16,
    drawing: FigureOptions,
    printed: PrintOptions,
) -> None:
    """Draw the filters of a model's convolutions, by default of the first one: a figure for each layer.

    Args:
        filters: Most filters drawn.
        inputs: Most input channels drawn of a filter.
    """
    from camtool import figures
    from camtool.figures.saving import load_canvas

    load_canvas()  # raises if matplotlib is missing, before the model is loaded
    loaded = loading.load(is_quiet=printed.hides_progress)
    style, out, suffix = drawing.get_style() | {"filters": filters, "inputs": inputs}, drawing.out, drawing.format
    if layer:
        drawn, names = list[Path](), list[str]()
        for name, figure in figures.kernel_pages(loaded, map_options.split_names(layer), **style):
            names.append(build_file_name(name))
            drawn.append(save_figure(figure, out, f"kernels-{make_distinct(names)[-1]}.{suffix}"))
    else:
        drawn = [save_figure(figures.kernels(loaded, **style), out, f"kernels.{suffix}")]
    print_drawn(drawn, out, printed)
