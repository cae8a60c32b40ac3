"""Command ``camtool diff``: what does a retrained, pruned or quantized model look at differently?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camtool.arguments.messages import format_count
from camtool.cli import audit_command, terminal
from camtool.cli.options import map_options, model_options, photo_options, truth_options
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import Out, Overwrite, PrintOptions
from camtool.cli.progress.run_progress import FileProgress
from camtool.errors import CamtoolError

if TYPE_CHECKING:
    from camtool.models import Loaded

_WEIGHTS = (".safetensors", ".pt", ".pth")

_MODEL_HELP = "Name of a model, e.g. demo or demo-cheat; NAME=WEIGHTS; or with --model a file of weights."


@takes_options
def compare_models(
    *,
    old: Annotated[str, typer.Argument(metavar="OLD", help=_MODEL_HELP)],
    new: Annotated[str, typer.Argument(metavar="NEW")],
    folder: Annotated[str, typer.Argument(metavar="FOLDER")],
    recursive: photo_options.Recursive = False,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=model_options.MODEL_HELP, rich_help_panel="Model", show_default="OLD or NEW"),
    ] = None,
    device: Annotated[model_options.Device, typer.Option(rich_help_panel="Model")] = "auto",
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    truth: truth_options.Classes = None,
    fail_on: Annotated[list[str] | None, typer.Option(metavar="EVENT")] = None,
    passes: audit_command.Passes = 20_000,
    level: audit_command.Level = 0.02,
    controls: Annotated[int, typer.Option(metavar="N", min=1)] = 19,
    pictures: Annotated[int, typer.Option(metavar="N", min=0)] = 60,
    method: Annotated[str, typer.Option(metavar="NAME")] = "faithcam",
    limit: photo_options.Limit = None,
    out: Out = Path("diff"),
    overwrite: Overwrite = False,
    batch_size: model_options.BatchSize = 32,
    seed: photo_options.Seed = 0,
    printed: PrintOptions,
) -> None:
    """Compare what two models look at on a folder of photos: an old one, and a retrained, pruned or quantized one.

    [bold]camtool diff old.pt new.pt photos/ --model resnet18[/] compares two files of weights.

    It goes on where it stopped if it is called again with the same folder for its results.

    Args:
        new: The same for the new model.
        folder: Folder of photos.
        device: Device the models run on.
        fail_on: Exit with code 1 if this happened: 'moved' for a finding, 'answers' for an answer that changed.
        controls: Control regions in each photo.
        pictures: Photos on the page, the most changed ones.
        method: Method of the maps; for quantized models e.g. reciprocam.
    """
    from camtool.arguments.checks import check_choice
    from camtool.evaluation.audit.state import replace_state
    from camtool.evaluation.diff import diff

    events = map_options.split_names(fail_on or [])
    for event in events:
        check_choice("--fail-on", event, ("moved", "answers"), error=CamtoolError)
    # Which folders are there decides about the classes, so the first photos are taken after that.
    first = None if truth == truth_options.IMAGE_FOLDER else limit
    plan = photo_options.plan_folder(folder, out, recursive=recursive or truth is not None, limit=first)
    before, after = (
        _load(name, value, model, device, naming, preparing, is_quiet=printed.hides_progress)
        for name, value in (("OLD", old), ("NEW", new))
    )
    classes, before = truth_options.read_classes(truth, plan, before)
    if after.labels is None:
        after = replace(after, labels=before.labels)
    photos = [Path(job.source) for job in plan.jobs][:limit]
    bar = FileProgress(format_count(len(photos), "photo"), is_quiet=printed.hides_progress)
    with audit_command.end_at_interrupt(), replace_state(out, is_asked=overwrite), bar:
        result = diff(
            before,
            after,
            photos,
            classes and classes[:limit],
            passes=passes,
            level=level,
            controls=controls,
            method=method,
            pictures=pictures,
            out=out,
            batch_size=batch_size,
            seed=seed,
        )
    facts = "; ".join(f"{name.lower()}: {text}" for name, text in result.list_facts())
    lines = [facts, "Both maps of the most changed photos"]
    audit_command.write_result(result, out, printed, "the models look at the same", lines)
    unread = len(photos) - len(result.images)
    if unread:
        terminal.print_notice(f"{format_count(unread, 'photo')} could not be read, see {out / 'diff.md'}.")
    happened = {"moved": result.findings, "answers": result.other_answers}
    raise typer.Exit(1 if unread or any(happened[event] for event in events) else 0)


def _load(
    argument: str,
    value: str,
    model: str | None,
    device: model_options.Device,
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    *,
    is_quiet: bool,
) -> Loaded:
    """Return a model by its name, with a file of weights if one is given.

    Raises:
        CamtoolError: It is a file of weights without an architecture, or it cannot be loaded.
    """
    name, is_pair, file = value.partition("=") if value.endswith(_WEIGHTS) else (value, "", "")
    if is_pair or not value.endswith(_WEIGHTS):
        options = model_options.ModelOptions(name, file or None, device)
    elif model is not None:
        options = model_options.ModelOptions(model, value, device)
    else:
        raise CamtoolError(
            f"{argument} {value} is a file of weights; name its architecture: --model resnet18, or resnet18={value}."
        )
    loaded = options.load(naming.labels, preparing.parse(), is_quiet=is_quiet)
    return replace(loaded, name=Path(file or value).name if value.endswith(_WEIGHTS) else value)
