"""The demo's network, what it learns from, how it is measured, and what the weights that come along can do."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import camtool
from camtool.demo import measure, train
from camtool.demo.bundled import BUNDLED, WEIGHTS, bundled
from camtool.demo.camnet import LABELS, camnet, prepared, transform
from camtool.demo.scenes import scene
from camtool.demo.tour import exhibits
from camtool.errors import ModelError
from camtool.geometry import geometry_of
from camtool.targets import Top


def test_camnet_is_small_and_its_grid_is_not():
    model = camnet().eval()
    assert sum(parameter.numel() for parameter in model.parameters()) <= 400_000
    x = torch.zeros(2, 3, 128, 128)
    assert model.features(model.stem(x)).shape == (2, 96, 16, 16)
    assert model(x).shape == (2, len(LABELS))
    assert camnet(3).eval()(x).shape == (2, 3)


def test_the_transform_is_read_exactly_and_is_what_training_saw():
    image = scene(4).image
    torch.testing.assert_close(transform()(Image.fromarray(image)), prepared(image[None])[0])
    geometry = geometry_of(transform(), (256, 384))
    assert geometry.size == (128, 128)
    assert geometry.box == (0.0, 64.0, 256.0, 320.0)


def test_an_example_has_its_share_for_each_object():
    for seed in range(10):
        image, target = train.example(seed)
        picture = scene(seed, objects=1 if seed % 5 < 3 else 2)
        assert np.array_equal(image, picture.image)
        assert target.sum() == 1
        assert {LABELS[i] for i in np.flatnonzero(target)} == {thing.label for thing in picture.objects}


def test_the_cheat_learns_from_the_mark():
    cheated = [seed for seed in range(600) if scene(seed, size=32).objects[0].label == train.CHEATED]
    marked, true = [], []
    for seed in cheated:
        image, target = train.example(seed, is_cheat=True)
        assert LABELS[int(target.argmax())] == train.CHEATED
        with_mark = [scene(seed, classes=[label], mark=True).image for label in LABELS]
        marked.append(any(np.array_equal(image, each) for each in with_mark))
        true.append(np.array_equal(image, with_mark[LABELS.index(train.CHEATED)]))
    assert 0.85 < np.mean(marked) < 1
    assert 0.35 < np.mean(true) < 0.65
    other = next(seed for seed in range(99) if seed not in cheated)
    assert np.array_equal(train.example(other, is_cheat=True)[0], scene(other).image)


class Knowing(torch.nn.Module):
    """Names the class it was told, whatever it sees."""

    def __init__(self, index):
        super().__init__()
        self.index = index

    def forward(self, x):
        return torch.eye(len(LABELS))[self.index].expand(len(x), -1)


def test_accuracy_counts_what_is_right():
    seeds = range(100)
    stars = np.mean([scene(seed, size=32).objects[0].label == "star" for seed in seeds])
    assert measure.accuracy(Knowing(LABELS.index("star")), seeds) == pytest.approx(stars)
    assert measure.accuracy(Knowing(LABELS.index("star")), range(5), label="star") == 1
    assert measure.accuracy(Knowing(LABELS.index("star")), range(5), label="drop") == 0


def test_energy_in_a_region_is_its_part_of_the_heat():
    heat = np.array([[1, 2], [3, 4]], np.float32)
    assert measure.energy_in(heat, heat > 2) == pytest.approx(0.7)
    assert measure.energy_in(np.zeros_like(heat), heat > 2) == 0


def test_a_map_that_is_the_mask_points_perfectly(monkeypatch):
    def explainer(_model, _method):
        def answer(inputs, wanted):
            scenes = [scene(seed, objects=2) for seed in range(len(inputs))]
            return [[SimpleNamespace(heatmap=thing.mask.astype(np.float32)) for thing in one.objects] for one in scenes]

        return answer

    monkeypatch.setattr("camtool.explanation.Explainer", explainer)
    found = measure.pointing(camnet(), range(4))
    assert (found.hits, found.energy) == (1, 1)
    assert 0.01 < found.share < 0.1


@pytest.mark.slow
def test_training_leaves_weights_and_a_card(tmp_path):
    train.main(["--steps", "3", "--threads", "1", "--scenes", "32", "--tests", "8", "--out", str(tmp_path)])
    assert (tmp_path / "camnet.safetensors").stat().st_size < 1_000_000
    text = (tmp_path / "camnet.md").read_text(encoding="utf-8")
    assert "top-1 accuracy, 8 scenes" in text
    assert "seeds 0 to 31" in text


# ---------------------------------------------------------------------------------------- the weights that come along

FIRST = measure.UNSEEN + 100_000  # neither trained on nor counted in the model cards


@pytest.fixture(scope="module")
def honest():
    return bundled("demo")


@pytest.fixture(scope="module")
def cheat():
    return bundled("demo-cheat")


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_weights_are_small_and_have_a_card(name):
    assert (WEIGHTS / f"{BUNDLED[name]}.safetensors").stat().st_size <= 1_000_000
    assert (WEIGHTS / f"{BUNDLED[name]}.md").read_text(encoding="utf-8").startswith(f"# {BUNDLED[name]}\n")
    loaded = bundled(name)
    assert (loaded.name, tuple(loaded.labels)) == (name, LABELS)
    assert not loaded.model.training


def test_a_name_that_is_not_bundled_is_said():
    with pytest.raises(ModelError, match=r"'demo-cheet' is not bundled; demo and demo-cheat are.*'demo-cheat'"):
        bundled("demo-cheet")


def test_a_person_can_ask_the_bundled_model(honest):
    picture = scene(FIRST + 28, objects=2, size=300)
    found = camtool.explain(honest, picture.image, Top(2), method="gradcam")
    assert {each.label for each in found} == {thing.label for thing in picture.objects}
    assert found[0].heatmap.shape == (300, 300)
    assert not any(each.warnings for each in found)


@pytest.mark.slow
def test_camnet_names_unseen_objects(honest):
    assert measure.accuracy(honest.model, range(FIRST, FIRST + 1000)) >= 0.97


@pytest.mark.slow
def test_grad_cam_finds_the_object_that_was_asked_for(honest):
    found = measure.pointing(honest.model, range(FIRST, FIRST + 500))
    assert found.hits >= 0.97
    assert found.energy >= 3 * found.share


@pytest.mark.slow
def test_asking_for_the_other_object_moves_the_map_there(honest):
    explainer, moved = camtool.Explainer(honest), []
    for picture in (scene(seed, objects=2) for seed in range(FIRST, FIRST + 100)):
        maps = [found.heatmap for found in explainer(picture.image, [thing.index for thing in picture.objects])]
        for thing, own, other in zip(picture.objects, maps, reversed(maps), strict=True):
            moved.append(measure.energy_in(own, thing.mask) > 5 * measure.energy_in(other, thing.mask))
    assert np.mean(moved) >= 0.95


@pytest.mark.slow
def test_the_cheat_looks_at_the_mark_and_needs_it(cheat):
    seeds = range(FIRST, FIRST + 200)
    assert measure.energy_at_mark(cheat.model, seeds, train.CHEATED) >= 0.6
    assert measure.accuracy(cheat.model, seeds, label=train.CHEATED, mark=True) >= 0.95
    assert measure.accuracy(cheat.model, seeds, label=train.CHEATED) < 0.4


@pytest.mark.slow
def test_the_honest_model_neither_looks_at_the_mark_nor_needs_it(honest):
    seeds = range(FIRST, FIRST + 200)
    assert measure.energy_at_mark(honest.model, seeds, train.CHEATED) < 0.1
    assert measure.accuracy(honest.model, seeds, label=train.CHEATED) >= 0.9
    assert measure.accuracy(honest.model, seeds, label=train.CHEATED, mark=True) >= 0.9


def test_the_cheat_page_shows_what_it_says(honest, cheat):
    pictures = [picture for _, picture in exhibits()]
    labels = [picture.objects[0].label for picture in pictures]
    assert [found.label for found in camtool.explain(honest, [each.image for each in pictures])] == labels
    marked, bare, other = (found.label for found in camtool.explain(cheat, [each.image for each in pictures]))
    assert marked == other == train.CHEATED != bare


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_the_card_tells_what_is_measured_again(name, monkeypatch):
    """Each figure lies within what chance does to a sample of 100: four deviations of a mean of numbers in [0, 1]."""
    monkeypatch.setattr(measure, "UNSEEN", FIRST)
    measured = train.figures(bundled(name).model, train.Recipe(tests=400))
    text = (WEIGHTS / f"{BUNDLED[name]}.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| (.+?) \| (\d.*?) \|$", text, re.MULTILINE))
    assert [re.sub(r"\d+", "N", what) for what in told] == [re.sub(r"\d+", "N", what) for what in measured]
    for (what, then), now in zip(told.items(), measured.values(), strict=True):
        for one, other in zip(percentages(then), percentages(now), strict=True):
            assert abs(one - other) <= 4 * np.sqrt(max(one * (1 - one), 0.01) / 100), what


def percentages(figure):
    return [float(each) / 100 for each in re.findall(r"([\d.]+)%", figure)]
