"""Hostile inputs: each is read as a browser shows it, or fails with a reason; none stops a run."""

from __future__ import annotations

import io
import json
import os
import re
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from camtool.errors import ImageError
from camtool.inputs import image_files
from camtool.inputs.formats.reading_options import RUN_MEMORY
from camtool.inputs.image_files import read_image
from camtool.runs.run_folder.hashes import hash_photo
from tests.cli.test_commands import drop_progress, start_process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="names, pipes and sockets of POSIX")
if os.name == "posix":
    from tests.inputs.hostile_images import (
        CASES,
        LABEL,
        PHOTO,
        SIZE,
        build_chunk,
        build_folder,
        build_png_header,
        encode,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return build_folder(tmp_path_factory.mktemp("hostile") / "photos")


READ = [name for name, case in CASES.items() if case.pixels is not None]
FAILED = [name for name, case in CASES.items() if case.failure is not None]


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 120
    assert min(len(READ), len(FAILED)) >= 40


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # the command line hides it
@pytest.mark.parametrize("name", READ, ids=ascii)
def test_an_image_is_read_as_the_plain_photo(folder: Path, name: str) -> None:
    pixels, expected = np.asarray(read_image(folder / name)), CASES[name].pixels
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(float) - expected).mean() <= CASES[name].tolerance


@pytest.mark.parametrize("name", FAILED, ids=ascii)
def test_what_is_no_image_fails_with_a_reason(folder: Path, name: str) -> None:
    with pytest.raises(ImageError, match=CASES[name].failure) as failed:
        read_image(folder / name)
    assert name in str(failed.value)


def write_png(path: Path, width: int, height: int) -> None:
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(3 * width + 1)) for _ in range(height)) + packer.flush()
    path.write_bytes(build_png_header(width, height) + build_chunk(b"IDAT", rows) + build_chunk(b"IEND", b""))


def run_and_watch(photos: Path) -> tuple[dict[str, Any], int]:
    """Explain a folder by the real command; return its summary and its largest memory in KiB."""
    command = ("run", photos, "--model", "demo", "--batch-size", 1, "--workers", 0, "--json")
    process, peak = start_process(*command, cwd=photos.parent, is_fresh=True), 0
    while process.poll() is None:  # ru_maxrss would begin with the memory of this process
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        peak = max(peak, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
        time.sleep(0.05)
    return json.loads(process.communicate()[0]), peak


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the largest memory of a process on Linux")
def test_no_file_adds_more_to_the_memory_of_a_run_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # each thread has memory of its own
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    small, large, others = (tmp_path / name / "photos" for name in ("small", "large", "others"))
    for folder in (small, large, others):
        folder.mkdir(parents=True)
    write_png(small / "photo.png", 64, 64)
    _, without = run_and_watch(small)  # libraries and the model
    most = without + RUN_MEMORY / 1024

    write_png(large / "reduced.png", 11_300, 11_300)  # the largest that is read
    summary, peak = run_and_watch(large)
    assert len(summary["explained"]) == 1
    assert without + 200 * 1024 < peak < most  # it was decoded, reduced

    (others / "refused.png").write_bytes(build_png_header(14_000, 14_000) + build_chunk(b"IDAT", b"x\x9c"))
    write_png(others / "long.png", 1, 60_000)
    frame = encode(Image.new("P", (8, 8)), "GIF")
    start = frame.index(b",")
    (others / "frames.gif").write_bytes(frame[:start] + 1_000_000 * frame[start:-1] + b";")
    summary, peak = run_and_watch(others)
    assert len(summary["explained"]) == 2
    (failed,) = summary["failed"]
    assert re.search(r"refused\.png is too large .* limit is 640 MB.*--max-pixels 218000000", failed["reason"])
    assert peak < most


def test_a_file_that_is_too_large_is_not_hashed(folder: Path) -> None:
    assert hash_photo(folder / "sparse.png") is None


def test_scans_of_a_jpeg_take_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    PHOTO.save(buffer, "JPEG", progressive=True)
    whole = buffer.getvalue()
    last = whole[whole.rindex(b"\xff\xda") : -2]
    monkeypatch.setattr(image_files, "_SCANNED_PIXELS", 0)
    read_image(whole)
    with pytest.raises(ImageError, match="it has more than 30 scans"):
        read_image(whole[:-2] + 30 * last + whole[-2:])


def test_the_limit_of_memory_can_be_set() -> None:
    buffer = io.BytesIO()
    PHOTO.save(buffer, "WEBP")
    needed = PHOTO.width * PHOTO.height * 17
    assert read_image(buffer.getvalue(), max_memory=needed).size == PHOTO.size
    with pytest.raises(ImageError, match="of memory, and the limit is 0 MB"):
        read_image(buffer.getvalue(), max_memory=needed - 1)


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory) -> dict[str, dict[str, str]]:
    """Return what one run over the folder says about each input, and how it ended."""
    place = tmp_path_factory.mktemp("run")
    process = start_process("run", folder, "--model", "demo", "--json", cwd=place)
    out, err = process.communicate(timeout=300)
    summary = json.loads(out)
    said = {kind: {} for kind in ("explained", "failed", "skipped")}
    for kind, name, value in (
        ("explained", "image", "label"),
        ("failed", "image", "reason"),
        ("skipped", "path", "reason"),
    ):
        for each in summary[kind]:
            assert Path(each[name]).name not in said[kind], "each input is listed once"
            said[kind][Path(each[name]).name] = each[value]
    return {**said, "end": {"code": str(process.returncode), "err": err, "out": out, "place": str(place)}}


def test_a_run_explains_fails_or_skips_each_input(run) -> None:
    assert run["end"]["code"] == "1"
    assert run["explained"].keys() == {*READ}
    assert run["failed"].keys() == {*FAILED}
    assert run["skipped"].keys() == {name for name, case in CASES.items() if case.skipped is not None}
    wrong = {
        name: reason
        for kind, pattern in (("failed", "failure"), ("skipped", "skipped"))
        for name, reason in run[kind].items()
        if not re.search(getattr(CASES[name], pattern), reason)
    }
    assert wrong == {}


def test_what_is_explained_has_the_label_of_the_plain_photo(run) -> None:
    whole = [name for name in READ if CASES[name].pixels.shape[:2] == (SIZE, SIZE)]
    assert {run["explained"][name] for name in whole if "one-bit" not in name} == {LABEL}


def test_a_run_over_hostile_names_keeps_to_its_folder_and_to_one_line(run, folder: Path) -> None:
    assert drop_progress(run["end"]["err"]) == ""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", run["end"]["out"])
    place = Path(run["end"]["place"])
    lines = (place / "out" / "explanations.jsonl").read_text(encoding="utf-8").splitlines()
    files = [file for line in lines for file in json.loads(line)["files"].values()]
    assert len(lines) == len({*files}) == len(READ)
    assert all((place / "out" / file).is_file() for file in files)
    assert [*place.iterdir()] == [place / "out"]
