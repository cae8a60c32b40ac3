"""Images that users gave, within a limit of memory."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

from PIL import Image

from camtool.errors import ImageError

_PIXEL_BYTES = 4
"""Bytes of a pixel of an RGB image: Pillow leaves one free."""

_ROWS = 256


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
        self._max_bytes = max_bytes
        self._images: OrderedDict[str, StoredImage] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._images)

    def add(self, image: Image.Image, name: str, code: str, note: str = "") -> StoredImage:
        """Keep an image, and return it with its key."""
        stored = StoredImage(compute_key(image, name, code), image, name, code, note)
        with self._lock:
            self._images[stored.key] = stored
            self._images.move_to_end(stored.key)
            while len(self._images) > 1 and self._count_bytes() > self._max_bytes:
                self._images.popitem(last=False)
        return stored

    def get(self, key: str) -> StoredImage:
        """Return an image by its key.

        Raises:
            ImageError: It made room for newer ones.
        """
        with self._lock:
            if key not in self._images:
                raise ImageError("the image is no longer in memory, as others came after it; give it again.")
            self._images.move_to_end(key)
            return self._images[key]

    def _count_bytes(self) -> int:
        return sum(_PIXEL_BYTES * stored.image.width * stored.image.height for stored in self._images.values())


def compute_key(image: Image.Image, *words: str) -> str:
    """Return the hash of the pixels of an image, of its size and of words."""
    hasher = hashlib.blake2b(repr((image.mode, image.size, words)).encode(), digest_size=16)
    for top in range(0, image.height, _ROWS):  # the bytes of all rows would be a copy of the image
        hasher.update(image.crop((0, top, image.width, min(top + _ROWS, image.height))).tobytes())
    return hasher.hexdigest()
