"""Pages as Sphinx gets them: those of the repository with links that hold on the site, and tables of contents.

The pages in ``docs`` are plain Markdown that GitHub shows. What only Sphinx understands is added here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/camtool/camtool"
SECTIONS = ("start", "tutorials", "how-to", "reference", "explanation", "coming-from/index")
"""The pages in the bar at the top. The links in the lists of each are its table of contents."""

PICTURES = {".png", ".jpg", ".svg"}

_WIDE = "---\nhtml_theme.sidebar_secondary.remove: true\n---\n"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_ITEM = re.compile(r"^[*-] \[([^\]]+)\]\(([^)#\s]+)\)(?:: (.*))?", re.MULTILINE)
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_PAIR = re.compile(r"<!-- side by side -->\n(.*?)\n<!-- /side by side -->", re.DOTALL)


@dataclass
class Site:
    """The pages of the site, by their names without a suffix, as they are staged.

    Attributes:
        texts: Name → Markdown, links rewritten.
        twins: Name → Markdown for readers without Sphinx, where it differs from ``texts``.
        notebooks: Name → notebook, links rewritten.
        pictures: Path on the site → file.
    """

    texts: dict[str, str] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)
    notebooks: dict[str, dict[str, Any]] = field(default_factory=dict)
    pictures: dict[str, Path] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of all pages."""
        return [*self.texts, *self.notebooks]


def list_sources() -> dict[str, Path]:
    """Return the files of the repository that are pages: name on the site → file."""
    docs = ROOT / "docs"
    sources = {path.relative_to(docs).with_suffix("").as_posix(): path for path in sorted(docs.rglob("*.md"))}
    sources |= {f"notebooks/{path.stem}": path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    sources["reference/formulas"] = ROOT / "camtool" / "methods" / "README.md"
    return sources | {name.lower(): ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "ARCHITECTURE")}


def stage_repository() -> Site:
    """Return the pages and notebooks of the repository for the site."""
    site, sources = Site(), list_sources()
    homes = {path: name for name, path in sources.items()} | {
        ROOT / "README.md": "index",
        ROOT / "notebooks": "tutorials",
    }

    def point(link: str, name: str) -> str:
        return _point(link, name, sources[name].parent, homes, site.pictures)

    for name, path in sources.items():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            site.texts[name] = _PAIR.sub(_set_side_by_side, rewrite_links(text, name, point))
            continue
        site.notebooks[name] = _stage_notebook(json.loads(text), name, point)
    return site


def _stage_notebook(notebook: dict[str, Any], name: str, point: Callable[[str, str], str]) -> dict[str, Any]:
    """Return a notebook with links for the site, and alternative texts for the pictures that its cells draw."""
    heading = ""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            cell["source"] = rewrite_links(source, name, point)
            heading = [heading, *re.findall(r"^#+ (.*)$", source, re.MULTILINE)][-1]
        else:
            drawn_by = source.rstrip().rpartition("\n")[2].strip()
            cell["metadata"]["mystnb"] = {"image": {"alt": f"{heading}: the picture of {drawn_by}"}}
    return notebook


def rewrite_links(text: str, name: str, point: Callable[[str, str], str]) -> str:
    """Return Markdown with ``point(link, name)`` in the place of each link outside of code blocks."""

    def replace(match: re.Match[str]) -> str:
        return f"{match[1]}[{_LINK.sub(replace, match[2])}]({point(match[3], name)})"  # a link may hold a picture

    parts = _FENCE.split(text)
    parts[::2] = [_LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts)


def _point(link: str, name: str, folder: Path, homes: dict[Path, str], pictures: dict[str, Path]) -> str:
    """Return a link of a page for the site: to another page, to a picture, or to the repository."""
    file, mark, anchor = link.partition("#")
    if not file or re.match(r"\w+:", file):
        return link
    path = (folder / file).resolve()
    if path in homes:
        suffix = "ipynb" if path.suffix == ".ipynb" else "md"
        return locate(f"{homes[path]}.{suffix}", name) + mark + anchor
    inside = path.relative_to(ROOT).as_posix()
    if path.suffix in PICTURES:
        pictures[inside] = path
        return locate(inside, name)
    return f"{REPOSITORY}/{'tree' if path.is_dir() else 'blob'}/main/{inside}{mark}{anchor}"


def locate(path: str, name: str) -> str:
    """Return a path on the site relative to the page ``name``."""
    return PurePosixPath(os.path.relpath(path, PurePosixPath(name).parent)).as_posix()


def _set_side_by_side(match: re.Match[str]) -> str:
    return f":::{{container}} side-by-side\n{match[1]}\n:::"


def list_items(text: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield title, name and description of the pages in the lists of a page."""
    for title, link, description in _ITEM.findall(text):
        if not re.match(r"\w+:", link):
            path = PurePosixPath(os.path.normpath(PurePosixPath(name).parent / link))
            yield title, path.with_suffix("").as_posix(), description


def list_contents(site: Site) -> dict[str, list[tuple[str, str, str]]]:
    """Return for each page with a table of contents the title, name and description of what it lists.

    A page belongs to the first that lists it.
    """
    listed = {name: [*list_items(text, name)] for name, text in site.texts.items()}
    contents = {"index": [item for item in listed["index"] if item[1] in SECTIONS]}
    taken = {"index", *SECTIONS}
    for section in (*SECTIONS, *(name for name in listed if name.endswith("/index"))):
        contents.setdefault(section, [item for item in listed[section] if item[1] not in taken])
        taken |= {name for _, name, _ in contents[section]}
    return contents


def write_sources(site: Site, folder: Path) -> None:
    """Write the pages as Sphinx reads them, with their tables of contents, to an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    contents = list_contents(site)
    for name, text in site.texts.items():
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = _WIDE if "side-by-side" in text else ""
        path.write_text(head + text + _draw_contents(contents.get(name, [])), encoding="utf-8")
    for name, notebook in site.notebooks.items():
        path = folder / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(notebook), encoding="utf-8")
    for name, picture in site.pictures.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, path)


def _draw_contents(items: list[tuple[str, str, str]]) -> str:
    if not items:
        return ""
    lines = [f"{title.replace('`', '')} </{name}>" for title, name, _ in items]
    return "\n".join(["\n```{toctree}", ":hidden:", "", *lines, "```", ""])
