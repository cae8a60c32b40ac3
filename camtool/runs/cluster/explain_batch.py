"""A callable class that explains batches of photos in any framework: Ray Data, Daft, Spark, or a loop.

It imports none of them. Its settings are picklable, and each worker loads its own copy of the model. A worker of
a cluster run computes whole shards with it, and writes the rows of each as one file; errors that concern all photos
are part of its answer.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from camtool.arguments.checks import check_count
from camtool.arguments.explain_arguments import to_list
from camtool.errors import CamtoolError, RaiseAs, raise_interrupt
from camtool.explaining.explainer import Explainer
from camtool.explaining.explanation import Explanation
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.models import Loaded, StatedPreprocessing, load_with_preprocessing
from camtool.runs import file_names
from camtool.runs.cluster import rows
from camtool.runs.cluster.cluster_plan import Photo, Shard, open_photo
from camtool.runs.cluster.remote_files import PICTURES, SHARD_SUFFIX, OutputFolder, import_library
from camtool.runs.executor import Workers, describe_failure, explain_batch, prepare_photo
from camtool.runs.result_writer import describe_unjudged
from camtool.runs.run_folder.description import list_versions
from camtool.runs.run_folder.hashes import hash_weights
from camtool.runs.run_folder.sheets import build_caption
from camtool.runs.save_kinds import SAVE_KINDS, OutputSettings
from camtool.runs.stored_files import build_line, is_correct
from camtool.targets import Top


class ExplainBatch:
    """Callable that explains a batch of photos and returns the columns of :data:`camtool.runs.cluster.rows.COLUMNS`.

        explain = ExplainBatch("resnet50", method="gradcam")
        columns = explain({"path": ["a.jpg", "s3://bucket/b.jpg"]})

    Each photo gives one row for each target and method, or one row with the reason why it failed. A row depends only on
    its photo, the settings and, by rounding, on the other photos of its forward pass. The class imports no
    framework. A pickle holds the settings; the model is loaded again where it is unpickled.

    Args:
        model: A name, as for :func:`camtool.load`, or a function without arguments that returns a model or a
            :class:`camtool.Loaded`.
        method: The name of a method, or several.
        target: A target, or a list of targets, of each photo, as for :func:`camtool.explain`.
        weights: As for :func:`camtool.load`. Each worker must be able to read the file.
        labels: The class names, if they are not those of the weights.
        device: The device that the model is moved to; ``"auto"`` for a GPU that the process sees, else the CPU.
        batch_size: The number of photos in a forward pass. A batch of the framework is split into these in order.
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
                named = [(photo.path, prepared_input) for photo, prepared_input in batch]
                results = explain_batch(self._explainer, named, self._target, strict=strict)
                yield from zip((photo for photo, _ in batch), results, strict=True)

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


# Numbers in the metadata of a shard's file, as in :class:`ShardOutcome`.
_FACTS = ("photos", "failures", "right", "wrong")

# Reasons of failures that a worker reports; all are in the rows.
_MAX_REASONS = 5


@dataclass(frozen=True)
class ShardOutcome:
    """Report of a worker on a shard.

    Attributes:
        name: The name of the shard's file.
        photos: The number of photos.
        rows: The number of rows.
        failures: The number of photos that failed.
        right: The number of photos whose top class is the true one.
        wrong: The number of photos whose top class is another than the true one.
        reasons: The first reasons of failures.
        error: Why the run cannot go on; else empty.
    """

    name: str
    photos: int = 0
    rows: int = 0
    failures: int = 0
    right: int = 0
    wrong: int = 0
    reasons: Sequence[str] = ()
    error: str = ""


@dataclass
class ShardWorker:
    """Worker that computes shards. It is called with a batch of one or more.

    Attributes:
        settings: The settings of :class:`camtool.runs.cluster.explain_batch.ExplainBatch`.
        folder: The output folder.
        pictures: How overlays are drawn; ``None`` for no pictures.
        only_wrong: Write rows only of photos whose top class is not the true one.
        expected: The versions of libraries and the hash of the weights on the machine that started the run.
    """

    settings: Mapping[str, Any]
    folder: OutputFolder
    pictures: OutputSettings | None = None
    only_wrong: bool = False
    expected: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Compute the shards in the column ``shard``, and return the fields of a :class:`ShardOutcome` of each."""
        outcomes = [asdict(self.compute_shard(shard)) for shard in batch["shard"]]
        return {name: [outcome[name] for outcome in outcomes] for name in outcomes[0]}

    def compute_shard(self, shard: Shard) -> ShardOutcome:
        """Explain the photos of a shard and write it, unless its file exists.

        An error that concerns all photos is in the outcome: an exception would reach the user wrapped by the framework.
        """
        try:
            finished = read_outcome(self.folder, shard.name)
            if finished is not None:  # computed by a worker that was lost before it could say so
                return finished
            if not self.folder.begin_attempt(shard.name):
                return ShardOutcome(shard.name, error=_describe_deaths(shard))
            outcome = self._write_shard(shard)
            self.folder.end_attempts(shard.name)
        except CamtoolError as error:
            return ShardOutcome(shard.name, error=str(error))
        except OSError as error:
            return ShardOutcome(shard.name, error=f"out {self.folder.name!r}: {error}")
        return outcome

    def _write_shard(self, shard: Shard) -> ShardOutcome:
        written: list[rows.Row] = []
        facts = dict.fromkeys(_FACTS, 0)
        for photo, explanations in self._explain.explain_photos(shard.source.iterate_photos()):
            correct = None if isinstance(explanations, str) else is_correct(explanations, photo.true_class)
            result = explanations
            if self.only_wrong and not isinstance(explanations, str) and correct is not False:
                result = [] if correct else describe_unjudged(photo.path)
            stem = f"{PICTURES}/{shard.name.removesuffix(SHARD_SUFFIX)}/{facts['photos']:06}-{_make_stem(photo.path)}"
            written += self._write_photo(photo, result, stem)
            facts["photos"] += 1
            facts["failures"] += isinstance(result, str)
            facts["right"] += correct is True
            facts["wrong"] += correct is False
        reasons = [row["failure"] for row in written if "failure" in row]
        self.folder.write(shard.name, rows.encode_parquet(rows.to_columns(written), facts))
        return _build_outcome(shard.name, len(written), reasons, facts)

    def _write_photo(self, photo: Photo, result: list[Explanation] | str, stem: str) -> list[rows.Row]:
        """Write the pictures of a photo, and return its rows.

        Args:
            photo: The photo.
            result: Its explanations, or why there are none.
            stem: The path that all pictures of the photo begin with. No other photo has it.
        """
        if self.pictures is None or isinstance(result, str):
            return rows.build_rows(photo, result)
        try:
            overlays = _write_overlays(self.folder, stem, photo, result, self.pictures)
        except Exception as error:  # noqa: BLE001  as of a photo that cannot be explained
            raise_interrupt(error, OSError)  # the disk is at fault, not the photo
            return rows.build_rows(photo, describe_failure(photo.path, error))
        return rows.build_rows(photo, result, overlays)

    @cached_property
    def _explain(self) -> ExplainBatch:
        """The explainer, which is built for the first shard, so that its errors are part of an outcome."""
        explain = ExplainBatch(**self.settings)
        versions, weights = self.expected.get("versions"), self.expected.get("weights")
        own = list_versions(explain.loaded, self.settings.get("engine", "eager"))
        if versions is not None and versions != own:
            raise CamtoolError(f"a worker has other libraries ({own}) than this machine ({versions}).")
        if weights is not None and weights != hash_weights(explain.loaded.model):
            raise CamtoolError("a worker loads other weights than this machine; give them with --weights FILE.")
        return explain


def read_outcome(folder: OutputFolder, name: str) -> ShardOutcome | None:
    """Return the outcome of a shard from its file; None if there is none.

    Raises:
        CamtoolError: The file is damaged, or no shard.
        OSError: The file cannot be read.
    """
    arrow, parquet = import_library("pyarrow"), import_library("pyarrow.parquet")
    file = folder.open_file(name)
    if file is None:
        return None
    text, advice = f"{folder.name}/{name} is damaged, or no shard of camtool", "Remove it to compute it again."
    faults = (arrow.ArrowException, KeyError, TypeError, ValueError)  # also no metadata at all
    with RaiseAs(lambda error: CamtoolError(f"{text}: {error}. {advice}"), *faults), file:
        opened = parquet.ParquetFile(file)
        facts = {key: int(opened.schema_arrow.metadata[f"camtool.{key}".encode()]) for key in _FACTS}
        failures = opened.read(["failure"])["failure"].to_pylist() if facts["failures"] else ()
        rows_in_file = opened.metadata.num_rows
    return _build_outcome(name, rows_in_file, [failure for failure in failures if failure is not None], facts)


def _build_outcome(name: str, row_count: int, reasons: Sequence[str], facts: Mapping[str, Any]) -> ShardOutcome:
    return ShardOutcome(name, rows=row_count, reasons=reasons[:_MAX_REASONS], **facts)


def _describe_deaths(shard: Shard) -> str:
    first = next(iter(shard.source.names), shard.name)
    return (
        f"shard {shard.name}, which begins with {first}: its workers died several times. A photo may need more memory "
        "than a worker has, or crash a decoder; explain these photos with camtool run to find it."
    )


def _write_overlays(
    folder: OutputFolder, stem: str, photo: Photo, explanations: Sequence[Explanation], pictures: OutputSettings
) -> list[str]:
    """Write the overlay of each explanation of a photo; return the paths relative to the folder."""
    kind = SAVE_KINDS["overlay"]
    subfolder, _, name = stem.rpartition("/")
    suffix = kind.choose_suffix(pictures.format)
    wanted = [file_names.name_result(name, shown.method, shown.label, shown.index) for shown in explanations]
    paths = [f"{subfolder}/{file_name}.{suffix}" for file_name in file_names.make_distinct(wanted)]
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / f"overlay.{suffix}"
        for explanation, path in zip(explanations, paths, strict=True):
            line = build_line(photo.path, explanation, photo.true_class)
            kind.write(explanation, file, pictures, build_caption(vars(line)) if pictures.has_captions else None)
            folder.write(path, file.read_bytes())
    return paths


def _make_stem(path: str) -> str:
    """Return the name of a photo without its suffix, with a dash for what some file system refuses."""
    return re.sub(r"[^\w.+-]+", "-", PurePosixPath(path.replace("\\", "/")).stem)
