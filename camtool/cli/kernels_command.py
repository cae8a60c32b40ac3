"""Command ``camtool kernels``: draw the filters of a model's convolutions."""

from __future__ import annotations

from typing import Annotated

import typer

from camtool.cli.features_command import build_file_name, print_drawn, save_figure
from camtool.cli.options import figure_options, map_options, model_options
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import PrintOptions


@takes_options
def draw_kernels(
    *,
    loading: model_options.ModelOptions,
    layer: Annotated[list[str] | None, figure_options.LAYERS] = None,
    filters: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Most filters drawn.", show_default="64, or 16 of several input channels"
        ),
    ] = None,
    inputs: Annotated[int, typer.Option(metavar="N", min=1, help="Most input channels drawn of a filter.")] = 16,
    drawing: figure_options.FigureOptions,
    printed: PrintOptions,
) -> None:
    """Draw the filters of a model's convolutions, by default of the first one: a figure for each layer."""
    from camtool import figures
    from camtool.figures.saving import load_canvas

    load_canvas()  # raises if matplotlib is missing, before the model is loaded
    loaded = loading.load(is_quiet=printed.hides_progress)
    style, out, suffix = drawing.get_style() | {"filters": filters, "inputs": inputs}, drawing.out, drawing.format.value
    if layer:
        pages = figures.kernel_pages(loaded, map_options.split_names(layer), **style)
        drawn = [save_figure(figure, out, f"kernels-{build_file_name(name)}.{suffix}") for name, figure in pages]
    else:
        drawn = [save_figure(figures.kernels(loaded, **style), out, f"kernels.{suffix}")]
    print_drawn(drawn, out, printed)
