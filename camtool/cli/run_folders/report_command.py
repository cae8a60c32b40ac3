"""Command ``camtool report``: write the page of a run, and the same at the end of ``camtool run``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camtool.arguments.messages import format_count
from camtool.cli import terminal
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import PrintOptions
from camtool.cli.progress.run_progress import build_countdown
from camtool.cli.terminal import escape, print_line
from camtool.errors import CamtoolError

if TYPE_CHECKING:
    from camtool.evaluation.bundle import WrittenBundle
    from camtool.runs.report import WrittenReport


@takes_options
def report(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    photos: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", show_default="where the run found them", exists=True, file_okay=False),
    ] = None,
    copy_photos: Annotated[bool, typer.Option("--copy-photos")] = False,
    bundle: Annotated[Path | None, typer.Option(metavar="FILE.zip", show_default=False)] = None,
    printed: PrintOptions,
) -> None:
    """Write index.html in the folder of a run: a page with all explanations, to open in a browser.

    Args:
        run: Output folder of a run, or Parquet shards of a cluster run.
        photos: Folder that the photos have been moved to.
        copy_photos: Put reduced copies of the photos beside the page, to give it to others.
        bundle: Write hashes, settings, measurements and results of the run as supporting evidence, too.
    """
    if bundle is not None and run.exists():  # the page takes long, so it is not written first
        from camtool.evaluation.bundle import check_bundle

        check_bundle(run, bundle)
    written = _write(run, photos=photos, copy_photos=copy_photos, quiet=printed.hides_progress)
    packed = None if bundle is None else _pack(run, bundle, is_quiet=printed.hides_progress)
    if printed.as_json:
        terminal.print_json(
            {**asdict(written), "path": str(written.path)}
            | ({} if packed is None else {"bundle": {**asdict(packed), "path": str(packed.path)}})
        )
    elif not printed.quiet:
        failures = f" and {format_count(written.failures, 'failure')}" if written.failures else ""
        print_line(
            f"[bold green]{format_count(written.explanations, 'explanation')}[/]{failures} are in "
            f"[bold]{escape(str(written.path))}[/]"
        )
        for notice in written.notices:
            print_line(f"[yellow]{escape(notice)}[/]")
        if packed is not None:
            print_line(f"The evidence is in [bold]{escape(str(packed.path))}[/], SHA-256 {packed.sha256}")


def write_after_run(out: Path, *, is_stopped: bool, quiet: bool) -> None:
    """Write the page of a run that ended. If that fails, the run's results are not affected: print why.

    Args:
        out: The output folder.
        is_stopped: The user stopped the run, and waits for its end.
        quiet: Print errors only.
    """
    try:
        written = _write(out, is_quick=is_stopped, quiet=quiet)
    except (CamtoolError, OSError) as error:
        terminal.err.print(f"[yellow]There is no report:[/] {escape(str(error))}", soft_wrap=True)
        return
    if not quiet:
        what = "them all" if written.explanations or not written.failures else "why"
        print_line(f"Open [bold]{escape(str(written.path))}[/] to see {what}.")


def _pack(run: Path, bundle: Path, *, is_quiet: bool) -> WrittenBundle:
    with terminal.show_activity("Writing the bundle", is_quiet=is_quiet):
        from camtool.evaluation.bundle import write_bundle

        return write_bundle(run, bundle)


def _write(
    run: Path, *, photos: Path | None = None, copy_photos: bool = False, is_quick: bool = False, quiet: bool
) -> WrittenReport:
    from camtool.runs.report import write_report

    with build_countdown(is_quiet=quiet) as bar:
        task = bar.add_task("Writing the report")
        return write_report(
            run,
            photos=photos,
            copy_photos=copy_photos,
            is_quick=is_quick,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
