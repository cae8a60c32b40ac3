"""The split of images into a discovery and a confirmation half: what belongs together stays together.

Candidates are found on one half and tested on the other, so the tests stay valid although many were looked at. That
holds only if no image of one half tells of one in the other: near-duplicates, bursts of a camera, and images of one
patient are one group, which goes to one half as a whole.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from camtool.errors import Forgive
from camtool.evaluation.annotations import is_missing

# Side of the perceptual hash, which has 256 bits.
HASH_SIDE = 16

# Bits that differ between near-duplicates: at most a tenth, and a third of those that are set in one of the two.
# The hashes of unrelated photos differ in about half. On a plain background few bits are set: those of discs at other
# places differ in half of these or more, and those of a JPEG copy in less than a third.
_NEAR, _NEAR_SHARE = 25, 1 / 3

# Time between two photos of a burst, by the camera's clock.
_BURST_SECONDS = 2

_CHUNK = 1024

_DATE_TAG, _EXIF_BLOCK, _CAMERA_TAGS = 36867, 34665, (271, 272)


@dataclass(frozen=True, eq=False)
class Record:
    """The numbers that are kept of an image; the split into halves depends on these.

    Attributes:
        index: Its place among the images of the user.
        target: The class.
        hash: ``(32,)``, the perceptual hash, bytes.
    """

    index: int
    target: int
    hash: NDArray[np.uint8]


_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True)
class Half(Generic[_R]):
    """The images of one half: their records, and the group of each."""

    records: list[_R]
    groups: list[int]

    @property
    def pairs(self) -> list[tuple[_R, int]]:
        """Each record with its group."""
        return [*zip(self.records, self.groups, strict=True)]

    def count_groups(self) -> Counter[int]:
        """Return class → the number of groups that it is in."""
        return Counter(target for target, _ in {(record.target, group) for record, group in self.pairs})


def compute_perceptual_hash(photo: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the difference hash of a photo ``(H, W, 3)``, ``(32,)`` bytes: is each pixel darker than its right one?

    The photo is reduced to 16 rows of 17 gray pixels first. A photo of one color has no bit set.
    """
    gray = Image.fromarray(photo).convert("L").resize((HASH_SIDE + 1, HASH_SIDE), Image.Resampling.BOX)
    pixels = np.asarray(gray, np.int16)
    return np.packbits(pixels[:, :-1] < pixels[:, 1:])


def read_capture_time(source: Any) -> tuple[str, float] | None:
    """Return the folder with the camera of a photo, and the time in seconds at which it was taken; None if unknown.

    The times of files are not used: copying and unpacking set them, and then all photos would be one burst.
    """
    if not isinstance(source, (str, os.PathLike)) or not os.path.isfile(source):  # noqa: PTH113  str or Path
        return None
    with Forgive(Exception), Image.open(source) as image:
        exif = image.getexif()
        taken = datetime.strptime(str(exif.get_ifd(_EXIF_BLOCK)[_DATE_TAG]), "%Y:%m:%d %H:%M:%S")
        camera = " ".join(str(exif.get(tag, "")) for tag in _CAMERA_TAGS)
        return f"{os.path.dirname(source)} {camera}", (taken - datetime(1970, 1, 1)).total_seconds()  # noqa: PTH120
    return None


def group_images(
    hashes: NDArray[np.uint8],
    times: Sequence[tuple[str, float] | None] | None = None,
    column: Sequence[Hashable] | None = None,
) -> list[int]:
    """Return the group of each image: the number of its first image.

    Args:
        hashes: ``(N, B)``, perceptual hashes. Chains count: if a is near b and b near c, all three are one group.
        times: The camera and the time of each photo, see :func:`read_capture_time`.
        column: What further belongs together, e.g. the patient of each image; None stands for no group.
    """
    pairs = [*_find_near_pairs(hashes), *_list_equal(column or ()), *_list_bursts(times or ())]
    ends, count = np.array(pairs, int).reshape(-1, 2), len(hashes)
    links = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), (count, count))
    _, labels = connected_components(links, directed=False)
    _, first, groups = np.unique(labels, return_index=True, return_inverse=True)
    return [int(image) for image in first[groups]]


def _list_equal(column: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of the first image with a value, and each further one."""
    first: dict[Hashable, int] = {}
    return [(first.setdefault(value, image), image) for image, value in enumerate(column) if not is_missing(value)]


def _list_bursts(times: Sequence[tuple[str, float] | None]) -> list[tuple[int, int]]:
    """Return the pairs of images that one camera took one after the other, at nearly the same time."""
    timed = sorted((*time, image) for image, time in enumerate(times) if time is not None)
    return [
        (earlier, later)
        for (camera, start, earlier), (other_camera, end, later) in pairwise(timed)
        if camera == other_camera and end - start <= _BURST_SECONDS
    ]


def _find_near_pairs(hashes: NDArray[np.uint8]) -> Iterator[list[int]]:
    """Yield the pairs of images whose hashes differ in few bits, also of those that are set in one of the two."""
    bits = np.unpackbits(hashes, axis=1).astype(np.float32)
    counts = bits.sum(1)
    for start in range(0, len(bits), _CHUNK):
        both = bits[start : start + _CHUNK] @ bits[start:].T
        either = counts[start : start + _CHUNK, None] + counts[start:] - both
        is_near = either - both <= np.minimum(_NEAR, _NEAR_SHARE * either)
        yield from (start + np.argwhere(np.triu(is_near, 1))).tolist()


def split_in_halves(
    hashes: NDArray[np.uint8], groups: Sequence[int], classes: Sequence[int], seed: int = 0
) -> NDArray[np.bool_]:
    """Return ``(N,)``, True for the images of the confirmation half.

    The groups are put in the order of a hash of their first image and the seed, so neither names nor the order of the
    images matter. Each goes to the half that has fewer images of its most frequent class.
    """
    members: dict[int, list[int]] = {}
    for image, group in enumerate(groups):
        members.setdefault(group, []).append(image)

    def compute_key(group: int) -> bytes:
        return min(blake2b(hashes[image].tobytes(), key=str(seed).encode()).digest() for image in members[group])

    counts, confirms = (Counter[int](), Counter[int]()), np.zeros(len(groups), bool)
    for group in sorted(members, key=lambda group: (compute_key(group), group)):
        (main, _), *_ = Counter(classes[image] for image in members[group]).most_common(1)
        lead = counts[0][main] - counts[1][main]
        half = int(lead > 0) if lead else compute_key(group)[0] % 2
        counts[half].update(classes[image] for image in members[group])
        confirms[members[group]] = half == 1
    return confirms
