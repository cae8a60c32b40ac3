"""Options that choose the model, the names of its classes and the preprocessing, and how they load it."""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from typer import Argument, Option

from camtool.cli import terminal
from camtool.errors import CamtoolError

if TYPE_CHECKING:
    from camtool.models import Loaded, StatedPreprocessing


# Device that the model runs on.
Device: TypeAlias = Literal["auto", "cpu", "cuda", "mps"]

# Engine that runs the model.
Engine: TypeAlias = Literal["eager", "prepared", "torch.compile", "onnxruntime", "openvino", "auto"]

# Written out, because the sources of models import torch, and the help must be shown at once.
MODEL_HELP = (
    "Name of a torchvision model, timm:NAME, hf:NAME or hf:FOLDER, open_clip:NAME/TAG, ultralytics:FILE, demo, "
    "demo-cheat, a file model.onnx, model.xml, model.tflite or model.keras, or your own as package.module:factory, "
    "whose code is then run."
)

WEIGHTS_HELP = "File of weights: .safetensors, .pt or .pth."
_ENGINE_HELP = f"How the model runs: {', '.join(get_args(Engine))}. See docs/engines.md."
BatchSize = Annotated[int, Option(metavar="N", min=1, help="Images in a batch.", rich_help_panel="Model")]
EngineOption = Annotated[Engine, Option(metavar="NAME", help=_ENGINE_HELP, rich_help_panel="Model")]


def build_file_option(**settings: Any) -> Any:
    """Return the option of a file, which must exist."""
    return Option(metavar="FILE", exists=True, dir_okay=False, **settings)


@dataclass(frozen=True)
class LabelOptions:
    """Option for the names of the classes.

    Attributes:
        labels: Class names: cat,dog; or a file: a text, one name a line, or a JSON list.
    """

    panel: ClassVar[str] = "Labels"

    labels: Annotated[str | None, Option(metavar="NAMES")] = None


@dataclass(frozen=True)
class ModelOptions:
    """Options that choose the model, and where it runs.

    Attributes:
        device: Device the model runs on.
    """

    panel: ClassVar[str] = "Model"

    model: Annotated[str, Option(metavar="NAME", help=MODEL_HELP)] = "resnet50"
    weights: Annotated[
        str | None, Option(metavar="FILE", help=WEIGHTS_HELP, show_default="the pretrained ones, downloaded")
    ] = None
    device: Device = "auto"

    def load(
        self, labels: str | None = None, preprocessing: StatedPreprocessing | None = None, *, is_quiet: bool = False
    ) -> Loaded:
        """Load the model with its preprocessing, and show on standard error that it loads, and what decided about it.

        Raises:
            CamtoolError: The model, the weights, the labels or the device is not available, or the preprocessing does
                not fit the model.
        """
        from camtool.models import StatedPreprocessing, load_with_preprocessing
        from camtool.models.weights import WeightsWarning

        stated = preprocessing or StatedPreprocessing()
        where = choose_device(self.device)
        if not is_quiet:
            announce_user_code(self.model, stated.transform)
        # Standard output is for results. torch prints to it when it downloads; older versions print to standard error.
        with (
            terminal.print_warnings(WeightsWarning, is_quiet=is_quiet),
            redirect_stderr(StringIO()) if is_quiet else terminal.show_activity(f"Loading {self.model}"),
            redirect_stdout(sys.stderr),
        ):
            loaded = load_with_preprocessing(
                self.model, self.weights, labels=labels, device=where, preprocessing=stated
            )
        if loaded.transform_file is not None and not is_quiet:
            terminal.print_note(f"Preprocessing is that of {loaded.transform_file}.")
        return loaded


@dataclass(frozen=True)
class ModelArgument(ModelOptions):
    """The same with the model as an argument."""

    model: Annotated[str, Argument(metavar="MODEL", help=MODEL_HELP)] = field()


def announce_user_code(model: str, transform: str | None = None) -> None:
    """Say on standard error which code the command runs because the user named it."""
    from camtool.models.loading import may_run_code

    named = {"--transform": transform, "--model": model if may_run_code(model) else None}
    for option, name in named.items():
        if name is not None:
            terminal.print_note(f"{option} {name} runs the Python code of {name.rpartition(':')[0]}.")


def choose_device(asked: str) -> str:
    """Return the name of an available device; the fastest for "auto"."""
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    names = [name for name, is_available in available.items() if is_available]
    if asked == "auto":
        return names[0]
    if asked not in names:
        raise CamtoolError(f"--device {asked} is not available on this machine. Available: {', '.join(names)}.")
    return asked


# Order of the channels that a model takes.
ChannelOrder: TypeAlias = Literal["rgb", "bgr", "gray"]


# How a photo with another aspect ratio than the input is resized.
Fit: TypeAlias = Literal["crop", "stretch", "pad"]


@dataclass(frozen=True)
class PreprocessingOptions:
    """Options that state how photos become the model's input; by default as the model's own preprocessing does.

    Attributes:
        transform: Your own preprocessing as package.module:function, whose code is then run. By default the model's.
        size: Size of the model's input, e.g. 32 or 224x320 (height x width). Photos cover it, cropped.
        fit: Photos with another aspect ratio: cropped, distorted, or padded with black.
        mean: Mean of each channel or of all: 0.485,0.456,0.406, or of bytes: 127.5.
        std: Standard deviation, as --mean.
        channels: Channels that the model takes: RGB, BGR, or one of gray.
    """

    panel: ClassVar[str] = "Preprocessing"

    transform: Annotated[str | None, Option(metavar="NAME")] = None
    size: Annotated[str | None, Option(metavar="SIZE")] = None
    fit: Fit | None = None
    mean: Annotated[str | None, Option(metavar="NUMBERS")] = None
    std: Annotated[str | None, Option(metavar="NUMBERS")] = None
    channels: ChannelOrder | None = None

    def parse(self) -> StatedPreprocessing:
        """Return the preprocessing, checked as far as that is possible without the model.

        Raises:
            CamtoolError: A text has another form, or the options contradict each other.
        """
        from camtool.models import StatedPreprocessing, scale_statistics

        self._check_combination()
        means = _parse_numbers("--mean", self.mean, self.channels)
        stds = _parse_numbers("--std", self.std, self.channels)
        if means is not None and stds is not None:
            scale_statistics(means, stds)
        size = None if self.size is None else parse_image_size(self.size)
        return StatedPreprocessing(self.transform, size, means, stds, self.channels, self.fit)

    def _check_combination(self) -> None:
        given = [f"--{name}" for name in ("size", "fit", "mean", "std", "channels") if getattr(self, name) is not None]
        if self.transform is not None and given:
            raise CamtoolError(
                f"--transform is the whole preprocessing, so {' and '.join(given)} cannot be given with it; do that in "
                "the transform, or leave out --transform."
            )
        if (self.mean is None) != (self.std is None):
            raise CamtoolError(f"{'--mean' if self.std is None else '--std'} is given alone; give --mean and --std.")


def _parse_numbers(option: str, text: str | None, channels: ChannelOrder | None) -> list[float] | None:
    """Return the numbers in ``"0.5"`` or ``"0.485,0.456,0.406"``: one, or one for each channel.

    Raises:
        CamtoolError: A number cannot be read, or there are more or fewer.
    """
    if text is None:
        return None
    numbers: list[float] = []
    with suppress(ValueError):
        numbers = [float(part) for part in text.split(",")]
    allowed = (1,) if channels == "gray" else (1, 3)
    if len(numbers) not in allowed:
        example = "0.449" if channels == "gray" else "0.485,0.456,0.406"
        kind = "one number for gray" if channels == "gray" else "one number or three"
        raise CamtoolError(f"{option} {text!r} is not {kind}; give e.g. {example}.")
    return numbers


def parse_image_size(text: str) -> tuple[int, int]:
    """Return the height and the width in ``"224"`` or ``"224x320"``.

    Raises:
        CamtoolError: The text has another form, or a side is 0 or has more than five digits.
    """
    match = re.fullmatch(r"(\d{1,5})(?: ?x ?(\d{1,5}))?", text, re.ASCII)
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(height, width) < 1:
        raise CamtoolError(f"--size {text!r} is not an image size; give a side in pixels, or e.g. 224x320.")
    return height, width
