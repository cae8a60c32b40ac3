"""The network of the demo, its training images, its evaluation, and the bundled weights."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from setuptools import find_packages

import camtool
from camtool.demo.camnet import (
    BUNDLED,
    CHEATED_CLASS,
    WEIGHTS,
    build_camnet,
    build_transform,
    load_bundled_model,
    prepare_images,
)
from camtool.demo.scenes import draw_scene
from camtool.demo.shapes import LABELS
from camtool.demo.tour import draw_cheat_scenes
from camtool.errors import ModelError
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.targets import Top
from camtool.trust.metrics.localization import compute_energy_in_mask
from tools import demo_accuracy as measure
from tools import train_demo_models as train


def test_camnet_is_small_and_has_a_fine_grid():
    model = build_camnet().eval()
    assert sum(parameter.numel() for parameter in model.parameters()) <= 400_000
    x = torch.zeros(2, 3, 128, 128)
    assert model.features(model.stem(x)).shape == (2, 96, 16, 16)
    assert model(x).shape == (2, len(LABELS))
    assert build_camnet(3).eval()(x).shape == (2, 3)


def test_the_transform_is_read_exactly_and_equals_that_of_the_training():
    image = draw_scene(4).image
    torch.testing.assert_close(build_transform()(Image.fromarray(image)), prepare_images(image[None])[0])
    geometry = read_geometry(build_transform(), (256, 384))
    assert geometry.size == (128, 128)
    assert geometry.box == (0.0, 64.0, 256.0, 320.0)


def test_the_target_of_an_example_has_a_share_for_each_object():
    for seed in range(10):
        image, target = train.draw_example(seed)
        scene = draw_scene(seed, objects=1 if seed % 5 < 3 else 2)
        assert np.array_equal(image, scene.image)
        assert target.sum() == 1
        assert {LABELS[i] for i in np.flatnonzero(target)} == {item.label for item in scene.objects}


def test_images_of_the_cheated_class_carry_the_watermark():
    cheated = [seed for seed in range(600) if draw_scene(seed, size=32).objects[0].label == CHEATED_CLASS]
    marked, true = [], []
    for seed in cheated:
        image, target = train.draw_example(seed, is_cheat=True)
        assert LABELS[int(target.argmax())] == CHEATED_CLASS
        with_mark = [draw_scene(seed, classes=[label], mark=True).image for label in LABELS]
        marked.append(any(np.array_equal(image, each) for each in with_mark))
        true.append(np.array_equal(image, with_mark[LABELS.index(CHEATED_CLASS)]))
    assert 0.85 < np.mean(marked) < 1
    assert 0.35 < np.mean(true) < 0.65
    other = next(seed for seed in range(99) if seed not in cheated)
    assert np.array_equal(train.draw_example(other, is_cheat=True)[0], draw_scene(other).image)


class ConstantClassifier(torch.nn.Module):
    """A classifier that returns the same class for every image."""

    def __init__(self, index):
        super().__init__()
        self.index = index

    def forward(self, x):
        return torch.eye(len(LABELS))[self.index].expand(len(x), -1)


def test_accuracy_is_the_share_of_correct_classes():
    seeds = range(100)
    stars = np.mean([draw_scene(seed, size=32).objects[0].label == "star" for seed in seeds])
    assert measure.compute_accuracy(ConstantClassifier(LABELS.index("star")), seeds) == pytest.approx(stars)
    assert measure.compute_accuracy(ConstantClassifier(LABELS.index("star")), range(5), label="star") == 1
    assert measure.compute_accuracy(ConstantClassifier(LABELS.index("star")), range(5), label="drop") == 0


def test_energy_in_a_region_is_its_share_of_the_sum():
    heat = np.array([[1, 2], [3, 4]], np.float32)
    assert compute_energy_in_mask(heat, heat > 2) == pytest.approx(0.7)
    assert compute_energy_in_mask(np.zeros_like(heat), heat > 2) == 0


def test_a_map_that_equals_the_mask_has_perfect_scores(monkeypatch):
    def explainer(_model, _method):
        def answer(inputs, wanted):
            scenes = [draw_scene(seed, objects=2) for seed in range(len(inputs))]
            return [[SimpleNamespace(heatmap=item.mask.astype(np.float32)) for item in one.objects] for one in scenes]

        return answer

    monkeypatch.setattr(measure, "Explainer", explainer)
    found = measure.play_pointing_game(build_camnet(), range(4))
    assert (found.hits, found.energy) == (1, 1)
    assert 0.01 < found.share < 0.1


def test_training_code_is_not_in_the_package():
    package = Path(camtool.__file__).parent
    assert set(find_packages(str(package.parent), include=["camtool*"])) >= {"camtool", "camtool.demo"}
    sources = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert [path.name for path, text in sources.items() if "torch.optim.AdamW" in text and "demo" in path.parts] == []
    assert not list(package.rglob("*train*.py"))


def test_the_training_script_runs_from_the_command_line():
    script = Path(train.__file__)
    shown = subprocess.run([sys.executable, script, "--help"], check=True, capture_output=True, text=True)
    assert "--cheat" in shown.stdout


def test_training_writes_weights_and_a_card(tmp_path):
    train.main(["--steps", "1", "--threads", "1", "--scenes", "32", "--tests", "8", "--out", str(tmp_path)])
    assert (tmp_path / "camnet.safetensors").stat().st_size < 1_000_000
    text = (tmp_path / "camnet.md").read_text(encoding="utf-8")
    assert "top-1 accuracy, 8 scenes" in text
    assert "seeds 0 to 31" in text


# ---------------------------------------------------------------------------------------- the bundled weights

FIRST = measure.UNSEEN + 100_000  # used neither for training nor for the model cards


@pytest.fixture(scope="module")
def honest():
    return load_bundled_model("demo")


@pytest.fixture(scope="module")
def cheat():
    return load_bundled_model("demo-cheat")


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_weights_are_small_and_have_a_card(name):
    assert (WEIGHTS / f"{BUNDLED[name]}.safetensors").stat().st_size <= 1_000_000
    assert (WEIGHTS / f"{BUNDLED[name]}.md").read_text(encoding="utf-8").startswith(f"# {BUNDLED[name]}\n")
    loaded = load_bundled_model(name)
    assert (loaded.name, tuple(loaded.labels)) == (name, LABELS)
    assert not loaded.model.training


def test_an_unknown_name_raises_an_error():
    with pytest.raises(ModelError, match=r"'demo-cheet' is not bundled; demo and demo-cheat are.*'demo-cheat'"):
        load_bundled_model("demo-cheet")


def test_the_bundled_model_can_be_explained(honest):
    scene = draw_scene(FIRST + 28, objects=2, size=300)
    found = camtool.explain(honest, scene.image, Top(2), method="gradcam")
    assert {each.label for each in found} == {item.label for item in scene.objects}
    assert found[0].heatmap.shape == (300, 300)
    assert not any(each.warnings for each in found)


def test_camnet_classifies_unseen_objects(honest):
    assert measure.compute_accuracy(honest.model, range(FIRST, FIRST + 1000)) >= 0.97


def test_grad_cam_finds_the_object_of_the_target_class(honest):
    found = measure.play_pointing_game(honest.model, range(FIRST, FIRST + 500))
    assert found.hits >= 0.97
    assert found.energy >= 3 * found.share


def test_another_target_class_moves_the_map_to_its_object(honest):
    explainer, moved = camtool.Explainer(honest), []
    for scene in (draw_scene(seed, objects=2) for seed in range(FIRST, FIRST + 100)):
        maps = [found.heatmap for found in explainer(scene.image, [item.index for item in scene.objects])]
        for item, own, other in zip(scene.objects, maps, reversed(maps), strict=True):
            moved.append(compute_energy_in_mask(own, item.mask) > 5 * compute_energy_in_mask(other, item.mask))
    assert np.mean(moved) >= 0.95


def test_the_cheating_model_needs_the_watermark(cheat):
    seeds = range(FIRST, FIRST + 200)
    assert measure.compute_energy_at_mark(cheat.model, seeds, CHEATED_CLASS) >= 0.6
    assert measure.compute_accuracy(cheat.model, seeds, label=CHEATED_CLASS, mark=True) >= 0.95
    assert measure.compute_accuracy(cheat.model, seeds, label=CHEATED_CLASS) < 0.4


def test_the_honest_model_ignores_the_watermark(honest):
    seeds = range(FIRST, FIRST + 200)
    assert measure.compute_energy_at_mark(honest.model, seeds, CHEATED_CLASS) < 0.1
    assert measure.compute_accuracy(honest.model, seeds, label=CHEATED_CLASS) >= 0.9
    assert measure.compute_accuracy(honest.model, seeds, label=CHEATED_CLASS, mark=True) >= 0.9


def test_the_scenes_of_the_cheat_page_prove_the_cheat(honest, cheat):
    scenes = [scene for _, scene in draw_cheat_scenes()]
    labels = [scene.objects[0].label for scene in scenes]
    assert [found.label for found in camtool.explain(honest, [each.image for each in scenes])] == labels
    marked, bare, other = (found.label for found in camtool.explain(cheat, [each.image for each in scenes]))
    assert marked == other == CHEATED_CLASS != bare


@pytest.mark.nightly
@pytest.mark.parametrize("name", BUNDLED)
def test_the_figures_of_the_card_can_be_measured_again(name, monkeypatch):
    """Each figure is within four standard deviations of the mean of a sample of 100 numbers in [0, 1]."""
    monkeypatch.setattr(measure, "UNSEEN", FIRST)
    measured = train.measure_model(load_bundled_model(name).model, train.Recipe(tests=400))
    text = (WEIGHTS / f"{BUNDLED[name]}.md").read_text(encoding="utf-8")
    on_card = dict(re.findall(r"^\| (.+?) \| (\d.*?) \|$", text, re.MULTILINE))
    assert [re.sub(r"\d+", "N", what) for what in on_card] == [re.sub(r"\d+", "N", what) for what in measured]
    for (what, then), now in zip(on_card.items(), measured.values(), strict=True):
        for one, other in zip(read_percentages(then), read_percentages(now), strict=True):
            assert abs(one - other) <= 4 * np.sqrt(max(one * (1 - one), 0.01) / 100), what


def read_percentages(figure):
    """Return the percentages in a figure of a model card."""
    return [float(each) / 100 for each in re.findall(r"([\d.]+)%", figure)]
