"""Command ``camtool methods``: list the methods, or describe one of them."""

from __future__ import annotations

from typing import Annotated

import typer

from camtool.cli import terminal

__all__ = ["list_methods"]


def list_methods(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Method or wrapper to describe in full.", show_default=False)
    ] = None,
) -> None:
    """List the methods by family, or describe one of them in full."""
    # Not at the top, so that the help is shown without loading torch.
    from camtool import method_tables

    width = terminal.get_screen_width()
    lines = method_tables.format_method_list(width) if name is None else method_tables.format_method(name, width)
    terminal.print_styled(lines)
