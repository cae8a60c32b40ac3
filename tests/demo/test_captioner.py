"""The captioner of the demo: its parts, its training, and the maps of its words on scenes whose objects are known."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

import camtool
from camtool.demo.camnet import WEIGHTS, load_honest_model
from camtool.demo.captioner import (
    BACKGROUND,
    GRID,
    NETWORK,
    PROMPT,
    build_captioner,
    build_processor,
    load_captioner,
    write_caption,
)
from camtool.demo.scenes import draw_scene
from camtool.demo.shapes import LABELS
from camtool.errors import CamtoolError, ModelError
from camtool.layers.survey import find_candidates
from tools import demo_accuracy as measure
from tools import train_demo_captioner as train

FIRST = measure.UNSEEN + 100_000  # used neither for training nor for the model card
TOKEN = 128 // GRID


@pytest.fixture(scope="module")
def captioner():
    return load_captioner()


# ---------------------------------------------------------------------------------------------- parts and training


def test_the_tower_has_the_features_of_the_demos_network(captioner):
    model, _ = captioner
    network, x = load_honest_model().model, torch.rand(2, 3, 128, 128) * 2 - 1
    with torch.no_grad():
        tower = model.model.vision_tower
        found = tower(x).hidden_states[0]
        expected = network.features(network.stem(x)).permute(0, 2, 3, 1) + tower.rows + tower.columns
    torch.testing.assert_close(found, expected.reshape(2, 256, 96))


def test_the_words_of_captions_are_tokens():
    tokenizer = build_processor().tokenizer
    ids = tokenizer(write_caption(["star", "arrow"]))["input_ids"]
    assert tokenizer.decode(ids) == "one star and one arrow"
    assert tokenizer.unk_token_id not in tokenizer(" ".join(["what is shown ?", BACKGROUND, *LABELS]))["input_ids"]


def test_a_scene_is_described_from_left_to_right():
    scene = draw_scene(FIRST, objects=2)
    left, right = sorted(scene.objects, key=lambda item: item.box[0] + item.box[2])
    assert train.describe_scene(scene) == f"one {left.label} and one {right.label}"
    mirrored = [replace(item, box=(128 - item.box[2], 0, 128 - item.box[0], 9)) for item in scene.objects]
    assert train.describe_scene(replace(scene, objects=(*mirrored,))) == f"one {right.label} and one {left.label}"


def test_a_token_has_the_class_that_covers_half_of_it():
    mask = np.zeros((128, 128), bool)
    mask[8:24, 40:44] = True  # half of two tokens
    mask[24:32, 40:43] = True  # less than half of a third
    item = replace(draw_scene(0).objects[0], index=3, mask=mask)
    found = train.label_tokens(SimpleNamespace(objects=[item])).reshape(GRID, GRID)
    assert (found == 3).sum() == 2
    assert (found[1:3, 5] == 3).all()
    assert found[0, 0] == len(LABELS)


def test_without_transformers_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for build in (load_captioner, build_processor):
        with pytest.raises(ModelError, match=r"pip install 'camtool\[hf\]'"):
            build()


def test_the_training_script_runs_from_the_command_line():
    shown = subprocess.run([sys.executable, train.__file__, "--help"], check=True, capture_output=True, text=True)
    assert "--card" in shown.stdout


def test_training_changes_all_weights_but_those_of_the_network(tmp_path):
    torch.manual_seed(0)
    model = build_captioner()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train.train(model, train.draw_examples(model, 32), 2)
    after = model.state_dict()
    assert {name for name in before if torch.equal(before[name], after[name])} == {
        name for name in before if name.startswith(NETWORK)
    }
    path = tmp_path / "captioner.safetensors"
    train.save_weights(model, {"scenes": "32", "steps": "2", "minutes": "0"}, path)
    assert train.read_history(path)["steps"] == "2"
    loaded, _ = load_captioner(path)
    assert all(
        torch.equal(value, after[name].half().float())
        for name, value in loaded.named_parameters()
        if not name.startswith(NETWORK)
    )


# --------------------------------------------------------------------------------------------------- the measurement


def answer_with(monkeypatch, words, heatmaps):
    """Let ``camtool.tokens`` return these words with these heatmaps."""
    explanations = tuple(SimpleNamespace(label=word, heatmap=heat) for word, heat in zip(words, heatmaps, strict=True))
    monkeypatch.setattr(
        measure, "tokens", lambda *_, **__: camtool.explaining.written_answers.AnswerMaps("", explanations)
    )
    return measure.play_word_pointing_game(None, None, [FIRST], method="tam", prompt=PROMPT, token=TOKEN)


def point_at(y, x):
    heat = np.zeros((128, 128), np.float32)
    heat[y, x] = 1
    return heat


def test_pointing_is_on_the_object_or_one_token_beside_it(monkeypatch):
    one, other = draw_scene(FIRST, objects=2).objects
    rows, columns = np.nonzero(one.mask)
    top, column = rows[0], columns[0]
    for distance, hits, near in ((0, 1.0, 1.0), (1, 0.5, 1.0), (TOKEN, 0.5, 1.0), (TOKEN + 1, 0.5, 0.5)):
        heatmaps = [other.mask.astype(np.float32), point_at(top - distance, column)]
        found = answer_with(monkeypatch, [other.label, one.label], heatmaps)
        assert (found.hits, found.near) == (hits, near)
        assert found.energy == pytest.approx((1 + (distance == 0)) / 2)
        assert (found.named, found.wrong, found.words) == (1, 0, 2)


def test_words_without_an_object_are_counted(monkeypatch):
    one, other = draw_scene(FIRST, objects=2).objects
    absent = next(label for label in LABELS if label not in (one.label, other.label))
    found = answer_with(monkeypatch, ["one", absent, one.label], [point_at(0, 0)] * 2 + [one.mask.astype(np.float32)])
    assert (found.named, found.wrong, found.words, found.hits) == (0.5, 1, 1, 1.0)
    with pytest.raises(CamtoolError, match="names no object"):
        answer_with(monkeypatch, [absent], [point_at(0, 0)])


# ------------------------------------------------------------------------------------------------ the bundled weights


def test_the_weights_are_small_and_have_a_card():
    assert (WEIGHTS / "captioner.safetensors").stat().st_size < 250_000
    text = (WEIGHTS / "captioner.md").read_text(encoding="utf-8")
    assert text.startswith("# captioner\n")
    assert "the model was told where the objects are" in " ".join(text.split())


def test_it_names_both_objects_and_its_words_point_at_them(captioner):
    model, processor = captioner
    scene = draw_scene(measure.UNSEEN, objects=2)
    maps = camtool.tokens(model, processor, scene.image, PROMPT)  # the default method, as in the documentation
    assert {each.method for each in maps} == {"tam"}
    assert maps.answer == train.describe_scene(scene) == "one fish and one lightning"
    for item in scene.objects:
        assert item.mask.flat[maps[item.label].heatmap.argmax()]
        assert maps[item.label].warnings == ()


def test_the_language_model_is_explained_whatever_the_scene_shows(captioner):
    """An object at the border of a changed half hides, in some of the scenes, that the tokens are in order."""
    model, processor = captioner
    orders = []
    for seed in range(FIRST, FIRST + 12):
        photo = Image.fromarray(draw_scene(seed, objects=2).image)
        found = find_candidates(model, dict(processor(images=photo, text=PROMPT, return_tensors="pt")))
        assert [each.name for each in found if each.chosen] == ["model.language_model.layers.1.input_layernorm"]
        orders += [each.in_order for each in found if each.name.startswith("model.language_model.")]
    assert False in orders


@pytest.mark.nightly
def test_words_point_at_their_objects_as_on_the_card_and_better_than_raw_attention(captioner, monkeypatch):
    """Each figure is within four standard deviations of the mean of a sample of 120 numbers in [0, 1]."""
    monkeypatch.setattr(measure, "UNSEEN", FIRST)
    answers: dict[bytes, str] = {}  # each scene's, which the model writes once and not for each method

    def explain_answer(model, processor, image, prompt, **options):
        scene = image.tobytes()
        maps = camtool.tokens(model, processor, image, prompt, answers.get(scene), **options)
        answers[scene] = maps.answer
        return maps

    monkeypatch.setattr(measure, "tokens", explain_answer)
    text = (WEIGHTS / "captioner.md").read_text(encoding="utf-8")
    on_card = {
        method: [float(each) / 100 for each in re.findall(r"([\d.]+)%", rest)]
        for method, rest in re.findall(r"^\| `([\w-]+)` \| (.*) \|$", text, re.MULTILINE)
    }
    measured = train.measure_captioner(captioner[0], 60)
    assert tuple(on_card) == tuple(measured)
    for method, now in measured.items():
        for one, other in zip(on_card[method], (now.hits, now.near, now.energy), strict=True):
            assert abs(one - other) <= 4 * np.sqrt(max(one * (1 - one), 0.01) / 120), method
    shown = {method: (round(each.hits, 3), round(each.near, 3)) for method, each in measured.items()}
    attention = measured["raw-attention"]
    precise = [measured[method] for method in ("tam", "gradcam-elementwise", "hirescam")]
    assert attention.named >= 0.95
    assert measured["tam"].hits >= 0.95, shown
    assert all(each.near >= 0.9 for each in precise), shown
    assert attention.near < min(each.near for each in precise), shown
    assert attention.hits < min(each.hits for each in precise), shown
