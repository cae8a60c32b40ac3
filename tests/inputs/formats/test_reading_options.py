"""Reading options: names, values, files to which they do not apply, and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import camtool
from camtool.cli import app
from camtool.cli.options.photo_options import PixelOptions
from camtool.errors import CamtoolError, ImageError
from camtool.inputs.formats.format_table import FORMATS, is_dicom_file
from camtool.inputs.formats.reading_options import MAX_DRAWN, RUN_MEMORY, ReadingOptions
from camtool.inputs.image_files import has_image_suffix
from camtool.runs.executor import run_jobs
from camtool.runs.job_list import plan_run
from camtool.runs.result_writer import Success
from camtool.runs.save_kinds import OutputSettings
from tests.helpers.band_nets import BandNet
from tests.helpers.medical_files import build_dicom, encode_dicom, encode_nifti
from tests.inputs.test_image_bands import MULTI_BAND


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(ImageError, match=r"'band' is unknown. Known options: bands, window, .*Did you mean 'bands'"):
        camtool.open_image("a.tif", band=(1, 2, 3))
    with pytest.raises(ImageError, match="must be a dictionary"):
        camtool.Explainer(BandNet(), reading=(4, 3, 2))  # type: ignore[arg-type]


def test_an_option_that_is_given_to_explain_itself_names_the_right_place() -> None:
    with pytest.raises(CamtoolError, match=r"bands= is an option of reading files: reading=\{'bands': \.\.\.\}"):
        camtool.explain(BandNet(), "a.tif", bands=(4, 3, 2))  # type: ignore[call-overload]
    with pytest.raises(ImageError, match="a path or the bytes of a file are needed; ndarray came"):
        camtool.open_image(np.zeros((4, 4, 3), np.uint8))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 40}, "window=40 must be two numbers, e.g. window=.40, 400"),
        ({"window": (40, 0)}, "width must be a finite number above 0"),
        ({"window": (float("nan"), 1)}, "finite"),
        ({"percentiles": (98, 2)}, "must rise within 0 to 100"),
        ({"percentiles": (2, 101)}, "must rise within 0 to 100"),
        ({"percentiles": (2, 98), "window": (40, 400)}, "give one of them"),
        ({"slice": "first"}, "must be a whole number or 'middle'"),
        ({"slice": True}, "must be a whole number"),
        ({"frame": 0.5}, "must be a whole number"),
        ({"axis": "axal"}, "Did you mean 'axial'"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"bands": [True]}, "must be band numbers"),
    ],
)
def test_values_that_are_not_allowed_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        ReadingOptions.from_user(options)


def test_numbers_of_numpy_are_numbers() -> None:
    options = ReadingOptions.from_user(
        {"bands": np.array([3, 2, 1]).tolist(), "slice": np.int64(3), "frame": np.int8(1)}
    )
    assert (options.bands, options.slice, options.frame) == ((3, 2, 1), 3, 1)


def test_options_that_do_not_apply_to_a_photo_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    Image.new("RGB", (9, 8), "red").save(path)
    with pytest.raises(ImageError, match=r"photo\.jpg: window= does not apply to this file"):
        camtool.open_image(path, window=(40, 400))
    with pytest.raises(ImageError, match="window= does not apply"):
        camtool.explain(BandNet(), path, reading={"window": (40, 400)})


def test_a_photo_can_be_opened_too(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3)).save(path)
    image = camtool.open_image(path)
    np.testing.assert_array_equal(image.values, np.arange(60).reshape(4, 5, 3))
    model = BandNet()
    result, direct = camtool.explain(model, image), camtool.explain(model, path)
    np.testing.assert_array_equal(result.photo, direct.photo)
    np.testing.assert_array_equal(result.heatmap, direct.heatmap)


def test_the_method_is_recommended_on_images_that_are_read_with_the_options(tmp_path: Path) -> None:
    path = tmp_path / "scene.tif"
    path.write_bytes(MULTI_BAND["13 by pixel"][1])
    explainer = camtool.Explainer(camtool.load("demo"), "auto", reading={"bands": (4, 3, 2)})
    assert explainer(path).photo.shape == (20, 30, 3)


def test_every_format_recognizes_its_files_and_no_others() -> None:
    samples = {
        "DICOM": encode_dicom(build_dicom(np.zeros((2, 2), np.uint8))),
        "NIfTI": encode_nifti(np.zeros((2, 2, 2), np.float32)),
        "TIFF": MULTI_BAND["13 by pixel"][1],
        "PNG": b"\x89PNG\r\n\x1a\n",
    }
    assert samples.keys() == {each.name for each in FORMATS}
    for name, data in samples.items():
        assert [each.name for each in FORMATS if each.matches(data)] == [name]
    assert not [each for each in FORMATS if each.matches(b"\xff\xd8\xff\xe0 a JPEG") or each.matches(b"\x1f\x8bgzip")]


def test_files_of_scanners_count_as_images(tmp_path: Path) -> None:
    data = encode_dicom(build_dicom(np.zeros((2, 2), np.uint8)))
    for name in ("IM0001", "1.2.840.113", "DICOMDIR", "notes.txt"):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "README").write_text("no image")
    assert [each.name for each in sorted(tmp_path.iterdir()) if is_dicom_file(each)] == ["1.2.840.113", "IM0001"]
    assert has_image_suffix("brain.NII.GZ")
    assert not has_image_suffix("notes.gz")


# --------------------------------------------------------------------------------------------------- the command line


def run(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["camtool", "run", *arguments])
        with pytest.raises(SystemExit) as exit_code:
            app.main()
    return int(exit_code.value.code or 0)


def write_files(folder: Path) -> Path:
    folder.mkdir()
    frames = np.random.default_rng(0).integers(0, 1000, (3, 40, 50), dtype=np.uint16)
    for index, frame in enumerate(frames):
        (folder / f"IM{index}").write_bytes(encode_dicom(build_dicom(frame, WindowCenter=500, WindowWidth=1000)))
    (folder / "volume.nii").write_bytes(encode_nifti(np.arange(24000, dtype=np.int16).reshape(20, 30, 40)))
    return folder


def test_a_folder_of_medical_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = write_files(tmp_path / "scans"), tmp_path / "out"
    code = run(str(folder), "--model", "demo", "--out", str(out), "--window", "400,300", "--slice", "0")
    assert code == 0
    written = {path.name for path in out.glob("*.png")}
    assert len(written) == 4
    assert run(str(folder), "--model", "demo", "--out", str(tmp_path / "other")) == 1
    printed = capsys.readouterr()
    assert "volume.nii holds 40 axial slices" in " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize("max_side", [None, 20])
def test_a_run_of_models_of_many_bands_and_of_volumes(tmp_path: Path, max_side: int | None) -> None:
    (tmp_path / "scene.tif").write_bytes(MULTI_BAND["13 by pixel"][1])
    (tmp_path / "brain.nii").write_bytes(encode_nifti(np.arange(24000, dtype=np.int16).reshape(20, 30, 40)))
    jobs = {job.source.name: job for job in plan_run([str(tmp_path)]).jobs}
    for model, name, shape in ((BandNet(13), "scene.tif", (20, 30)), (BandNet(1, axes=3), "brain.nii", (40, 30, 20))):
        output = OutputSettings(tmp_path / f"out {name}", ("overlay", "raw"), max_side=max_side)
        (outcome,) = run_jobs(camtool.Explainer(model), [jobs[name]], None, output)
        assert isinstance(outcome, Success), outcome
        assert np.load(output.folder / outcome.lines[0].files["raw"]).shape == shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bands", "4;3"], "--bands '4;3' is not a list of numbers; give e.g. --bands 4,3,2"),
        (["--window", "40"], "must be two numbers"),
        (["--slice", "last"], "--slice 'last' is not a list of numbers"),
        (["--percentiles", "98,2"], "must rise"),
    ],
)
def test_wrong_options_end_the_command(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(write_files(tmp_path / "scans")), "--model", "demo", "--out", str(tmp_path / "out"), *arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_texts_of_the_command_line_become_options() -> None:
    limits = {"max_pixels": 10**8, "max_memory": RUN_MEMORY, "max_drawn": MAX_DRAWN}
    assert PixelOptions(max_pixels=10**8).parse() == limits
    raised = PixelOptions(max_pixels=10**9).parse()
    assert raised == {"max_pixels": 10**9, "max_drawn": MAX_DRAWN}
    given = PixelOptions("4,3,2", "40,400", slice="middle", axis="coronal", frame=1, max_pixels=10**8)
    assert given.parse() == {
        "bands": (4, 3, 2),
        "window": (40, 400),
        "slice": "middle",
        "axis": "coronal",
        "frame": 1,
        **limits,
    }
    with pytest.raises(CamtoolError, match=r"--slice .1\.5. is not a list"):
        PixelOptions(slice="1.5").parse()
