"""The plan of a cluster run: the same inputs always give the same shards with the same names."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path

from camtool.errors import CamtoolError, ImageError, raise_interrupt
from camtool.runs.cluster.remote_files import RemoteFile, get_local_filesystem, import_library, is_uri, list_uri
from camtool.runs.cluster.sources import (
    ARCHIVE_SUFFIXES,
    FileList,
    ParquetRows,
    Photo,
    Source,
    TarArchive,
    find_image_column,
    is_image_name,
)
from camtool.runs.job_list import Job, Plan, Skipped, plan_run
from camtool.runs.true_labels import TrueClass

_PARQUET = ".parquet"
_LISTING_THREADS = 32
"""Parquet files whose footers are read at the same time; reading one from an object store is a wait of 50 ms or so."""


@dataclass(frozen=True)
class Shard:
    """A part of the run: it is computed by one worker, and its rows are one file.

    Attributes:
        name: The name of the file, from the position and a hash of the names of the inputs.
        source: Where its photos come from.
    """

    name: str
    source: Source


@dataclass(frozen=True)
class ClusterPlan:
    """The shards of a run.

    Attributes:
        shards: The shards, in the order of the inputs.
        skipped: What is left out although the user may expect it.
        digest: A hash of the names of all inputs and of their division into shards.
    """

    shards: list[Shard]
    skipped: list[Skipped]
    digest: str


@dataclass(frozen=True)
class ClusterInputs:
    """What a run explains, before it is divided into shards.

    Attributes:
        files: The image files, local or remote: sources are absolute paths, or URIs.
        remote: URI → file, of the remote image files.
        archives: Archives of WebDataset.
        tables: Parquet files with the bytes of images.
        image_column: The column with the images in Parquet files, if the user named it.
    """

    files: Plan
    remote: Mapping[str, RemoteFile]
    archives: Sequence[RemoteFile]
    tables: Sequence[RemoteFile]
    image_column: str | None = None

    def check_files_only(self, option: str) -> None:
        """Check that all photos are files, whose names are known before the workers start.

        Raises:
            CamtoolError: There is an archive or a table.
        """
        for file in (*self.archives, *self.tables):
            raise CamtoolError(
                f"{option} needs the names of all photos, and those in {file.name} are known to the workers only; "
                "unpack it, or leave the option out."
            )


def plan_shards(
    paths: Sequence[str],
    *,
    recursive: bool = False,
    shard_size: int = 1000,
    out: Path | None = None,
    image_column: str | None = None,
) -> ClusterPlan:
    """Divide the input into shards, as :func:`list_inputs` and :func:`divide_inputs` do.

    Raises:
        ImageError: A path does not exist, or holds no image.
        CamtoolError: A library is missing.
    """
    return divide_inputs(list_inputs(paths, recursive=recursive, out=out, image_column=image_column), shard_size)


def list_inputs(
    paths: Sequence[str], *, recursive: bool = False, out: Path | None = None, image_column: str | None = None
) -> ClusterInputs:
    """List the photos and the files that hold some.

    Args:
        paths: Local files, folders and patterns; URIs of these; archives of WebDataset (.tar, .tar.gz, .tgz); Parquet
            with the bytes of images: a file, or a folder of this suffix, as Spark writes it. Local paths are made
            absolute, because workers run in other folders.
        recursive: Include subfolders.
        out: The output folder, if it is local. Images below it are results and are left out.
        image_column: The column with the images in Parquet files.

    Raises:
        ImageError: A path does not exist, or holds no image.
        CamtoolError: A library is missing.
    """
    archives = [path for path in paths if path.lower().endswith(ARCHIVE_SUFFIXES)]
    tables = [path for path in paths if path.rstrip("/").lower().endswith(_PARQUET)]
    local = [path for path in paths if path not in (*archives, *tables) and not is_uri(path)]
    uris = [path for path in paths if path not in (*archives, *tables) and is_uri(path)]
    planned = plan_run([str(Path(path).absolute()) for path in local], recursive=recursive, out=out) if local else None
    listed = [(uri, _list_images(uri, recursive=recursive)) for uri in uris]
    # File systems of pyarrow cannot be hashed, so names tell files apart.
    remote = {file.name: file for _, files in listed for file in files}
    folders = [_find_folder(uri, files) for uri, files in listed]
    jobs = [Job(name, _find_place(name, folders)) for name in remote]
    files = Plan(
        [*(planned.jobs if planned else []), *jobs],
        planned.skipped if planned else [],
        (*(planned.folders if planned else ()), *folders),
    )
    return ClusterInputs(files, remote, _list_containers(archives), _list_containers(tables), image_column)


def divide_inputs(
    inputs: ClusterInputs, shard_size: int = 1000, true_classes: Mapping[Path | str, TrueClass] | None = None
) -> ClusterPlan:
    """Divide inputs into shards.

    Args:
        inputs: The inputs.
        shard_size: The number of image files in a shard. An archive is one shard. Row groups of a Parquet file are put
            together until they have so many rows.
        true_classes: Source of a photo → its true class.

    Raises:
        ImageError: A Parquet file cannot be read, or has no column with images.
    """
    known = true_classes or {}
    photos = [
        Photo(str(job.source), inputs.remote.get(str(job.source)), true_class=known.get(job.source))
        for job in inputs.files.jobs
    ]
    sources: list[Source] = [FileList(part) for part in _split(photos, shard_size)]
    sources += [TarArchive(file) for file in inputs.archives]
    sources += _list_row_groups(inputs.tables, shard_size, inputs.image_column)
    shards = [Shard(_name_shard(index, source), source) for index, source in enumerate(sources)]
    digest = sha256("\n".join(shard.name for shard in shards).encode()).hexdigest()
    return ClusterPlan(shards, inputs.files.skipped, digest)


def _find_folder(uri: str, files: Sequence[RemoteFile]) -> str:
    """Return the folder of a URI, as the names of its files begin: the URI itself, or what precedes the wildcard."""
    if len(files) == 1 and files[0].name == uri:
        return uri.rpartition("/")[0]
    start = re.split(r"[*\[]", uri, maxsplit=1)[0]
    path = start if start == uri else start.rpartition("/")[0]
    # Options and credentials of a URI are in no name.
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0].rstrip('/')}"


def _find_place(name: str, folders: Sequence[str]) -> Path:
    """Return the path of a remote file below its folder, which decides its place in random order."""
    below = [name[len(folder) + 1 :] for folder in folders if name.startswith(f"{folder}/")]
    return Path(min(below, key=len, default=name.rpartition("/")[2])).with_suffix("")


def _name_shard(index: int, source: Source) -> str:
    # The names of files may hold bytes that are not valid text; Python turns them into surrogates.
    text = "\0".join(source.names).encode("utf-8", "surrogatepass")
    return f"shard-{index:06}-{sha256(text).hexdigest()[:16]}{_PARQUET}"


def _split(photos: Iterable[Photo], size: int) -> Iterator[tuple[Photo, ...]]:
    rest = iter(photos)
    while part := tuple(islice(rest, size)):
        yield part


def _list_images(uri: str, *, recursive: bool) -> list[RemoteFile]:
    files = list_uri(uri, recursive=recursive)
    images = [file for file in files if is_image_name(file.path) or len(files) == 1]
    if not images:
        hint = "" if recursive else " To read its subfolders, add --recursive."
        raise ImageError(f"path {uri!r}: no images found.{hint}")
    return images


def _list_containers(paths: Sequence[str]) -> list[RemoteFile]:
    """Return the archives or Parquet files that paths name, each once."""
    return list({file.name: file for path in paths for file in _list_files(path)}.values())


def _list_files(path: str) -> list[RemoteFile]:
    path = path.rstrip("/")
    is_table = path.lower().endswith(_PARQUET)
    if is_uri(path):
        table = path.rpartition("/")[2]
        files = [file for file in list_uri(path, recursive=is_table) if not is_table or _is_part(file.path, table)]
    else:
        names = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else [path]  # noqa: PTH207
        whole = [file.absolute() for name in names for file in _list_parts(Path(name))]
        files = [RemoteFile(get_local_filesystem(), str(file), str(file)) for file in whole]
    if not files:
        raise ImageError(f"path {path!r}: no such file{', and no folder with Parquet files' if is_table else ''}.")
    return files


def _list_parts(path: Path) -> list[Path]:
    """Return a file itself, or the files of a table that is a folder."""
    if path.is_file() or path.suffix.lower() != _PARQUET:
        return [path] if path.is_file() else []
    return sorted(file for file in path.rglob("*") if _is_part(file.as_posix(), path.name) and file.is_file())


def _is_part(path: str, table: str) -> bool:
    """Return True for a file of a table that is a folder, and False for what Spark keeps there, as ``_temporary/``."""
    below = path.partition(f"{table}/")[2]
    return path.lower().endswith(_PARQUET) and not any(part.startswith((".", "_")) for part in below.split("/"))


def _list_row_groups(files: Sequence[RemoteFile], shard_size: int, column: str | None) -> list[Source]:
    with ThreadPoolExecutor(_LISTING_THREADS) as pool:
        return [*chain.from_iterable(pool.map(partial(_divide_table, shard_size=shard_size, column=column), files))]


def _divide_table(file: RemoteFile, shard_size: int, column: str | None) -> list[ParquetRows]:
    """Return the row groups of a file, put together until they have ``shard_size`` rows."""
    arrow, parquet = import_library("pyarrow"), import_library("pyarrow.parquet")
    try:
        with file.open_seekable() as stream:
            opened = parquet.ParquetFile(stream)
            schema, metadata = opened.schema_arrow, opened.metadata
    except (arrow.ArrowException, OSError) as error:
        raise_interrupt(error)
        raise ImageError(f"{file.name} cannot be read as Parquet: {error}") from error
    image, name = find_image_column(schema, column, file.name)
    parts: list[ParquetRows] = []
    groups: list[int] = []
    first, row = 0, 0
    for group in range(metadata.num_row_groups):
        groups.append(group)
        row += metadata.row_group(group).num_rows
        if row - first >= shard_size or group == metadata.num_row_groups - 1:
            parts.append(ParquetRows(file, tuple(groups), first, image, name))
            groups, first = [], row
    return parts
