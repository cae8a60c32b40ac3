"""Draw ``slide.jpg`` and ``video.jpg``: ``python assets/make_slide_and_video.py``; needs ``camtool[slides,video]``.

A slide with generated objects on glass is explained for "star", and a video that pans over three of them for "heart".
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np
import tifffile
from PIL import Image

import camtool
from camtool.demo.scenes import draw_scene
from camtool.rendering import blend
from camtool.rendering.image_writing import write_image

_HERE = Path(__file__).parent
_SIDE = 128
_OTHERS = ("heart", "drop", "fish", "square")
_STARS = {(1, 1), (2, 6), (4, 3)}
_MARGIN = 96
_FRAMES, _SHOWN, _PAN = 75, 6, 256


def main() -> None:
    """Draw both pictures."""
    with TemporaryDirectory() as folder:
        write_image(_HERE / "slide.jpg", _draw_slide(Path(folder) / "slide.tif"), quality=85)
        write_image(_HERE / "video.jpg", _draw_video(Path(folder) / "clip.mp4"), quality=85)


def _draw_slide(path: Path, rows: int = 6, columns: int = 8) -> np.ndarray:
    """Return the slide at full resolution with the heatmap over it."""
    pixels = np.full((_SIDE * rows + 2 * _MARGIN, _SIDE * columns + 2 * _MARGIN, 3), 244, np.uint8)
    for row in range(rows):
        for column in range(columns):
            label = "star" if (row, column) in _STARS else _OTHERS[(3 * row + column) % len(_OTHERS)]
            y, x = _MARGIN + _SIDE * row, _MARGIN + _SIDE * column
            pixels[y : y + _SIDE, x : x + _SIDE] = draw_scene(100 * row + column, classes=[label], size=_SIDE).image
    tifffile.imwrite(path, pixels, tile=(256, 256), photometric="rgb", metadata=None)
    result = camtool.explain_slide(camtool.load("demo"), path, "star", level=0)
    size = (pixels.shape[1], pixels.shape[0])
    heat = np.asarray(Image.fromarray(np.asarray(result.heatmap)).resize(size, Image.Resampling.BILINEAR))
    return blend(pixels, heat.clip(0, 1))


def _draw_video(path: Path) -> np.ndarray:
    """Return some frames of the video in a row, and below them the same frames with the heatmap."""
    seeds = {"star": 101, "heart": 7, "fish": 305}
    scenes = [draw_scene(seed, classes=[label], size=_PAN).image for label, seed in seeds.items()]
    wide = np.concatenate(scenes, axis=1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "12"})
        stream.width, stream.height, stream.pix_fmt = _PAN, _PAN, "yuv420p"
        for number in range(_FRAMES):
            left = round(number * (wide.shape[1] - _PAN) / (_FRAMES - 1))
            frame = np.ascontiguousarray(wide[:, left : left + _PAN])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    result = camtool.explain_video(camtool.load("demo"), path, "heart")
    drawn = [(frame.pixels, pixels) for frame, pixels in result.iterate_overlays()]
    shown = [drawn[round(each)] for each in np.linspace(0, _FRAMES - 1, _SHOWN)]
    line = np.full((_PAN, 4, 3), 255, np.uint8)
    return np.concatenate(
        [np.concatenate([part for pair in shown for part in (pair[row], line)], axis=1) for row in range(2)]
    )


if __name__ == "__main__":
    main()
