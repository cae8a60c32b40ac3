"""Options that choose the photos of a run and what is read of each; and the command for a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from typer import Argument, Option

from camtool.errors import CamtoolError, RaiseAs
from camtool.slides import SLIDE_SUFFIXES
from camtool.videos import VIDEO_SUFFIXES

if TYPE_CHECKING:
    from camtool.runs.job_list import Plan

Limit = Annotated[int | None, Option(metavar="N", min=1, help="Explain the first N photos only.")]

Recursive = Annotated[bool, Option("--recursive", "-r", help="Read subfolders too.")]

Seed = Annotated[int, Option(metavar="N", help="Seed of all that is random.")]


@dataclass(frozen=True)
class PhotoOptions:
    """Arguments and options that choose the photos.

    Attributes:
        paths: Photos, folders, patterns such as 'a/**/*.jpg', or URLs of photos.
        shuffle: Explain in random order; with --limit a sample.
        seed: Number that chooses the random order.
    """

    panel: ClassVar[str] = "Photos"

    paths: Annotated[list[str], Argument(metavar="PATH")]
    recursive: Recursive = False
    limit: Limit = None
    shuffle: Annotated[bool, Option("--shuffle")] = False
    seed: Annotated[int, Option(metavar="N")] = 0


def check_no_model_names(paths: list[str]) -> None:
    """Check that no missing path is the name of a model, given without ``--model``.

    Raises:
        CamtoolError: One is.
    """
    from camtool.arguments.checks import is_web_address
    from camtool.inputs import image_files
    from camtool.models.loading import is_model_name

    for path in paths:
        is_photo = is_web_address(path) or Path(path).exists() or image_files.has_image_suffix(path)
        if not is_photo and is_model_name(path):
            raise CamtoolError(f"path {path!r} is the name of a model, not a photo; give it as --model {path}.")


def choose_command(path: str) -> str:
    """Return the command that explains a file of this name: ``"video"``, ``"slide"`` or else ``"run"``."""
    suffix = Path(path).suffix.lower()
    return "video" if suffix in VIDEO_SUFFIXES else "slide" if suffix in SLIDE_SUFFIXES else "run"


def check_no_other_command(paths: list[str]) -> None:
    """Check that no path is a video or a slide.

    Raises:
        CamtoolError: One is.
    """
    for path in paths:
        command = choose_command(path)
        if command != "run":
            raise CamtoolError(f"path {path!r} is a {command}, not a photo; explain it with: camtool {command} {path}")


def plan_folder(folder: str, out: Path, *, recursive: bool, limit: int | None) -> Plan:
    """Return the photos of a folder, without the results in ``out``.

    Raises:
        ImageError: The folder is a URL.
    """
    from camtool.arguments.checks import check_not_url
    from camtool.errors import ImageError
    from camtool.runs.job_list import plan_run, select_jobs

    check_not_url("folder", folder, ImageError)
    return select_jobs(plan_run([folder], recursive=recursive, out=out), limit=limit, shuffle=False, seed=0)


# Written out, because the reader of images imports numpy, and the help must be shown at once.
DEFAULT_MAX_PIXELS = 200_000_000


# Direction of the slices of a NIfTI volume.
Axis: TypeAlias = Literal["axial", "coronal", "sagittal", "ras"]


@dataclass(frozen=True)
class PixelOptions:
    """Options that choose what is read of a photo.

    Attributes:
        bands: Bands, from 1, e.g. 4,3,2 for red, green and blue.
        window: Range of the values, e.g. 40,400.
        percentiles: The same as percentiles of each band, e.g. 2,98.
        slice: Slice, page or frame, from 0, or 'middle'.
        axis: NIfTI: axial, coronal, sagittal, ras.
        frame: Time step, from 0.
        max_pixels: Most pixels of a photo; larger ones are not decoded, and fail.
    """

    panel: ClassVar[str] = "Scientific formats"

    bands: Annotated[str | None, Option(metavar="N,N,N")] = None
    window: Annotated[str | None, Option(metavar="CENTER,WIDTH")] = None
    percentiles: Annotated[str | None, Option(metavar="LOW,HIGH")] = None
    slice: Annotated[str | None, Option(metavar="N")] = None
    axis: Annotated[Axis | None, Option(metavar="AXIS")] = None
    frame: Annotated[int | None, Option(metavar="N")] = None
    max_pixels: Annotated[int, Option(metavar="N", min=1, rich_help_panel="Photos")] = DEFAULT_MAX_PIXELS

    def parse(self) -> dict[str, Any]:
        """Return the options of :func:`camtool.open_image` that were given, and the limits of runs.

        Raises:
            CamtoolError: A text is no list of numbers, or an option is not allowed.
        """
        from camtool.inputs.formats.reading_options import MAX_DRAWN, RUN_MEMORY, ReadingOptions

        numbered = self.slice not in (None, "middle")
        options = {
            "bands": _parse_numbers("--bands", self.bands, "4,3,2", int),
            "window": _parse_numbers("--window", self.window, "40,400", float),
            "percentiles": _parse_numbers("--percentiles", self.percentiles, "2,98", float),
            "slice": _parse_numbers("--slice", self.slice, "45", int)[0] if numbered else self.slice,
            "axis": self.axis,
            "frame": self.frame,
            "max_pixels": self.max_pixels,
            "max_memory": RUN_MEMORY if self.max_pixels <= DEFAULT_MAX_PIXELS else None,
            "max_drawn": MAX_DRAWN,
        }
        given = {name: value for name, value in options.items() if value is not None}
        ReadingOptions.from_user(given)
        return given


def _parse_numbers(option: str, text: str | None, example: str, kind: Callable[[str], Any]) -> Any:
    """Return the numbers in a list separated by commas.

    Raises:
        CamtoolError: A part of it is no number.
    """
    if text is None:
        return None
    message = f"{option} {text!r} is not a list of numbers; give e.g. {option} {example}."
    with RaiseAs(lambda _: CamtoolError(message), ValueError):
        return tuple(kind(part) for part in text.split(","))
