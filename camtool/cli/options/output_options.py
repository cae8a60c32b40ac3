"""Options of the results: folder, kinds and format of files, colors, captions, contact sheets, report."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camtool.arguments.messages import suggest_names
from camtool.cli.options.map_options import split_names
from camtool.cli.options.panels import OUTPUT_PANEL
from camtool.errors import CamtoolError
from camtool.runs.save_kinds import SAVE_KINDS

if TYPE_CHECKING:
    from camtool.rendering.regions import PhotoRegion

__all__ = [
    "Alpha",
    "AlphaOfRun",
    "Caption",
    "ColormapName",
    "ColormapNameOfRun",
    "Enlarge",
    "Format",
    "FormatOption",
    "Json",
    "Legend",
    "MaxSide",
    "Out",
    "Overwrite",
    "Quiet",
    "Regions",
    "Report",
    "RetryFailed",
    "Save",
    "Sheet",
    "Verbose",
    "check_output_folder",
    "check_overlays_are_saved",
    "choose_colormap",
    "parse_kinds",
    "parse_regions",
]


class Format(str, Enum):
    """File format of the results: images, or arrays."""

    png = "png"
    jpg = "jpg"
    webp = "webp"
    npz = "npz"


Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the results.", rich_help_panel=OUTPUT_PANEL)]
Save = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help=f"Files to write, separated by commas: {', '.join(SAVE_KINDS)}.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        help="File format of the images; npz writes the arrays instead, as --save npz.", rich_help_panel=OUTPUT_PANEL
    ),
]
Caption = Annotated[
    bool,
    typer.Option("--caption", help="Write label, probability and method below overlays.", rich_help_panel=OUTPUT_PANEL),
]
Legend = Annotated[
    bool, typer.Option("--legend", help="Draw below overlays what the colors mean.", rich_help_panel=OUTPUT_PANEL)
]
Regions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]REGION",
        help="Measure the share of the heat in a region: bottom-left, border, center, ..., a box in percent "
        "(0%,80%,30%,100%) or pixels, or a folder with a mask of each photo. Repeat it for several.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
Sheet = Annotated[
    bool, typer.Option("--sheet", help="Draw all overlays on contact sheets.", rich_help_panel=OUTPUT_PANEL)
]


def _describe_alpha(panel: str | None = None) -> Any:
    return typer.Option(
        metavar="X",
        min=0,
        max=1,
        help="Opacity of the colors of the overlay.",
        show_default="0.7",
        rich_help_panel=panel,
    )


def _describe_colormap(panel: str | None = None) -> Any:
    return typer.Option(
        metavar="NAME",
        help="Color map: heat, turbo, viridis, inferno, gray, ...",
        show_default="heat",
        rich_help_panel=panel,
    )


Alpha = Annotated[float | None, _describe_alpha()]
AlphaOfRun = Annotated[float | None, _describe_alpha(OUTPUT_PANEL)]
ColormapName = Annotated[str | None, _describe_colormap()]
ColormapNameOfRun = Annotated[str | None, _describe_colormap(OUTPUT_PANEL)]
Enlarge = Annotated[
    bool,
    typer.Option("--enlarge/--no-enlarge", help="Enlarge overlays of small photos.", rich_help_panel=OUTPUT_PANEL),
]
MaxSide = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        min=1,
        help="Longest side of the images, unless the model needs more. Larger photos are read faster.",
        show_default="as the photo",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
Report = Annotated[
    bool,
    typer.Option(
        "--report/--no-report", help="Write index.html, a page with all explanations.", rich_help_panel=OUTPUT_PANEL
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Remove the run that is in the folder, and start anew.", rich_help_panel=OUTPUT_PANEL
    ),
]
RetryFailed = Annotated[
    bool,
    typer.Option(
        "--retry-failed", help="Try photos again that failed in an earlier start.", rich_help_panel=OUTPUT_PANEL
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Verbose = Annotated[
    bool | None,
    typer.Option("--verbose/--no-verbose", "-v", help="Print a line for each photo.", show_default="on a terminal"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


def choose_colormap(name: str | None) -> str:
    """Return the name of a color map; the default one for None.

    Raises:
        CamtoolError: There is no such color map.
    """
    from camtool.rendering import colormaps

    chosen = name or colormaps.DEFAULT_COLORMAP
    colormaps.get_palette(chosen)
    return chosen


def check_output_folder(out: Path) -> None:
    """Check that the output folder is no URL.

    Raises:
        CamtoolError: It is one.
    """
    from camtool.arguments.checks import check_not_url

    check_not_url("--out", out, CamtoolError)


def check_overlays_are_saved(kinds: list[str], *, caption: bool, sheet: bool, legend: bool = False) -> None:
    """Check that overlays are written, if options ask for something on them.

    Raises:
        CamtoolError: They are not.
    """
    for name, is_asked in (("--caption", caption), ("--sheet", sheet), ("--legend", legend)):
        if is_asked and "overlay" not in kinds:
            raise CamtoolError(f"{name} needs overlays, but --save names {', '.join(kinds)}; add overlay to --save.")


def parse_regions(texts: list[str] | None, max_side: int | None) -> dict[str, PhotoRegion | Path]:
    """Return name → region, or folder of masks.

    Raises:
        CamtoolError: A region is unknown, a name is taken, or a box in pixels comes with photos that are reduced.
    """
    from camtool.rendering.regions import PhotoRegion

    regions: dict[str, PhotoRegion | Path] = {}
    for text in texts or []:
        name, is_named, value = text.partition("=")
        value = value if is_named else text
        if name in regions:
            raise CamtoolError(f"--region: two regions are named {name!r}; give another name: NAME=REGION.")
        folder = Path(value)
        regions[name] = region = folder if folder.is_dir() else PhotoRegion.parse(value)
        if max_side is not None and isinstance(region, PhotoRegion) and not region.in_percent:
            raise CamtoolError(f"--region {value} is in pixels, and --max-side reduces photos; give percent.")
    return regions


def parse_kinds(save: str, format: Format) -> list[str]:  # noqa: A002
    """Return the kinds of files in a list separated by commas.

    Raises:
        CamtoolError: There is no such kind, or it does not go with the format.
    """
    kinds = list(dict.fromkeys(split_names([save])))
    for kind in kinds:
        if kind not in SAVE_KINDS:
            raise CamtoolError(
                f"--save {kind!r} is unknown. Known kinds: {', '.join(SAVE_KINDS)}.{suggest_names(kind, SAVE_KINDS)}"
            )
    if format is not Format.npz:
        return kinds
    pictures = [kind for kind in kinds if SAVE_KINDS[kind].is_picture]
    if pictures:
        raise CamtoolError(
            f"--format npz writes arrays, not pictures; for {', '.join(pictures)} as well, leave it out and give "
            f"--save {','.join([*pictures, 'npz'])}."
        )
    return [*(kind for kind in kinds if kind not in ("raw", "npz")), "npz"]  # npz holds the raw values
