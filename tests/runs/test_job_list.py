"""Plan of a run: which photos are read, and where results go."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

import camtool
from camtool.runs.job_list import Job, Plan, plan_run, select_jobs
from tests.runs.photos import write_photo

posix = pytest.mark.skipif(os.name != "posix", reason="pipes, sockets and such links exist on POSIX only")


def plan_stems(paths: Sequence[Path], **options) -> dict[str, str]:
    """Return file name → stem of the planned photos."""
    return {job.source.name: job.stem.as_posix() for job in plan_run([str(path) for path in paths], **options).jobs}


def test_a_folder_gives_its_images_in_order(tmp_path):
    for name in ("b.png", "a.jpg", "c.WEBP", "sub/d.png"):
        write_photo(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "folder.png").mkdir()
    assert plan_stems([tmp_path]) == {"a.jpg": "a", "b.png": "b", "c.WEBP": "c"}
    assert list(plan_stems([tmp_path], recursive=True)) == ["a.jpg", "b.png", "c.WEBP", "d.png"]


def test_the_output_mirrors_a_folder(tmp_path):
    write_photo(tmp_path / "x" / "y" / "a.jpg")
    write_photo(tmp_path / "b.jpg")
    assert plan_stems([tmp_path], recursive=True) == {"a.jpg": "x/y/a", "b.jpg": "b"}


def test_the_output_mirrors_the_folders_that_a_pattern_matches(tmp_path, monkeypatch):
    write_photo(tmp_path / "x" / "y" / "a.jpg")
    write_photo(tmp_path / "x" / "b.png")
    assert plan_stems([tmp_path / "x" / "**" / "*.jpg"]) == {"a.jpg": "y/a"}
    assert plan_stems([tmp_path / "*" / "*.png"]) == {"b.png": "x/b"}
    monkeypatch.chdir(tmp_path / "x")
    assert plan_stems([Path("*.png")]) == {"b.png": "b"}
    assert plan_stems([Path("**/*")]) == {"b.png": "b", "a.jpg": "y/a"}


def test_each_of_several_folders_has_its_own_subfolder(tmp_path):
    write_photo(tmp_path / "cats" / "1.jpg")
    write_photo(tmp_path / "dogs" / "2.jpg")
    assert plan_stems([tmp_path / "cats", tmp_path / "dogs"]) == {"1.jpg": "cats/1", "2.jpg": "dogs/2"}


def test_a_file_is_taken_regardless_of_its_suffix(tmp_path):
    odd = [tmp_path / name for name in ("image", ".hidden.jpg", "photo.dat", "a[1]*.png")]
    for path in odd:
        write_photo(path.with_suffix(".png")).rename(path)
    assert [job.source for job in plan_run([str(path) for path in odd]).jobs] == odd


@pytest.mark.parametrize("hidden", [".a.jpg", "._a.jpg", ".thumbnails/a.jpg", "x/.cache/deep/a.jpg"])
def test_hidden_files_are_left_out(tmp_path, hidden):
    write_photo(tmp_path / hidden)
    write_photo(tmp_path / "seen.jpg")
    assert plan_stems([tmp_path], recursive=True) == {"seen.jpg": "seen"}
    assert plan_stems([tmp_path / "**" / "*.jpg"]) == {"seen.jpg": "seen"}


def test_a_folder_inside_a_hidden_one_is_read(tmp_path):
    write_photo(tmp_path / ".cache" / "photos" / "a.jpg")
    assert plan_stems([tmp_path / ".cache" / "photos"]) == {"a.jpg": "a"}


def test_results_of_an_earlier_run_are_left_out(tmp_path, monkeypatch):
    write_photo(tmp_path / "a.jpg")
    write_photo(tmp_path / "out" / "a.gradcam.cat.png")
    assert list(plan_stems([tmp_path], recursive=True, out=tmp_path / "out")) == ["a.jpg"]
    assert list(plan_stems([tmp_path / "**" / "*"], out=tmp_path / "out")) == ["a.jpg"]
    assert len(plan_stems([tmp_path], recursive=True, out=tmp_path / "other")) == 2
    monkeypatch.chdir(tmp_path)
    assert list(plan_stems([Path()], recursive=True, out=Path("x/../out"))) == ["a.jpg"]


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
def test_no_two_results_share_a_path(tmp_path, names):
    stems = [job.stem for job in plan_run([str(write_photo(tmp_path / name)) for name in names]).jobs]
    assert len(stems) == len(names) == len({*stems})


def test_two_photos_with_one_name_keep_their_suffixes(tmp_path):
    write_photo(tmp_path / "a.jpg")
    write_photo(tmp_path / "a.png")
    write_photo(tmp_path / "b.png")
    assert plan_stems([tmp_path]) == {"a.jpg": "a.jpg", "a.png": "a.png", "b.png": "b"}


def test_two_folders_with_one_name_stay_separate(tmp_path):
    for name in ("x/photos/1.jpg", "y/photos/1.jpg", "y/photos/2.jpg"):
        write_photo(tmp_path / name)
    jobs = plan_run([str(tmp_path / "x" / "photos"), str(tmp_path / "y" / "photos")]).jobs
    assert len(jobs) == len({job.stem for job in jobs}) == 3


def test_a_photo_is_explained_once_for_all_spellings_of_its_path(tmp_path, monkeypatch):
    write_photo(tmp_path / "x" / "a.jpg")
    monkeypatch.chdir(tmp_path)
    spellings = ["x/a.jpg", "x/a.jpg", "./x/a.jpg", "x/../x/a.jpg", str(tmp_path / "x" / "a.jpg"), "x", ".", "x/*"]
    assert plan_run(spellings, recursive=True).jobs == [Job(Path("x/a.jpg"), Path("a"))]


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("none", r"'none': no such file or folder\.$"),
        ("empti/", r"'empti/': no such file or folder\. Did you mean 'empty'\?$"),
        ("none.jpg", r"'none\.jpg': no such file"),
        ("empty", r"'empty': no images found\. To read its subfolders, add --recursive"),
        ("*.tiff", r"'\*\.tiff': no images found\.$"),
    ],
)
def test_a_path_without_images_raises_an_error(tmp_path, monkeypatch, path, match):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    write_photo(Path("a.jpg"))
    with pytest.raises(camtool.ImageError, match=match):
        plan_run(["a.jpg", path])


@posix
def test_special_files_are_reported_and_never_opened(tmp_path):
    folder = tmp_path / "photos"
    write_photo(folder / "a.png")
    write_photo(tmp_path / "elsewhere" / "b.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "gone.jpg").symlink_to(tmp_path / "none")
    (folder / "loop.jpg").symlink_to(folder / "loop.jpg")
    (folder / "null.png").symlink_to("/dev/null")
    (folder / "linked.png").symlink_to(tmp_path / "elsewhere" / "b.png")
    (folder / "album").symlink_to(tmp_path / "elsewhere")
    (folder / ".hidden.png").symlink_to(tmp_path / "none")
    os.mkfifo(folder / "notes.txt")
    with socket.socket(socket.AF_UNIX) as served:
        before = Path.cwd()
        # The path of a socket must be short.
        os.chdir(folder)
        try:
            served.bind("served.webp")
        finally:
            os.chdir(before)
        found = plan_run([str(folder)], recursive=True)
    assert [job.source.name for job in found.jobs] == ["a.png", "linked.png"]
    assert {each.path.name: each.reason for each in found.skipped} == {
        "album": "a link to a folder, which is not followed",
        "gone.jpg": "a broken link",
        "loop.jpg": "a broken link",
        "null.png": "a device",
        "pipe.png": "a named pipe",
        "served.webp": "a socket",
    }
    assert "album" not in {each.path.name for each in plan_run([str(folder)]).skipped}


@posix
def test_the_error_for_a_pipe_names_it(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(camtool.ImageError, match=r"pipe\.png': a named pipe"):
        plan_run([str(tmp_path / "pipe.png")])
    with pytest.raises(camtool.ImageError, match=r"no images found\. .*pipe\.png is a named pipe"):
        plan_run([str(tmp_path)])


def test_urls_are_photos_whose_results_have_their_names(tmp_path):
    urls = ["https://x.org/a/cat.jpg", "https://y.org/cat.png?x=[1]*", "https://x.org/a/cat.jpg"]
    plan = plan_run(urls, out=tmp_path)
    assert [(job.source, job.stem.as_posix()) for job in plan.jobs] == [(urls[0], "cat.jpg"), (urls[1], "cat.png")]
    for out in ("https://x.org/out", "s3://bucket/out"):
        with pytest.raises(camtool.ImageError, match="is a URL in a Path"):
            plan_run(urls, out=Path(out))


# ------------------------------------------------------------------------------------------- samples


def build_plan(names: list[str]) -> Plan:
    return Plan([Job(Path("photos", f"{name}.jpg"), Path(name)) for name in names], [])


def list_stems(plan: Plan) -> list[str]:
    return [str(job.stem) for job in plan.jobs]


NAMES = [f"{number:03}" for number in range(60)]


def test_a_limit_takes_the_first_photos():
    assert list_stems(select_jobs(build_plan(NAMES), limit=3)) == ["000", "001", "002"]
    assert select_jobs(build_plan(NAMES)).jobs == build_plan(NAMES).jobs
    assert len(select_jobs(build_plan(NAMES), limit=99).jobs) == 60


def test_a_shuffle_is_a_function_of_seed_and_names():
    shuffled = [list_stems(select_jobs(build_plan(NAMES), shuffle=True, seed=seed)) for seed in (0, 0, 1)]
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert sorted(shuffled[0]) == NAMES != shuffled[0]
    # The same on every machine and in every version of Python.
    assert shuffled[0][:4] == ["014", "017", "058", "021"]
    assert list_stems(select_jobs(build_plan(NAMES[::-1]), shuffle=True)) == shuffled[0]


def test_a_lower_limit_gives_a_part_of_the_sample_and_more_photos_keep_the_order():
    sample = list_stems(select_jobs(build_plan(NAMES), shuffle=True, seed=5, limit=20))
    assert list_stems(select_jobs(build_plan(NAMES), shuffle=True, seed=5, limit=7)) == sample[:7]
    more = list_stems(select_jobs(build_plan([*NAMES, "new"]), shuffle=True, seed=5))
    assert [name for name in more if name != "new"][:20] == sample


def test_a_sample_holds_each_photo_equally_often():
    plan = build_plan(NAMES[:10])
    samples = [list_stems(select_jobs(plan, shuffle=True, seed=seed, limit=5)) for seed in range(400)]
    counts = Counter(name for sample in samples for name in sample)
    assert all(150 < counts[name] < 250 for name in NAMES[:10])
