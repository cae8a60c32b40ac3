"""Writing an evidence bundle: a ZIP file with the same bytes each time, written as a stream, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo, is_zipfile

from camtool.arguments.regular_files import hash_stream, open_regular
from camtool.errors import CamtoolError
from camtool.evaluation.audit.result import JSON_NAME, MARKDOWN_NAME, VERDICTS_NAME, encode_json
from camtool.evaluation.bundle.card import write_card
from camtool.evaluation.bundle.evidence import LEADERBOARD, find_beside, gather_evidence, read_complete
from camtool.rendering.image_writing import open_atomically
from camtool.rendering.written_files import check_inside
from camtool.runs.manifest import MANIFEST
from camtool.runs.run_folder.cleaning import FAILURES
from camtool.runs.run_folder.description import DESCRIPTION
from camtool.runs.run_folder.photo_records import PHOTOS, check_records
from camtool.runs.text_escapes import escape_bytes

EVIDENCE, CARD, SUMS = "evidence.json", "model-card-section.md", "SHA256SUMS"
"""Files of the bundle beside the copy of the run, which is in ``run/``."""

_CHUNK = 1 << 20

_FIRST_TIME = (1980, 1, 1, 0, 0, 0)
"""The first time that ZIP files can hold: the bundle must not depend on when it is written."""

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
            CamtoolError: It is missing, or its hash is not the recorded one.
        """
        check_inside(folder, Path(name))
        packed = f"run/{escape_bytes(name)}"
        if packed in self.sums:
            raise CamtoolError(f"{folder / name} is named like another file in the bundle, {packed}; rename its photo.")
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
        return "".join(_format_sum(sha256, name) for name, sha256 in self.sums.items()).encode()


def _format_sum(sha256: str, name: str) -> str:
    """Return the line of a file: a backslash before it says that its name, which has a line end, is escaped."""
    if "\n" not in name:
        return f"{sha256}  {name}\n"
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n")
    return f"\\{sha256}  {escaped}\n"
