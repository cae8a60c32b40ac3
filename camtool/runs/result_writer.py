"""Writing the results of a run: files of each explanation, and its line in the manifest."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.errors import CamtoolError, raise_interrupt
from camtool.explaining.explanation import Explanation
from camtool.inputs.image_files import read_image
from camtool.rendering.contact_sheet import Caption
from camtool.rendering.regions import PhotoRegion, compute_heat_share
from camtool.rendering.written_files import check_inside
from camtool.runs import file_names
from camtool.runs.job_list import Job, fold_path
from camtool.runs.photo_tables import TrueClass
from camtool.runs.run_folder.sheets import build_caption
from camtool.runs.save_kinds import SAVE_KINDS, OutputSettings
from camtool.runs.stored_files import ManifestLine, build_line, is_correct

# Errors that every later photo would meet as well: disk full, quota reached, read-only, or damaged.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


@dataclass(frozen=True)
class Success:
    """A photo that was explained.

    Attributes:
        job: The photo.
        lines: The lines of the manifest about it; none if only photos that are classified wrongly get lines.
        is_recorded: True if an earlier start of the run explained it.
        size: Its height and width in pixels; None if an earlier start explained it.
        correct: True if the model's top class is the true one; None if one of them is not known.
    """

    job: Job
    lines: list[ManifestLine]
    is_recorded: bool = False
    size: tuple[int, int] | None = None
    correct: bool | None = None


@dataclass(frozen=True)
class Failure:
    """A photo that could not be explained, and why; ``is_recorded`` if an earlier start tried it."""

    job: Job
    reason: str
    is_recorded: bool = False


# What became of a photo.
PhotoOutcome: TypeAlias = Success | Failure


def describe_error(error: Exception) -> str:
    """Return why a photo failed, in one line."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    message = str(error).split("\n", 1)[0]
    if isinstance(error, MemoryError):
        return f"there is not enough memory for it{message and f' ({message})'}"
    return message or type(error).__name__


def describe_unjudged(name: str) -> str:
    """Return why a photo fails if only those are written that are classified wrongly."""
    return f"{name}: the model predicts no class for it, so it is neither right nor wrong"


class ResultWriter:
    """Writer of the files of one run, each to a file of its own. Several threads may use it.

    Args:
        output: What is written, where, and how.
    """

    def __init__(self, output: OutputSettings) -> None:
        self._output = output
        self._taken: set[str] = set()
        self._lock = threading.Lock()

    def reserve_recorded(self, names: Iterable[str]) -> None:
        """Reserve the files of results that are kept, relative to the output folder, so that none is overwritten."""
        with self._lock:
            self._taken.update(fold_path(Path(name)) for name in names)

    def write_results(self, job: Job, explanations: Sequence[Explanation] | str) -> PhotoOutcome:
        """Write the files of all explanations of a photo; instead of them there may be the reason why there are none.

        Returns:
            The lines for the manifest, or why there are none.

        Raises:
            OSError: The disk is at fault, not the photo.
        """
        if isinstance(explanations, str):
            return Failure(job, explanations)
        true_class = self._output.true_classes.get(job.source)
        correct = is_correct(explanations, true_class)
        size = _get_size(explanations)
        if self._output.only_wrong and correct is None:
            return Failure(job, describe_unjudged(str(job.source)))
        if self._output.only_wrong and correct:
            return Success(job, [], size=size, correct=correct)
        refusal = self._find_refusal(explanations)
        if refusal is not None:
            return Failure(job, f"{job.source}: {refusal}")
        try:
            lines = self._write_explanations(job, explanations, true_class)
        except Exception as error:
            raise_interrupt(error)
            if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
                raise
            return Failure(job, f"{job.source}: {describe_error(error)}")
        return Success(job, lines, size=size, correct=correct)

    def _find_refusal(self, explanations: Sequence[Explanation]) -> str | None:
        """Return why an explanation cannot be saved as one of the kinds."""
        asked = filter(None, [SAVE_KINDS[name].describe_refusal for name in self._output.kinds])
        refusals = (describe(explanation) for describe in asked for explanation in explanations)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def _write_explanations(
        self, job: Job, explanations: Sequence[Explanation], true_class: TrueClass | None
    ) -> list[ManifestLine]:
        names = file_names.make_distinct(
            [file_names.name_result(job.stem.name, each.method, each.label, each.index) for each in explanations]
        )
        return [
            self._write_explanation(job, explanation, job.stem.with_name(name), true_class)
            for name, explanation in zip(names, explanations, strict=True)
        ]

    def _write_explanation(
        self, job: Job, explanation: Explanation, stem: Path, true_class: TrueClass | None
    ) -> ManifestLine:
        line = build_line(str(job.source), explanation, true_class)
        has_caption = self._output.has_captions or "nothing-found" in line.warning_codes
        caption = build_caption(vars(line)) if has_caption else None
        heat_in = {name: self._measure(job, explanation, region) for name, region in self._output.regions.items()}
        return replace(line, files=self._write_files(explanation, stem, caption), heat_in=heat_in or None)

    def _measure(self, job: Job, explanation: Explanation, region: PhotoRegion | Path) -> float | None:
        """Return the share of the heat in a region; None if there is no heat, or no mask of the photo."""
        size = _get_size([explanation])
        if size is None:
            raise CamtoolError("--region needs photos, and this is a signal, a volume or a clip")
        is_reduced = any(warning.code == "photo-reduced" for warning in explanation.warnings)
        if is_reduced and not isinstance(region, Path) and not region.in_percent:
            raise CamtoolError("--region is in pixels, and the photo was reduced to save memory; give percent")
        if isinstance(region, Path):
            file = self._output.masks[region].get(job.source)
            mask = None if file is None else read_mask(file, size)
        else:
            mask = region.to_mask(*size)
        share = math.nan if mask is None else compute_heat_share(explanation.heatmap, mask)
        return None if math.isnan(share) else share

    def _write_files(self, explanation: Explanation, stem: Path, caption: Caption | None) -> dict[str, str]:
        """Write each kind of file; return kind → path, relative to the output folder."""
        files = {}
        for name in self._output.kinds:
            kind = SAVE_KINDS[name]
            path = stem.with_name(f"{stem.name}{kind.marker}.{kind.choose_suffix(self._output.format)}")
            self._reserve(path)
            check_inside(self._output.folder, path)
            kind.write(explanation, self._output.folder / path, self._output, caption)
            files[name] = path.as_posix()
        return files

    def _reserve(self, path: Path) -> None:
        """Reserve a path for one result. A path that is taken shows a bug in camtool."""
        with self._lock:
            if fold_path(path) in self._taken:
                raise RuntimeError(f"its result would overwrite {path} of this run; please report this")
            self._taken.add(fold_path(path))


def read_mask(path: Path, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the mask of a photo, ``(H, W)``: True where an image is not black.

    Args:
        path: The image.
        size: Height and width of the photo in pixels.

    Raises:
        CamtoolError: It has other proportions than the photo.
    """
    mask = Image.fromarray(np.asarray(read_image(path)).max(2))
    # A photo that was reduced has the proportions of its mask up to one pixel.
    if abs(mask.width * size[0] - mask.height * size[1]) > max(mask.size):
        raise CamtoolError(f"the mask {path} is {mask.width} x {mask.height}, the photo {size[1]} x {size[0]}")
    return np.asarray(mask.resize((size[1], size[0]), Image.Resampling.NEAREST)) > 0


def _get_size(explanations: Sequence[Explanation]) -> tuple[int, int] | None:
    """Return height and width of the photo."""
    size = next((explanation.view.size for explanation in explanations), ())
    return (size[0], size[1]) if len(size) == 2 else None
