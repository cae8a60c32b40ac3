"""A run: explain the planned photos in batches and write the results. It prints nothing.

The model runs in the thread of the caller. Other threads read and prepare the next photos, and draw and write the
results of the last ones. The order of the outcomes and all results are those of a run without threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from camtool.arguments.nested_lists import iterate_leaves
from camtool.errors import ImageError, MethodError, NothingFoundError, TargetError
from camtool.inputs import image_files
from camtool.runs.job_list import Job
from camtool.runs.report_rows import open_manifest
from camtool.runs.result_writer import Failure, ResultWriter, Success, describe_error
from camtool.runs.save_kinds import OutputSettings
from camtool.runs.workers import Workers, count_workers

if TYPE_CHECKING:
    from camtool.explainer import Explainer
    from camtool.explanation import Explanation
    from camtool.inputs.input_preparer import PreparedInput

__all__ = ["run_jobs"]


def run_jobs(
    explainer: Explainer[Any],
    jobs: Sequence[Job],
    target: Any,
    output: OutputSettings,
    *,
    batch_size: int = 8,
    workers: int | None = None,
    on_batch: Callable[[Sequence[Job], float], None] | None = None,
) -> Generator[Success | Failure, None, None]:
    """Explain photos and write the results, a batch at a time. Every file is complete or absent.

    A photo that cannot be read, explained or written, e.g. for lack of memory, is a failure and never ends the run.

    Args:
        explainer: The explainer.
        jobs: The photos, as :func:`plan_run` lists them.
        target: The target, or a list of targets, of each photo, as for :func:`camtool.explain`.
        output: What is written, where, and how.
        batch_size: The number of photos in a batch. Up to three times as many are in memory: those that are prepared,
            explained and written.
        workers: The number of threads beside the model; by default that of the cores. With 0 everything is done in
            turn.
        on_batch: Called with the photos of each batch that the model is done with, and the seconds that it took.

    Yields:
        One outcome for each photo, in the order of the jobs.

    Raises:
        TargetError: The model has no such class. This error and the following concern all photos.
        MethodError: The model cannot serve the method. If a method cannot serve only some of the photos, e.g. one that
            is too large, these are failures.
        CamtoolError: Another run writes to the output folder.
        OSError: The disk is full, damaged or read-only, or the output folder cannot be used.
    """
    with (
        open_manifest(output.folder) as manifest,
        Workers(count_workers() if workers is None else workers) as threads,
    ):
        writer = ResultWriter(output)
        prepared = threads.map_ahead(partial(_prepare_photo, explainer, output.max_side), jobs, batch_size)
        explained = _explain_photos(explainer, prepared, target, batch_size, on_batch)
        for outcome in threads.map_ahead(writer.write_results, explained, batch_size):
            if isinstance(outcome, Success):
                manifest.add(outcome.lines)
                manifest.mark_complete(str(outcome.job.source))
            yield outcome


@dataclass(frozen=True)
class _Photo:
    """A photo on its way to the model: prepared, or the reason why it cannot be."""

    job: Job
    prepared: PreparedInput | str


def _prepare_photo(explainer: Explainer[Any], max_side: int | None, job: Job) -> _Photo:
    """Read a photo, reduced to ``max_side`` or to what the model needs if that is more, and prepare it."""
    try:
        image = image_files.read_image(job.source, max_side=max_side)
    except ImageError as error:
        return _Photo(job, str(error))
    except MemoryError as error:
        return _Photo(job, f"{job.source}: {describe_error(error)}")
    may_be_reduced = max_side is not None and max(image.size) >= max_side
    try:
        prepared = explainer.prepare(image)
    except Exception as error:  # noqa: BLE001  a user's transform may raise anything
        if may_be_reduced:  # and then be too small for it
            return _prepare_photo(explainer, None, job)
        return _Photo(job, f"{job.source}: {describe_error(error)}")
    if may_be_reduced and (scale := prepared.geometry.compute_scale()) > 1:
        # The model would see an enlarged picture of a reduced one.
        return _prepare_photo(explainer, math.ceil(max(image.size) * scale), job)
    return _Photo(job, prepared)


def _explain_photos(
    explainer: Explainer[Any],
    photos: Iterator[_Photo],
    target: Any,
    batch_size: int,
    on_batch: Callable[[Sequence[Job], float], None] | None = None,
) -> Iterator[tuple[Job, list[Explanation] | str]]:
    """Yield each photo's explanations, or the reason why there are none.

    Raises:
        MethodError: The method can serve none of the photos of the first batches.
    """
    any_explained = False
    while batch := list(islice(photos, batch_size)):
        started = time.perf_counter()
        results = [*_explain_batch(explainer, batch, target, strict=not any_explained)]
        if on_batch is not None:
            on_batch([photo.job for photo in batch], time.perf_counter() - started)
        for job, result in results:
            any_explained = any_explained or not isinstance(result, str)
            yield job, result
        results.clear()  # explanations that are written are not kept while the next batch is explained


def _explain_batch(
    explainer: Explainer[Any], photos: Iterable[_Photo], target: Any, *, strict: bool
) -> Iterator[tuple[Job, list[Explanation] | str]]:
    """Yield each photo's explanations, or the reason why there are none.

    If the batch fails as a whole, each photo is explained alone, to find the ones at fault.

    Raises:
        MethodError: The method can serve none of the photos, and ``strict`` is set.
    """
    readable = {photo.job: photo.prepared for photo in photos if not isinstance(photo.prepared, str)}
    together = _try_explaining(explainer, list(readable.values()), target)
    if isinstance(together, list):
        results = dict(zip(readable, together, strict=True))
    else:
        results = {job: _try_explaining(explainer, [prepared], target) for job, prepared in readable.items()}
    refusals = [each for each in results.values() if isinstance(each, MethodError)]
    if strict and refusals and len(refusals) == len(results):
        raise refusals[0]
    for photo in photos:
        result = results.get(photo.job, photo.prepared)
        if photo.job not in results:
            yield photo.job, str(result)
        elif isinstance(result, (str, MethodError)):
            yield photo.job, f"{photo.job.source}: {result}"
        else:
            yield photo.job, list(iterate_leaves(result))


def _try_explaining(explainer: Explainer[Any], photos: list[Any], target: Any) -> list[Any] | str | MethodError:
    """Return the explanations of each photo, or why there are none; a MethodError if the method cannot serve them."""
    try:
        found: list[Any] = explainer(photos, [target] * len(photos)) if photos else []
    except NothingFoundError as error:
        return str(error)
    except TargetError:
        raise
    except MethodError as error:
        return error
    except Exception as error:  # noqa: BLE001  a user's transform or model may raise anything
        return describe_error(error)
    return found
