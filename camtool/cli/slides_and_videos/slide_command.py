"""Command ``camtool slide``: explain a class on whole slides."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from camtool.arguments.messages import format_count
from camtool.cli.options import map_options, model_options, output_options
from camtool.cli.progress.file_progress import FileProgress
from camtool.cli.slides_and_videos import file_results
from camtool.errors import ImageError

__all__ = ["explain_slides"]


class Background(str, Enum):
    """Rule by which tiles of background are skipped."""

    bright = "bright"
    dark = "dark"
    none = "none"


def explain_slides(
    slides: Annotated[list[str], typer.Argument(metavar="SLIDE", help="Slides: SVS, NDPI, MRXS, pyramidal TIFF, ...")],
    target: Annotated[str, typer.Option(metavar="CLASS", help="Class index or name, explained on all tiles.")],
    model: model_options.Model = "resnet50",
    weights: model_options.Weights = None,
    labels: model_options.Labels = None,
    device: model_options.DeviceOption = model_options.Device.auto,
    method: map_options.MethodName = "gradcam",
    layer: map_options.LayerName = None,
    option: map_options.MethodOptions = None,
    mpp: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Resolution that the model sees, in micrometers per pixel: that of its training.",
            show_default="that of the finest level",
        ),
    ] = None,
    level: Annotated[int | None, typer.Option(metavar="N", help="Level that the model sees, instead of --mpp.")] = None,
    tile: Annotated[
        int | None,
        typer.Option(metavar="PIXELS", min=8, help="Side of a tile.", show_default="what fills the model's input"),
    ] = None,
    overlap: Annotated[
        float, typer.Option(metavar="X", min=0, max=0.9, help="Share of a tile that the next one has in common.")
    ] = 0.25,
    background: Annotated[
        Background, typer.Option(help="Tiles to skip: bright glass, the dark of fluorescence, or none.")
    ] = Background.bright,
    min_tissue: Annotated[
        float, typer.Option(metavar="X", min=0, max=1, help="Smallest share of tissue in a tile.")
    ] = 0.05,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Tiles in a batch.")] = 32,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder; each slide gets a folder in it.")] = Path("out"),
    alpha: output_options.Alpha = None,
    colormap: output_options.ColormapName = None,
    quiet: output_options.Quiet = False,
) -> None:
    """Explain a class on whole slides: a heatmap and an overlay as pyramids, a preview, a line for each tile."""
    from camtool.slides.explaining import explain_slide

    colormap = output_options.choose_colormap(colormap)
    output_options.check_output_folder(out)
    settings: dict[str, Any] = {
        "layer": layer, "mpp": mpp, "level": level, "tile": tile, "overlap": overlap, "min_tissue": min_tissue,
        "batch_size": batch_size, "background": background.value,
    }  # fmt: skip
    settings |= map_options.parse_method_options(option, tuple(settings))
    loaded = model_options.load_model(model, weights, labels=labels, device=device.value, is_quiet=quiet)
    (asked,) = map_options.parse_targets([target])
    is_any_failed = False
    with file_results.stop_on_signal():
        for slide, name in zip(slides, file_results.name_results(slides), strict=True):
            started = time.perf_counter()
            try:
                with FileProgress(Path(slide).name, is_quiet=quiet):
                    result = explain_slide(loaded, slide, asked, method=method, **settings)  # type: ignore[arg-type]
                    (out / name).mkdir(parents=True, exist_ok=True)  # a name with a dot would be that of a file
                    folder = result.save(out / name, alpha=alpha, colormap=colormap)
            except ImageError as error:
                file_results.print_failure(slide, error)
                is_any_failed = True
                continue
            if not quiet:
                tiles = (
                    f"{result.label}: {format_count(len(result.tiles), 'tile')} explained, {result.skipped:,} skipped"
                )
                file_results.print_result(tiles, started, result.layer, folder, result.warnings)
    raise typer.Exit(1 if is_any_failed else 0)
