"""A photo on its way to a worker: its name, and its bytes or where they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from camtool.runs.cluster import remote_files

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
