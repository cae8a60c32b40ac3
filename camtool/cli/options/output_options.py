"""Options of the results: folder, kinds and format of files, colors, captions, contact sheets, report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from typer import Option

from camtool.arguments.messages import suggest_names
from camtool.cli.options.map_options import split_names
from camtool.errors import CamtoolError
from camtool.runs.save_kinds import SAVE_KINDS

if TYPE_CHECKING:
    from camtool.rendering.regions import PhotoRegion


Format: TypeAlias = Literal["png", "jpg", "webp", "npz"]
"""File format of the results: images, or arrays."""

Overwrite = Annotated[
    bool, Option("--overwrite", help="Remove what an earlier start left in the folder, and start anew.")
]
Out = Annotated[Path, Option("--out", "--output", metavar="FOLDER", help="Folder for the results.")]


@dataclass(frozen=True)
class DrawingOptions:
    """Options of the colors of overlays.

    Attributes:
        alpha: Opacity of the colors of the overlay.
        colormap: Color map: heat, turbo, viridis, inferno, gray, ...
    """

    panel: ClassVar[str] = "Output"

    alpha: Annotated[float | None, Option(metavar="X", min=0, max=1, show_default="0.7")] = None
    colormap: Annotated[str | None, Option(metavar="NAME", show_default="heat")] = None

    def check(self, out: Path) -> dict[str, Any]:
        """Return the opacity, and the name of the color map, after a check that it exists and the folder is no URL.

        Raises:
            CamtoolError: There is no such color map, or the folder is a URL.
        """
        from camtool.arguments.checks import check_not_url

        style = {"alpha": self.alpha, "colormap": choose_colormap(self.colormap)}
        check_not_url("--out", out, CamtoolError)
        return style


@dataclass(frozen=True)
class PictureOptions(DrawingOptions):
    """Options of the overlays of photos.

    Attributes:
        caption: Write label, probability, method below overlays.
        legend: Draw below overlays what the colors mean.
        enlarge: Enlarge overlays of small photos.
        max_side: Longest side of the images, unless the model needs more. Larger photos are read faster.
    """

    caption: Annotated[bool, Option("--caption")] = False
    legend: Annotated[bool, Option("--legend")] = False
    enlarge: Annotated[bool, Option("--enlarge/--no-enlarge")] = True
    max_side: Annotated[int | None, Option(metavar="PIXELS", min=1, show_default="as the photo")] = None


@dataclass(frozen=True)
class OutputOptions:
    """Options of the folder of a run, and of the files in it."""

    panel: ClassVar[str] = "Output"

    out: Out = Path("out")
    save: Annotated[
        str, Option(metavar="KIND", help=f"Files to write, separated by commas: {', '.join(SAVE_KINDS)}.")
    ] = "overlay"
    format: Annotated[
        Format,
        Option(
            metavar="FORMAT",
            help=f"File format of the images: {', '.join(get_args(Format))}; npz writes the arrays instead, as --save "
            "npz.",
        ),
    ] = "png"
    overwrite: Overwrite = False


@dataclass(frozen=True)
class JsonOption:
    """Option for results that other programs read.

    Attributes:
        as_json: Print the results as JSON.
    """

    as_json: Annotated[bool, Option("--json")] = False


@dataclass(frozen=True)
class PrintOptions(JsonOption):
    """Options of what is printed.

    Attributes:
        quiet: Print errors only.
    """

    quiet: Annotated[bool, Option("--quiet", "-q")] = False

    @property
    def hides_progress(self) -> bool:
        """True if no progress and no notes are printed."""
        return self.quiet or self.as_json


def choose_colormap(name: str | None) -> str:
    """Return the name of a color map; the default one for None.

    Raises:
        CamtoolError: There is no such color map.
    """
    from camtool.rendering import colormaps

    chosen = name or colormaps.DEFAULT_COLORMAP
    colormaps.get_palette(chosen)
    return chosen


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
    if format != "npz":
        return kinds
    pictures = [kind for kind in kinds if SAVE_KINDS[kind].is_picture]
    if pictures:
        raise CamtoolError(
            f"--format npz writes arrays, not pictures; for {', '.join(pictures)} as well, leave it out and give "
            f"--save {','.join([*pictures, 'npz'])}."
        )
    return [*(kind for kind in kinds if kind not in ("raw", "npz")), "npz"]  # npz holds the raw values
