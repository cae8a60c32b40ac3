"""Options of ``camtool run`` and ``camtool cluster``, and the request that they make, checked without the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer import Option

from camtool.arguments.message_parts import format_count
from camtool.cli.options import dataclasses_to_typer, model_options, photo_options, result_options, truth_options
from camtool.errors import CamtoolError
from camtool.runs.save_kinds import OutputSettings

if TYPE_CHECKING:
    from camtool.models import Loaded, StatedPreprocessing
    from camtool.runs.job_list import Plan
    from camtool.runs.photo_tables import TrueClasses

_ON_CLUSTER = ("address", "gpus_per_worker", "cpus_per_worker", "cluster_workers")
_LOCAL = ("out", "workers", "quiet", "verbose", "as_json", "sheet", "overwrite", "retry_failed", "page", "config")
# Options that change no result, so that they may differ when a run is continued. All others may not.
WITHOUT_EFFECT = frozenset((*_LOCAL, *_ON_CLUSTER))

# Settings of the explainer that are not options of a method.
_SETTINGS = ("layer", "merge", "batch_size", "placement", "engine", "reading", "verify")


@dataclass(frozen=True)
class RunOptions:
    """Options that mean the same here and on a cluster."""

    photos: photo_options.PhotoOptions
    model: model_options.ModelOptions
    truth: truth_options.TruthOptions
    preprocessing: model_options.PreprocessingOptions
    pixels: photo_options.PixelOptions
    map: result_options.MapOptions
    output: result_options.OutputOptions
    pictures: result_options.PictureOptions
    printed: result_options.PrintOptions
    batch_size: model_options.BatchSize = 8
    engine: model_options.EngineOption = "eager"
    config: dataclasses_to_typer.Config = None


@dataclass(frozen=True)
class LocalOptions:
    """Options of a run on this machine.

    Attributes:
        workers: Threads that read, prepare, draw and write photos while the model runs.
        volume: Explain a folder of DICOM slices as one volume, or with --slice one slice of it; by default each file.
        region: Measure the share of the heat in a region: bottom-left, border, center, ..., a box in percent
            (0%,80%,30%,100%) or pixels, or a folder with a mask of each photo. Repeat it for several.
        sufficient: Find the part of each photo that alone keeps 90 % of the probability, by 200 passes, and save a
            picture of it.
        sheet: Draw all overlays on contact sheets.
        page: Write index.html, a page of all results.
        retry_failed: Try photos again that failed in an earlier start.
        verbose: Print a line for each photo.
    """

    panel: ClassVar[str] = "Output"

    workers: Annotated[int | None, Option(metavar="N", min=0, show_default="the cores", rich_help_panel="Model")] = None
    volume: Annotated[bool, Option("--volume", rich_help_panel="Scientific formats")] = False
    region: Annotated[list[str] | None, Option(metavar="[NAME=]REGION")] = None
    sufficient: Annotated[bool, Option("--sufficient")] = False
    sheet: Annotated[bool, Option("--sheet")] = False
    page: Annotated[bool, Option("--report/--no-report")] = True
    retry_failed: Annotated[bool, Option("--retry-failed")] = False
    verbose: Annotated[bool | None, Option("--verbose/--no-verbose", "-v", show_default="on a terminal")] = None


@dataclass(frozen=True)
class RunRequest:
    """What the user asked for, on this machine or on a cluster.

    Attributes:
        methods: The names of the methods.
        targets: The targets of each photo.
        settings: Settings of the explainer, and options of the methods.
        preprocessing: The preprocessing that the user stated.
        output: What is written, where, and how.
        command: The options that results depend on, by name, as the user wrote them.
        options: The options.
    """

    methods: list[str]
    targets: list[Any]
    settings: Mapping[str, Any]
    preprocessing: StatedPreprocessing
    output: OutputSettings
    command: Mapping[str, Any]
    options: RunOptions


def read_request(context: typer.Context, options: RunOptions, local: LocalOptions | None = None) -> RunRequest:
    """Return the request in the options of the command. Everything that can be wrong is checked.

    Args:
        context: The call of the command.
        options: Its options.
        local: Those of a run on this machine; None for one on a cluster.

    Raises:
        CamtoolError: Something is.
    """
    from camtool.runs import job_list
    from camtool.runs.run_folder import description, photo_records

    output, paths = _read_output(context, options, local), options.photos.paths
    photo_options.check_no_model_names(paths)
    # Before the output folder, whose run a mistyped path does not fit either.
    job_list.check_existence(paths)
    preprocessing = options.preprocessing.parse()
    command = {name: value for name, value in context.params.items() if name not in WITHOUT_EFFECT}
    if local is not None:
        photo_options.check_no_other_command(paths)
        if not options.output.overwrite and not photo_records.is_interrupted(output.folder):
            description.check_unchanged(output.folder, description.describe_command(command))
    settings: dict[str, Any] = {name: getattr(options.map, name) for name in ("layer", "merge", "placement", "verify")}
    settings |= {"batch_size": options.batch_size, "engine": options.engine, "reading": options.pixels.parse()}
    settings |= result_options.parse_method_options(options.map.option, _SETTINGS)
    methods = result_options.find_methods(options.map.method, settings, _SETTINGS)
    targets = result_options.parse_targets(options.map.target)
    return RunRequest(methods, targets, settings, preprocessing, output, command, options)


def _read_output(context: typer.Context, options: RunOptions, local: LocalOptions | None) -> OutputSettings:
    """Return what is written, and check that what options ask for is written at all."""
    output, pictures = options.output, options.pictures
    kinds = _read_kinds(options, local, has_kinds=is_given(context, "save"))
    has_sheet = local is not None and local.sheet
    result_options.check_overlays_are_saved(kinds, caption=pictures.caption, sheet=has_sheet, legend=pictures.legend)
    if options.truth.only_wrong and options.truth.labels_csv is None:
        raise CamtoolError("--only-wrong needs the true classes; give them with --truth FILE.")
    return OutputSettings(
        folder=output.out,
        kinds=kinds,
        format="png" if output.format == "npz" else output.format,
        alpha=pictures.alpha,
        colormap=result_options.choose_colormap(pictures.colormap),
        enlarge=pictures.enlarge,
        max_side=pictures.max_side,
        has_captions=pictures.caption,
        only_wrong=options.truth.only_wrong,
        regions=result_options.parse_regions(local.region if local else None, pictures.max_side),
        has_legend=pictures.legend,
    )


def _read_kinds(options: RunOptions, local: LocalOptions | None, *, has_kinds: bool) -> list[str]:
    """Return the kinds of files: those that the user named, or that other options ask for."""
    output = options.output
    asked = "npz" if output.format == "npz" and not has_kinds else output.save
    kinds = result_options.parse_kinds(asked, output.format)
    if local is None:
        _check_cluster_kinds(kinds, needs_overlays=options.pictures.caption and not has_kinds)
    elif local.sufficient and "sufficient" not in kinds:
        return [*kinds, "sufficient"]
    return kinds


def _check_cluster_kinds(kinds: list[str], *, needs_overlays: bool) -> None:
    if kinds != ["overlay"]:
        raise CamtoolError(f"--save {','.join(kinds)}: camtool cluster writes Parquet and --save overlay.")
    if needs_overlays:
        raise CamtoolError("--caption needs overlays, which camtool cluster writes with --save overlay.")


def is_given(context: typer.Context, name: str) -> bool:
    """Return True if the user set an option, on the command line, in the environment or in a file of options."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


@dataclass(frozen=True)
class ClusterOptions:
    """Options of the cluster, and of how the photos are divided.

    Attributes:
        address: Address of the cluster.
        gpus_per_worker: GPUs of a worker; 0.5 for two workers on each.
        cpus_per_worker: Cores of a worker.
        cluster_workers: Workers at most, e.g. of a cluster that grows.
        shard_size: Photos in a shard, one Parquet file.
        image_column: Column of Parquet files with the bytes of images.
    """

    panel: ClassVar[str] = "Cluster"

    address: Annotated[str | None, Option(metavar="ADDRESS", show_default="RAY_ADDRESS, or this machine")] = None
    gpus_per_worker: Annotated[float | None, Option(metavar="X", min=0, show_default="1 if there are any")] = None
    cpus_per_worker: Annotated[int | None, Option(metavar="N", min=1, show_default="1")] = None
    cluster_workers: Annotated[int | None, Option(metavar="N", min=1, show_default="as many as fit now")] = None
    shard_size: Annotated[int, Option(metavar="N", min=1)] = 1000
    image_column: Annotated[str | None, Option(metavar="NAME", show_default="found by type")] = None


def select_photos(options: RunOptions, listed: Plan, true_classes: TrueClasses) -> Plan:
    """Return the photos that the options choose: those with a true class, a random sample, the first ones."""
    from camtool.runs import job_list

    if options.truth.only_wrong:
        listed = replace(listed, jobs=[job for job in listed.jobs if job.source in true_classes.by_photo])
    photos = options.photos
    return job_list.select_jobs(listed, limit=photos.limit, shuffle=photos.shuffle, seed=photos.seed)


def describe_undrawable_labels(loaded: Loaded) -> list[str]:
    """Return what to tell about labels that captions cannot show."""
    from camtool.rendering.text_drawing import find_undrawable

    texts = find_undrawable(map(str, loaded.labels or ()))
    if not texts:
        return []
    note = f"No font of this system has all letters of {format_count(len(texts), 'label')}, e.g. {texts[0]!r}; captions"
    return [f"{note} show the index. Install a font of this script, e.g. one of the Noto fonts."]
