"""The result on a video: a heatmap for each frame, all on one scale, and the video with them over it."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray

from camtool.arguments.checks import check_integer
from camtool.arguments.message_parts import count_warnings, format_percent
from camtool.errors import CamtoolError, ImageError
from camtool.explaining.explanation import Explanation
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.hooks.chunks import iterate_chunks
from camtool.maps import find_limits
from camtool.progress import Stage
from camtool.rendering import overlay, regions
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap
from camtool.rendering.image_writing import open_atomically
from camtool.rendering.written_files import replace_files
from camtool.videos.reading import FULL_HD, Frame, Pixels, VideoFacts, VideoReader, import_av, name_faults

Map: TypeAlias = NDArray[np.float32]


_CODEC = "libx264"
# Constant rate factor 18: a difference to the frames is hardly visible.
_OPTIONS = {"crf": "18", "preset": "veryfast"}

# Options for frames larger than Full HD: the encoder would hold dozens of them to look ahead, 460 MB of 4K.
_OPTIONS_OF_LARGE = {**_OPTIONS, "tune": "zerolatency"}

# FFmpeg's number for a colorspace that the file does not name.
_UNKNOWN_COLORS = 2


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
        facts = ((colorspace, self._facts.colorspace, _UNKNOWN_COLORS), (color_range, self._facts.color_range, 0))
        return {name: value for name, value, unknown in facts if value != unknown}

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
    faults = name_faults(str(path), "written")
    with faults, open_atomically(path) as file, av.open(file, "w", format="mp4") as container:
        writer = VideoWriter(container, facts)
        yield writer
        writer.close()


@dataclass(frozen=True)
class FrameRow:
    """One frame that was explained, or why it was not.

    Attributes:
        frame: The number of the frame, from 0.
        time: Its time in seconds.
        first: The number of the first frame that the model saw with it.
        last: The number of the last one; for a model of images both are ``frame``.
        label: What is explained; ``None`` if nothing was.
        index: The class's index; ``None`` for a target that is not about a class.
        score: The target's score.
        probability: The class's probability; ``None`` if unknown.
        box: ``(x0, y0, x1, y1)`` in pixels of the frame, of the explained detection; ``None`` for other targets.
        warnings: Reasons not to trust the map.
        warning_codes: Their codes, in the same order.
        reason: Why there is no map; ``None`` if there is one.
    """

    frame: int
    time: float
    first: int
    last: int
    label: str | None = None
    index: int | None = None
    score: float | None = None
    probability: float | None = None
    box: tuple[float, float, float, float] | None = None
    warnings: tuple[str, ...] = ()
    warning_codes: tuple[str, ...] = ()
    reason: str | None = None

    @classmethod
    def from_result(cls, frame: Frame, result: Explanation | str, first: int, last: int) -> FrameRow:
        """Return the row of a frame, from its explanation or from the reason why there is none."""
        if isinstance(result, str):
            return cls(frame.index, frame.time, first, last, reason=result)
        facts = result.list_facts("box")
        if not math.isfinite(result.score):
            facts["score"] = None
        return cls(frame.index, frame.time, first, last, **facts)


@dataclass(frozen=True)
class FrameMap:
    """Where the map of a frame is, and how it lies on the frame.

    Attributes:
        number: The number of the raw map in the store; ``None`` if there is none.
        geometry: The crop and resize that made the model's input from the frame.
        centers: Where the map's cells lie in the input.
    """

    number: int | None
    geometry: Geometry | None = None
    centers: CellCenters | None = None


@dataclass(frozen=True, eq=False)
class VideoExplanation:
    """Explanation of the frames of a video.

    Attributes:
        path: The video.
        method: The method's name.
        layer: The layer's name; empty for a method at the input.
        frame_count: The number of frames in the video.
        rows: A row for each explained frame.
        warnings: Reasons not to trust the maps, with the number of frames that each concerns.
        smooth: The number of explained frames over which maps are averaged.
        reader: Reads the video again.
        store: The raw maps.
        maps: The map of each row.
    """

    path: str
    method: str
    layer: str
    frame_count: int
    rows: Sequence[FrameRow] = field(repr=False)
    warnings: tuple[str, ...]
    smooth: int
    reader: VideoReader = field(repr=False)
    store: MapStore = field(repr=False)
    maps: Sequence[FrameMap] = field(repr=False)

    @property
    def limits(self) -> tuple[float, float]:
        """The method's own values that are 0 and 1 in all heatmaps: the lowest and the highest of all frames."""
        return self.store.limits

    def heatmap(self, frame: int) -> Map:
        """Return the heatmap of a frame, ``(H, W)`` float32 in [0, 1]; 0 for what the model did not see.

        A frame that was not explained has the heatmap of the last one before it that was.

        Raises:
            CamtoolError: There is no such frame, or there is no map for it.
        """
        index = self._find_row(frame)
        geometry, values = self.maps[index].geometry, self._read_map(index)
        if values is None or geometry is None:
            raise CamtoolError(f"frame {frame} has no heatmap: {self.rows[index].reason}.")
        limits = find_limits(np.array(self.limits, np.float32))
        scaled = np.zeros_like(values) if limits is None else (values - limits[0]) / (limits[1] - limits[0])
        return geometry.place_on_photo(torch.from_numpy(scaled), self.maps[index].centers).numpy().clip(0, 1)

    def save(
        self, path: str | PathLike[str], *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
    ) -> Path:
        """Write the video with the heatmaps over it as MP4, and a line for each explained frame beside it.

        Size, times and colors are those of the video; an odd width or height grows by one pixel, and frames larger than
        4K are reduced. There is no sound. The lines are in a file of the same name that ends in ``.jsonl``.

        Args:
            path: The file, which ends in ``.mp4``; missing folders are created.
            alpha: The opacity of the colors where the heatmap is 1, from 0 to 1.
            colormap: A name or a color map of matplotlib.

        Raises:
            ImageError: The suffix is not ``.mp4``, or the video is not there any more.
            CamtoolError: The path is that of the video itself, or the file of the lines is not as camtool wrote it.
            OSError: A file cannot be written.
        """
        path = Path(path)
        if path.exists() and path.samefile(self.path):
            raise CamtoolError(f"path {str(path)!r} is the video that was explained; give another one.")
        overlays, lines = self.iterate_overlays(alpha=alpha, colormap=colormap), path.with_suffix(".jsonl")
        with open_video(path, self.reader.facts) as video, replace_files(path.parent, [lines.name]):
            steps = iterate_chunks(self.frame_count, 1, Stage("Drawing", "frame"))
            for _, (frame, pixels) in zip(steps, overlays, strict=True):
                video.add(frame, pixels)
            with open_atomically(lines) as stream:
                stream.writelines(f"{json.dumps(asdict(row))}\n".encode() for row in self.rows)
        return path

    def iterate_overlays(
        self, *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
    ) -> Iterator[tuple[Frame, Pixels]]:
        """Yield each frame of the video, and the frame with the heatmap over it, ``(H, W, 3)`` uint8.

        Args:
            alpha: As for :meth:`save`.
            colormap: As for :meth:`save`.
        """
        last, heat = -1, None
        for frame in islice(self.reader, self.frame_count):
            index = self._find_row(frame.index)
            if index != last:
                last, heat = index, None if self.maps[index].number is None else self.heatmap(frame.index)
            yield frame, frame.pixels if heat is None else self._draw(frame.pixels, heat, index, alpha, colormap)

    def _draw(self, photo: Pixels, heat: Map, index: int, alpha: float | None, colormap: Colormap) -> Pixels:
        row, geometry = self.rows[index], self.maps[index].geometry
        assert geometry is not None
        seen = None if geometry.sees_all else geometry.seen
        pixels = overlay.blend(photo, heat, alpha=alpha, colormap=colormap, seen=seen, is_part=True)
        if row.box is None:
            return pixels
        caption = f"{row.label}" + ("" if row.probability is None else f" {format_percent(row.probability)}")
        return regions.draw_boxes(pixels, [regions.grow_to_one_pixel(row.box)], labels=[caption])

    def _find_row(self, frame: int) -> int:
        """Return the position of the last row that is not behind a frame.

        Raises:
            CamtoolError: There is no such frame.
        """
        check_integer("frame", frame)
        if not 0 <= frame < self.frame_count:
            raise CamtoolError(f"frame {frame} does not exist; the video has frames 0 to {self.frame_count - 1}.")
        return max(0, bisect_right(self.rows, frame, key=lambda row: row.frame) - 1)

    def _read_map(self, index: int) -> Map | None:
        """Return the raw map of a row, averaged with those of its neighbors that have its class and size."""
        number = self.maps[index].number
        if number is None:
            return None
        own, reach = self.store.get(number), self.smooth // 2
        near = range(max(0, index - reach), min(len(self.maps), index + reach + 1))
        classes = {i: (self.rows[i].label, self.rows[i].index) for i in near}
        alike = [self.maps[i].number for i in near if classes[i] == classes[index]]
        values = [self.store.get(other) for other in alike if other is not None]
        mean: Map = np.mean([raw for raw in values if raw.shape == own.shape], axis=0, dtype=np.float32)
        return mean

    def __repr__(self) -> str:
        warned = f", {count_warnings(self.warnings)}" if self.warnings else ""
        explained = sum(row.reason is None for row in self.rows)
        return f"<VideoExplanation: {self.method}, {explained:,} of {self.frame_count:,} frames explained{warned}>"


class MapStore:
    """Maps ``(h, w)`` float32 of any sizes, in the order in which they are added.

    Attributes:
        limits: The lowest and the highest value of all maps.
    """

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115  it is closed, and thereby removed, when the store is freed
        finalize(self, self._file.close)
        self._places: list[tuple[int, tuple[int, ...]]] = []
        self.limits = (float("inf"), float("-inf"))

    def add(self, values: Map) -> int:
        """Add a map; return its number."""
        offset = self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(values, np.float32).tobytes())
        self._places.append((offset, values.shape))
        low, high = self.limits
        self.limits = min(low, float(values.min())), max(high, float(values.max()))
        return len(self._places) - 1

    def get(self, number: int) -> Map:
        """Return a map by its number."""
        offset, shape = self._places[number]
        self._file.seek(offset)
        values: Map = np.frombuffer(self._file.read(4 * math.prod(shape)), np.float32).reshape(shape).copy()
        return values
