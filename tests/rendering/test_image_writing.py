"""Image writing: formats, quality, and files that are written whole or not at all."""

from __future__ import annotations

import base64
import os
import stat
import threading
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from camtool.errors import ImageError
from camtool.inputs.image_files import read_image
from camtool.rendering.image_writing import encode_image, open_atomically, write_image

RAMP = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3) * 4
GRAY = np.arange(20, dtype=np.uint8).reshape(4, 5) * 12


@pytest.mark.parametrize("array", [RAMP, GRAY, RAMP[::2, ::-1]])
def test_a_png_keeps_all_pixels(tmp_path: Path, array: npt.NDArray[np.uint8]) -> None:
    path = write_image(tmp_path / "new" / "folders" / "map.PNG", array)
    assert path == tmp_path / "new" / "folders" / "map.PNG"
    with Image.open(path) as image:
        np.testing.assert_array_equal(np.asarray(image), array)


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".png", "PNG"), (".jpg", "JPEG"), (".jpeg", "JPEG"), (".webp", "WEBP"), (".JPG", "JPEG")],
)
def test_the_suffix_chooses_the_format(tmp_path: Path, suffix: str, kind: str) -> None:
    path = write_image(str(tmp_path / f"map{suffix}"), RAMP)
    assert path.read_bytes() == encode_image(RAMP, suffix)
    with Image.open(path) as image:
        assert (image.format, image.size) == (kind, (5, 4))


def test_a_pdf_is_one_page_with_the_pixels(tmp_path: Path) -> None:
    pixels = np.full((64, 96, 3), (200, 40, 90), np.uint8)
    content = write_image(tmp_path / "map.pdf", pixels).read_bytes()
    assert content.startswith(b"%PDF")
    assert content.count(b"/Type /Page\n") == 1
    picture = content[content.index(b"\xff\xd8") : content.rindex(b"\xff\xd9") + 2]
    assert np.abs(np.asarray(Image.open(BytesIO(picture))).astype(int) - pixels).max() < 5


def test_an_svg_shows_the_pixels_at_their_size(tmp_path: Path) -> None:
    root = ElementTree.parse(write_image(tmp_path / "a.SVG", RAMP)).getroot()
    (image,) = root
    assert [(element.get("height"), element.get("width")) for element in (root, image)] == [("4", "5")] * 2
    data = base64.b64decode(str(image.get("href")).removeprefix("data:image/png;base64,"))
    assert np.array_equal(np.asarray(Image.open(BytesIO(data))), RAMP)


def test_a_jpeg_keeps_the_color_of_single_columns() -> None:
    stripes = np.zeros((16, 16, 3), np.uint8)
    stripes[:, ::2, 0] = 255
    stripes[:, 1::2, 2] = 255
    found = np.asarray(read_image(encode_image(stripes, ".jpg"))).astype(int)
    assert np.abs(found - stripes).max() < 40  # halved color resolution is off by more than 100


def test_a_higher_quality_makes_larger_files() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    for suffix in (".jpg", ".webp"):
        sizes = [len(encode_image(noise, suffix, quality=quality)) for quality in (30, 92, 100)]
        assert sizes == sorted(set(sizes))
        assert len(encode_image(noise, suffix)) == sizes[1]


@pytest.mark.parametrize(
    ("name", "array", "quality", "message"),
    [
        ("a.xyz", RAMP, 92, r"suffix must be .*\.png, \.jpg, \.jpeg, \.webp, \.pdf, \.svg, got '\.xyz'"),
        ("a", RAMP, 92, "suffix must be .*, got ''"),
        ("a.png", RAMP / 255, 92, r"pixels must be .* uint8, got float64 of shape \(4, 5, 3\)"),
        ("a.png", RAMP[..., :2], 92, r"shape \(4, 5, 2\)"),
        ("a.png", RAMP[:0], 92, r"shape \(0, 5, 3\)"),
        ("a.png", "words", 92, "pixels must be .*, got str"),
        ("a.jpg", RAMP, 0, "quality must be from 1 to 100, got 0"),
        ("a.jpg", RAMP, 101, "quality must be from 1 to 100, got 101"),
        ("a.webp", np.zeros((1, 17_000), np.uint8), 92, "pixels of size 1 x 17000 cannot be written as WEBP"),
    ],
)
def test_invalid_arguments_write_nothing(tmp_path: Path, name: str, array: Any, quality: int, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        write_image(tmp_path / name, array, quality=quality)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", [b"old", None])
def test_an_interrupted_write_changes_nothing(tmp_path: Path, fault: type[BaseException], old: bytes | None) -> None:
    path = tmp_path / "data.npy"
    if old is not None:
        path.write_bytes(old)
    streams: list[BinaryIO] = []

    def write_half() -> None:
        with open_atomically(path) as stream:
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
    with pytest.raises(OSError, match="taken"), open_atomically(tmp_path / "taken") as stream:
        stream.write(b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_the_old_file_stays_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"old")
    with open_atomically(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_bytes() == b"old"
        assert len(list(tmp_path.iterdir())) == 2
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="no umask here")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_the_file_has_the_permissions_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        path = write_image(tmp_path / "map.png", RAMP)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.name == "nt", reason="links need rights here")
def test_writing_to_a_link_keeps_the_link(tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere" / "target.png", tmp_path / "link.png"
    target.parent.mkdir()
    link.symlink_to(target)
    write_image(link, RAMP)
    assert link.is_symlink()
    np.testing.assert_array_equal(np.asarray(read_image(target)), RAMP)


def test_threads_that_write_one_path_do_not_mix_contents(tmp_path: Path) -> None:
    path = tmp_path / "shared.bin"
    contents = [bytes([letter]) * 100_000 for letter in b"abcdefgh"]

    def write_often(content: bytes) -> None:
        for _ in range(5):
            with open_atomically(path) as stream:
                stream.write(content)

    threads = [threading.Thread(target=write_often, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_name_of_the_largest_length_is_written(tmp_path: Path) -> None:
    path = write_image(tmp_path / ("n" * 251 + ".png"), RAMP)
    assert list(tmp_path.iterdir()) == [path]
