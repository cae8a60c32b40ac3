"""Stores of the page: models, images, the folder that it serves, results, and files on the disk."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from PIL import Image

from camtool.app.error_sentences import to_sentence
from camtool.arguments.message_parts import suggest_names
from camtool.errors import CamtoolError, ImageError, ModelError
from camtool.inputs.image_files import has_image_suffix
from camtool.models import Loaded
from camtool.rendering.written_files import resolve

# Bytes of a pixel of an RGB image: Pillow leaves one free.
_PIXEL_BYTES = 4

_ROWS = 256

# Most images that are listed. A longer list is of no use in a browser, and takes long to send.
_MAX_FILES = 5000


@dataclass(frozen=True)
class StoredImage:
    """An image with the way to it.

    Attributes:
        key: The hash of its pixels, name and code: the same pixels under another name are another user's.
        image: RGB, upright.
        name: What the page calls it.
        code: The Python expression that gives it in a script.
        note: What a script needs to know about the expression, in a comment; empty if it runs as it is.
    """

    key: str
    image: Image.Image
    name: str
    code: str
    note: str = ""


class ImageStore:
    """The most recently used images, up to a number of bytes in all.

    Args:
        max_bytes: The most bytes of all images together. The newest image stays in any case.
    """

    def __init__(self, max_bytes: int) -> None:
        self._images = ResultCache[StoredImage](
            math.inf, lambda stored: _PIXEL_BYTES * stored.image.width * stored.image.height, max_bytes
        )

    def __len__(self) -> int:
        return len(self._images)

    def add(self, image: Image.Image, name: str, code: str, note: str = "") -> StoredImage:
        """Keep an image, and return it with its key."""
        stored = StoredImage(compute_key(image, name, code), image, name, code, note)
        return self._images.get(stored.key, lambda: stored)

    def get(self, key: str) -> StoredImage:
        """Return an image by its key.

        Raises:
            ImageError: It was dropped, as newer ones were stored.
        """

        def refuse() -> StoredImage:
            raise ImageError("the image is no longer in memory, as others came after it; give it again.")

        return self._images.get(key, refuse)


def compute_key(image: Image.Image, *words: str) -> str:
    """Return the hash of the pixels of an image, of its size and of words."""
    hasher = hashlib.blake2b(repr((image.mode, image.size, words)).encode(), digest_size=16)
    for top in range(0, image.height, _ROWS):  # the bytes of all rows would be a copy of the image
        hasher.update(image.crop((0, top, image.width, min(top + _ROWS, image.height))).tobytes())
    return hasher.hexdigest()


class ImageFolder:
    """The images in a folder and in the folders below it.

    Links are not followed if they lead out of the folder. Hidden files and folders are left out.

    Args:
        path: The folder.

    Raises:
        ImageError: It is no folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            reason = "is no folder" if self.path.exists() else "does not exist"
            raise ImageError(f"FOLDER {os.fspath(path)!r} {reason}; give a folder of images.")
        self._root = self.path.resolve()

    def list_names(self) -> list[str]:
        """List the images by their paths in the folder, sorted, 5000 at most."""
        return sorted(islice(self._iterate_names(), _MAX_FILES))

    def find(self, name: str) -> Path:
        """Return the path of an image of the folder.

        Raises:
            ImageError: The folder has no such image.
        """
        path = self._root / name
        is_inside = False
        with suppress(OSError):  # the name is longer than the system allows
            is_inside = "\0" not in name and self._is_served(path)
        if not is_inside:
            raise ImageError(f"the folder has no image {name!r}; choose one from the list.")
        return resolve(path)

    def write_code(self, name: str) -> tuple[str, str]:
        """Return the Python expression of an image's path, and a comment. It does not tell where the folder lies."""
        if self.path.is_absolute():
            return repr(f"{self.path.name}/{name}"), "the image of the page's FOLDER"
        return repr(str(self.path / name)), ""

    def _iterate_names(self) -> Iterator[str]:
        for folder, subfolders, files in os.walk(self._root):
            subfolders[:] = sorted(subfolder for subfolder in subfolders if not subfolder.startswith("."))
            for file in sorted(files):
                path = Path(folder, file)
                if self._is_served(path):
                    yield path.relative_to(self._root).as_posix()

    def _is_served(self, path: Path) -> bool:
        """Return True if a path is that of an image file inside the folder, after all links and dots are resolved."""
        resolved = resolve(path)
        return (
            resolved.is_relative_to(self._root)
            and resolved.is_file()
            and has_image_suffix(str(path))
            and has_image_suffix(str(resolved))
            and not any(part.startswith(".") for part in resolved.relative_to(self._root).parts)
        )


# Seconds for which a file stays in any case: until an upload is read, and a download is fetched.
_MIN_AGE = 120.0

# Bytes that a small file takes at least.
_BLOCK = 4096


class DiskSpace:
    """Limit of the disk for the files of all users in a folder. The oldest files are removed for new ones.

    Args:
        folder: The folder.
        max_bytes: The most bytes of all files in it.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._used = 0
        self._lock = threading.Lock()

    def has_file(self, path: str) -> bool:
        """Return True if a path is that of an ordinary file in the folder. A URL is none."""
        with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: a link leads to itself
            root, resolved = self.folder.resolve(), Path(path).resolve()
            return Path(path).is_absolute() and resolved.is_relative_to(root) and resolved.is_file()
        return False

    def make_room(self, size: int) -> None:
        """Measure the folder, and remove old files until there is space for so many bytes.

        Raises:
            CamtoolError: There is too little space.
        """
        with self._lock:
            files = sorted(self._iterate_files())
            self._used = sum(file_size for _, file_size, _ in files)
            for changed, file_size, path in files:
                if self._used + size <= self.max_bytes or time.time() - changed < _MIN_AGE:
                    break
                with suppress(OSError):
                    path.unlink()
                    self._used -= file_size
                    path.parent.rmdir()
        self.take(0, size)

    def take(self, size: int, later: int = 0) -> None:
        """Count bytes that are written, and check that there is space for those that come later.

        Raises:
            CamtoolError: There is too little space.
        """
        with self._lock:
            self._used += size
            if self._used + later > self.max_bytes:
                raise CamtoolError(
                    f"the files of all users take the {self.max_bytes / 2**20:,.0f} MB that the page may use; try "
                    f"again in {_MIN_AGE / 60:.0f} minutes. --max-disk allows more."
                )

    def _iterate_files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield the time of change, the size and the path of each file."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.lstat()
                except OSError:
                    continue  # it was removed meanwhile
                if stat.S_ISREG(status.st_mode):
                    yield status.st_mtime, max(_BLOCK, status.st_size), path


# Name of the bundled model, with which the page starts if no other is given.
DEMO = "demo"

_log = logging.getLogger(__name__)


class ModelStore:
    """A fixed list of models, by name. Names that are not on it are refused.

    Args:
        names: The names, in the order in which the page shows them.
        load: From a name to the model.
        max_loaded: The most models that stay in memory. The least recently used one is dropped.

    Attributes:
        loaded: The models in memory, by name.
    """

    def __init__(self, names: Sequence[str], load: Callable[[str], Loaded], *, max_loaded: int = 4) -> None:
        if not names:
            raise ModelError("names: the page needs at least one model.")
        self.names = tuple(dict.fromkeys(names))
        self._load, self.loaded = load, ResultCache[Loaded](max_loaded)

    def get(self, name: str) -> Loaded:
        """Return a model; load it if it is not in memory. Others who ask for it meanwhile wait.

        Raises:
            ModelError: The name is not on the list, or the model cannot be loaded.
        """
        self._check(name)
        return self.loaded.get(name, lambda: self._load_now(name))

    def is_loaded(self, name: str) -> bool:
        """Return True if a model is in memory.

        Raises:
            ModelError: The name is not on the list.
        """
        self._check(name)
        return name in self.loaded

    def _check(self, name: str) -> None:
        if name not in self.names:
            raise ModelError(f"model {name!r} is not on the list of this page.{suggest_names(name, self.names)}")

    def _load_now(self, name: str) -> Loaded:
        try:
            return self._load(name)
        except CamtoolError:
            raise
        except Exception as error:
            _log.exception("model %s cannot be loaded", name)
            raise ModelError(f"model {name!r} cannot be loaded: {to_sentence(error)}") from error


Value = TypeVar("Value")


class ResultCache(Generic[Value]):
    """The most recently used results, up to a number of them and a size of all together.

    Args:
        max_items: The largest number of results that are kept.
        measure: Returns the size of a result, in any unit; by default none has a size.
        max_size: The largest size of all results together. The newest result stays in any case.

    Attributes:
        on_drop: Called with the key of each result that made room for a new one.
    """

    def __init__(
        self, max_items: float, measure: Callable[[Value], float] = lambda _: 0.0, max_size: float = math.inf
    ) -> None:
        self._max_items, self._measure, self._max_size = max_items, measure, max_size
        self._futures: OrderedDict[Hashable, Future[Value]] = OrderedDict()
        self._sizes: dict[Hashable, float] = {}
        self._lock = threading.Lock()
        self.on_drop: Callable[[Any], object] = lambda key: None

    def __len__(self) -> int:
        with self._lock:
            return len(self._futures)

    def __contains__(self, key: Hashable) -> bool:
        """Return True if the result is there; one that is still being computed is not."""
        with self._lock:
            future = self._futures.get(key)
            return future is not None and future.done()

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the result of a key. The first caller computes it; others of the same key wait for it.

        An error reaches all who wait, and is not kept: the next caller computes again.
        """
        with self._lock:
            future = self._futures.get(key)
            mine: Future[Value] | None = None
            if future is None:
                future = mine = self._futures[key] = Future()
            self._futures.move_to_end(key)
        if mine is not None:
            self._compute(key, mine, compute)
        return future.result()

    def _compute(self, key: Hashable, future: Future[Value], compute: Callable[[], Value]) -> None:
        try:
            value = compute()
            size = self._measure(value)
            with self._lock:
                if self._futures.get(key) is future:
                    self._sizes[key] = size
                dropped = [*self._drop_oldest()]
            for other in dropped:
                self.on_drop(other)
            future.set_result(value)
        except BaseException as error:
            with self._lock:
                if self._futures.get(key) is future:
                    del self._futures[key]
            future.set_exception(error)
            # The waiting threads get the error from the future, this one directly, so that Ctrl-C is not delayed.
            raise

    def _drop_oldest(self) -> Iterator[Hashable]:
        """Remove the results that were not used for longest. One in the making stays with those who wait for it."""
        while len(self._futures) > self._max_items or (
            len(self._futures) > 1 and sum(self._sizes.values()) > self._max_size
        ):
            key, _ = self._futures.popitem(last=False)
            self._sizes.pop(key, None)
            yield key

    def drop_where(self, is_dropped: Callable[[Any], bool]) -> None:
        """Remove the results whose keys fulfill a condition."""
        with self._lock:
            for key in [key for key in self._futures if is_dropped(key)]:
                del self._futures[key]
                self._sizes.pop(key, None)
