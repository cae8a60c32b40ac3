"""Commands on the folder of a run: ``camtool report`` writes its page, ``camtool replay`` makes its results again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from camtool.arguments.message_parts import format_count
from camtool.cli.options import run_options
from camtool.cli.options.dataclasses_to_typer import takes_options
from camtool.cli.options.result_options import PrintOptions
from camtool.cli.progress.run_progress import build_countdown
from camtool.cli.terminal import err, escape, print_json, print_line, show_activity
from camtool.errors import CamtoolError

if TYPE_CHECKING:
    from camtool.evaluation.bundle import WrittenBundle
    from camtool.runs.report import WrittenReport
    from camtool.runs.run_folder.replay import Replayer


_PHOTOS = Option(metavar="FOLDER", show_default="where the run found them", exists=True, file_okay=False)


@takes_options
def report(
    *,
    run: Annotated[Path, Argument(metavar="RUN")],
    photos: Annotated[Path | None, _PHOTOS] = None,
    copy_photos: Annotated[bool, Option("--copy-photos")] = False,
    bundle: Annotated[Path | None, Option(metavar="FILE.zip", show_default=False)] = None,
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
        print_json(
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
        err.print(f"[yellow]There is no report:[/] {escape(str(error))}", soft_wrap=True)
        return
    if not quiet:
        what = "them all" if written.explanations or not written.failures else "why"
        print_line(f"Open [bold]{escape(str(written.path))}[/] to see {what}.")


def _pack(run: Path, bundle: Path, *, is_quiet: bool) -> WrittenBundle:
    with show_activity("Writing the bundle", is_quiet=is_quiet):
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


@takes_options
def replay(
    *,
    context: typer.Context,
    run: Annotated[Path, Argument(metavar="RUN", exists=True)],
    image: Annotated[str | None, Argument(metavar="IMAGE", show_default="all")] = None,
    allow_code: Annotated[bool, Option("--allow-code")] = False,
    model: Annotated[str | None, Option(metavar="NAME")] = None,
    transform: Annotated[str | None, Option(metavar="NAME")] = None,
    printed: PrintOptions,
) -> None:
    """Make the explanations of a run again, and tell whether they are bit-identical.

    Exit code 1 if one differs. The run folder is not changed.

    Args:
        run: Folder that camtool run wrote.
        image: Photo of the run.
        allow_code: Run the code, and load the models and URLs, that the run names.
        model: The model of the run, if you trust it: code, or one of a hub.
        transform: The transform of the run, if it is code that you trust.
    """
    from camtool.runs.run_folder.replay import Replayer

    replayer = Replayer(run, image)
    _check_trusted(replayer, image, {"model": model, "transform": transform}, allow_code=allow_code)
    with TemporaryDirectory(prefix="camtool-replay-") as folder:
        quiet = ["--quiet"] if printed.hides_progress else []
        _repeat_run(context, replayer, [f"--out={folder}", *quiet])
    if printed.as_json:
        print_json(_build_json(replayer))
    elif not printed.quiet or not replayer.is_identical:
        _print_result(replayer)
    raise typer.Exit(0 if replayer.is_identical else 1)


def _check_trusted(replayer: Replayer, image: str | None, repeated: dict[str, str | None], *, allow_code: bool) -> None:
    """Check that the user has named all code, models and URLs that the replay would run and load, or allows them.

    Raises:
        CamtoolError: The user has not, or names another model than the run.
    """
    command = replayer.description["command"]
    for name, value in repeated.items():
        if value is not None and value != command.get(name):
            raise CamtoolError(f"--{name} {value}: the run used {command.get(name) or 'none'}; repeat that, or none.")
    named = {image, *(f"--{name} {value}" for name, value in repeated.items())}
    untrusted = [foreign for foreign in replayer.list_foreign() if foreign not in named]
    if untrusted and not allow_code:
        listed = "\n".join(untrusted)
        raise CamtoolError(
            f"the files of the run name code, models to download or addresses, which somebody else may have chosen:\n"
            f"{listed}\n"
            "If you trust them, repeat --model and --transform, or add --allow-code."
        )


def _repeat_run(context: typer.Context, replayer: Replayer, arguments: list[str]) -> None:
    """Call ``camtool run`` with the options of the run. It hands what it has prepared to the replayer."""
    assert context.parent is not None
    group: Any = context.parent.command
    command = group.get_command(context.parent, "run")
    paths = map(str, replayer.description["command"]["paths"])
    given = [*_build_options(command, replayer.description["command"]), *arguments, "--", *paths]
    # `camtool run` ends with an exit.
    with suppress(typer.Exit), command.make_context("run", given, parent=context.parent, obj=replayer) as child:
        command.invoke(child)


def _build_options(command: Any, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments of the command line that give a command these values.

    Raises:
        CamtoolError: The command has no such option, as the run was made by another version of camtool.
    """
    # The description of a run holds no others. They could name an output folder or a file of further options.
    by_name = {option.name: option for option in command.params if option.name not in run_options.WITHOUT_EFFECT}
    for name, value in values.items():
        if name not in by_name:
            raise CamtoolError(f"this version of camtool has no option --{name.replace('_', '-')}, which the run used.")
        if by_name[name].param_type_name != "argument" and value is not None:
            yield from _write_option(by_name[name], value)


def _write_option(option: Any, value: Any) -> list[str]:
    """Return the arguments of the command line that give an option a value.

    Raises:
        CamtoolError: It takes no such value.
    """
    name = option.opts[0]
    if option.is_flag:
        switches: list[str] = option.opts if value else option.secondary_opts
        return switches[:1]
    if option.multiple:
        return [f"{name}={entry}" for entry in (value if isinstance(value, list) else [value])]
    if isinstance(value, list) and len(value) == option.nargs > 1:
        return [name, *map(str, value)]
    if isinstance(value, (list, dict)):
        raise CamtoolError(f"{name} of the run is damaged: {value}.")
    return [f"{name}={value}"]


def _print_result(replayer: Replayer) -> None:
    differing = [row for row in replayer.explanations if row.differences]
    for row in differing:
        print_line("  ".join(escape(part) for part in (row.image, row.label, row.method) if part))
        for difference in row.differences:
            print_line(f"  [yellow]{escape(difference)}[/]")
    count = format_count(len(replayer.explanations), "explanation")
    if differing:
        print_line(f"[bold red]Not bit-identical:[/] {len(differing):,} of {count}.")
    else:
        print_line(f"[bold green]{count} replayed:[/] numbers and files are bit-identical.")
    if replayer.changes:
        print_line("Changed since the run:")
        for change in replayer.changes:
            print_line(f"  {escape(change)}")


def _build_json(replayer: Replayer) -> dict[str, Any]:
    return {
        "run": str(replayer.folder),
        "identical": replayer.is_identical,
        "changes": replayer.changes,
        "explanations": [{**asdict(row), "identical": not row.differences} for row in replayer.explanations],
    }
