"""Command ``camtool kernels``: draw the filters of a model's convolutions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from camtool.cli.features_command import build_file_name, print_drawn, save_figure
from camtool.cli.options import figure_options, map_options, model_options

__all__ = ["draw_kernels"]


def draw_kernels(
    model: model_options.Model = "resnet50",
    weights: model_options.Weights = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            "--layers",
            metavar="NAME",
            help="Layers: names, patterns such as 'layer*.conv1', or 'conv' for all convolutions. Repeat it, or use "
            "commas, for several.",
            show_default="the first convolution",
        ),
    ] = None,
    filters: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Most filters drawn.", show_default="64, or 16 of several input channels"
        ),
    ] = None,
    inputs: Annotated[int, typer.Option(metavar="N", min=1, help="Most input channels drawn of a filter.")] = 16,
    scale: figure_options.ScaleOption = figure_options.Scale.shared,
    width: figure_options.FigureWidth = "double",
    out: figure_options.FigureFolder = Path("figures"),
    format: figure_options.FormatOption = figure_options.FigureFormat.png,  # noqa: A002
) -> None:
    """Draw the filters of a model's convolutions: one figure for each layer."""
    from camtool import figures
    from camtool.figures.saving import load_canvas

    load_canvas()  # raises if matplotlib is missing, before the model is loaded
    loaded = model_options.load_model(model, weights)
    style: dict[str, Any] = {
        "filters": filters,
        "inputs": inputs,
        "scale": scale.value,
        "width": figure_options.parse_width(width),
    }
    if layer:
        pages = figures.kernel_pages(loaded, map_options.split_names(layer), **style)
        drawn = [save_figure(figure, out, f"kernels-{build_file_name(name)}.{format.value}") for name, figure in pages]
    else:
        drawn = [save_figure(figures.kernels(loaded, **style), out, f"kernels.{format.value}")]
    print_drawn(drawn, out)
