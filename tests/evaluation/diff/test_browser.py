"""The page of a comparison in a browser: Chromium without a window opens it from disk. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from camtool.evaluation.audit.trials import Effect
from camtool.evaluation.diff.result import CamDiff, ImageChange, MovedHeat
from camtool.evaluation.leaderboard.table import Interval
from tests.runs.report.test_browser import (
    CHROMIUM,
    Opened,
    browser,  # noqa: F401  a fixture
    opened,  # noqa: F401  a fixture
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


def build_diff() -> CamDiff:
    """Return a comparison of 40 images of models with long names; 12 of the images have pictures."""
    share = Interval(0.5, 0.3, 0.7)
    effects = [Effect(10, 10, Interval(mean, mean, mean), 0.0, share, 0.001) for mean in (0.0, 1.0)]
    finding = MovedHeat(
        "heart",
        0,
        "to",
        "the lower right corner",
        0.04,
        (0.8, 0.8, 1, 1),
        10,
        10,
        (0, 0.9),
        *effects,
        share,
        0.001,
        0.002,
    )
    images = [
        ImageChange(
            index,
            f"{index}.png",
            "heart",
            ("heart", "heart" if is_same else "star"),
            (0, 1 - is_same),
            (1, 1),
            0.5,
            0.0,
        )
        for index in range(40)
        for is_same in [index % 2]
    ]
    stream = BytesIO()
    Image.new("RGB", (40, 40)).save(stream, "JPEG")
    pictures = {index: (stream.getvalue(), stream.getvalue()) for index in range(12)}
    names = f"{'o' * 40}.safetensors", f"{'n' * 60}.safetensors"
    return CamDiff((finding,), (), (*images,), names, None, (), (), 0.02, 100, 0, pictures=pictures)


@pytest.mark.parametrize("width", [1440, 390])
def test_bars_line_up_and_images_are_counted(opened: Opened, tmp_path: Path, width: int) -> None:  # noqa: F811
    page = opened.open(build_diff().save(tmp_path) / "index.html")
    page.set_viewport_size({"width": width, "height": 900})
    bars, lines = page.locator(".effect-bar").all(), page.locator(".effect-text").all()
    assert len({(box["x"], box["width"]) for box in (bar.bounding_box() for bar in bars)}) == 1
    assert len({line.bounding_box()["height"] for line in lines}) == 1
    assert page.locator("#count").inner_text() == "12 of 40 images"
    last, hint = page.locator(".pair").last.bounding_box(), page.locator(".rest").bounding_box()
    assert hint["y"] - last["y"] - last["height"] >= 12
    page.get_by_label("Other answers only").check()
    assert page.locator("#count").inner_text() == "6 of 40 images"
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_all_images_are_counted_as_such(opened: Opened, tmp_path: Path) -> None:  # noqa: F811
    diff = build_diff()
    page = opened.open(replace(diff, images=diff.images[:12]).save(tmp_path) / "index.html")
    assert page.locator("#count").inner_text() == "12 images"
