"""Panels of models that compare with texts, write answers, or classify pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import camtool
from camtool.app.panels.segments import NOTHING, UNSEEN, find_segments
from camtool.app.panels.texts_and_answers import Piece, explain_answer, explain_texts, split_answer, split_prompts
from camtool.errors import CamtoolError, ModelError, TargetError
from camtool.models import Loaded, find_text_processor
from tests.app.panels.models import color_segmenter, draw_demo_scene, draw_noise, to_tensor
from tests.helpers.text_processors import make_llava_processor
from tests.helpers.two_towers import build_hugging_face, encode_texts
from tests.zoo.vision_language import WITH_GRID

# ----------------------------------------------------------------------------------------------------------- texts


def test_each_text_has_its_similarity_and_map() -> None:
    model = build_hugging_face()
    clip = Loaded(model, lambda photo: to_tensor(photo).double(), text=encode_texts)
    photo = draw_noise(24, 24)
    found = explain_texts(clip, photo, "a dog\n\n  a cat \na dog\na house")
    assert {each.label for each in found} == {"a dog", "a cat", "a house"}
    with torch.no_grad():
        features: Any = model.get_image_features(to_tensor(photo).double()[None])  # type: ignore[operator]
    embedding = features if isinstance(features, torch.Tensor) else features.pooler_output
    for each in found:
        expected = torch.cosine_similarity(embedding, encode_texts([each.label]))
        assert each.score == pytest.approx(float(expected), abs=1e-6)
        assert each.heatmap.shape == (24, 24)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


def test_prompts_that_cannot_be_compared_are_refused(demo: Loaded) -> None:
    for written, complaint in (
        ("  \n ", "write a text"),
        ("\n".join(f"text {n}" for n in range(9)), "9 texts came; at most 8"),
        ("x" * 301, "301 characters"),
    ):
        with pytest.raises(TargetError, match=complaint):
            split_prompts(written)
    with pytest.raises(ModelError, match="takes no texts"):
        explain_texts(demo, draw_demo_scene()[1], "a dog")


# --------------------------------------------------------------------------------------------------------- answers


@pytest.fixture(scope="module")
def captioner() -> tuple[Loaded, Any]:
    pytest.importorskip("transformers")
    from camtool.demo.captioner import load_captioner

    model, processor = load_captioner()
    return Loaded(model), processor


def test_each_word_of_the_answer_looks_at_its_object(captioner: tuple[Loaded, Any]) -> None:
    scene, photo = draw_demo_scene()
    found = explain_answer(*captioner, photo, " <image> what is shown ? ")
    assert found.text == "one fish and one lightning"
    assert "".join(each.text for each in found.pieces) == found.text
    for each in scene.objects:
        (piece,) = (one for one in found.pieces if one.text == each.label)
        assert piece.word is not None
        word = found.words[piece.word]
        assert word.label == each.label
        assert each.mask.flat[int(word.heatmap.argmax())]


def test_an_answer_of_the_user_is_explained(captioner: tuple[Loaded, Any]) -> None:
    found = explain_answer(*captioner, draw_demo_scene()[1], "<image> what is shown ?", " one lightning ")
    assert [each.label for each in found.words] == ["one", "lightning"]


def test_questions_that_cannot_be_asked_are_refused(captioner: tuple[Loaded, Any], demo: Loaded) -> None:
    photo = draw_demo_scene()[1]
    with pytest.raises(TargetError, match="write a question"):
        explain_answer(*captioner, photo, "  ")
    with pytest.raises(TargetError, match="501 characters"):
        explain_answer(*captioner, photo, "?" * 501)
    with pytest.raises(CamtoolError, match="no processor"):
        explain_answer(captioner[0], None, photo, "what is shown ?")
    with pytest.raises(ModelError, match="does not write text"):
        explain_answer(demo, captioner[1], photo, "what is shown ?")


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("A dog, a cat.", ("A", "dog", "a", "cat"), ["A", " ", "dog", ", ", "a", " ", "cat", "."]),
        ("don't", ("don", "t"), ["don", "'", "t"]),
        ("a b", ("a", "x", "b"), ["a", "x", " ", "b"]),
        ("", (), []),
    ],
)
def test_an_answer_is_split_at_its_words(text: str, words: tuple[str, ...], expected: list[str]) -> None:
    pieces = split_answer(text, words)
    assert [each.text for each in pieces] == expected
    assert [each.word for each in pieces if each.word is not None] == [*range(len(words))]
    assert all(each == Piece(words[each.word], each.word) for each in pieces if each.word is not None)


# -------------------------------------------------------------------------------------------------------- segments


def paint_colors() -> Image.Image:
    """Return a photo of 20 x 10 pixels: half of it black, 3/8 red, 1/8 blue at the right."""
    pixels = np.zeros((10, 24, 3), np.uint8)
    pixels[:, 12:21, 0] = 255
    pixels[:, 21:, 2] = 255
    return Image.fromarray(pixels)


def test_the_legend_lists_the_classes_with_their_shares() -> None:
    found = find_segments(color_segmenter(), paint_colors())
    assert [(each.label, each.share) for each in found.legend] == [
        ("red", pytest.approx(3 / 8)),
        ("blue", pytest.approx(1 / 8)),
        ("__background__", pytest.approx(1 / 2)),
    ]
    assert len({each.color for each in found.legend}) == 3


def test_a_click_finds_the_class_whose_color_is_there() -> None:
    photo = paint_colors()
    found = find_segments(color_segmenter(), photo)
    for x, label in ((0, "__background__"), (11, "__background__"), (12, "red"), (20.9, "red"), (23, "blue")):
        each = found.find_at(x, 5)
        assert each.label == label
        mixed = 0.4 * np.asarray(photo)[5, int(x)] + 0.6 * np.array(each.color)
        assert np.asarray(found.picture)[5, int(x)].tolist() == pytest.approx(mixed.tolist(), abs=1)


def test_what_the_model_did_not_see_has_no_class() -> None:
    from torchvision.transforms import CenterCrop, Compose, ToTensor

    found = find_segments(color_segmenter(Compose([CenterCrop(10), ToTensor()])), paint_colors())
    assert (found.classes[:, :7] == UNSEEN).all()
    assert (found.classes[:, 17:] == UNSEEN).all()
    assert (found.classes[:, 7:12] == 0).all()
    assert (found.classes[:, 12:17] == 1).all()
    assert [(each.label, each.share) for each in found.legend] == [("red", 0.5), ("__background__", 0.5)]
    with pytest.raises(TargetError, match="never saw"):
        found.find_at(3, 5)
    with pytest.raises(TargetError, match="outside"):
        found.find_at(24, 5)


def test_labels_that_overlap_are_all_in_the_legend_and_the_smallest_is_on_top() -> None:
    """Labels by sigmoids: "bright" where red or blue is, "blue" inside of it, and no label where the photo is black."""
    net = nn.Conv2d(3, 3, 1)
    net.weight.data = 6 * torch.tensor([[2.0, 0, 2], [0, 0, 1], [0, 1, 0]])[:, :, None, None]
    net.bias.data = torch.full((3,), -3.0)
    labels = ["bright", "blue", "green"]
    found = find_segments(Loaded(nn.Sequential(net, nn.Sigmoid()).eval(), to_tensor, labels), paint_colors())
    assert [(each.label, each.share) for each in found.legend] == [("bright", 1 / 2), ("blue", 1 / 8)]
    assert [found.find_at(x, 5).label for x in (12, 20, 21, 23)] == ["bright", "bright", "blue", "blue"]
    assert (found.classes[:, :12] == NOTHING).all()
    with pytest.raises(TargetError, match="predicts no label at the point"):
        found.find_at(3, 5)


def test_a_classifier_has_no_segments(demo: Loaded) -> None:
    with pytest.raises(ModelError, match="no segmenter"):
        find_segments(demo, draw_demo_scene()[1])


# ------------------------------------------------------------------------------------------------------- processors


def test_the_processor_is_read_from_the_folder_of_the_model(tmp_path: Path, demo: Loaded) -> None:
    pytest.importorskip("transformers")
    model: Any = WITH_GRID["llava"].build()
    assert find_text_processor(model) is None, "it was not loaded from a folder"
    assert find_text_processor(demo.model) is None
    model.save_pretrained(tmp_path)
    loaded = camtool.load(f"hf:{tmp_path}")
    assert find_text_processor(loaded.model) is None, "the folder holds no processor yet"
    make_llava_processor().save_pretrained(tmp_path)
    processor = find_text_processor(loaded.model)
    answer = explain_answer(loaded, processor, draw_noise(64, 64), "<image> what is this ?", "a red dog")
    assert [each.label for each in answer.words] == ["a", "red", "dog"]
    with pytest.raises(CamtoolError, match=r"reads a text beside the image: use camtool\.tokens"):
        camtool.explain(loaded, draw_noise(64, 64))
