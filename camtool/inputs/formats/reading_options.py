"""Options with which image files of science and industry are read: bands, contrast, slice, frame."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, get_args

from camtool.arguments.checks import check_choice, check_count, check_number
from camtool.arguments.message_parts import suggest_names
from camtool.errors import ImageError

# Direction in which a NIfTI volume is cut to slices; ``"ras"`` keeps the canonical order of the axes.
Axis: TypeAlias = Literal["axial", "coronal", "sagittal", "ras"]

# Most pixels of an image file by default. Cameras make up to 150 million pixels.
MAX_PIXELS = 200_000_000

# Most bytes that reading an image file may take by default. With torch and torchvision, a process then stays below
# 1.5 GB. Photos of 100 million pixels can be turned upright in it: two copies of 4 bytes for each pixel.
MAX_MEMORY = 850_000_000

# The same in runs, whose process has 820 MB when it reads a photo. HEIC photos of phones (49 million pixels) fit.
RUN_MEMORY = 640_000_000

# Most pixels of a photo as a run explains and draws it: photo, heatmap and overlay take 11 bytes for each.
MAX_DRAWN = 40_000_000

# Longest side of an image: a row is the least that is converted at once.
_MAX_SIDE = 1_000_000

# Longest side of a photo that is drawn, as of JPEG files: a heatmap takes a number for each cell and pixel of it.
_MAX_DRAWN_SIDE = 65_535

# Bytes of a decoded pixel in Pillow's memory. Whoever allows more pixels allows this much memory for each.
_PLAIN_BYTES = 4


@dataclass(frozen=True)
class ReadingOptions:
    """What to read of an image file, and how its values become black and white.

    Attributes:
        bands: Numbers of the bands, from 1 as in QGIS and rasterio, in the order of the model's channels.
        window: ``(center, width)`` of the values from black to white.
        percentiles: ``(low, high)``: the values that become black and white, as percentiles of each band.
        slice: Number of a slice, a page or a DICOM frame, from 0; negative numbers count from the end; ``"middle"``.
        axis: Direction of the slices of a NIfTI volume; by default ``"axial"``.
        frame: Number of a time step, from 0; negative numbers count from the end.
        max_pixels: Largest number of pixels of an image, or of a slice.
        max_memory: Most bytes that reading a file may take; by default :data:`MAX_MEMORY`, or 4 bytes for each of
            ``max_pixels`` if that is more.
        max_drawn: Most pixels of a photo in the result: a larger one is reduced by a whole factor, with a note, unless
            a longest side is named. By default photos are not reduced.

    Raises:
        ImageError: A value is not allowed.
    """

    bands: tuple[int, ...] | None = None
    window: tuple[float, float] | None = None
    percentiles: tuple[float, float] | None = None
    slice: int | Literal["middle"] | None = None
    axis: Axis | None = None
    frame: int | None = None
    max_pixels: int = MAX_PIXELS
    max_memory: int | None = None
    max_drawn: int | None = None

    def __post_init__(self) -> None:
        """Check the values, and turn lists into tuples."""
        if self.bands is not None:
            object.__setattr__(self, "bands", _check_bands(self.bands))
        self._check_contrast()
        if self.axis is not None:
            check_choice("axis", self.axis, get_args(Axis), error=ImageError)
        if not (isinstance(self.slice, str) and self.slice == "middle"):
            _check_number_of_part("slice", self.slice, " or 'middle'")
        _check_number_of_part("frame", self.frame)
        check_count("max_pixels", self.max_pixels, error=ImageError)
        check_count("max_memory", self.max_memory, optional=True, error=ImageError)
        check_count("max_drawn", self.max_drawn, optional=True, error=ImageError)

    def _check_contrast(self) -> None:
        for name in ("window", "percentiles"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _check_pair(name, getattr(self, name)))
        if self.window is not None:
            check_number("window's width", self.window[1], above=0, error=ImageError)
        if self.percentiles is not None and not 0 <= self.percentiles[0] < self.percentiles[1] <= 100:
            raise ImageError(f"percentiles={self.percentiles} must rise within 0 to 100, e.g. (2, 98).")
        if self.window is not None and self.percentiles is not None:
            raise ImageError("window= and percentiles= both say what is black and white; give one of them.")

    @classmethod
    def from_user(cls, options: Mapping[str, Any] | ReadingOptions | None) -> ReadingOptions:
        """Return the options of a dictionary.

        Raises:
            ImageError: A name is unknown, or a value is not allowed.
        """
        if isinstance(options, ReadingOptions):
            return options
        if options is not None and not isinstance(options, Mapping):
            raise ImageError(f"reading={options!r} must be a dictionary, e.g. {{'bands': (4, 3, 2)}}.")
        names = [field.name for field in fields(cls)]
        for name in options or {}:
            if name not in names:
                hint = suggest_names(name, names)
                raise ImageError(f"reading option {name!r} is unknown. Known options: {', '.join(names)}.{hint}")
        return cls(**(options or {}))

    def list_given(self) -> list[str]:
        """Return the names of the options that the user gave, apart from the limits."""
        names = [field.name for field in fields(self) if not field.name.startswith("max_")]
        return [name for name in names if getattr(self, name) is not None]

    def check_supported(self, name: str, file_format: str, *supported: str) -> None:
        """Check that all given options apply to a format.

        Raises:
            ImageError: One does not.
        """
        for given in self.list_given():
            if given not in supported:
                applies = f" Options for it: {', '.join(supported)}." if supported else ""
                raise ImageError(f"{name}: {given}= does not apply to {file_format}; leave it out.{applies}")

    def check_size(self, name: str, height: int, width: int, planes: int = 1, value_bytes: int = 1) -> None:
        """Check the size of an image before it is decoded, as a small file may claim any.

        Args:
            name: The file.
            height: Its height.
            width: Its width.
            planes: Number of bands, slices and frames that are decoded, all together.
            value_bytes: Bytes that reading takes at most for a value, with all copies.

        Raises:
            ImageError: It is empty, or larger than ``max_pixels`` or ``max_memory`` allow, or has a side of more than a
                million pixels.
        """
        if min(height, width, planes) < 1:
            raise ImageError(f"{name} has {width} x {height} pixels in {planes} planes: it is empty.")
        if max(height, width) > _MAX_SIDE:
            raise ImageError(
                f"{name} is too large to be decoded safely: {width} x {height} pixels, and a side may have "
                f"{_MAX_SIDE:,}. Cut it into parts."
            )
        if height * width > self.max_pixels:
            raise ImageError(
                f"{name} is too large to be decoded safely: it has {height * width:,} pixels, and the limit is "
                f"{self.max_pixels:,}. {_advise(height * width, 'in Python max_pixels=')}"
            )
        self.check_memory(name, height * width * planes * value_bytes)

    def check_memory(self, name: str, needed: float) -> None:
        """Check that reading a file does not take more bytes of memory than allowed.

        Raises:
            ImageError: It does.
        """
        limit = self.max_memory or max(MAX_MEMORY, _PLAIN_BYTES * self.max_pixels)
        if needed > limit:
            others = "in Python max_memory=, in camtool app --max-memory"
            raise ImageError(
                f"{name} is too large to be decoded safely: it takes up to {needed / 1e6:,.0f} MB of memory, and the "
                f"limit is {limit / 1e6:,.0f} MB. {_advise(max(needed / _PLAIN_BYTES, MAX_PIXELS), others)}"
            )

    def choose_factor(self, size: tuple[int, int]) -> int:
        """Return by how much the sides of a photo are divided, so that it has at most ``max_drawn`` pixels."""
        if self.max_drawn is None:
            return 1
        by_pixels = math.sqrt(size[0] * size[1] / self.max_drawn)
        return max(1, math.ceil(max(by_pixels, max(size) / _MAX_DRAWN_SIDE)))

    @property
    def percentile_bytes(self) -> int:
        """Bytes for each value that percentiles take: the values in order, and which of them count."""
        return 0 if self.percentiles is None else 9

    def choose_slice(self, name: str, count: int, what: str = "slices") -> int | None:
        """Return the index of the chosen slice, from 0, or of the only one; ``None`` if none of several was chosen.

        Raises:
            ImageError: There is no such slice.
        """
        if self.slice == "middle":
            return count // 2
        chosen = _choose("slice", self.slice, name, count, what)
        return 0 if count == 1 else chosen

    def choose_frame(self, name: str, count: int) -> int:
        """Return the index of the chosen time step, from 0.

        Raises:
            ImageError: There are several and none was chosen, or there is no such time step.
        """
        chosen = _choose("frame", self.frame, name, count, "time steps")
        if chosen is None and count > 1:
            raise ImageError(
                f"{name} holds {count} time steps; choose one with frame=, from 0 to {count - 1} (--frame on the "
                "command line)."
            )
        return chosen or 0

    def choose_bands(self, name: str, count: int) -> list[int] | None:
        """Return the indices of the chosen bands, from 0; ``None`` if none were chosen.

        Raises:
            ImageError: There is no such band.
        """
        if self.bands is None:
            return None
        for band in self.bands:
            if band > count:
                raise ImageError(f"{name}: bands={self.bands} names band {band}, but there are {count}, from 1.")
        return [band - 1 for band in self.bands]


def _advise(pixels: float, others: str) -> str:
    """Return how to raise the limits so that they allow so many pixels, or the memory for them."""
    millions = math.floor(pixels / 1e6) + 1
    return f"If you trust it, raise the limit: --max-pixels {millions}000000 ({others})."


def _check_bands(bands: Any) -> tuple[int, ...]:
    numbers = (bands,) if isinstance(bands, Integral) else bands
    is_list = isinstance(numbers, Sequence) and not isinstance(numbers, str) and len(numbers) > 0
    if not is_list or not all(isinstance(number, Integral) and not isinstance(number, bool) for number in numbers):
        raise ImageError(f"bands={bands!r} must be band numbers, from 1, e.g. bands=(4, 3, 2).")
    if min(numbers) < 1:
        raise ImageError(f"bands={bands!r}: bands are counted from 1, as in QGIS and rasterio.")
    return tuple(int(number) for number in numbers)


def _check_pair(name: str, pair: Any) -> tuple[float, float]:
    example = "(40, 400), a center and a width" if name == "window" else "(2, 98)"
    is_pair = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
    if not is_pair or not all(isinstance(number, Real) and not isinstance(number, bool) for number in pair):
        raise ImageError(f"{name}={pair!r} must be two numbers, e.g. {name}={example}.")
    for number in pair:
        check_number(name, number, error=ImageError)
    return float(pair[0]), float(pair[1])


def _check_number_of_part(name: str, number: Any, hint: str = "") -> None:
    if number is not None and (not isinstance(number, Integral) or isinstance(number, bool)):
        raise ImageError(f"{name}={number!r} must be a whole number{hint}; the first is 0, the last is -1.")


def _choose(option: str, chosen: Any, name: str, count: int, what: str) -> int | None:
    if chosen is None:
        return None
    if not -count <= chosen < count:
        raise ImageError(f"{name}: {option}={chosen} does not exist; there are {count} {what}, from 0 to {count - 1}.")
    return int(chosen) % count
