"""Checks of the built site: broken links, resources of other servers, pages that no link reaches, alt texts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "embed": "src",
    "object": "data",
}
_LOADING_RELATIONS = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "icon"}
_REMOTE_STYLE = re.compile(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)|@import\s+['\"]((?:https?:)?//[^'\"]+)")


@dataclass
class Page(HTMLParser):
    """Addresses in a page of HTML.

    Attributes:
        anchors: What may stand behind ``#`` in a link to the page.
        links: Where its links lead.
        loads: What a browser loads for it.
        unnamed: Pictures without an alternative text.
    """

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses of one tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        address = values.get({"a": "href", "form": "action"}.get(tag, ""))
        if address:
            self.links.append(address)
        if values.get(_LOADS.get(tag, "")):
            self.loads.append(values[_LOADS[tag]])
        if tag == "link" and _LOADING_RELATIONS & {*values.get("rel", "").split()}:
            self.loads.append(values.get("href", ""))
        if tag == "img" and (not values.get("alt", "").strip() or values["alt"] == values.get("src")):
            self.unnamed.append(values.get("src", ""))


def read_pages(site: Path) -> dict[Path, Page]:
    """Return the pages of a built site, without those of the demo, which has tests of its own."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        if path.relative_to(site).parts[0] not in ("demo", "_static"):
            pages[path] = Page()
            pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


def find_faults(site: Path) -> list[str]:
    """Return what is wrong with a built site, a line for each fault."""
    pages = read_pages(site)
    return [
        *_find_broken_links(site, pages),
        *_find_remote(site, pages),
        *_find_unreached(site, pages),
        *_find_unnamed(pages),
    ]


def _resolve(link: str, page: Path) -> tuple[Path, str] | None:
    """Return the file and the anchor that a link names, or None if it leads to another server."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
    return (path / "index.html" if path.is_dir() else path), unquote(parts.fragment)


def _find_broken_links(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        for link in dict.fromkeys([*page.links, *page.loads]):
            resolved = _resolve(link, path)
            if resolved is None:
                continue
            file, anchor = resolved
            if not file.is_file():
                yield f"{path.relative_to(site)}: {link} leads to no file"
            elif anchor and file in pages and anchor not in pages[file].anchors:
                yield f"{path.relative_to(site)}: {link} leads to no such anchor"


def _find_remote(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        for link in page.loads:
            if urlsplit(link).netloc:
                yield f"{path.relative_to(site)}: loads {link}"
    for path in site.rglob("*.css"):
        for match in _REMOTE_STYLE.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: loads {''.join(match)}"


def _find_unreached(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    reached, waiting = set(), [site / "index.html"]
    while waiting:
        path = waiting.pop()
        if path in pages and path not in reached:
            reached.add(path)
            resolved = (_resolve(link, path) for link in pages[path].links)
            waiting += [file for file, _ in filter(None, resolved)]
    yield from (f"{path.relative_to(site)}: no link leads there" for path in pages.keys() - reached)


def _find_unnamed(pages: dict[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        yield from (f"{path.name}: {picture[:60]} has no alt text" for picture in page.unnamed)
