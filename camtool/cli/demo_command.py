"""Command ``camtool demo``: show camtool at work on bundled scenes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from camtool.cli import terminal
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import Out, PrintOptions


@takes_options
def show_demo(
    *,
    printed: PrintOptions,
    out: Out = Path("demo"),
    scenes: Annotated[int, typer.Option(metavar="N", min=1)] = 12,
) -> None:
    """Show camtool at work, offline, on generated scenes whose right answer is known.

    Args:
        scenes: Number of scenes.
    """
    with terminal.show_activity("Explaining bundled scenes", is_quiet=printed.hides_progress):
        from camtool.demo.tour import run_tour

        shown = run_tour(out, scenes)
    with terminal.show_activity("Auditing the model that cheats", is_quiet=printed.hides_progress):
        sentence = _audit_cheat()
    if printed.as_json:
        files = {"overview": str(shown.overview), "cheat": str(shown.cheat)}
        terminal.print_json({"rows": [asdict(row) for row in shown.rows], **files, "audit": sentence})
    if printed.hides_progress:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", style="bold cyan")
    for heading in ("points at it", "energy inside", "by chance", "ms a scene"):
        table.add_column(heading, justify="right")
    for row in shown.rows:
        table.add_row(row.method, f"{row.hits:.0%}", f"{row.energy:.0%}", f"{row.share:.0%}", f"{row.milliseconds:.0f}")
    terminal.out.print(table)
    overview, cheat = terminal.escape(str(shown.overview)), terminal.escape(str(shown.cheat))
    terminal.print_line(f"\nThe maps:                      [bold]{overview}[/]")
    terminal.print_line(f"A model that cheats is caught: [bold]{cheat}[/]")
    terminal.print_line(f"An audit finds it, too:        {terminal.escape(sentence)}")
    terminal.print_line("Your own photos:               [bold]python -m camtool PHOTOS --model resnet50[/]")


def _audit_cheat() -> str:
    """Return the finding of an audit of the model that cheats, on scenes of three classes that it has not seen."""
    from camtool.demo.camnet import CHEATED_CLASS, load_bundled_model
    from camtool.demo.scenes import UNSEEN, draw_scene
    from camtool.evaluation.audit import audit

    labels = [CHEATED_CLASS, "star", "arrow"] * 20
    scenes = [
        draw_scene(UNSEEN + 200_000 + number, classes=[label], mark=label == CHEATED_CLASS).image
        for number, label in enumerate(labels)
    ]
    # Few controls and one kind of cues keep this at seconds.
    result = audit(load_bundled_model("demo-cheat"), scenes, labels, kinds=["place"], controls=9, passes=1500)
    return result.findings[0].sentence if result.findings else "no finding."
