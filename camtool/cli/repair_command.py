"""Command ``camtool repair``: from the finding of an audit to a mended model, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from camtool.arguments.message_parts import format_count
from camtool.cli import terminal
from camtool.cli.evaluation_commands import choose_photos, read_columns, write_result
from camtool.cli.options import model_options, photo_options, truth_options
from camtool.cli.options.dataclasses_to_typer import takes_options
from camtool.cli.options.result_options import Out, PrintOptions
from camtool.cli.progress.run_progress import FileProgress

_NOTHING = "The audit has no suspicious finding, so the model is left alone."


@takes_options
def repair_model(
    *,
    folder: Annotated[str, Argument(metavar="FOLDER")],
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    truth: truth_options.Classes = None,
    audit: Annotated[Path, Option(metavar="FOLDER", exists=True)] = Path("audit"),
    layers: Annotated[Literal["last", "norms"], Option(metavar="NAME")] = "last",
    metadata: Annotated[Path | None, model_options.build_file_option()] = None,
    recursive: photo_options.Recursive = False,
    limit: Annotated[int | None, Option(metavar="N", min=1)] = None,
    out: Out = Path("mended"),
    printed: PrintOptions,
) -> None:
    """Repair a classifier of what an audit found: fit its last layer again, on photos without the cue and with it.

    It learns from one half of the audit's photos and reports on the other. Findings that you called a shortcut are
    repaired, or else the suspicious ones. Exit code 1 if it is no repair.

    Args:
        folder: Folder of photos, that of the audit.
        audit: Folder of the audit, with your verdicts.
        layers: 'last' for the last layer alone; 'norms' to train the norm layers as well.
        metadata: The CSV file of the audit, if it had a column of groups.
        limit: The same number as that of the audit.
    """
    from camtool.evaluation.audit import read_audit
    from camtool.evaluation.repair.running import list_asked, repair

    audited = read_audit(audit)
    if not list_asked(audited):
        if printed.as_json:
            terminal.print_json({"cues": [], "reasons": [], "is_better": None})
        elif not printed.quiet:
            terminal.print_line(_NOTHING)
        raise typer.Exit
    plan = photo_options.plan_folder(folder, out, recursive=recursive or truth is not None, limit=None)
    columns = read_columns(metadata, truth, plan)
    loaded = loading.load(naming.labels, preparing.parse(), is_quiet=printed.hides_progress)
    chosen = choose_photos(plan, loaded, truth, columns, limit)
    with FileProgress(format_count(len(chosen.photos), "photo"), is_quiet=printed.hides_progress):
        result = repair(chosen.loaded, chosen.photos, chosen.labels, audited, chosen.columns, layers=layers, out=out)
    accuracies = (f"{name} ({format_count(rate.images, 'image')}): {rate}" for name, rate in result.accuracies.items())
    lines = map(terminal.escape, (*(cue.sentence for cue in result.cues), *accuracies, result.worst))
    shown = [*lines, f"[bold]{terminal.escape(result.verdict)}[/]"]
    write_result(result, out, printed, shown, "Weights, numbers and answers that changed")
    raise typer.Exit(int(not result.is_better))
