"""Command ``camtool export``: write a model with its explanation into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from camtool.cli import terminal
from camtool.cli.options import map_options, model_options, preprocessing_options

__all__ = ["export_model"]


def export_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=model_options.MODEL_HELP)],
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write: .onnx, .xml (OpenVINO) or .pt2 (torch.export).")
    ],
    weights: model_options.Weights = None,
    method: Annotated[str, typer.Option(metavar="NAME", help="Method: a formula of activations and gradients.")] = (
        "gradcam"
    ),
    layer: map_options.LayerName = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of the images, e.g. 224 or 224x320 (height x width).",
            show_default="what the model is made for",
        ),
    ] = None,
    transform: preprocessing_options.TransformName = None,
    mean: preprocessing_options.Mean = None,
    std: preprocessing_options.Std = None,
    channels: preprocessing_options.ChannelsOption = None,
    fixed_batch: Annotated[bool, typer.Option("--fixed-batch", help="One image at a time, not any number.")] = False,
    resize: Annotated[bool, typer.Option("--resize", help="Return maps at the images' size.")] = False,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Option of the method. Repeat it for several.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a model with its explanation into one file, which runs without camtool and without torch."""
    from camtool.engines.export import export
    from camtool.errors import CamtoolError

    if path.exists() and not force:
        raise CamtoolError(f"{path} exists; give another name, or --force to overwrite it.")
    preprocessing = preprocessing_options.parse_preprocessing(transform, size, mean, std, channels)
    options = map_options.parse_method_options(option, ())
    loaded = model_options.load_model(model, weights, preprocessing=preprocessing)
    export(
        loaded, path, method, layer, size=preprocessing.size, dynamic_batch=not fixed_batch, resize=resize, **options
    )
    files = [path, *([path.with_suffix(".bin")] if path.suffix == ".xml" else [])]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    terminal.print_line(f"[bold green]Exported[/] {megabytes:.1f} MB to [bold]{terminal.escape(str(path))}[/]")
    terminal.out.print("Inputs: images, target_class (-1: the top class). Outputs: logits, maps.")
