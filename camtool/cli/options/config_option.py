"""Option ``--config``: a YAML file with options by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Config", "apply_config"]


def apply_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the entries of a YAML file the defaults of the command's options; those of the command line count more.

    Raises:
        CamtoolError: The file cannot be read, or has an entry that is no option.
    """
    if path is None:
        return None
    from camtool.cli.options.config_files import convert_value, read_config

    parameters = {
        name.lstrip("-"): parameter
        for parameter in context.command.params
        for name in parameter.opts
        if parameter.name not in ("config", "help") and (name.startswith("--") or not name.startswith("-"))
    }
    found = read_config(path, parameters)
    context.default_map = {
        str(parameters[name].name): convert_value(
            name,
            value,
            is_flag=bool(getattr(parameters[name], "is_flag", False)),
            is_list=parameters[name].nargs == -1 or bool(getattr(parameters[name], "multiple", False)),
        )
        for name, value in found.items()
    }
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=apply_config,
        is_eager=True,
        help="YAML file with options by their names, e.g. 'batch-size: 16'. Those of the command line count more.",
    ),
]
