"""Options of commands as dataclasses, one for each concern, and help in which the rare ones are folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import OptionInfo

from camtool.cli.options.completions import COMPLETIONS

_FOLDED = ("Labels", "Preprocessing", "Scientific formats")
"""Headings of the options that ``--help`` leaves out and ``--help-all`` shows."""


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its parameters that are dataclasses.

    Fields are annotated as parameters of typer are, and may be dataclasses themselves. The class may have a ``panel``:
    the heading of its options in the help.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        option
        for name, parameter in signature(command).parameters.items()
        for option in _iterate_options(name, hints[name], parameter.default, None)
    ]

    @wraps(command)
    def call(**values: Any) -> None:
        command(**{name: _collect(name, hint, values) for name, hint in hints.items() if name != "return"})

    infos = [option.annotation.__metadata__[0] for option in parameters if hasattr(option.annotation, "__metadata__")]
    folded = [panel for panel in _FOLDED if any(info.hidden and info.rich_help_panel == panel for info in infos)]
    if folded:
        text = f"Show all options, also those of: {', '.join(folded)}."
        info = typer.Option("--help-all", is_eager=True, expose_value=False, callback=_show_all, help=text)
        parameters += _iterate_options("help_all", Annotated[bool, info], False, None)
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in parameters}
    return call


def _iterate_options(name: str, hint: Any, default: Any, panel: str | None) -> Iterator[Parameter]:
    """Yield the parameter of this type, or one for each field of a dataclass."""
    if is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        for field in fields(hint):
            value = field.default if field.default_factory is MISSING else field.default_factory()
            value = Parameter.empty if value is MISSING else value
            yield from _iterate_options(field.name, hints[field.name], value, getattr(hint, "panel", None))
        return
    metadata = getattr(hint, "__metadata__", ())
    if metadata and isinstance(metadata[0], OptionInfo):
        info = copy(metadata[0])
        info.rich_help_panel = info.rich_help_panel or panel
        info.hidden = info.rich_help_panel in _FOLDED
        info.autocompletion = COMPLETIONS.get(name)
        hint = Annotated[hint.__origin__, info]
    yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


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
