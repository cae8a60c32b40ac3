"""A cluster run from its plan to its last shard: checks on this machine, what is finished, and the rest on Ray."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from camtool.arguments.explain_arguments import to_list
from camtool.errors import CamtoolError, RaiseAs
from camtool.models import Loaded
from camtool.runs.cluster.cluster_plan import ClusterPlan, FileList, Shard
from camtool.runs.cluster.explain_batch import ExplainBatch, ShardOutcome, ShardWorker, read_outcome
from camtool.runs.cluster.remote_files import OutputFolder, import_library
from camtool.runs.locking import lock_folder
from camtool.runs.run_folder.description import DESCRIPTION, describe_run, encode_description, to_plain
from camtool.runs.save_kinds import OutputSettings

_LOCK = ".run.lock"

# Files of shards that are read at the same time; in an object store each is a wait.
_READING_THREADS = 16

# Blocks of a dataset that Ray Data schedules without effort; of more shards, a block holds several.
_MAX_BLOCKS = 10_000

# Time in which the head node of a cluster must answer.
_SECONDS_TO_CONNECT = 5

# Threads for each core that read remote files: a request is a wait of tens of milliseconds, in which it is free.
_REMOTE_READERS = 8

# Photos that are explained on this machine until one succeeds. The first ones of a folder may be broken.
_MAX_TRIED = 8


@dataclass(frozen=True)
class Resources:
    """What a worker takes of the cluster.

    Attributes:
        gpus: The GPUs of a worker, a fraction for several workers on one GPU; by default 1 if the cluster has any.
        cpus: The cores of a worker. By default 1, and with GPUs the cores divided by the workers.
        workers: The largest number of workers; by default what the cluster has resources for now.
    """

    gpus: float | None = None
    cpus: int | None = None
    workers: int | None = None

    def resolve(self, cluster: Mapping[str, float]) -> Resources:
        """Return the resources with all defaults filled in.

        Args:
            cluster: Resource → amount, as ``ray.cluster_resources()`` returns it.

        Raises:
            CamtoolError: One worker needs more than the cluster has.
        """
        has_gpus, has_cpus = cluster.get("GPU", 0.0), int(cluster.get("CPU", 1))
        gpus = self.gpus if self.gpus is not None else float(min(1.0, has_gpus))
        if gpus > has_gpus:
            raise CamtoolError(f"--gpus-per-worker {gpus:g}: the cluster has {has_gpus:g} GPUs.")
        cpus = self.cpus or 1
        if cpus > has_cpus:
            raise CamtoolError(f"--cpus-per-worker {cpus}: the cluster has {has_cpus} cores.")
        if gpus > 0:
            workers = self.workers or max(1, int(has_gpus / gpus))
            return Resources(gpus, self.cpus or max(1, has_cpus // workers), workers)
        return Resources(0.0, cpus, self.workers or has_cpus // cpus)


@dataclass(frozen=True)
class ClusterRun:
    """A run of a plan into a folder.

    Attributes:
        plan: The shards.
        folder: The output folder, which all workers must see.
        settings: The settings of :class:`camtool.runs.cluster.explain_batch.ExplainBatch`, without threads and readers.
        command: The options of the command that results depend on, by name.
        resources: What a worker takes of the cluster.
        address: The address of a running cluster. By default the one of the environment variable ``RAY_ADDRESS`` or of
            this machine, or else a new one on this machine, which ends with the run. A connection that exists is used.
        pictures: How overlays are drawn; ``None`` for no pictures.
        only_wrong: Write rows only of photos whose top class is not the true one.
        overwrite: Remove a run that is in the folder, and start anew.
        loaded: The model, if it is loaded on this machine already.
    """

    plan: ClusterPlan
    folder: OutputFolder
    settings: Mapping[str, Any]
    command: Mapping[str, Any] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    address: str | None = None
    pictures: OutputSettings | None = None
    only_wrong: bool = False
    overwrite: bool = False
    loaded: Loaded | None = None

    def list_unfinished(self) -> list[Shard]:
        """Return the shards that must be computed: those that have no file yet."""
        finished = set() if self.overwrite else self.folder.list_files()
        return [shard for shard in self.plan.shards if shard.name not in finished]

    def read_outcomes(self, names: Iterable[str]) -> list[ShardOutcome]:
        """Return the outcomes of shards from their files. Those without a file are left out.

        Raises:
            OSError: A file cannot be read.
        """
        with ThreadPoolExecutor(_READING_THREADS) as pool:
            return [outcome for outcome in pool.map(partial(read_outcome, self.folder), names) if outcome is not None]

    def start(self) -> Generator[ShardOutcome, None, None]:
        """Compute the shards that are not finished, and yield the outcome of each.

        One photo is explained on this machine first, so that what is wrong with the request is found before the workers
        start, and before a run is overwritten.

        Raises:
            CamtoolError: The request cannot be served, the folder holds another run, or the run cannot go on. Finished
                shards stay.
            OSError: The folder cannot be written.
        """
        self.folder.create()
        path = self.folder.local_path
        # Other runs on this machine are kept out of a local folder. Elsewhere they would compute the same shards twice.
        with nullcontext() if path is None else lock_folder(path / _LOCK, self.folder.name):
            unfinished = self.list_unfinished()
            explain = self._build_explainer()
            description = self._describe(explain.loaded)
            if not self.overwrite:
                self.folder.check_unchanged(description)
            _check_request(explain, unfinished)
            try:
                yield from run_on_ray(self, unfinished, description)
            finally:
                self.folder.remove_traces()

    def _build_explainer(self) -> ExplainBatch:
        """Return the batch class on this machine, with the model that is loaded already, if there is one."""
        settings = {**self.settings, "device": "auto", "engine": "eager", "batch_size": 1}
        loaded = self.loaded
        if loaded is not None:
            settings = {**settings, "model": lambda: loaded, "weights": None, "labels": None, "preprocessing": None}
        return ExplainBatch(**settings)

    def _describe(self, loaded: Loaded) -> dict[str, Any]:
        """Return the content of ``run.json``: that of a run without a cluster, and what is known of the inputs."""
        methods = to_list(self.settings.get("method", "gradcam"))
        described = describe_run(loaded, methods, self.settings, self.command or to_plain(self.settings))
        inputs = {"shards": len(self.plan.shards), "sha256": self.plan.digest}
        # Which devices the workers have is not known here.
        return {**described, "device": self.settings.get("device", "auto"), "inputs": inputs}

    def prepare_folder(self, description: Mapping[str, Any]) -> None:
        """Remove what is not to be continued, and write ``run.json``."""
        if self.overwrite:
            self.folder.remove_run()
        self.folder.remove_traces()
        if self.folder.read_description() is None:
            self.folder.write(DESCRIPTION, encode_description(description))


def _check_request(explain: ExplainBatch, shards: list[Shard]) -> None:
    """Explain photos of the first shard until one succeeds.

    Raises:
        TargetError: The model has no such class.
        MethodError: The method cannot serve the model.
    """
    if not shards:
        return
    photos = islice(shards[0].source.iterate_photos(), _MAX_TRIED)
    next((shown for _, shown in explain.explain_photos(photos, strict=True) if not isinstance(shown, str)), None)


def run_on_ray(run: ClusterRun, shards: Sequence[Shard], description: Mapping[str, Any]) -> Iterator[ShardOutcome]:
    """Compute shards on the workers of a Ray cluster, and yield the outcome of each as soon as it is written.

    Ray computes the shards of a lost worker again. A shard whose workers die repeatedly ends the run.

    Args:
        run: The run, whose folder is prepared once the cluster is reached and has the resources.
        shards: Its shards that are not finished.
        description: The content of ``run.json``, with the versions of libraries and the hash of the weights that all
            workers must have.

    Raises:
        CamtoolError: Ray is missing or cannot be reached, a worker reports an error, or a shard was not computed.
    """
    ray, data = import_library("ray"), import_library("ray.data")
    missing = {shard.name for shard in shards}
    if not missing:
        return
    with _connect(ray, run.address), _quiet_data(data):
        resolved = run.resources.resolve(ray.cluster_resources())
        run.prepare_folder(description)
        worker = {
            "settings": {**run.settings, **_choose_threads(shards, resolved)},
            "folder": run.folder,
            "pictures": run.pictures,
            "only_wrong": run.only_wrong,
            "expected": select_expected(description),
        }
        fault, text = ray.exceptions.RayError, "Ray ended the run"
        with RaiseAs(lambda error: CamtoolError(f"{text}: {str(error).strip().splitlines()[-1]}"), fault):
            for row in _build_dataset(data, shards, resolved, worker).iter_rows():
                outcome = ShardOutcome(**{**row, "reasons": [*row["reasons"]]})
                if outcome.error:
                    raise CamtoolError(outcome.error)
                missing.discard(outcome.name)
                yield outcome
    if missing:
        raise CamtoolError(f"{len(missing)} shards were not computed, e.g. {min(missing)}; start the run again.")


def select_expected(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all workers must have: the versions of libraries and the hash of the weights."""
    return {"versions": description["versions"], "weights": description["model"]["weights_sha256"]}


def _build_dataset(data: Any, shards: Sequence[Shard], resources: Resources, worker: Mapping[str, Any]) -> Any:
    """Return the dataset of outcomes. A block holds one shard, so that Ray schedules and retries shards."""
    items = [{"shard": shard} for shard in shards]
    most = min(resources.workers or 1, len(shards))
    # With one core and a GPU, Ray reserves the core by itself; both at once are experimental in Ray Data.
    reserved = {"num_gpus": resources.gpus} if resources.gpus else {"num_cpus": resources.cpus}
    return data.from_items(items, override_num_blocks=min(len(shards), _MAX_BLOCKS)).map_batches(
        ShardWorker,
        fn_constructor_kwargs=worker,
        batch_size=1,
        # Workers start as the cluster grows. A shard waits at the driver, not at a worker that is slow or lost.
        compute=data.ActorPoolStrategy(min_size=1, max_size=most, initial_size=most, max_tasks_in_flight_per_actor=1),
        **reserved,
    )


def _choose_threads(shards: Sequence[Shard], resources: Resources) -> dict[str, int]:
    """Return the numbers of threads of a worker, by its cores."""
    cores = resources.cpus or 1
    is_remote = any(
        photo.data is not None
        for shard in (shards[0], shards[-1])
        if isinstance(shard.source, FileList)
        for photo in shard.source.photos[:1]
    )
    # With one core, reading local files in other threads gains nothing.
    readers = _REMOTE_READERS * cores if is_remote else cores if cores > 1 or resources.gpus else 0
    return {"threads": cores, "readers": readers}


@contextmanager
def _connect(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to the cluster, and disconnect after the block; a new cluster on this machine ends with it."""
    if ray.is_initialized():
        yield
        return
    _check_reachable(address or os.environ.get("RAY_ADDRESS"))
    # Without an address Ray may start a cluster, whose dashboard would open a port.
    new = {} if address else {"include_dashboard": False}
    faults, text = (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError), "Ray cannot be reached"
    with RaiseAs(lambda error: CamtoolError(f"--address {address}: {text}: {error}"), *faults), _keep_signal_handlers():
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **new)
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Check that something listens at an address ``host:port``. Ray would wait for half a minute, deaf to Ctrl-C.

    Raises:
        CamtoolError: Nothing does.
    """
    match = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address or "")
    if match is None:  # e.g. "auto"
        return
    faults = (OSError, OverflowError)  # OverflowError: there is no such port
    text = f"--address {address}: no Ray cluster can be reached there"
    with RaiseAs(lambda error: CamtoolError(f"{text}: {error}."), *faults):
        socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=_SECONDS_TO_CONNECT).close()


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Restore the handlers of Ctrl-C and SIGTERM after the block: Ray replaces them by ones that abort the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # it was not installed by Python
                signal.signal(number, handler)


@contextmanager
def _quiet_data(data: Any) -> Iterator[None]:
    """Leave progress to the caller: Ray Data draws bars of its own and logs each execution."""
    context, logger = data.DataContext.get_current(), logging.getLogger("ray.data")
    earlier = context.enable_progress_bars, logger.level
    context.enable_progress_bars = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.enable_progress_bars = earlier[0]
        logger.setLevel(earlier[1])
