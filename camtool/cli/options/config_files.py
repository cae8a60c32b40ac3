"""Option ``--config``: a YAML file with options, under the names that they have on the command line."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from camtool.arguments.messages import suggest_names
from camtool.arguments.regular_files import read_regular
from camtool.errors import CamtoolError

_MAX_BYTES = 2**20


def read_config(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Return the entries of a YAML file by name, with ``-`` instead of ``_``; those without a value are left out.

    Args:
        path: The file. Paths in it are relative to the working directory, as on the command line.
        known: The names that exist, e.g. ``"batch-size"``.

    Raises:
        CamtoolError: The file cannot be read, is no mapping, has a name twice, or one that does not exist.
    """
    import yaml

    from camtool.arguments.checks import check_plain_yaml

    try:
        text = read_regular(path, _MAX_BYTES).decode("utf-8-sig")
        check_plain_yaml(text)
        content = yaml.safe_load(text)
        _check_names_once(path, yaml.compose(text, Loader=yaml.SafeLoader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CamtoolError(f"--config {path} cannot be read: {reason}.") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise CamtoolError(f"--config {path} holds a {type(content).__name__}; write lines such as 'model: demo'.")
    entries = {str(name).replace("_", "-"): value for name, value in content.items()}
    for name in entries:
        if name not in known:
            raise CamtoolError(
                f"--config {path}: there is no option {name!r}.{suggest_names(name, known)} The names are those of the "
                "command line, without the dashes in front."
            )
    return {name: value for name, value in entries.items() if value is not None}


def _convert_value(name: str, value: Any, *, is_flag: bool, is_list: bool) -> Any:
    """Return a value of YAML as the texts that the command line would have got.

    Args:
        name: The name, for messages.
        value: A scalar, a list of scalars, or for ``option`` a mapping.
        is_flag: The option takes no value.
        is_list: The option may be repeated.

    Raises:
        CamtoolError: The value is of another kind.
    """
    if is_flag:
        if not isinstance(value, bool):
            raise CamtoolError(f"--config: {name} is true or false, got {value!r}.")
        return value
    if isinstance(value, dict) and name == "option":
        value = [f"{key}={json.dumps(entry, default=str)}" for key, entry in value.items()]
    values = value if isinstance(value, list) else [value]
    for entry in values:
        if isinstance(entry, bool):
            raise CamtoolError(f"--config: {name} has the value {entry}; write a word such as 'no' in quotes.")
        if not isinstance(entry, str | int | float):
            raise CamtoolError(f"--config: {name} takes a value or a list of values, got {type(entry).__name__}.")
    texts = [str(entry) for entry in values]
    return texts if is_list else ",".join(texts)


def _check_names_once(path: Path, node: Any) -> None:
    """Check that no name stands twice: YAML would take the last one silently."""
    pairs = node.value if type(node).__name__ == "MappingNode" else []
    names = [key.value for key, _ in pairs if isinstance(key.value, str)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CamtoolError(f"--config {path}: {twice!r} stands twice; write it once, several values as a list.")


def _apply_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the entries of a YAML file the defaults of the command's options; those of the command line count more.

    Raises:
        CamtoolError: The file cannot be read, or has an entry that is no option.
    """
    if path is None:
        return None
    parameters = {
        name.lstrip("-"): parameter
        for parameter in context.command.params
        for name in parameter.opts
        # "--help" has no value.
        if getattr(parameter, "expose_value", True) and parameter.name != "config" and name[:2].count("-") != 1
    }
    entries = read_config(path, parameters)
    context.default_map = {
        str(parameters[name].name): _convert_value(
            name,
            value,
            is_flag=bool(getattr(parameters[name], "is_flag", False)),
            is_list=parameters[name].nargs == -1 or bool(getattr(parameters[name], "multiple", False)),
        )
        for name, value in entries.items()
    }
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=_apply_config,
        is_eager=True,
        help="YAML file with options by their names, e.g. 'batch-size: 16'. Those of the command line count more.",
    ),
]
