"""Heatmaps on the grid of the file that the image came from: NIfTI and GeoTIFF as kinds of ``--save``."""

# ruff: noqa: F401, F811  fixtures of other files are used by name

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest
import rasterio

import camtool
from camtool.runs.executor import run_jobs
from camtool.runs.job_list import plan_run
from camtool.runs.run_folder.resumable_folder import RunStart
from camtool.runs.save_kinds import OutputSettings
from tests.cli.test_commands import camtool_
from tests.helpers.band_nets import BandNet
from tests.helpers.medical_files import build_affine, encode_nifti
from tests.inputs.formats.test_tiff_stacks import TRANSFORM, write_scene
from tests.runs.photos import write_photo
from tests.runs.run_folder.test_resumable_folder import read_files
from tests.runs.test_executor import read_manifest

VOLUME = np.random.default_rng(0).integers(0, 900, (20, 30, 40)).astype(np.int16)
AFFINE = build_affine("LPI", (0.5, 2, 3))
READING = {"slice": 5, "percentiles": (2, 98)}


def start(paths: Path, out: Path, *kinds: str, model: object = None, **output: object) -> list[object]:
    """Run over files, two in a batch; continue the run that is in the folder."""
    reading = {} if model else {"reading": output.pop("reading", READING)}
    explainer = camtool.Explainer(model or camtool.load("demo"), **reading)
    settings = OutputSettings(out, kinds or ("nifti",), **output)
    jobs = plan_run([str(paths)], out=out).jobs
    return list(run_jobs(explainer, jobs, None, settings, batch_size=2, workers=0, start=RunStart({})))


@pytest.fixture
def brains(tmp_path) -> Path:
    """A folder with three volumes whose axes run to the left, the back and the feet."""
    (tmp_path / "brains").mkdir()
    for name in ("a.nii.gz", "b.nii.gz", "c.nii"):
        data = encode_nifti(VOLUME, AFFINE)
        path = tmp_path / "brains" / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return tmp_path / "brains"


@pytest.mark.parametrize("max_side", [None, 15])
def test_a_slice_of_a_volume_gives_a_volume_with_the_affine(tmp_path, brains, max_side):
    start(brains, tmp_path / "out", "nifti", "npz", max_side=max_side)
    lines = read_manifest(tmp_path / "out")
    assert [Path(line["files"]["nifti"]).name.partition(".")[0] for line in lines] == ["a", "b", "c"]
    assert all(line["files"]["nifti"].endswith(".heatmap.nii.gz") for line in lines)
    stored = nibabel.load(tmp_path / "out" / lines[0]["files"]["nifti"])
    np.testing.assert_array_equal(stored.affine, AFFINE)
    assert stored.shape == VOLUME.shape
    values = stored.get_fdata()
    # Canonical slice 5 from the feet is slice 34 of a file that runs to the feet.
    assert np.flatnonzero(values.any((0, 1))).tolist() == [34]
    if max_side is None:
        heat = np.load(tmp_path / "out" / lines[0]["files"]["npz"])["heatmap"] / 255
        # Rows of the picture run to the back, columns to the patient's left: as the axes of the file.
        np.testing.assert_allclose(values[:, :, 34].T, heat, atol=1 / 500)


def test_a_model_of_volumes_gives_a_whole_volume(tmp_path, brains):
    start(brains, tmp_path / "out", "overlay", "nifti", model=BandNet(1, axes=3))
    stored = nibabel.load(tmp_path / "out" / read_manifest(tmp_path / "out")[2]["files"]["nifti"])
    np.testing.assert_array_equal(stored.affine, AFFINE)
    assert (stored.shape, stored.get_fdata().max()) == (VOLUME.shape, 1)


def test_a_scene_gives_a_tiff_at_the_same_place(tmp_path):
    (tmp_path / "scenes").mkdir()
    write_scene(tmp_path / "scenes" / "a.tif")
    start(tmp_path / "scenes", tmp_path / "out", "geotiff", "npz", reading={"bands": (4, 3, 2)})
    (line,) = read_manifest(tmp_path / "out")
    assert line["files"]["geotiff"].endswith(".heatmap.tif")
    with rasterio.open(tmp_path / "out" / line["files"]["geotiff"]) as file:
        assert (file.crs, file.transform, file.dtypes) == ("EPSG:32633", TRANSFORM, ("float32",))
        heat = np.load(tmp_path / "out" / line["files"]["npz"])["heatmap"] / 255
        np.testing.assert_allclose(file.read(1), heat, atol=1 / 500)


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("nifti", "photo.png", "it is no NIfTI file"),
        ("nifti", "scene.tif", "it is no NIfTI file"),
        ("geotiff", "photo.png", "it is no TIFF file"),
        ("geotiff", "brain.nii", "it is no TIFF file"),
        ("geotiff", "plain.tif", "TIFF without a coordinate reference system"),
    ],
)
def test_a_file_without_such_a_place_is_a_failure_and_writes_nothing(tmp_path, kind, name, reason):
    source = write_photo(tmp_path / "in" / "photo.png")
    write_photo(tmp_path / "in" / "plain.tif")
    write_scene(tmp_path / "in" / "scene.tif", np.full((1, 20, 30), 99, np.uint8))
    (tmp_path / "in" / "brain.nii").write_bytes(encode_nifti(VOLUME[:, :, :1]))
    (failure,) = start(source.with_name(name), tmp_path / "out", "overlay", kind, reading={})
    assert failure.reason.startswith(f"{source.with_name(name)}: ")
    assert reason in failure.reason
    assert f"leave {kind} out of --save" in failure.reason
    assert not [*(tmp_path / "out").glob("*.png")]


@pytest.mark.parametrize("lost", ["file", "run"])
def test_a_run_that_is_continued_writes_the_same_bytes(tmp_path, brains, monkeypatch, lost):
    start(brains, tmp_path / "out")
    whole = read_files(tmp_path / "out")
    monkeypatch.setattr("time.time", lambda: 1e9)  # another day
    if lost == "file":
        (tmp_path / "out" / read_manifest(tmp_path / "out")[1]["files"]["nifti"]).unlink()
    out = tmp_path / ("out" if lost == "file" else "again")
    start(brains, out)
    assert read_files(out) == whole


def test_the_command_saves_both_kinds_of_numbers(camtool_, brains):
    result = camtool_("brains/a.nii.gz", "--model", "demo", "--slice", "5", "--format", "npz", "--save", "nifti")
    assert result.code == 0, result.err
    assert sorted(path.suffix for path in Path("out").glob("a.gradcam.*")) == [".gz", ".npz"]
    refused = camtool_("brains/a.nii.gz", "--model", "demo", "--save", "nifty")
    assert (refused.code, "Did you mean 'nifti'" in refused.err) == (2, True)


def test_the_report_of_a_scene_of_many_bands_prints_nothing_of_pillow(camtool_, tmp_path, caplog):
    write_scene(tmp_path / "scene.tif")
    options = ("--model", "demo", "--bands", "4,3,2", "--percentiles", "2,98", "--save", "overlay,geotiff")
    assert camtool_("scene.tif", *options).code == 0
    assert (tmp_path / "out" / "index.html").exists()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("PIL")] == []
