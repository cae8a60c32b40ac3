"""Generated pages of reference: the API from its docstrings, methods, warnings and metrics from their registries."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterable

import camtool
from camtool.methods import METHODS
from camtool.methods.registry import Method, find_method
from camtool.trust.metrics import METRICS
from camtool.trust.metrics.metric_registry import Metric
from camtool.warning_codes import WARNING_KINDS, WarningKind
from tools.docs_site.pages import Site

_KINDS = ("Functions", "Classes", "Errors", "Packages", "Tables")
_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Yields):\n", re.MULTILINE)
_CLAIMED = "Differences from the authors' released code"
_PEERS = "Differences from grad-cam 1.5.7 and torchcam 0.5.0"
_PEERS_ANCHOR = "differences-from-grad-cam-157-and-torchcam-050"
_MEASURES = {
    ("trust", "<!-- counted -->"): """The number of trained networks on which the method is ahead of `gradcam` (+) and
behind it (-) by more than two standard errors of the paired difference, and the lowest and the highest gain; a dash was
not measured ([how](../../trust.md#which-method-by-which-measure)):""",
    (
        "trust",
        "### Scenes with known evidence",
    ): """Average precision of the heat against planted evidence, with the 95 %
interval, and the share of peaks on it ([how, and what `random` has](../../trust.md#scenes-with-known-evidence)):""",
    ("known-answers", "<!-- wired -->"): """Of sixteen networks whose weights are set by hand, those whose evidence is
found (●) or found in part (◐), and where the map shows something else (✗) or nothing (○), or is refused (.);
`!`: with a warning, `?`: `check()` finds out ([how](../../known-answers.md#who-finds-it)):""",
}
"""Page and the text before a table → what the row of a method says."""
_METHODS_INTRO = """# Every method

By cost beside the forward pass that all need. [Which to choose](../formulas.md#choosing-a-method),
[the formulas in one table](../formulas.md), [pictures](../../gallery.md).
"""
_WARNINGS_INTRO = """# Every warning

`result.warnings` and `result.check()` carry these codes; each warning is a string with `code`, `severity` and
`remedy`. A *warning* is a reason not to trust the map; a *note* is a fact with which the map may still be right.
[How they are found, and how often they are false](../checks.md).
"""


def add_reference(site: Site) -> None:
    """Add the generated pages to a site, and list them on its page ``reference``."""
    names = {name: _name_kind(getattr(camtool, name)) for name in dir(camtool)}
    for name in names:
        site.texts[f"reference/api/{name}"], site.twins[f"reference/api/{name}"] = _draw_object(name)
    site.texts["reference/api/index"] = _draw_api_index(names)
    tables = _MethodTables(site.texts)
    for method in METHODS.values():
        site.texts[f"reference/methods/{name_page(method.name)}"] = _draw_method(method, tables)
    site.texts["reference/methods/index"] = _draw_methods_index()
    site.texts["reference/warnings"] = _draw_warnings(WARNING_KINDS.values())
    site.texts["reference/metrics"] = _draw_metrics(METRICS.values())
    site.texts["reference"] += (
        "\n## Generated from the code\n\n"
        "* [API](reference/api/index.md): every public name, from its docstring and types\n"
        f"* [Every method](reference/methods/index.md): {len(METHODS)} pages: formula, needs, cost, differences\n"
        f"* [Every warning](reference/warnings.md): {len(WARNING_KINDS)} codes, each with an address of its own\n"
        f"* [Every metric](reference/metrics.md): {len(METRICS)} metrics with direction, range and chance level\n"
    )


def name_page(method: str) -> str:
    """Return the name of a method's page: that of the method, ``+`` spelled out, as it means a space in addresses."""
    return method.replace("++", "plusplus")


# ------------------------------------------------------------------------------------------------------- the API


def _name_kind(value: object) -> str:
    if isinstance(value, types.ModuleType):
        return "Packages"
    if inspect.isclass(value):
        return "Errors" if issubclass(value, Exception) else "Classes"
    return "Functions" if callable(value) else "Tables"


def _list_members(module: types.ModuleType) -> list[str]:
    """Return the public names of a package that are documented: those that it defines or exports."""
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and (getattr(value, "__module__", None) or "").startswith(module.__name__)
    ]
    return [name for name in names if callable(getattr(module, name)) and inspect.getdoc(getattr(module, name))]


def _draw_object(name: str) -> tuple[str, str]:
    """Return the page of a public name for Sphinx, and its twin in plain Markdown."""
    value = getattr(camtool, name)
    head = f"# camtool.{name}\n\n"
    if isinstance(value, dict):
        text = f"{head}A dictionary: name → method. [Every method](../methods/index.md) has a page.\n"
        return text, text
    if isinstance(value, types.ModuleType):
        names = _list_members(value)
        elsewhere = [member for member in names if getattr(camtool, member, None) is getattr(value, member)]
        members = [(f"camtool.{name}.{member}", getattr(value, member)) for member in names if member not in elsewhere]
        links = "".join(
            f"* [`{member}`]({member}.md): {_summarize(getattr(camtool, member))}\n" for member in elsewhere
        )
        intro = f"{_to_markdown(inspect.getdoc(value) or '')}\n\n{links}\n"
    else:
        members, intro = [(f"camtool.{name}", value)], ""
    directives = "".join(f"```{{eval-rst}}\n{_direct(path, member)}\n```\n\n" for path, member in members)
    twins = "".join(_describe(path, member) for path, member in members)
    return head + intro + directives, head + intro + twins


def _direct(path: str, value: object) -> str:
    if inspect.isclass(value):
        hidden = "   :members:\n   :show-inheritance:" if issubclass(value, Exception) else "   :members:"
        return f".. autoclass:: {path}\n{hidden}"
    return f".. autofunction:: {path}" if inspect.isroutine(value) else f".. autodata:: {path}\n   :no-value:"


def _describe(path: str, value: object) -> str:
    """Return an object's signature and docstring as Markdown, with those of its public methods."""
    parts = [
        f"## `{path}`\n\n```text\n{_sign(path.rpartition('.')[2], value)}\n\n{inspect.getdoc(value) or ''}\n```\n\n"
    ]
    if inspect.isclass(value):
        for name, member in vars(value).items():
            document = inspect.getdoc(member)
            if not name.startswith("_") and document and (inspect.isroutine(member) or isinstance(member, property)):
                parts.append(f"### `{path}.{name}`\n\n```text\n{_sign(name, member)}\n\n{document}\n```\n\n")
    return "".join(parts)


def _sign(name: str, value: object) -> str:
    try:
        return f"{name}{inspect.signature(value)}"  # type: ignore[arg-type]  # what has none raises
    except (TypeError, ValueError):
        return name


def _draw_api_index(names: dict[str, str]) -> str:
    lines = [
        "# API\n\nAll that `import camtool` offers. Each page is made from the docstrings and types of the code.\n",
        '```python\nimport camtool\n\nresult = camtool.explain(camtool.load("demo"), "photo.jpg")\n```\n',
    ]
    for kind in _KINDS:
        chosen = sorted((name for name, own in names.items() if own == kind), key=str.casefold)
        lines += [f"\n## {kind}\n"]
        lines += [f"* [`{name}`]({name}.md): {_summarize(getattr(camtool, name))}" for name in chosen]
    return "\n".join(lines) + "\n"


def _summarize(value: object) -> str:
    if isinstance(value, dict):
        return "The methods by name."
    return _to_markdown((inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " "))


def _to_markdown(text: str) -> str:
    """Return a docstring as Markdown: roles become code, an indented block stays code, sections become lists."""
    text = (
        _ROLE.sub(lambda match: f"`{match[1].lstrip('~.')}`", text)
        .replace("``", "`")
        .replace("::\n\n    ", ":\n\n    ")
    )
    body, *sections = _SECTION.split(text)
    for title, section in zip(sections[::2], sections[1::2], strict=True):
        items = re.sub(r"^(\*{0,2}\w[\w*, ]*): ", r"* `\1`: ", inspect.cleandoc(section), flags=re.MULTILINE)
        body += f"**{title}**\n\n{re.sub(r'^ {4}', '  ', items, flags=re.MULTILINE)}\n\n"
    return body.strip()


# ----------------------------------------------------------------------------------------------------- methods


class _MethodTables:
    """What the pages of the repository say of each method, by name.

    Attributes:
        formulas: The cells of formula and options.
        released: Where the authors' code differs: what it does, and what camtool does.
        peers: The same for other libraries, with the library.
        measured: Introductions of measurements, and tables of one row.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        formulas = texts["reference/formulas"]
        self.formulas = {_unquote(row[0]): (row[1], row[3]) for row in _read_rows(formulas) if len(row) == 5}
        self.released = _by_name(_read_rows(_cut(formulas, _CLAIMED)), column=0)
        self.peers = _by_name(_read_rows(_cut(formulas, _PEERS)), column=1)
        self.measured: dict[str, list[str]] = {}
        for (page, mark), intro in _MEASURES.items():
            (_, *head), *rows = _read_rows(texts[page].partition(mark)[2], first=0, last=1)
            for row in rows:
                table = f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n| {' | '.join(row[1:])} |"
                for name in re.findall(r"`([^`]+)`", row[0]):
                    self.measured.setdefault(name, []).append(f"{intro}\n\n{table}\n")


def _cut(text: str, heading: str) -> str:
    return re.split(r"^## ", text.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def _read_rows(text: str, first: int = 1, last: int | None = None) -> list[list[str]]:
    """Return the cells of table rows in a text, without rules: of ``last`` tables, each from its row ``first``."""
    rows: list[list[str]] = []
    for table in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)[:last]:
        lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        rows += [line for line in lines[first:] if not set("".join(line)) <= set("-:| ")]
    return rows


def _by_name(rows: Iterable[list[str]], column: int) -> dict[str, list[list[str]]]:
    """Return rows by the methods that a cell names; names that are no method are left out."""
    sorted_rows: dict[str, list[list[str]]] = {}
    for row in rows:
        for name in re.split(r", ", row[column]):
            try:
                method = find_method(_unquote(name).replace("guided backprop", "guided-backprop")).name
            except camtool.MethodError:
                continue
            sorted_rows.setdefault(method, []).append(row)
    return sorted_rows


def _unquote(cell: str) -> str:
    return cell.strip("` ")


def _draw_method(method: Method, tables: _MethodTables) -> str:
    formula, options = tables.formulas[method.name]
    document = inspect.getdoc(method.function) or ""
    rows = [
        ("formula", formula),
        ("needs", ", ".join(sorted(method.needs)) or "-"),
        ("cost beside the forward pass", method.cost),
        ("layer", "ignored: the method reads the input or all layers" if method.ignores_layer else "one or several"),
        ("options", options),
        ("paper", _link_paper(method.paper)),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    call = f'camtool.explain(model, "photo.jpg", method="{method.name}")'
    parts = [
        f"# {method.name}\n\n{_to_markdown(document.partition(chr(10))[0])}\n",
        f"```python\n{call}\n```\n",
        f"| | |\n|---|---|\n{table}\n",
        "The letters of the formula are explained in [formulas](../formulas.md#methods-by-cost).\n",
    ]
    rest = _to_markdown(document.partition("\n")[2].strip())
    parts += [f"## Details\n\n{rest}\n"] if rest else []
    parts += [_draw_departures(method.name, tables), _draw_measures(method.name, tables)]
    return "\n".join(part for part in parts if part)


def _link_paper(paper: str) -> str:
    if paper.startswith("arXiv "):
        return f"[{paper}](https://arxiv.org/abs/{paper.split()[1]})"
    return f"[{paper}](https://doi.org/{paper})" if paper.startswith("10.") else f"{paper or '-'}"


def _draw_departures(name: str, tables: _MethodTables) -> str:
    lines = [f"* The authors' released code: {row[1]} camtool: {row[2]}" for row in tables.released.get(name, [])]
    lines += [f"* {row[0]}, {row[1]}: {row[2]} camtool: {row[3]}" for row in tables.peers.get(name, [])]
    common = f"What holds for all methods is in [formulas](../formulas.md#{_PEERS_ANCHOR}).\n"
    return "\n".join(["## Where other code differs\n", *lines, "", common]) if lines else ""


def _draw_measures(name: str, tables: _MethodTables) -> str:
    return "\n".join(["## What was measured\n", *tables.measured[name]]) if name in tables.measured else ""


def _draw_methods_index() -> str:
    lines = [_METHODS_INTRO]
    for cost in dict.fromkeys(method.cost for method in METHODS.values()):
        lines.append(f"\n## {cost[0].upper()}{cost[1:]}\n")
        chosen = [method for method in METHODS.values() if method.cost == cost]
        lines += [f"* [`{each.name}`]({name_page(each.name)}.md): {_to_markdown(each.summary)}" for each in chosen]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------- warnings and metrics


def _draw_warnings(kinds: Iterable[WarningKind]) -> str:
    sections = [
        f"## {kind.code}\n\n{kind.condition}\n\n**What to do.** {kind.remedy}\n\n*Severity: {kind.severity}.*\n"
        for kind in kinds
    ]
    return "\n".join([_WARNINGS_INTRO, *sections])


def _draw_metrics(metrics: Iterable[Metric]) -> str:
    parts = ["# Every metric\n\n[Which one to believe, and what they measured](../trust.md).\n"]
    for metric in metrics:
        summary, _, rest = _to_markdown(inspect.getdoc(metric.function) or "").partition("\n")
        low, high = ("no bound" if abs(bound) == float("inf") else f"{bound:g}" for bound in metric.bounds)
        chance = "measured with random maps" if metric.chance is None else "computed for each image"
        rows = [
            ("better", "higher" if metric.higher_is_better else "lower"),
            ("range", f"{low} to {high}"),
            ("chance level", f"{metric.chance:g}" if isinstance(metric.chance, int | float) else chance),
            ("needs", ", ".join(f"`{need}`" for need in metric.needs)),
            ("options", ", ".join(f"`{name}={value!r}`" for name, value in metric.options.items()) or "-"),
            ("source", _link_paper(metric.paper)),
        ]
        table = "\n".join(f"| {name} | {value} |" for name, value in rows)
        parts.append(f"## {metric.name}\n\n{summary}\n\n| | |\n|---|---|\n{table}\n\n{rest.strip()}\n")
    return "\n".join(parts)
