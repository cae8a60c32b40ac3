"""Command ``camtool slide``: explain a class on whole slides."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from camtool.arguments.messages import format_count
from camtool.cli.options import map_options, model_options
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import (
    DrawingOptions,
    Out,
    PrintOptions,
    check_output_folder,
    choose_colormap,
)
from camtool.cli.slides_and_videos.file_results import FileResult, explain_files


class Background(str, Enum):
    """Rule by which tiles of background are skipped."""

    bright = "bright"
    dark = "dark"
    none = "none"


@takes_options
def explain_slides(
    *,
    slides: Annotated[list[str], typer.Argument(metavar="SLIDE", help="Slides: SVS, NDPI, MRXS, pyramidal TIFF, ...")],
    target: Annotated[str, typer.Option(metavar="CLASS", help="Class index or name, explained on all tiles.")],
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    map_: map_options.MethodOptions,
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
    batch_size: model_options.BatchSize = 32,
    engine: model_options.EngineOption = model_options.Engine.eager,
    out: Out = Path("out"),
    drawing: DrawingOptions,
    printed: PrintOptions,
) -> None:
    """Explain a class on whole slides: a heatmap and an overlay as pyramids, a preview, a line for each tile."""
    from camtool.slides.explaining import explain_slide

    style: Any = {"alpha": drawing.alpha, "colormap": choose_colormap(drawing.colormap)}
    check_output_folder(out)
    settings: dict[str, Any] = {
        "layer": map_.layer, "mpp": mpp, "level": level, "tile": tile, "overlap": overlap, "min_tissue": min_tissue,
        "batch_size": batch_size, "background": background.value, "engine": engine.value,
    }  # fmt: skip
    settings |= map_options.parse_method_options(map_.option, tuple(settings))
    loaded = loading.load(naming.labels, is_quiet=printed.hides_progress)
    (asked,) = map_options.parse_targets([target])

    def explain(path: str, name: str) -> FileResult:
        result = explain_slide(loaded, path, asked, method=map_.method, **settings)  # type: ignore[arg-type]
        (out / name).mkdir(parents=True, exist_ok=True)  # a name with a dot would be that of a file
        tiles = f"{result.label}: {format_count(len(result.tiles), 'tile')} explained, {result.skipped:,} skipped"
        return FileResult(tiles, result.layer, result.save(out / name, **style), result.warnings)

    explain_files(slides, printed, explain)
