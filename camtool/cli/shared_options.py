"""Options that several commands share: their types, and how their text is parsed."""

from __future__ import annotations

import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from camtool.cli import terminal
from camtool.errors import CamtoolError
from camtool.runs.text_escapes import escape_hidden
from camtool.slides import SLIDE_SUFFIXES
from camtool.videos import VIDEO_SUFFIXES

if TYPE_CHECKING:
    from camtool.models import Loaded
    from camtool.targets import Top

__all__ = [
    "MODEL_HELP",
    "MODEL_PANEL",
    "WEIGHTS_HELP",
    "Alpha",
    "ColormapName",
    "Device",
    "FigureFolder",
    "FigureFormat",
    "FigureWidth",
    "Labels",
    "MethodOptions",
    "Model",
    "Scale",
    "ScaleOption",
    "Weights",
    "check_no_model_names",
    "check_no_other_command",
    "check_output_folder",
    "choose_command",
    "load_model",
    "parse_image_size",
    "parse_method_options",
    "parse_targets",
    "parse_width",
    "split_names",
]


class Device(str, Enum):
    """Device that the model runs on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class FigureFormat(str, Enum):
    """File format of figures."""

    png = "png"
    pdf = "pdf"
    svg = "svg"


class Scale(str, Enum):
    """Color scale of panels that stand together: one for each, or one for all."""

    each = "each"
    shared = "shared"


MODEL_PANEL = "Model"
"""Heading in the help above the options that choose a model."""

# Written out, because the sources of models import torch, and the help must be shown at once.
MODEL_HELP = (
    "Name of a torchvision model, timm:NAME, hf:NAME or hf:FOLDER, open_clip:NAME/TAG, ultralytics:FILE, demo, or your "
    "own as package.module:factory."
)

Model = Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP, rich_help_panel=MODEL_PANEL)]
WEIGHTS_HELP = "File of weights: .safetensors, .pt or .pth."
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help=WEIGHTS_HELP,
        show_default="the pretrained ones, downloaded",
        rich_help_panel=MODEL_PANEL,
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Class names: a text file with one a line, or a JSON list.",
        exists=True,
        dir_okay=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
MethodOptions = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Option of the method; see camtool methods NAME. Repeat it for several."),
]
Alpha = Annotated[
    float | None,
    typer.Option(metavar="X", min=0, max=1, help="Opacity of the colors of the overlay.", show_default="0.7"),
]
ColormapName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Color map: heat, turbo, viridis, ...", show_default="heat")
]
FigureFolder = Annotated[Path, typer.Option("--out", "--output", metavar="FOLDER", help="Folder for the figures.")]
FormatOption = Annotated[FigureFormat, typer.Option(help="File format of the figures.")]
FigureWidth = Annotated[
    str, typer.Option(metavar="WIDTH", help="Width: 'single' or 'double' column, or a number of inches.")
]
ScaleOption = Annotated[Scale, typer.Option(help="Color scale: shared by all panels, or each its own.")]


def load_model(
    name: str, weights: str | None, *, labels: Path | None = None, device: str = "auto", is_quiet: bool = False
) -> Loaded:
    """Load a model, and show on standard error that it loads.

    Raises:
        CamtoolError: The model, the weights, the labels or the device is not available.
    """
    from camtool.models import load

    where = _choose_device(device)
    label_names = None if labels is None else _read_labels(labels)
    status = terminal.err.status(Text(f"Loading {escape_hidden(name)} ..."))
    # Standard output is for results. torch prints to it when it downloads; older versions print to standard error.
    with redirect_stderr(StringIO()) if is_quiet else status, redirect_stdout(sys.stderr):
        return load(name, weights, labels=label_names, device=where)


def _choose_device(asked: str) -> str:
    """Return the name of an available device; the fastest for "auto"."""
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    found = [name for name, is_available in available.items() if is_available]
    if asked == "auto":
        return found[0]
    if asked not in found:
        raise CamtoolError(f"--device {asked} is not available on this machine. Available: {', '.join(found)}.")
    return asked


def _read_labels(path: Path) -> list[str]:
    """Return the class names in a text file, one a line, or in a JSON list."""
    try:
        # Editors on Windows put a byte order mark at the start of UTF-8 files.
        text = path.read_text(encoding="utf-8-sig")
        labels = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except ValueError as error:  # not UTF-8, or not JSON
        raise CamtoolError(f"--labels {path} cannot be read: {error}.") from error
    if not isinstance(labels, list):
        raise CamtoolError(f"--labels {path} holds a JSON {type(labels).__name__}; give a JSON list of names.")
    return [str(label) for label in labels]


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
            and Path(path).suffix.lower() not in image_files.IMAGE_SUFFIXES
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


def check_output_folder(out: Path) -> None:
    """Check that the output folder is no URL.

    Raises:
        CamtoolError: It is one.
    """
    from camtool.arguments.checks import check_not_url

    check_not_url("--out", out, CamtoolError)


def parse_targets(texts: list[str] | None) -> list[Top | int | str]:
    """Return the target of each text: ``"top3"``, a class index, or a label. None gives the most probable class."""
    from camtool.targets import Top

    def parse(text: str) -> Top | int | str:
        top = re.fullmatch(r"top(\d+)", text)
        if top and int(top[1]) > 0:
            return Top(int(top[1]))
        return int(text) if text.isdecimal() else text

    return [parse(text) for text in texts or ["top1"]]


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
    for each in texts or []:
        name, equals, text = each.partition("=")
        if not equals or not name.isidentifier():
            raise CamtoolError(f"--option {each!r} is not of the form NAME=VALUE, e.g. samples=50.")
        if name in reserved:
            raise CamtoolError(f"--option {each!r} is not an option of a method; use --{name.replace('_', '-')}.")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def split_names(texts: list[str]) -> list[str]:
    """Return the names in texts that are each a list separated by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def parse_width(text: str) -> float | str:
    """Return the inches of a number, or else the name of a width."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text


def parse_image_size(text: str) -> tuple[int, int]:
    """Return the height and the width in ``"224"`` or ``"224x320"``.

    Raises:
        CamtoolError: The text has another form, or a side is under 32 pixels, which most models shrink to nothing.
    """
    found = re.fullmatch(r"(\d+)(?: ?x ?(\d+))?", text)
    height, width = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if min(height, width) < 32:
        raise CamtoolError(f"--size {text!r} is not an image size; give a side of 32 or more, or e.g. 224x320.")
    return height, width
