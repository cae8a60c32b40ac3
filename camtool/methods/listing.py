"""The list of the methods, and the details of one of them, as text for a terminal or for a file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from camtool.methods.registry import COSTS, METHODS, WRAPPERS, Method, Wrapper, find, options_of
from camtool.tables import Styled, align, fit, paragraph

__all__ = ["describe", "list_methods"]

_FAMILIES = {
    "Gradients at a layer": ("gradient", "linear", "rival"),
    "Gradients averaged over changed images": ("paths",),
    "Patterns in the activations": ("activation",),
    "Attention of a transformer": ("attention",),
    "Changes to the activations": ("ablation",),
    "Masks on the image": ("masking", "optimised"),
    "Gradients at the pixels": ("pixels", "fullgrad"),
}
"""Heading → the modules of :mod:`camtool.methods` whose methods stand below it."""

_OWN = "Your own"
_WRAPPED = "Wrappers, put before a method's name: tta:gradcam"

_MEANINGS = {
    "a pass": "one backward pass at most",
    "some passes": "a few passes through the model",
    "many tails": "a pass through the layers behind the chosen one for each channel",
    "many passes": "hundreds of passes through the model",
}
"""Cost → what it means."""


def list_methods(width: int | None = None) -> list[Styled]:
    """Return the methods by family, those with the lowest cost first; then the wrappers.

    Args:
        width: The most characters on a line. ``None`` gives one line for each method with all there is to tell, so
            that the lines can be searched.
    """
    return _list_flat() if width is None else _list_by_family(width)


def describe(name: str, width: int | None = None) -> list[Styled]:
    """Return what there is to know of a method or a wrapper: needs, cost, paper, options, and its formula.

    Args:
        name: The name of a method, with or without wrappers, or of a wrapper.
        width: The most characters on a line; ``None`` sets no limit.

    Raises:
        MethodError: The name is unknown; the message suggests similar ones.
    """
    if name in WRAPPERS:
        return _details(WRAPPERS[name], width)
    parts = find(name).name.split(":")
    each = [_details(WRAPPERS[part] if part in WRAPPERS else METHODS[part], width) for part in parts]
    return [line for lines in each for line in ([("", "")] if lines is not each[0] else []) + lines]


# ------------------------------------------------------------------------------------------------------ the list


def _list_by_family(width: int) -> list[Styled]:
    families = _by_family()
    rows = [("method", "what it does", "cost", "needs", "paper")]
    rows += [_cells(each) for family in families.values() for each in family]
    heading, *entries = fit(rows, width, keep=3, wrapped=1)
    lines: list[Styled] = [(line, "bold") for line in heading]
    parts = iter(entries)
    for family, members in families.items():
        lines += [("", ""), *((line, "bold cyan") for line in paragraph(family, width))]
        lines += [(line, "") for _ in members for line in next(parts)]
    lines += [("", ""), ("Cost, besides one forward pass", "bold cyan")]
    lines += _table([*_MEANINGS.items()], width)
    hint = "camtool methods NAME shows the needs, the paper, the options and the formula of a method."
    return [*lines, ("", ""), *((line, "") for line in paragraph(hint, width))]


def _list_flat() -> list[Styled]:
    rows = [("method", "what it does", "cost", "needs", "paper", "family")]
    rows += [(*_cells(each), family.partition(",")[0]) for family, members in _by_family().items() for each in members]
    return [(line, "") for line in align(rows)]


def _by_family() -> dict[str, list[Method | Wrapper]]:
    """Return the families that have members, in the order in which they are shown."""
    families: dict[str, list[Method | Wrapper]] = {heading: [] for heading in (*_FAMILIES, _OWN)}
    for method in sorted(METHODS.values(), key=lambda each: (COSTS.index(each.cost), each.name)):
        families[_family_of(method)].append(method)
    return {heading: members for heading, members in families.items() if members} | {_WRAPPED: [*WRAPPERS.values()]}


def _family_of(method: Method) -> str:
    package, _, module = method.function.__module__.rpartition(".")
    own = __name__.rpartition(".")[0]
    return next((heading for heading, modules in _FAMILIES.items() if package == own and module in modules), _OWN)


def _cells(each: Method | Wrapper) -> tuple[str, str, str, str, str]:
    if isinstance(each, Wrapper):
        return f"{each.name}:", _summary(each), "", "", each.paper
    return each.name, _summary(each), each.cost, each.needs, each.paper


def _summary(each: Method | Wrapper) -> str:
    return (inspect.getdoc(each.function) or "").split("\n", 1)[0].removesuffix(".")


# --------------------------------------------------------------------------------------------------- the details


def _details(found: Method | Wrapper, width: int | None) -> list[Styled]:
    body, explained = _read_docstring(found.function)
    lines: list[Styled] = [(line, "bold cyan") for line in paragraph(f"{found.name}: {_summary(found)}", width)]
    lines += _table([*_facts(found)], width)
    options = options_of(found.function)
    if options:
        lines += [("", ""), ("Options, each given as --option NAME=VALUE:", "bold")]
    for name, default in options.items():
        lines += [(f"  {name}={default!r}", ""), *_indented(explained.get(name, ""), width, 6)]
    return [*lines, *(line for text in body for line in [("", ""), *_indented(text, width, 0)])]


def _table(rows: list[tuple[str, str]], width: int | None) -> list[Styled]:
    """Return two columns, of which the second is wrapped."""
    if width is None:
        return [(line, "") for line in align(rows)]
    return [(line, "") for lines in fit(rows, width, keep=2, wrapped=1) for line in lines]


def _indented(text: str, width: int | None, indent: int) -> list[Styled]:
    blank = " " * indent
    return [(f"{blank}{line}", "") for line in paragraph(text, None if width is None else width - indent)]


def _facts(found: Method | Wrapper) -> Iterator[tuple[str, str]]:
    if isinstance(found, Wrapper):
        yield "use", f"{found.name}:gradcam" + (", or any method that weighs channels" if found.of_weights else "")
    else:
        yield "needs", found.needs or "nothing"
        yield "cost", f"{found.cost}: {_MEANINGS[found.cost]}"
    if found.paper:
        yield "paper", found.paper


def _read_docstring(function: Callable[..., Any]) -> tuple[list[str], dict[str, str]]:
    """Return the paragraphs behind a docstring's summary, and the text of each argument, without its markup."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", (inspect.getdoc(function) or "").replace("``", ""))
    body, *sections = re.split(r"\n\n?(?=(?:Args|Returns|Raises):\n)", text)
    paragraphs = [each for each in body.split("\n\n")[1:] if each.strip()]
    arguments = next((section for section in sections if section.startswith("Args:")), "")
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", arguments, re.MULTILINE)
    return paragraphs, {name: " ".join(told.split()) for name, told in entries}
