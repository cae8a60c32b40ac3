"""Settings of Sphinx for the site, which ``make docs`` builds: it stages the pages, see ``tools/docs_site``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.pycode import ModuleAnalyzer

import camtool
from camtool.rendering.design import style_sheets

_HERE = Path(__file__).parent

project = "camtool"
author = "The camtool authors"
release = version = camtool.__version__
copyright = author  # noqa: A001  Sphinx reads this name

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
nb_execution_mode = "off"  # notebooks are stored with their outputs, which the tests compare with a fresh run
nb_ipywidgets_js: dict[str, Any] = {}  # they come from another server
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
napoleon_use_rtype = False
napoleon_use_ivar = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 88

html_theme = "pydata_sphinx_theme"
html_title = "camtool"
html_favicon = html_logo = str(style_sheets.LOGO)
html_context = {"default_mode": "auto"}
html_sidebars: dict[str, list[str]] = {"index": [], "start": []}
smartquotes = False  # options of commands have two hyphens
html_static_path = [str(_HERE / "site"), str(style_sheets.LOGO.with_name("tokens.css"))]
html_css_files = ["tokens.css", "style.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_use_index = False  # the page "API" lists all names
html_theme_options = {
    "logo": {"text": "camtool", "alt_text": "camtool"},
    "github_url": "https://github.com/camtool/camtool",
    "header_links_before_dropdown": 6,
    "navigation_depth": 2,
    "show_toc_level": 2,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
}


def _link_twin(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Name the Markdown twin of a page in its head, for programs that read pages."""
    if doctree is not None:
        twin = f"{name.rpartition('/')[2]}.md"
        context["metatags"] = (
            context.get("metatags", "") + f'\n<link rel="alternate" type="text/markdown" href="{twin}">'
        )


def _mark_code(app: Any, kind: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Mark what a docstring indents before its first section as code, in place."""
    marked: list[str] = []
    for number, line in enumerate(lines):
        before = marked[-2:] if number else []
        starts = line.startswith("    ") and len(before) == 2 and not before[1] and not before[0].startswith(" ")
        if starts and not before[0].endswith(":"):
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


def _escape_types(app: Any, kind: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Escape names of types such as ``bool_``, which reStructuredText takes for references, in place."""
    lines[:] = [re.sub(r"_(?=\W)", r"\\_", line) if line.startswith(":vartype") else line for line in lines]


_analyze = ModuleAnalyzer.analyze


def _analyze_without_overloads(analyzer: ModuleAnalyzer) -> None:
    """Forget overloads: one signature stands for all, and the types of its parameters are listed."""
    _analyze(analyzer)
    analyzer.overloads = {}


def setup(app: Any) -> None:
    """Register what is above: code is marked before napoleon reads the sections, types are escaped after it."""
    ModuleAnalyzer.analyze = _analyze_without_overloads  # type: ignore[method-assign]  # there is no setting
    app.connect("html-page-context", _link_twin)
    app.connect("autodoc-process-docstring", _mark_code, priority=100)
    app.connect("autodoc-process-docstring", _escape_types, priority=900)
