"""Names of result files: short enough, the same in every run, and distinct."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool.runs.executor import run_jobs
from camtool.runs.file_names import fold_name, make_distinct, name_result, name_url, shorten
from camtool.runs.job_list import Job, plan_run
from camtool.runs.result_writer import Failure, ResultWriter, Success
from camtool.runs.save_kinds import OutputSettings
from camtool.runs.stored_files import MANIFEST
from camtool.targets import Top


class Towers(nn.Module):
    """A model that compares images with texts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.visual = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Tanh(), nn.Conv2d(6, 4, 3, 1, 1))

    def encode_image(self, images: Tensor) -> Tensor:
        return self.visual(images).mean((2, 3))

    def encode_text(self, tokens: Tensor) -> Tensor:
        return tokens


class Detector(nn.Module):
    """A detector that finds the same two objects of class 1 and one of class 2 in every image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Tanh(), nn.Conv2d(6, 3, 3, 1, 1))

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        scores = self.trunk(torch.stack(list(images))).mean((2, 3)).sigmoid()
        boxes = torch.tensor([[0.0, 0, 8, 8], [8.0, 0, 16, 8], [0.0, 8, 8, 16]])
        return [{"boxes": boxes, "labels": torch.tensor([1, 1, 2]), "scores": each} for each in scores]


def prepare(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image.resize((16, 16)))).movedim(2, 0) / 255


def encode(texts: list[str]) -> Tensor:
    return torch.stack([torch.randn(4, generator=torch.Generator().manual_seed(len(text))) for text in texts])


def write_noise(path: Path, level: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(level).integers(0, 200, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def read_lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / MANIFEST).read_text(encoding="utf-8").splitlines()]


def list_results(out: Path) -> list[str]:
    return sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.suffix in (".png", ".npy"))


def explain(model: camtool.Loaded, out: Path, photos: list[Path], targets: object, kinds=("raw",), method="gradcam"):
    jobs = plan_run([str(path) for path in photos]).jobs
    outcomes = list(run_jobs(camtool.Explainer(model, method), jobs, targets, OutputSettings(out, kinds)))
    assert [type(outcome) for outcome in outcomes] == [Success] * len(photos), outcomes
    return read_lines(out)


# ------------------------------------------------------------------------------------------------------- whole runs


def test_detections_of_one_class_have_separate_files(tmp_path):
    model = camtool.Loaded(Detector().eval(), prepare)
    found = explain(
        model, tmp_path / "out", [write_noise(tmp_path / "a.png")], [Top(3)], ("overlay", "raw"), ["gradcam"]
    )
    assert sorted(line["index"] for line in found) == [1, 1, 2]
    assert len(list_results(tmp_path / "out")) == 6
    assert list_results(tmp_path / "out") == sorted(file for line in found for file in line["files"].values())


def test_similar_texts_have_separate_files_in_all_runs(tmp_path):
    model = camtool.Loaded(Towers().eval(), prepare, text=encode)
    texts = ["a dog?", "a dog!", "a-dog", "A dog", "a dog"]
    image = write_noise(tmp_path / "a.png")
    together = [line["files"]["raw"] for line in explain(model, tmp_path / "one", [image], texts)]
    single = [explain(model, tmp_path / text, [image], [text])[0]["files"]["raw"] for text in texts]
    assert len(list_results(tmp_path / "one")) == len({*single}) == len(texts)
    assert together == single
    assert together[-1] == "a.gradcam.a-dog.raw.npy"


@pytest.mark.parametrize("name", ["n" * 247 + ".png", "猫" * 80 + ".png"], ids=["ascii", "three bytes each"])
def test_a_photo_with_a_long_name_is_explained(tmp_path, name):
    model = camtool.Loaded(Towers().eval(), prepare, text=encode)
    (line,) = explain(model, tmp_path / "out", [write_noise(tmp_path / name)], ["a dog"], ("overlay", "raw", "mask"))
    assert list_results(tmp_path / "out") == sorted(line["files"].values())
    assert all(file.startswith(name[:10]) and ".gradcam.a-dog." in file for file in line["files"].values())


@pytest.mark.parametrize("text", ["a very long text " * 40, "猫" * 300])
def test_the_manifest_holds_a_long_text_in_full(tmp_path, text):
    model = camtool.Loaded(Towers().eval(), prepare, text=encode)
    found = explain(model, tmp_path / "out", [write_noise(tmp_path / "a.png")], [text, text + "?"])
    assert [line["label"] for line in found] == [text, text + "?"]
    assert len(list_results(tmp_path / "out")) == 2


def test_long_names_that_differ_at_the_end_stay_distinct(tmp_path):
    model = camtool.Loaded(Towers().eval(), prepare, text=encode)
    explain(model, tmp_path / "out", [write_noise(tmp_path / f"{'n' * 240}{end}.png") for end in "ab"], ["a dog"])
    assert len(list_results(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    "names", [("a.jpg", "A.jpg"), ("a.jpg", "A.png"), ("\u00e9.png", "e\u0301.png"), ("stra\u00dfe.png", "STRASSE.png")]
)
def test_photos_that_some_file_systems_confuse_have_separate_results(tmp_path, names):
    for folder, name in zip("xy", names, strict=True):
        write_noise(tmp_path / folder / name)
    paths = [str(tmp_path / folder / name) for folder, name in zip("xy", names, strict=True)]
    jobs = plan_run(paths).jobs
    assert len({fold_name(job.stem.as_posix()) for job in jobs}) == 2
    assert jobs == plan_run(paths).jobs


def test_a_result_never_overwrites_another_of_the_same_run(tmp_path):
    model = camtool.Loaded(Towers().eval(), prepare, text=encode)
    jobs = [Job(write_noise(tmp_path / "a.png"), Path("same")), Job(write_noise(tmp_path / "b.png", 7), Path("Same"))]
    writer, explainer = ResultWriter(OutputSettings(tmp_path / "out", ("raw",))), camtool.Explainer(model)
    outcomes = [writer.write_results(job, [explainer(str(job.source), "a dog")]) for job in jobs]
    assert [type(outcome) for outcome in outcomes] == [Success, Failure]
    assert "would overwrite" in outcomes[1].reason
    assert list_results(tmp_path / "out") == [*outcomes[0].lines[0].files.values()]


def test_a_result_never_overwrites_a_recorded_one(tmp_path):
    model = camtool.Loaded(Towers().eval(), prepare, text=encode)
    job = Job(write_noise(tmp_path / "a.png"), Path("Same"))
    writer = ResultWriter(OutputSettings(tmp_path / "out", ("raw",)))
    writer.reserve_recorded(["same.gradcam.a-dog.raw.npy"])
    outcome = writer.write_results(job, [camtool.Explainer(model)(str(job.source), "a dog")])
    assert "would overwrite" in outcome.reason
    assert list_results(tmp_path / "out") == []


# ------------------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("photo", "gradcam", "tabby, tabby cat", 281), "photo.gradcam.281-tabby-tabby-cat"),
        (("photo", "tta:gradcam++", "???", 3), "photo.tta-gradcam++.3-target"),
        (("photo", "gradcam", "a photo of a dog", None), "photo.gradcam.a-photo-of-a-dog"),
    ],
)
def test_a_result_name_is_readable(arguments, name):
    assert name_result(*arguments) == name


@pytest.mark.parametrize("stem", ["a", "n" * 250, "é" * 120, "\udce9" * 200])
@pytest.mark.parametrize("label", ["dog", "d" * 1000, "猫" * 300])
@pytest.mark.parametrize("index", [None, 999])
def test_a_result_name_with_its_ending_fits_every_file_system(stem, label, index):
    name = name_result(stem, "tta:noise:eigen:gradcam++", label, index)
    assert len((name + "-99.heatmap.webp").encode("utf-8", "surrogatepass")) <= 143
    assert name == name_result(stem, "tta:noise:eigen:gradcam++", label, index)
    assert name != name_result(stem, "tta:noise:eigen:gradcam++", label + "x", index)
    assert name != name_result(stem + "x", "tta:noise:eigen:gradcam++", label, index)


def test_a_text_that_fits_is_unchanged():
    assert shorten("é" * 20, 40) == "é" * 20
    assert len(shorten("é" * 21, 40).encode()) <= 40


def test_repeated_names_are_numbered():
    assert make_distinct(["cat", "Cat", "cat-2", "dog", "cat"]) == ["cat", "Cat-2", "cat-2-2", "dog", "cat-3"]
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    assert make_distinct([composed, decomposed]) == [composed, f"{decomposed}-2"]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://x.org/album/photo.jpg?size=1#part", "photo.jpg"),
        ("https://x.org/my%20photo.jpg", "my-photo.jpg"),
        ("https://x.org/%2e%2e%2f%2e%2e%2fetc", "etc"),
        ("https://x.org/a%2fb%00.png", "a-b-.png"),
        ("https://x.org/album/", "album"),
        ("https://x.org", "x-org"),
        ("https://x.org/..", "x-org"),
    ],
)
def test_the_name_of_a_url_stays_in_its_folder(url, name):
    assert name_url(url) == name
