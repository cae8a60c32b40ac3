"""The plan of a cluster run: the parts of its input, and its photos on their way to a worker.

Each part becomes one shard: lists of files, archives of WebDataset, and row groups of Parquet. The same inputs always
give the same shards with the same names.
"""

from __future__ import annotations

import glob
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from camtool.errors import CamtoolError, ImageError, RaiseAs, raise_interrupt
from camtool.inputs.image_files import IMAGE_SUFFIXES
from camtool.runs.cluster.remote_files import RemoteFile, get_local_filesystem, import_library, is_uri, list_uri, locate
from camtool.runs.job_list import Job, Plan, Skipped, plan_run
from camtool.runs.photo_tables import TrueClass


@dataclass(frozen=True)
class Photo:
    """One photo to explain.

    Attributes:
        path: The name of the photo, for its rows: a path, a URI, or that of an archive and a member.
        data: The bytes of the image file, or the file that is read when the photo's turn comes. ``None``: ``path`` is
            where it is read.
        failure: Why there is no image, if that is known already; else ``None``.
        true_class: Its true class; ``None`` if it is not known.
    """

    path: str
    data: bytes | RemoteFile | None = None
    failure: str | None = None
    true_class: TrueClass | None = None


def open_photo(photo: Photo) -> str | bytes:
    """Return the bytes of a photo's file, or the path of a local file, for ``read_image``.

    Raises:
        CamtoolError: The path is a URI that no library reads.
        OSError: The file cannot be read.
    """
    if isinstance(photo.data, bytes):
        return photo.data
    if photo.data is not None:
        return photo.data.read()
    return locate(photo.path).read() if is_uri(photo.path) else photo.path


# Suffixes of WebDataset's archives.
ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz")

# Bytes of the largest image in an archive: a header can claim any size, and the member is read into memory.
_MAX_MEMBER_BYTES = 2**30

# Rows of Parquet that are in memory at once: at 1 MB an image, 64 MB.
_ROWS_AT_ONCE = 64

# What reading a damaged archive raises.
_TAR_FAULTS = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError)


@dataclass(frozen=True)
class FileList:
    """Image files, local or remote; each is read when its turn comes.

    Attributes:
        photos: The photos, without their bytes.
    """

    photos: tuple[Photo, ...]

    @property
    def names(self) -> Sequence[str]:
        """The names of the files."""
        return [photo.path for photo in self.photos]

    def iterate_photos(self) -> Iterator[Photo]:
        """Yield the photos."""
        return iter(self.photos)


@dataclass(frozen=True)
class TarArchive:
    """An archive of WebDataset. Members with the suffix of an image are photos, the others are left out.

    Attributes:
        file: The archive.
    """

    file: RemoteFile

    @property
    def names(self) -> Sequence[str]:
        """The name of the archive."""
        return [self.file.name]

    def iterate_photos(self) -> Iterator[Photo]:
        """Yield the members with their bytes, in the order of the archive, which is read once and never unpacked."""
        try:
            with self.file.open_stream() as stream, tarfile.open(fileobj=stream, mode="r|*") as archive:
                for member in archive:
                    if member.isfile() and is_image_name(member.name):
                        yield self._read_member(archive, member)
        except _TAR_FAULTS as error:
            raise_interrupt(error)
            reason = f"{self.file.name} cannot be read to its end: {error or type(error).__name__}."
            yield Photo(self.file.name, failure=reason)

    def _read_member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> Photo:
        name = f"{self.file.name}/{member.name}"
        if member.size > _MAX_MEMBER_BYTES:
            return Photo(name, failure=f"{name} has {member.size} bytes; {_MAX_MEMBER_BYTES} are allowed.")
        content = archive.extractfile(member)
        return Photo(name, b"" if content is None else content.read())


@dataclass(frozen=True)
class ParquetRows:
    """Row groups of a Parquet file with the bytes of image files.

    Attributes:
        file: The Parquet file.
        groups: The numbers of the row groups.
        first_row: The number of the first row in the file.
        column: The column with the images: binary, or a struct with ``bytes`` and ``path``, as Hugging Face writes it.
        name_column: The column with the names of the photos; ``None`` if there is none.
    """

    file: RemoteFile
    groups: tuple[int, ...]
    first_row: int
    column: str
    name_column: str | None

    @property
    def names(self) -> Sequence[str]:
        """The name of the file, the rows and the column."""
        return [self.file.name, f"row groups {self.groups}", self.column]

    def iterate_photos(self) -> Iterator[Photo]:
        """Yield the rows with their bytes, in the order of the file."""
        parquet, arrow = import_library("pyarrow.parquet"), import_library("pyarrow")
        columns = list(dict.fromkeys(filter(None, [self.column, self.name_column])))
        row = self.first_row
        try:
            with self.file.open_seekable() as stream:
                file = parquet.ParquetFile(stream)
                for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=list(self.groups), columns=columns):
                    for values in batch.to_pylist():
                        yield self._to_photo(values, row)
                        row += 1
        except (arrow.ArrowException, OSError) as error:
            raise_interrupt(error)
            reason = f"{self.file.name} cannot be read from row {row} on: {error}"
            yield Photo(f"{self.file.name}/{row}", failure=reason)

    def _to_photo(self, values: dict[str, Any], row: int) -> Photo:
        image = values[self.column]
        data, own_name = (image.get("bytes"), image.get("path")) if isinstance(image, dict) else (image, None)
        name = values[self.name_column] if self.name_column else own_name
        path = f"{self.file.name}/{row}" if name is None else str(name)
        return Photo(path, failure=f"{path}: the row holds no image.") if data is None else Photo(path, bytes(data))


# Part of the input. It is picklable, and a worker reads it. Its ``names`` say what it consists of, in words that are
# equal in every run over the same input; ``iterate_photos`` yields the photos in a fixed order, and what cannot be read
# is a photo with a failure.
Source: TypeAlias = FileList | TarArchive | ParquetRows


_IMAGE_COLUMNS = ("bytes", "image", "img", "jpg", "png", "content")
_NAME_COLUMNS = ("path", "file_name", "filename", "url", "uri", "__key__", "key", "id")


def find_image_column(schema: Any, asked: str | None, name: str) -> tuple[str, str | None]:
    """Return the column with images, and the one with their names, if there is one.

    Args:
        schema: The schema of pyarrow.
        asked: The column that the user named.
        name: The name of the file, for errors.

    Raises:
        ImageError: There is no such column, or several could be meant.
    """
    image = _choose_image_column([field.name for field in schema if _holds_images(field.type)], asked)
    if image is None:
        listed = ", ".join(f"{field.name} ({field.type})" for field in schema)
        named = f" {asked!r}" if asked is not None else ""
        raise ImageError(
            f"{name}: no column{named} that holds the bytes of images; name a binary column with --image-column. "
            f"Columns: {listed}."
        )
    return image, next((name for name in _NAME_COLUMNS if name in schema.names and name != image), None)


def _choose_image_column(fitting: Sequence[str], asked: str | None) -> str | None:
    """Return the column that the user named, the one with a usual name, or the only one; None if there is none."""
    if asked is not None:
        return asked if asked in fitting else None
    usual = [column for column in _IMAGE_COLUMNS if column in fitting]
    candidates = usual[:1] or fitting
    return candidates[0] if len(candidates) == 1 else None


def _holds_images(type_: Any) -> bool:
    types = import_library("pyarrow").types
    if types.is_struct(type_):
        index = type_.get_field_index("bytes")
        return index >= 0 and _holds_images(type_.field(index).type)
    return bool(types.is_binary(type_) or types.is_large_binary(type_) or types.is_binary_view(type_))


def is_image_name(name: str) -> bool:
    """Return True if a name has the suffix of an image and is not hidden."""
    path = PurePosixPath(name)
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


_PARQUET = ".parquet"
# Parquet files whose footers are read at the same time; reading one from an object store is a wait of 50 ms or so.
_LISTING_THREADS = 32


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
    groups: dict[str, list[str]] = {"archive": [], "table": [], "uri": [], "local": []}
    for path in paths:
        groups[_find_kind(path)].append(path)
    absolute = [str(Path(path).absolute()) for path in groups["local"]]
    planned = plan_run(absolute, recursive=recursive, out=out) if absolute else Plan([], [])
    listed = [(uri, _list_images(uri, recursive=recursive)) for uri in groups["uri"]]
    # File systems of pyarrow cannot be hashed, so names tell files apart.
    remote = {file.name: file for _, files in listed for file in files}
    folders = [_find_folder(uri, files) for uri, files in listed]
    jobs = [Job(name, _find_place(name, folders)) for name in remote]
    files = Plan([*planned.jobs, *jobs], planned.skipped, (*planned.folders, *folders))
    archives, tables = _list_containers(groups["archive"]), _list_containers(groups["table"])
    return ClusterInputs(files, remote, archives, tables, image_column)


def _find_kind(path: str) -> str:
    if path.lower().endswith(ARCHIVE_SUFFIXES):
        return "archive"
    if _is_table(path):
        return "table"
    return "uri" if is_uri(path) else "local"


def _is_table(path: str) -> bool:
    return path.rstrip("/").lower().endswith(_PARQUET)


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
    classes = true_classes or {}
    photos = [
        Photo(str(job.source), inputs.remote.get(str(job.source)), true_class=classes.get(job.source))
        for job in inputs.files.jobs
    ]
    starts = range(0, len(photos), shard_size)
    sources: list[Source] = [FileList(tuple(photos[start : start + shard_size])) for start in starts]
    sources += [TarArchive(file) for file in inputs.archives]
    with ThreadPoolExecutor(_LISTING_THREADS) as pool:
        divide = partial(_divide_table, shard_size=shard_size, column=inputs.image_column)
        sources += chain.from_iterable(pool.map(divide, inputs.tables))
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
    path, is_table = path.rstrip("/"), _is_table(path)
    if is_uri(path):
        files = list_uri(path, recursive=is_table)
        table = path.rpartition("/")[2]
        files = [file for file in files if _is_part(file.path, table)] if is_table else files
    else:
        names = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else [path]  # noqa: PTH207
        whole = [str(file.absolute()) for name in names for file in _list_parts(Path(name))]
        files = [RemoteFile(get_local_filesystem(), file, file) for file in whole]
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


def _divide_table(file: RemoteFile, shard_size: int, column: str | None) -> list[ParquetRows]:
    """Return the row groups of a file, put together until they have ``shard_size`` rows."""
    arrow, parquet = import_library("pyarrow"), import_library("pyarrow.parquet")
    faults = arrow.ArrowException, OSError
    name_file = RaiseAs(lambda error: ImageError(f"{file.name} cannot be read as Parquet: {error}"), *faults)
    with name_file, file.open_seekable() as stream:
        opened = parquet.ParquetFile(stream)
        schema, metadata = opened.schema_arrow, opened.metadata
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
