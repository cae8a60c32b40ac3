"""Command ``camtool run``: explain photos and write the results to a folder."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camtool.arguments.messages import format_count, suggest_names
from camtool.cli import shared_options, terminal
from camtool.cli.progress import run_summary
from camtool.cli.progress.activity import show_activity
from camtool.cli.run_folders import cluster_options, report_command
from camtool.errors import CamtoolError
from camtool.runs import process_settings
from camtool.runs.save_kinds import SAVE_KINDS

if TYPE_CHECKING:
    from camtool.models import Loaded
    from camtool.runs.job_list import Plan
    from camtool.runs.true_labels import TrueClasses

__all__ = ["run"]


class Format(str, Enum):
    """File format of the results: images, or arrays."""

    png = "png"
    jpg = "jpg"
    webp = "webp"
    npz = "npz"


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
_PHOTOS_PANEL = "Photos"
_WITHOUT_EFFECT = (
    *("out", "workers", "quiet", "verbose", "as_json", "sheet", "overwrite", "retry_failed", "page", "config"),
    *("cluster", *cluster_options.CLUSTER_ONLY),
)
"""Options that change no result, so that they may differ when a run is continued. All others may not."""

_SETTINGS = ("layer", "merge", "batch_size", "placement", "engine", "reading")
"""Settings of the explainer that are not options of a method."""


def run(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Photos, folders, patterns such as 'a/**/*.jpg', or URLs of photos."),
    ],
    model: shared_options.Model = "resnet50",
    weights: shared_options.Weights = None,
    transform: shared_options.TransformName = None,
    size: shared_options.Size = None,
    mean: shared_options.Mean = None,
    std: shared_options.Std = None,
    channels: shared_options.ChannelsOption = None,
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
        Format,
        typer.Option(
            help="File format of the images; npz writes the arrays instead, as --save npz.",
            rich_help_panel=_OUTPUT_PANEL,
        ),
    ] = Format.png,
    caption: Annotated[
        bool,
        typer.Option(
            "--caption", help="Write label, probability and method below overlays.", rich_help_panel=_OUTPUT_PANEL
        ),
    ] = False,
    sheet: Annotated[
        bool,
        typer.Option("--sheet", help="Draw all overlays on contact sheets.", rich_help_panel=_OUTPUT_PANEL),
    ] = False,
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
    bands: shared_options.Bands = None,
    window: shared_options.Window = None,
    percentiles: shared_options.Percentiles = None,
    slice: shared_options.Slice = None,  # noqa: A002
    volume: shared_options.Volume = False,
    axis: shared_options.AxisOption = None,
    frame: shared_options.Frame = None,
    page: Annotated[
        bool,
        typer.Option(
            "--report/--no-report",
            help="Write index.html, a page with all explanations.",
            rich_help_panel=_OUTPUT_PANEL,
        ),
    ] = True,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Explain the first N photos only.", rich_help_panel=_PHOTOS_PANEL),
    ] = None,
    shuffle: Annotated[
        bool,
        typer.Option(
            "--shuffle", help="Explain in random order; with --limit a random sample.", rich_help_panel=_PHOTOS_PANEL
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Number that chooses the random order.", rich_help_panel=_PHOTOS_PANEL)
    ] = 0,
    labels_csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="True classes: a table with the columns image and label. Adds right or wrong.",
            rich_help_panel=_PHOTOS_PANEL,
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    only_wrong: Annotated[
        bool,
        typer.Option(
            "--only-wrong",
            help="Write only photos that are classified wrongly; needs --labels-csv.",
            rich_help_panel=_PHOTOS_PANEL,
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Remove the run that is in the folder, and start anew.", rich_help_panel=_OUTPUT_PANEL
        ),
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed", help="Try photos again that failed in an earlier start.", rich_help_panel=_OUTPUT_PANEL
        ),
    ] = False,
    config: shared_options.Config = None,
    max_pixels: shared_options.MaxPixels = shared_options.DEFAULT_MAX_PIXELS,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Read subfolders too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    verbose: Annotated[
        bool | None,
        typer.Option("--verbose/--no-verbose", "-v", help="Print a line for each photo.", show_default="on a terminal"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    cluster: cluster_options.ClusterOption = None,
    address: cluster_options.Address = None,
    gpus_per_worker: cluster_options.GpusPerWorker = None,
    cpus_per_worker: cluster_options.CpusPerWorker = None,
    cluster_workers: cluster_options.ClusterWorkers = None,
    shard_size: cluster_options.ShardSize = 1000,
    image_column: cluster_options.ImageColumn = None,
) -> None:
    """Explain photos: write an overlay of each, and a line in explanations.jsonl.

    The same command again continues a run that was stopped.
    """
    process_settings.tune_process()  # before torch is loaded
    from camtool.explainer import Explainer
    from camtool.rendering import colormaps
    from camtool.runs import job_list
    from camtool.runs.run_folder import description
    from camtool.runs.run_folder.replay import Replayer
    from camtool.runs.run_folder.run_folder import RunStart
    from camtool.runs.save_kinds import OutputSettings

    # Everything that can be wrong is checked before the model is loaded, which may take minutes.
    cluster_options.check_options(context)
    source = context.get_parameter_source("save")
    is_default = source is not None and source.name == "DEFAULT"
    kinds = _parse_kinds("npz" if is_default and format is Format.npz else save, format)
    _check_output_options(kinds, caption=caption, sheet=sheet, only_wrong=only_wrong, labels_csv=labels_csv)
    colormap = colormap or colormaps.DEFAULT_COLORMAP
    colormaps.get_palette(colormap)
    shared_options.check_no_model_names(paths)
    if not cluster:
        shared_options.check_no_other_command(paths)
    preprocessing = shared_options.PreprocessingOptions.parse(transform, size, mean, std, channels)
    command = {name: value for name, value in context.params.items() if name not in _WITHOUT_EFFECT}
    if not (cluster or overwrite):
        description.check_unchanged(out, description.describe_command(command))
    planned = None
    if not cluster:
        with show_activity("Listing photos", is_quiet=quiet or as_json):
            planned = job_list.plan_run(paths, recursive=recursive, out=out, as_volumes=volume)
        if not (quiet or as_json):
            _tell_series(planned, is_joined=volume)
    settings: dict[str, Any] = {
        "layer": layer,
        "merge": merge,
        "batch_size": batch_size,
        "placement": placement.value,
        "engine": engine.value,
        "reading": shared_options.parse_reading_options(
            bands=bands,
            window=window,
            percentiles=percentiles,
            slice=slice,
            axis=axis,
            frame=frame,
            max_pixels=max_pixels,
        ),
    }
    settings |= shared_options.parse_method_options(option, _SETTINGS)
    methods = _find_methods(method, settings)
    image_format = "png" if format is Format.npz else format.value
    output = OutputSettings(out, kinds, image_format, alpha, colormap, enlarge, max_side)
    if planned is None:
        settings |= {"method": methods, "target": shared_options.parse_targets(target)}
        raise typer.Exit(cluster_options.run_on_cluster(context, settings, output, quiet=quiet, as_json=as_json))
    loaded = shared_options.load_model(
        model,
        weights,
        labels=labels,
        device=device.value,
        is_quiet=quiet or as_json,
        preprocessing=preprocessing,
    )
    explainer = Explainer(loaded, methods, **settings)
    true_classes = _read_true_classes(labels_csv, planned, loaded)
    notes = true_classes.describe_gaps(planned)
    if only_wrong:
        planned = replace(planned, jobs=[job for job in planned.jobs if job.source in true_classes.by_photo])
    planned = job_list.select_jobs(planned, limit=limit, shuffle=shuffle, seed=seed)
    if caption or sheet:
        notes += _describe_undrawable_labels(loaded)
    output = replace(output, has_captions=caption, true_classes=true_classes.by_photo, only_wrong=only_wrong)
    described = description.describe_run(loaded, methods, settings, command)
    targets = shared_options.parse_targets(target)
    if isinstance(context.obj, Replayer):  # called by `camtool replay`
        context.obj.replay(explainer, targets, output, batch_size, described)
        raise typer.Exit
    if not overwrite:
        run_summary.print_machine_changes(description.list_machine_changes(out, described))
    start = RunStart(described, overwrite=overwrite, retry_failed=retry_failed)
    report = run_summary.RunReport(
        planned,
        output,
        quiet=quiet,
        verbose=_shows_lines(verbose, quiet=quiet, as_json=as_json),
        as_json=as_json,
        has_sheet=sheet,
        notes=notes,
    )
    code = report.follow_run(explainer, targets, batch_size, workers, start)
    if page:
        report_command.write_after_run(out, is_stopped=code not in (0, 1), quiet=quiet or as_json)
    raise typer.Exit(code)


def _shows_lines(verbose: bool | None, *, quiet: bool, as_json: bool) -> bool:
    """Return True if a line for each photo is printed: by default on a terminal, where the user watches."""
    if as_json:
        return False
    return verbose if verbose is not None else terminal.out.is_terminal and not quiet


def _read_true_classes(path: Path | None, plan: Plan, loaded: Loaded) -> TrueClasses:
    """Return the true classes of the photos; none without a table."""
    from camtool.outputs.class_count import get_class_count
    from camtool.runs.true_labels import TrueClasses, read_true_classes

    if path is None:
        return TrueClasses(path, {}, 0)
    return read_true_classes(path, plan, loaded.labels, get_class_count(loaded.model))


def _tell_series(plan: Plan, *, is_joined: bool) -> None:
    """Say what becomes of slices of a DICOM series, as a folder of them may be photos or one volume."""
    from camtool.runs.job_list import find_series

    folders = [job.source for job in plan.jobs if isinstance(job.source, Path) and job.source.is_dir()]
    if is_joined and folders:
        count = format_count(len(folders), "folder")
        terminal.print_note(f"{count} of DICOM slices, each read as one volume, sorted by position.")
    found = None if is_joined else find_series(job.source for job in plan.jobs)
    if found is not None:
        terminal.print_note(
            f"{found[0]} holds slices of a DICOM series. Each of the {found[1]} files is explained as a photo of its "
            "own; --volume explains a folder as one volume."
        )


def _describe_undrawable_labels(loaded: Loaded) -> list[str]:
    """Return what to tell about labels that captions cannot show."""
    from camtool.rendering.text_drawing import find_undrawable

    found = find_undrawable(map(str, loaded.labels or ()))
    if not found:
        return []
    note = f"No font of this system has all letters of {format_count(len(found), 'label')}, e.g. {found[0]!r}; captions"
    return [f"{note} show the index. Install a font of this script, e.g. one of the Noto fonts."]


def _check_output_options(
    kinds: list[str], *, caption: bool, sheet: bool, only_wrong: bool, labels_csv: Path | None
) -> None:
    """Check that what options ask for is written at all."""
    for name, is_asked in (("--caption", caption), ("--sheet", sheet)):
        if is_asked and "overlay" not in kinds:
            raise CamtoolError(f"{name} needs overlays, but --save names {', '.join(kinds)}; add overlay to --save.")
    if only_wrong and labels_csv is None:
        raise CamtoolError("--only-wrong needs the true classes; give them with --labels-csv FILE.")


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


def _parse_kinds(save: str, format: Format) -> list[str]:  # noqa: A002
    """Return the kinds of files in a list separated by commas."""
    kinds = list(dict.fromkeys(shared_options.split_names([save])))
    for kind in kinds:
        if kind not in SAVE_KINDS:
            raise CamtoolError(
                f"--save {kind!r} is unknown. Known kinds: {', '.join(SAVE_KINDS)}.{suggest_names(kind, SAVE_KINDS)}"
            )
    if format is not Format.npz:
        return kinds
    pictures = [kind for kind in kinds if SAVE_KINDS[kind].is_picture]
    if pictures:
        raise CamtoolError(
            f"--format npz writes arrays, not pictures; for {', '.join(pictures)} as well, leave it out and give "
            f"--save {','.join([*pictures, 'npz'])}."
        )
    return [*(kind for kind in kinds if kind not in ("raw", "npz")), "npz"]  # npz holds the raw values
