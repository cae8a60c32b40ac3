"""Files by URI, in object stores and elsewhere: pyarrow reads S3, Google Cloud and HDFS, fsspec the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from camtool.arguments import libraries
from camtool.errors import CamtoolError, ImageError, raise_interrupt

_WILDCARDS = re.compile(r"[*\[]")
"""A question mark is no wildcard here: in a URI it begins the options of the file system."""

_BUFFER_BYTES = 2**23
"""Bytes of a request while an archive is read from its start: the wait for each request is then a small part."""


@dataclass(frozen=True)
class RemoteFile:
    """A file in a file system of pyarrow.

    Attributes:
        filesystem: The file system. It may hold credentials; they are in no name.
        path: The path in the file system.
        name: The file's name for the user: its URI without credentials and options.
    """

    filesystem: Any
    path: str
    name: str

    def read(self) -> bytes:
        """Return the content of the file.

        Raises:
            OSError: It cannot be read.
        """
        with self.filesystem.open_input_stream(self.path, compression=None) as stream:
            return bytes(stream.read())

    def open_stream(self) -> Any:
        """Open the file to read it from its start to its end, in large requests."""
        return self.filesystem.open_input_stream(self.path, compression=None, buffer_size=_BUFFER_BYTES)

    def open_seekable(self) -> Any:
        """Open the file to read parts of it."""
        return self.filesystem.open_input_file(self.path)


@dataclass(frozen=True)
class RemoteFolder:
    """A place in a file system of pyarrow.

    Attributes:
        filesystem: The file system.
        path: The path in the file system.
        prefix: What precedes a path of this file system in a URI, e.g. ``"s3://"``.
    """

    filesystem: Any
    path: str
    prefix: str

    def get_file(self, path: str) -> RemoteFile:
        """Return the file at a path of this file system."""
        return RemoteFile(self.filesystem, path, path if is_uri(path) else f"{self.prefix}{path}")


def is_uri(path: str) -> bool:
    """Return True if a path has a scheme, e.g. ``s3://bucket/key``."""
    return re.match(r"[a-z][a-z0-9+.-]+://", path, re.IGNORECASE) is not None


def get_local_filesystem() -> Any:
    """Return pyarrow's file system of this machine."""
    return import_library("pyarrow.fs").LocalFileSystem()


def locate(uri: str) -> RemoteFolder:
    """Return the file system of a URI, and the path in it.

    Raises:
        CamtoolError: No library knows the scheme, or the one that does is missing.
    """
    arrow, fs = import_library("pyarrow"), import_library("pyarrow.fs")
    prefix = f"{urlsplit(uri).scheme}://"
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
        return RemoteFolder(filesystem, path, prefix)
    except (arrow.ArrowInvalid, NotImplementedError):
        pass  # a scheme that pyarrow does not know
    except OSError as error:
        raise_interrupt(error)
        raise CamtoolError(f"{prefix}... cannot be opened: {error}.") from error
    fsspec = import_library("fsspec")
    try:
        inner, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise CamtoolError(f"{prefix}... cannot be opened: {error}.") from error
    return RemoteFolder(fs.PyFileSystem(fs.FSSpecHandler(inner)), path, prefix)


def open_uri(uri: str) -> RemoteFile:
    """Return the file at a URI.

    Raises:
        CamtoolError: No library knows the scheme, or the one that does is missing.
    """
    folder = locate(uri)
    return folder.get_file(folder.path)


def list_uri(uri: str, *, recursive: bool = False) -> list[RemoteFile]:
    """Return the files at a URI, sorted: those of a folder, those that match a pattern, or the file itself.

    Args:
        uri: A file, a folder, or a pattern such as ``s3://bucket/photos/**/*.jpg``.
        recursive: Include subfolders of a folder.

    Raises:
        ImageError: There is nothing, or it cannot be listed.
        CamtoolError: No library knows the scheme, or the one that does is missing.
    """
    fs = import_library("pyarrow.fs")
    wildcard = _WILDCARDS.search(uri)
    base = uri if wildcard is None else uri[: uri.rindex("/", 0, wildcard.start())]
    folder = locate(base)
    try:
        info = folder.filesystem.get_file_info(folder.path)
        if info.type == fs.FileType.NotFound:
            raise ImageError(f"path {uri!r}: no such file or folder.")
        if info.type == fs.FileType.File:
            return [folder.get_file(folder.path)]
        selector = fs.FileSelector(folder.path, recursive=recursive or wildcard is not None)
        paths = [entry.path for entry in folder.filesystem.get_file_info(selector) if entry.type == fs.FileType.File]
    except OSError as error:
        raise_interrupt(error)
        raise ImageError(f"path {uri!r} cannot be listed: {error}.") from error
    if wildcard is not None:
        glob_translate = import_library("fsspec.utils").glob_translate
        pattern = re.compile(glob_translate(f"{folder.path.rstrip('/')}{uri[len(base) :]}"))
        paths = [path for path in paths if pattern.match(path)]
    return [folder.get_file(path) for path in sorted(paths)]


def import_library(name: str) -> Any:
    """Return a module of Ray, pyarrow or fsspec.

    Raises:
        CamtoolError: It is not installed.
    """
    library = name.partition(".")[0]
    return libraries.import_library(name, f"a run on a cluster needs {library}", "'camtool[ray]'")
