"""Pages for programs: a Markdown twin beside each page, ``llms.txt`` lists them, ``llms-full.txt`` holds their text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.docs_site.pages import PICTURES, Site, list_contents, locate

SUMMARY = "camtool explains image models with class activation maps, and checks whether the maps can be trusted."
_FENCED_DIV = re.compile(r"^:::(?:\{.*\}.*)?\n?", re.MULTILINE)
_PICTURE = re.compile(rf"(!\[[^\]]*\])\((?!\w+:)([^)]*/)?([^)/]+(?:{'|'.join(map(re.escape, sorted(PICTURES)))}))\)")
_NOTEBOOK = re.compile(r"(\]\([^)]*)\.ipynb\b")


def write_twins(site: Site, out: Path) -> None:
    """Write the twins of all pages and both lists to the folder of the built site."""
    texts = {name: _draw_twin(site, name) for name in site.names}
    for name, text in texts.items():
        (out / f"{name}.md").write_text(text, encoding="utf-8")
    (out / "llms.txt").write_text(draw_list(site), encoding="utf-8")
    whole = "\n\n".join(f"<!-- {name}.md -->\n\n{text.strip()}" for name, text in texts.items())
    (out / "llms-full.txt").write_text(f"{whole}\n", encoding="utf-8")


def _draw_twin(site: Site, name: str) -> str:
    text = site.twins.get(name, site.texts.get(name, ""))
    if name in site.notebooks:
        text = _draw_notebook(site.notebooks[name])
    folder = locate("_images", name)
    return _NOTEBOOK.sub(r"\1.md", _PICTURE.sub(rf"\1({folder}/\3)", _FENCED_DIV.sub("", text)))


def _draw_notebook(notebook: dict[str, Any]) -> str:
    """Return the cells of a notebook as Markdown, with the text of their outputs and without pictures."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain")
            parts += [f"```text\n{''.join(text).rstrip()}\n```"] if text else []
    return "\n\n".join(parts) + "\n"


def draw_list(site: Site) -> str:
    """Return ``llms.txt``: every page with its title and what it is about, by section."""
    contents = list_contents(site)
    titles = {name: title for items in contents.values() for title, name, _ in items}
    parts = [f"# camtool\n\n> {SUMMARY}\n", "The whole text of these pages is in [llms-full.txt](llms-full.txt).\n"]
    parts += ["## Begin\n", "- [camtool](index.md): what it is, which method to use"]
    parts += _list_pages((title, name, description) for title, name, description in contents["index"])
    for section, items in contents.items():
        if section != "index" and items:
            parts += [f"\n## {titles[section].replace('`', '')}\n", *_list_pages(items)]
    return "\n".join(parts) + "\n"


def _list_pages(items: Iterable[tuple[str, str, str]]) -> list[str]:
    return [f"- [{title.replace('`', '')}]({name}.md)" + (f": {text}" if text else "") for title, name, text in items]
