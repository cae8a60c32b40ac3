"""A run over many photos: which are read, where results go, and what happens when one of them is at fault."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from comparison import assert_same_raw
from PIL import Image
from torch import nn

import camtool
from camtool import images, overlay
from camtool.folder import KINDS, MANIFEST, Failure, Job, Output, Success, plan, run
from camtool.targets import Top

posix = pytest.mark.skipif(os.name != "posix", reason="pipes, sockets and such links are POSIX's")
SIZE = 16
TOP = Top(1)


def photo(path: Path, level: int | None = None) -> Path:
    """A photo of noise, or a plain one of that level of grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(str(path))).integers(0, 200, (20, 28, 3), dtype=np.uint8)
    Image.fromarray(noise if level is None else np.full_like(noise, level)).save(path)
    return path


def broken(path: Path) -> Path:
    whole = photo(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def planned(paths: Sequence[Path], **options) -> dict[str, str]:
    """File's name → stem, of a plan."""
    return {job.source.name: job.stem.as_posix() for job in plan([str(path) for path in paths], **options).jobs}


# ---------------------------------------------------------------------------------------------------------- plan


def test_a_folder_stands_for_its_pictures_in_order(tmp_path):
    for name in ("b.png", "a.jpg", "c.WEBP", "sub/d.png"):
        photo(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "folder.png").mkdir()
    assert planned([tmp_path]) == {"a.jpg": "a", "b.png": "b", "c.WEBP": "c"}
    assert list(planned([tmp_path], recursive=True)) == ["a.jpg", "b.png", "c.WEBP", "d.png"]


def test_the_output_mirrors_a_folder(tmp_path):
    photo(tmp_path / "x" / "y" / "a.jpg")
    photo(tmp_path / "b.jpg")
    assert planned([tmp_path], recursive=True) == {"a.jpg": "x/y/a", "b.jpg": "b"}


def test_the_output_mirrors_what_lies_below_the_fixed_part_of_a_pattern(tmp_path, monkeypatch):
    photo(tmp_path / "x" / "y" / "a.jpg")
    photo(tmp_path / "x" / "b.png")
    assert planned([tmp_path / "x" / "**" / "*.jpg"]) == {"a.jpg": "y/a"}
    assert planned([tmp_path / "*" / "*.png"]) == {"b.png": "x/b"}
    monkeypatch.chdir(tmp_path / "x")
    assert planned([Path("*.png")]) == {"b.png": "b"}
    assert planned([Path("**/*")]) == {"b.png": "b", "a.jpg": "y/a"}


def test_of_several_folders_each_has_its_own_branch(tmp_path):
    photo(tmp_path / "cats" / "1.jpg")
    photo(tmp_path / "dogs" / "2.jpg")
    assert planned([tmp_path / "cats", tmp_path / "dogs"]) == {"1.jpg": "cats/1", "2.jpg": "dogs/2"}


def test_a_file_is_taken_whatever_it_is_called(tmp_path):
    odd = [tmp_path / name for name in ("picture", ".hidden.jpg", "photo.dat", "a[1]*.png")]
    for path in odd:
        photo(path.with_suffix(".png")).rename(path)
    assert [job.source for job in plan([str(path) for path in odd]).jobs] == odd


@pytest.mark.parametrize("hidden", [".a.jpg", "._a.jpg", ".thumbnails/a.jpg", "x/.cache/deep/a.jpg"])
def test_what_is_hidden_in_a_folder_is_left_out(tmp_path, hidden):
    photo(tmp_path / hidden)
    photo(tmp_path / "seen.jpg")
    assert planned([tmp_path], recursive=True) == {"seen.jpg": "seen"}
    assert planned([tmp_path / "**" / "*.jpg"]) == {"seen.jpg": "seen"}


def test_a_folder_inside_a_hidden_one_is_no_less_a_folder(tmp_path):
    photo(tmp_path / ".cache" / "photos" / "a.jpg")
    assert planned([tmp_path / ".cache" / "photos"]) == {"a.jpg": "a"}


def test_results_of_an_earlier_run_are_no_photos(tmp_path, monkeypatch):
    photo(tmp_path / "a.jpg")
    photo(tmp_path / "out" / "a.gradcam.cat.png")
    assert list(planned([tmp_path], recursive=True, out=tmp_path / "out")) == ["a.jpg"]
    assert list(planned([tmp_path / "**" / "*"], out=tmp_path / "out")) == ["a.jpg"]
    assert len(planned([tmp_path], recursive=True, out=tmp_path / "other")) == 2
    monkeypatch.chdir(tmp_path)
    assert list(planned([Path()], recursive=True, out=Path("x/../out"))) == ["a.jpg"]


@pytest.mark.parametrize(
    "names",
    [
        ["a.jpg", "a.png"],
        ["a.jpg", "a.png", "a.jpg.png"],
        ["x/a.jpg", "y/a.jpg"],
        ["x/a.jpg", "y/a.jpg", "a.jpg-2.png"],
        ["a.jpg-2.png", "x/a.jpg", "y/a.jpg", "z/a.jpg"],
        ["a.b.jpg", "a.c.jpg"],
    ],
)
def test_no_two_results_meet(tmp_path, names):
    stems = [job.stem for job in plan([str(photo(tmp_path / name)) for name in names]).jobs]
    assert len(stems) == len(names) == len({*stems})


def test_two_photos_of_one_name_keep_their_suffixes(tmp_path):
    photo(tmp_path / "a.jpg")
    photo(tmp_path / "a.png")
    photo(tmp_path / "b.png")
    assert planned([tmp_path]) == {"a.jpg": "a.jpg", "a.png": "a.png", "b.png": "b"}


def test_two_folders_of_one_name_do_not_meet(tmp_path):
    for name in ("x/photos/1.jpg", "y/photos/1.jpg", "y/photos/2.jpg"):
        photo(tmp_path / name)
    jobs = plan([str(tmp_path / "x" / "photos"), str(tmp_path / "y" / "photos")]).jobs
    assert len(jobs) == len({job.stem for job in jobs}) == 3


def test_a_photo_is_explained_once_however_often_and_however_its_path_is_spelled(tmp_path, monkeypatch):
    photo(tmp_path / "x" / "a.jpg")
    monkeypatch.chdir(tmp_path)
    spellings = ["x/a.jpg", "x/a.jpg", "./x/a.jpg", "x/../x/a.jpg", str(tmp_path / "x" / "a.jpg"), "x", ".", "x/*"]
    assert plan(spellings, recursive=True).jobs == [Job(Path("x/a.jpg"), Path("a"))]


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("none", r"'none': there is no such file or folder"),
        ("none.jpg", r"'none\.jpg': there is no such file"),
        ("empty", r"'empty': no pictures there\. Its subfolders are read with --recursive"),
        ("*.tiff", r"'\*\.tiff': no pictures there\.$"),
    ],
)
def test_nothing_to_explain_is_an_error_that_names_the_path(tmp_path, monkeypatch, path, match):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    photo(Path("a.jpg"))
    with pytest.raises(camtool.ImageError, match=match):
        plan(["a.jpg", path])


@posix
def test_what_is_no_file_is_told_and_never_opened(tmp_path):
    folder = tmp_path / "photos"
    photo(folder / "a.png")
    photo(tmp_path / "elsewhere" / "b.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "gone.jpg").symlink_to(tmp_path / "none")
    (folder / "loop.jpg").symlink_to(folder / "loop.jpg")
    (folder / "null.png").symlink_to("/dev/null")
    (folder / "linked.png").symlink_to(tmp_path / "elsewhere" / "b.png")
    (folder / "album").symlink_to(tmp_path / "elsewhere")
    (folder / ".hidden.png").symlink_to(tmp_path / "none")
    os.mkfifo(folder / "notes.txt")
    with socket.socket(socket.AF_UNIX) as served:
        monkey = Path.cwd()
        os.chdir(folder)  # the path of a socket is short
        try:
            served.bind("served.webp")
        finally:
            os.chdir(monkey)
        found = plan([str(folder)], recursive=True)
    assert [job.source.name for job in found.jobs] == ["a.png", "linked.png"]
    assert {each.path.name: each.reason for each in found.skipped} == {
        "album": "a link to a folder, which is not followed",
        "gone.jpg": "a broken link",
        "loop.jpg": "a broken link",
        "null.png": "a device",
        "pipe.png": "a named pipe",
        "served.webp": "a socket",
    }
    assert "album" not in {each.path.name for each in plan([str(folder)]).skipped}


@posix
def test_a_path_or_a_folder_that_is_nothing_but_a_pipe_says_so(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(camtool.ImageError, match=r"pipe\.png': a named pipe"):
        plan([str(tmp_path / "pipe.png")])
    with pytest.raises(camtool.ImageError, match=r"no pictures there\. .*pipe\.png is a named pipe"):
        plan([str(tmp_path)])


# ----------------------------------------------------------------------------------------------------------- run


class Net(nn.Module):
    """A small classifier that refuses what is too bright, as models refuse what they cannot take."""

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


def prepare(picture: Image.Image) -> torch.Tensor:
    resized = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.asarray(resized).copy()).movedim(2, 0) / 255


def explainer(labels: Sequence[str] | None = ("ant", "bee", "cat"), fault=RuntimeError, method=("gradcam",), **options):
    return camtool.Explainer(camtool.Loaded(Net(fault), prepare, labels), list(method), **options)


def outcomes(folder: Path, out: Path, want=(TOP,), kinds=("raw",), batch_size=8, **options):
    jobs = plan([str(folder)], recursive=True, out=out).jobs
    return list(run(explainer(**options), jobs, list(want), Output(out, kinds), batch_size=batch_size))


def manifest(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / MANIFEST).read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def photos(tmp_path) -> Path:
    """Four photos of noise in a folder, and one below."""
    for name in ("a.png", "b.png", "c.png", "d.png", "sub/e.png"):
        photo(tmp_path / "photos" / name)
    return tmp_path / "photos"


def test_there_is_a_line_for_each_photo_class_and_method_and_every_file_that_it_names(tmp_path, photos):
    out = tmp_path / "out"
    found = outcomes(photos, out, want=[0, "cat"], kinds=KINDS, method=("gradcam", "layercam"))
    lines = manifest(out)
    assert len(lines) == 5 * 2 * 2 == len({(line["image"], line["label"], line["method"]) for line in lines})
    named = [out / file for line in lines for file in line["files"].values()]
    assert {*named} == {path for path in out.rglob("*") if path.is_file()} - {out / MANIFEST}
    assert len(named) == len({*named}) == 20 * len(KINDS)
    assert [line["image"] for line in lines[::4]] == [str(outcome.job.source) for outcome in found]


def test_what_is_written_is_the_explanation(tmp_path, photos):
    outcomes(photos, tmp_path / "out", kinds=KINDS)
    line = manifest(tmp_path / "out")[4]
    (wanted,) = explainer()(line["image"], [Top(1)])[0]
    assert line["files"]["overlay"] == f"sub/e.gradcam.{line['index']}-{line['label']}.png"
    files = {kind: tmp_path / "out" / file for kind, file in line["files"].items()}
    assert_same_raw(np.load(files["raw"]), wanted.raw)
    pixels = {kind: np.asarray(images.read(files[kind])).astype(int) for kind in ("overlay", "mask", "heatmap")}
    saved = np.asarray(images.read(wanted.save(tmp_path / "wanted.png"))).astype(int)
    assert abs(pixels["overlay"] - saved).max() <= 1
    assert abs(pixels["mask"] - wanted.masked()).max() <= 1
    assert pixels["heatmap"].shape == wanted.photo.shape
    assert (line["label"], line["index"], line["layer"]) == (wanted.label, wanted.index, wanted.layer)
    assert line["score"] == pytest.approx(wanted.score, rel=1e-5)


@pytest.mark.parametrize(("asked", "suffix"), [("png", "png"), ("jpg", "png"), ("webp", "webp")])
def test_a_heatmap_is_transparent_where_the_model_did_not_look(tmp_path, photos, asked, suffix):
    transforms = pytest.importorskip("torchvision.transforms")
    cropping = transforms.Compose([transforms.CenterCrop(16), transforms.ToTensor()])
    looking = camtool.Explainer(camtool.Loaded(Net(RuntimeError), cropping, ["ant", "bee", "cat"]))
    jobs = plan([str(photos / "a.png")]).jobs
    (done,) = run(looking, jobs, [TOP], Output(tmp_path / "out", ["heatmap", "raw"], asked))
    (wanted,) = looking(str(photos / "a.png"), [Top(1)])
    assert 0 < wanted.seen.mean() < 1
    file = tmp_path / "out" / done.entries[0].files["heatmap"]
    assert file.suffix == f".{suffix}"
    with Image.open(file) as picture:
        assert picture.mode == "RGBA"
        pixels = np.asarray(picture)
    np.testing.assert_array_equal(pixels[..., 3], 255 * wanted.seen)
    coldest = wanted.seen & (wanted.heatmap == 0)
    assert coldest.any(), "what is zero is not what was not seen"
    if suffix == "png":
        np.testing.assert_array_equal(pixels[coldest][:, :3], overlay.colorize(wanted.heatmap)[coldest])
    raw = np.load(tmp_path / "out" / done.entries[0].files["raw"])
    assert raw.shape == (4, 4), "a raw map lies on what the model saw, and on nothing else"


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_the_batch_size_does_not_matter(tmp_path, photos, batch_size):
    broken(photos / "b2.png")
    photo(photos / "c2.png", level=255)
    for name, size in (("one", 4), ("two", batch_size)):
        outcomes(photos, tmp_path / name, batch_size=size)
    first, second = manifest(tmp_path / "one"), manifest(tmp_path / "two")
    assert [line["files"] for line in first] == [line["files"] for line in second]
    for line in first:
        raw = [np.load(tmp_path / name / line["files"]["raw"]) for name in ("one", "two")]
        np.testing.assert_allclose(*raw, atol=1e-6)


def test_a_single_want_is_explained_as_a_list_of_one_is(tmp_path, photos):
    jobs = plan([str(photos)]).jobs
    found = [[*run(explainer(), jobs, want, Output(tmp_path / "out"))] for want in (None, [None], "bee", ["bee"])]
    assert {type(outcome) for outcomes in found for outcome in outcomes} == {Success}
    assert found[2] == found[3]


class OddError(Exception):
    """An error of a library's own, as OpenCV's is."""


FAULTS = [RuntimeError, ValueError, AssertionError, IndexError, KeyError, TypeError, ZeroDivisionError]


@pytest.mark.parametrize("fault", [*FAULTS, MemoryError, OSError, OddError])
def test_a_photo_that_the_model_refuses_fails_alone_and_is_named(tmp_path, photos, fault):
    bright = photo(photos / "c2.png", level=255)
    found = outcomes(photos, tmp_path / "out", fault=fault)
    (failure,) = [outcome for outcome in found if isinstance(outcome, Failure)]
    assert failure.job.source == bright
    assert failure.reason.startswith(f"{bright}: ")
    assert "too bright" in failure.reason
    assert "\n" not in failure.reason
    assert [type(outcome) for outcome in found].count(Success) == len(manifest(tmp_path / "out")) == 5


def test_a_photo_that_cannot_be_read_fails_alone_and_is_named_once(tmp_path, photos):
    bad = broken(photos / "b2.png")
    (photos / "b3.jpg").write_bytes(b"")
    found = outcomes(photos, tmp_path / "out")
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


def test_a_photo_that_needs_too_much_memory_to_be_read_fails_alone(tmp_path, photos, monkeypatch):
    real = images.read

    def read(source):
        if source == photos / "c.png":
            raise MemoryError
        return real(source)

    monkeypatch.setattr(images, "read", read)
    found = outcomes(photos, tmp_path / "out")
    (failure,) = [outcome for outcome in found if isinstance(outcome, Failure)]
    assert failure.reason == f"{photos / 'c.png'}: there is not enough memory for it"
    assert len(manifest(tmp_path / "out")) == 4


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long"), "File name too long"),
        (PermissionError(errno.EACCES, "Permission denied", "out/c"), "out/c: Permission denied"),
        (MemoryError("Unable to allocate 2.6 GiB"), "not enough memory for it (Unable to allocate 2.6 GiB)"),
        (OddError("resize failed"), "resize failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_result_that_cannot_be_written_is_that_photos_failure(tmp_path, photos, monkeypatch, error, told):
    real = images.writing

    def writing(path):
        if Path(path).name.startswith("c."):
            raise error
        return real(path)

    monkeypatch.setattr(images, "writing", writing)
    found = outcomes(photos, tmp_path / "out")
    (failure,) = [outcome for outcome in found if isinstance(outcome, Failure)]
    assert failure.reason.startswith(f"{photos / 'c.png'}: ")
    assert told in failure.reason
    assert [Path(line["image"]).name for line in manifest(tmp_path / "out")] == ["a.png", "b.png", "d.png", "e.png"]


def test_where_all_photos_fail_the_run_still_ends_and_the_manifest_is_empty(tmp_path):
    photo(tmp_path / "photos" / "a.png", level=255)
    broken(tmp_path / "photos" / "b.png")
    assert {type(outcome) for outcome in outcomes(tmp_path / "photos", tmp_path / "out")} == {Failure}
    assert manifest(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"want": ["wasp"]}, camtool.TargetError),
        ({"want": [3]}, camtool.TargetError),
        ({"layer": "trunk.9"}, camtool.LayerError),
    ],
)
def test_what_concerns_all_photos_alike_ends_the_run(tmp_path, photos, options, error):
    with pytest.raises(error):
        outcomes(photos, tmp_path / "out", **options)


def test_a_request_that_cannot_be_served_leaves_the_earlier_manifest_alone(tmp_path, photos):
    outcomes(photos, tmp_path / "out")
    with pytest.raises(camtool.TargetError):
        outcomes(photos, tmp_path / "out", want=["wasp"])
    assert len(manifest(tmp_path / "out")) == 5


def test_a_disk_that_refuses_ends_the_run_and_the_manifest_has_whole_lines(tmp_path, photos, monkeypatch):
    real, left = images.writing, iter(range(3))

    def writing(path):
        if next(left, None) is None:
            raise OSError(28, "No space left on device", str(path))
        return real(path)

    monkeypatch.setattr(images, "writing", writing)
    with pytest.raises(OSError, match=r"No space left.*d\.gradcam"):
        outcomes(photos, tmp_path / "out")
    out = tmp_path / "out"
    assert [(out / line["files"]["raw"]).is_file() for line in manifest(out)] == [True] * 3
    assert [path.name for path in out.rglob(".*")] == []


def test_leaving_the_run_early_keeps_whole_lines(tmp_path, photos):
    jobs = plan([str(photos)]).jobs
    outcome = run(explainer(), jobs, [Top(1)], Output(tmp_path / "out"), batch_size=1)
    next(outcome)
    next(outcome)
    outcome.close()
    assert len(manifest(tmp_path / "out")) == 2


def test_an_output_folder_that_cannot_be_used_is_an_oserror_about_it(tmp_path, photos):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(FileExistsError):
        outcomes(photos, tmp_path / "out")
    (tmp_path / "locked" / f".{MANIFEST}.part").mkdir(parents=True)
    with pytest.raises(OSError, match=MANIFEST):
        outcomes(photos, tmp_path / "locked")


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes on POSIX only")
def test_a_name_that_is_no_text_is_a_name(tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    photo(tmp_path / "plain.png").rename(odd)
    (outcome,) = run(explainer(), plan([odd]).jobs, [Top(1)], Output(tmp_path / "out"))
    (line,) = manifest(tmp_path / "out")
    assert (line["image"], isinstance(outcome, Success)) == (odd, True)
    assert (tmp_path / "out" / line["files"]["overlay"]).is_file()


def test_labels_of_any_script_make_names_of_files(tmp_path):
    photo(tmp_path / "a.png")
    outcomes(tmp_path / "a.png", tmp_path / "out", want=[0, 1, 2], labels=["Käfer/Ünze", "../猫", "???"])
    names = [line["files"]["raw"] for line in manifest(tmp_path / "out")]
    assert names == ["a.gradcam.0-käfer-ünze.raw.npy", "a.gradcam.1-猫.raw.npy", "a.gradcam.2-target.raw.npy"]


@pytest.mark.parametrize("labels", [["crane", "crane", "cat"], ["a/b", "a b", "cat"], ["Turkey", "turkey", "cat"]])
def test_classes_with_like_labels_do_not_overwrite_each_other(tmp_path, labels):
    photo(tmp_path / "a.png")
    outcomes(tmp_path / "a.png", tmp_path / "out", want=[0, 1], labels=labels)
    assert len({line["files"]["raw"] for line in manifest(tmp_path / "out")}) == 2


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_results_have_the_permissions_of_any_new_file(tmp_path):
    photo(tmp_path / "a.png")
    outcomes(tmp_path / "a.png", tmp_path / "out")
    (tmp_path / "new").touch()
    wanted = stat.S_IMODE((tmp_path / "new").stat().st_mode)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()} == {wanted}


# ------------------------------------------------------------------------------------- methods that cannot serve all


def picky(evidence: camtool.Evidence) -> torch.Tensor:
    """Brightness, of dark pictures only."""
    if (evidence.inputs.flatten(1).mean(1) > 0.5).any():
        raise camtool.MethodError("method 'picky' takes dark pictures only.")
    return evidence.activations.sum(1)


class Pixels(nn.Module):
    """The pictures themselves are what is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels, self.head = nn.Conv2d(3, 3, 1), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pixels(x).mean((2, 3)))


def plain(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(picture.resize((SIZE, SIZE)))).movedim(-1, 0) / 255


def served(tmp_path: Path, levels: Sequence[int], batch_size: int = 8) -> list[type]:
    """The kinds of outcomes of photos of these brightnesses."""
    explainer = camtool.Explainer(Pixels().eval(), picky, "pixels", transform=plain)
    for number, level in enumerate(levels):
        photo(tmp_path / "in" / f"{number}.png", level)
    jobs = plan([str(tmp_path / "in")]).jobs
    outcomes = run(explainer, jobs, TOP, Output(tmp_path / "out", ["raw"], "png", 0.5, "turbo"), batch_size=batch_size)
    return [type(outcome) for outcome in outcomes]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_a_photo_that_a_method_cannot_serve_does_not_end_the_run(tmp_path, batch_size):
    kinds = served(tmp_path, [10, 20, 250, 30, 240, 245, 250, 20], batch_size)
    assert kinds == [Success, Success, Failure, Success, Failure, Failure, Failure, Success]


def test_a_method_that_can_serve_no_photo_ends_the_run(tmp_path):
    with pytest.raises(camtool.MethodError, match="dark pictures only"):
        served(tmp_path, [250, 240, 245])
