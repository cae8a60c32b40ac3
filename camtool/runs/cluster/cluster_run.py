"""A cluster run from its plan to its last shard: checks on this machine, what is finished, and the rest on Ray."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from camtool.errors import CamtoolError
from camtool.runs.cluster.explain_batch import ExplainBatch
from camtool.runs.cluster.output_folder import OutputFolder
from camtool.runs.cluster.plan import ClusterPlan, Shard
from camtool.runs.cluster.ray_run import Resources, run_on_ray
from camtool.runs.cluster.run_settings import describe_run, get_versions, hash_weights, hold_settings
from camtool.runs.cluster.shard_worker import ShardOutcome
from camtool.runs.locking import LockedError, hold_lock
from camtool.runs.save_kinds import OutputSettings

__all__ = ["ClusterRun"]

_LOCK = ".run.lock"

_MAX_TRIED = 8
"""Photos that are explained on this machine until one succeeds. The first ones of a folder may be broken."""


@dataclass(frozen=True)
class ClusterRun:
    """A run of a plan into a folder.

    Attributes:
        plan: The shards.
        folder: The output folder, which all workers must see.
        settings: The settings of :class:`camtool.runs.cluster.explain_batch.ExplainBatch`, without threads and readers.
        command: What ``run.json`` says of the command: options by name.
        resources: What a worker takes of the cluster.
        address: The address of a running cluster; see :func:`camtool.runs.cluster.ray_run.run_on_ray`.
        pictures: How overlays are drawn; ``None`` for no pictures.
    """

    plan: ClusterPlan
    folder: OutputFolder
    settings: Mapping[str, Any]
    command: Mapping[str, Any] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    address: str | None = None
    pictures: OutputSettings | None = None

    def list_unfinished(self) -> list[Shard]:
        """Return the shards that have no file yet."""
        finished = self.folder.list_files()
        return [shard for shard in self.plan.shards if shard.name not in finished]

    def start(self) -> Generator[ShardOutcome, None, None]:
        """Compute the shards that are not finished, and yield the outcome of each.

        The model is loaded on this machine first, and one photo is explained, so that what is wrong with the request is
        found before the workers start.

        Raises:
            CamtoolError: The request cannot be served, the folder holds another run, or the run cannot go on. Finished
                shards stay.
            OSError: The folder cannot be written.
        """
        with _lock_folder(self.folder):
            unfinished = self.list_unfinished()
            explain = ExplainBatch(**{**self.settings, "device": "auto", "engine": "eager", "batch_size": 1})
            _check_request(explain, unfinished)
            model = explain.loaded.model
            hold_settings(self.folder, self._describe(explain))
            expected = {"versions": get_versions(), "weights": hash_weights(model)}
            self.folder.remove_traces()
            try:
                yield from run_on_ray(
                    unfinished,
                    self.folder,
                    self.settings,
                    resources=self.resources,
                    address=self.address,
                    pictures=self.pictures,
                    expected=expected,
                )
            finally:
                self.folder.remove_traces()

    def _describe(self, explain: ExplainBatch) -> dict[str, Any]:
        inputs = {"shards": len(self.plan.shards), "digest": self.plan.digest}
        return describe_run(
            explain.loaded.model,
            name=explain.loaded.name,
            settings=self.settings,
            command=self.command,
            inputs=inputs,
        )


def _check_request(explain: ExplainBatch, shards: list[Shard]) -> None:
    """Explain photos of the first shard until one succeeds.

    Raises:
        TargetError: The model has no such class.
        MethodError: The method cannot serve the model.
    """
    if not shards:
        return
    photos = islice(shards[0].source.iterate_photos(), _MAX_TRIED)
    next((found for _, found in explain.explain_photos(photos, strict=True) if not isinstance(found, str)), None)


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
