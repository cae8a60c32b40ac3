"""Which panel fits a model follows from what it returns."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn

from camtool.app.workbench import check_point, find_kind, read_outputs, resolve_target
from camtool.errors import TargetError
from camtool.models import Loaded
from camtool.targets import ClassScore, MatchedDetection
from tests.app.panels.models import box_model, color_segmenter, draw_demo_scene, draw_noise, to_tensor
from tests.helpers.two_towers import build_hugging_face, encode_texts


def test_the_kind_follows_from_the_output(demo: Loaded) -> None:
    photo = draw_noise(24, 24)
    embedding = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    embedding.num_classes, embedding.num_features = 0, 4  # type: ignore[assignment]
    assert find_kind(demo, draw_demo_scene()[1]) == "classes"
    assert find_kind(color_segmenter(), photo) == "segments"
    assert find_kind(box_model([(2, 2, 9, 9, 1, 0.9)]), photo) == "boxes"
    assert find_kind(box_model([]), photo) == "boxes", "a detector that finds nothing is still a detector"
    assert find_kind(Loaded(embedding.eval(), to_tensor), photo) == "other"
    assert find_kind(Loaded(build_hugging_face(), to_tensor, text=encode_texts), photo) == "texts"


def test_a_model_that_writes_has_an_answer() -> None:
    captioner = pytest.importorskip("camtool.demo.captioner")
    pytest.importorskip("transformers")
    assert find_kind(Loaded(captioner.load_captioner()[0]), draw_noise(32, 32)) == "answer"


def test_the_probabilities_are_those_of_the_model(demo: Loaded) -> None:
    photos = [draw_demo_scene(seed)[1] for seed in (1_000_000_000, 1_000_000_001)]
    output = read_outputs(demo, photos)
    with torch.no_grad():
        expected = torch.cat([demo(demo.transform(each)[None]) for each in photos])
    assert output.scores is not None
    assert output.probabilities is not None
    torch.testing.assert_close(output.scores, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output.probabilities, expected.softmax(1), rtol=1e-4, atol=1e-4)
    assert output.get_label(3) == "fish"


def test_a_single_score_stands_for_two_classes() -> None:
    net = nn.Sequential(nn.Conv2d(3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    photo = draw_noise(8, 8)
    output = read_outputs(Loaded(net, to_tensor, ["crack"]), [photo])
    with torch.no_grad():
        logit = net(to_tensor(photo)[None])[0, 0]
    assert output.scores is not None
    assert output.probabilities is not None
    torch.testing.assert_close(output.scores[0], torch.stack([-logit, logit]))
    torch.testing.assert_close(output.probabilities[0, 1], logit.sigmoid())
    assert [output.get_label(index) for index in (0, 1)] == ["not crack", "crack"]


def test_a_target_is_resolved_on_the_photo(demo: Loaded) -> None:
    assert resolve_target(demo, draw_demo_scene()[1], None) == ClassScore(3)
    boxes = box_model([(2, 2, 9, 9, 1, 0.4), (1, 1, 5, 5, 2, 0.9)])
    found = resolve_target(boxes, draw_noise(12, 12), None)
    assert isinstance(found, MatchedDetection)
    assert found.xyxy == (1, 1, 5, 5)


@pytest.mark.parametrize("point", [(-1, 2), (4, 2), (2, -0.5), (2, 3)])
def test_a_point_beside_the_photo_is_refused(point: tuple[float, float]) -> None:
    check_point(Image.new("RGB", (4, 3)), 3.9, 2.9)
    with pytest.raises(TargetError, match="outside of the photo of 4 x 3"):
        check_point(Image.new("RGB", (4, 3)), *point)
