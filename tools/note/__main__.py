"""Write the note: ``python -m tools.note [OUT.pdf] [--weights FILE]``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.note.figures import FIGURES, draw_figures
from tools.note.page import PAGE, ROOT, render_page
from tools.note.printing import print_page


def main(
    out: Annotated[Path, typer.Argument(help="PDF file to write.")] = ROOT / "build" / "note.pdf",
    weights: Annotated[
        Path | None, typer.Option(help="ImageNet weights of MobileNetV2; draws the figures of photos, too.")
    ] = None,
) -> None:
    """Write the page of the documentation, draw its figures, and print both to a PDF file."""
    PAGE.write_text(render_page(), encoding="utf-8")
    draw_figures(FIGURES, weights)
    print_page(PAGE, out)


if __name__ == "__main__":
    typer.run(main)
