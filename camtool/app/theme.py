"""The style of the page: a theme of Gradio with the fonts of the system, and own rules on top of it."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

__all__ = ["build_theme", "read_head", "read_style"]

_ASSETS = Path(__file__).parent / "assets"

_FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
_CODE_FONTS = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")


def build_theme() -> gr.themes.Base:
    """Build the theme. It names fonts of the system only, so the page asks no server for any."""
    return gr.themes.Base(
        primary_hue="orange", neutral_hue="stone", radius_size="md", font=_FONTS, font_mono=_CODE_FONTS
    )


def read_style() -> str:
    """Return the rules of the page."""
    return "\n".join((_ASSETS / name).read_text(encoding="utf-8") for name in ("style.css", "panels.css"))


def read_head() -> str:
    """Return what is added to the head of the page."""
    script = (_ASSETS / "download.js").read_text(encoding="utf-8")
    return f"<script>{script}</script>"
