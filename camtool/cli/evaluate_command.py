"""Command ``camtool evaluate``: compare methods on the user's model and photos, as a leaderboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from camtool.arguments.messages import format_count
from camtool.cli import terminal
from camtool.cli.options import map_options, model_options, photo_options
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import Out, Overwrite, PrintOptions
from camtool.cli.options.photo_options import IMAGE_FOLDER, read_classes
from camtool.cli.progress.run_progress import FileProgress
from camtool.errors import CamtoolError

if TYPE_CHECKING:
    from camtool.evaluation.leaderboard import Evaluation
    from camtool.runs.job_list import Plan


@takes_options
def evaluate_methods(
    *,
    folder: Annotated[str, Argument(metavar="FOLDER")],
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    method: Annotated[list[str] | None, Option("--method", "--methods", metavar="NAME", show_default="fast")] = None,
    layer: Annotated[list[str] | None, Option("--layer", "--layers", metavar="NAME")] = None,
    metric: Annotated[list[str] | None, Option("--metric", "--metrics", metavar="NAME")] = None,
    truth: Annotated[str | None, Option(metavar="TRUTH")] = None,
    recursive: photo_options.Recursive = False,
    limit: photo_options.Limit = None,
    out: Out = Path("leaderboard"),
    overwrite: Overwrite = False,
    batch_size: model_options.BatchSize = 16,
    seed: photo_options.Seed = 0,
    printed: PrintOptions,
) -> None:
    """Compare methods on a model and photos: which maps can be trusted?

    It goes on where it stopped if it is called again with the same folder for its results.

    Args:
        folder: Folder of photos.
        method: Methods; 'fast' or 'all'. Repeat it, or use commas, for several.
        layer: Layers; each method is evaluated at each.
        metric: Metrics; 'all' for each.
        truth: Where the objects are: a folder of masks, a CSV file with the columns image, x0, y0, x1, y1; or
            'imagefolder' if the photos are in folders named by their class.
    """
    from camtool.evaluation.leaderboard import evaluate
    from camtool.evaluation.leaderboard.measurement import replace_checkpoint
    from camtool.evaluation.leaderboard.table import NAMES
    from camtool.figures.saving import load_canvas
    from camtool.rendering.written_files import check_inside, check_replaceable

    check_inside(out, Path("checkpoint.jsonl"))
    check_replaceable(out, NAMES)
    load_canvas()  # raises if matplotlib is missing, before hours of computing
    # Which folders and names are there decides about the truth, so the first photos are taken after that.
    plan = photo_options.plan_folder(folder, out, recursive=recursive or truth == IMAGE_FOLDER, limit=None)
    photos = [Path(job.source) for job in plan.jobs][:limit]
    loaded = loading.load(naming.labels, preparing.parse(), is_quiet=printed.hides_progress)
    classes, loaded = read_classes(truth if truth == IMAGE_FOLDER else None, plan, loaded)
    annotations = None if truth in (None, IMAGE_FOLDER) else _read_objects(truth, plan, photos)
    bar = FileProgress(format_count(len(photos), "photo"), is_quiet=printed.hides_progress)
    with replace_checkpoint(out, "checkpoint.jsonl", is_asked=overwrite), bar:
        table = evaluate(
            loaded,
            [*map(str, photos)],
            _parse_names(method, "fast"),
            map_options.split_names(layer) if layer else None,
            _parse_names(metric, None),
            annotations,
            target_class=classes and classes[:limit],
            batch_size=batch_size,
            seed=seed,
            checkpoint=out / "checkpoint.jsonl",
        )
    table.save(out)
    if printed.as_json:
        terminal.print_json(json.loads(table.to_json()))
    elif not printed.quiet:
        _print_table(table)
        terminal.print_line(f"Intervals, a figure and each photo's numbers: [bold]{terminal.escape(str(out))}[/]")


def _parse_names(texts: list[str] | None, default: str | None) -> Any:
    """Return names, or the one word that stands for several."""
    names = map_options.split_names(texts) if texts else [default]
    return names[0] if names in (["all"], ["fast"], [None]) else names


def _read_objects(truth: str, plan: Plan, photos: list[Path]) -> list[Any]:
    """Return where the objects of the photos are."""
    from camtool.evaluation.annotations import read_boxes, read_masks

    path = Path(truth)
    if path.is_dir():
        return [*read_masks(path, plan, photos)]
    if not path.is_file():
        raise CamtoolError(f"--truth {truth}: there is no such folder or file; give masks/, boxes.csv or imagefolder.")
    return [*read_boxes(path, plan, photos)]


def _print_table(table: Evaluation) -> None:
    from rich import box
    from rich.table import Table

    from camtool.trust.metrics import METRICS

    shown = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    shown.add_column("method", overflow="fold")
    for name in table.metrics:
        arrow = "↑" if METRICS[name].higher_is_better else "↓"
        shown.add_column(name.replace("-", "-\n") + f" {arrow}", justify="right", vertical="bottom")
    shown.add_column("ms per\nimage", justify="right")
    for record in table.to_records():
        numbers = [f"{record[name]:.2f}" for name in table.metrics]
        style = "dim" if record["method"] == "random" else None
        shown.add_row(terminal.escape(record["name"]), *numbers, f"{record['ms']:.1f}", style=style)
    terminal.out.print(shown)
    for name, reason in table.failed.items():
        terminal.err.print(f"[yellow]{name}[/] has no value everywhere: {terminal.escape(reason)}")
    if table.refused:
        names = ", ".join(map(terminal.escape, table.refused))
        terminal.err.print(f"[dim]Cannot explain this model: {names}.[/]")
    for note in table.notes:
        terminal.err.print(f"[yellow]Note:[/] {terminal.escape(note)}")
