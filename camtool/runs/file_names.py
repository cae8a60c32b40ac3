"""Names of result files: short enough for any file system, readable, distinct, and inside their folder."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

# The longest file name that every common file system accepts. eCryptfs has this limit; most others have 255.
_MAX_NAME_BYTES = 143

# Bytes kept free for what is added to the name: a number such as ``-12``, and an ending such as ``.heatmap.webp``.
_RESERVED_BYTES = 20

# Hexadecimal digits of a hash in a name: 32 bits, so that two of a thousand names agree once in 10,000 runs.
_HASH_DIGITS = 8


# A path that is relative on all systems.
_PLAIN = re.compile(r"[\w-][\w./ -]*", re.ASCII)


def is_inside(name: str) -> bool:
    """Return True if a recorded path stays below the folder that it is relative to, and can be a path here."""
    if _PLAIN.fullmatch(name) and ".." not in name:
        return True  # a run may list millions, and building a path takes long
    path = Path(name)
    return is_encodable(name) and not path.is_absolute() and not path.drive and ".." not in path.parts


def is_encodable(text: str) -> bool:
    """Return True if a text can be the name of a file here."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def name_result(stem: str, method: str, label: str, index: int | None) -> str:
    """Return the name of a result, without the ending that shows its kind.

    The same arguments give the same name in every run. A name that is too long is cut and ends in a hash of the full
    name.

    Args:
        stem: The name of the photo.
        method: The name of the method.
        label: The label of the target.
        index: The class index; None for other targets, such as a text.
    """
    # One byte is for the dot between the photo and the subject.
    space = _MAX_NAME_BYTES - _RESERVED_BYTES - 1
    subject = f"{_make_slug(method)}.{_build_subject(label, index)}"
    # A short stem leaves its bytes to the subject; a long one is cut to half of the space at most.
    subject = shorten(subject, max(space // 2, space - _count_bytes(stem)))
    return f"{shorten(stem, space - _count_bytes(subject))}.{subject}"


def find_results(
    names: Iterable[str], stems: Collection[str], methods: Iterable[str], endings: Iterable[str]
) -> Iterator[str]:
    """Yield those of the names of files that a result of one of these photos may have.

    Args:
        names: Names of files, with their endings.
        stems: Names of photos.
        methods: Names of methods.
        endings: Endings of results, behind the name of :func:`name_result`.
    """
    slugs, ends = ("|".join(map(re.escape, parts)) for parts in (map(_make_slug, methods), endings))
    pattern = re.compile(rf"(.+)\.(?:{slugs})\.[\w+-]+(?:{ends})", re.DOTALL | re.IGNORECASE)
    matches = [*filter(None, map(pattern.fullmatch, names))] if slugs else []
    if not matches:
        return
    folded, hashes = {*map(fold_name, stems)}, {*map(_compute_hash, stems)}
    for match in matches:
        # A long name was cut, and ends in its hash.
        if fold_name(match[1]) in folded or match[1].rpartition("-")[2] in hashes:
            yield match[0]


def name_url(url: str) -> str:
    """Return the name of the file at a URL, without what leads out of a folder; the host's if it names no file."""
    parts = urlsplit(url)
    # Unquoted, "%2f" is a slash.
    name = re.sub(r"[^\w.+-]+", "-", unquote(parts.path.rstrip("/").rpartition("/")[2])).strip(".-")
    return name or _make_slug(parts.hostname or "") or "download"


def shorten(text: str, most: int) -> str:
    """Return the text in at most ``most`` bytes of UTF-8. A longer text is cut and ends in a hash of the full text."""
    if _count_bytes(text) <= most:
        return text
    cut = text[: most - _HASH_DIGITS - 1]
    # Characters have up to four bytes, so the cut text may still be too long.
    while _count_bytes(cut) > most - _HASH_DIGITS - 1:
        cut = cut[:-1]
    return f"{cut}-{_compute_hash(text)}"


def make_distinct(names: Sequence[str]) -> list[str]:
    """Return the names with a number added to repeated ones: ``["cat", "Cat"]`` gives ``["cat", "Cat-2"]``.

    The result depends only on the names and their order.
    """
    taken: set[str] = set()
    distinct = []
    for name in names:
        candidate, number = name, 1
        while fold_name(candidate) in taken:
            number += 1
            candidate = f"{name}-{number}"
        taken.add(fold_name(candidate))
        distinct.append(candidate)
    return distinct


def fold_name(name: str) -> str:
    """Return a key that two names share if a file system that ignores case or Unicode normalization confuses them."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _build_subject(label: str, index: int | None) -> str:
    """Return the label for a file name. The class index, or a hash of the text, distinguishes similar labels."""
    slug = _make_slug(label).strip("-").lower() or "target"
    if index is not None:
        return f"{index}-{slug}"
    return slug if slug.replace("-", " ") == label else f"{slug}-{_compute_hash(label)}"


def _make_slug(text: str) -> str:
    """Return the text with a dash for each character that some file system refuses."""
    return re.sub(r"[^\w+-]+", "-", text)


def _compute_hash(text: str) -> str:
    return sha256(_encode(text)).hexdigest()[:_HASH_DIGITS]


def _count_bytes(text: str) -> int:
    return len(_encode(text))


def _encode(text: str) -> bytes:
    # A file name may hold bytes that are not valid UTF-8; Python turns them into surrogates.
    return text.encode("utf-8", "surrogatepass")
