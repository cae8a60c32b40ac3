"""The list of methods, and the details of one of them, as text for a terminal or for a file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from camtool.methods import families
from camtool.methods.registry import COSTS, METHODS, NEEDS, WRAPPERS, Method, Wrapper, find_method, get_default_options
from camtool.rendering.text_tables import StyledLine, align_columns, fit_columns, wrap_paragraph

# Heading → the modules of :mod:`camtool.methods.families` whose methods are listed below it.
_FAMILIES = {
    "Gradients at a layer": ("gradient", "competition"),
    "Gradients averaged over changed images": ("averaged_gradient",),
    "Patterns in the activations": ("activation",),
    "Attention of a transformer": ("attention",),
    "Changes to the activations": ("ablation",),
    "Masks on the image": ("scorecam", "rise", "opticam"),
    "Gradients at the pixels": ("input_gradient",),
    "Words of a vision-language model": ("text_tokens",),
}

# Method to begin with → what for.
_BEGIN = {
    "gradcam": "most models, in one backward pass; the default",
    "faithcam": "more precise heat, from several depths",
    "rivalcam": "several objects or similar classes in one photo",
    "legrad": "the attention of a vision transformer",
    "tam": "the words of a vision-language model",
    "ablationcam": "models without gradients, e.g. quantized ones",
}

# Heading of methods that are registered outside of camtool.
_OWN = "Your own"

_WRAPPERS_HEADING = "Wrappers, written before the name of a method: tta:gradcam"

# Cost → what it means.
_MEANINGS = {
    "a pass": "one backward pass at most",
    "some passes": "a few passes through the model",
    "many tails": "a pass through the layers after the chosen one for each channel",
    "many passes": "hundreds of passes through the model",
}


def format_method_list(width: int | None = None) -> list[StyledLine]:
    """Return the methods by family, the cheapest first, and then the wrappers.

    Args:
        width: The maximum number of characters on a line. None gives one line for each method with all columns, so
            that the lines can be searched.
    """
    return _format_flat() if width is None else _format_by_family(width)


def format_method(name: str, width: int | None = None) -> list[StyledLine]:
    """Return the details of a method or a wrapper: needs, cost, paper, options, and its formula.

    Args:
        name: The name of a method, with or without wrappers, or of a wrapper.
        width: The maximum number of characters on a line; None for no limit.

    Raises:
        MethodError: The name is unknown; the message suggests similar ones.
    """
    if name in WRAPPERS:
        return _format_details(WRAPPERS[name], width)
    parts = find_method(name).name.split(":")
    details = [_format_details(WRAPPERS[part] if part in WRAPPERS else METHODS[part], width) for part in parts]
    return [line for lines in details for line in ([("", "")] if lines is not details[0] else []) + lines]


def format_needs(method: Method) -> str:
    """Return the needs of a method, separated by commas."""
    return ", ".join(need for need in NEEDS if need in method.needs)


# ------------------------------------------------------------------------------------------------------ the list


def _format_by_family(width: int) -> list[StyledLine]:
    by_family = _group_by_family()
    rows = [("method", "what it does", "cost", "needs", "paper")]
    rows += [_build_cells(method) for family in by_family.values() for method in family]
    heading, *entries = fit_columns(rows, width, keep=3, wrapped=1)
    lines: list[StyledLine] = [("Begin with", "bold cyan"), *_format_table([*_BEGIN.items()], width), ("", "")]
    lines += [(line, "bold") for line in heading]
    parts = iter(entries)
    for family, members in by_family.items():
        lines += [("", ""), *((line, "bold cyan") for line in wrap_paragraph(family, width))]
        lines += [(line, "") for _ in members for line in next(parts)]
    lines += [("", ""), ("Cost, besides one forward pass", "bold cyan")]
    lines += _format_table([*_MEANINGS.items()], width)
    hint = "camtool methods NAME shows the needs, the paper, the options and the formula of a method."
    return [*lines, ("", ""), *((line, "") for line in wrap_paragraph(hint, width))]


def _format_flat() -> list[StyledLine]:
    rows = [("method", "what it does", "cost", "needs", "paper", "begin with it for", "family")]
    for family, members in _group_by_family().items():
        # The heading "Wrappers, written before ..." is only "Wrappers" in a cell.
        rows += [(*_build_cells(method), _BEGIN.get(method.name, ""), family.partition(",")[0]) for method in members]
    return [(line, "") for line in align_columns(rows)]


def _group_by_family() -> dict[str, list[Method | Wrapper]]:
    """Return the members of each family that has any, in the order of the list."""
    members_of: dict[str, list[Method | Wrapper]] = {heading: [] for heading in (*_FAMILIES, _OWN)}
    for method in sorted(METHODS.values(), key=lambda method: (COSTS.index(method.cost), method.name)):
        members_of[_find_family(method)].append(method)
    members_of[_WRAPPERS_HEADING] = [*WRAPPERS.values()]
    return {heading: members for heading, members in members_of.items() if members}


def _find_family(method: Method) -> str:
    package, _, module = method.function.__module__.rpartition(".")
    if package != families.__name__:
        return _OWN
    return next((heading for heading, modules in _FAMILIES.items() if module in modules), _OWN)


def _build_cells(method: Method | Wrapper) -> tuple[str, str, str, str, str]:
    if isinstance(method, Wrapper):
        return f"{method.name}:", _read_summary(method), "", "", method.paper
    return method.name, _read_summary(method), method.cost, format_needs(method), method.paper


def _read_summary(method: Method | Wrapper) -> str:
    return (inspect.getdoc(method.function) or "").split("\n", 1)[0].removesuffix(".")


# --------------------------------------------------------------------------------------------------- the details


def _format_details(method: Method | Wrapper, width: int | None) -> list[StyledLine]:
    body, explained = _read_docstring(method.function)
    lines: list[StyledLine] = [
        (line, "bold cyan") for line in wrap_paragraph(f"{method.name}: {_read_summary(method)}", width)
    ]
    lines += _format_table([*_iterate_facts(method)], width)
    options = get_default_options(method.function)
    if options:
        lines += [("", ""), ("Options, each given as --option NAME=VALUE:", "bold")]
    for name, default in options.items():
        lines += [(f"  {name}={default!r}", ""), *_indent(explained.get(name, ""), width, 6)]
    return [*lines, *(line for text in body for line in [("", ""), *_indent(text, width, 0)])]


def _format_table(rows: list[tuple[str, str]], width: int | None) -> list[StyledLine]:
    """Return two columns; the second one is wrapped."""
    if width is None:
        return [(line, "") for line in align_columns(rows)]
    return [(line, "") for lines in fit_columns(rows, width, keep=2, wrapped=1) for line in lines]


def _indent(text: str, width: int | None, indent: int) -> list[StyledLine]:
    blank = " " * indent
    return [(f"{blank}{line}", "") for line in wrap_paragraph(text, None if width is None else width - indent)]


def _iterate_facts(method: Method | Wrapper) -> Iterator[tuple[str, str]]:
    if isinstance(method, Wrapper):
        yield "use", f"{method.name}:gradcam" + (", or any method that weighs channels" if method.needs_weights else "")
    else:
        yield "needs", format_needs(method) or "nothing"
        yield "cost", f"{method.cost}: {_MEANINGS[method.cost]}"
    if method.paper:
        yield "paper", method.paper


def _read_docstring(function: Callable[..., Any]) -> tuple[list[str], dict[str, str]]:
    """Return the paragraphs after the summary of a docstring, and the text of each argument, without markup."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", (inspect.getdoc(function) or "").replace("``", ""))
    body, *sections = re.split(r"\n\n?(?=(?:Args|Returns|Raises):\n)", text)
    paragraphs = [paragraph for paragraph in body.split("\n\n")[1:] if paragraph.strip()]
    arguments = next((section for section in sections if section.startswith("Args:")), "")
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", arguments, re.MULTILINE)
    return paragraphs, {name: " ".join(told.split()) for name, told in entries}
