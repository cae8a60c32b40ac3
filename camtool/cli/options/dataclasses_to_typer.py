"""Options of commands as dataclasses, and where their values come from besides: a file of options, a tab in the shell.

Help shows one heading for each concern; the rare ones are folded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer import Option
from typer.models import OptionInfo, ParameterInfo

from camtool.arguments.label_files import read_labels
from camtool.arguments.message_parts import suggest_names
from camtool.arguments.regular_files import read_regular
from camtool.errors import CamtoolError

_TARGETS = ("top1", "top3", "top5", "detections")


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that a text begins; of several with commas between them it begins the last one."""
    from camtool.methods import METHODS

    before, comma, start = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in METHODS if name.startswith(start)]


def complete_target(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the targets that a text begins: forms that all models have, and the classes that the command names."""
    names = [name for name in (*_TARGETS, *_list_classes(ctx.params)) if name.startswith(incomplete)]
    if os.environ.get("_CAMTOOL_COMPLETE") != "complete_bash":
        return names
    # Bash inserts names as they come; other shells quote them themselves.
    return [re.sub(r"([^\w@%+=:,./-])", r"\\\1", name) for name in names]


def _list_classes(params: dict[str, Any]) -> Sequence[str]:
    """Return the classes of ``--labels``, or those of published weights; none for other models."""
    model, labels = params.get("model") or "", params.get("labels")
    if labels is not None:
        try:
            return read_labels(labels)
        except CamtoolError:  # the command says it when it runs
            return ()
    if params.get("weights") is not None:
        return ()
    if model.startswith("demo"):
        from camtool.demo.shapes import LABELS

        return LABELS
    from camtool.models.sources.torchvision import read_published_labels

    return read_published_labels(model.removeprefix("torchvision:"))


# Name of an option, in any command, to the function that completes its value. Layers are known of no model.
COMPLETIONS: dict[str, Callable[..., list[str]]] = {"method": complete_method, "target": complete_target}


_MAX_BYTES = 2**20


def read_config(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Return the entries of a YAML file by name, with ``-`` instead of ``_``; those without a value are left out.

    Args:
        path: The file. Paths in it are relative to the working directory, as on the command line.
        names: The names that exist, e.g. ``"batch-size"``.

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
        if name not in names:
            raise CamtoolError(
                f"--config {path}: there is no option {name!r}.{suggest_names(name, names)} The names are those of the "
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
    texts = [_to_text(name, entry) for entry in (value if isinstance(value, list) else [value])]
    return texts if is_list else ",".join(texts)


def _to_text(name: str, entry: Any) -> str:
    if isinstance(entry, bool):
        raise CamtoolError(f"--config: {name} has the value {entry}; write a word such as 'no' in quotes.")
    if not isinstance(entry, str | int | float):
        raise CamtoolError(f"--config: {name} takes a value or a list of values, got {type(entry).__name__}.")
    return str(entry)


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


_HELP = "YAML file with options by their names, e.g. 'batch-size: 16'. Those of the command line count more."
Config = Annotated[Path | None, Option("--config", metavar="FILE", callback=_apply_config, is_eager=True, help=_HELP)]


# Headings of the options that ``--help`` leaves out and ``--help-all`` shows.
_FOLDED = ("Labels", "Preprocessing", "Scientific formats")

_LIST_OF_ARGUMENTS = re.compile(r"\n\n(?:Args|Attributes):\n")


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its parameters that are dataclasses.

    Fields are annotated as parameters of typer are, and may be dataclasses themselves. The class may have a ``panel``:
    the heading of its options in the help. The help of an option that gives none is its line in the docstring, below
    ``Args:`` of the command or ``Attributes:`` of the class.
    """
    hints = get_type_hints(command, include_extras=True)
    helps = _read_helps(command)
    parameters = [
        option
        for name, parameter in signature(command).parameters.items()
        for option in _iterate_options(name, hints[name], parameter.default, None, helps)
    ]

    @wraps(command)
    def call(**values: Any) -> None:
        command(**{name: _collect(name, hint, values) for name, hint in hints.items() if name != "return"})

    folded = _list_folded(parameters)
    if folded:
        text = f"Show all options, also those of: {', '.join(folded)}."
        info = Option("--help-all", is_eager=True, expose_value=False, callback=_show_all, help=text)
        parameters += _iterate_options("help_all", Annotated[bool, info], False, None, {})
    call.__doc__ = _LIST_OF_ARGUMENTS.split(cleandoc(command.__doc__ or ""))[0]
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in parameters}
    return call


def _list_folded(parameters: Sequence[Parameter]) -> list[str]:
    """Return the headings whose options the help leaves out."""
    infos = [option.annotation.__metadata__[0] for option in parameters if hasattr(option.annotation, "__metadata__")]
    return [panel for panel in _FOLDED if any(info.hidden and info.rich_help_panel == panel for info in infos)]


def _read_helps(documented: Any) -> dict[str, str]:
    """Return the description of each argument of a command, or of each attribute of a class and its base classes."""
    helps = {}
    for described in reversed(getattr(documented, "__mro__", [documented])):
        _, *descriptions = _LIST_OF_ARGUMENTS.split(cleandoc(described.__doc__ or ""))
        for text in descriptions:
            for name, description in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE):
                helps[name] = " ".join(description.split())
    return helps


def _iterate_options(
    name: str, hint: Any, default: Any, panel: str | None, helps: Mapping[str, str]
) -> Iterator[Parameter]:
    """Yield the parameter of this type, or one for each field of a dataclass."""
    if is_dataclass(hint):
        hints, helps = get_type_hints(hint, include_extras=True), _read_helps(hint)
        for field in fields(hint):
            value = field.default if field.default_factory is MISSING else field.default_factory()
            value = Parameter.empty if value is MISSING else value
            yield from _iterate_options(field.name, hints[field.name], value, getattr(hint, "panel", None), helps)
        return
    if name in helps and not hasattr(hint, "__metadata__"):
        hint = Annotated[hint, Option()]
    metadata = getattr(hint, "__metadata__", ())
    if metadata and isinstance(metadata[0], ParameterInfo):
        hint = Annotated[hint.__origin__, _complete_info(name, metadata[0], panel, helps)]
    yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _complete_info(name: str, given: ParameterInfo, panel: str | None, helps: Mapping[str, str]) -> ParameterInfo:
    """Return what a parameter says of itself with its help, its panel and its completion."""
    info = copy(given)
    info.help = info.help or helps.get(name)
    if isinstance(info, OptionInfo):
        info.rich_help_panel = info.rich_help_panel or panel
        info.hidden = info.rich_help_panel in _FOLDED
        info.autocompletion = COMPLETIONS.get(name)
    return info


def _collect(name: str, hint: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of a parameter: a dataclass of the values of its options, or the value itself."""
    if not is_dataclass(hint):
        return values[name]
    hints = get_type_hints(hint, include_extras=True)
    made: Any = hint
    return made(**{field.name: _collect(field.name, hints[field.name], values) for field in fields(hint)})


def _show_all(context: typer.Context, is_asked: bool) -> None:
    if is_asked:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit
