"""Photos on their way to a worker, and the parts of the input that become one shard each.

The parts are lists of files, archives of WebDataset, and row groups of Parquet.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from camtool.errors import ImageError, raise_interrupt
from camtool.inputs.image_files import IMAGE_SUFFIXES
from camtool.runs.cluster import remote_files
from camtool.runs.cluster.remote_files import RemoteFile, import_library

if TYPE_CHECKING:
    from camtool.runs.cluster.remote_files import RemoteFile
    from camtool.runs.true_labels import TrueClass


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
    if remote_files.is_uri(photo.path):
        return remote_files.open_uri(photo.path).read()
    return photo.path


ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz")
"""Suffixes of WebDataset's archives."""

_MAX_MEMBER_BYTES = 2**30
"""Bytes of the largest image in an archive: a header can claim any size, and the member is read into memory."""

_ROWS_AT_ONCE = 64
"""Rows of Parquet that are in memory at once: at 1 MB an image, 64 MB."""

_TAR_FAULTS = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError)
"""What reading a damaged archive raises."""


class Source(Protocol):
    """Part of the input. It is picklable, and a worker reads it."""

    @property
    def names(self) -> Sequence[str]:
        """What the source consists of, in words that are equal in every run over the same input."""
        ...

    def iterate_photos(self) -> Iterator[Photo]:
        """Yield the photos, in a fixed order. What cannot be read is a photo with a failure."""
        ...


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
    fitting = [field.name for field in schema if _holds_images(field.type)]
    known = [column for column in _IMAGE_COLUMNS if column in fitting]
    candidates = [asked] if asked is not None else known[:1] or fitting
    if len(candidates) != 1 or candidates[0] not in fitting:
        listed = ", ".join(f"{field.name} ({field.type})" for field in schema)
        named = f" {asked!r}" if asked is not None else ""
        raise ImageError(
            f"{name}: no column{named} that holds the bytes of images; name a binary column with --image-column. "
            f"Columns: {listed}."
        )
    names = [column for column in _NAME_COLUMNS if column in schema.names and column != candidates[0]]
    return candidates[0], names[0] if names else None


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
