"""Run over photos: files, failures, and errors that end it."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import camtool
from camtool.inputs import image_files
from camtool.rendering import image_writing, overlay
from camtool.runs.executor import run_jobs
from camtool.runs.job_list import plan_run
from camtool.runs.result_writer import Failure, Success
from camtool.runs.run_folder.photo_records import JOURNAL, PHOTOS
from camtool.runs.save_kinds import SAVE_KINDS, OutputSettings
from camtool.runs.stored_files import MANIFEST
from camtool.targets import Top
from tests.helpers.comparison import assert_same_raw
from tests.runs.photos import write_photo

SIZE = 16
TOP = Top(1)


def write_broken_photo(path: Path) -> Path:
    whole = write_photo(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


class Net(nn.Module):
    """A small classifier that raises an error for bright photos."""

    def __init__(self, fault: type[Exception] = RuntimeError) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Tanh(), nn.Conv2d(6, 6, 3, 1, 1))
        self.head = nn.Linear(6, 3)
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x.mean((1, 2, 3)) > 0.9).any():
            raise self.fault("too bright\nand a second line")
        return self.head(self.trunk(x).mean((2, 3)))


def prepare(image: Image.Image) -> torch.Tensor:
    resized = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.asarray(resized).copy()).movedim(2, 0) / 255


KINDS = tuple(name for name in SAVE_KINDS if name not in ("nifti", "geotiff"))
"""Kinds of files that exist for each photo; the others are in test_save_kinds.py."""


def build_explainer(
    labels: Sequence[str] | None = ("ant", "bee", "cat"), fault=RuntimeError, method=("gradcam",), **options
):
    return camtool.Explainer(camtool.Loaded(Net(fault), prepare, labels), list(method), **options)


def run_folder(folder: Path, out: Path, target=(TOP,), kinds=("raw",), batch_size=8, workers=None, **options):
    jobs = plan_run([str(folder)], recursive=True, out=out).jobs
    output, explainer = OutputSettings(out, kinds), build_explainer(**options)
    return list(run_jobs(explainer, jobs, list(target), output, batch_size=batch_size, workers=workers))


def read_manifest(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / MANIFEST).read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder with four photos of noise, and a fifth in a subfolder."""
    for name in ("a.png", "b.png", "c.png", "d.png", "sub/e.png"):
        write_photo(tmp_path / "photos" / name)
    return tmp_path / "photos"


def test_each_photo_class_and_method_has_a_line_and_its_files(tmp_path, photos):
    out = tmp_path / "out"
    found = run_folder(photos, out, target=[0, "cat"], kinds=KINDS, method=("gradcam", "layercam"))
    lines = read_manifest(out)
    assert len(lines) == 5 * 2 * 2 == len({(line["image"], line["label"], line["method"]) for line in lines})
    named = [out / file for line in lines for file in line["files"].values()]
    lists = {out / name for name in ("run.json", "photos.jsonl", "failures.jsonl", MANIFEST)}
    assert {*named} == {path for path in out.rglob("*") if path.is_file()} - lists
    assert len(named) == len({*named}) == 20 * len(KINDS)
    assert [line["image"] for line in lines[::4]] == [str(outcome.job.source) for outcome in found]


def test_the_files_equal_the_explanation(tmp_path, photos):
    run_folder(photos, tmp_path / "out", kinds=KINDS)
    line = read_manifest(tmp_path / "out")[4]
    (wanted,) = build_explainer()(line["image"], [Top(1)])[0]
    assert line["files"]["overlay"] == f"sub/e.gradcam.{line['index']}-{line['label']}.png"
    files = {kind: tmp_path / "out" / file for kind, file in line["files"].items()}
    assert_same_raw(np.load(files["raw"]), wanted.raw)
    pixels = {
        kind: np.asarray(image_files.read_image(files[kind])).astype(int) for kind in ("overlay", "mask", "heatmap")
    }
    saved = np.asarray(image_files.read_image(wanted.save(tmp_path / "wanted.png", legend=False))).astype(int)
    assert abs(pixels["overlay"] - saved).max() <= 1
    assert abs(pixels["mask"] - wanted.masked()).max() <= 1
    assert pixels["heatmap"].shape == wanted.photo.shape
    assert (line["label"], line["index"], line["layer"]) == (wanted.label, wanted.index, wanted.layer)
    assert line["score"] == pytest.approx(wanted.score, rel=1e-5)


@pytest.mark.parametrize(("asked", "suffix"), [("png", "png"), ("jpg", "png"), ("webp", "webp")])
def test_a_heatmap_is_transparent_at_unseen_pixels(tmp_path, photos, asked, suffix):
    transforms = pytest.importorskip("torchvision.transforms")
    cropping = transforms.Compose([transforms.CenterCrop(16), transforms.ToTensor()])
    cropping_explainer = camtool.Explainer(camtool.Loaded(Net(RuntimeError), cropping, ["ant", "bee", "cat"]))
    jobs = plan_run([str(photos / "a.png")]).jobs
    (done,) = run_jobs(cropping_explainer, jobs, [TOP], OutputSettings(tmp_path / "out", ["heatmap", "raw"], asked))
    (wanted,) = cropping_explainer(str(photos / "a.png"), [Top(1)])
    assert 0 < wanted.seen.mean() < 1
    file = tmp_path / "out" / done.lines[0].files["heatmap"]
    assert file.suffix == f".{suffix}"
    with Image.open(file) as image:
        assert image.mode == "RGBA"
        pixels = np.asarray(image)
    np.testing.assert_array_equal(pixels[..., 3], 255 * wanted.seen)
    coldest = wanted.seen & (wanted.heatmap == 0)
    assert coldest.any(), "a heatmap of zero is not an unseen pixel"
    if suffix == "png":
        np.testing.assert_array_equal(pixels[coldest][:, :3], overlay.colorize(wanted.heatmap)[coldest])
    raw = np.load(tmp_path / "out" / done.lines[0].files["raw"])
    assert raw.shape == (4, 4), "a raw map covers only what the model saw"


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_the_batch_size_does_not_change_the_results(tmp_path, photos, batch_size):
    write_broken_photo(photos / "b2.png")
    write_photo(photos / "c2.png", level=255)
    for name, size in (("one", 4), ("two", batch_size)):
        run_folder(photos, tmp_path / name, batch_size=size)
    first, second = read_manifest(tmp_path / "one"), read_manifest(tmp_path / "two")
    assert [line["files"] for line in first] == [line["files"] for line in second]
    for line in first:
        raw = [np.load(tmp_path / name / line["files"]["raw"]) for name in ("one", "two")]
        np.testing.assert_allclose(*raw, atol=1e-6)


@pytest.mark.parametrize("workers", [1, 4])
def test_threads_change_no_byte(tmp_path, photos, workers):
    write_broken_photo(photos / "b2.png")
    write_photo(photos / "c2.png", level=255)  # the model refuses it
    kinds = ("overlay", "heatmap", "mask", "raw")
    alone = run_folder(photos, tmp_path / "alone", target=[Top(2)], kinds=kinds, batch_size=2, workers=0)
    beside = run_folder(photos, tmp_path / "beside", target=[Top(2)], kinds=kinds, batch_size=2, workers=workers)
    assert [type(outcome) for outcome in beside] == [type(outcome) for outcome in alone]
    assert [outcome.job for outcome in beside] == [outcome.job for outcome in alone]
    files = {path.relative_to(tmp_path / "alone") for path in (tmp_path / "alone").rglob("*")}
    assert files == {path.relative_to(tmp_path / "beside") for path in (tmp_path / "beside").rglob("*")}
    for file in (each for each in files if (tmp_path / "alone" / each).is_file()):
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "beside" / file).read_bytes()


def test_photos_are_read_and_written_while_the_model_runs(tmp_path, photos, monkeypatch):
    read, written = threading.Event(), threading.Event()
    model_waits = iter([read, written])
    real_read, real_write, forward = image_files.read_plain, image_writing.open_atomically, Net.forward

    def note_reading(source, *settings):
        if source == photos / "c.png":  # of the second batch
            read.set()
        return real_read(source, *settings)

    def note_writing(path):
        written.set()
        return real_write(path)

    def wait(self, x):
        if len(x) == 2:  # not the forward passes that choose the layer, of a single image
            assert next(model_waits, written).wait(30)
        return forward(self, x)

    explainer = build_explainer(layer="trunk")
    monkeypatch.setattr(image_files, "read_plain", note_reading)
    monkeypatch.setattr(image_writing, "open_atomically", note_writing)
    jobs = plan_run([str(photos)]).jobs
    outcomes = run_jobs(explainer, jobs, [TOP], OutputSettings(tmp_path / "out"), batch_size=2, workers=2)
    explainer([explainer.prepare(each.source) for each in jobs[:2]])  # finds the layout
    monkeypatch.setattr(Net, "forward", wait)
    assert [type(each) for each in outcomes] == [Success] * 4


def write_reduced(photo: Path, out: Path, max_side: int | None) -> tuple[int, int]:
    """Explain one photo whose pictures are limited, and return the size of the one that was written."""
    output = OutputSettings(out, ("mask",), max_side=max_side)
    (outcome,) = run_jobs(build_explainer(layer="trunk"), plan_run([str(photo)], out=out).jobs, [TOP], output)
    assert isinstance(outcome, Success), outcome
    with Image.open(next(out.glob("*.mask.png"))) as written:
        return written.size


@pytest.mark.parametrize(
    ("size", "max_side", "written"),
    [
        ((1600, 1200), None, (1600, 1200)),
        ((1600, 1200), 5000, (1600, 1200)),
        ((1600, 1200), 100, (100, 75)),
        ((1600, 1200), 2, (22, 16)),  # the model takes 16 x 16 pixels
        ((1600, 80), 100, (320, 16)),
        ((12, 8), 10, (12, 8)),
    ],
)
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_pictures_are_reduced_but_not_below_what_the_model_needs(tmp_path, size, max_side, written, suffix):
    photo = tmp_path / f"photo.{suffix}"
    Image.effect_noise(size, 60).convert("RGB").save(photo)
    found = write_reduced(photo, tmp_path / "out", max_side)
    assert found == (pytest.approx(written[0], rel=0.05), written[1])  # the shorter side is rounded


def test_a_photo_is_read_whole_if_it_cannot_be_prepared_reduced(tmp_path):
    photo = tmp_path / "photo.png"
    Image.effect_noise((1600, 20), 60).convert("RGB").save(photo)
    # The preparation of 100 x 1 pixels does not show its geometry.
    assert write_reduced(photo, tmp_path / "out", 100) == (1600, 20)


def test_a_single_target_equals_a_list_of_one(tmp_path, photos):
    jobs = plan_run([str(photos)]).jobs
    targets = (None, [None], "bee", ["bee"])
    outputs = [OutputSettings(tmp_path / str(number)) for number in range(4)]
    found = [[*run_jobs(build_explainer(), jobs, *each)] for each in zip(targets, outputs, strict=True)]
    assert {type(outcome) for outcomes in found for outcome in outcomes} == {Success}
    assert found[2] == found[3]


class LibraryError(Exception):
    """An error class of a library, such as OpenCV's."""


FAULTS = [RuntimeError, ValueError, AssertionError, IndexError, KeyError, TypeError, ZeroDivisionError]


@pytest.mark.parametrize("fault", [*FAULTS, MemoryError, OSError, LibraryError])
def test_a_photo_that_the_model_refuses_is_the_only_failure(tmp_path, photos, fault):
    bright = write_photo(photos / "c2.png", level=255)
    found = run_folder(photos, tmp_path / "out", fault=fault)
    (failure,) = [outcome for outcome in found if isinstance(outcome, Failure)]
    assert failure.job.source == bright
    assert failure.reason.startswith(f"{bright}: ")
    assert "too bright" in failure.reason
    assert "\n" not in failure.reason
    assert [type(outcome) for outcome in found].count(Success) == len(read_manifest(tmp_path / "out")) == 5


def test_a_photo_that_cannot_be_read_is_the_only_failure(tmp_path, photos):
    bad = write_broken_photo(photos / "b2.png")
    (photos / "b3.jpg").write_bytes(b"")
    found = run_folder(photos, tmp_path / "out")
    reasons = [outcome.reason for outcome in found if isinstance(outcome, Failure)]
    assert [reason.count(str(bad)) for reason in reasons] == [1, 0]
    assert "empty, 0 bytes" in reasons[1]
    assert [outcome.job.source.name for outcome in found] == [
        "a.png",
        "b.png",
        "b2.png",
        "b3.jpg",
        "c.png",
        "d.png",
        "e.png",
    ]


def test_a_photo_that_needs_too_much_memory_is_the_only_failure(tmp_path, photos, monkeypatch):
    real = image_files.read_plain

    def read(source, *settings):
        if source == photos / "c.png":
            raise MemoryError
        return real(source, *settings)

    monkeypatch.setattr(image_files, "read_plain", read)
    found = run_folder(photos, tmp_path / "out")
    (failure,) = [outcome for outcome in found if isinstance(outcome, Failure)]
    assert failure.reason == f"{photos / 'c.png'}: there is not enough memory for it"
    assert len(read_manifest(tmp_path / "out")) == 4


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long"), "File name too long"),
        (PermissionError(errno.EACCES, "Permission denied", "out/c"), "out/c: Permission denied"),
        (MemoryError("Unable to allocate 2.6 GiB"), "not enough memory for it (Unable to allocate 2.6 GiB)"),
        (LibraryError("resize failed"), "resize failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_result_that_cannot_be_written_is_a_failure_of_its_photo(tmp_path, photos, monkeypatch, error, message):
    real = image_writing.open_atomically

    def writing(path):
        if Path(path).name.startswith("c."):
            raise error
        return real(path)

    monkeypatch.setattr(image_writing, "open_atomically", writing)
    found = run_folder(photos, tmp_path / "out")
    (failure,) = [outcome for outcome in found if isinstance(outcome, Failure)]
    assert failure.reason.startswith(f"{photos / 'c.png'}: ")
    assert message in failure.reason
    assert [Path(line["image"]).name for line in read_manifest(tmp_path / "out")] == [
        "a.png",
        "b.png",
        "d.png",
        "e.png",
    ]


def test_a_run_in_which_all_photos_fail_leaves_an_empty_read_manifest(tmp_path):
    write_photo(tmp_path / "photos" / "a.png", level=255)
    write_broken_photo(tmp_path / "photos" / "b.png")
    assert {type(outcome) for outcome in run_folder(tmp_path / "photos", tmp_path / "out")} == {Failure}
    assert read_manifest(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"target": ["wasp"]}, camtool.TargetError),
        ({"target": [3]}, camtool.TargetError),
        ({"layer": "trunk.9"}, camtool.LayerError),
    ],
)
def test_an_error_that_concerns_all_photos_ends_the_run(tmp_path, photos, options, error):
    with pytest.raises(error):
        run_folder(photos, tmp_path / "out", **options)


def test_an_invalid_request_leaves_no_run_behind(tmp_path, photos):
    with pytest.raises(camtool.TargetError):
        run_folder(photos, tmp_path / "out", target=["wasp"])
    assert [*(tmp_path / "out").iterdir()] == []
    assert len(run_folder(photos, tmp_path / "out")) == 5


def test_results_of_unknown_settings_are_not_continued(tmp_path, photos):
    run_folder(photos, tmp_path / "out")
    with pytest.raises(camtool.CamtoolError, match=r"settings are unknown.*--out.*--overwrite"):
        run_folder(photos, tmp_path / "out")
    assert len(read_manifest(tmp_path / "out")) == 5


def test_a_disk_error_ends_the_run_and_leaves_complete_lines(tmp_path, photos, monkeypatch):
    real, left = image_writing.open_atomically, iter(range(3))

    def writing(path):
        if next(left, None) is None:
            raise OSError(28, "No space left on device", str(path))
        return real(path)

    monkeypatch.setattr(image_writing, "open_atomically", writing)
    with pytest.raises(OSError, match=r"No space left.*d\.gradcam"):
        run_folder(photos, tmp_path / "out", workers=0)
    out = tmp_path / "out"
    assert [(out / line["files"]["raw"]).is_file() for line in read_manifest(out)] == [True] * 3
    assert [path.name for path in out.rglob(".*")] == []


def test_leaving_the_run_early_keeps_complete_lines(tmp_path, photos):
    jobs = plan_run([str(photos)]).jobs
    outcome = run_jobs(build_explainer(), jobs, [Top(1)], OutputSettings(tmp_path / "out"), batch_size=1)
    next(outcome)
    next(outcome)
    outcome.close()
    assert len(read_manifest(tmp_path / "out")) == 2


def test_an_unusable_output_folder_is_an_error(tmp_path, photos):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(FileExistsError):
        run_folder(photos, tmp_path / "out")
    (tmp_path / "locked" / JOURNAL).mkdir(parents=True)
    with pytest.raises(camtool.CamtoolError, match=rf"{PHOTOS}\.part is not of a run of camtool"):
        run_folder(photos, tmp_path / "locked")


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes on POSIX only")
def test_a_file_name_that_is_not_utf8_is_explained(tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    write_photo(tmp_path / "plain.png").rename(odd)
    (outcome,) = run_jobs(build_explainer(), plan_run([odd]).jobs, [Top(1)], OutputSettings(tmp_path / "out"))
    (line,) = read_manifest(tmp_path / "out")
    assert (line["image"], isinstance(outcome, Success)) == (odd, True)
    assert (tmp_path / "out" / line["files"]["overlay"]).is_file()


def test_labels_in_any_script_become_file_names(tmp_path):
    write_photo(tmp_path / "a.png")
    run_folder(tmp_path / "a.png", tmp_path / "out", target=[0, 1, 2], labels=["Käfer/Ünze", "../猫", "???"])
    names = [line["files"]["raw"] for line in read_manifest(tmp_path / "out")]
    assert names == ["a.gradcam.0-käfer-ünze.raw.npy", "a.gradcam.1-猫.raw.npy", "a.gradcam.2-target.raw.npy"]


@pytest.mark.parametrize("labels", [["crane", "crane", "cat"], ["a/b", "a b", "cat"], ["Turkey", "turkey", "cat"]])
def test_classes_with_similar_labels_have_separate_files(tmp_path, labels):
    write_photo(tmp_path / "a.png")
    run_folder(tmp_path / "a.png", tmp_path / "out", target=[0, 1], labels=labels)
    assert len({line["files"]["raw"] for line in read_manifest(tmp_path / "out")}) == 2


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_results_have_the_default_permissions(tmp_path):
    write_photo(tmp_path / "a.png")
    run_folder(tmp_path / "a.png", tmp_path / "out")
    (tmp_path / "new").touch()
    wanted = stat.S_IMODE((tmp_path / "new").stat().st_mode)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()} == {wanted}


# ------------------------------------------------------------------------------------- methods that refuse photos


def dark_only(evidence: camtool.Evidence) -> torch.Tensor:
    """Return the sum of the activations, for dark images only."""
    if (evidence.inputs.flatten(1).mean(1) > 0.5).any():
        raise camtool.MethodError("method 'dark_only' takes dark images only.")
    return evidence.activations.sum(1)


class Pixels(nn.Module):
    """A model whose layer returns the image."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels, self.head = nn.Conv2d(3, 3, 1), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pixels(x).mean((2, 3)))


def resize_plainly(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((SIZE, SIZE)))).movedim(-1, 0) / 255


def list_outcome_types(tmp_path: Path, levels: Sequence[int], batch_size: int = 8) -> list[type]:
    """Return the types of the outcomes of photos with these gray levels."""
    explainer = camtool.Explainer(Pixels().eval(), dark_only, "pixels", transform=resize_plainly)
    for number, level in enumerate(levels):
        write_photo(tmp_path / "in" / f"{number}.png", level)
    jobs = plan_run([str(tmp_path / "in")]).jobs
    output = OutputSettings(tmp_path / "out", ["raw"], "png", 0.5, "turbo")
    outcomes = run_jobs(explainer, jobs, TOP, output, batch_size=batch_size)
    return [type(outcome) for outcome in outcomes]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_a_photo_that_the_method_cannot_explain_does_not_end_the_run(tmp_path, batch_size):
    kinds = list_outcome_types(tmp_path, [10, 20, 250, 30, 240, 245, 250, 20], batch_size)
    assert kinds == [Success, Success, Failure, Success, Failure, Failure, Failure, Success]


def test_a_method_that_can_explain_no_photo_ends_the_run(tmp_path):
    with pytest.raises(camtool.MethodError, match="dark images only"):
        list_outcome_types(tmp_path, [250, 240, 245])
