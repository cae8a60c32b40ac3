"""Hostile inputs: each is read as a browser shows it, or fails with a reason; none stops a run."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from camtool.errors import ImageError
from camtool.inputs import image_files
from camtool.inputs.image_files import read_image
from camtool.runs.run_folder.hashes import hash_photo
from tests.cli.test_commands import start_process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="names, pipes and sockets of POSIX")
if os.name == "posix":
    from tests.inputs.hostile_images import CASES, LABEL, PHOTO, SIZE, build_chunk, build_folder, build_png_header


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


READ_ALL = """
import resource, sys, warnings
from pathlib import Path
from camtool.errors import ImageError
from camtool.inputs.image_files import read_image
warnings.simplefilter("ignore")
for path in Path(sys.argv[1]).iterdir():
    if path.is_file():
        try:
            read_image(path)
        except ImageError:
            pass
status = Path("/proc/self/status")
if status.exists():  # ru_maxrss begins with the memory of the process that started this one
    print(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")))
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_no_file_takes_more_than_a_gigabyte_and_a_half(folder: Path) -> None:
    large = build_png_header(14_000, 14_000) + build_chunk(b"IDAT", zlib.compress(bytes(14_000 * 42_001), 1))
    (folder / "largest.png").write_bytes(large + build_chunk(b"IEND", b""))
    done = subprocess.run([sys.executable, "-c", READ_ALL, folder], check=True, capture_output=True, text=True)
    (folder / "largest.png").unlink()
    assert int(done.stdout) < 1.5e9 / 1024


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_is_explained_has_the_label_of_the_plain_photo(run) -> None:
    whole = [name for name in READ if CASES[name].pixels.shape[:2] == (SIZE, SIZE)]
    assert {run["explained"][name] for name in whole if "one-bit" not in name} == {LABEL}


@pytest.mark.slow
def test_a_run_over_hostile_names_keeps_to_its_folder_and_to_one_line(run, folder: Path) -> None:
    assert run["end"]["err"] == ""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", run["end"]["out"])
    place = Path(run["end"]["place"])
    lines = (place / "out" / "explanations.jsonl").read_text(encoding="utf-8").splitlines()
    files = [file for line in lines for file in json.loads(line)["files"].values()]
    assert len(lines) == len({*files}) == len(READ)
    assert all((place / "out" / file).is_file() for file in files)
    assert [*place.iterdir()] == [place / "out"]
