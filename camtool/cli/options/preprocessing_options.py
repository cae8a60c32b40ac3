"""Options of the preprocessing: a function of the user, or size, mean, standard deviation and channels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

import typer

from camtool.errors import CamtoolError

if TYPE_CHECKING:
    from camtool.models import StatedPreprocessing

ChannelOrder: TypeAlias = Literal["rgb", "bgr", "gray"]
"""Order of the channels that a model takes."""


Fit: TypeAlias = Literal["crop", "stretch", "pad"]
"""How a photo with another aspect ratio than the input is resized."""


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

    transform: Annotated[str | None, typer.Option(metavar="NAME")] = None
    size: Annotated[str | None, typer.Option(metavar="SIZE")] = None
    fit: Fit | None = None
    mean: Annotated[str | None, typer.Option(metavar="NUMBERS")] = None
    std: Annotated[str | None, typer.Option(metavar="NUMBERS")] = None
    channels: ChannelOrder | None = None

    def parse(self) -> StatedPreprocessing:
        """Return the preprocessing, checked as far as that is possible without the model.

        Raises:
            CamtoolError: A text has another form, or the options contradict each other.
        """
        from camtool.models import StatedPreprocessing, scale_statistics

        given = [f"--{name}" for name in ("size", "fit", "mean", "std", "channels") if getattr(self, name) is not None]
        if self.transform is not None and given:
            raise CamtoolError(
                f"--transform is the whole preprocessing, so {' and '.join(given)} cannot be given with it; do that in "
                "the transform, or leave out --transform."
            )
        if (self.mean is None) != (self.std is None):
            raise CamtoolError(f"{'--mean' if self.std is None else '--std'} is given alone; give --mean and --std.")
        means = _parse_numbers("--mean", self.mean, self.channels)
        stds = _parse_numbers("--std", self.std, self.channels)
        if means is not None and stds is not None:
            scale_statistics(means, stds)
        size = None if self.size is None else parse_image_size(self.size)
        return StatedPreprocessing(self.transform, size, means, stds, self.channels, self.fit)


def _parse_numbers(option: str, text: str | None, channels: ChannelOrder | None) -> list[float] | None:
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
