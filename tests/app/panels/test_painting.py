"""Painting over a part of the photo."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import camtool
from camtool.app.html_fragments import describe_heat
from camtool.app.panels.painting import read_mask, repaint
from camtool.errors import CamtoolError, ImageError, ModelError
from camtool.models import Loaded
from tests.app.panels.models import Counted, box_model, color_segmenter, draw_demo_scene, draw_noise, to_tensor

PNG_START = b"\x89PNG\r\n\x1a\n"


def test_painting_over_the_object_moves_the_prediction_away(demo: Loaded) -> None:
    scene, photo = draw_demo_scene()
    fish, lightning = scene.objects
    without_fish = repaint(demo, photo, fish.mask)
    assert without_fish.top_before.label == "fish"
    assert without_fish.top_before.change < -0.3
    assert without_fish.top_after.label == "lightning"
    assert "changes from fish to lightning" in without_fish.describe()
    without_lightning = repaint(demo, photo, lightning.mask)
    assert without_lightning.top_after.label == "fish"
    assert without_lightning.describe().startswith("Still fish")


def test_the_numbers_are_those_of_the_painted_photo(demo: Loaded) -> None:
    scene, photo = draw_demo_scene()
    mask = scene.objects[0].mask
    painted = repaint(demo, photo, mask, "inpaint")
    with torch.no_grad():
        scores = demo(torch.stack([demo.transform(photo), demo.transform(painted.picture)]))
    for each in painted.changes:
        assert [each.score_before, each.score_after] == pytest.approx(scores[:, each.index].tolist(), abs=1e-3)
        assert [each.before, each.after] == pytest.approx(scores.softmax(1)[:, each.index].tolist(), abs=1e-4)
        assert each.score_change == pytest.approx(each.score_after - each.score_before)
    top = {*scores[0].topk(5).indices.tolist(), *scores[1].topk(5).indices.tolist()}
    assert {each.index for each in painted.changes} == top
    assert painted.share == pytest.approx(mask.mean())
    assert (np.asarray(painted.picture)[~mask] == np.asarray(photo)[~mask]).all(), "only painted pixels change"
    assert (np.asarray(painted.picture)[mask] != np.asarray(photo)[mask]).any(1).mean() > 0.9


def test_both_photos_run_in_one_forward_pass(demo: Loaded) -> None:
    scene, photo = draw_demo_scene()
    counted = Counted(demo.model).eval()
    repaint(Loaded(counted, demo.transform, demo.labels), photo, scene.objects[0].mask, "mean")
    assert counted.batches == [2]


def test_mean_fills_with_the_mean_color_and_inpaint_continues_what_is_around() -> None:
    pixels = np.zeros((20, 30, 3), np.uint8)
    pixels[:, 15:] = 200
    mask = np.zeros((20, 30), bool)
    mask[5:10, 20:25] = True
    loaded = Loaded(torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).eval(), to_tensor)
    mean = repaint(loaded, Image.fromarray(pixels), mask, "mean").picture
    around = repaint(loaded, Image.fromarray(pixels), mask, "inpaint").picture
    assert np.asarray(mean)[mask].tolist() == [[100, 100, 100]] * 25
    assert np.asarray(around)[mask].tolist() == [[200, 200, 200]] * 25


def test_a_large_photo_is_filled_without_a_trace_of_what_was_there() -> None:
    pixels = np.full((700, 1400, 3), 100, np.uint8)
    pixels[301:403, 501:605] = 250  # at odd places, so that pixels of the reduced photo hold both
    pixels[::2, 1300:] = 0  # lines that a reduced photo would lose, far from the mask
    mask = (pixels == 250).all(2)
    loaded = Loaded(torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).eval(), to_tensor)
    painted = np.asarray(repaint(loaded, Image.fromarray(pixels), mask, "inpaint").picture)
    assert painted[mask].max() <= 101
    assert (painted[~mask] == pixels[~mask]).all()


def test_the_sentence_on_the_heat_is_the_share_in_the_painted_part(demo: Loaded) -> None:
    scene, photo = draw_demo_scene()
    result = camtool.explain(demo, photo)
    mask = scene.objects[0].mask
    share = result.heatmap[mask].sum() / result.heatmap.sum()
    assert 0.01 < share < 0.99
    assert describe_heat(result, mask, "in the part") == f"{share:.0%} of the heat of fish is in the part."
    x0, y0, x1, y1 = box = (20, 0, 70, 128)
    share = result.heatmap[y0:y1, x0:x1].sum() / result.heatmap.sum()
    assert describe_heat(result, box, "in the box") == f"{share:.0%} of the heat of fish is in the box."
    cold = replace(result, raw=np.zeros_like(result.raw))
    assert describe_heat(cold, mask, "in the part") == ""


def test_what_cannot_be_painted_is_refused(demo: Loaded) -> None:
    _, photo = draw_demo_scene()
    with pytest.raises(ImageError, match="nothing is painted yet"):
        repaint(demo, photo, np.zeros((128, 128), bool))
    with pytest.raises(ImageError, match=r"\(64, 128\); it must be \(128, 128\)"):
        repaint(demo, photo, np.ones((64, 128), bool))
    with pytest.raises(CamtoolError, match=r"fill.*'blurr'.*'blur'"):
        repaint(demo, photo, np.ones((128, 128), bool), "blurr")
    mask = np.ones((24, 24), bool)
    for other in (color_segmenter(), box_model([(2, 2, 9, 9, 1, 0.9)])):
        with pytest.raises(ModelError, match="no classifier"):
            repaint(other, draw_noise(24, 24), mask)


@pytest.mark.parametrize("data", [b"\0\0\0", b"", PNG_START, PNG_START + b"\0\0\0\x0dIHDR" + b"\xff" * 17])
def test_a_damaged_mask_is_refused_even_if_a_library_replaced_image_open(
    monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    def asks_for_a_package(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("pi_heif")

    monkeypatch.setattr(Image, "open", asks_for_a_package)
    with pytest.raises(ImageError, match="cannot be read"):
        read_mask("data:image/png;base64," + b64encode(data).decode(), (4, 4))
