"""Options of commands as dataclasses, one for each concern, and help in which the rare ones are folded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from camtool.cli.options.completions import COMPLETIONS

_FOLDED = ("Labels", "Preprocessing", "Scientific formats")
"""Headings of the options that ``--help`` leaves out and ``--help-all`` shows."""

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

    infos = [option.annotation.__metadata__[0] for option in parameters if hasattr(option.annotation, "__metadata__")]
    folded = [panel for panel in _FOLDED if any(info.hidden and info.rich_help_panel == panel for info in infos)]
    if folded:
        text = f"Show all options, also those of: {', '.join(folded)}."
        info = typer.Option("--help-all", is_eager=True, expose_value=False, callback=_show_all, help=text)
        parameters += _iterate_options("help_all", Annotated[bool, info], False, None, {})
    call.__doc__ = _LIST_OF_ARGUMENTS.split(cleandoc(command.__doc__ or ""))[0]
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in parameters}
    return call


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
        hint = Annotated[hint, typer.Option()]
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
