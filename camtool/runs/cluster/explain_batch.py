"""A callable class that explains batches of photos on any engine: Ray Data, Daft, Spark, or a loop.

It imports none of them. Its settings are picklable, and each worker loads its own copy of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from camtool.arguments.checks import check_count
from camtool.arguments.explain_arguments import to_list
from camtool.errors import CamtoolError, raise_interrupt
from camtool.explaining.explainer import Explainer
from camtool.explaining.explanation import Explanation
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.models import Loaded, StatedPreprocessing, load_with_preprocessing
from camtool.runs.cluster import rows
from camtool.runs.cluster.plan import Photo, open_photo
from camtool.runs.executor import Workers, describe_failure, explain_batch, prepare_photo
from camtool.targets import Top


class ExplainBatch:
    """Callable that explains a batch of photos and returns the columns of :data:`camtool.runs.cluster.rows.COLUMNS`.

        explain = ExplainBatch("resnet50", method="gradcam")
        columns = explain({"path": ["a.jpg", "s3://bucket/b.jpg"]})

    Each photo gives one row for each target and method, or one row with the reason why it failed. A row depends only on
    its photo, the settings and, by rounding, on the other photos of its forward pass. The class imports no cluster
    engine. A pickle holds the settings; the model is loaded again where it is unpickled.

    Args:
        model: A name, as for :func:`camtool.load`, or a function without arguments that returns a model or a
            :class:`camtool.Loaded`.
        method: The name of a method, or several.
        target: A target, or a list of targets, of each photo, as for :func:`camtool.explain`.
        weights: As for :func:`camtool.load`. Each worker must be able to read the file.
        labels: The class names, if they are not those of the weights.
        device: The device that the model is moved to; ``"auto"`` for a GPU that the process sees, else the CPU.
        batch_size: The number of photos in a forward pass. A batch of the engine is split into these, from its start.
        threads: The number of threads that torch uses in this process; by default it is not changed.
        readers: The number of threads that read and prepare the next photos while the model runs; 0 for none.
        max_side: The longest side of photos in pixels; larger ones are reduced while they are read, but not below what
            the model needs. It speeds up the decoding of large JPEG files.
        preprocessing: What the user states about the preprocessing; by default the model's own.
        **settings: Settings and options of the method, as for :class:`camtool.Explainer`.

    Raises:
        CamtoolError: A setting does not fit.
    """

    def __init__(
        self,
        model: str | Callable[[], Any] = "resnet50",
        method: str | Sequence[str] = "gradcam",
        target: Any = None,
        *,
        weights: str | None = None,
        labels: Sequence[str] | None = None,
        device: str = "auto",
        batch_size: int = 8,
        threads: int | None = None,
        readers: int = 0,
        max_side: int | None = None,
        preprocessing: StatedPreprocessing | None = None,
        **settings: Any,
    ) -> None:
        # The first statement: no other names are bound yet.
        named = {name: value for name, value in locals().items() if name not in ("self", "settings")}
        self._arguments = {**named, **settings}
        check_count("batch_size", batch_size)
        check_count("threads", threads, optional=True)
        check_count("readers", readers, least=0)
        check_count("max_side", max_side, optional=True)
        if threads is not None:
            torch.set_num_threads(threads)
        self.loaded = _load_model(model, weights, labels, device, preprocessing)
        # Lists of methods and targets give nested lists, whose leaves are the explanations.
        self._explainer = Explainer(self.loaded, to_list(method), batch_size=batch_size, **settings)
        self._target = [Top(1)] if target is None else to_list(target)
        self._batch_size, self._readers, self._max_side = batch_size, readers, max_side

    def __reduce__(self) -> tuple[Any, ...]:
        # A model may be large, and need not be picklable, so a copy is built from the same arguments.
        return partial(ExplainBatch, **self._arguments), ()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Explain a batch.

        Args:
            batch: Column → values. ``path``: names of the photos; without ``bytes`` also where they are read, local
                paths or URIs. ``bytes``: contents of image files, optional.

        Returns:
            Column → values, in the order of the photos; see :data:`camtool.runs.cluster.rows.COLUMNS`.

        Raises:
            CamtoolError: The batch has no column ``path``.
            TargetError: The model has no such class.
        """
        return rows.to_columns(
            row for photo, shown in self.explain_photos(_list_photos(batch)) for row in rows.build_rows(photo, shown)
        )

    def explain_photos(
        self, photos: Iterable[Photo], *, strict: bool = False
    ) -> Iterator[tuple[Photo, list[Explanation] | str]]:
        """Yield each photo with its explanations, or with the reason why there are none, in the order of the photos.

        Args:
            photos: The photos. Only those of the next batches are in memory.
            strict: Raise the error of a method that can serve no photo of a batch.

        Raises:
            TargetError: The model has no such class.
            MethodError: The method can serve none of the photos of a batch, and ``strict`` is set.
        """
        with Workers(self._readers) as threads:
            # Threads hold a batch of their own beyond the one that the model explains.
            prepared = threads.map_ahead(self._prepare_photo, photos, max(self._batch_size, self._readers))
            while batch := list(islice(prepared, self._batch_size)):
                photos_in_batch, inputs = zip(*batch, strict=True)
                names = [photo.path for photo in photos_in_batch]
                results = explain_batch(self._explainer, names, inputs, self._target, strict=strict)
                yield from zip(photos_in_batch, results, strict=True)

    def _prepare_photo(self, photo: Photo) -> tuple[Photo, PreparedInput | str]:
        """Read and prepare a photo; return it with the reason if that fails."""
        if photo.failure is not None:
            return photo, photo.failure
        try:
            source = open_photo(photo)
        except Exception as error:  # noqa: BLE001  the libraries of remote file systems may raise anything
            raise_interrupt(error)
            return photo, describe_failure(photo.path, error)
        return photo, prepare_photo(self._explainer, source, photo.path, self._max_side)


def _load_model(
    model: str | Callable[[], Any],
    weights: str | None,
    labels: Sequence[str] | None,
    device: str,
    preprocessing: StatedPreprocessing | None,
) -> Loaded:
    stated = preprocessing or StatedPreprocessing()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if isinstance(model, str):
        return load_with_preprocessing(model, weights, labels=labels, device=device, preprocessing=stated)
    if weights is not None:
        raise CamtoolError("weights: a function as model brings its own weights; give the name of a model with them.")
    made = model()
    loaded = made if isinstance(made, Loaded) else Loaded(made)
    loaded.model.to(device).eval()
    return stated.complete(loaded if labels is None else replace(loaded, labels=labels))


def _list_photos(batch: Mapping[str, Any]) -> list[Photo]:
    """Return the photos of a batch, whose columns are lists or arrays."""
    if "path" not in batch:
        raise CamtoolError(f"batch: it needs a column 'path', and 'bytes' if photos are not read; got {[*batch]}.")
    paths = [str(path) for path in batch["path"]]
    contents = batch.get("bytes")
    if contents is None:
        return [Photo(path) for path in paths]
    return [
        Photo(path, failure=f"{path}: the row holds no image.") if data is None else Photo(path, bytes(data))
        for path, data in zip(paths, contents, strict=True)
    ]
