"""Command ``camtool video``: explain the frames of videos."""

from __future__ import annotations

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


@takes_options
def explain_videos(
    *,
    videos: Annotated[list[str], typer.Argument(metavar="VIDEO", help="Videos: MP4, MOV, MKV, WebM, AVI, ...")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS", help="Class index or name, explained in all frames.", show_default="each frame's top class"
        ),
    ] = None,
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    map_: map_options.MethodOptions,
    every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Explain each N-th frame; those between keep its heatmap.")
    ] = 1,
    fps: Annotated[
        float | None, typer.Option(metavar="X", help="Explain X frames per second, instead of --every.")
    ] = None,
    smooth: Annotated[
        int, typer.Option(metavar="N", min=1, help="Average maps over N explained frames; odd, 1 for none.")
    ] = 1,
    window: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Frames that the model takes at once.",
            show_default="16 for a model of clips, none for others",
        ),
    ] = None,
    batch_size: model_options.BatchSize = 8,
    engine: model_options.EngineOption = model_options.Engine.eager,
    out: Out = Path("out"),
    drawing: DrawingOptions,
    printed: PrintOptions,
) -> None:
    """Explain the frames of videos: write each with the heatmap over it, and a line for each explained frame."""
    from camtool.videos.explaining import explain_video

    style: Any = {"alpha": drawing.alpha, "colormap": choose_colormap(drawing.colormap)}
    check_output_folder(out)
    settings: dict[str, Any] = {
        "layer": map_.layer, "every": every, "fps": fps, "smooth": smooth, "window": window, "batch_size": batch_size,
        "engine": engine.value,
    }  # fmt: skip
    settings |= map_options.parse_method_options(map_.option, tuple(settings))
    loaded = loading.load(naming.labels, is_quiet=printed.hides_progress)
    asked: Any = None if target is None else map_options.parse_targets([target])[0]

    def explain(path: str, name: str) -> FileResult:
        result = explain_video(loaded, path, asked, method=map_.method, **settings)
        saved = result.save(out / f"{name}.{result.method}.mp4", **style)
        frames = f"{len(result.rows):,} of {format_count(result.frame_count, 'frame')} explained"
        return FileResult(frames, result.layer, saved, result.warnings)

    explain_files(videos, printed, explain)
