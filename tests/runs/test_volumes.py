"""Folders of DICOM slices on the command line: photos of their own, or with ``--volume`` one volume each."""

# ruff: noqa: F401, F811  fixtures of other files are used by name

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import camtool
from camtool.runs.executor import run_jobs
from camtool.runs.job_list import find_series, plan_run
from camtool.runs.run_folder.resumable_folder import RunStart
from camtool.runs.save_kinds import OutputSettings
from tests.cli.test_commands import camtool_, read_lines
from tests.helpers.band_nets import BandNet
from tests.helpers.medical_files import build_dicom, encode_dicom, encode_nifti
from tests.runs.photos import write_photo
from tests.runs.run_folder.test_resumable_folder import read_files

ORDER = [3, 0, 2, 1]
"""The place of each file, by name."""


def write_slices(folder: Path, *, series: str = "1.2", count: int = 4) -> Path:
    """Write slices of one level each, whose names are in another order than their places."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, place in enumerate(ORDER[:count]):
        pixels = np.full((40, 50), 200 * place, np.int16)
        pixels[10:20, 10:20] += 50
        dataset = build_dicom(pixels, WindowCenter=400, WindowWidth=800, SeriesInstanceUID=series)
        dataset.ImageOrientationPatient, dataset.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 2 * place]
        (folder / f"IM{name}").write_bytes(encode_dicom(dataset))
    return folder


def list_jobs(*paths: Path | str, **options: bool) -> dict[str, str]:
    return {str(job.source): job.stem.as_posix() for job in plan_run([*map(str, paths)], **options).jobs}


def start(paths: Path, out: Path, model: object = None, **reading: object) -> list[object]:
    explainer = camtool.Explainer(model or BandNet(1, axes=3), reading=reading)
    jobs = plan_run([str(paths)], out=out, recursive=True, as_volumes=True).jobs
    settings = OutputSettings(out, ("overlay", "raw"))
    return list(run_jobs(explainer, jobs, None, settings, workers=0, start=RunStart({})))


def test_each_folder_of_slices_is_one_job(tmp_path):
    a, b = write_slices(tmp_path / "in" / "pat.1" / "ct"), write_slices(tmp_path / "in" / "pat.2")
    (tmp_path / "in" / "brain.nii").write_bytes(encode_nifti(np.zeros((4, 4, 4), np.int16)))
    photo = write_photo(tmp_path / "in" / "photo.png")
    brain = str(tmp_path / "in" / "brain.nii")
    found = list_jobs(tmp_path / "in", recursive=True, as_volumes=True)
    assert found == {brain: "brain", str(a): "pat.1/ct", str(b): "pat.2"}
    plan = plan_run([str(tmp_path / "in")], recursive=True, as_volumes=True)
    assert [(each.path, each.reason) for each in plan.skipped] == [(photo, "an image, and no volume")]
    assert len(list_jobs(tmp_path / "in", recursive=True)) == 10
    assert list_jobs(a, as_volumes=True) == {str(a): "ct"}


def test_the_working_directory_may_be_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(write_slices(tmp_path / "ct"))
    assert list_jobs(".", as_volumes=True) == {".": "ct"}
    assert plan_run(["."], as_volumes=True).jobs[0].name == "ct"


def test_slices_one_by_one_are_refused(tmp_path):
    folder = write_slices(tmp_path / "ct")
    for path in (folder / "IM1", folder / "IM*"):
        with pytest.raises(camtool.ImageError, match=r"IM\d is a DICOM file.*give the folder of the slices.*ct"):
            list_jobs(path, as_volumes=True)
    write_photo(tmp_path / "photos" / "a.png")
    with pytest.raises(camtool.ImageError, match=r"no volumes \(folders of DICOM slices"):
        list_jobs(tmp_path / "photos", as_volumes=True)


def test_a_volume_has_the_order_of_python(tmp_path):
    folder = write_slices(tmp_path / "in" / "ct")
    model = BandNet(1, axes=3)
    (success,) = start(tmp_path / "in", tmp_path / "out", model)
    raw = np.load(tmp_path / "out" / success.lines[0].files["raw"])
    wanted = camtool.explain(model, camtool.open_image(folder))
    assert raw.shape == (4, 40, 50)
    np.testing.assert_allclose(raw, wanted.raw, rtol=1e-5, atol=1e-6)
    by_name = [camtool.open_image(path).values[..., 0] for path in sorted(folder.iterdir())]
    other = camtool.explain(model, np.stack(by_name).astype(np.float32)[None] / 800, kind="volume")
    assert not np.allclose(raw, other.raw, rtol=1e-2)


def test_a_model_of_photos_gets_the_chosen_slice_by_its_place(tmp_path):
    write_slices(tmp_path / "in" / "ct")
    (failure,) = start(tmp_path / "in", tmp_path / "none", camtool.load("demo"))
    assert "holds 4 slices, and the model takes one image" in failure.reason
    (success,) = start(tmp_path / "in", tmp_path / "out", camtool.load("demo"), slice="middle")
    wanted = camtool.explain(camtool.load("demo"), tmp_path / "in" / "ct" / "IM2")
    assert success.lines[0].score == pytest.approx(wanted.score, rel=1e-5)


def test_a_folder_of_two_series_is_a_failure(tmp_path):
    folder = write_slices(tmp_path / "in" / "ct")
    write_slices(tmp_path / "other", series="1.3", count=2)
    for path in (tmp_path / "other").iterdir():
        shutil.copy(path, folder / f"x{path.name}")
    (failure,) = start(tmp_path / "in", tmp_path / "out")
    assert "holds 2 DICOM series, and a volume is one" in failure.reason


@pytest.mark.parametrize("change", ["none", "rewritten", "removed"])
def test_a_volume_is_explained_again_if_a_slice_has_changed(tmp_path, change):
    folder, out = write_slices(tmp_path / "in" / "ct"), tmp_path / "out"
    start(tmp_path / "in", out)
    before = read_files(out)
    if change == "rewritten":  # the folder itself keeps its time and size
        data = bytearray((folder / "IM0").read_bytes())
        data[-1000:] = bytes(1000)
        (folder / "IM0").write_bytes(data)
    elif change == "removed":
        (folder / "IM1").unlink()
    (outcome,) = start(tmp_path / "in", out)
    assert outcome.is_recorded == (change == "none")
    assert (read_files(out) == before) == (change == "none")


def test_a_series_is_found_among_photos(tmp_path):
    folder = write_slices(tmp_path / "ct")
    photo = write_photo(tmp_path / "a" / "a.png")
    assert find_series([photo, *sorted(folder.iterdir())]) == (folder, 4)
    assert find_series([photo, write_photo(tmp_path / "a" / "b.png"), "https://x.org/a.dcm"]) is None
    shutil.copy(folder / "IM1", tmp_path / "a" / "one")
    write_slices(tmp_path / "a", series="1.9", count=1)
    assert find_series([tmp_path / "a" / "IM0", tmp_path / "a" / "one"]) is None


def test_the_command_says_what_becomes_of_a_series(camtool_, tmp_path):
    write_slices(tmp_path / "ct")
    photos = camtool_("ct", "--model", "demo", "--out", "photos")
    assert photos.code == 0
    (note,) = photos.notes
    assert note.startswith(
        "ct holds slices of a DICOM series. Each of the 4 files is explained as a photo of its own; "
    )
    assert "--volume" in note
    volume = camtool_("ct", "--model", "demo", "--volume", "--slice", "middle")
    assert volume.code == 0
    assert volume.notes == ["1 folder of DICOM slices, each read as one volume, sorted by position."]
    assert [line["image"] for line in read_lines()] == ["ct"]
    assert camtool_("ct", "--model", "demo", "--volume", "--slice", "middle").out.startswith("Nothing to do")
    assert camtool_("ct", "--model", "demo", "--quiet", "--out", "quiet").notes == []
