"""Command ``camtool export``: write a model with its explanation into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from camtool.cli import terminal
from camtool.cli.options import map_options, model_options, preprocessing_options
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import PrintOptions


@takes_options
def export_model(
    *,
    loading: model_options.ModelArgument,
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write: .onnx, .xml (OpenVINO) or .pt2 (torch.export).")
    ],
    map_: map_options.MethodOptions,
    preparing: preprocessing_options.PreprocessingOptions,
    fixed_batch: Annotated[bool, typer.Option("--fixed-batch", help="One image at a time, not any number.")] = False,
    resize: Annotated[bool, typer.Option("--resize", help="Return maps at the images' size.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", "--force", help="Overwrite the file.")] = False,
    printed: PrintOptions,
) -> None:
    """Write a model with its explanation into one file, which runs without camtool and without torch."""
    from camtool.engines.export import export
    from camtool.errors import CamtoolError

    if path.exists() and not overwrite:
        raise CamtoolError(f"{path} exists; give another name, or --overwrite to replace it.")
    preprocessing = preparing.parse()
    options = map_options.parse_method_options(map_.option, ())
    loaded = loading.load(preprocessing=preprocessing, is_quiet=printed.hides_progress)
    export(
        loaded,
        path,
        map_.method,
        map_.layer,
        size=preprocessing.size,
        dynamic_batch=not fixed_batch,
        resize=resize,
        **options,
    )
    files = [path, *([path.with_suffix(".bin")] if path.suffix == ".xml" else [])]
    size = sum(file.stat().st_size for file in files)
    if printed.as_json:
        terminal.print_json({"files": [*map(str, files)], "bytes": size})
    elif not printed.quiet:
        terminal.print_line(f"[bold green]Exported[/] {size / 1e6:.1f} MB to [bold]{terminal.escape(str(path))}[/]")
        terminal.out.print("Inputs: images, target_class (-1: the top class). Outputs: logits, maps.")
