"""From a video file to its explanation: :func:`explain_video`; windows of frames for models that take clips."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from camtool import targets
from camtool.arguments.checks import check_count, check_number
from camtool.arguments.message_parts import count_texts
from camtool.errors import CamtoolError, ImageError, MethodError, NothingFoundError, TargetError
from camtool.explaining.explainer import Explainer
from camtool.explaining.explanation import Explanation
from camtool.explaining.types import Model
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.resampling import build_interpolation_matrix
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.geometry.transform_output import Transform, unwrap_image
from camtool.hooks.chunks import iterate_chunks
from camtool.inputs.accepted_inputs import choose_example_shape, list_channels
from camtool.methods import MethodFunction
from camtool.models import to_loaded
from camtool.progress import Stage, show_progress
from camtool.videos.reading import Frame, Pixels, VideoFacts, VideoReader
from camtool.videos.video_explanation import FrameMap, FrameRow, MapStore, VideoExplanation

# Most pixels of the frames of one batch, of which there are a few copies: 9 frames of Full HD, 2 of 4K.
_GROUP_PIXELS = 20_000_000


def explain_video(
    model: Model,
    video: str | PathLike[str],
    target_class: int | str | targets.Target | Callable[[Any], Tensor] | None = None,
    *,
    method: str | MethodFunction = "gradcam",
    every: int = 1,
    fps: float | None = None,
    smooth: int = 1,
    window: int | None = None,
    transform: Transform | None = None,
    labels: Sequence[str] | None = None,
    batch_size: int = 8,
    **settings: Any,
) -> VideoExplanation:
    """Explain the frames of a video file.

        result = camtool.explain_video(model, "clip.mp4", "tabby")
        result.save("clip.gradcam.mp4")

    Frames are decoded one after the other, turned upright, and explained in batches; memory does not grow with the
    video. The maps of all frames are on one scale, so the heat does not flicker: :meth:`VideoExplanation.save` decodes
    the video a second time and draws them, when the highest value of all is known.

    A model that takes clips ``(N, C, T, H, W)`` gets windows of frames, one after the other. The last window ends with
    the last frame, and explains only the frames that no window before it did.

    Args:
        model: A module, or what :func:`camtool.load` returned.
        video: A file that PyAV reads: MP4, MOV, MKV, WebM, AVI ...
        target_class: The class to explain in every frame: an index, a label or a target, as for
            :func:`camtool.explain`. ``None`` is each frame's own top class; if it changes, a warning says so.
        method: A method's name, or a function.
        every: Explain each so many-th frame. The frames between keep the last heatmap.
        fps: Explain so many frames per second of the video, instead of ``every``.
        smooth: The number of explained frames, odd, over which maps of the same class are averaged; 1 for none.
        window: The frames that the model takes at once; by default 16 for a model of three-dimensional convolutions
            only, and none for others.
        transform: From a frame as a PIL image to the model's input, if ``model`` does not bring it.
        labels: The names of the classes, if ``model`` does not bring them.
        batch_size: Frames in a forward pass.
        **settings: Other arguments of :class:`camtool.Explainer`, e.g. ``layer=``, and options of the method.

    Raises:
        TargetError: Several classes are named, or the model has no such class.
        ImageError: The video cannot be read.
        CamtoolError: Another argument does not fit; :mod:`camtool.errors` lists the classes.
    """
    if targets.asks_for_several(target_class):
        raise TargetError("target_class: a video is explained for one class; call explain_video once for each.")
    if isinstance(method, (list, tuple)):
        raise MethodError("method: a video is explained by one method; call explain_video once for each.")
    sampling = _Sampling(every, fps)
    check_count("smooth", smooth)
    check_count("window", window, optional=True)
    check_count("batch_size", batch_size)
    if smooth % 2 == 0:
        raise CamtoolError(f"smooth must be odd, as as many frames before count as after, got {smooth}.")
    loaded = to_loaded(model)
    transform, labels = transform or loaded.transform, labels if labels is not None else loaded.labels
    frames = choose_window(loaded.model, window)
    reader = VideoReader(video)
    if frames is None:
        explainer = Explainer(model, method, transform=transform, labels=labels, batch_size=batch_size, **settings)
        height, width = (side // reader.division for side in reader.size)
        group = min(batch_size, max(1, _GROUP_PIXELS // max(1, height * width)))
        run: _Run = _ImageRun(explainer, target_class, group)
    else:
        explainer = Explainer(loaded.model, method, labels=labels, kind="clip", **settings)
        run = _ClipRun(explainer, target_class, frames, transform)
    run.explain(reader, sampling)
    return run.build_result(reader, smooth)


class _Sampling:
    """The frames of a video that are explained.

    Raises:
        CamtoolError: An argument is not positive, or both are given.
    """

    def __init__(self, every: int, fps: float | None) -> None:
        check_count("every", every)
        check_number("fps", fps, above=0, optional=True)
        if every != 1 and fps is not None:
            raise CamtoolError("every and fps both choose the frames; give one of them.")
        self._every, self._period = every, None if fps is None else 1 / fps
        self._due: float | None = None

    def estimate_count(self, facts: VideoFacts) -> int:
        """Return about how many frames are explained, for a progress bar; at least 1."""
        share = 1 / self._every if self._period is None else min(1.0, float(1 / (self._period * facts.rate)))
        return max(1, round(share * facts.frames))

    def takes(self, frame: Frame) -> bool:
        """Return True if a frame, the next one, is explained."""
        if self._period is None:
            return frame.index % self._every == 0
        self._due = frame.time if self._due is None else self._due
        # Half a millisecond: times are rounded to the unit of the file.
        if frame.time < self._due - 0.0005:
            return False
        while self._due <= frame.time + 0.0005:
            self._due += self._period
        return True


class _Run(ABC):
    """The explanation of one video, and what came out of it so far."""

    def __init__(self, explainer: Explainer[Any], target: Any, group: int) -> None:
        self._explainer, self._target, self._group = explainer, target, group
        self._store = MapStore()
        self._maps: list[FrameMap] = []
        self._rows: list[FrameRow] = []
        self._facts: dict[str, str] = {}
        self._notes: list[str] = []
        self._frames = 0

    def explain(self, reader: VideoReader, sampling: _Sampling) -> None:
        """Explain the frames that are taken, group by group, with a progress bar.

        Raises:
            ImageError: Not even one frame could be read.
        """
        if reader.division > 1:
            height, width = reader.size
            self._notes.append(
                f"The frames of {width} x {height} pixels are larger than 4K, so they are explained and drawn at "
                f"1/{reader.division} of their sides."
            )
        chosen = self._select(reader, sampling)
        stage = Stage("Explaining", "frame", self._group)
        steps = iterate_chunks(sampling.estimate_count(reader.facts), self._group, stage)
        while group := list(islice(chosen, self._group)):
            next(steps, None)
            with show_progress(False):
                self._explain_group(group)
        steps.close()  # type: ignore[attr-defined]  # it is a generator, and has a bar to close
        if not self._frames:
            raise ImageError(f"video {reader.path!r} holds no frames.")

    def _select(self, reader: VideoReader, sampling: _Sampling) -> Iterator[Frame]:
        """Yield the frames that are explained, and count all; a damaged rest of the file becomes a warning."""
        try:
            for frame in reader:
                self._frames += 1
                if sampling.takes(frame):
                    yield frame
        except ImageError as error:
            if not self._frames:
                raise
            self._notes.append(f"Only the first {self._frames:,} frames could be read: {error}")

    @abstractmethod
    def _explain_group(self, frames: Sequence[Frame]) -> None:
        """Explain frames together, and add a row and a map for each."""

    def _add_row(self, frame: Frame, result: Explanation | str, first: int, last: int) -> None:
        """Add the row of a frame: what was explained, or why nothing was."""
        if not isinstance(result, str):
            self._facts = self._facts or {"method": result.method, "layer": result.layer}
        self._rows.append(FrameRow.from_result(frame, result, first, last))

    def build_result(self, reader: VideoReader, smooth: int) -> VideoExplanation:
        """Return the result.

        Raises:
            ImageError: No frame could be explained.
        """
        if not self._facts:
            raise ImageError(f"video {reader.path!r}: no frame could be explained: {self._rows[0].reason}.")
        return VideoExplanation(
            path=reader.path,
            **self._facts,
            frame_count=self._frames,
            rows=self._rows,
            warnings=(*self._notes, *_summarize_warnings(self._rows)),
            smooth=smooth,
            reader=reader,
            store=self._store,
            maps=self._maps,
        )


class _ImageRun(_Run):
    """A video whose frames are explained as images."""

    def _explain_group(self, frames: Sequence[Frame]) -> None:
        results = self._explain([Image.fromarray(frame.pixels) for frame in frames])
        for frame, result in zip(frames, map(_check_finite, results), strict=True):
            self._add_row(frame, result, frame.index, frame.index)
            if isinstance(result, str):
                self._maps.append(FrameMap(None))
            else:
                number = self._store.add(result.raw)
                self._maps.append(FrameMap(number, _get_geometry(result), result.centers))

    def _explain(self, images: list[Image.Image]) -> list[Explanation | str]:
        try:
            return list(self._explainer(images, [self._target] * len(images)))
        except NothingFoundError as error:
            return [str(error)] if len(images) == 1 else [self._explain([image])[0] for image in images]


class _ClipRun(_Run):
    """A video whose frames are explained in windows, by a model that takes clips."""

    def __init__(self, explainer: Explainer[Any], target: Any, window: int, transform: Transform | None) -> None:
        super().__init__(explainer, target, window)
        self._transform = transform
        self._recent: deque[Frame] = deque(maxlen=window)

    def _explain_group(self, frames: Sequence[Frame]) -> None:
        self._recent.extend(frames)
        shown = list(self._recent)
        if len(shown) < self._group:
            self._notes.append(
                f"The model takes {self._group} frames, and {len(shown)} were chosen, so the last one was repeated."
            )
            shown += [shown[-1]] * (self._group - len(shown))
        clip = prepare_clip(self._transform, [frame.pixels for frame in shown])
        assert self._transform is not None  # prepare_clip refuses
        explanation = self._explainer([clip], [self._target])[0]
        size = (clip.shape[1], clip.shape[2], clip.shape[3])
        parts, centers = split_clip_map(explanation.raw, explanation.centers, size)
        # Reversed: of a frame that is repeated, the first counts.
        by_index = {frame.index: part for frame, part in reversed([*zip(shown, parts, strict=True)])}
        result = _check_finite(explanation)
        geometry = read_clip_geometry(self._transform, frames[0].pixels)
        for frame in frames:
            self._add_row(frame, result, shown[0].index, shown[-1].index)
            number = None if isinstance(result, str) else self._store.add(by_index[frame.index])
            self._maps.append(FrameMap(number, geometry, centers))


def _get_geometry(result: Explanation) -> Any:
    geometry = result.geometry
    if geometry is None:
        raise ImageError("video: the model takes no images; if it takes clips, give the number of frames as window=.")
    return geometry


def _check_finite(result: Explanation | str) -> Explanation | str:
    """Return an explanation, or why it cannot be drawn."""
    if isinstance(result, str) or np.isfinite(result.raw).all():
        return result
    return "the map holds NaN or infinite values"


def _summarize_warnings(rows: Sequence[FrameRow]) -> Iterator[str]:
    """Yield each kind of warning once, with the number of frames that have it, and whether the class changes."""
    explained = [row for row in rows if row.reason is None]
    if len(explained) < len(rows):
        yield f"{len(rows) - len(explained):,} of {len(rows):,} frames have no heatmap; their rows say why."
    changes = sum((row.label, row.index) != (after.label, after.index) for row, after in pairwise(explained))
    if changes:
        yield (
            f"The explained class changes {changes:,} times, so the heat of different classes is on one scale; name a "
            "class to see where it is in every frame."
        )
    kinds = (kind for row in explained for kind in zip(row.warning_codes, row.warnings, strict=True))
    yield from count_texts(kinds, f"{len(explained):,} frames")


def choose_window(model: nn.Module, window: int | None) -> int | None:
    """Return the number of frames that a model takes at once; ``None`` for a model that takes images.

    Args:
        model: The module.
        window: What the user asked for.
    """
    if window is not None:
        return window
    is_for_clips = bool(list_channels(model, 3)) and not list_channels(model, 2)
    return choose_example_shape(model, 32, 32)[1] if is_for_clips else None


def prepare_clip(transform: Transform | None, frames: Sequence[Pixels]) -> Tensor:
    """Return frames ``(H, W, 3)`` as a clip ``(C, T, h, w)``.

    Args:
        transform: The preparation of one frame, from a PIL image to ``(C, h, w)``, or torchvision's of a whole clip.
        frames: The frames.

    Raises:
        ImageError: There is no transform, or it returned something else.
    """
    if transform is None:
        raise ImageError(
            "transform: the model takes clips, and how their frames are prepared is unknown; give a function from a "
            "frame, a PIL image, to a tensor (C, h, w), as in training."
        )
    if _is_clip_preset(transform):
        stacked: Any = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)
        clip: Tensor = transform(stacked)
        return clip
    prepared = [_check_frame(unwrap_image(transform(Image.fromarray(frame)))) for frame in frames]
    return torch.stack(prepared, dim=1)


def _check_frame(output: object) -> Tensor:
    if not isinstance(output, Tensor) or output.ndim != 3 or not output.is_floating_point():
        returned = f"{output.dtype} {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ImageError(f"transform returned {returned} for a frame; it must return a floating tensor (C, h, w).")
    return output


def read_clip_geometry(transform: Transform, frame: Pixels) -> Geometry:
    """Return the crop and resize of each frame.

    Raises:
        GeometryError: The transform is more than that.
    """
    height, width = frame.shape[:2]
    if _is_clip_preset(transform):
        preset: Any = transform
        return Geometry.whole(height, width).resize(preset.resize_size).center_crop(preset.crop_size)
    return read_geometry(transform, (height, width))


def _is_clip_preset(transform: object) -> bool:
    """Return True for the preparation that torchvision publishes with its video models."""
    kind = type(transform)
    return kind.__name__ == "VideoClassification" and kind.__module__.startswith("torchvision.")


def split_clip_map(
    raw: NDArray[np.float32], centers: CellCenters | None, size: tuple[int, int, int]
) -> tuple[list[NDArray[np.float32]], CellCenters | None]:
    """Return the map of each frame, ``(h, w)``, linear in time, and the centers of its cells.

    Args:
        raw: ``(t, h, w)``, the map of a clip.
        centers: Where its cells lie in the clip.
        size: Size of the clip ``(T, H, W)``.
    """
    in_time = None if centers is None else centers.axes[0]
    # Nothing fades toward the end of a clip, where the video goes on.
    weights = build_interpolation_matrix(len(raw), 0.0, float(size[0]), size[0], in_time, size[0], holds=True).numpy()
    frames = np.tensordot(weights, raw, axes=(1, 0)).astype(np.float32)
    return list(frames), None if centers is None else CellCenters(centers.size[1:], centers.axes[1:])
