"""A run: explain the planned photos in batches and write the results. It prints nothing.

Photos go through the model of a cluster's worker in the same way.

The model runs in the thread of the caller. Other threads read and prepare the next photos, and draw and write the
results of the last ones. The order of the outcomes and all results are those of a run without threads.

Batches have fixed boundaries, also in a run that is continued: the last bits of a result may depend on the other photos
of its batch.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from PIL.Image import Image
from typing_extensions import Self

from camtool.arguments.checks import iterate_leaves
from camtool.errors import CamtoolError, ImageError, MethodError, NothingFoundError, TargetError, raise_interrupt
from camtool.explaining.explainer import Explainer
from camtool.explaining.explanation import Explanation
from camtool.inputs.image_files import ImageSource
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.runs.job_list import Job
from camtool.runs.process_settings import release_memory
from camtool.runs.result_writer import Failure, PhotoOutcome, ResultWriter, Success, describe_error
from camtool.runs.run_folder.hashes import hash_file, hash_photo
from camtool.runs.run_folder.photo_records import PhotoRecord
from camtool.runs.run_folder.resumable_folder import Batch, RunFolder, RunStart, open_run_folder
from camtool.runs.save_kinds import OutputSettings
from camtool.runs.stored_files import parse_row, to_row
from camtool.warning_codes import MapWarning

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# With more threads, Python's interpreter lock lets them wait for each other: on 16 cores, 16 were slower than 8.
_MOST_WORKERS = 8


def prepare_photo(
    explainer: Explainer[Any], source: ImageSource, name: str, max_side: int | None
) -> PreparedInput | str:
    """Read a photo, reduced to ``max_side`` or to what the model needs if that is more, and prepare it.

    Args:
        explainer: The explainer.
        source: The photo.
        name: Its name in messages.
        max_side: The longest side in pixels; None for all of the photo.

    Returns:
        The model's input, or the reason why there is none.
    """
    try:
        image = explainer.read(source, max_side=max_side)
    except Exception as error:  # noqa: BLE001  a decoder may raise anything
        raise_interrupt(error)
        return describe_failure(name, error)
    size = image.size
    release_memory(size)
    # Bands and volumes are not reduced.
    may_be_reduced = max_side is not None and isinstance(image, Image) and max(image.size) >= max_side
    try:
        prepared: PreparedInput = explainer.prepare(image)
    except Exception as error:  # noqa: BLE001  a user's transform may raise anything
        raise_interrupt(error)
        if may_be_reduced:  # and then be too small for it
            return prepare_photo(explainer, source, name, None)
        return describe_failure(name, error)
    if may_be_reduced and (scale := prepared.geometry.compute_scale()) > 1:
        # The model would see an enlarged picture of a reduced one.
        return prepare_photo(explainer, source, name, math.ceil(max(image.size) * scale))
    del image
    release_memory(size)
    return prepared


def describe_failure(name: str, error: Exception) -> str:
    """Return why a photo failed, with its name. Errors about a file have it already."""
    reason = str(error) if isinstance(error, ImageError) else describe_error(error)
    return reason if name in reason else f"{name}: {reason}"


def explain_batch(
    explainer: Explainer[Any], photos: Sequence[tuple[str, PreparedInput | str]], target: Any, *, strict: bool = False
) -> list[list[Explanation] | str]:
    """Return each photo's explanations, or the reason why there are none.

    A photo in which a detector finds nothing has a map of zeros, with the label "nothing found".

    Args:
        explainer: The explainer.
        photos: The name of each photo in messages, and the model's input, or the reason why there is none.
        target: The target, or a list of targets, of each photo.
        strict: Raise the error of a method that can serve none of the photos.

    Raises:
        TargetError: The model has no such class.
        MethodError: The method can serve none of the photos, and ``strict`` is set.
    """
    results = _explain_readable(explainer, [photo for _, photo in photos if not isinstance(photo, str)], target)
    refusals = [result for result in results if isinstance(result, MethodError)]
    if strict and refusals and len(refusals) == len(results):
        raise refusals[0]
    remaining = iter(results)
    return [photo if isinstance(photo, str) else _to_result(name, next(remaining)) for name, photo in photos]


def _explain_readable(explainer: Explainer[Any], photos: Sequence[PreparedInput], target: Any) -> list[Any]:
    """Return the explanations of each photo, or why there are none. A batch that fails is explained photo by photo."""
    results = _try_explaining(explainer, photos, target)
    if isinstance(results, list):
        return results
    alone = [_try_explaining(explainer, [photo], target) for photo in photos]
    return [result[0] if isinstance(result, list) else result for result in alone]


def _try_explaining(
    explainer: Explainer[Any], photos: Sequence[PreparedInput], target: Any
) -> list[Any] | str | MethodError:
    """Return the explanations of each photo, or why there are none; a MethodError if the method cannot serve them.

    Raises:
        TargetError: The model has no such class.
    """
    try:
        # Lists of methods and targets give nested lists, whose leaves are the explanations.
        results: list[Any] = explainer(photos, [target] * len(photos)) if photos else []
    except NothingFoundError as error:
        # Of several photos each is tried by itself.
        return [[_describe_nothing(explainer, photos[0], error)]] if len(photos) == 1 else str(error)
    except MethodError as error:
        return error
    except Exception as error:  # noqa: BLE001  a user's transform or model may raise anything
        raise_interrupt(error, TargetError)
        return describe_error(error)
    return results


def _describe_nothing(explainer: Explainer[Any], photo: PreparedInput, error: NothingFoundError) -> Explanation:
    """Return what a run writes of a photo in which a detector found nothing: an answer, and no failure."""
    warnings = (*photo.notes, MapWarning(str(error), "nothing-found"))
    raw, method = np.zeros((1,) * len(photo.view.size), np.float32), explainer.batch_explainer.methods[0].name
    return Explanation(raw, photo.view, "nothing found", None, math.nan, None, method, "", warnings)


def _to_result(name: str, explained: Any) -> list[Explanation] | str:
    return f"{name}: {explained}" if isinstance(explained, (str, MethodError)) else list(iterate_leaves(explained))


def count_workers() -> int:
    """Return how many threads work beside the model: as many as there are cores for this process."""
    # sched_getaffinity knows the cores of a container or of taskset; only Linux has it.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_WORKERS)


class Workers:
    """A ``with`` block with threads. Functions of torch that run in them use one thread each.

    Args:
        count: The number of threads, by default that of the cores; with 0 everything runs in the thread of the caller.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count_workers() if count is None else count
        self._pool: ThreadPoolExecutor | None = None
        self._torch_threads = torch.get_num_threads()

    def __enter__(self) -> Self:
        if self._count:
            # Torch would start as many threads for each of these, and the cores would be busy with waiting threads.
            self._pool = ThreadPoolExecutor(self._count, "camtool", torch.set_num_threads, (1,))
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            # In a thread of its own the call changes nothing but the number that new threads start with.
            thread = threading.Thread(target=torch.set_num_threads, args=(self._torch_threads,))
            thread.start()
            thread.join()

    def map_ahead(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item], ahead: int
    ) -> Generator[_Result, None, None]:
        """Yield ``function(item)`` for each item, in order. Up to ``ahead`` items are begun before they are asked for.

        Raises:
            BaseException: What the function raises for an item is raised when the item's turn comes.
        """
        if self._pool is None:
            yield from map(function, items)
            return
        pending: deque[Future[_Result]] = deque()
        try:
            for item in items:
                pending.append(self._pool.submit(function, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def run_jobs(
    explainer: Explainer[Any],
    jobs: Sequence[Job],
    target: Any,
    output: OutputSettings,
    *,
    batch_size: int = 8,
    workers: int | None = None,
    start: RunStart | None = None,
    on_batch: Callable[[Sequence[Job], float], None] | None = None,
) -> Generator[PhotoOutcome, None, None]:
    """Explain photos and write the results, a batch at a time. Every file is complete or absent.

    A photo that cannot be read, explained or written, e.g. for lack of memory, is a failure and never ends the run. A
    run that is in the output folder already is continued: batches that are complete are not explained again.

    Args:
        explainer: The explainer.
        jobs: The photos, as :func:`plan_run` lists them.
        target: The target, or a list of targets, of each photo, as for :func:`camtool.explain`.
        output: What is written, where, and how.
        batch_size: The number of photos in a batch. Up to three times as many are in memory: those that are prepared,
            explained and written.
        workers: The number of threads beside the model; by default that of the cores. With 0 everything is done in
            turn.
        start: How the run is started in its folder. By default the folder must hold no run.
        on_batch: Called with the photos of each batch that the model is done with, and the seconds that it took.

    Yields:
        One outcome for each photo, in the order of the jobs, also for those of earlier starts.

    Raises:
        TargetError: The model has no such class. This error and the following concern all photos.
        MethodError: The model cannot serve the method. If a method cannot serve only some of the photos, e.g. one that
            is too large, these are failures.
        CamtoolError: Another run writes to the output folder, or it holds one with other settings.
        OSError: The disk is full, damaged or read-only, or the output folder cannot be used.
    """
    start = start or RunStart()
    with open_run_folder(output.folder, jobs, batch_size, start) as folder, Workers(workers) as threads:
        writer = ResultWriter(output)
        pending = [batch for batch in folder.batches if not batch.is_complete]
        prepare = partial(_read_photo, explainer, output.max_side)
        prepared = threads.map_ahead(prepare, chain.from_iterable(batch.jobs for batch in pending), batch_size)
        first_explained = _reserve_complete(folder, writer) if pending else None
        if first_explained is not None and start.uses_engine:
            # The first photos in a process decide whether an engine is used. They must be those that decided before.
            explain_batch(explainer, [prepare(job).named_input for job in first_explained.jobs], target)
        strict, has_regions = first_explained is None, "sufficient" in output.kinds
        explained = _explain_photos(
            explainer, prepared, target, pending, strict=strict, has_regions=has_regions, on_batch=on_batch
        )
        written = threads.map_ahead(partial(_write_results, writer, output.folder), explained, batch_size)
        for batch in folder.batches:
            yield from _record_batch(folder, batch, written)
        release_memory()  # the report reads photos again


def _reserve_complete(folder: RunFolder, writer: ResultWriter) -> Batch | None:
    """Reserve the files of complete batches; return the first batch with an explanation, if there is one."""
    first = None
    for record in folder.read_complete():
        writer.reserve_recorded(record.files)
        if first is None and record.explanations is not None:
            first = record.batch
    return next((batch for batch in folder.batches if batch.number == first), None)


@dataclass(frozen=True)
class _Photo:
    """A photo on its way to the model: its name and what is prepared, or why it cannot be; and what its file holds."""

    job: Job
    named_input: tuple[str, PreparedInput | str]
    facts: Mapping[str, Any] = field(default_factory=dict)


def _read_photo(explainer: Explainer[Any], max_side: int | None, job: Job) -> _Photo:
    if not job.is_asked:
        return _Photo(job, ("", f"{job.source}: it is no longer in PATH"))
    # The hash is taken first: if the photo changes meanwhile, the next start sees another hash and explains it again.
    digest = None if isinstance(job.source, str) else hash_photo(job.source)
    facts = {} if digest is None else {"bytes": Path(job.source).stat().st_size, "sha256": digest}
    name = str(job.source)
    return _Photo(job, (name, prepare_photo(explainer, job.source, name, max_side)), facts)


# A photo that the model is done with, and its explanations, or the reason why there are none.
_Explained: TypeAlias = "tuple[_Photo, list[Explanation] | str]"


def _explain_photos(
    explainer: Explainer[Any],
    photos: Iterator[_Photo],
    target: Any,
    batches: Sequence[Batch],
    *,
    strict: bool,
    has_regions: bool,
    on_batch: Callable[[Sequence[Job], float], None] | None,
) -> Iterator[_Explained]:
    """Yield each photo's explanations, or the reason why there are none.

    Args:
        explainer: The explainer.
        photos: The photos of all batches.
        target: What is explained.
        batches: The batches.
        strict: As for :func:`explain_batch`, until the method has served a photo.
        has_regions: Whether to find the region of each explanation that is sufficient.
        on_batch: As for :func:`run_jobs`.

    Raises:
        MethodError: The method can serve none of the photos of the first batches.
    """
    for batch in batches:
        read = list(islice(photos, len(batch.jobs)))
        started = time.perf_counter()
        results = explain_batch(explainer, [photo.named_input for photo in read], target, strict=strict)
        if on_batch is not None:
            on_batch(batch.jobs, time.perf_counter() - started)
        for photo, result in zip(read, results, strict=True):
            strict = strict and isinstance(result, str)
            # Of a photo in which nothing was found there is no model to ask.
            if has_regions and not isinstance(result, str) and result[0].source is not None:
                result = _add_regions(photo.job, result)
            yield photo, result
        results.clear()  # explanations that are written are not kept while the next batch is explained


def _add_regions(job: Job, explanations: Sequence[Explanation]) -> list[Explanation] | str:
    """Return explanations with the region that is sufficient, or the reason why there is none."""
    try:
        return [replace(explanation, region=explanation.sufficient()) for explanation in explanations]
    except CamtoolError as error:
        return f"{job.source}: {error}"


# ---------------------------------------------------------------------------------------------------------- records


def _record_batch(
    folder: RunFolder, batch: Batch, written: Iterator[tuple[PhotoOutcome, dict[str, Any]]]
) -> Iterator[PhotoOutcome]:
    """Record what was written of a batch, and yield its outcomes, also those of earlier starts."""
    if batch.is_complete:
        yield from map(_restore_outcome, batch.jobs, folder.read_batch(batch))
        return
    kept = folder.begin_batch(batch)
    for outcome, results in islice(written, len(batch.jobs)):
        earlier = kept.get(str(outcome.job.source))
        if earlier is None:
            folder.add(str(outcome.job.source), results)
            yield outcome
        else:
            yield _restore_outcome(outcome.job, earlier)


def _write_results(writer: ResultWriter, folder: Path, explained: _Explained) -> tuple[PhotoOutcome, dict[str, Any]]:
    """Write the files of a photo, and return the outcome and what is recorded of it."""
    photo, result = explained
    outcome = writer.write_results(photo.job, result)
    if isinstance(outcome, Failure):
        return outcome, {**photo.facts, "failure": outcome.reason}
    names = [name for line in outcome.lines for name in line.files.values()]
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": hash_file(folder / name)} for name in names}
    return outcome, {**photo.facts, "explanations": [to_row(line) for line in outcome.lines], "files": files}


def _restore_outcome(job: Job, record: PhotoRecord) -> PhotoOutcome:
    """Return the outcome of an earlier start."""
    if record.explanations is None:
        return Failure(job, record.failure or "", is_recorded=True)
    return Success(job, [parse_row(row) for row in record.explanations], is_recorded=True)
