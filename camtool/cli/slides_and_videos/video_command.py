"""Command ``camtool video``: explain the frames of videos."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from camtool.arguments.messages import format_count
from camtool.cli.options import map_options, model_options, output_options
from camtool.cli.progress.file_progress import FileProgress
from camtool.cli.slides_and_videos import file_results
from camtool.errors import ImageError

__all__ = ["explain_videos"]


def explain_videos(
    videos: Annotated[list[str], typer.Argument(metavar="VIDEO", help="Videos: MP4, MOV, MKV, WebM, AVI, ...")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS", help="Class index or name, explained in all frames.", show_default="each frame's top class"
        ),
    ] = None,
    model: model_options.Model = "resnet50",
    weights: model_options.Weights = None,
    labels: model_options.Labels = None,
    device: model_options.DeviceOption = model_options.Device.auto,
    method: map_options.MethodName = "gradcam",
    layer: map_options.LayerName = None,
    option: map_options.MethodOptions = None,
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
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Frames in a batch.")] = 8,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the results.")] = Path("out"),
    alpha: output_options.Alpha = None,
    colormap: output_options.ColormapName = None,
    quiet: output_options.Quiet = False,
) -> None:
    """Explain the frames of videos: write each with the heatmap over it, and a line for each explained frame."""
    from camtool.videos.explaining import explain_video

    colormap = output_options.choose_colormap(colormap)
    output_options.check_output_folder(out)
    settings: dict[str, Any] = {
        "layer": layer, "every": every, "fps": fps, "smooth": smooth, "window": window, "batch_size": batch_size,
    }  # fmt: skip
    settings |= map_options.parse_method_options(option, tuple(settings))
    loaded = model_options.load_model(model, weights, labels=labels, device=device.value, is_quiet=quiet)
    asked: Any = None if target is None else map_options.parse_targets([target])[0]
    is_any_failed = False
    with file_results.stop_on_signal():
        for video, name in zip(videos, file_results.name_results(videos), strict=True):
            started = time.perf_counter()
            try:
                with FileProgress(Path(video).name, is_quiet=quiet):
                    result = explain_video(loaded, video, asked, method=method, **settings)
                    file = result.save(out / f"{name}.{result.method}.mp4", alpha=alpha, colormap=colormap)
            except ImageError as error:
                file_results.print_failure(video, error)
                is_any_failed = True
                continue
            if not quiet:
                frames = f"{len(result.rows):,} of {format_count(result.frame_count, 'frame')} explained"
                file_results.print_result(frames, started, result.layer, file, result.warnings)
    raise typer.Exit(1 if is_any_failed else 0)
