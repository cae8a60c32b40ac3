"""Command ``camtool run``: explain photos and write the results to a folder."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from camtool.arguments.messages import suggest_names
from camtool.cli import run_summary, shared_options
from camtool.errors import CamtoolError
from camtool.runs import process_settings
from camtool.runs.save_kinds import SAVE_KINDS

__all__ = ["run"]


class Format(str, Enum):
    """File format of images."""

    png = "png"
    jpg = "jpg"
    webp = "webp"


class Placement(str, Enum):
    """Placement of a layer's grid on the model's input."""

    centers = "centers"
    stretch = "stretch"


class Engine(str, Enum):
    """Engine that runs the model."""

    eager = "eager"
    prepared = "prepared"
    onnxruntime = "onnxruntime"
    openvino = "openvino"
    auto = "auto"


_MAP_PANEL = "Map"
_OUTPUT_PANEL = "Output"
_SETTINGS = ("layer", "merge", "batch_size", "placement", "engine")
"""Settings of the explainer that are not options of a method."""


def run(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Photos, folders, patterns such as 'a/**/*.jpg', or URLs of photos."),
    ],
    model: shared_options.Model = "resnet50",
    weights: shared_options.Weights = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Class names: a text file with one a line, or a JSON list.",
            rich_help_panel=shared_options.MODEL_PANEL,
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    device: Annotated[
        shared_options.Device,
        typer.Option(help="Device the model runs on.", rich_help_panel=shared_options.MODEL_PANEL),
    ] = shared_options.Device.auto,
    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Photos in a batch.", rich_help_panel=shared_options.MODEL_PANEL)
    ] = 8,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Threads that read, prepare, draw and write photos while the model runs.",
            show_default="the cores",
            rich_help_panel=shared_options.MODEL_PANEL,
        ),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="How the model runs: as it is, as a prepared copy, as a compiled graph, or the fastest of these.",
            rich_help_panel=shared_options.MODEL_PANEL,
        ),
    ] = Engine.eager,
    method: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Method; for a list: camtool methods. Repeat it, or use commas, for several.",
            rich_help_panel=_MAP_PANEL,
        ),
    ] = ["gradcam"],  # noqa: B006
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            help="Class index, class name, or top1, top3, ...; for CLIP-like models a text. Repeat it for several.",
            show_default="top1",
            rich_help_panel=_MAP_PANEL,
        ),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Layer; for a list: camtool layers MODEL. Repeat it for several.",
            show_default="the best one",
            rich_help_panel=_MAP_PANEL,
        ),
    ] = None,
    merge: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="How to merge the maps of several layers: mean, max, ...", rich_help_panel=_MAP_PANEL
        ),
    ] = "mean",
    placement: Annotated[
        Placement,
        typer.Option(
            help="Draw each cell at the center of its receptive field, or stretch the grid.",
            rich_help_panel=_MAP_PANEL,
        ),
    ] = Placement.centers,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Option of the method, e.g. samples=50; for a list: camtool methods NAME. Repeat it for several.",
            rich_help_panel=_MAP_PANEL,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the results.", rich_help_panel=_OUTPUT_PANEL)
    ] = Path("out"),
    save: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help=f"Files to write, separated by commas: {', '.join(SAVE_KINDS)}.",
            rich_help_panel=_OUTPUT_PANEL,
        ),
    ] = "overlay",
    format: Annotated[  # noqa: A002
        Format, typer.Option(help="File format of the images.", rich_help_panel=_OUTPUT_PANEL)
    ] = Format.png,
    alpha: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            max=1,
            help="Opacity of the colors of the overlay.",
            show_default="0.7",
            rich_help_panel=_OUTPUT_PANEL,
        ),
    ] = None,
    colormap: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Color map: heat, turbo, viridis, inferno, gray, ...",
            show_default="heat",
            rich_help_panel=_OUTPUT_PANEL,
        ),
    ] = None,
    enlarge: Annotated[
        bool,
        typer.Option("--enlarge/--no-enlarge", help="Enlarge overlays of small photos.", rich_help_panel=_OUTPUT_PANEL),
    ] = True,
    max_side: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            min=1,
            help="Longest side of the images, unless the model needs more. Larger photos are read faster.",
            show_default="as the photo",
            rich_help_panel=_OUTPUT_PANEL,
        ),
    ] = None,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Read subfolders too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print a line for each explanation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Explain photos: write an overlay of each, and a line in explanations.jsonl."""
    process_settings.tune_process()  # before torch is loaded
    from camtool.explainer import Explainer
    from camtool.rendering import colormaps
    from camtool.runs import job_list
    from camtool.runs.save_kinds import OutputSettings

    # Everything that can be wrong is checked before the model is loaded, which may take minutes.
    kinds = _parse_kinds(save)
    colormap = colormap or colormaps.DEFAULT_COLORMAP
    colormaps.get_palette(colormap)
    shared_options.check_no_model_names(paths)
    shared_options.check_no_other_command(paths)
    planned = job_list.plan_run(paths, recursive=recursive, out=out)
    settings: dict[str, Any] = {
        "layer": layer,
        "merge": merge,
        "batch_size": batch_size,
        "placement": placement.value,
        "engine": engine.value,
    }
    settings |= shared_options.parse_method_options(option, _SETTINGS)
    methods = _find_methods(method, settings)
    loaded = shared_options.load_model(model, weights, labels=labels, device=device.value, is_quiet=quiet or as_json)
    explainer = Explainer(loaded, methods, **settings)
    output = OutputSettings(out, kinds, format.value, alpha, colormap, enlarge, max_side)
    report = run_summary.RunReport(planned, output, quiet=quiet, verbose=verbose and not as_json, as_json=as_json)
    raise typer.Exit(report.follow_run(explainer, shared_options.parse_targets(target), batch_size, workers))


def _find_methods(texts: list[str], settings: dict[str, Any]) -> list[str]:
    """Return the names of the methods, each once, and check that their options and the merge exist."""
    from camtool import methods
    from camtool.methods.merges import get_merge

    names = shared_options.split_names(texts)
    if not names:
        raise CamtoolError(f"--method names no method. Known methods: {', '.join(methods.METHODS)}.")
    found = [methods.find_method(name) for name in names]
    methods.check_options(found, settings.keys() - {*_SETTINGS})
    get_merge(settings["merge"])
    return list(dict.fromkeys(method.name for method in found))


def _parse_kinds(text: str) -> list[str]:
    """Return the kinds of files in a list separated by commas."""
    kinds = shared_options.split_names([text])
    for kind in kinds:
        if kind not in SAVE_KINDS:
            raise CamtoolError(
                f"--save {kind!r} is unknown. Known kinds: {', '.join(SAVE_KINDS)}.{suggest_names(kind, SAVE_KINDS)}"
            )
    return kinds
