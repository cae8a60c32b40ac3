"""Words that are checked: numbers by hand on scores of pixels, the model's own probabilities, and planted words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from camtool.errors import CamtoolError
from camtool.explaining.word_checks import check_words, find_region

SIDE = 20
PATCH = slice(4, 8)  # 4 x 4 red pixels, 4 % of the photo


def draw_photo() -> np.ndarray:
    photo = np.full((SIDE, SIDE, 3), 100, np.uint8)
    photo[PATCH, PATCH] = (220, 0, 0)
    photo[15:18, 15:18] = (0, 220, 0)
    return photo


def make_map(word: str, place: slice = PATCH) -> Any:
    heatmap = np.zeros((SIDE, SIDE), np.float32)
    heatmap[place, place] = 1
    heatmap[place.start, 0] = 0.3  # cool
    return SimpleNamespace(label=word, heatmap=heatmap, photo=draw_photo())


def score_pixels(image: Image.Image) -> np.ndarray:
    """Return the probabilities of four words, of which the image decides the first two."""
    pixels = np.asarray(image).astype(float)
    redness = pixels[..., 0] - pixels[..., 1]
    return np.array([
        0.1 + 0.8 * (redness > 100).sum() / 16,  # a red patch
        0.9 if pixels.std() > 5 else 0.3,  # anything but one color
        0.7,  # the text
        0.004 * (1 + (redness > 100).any()),  # a word that the model would not say
    ])  # fmt: skip


def check(*maps: Any, fills: Any = ("mean",), controls: int = 4, least: float = 0.2) -> Any:
    return check_words(score_pixels, maps, fills=fills, controls=controls, least=least)


def test_the_numbers_of_each_source_are_those_by_hand() -> None:
    checks = check(*map(make_map, ("red", "thing", "and", "rare")))
    numbers = [(one.word, one.probability, one.covered, one.control, one.blank, one.source) for one in checks]
    assert numbers == [
        ("red", pytest.approx(0.9), pytest.approx(0.1), pytest.approx(0.9), pytest.approx(0.1), "region"),
        ("thing", 0.9, 0.9, 0.9, 0.3, "image"),
        ("and", 0.7, 0.7, 0.7, 0.7, "text"),
        ("rare", 0.008, 0.004, 0.008, 0.004, "text"),
    ]
    assert {one.share for one in checks} == {0.04}
    assert checks[2].sentence == (
        "'and' comes from the text, not from the image: its probability is 70%, 70% with its region covered (70% with "
        "as much covered elsewhere), and 70% with an image of one color."
    )


def test_a_map_beside_the_evidence_is_not_its_region() -> None:
    (one,) = check(make_map("red", slice(12, 16)))
    assert (one.covered, one.control, one.source) == (pytest.approx(0.9), pytest.approx(0.9), "image")


def test_what_a_word_loses_without_any_region_is_not_lost_to_its_own() -> None:
    """Each of the controls takes as much as the region, so the word does not come from it."""

    def score(image: Image.Image) -> np.ndarray:
        return np.array([0.2 if (np.asarray(image) == 50).any() else 0.8])

    dark = SimpleNamespace(**vars(make_map("word")) | {"photo": np.full((SIDE, SIDE, 3), 100, np.uint8)})
    dark.photo[::2] = 0  # the mean color is 50
    (one,) = check_words(score, [dark], fills=("mean",), controls=4, least=0.2)
    assert (one.probability, one.covered, one.control, one.blank, one.source) == (0.8, 0.2, 0.2, 0.2, "image")


def test_every_fill_must_show_that_a_word_needs_its_region() -> None:
    def score(image: Image.Image) -> np.ndarray:
        return np.array([0.8 if (np.asarray(image)[..., 0] == 220).any() else 0.1])

    both = check_words(score, [make_map("red")], fills=("mean", "zero"), controls=0, least=0.2)[0]
    assert (both.covered, both.source) == (0.1, "region")
    assert np.isnan(both.control)
    assert "covered elsewhere" not in both.sentence

    def score_black(image: Image.Image) -> np.ndarray:
        return np.array([0.1 if (np.asarray(image).sum(2) == 0).any() else 0.8])

    for fills, controls, source in ((("mean", "zero"), 0, "image"), (("mean",), 0, "text"), (("zero",), 4, "text")):
        (one,) = check_words(score_black, [make_map("red")], fills=fills, controls=controls, least=0.2)
        assert one.source == source  # black pixels elsewhere take as much as those in the region


def test_a_constant_map_has_no_region_and_a_wide_one_a_part_of_the_photo() -> None:
    assert not find_region(np.ones((4, 4))).any()
    ramp = np.arange(100.0).reshape(10, 10)
    np.testing.assert_array_equal(find_region(ramp), ramp >= 74.25)  # the hottest quarter, not the upper half
    flat = np.ones((10, 10))
    flat[0, 0] = 0
    assert find_region(flat).sum() == 0  # nearly all of the photo has the highest value
    (one,) = check(SimpleNamespace(**vars(make_map("red")) | {"heatmap": np.ones((SIDE, SIDE))}))
    assert (one.share, one.covered, one.source) == (0, one.probability, "image")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fills": ()}, "fills must be one or more of blur, mean, zero, inpaint"),
        ({"fills": "mean"}, "fills must be one or more of"),
        ({"fills": ("men",)}, "men"),
        ({"controls": -1}, "controls"),
        ({"least": 0}, "least"),
        ({"least": 1}, "least"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CamtoolError, match=message):
        check(make_map("red"), **settings)


# ------------------------------------------------------------------------------------------- models that write words

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

import camtool  # noqa: E402
from benchmarks import words  # noqa: E402
from tests.helpers.text_processors import make_llava_processor, make_qwen_processor  # noqa: E402
from tests.hooks.state.test_no_trace import unchanged  # noqa: E402
from tests.zoo.vision_language import WITH_GRID  # noqa: E402

PROMPTS = {
    "llava": "<image> what is this ?",
    "qwen2_vl": "<|vision_start|> <|image_pad|> <|vision_end|> what is this ?",
}


@pytest.mark.parametrize("kind", PROMPTS)
def test_probabilities_are_those_of_the_model_and_its_processor(kind: str) -> None:
    model, processor = WITH_GRID[kind].build(), make_llava_processor() if kind == "llava" else make_qwen_processor()
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    with torch.no_grad():  # Hugging Face's models register hooks at their first forward pass, and these stay
        model(**processor(images=photo, text=PROMPTS[kind], return_tensors="pt"))
    answer = camtool.tokens(model, processor, photo, PROMPTS[kind], "a dogs")
    with unchanged(model):
        checked = answer.verify(fills=("mean",), controls=2)
    assert answer.checks is None
    assert checked.checks is not None

    def compute(image: Image.Image) -> list[float]:
        given = processor(images=image, text=PROMPTS[kind], return_tensors="pt")
        written = processor.tokenizer("a dogs", add_special_tokens=False)["input_ids"]
        start = given["input_ids"].shape[1]
        for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
            if name in given:
                added = {"input_ids": written, "attention_mask": [1] * 3}.get(name, [0] * 3)
                given[name] = torch.cat([given[name], torch.tensor([added])], 1)
        with torch.no_grad():
            logits = model(**given).logits[0].double()
        of_tokens = [logits[start + place - 1].softmax(0)[token].item() for place, token in enumerate(written)]
        return [of_tokens[0], of_tokens[1] * of_tokens[2]]  # "dog" and "##s" are one word

    mean = Image.fromarray(np.broadcast_to(np.asarray(photo).mean((0, 1)).round(), (64, 64, 3)).astype(np.uint8))
    for index, one in enumerate(checked.checks):
        covered = np.asarray(photo).copy()
        covered[find_region(checked[index].heatmap)] = np.asarray(mean)[0, 0]
        assert one.probability == pytest.approx(compute(photo)[index], rel=1e-4)
        assert one.blank == pytest.approx(compute(mean)[index], rel=1e-4)
        assert one.covered == pytest.approx(compute(Image.fromarray(covered))[index], rel=1e-4)


def test_the_answer_shows_where_its_words_come_from(tmp_path: Any) -> None:
    model, processor = words.load_planted()
    scene = words.draw_scene(words.UNSEEN + 500_002, objects=2)
    answer = camtool.tokens(model, processor, scene.image, words.PROMPT)
    checked = answer.verify()
    assert checked.from_text == tuple(one.word for one in checked.checks or () if one.source == "text")
    assert (answer.from_text, answer.table) == ((), "")
    assert repr(checked).endswith(f"from the text: {', '.join(map(repr, checked.from_text))}>")
    lines = checked.table.splitlines()
    assert lines[0].split("  ")[0] == "word"
    assert [line.split()[0] for line in lines[1:]] == list(checked.words)
    for word, one in zip(checked, checked.checks or (), strict=True):
        warned = [warning for warning in word.warnings if warning.code == "word-from-text"]
        assert warned == ([one.sentence] if one.source == "text" else [])
    again = checked.verify(controls=1)
    assert [len(word.warnings) for word in again] == [len(word.warnings) for word in checked]
    assert checked.save(tmp_path / "answer.png").exists()
    with pytest.raises(CamtoolError, match=r"needs the model; call it on what camtool\.tokens returned"):
        camtool.explaining.written_answers.AnswerMaps("a", answer.explanations).verify()


@pytest.mark.nightly
def test_planted_words_are_marked_and_true_words_are_not() -> None:
    """The full measurement, on 300 scenes of each kind, is ``python -m benchmarks words``."""
    names = [*words.check_habits(words.UNSEEN + 600_000, 40), *words.check_given(words.UNSEEN + 600_000, 30)]
    sources = {kind: [one["source"] for one in names if one["kind"] == kind] for kind in ("true", "planted")}
    assert len(sources["planted"]) >= 40
    assert sources["planted"].count("text") >= 0.95 * len(sources["planted"])
    assert sources["true"].count("text") <= 0.05 * len(sources["true"])
