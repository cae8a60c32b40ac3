"""Arguments and options that choose the photos of a run, and the command for a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from camtool.errors import CamtoolError
from camtool.slides import SLIDE_SUFFIXES
from camtool.videos import VIDEO_SUFFIXES

if TYPE_CHECKING:
    from camtool.runs.job_list import Plan

Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Explain the first N photos only.")]

Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Read subfolders too.")]

Seed = Annotated[int, typer.Option(metavar="N", help="Seed of all that is random.")]


@dataclass(frozen=True)
class PhotoOptions:
    """Arguments and options that choose the photos.

    Attributes:
        paths: Photos, folders, patterns such as 'a/**/*.jpg', or URLs of photos.
        shuffle: Explain in random order; with --limit a sample.
        seed: Number that chooses the random order.
    """

    panel: ClassVar[str] = "Photos"

    paths: Annotated[list[str], typer.Argument(metavar="PATH")]
    recursive: Recursive = False
    limit: Limit = None
    shuffle: Annotated[bool, typer.Option("--shuffle")] = False
    seed: Annotated[int, typer.Option(metavar="N")] = 0


def check_no_model_names(paths: list[str]) -> None:
    """Check that no missing path is the name of a model, given without ``--model``.

    Raises:
        CamtoolError: One is.
    """
    from camtool.arguments.checks import is_web_address
    from camtool.inputs import image_files
    from camtool.models import is_model_name

    for path in paths:
        if (
            not is_web_address(path)
            and not Path(path).exists()
            and not image_files.has_image_suffix(path)
            and is_model_name(path)
        ):
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
