"""The request of ``camtool run``: its options, read and checked as far as that is possible without the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from camtool.cli.options import map_options, output_options, photo_options, preprocessing_options, reading_options
from camtool.cli.run_folders import cluster_options
from camtool.errors import CamtoolError
from camtool.runs.save_kinds import OutputSettings

if TYPE_CHECKING:
    from camtool.models import StatedPreprocessing

__all__ = ["WITHOUT_EFFECT", "RunRequest", "read_request"]

WITHOUT_EFFECT = frozenset(
    {"out", "workers", "quiet", "verbose", "as_json", "sheet", "overwrite", "retry_failed", "page", "config"}
)
"""Options that change no result, so that they may differ when a run is continued. All others may not."""

_SETTINGS = ("layer", "merge", "batch_size", "placement", "engine", "reading")
"""Settings of the explainer that are not options of a method."""


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
        options: All options by name.
    """

    methods: list[str]
    targets: list[Any]
    settings: Mapping[str, Any]
    preprocessing: StatedPreprocessing
    output: OutputSettings
    command: Mapping[str, Any]
    options: Mapping[str, Any]


def read_request(context: typer.Context, asked: Mapping[str, Any]) -> RunRequest:
    """Return the request in the options of the command. Everything that can be wrong is checked.

    Args:
        context: The call of the command.
        asked: Its options by name, as values of their types.

    Raises:
        CamtoolError: Something is.
    """
    from camtool.runs import job_list
    from camtool.runs.run_folder import description, replaced_run

    cluster_options.check_options(context)
    output = _read_output(context, asked)
    photo_options.check_no_model_names(asked["paths"])
    # Before the output folder, whose run a mistyped path does not fit either.
    job_list.check_existence(asked["paths"])
    preprocessing = preprocessing_options.parse_preprocessing(
        *(asked[name] for name in ("transform", "size", "mean", "std", "channels"))
    )
    hidden = WITHOUT_EFFECT | (cluster_options.WITHOUT_EFFECT if asked["cluster"] else cluster_options.ALL)
    command = {name: value for name, value in context.params.items() if name not in hidden}
    if not asked["cluster"]:
        photo_options.check_no_other_command(asked["paths"])
        if not asked["overwrite"] and not replaced_run.is_interrupted(asked["out"]):
            description.check_unchanged(asked["out"], description.describe_command(command))
    settings: dict[str, Any] = {
        "layer": asked["layer"],
        "merge": asked["merge"],
        "batch_size": asked["batch_size"],
        "placement": asked["placement"].value,
        "engine": asked["engine"].value,
        "reading": reading_options.parse_reading_options(
            **{name: asked[name] for name in ("bands", "window", "percentiles", "slice", "axis", "frame", "max_pixels")}
        ),
    }
    settings |= map_options.parse_method_options(asked["option"], _SETTINGS)
    return RunRequest(
        methods=map_options.find_methods(asked["method"], settings, _SETTINGS),
        targets=map_options.parse_targets(asked["target"]),
        settings=settings,
        preprocessing=preprocessing,
        output=output,
        command=command,
        options=asked,
    )


def _read_output(context: typer.Context, asked: Mapping[str, Any]) -> OutputSettings:
    """Return what is written, and check that what options ask for is written at all."""
    as_arrays = asked["format"] is output_options.Format.npz
    save = "npz" if as_arrays and not cluster_options.is_given(context, "save") else asked["save"]
    kinds = output_options.parse_kinds(save, asked["format"])
    if asked["cluster"]:
        cluster_options.check_kinds(
            kinds, caption=asked["caption"], has_pictures=cluster_options.is_given(context, "save")
        )
    output_options.check_overlays_are_saved(
        kinds, caption=asked["caption"], sheet=asked["sheet"], legend=asked["legend"]
    )
    if asked["only_wrong"] and asked["labels_csv"] is None:
        raise CamtoolError("--only-wrong needs the true classes; give them with --labels-csv FILE.")
    return OutputSettings(
        folder=asked["out"],
        kinds=kinds,
        format="png" if as_arrays else asked["format"].value,
        alpha=asked["alpha"],
        colormap=output_options.choose_colormap(asked["colormap"]),
        enlarge=asked["enlarge"],
        max_side=asked["max_side"],
        has_captions=asked["caption"],
        only_wrong=asked["only_wrong"],
        regions=output_options.parse_regions(asked["region"], asked["max_side"]),
        has_legend=asked["legend"],
    )
