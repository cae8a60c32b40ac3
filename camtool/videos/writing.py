"""Writing video files: MP4 with H.264, completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from camtool.errors import ImageError
from camtool.rendering.image_writing import open_atomically
from camtool.videos.reading import FULL_HD, Frame, VideoFacts, import_av

if TYPE_CHECKING:
    from camtool.videos.reading import Pixels

_CODEC = "libx264"
_OPTIONS = {"crf": "18", "preset": "veryfast"}
"""Constant rate factor 18: a difference to the frames is hardly visible."""

_OPTIONS_OF_LARGE = {**_OPTIONS, "tune": "zerolatency"}
"""Options for frames larger than Full HD: the encoder would hold dozens of them to look ahead, 460 MB of 4K."""

_UNKNOWN_COLORS = 2
"""FFmpeg's number for a colorspace that the file does not name."""


class VideoWriter:
    """An open video file, to which frames are added.

    Args:
        container: PyAV's output container.
        facts: The video whose rate, times and colors are kept.
    """

    def __init__(self, container: Any, facts: VideoFacts) -> None:
        self._container, self._facts = container, facts
        self._stream: Any = None
        self._last = -(2**62)

    def add(self, frame: Frame, pixels: Pixels) -> None:
        """Add ``(H, W, 3)`` uint8 at the time of a frame. All frames have one size."""
        # H.264 stores colors for blocks of 2 x 2 pixels: an odd last row or column is repeated.
        height, width = pixels.shape[:2]
        even = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._stream is None:
            self._stream = self._add_stream(even.shape[1], even.shape[0])
        picture = (
            import_av()
            .VideoFrame.from_ndarray(even, format="rgb24")
            .reformat(format="yuv420p", **self._list_colors("dst_colorspace", "dst_color_range"))
        )
        # Damaged files may hold two frames of one time, which MP4 does not allow.
        self._last = max(frame.pts, self._last + 1)
        picture.pts, picture.time_base = self._last, self._facts.time_base
        self._encode(picture)

    def close(self) -> None:
        """Write what the encoder still holds."""
        if self._stream is not None:
            self._encode(None)

    def _add_stream(self, width: int, height: int) -> Any:
        options = _OPTIONS if width * height <= FULL_HD else _OPTIONS_OF_LARGE
        stream = self._container.add_stream(_CODEC, rate=self._facts.rate, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = self._facts.time_base
        for name, value in self._list_colors("colorspace", "color_range").items():
            setattr(stream.codec_context, name, value)
        return stream

    def _list_colors(self, colorspace: str, color_range: str) -> dict[str, int]:
        """Return the colors of the source under these names, as far as its file names them."""
        known = {}
        if self._facts.colorspace != _UNKNOWN_COLORS:
            known[colorspace] = self._facts.colorspace
        if self._facts.color_range:
            known[color_range] = self._facts.color_range
        return known

    def _encode(self, picture: Any) -> None:
        for packet in self._stream.encode(picture):
            self._container.mux(packet)


@contextmanager
def open_video(path: Path, facts: VideoFacts) -> Iterator[VideoWriter]:
    """Open a video file for writing; it replaces ``path`` when the block ends, and is deleted if the block raises.

    Raises:
        ImageError: The suffix is not ``.mp4``, or PyAV has no encoder for H.264.
        OSError: The file cannot be written.
    """
    av = import_av()
    if path.suffix.lower() != ".mp4":
        raise ImageError(f"path {str(path)!r}: videos are written as .mp4.")
    if _CODEC not in av.codecs_available:
        raise ImageError(f"this build of PyAV has no encoder {_CODEC}; install the wheel from PyPI: pip install av")
    try:
        with open_atomically(path) as file, av.open(file, "w", format="mp4") as container:
            writer = VideoWriter(container, facts)
            yield writer
            writer.close()
    except av.error.FFmpegError as error:
        raise ImageError(f"video {str(path)!r} cannot be written: {error.strerror or error}.") from error
