"""The installed command ``camtool``: its commands."""

from __future__ import annotations

import re
import sys
import warnings
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from camtool.arguments.message_parts import suggest_names
from camtool.cli import (
    demo_and_doctor_commands,
    evaluation_commands,
    exit_codes,
    export_command,
    list_and_figure_commands,
    repair_command,
    report_and_replay_commands,
    run_and_cluster_commands,
    serve_commands,
    slide_and_video_commands,
    terminal,
)
from camtool.cli.options import photo_options
from camtool.errors import CamtoolError

# Options of the command without a subcommand.
_OWN_OPTIONS = ("--help", "-h", "--version", "--install-completion", "--show-completion")


class _RunByDefault(TyperGroup):
    """Command group in which ``camtool PHOTOS`` is short for ``camtool run PHOTOS``, and so for videos and slides."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert ``run``, ``video`` or ``slide`` before arguments that do not start with a command."""
        if args and args[0] not in self.commands and args[0] not in _OWN_OPTIONS:
            args = [photo_options.choose_command(args[0]), *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a choice that does not exist is answered with similar ones."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # "'x' is not one of 'a', 'b'." gets the similar choices.
            choice = re.fullmatch(r"(?:Value error, )?('(.*)' is not one of ((?:'[^']*'(?:, )?)+)\.)", error.message)
            if choice is not None:
                error.message = choice[1] + suggest_names(choice[2], re.findall("'([^']*)'", choice[3]))
            raise


app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    rich_markup_mode="rich",
    # A traceback of an error of camtool's own is more useful in a bug report than rich's drawing of it.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
# The help lists the commands in this order.
app.command("run")(run_and_cluster_commands.run)
app.command("cluster")(run_and_cluster_commands.run_on_cluster)
app.command("report")(report_and_replay_commands.report)
app.command("replay")(report_and_replay_commands.replay)
app.command("video")(slide_and_video_commands.explain_videos)
app.command("slide")(slide_and_video_commands.explain_slides)
app.command("app")(serve_commands.serve_app)
app.command("mcp")(serve_commands.serve_tools)
app.command("methods")(list_and_figure_commands.list_methods)
app.command("layers")(list_and_figure_commands.list_layers)
app.command("features")(list_and_figure_commands.draw_features)
app.command("kernels")(list_and_figure_commands.draw_kernels)
app.command("evaluate")(evaluation_commands.evaluate_methods)
app.command("audit")(evaluation_commands.audit_model)
app.command("repair")(repair_command.repair_model)
app.command("diff")(evaluation_commands.compare_models)
app.command("export")(export_command.export_model)
app.command("demo")(demo_and_doctor_commands.show_demo)
app.command("doctor")(demo_and_doctor_commands.check_installation)


def main() -> None:
    """Run :data:`app`, and turn an error into a message and an exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        # The name of a photo may hold bytes that are not valid text.
        sys.stdout.reconfigure(errors="backslashreplace")
    # PIL warns of damaged metadata, without the name of the file, and of large images, for which camtool has limits.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        app()
    except CamtoolError as error:
        exit_codes.exit_with_error(str(error))
    except OSError as error:
        exit_codes.exit_with_error(f"{error.filename or 'a file'}: {error.strerror or error}")


def _print_version(is_asked: bool) -> None:
    """Print the version and exit, if ``--version`` is given."""
    if is_asked:
        from camtool import __version__

        terminal.out.print(f"camtool {__version__}")
        raise typer.Exit


_VERSION = Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")


@app.callback()
def _camtool(version: Annotated[bool, _VERSION] = False) -> None:
    """See, and check, what an image model looks at.

    [bold]camtool PHOTOS[/] is short for [bold]camtool run PHOTOS[/]. See [bold]camtool run --help[/] for its options.
    """
