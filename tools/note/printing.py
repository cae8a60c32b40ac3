"""The page as a PDF file, by Chromium."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt

from tools.docs_site.pages import REPOSITORY

_TITLE = re.compile(r"<h1>(.*?)</h1>")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_FIGURE = re.compile(r'<p>(<img src="[^"]*/(\w+)\.\w+"[^>]*>)</p>\s*<p>(<em>Figure.*?</em>)</p>', re.DOTALL)
_TABLE = re.compile(r"<p>(<strong>Table(?:(?!</p>).)*)</p>\s*(<table>.*?</table>)", re.DOTALL)
_MINUS = re.compile(r"(?<=[>(\s])-(?=\d)")
_LINK = re.compile(r'href="(?!https?:|#)([^"]+)"')
_NARROW = ("<strong>Table 2.", "<strong>Table 3.")
"""Tables that stand side by side."""
_DATE = re.compile(rb"(/(?:CreationDate|ModDate) \(D:)\d{14}")
_FOOTER = (
    '<div style="width: 100%; font: 8pt Liberation Serif, Times, serif; text-align: center">'
    '<span class="pageNumber"></span> / <span class="totalPages"></span></div>'
)


def print_page(page: Path, out: Path) -> None:
    """Print a page in Markdown to a PDF file of A4 pages. The same page gives the same bytes.

    Raises:
        SystemExit: The package playwright is not installed, or a picture is missing.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise SystemExit("The PDF file needs playwright and Chromium: pip install 'camtool[dev]'") from error
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        source = Path(folder, "note.html")
        source.write_text(build_html(page), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            tab = browser.new_page()
            tab.goto(source.as_uri(), wait_until="load")
            missing = tab.evaluate("[...document.images].filter((one) => !one.naturalWidth).map((one) => one.src)")
            if missing:
                raise SystemExit(f"{page} shows pictures that are no files: {', '.join(missing)}")
            pdf = tab.pdf(
                prefer_css_page_size=True, display_header_footer=True, header_template=" ", footer_template=_FOOTER
            )
        finally:
            browser.close()
    out.write_bytes(_DATE.sub(rb"\g<1>20000101000000", pdf))


def build_html(page: Path) -> str:
    """Return a page in Markdown as HTML for printing: captions at their figures and tables, links to the repository."""
    markdown = MarkdownIt("commonmark", {"typographer": True}).enable(["table", "smartquotes"])
    body = _COMMENT.sub("", markdown.render(page.read_text(encoding="utf-8")))
    body = _FIGURE.sub(r'<figure class="\2">\1<figcaption>\3</figcaption></figure>', body)
    body = _TABLE.sub(_set_table, body)
    body = _MINUS.sub("\N{MINUS SIGN}", body)
    body = _LINK.sub(rf'href="{REPOSITORY}/blob/main/docs/\1"', body)
    body = body.replace("<h2>References", '<h2 id="references">References')
    title = _TITLE.search(body)
    style = Path(__file__).with_name("print.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><base href="{page.resolve().parent.as_uri()}/">'
        f"<title>{title[1] if title else page.stem}</title><style>{style}</style></head><body>{body}</body></html>"
    )


def _set_table(match: re.Match[str]) -> str:
    kind = "half" if match[1].startswith(_NARROW) else "whole"
    return f'<figure class="{kind}"><figcaption>{match[1]}</figcaption>{match[2]}</figure>'
