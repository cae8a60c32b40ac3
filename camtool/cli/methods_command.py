"""Command ``camtool methods``: list the methods, or describe one of them."""

from __future__ import annotations

from typing import Annotated

import typer

from camtool.cli import terminal
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import JsonOption


@takes_options
def list_methods(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Method or wrapper to describe in full.", show_default=False)
    ] = None,
    printed: JsonOption,
) -> None:
    """List the methods by family, or describe one of them in full."""
    # Not at the top, so that the help is shown without loading torch.
    from camtool import methods
    from camtool.methods import method_tables

    if printed.as_json:
        chosen = methods.METHODS.values() if name is None else [methods.find_method(name)]
        names = ("name", "summary", "cost", "paper")
        terminal.print_json(
            [{each: getattr(method, each) for each in names} | {"needs": sorted(method.needs)} for method in chosen]
        )
        return
    width = terminal.get_screen_width()
    lines = method_tables.format_method_list(width) if name is None else method_tables.format_method(name, width)
    terminal.print_styled(lines)
