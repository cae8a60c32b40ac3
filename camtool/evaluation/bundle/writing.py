"""Writing an evidence bundle: a ZIP file with the same bytes each time, written as a stream, or not at all.

Its facts about a run are hashes, settings, warnings, measurements, and audits beside it.
"""

from __future__ import annotations

import hashlib
import math
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, starmap
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo, is_zipfile

import numpy as np

from camtool.arguments.regular_files import hash_stream, open_regular, read_regular
from camtool.errors import CamtoolError, MethodError, RaiseAs
from camtool.evaluation.audit.result import JSON_NAME, MARKDOWN_NAME, VERDICTS_NAME, read_audit
from camtool.evaluation.audit.statistics import compute_share
from camtool.evaluation.bundle.card import write_card
from camtool.evaluation.leaderboard.table import Interval, bootstrap_mean, encode_json
from camtool.methods import find_method
from camtool.rendering.image_writing import open_atomically
from camtool.rendering.regions import PhotoRegion
from camtool.rendering.written_files import check_inside, resolve
from camtool.runs.run_folder.description import DESCRIPTION, read_description
from camtool.runs.run_folder.hashes import hash_text
from camtool.runs.run_folder.photo_records import FAILURES, JOURNAL, PHOTOS, PhotoRecord, check_records
from camtool.runs.stored_files import MANIFEST, build_check, parse_object
from camtool.runs.text_escapes import escape_bytes
from camtool.warning_codes import WARNING_KINDS

FORMAT = "camtool evidence 1"

LEADERBOARD = "leaderboard.json"

# Options of ``camtool run`` that change the model's input.
_PREPROCESSING = (
    *("size", "mean", "std", "channels", "bands", "window", "percentiles", "max_side", "frame", "slice", "axis"),
    *("volume", "transform"),
)

# Photos up to which intervals are those of the bootstrap; with more, those of the normal distribution are the same.
_MOST_DRAWN = 5000


def gather_evidence(folder: Path) -> dict[str, Any]:
    """Return what a bundle says of a run, as values of JSON. It holds no time, so that equal runs have equal ones.

    Args:
        folder: The output folder of ``camtool run``.

    Raises:
        CamtoolError: The folder holds no run that has ended, or a file in it is damaged.
    """
    description = read_complete(folder)
    counts = _count(check_records(folder / PHOTOS))
    model, command, sha256 = (description.get(name, {}) for name in ("model", "command", "sha256"))
    transform, regions = str(model.get("transform")), command.get("region") or []
    if not build_check(list[str])(regions):
        raise CamtoolError(f"{folder / DESCRIPTION} is damaged: 'region' of its 'command' is no list of texts.")
    leaderboards = (_read_leaderboard(folder, path) for path in find_beside(folder, LEADERBOARD))
    return {
        "format": FORMAT,
        "camtool": description["camtool"],
        "model": {
            **{name: model.get(name) for name in ("name", "class", "weights", "weights_sha256", "labels_sha256")},
            "weights_file_sha256": sha256.get("weights"),
        },
        "preprocessing": {
            "transform": transform,
            "sha256": hash_text(transform),
            "options": _select_preprocessing(command),
            "code_sha256": description.get("code", {}),
        },
        "data": counts.data,
        "methods": [_describe_method(name, description) for name in description.get("method", ())],
        "layers": sorted(counts.layers),
        **{name: description.get(name) for name in ("engine", "device", "drawing", "seeds", "versions", "machine")},
        "replay": _describe_replay(folder, description.get("directory", "")),
        "explanations": counts.explanations,
        "warnings": list(starmap(_describe_warning, sorted(counts.warnings.items()))),
        "measurements": [*_measure(counts, regions), *chain.from_iterable(leaderboards)],
        "audits": [_describe_audit(folder, path) for path in find_beside(folder, JSON_NAME)],
    }


def _select_preprocessing(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that change the model's input."""
    given = {name: command.get(name) for name in _PREPROCESSING}
    # A frame may be 0.
    return {name: value for name, value in given.items() if value is not None and value is not False}


def _describe_replay(folder: Path, directory: str) -> list[str]:
    """Return the commands that make the explanations again: in the directory of the run, where its paths hold."""
    path = os.path.relpath(resolve(folder), resolve(Path(directory)))
    return [shlex.join(["cd", directory]), shlex.join(["camtool", "replay", path])]


def find_beside(folder: Path, name: str) -> list[Path]:
    """Return the files of a name in a run folder and in the folders in it, relative to it, sorted."""
    return sorted(path.relative_to(folder) for path in (folder / name, *folder.glob(f"*/{name}")) if path.is_file())


def read_complete(folder: Path) -> dict[str, Any]:
    """Return the description of a run that has ended.

    Raises:
        CamtoolError: There is none.
    """
    description = read_description(folder)
    if description is None or not (folder / PHOTOS).is_file():
        missing = DESCRIPTION if description is None else PHOTOS
        cluster = " A run of camtool cluster does not hash its photos." if description is not None else ""
        raise CamtoolError(f"run {str(folder)!r} holds no {missing}; give the output folder of camtool run.{cluster}")
    if (folder / JOURNAL).exists():
        raise CamtoolError(f"run {str(folder)!r} has not ended; start the same command again, then write the bundle.")
    return description


@dataclass
class _Counts:
    """Sums over the photos of a run.

    Attributes:
        data: Number, bytes and hash of the photos, and how many failed.
        explanations: The number of explanations.
        layers: The layers.
        warnings: Code → number of explanations with it.
        correct: For each photo with a known class, whether the model's top class is the true one.
        true_labels: True label → number of photos.
        shares: (name of a measurement, method) → one mean for each photo.
    """

    data: dict[str, Any] = field(default_factory=dict)
    explanations: int = 0
    layers: set[str] = field(default_factory=set)
    warnings: Counter[str] = field(default_factory=Counter)
    correct: list[bool] = field(default_factory=list)
    true_labels: Counter[str] = field(default_factory=Counter)
    shares: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))


def _count(records: Iterable[PhotoRecord]) -> _Counts:
    """Return the sums over the records of a run.

    Raises:
        CamtoolError: A record is damaged, or a photo is not done.
    """
    counts, digest, photos, size, failed = _Counts(), hashlib.sha256(), 0, 0, 0
    for record in records:
        if not record.is_done:
            raise CamtoolError(f"{record.image} is not explained yet; start the same command of camtool run again.")
        digest.update(f"{record.sha256 or '-'}  {record.image}\n".encode("utf-8", "surrogatepass"))
        photos, size, failed = photos + 1, size + (record.bytes or 0), failed + (record.failure is not None)
        _count_rows(counts, record.explanations or ())
    counts.data = {"photos": photos, "failed": failed, "bytes": size, "list_sha256": digest.hexdigest()}
    return counts


def _count_rows(counts: _Counts, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add the explanations of one photo."""
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    counts.explanations += len(rows)
    for row in rows:
        counts.layers.add(row["layer"])
        counts.warnings.update({*(row.get("warning_codes") or ())})
        values = {f"heat in {name}": share for name, share in (row.get("heat_in") or {}).items()}
        values["sufficient part"] = row.get("sufficient")
        for name, value in values.items():
            if value is not None:
                shares[name, row["method"]].append(value)
    for key, own in shares.items():  # several targets of a photo are one observation
        counts.shares[key].append(sum(own) / len(own))
    if rows and rows[0].get("correct") is not None:
        counts.correct.append(rows[0]["correct"])
        counts.true_labels[rows[0]["true_label"]] += 1


def _describe_method(name: str, description: Mapping[str, Any]) -> dict[str, Any]:
    fields = {"name": name, "options": description.get("options", {}).get(name, {})}
    try:
        method = find_method(name)
    except MethodError:  # the user's own, which is not registered here
        return {**fields, "summary": "", "paper": "", "is_class_agnostic": None}
    return {**fields, **{key: getattr(method, key) for key in ("summary", "paper", "is_class_agnostic")}}


def _describe_warning(code: str, count: int) -> dict[str, Any]:
    kind = WARNING_KINDS.get(code)
    fields_of_kind = {name: getattr(kind, name, "") for name in ("severity", "condition", "remedy")}
    return {"code": code, "explanations": count, **fields_of_kind}


# ------------------------------------------------------------------------------------------------------ measurements


def _measure(counts: _Counts, regions: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield what the run itself measured: accuracy, heat in regions, and parts that are enough."""
    if counts.correct:
        share = compute_share(sum(counts.correct), len(counts.correct))
        baseline = max(counts.true_labels.values()) / len(counts.correct)
        text = "share of the most frequent true class"
        yield _Measurement("accuracy", None, *share, len(counts.correct), baseline, text)._asdict()
    areas = {f"heat in {name}": area for name, area in map(_measure_area, regions)}
    for (name, method), values in counts.shares.items():
        area = areas.get(name)
        text = "" if area is None else "share of the photo that the region covers"
        yield _Measurement(f"{name}, {method}", None, *_compute_mean(values), len(values), area, text)._asdict()


def _measure_area(region: str) -> tuple[str, float | None]:
    """Return the name of a region of ``--region``, and the share of a photo that it covers; None if photos differ."""
    name, is_named, value = region.partition("=")
    try:
        photo_region = PhotoRegion.parse(value if is_named else region)
    except CamtoolError:  # a folder of masks
        return name, None
    x0, y0, x1, y1 = photo_region.box
    area = (x1 - x0) * (y1 - y0) / 10_000
    return name, (1 - area if photo_region.is_outside else area) if photo_region.in_percent else None


def _compute_mean(values: Sequence[float]) -> Interval:
    if len(values) <= _MOST_DRAWN:
        return bootstrap_mean(np.array(values))
    mean, half = float(np.mean(values)), 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


class _Measurement(NamedTuple):
    """A measurement, whose fields are values of JSON; ``file`` is that of an evaluation beside the run, if any."""

    name: str
    file: str | None
    mean: float
    low: float
    high: float
    photos: int
    chance: float | None
    chance_text: str


def _read_leaderboard(folder: Path, path: Path) -> list[dict[str, Any]]:
    """Return the metrics of an evaluation beside a run.

    Raises:
        CamtoolError: It is damaged.
    """
    with RaiseAs(
        lambda error: CamtoolError(f"{folder / path} cannot be read: {error}; write it again with camtool evaluate."),
        *(ValueError, KeyError, TypeError, AttributeError),
    ):
        return [*_list_measurements(parse_object(read_regular(folder / path)), path.as_posix())]


def _list_measurements(table: Mapping[str, Any], file: str) -> Iterator[dict[str, Any]]:
    """Yield the metrics of an evaluation; chance is the row ``random``."""
    by_name = {row["name"]: row for row in table["rows"]}
    for title, row in by_name.items():
        for metric in (key.removesuffix(" low") for key in row if key.endswith(" low")):
            interval = row[metric], row[f"{metric} low"], row[f"{metric} high"]
            chance = by_name.get("random", {}).get(metric)
            text = "" if chance is None else "maps of the method random"
            yield _Measurement(f"{metric}, {title}", file, *interval, table["images"], chance, text)._asdict()


def _describe_audit(folder: Path, path: Path) -> dict[str, Any]:
    """Return the findings of an audit beside the run, with what was not tested."""
    audit = read_audit(folder / path)
    names = ("untested", "image_count", "level", "surviving_decoys", "false_discovery_rate", "command")
    findings = [
        {name: getattr(finding, name) for name in ("sentence", "verdict", "key", "is_suspicious")}
        for finding in audit.findings
    ]
    lists = {"not_tested": [*audit.not_tested], "notes": [*audit.notes]}
    return {"file": path.as_posix(), "findings": findings, **{name: getattr(audit, name) for name in names}, **lists}


# Files of the bundle beside the copy of the run, which is in ``run/``.
EVIDENCE, CARD, SUMS = "evidence.json", "model-card-section.md", "SHA256SUMS"

_CHUNK = 1 << 20

# The first time that ZIP files can hold: the bundle must not depend on when it is written.
_FIRST_TIME = (1980, 1, 1, 0, 0, 0)

_COMPRESSED = (".json", ".jsonl", ".md", ".csv")


@dataclass(frozen=True)
class WrittenBundle:
    """A bundle that was written.

    Attributes:
        path: The ZIP file.
        files: The number of files in it.
        sha256: Its hash.
    """

    path: Path
    files: int
    sha256: str


def write_bundle(folder: str | Path, path: str | Path) -> WrittenBundle:
    """Write hashes, settings, measurements and results of a run to a ZIP file. The photos themselves are not in it.

    It holds ``evidence.json``, ``model-card-section.md``, the files that the run recorded in ``run/``, audits and
    evaluations that lie in the run folder or in a folder in it, and ``SHA256SUMS`` of all these.

    Args:
        folder: The output folder of ``camtool run``.
        path: The file to write. A bundle that is there is replaced.

    Raises:
        CamtoolError: The folder holds no run that has ended, a file was changed after the run, or there is another
            file at ``path``.
        OSError: A file cannot be read or written.
    """
    folder, path = Path(folder), Path(path)
    check_bundle(folder, path)
    evidence = gather_evidence(folder)
    with open_atomically(path) as stream, ZipFile(stream, "w") as archive:
        writer = _Writer(archive)
        writer.add(CARD, [write_card(evidence).encode("utf-8", "backslashreplace")])
        writer.add(EVIDENCE, [encode_json(evidence).encode()])
        for name, sha256 in _list_files(folder):
            writer.add_file(folder, name, sha256)
        writer.add(SUMS, [writer.encode_sums()])
    with open_regular(path) as written:
        return WrittenBundle(path, len(writer.sums), hash_stream(written))


def check_bundle(folder: Path, path: Path) -> None:
    """Check what can be told at once: that the run has ended, and that a bundle may be written to the path.

    Raises:
        CamtoolError: It may not, or the folder holds no run that has ended.
    """
    if path.suffix.lower() != ".zip":
        raise CamtoolError(f"bundle {str(path)!r} must end in .zip, e.g. {str(path.with_suffix('.zip'))!r}.")
    if path.exists() and not _is_bundle(path):
        raise CamtoolError(f"bundle {str(path)!r} exists and is no evidence bundle; move it, or give another name.")
    read_complete(folder)


def _is_bundle(path: Path) -> bool:
    if not path.is_file() or not is_zipfile(path):
        return False
    with ZipFile(path) as archive:
        return {EVIDENCE, SUMS} <= {*archive.namelist()}


def _list_files(folder: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the path of each file of a run, relative to its folder, and the hash that the run recorded, if it did."""
    yield from ((name, None) for name in (DESCRIPTION, PHOTOS, MANIFEST, FAILURES) if (folder / name).is_file())
    for record in check_records(folder / PHOTOS):
        yield from ((name, record.files[name]["sha256"]) for name in sorted(record.files))
    for name in (JSON_NAME, MARKDOWN_NAME, VERDICTS_NAME, LEADERBOARD):
        yield from ((path.as_posix(), None) for path in find_beside(folder, name))


class _Writer:
    """Adds files to an archive, as streams.

    Attributes:
        sums: Name in the archive → hash.
    """

    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        self.sums: dict[str, str] = {}

    def add(self, name: str, chunks: Iterable[bytes]) -> None:
        """Add a file."""
        entry = ZipInfo(name, _FIRST_TIME)
        entry.create_system, entry.external_attr = 3, 0o644 << 16  # as on Unix, on every system
        # Pictures are compressed already.
        entry.compress_type = ZIP_DEFLATED if name.endswith(_COMPRESSED) else ZIP_STORED
        digest = hashlib.sha256()
        with self._archive.open(entry, "w", force_zip64=True) as stream:
            for chunk in chunks:
                digest.update(chunk)
                stream.write(chunk)
        self.sums[name] = digest.hexdigest()

    def add_file(self, folder: Path, name: str, sha256: str | None) -> None:
        """Add a file of the run.

        Raises:
            CamtoolError: It is missing, its hash is not the recorded one, or Windows would take its name for a path
                elsewhere.
        """
        check_inside(folder, Path(name))
        if "\\" in name or PureWindowsPath(name).drive:
            raise CamtoolError(f"{folder / name} has a backslash or a drive in its name; rename its photo or folder.")
        packed = f"run/{escape_bytes(name)}"
        if packed in self.sums:
            raise CamtoolError(f"{folder / name} has the name of another file in the bundle, {packed}; rename a photo.")
        try:
            with open_regular(folder / name) as stream:
                self.add(packed, iter(lambda: stream.read(_CHUNK), b""))
        except FileNotFoundError:
            self.sums[packed] = "missing"
        if sha256 not in (None, self.sums[packed]):
            raise CamtoolError(
                f"{folder / name} was changed or removed after the run; start the same command of camtool run again."
            )

    def encode_sums(self) -> bytes:
        """Return the hashes as ``sha256sum --check`` reads them."""
        return "".join(f"{sha256}  {name}\n" for name, sha256 in self.sums.items()).encode()
