"""A cluster run from its plan to its last shard: checks on this machine, what is finished, and the rest on Ray."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from camtool.arguments.explain_arguments import to_list
from camtool.errors import CamtoolError
from camtool.runs.cluster.explain_batch import ExplainBatch
from camtool.runs.cluster.output_folder import OutputFolder
from camtool.runs.cluster.plan import ClusterPlan, Shard
from camtool.runs.cluster.ray_engine import Resources, run_on_ray
from camtool.runs.cluster.shard_worker import ShardOutcome, read_outcome
from camtool.runs.locking import LockedError, hold_lock
from camtool.runs.run_folder.description import DESCRIPTION, describe_run, encode_description, to_plain
from camtool.runs.save_kinds import OutputSettings

if TYPE_CHECKING:
    from camtool.models import Loaded

_LOCK = ".run.lock"

_READING_THREADS = 16
"""Files of shards that are read at the same time; in an object store each is a wait."""

_MAX_TRIED = 8
"""Photos that are explained on this machine until one succeeds. The first ones of a folder may be broken."""


@dataclass(frozen=True)
class ClusterRun:
    """A run of a plan into a folder.

    Attributes:
        plan: The shards.
        folder: The output folder, which all workers must see.
        settings: The settings of :class:`camtool.runs.cluster.explain_batch.ExplainBatch`, without threads and readers.
        command: The options of the command that results depend on, by name.
        resources: What a worker takes of the cluster.
        address: The address of a running cluster; see :func:`camtool.runs.cluster.ray_engine.run_on_ray`.
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
        with _lock_folder(self.folder):
            unfinished = self.list_unfinished()
            explain = self._build_explainer()
            description = self._describe(explain.loaded)
            if not self.overwrite:
                self.folder.check_unchanged(description)
            _check_request(explain, unfinished)
            try:
                yield from run_on_ray(
                    unfinished,
                    self.folder,
                    self.settings,
                    partial(self._prepare_folder, description),
                    resources=self.resources,
                    address=self.address,
                    pictures=self.pictures,
                    only_wrong=self.only_wrong,
                    expected={"versions": description["versions"], "weights": description["model"]["weights_sha256"]},
                )
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

    def _prepare_folder(self, description: Mapping[str, Any]) -> None:
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


@contextmanager
def _lock_folder(folder: OutputFolder) -> Iterator[None]:
    """Keep other runs on this machine out of a local folder. Elsewhere they would compute the same shards twice."""
    if folder.local_path is None:
        yield
        return
    try:
        with hold_lock(folder.local_path / _LOCK):
            yield
    except LockedError as error:
        raise CamtoolError(
            f"out {folder.name!r}: another run writes to this folder ({error}); wait for it to end, or give another "
            "folder with --out."
        ) from None
