"""Command ``camtool run``: explain photos and write the results to a folder, here or on a cluster."""

from __future__ import annotations

from pathlib import Path

import typer

from camtool.cli.options import (
    config_option,
    map_options,
    model_options,
    output_options,
    photo_options,
    preprocessing_options,
    reading_options,
)
from camtool.cli.run_folders import cluster_options, run_request
from camtool.runs import process_settings

__all__ = ["run"]


def run(
    context: typer.Context,
    paths: photo_options.Paths,
    model: model_options.Model = "resnet50",
    weights: model_options.Weights = None,
    transform: preprocessing_options.TransformName = None,
    size: preprocessing_options.Size = None,
    mean: preprocessing_options.Mean = None,
    std: preprocessing_options.Std = None,
    channels: preprocessing_options.ChannelsOption = None,
    labels: model_options.Labels = None,
    device: model_options.DeviceOptionOfRun = model_options.Device.auto,
    batch_size: model_options.BatchSize = 8,
    workers: model_options.Workers = None,
    engine: model_options.EngineOption = model_options.Engine.eager,
    method: map_options.Methods = ["gradcam"],  # noqa: B006
    target: map_options.Targets = None,
    layer: map_options.Layers = None,
    merge: map_options.Merge = "mean",
    placement: map_options.PlacementOption = map_options.Placement.centers,
    option: map_options.MethodOptionsOfRun = None,
    out: output_options.Out = Path("out"),
    save: output_options.Save = "overlay",
    format: output_options.FormatOption = output_options.Format.png,  # noqa: A002
    caption: output_options.Caption = False,
    sheet: output_options.Sheet = False,
    legend: output_options.Legend = False,
    region: output_options.Regions = None,
    alpha: output_options.AlphaOfRun = None,
    colormap: output_options.ColormapNameOfRun = None,
    enlarge: output_options.Enlarge = True,
    max_side: output_options.MaxSide = None,
    bands: reading_options.Bands = None,
    window: reading_options.Window = None,
    percentiles: reading_options.Percentiles = None,
    slice: reading_options.Slice = None,  # noqa: A002
    volume: reading_options.Volume = False,
    axis: reading_options.AxisOption = None,
    frame: reading_options.Frame = None,
    page: output_options.Report = True,
    limit: photo_options.Limit = None,
    shuffle: photo_options.Shuffle = False,
    seed: photo_options.Seed = 0,
    labels_csv: photo_options.LabelsCsv = None,
    only_wrong: photo_options.OnlyWrong = False,
    overwrite: output_options.Overwrite = False,
    retry_failed: output_options.RetryFailed = False,
    config: config_option.Config = None,
    max_pixels: reading_options.MaxPixels = reading_options.DEFAULT_MAX_PIXELS,
    recursive: photo_options.Recursive = False,
    quiet: output_options.Quiet = False,
    verbose: output_options.Verbose = None,
    as_json: output_options.Json = False,
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
    options = {name: value for name, value in locals().items() if name != "context"}
    process_settings.tune_process()  # before torch is loaded
    from camtool.cli.run_folders import cluster_run, local_run

    request = run_request.read_request(context, options)
    start = cluster_run.run_on_cluster if cluster else local_run.run_here
    raise typer.Exit(start(context, request))
