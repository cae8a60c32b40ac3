"""What notebooks show: HTML and PNG of one explanation and of several, their size, and what they say."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import Compose, Resize, ToTensor

import camtool
from camtool.rendering import blend

BYTES = 300_000


def build_net() -> nn.Sequential:
    """Return a net of eight classes."""
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU())
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8)).eval()


LABELS = [f"class <{letter}>" for letter in "abcdefgh"]


def draw_photo(height: int = 60, width: int = 90) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height // 6, width // 6, 3), np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def explain(img: Any, target: Any = None, **options: Any) -> Any:
    transform = Compose([Resize((64, 64)), ToTensor()])
    return camtool.explain(build_net(), img, target, transform=transform, labels=LABELS, **options)


def show(result: object) -> dict[str, str]:
    """Return what IPython shows for an object: MIME type → data."""
    formatters = pytest.importorskip("IPython.core.formatters")
    shown: dict[str, str] = formatters.DisplayFormatter().format(result)[0]
    return shown


def list_answers(html: str) -> list[str]:
    return re.findall(r"<button [^>]*><span>(.*?)</span>", html)


def read_picture(text: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(text)))


def test_the_explained_class_is_first_and_the_models_best_answers_follow() -> None:
    photo = draw_photo()
    best = [each.label for each in explain(photo, camtool.targets.Top(5))]
    ranked = [label.replace("<", "&lt;").replace(">", "&gt;") for label in best]
    assert list_answers(show(explain(photo))["text/html"]) == ranked
    last = explain(photo, camtool.targets.Top(8))[-1]
    shown = list_answers(show(explain(photo, last.index))["text/html"])
    assert shown == [last.label.replace("<", "&lt;").replace(">", "&gt;"), *ranked[:4]]


@pytest.mark.parametrize(
    "change",
    [
        lambda result: replace(result, source=None),  # as after pickling
        lambda result: explain(draw_photo(), method="occlusion"),  # many passes for each class
        lambda result: explain(draw_photo(), method="eigencam"),  # the same map for all classes
    ],
    ids=["no model", "slow method", "no class"],
)
def test_only_the_explained_class_is_shown_if_others_are_unknown_or_slow(change: Callable[[Any], Any]) -> None:
    html = show(change(explain(draw_photo())))["text/html"]
    assert list_answers(html) == []
    assert html.count('data-colors="') == 1


def test_a_model_that_was_trained_since_then_adds_no_class() -> None:
    result = explain(draw_photo())
    with torch.no_grad():
        result.source.model[-1].weight.mul_(1.1)
    assert list_answers(show(result)["text/html"]) == []


def test_the_colors_over_the_photo_make_the_overlay() -> None:
    # Small pictures are not reduced, so only the compression of the colors differs.
    result = explain(draw_photo(200, 220))
    html = show(result)["text/html"]
    (colors,) = re.findall(r'aria-pressed="true" data-colors="data:image/webp;base64,([^"]*)"', html)
    layer = np.asarray(read_picture(colors), float)
    opacity = 0.7 * layer[:, :, 3:] / 255
    drawn = result.photo * (1 - opacity) + layer[:, :, :3] * opacity
    assert np.abs(drawn - result.overlay()).mean() < 2
    assert np.abs(drawn - blend(result.photo, 1 - result.heatmap)).mean() > 20


def test_numbers_below_the_pointer_are_the_heat_in_percent() -> None:
    result = explain(draw_photo(40, 48))
    (numbers,) = re.findall(
        r'aria-pressed="true"[^>]*data-numbers="([^"]*)" data-width="48"', show(result)["text/html"]
    )
    read = np.frombuffer(base64.b64decode(numbers), np.uint8).reshape(40, 48)
    np.testing.assert_allclose(read, 100 * result.heatmap, atol=0.51)


def test_a_large_photo_fits_into_few_bytes_and_loads_nothing() -> None:
    shown = show(explain(draw_photo(3000, 4000)))
    assert len(shown["text/html"]) < BYTES
    assert not re.search(r"(src|href)=[\"'](?!data:)|url\(|@import|https?:", shown["text/html"])
    assert max(read_picture(shown["image/png"]).size) == 320
    json.dumps(shown)  # a notebook is JSON


def test_labels_and_warnings_are_text() -> None:
    warning = camtool.warning_codes.MapWarning("<b>bold</b>", "low-rank")
    html = show(replace(explain(draw_photo()), warnings=(warning,)))["text/html"]
    assert "class &lt;" in html
    assert "<b>" not in html
    assert "&lt;b&gt;bold" in html
    assert "<summary>1 warning</summary>" in html


def test_a_signal_is_a_picture_without_controls() -> None:
    net = nn.Sequential(
        nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2)
    ).eval()
    (result,) = camtool.explain(net, torch.rand(1, 1, 32, generator=torch.Generator().manual_seed(0)))
    shown = show(result)
    assert 'data-colors="' not in shown["text/html"]
    assert "<img" in shown["text/html"]
    assert "image/png" in shown


def test_several_explanations_stand_side_by_side() -> None:
    results = explain([draw_photo(), draw_photo(90, 60)])
    shown = show(results)
    assert shown["text/html"].count("<figure>") == 2
    assert shown["text/html"].count("<figcaption>class &lt;") == 2
    assert read_picture(shown["image/png"]).width > 400
    assert isinstance(results, list)
    assert results == list(results)


def test_of_many_explanations_the_first_are_shown() -> None:
    shown = show(type(explain([draw_photo()]))([explain(draw_photo())] * 30))["text/html"]
    assert shown.count("<figure>") == 24
    assert "and 6 more" in shown


def test_no_explanation_is_shown_as_text() -> None:
    assert set(show(type(explain([draw_photo()]))())) == {"text/plain"}
