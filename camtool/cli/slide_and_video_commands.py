"""Commands ``camtool slide`` and ``camtool video``: explain whole slides and the frames of videos."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer
from typer import Argument, Option

from camtool.arguments.message_parts import format_count
from camtool.cli import exit_codes, terminal
from camtool.cli.options import model_options, result_options
from camtool.cli.options.dataclasses_to_typer import takes_options
from camtool.cli.progress.run_progress import FileProgress
from camtool.cli.terminal import escape, print_line
from camtool.errors import ImageError
from camtool.runs.file_names import make_distinct


@dataclass(frozen=True)
class FileResult:
    """Result for one file.

    Attributes:
        text: What was explained.
        layer: The layer; empty for methods at the input.
        saved: Where the results are.
        warnings: The warnings.
    """

    text: str
    layer: str
    saved: Path
    warnings: Sequence[str]


# Function from the path of a file, and the name for its results, to the result.
ExplainFile: TypeAlias = Callable[[str, str], FileResult]


def explain_files(paths: list[str], printed: result_options.PrintOptions, explain: ExplainFile) -> None:
    """Explain each file, and print what was explained, how long it took, where the results are, and each warning.

    Args:
        paths: The files.
        printed: Options of what is printed.
        explain: Explains a file, given its path and the name for its results, and saves them.

    Raises:
        typer.Exit: Always: with 0, 1 if a file could not be explained, 130 at Ctrl-C and 143 at SIGTERM. Files are
            complete or absent.
    """
    # The name of a file without its suffix, and a number if two are alike.
    names = make_distinct([Path(path).stem for path in paths])
    with exit_codes.exit_at_stop():
        lines = [_explain_file(path, name, printed, explain) for path, name in zip(paths, names, strict=True)]
    if printed.as_json:
        terminal.print_json(lines)
    raise typer.Exit(1 if any("failure" in line for line in lines) else 0)


def _explain_file(path: str, name: str, printed: result_options.PrintOptions, explain: ExplainFile) -> dict[str, Any]:
    """Explain a file, and return its line of the JSON output."""
    started = time.perf_counter()
    try:
        with FileProgress(Path(path).name, is_quiet=printed.hides_progress):
            result = explain(path, name)
    except ImageError as error:
        text = str(error) if path in str(error) else f"{path}: {error}"
        terminal.err.print(f"[bold red]Failed:[/] {escape(text)}", soft_wrap=True)
        return {"path": path, "failure": str(error)}
    seconds = time.perf_counter() - started
    if not printed.hides_progress:
        _print_result(result, seconds)
    return {"path": path, **vars(result), "saved": str(result.saved), "seconds": round(seconds, 2)}


def _print_result(result: FileResult, seconds: float) -> None:
    where = f", at layer [bold]{escape(result.layer)}[/]" if result.layer else ""
    print_line(f"[bold green]{escape(result.text)}[/] in {seconds:.1f} s{where}.")
    print_line(f"Saved to [bold]{escape(str(result.saved))}[/]")
    for warning in result.warnings:
        print_line(f"[yellow]{escape(warning)}[/]")


# Rule by which tiles of background are skipped.
Background: TypeAlias = Literal["bright", "dark", "none"]


@takes_options
def explain_slides(
    *,
    slides: Annotated[list[str], Argument(metavar="SLIDE")],
    target: Annotated[str, Option(metavar="CLASS")],
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    map_: result_options.MethodOptions,
    mpp: Annotated[float | None, Option(metavar="X", show_default="that of the finest level")] = None,
    level: Annotated[int | None, Option(metavar="N")] = None,
    tile: Annotated[int | None, Option(metavar="PIXELS", min=8, show_default="what fills the model's input")] = None,
    overlap: Annotated[float, Option(metavar="X", min=0, max=0.9)] = 0.25,
    background: Background = "bright",
    min_tissue: Annotated[float, Option(metavar="X", min=0, max=1)] = 0.05,
    batch_size: model_options.BatchSize = 32,
    engine: model_options.EngineOption = "eager",
    out: result_options.Out = Path("out"),
    drawing: result_options.DrawingOptions,
    printed: result_options.PrintOptions,
) -> None:
    """Explain a class on whole slides: a heatmap and an overlay as pyramids, a preview, a line for each tile.

    Args:
        slides: Slides: SVS, NDPI, MRXS, pyramidal TIFF, ...
        target: Class index or name, explained on all tiles.
        mpp: Resolution that the model sees, in micrometers per pixel: that of its training.
        level: Level that the model sees, instead of --mpp.
        tile: Side of a tile.
        overlap: Share of a tile that the next one has in common.
        background: Tiles to skip: bright glass, the dark of fluorescence, or none.
        min_tissue: Least tissue in a tile.
    """
    from camtool.rendering.written_files import check_replaceable
    from camtool.slides.explaining import explain_slide
    from camtool.slides.slide_explanation import NAMES

    style = drawing.check(out)
    settings: dict[str, Any] = {
        "layer": map_.layer, "mpp": mpp, "level": level, "tile": tile, "overlap": overlap, "min_tissue": min_tissue,
        "batch_size": batch_size, "background": background, "engine": engine,
    }  # fmt: skip
    settings |= result_options.parse_method_options(map_.option, tuple(settings))
    loaded = loading.load(naming.labels, is_quiet=printed.hides_progress)
    (asked,) = result_options.parse_targets([target])

    def explain(path: str, name: str) -> FileResult:
        check_replaceable(out / name, NAMES)
        result = explain_slide(loaded, path, asked, method=map_.method, **settings)  # type: ignore[arg-type]
        (out / name).mkdir(parents=True, exist_ok=True)  # a name with a dot would be that of a file
        tiles = f"{result.label}: {format_count(len(result.tiles), 'tile')} explained, {result.skipped:,} skipped"
        return FileResult(tiles, result.layer, result.save(out / name, **style), result.warnings)

    explain_files(slides, printed, explain)


@takes_options
def explain_videos(
    *,
    videos: Annotated[list[str], Argument(metavar="VIDEO")],
    target: Annotated[str | None, Option(metavar="CLASS", show_default="each frame's top class")] = None,
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    map_: result_options.MethodOptions,
    every: Annotated[int, Option(metavar="N", min=1)] = 1,
    fps: Annotated[float | None, Option(metavar="X")] = None,
    smooth: Annotated[int, Option(metavar="N", min=1)] = 1,
    window: Annotated[
        int | None, Option(metavar="N", min=1, show_default="16 for a model of clips, none for others")
    ] = None,
    batch_size: model_options.BatchSize = 8,
    engine: model_options.EngineOption = "eager",
    out: result_options.Out = Path("out"),
    drawing: result_options.DrawingOptions,
    printed: result_options.PrintOptions,
) -> None:
    """Explain the frames of videos: write each with the heatmap over it, and a line for each explained frame.

    Args:
        videos: Videos: MP4, MOV, MKV, WebM, AVI, ...
        target: Class index or name, explained in all frames.
        every: Explain each N-th frame; those between keep its heatmap.
        fps: Explain X frames per second, not --every.
        smooth: Average the maps of N frames; odd, 1 for none.
        window: Frames that the model takes at once.
    """
    from camtool.methods.registry import find_method
    from camtool.rendering.written_files import check_replaceable, replace_files
    from camtool.videos.explaining import explain_video

    style = drawing.check(out)
    settings: dict[str, Any] = {
        "layer": map_.layer, "every": every, "fps": fps, "smooth": smooth, "window": window, "batch_size": batch_size,
        "engine": engine,
    }  # fmt: skip
    settings |= result_options.parse_method_options(map_.option, tuple(settings))
    loaded = loading.load(naming.labels, is_quiet=printed.hides_progress)
    asked: Any = None if target is None else result_options.parse_targets([target])[0]

    def explain(path: str, name: str) -> FileResult:
        expected = map_.method if map_.method == "auto" else find_method(map_.method).name
        check_replaceable(out, [f"{name}.{expected}.{suffix}" for suffix in ("mp4", "jsonl")])
        result = explain_video(loaded, path, asked, method=map_.method, **settings)
        with replace_files(out, [video := f"{name}.{result.method}.mp4"]):
            saved = result.save(out / video, **style)
        frames = f"{len(result.rows):,} of {format_count(result.frame_count, 'frame')} explained"
        return FileResult(frames, result.layer, saved, result.warnings)

    explain_files(videos, printed, explain)
