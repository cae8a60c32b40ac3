"""Files in object stores and elsewhere, by URI, and the folder of a cluster run: shards, pictures and ``run.json``.

pyarrow reads S3, Google Cloud and HDFS, fsspec the rest. What is written is whole or absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from camtool.arguments import libraries
from camtool.errors import CamtoolError, ImageError, RaiseAs
from camtool.rendering.image_writing import open_atomically
from camtool.runs.run_folder.description import DESCRIPTION, check_removable, check_same, parse_description

# A question mark is no wildcard here: in a URI it begins the options of the file system.
_WILDCARDS = re.compile(r"[*\[]")

# Bytes of a request while an archive is read from its start: the wait for each request is then a small part.
_BUFFER_BYTES = 2**23


@dataclass(frozen=True)
class RemoteFile:
    """A file, or a folder, in a file system of pyarrow.

    Attributes:
        filesystem: The file system. It may hold credentials; they are in no name.
        path: The path in the file system.
        name: Its name for the user: its URI without credentials and options.
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

    def get_file(self, path: str) -> RemoteFile:
        """Return the file at another path of the same file system."""
        return RemoteFile(self.filesystem, path, _name_path(self.name.partition("://")[0], path))


def _name_path(scheme: str, path: str) -> str:
    return path if is_uri(path) else f"{scheme}://{path}"


def is_uri(path: str) -> bool:
    """Return True if a path has a scheme, e.g. ``s3://bucket/key``."""
    return re.match(r"[a-z][a-z0-9+.-]+://", path, re.IGNORECASE) is not None


def get_local_filesystem() -> Any:
    """Return pyarrow's file system of this machine."""
    return import_library("pyarrow.fs").LocalFileSystem()


def locate(uri: str) -> RemoteFile:
    """Return the file or the folder at a URI.

    Raises:
        CamtoolError: No library knows the scheme, or the one that does is missing.
    """
    arrow, fs = import_library("pyarrow"), import_library("pyarrow.fs")
    scheme = urlsplit(uri).scheme

    def build_error(error: Exception) -> CamtoolError:
        return CamtoolError(f"{scheme}://... cannot be opened: {error}.")

    unknown = arrow.ArrowInvalid, NotImplementedError  # a scheme that pyarrow does not know
    with RaiseAs(build_error, OSError), suppress(*unknown):
        filesystem, path = fs.FileSystem.from_uri(uri)
        return RemoteFile(filesystem, path, _name_path(scheme, path))
    fsspec = import_library("fsspec")
    with RaiseAs(build_error, ImportError, ValueError):
        inner, path = fsspec.core.url_to_fs(uri)
    return RemoteFile(fs.PyFileSystem(fs.FSSpecHandler(inner)), path, _name_path(scheme, path))


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
    with RaiseAs(lambda error: ImageError(f"path {uri!r} cannot be listed: {error}."), OSError):
        info = folder.filesystem.get_file_info(folder.path)
        if info.type == fs.FileType.NotFound:
            raise ImageError(f"path {uri!r}: no such file or folder.")
        if info.type == fs.FileType.File:
            return [folder]
        paths = _list_paths(folder.filesystem, folder.path, recursive=recursive or wildcard is not None)
    if wildcard is not None:
        glob_translate = import_library("fsspec.utils").glob_translate
        pattern = re.compile(glob_translate(f"{folder.path.rstrip('/')}{uri[len(base) :]}"))
        paths = [path for path in paths if pattern.match(path)]
    return [folder.get_file(path) for path in sorted(paths)]


def _list_paths(filesystem: Any, folder: str, *, recursive: bool = False, are_folders: bool = False) -> list[str]:
    """Return the paths of the files in a folder, or of its subfolders; none of a folder that is missing."""
    fs = import_library("pyarrow.fs")
    kind = fs.FileType.Directory if are_folders else fs.FileType.File
    entries = filesystem.get_file_info(fs.FileSelector(folder, recursive=recursive, allow_not_found=True))
    return [entry.path for entry in entries if entry.type == kind]


def import_library(name: str) -> Any:
    """Return a module of Ray, pyarrow or fsspec.

    Raises:
        CamtoolError: It is not installed.
    """
    library = name.partition(".")[0]
    return libraries.import_library(name, f"a run on a cluster needs {library}", "'camtool[ray]'")


# Name of the folder with the pictures, one folder for each shard.
PICTURES = "overlays"

SHARD_SUFFIX = ".parquet"
_SHARD_NAME = re.compile(r"shard-\d{6,}-[0-9a-f]{16}\.parquet")

# Times that a shard is begun. A photo that crashes its worker would otherwise be tried without end.
MAX_ATTEMPTS = 5

# Object stores, by pyarrow's names: a file appears when it is closed. Elsewhere it is renamed when it is complete.
_WHOLE_AT_CLOSE = ("s3", "gcs", "abfs")

# Bytes that are read of a file such as ``run.json``; a longer one is damaged.
_MAX_DOCUMENT_BYTES = 2**24

_TEMPORARY = ".tmp"
_ATTEMPT = ".attempt"


@dataclass(frozen=True)
class OutputFolder:
    """The output folder. It is picklable: the workers write to it.

    Attributes:
        filesystem: The file system of pyarrow.
        path: The folder's path in it.
        name: The folder for the user.
    """

    filesystem: Any
    path: str
    name: str

    @classmethod
    def find(cls, out: str) -> OutputFolder:
        """Return a folder, which may be missing.

        Args:
            out: A local path, which all workers must see, or a URI.

        Raises:
            CamtoolError: No library knows the scheme.
        """
        if is_uri(out):
            remote = locate(out)
            return cls(remote.filesystem, remote.path.rstrip("/"), remote.name.rstrip("/"))
        return cls(get_local_filesystem(), str(Path(out).absolute()), out)

    def create(self) -> None:
        """Create the folder if it is missing.

        Raises:
            CamtoolError: It cannot be created.
        """
        with RaiseAs(lambda error: CamtoolError(f"out {self.name!r} cannot be created: {error}."), OSError):
            self.filesystem.create_dir(self.path, recursive=True)

    @property
    def local_path(self) -> Path | None:
        """The folder if it is on this machine's file system, else None."""
        return Path(self.path) if self.filesystem.type_name == "local" else None

    def list_files(self) -> set[str]:
        """Return the names of the files in the folder itself."""
        return {path.rpartition("/")[2] for path in _list_paths(self.filesystem, self.path)}

    def open_file(self, name: str) -> Any | None:
        """Return a regular file, opened to read parts of it; None if there is none.

        Raises:
            CamtoolError: It is of another kind, such as a pipe.
        """
        fs = import_library("pyarrow.fs")
        path = f"{self.path}/{name}"
        kind = self.filesystem.get_file_info(path).type
        if kind == fs.FileType.NotFound:
            return None
        if kind != fs.FileType.File:
            raise CamtoolError(f"{self.name}/{name} cannot be read: it is no regular file.")
        return self.filesystem.open_input_file(path)

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or its first bytes; None if there is none."""
        file = self.open_file(name)
        if file is None:
            return None
        with file:
            return bytes(file.read(_MAX_DOCUMENT_BYTES))

    def write(self, name: str, content: bytes) -> None:
        """Write a file, completely or not at all; missing folders are created.

        Raises:
            OSError: It cannot be written.
        """
        path = f"{self.path}/{name}"
        if self.local_path is not None:
            with open_atomically(path, durable=True) as stream:  # a shard that is there is not computed again
                stream.write(content)
            return
        whole_at_close = self.filesystem.type_name in _WHOLE_AT_CLOSE
        folder, _, last = path.rpartition("/")
        target = path if whole_at_close else f"{folder}/.{last}.{uuid4().hex}{_TEMPORARY}"
        if not whole_at_close:
            self.filesystem.create_dir(folder, recursive=True)
        with self.filesystem.open_output_stream(target, compression=None) as stream:
            stream.write(content)
        if not whole_at_close:
            self.filesystem.move(target, path)

    def begin_attempt(self, name: str) -> bool:
        """Note that a worker begins a shard; return False if too many did so and none finished it."""
        earlier = len(self._list_attempts(name))
        if earlier >= MAX_ATTEMPTS:
            return False
        self.write(f".{name}.{earlier + 1}{_ATTEMPT}", b"")
        return True

    def end_attempts(self, name: str) -> None:
        """Remove the notes of :meth:`begin_attempt`, because the shard is finished."""
        for path in self._list_attempts(name):
            self.filesystem.delete_file(path)

    def _list_attempts(self, name: str) -> list[str]:
        """Return the notes of a shard; the folder, which may hold many shards, is not listed."""
        fs = import_library("pyarrow.fs")
        paths = [f"{self.path}/.{name}.{number}{_ATTEMPT}" for number in range(1, MAX_ATTEMPTS + 1)]
        return [entry.path for entry in self.filesystem.get_file_info(paths) if entry.type == fs.FileType.File]

    def remove_traces(self) -> None:
        """Remove what killed workers left behind: temporary files and notes of attempts. No worker may run."""
        for name in self.list_files():
            if name.startswith(".") and name.endswith((_TEMPORARY, _ATTEMPT)):
                self.filesystem.delete_file(f"{self.path}/{name}")

    def remove_run(self) -> None:
        """Remove what a run wrote: its shards, their pictures, and ``run.json``. Other files are left alone.

        Raises:
            CamtoolError: The folder holds a run without a cluster, or a ``run.json`` that camtool did not write.
        """
        check_removable(self.read_description(), self.name, by_cluster=True)
        self.remove_traces()
        for name in filter(is_shard_name, sorted(self.list_files())):
            self.filesystem.delete_file(f"{self.path}/{name}")
        for name in self._list_folders(PICTURES):
            if is_shard_name(f"{name}{SHARD_SUFFIX}"):
                self.filesystem.delete_dir(f"{self.path}/{PICTURES}/{name}")
        # The last, so that a removal that is interrupted can be repeated.
        if DESCRIPTION in self.list_files():
            self.filesystem.delete_file(f"{self.path}/{DESCRIPTION}")

    def _list_folders(self, name: str) -> list[str]:
        """Return the names of the folders in a subfolder. Links are left out, as they could lead anywhere."""
        path = f"{self.path}/{name}"
        names = sorted(inner.rpartition("/")[2] for inner in _list_paths(self.filesystem, path, are_folders=True))
        if self.local_path is None:
            return names
        return [] if Path(path).is_symlink() else [folder for folder in names if not Path(path, folder).is_symlink()]

    def read_description(self) -> dict[str, Any] | None:
        """Return what ``run.json`` says; None if there is no run.

        Raises:
            CamtoolError: It is damaged, or camtool did not write it.
        """
        content = self.read(DESCRIPTION)
        return None if content is None else parse_description(content, f"{self.name}/{DESCRIPTION}")

    def check_unchanged(self, description: Mapping[str, Any]) -> None:
        """Check that the folder holds no run, or one with the same description, or the parts of it that are given.

        Raises:
            CamtoolError: It holds another run.
        """
        then = self.read_description()
        if then is not None:
            check_same(then, description, self.name)
        elif any(map(is_shard_name, self.list_files())):
            raise CamtoolError(
                f"out {self.name!r} holds shards whose settings are unknown; give another folder with --out, or remove "
                "them and start anew with --overwrite."
            )


def is_shard_name(name: str) -> bool:
    """Return True if a file in the folder is a shard by its name."""
    return _SHARD_NAME.fullmatch(name) is not None
