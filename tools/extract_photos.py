"""Extract photos from packages of Debian: ``python tools/extract_photos.py PACKAGE.deb ... --out FOLDER``.

Benchmarks on weights of ImageNet need photos on which nothing was tuned. ``gcompris-qt-data`` has about 230 of animals,
buildings and tools within its resource files; packages of wallpapers have more. ``apt-get download`` gets the packages,
and they need not be installed. Drawings, pictures with transparent parts, small ones, and near-duplicates are left out.
The photos have licenses of their own, see the packages; none of them is part of camtool.
"""

from __future__ import annotations

import argparse
import io
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from camtool.evaluation.audit.split import compute_perceptual_hash

_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
_LEAST_SIDE, _MOST_SIDE = 180, 640
_MOST_BYTES = 3_000_000
"""Bytes that are read from the start of a JPEG file, whose end is not marked from outside."""
_MOST_FLAT = 0.25
"""Share of flat pixels from which on a picture counts as a drawing."""
_NEAR = 25
"""Bits in which hashes of near-duplicates differ at most, as in audits."""


def main() -> None:
    """Write the photos of all packages to a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    hashes = list[NDArray[np.uint8]]()
    for package in arguments.packages:
        count = len(hashes)
        for image in iterate_pictures(package):
            bits = np.unpackbits(compute_perceptual_hash(np.asarray(image)))
            if all((bits != other).sum() > _NEAR for other in hashes):
                hashes.append(bits)
                image.thumbnail((_MOST_SIDE, _MOST_SIDE))
                image.save(arguments.out / f"{len(hashes):03}_{package.name.split('_')[0]}.jpg", quality=92)
        sys.stdout.write(f"{package.name}: {len(hashes) - count} photos\n")


def iterate_pictures(package: Path) -> Iterator[Image.Image]:
    """Yield the photos of a package in the order of their paths."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg", "-x", package, folder], check=True)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_symlink() or not path.is_file() or "screenshot" in path.name:
                continue
            contents = [path.read_bytes()] if path.suffix.lower() in _SUFFIXES else []
            contents += list_embedded(path.read_bytes()) if path.suffix == ".rcc" else []
            yield from filter(None, map(read_photo, contents))


def list_embedded(content: bytes) -> list[bytes]:
    """Return the WebP and JPEG files in a resource file of Qt, which holds them as they are."""
    found = [
        content[match.start() :][: struct.unpack_from("<I", content, match.start() + 4)[0] + 8]
        for match in re.finditer(b"RIFF....WEBP", content, re.DOTALL)
    ]
    starts = [match.start() for match in re.finditer(b"\xff\xd8\xff[\xdb\xe0\xe1]", content)]
    return found + [content[start:][:_MOST_BYTES] for start in starts]


def read_photo(content: bytes) -> Image.Image | None:
    """Return a picture in RGB; None if it is damaged, small, partly transparent or a drawing."""
    try:
        image = Image.open(io.BytesIO(content))
        image.draft("RGB", (2 * _MOST_SIDE, 2 * _MOST_SIDE))
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return None
    if min(image.size) < _LEAST_SIDE or alpha.min() < 250:
        return None
    image = image.convert("RGB")
    gray = np.asarray(image.resize((128, 128), Image.Resampling.BILINEAR)).astype(float).mean(2)
    around = gray[:-2, 1:-1] + gray[2:, 1:-1] + gray[1:-1, :-2] + gray[1:-1, 2:]
    is_flat = np.abs(4 * gray[1:-1, 1:-1] - around) < 0.7
    return image if is_flat.mean() < _MOST_FLAT else None


if __name__ == "__main__":
    main()
