"""Command ``camtool features``: draw the feature maps of a photo."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from camtool.arguments.messages import format_count
from camtool.cli import terminal
from camtool.cli.options import figure_options, map_options, model_options, photo_options, preprocessing_options

__all__ = ["build_file_name", "draw_features", "print_drawn", "save_figure"]


class Order(str, Enum):
    """Choice of the maps that are drawn."""

    first = "first"
    strongest = "strongest"
    of_class = "class"


def draw_features(
    image: Annotated[str, typer.Argument(metavar="PHOTO", help="A photo.")],
    model: model_options.Model = "resnet50",
    weights: model_options.Weights = None,
    transform: preprocessing_options.TransformName = None,
    size: preprocessing_options.Size = None,
    mean: preprocessing_options.Mean = None,
    std: preprocessing_options.Std = None,
    channels: preprocessing_options.ChannelsOption = None,
    layers: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Layers: names, patterns such as 'layer*.conv1', or 'conv' for all convolutions. Repeat it, or use "
            "commas, for several.",
        ),
    ] = ["conv"],  # noqa: B006
    maps: Annotated[int, typer.Option(metavar="N", min=1, help="Most maps drawn of a layer.")] = 16,
    order: Annotated[
        Order, typer.Option(help="Which maps: the first, the strongest, or those that matter for the class.")
    ] = Order.first,
    target: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Class index or name.", show_default="the most probable class")
    ] = None,
    scale: figure_options.ScaleOption = figure_options.Scale.shared,
    one_page: Annotated[bool, typer.Option("--one-page", help="Draw all layers in one figure.")] = False,
    width: figure_options.FigureWidth = "double",
    out: figure_options.FigureFolder = Path("figures"),
    format: figure_options.FormatOption = figure_options.FigureFormat.png,  # noqa: A002
) -> None:
    """Draw the feature maps of a photo: one figure for each layer, or one for all."""
    from camtool import figures
    from camtool.figures.saving import load_canvas

    load_canvas()  # raises if matplotlib is missing, before the model is loaded
    photo_options.check_no_model_names([image])
    preprocessing = preprocessing_options.parse_preprocessing(transform, size, mean, std, channels)
    loaded = model_options.load_model(model, weights, preprocessing=preprocessing)
    names = map_options.split_names(layers)
    style: dict[str, Any] = {
        "target_class": None if target is None else map_options.parse_targets([target])[0],
        "scale": scale.value,
        "width": figure_options.parse_width(width),
    }
    with terminal.err.status("Drawing ..."):
        if one_page:
            figure = figures.feature_maps(loaded, image, names, maps, order.value, **style)
            drawn = [save_figure(figure, out, f"features.{format.value}")]
        else:
            pages = figures.feature_pages(loaded, image, names, maps, order.value, **style)
            drawn = [
                save_figure(figure, out, f"{number:03}-{build_file_name(name)}.{format.value}")
                for number, (name, figure) in enumerate(pages, 1)
            ]
    print_drawn(drawn, out)


def save_figure(figure: Any, folder: Path, name: str) -> Path:
    """Write a figure to a file in a folder, and return its path; a link in the folder must not lead out of it."""
    from camtool import figures
    from camtool.runs.file_names import check_inside

    check_inside(folder, Path(name))
    return figures.save(figure, folder / name)


def build_file_name(layer: str) -> str:
    """Return the name of a layer with an underscore for each character that some file system refuses."""
    return re.sub(r"[^\w.-]", "_", layer)


def print_drawn(files: list[Path], folder: Path) -> None:
    """Print how many figures were drawn, and where they are."""
    figures = format_count(len(files), "figure")
    where = (
        f": [bold]{terminal.escape(str(files[0]))}[/]"
        if len(files) == 1
        else f" in [bold]{terminal.escape(str(folder))}[/]"
    )
    terminal.print_line(f"[bold green]{figures} drawn[/]{where}")
