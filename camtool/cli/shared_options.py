"""Options that several commands share: their types, and how their text is parsed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camtool.cli import terminal
from camtool.cli.progress.activity import show_activity
from camtool.errors import CamtoolError
from camtool.slides import SLIDE_SUFFIXES
from camtool.videos import VIDEO_SUFFIXES

if TYPE_CHECKING:
    from camtool.models import Channels, Loaded, Transform
    from camtool.targets import Top

__all__ = [
    "CHANNELS_HELP",
    "DEFAULT_MAX_PIXELS",
    "MODEL_HELP",
    "MODEL_PANEL",
    "WEIGHTS_HELP",
    "Alpha",
    "Axis",
    "AxisOption",
    "Bands",
    "ChannelOrder",
    "ChannelsOption",
    "ColormapName",
    "Config",
    "Device",
    "FigureFolder",
    "FigureFormat",
    "FigureWidth",
    "Frame",
    "Labels",
    "MaxPixels",
    "Mean",
    "MethodOptions",
    "Model",
    "Percentiles",
    "PreprocessingOptions",
    "Scale",
    "ScaleOption",
    "Size",
    "Slice",
    "Std",
    "TransformName",
    "Volume",
    "Weights",
    "Window",
    "announce_user_code",
    "apply_config",
    "check_no_model_names",
    "check_no_other_command",
    "check_output_folder",
    "choose_command",
    "load_model",
    "parse_image_size",
    "parse_method_options",
    "parse_numbers",
    "parse_reading_options",
    "parse_targets",
    "parse_width",
    "read_labels",
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


class Axis(str, Enum):
    """Direction of the slices of a NIfTI volume."""

    axial = "axial"
    coronal = "coronal"
    sagittal = "sagittal"
    ras = "ras"


class Scale(str, Enum):
    """Color scale of panels that stand together: one for each, or one for all."""

    each = "each"
    shared = "shared"


class ChannelOrder(str, Enum):
    """Order of the channels that a model takes."""

    rgb = "rgb"
    bgr = "bgr"
    gray = "gray"


MODEL_PANEL = "Model"
"""Heading in the help above the options that choose a model."""

# Written out, because the sources of models import torch, and the help must be shown at once.
MODEL_HELP = (
    "Name of a torchvision model, timm:NAME, hf:NAME or hf:FOLDER, open_clip:NAME/TAG, ultralytics:FILE, demo, or your "
    "own as package.module:factory, whose code is then run."
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
TransformName = Annotated[
    str | None,
    typer.Option(
        "--transform",
        metavar="NAME",
        help="Your own preprocessing as package.module:function, whose code is then run. By default the model's.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Size of the model's input, e.g. 32 or 224x320 (height x width). Photos cover it, cropped.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Mean of each channel or of all: 0.485,0.456,0.406, or of bytes: 127.5.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Std = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Standard deviation, as --mean.",
        rich_help_panel=MODEL_PANEL,
    ),
]
CHANNELS_HELP = "Channels that the model takes: RGB, BGR, or one of gray."
ChannelsOption = Annotated[
    ChannelOrder | None,
    typer.Option(
        "--channels",
        help=CHANNELS_HELP,
        rich_help_panel=MODEL_PANEL,
    ),
]


def apply_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the entries of a YAML file the defaults of the command's options; those of the command line count more.

    Raises:
        CamtoolError: The file cannot be read, or has an entry that is no option.
    """
    if path is None:
        return None
    from camtool.runs.config_files import convert_value, read_config

    parameters = {
        name.lstrip("-"): parameter
        for parameter in context.command.params
        for name in parameter.opts
        if parameter.name not in ("config", "help") and (name.startswith("--") or not name.startswith("-"))
    }
    found = read_config(path, parameters)
    context.default_map = {
        str(parameters[name].name): convert_value(
            name,
            value,
            is_flag=bool(getattr(parameters[name], "is_flag", False)),
            is_list=parameters[name].nargs == -1 or bool(getattr(parameters[name], "multiple", False)),
        )
        for name, value in found.items()
    }
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=apply_config,
        is_eager=True,
        help="YAML file with options by their names, e.g. 'batch-size: 16'. Those of the command line count more.",
    ),
]

# Written out, because the reader of images imports numpy, and the help must be shown at once.
DEFAULT_MAX_PIXELS = 200_000_000
MaxPixels = Annotated[
    int,
    typer.Option(
        "--max-pixels", metavar="N", min=1, help="Most pixels of a photo; larger ones are not decoded, and fail."
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


_READING_PANEL = "DICOM, NIfTI, GeoTIFF, microscopy"


def _describe_reading(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=_READING_PANEL)


Bands = Annotated[str | None, _describe_reading("N,N,N", "Bands, from 1, e.g. 4,3,2 for red, green and blue.")]
Window = Annotated[str | None, _describe_reading("CENTER,WIDTH", "Values from black to white, e.g. 40,400.")]
Percentiles = Annotated[str | None, _describe_reading("LOW,HIGH", "The same as percentiles of each band, e.g. 2,98.")]
Slice = Annotated[str | None, _describe_reading("N", "Slice, page or DICOM frame, from 0, or 'middle'.")]
Volume = Annotated[
    bool,
    typer.Option(
        "--volume",
        help="Explain a folder of DICOM slices as one volume, or with --slice one slice of it; by default each file.",
        rich_help_panel=_READING_PANEL,
    ),
]
Frame = Annotated[int | None, _describe_reading("N", "Time step, from 0.")]
AxisOption = Annotated[Axis | None, _describe_reading("AXIS", "Slices of NIfTI: axial, coronal, sagittal, ras.")]


@dataclass(frozen=True)
class PreprocessingOptions:
    """The preprocessing that the user stated; None where the model's own counts.

    Attributes:
        transform: ``"package.module:function"``.
        size: Height and width of the input.
        mean: Mean of each channel, or one for all.
        std: Standard deviation, as ``mean``.
        channels: The order of the channels.
    """

    transform: str | None = None
    size: tuple[int, int] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    channels: Channels | None = None

    @classmethod
    def parse(
        cls,
        transform: str | None = None,
        size: str | None = None,
        mean: str | None = None,
        std: str | None = None,
        channels: ChannelOrder | None = None,
    ) -> PreprocessingOptions:
        """Return the options in the texts of the command line, checked as far as that is possible without the model.

        Raises:
            CamtoolError: A text has another form, or the options contradict each other.
        """
        parts = {"--size": size, "--mean": mean, "--std": std, "--channels": channels}
        given = [name for name, value in parts.items() if value is not None]
        if transform is not None and given:
            raise CamtoolError(
                f"--transform is the whole preprocessing, so {' and '.join(given)} cannot be given with it; do that in "
                "the transform, or leave out --transform."
            )
        if (mean is None) != (std is None):
            raise CamtoolError(f"{'--mean' if std is None else '--std'} is given alone; give --mean and --std.")
        means, stds = parse_numbers("--mean", mean, channels), parse_numbers("--std", std, channels)
        if means is not None and stds is not None:
            from camtool.models import scale_statistics

            scale_statistics(means, stds)
        order: Channels | None = None if channels is None else channels.value
        return cls(transform, None if size is None else parse_image_size(size), means, stds, order)

    @property
    def is_empty(self) -> bool:
        """True if the user stated nothing."""
        return self == PreprocessingOptions()

    def build_alone(self) -> Transform | None:
        """Return the transform if the options state all of it; None if the model's own is needed, too."""
        from camtool.models import build_preprocessing, load_transform

        if self.transform is not None:
            return load_transform(self.transform)
        if self.size is None or self.mean is None:
            return None
        return build_preprocessing(None, size=self.size, mean=self.mean, std=self.std, channels=self.channels)

    def build_for(self, loaded: Loaded) -> Transform | None:
        """Return the transform for a model whose own one is completed or changed.

        Raises:
            ModelError: The model cannot take what it makes.
        """
        from camtool.models import build_preprocessing, check_fits_model, find_input_size, find_transform

        transform = self.build_alone()
        if transform is None:
            transform = build_preprocessing(
                loaded.transform or find_transform(loaded.model),
                size=self.size,
                mean=self.mean,
                std=self.std,
                channels=self.channels,
                default_size=find_input_size(loaded.model),
            )
        if self.transform is None:  # the user's own function may fail on anything but a real photo
            check_fits_model(loaded.model, transform, "the preprocessing of --size, --mean, --std and --channels")
        return transform


def load_model(
    name: str,
    weights: str | None,
    *,
    labels: Path | None = None,
    device: str = "auto",
    is_quiet: bool = False,
    preprocessing: PreprocessingOptions = PreprocessingOptions(),
) -> Loaded:
    """Load a model with its preprocessing, and show on standard error that it loads, and what decided about it.

    Raises:
        CamtoolError: The model, the weights, the labels or the device is not available, or the preprocessing does not
            fit the model.
    """
    from camtool.models import load

    where = _choose_device(device)
    label_names = None if labels is None else read_labels(labels)
    if not is_quiet:
        announce_user_code(name, preprocessing.transform)
    # Standard output is for results. torch prints to it when it downloads; older versions print to standard error.
    with redirect_stderr(StringIO()) if is_quiet else show_activity(f"Loading {name}"), redirect_stdout(sys.stderr):
        loaded = load(name, weights, labels=label_names, device=where, transform=preprocessing.build_alone())
        if not preprocessing.is_empty:
            loaded = replace(loaded, transform=preprocessing.build_for(loaded))
    if loaded.transform_file is not None and not is_quiet:
        terminal.print_note(f"Preprocessing is that of {loaded.transform_file}.")
    return loaded


def announce_user_code(model: str, transform: str | None = None) -> None:
    """Say on standard error which code the command runs because the user named it."""
    from camtool.models import may_run_code

    named = {"--transform": transform, "--model": model if may_run_code(model) else None}
    for option, name in named.items():
        if name is not None:
            terminal.print_note(f"{option} {name} runs the Python code of {name.rpartition(':')[0]}.")


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


def read_labels(path: Path) -> list[str]:
    """Return the class names in a text file, one a line, or in a JSON list.

    Raises:
        CamtoolError: The file cannot be read as either.
    """
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


def parse_reading_options(
    *,
    bands: str | None,
    window: str | None,
    percentiles: str | None,
    slice: str | None,  # noqa: A002
    axis: Axis | None,
    frame: int | None,
    max_pixels: int,
) -> dict[str, Any]:
    """Return the options of :func:`camtool.open_image` that were given.

    Raises:
        CamtoolError: A text is no list of numbers, or an option is not allowed.
    """
    from camtool.inputs.formats.reading_options import ReadingOptions

    options = {
        "bands": _parse_numbers("--bands", bands, "4,3,2", int),
        "window": _parse_numbers("--window", window, "40,400", float),
        "percentiles": _parse_numbers("--percentiles", percentiles, "2,98", float),
        "slice": slice if slice is None or slice == "middle" else _parse_numbers("--slice", slice, "45", int)[0],
        "axis": None if axis is None else axis.value,
        "frame": frame,
        "max_pixels": max_pixels,
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
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise CamtoolError(f"{option} {text!r} is not a list of numbers; give e.g. {option} {example}.") from error


def split_names(texts: list[str]) -> list[str]:
    """Return the names in texts that are each a list separated by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def parse_numbers(option: str, text: str | None, channels: ChannelOrder | None) -> list[float] | None:
    """Return the numbers in ``"0.5"`` or ``"0.485,0.456,0.406"``: one, or one for each channel.

    Raises:
        CamtoolError: A number cannot be read, or there are more or fewer.
    """
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    allowed = (1,) if channels is ChannelOrder.gray else (1, 3)
    if len(numbers) not in allowed:
        example = "0.449" if channels is ChannelOrder.gray else "0.485,0.456,0.406"
        kind = "one number for gray" if channels is ChannelOrder.gray else "one number or three"
        raise CamtoolError(f"{option} {text!r} is not {kind}; give e.g. {example}.")
    return numbers


def parse_width(text: str) -> float | str:
    """Return the inches of a number, or else the name of a width."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text


def parse_image_size(text: str) -> tuple[int, int]:
    """Return the height and the width in ``"224"`` or ``"224x320"``.

    Raises:
        CamtoolError: The text has another form, or a side is 0 or has more than five digits.
    """
    found = re.fullmatch(r"(\d{1,5})(?: ?x ?(\d{1,5}))?", text, re.ASCII)
    height, width = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if min(height, width) < 1:
        raise CamtoolError(f"--size {text!r} is not an image size; give a side in pixels, or e.g. 224x320.")
    return height, width
