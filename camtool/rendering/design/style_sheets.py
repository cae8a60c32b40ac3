"""Style sheets and the logo of all pages, as text that a page carries inside."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

LOGO = Path(__file__).with_name("logo.svg")


def read_design(*names: str) -> str:
    """Return the text of style sheets, ``"tokens.css"``, ``"base.css"`` or ``"parts.css"``, with the logo in them."""
    return "".join(LOGO.with_name(name).read_text(encoding="utf-8") for name in names).replace(LOGO.name, encode_logo())


def encode_logo() -> str:
    """Return the logo as a URL that holds it."""
    return f"data:image/svg+xml,{quote(LOGO.read_text(encoding='utf-8').strip(), safe=' =:/')}"
