"""Videos for tests, written by PyAV."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from camtool.demo.scenes import Box, draw_scene

SIDE = 128


def write_video(
    path: Path,
    frames: Sequence[np.ndarray],
    *,
    rate: int = 25,
    rotation: int | None = None,
    times: Sequence[int] | None = None,
) -> None:
    """Write frames ``(H, W, 3)`` as H.264, nearly without loss; times are in thousandths of a second."""
    height, width = frames[0].shape[:2]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": "1"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv444p"
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        if rotation is not None:
            stream.set_display_rotation(rotation)
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def read_video(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def read_times(path: Path) -> list[float]:
    with av.open(str(path)) as container:
        return [round(frame.time, 4) for frame in container.decode(video=0)]


def number_frame(number: int, *, height: int = 48, width: int = 64) -> np.ndarray:
    """Draw a frame whose brightness is its number times 8."""
    return np.full((height, width, 3), 8 * number, np.uint8)


def draw_crossing_star(count: int = 10) -> tuple[list[np.ndarray], list[Box | None]]:
    """Draw a camera that pans over two scenes, a star and then a heart: frames, and the star's box in each."""
    star, heart = draw_scene(101, classes=["star"]), draw_scene(7, classes=["heart"])
    wide = np.concatenate([star.image, heart.image], axis=1)
    x0, y0, x1, y1 = star.objects[0].box
    frames, boxes = [], []
    for number in range(count):
        left = round(number * SIDE / (count - 1) / 2) * 2
        frames.append(wide[:, left : left + SIDE])
        boxes.append((x0 - left, y0, x1 - left, y1) if x0 >= left else None)
    return frames, boxes
