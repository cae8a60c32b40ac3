"""Photos on their way through the model in batches, here and on a cluster, and the threads that work meanwhile."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from PIL.Image import Image

from camtool.arguments.checks import iterate_leaves
from camtool.errors import ImageError, MethodError, NothingFoundError, TargetError, raise_interrupt
from camtool.runs.process_settings import release_memory
from camtool.runs.result_writer import describe_error
from camtool.warning_codes import MapWarning

if TYPE_CHECKING:
    from typing_extensions import Self

    from camtool.explaining.explainer import Explainer
    from camtool.explaining.explanation import Explanation
    from camtool.inputs.image_files import ImageSource
    from camtool.inputs.prepared_inputs import PreparedInput

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MOST_WORKERS = 8
"""With more threads, Python's interpreter lock lets them wait for each other: on 16 cores, 16 were slower than 8."""


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
    explainer: Explainer[Any],
    names: Sequence[str],
    photos: Sequence[PreparedInput | str],
    target: Any,
    *,
    strict: bool = False,
) -> list[list[Explanation] | str]:
    """Return each photo's explanations, or the reason why there are none.

    A photo in which a detector finds nothing has a map of zeros, with the label "nothing found".

    Args:
        explainer: The explainer.
        names: The name of each photo in messages.
        photos: The model's input of each photo, or the reason why there is none.
        target: The target, or a list of targets, of each photo.
        strict: Raise the error of a method that can serve none of the photos.

    Raises:
        TargetError: The model has no such class.
        MethodError: The method can serve none of the photos, and ``strict`` is set.
    """
    readable = [photo for photo in photos if not isinstance(photo, str)]
    results = _try_explaining(explainer, readable, target)
    if not isinstance(results, list):  # a batch that fails is explained photo by photo
        results = [_explain_one(explainer, photo, target) for photo in readable]
    refusals = [result for result in results if isinstance(result, MethodError)]
    if strict and refusals and len(refusals) == len(results):
        raise refusals[0]
    remaining = iter(results)
    return [
        photo if isinstance(photo, str) else _to_result(name, next(remaining))
        for name, photo in zip(names, photos, strict=True)
    ]


def _explain_one(explainer: Explainer[Any], photo: PreparedInput, target: Any) -> Any:
    """Return the explanations of one photo, or why there are none."""
    results = _try_explaining(explainer, [photo], target)
    return results[0] if isinstance(results, list) else results


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
    from camtool.explaining.explanation import Explanation

    warnings = (*photo.notes, MapWarning(str(error), "nothing-found"))
    raw, method = np.zeros((1,) * len(photo.view.size), np.float32), explainer.batches.methods[0].name
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
        count: The number of threads; with 0 everything runs in the thread of the caller.
    """

    def __init__(self, count: int) -> None:
        self._count = count
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
