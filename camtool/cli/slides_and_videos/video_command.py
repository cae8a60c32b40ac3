"""Command ``camtool video``: explain the frames of videos."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from camtool.arguments.messages import format_count
from camtool.cli import shared_options
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
    model: shared_options.Model = "resnet50",
    weights: shared_options.Weights = None,
    labels: shared_options.Labels = None,
    device: Annotated[shared_options.Device, typer.Option(help="Device the model runs on.")] = (
        shared_options.Device.auto
    ),
    method: Annotated[str, typer.Option(metavar="NAME", help="Method; for a list: camtool methods.")] = "gradcam",
    layer: Annotated[str | None, typer.Option(metavar="NAME", help="Layer.", show_default="the best one")] = None,
    option: shared_options.MethodOptions = None,
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
    alpha: shared_options.Alpha = None,
    colormap: shared_options.ColormapName = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Explain the frames of videos: write each with the heatmap over it, and a line for each explained frame."""
    from camtool.rendering.colormaps import DEFAULT_COLORMAP, get_palette
    from camtool.videos.explaining import explain_video

    get_palette(colormap or DEFAULT_COLORMAP)
    shared_options.check_output_folder(out)
    settings: dict[str, Any] = {
        "layer": layer, "every": every, "fps": fps, "smooth": smooth, "window": window, "batch_size": batch_size,
    }  # fmt: skip
    settings |= shared_options.parse_method_options(option, tuple(settings))
    loaded = shared_options.load_model(model, weights, labels=labels, device=device.value, is_quiet=quiet)
    asked: Any = None if target is None else shared_options.parse_targets([target])[0]
    is_any_failed = False
    with file_results.stop_on_signal():
        for video, name in zip(videos, file_results.name_results(videos), strict=True):
            started = time.perf_counter()
            try:
                with FileProgress(Path(video).name, is_quiet=quiet):
                    result = explain_video(loaded, video, asked, method=method, **settings)
                    file = result.save(
                        out / f"{name}.{result.method}.mp4", alpha=alpha, colormap=colormap or DEFAULT_COLORMAP
                    )
            except ImageError as error:
                file_results.print_failure(video, error)
                is_any_failed = True
                continue
            if not quiet:
                frames = f"{len(result.rows):,} of {format_count(result.frame_count, 'frame')} explained"
                file_results.print_result(frames, started, result.layer, file, result.warnings)
    raise typer.Exit(1 if is_any_failed else 0)
