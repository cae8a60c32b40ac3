"""Image reading: every kind of source becomes an upright RGB image of eight bits, or an error that names it."""

from __future__ import annotations

import os
import struct
import sys
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
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from camtool.errors import ImageError
from camtool.inputs import image_files
from camtool.inputs.image_files import IMAGE_SUFFIXES, MAX_BYTES, get_reading_notes, open_image, read_image
from camtool.rendering.image_writing import encode_image
from tests.helpers.photos import save, unseen

RAMP = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3) * 4
GRAY = np.arange(20, dtype=np.uint8).reshape(4, 5) * 12
PHOTOS = Path(__file__).resolve().parents[3] / "shared" / "images"


def read_pixels(source: Any) -> npt.NDArray[np.uint8]:
    image = read_image(source)
    assert image.mode == "RGB"
    return np.asarray(image)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def build_png(depth: int, color: int, rows: list[bytes], width: int, transparency: bytes = b"") -> bytes:
    """Build the bytes of a PNG: PIL does not write every depth, and no invalid header."""

    def build_chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = build_chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, color, 0, 0, 0))
    alpha = build_chunk(b"tRNS", transparency) if transparency else b""
    body = build_chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + header + alpha + body + build_chunk(b"IEND", b"")


def build_huge_png(side: int) -> bytes:
    """Build a PNG whose header claims side x side pixels, with hardly any data."""
    data = bytearray(build_png(8, 0, [b"\0"], 1))
    data[16:24] = struct.pack(">II", side, side)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


# Sources


@pytest.mark.parametrize("form", [str, Path, Path.read_bytes, Image.open, lambda path: np.asarray(Image.open(path))])
def test_all_kinds_of_source_give_the_same_image(tmp_path: Path, form: Callable[[Path], Any]) -> None:
    path = tmp_path / "ramp.png"
    Image.fromarray(RAMP).save(path)
    np.testing.assert_array_equal(read_pixels(form(path)), RAMP)


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
def test_lossless_formats_keep_all_pixels(kind: str, options: dict[str, Any]) -> None:
    np.testing.assert_array_equal(read_pixels(encode(Image.fromarray(RAMP), kind, **options)), RAMP)


@pytest.mark.parametrize("color", [(200, 30, 90), (0, 0, 0), (255, 255, 255)])
@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_formats_keep_a_constant_color(kind: str, color: tuple[int, int, int]) -> None:
    found = read_pixels(encode(Image.new("RGB", (16, 8), color), kind, quality=95))
    np.testing.assert_allclose(found, np.broadcast_to(color, (8, 16, 3)), atol=3)


def test_the_content_decides_the_format_and_not_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "really-a-png.jpg"
    path.write_bytes(encode(Image.fromarray(RAMP), "PNG"))
    np.testing.assert_array_equal(read_pixels(path), RAMP)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_the_first_of_several_frames_is_read(kind: str) -> None:
    frames = [Image.new("RGB", (3, 2), color) for color in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert (read_pixels(data) == (255, 0, 0)).all()


def test_the_current_frame_of_a_pil_image_is_read() -> None:
    frames = [Image.new("RGB", (3, 2), color) for color in ("red", "blue")]
    with Image.open(BytesIO(encode(frames[0], "GIF", save_all=True, append_images=frames[1:]))) as image:
        image.seek(1)
        assert (read_pixels(image) == (0, 0, 255)).all()
        assert image.tell() == 1


def test_the_result_is_a_new_image_without_metadata() -> None:
    image = Image.fromarray(RAMP)
    image.info["comment"] = "mine"
    result = read_image(image)
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
        ("RGBA", (0, 100, 255, 51), (204, 224, 255)),  # a fifth of the color, four fifths of white
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
def test_every_mode_becomes_rgb(mode: str, value: Any, seen: tuple[int, int, int]) -> None:
    np.testing.assert_array_equal(read_pixels(Image.new(mode, (3, 2), value)), np.broadcast_to(seen, (2, 3, 3)))


def test_alpha_is_composited_over_white_to_the_nearest_level() -> None:
    color, alpha = np.meshgrid(np.arange(256), np.arange(256))
    rgba = np.stack([color, color, color, alpha], axis=-1).astype(np.uint8)
    exact = (color * alpha + 255 * (255 - alpha)) / 255
    np.testing.assert_array_equal(read_pixels(rgba)[..., 0], np.rint(exact))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_scale_to_the_nearest_level(kind: str) -> None:
    deep = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    found = read_pixels(encode(Image.fromarray(deep), kind))
    np.testing.assert_array_equal(found[..., 1], np.rint(deep / 257))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_a_dark_sixteen_bit_file_stays_dark(kind: str) -> None:
    dark = np.full((2, 3), 200, np.uint16)
    assert (read_pixels(encode(Image.fromarray(dark), kind)) == 1).all()


@pytest.mark.parametrize(
    ("color", "row", "seen"),
    [
        (2, struct.pack(">6H", 0x1200, 0x5600, 0x9A00, 0xFF00, 0, 0x8000), [(18, 86, 154), (255, 0, 128)]),
        (4, struct.pack(">4H", 0x1200, 0xFFFF, 0x8000, 0), [(18, 18, 18), (255, 255, 255)]),
        (6, struct.pack(">8H", 0x1200, 0, 0, 0xFFFF, 9, 9, 9, 0), [(18, 0, 0), (255, 255, 255)]),
    ],
)
def test_sixteen_bit_colors_become_eight_bits(color: int, row: bytes, seen: list[tuple[int, int, int]]) -> None:
    np.testing.assert_array_equal(read_pixels(build_png(16, color, [row], 2)), [seen])


@pytest.mark.parametrize(
    ("depth", "color", "row", "transparency", "seen"),
    [
        (1, 0, b"\x40", b"\0\0", [255, 255]),  # black and white, where black is transparent
        (8, 0, b"\x64\x65", b"\0\x64", [255, 0x65]),
        (16, 0, struct.pack(">2H", 25700, 257), struct.pack(">H", 25700), [255, 1]),
        (8, 2, b"\x64\x64\x64\x07\x07\x07", struct.pack(">3H", 0x64, 0x64, 0x64), [255, 7]),
    ],
)
def test_one_transparent_color_of_a_png_becomes_white(
    depth: int, color: int, row: bytes, transparency: bytes, seen: list[int]
) -> None:
    assert read_pixels(build_png(depth, color, [row], 2, transparency))[0, :, 0].tolist() == seen


# A GIF has one transparent entry, a PNG may have an alpha value for each.
@pytest.mark.parametrize(("kind", "transparency"), [("PNG", 0), ("PNG", bytes([0, 255])), ("GIF", 0)])
def test_palettes_are_read_with_and_without_transparency(kind: str, transparency: int | bytes) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([200, 10, 10, 10, 20, 30])
    image.putdata([0, 1])
    np.testing.assert_array_equal(read_pixels(encode(image, kind)), [[(200, 10, 10), (10, 20, 30)]])
    clear = encode(image, kind, transparency=transparency)
    np.testing.assert_array_equal(read_pixels(clear), [[(255, 255, 255), (10, 20, 30)]])


@pytest.mark.parametrize(("ink", "seen"), [((0, 0, 0, 0), (255, 255, 255)), ((0, 255, 255, 0), (255, 0, 0))])
def test_a_cmyk_jpeg_is_not_inverted(ink: tuple[int, ...], seen: tuple[int, ...]) -> None:
    data = encode(Image.new("CMYK", (16, 16), ink), "JPEG", quality=95)
    assert b"Adobe" in data  # files with this marker store their inks inverted
    np.testing.assert_allclose(read_pixels(data), np.broadcast_to(seen, (16, 16, 3)), atol=2)


@pytest.mark.parametrize(
    ("mode", "value", "message"),
    [
        ("I", 65536, r"values of the PIL image range from 65536 to 65536; \[0, 65535\] is allowed"),
        ("I", -1, "range from -1 to -1"),
        ("F", 256.0, r"range from 256 to 256; \[0, 255\] is allowed"),
        ("F", float("nan"), "contain NaN"),
    ],
)
def test_values_out_of_range_raise_an_error(mode: str, value: float, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read_image(Image.new(mode, (2, 2), value))


# Orientation

# The upright image is always [[1, 2, 3], [4, 5, 6]]; these are its stored rows, by the EXIF table of where
# the stored row 0 and column 0 belong: 6, for example, is "row 0 is the right side, column 0 the top".
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


def rotate_for_storage(orientation: int, block: int = 1) -> tuple[Image.Image, Image.Exif]:
    grid = np.kron(np.array(STORED[orientation]) * 40, np.ones((block, block))).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return Image.fromarray(np.stack([grid, 255 - grid, grid // 2], axis=-1)), exif


def upright(found: npt.NDArray[np.uint8]) -> list[list[float]]:
    grid: list[list[float]] = (found[..., 0] / 40).tolist()
    return grid


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_every_orientation_becomes_upright_and_stays_upright(orientation: int, kind: str) -> None:
    image, exif = rotate_for_storage(orientation)
    data = encode(image, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    once = read_image(data)
    assert upright(np.asarray(once)) == STORED[1]
    assert upright(read_pixels(once)) == STORED[1]


@pytest.mark.parametrize("orientation", STORED)
def test_every_orientation_of_a_jpeg_and_of_a_pil_image_becomes_upright(orientation: int) -> None:
    image, exif = rotate_for_storage(orientation, block=16)
    data = encode(image, "JPEG", exif=exif, quality=100, subsampling=0)
    centers = np.s_[8::16, 8::16]
    np.testing.assert_allclose(upright(read_pixels(data)[centers]), STORED[1], atol=0.1)
    with Image.open(BytesIO(data)) as opened:
        before = opened.size
        np.testing.assert_allclose(upright(read_pixels(opened)[centers]), STORED[1], atol=0.1)
        assert opened.size == before
        assert opened.getexif()[0x0112] == orientation


def test_a_sixteen_bit_gray_image_becomes_upright() -> None:
    exif = rotate_for_storage(6)[1]
    deep = np.array(STORED[6], np.uint16) * 257 * 40
    assert upright(read_pixels(encode(Image.fromarray(deep), "PNG", exif=exif))) == STORED[1]


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_decoded_at_a_reduced_scale(tmp_path: Path, orientation: int) -> None:
    whole = smooth_picture(1200, 800)
    exif = Image.Exif()
    exif[0x0112] = orientation
    whole.save(tmp_path / "large.jpg", quality=95, exif=exif)
    decoded = []
    with pytest.MonkeyPatch.context() as patch:
        load = JpegImageFile.load
        patch.setattr(JpegImageFile, "load", lambda self: [decoded.append(self.size), load(self)][1])
        reduced = read_image(tmp_path / "large.jpg", max_side=250)
    assert decoded[0] == (300, 200)
    upright = whole if orientation == 1 else whole.transpose(Image.Transpose.ROTATE_270)
    expected = upright.resize(reduced.size, Image.Resampling.BOX)
    assert max(reduced.size) == 250
    assert (reduced.width > reduced.height) == (orientation == 1)
    difference = np.abs(np.asarray(reduced, float) - np.asarray(expected, float))
    assert difference.mean() < 1
    assert difference.max() < 12


@pytest.mark.parametrize("kind", ["png", "bytes", "PIL", "array"])
def test_any_image_is_reduced_to_the_longest_side_and_never_enlarged(tmp_path: Path, kind: str) -> None:
    whole = smooth_picture(60, 40)
    whole.save(tmp_path / "small.png")
    sources = {
        "png": tmp_path / "small.png",
        "bytes": (tmp_path / "small.png").read_bytes(),
        "PIL": whole,
        "array": np.asarray(whole),
    }
    assert read_image(sources[kind], max_side=30).size == (30, 20)
    assert read_image(sources[kind], max_side=60) == read_image(sources[kind], max_side=900) == whole
    assert read_image(whole.resize((60, 1)), max_side=6).size == (6, 1)


def smooth_picture(width: int, height: int) -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 9, width), np.linspace(0, 7, height))
    planes = [np.sin(x) * np.cos(y), np.sin(x + y), np.cos(2 * x - y)]
    return Image.fromarray(np.uint8(np.stack(planes, -1) * 100 + 128))


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff"]
)
def test_damaged_exif_data_is_ignored(exif: bytes) -> None:
    image = rotate_for_storage(1)[0]
    assert upright(read_pixels(encode(image, "PNG", exif=exif))) == STORED[1]


# Arrays


@pytest.mark.parametrize(
    ("array", "seen"),
    [
        (GRAY, np.stack([GRAY] * 3, axis=-1)),
        (GRAY[..., None], np.stack([GRAY] * 3, axis=-1)),
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
def test_arrays_are_read_by_their_type_and_shape(array: npt.NDArray[Any], seen: Any) -> None:
    np.testing.assert_array_equal(read_pixels(array), seen)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_every_level_is_kept_by_floats(dtype: str) -> None:
    levels = np.arange(256).reshape(16, 16)
    np.testing.assert_array_equal(read_pixels((levels / 255).astype(dtype))[..., 2], levels)


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
def test_arrays_that_are_no_images_raise_an_error(array: npt.NDArray[Any], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read_image(array)


@pytest.mark.parametrize("source", [None, 3, [1, 2], bytearray(b"x")])
def test_other_objects_raise_an_error(source: Any) -> None:
    with pytest.raises(ImageError, match=f"NumPy array; {type(source).__name__} came"):
        read_image(source)


# Errors


def damage(kind: str) -> bytes:
    data = encode(Image.effect_noise((64, 64), 80).convert("RGB"), kind)
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, 0 bytes"),
        (b"just some words, no image at all", "is no image: its content is none of PNG, JPEG, WEBP"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no image"),
        (b"\x89PNG\r\n\x1a\n", "is no image|damaged"),
        *((damage(kind), "damaged or cut short|no image") for kind in ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP")),
    ],
)
def test_errors_name_the_file_or_the_bytes(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "holiday.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=rf"holiday\.jpg .*({message})"):
        read_image(path)
    with pytest.raises(ImageError, match=rf"^the bytes .*({message})"):
        read_image(content)


def test_a_missing_file_or_a_url_of_another_scheme_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"image 'ftp://x\.org/a\.png': URLs are not read; download the file first"):
        read_image("ftp://x.org/a.png")
    with pytest.raises(ImageError, match=r"gone\.png cannot be read: there is no such file"):
        read_image(tmp_path / "gone.png")


def test_a_folder_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="it is a folder"):
        read_image(str(tmp_path))


def test_a_name_with_a_nul_raises_an_error() -> None:
    with pytest.raises(ImageError, match="null"):
        read_image("a\0b.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_raises_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match=r"pipe\.png .*not an ordinary file"):
        read_image(tmp_path / "pipe.png")


def test_a_file_without_permission_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> BinaryIO:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "secret.png"
    path.touch()
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ImageError, match=r"secret\.png cannot be read: Permission denied"):
        read_image(path)


def test_a_truncated_or_closed_pil_image_raises_an_error() -> None:
    with (
        Image.open(BytesIO(damage("PNG"))) as image,
        pytest.raises(ImageError, match="PIL image is damaged"),
    ):
        read_image(image)
    closed = Image.fromarray(RAMP)
    closed.close()
    with pytest.raises(ImageError, match="the PIL image is damaged or cut short: Operation on closed image"):
        read_image(closed)


def test_an_image_without_pixels_raises_an_error() -> None:
    with pytest.raises(ImageError, match="0 x 4 pixels"):
        read_image(Image.new("RGB", (0, 4)))


@pytest.mark.parametrize(
    "content", [b"words", b"", build_huge_png(60_000), damage("JPEG"), damage("TIFF"), encode_image(RAMP)]
)
def test_no_file_handle_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(content)
    opened: list[Any] = []
    genuine = Path.open

    def spy(self: Path, *args: Any) -> Any:
        opened.append(genuine(self, *args))
        return opened[-1]

    monkeypatch.setattr(Path, "open", spy)
    if content == encode_image(RAMP):
        read_image(path)
    else:
        with pytest.raises(ImageError):
            read_image(path)
    assert [stream.closed for stream in opened] == [True]


# Decompression bombs


@pytest.mark.parametrize("action", ["error", "ignore"])
@pytest.mark.parametrize(("side", "pixels"), [(15_000, "225,000,000"), (60_000, "3,600,000,000")])
def test_decompression_bombs_raise_an_error(tmp_path: Path, action: Any, side: int, pixels: str) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(build_huge_png(side))
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        before = list(warnings.filters)
        message = rf"bomb\.png is too large .*{pixels} pixels, and the limit is 200,000,000.*--max-pixels"
        with pytest.raises(ImageError, match=message):
            read_image(path)
        assert list(warnings.filters) == before
    assert limit == Image.MAX_IMAGE_PIXELS


def test_the_pixel_limit_is_inclusive_and_independent_of_pils(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_image(RAMP)
    for limit in (None, 5, 1):  # PIL would refuse the image, or warn of it
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert read_image(data, max_pixels=20).size == (5, 4)
        with pytest.raises(ImageError, match=r"the bytes is too large.*20 pixels, and the limit is 19"):
            read_image(data, max_pixels=19)
    assert read_image(Image.fromarray(RAMP), max_pixels=1).size == (5, 4)


def test_a_file_of_too_many_bytes_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "sparse.tif"
    with path.open("wb") as file:
        file.write(b"II*\0")
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(
        ImageError, match=r"sparse\.tif cannot be read: it has 2,147,483,649 bytes, and an image file may"
    ):
        read_image(path)


# HEIC

HEIC = b"\0\0\0\x1cftypmif1\0\0\0\0mif1heicmiaf" + bytes(40)


def test_the_error_on_heic_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    path = tmp_path / "phone.heic"
    path.write_bytes(HEIC)
    with pytest.raises(ImageError, match=r"phone\.heic .* needs: pip install 'camtool\[heic\]'"):
        read_image(path)


def test_the_heic_reader_is_registered_only_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[bool] = []

    def register() -> None:
        registered.append(True)
        monkeypatch.setitem(Image.OPEN, "HEIF", (lambda *_: Image.new("RGB", (3, 2), "red"), None))

    monkeypatch.setitem(sys.modules, "pillow_heif", SimpleNamespace(register_heif_opener=register))
    read_image(encode_image(RAMP))
    assert registered == []
    assert (read_pixels(HEIC) == (255, 0, 0)).all()
    assert registered == [True]


def test_a_real_heic_file_is_read() -> None:
    heif = pytest.importorskip("pillow_heif", reason="HEIC is an extra")
    heif.register_heif_opener()
    image, exif = rotate_for_storage(6, block=32)
    data = encode(image, "HEIF", exif=exif.tobytes(), quality=100)
    np.testing.assert_allclose(upright(read_pixels(data)[16::32, 16::32]), STORED[1], atol=0.2)


def test_image_suffixes_are_in_lower_case() -> None:
    assert {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".heic", ".heif"} <= IMAGE_SUFFIXES
    assert all(Path(f"a{suffix}").suffix.lower() == suffix for suffix in IMAGE_SUFFIXES)
    assert not {".txt", ".npy", ".csv", ""} & IMAGE_SUFFIXES


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="the photos are not here")
def test_photos_have_the_pixels_that_pil_reads() -> None:
    paths = sorted(PHOTOS.glob("*.jpg"))[:3]
    assert paths
    for path in paths:
        assert_has_the_pixels_that_pil_reads(path)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_scenes_have_the_pixels_that_pil_reads(tmp_path: Path, suffix: str) -> None:
    assert_has_the_pixels_that_pil_reads(save(unseen(0, size=200), tmp_path / f"scene{suffix}"))


def assert_has_the_pixels_that_pil_reads(path: Path) -> None:
    with Image.open(path) as image:
        np.testing.assert_array_equal(read_pixels(path), np.asarray(image.convert("RGB")))


def test_another_librarys_opener_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ultralytics replaces ``PIL.Image.open`` by a function that asks for a package where PIL knows no format."""

    def refuse(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'pi_heif'")

    monkeypatch.setattr(Image, "open", refuse)
    assert read_image(encode_image(RAMP)).size == (5, 4)
    with pytest.raises(ImageError, match="is no image"):
        read_image(b"just some words")


@pytest.mark.parametrize(
    ("orientation", "turn"), [(1, None), (3, Image.Transpose.ROTATE_180), (6, Image.Transpose.ROTATE_270)]
)
@pytest.mark.parametrize("mode", ["RGB", "P"])
def test_a_photo_of_many_pixels_is_reduced_with_a_note(
    monkeypatch: pytest.MonkeyPatch, mode: str, orientation: int, turn: Image.Transpose | None
) -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (41, 62, 3), np.uint8)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(photo, "PNG", exif=exif)
    expected = photo.convert("RGB").reduce(3)
    expected = expected if turn is None else expected.transpose(turn)
    monkeypatch.setattr(image_files, "_STRIP_PIXELS", 62 * 7)
    image = read_image(data, max_drawn=300)
    assert np.array_equal(image, expected)
    (note,) = get_reading_notes(image)
    assert f"62 x 41 pixels and was reduced to {image.width} x {image.height}" in note
    assert "--max-side 62" in note
    opened = open_image(data, max_drawn=300)
    assert (np.array_equal(opened.values, expected), opened.notes) == (True, (note,))
    whole = read_image(data, max_drawn=300, max_side=62)
    assert (whole.size, get_reading_notes(whole)) == (read_image(data, max_drawn=62 * 41).size, ())


def test_a_jpeg_of_many_pixels_is_decoded_at_a_part_of_its_size() -> None:
    data = encode(Image.new("RGB", (640, 481), "navy"), "JPEG")
    assert read_image(data, max_drawn=100_000, max_memory=4 * 320 * 241).size == (320, 241)
    assert read_image(data, max_drawn=20_000).size == (160, 121)


def test_the_advice_of_a_limit_helps() -> None:
    data = encode(Image.new("RGB", (6000, 6000)), "WEBP", lossless=True, method=0)
    with pytest.raises(ImageError, match=r"limit is 600 MB.*--max-pixels 201000000"):
        read_image(data, max_memory=600_000_000)
    assert read_image(data, max_pixels=201_000_000, max_side=9).size == (9, 9)


def test_sixteen_bits_become_eight_as_by_division() -> None:
    values = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    assert np.array_equal(read_pixels(encode(Image.fromarray(values), "PNG"))[..., 0], np.rint(values / 257))
