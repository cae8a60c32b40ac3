"""A folder of hostile inputs as a table: name → how the file is made, and what must come of it."""

from __future__ import annotations

import io
import os
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from nibabel import Nifti1Header
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageDraw, PngImagePlugin

from tests.helpers.photos import unseen

LABEL, SIZE = "star", 128
SCENE: NDArray[np.uint8] = unseen(0, [LABEL], size=SIZE).image
PHOTO = Image.fromarray(SCENE)
GRAY = PHOTO.convert("L")
EXACT, LOSSY, COARSE = 0.51, 4.0, 14.0
"""Largest mean difference from the plain photo, in levels: rounding, JPEG, a palette of few colors."""


@dataclass(frozen=True)
class Case:
    """One hostile input.

    Attributes:
        make: Creates the file at a path.
        failure: Pattern of the reason why it fails; None if it is explained or skipped.
        skipped: Pattern of the reason why it is skipped; None if it is not.
        pixels: What is read, ``(H, W, 3)``; None if only the run must go on.
        tolerance: Largest mean difference from ``pixels``.
    """

    make: Callable[[Path], object]
    failure: str | None = None
    skipped: str | None = None
    pixels: NDArray[np.uint8] | None = None
    tolerance: float = EXACT


CASES: dict[str, Case] = {}
"""File name → case."""


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def good(name: str, content: bytes, shown: Image.Image = PHOTO, tolerance: float = EXACT) -> None:
    CASES[name] = Case(lambda path: path.write_bytes(content), None, None, np.asarray(shown.convert("RGB")), tolerance)


def bad(name: str, content: bytes, reason: str) -> None:
    CASES[name] = Case(lambda path: path.write_bytes(content), reason)


def build_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def build_png_header(width: int, height: int, color: int = 2) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + build_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0))


def build_tiff(array: NDArray[Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, array, **options)
    return buffer.getvalue()


def build_tiff_header(width: int, height: int, more: dict[int, int] | None = None) -> bytes:
    tags = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: width * height % 2**32}
    tags |= more or {}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return struct.pack("<2sHI", b"II", 42, 8) + struct.pack("<H", len(tags)) + entries + bytes(4)


def build_nifti_header(values: dict[str, Any]) -> bytes:
    header = Nifti1Header()
    for name, value in values.items():
        header[name] = value
    return bytes(header.binaryblock) + bytes(4)


def build_exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


TO_STORED = {
    1: [],
    2: [Image.Transpose.FLIP_LEFT_RIGHT],
    3: [Image.Transpose.ROTATE_180],
    4: [Image.Transpose.FLIP_TOP_BOTTOM],
    5: [Image.Transpose.TRANSPOSE],
    6: [Image.Transpose.ROTATE_90],
    7: [Image.Transpose.TRANSVERSE],
    8: [Image.Transpose.ROTATE_270],
}
"""EXIF orientation → from the upright photo to the stored one."""

PNG, JPEG = encode(PHOTO, "PNG"), encode(PHOTO, "JPEG", quality=95)
SECOND = Image.new("RGB", PHOTO.size, "navy")

# ---------------------------------------------------------------------------------------------- formats and modes

good("plain.png", PNG)
good("plain.jpg", JPEG, tolerance=LOSSY)
good("plain.bmp", encode(PHOTO, "BMP"))
good("plain.ppm", encode(PHOTO, "PPM"))
good("plain.gif", encode(PHOTO, "GIF"), tolerance=COARSE)
good("plain.tif", encode(PHOTO, "TIFF"))
good("lzw.tif", encode(PHOTO, "TIFF", compression="tiff_lzw"))
good("deflate.tiff", encode(PHOTO, "TIFF", compression="tiff_adobe_deflate"))
good("jpeg-in.tif", encode(PHOTO, "TIFF", compression="jpeg", quality=95), tolerance=LOSSY)
good("bigtiff.tif", build_tiff(SCENE, bigtiff=True, photometric="rgb"))
good("lossless.webp", encode(PHOTO, "WEBP", lossless=True))
good("lossy.webp", encode(PHOTO, "WEBP", quality=95), tolerance=LOSSY)
good("plain.avif", encode(PHOTO, "AVIF", quality=95), tolerance=LOSSY)
good("progressive.jpg", encode(PHOTO, "JPEG", quality=95, progressive=True), tolerance=LOSSY)
good("trailing-garbage.jpg", JPEG + b"\0garbage<?php" * 500, tolerance=LOSSY)
good("trailing-zip.png", PNG + b"PK\3\4" + bytes(300))
good("gray.jpg", encode(GRAY, "JPEG", quality=95), GRAY, LOSSY)
good("cmyk.jpg", encode(PHOTO.convert("CMYK"), "JPEG", quality=98), tolerance=LOSSY)
good("cmyk.tif", encode(PHOTO.convert("CMYK"), "TIFF"), tolerance=LOSSY)
good("sixteen-bits.png", encode(Image.fromarray(np.asarray(GRAY).astype(np.uint16) * 257), "PNG"), GRAY)
good("sixteen-bits.tif", build_tiff(np.asarray(GRAY).astype(np.uint16) * 257, photometric="minisblack"), GRAY)
good("sixteen-bits.pgm", b"P5 128 128 65535\n" + (np.asarray(GRAY).astype(">u2") * 257).tobytes(), GRAY)
good("float.tif", build_tiff(np.asarray(GRAY).astype(np.float32) / 255, photometric="minisblack"), GRAY)
good("one-bit.png", encode(PHOTO.convert("1"), "PNG"), PHOTO.convert("1"))
good("one-bit.pbm", encode(PHOTO.convert("1"), "PPM"), PHOTO.convert("1"))
good("palette.png", encode(PHOTO.quantize(256), "PNG"), tolerance=COARSE)
good("rgba.png", encode(PHOTO.convert("RGBA"), "PNG"))
good("gray-alpha.png", encode(GRAY.convert("LA"), "PNG"), GRAY)
good("progressive-gray.jpg", encode(GRAY, "JPEG", quality=95, progressive=True), GRAY, LOSSY)

# A square in the corner is transparent, which is white as in a browser.
HOLE = PHOTO.convert("RGBA")
ImageDraw.Draw(HOLE).rectangle((0, 0, 20, 20), fill=(255, 0, 0, 0))
WITH_WHITE = Image.alpha_composite(Image.new("RGBA", HOLE.size, "white"), HOLE)
good("transparent.png", encode(HOLE, "PNG"), WITH_WHITE)
good("transparent-palette.png", encode(HOLE.quantize(256), "PNG"), WITH_WHITE, COARSE)
good("transparent.gif", encode(HOLE, "GIF"), WITH_WHITE, COARSE)
good("transparent.webp", encode(HOLE, "WEBP", lossless=True), WITH_WHITE)

# ------------------------------------------------------------------------------------------- frames and metadata

good("animated.gif", encode(PHOTO, "GIF", save_all=True, append_images=[SECOND]), tolerance=COARSE)
good("animated.webp", encode(PHOTO, "WEBP", save_all=True, append_images=[SECOND], lossless=True))
good("animated.png", encode(PHOTO, "PNG", save_all=True, append_images=[SECOND]))
good("pages.tif", encode(PHOTO, "TIFF", save_all=True, append_images=[SECOND, SECOND]))
good("two-pictures.jpg", encode(PHOTO, "MPO", save_all=True, append_images=[SECOND], quality=95), tolerance=LOSSY)
for number, steps in TO_STORED.items():
    stored = PHOTO
    for step in steps:
        stored = stored.transpose(step)
    good(f"orientation-{number}.png", encode(stored, "PNG", exif=build_exif(number)))
good("orientation-9.png", encode(PHOTO, "PNG", exif=build_exif(9)))
good(
    "corrupt-exif.jpg", encode(PHOTO, "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(9)), tolerance=4
)
good("endless-exif.png", encode(PHOTO, "PNG", exif=b"II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x04\0\xff\xff\xff\xff" * 9))
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
good("profile.jpg", encode(PHOTO, "JPEG", quality=95, icc_profile=SRGB), tolerance=LOSSY)
good("corrupt-profile.png", encode(PHOTO, "PNG", icc_profile=b"\xff" * 200))
good("long-comment.jpg", encode(PHOTO, "JPEG", quality=95, comment=b"\x1b]0;owned\x07" * 5000), tolerance=LOSSY)

# --------------------------------------------------------------------------------------------------------- names

good("png-named.jpg", PNG)
good("jpeg-named.png", JPEG, tolerance=LOSSY)
good("webp-named.tif", encode(PHOTO, "WEBP", lossless=True))
good("UPPER.PNG", PNG)
good("line\nbreak.png", PNG)
good("\x1b[31mescape\x1b]0;title\x07.png", PNG)
good("[bold red]markup[bold].png", PNG)
good("<script>alert(1)<&>.png", PNG)
good(os.fsdecode(b"not-utf8-\xff\xfe.png"), PNG)
good("x" * 246 + ".png", PNG)
good("-o.png", PNG)
good("=cmd()+1.png", PNG)
good("\u202egnp.evil.png", PNG)
good("cafe\u0301.png", PNG)
good("caf\u00e9.png", PNG)
good("same.png", PNG)
good("same.bmp", encode(PHOTO, "BMP"))
good("SAME.png", PNG)
good("quote'\"`$(id);&.png", PNG)
good("tab\tand\rreturn.png", PNG)
good("100% {0} %s.png", PNG)
good("日本語 🙂.png", PNG)

# ---------------------------------------------------------------------------------------------------------- sizes

good("one-pixel.png", encode(Image.new("RGB", (1, 1), "red"), "PNG"), Image.new("RGB", (1, 1), "red"))
THIN = Image.fromarray(np.tile(SCENE, (157, 1, 1))[:20_000, :1])
good("tall.png", encode(THIN, "PNG"), THIN)
good("wide.png", encode(THIN.transpose(Image.Transpose.ROTATE_90), "PNG"), THIN.transpose(Image.Transpose.ROTATE_90))
good("three-by-two.gif", encode(PHOTO.resize((3, 2)), "GIF"), PHOTO.resize((3, 2)))

# ------------------------------------------------------------------------------------------------- damaged contents

DAMAGED = "damaged or cut short|damaged, cut short|is no image"
WHOLE = {
    "png": PNG,
    "jpg": JPEG,
    "gif": encode(PHOTO, "GIF"),
    "bmp": encode(PHOTO, "BMP"),
    "tif": build_tiff(SCENE, photometric="rgb"),
    "webp": encode(PHOTO, "WEBP", quality=90),
    "avif": encode(PHOTO, "AVIF"),
    "ppm": encode(PHOTO, "PPM"),
}
for suffix, content in WHOLE.items():
    for share in (1, 30, 90):
        length = 12 if share == 1 else len(content) * share // 100
        bad(f"cut-{share}.{suffix}", content[:length], DAMAGED)
bad("empty.png", b"", "empty, 0 bytes")
bad("text.png", b"not an image\n" * 50, "is no image")
bad("page.jpg", b"<!DOCTYPE html><html><script>alert(1)</script></html>", "is no image")
bad("vector.png", b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", "is no image")
bad("document.jpg", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "is no image")
bad("postscript.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%id) (r) file\n", "is no image")
bad("program.png", b"\x7fELF\2\1\1" + bytes(200), "is no image")
bad("noise.webp", np.random.default_rng(0).bytes(3000), "is no image")
bad("icon.png", encode(PHOTO, "ICO"), "is no image")
bad("targa.png", encode(PHOTO, "TGA"), "is no image")
bad("jpeg2000.jpg", encode(PHOTO, "JPEG2000"), "is no image")
bad("wrong-checksum.png", PNG[:29] + b"\0\0\0\0" + PNG[33:], DAMAGED)
bad("no-pixels.png", build_png_header(0, 0) + build_chunk(b"IEND", b""), DAMAGED + "|empty")
bad("no-pixels.gif", b"GIF89a" + bytes(7) + b";", DAMAGED + "|empty")
bad("swapped-bytes.jpg", JPEG[:2] + JPEG[2:400][::-1] + JPEG[400:], DAMAGED)
archive = io.BytesIO()
with zipfile.ZipFile(archive, "w") as packed:
    packed.writestr("../../escaped.png", PNG)
bad("archive.png", archive.getvalue(), "is no image")

# ---------------------------------------------------------------------------------------------------------- bombs

LARGE = r"is too large to be decoded safely: "
bad("bomb.png", build_png_header(60_000, 60_000) + build_chunk(b"IDAT", zlib.compress(bytes(10**6))), LARGE)
bad("bomb.gif", WHOLE["gif"][:6] + b"\xff" * 4 + WHOLE["gif"][10:], LARGE)
bad("bomb.ppm", b"P6 100000 100000 255\n" + bytes(100), LARGE)
bad("bomb.bmp", b"BM" + struct.pack("<IHHIIiiHHIIiiII", 0, 0, 0, 54, 40, 60000, 60000, 1, 24, *[0] * 6), LARGE)
bad("bomb.tif", build_tiff_header(60_000, 60_000), LARGE)
bad(
    "bomb.webp",
    b"RIFF" + struct.pack("<I", 40) + b"WEBPVP8X" + struct.pack("<II", 10, 0) + b"\xff\x3f\0\xff\x3f\0" + bytes(20),
    LARGE + "|" + DAMAGED,
)
# Small files within the limit of pixels, which would take gigabytes: a decoder's copies, tiles larger than the image,
# values that the file does not hold, and one strip of the whole image.
WEBP = "5249464626000000574542505650384c190000002faff6ab1d075081540820000a1a02495bbced8f8f88e87f0000"
bad("memory.webp", bytes.fromhex(WEBP), LARGE)
bad("memory.tif", build_tiff_header(13_300, 13_300, {259: 8, 262: 2, 277: 3}), LARGE)
bad("memory-tile.tif", build_tiff_header(9, 9, {258: 8, 259: 8, 322: 30_000, 323: 30_000, 324: 8, 325: 8}), LARGE)
VALUES = {"sizeof_hdr": 348, "dim": [3, 512, 512, 300, 1, 1, 1, 1], "datatype": 4, "bitpix": 16, "vox_offset": 352}
bad("memory.nii", build_nifti_header(VALUES), "its header announces 157,286,400 bytes of values, and there are 0")
bad("header-alone.png", build_png_header(10_000, 10_000) + build_chunk(b"IDAT", b"x\x9c"), DAMAGED)
info = PngImagePlugin.PngInfo()
info.add_text("Comment", "\x1b[2J" * 10**6, zip=True)
bad("text-bomb.png", encode(PHOTO, "PNG", pnginfo=info), DAMAGED)

# ------------------------------------------------------------------------------------------- numbers that are no image

bad("many-bands.tif", build_tiff(np.zeros((13, 8, 8), np.uint16), planarconfig="separate"), "has 13 bands")
high = np.linspace(-3, 1000, 64, dtype=np.float32).reshape(8, 8)
bad("high-range.tif", build_tiff(high, photometric="minisblack"), r"range from -3 to 1000; \[0, 255\] is allowed")
bad("not-a-number.tif", build_tiff(np.full((8, 8), np.nan, np.float32), photometric="minisblack"), "contain NaN")
bad("complex.tif", build_tiff(np.zeros((8, 8), np.complex64)), "is no image")

# --------------------------------------------------------------------------------------------------- not ordinary files


def special(name: str, make: Callable[[Path], object], skipped: str) -> None:
    CASES[name] = Case(make, skipped=skipped)


def bind_socket(path: Path) -> None:
    # A path of a socket has at most 108 bytes, so it is bound from within its folder.
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def write_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(PNG)
        file.truncate(3 * 2**30)


def write_unreadable(path: Path) -> None:
    path.write_bytes(PNG)
    path.chmod(0)


special("folder.jpg", Path.mkdir, "a folder")
special("linked-folder.png", lambda path: path.symlink_to(path.parent), "a folder")
special("pipe.png", os.mkfifo, "a named pipe")
special("socket.png", bind_socket, "a socket")
special("zero.png", lambda path: path.symlink_to("/dev/zero"), "a device")
special("broken.png", lambda path: path.symlink_to("nowhere"), "a broken link")
special("loop.png", lambda path: path.symlink_to(path.name), "a broken link")
CASES["linked.png"] = Case(lambda path: path.symlink_to("plain.png"), pixels=SCENE)
CASES["sparse.png"] = Case(write_sparse, failure=r"it has 3,221,2\d\d,\d{3} bytes, and an image file may have")
CASES["unreadable.png"] = Case(
    write_unreadable,
    **({"pixels": SCENE} if os.name == "posix" and os.geteuid() == 0 else {"failure": "Permission denied"}),  # type: ignore[arg-type]
)


def build_folder(folder: Path) -> Path:
    """Create all inputs in a folder, and return it."""
    folder.mkdir()
    for name, case in CASES.items():
        case.make(folder / name)
    return folder


def expect_pixels(name: str) -> NDArray[np.uint8]:
    """Return the pixels that must be read of an input."""
    pixels = CASES[name].pixels
    assert pixels is not None
    return pixels
