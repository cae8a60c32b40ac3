"""``evaluate()``: the loop over images, methods and metrics.

Results are kept on disk, so that an evaluation that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

import camtool
from camtool.arguments.checks import check_count
from camtool.arguments.explain_arguments import read_by_position
from camtool.arguments.message_parts import add_article
from camtool.arguments.regular_files import append_json_lines, iterate_lines
from camtool.errors import CamtoolError, MetricError
from camtool.evaluation.annotations import InputTruth, place_truth
from camtool.evaluation.judging import Judge, MetricOptions, choose_metrics, list_candidates, list_groups
from camtool.evaluation.leaderboard.table import Evaluation, EvaluationRow, bootstrap_mean
from camtool.evaluation.subject import Candidate, CandidateMaps, LabeledBatch, Subject, read_requests, spread_indices
from camtool.explaining.types import Model
from camtool.hooks.structures.nested_tensors import get_bytes
from camtool.models import Transform
from camtool.progress import PassCounter, Stage, follow_loop
from camtool.rendering.written_files import check_inside
from camtool.runs.stored_files import build_check
from camtool.trust.checks.input_checks import FolderTrials
from camtool.trust.metrics import METRICS

# ``progress(done, total, name)``: images times methods that are done, of how many, and the method that was last.
Progress: TypeAlias = Callable[[int, int, str], object]

# The method whose weights are drawn: its maps know the features, and nothing of the score. It is in every table.
_CHANCE = "random"

# Images that mosaics are made of. A mosaic costs as much as four images.
_MOST_MOSAICS = 64


def evaluate(
    model: Model,
    images: Sequence[Any] | Tensor,
    methods: Sequence[str] | str = "fast",
    layers: Sequence[str] | None = None,
    metrics: Sequence[str] | MetricOptions | str | None = None,
    truth: Sequence[Any] | None = None,
    *,
    target_class: Sequence[int | str | None] | int | str | None = None,
    transform: Transform | None = None,
    labels: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 16,
    seed: int = 0,
    checkpoint: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Compare methods on the user's own model and images, by metrics: a leaderboard.

        table = camtool.evaluate(model, photos, ["gradcam", "layercam", "scorecam"])
        print(table)

    The method ``random`` is always added. It weighs the features at random, so its maps know nothing of the score: a
    method that is not better than ``random`` shows no more than where the features are strong.

    Args:
        model: A classifier, or what :func:`camtool.load` returned.
        images: A list of what :func:`camtool.explain` takes as one image, or the model's input ``(N, C, H, W)``.
        methods: Names; ``"fast"`` for all methods of at most one backward pass, ``"all"`` for every method.
        layers: Names of layers; each method is evaluated at each. By default at the layer that camtool finds.
        metrics: Names in :data:`camtool.trust.metrics.METRICS`; a dictionary from names to options; ``"all"`` for each
            that can be computed. By default ``single-deletion``, ``deletion``, ``insertion`` and ``average-drop``,
            and with ``truth`` also ``energy-in-mask`` and ``pointing-game``.
        truth: For each image where its object is: a boolean mask ``(H, W)`` of the image's size, or boxes ``(B, 4)`` of
            ``x0, y0, x1, y1`` in its pixels.
        target_class: The class that is explained, one for all images or one for each: an index, a label, or ``None``
            for the model's top class.
        transform: From a PIL image to the model's input, if ``model`` does not bring it.
        labels: The names of the classes, if ``model`` does not bring them.
        device: The device of the inputs; by default the model's.
        batch_size: The number of images that are explained together.
        seed: The seed of all that is random. On a CPU a second evaluation gives the same bits.
        checkpoint: A file for the results of each batch. A second call with the same file goes on where the first one
            stopped. Options of metrics must be names and numbers then, or arrays of these.
        progress: Is called after each method and batch, see :data:`Progress`.

    Returns:
        The table. Methods that cannot explain this model are in its ``refused``.

    Raises:
        MetricError: An argument does not fit, or the model is no classifier.
        MethodError: A method is unknown, or none can explain the model.
    """
    check_count("batch_size", batch_size, error=MetricError)
    requests = read_requests(images, target_class, truth)
    count = len(requests)
    chosen = choose_metrics(metrics, has_truth=truth is not None)
    candidates = list_candidates(methods, layers)
    if _CHANCE not in {candidate.method for candidate in candidates}:
        candidates += list_candidates(_CHANCE, layers)
    subject = Subject(model, transform, labels, device)
    of_mosaics, others = _split_metrics(chosen)
    images, truth = read_by_position(images), read_by_position(truth)
    # Mosaics need images of several classes, so they are made of images of the whole set.
    spread = spread_indices(count, _MOST_MOSAICS) if of_mosaics else []
    total = len(candidates) * (count * bool(others) + len(spread))
    weights, texts = "", dict[str, str]()
    if checkpoint is not None:  # within a call they are the same everywhere, so only a file has to tell them apart
        weights = hash_model(subject.model)
        texts = {name: _describe_options(name, options) for name, options in chosen.items()}
    store = Checkpoint(None if checkpoint is None else Path(checkpoint))
    with closing(follow_loop(total, Stage("Evaluating", "map"))) as counter:
        run = _Run(subject, candidates, store, weights, texts, seed, total, progress, counter)
        if others:
            run.measure_batches(subject.iterate_batches(images, requests, batch_size), truth, others)
        if of_mosaics:
            used, asked = ([given[index] for index in spread] for given in (images, requests))
            labeled = next(subject.iterate_batches(used, asked, len(spread)))
            run.measure(labeled, None, of_mosaics)
            if not others:
                run.try_other_inputs(labeled)
    return run.finish(tuple(chosen), count)


def _split_metrics(chosen: Mapping[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the metrics with options that need mosaics, and the others."""
    of_mosaics = {name: options for name, options in chosen.items() if "classes" in METRICS[name].needs}
    return of_mosaics, {name: options for name, options in chosen.items() if name not in of_mosaics}


@dataclass
class _Run:
    """What is known so far.

    Attributes:
        subject: The model.
        candidates: The methods at layers.
        store: The results on disk.
        weights: A hash of the model.
        texts: Name of a metric → what the names of its results in the checkpoint say of its options.
        seed: The seed.
        total: Images times candidates, for ``progress``.
        progress: Is called after each candidate and batch.
        counter: Receives the same, for the display that :mod:`camtool.progress` shows.
    """

    subject: Subject
    candidates: Sequence[Candidate]
    store: Checkpoint
    weights: str
    texts: Mapping[str, str]
    seed: int
    total: int
    progress: Progress | None
    counter: PassCounter
    done: int = 0
    refused: dict[Candidate, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    layers: dict[Candidate, str] = field(default_factory=dict)
    times: dict[Candidate, float] = field(default_factory=dict)
    values: dict[tuple[Candidate, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    trials: FolderTrials = field(default_factory=FolderTrials)

    def try_other_inputs(self, labeled: LabeledBatch) -> None:
        """Score a batch with other channels, orientation and values, to warn if the images are predicted better so."""
        if labeled.link == "softmax":
            self.trials.add(labeled.images, labeled.batch.items[0], self.subject.score_classes)

    def measure_batches(
        self, batches: Iterable[LabeledBatch], truth: Sequence[Any] | None, metrics: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Measure all candidates on all images, and try other inputs."""
        for labeled in batches:
            self.measure(labeled, place_truth(truth, labeled.batch.items, labeled.rows), metrics)
            self.try_other_inputs(labeled)

    def measure(
        self, labeled: LabeledBatch, truth: InputTruth | None, metrics: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Measure all candidates on a batch, those that the checkpoint does not have."""
        self.notes |= dict.fromkeys(chain.from_iterable(item.notes for item in labeled.batch.items))
        annotations = [] if truth is None else [truth.masks, *truth.boxes]
        settings = camtool.__version__, self.weights, self.seed, labeled.link
        key = hash_tensors([labeled.images, labeled.classes, *annotations], *settings)
        judge = Judge(self.subject, labeled, truth, self.seed)
        count = len(labeled.batch.items)
        for group in list_groups([candidate for candidate in self.candidates if candidate not in self.refused]):
            missing = [candidate for candidate in group if not self._is_known(key, candidate, metrics)]
            for candidate, maps, milliseconds in self._compute(judge, missing, count):
                results: dict[str, Any] = {self._name(key, candidate): {"layer": maps.layer, "ms": milliseconds}}
                for name, result in judge.judge(candidate, maps.maps, metrics):
                    results[self._name(key, candidate, name)] = result
                self.store.add(results)
                self._report(candidate, count)
            for candidate in group:
                if candidate not in missing:
                    self._report(candidate, count)
                if candidate not in self.refused:
                    self._collect(key, candidate, metrics, count)

    def _is_known(self, key: str, candidate: Candidate, metrics: Iterable[str]) -> bool:
        return all(self._name(key, candidate, name) in self.store for name in metrics)

    def _compute(
        self, judge: Judge, group: Sequence[Candidate], count: int
    ) -> list[tuple[Candidate, CandidateMaps, float]]:
        """Return the maps of candidates from one forward pass; those that are refused are left out."""
        if not group:
            return []
        try:
            start = time.perf_counter()
            maps = judge.map_candidates(group)
            milliseconds = (time.perf_counter() - start) * 1000 / count
        except CamtoolError as error:
            if len(group) > 1:
                return list(chain.from_iterable(self._compute(judge, [candidate], count) for candidate in group))
            self.refused[group[0]] = str(error)
            self._report(group[0], count)
            return []
        return [
            (candidate, candidate_maps, milliseconds if len(group) == 1 else self._time_alone(judge, candidate, count))
            for candidate, candidate_maps in zip(group, maps, strict=True)
        ]

    def _time_alone(self, judge: Judge, candidate: Candidate, count: int) -> float:
        """Return the milliseconds for each image of a forward pass that is not shared; they are measured once."""
        if candidate not in self.times:
            start = time.perf_counter()
            judge.map_candidates([candidate])
            self.times[candidate] = (time.perf_counter() - start) * 1000 / count
        return self.times[candidate]

    def _collect(self, key: str, candidate: Candidate, metrics: Iterable[str], count: int) -> None:
        stored = self.store[self._name(key, candidate)]
        self.layers.setdefault(candidate, stored["layer"])
        self.times.setdefault(candidate, stored["ms"])
        for name in metrics:
            result = self.store[self._name(key, candidate, name)]
            if "error" in result:
                self.failed.setdefault(name, f"{candidate}: {result['error']}")
            values = result.get("values", [np.nan] * count)
            if len(values) != count:
                raise MetricError(f"checkpoint: it holds {len(values)} values of {count} images; give another file.")
            self.values[candidate, name] += values

    def _name(self, key: str, candidate: Candidate, metric: str = "maps") -> str:
        """Return the name of a result in the checkpoint."""
        return f"{key} {candidate} {metric}{self.texts.get(metric, '')}"

    def _report(self, candidate: Candidate, count: int) -> None:
        self.done += count
        self.counter.update(count)
        if self.progress is not None:
            self.progress(self.done, self.total, str(candidate))

    def finish(self, metrics: tuple[str, ...], count: int) -> Evaluation:
        """Return the table, sorted by the first metric, with the warnings about the images.

        Raises:
            MethodError: All methods were refused.
        """
        measured = [candidate for candidate in self.candidates if candidate not in self.refused]
        if all(candidate.method == _CHANCE for candidate in measured) and self.refused:
            candidate, reason = next(iter(self.refused.items()))
            raise MetricError(f"methods: none can explain this model. {candidate}: {reason}")
        sign = -METRICS[metrics[0]].sign
        values = {key: {name: np.asarray(self.values[key, name]) for name in metrics} for key in measured}
        rows = [EvaluationRow(str(key), key.method, self.layers[key], self.times[key], values[key]) for key in measured]
        rows.sort(key=lambda row: np.nan_to_num(sign * bootstrap_mean(row.values[metrics[0]]).mean, nan=np.inf))
        refused = {str(candidate): reason for candidate, reason in self.refused.items()}
        notes = (*self.notes, *self.trials.find_warnings())
        return Evaluation(tuple(rows), metrics, refused, self.failed, notes, count, self.seed)


def _describe_options(metric: str, options: Mapping[str, Any]) -> str:
    """Return a text that tells the options of a metric from others.

    Raises:
        MetricError: There is none for an option, e.g. a function: its repr is an address, which Python uses again.
    """

    def describe(value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(describe, value))}]"
        if isinstance(value, Tensor):
            return hash_tensors([value])
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return hash_tensors([], value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, np.generic) or type(value) in (type(None), bool, int, float, str):
            return repr(value)
        raise MetricError(
            f"checkpoint: {add_article(type(value).__name__)} in the options of metrics[{metric!r}] may give other "
            "results in another call, which a file cannot tell; leave out checkpoint, or give names and numbers."
        )

    return "".join(f" {name}={describe(value)}" for name, value in sorted(options.items()))


class Checkpoint(dict[str, Any]):
    """Results by key, in a file with one per line, ``{"key": ..., "value": ...}``. A line that was cut off is ignored.

    Args:
        path: The file; it is made with the first result. ``None`` keeps the results in memory only.

    Raises:
        MetricError: The file holds something else.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__({} if path is None or not path.exists() else _read(path))
        self._path = path

    def add(self, results: Mapping[str, Any]) -> None:
        """Keep results, and write them to the file."""
        self.update(results)
        if self._path is None or not results:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append_json_lines(self._path, ({"key": key, "value": value} for key, value in results.items()))


@contextmanager
def replace_checkpoint(folder: Path, name: str, *, is_asked: bool) -> Iterator[None]:
    """Put the results of earlier starts aside for the block, if that is asked for, so that all are computed again.

    They are restored if the block has no result, e.g. as an option has a typo. If the process is killed before it has
    one, the next call restores them.

    Raises:
        CamtoolError: The file holds something else, or a link leads out of the folder.
    """
    check_inside(folder, Path(name))
    path, aside = folder / name, folder / f".{name}.replaced"
    _keep_newer(path, aside)
    if is_asked and path.exists():
        Checkpoint(path)  # refuses another file
        path.replace(aside)
    try:
        yield
    finally:
        _keep_newer(path, aside)


def _keep_newer(path: Path, aside: Path) -> None:
    """Remove results that were put aside if there are new ones, else restore them."""
    if path.exists():
        aside.unlink(missing_ok=True)
    elif aside.exists():
        aside.replace(path)


def hash_tensors(tensors: Sequence[Tensor], *settings: object) -> str:
    """Return a hash of the values of tensors and of settings."""
    digest = hashlib.blake2b(digest_size=10)
    digest.update(repr(settings).encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(get_bytes(tensor))
    return digest.hexdigest()


def hash_model(model: nn.Module) -> str:
    """Return a hash of the modules and the weights, also of the file that these make.

    Those of quantized layers are no parameters, and not all buffers are in the file.
    """
    stream = BytesIO()
    torch.save(model.state_dict(), stream)
    file_hash = hashlib.blake2b(stream.getbuffer(), digest_size=10).hexdigest()
    return hash_tensors([*model.parameters(), *model.buffers()], repr(model), file_hash)


_CHECKS = {"layer": build_check(str), "ms": build_check(float)}
_CHECKS |= {"values": build_check(list[float]), "error": build_check(str)}


def _read(path: Path) -> dict[str, Any]:
    stored, is_empty = {}, True
    for line in filter(bytes.strip, iterate_lines(path)):
        is_empty = False
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not _is_entry(entry):
            raise MetricError(f"checkpoint: {path} is not a checkpoint of camtool, or is damaged; give another file.")
        stored[entry["key"]] = entry["value"]
    if not is_empty and not stored:
        raise MetricError(f"checkpoint: {path} is not a checkpoint of camtool; give another file.")
    return stored


def _is_entry(entry: Any) -> bool:
    """Return True for a key with what is kept of it: layer and time, values of the images, or an error."""
    if not isinstance(entry, dict) or entry.keys() != {"key", "value"} or not isinstance(entry["key"], str):
        return False
    value = entry["value"]
    is_known = isinstance(value, dict) and value.keys() in ({"layer", "ms"}, {"values"}, {"error"})
    return is_known and all(_CHECKS[name](part) for name, part in value.items())
