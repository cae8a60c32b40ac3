"""A run: explain the planned photos in batches and write the results. It prints nothing."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from camtool.arguments.nested_lists import iterate_leaves
from camtool.errors import ImageError, MethodError, NothingFoundError, TargetError
from camtool.inputs import image_files
from camtool.runs.job_list import Job
from camtool.runs.report_rows import open_manifest
from camtool.runs.result_writer import Failure, ResultWriter, Success, describe_error
from camtool.runs.save_kinds import OutputSettings

if TYPE_CHECKING:
    from PIL import Image

    from camtool.explainer import Explainer
    from camtool.explanation import Explanation

__all__ = ["run_jobs"]


def run_jobs(
    explainer: Explainer[Any], jobs: Sequence[Job], target: Any, output: OutputSettings, *, batch_size: int = 8
) -> Generator[Success | Failure, None, None]:
    """Explain photos and write the results, a batch at a time. Every file is complete or absent.

    A photo that cannot be read, explained or written, e.g. for lack of memory, is a failure and never ends the run.

    Args:
        explainer: The explainer.
        jobs: The photos, as :func:`plan_run` lists them.
        target: The target, or a list of targets, of each photo, as for :func:`camtool.explain`.
        output: What is written, where, and how.
        batch_size: The number of photos held in memory.

    Yields:
        One outcome for each photo, in the order of the jobs.

    Raises:
        TargetError: The model has no such class. This error and the following concern all photos.
        MethodError: The model cannot serve the method. If a method cannot serve only some of the photos, e.g. one that
            is too large, these are failures.
        CamtoolError: Another run writes to the output folder.
        OSError: The disk is full, damaged or read-only, or the output folder cannot be used.
    """
    any_explained = False
    with open_manifest(output.folder) as manifest:
        writer = ResultWriter(output, manifest)
        for start in range(0, len(jobs), batch_size):
            batch = jobs[start : start + batch_size]
            for job, result in _explain_batch(explainer, batch, target, strict=not any_explained):
                if isinstance(result, str):
                    yield Failure(job, result)
                    continue
                any_explained = True
                yield writer.write_results(job, result)


def _explain_batch(
    explainer: Explainer[Any], jobs: Sequence[Job], target: Any, *, strict: bool
) -> Iterator[tuple[Job, list[Explanation] | str]]:
    """Yield each photo's explanations, or the reason why there are none.

    If the batch fails as a whole, each photo is explained alone, to find the ones at fault.

    Raises:
        MethodError: The method can serve none of the photos, and ``strict`` is set.
    """
    photos = {job: _read_photo(job) for job in jobs}
    readable = {job: photo for job, photo in photos.items() if not isinstance(photo, str)}
    together = _try_explaining(explainer, list(readable.values()), target)
    if isinstance(together, list):
        results = dict(zip(readable, together, strict=True))
    else:
        results = {job: _try_explaining(explainer, [photo], target) for job, photo in readable.items()}
    refusals = [each for each in results.values() if isinstance(each, MethodError)]
    if strict and refusals and len(refusals) == len(results):
        raise refusals[0]
    for job, photo in photos.items():
        result = photo if isinstance(photo, str) else results[job]
        if isinstance(result, (str, MethodError)):
            yield job, f"{job.source}: {result}" if job in results else str(result)
        else:
            yield job, list(iterate_leaves(result))


def _read_photo(job: Job) -> Image.Image | str:
    """Return the photo, or the reason why it cannot be read."""
    try:
        return image_files.read_image(job.source)
    except ImageError as error:
        return str(error)
    except MemoryError as error:
        return f"{job.source}: {describe_error(error)}"


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
