"""A worker that computes whole shards: it reads the photos, explains them, and writes their rows as one file.

It knows no cluster engine. Errors that concern all photos are part of its answer.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from camtool.errors import CamtoolError
from camtool.runs import file_names
from camtool.runs.cluster import rows
from camtool.runs.cluster.explain_batch import ExplainBatch
from camtool.runs.cluster.missing_libraries import import_library
from camtool.runs.cluster.output_folder import OutputFolder
from camtool.runs.cluster.plan import Shard
from camtool.runs.cluster.run_settings import get_versions, hash_weights
from camtool.runs.save_kinds import SAVE_KINDS, OutputSettings

if TYPE_CHECKING:
    from camtool.explanation import Explanation

__all__ = ["ShardOutcome", "ShardWorker"]

_MAX_REASONS = 5
"""Reasons of failures that a worker reports; all are in the rows."""


@dataclass(frozen=True)
class ShardOutcome:
    """What a worker reports of a shard.

    Attributes:
        name: The name of the shard's file.
        photos: The number of photos.
        rows: The number of rows.
        failures: The number of photos that failed.
        reasons: The first reasons of failures.
        error: Why the run cannot go on; else empty.
    """

    name: str
    photos: int = 0
    rows: int = 0
    failures: int = 0
    reasons: Sequence[str] = ()
    error: str = ""


@dataclass
class ShardWorker:
    """Worker that computes shards. It is called with a batch of one or more.

    Attributes:
        settings: The settings of :class:`camtool.runs.cluster.explain_batch.ExplainBatch`.
        folder: The output folder.
        pictures: How overlays are drawn; ``None`` for no pictures.
        expected: The versions of libraries and the hash of the weights on the machine that started the run.
    """

    settings: Mapping[str, Any]
    folder: OutputFolder
    pictures: OutputSettings | None = None
    expected: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._explain: ExplainBatch | None = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Compute the shards in the column ``shard``, and return the fields of a :class:`ShardOutcome` of each."""
        outcomes = [asdict(self.compute_shard(shard)) for shard in batch["shard"]]
        return {name: [each[name] for each in outcomes] for name in outcomes[0]}

    def compute_shard(self, shard: Shard) -> ShardOutcome:
        """Explain the photos of a shard and write it, unless its file exists.

        An error that concerns all photos is in the outcome: an exception would reach the user wrapped by the engine.
        """
        try:
            finished = self.folder.read(shard.name)
            if finished is not None:  # computed by a worker that was lost before it could say so
                return _read_outcome(shard.name, finished)
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
        found: list[rows.Row] = []
        photos = 0
        for photo, explanations in self._get_explainer().explain_photos(shard.source.iterate_photos()):
            overlays = None
            if self.pictures is not None and not isinstance(explanations, str):
                stem = f"overlays/{shard.name.removesuffix('.parquet')}/{photos:06}-{_make_stem(photo.path)}"
                overlays = _write_overlays(self.folder, stem, explanations, self.pictures)
            found += rows.build_rows(photo, explanations, overlays)
            photos += 1
        reasons = [row["failure"] for row in found if "failure" in row]
        facts = {"photos": photos, "failures": len(reasons)}
        self.folder.write(shard.name, rows.encode_parquet(rows.to_columns(found), facts))
        return ShardOutcome(shard.name, photos, len(found), len(reasons), reasons[:_MAX_REASONS])

    def _get_explainer(self) -> ExplainBatch:
        """Return the explainer, which is built for the first shard, so that its errors are part of an outcome."""
        if self._explain is None:
            explain = ExplainBatch(**self.settings)
            versions, weights = self.expected.get("versions"), self.expected.get("weights")
            if versions is not None and versions != get_versions():
                raise CamtoolError(f"a worker has other libraries ({get_versions()}) than this machine ({versions}).")
            if weights is not None and weights != hash_weights(explain.loaded.model):
                raise CamtoolError("a worker loads other weights than this machine; give them with --weights FILE.")
            self._explain = explain
        return self._explain


def _read_outcome(name: str, content: bytes) -> ShardOutcome:
    """Return the outcome of a shard from its file."""
    table = import_library("pyarrow.parquet").read_table(BytesIO(content), columns=["failure"])
    reasons = [each for each in table["failure"].to_pylist() if each is not None]
    photos = int(table.schema.metadata[b"camtool.photos"])
    return ShardOutcome(name, photos, table.num_rows, len(reasons), reasons[:_MAX_REASONS])


def _describe_deaths(shard: Shard) -> str:
    first = next(iter(shard.source.names), shard.name)
    return (
        f"shard {shard.name}, which begins with {first}: its workers died several times. A photo may need more memory "
        "than a worker has, or crash a decoder; explain these photos with a run without --cluster to find it."
    )


def _write_overlays(
    folder: OutputFolder, stem: str, explanations: Sequence[Explanation], pictures: OutputSettings
) -> list[str]:
    """Write the overlay of each explanation of a photo; return the paths relative to the folder.

    Args:
        folder: The output folder.
        stem: The path that all pictures of the photo begin with. No other photo has it.
        explanations: The explanations.
        pictures: How they are drawn.
    """
    kind = SAVE_KINDS["overlay"]
    place, _, name = stem.rpartition("/")
    suffix = kind.choose_suffix(pictures.format)
    wanted = [file_names.name_result(name, each.method, each.label, each.index) for each in explanations]
    found = [f"{place}/{each}.{suffix}" for each in file_names.make_distinct(wanted)]
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / f"overlay.{suffix}"
        for explanation, path in zip(explanations, found, strict=True):
            kind.write(explanation, file, pictures)
            folder.write(path, file.read_bytes())
    return found


def _make_stem(path: str) -> str:
    """Return the name of a photo without its suffix, with a dash for what some file system refuses."""
    return re.sub(r"[^\w.+-]+", "-", PurePosixPath(path.replace("\\", "/")).stem)
