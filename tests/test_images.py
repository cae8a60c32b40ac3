"""What `camtool.images` promises: pictures read as a person sees them; no file is ever half there."""

from __future__ import annotations

import os
import stat
import struct
import sys
import threading
import warnings
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pytest
from photos import save, unseen
from PIL import Image

from camtool.errors import ImageError
from camtool.images import SUFFIXES, encode, read, write, writing

RAMP = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3) * 4
GREY = np.arange(20, dtype=np.uint8).reshape(4, 5) * 12
PHOTOS = Path(__file__).resolve().parents[2] / "shared" / "images"


def pixels(source: Any) -> npt.NDArray[np.uint8]:
    image = read(source)
    assert image.mode == "RGB"
    return np.asarray(image)


def file_bytes(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def raw_png(depth: int, colour: int, rows: list[bytes], width: int, transparency: bytes = b"") -> bytes:
    """A PNG put together by hand: PIL writes neither every depth nor every lie."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0))
    alpha = chunk(b"tRNS", transparency) if transparency else b""
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + header + alpha + body + chunk(b"IEND", b"")


def huge_png(side: int) -> bytes:
    """A header that claims side x side pixels, and next to no data."""
    data = bytearray(raw_png(8, 0, [b"\0"], 1))
    data[16:24] = struct.pack(">II", side, side)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


# Sources


@pytest.mark.parametrize("form", [str, Path, Path.read_bytes, Image.open, lambda path: np.asarray(Image.open(path))])
def test_each_kind_of_source_reads_the_same(tmp_path: Path, form: Callable[[Path], Any]) -> None:
    path = tmp_path / "ramp.png"
    Image.fromarray(RAMP).save(path)
    np.testing.assert_array_equal(pixels(form(path)), RAMP)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("BMP", {}),
        ("PPM", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ],
)
def test_lossless_formats_are_exact(kind: str, options: dict[str, Any]) -> None:
    np.testing.assert_array_equal(pixels(file_bytes(Image.fromarray(RAMP), kind, **options)), RAMP)


@pytest.mark.parametrize("colour", [(200, 30, 90), (0, 0, 0), (255, 255, 255)])
@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_formats_keep_a_flat_colour(kind: str, colour: tuple[int, int, int]) -> None:
    found = pixels(file_bytes(Image.new("RGB", (16, 8), colour), kind, quality=95))
    np.testing.assert_allclose(found, np.broadcast_to(colour, (8, 16, 3)), atol=3)


def test_a_wrong_suffix_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "really-a-png.jpg"
    path.write_bytes(file_bytes(Image.fromarray(RAMP), "PNG"))
    np.testing.assert_array_equal(pixels(path), RAMP)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_of_several_frames_the_first_is_read(kind: str) -> None:
    frames = [Image.new("RGB", (3, 2), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = file_bytes(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert (pixels(data) == (255, 0, 0)).all()


def test_of_a_pil_image_the_current_frame_is_read() -> None:
    frames = [Image.new("RGB", (3, 2), colour) for colour in ("red", "blue")]
    with Image.open(BytesIO(file_bytes(frames[0], "GIF", save_all=True, append_images=frames[1:]))) as image:
        image.seek(1)
        assert (pixels(image) == (0, 0, 255)).all()
        assert image.tell() == 1


def test_the_result_is_new_and_bare() -> None:
    image = Image.fromarray(RAMP)
    image.info["comment"] = "mine"
    result = read(image)
    result.putpixel((0, 0), (255, 255, 255))
    assert result.info == {}
    assert image.getpixel((0, 0)) == (0, 4, 8)
    assert image.info == {"comment": "mine"}


# Modes


@pytest.mark.parametrize(
    ("mode", "value", "seen"),
    [
        ("RGB", (10, 20, 30), (10, 20, 30)),
        ("RGBX", (10, 20, 30, 0), (10, 20, 30)),
        ("L", 77, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("1", 0, (0, 0, 0)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("CMYK", (0, 0, 0, 255), (0, 0, 0)),
        ("YCbCr", (128, 128, 128), (128, 128, 128)),
        ("HSV", (0, 0, 200), (200, 200, 200)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), (255, 255, 255)),
        ("RGBA", (0, 100, 255, 51), (204, 224, 255)),  # a fifth of the colour, four fifths of white
        ("RGBa", (0, 20, 51, 51), (204, 224, 255)),  # the same, premultiplied
        ("LA", (100, 51), (224, 224, 224)),
        ("La", (20, 51), (224, 224, 224)),
        ("I;16", 65535, (255, 255, 255)),
        ("I;16", 255, (1, 1, 1)),
        ("I;16", 128, (0, 0, 0)),
        ("I;16", 129, (1, 1, 1)),
        ("I;16L", 25700, (100, 100, 100)),
        ("I;16B", 25700, (100, 100, 100)),
        ("I", 100, (100, 100, 100)),
        ("I", 25700, (100, 100, 100)),
        ("I", 65535, (255, 255, 255)),
        ("F", 0.2, (51, 51, 51)),
        ("F", 1.0, (255, 255, 255)),
        ("F", 51.4, (51, 51, 51)),
        ("F", 255.0, (255, 255, 255)),
    ],
)
def test_modes(mode: str, value: Any, seen: tuple[int, int, int]) -> None:
    np.testing.assert_array_equal(pixels(Image.new(mode, (3, 2), value)), np.broadcast_to(seen, (2, 3, 3)))


def test_alpha_is_composited_over_white_to_the_nearest_level() -> None:
    colour, alpha = np.meshgrid(np.arange(256), np.arange(256))
    rgba = np.stack([colour, colour, colour, alpha], axis=-1).astype(np.uint8)
    exact = (colour * alpha + 255 * (255 - alpha)) / 255
    np.testing.assert_array_equal(pixels(rgba)[..., 0], np.rint(exact))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_scale_to_the_nearest_level(kind: str) -> None:
    deep = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    found = pixels(file_bytes(Image.fromarray(deep), kind))
    np.testing.assert_array_equal(found[..., 1], np.rint(deep / 257))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_a_dark_sixteen_bit_file_stays_dark(kind: str) -> None:
    dark = np.full((2, 3), 200, np.uint16)
    assert (pixels(file_bytes(Image.fromarray(dark), kind)) == 1).all()


@pytest.mark.parametrize(
    ("colour", "row", "seen"),
    [
        (2, struct.pack(">6H", 0x1200, 0x5600, 0x9A00, 0xFF00, 0, 0x8000), [(18, 86, 154), (255, 0, 128)]),
        (4, struct.pack(">4H", 0x1200, 0xFFFF, 0x8000, 0), [(18, 18, 18), (255, 255, 255)]),
        (6, struct.pack(">8H", 0x1200, 0, 0, 0xFFFF, 9, 9, 9, 0), [(18, 0, 0), (255, 255, 255)]),
    ],
)
def test_sixteen_bit_colour_and_alpha(colour: int, row: bytes, seen: list[tuple[int, int, int]]) -> None:
    np.testing.assert_array_equal(pixels(raw_png(16, colour, [row], 2)), [seen])


@pytest.mark.parametrize(
    ("depth", "colour", "row", "transparency", "seen"),
    [
        (1, 0, b"\x40", b"\0\0", [255, 255]),  # black and white, where black is transparent
        (8, 0, b"\x64\x65", b"\0\x64", [255, 0x65]),
        (16, 0, struct.pack(">2H", 25700, 257), struct.pack(">H", 25700), [255, 1]),
        (8, 2, b"\x64\x64\x64\x07\x07\x07", struct.pack(">3H", 0x64, 0x64, 0x64), [255, 7]),
    ],
)
def test_a_png_with_one_transparent_colour(
    depth: int, colour: int, row: bytes, transparency: bytes, seen: list[int]
) -> None:
    assert pixels(raw_png(depth, colour, [row], 2, transparency))[0, :, 0].tolist() == seen


# A GIF knows one transparent entry, a PNG also an alpha for each.
@pytest.mark.parametrize(("kind", "transparency"), [("PNG", 0), ("PNG", bytes([0, 255])), ("GIF", 0)])
def test_palettes_with_and_without_transparency(kind: str, transparency: int | bytes) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([200, 10, 10, 10, 20, 30])
    image.putdata([0, 1])
    np.testing.assert_array_equal(pixels(file_bytes(image, kind)), [[(200, 10, 10), (10, 20, 30)]])
    clear = file_bytes(image, kind, transparency=transparency)
    np.testing.assert_array_equal(pixels(clear), [[(255, 255, 255), (10, 20, 30)]])


@pytest.mark.parametrize(("ink", "seen"), [((0, 0, 0, 0), (255, 255, 255)), ((0, 255, 255, 0), (255, 0, 0))])
def test_a_cmyk_jpeg_is_not_a_negative(ink: tuple[int, ...], seen: tuple[int, ...]) -> None:
    data = file_bytes(Image.new("CMYK", (16, 16), ink), "JPEG", quality=95)
    assert b"Adobe" in data  # such files store their inks inverted
    np.testing.assert_allclose(pixels(data), np.broadcast_to(seen, (16, 16, 3)), atol=2)


@pytest.mark.parametrize(
    ("mode", "value", "message"),
    [
        ("I", 65536, r"values of the PIL image range from 65536 to 65536; \[0, 65535\] is allowed"),
        ("I", -1, "range from -1 to -1"),
        ("F", 256.0, r"range from 256 to 256; \[0, 255\] is allowed"),
        ("F", float("nan"), "contain NaN"),
    ],
)
def test_deep_modes_out_of_range(mode: str, value: float, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read(Image.new(mode, (2, 2), value))


# Orientation

# The upright picture is always [[1, 2, 3], [4, 5, 6]]; these are its stored rows, by the EXIF table of where
# the stored row 0 and column 0 belong: 6, say, is "row 0 is the right side, column 0 the top".
STORED = {
    1: [[1, 2, 3], [4, 5, 6]],
    2: [[3, 2, 1], [6, 5, 4]],
    3: [[6, 5, 4], [3, 2, 1]],
    4: [[4, 5, 6], [1, 2, 3]],
    5: [[1, 4], [2, 5], [3, 6]],
    6: [[3, 6], [2, 5], [1, 4]],
    7: [[6, 3], [5, 2], [4, 1]],
    8: [[4, 1], [5, 2], [6, 3]],
}


def stored(orientation: int, block: int = 1) -> tuple[Image.Image, Image.Exif]:
    grid = np.kron(np.array(STORED[orientation]) * 40, np.ones((block, block))).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return Image.fromarray(np.stack([grid, 255 - grid, grid // 2], axis=-1)), exif


def upright(found: npt.NDArray[np.uint8]) -> list[list[float]]:
    grid: list[list[float]] = (found[..., 0] / 40).tolist()
    return grid


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_every_orientation_becomes_upright_and_stays_so(orientation: int, kind: str) -> None:
    image, exif = stored(orientation)
    data = file_bytes(image, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    once = read(data)
    assert upright(np.asarray(once)) == STORED[1]
    assert upright(pixels(once)) == STORED[1]


@pytest.mark.parametrize("orientation", STORED)
def test_every_orientation_of_a_jpeg_and_of_an_open_image(orientation: int) -> None:
    image, exif = stored(orientation, block=16)
    data = file_bytes(image, "JPEG", exif=exif, quality=100, subsampling=0)
    centres = np.s_[8::16, 8::16]
    np.testing.assert_allclose(upright(pixels(data)[centres]), STORED[1], atol=0.1)
    with Image.open(BytesIO(data)) as opened:
        before = opened.size
        np.testing.assert_allclose(upright(pixels(opened)[centres]), STORED[1], atol=0.1)
        assert opened.size == before
        assert opened.getexif()[0x0112] == orientation


def test_orientation_of_a_deep_grey_picture() -> None:
    exif = stored(6)[1]
    deep = np.array(STORED[6], np.uint16) * 257 * 40
    assert upright(pixels(file_bytes(Image.fromarray(deep), "PNG", exif=exif))) == STORED[1]


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff"]
)
def test_garbled_exif_data_does_not_spoil_a_sound_picture(exif: bytes) -> None:
    image = stored(1)[0]
    assert upright(pixels(file_bytes(image, "PNG", exif=exif))) == STORED[1]


# Arrays


@pytest.mark.parametrize(
    ("array", "seen"),
    [
        (GREY, np.stack([GREY] * 3, axis=-1)),
        (GREY[..., None], np.stack([GREY] * 3, axis=-1)),
        (RAMP, RAMP),
        (RAMP[::-1, ::2], RAMP[::-1, ::2]),
        (np.asfortranarray(RAMP), RAMP),
        (np.dstack([RAMP, np.full((4, 5), 255, np.uint8)]), RAMP),
        (np.dstack([RAMP, np.zeros((4, 5), np.uint8)]), np.full((4, 5, 3), 255)),
        (np.array([[True, False]]), [[(255, 255, 255), (0, 0, 0)]]),
        (np.array([[0.0, 0.2, 1.0]]), [[(0, 0, 0), (51, 51, 51), (255, 255, 255)]]),
        (np.array([[[1.0, 0.2, 0.0, 0.0]]]), [[(255, 255, 255)]]),
        (np.array([[-1e-8, 1 + 1e-6]], np.float32), [[(0, 0, 0), (255, 255, 255)]]),
    ],
)
def test_arrays(array: npt.NDArray[Any], seen: Any) -> None:
    np.testing.assert_array_equal(pixels(array), seen)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_every_level_survives_being_a_float(dtype: str) -> None:
    levels = np.arange(256).reshape(16, 16)
    np.testing.assert_array_equal(pixels((levels / 255).astype(dtype))[..., 2], levels)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 5), np.uint16), "the array has dtype uint16; uint8, bool, or floats"),
        (np.zeros((4, 5), np.int64), "dtype int64"),
        (np.zeros((4, 5), np.complex64), "dtype complex64"),
        (np.array([["a"]], object), "dtype object"),
        (np.zeros(7, np.uint8), r"shape \(7,\); \(H, W\) or \(H, W, 1\|3\|4\) is allowed"),
        (np.zeros((4, 5, 2), np.uint8), r"shape \(4, 5, 2\)"),
        (np.zeros((3, 8, 9), np.uint8), r"shape \(3, 8, 9\).*array\.transpose\(1, 2, 0\)"),
        (np.zeros((1, 8, 9, 3), np.uint8), r"shape \(1, 8, 9, 3\)"),
        (np.zeros((0, 5, 3), np.uint8), r"shape \(0, 5, 3\): no pixels"),
        (np.array([[0.0, 1.5]]), r"values of the array range from 0 to 1\.5; \[0, 1\] is allowed"),
        (np.array([[-0.25, 1.0]]), r"range from -0\.25 to 1"),
        (np.array([[0.0, 1.002]]), r"range from 0 to 1\.002"),
        (np.array([[0.0, 255.0]]), "range from 0 to 255"),
        (np.array([[0.0, np.inf]]), "range from 0 to inf"),
        (np.array([[0.5, np.nan]]), "the array contain NaN"),
    ],
)
def test_arrays_that_are_no_pictures(array: npt.NDArray[Any], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read(array)


@pytest.mark.parametrize("source", [None, 3, [1, 2], bytearray(b"x")])
def test_what_is_no_source_at_all(source: Any) -> None:
    with pytest.raises(ImageError, match=f"NumPy array; {type(source).__name__} came"):
        read(source)


# Faults


def damaged(kind: str) -> bytes:
    data = file_bytes(Image.effect_noise((64, 64), 80).convert("RGB"), kind)
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, 0 bytes"),
        (b"just some words, no picture at all", "is no picture: its content is none of PNG, JPEG, WEBP"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no picture"),
        (b"\x89PNG\r\n\x1a\n", "is no picture|damaged"),
        *((damaged(kind), "damaged or cut short|no picture") for kind in ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP")),
    ],
)
def test_faults_name_the_file_or_the_bytes(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "holiday.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=rf"holiday\.jpg .*({message})"):
        read(path)
    with pytest.raises(ImageError, match=rf"^the bytes .*({message})"):
        read(content)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"image 'https://x\.org/a\.png': URLs are not read; download the file first"):
        read("https://x.org/a.png")
    with pytest.raises(ImageError, match=r"gone\.png cannot be read: there is no such file"):
        read(tmp_path / "gone.png")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="it is a folder"):
        read(str(tmp_path))


def test_a_name_with_a_nul() -> None:
    with pytest.raises(ImageError, match="null"):
        read("a\0b.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match=r"pipe\.png .*not an ordinary file"):
        read(tmp_path / "pipe.png")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> BinaryIO:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "secret.png"
    path.touch()
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ImageError, match=r"secret\.png cannot be read: Permission denied"):
        read(path)


def test_an_open_image_that_is_cut_short_or_closed() -> None:
    with (
        Image.open(BytesIO(damaged("PNG"))) as image,
        pytest.raises(ImageError, match="PIL image is damaged"),
    ):
        read(image)
    closed = Image.fromarray(RAMP)
    closed.close()
    with pytest.raises(ImageError, match="the PIL image is damaged or cut short: Operation on closed image"):
        read(closed)


def test_an_image_without_pixels() -> None:
    with pytest.raises(ImageError, match="0 x 4 pixels"):
        read(Image.new("RGB", (0, 4)))


@pytest.mark.parametrize("content", [b"words", b"", huge_png(60_000), damaged("JPEG"), damaged("TIFF"), encode(RAMP)])
def test_no_handle_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    opened: list[Any] = []
    genuine = Path.open

    def spy(self: Path, *args: Any) -> Any:
        opened.append(genuine(self, *args))
        return opened[-1]

    monkeypatch.setattr(Path, "open", spy)
    if content == encode(RAMP):
        read(path)
    else:
        with pytest.raises(ImageError):
            read(path)
    assert [stream.closed for stream in opened] == [True]


# Bombs


@pytest.mark.parametrize("action", ["error", "ignore"])
@pytest.mark.parametrize(
    ("side", "message"),
    [
        (10_000, r"bomb\.png is too large .*100000000 pixels.* limit of 89478485 pixels.*MAX_IMAGE_PIXELS"),
        (60_000, r"bomb\.png is too large .*3600000000 pixels.* limit of \d+ pixels.*MAX_IMAGE_PIXELS"),
    ],
)
def test_bombs_are_refused_whatever_the_warning_filter(tmp_path: Path, action: Any, side: int, message: str) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(huge_png(side))
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        before = list(warnings.filters)
        with pytest.raises(ImageError, match=message):
            read(path)
        assert list(warnings.filters) == before
    assert limit == Image.MAX_IMAGE_PIXELS


def test_the_limit_is_inclusive_and_can_be_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(RAMP)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    assert read(data).size == (5, 4)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 19)
    with pytest.raises(ImageError, match=r"the bytes is too large.*20 pixels.*limit of 19"):
        read(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert read(data).size == (5, 4)


# HEIC

HEIC = b"\0\0\0\x1cftypmif1\0\0\0\0mif1heicmiaf" + bytes(40)


def test_heic_without_its_reader_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    path = tmp_path / "phone.heic"
    path.write_bytes(HEIC)
    with pytest.raises(ImageError, match=r"phone\.heic .* needs: pip install 'camtool\[heic\]'"):
        read(path)


def test_heic_registers_its_reader_only_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[bool] = []

    def register() -> None:
        registered.append(True)
        monkeypatch.setitem(Image.OPEN, "HEIF", (lambda *_: Image.new("RGB", (3, 2), "red"), None))

    monkeypatch.setitem(sys.modules, "pillow_heif", SimpleNamespace(register_heif_opener=register))
    read(encode(RAMP))
    assert registered == []
    assert (pixels(HEIC) == (255, 0, 0)).all()
    assert registered == [True]


def test_a_true_heic_file() -> None:
    heif = pytest.importorskip("pillow_heif", reason="HEIC is an extra")
    heif.register_heif_opener()
    image, exif = stored(6, block=32)
    data = file_bytes(image, "HEIF", exif=exif.tobytes(), quality=100)
    np.testing.assert_allclose(upright(pixels(data)[16::32, 16::32]), STORED[1], atol=0.2)


# Writing


@pytest.mark.parametrize("array", [RAMP, GREY, RAMP[::2, ::-1]])
def test_a_png_comes_back_exactly(tmp_path: Path, array: npt.NDArray[np.uint8]) -> None:
    path = write(tmp_path / "new" / "folders" / "map.PNG", array)
    assert path == tmp_path / "new" / "folders" / "map.PNG"
    with Image.open(path) as image:
        np.testing.assert_array_equal(np.asarray(image), array)


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".png", "PNG"), (".jpg", "JPEG"), (".jpeg", "JPEG"), (".webp", "WEBP"), (".JPG", "JPEG")],
)
def test_the_suffix_chooses_the_format(tmp_path: Path, suffix: str, kind: str) -> None:
    path = write(str(tmp_path / f"map{suffix}"), RAMP)
    assert path.read_bytes() == encode(RAMP, suffix)
    with Image.open(path) as image:
        assert (image.format, image.size) == (kind, (5, 4))


def test_a_jpeg_keeps_single_coloured_columns_apart() -> None:
    stripes = np.zeros((16, 16, 3), np.uint8)
    stripes[:, ::2, 0] = 255
    stripes[:, 1::2, 2] = 255
    found = pixels(encode(stripes, ".jpg")).astype(int)
    assert np.abs(found - stripes).max() < 40  # halved colour resolution is off by more than 100


def test_quality_trades_size() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    for suffix in (".jpg", ".webp"):
        sizes = [len(encode(noise, suffix, quality=quality)) for quality in (30, 92, 100)]
        assert sizes == sorted(set(sizes))
        assert len(encode(noise, suffix)) == sizes[1]


@pytest.mark.parametrize(
    ("name", "array", "quality", "message"),
    [
        ("a.xyz", RAMP, 92, r"suffix: '\.xyz' came; .*\.png, \.jpg, \.jpeg, \.webp"),
        ("a", RAMP, 92, "suffix: '' came"),
        ("a.png", RAMP / 255, 92, r"pixels: float64 of shape \(4, 5, 3\) came; uint8"),
        ("a.png", RAMP[..., :2], 92, r"shape \(4, 5, 2\)"),
        ("a.png", RAMP[:0], 92, r"shape \(0, 5, 3\)"),
        ("a.png", "words", 92, "pixels: str"),
        ("a.jpg", RAMP, 0, "quality: 0 came; it goes from 1 to 100"),
        ("a.jpg", RAMP, 101, "quality: 101"),
        ("a.webp", np.zeros((1, 17_000), np.uint8), 92, "pixels: 1 x 17000 cannot be written as WEBP"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, name: str, array: Any, quality: int, message: str
) -> None:
    with pytest.raises(ImageError, match=message):
        write(tmp_path / "folder" / name, array, quality=quality)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", [b"old", None])
def test_a_broken_off_file_changes_nothing(tmp_path: Path, fault: type[BaseException], old: bytes | None) -> None:
    path = tmp_path / "data.npy"
    if old is not None:
        path.write_bytes(old)
    streams: list[BinaryIO] = []

    def write_half() -> None:
        with writing(path) as stream:
            streams.append(stream)
            stream.write(b"half of the n")
            stream.flush()
            raise fault

    with pytest.raises(fault):
        write_half()
    assert streams[0].closed
    left = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert left == ({} if old is None else {path: old})


def test_a_failing_replace_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"), writing(tmp_path / "taken") as stream:
        stream.write(b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_the_old_file_stays_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"old")
    with writing(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_bytes() == b"old"
        assert len(list(tmp_path.iterdir())) == 2
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="no umask here")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_the_file_has_ordinary_permissions(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        path = write(tmp_path / "map.png", RAMP)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.name == "nt", reason="links need rights here")
def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere" / "target.png", tmp_path / "link.png"
    target.parent.mkdir()
    link.symlink_to(target)
    write(link, RAMP)
    assert link.is_symlink()
    np.testing.assert_array_equal(pixels(target), RAMP)


def test_many_writers_of_one_path_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "shared.bin"
    contents = [bytes([letter]) * 100_000 for letter in b"abcdefgh"]

    def work(content: bytes) -> None:
        for _ in range(5):
            with writing(path) as stream:
                stream.write(content)

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_long_name_is_no_obstacle(tmp_path: Path) -> None:
    path = write(tmp_path / ("n" * 251 + ".png"), RAMP)
    assert list(tmp_path.iterdir()) == [path]


# The rest


def test_suffixes_are_those_of_paths_in_lower_case() -> None:
    assert {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".heic", ".heif"} <= SUFFIXES
    assert all(Path(f"a{suffix}").suffix.lower() == suffix for suffix in SUFFIXES)
    assert not {".txt", ".npy", ".csv", ""} & SUFFIXES


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="the photos are not here")
def test_photos_read_as_pil_reads_them() -> None:
    paths = sorted(PHOTOS.glob("*.jpg"))[:3]
    assert paths
    for path in paths:
        assert_read_as_pil_reads_it(path)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_scenes_read_as_pil_reads_them(tmp_path: Path, suffix: str) -> None:
    assert_read_as_pil_reads_it(save(unseen(0, size=200), tmp_path / f"scene{suffix}"))


def assert_read_as_pil_reads_it(path: Path) -> None:
    with Image.open(path) as image:
        np.testing.assert_array_equal(pixels(path), np.asarray(image.convert("RGB")))
