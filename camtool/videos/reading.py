"""Reading video files: frame after frame, upright, by PyAV. No file can make it read another one, or the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.arguments.checks import check_not_url
from camtool.arguments.libraries import import_library
from camtool.errors import ImageError, RaiseAs
from camtool.inputs.formats.decoding import name_in_errors

Pixels: TypeAlias = NDArray[np.uint8]

# Containers that may be read. Others, e.g. playlists, name further files or addresses.
_FORMATS = "mov,mp4,matroska,webm,avi,mpeg,mpegts,ogg,asf,flv,gif"

# Largest frame, as a share of the largest photo. Frames of 8K fit: 33 of 36 megapixels.
_FRAME_SHARE = 0.4

# Pixels up to which a decoder and an encoder may hold many frames; heights are multiples of 16.
FULL_HD = 1920 * 1088

# Up to this size, 4K, frames are explained and drawn as they are; larger ones are reduced when they are read.
_KEPT_PIXELS = 4096 * 2160

# Frames per second of a file that names none.
_DEFAULT_RATE = Fraction(25)


@dataclass(frozen=True)
class VideoFacts:
    """What a file says about its video.

    Attributes:
        rate: Frames per second, on average.
        time_base: The unit of the frames' times in seconds.
        frames: About how many frames there are; 0 if the file says neither their number nor its duration.
        colorspace: The matrix from YUV to RGB, as FFmpeg counts them.
        color_range: Whether levels use the full range, as FFmpeg counts it.
    """

    rate: Fraction
    time_base: Fraction
    frames: int
    colorspace: int
    color_range: int


@dataclass(frozen=True)
class Frame:
    """One frame, upright.

    Attributes:
        index: Its number, from 0.
        pts: Its time in units of the video's time base.
        time: Its time in seconds, from the start of the video's clock.
        pixels: ``(H, W, 3)`` uint8.
    """

    index: int
    pts: int
    time: float
    pixels: Pixels


class VideoReader:
    """A video file, which may be read several times.

    Args:
        path: The file.

    Attributes:
        path: The file.
        facts: What it says about its video.
        size: Height and width of its frames, before they are turned upright.
        division: The whole number by which the sides of larger frames than 4K are divided; 1 for others.

    Raises:
        ImageError: There is no such file, it holds no video, its frames are too large, or PyAV is not installed.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        check_not_url("video", path, ImageError)
        self.path = fspath(path)
        self._av = import_av()
        with self._open() as (container, stream):
            context = stream.codec_context
            self.size = context.height, context.width
            self.division = math.ceil(math.sqrt(context.width * context.height / _KEPT_PIXELS)) or 1
            rate = Fraction(stream.average_rate or stream.guessed_rate or _DEFAULT_RATE)
            seconds = Fraction(container.duration or 0, self._av.time_base)
            self.facts = VideoFacts(
                rate=rate,
                time_base=stream.time_base,
                frames=stream.frames or round(seconds * rate),
                colorspace=int(context.colorspace),
                color_range=int(context.color_range),
            )

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames, decoded one after the other.

        Raises:
            ImageError: A frame is damaged.
        """
        with self._open() as (container, stream):
            # Threads that decode several frames at once keep more of them in memory.
            stream.thread_type = "AUTO" if math.prod(self.size) <= FULL_HD else "SLICE"
            for index, frame in enumerate(container.decode(stream)):
                time = frame.time if frame.time is not None else float(index / self.facts.rate)
                pts = frame.pts if frame.pts is not None else round(time / self.facts.time_base)
                yield Frame(index, pts, time, _turn_upright(self._read_pixels(frame), frame.rotation, self.path))

    def _read_pixels(self, frame: Any) -> Pixels:
        count = frame.width * frame.height
        _check_frame_size(count, self.path)
        # Whether frames are reduced, and their number in a batch, follow the size that the file says.
        if count > max(math.prod(self.size), _KEPT_PIXELS):
            raise ImageError(f"video {self.path!r} has larger frames than it says: {frame.width} x {frame.height}.")
        sides = {"width": -(-frame.width // self.division), "height": -(-frame.height // self.division)}
        pixels: Pixels = frame.to_ndarray(format="rgb24", **(sides if self.division > 1 else {}))
        return pixels

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, Any]]:
        """Open the file; yield the container and its first video stream."""
        if not Path(self.path).is_file():
            raise ImageError(f"video {self.path!r}: there is no such file.")
        with (
            name_in_errors(f"video {self.path!r}", "a video"),
            name_faults(self.path, "read"),
            # An open file, not a path: FFmpeg takes a path such as "concat:a|b" or "http://..." for a protocol.
            Path(self.path).open("rb") as file,
            self._av.open(file, options={"format_whitelist": _FORMATS}) as container,
        ):
            yield container, _get_video(container, self.path)


def name_faults(path: str, done: str) -> RaiseAs:
    """Return a block whose errors of FFmpeg say what cannot be done with a video, ``"read"`` or ``"written"``."""
    fault = import_av().error.FFmpegError
    return RaiseAs(lambda error: ImageError(f"video {path!r} cannot be {done}: {error.strerror or error}."), fault)


def import_av() -> Any:
    """Return PyAV.

    Raises:
        ImageError: It is not installed.
    """
    return import_library("av", "video files need PyAV", "'camtool[video]'", ImageError)


def _get_video(container: Any, path: str) -> Any:
    """Return the first video stream.

    Raises:
        ImageError: There is none, or its frames are too large to be decoded safely.
    """
    if not container.streams.video:
        raise ImageError(f"video {path!r} holds no video, only {len(container.streams)} other streams.")
    stream = container.streams.video[0]
    _check_frame_size(stream.codec_context.width * stream.codec_context.height, path)
    return stream


def _check_frame_size(pixels: int, path: str) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and pixels > _FRAME_SHARE * limit:
        raise ImageError(
            f"video {path!r} has frames of {pixels:,} pixels, more than {_FRAME_SHARE:.0%} of "
            "PIL.Image.MAX_IMAGE_PIXELS; if you trust it, raise that."
        )


def _turn_upright(pixels: Pixels, degrees: int, path: str) -> Pixels:
    """Return a frame as players show it: phones store how far a frame must be turned, counterclockwise.

    Raises:
        ImageError: It is not turned by a multiple of 90 degrees.
    """
    turns, rest = divmod(degrees, 90)
    if rest:
        raise ImageError(f"video {path!r} is shown turned by {degrees} degrees; only multiples of 90 can be explained.")
    return np.ascontiguousarray(np.rot90(pixels, turns))
