"""Writing the results of a run: files of each explanation, and its line in the manifest."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from camtool.runs import file_names
from camtool.runs.job_list import Job, fold_path
from camtool.runs.report_rows import ManifestLine
from camtool.runs.save_kinds import SAVE_KINDS, OutputSettings

if TYPE_CHECKING:
    from camtool.explanation import Explanation

__all__ = ["Failure", "ResultWriter", "Success", "describe_error"]

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors that every later photo would meet as well: disk full, quota reached, read-only, or damaged."""


@dataclass(frozen=True)
class Success:
    """A photo that was explained, and the lines of the manifest about it."""

    job: Job
    lines: list[ManifestLine]


@dataclass(frozen=True)
class Failure:
    """A photo that could not be explained, and why."""

    job: Job
    reason: str


def describe_error(error: Exception) -> str:
    """Return why a photo failed, in one line."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    message = str(error).split("\n", 1)[0]
    if isinstance(error, MemoryError):
        return f"there is not enough memory for it{message and f' ({message})'}"
    return message or type(error).__name__


class ResultWriter:
    """Writer of the files of one run, each to a file of its own. Several threads may use it.

    Args:
        output: What is written, where, and how.
    """

    def __init__(self, output: OutputSettings) -> None:
        self._output = output
        self._taken: set[str] = set()
        self._lock = threading.Lock()

    def write_results(self, result: tuple[Job, Sequence[Explanation] | str]) -> Success | Failure:
        """Write the files of all explanations of a photo; instead of them there may be the reason why there are none.

        Returns:
            The lines for the manifest, or why there are none.

        Raises:
            OSError: The disk is at fault, not the photo.
        """
        job, explanations = result
        if isinstance(explanations, str):
            return Failure(job, explanations)
        try:
            lines = [
                _build_line(job, explanation, self._write_files(explanation, job.stem.with_name(name)))
                for name, explanation in zip(_name_results(job, explanations), explanations, strict=True)
            ]
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
                raise
            return Failure(job, f"{job.source}: {describe_error(error)}")
        return Success(job, lines)

    def _write_files(self, explanation: Explanation, stem: Path) -> dict[str, str]:
        """Write each kind of file; return kind → path, relative to the output folder."""
        files = {}
        for name in self._output.kinds:
            kind = SAVE_KINDS[name]
            path = stem.with_name(f"{stem.name}{kind.marker}.{kind.choose_suffix(self._output.format)}")
            self._reserve(path)
            file_names.check_inside(self._output.folder, path)
            kind.write(explanation, self._output.folder / path, self._output)
            files[name] = path.as_posix()
        return files

    def _reserve(self, path: Path) -> None:
        """Reserve a path for one result. A path that is taken shows a bug in camtool."""
        with self._lock:
            if fold_path(path) in self._taken:
                raise RuntimeError(f"its result would overwrite {path} of this run; please report this")
            self._taken.add(fold_path(path))


def _name_results(job: Job, explanations: Sequence[Explanation]) -> list[str]:
    names = [file_names.name_result(job.stem.name, each.method, each.label, each.index) for each in explanations]
    return file_names.make_distinct(names)


def _build_line(job: Job, explanation: Explanation, files: dict[str, str]) -> ManifestLine:
    return ManifestLine(
        image=str(job.source),
        method=explanation.method,
        layer=explanation.layer,
        label=explanation.label,
        index=explanation.index,
        score=explanation.score,
        probability=explanation.probability,
        warnings=explanation.warnings,
        box=explanation.box,
        files=files,
    )
