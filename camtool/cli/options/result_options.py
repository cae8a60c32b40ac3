"""Options of the map (method, target, layer, placement) and of what is written: folder, files, colors, captions."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from typer import Option

from camtool.arguments.message_parts import suggest_names
from camtool.errors import CamtoolError
from camtool.runs.save_kinds import SAVE_KINDS

if TYPE_CHECKING:
    from camtool.rendering.regions import PhotoRegion
    from camtool.targets import AllDetections, Top

# Placement of a layer's grid on the model's input.
Placement: TypeAlias = Literal["centers", "stretch"]

_OPTION_HELP = "Option of the method, e.g. samples=50; for a list: camtool methods NAME. Repeat it for several."
_OPTION = Option(metavar="NAME=VALUE", help=_OPTION_HELP)


@dataclass(frozen=True)
class MethodOptions:
    """Options that choose one method and its layer.

    Attributes:
        method: Method; for a list: camtool methods.
        layer: Layer; for a list: camtool layers MODEL.
    """

    panel: ClassVar[str] = "Map"

    method: Annotated[str, Option(metavar="NAME")] = "gradcam"
    layer: Annotated[str | None, Option(metavar="NAME", show_default="the best one")] = None
    option: Annotated[list[str] | None, _OPTION] = None


@dataclass(frozen=True)
class MapOptions:
    """Options that choose methods, targets and layers.

    Attributes:
        method: Method, see camtool methods. Repeat it, or use commas, for several.
        target: Class index, class name, top1, top3, ..., or detections[:CONFIDENCE] for all that a detector reports;
            group:dog for all dogs as one, 'dog vs wolf' to compare, within:dog for two dogs; for CLIP-like models a
            text. Repeat it for several.
        layer: Layer; for a list: camtool layers MODEL. Repeat it for several.
        merge: How to merge maps of layers: mean, max, ...
        placement: Draw each cell at the center of its receptive field, or stretch the grid.
        verify: Test where the heat lies: of all photos, or of the first of each size.
    """

    panel: ClassVar[str] = "Map"

    method: Annotated[list[str], Option(metavar="NAME")] = field(default_factory=lambda: ["gradcam"])
    target: Annotated[list[str] | None, Option(metavar="TARGET", show_default="top1")] = None
    layer: Annotated[list[str] | None, Option(metavar="NAME", show_default="the best one")] = None
    merge: Annotated[str, Option(metavar="NAME")] = "mean"
    placement: Placement = "centers"
    verify: Literal["places", "sizes"] = "sizes"
    option: Annotated[list[str] | None, _OPTION] = None


def find_methods(texts: list[str], settings: Mapping[str, Any], reserved: Collection[str]) -> list[str]:
    """Return the names of the methods, each once, and check that their options and the merge exist.

    Args:
        texts: Lists of names, separated by commas.
        settings: The settings of the explainer.
        reserved: Names of settings that are no options of a method.

    Raises:
        CamtoolError: There is no such method, option or merge.
    """
    from camtool import methods
    from camtool.methods.merges import get_merge

    names = split_names(texts)
    if not names:
        raise CamtoolError(f"--method names no method. Known methods: {', '.join(methods.METHODS)}.")
    chosen = [methods.find_method(name) for name in names]
    methods.check_options(chosen, {name: value for name, value in settings.items() if name not in reserved})
    get_merge(settings["merge"])
    return list(dict.fromkeys(method.name for method in chosen))


def parse_targets(texts: list[str] | None) -> list[Top | AllDetections | int | str]:
    """Return the target of each text: ``"top3"``, ``"detections:0.5"``, a class index, or a label.

    None gives the most probable class.

    Raises:
        CamtoolError: The confidence is not a number from 0 to 1.
    """
    from camtool.targets import AllDetections, Top

    def parse(text: str) -> Top | AllDetections | int | str:
        detections = re.fullmatch(r"detections(?::(.*))?", text)
        if detections:
            return AllDetections(None if detections[1] is None else _parse_confidence(text, detections[1]))
        top = re.fullmatch(r"top(\d+)", text)
        if top and int(top[1]) > 0:
            return Top(int(top[1]))
        return int(text) if text.isdecimal() else text

    return [parse(text) for text in texts or ["top1"]]


def _parse_confidence(text: str, number: str) -> float:
    """Return the number of ``detections:NUMBER``."""
    confidence = -1.0
    with suppress(ValueError):
        confidence = float(number)
    if not 0 <= confidence <= 1:
        raise CamtoolError(f"--target {text}: the confidence must be a number from 0 to 1, e.g. detections:0.5.")
    return confidence


def parse_method_options(texts: list[str] | None, reserved: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of ``NAME=VALUE`` texts by name.

    A value that is JSON, such as 50, 0.5, true or [1, 2], is read as JSON; any other is a string.

    Args:
        texts: The texts.
        reserved: Names that have command line options of their own.

    Raises:
        CamtoolError: A text has another form, or its name is reserved.
    """
    options = {}
    for option in texts or []:
        name, equals, text = option.partition("=")
        if not equals or not name.isidentifier():
            raise CamtoolError(f"--option {option!r} is not of the form NAME=VALUE, e.g. samples=50.")
        if name in reserved:
            raise CamtoolError(f"--option {option!r} is not an option of a method; use --{name.replace('_', '-')}.")
        options[name] = text
        with suppress(ValueError, RecursionError):
            options[name] = json.loads(text)
    return options


def split_names(texts: list[str]) -> list[str]:
    """Return the names in texts that are each a list separated by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


# File format of the results: images, or arrays.
Format: TypeAlias = Literal["png", "jpg", "webp", "npz"]

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


_KINDS_HELP = f"Files to write, separated by commas: {', '.join(SAVE_KINDS)}."
_FORMATS = ", ".join(get_args(Format))
_FORMAT_HELP = f"File format of the images: {_FORMATS}; npz writes the arrays instead, as --save npz."


@dataclass(frozen=True)
class OutputOptions:
    """Options of the folder of a run, and of the files in it."""

    panel: ClassVar[str] = "Output"

    out: Out = Path("out")
    save: Annotated[str, Option(metavar="KIND", help=_KINDS_HELP)] = "overlay"
    format: Annotated[Format, Option(metavar="FORMAT", help=_FORMAT_HELP)] = "png"
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
