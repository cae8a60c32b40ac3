"""The page of a repair in a browser: Chromium without a window opens it from disk. Nothing is downloaded."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from torch import nn

from camtool.evaluation.audit.result import WorstGroup
from camtool.evaluation.audit.trials import Effect
from camtool.evaluation.leaderboard.table import Interval
from camtool.evaluation.repair.result import Accuracy, ChangedAnswer, CueRepair, Effects, Repair
from tests.runs.report.test_browser import (
    CHROMIUM,
    MARKUP,
    Opened,
    browser,  # noqa: F401  a fixture
    opened,  # noqa: F401  a fixture
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

LOW, HIGH = Interval(0.1, 0.02, 0.3), Interval(0.9, 0.7, 0.98)


def build_repair(name: str = "the lower right corner") -> Repair:
    """Return a repair with pictures of two answers that became right, and of one that became wrong."""
    before, after = (
        Effects(*(Effect(10, 10, share, controls, share, 0.001, share.mean) for controls in (0.05, 0.0)))
        for share in (HIGH, LOW)
    )
    accuracy = Accuracy(40, LOW, HIGH, Interval(0.8, 0.6, 0.9))
    groups = tuple(WorstGroup("'star' with a cue", share, 20) for share in (LOW, HIGH))
    stream = BytesIO()
    Image.new("RGB", (64, 64), "gray").save(stream, "JPEG")
    answers = [
        ChangedAnswer("1.png", "star", f"with it: {name}", ("heart", "star"), True, stream.getvalue()),
        ChangedAnswer("2.png", "heart", f"without it: {name}", ("star", "heart"), True, stream.getvalue()),
        ChangedAnswer(name, name, "as it is", ("star", "arrow"), False, stream.getvalue()),
    ]
    return Repair(
        cues=(CueRepair(f"heart: mark: {name}", "mark", "heart", name, before, after, Interval(-0.8, -0.9, -0.6)),),
        accuracy=accuracy,
        with_cue=accuracy,
        without_cue=accuracy,
        by_class={"'heart'": accuracy, "'star'": accuracy},
        worst_groups=groups,
        changed=tuple(answers),
        tested=40,
        learned=40,
        head="classifier",
        notes=(name,),
        model=nn.Linear(2, 2),
        command=f"camtool repair photos --audit {name}",
    )


@pytest.mark.parametrize("width", [1440, 390])
def test_bars_line_up_and_nothing_is_wider_than_the_window(opened: Opened, tmp_path: Path, width: int) -> None:  # noqa: F811
    name = "a_long_name_without_any_place_to_break_it" * 3
    page = opened.open(build_repair(name).save(tmp_path) / "index.html")
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    page = opened.open(build_repair().save(tmp_path) / "index.html")
    bars = [bar.bounding_box() for bar in page.locator(".effect-bar").all()]
    assert len(bars) == 4
    assert len({bar["x"] for bar in bars}) == (2 if width == 1440 else 1)
    bar = page.get_by_role(
        "img", name="Giving it makes others 'heart', after: 10 %, 95 % interval 2 to 30, controls 0 %"
    )
    assert bar.count() == 1
    assert page.get_by_role("region", name="Became right").locator("img").count() == 2
    assert page.get_by_role("region", name="Became wrong").locator("img").count() == 1
    rows = page.get_by_role("region", name="Right answers before and after").locator("tr").all_inner_texts()
    assert rows[2].split("\t") == [
        "Without a cue",
        "40",
        "10 % (2 to 30)",
        "90 % (70 to 98)",
        "+80 points (+60 to +90)",
    ]
    if width == 1440:
        page.get_by_role("button", name="Switch to dark colors").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_names_with_markup_do_not_run(opened: Opened, tmp_path: Path) -> None:  # noqa: F811
    name = f"</script>{MARKUP.format('a')}"
    page = opened.open(build_repair(name).save(tmp_path) / "index.html")
    assert page.locator("article h2").first.inner_text() == f"1\nheart: {name}"
    assert page.evaluate("window.hacked") is None
