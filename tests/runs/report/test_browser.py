"""The page in a browser: Chromium without a window opens it from disk. Nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camtool.runs.report import write_report
from tests.runs.report.folders import compress, write_run, write_shard

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

WAIT = 600_000
"""Milliseconds. It ends a test that hangs; nothing is measured."""

MARKUP = "<img src=x onerror=\"window.hacked='{}'\">"
HOSTILE_FILES = [
    "a#b.png",
    "a?b.png",
    "50%41.png",
    "a b'.png",
    'q".png',
    "n\nl.png",
    "<b>&amp;.png",
    os.fsdecode(b"\xff.png"),
]


class Opened:
    """A page in the browser, with everything that went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self._add_console(message.type, message.text))
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.requests.append(request.url))

    def _add_console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(text)

    def open(self, path: Path, hash_: str = "") -> Any:
        self.page.goto(f"{path.resolve().as_uri()}{hash_}")
        return self.page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # Containers run as root, for which Chromium's sandbox does not start.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """A new page. It is closed before the folder is deleted, whose photos it may still load."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    found = Opened(context.new_page())
    context.set_default_timeout(WAIT)
    sync_api.expect.set_options(timeout=WAIT)
    yield found
    context.close()
    assert found.errors == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:"))] == []


def make_lines() -> list[dict[str, Any]]:
    """Return 12 explanations of 6 photos, by two methods; photo 0 is wrong, photo 1 has a warning."""
    lines = []
    for number in range(6):
        for method in ("gradcam", "layercam"):
            line: dict[str, Any] = {
                "image": f"photo{number}.png",
                "method": method,
                "label": ["cat", "dog", "ant"][number % 3],
                "index": number % 3,
                "probability": [0.9, 0.2, 0.5, 0.7, 0.6, 0.1][number],
                "score": float(number),
                "files": {"overlay": f"{number}.{method}.png"},
                "predicted_label": ["cat", "dog", "ant"][number % 3],
                "true_label": "fox" if number == 0 else ["cat", "dog", "ant"][number % 3],
                "correct": number != 0,
            }
            if number == 1:
                line |= {"warnings": ["The model ranks this class 17th."], "warning_codes": ["low-rank"]}
            lines.append(line)
    return lines


@pytest.fixture
def report(tmp_path: Path) -> Path:
    lines = make_lines()
    for line in lines:
        line["image"] = str(tmp_path / "photos" / line["image"])
    failures = [{"image": "broken.jpg", "reason": "broken.jpg is damaged or cut short."}]
    return write_report(write_run(tmp_path, lines, failures=failures, run={"model": {"name": "resnet50"}})).path


def test_a_page_without_an_explanation_begins_with_the_reasons(opened: Opened, tmp_path: Path) -> None:
    failures = [{"image": "broken.jpg", "reason": "broken.jpg is damaged or cut short."}]
    page = opened.page
    page.goto(write_report(write_run(tmp_path, [], failures=failures)).path.as_uri())
    assert page.get_by_text("broken.jpg is damaged").is_visible()


def get_labels(page: Any) -> list[str]:
    return [str(text) for text in page.locator(".tile .label").all_text_contents()]


def count_tiles(page: Any) -> int:
    return int(page.locator(".tile").count())


def has_pixels(page: Any, selector: str) -> list[bool]:
    """Return for each image whether it is loaded and has pixels."""
    found: list[bool] = page.eval_on_selector_all(
        selector,
        """(images) => Promise.all(images.map(async (image) => {
            if (!image.complete) {
                await new Promise((done) => ['load', 'error'].forEach((each) => image.addEventListener(each, done)));
            }
            return image.naturalWidth > 0;
        }))""",
    )
    return found


def wait_for_count(page: Any, text: str) -> None:
    sync_api.expect(page.locator("#count")).to_have_text(text)


def get_checkbox(page: Any, group: str, name: str) -> Any:
    return page.get_by_role("group", name=group, exact=True).get_by_role("checkbox", name=name)


# ----------------------------------------------------------------------------------------------------- opening


def test_the_page_opens_from_disk(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    assert page.locator("h1").inner_text() == "resnet50"
    assert page.locator("#count").inner_text() == "12 explanations"
    assert count_tiles(page) == 12
    assert all(has_pixels(page, ".frame img"))
    stats = dict(
        zip(page.locator(".stat dt").all_inner_texts(), page.locator(".stat dd").all_inner_texts(), strict=True)
    )
    assert stats["Photos"] == "6"
    assert stats["Explanations"] == "12"
    assert stats["Accuracy"].startswith("83.3%")
    assert stats["With warnings"].startswith("2")
    assert stats["Failed"].startswith("1")


def test_a_run_without_labels_shows_no_verdicts(opened: Opened, tmp_path: Path) -> None:
    page = opened.open(write_report(write_run(tmp_path, [{}])).path)
    assert "Accuracy" not in page.locator(".stats").inner_text()
    assert page.locator(".verdict").count() == 0
    # Nothing differs, so there is nothing to filter or to sort by but the probability.
    assert page.locator(".facet legend").count() == 1
    assert page.locator(".facet legend").inner_text().startswith("Probability")


def test_a_run_with_nothing_but_failures(opened: Opened, tmp_path: Path) -> None:
    out = write_run(tmp_path, [], failures=[{"image": "a.png", "reason": "empty"}])
    page = opened.open(write_report(out).path)
    page.get_by_role("button", name="Failed 1").click()
    assert page.locator("#failures tr").all_inner_texts() == ["a.png\tempty"]


# ---------------------------------------------------------------------------------------------------- hostile names


@pytest.mark.skipif(os.name != "posix", reason="names that Windows does not allow")
def test_names_and_labels_with_markup_do_not_run(opened: Opened, tmp_path: Path) -> None:
    lines = []
    for number, name in enumerate(HOSTILE_FILES):
        markup = MARKUP.format(number)
        lines.append(
            {
                "image": str(tmp_path / "photos" / name),
                "method": f"gradcam{markup}",
                "label": f"</script>{markup}{number}",
                "layer": markup,
                "predicted_label": markup,
                "true_label": f"{markup}t",
                "correct": False,
                "warnings": [markup],
                "warning_codes": [f"code{markup}"],
                "files": {"overlay": name},
            }
        )
    failures = [{"image": MARKUP.format("f"), "reason": MARKUP.format("r")}]
    out = write_run(tmp_path, lines, failures=failures, run={"model": {"name": MARKUP.format("m")}})
    page = opened.open(write_report(out).path)
    assert page.locator("h1").inner_text() == MARKUP.format("m")
    assert has_pixels(page, ".frame img") == [True] * len(lines)
    assert page.locator(".tile .label").first.inner_text() == f"</script>{MARKUP.format(0)}0"
    for number in range(len(lines)):
        page.locator(".tile").nth(number).click()
        assert has_pixels(page, "#viewer .pictures img") == [True, True]
        page.keyboard.press("Escape")
    page.locator(".option input").first.check()
    page.get_by_role("button", name="Failed 1").click()
    assert page.locator("#failures td").first.inner_text() == MARKUP.format("f")
    page.evaluate("document.body.append(Object.assign(document.createElement('i'), {id: 'settled'}))")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x]").count() == 0


def test_the_policy_stops_markup_even_if_it_got_in(browser: Any, report: Path) -> None:
    """Otherwise the test above could pass because the event never fires."""
    context = browser.new_context()
    found = Opened(context.new_page())
    page = found.open(report)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked=1\">')")
    assert has_pixels(page, "img[src=x]") == [False]
    assert page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in error for error in found.errors)
    context.close()


# ------------------------------------------------------------------------------------------------ search and filters


def test_search_finds_every_word_in_any_text(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.keyboard.press("/")
    page.keyboard.type("DOG layerc")
    wait_for_count(page, "2 of 12 explanations")
    assert get_labels(page) == ["dog", "dog"]
    page.keyboard.press("Escape")
    wait_for_count(page, "12 explanations")
    page.locator("#search").fill("ranks 17th")
    wait_for_count(page, "2 of 12 explanations")
    page.locator("#search").fill("nothing like it")
    page.get_by_role("button", name="Clear all filters").click()
    assert count_tiles(page) == 12


def test_filters_narrow_each_other_and_count_what_is_left(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    get_checkbox(page, "Right or wrong", "Wrong").check()
    assert page.locator("#count").inner_text() == "2 of 12 explanations"
    counts = dict(
        zip(
            page.locator(".facet:has(legend:text-is('Class')) .name").all_inner_texts(),
            page.locator(".facet:has(legend:text-is('Class')) .number").all_inner_texts(),
            strict=True,
        )
    )
    assert counts == {"cat": "2", "dog": "0", "ant": "0"}
    # The facet's own options count as if none of them were chosen.
    assert page.locator(".option.right .number").inner_text() == "10"
    get_checkbox(page, "Method", "layercam").check()
    assert page.locator("#count").inner_text() == "1 of 12 explanations"
    page.get_by_role("button", name="Wrong, remove this filter").click()
    assert page.locator("#count").inner_text() == "6 of 12 explanations"
    page.get_by_role("button", name="layercam, remove this filter").click()
    assert page.locator("#count").inner_text() == "12 explanations"


def test_warnings_filter_by_kind_and_from_the_summary(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.locator(".kind", has_text="Low rank").click()
    assert get_labels(page) == ["dog", "dog"]
    page.get_by_role("button", name="Low rank, remove").click()
    get_checkbox(page, "Warnings", "No warning").check()
    assert page.locator("#count").inner_text() == "10 of 12 explanations"


def test_the_range_of_probabilities(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.get_by_label("Probability, lowest").fill("0.6")
    assert page.locator("#count").inner_text() == "6 of 12 explanations"
    page.get_by_label("Probability, highest").fill("0.8")
    assert page.locator("#count").inner_text() == "4 of 12 explanations"


def test_sorting(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.get_by_label("Sort by").select_option("probability")
    assert get_labels(page)[:4] == ["ant", "ant", "dog", "dog"]
    page.get_by_role("button", name="Reverse the order").click()
    assert page.locator(".tile .percent").all_inner_texts()[::2] == ["90%", "70%", "60%", "50%", "20%", "10%"]
    # Another column starts from its lowest value again.
    page.get_by_label("Sort by").select_option("label")
    assert get_labels(page) == ["ant"] * 4 + ["cat"] * 4 + ["dog"] * 4


def test_rows_without_a_value_are_last_in_both_directions(opened: Opened, tmp_path: Path) -> None:
    lines = [{"label": "no", "probability": None}, {"label": "low", "probability": 0.1}, {"label": "high"}]
    page = opened.open(write_report(write_run(tmp_path, lines)).path)
    page.get_by_label("Sort by").select_option("probability")
    assert get_labels(page) == ["low", "high", "no"]
    page.get_by_role("button", name="Reverse the order").click()
    assert get_labels(page) == ["high", "low", "no"]


def test_the_address_keeps_filters_order_and_photo(opened: Opened, report: Path, browser: Any) -> None:
    page = opened.open(report)
    page.get_by_label("Sort by").select_option("score")
    page.get_by_role("button", name="Reverse the order").click()
    get_checkbox(page, "Class", "dog").check()
    page.locator(".tile").nth(1).click()
    address = page.url
    title = page.locator("#viewer-file").inner_text()
    page.goto("about:blank")
    page.goto(address)
    assert page.locator("#viewer-file").inner_text() == title
    assert page.locator("#position").inner_text() == "2 of 4"
    page.keyboard.press("Escape")
    assert get_labels(page) == ["dog"] * 4
    assert page.get_by_label("Sort by").input_value() == "score"


def test_failures_are_listed_with_reasons(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.get_by_role("button", name="Failed 1").click()
    assert page.locator("#failures tr").all_inner_texts() == ["broken.jpg\tbroken.jpg is damaged or cut short."]
    assert not page.locator("#grid").is_visible()
    assert page.locator("#count").inner_text() == "1 photo could not be explained"
    page.get_by_role("button", name="Explanations", exact=True).click()
    assert page.locator("#grid").is_visible()


# ------------------------------------------------------------------------------------------------------- large view


def test_the_large_view_shows_pictures_numbers_and_warnings(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.locator(".tile").nth(2).click()
    view = page.get_by_role("dialog", name="dog")
    assert view.is_visible()
    assert has_pixels(page, "#viewer .pictures img") == [True, True]
    text = view.inner_text()
    for part in ("20.0%", "photo1.png", "layer4", "Right", "The model ranks this class 17th."):
        assert part in text
    assert "Explain a class that the model considers" in text
    assert page.get_by_role("link", name="Open photo").get_attribute("href") == "../photos/photo1.png"


def test_the_slider_divides_photo_and_overlay(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.locator(".tile").first.click()
    box = page.locator("#picture").bounding_box()
    page.mouse.click(box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"])
    assert 66 <= int(page.locator("#slider").input_value()) <= 74
    clip = page.locator("#picture").evaluate("(image) => getComputedStyle(image).clipPath")
    share = float(clip.removeprefix("inset(0px 0px 0px ").removesuffix("%)"))
    assert 66 <= share <= 74
    line = page.locator(".divider").bounding_box()
    assert abs(line["x"] - (box["x"] + share / 100 * box["width"])) <= 2
    # The photo lies exactly under the overlay.
    assert page.locator("#photo").bounding_box() == box
    # On the slider, arrows move it; elsewhere they go to the next photo.
    before = int(page.locator("#slider").input_value())
    page.keyboard.press("ArrowRight")
    assert int(page.locator("#slider").input_value()) == before + 1
    assert page.locator("#position").inner_text() == "1 of 12"


def test_keys_in_the_large_view(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.locator(".tile").nth(4).focus()
    page.keyboard.press("Enter")
    assert page.locator("#position").inner_text() == "5 of 12"
    page.keyboard.press("ArrowRight")
    assert page.locator("#position").inner_text() == "6 of 12"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#position").inner_text() == "4 of 12"
    page.keyboard.press(" ")
    assert page.locator("#slider").input_value() == "100"
    page.keyboard.press(" ")
    assert page.locator("#slider").input_value() == "30"
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0
    # The tile of the photo that was shown last has the focus.
    sync_api.expect(page.locator("li[aria-posinset='4'] .tile")).to_be_focused()


def test_back_closes_the_large_view(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.locator(".tile").first.click()
    page.go_back()
    sync_api.expect(page.locator("#viewer")).to_be_hidden()
    page.go_forward()
    sync_api.expect(page.locator("#viewer")).to_be_visible()


def test_the_methods_of_a_photo_are_switched(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.locator(".tile").first.click()
    first = page.locator("#picture").get_attribute("src")
    page.get_by_role("button", name="layercam").click()
    assert page.locator("#picture").get_attribute("src") == "0.layercam.png" != first
    assert page.get_by_role("button", name="layercam").get_attribute("aria-pressed") == "true"
    page.keyboard.press("m")
    assert page.locator("#picture").get_attribute("src") == "0.gradcam.png"


def test_targets_and_kinds_of_pictures_are_switched(opened: Opened, tmp_path: Path) -> None:
    files = {"mask": "a.mask.png", "overlay": "a.png"}
    lines = [{"image": "a.png", "label": "cat", "files": files}, {"image": "a.png", "label": "dog"}]
    lines.append({"image": "a.png", "label": "dog", "index": 1})  # again, as --target top1 --target top2 gives it
    page = opened.open(write_report(write_run(tmp_path, lines)).path)
    page.locator(".tile").first.click()
    page.get_by_role("button", name="mask", exact=True).click()
    assert page.locator("#picture").get_attribute("src") == "a.mask.png"
    assert page.get_by_role("group", name="Class", exact=True).last.get_by_role("button").count() == 2
    page.get_by_role("button", name="dog 50%").click()
    assert page.locator("#viewer-title").inner_text() == "dog"


def test_a_photo_that_is_gone_is_told(opened: Opened, report: Path) -> None:
    (report.parent.parent / "photos" / "photo0.png").unlink()
    page = opened.open(report)
    page.locator(".tile").first.click()
    sync_api.expect(page.locator("#stage-note")).to_contain_text("--copy-photos")
    assert page.locator("#picture").is_visible()
    assert not page.locator("#slider").is_visible()
    opened.errors.clear()  # the browser reports the missing file


def test_the_map_of_a_cluster_run_stands_beside_the_photo(opened: Opened, tmp_path: Path) -> None:
    heat = compress(np.arange(49, dtype=np.uint8).reshape(7, 7))
    from tests.runs.report.folders import write_picture

    photo = write_picture(tmp_path / "photos" / "a.png", (300, 200))
    shard = write_shard(
        tmp_path / "shards" / "0.parquet", [{"path": str(photo), "method": "gradcam", "label": "cat", **heat}]
    )
    page = opened.open(write_report(shard).path)
    page.locator(".tile").first.click()
    assert has_pixels(page, "#viewer .pictures img") == [True, True]
    assert not page.locator("#slider").is_visible()
    assert "7 x 7 cells" in page.locator("#stage-note").inner_text()
    left, right = page.locator("#photo").bounding_box(), page.locator("#picture").bounding_box()
    assert left["x"] + left["width"] <= right["x"]


# -------------------------------------------------------------------------------------------- keyboard, size, colors


def test_the_keyboard_walks_through_the_grid(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.locator(".tile").first.focus()
    per_row = page.evaluate("""() => {
        const top = (tile) => tile.getBoundingClientRect().top;
        const tiles = [...document.querySelectorAll('.tile')];
        return tiles.filter((tile) => top(tile) === top(tiles[0])).length;
    }""")
    place = "Number(document.activeElement.closest('li').ariaPosInSet)"
    for key, expected in [("ArrowRight", 2), ("ArrowDown", 2 + per_row), ("ArrowUp", 2), ("End", 12), ("Home", 1)]:
        page.keyboard.press(key)
        assert page.evaluate(place) == expected
    assert page.locator(".tile[tabindex='0']").count() == 1
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_of_thousands_of_rows_only_those_in_view_are_elements(opened: Opened, tmp_path: Path) -> None:
    lines = [{"image": f"{number}.jpg", "files": {}, "label": f"class {number % 1000}"} for number in range(5000)]
    page = opened.open(write_report(write_run(tmp_path, lines)).path)
    assert page.locator("#count").inner_text() == "5,000 explanations"
    assert 0 < count_tiles(page) < 100
    page.locator(".tile").first.focus()
    page.keyboard.press("End")
    page.wait_for_selector("li[aria-posinset='5000']")
    assert count_tiles(page) < 100
    page.locator("#search").fill("4321.jpg")
    wait_for_count(page, "1 of 5,000 explanations")
    assert count_tiles(page) == 1
    assert page.locator(".tile .file").inner_text() == "4321.jpg"


def test_light_and_dark(opened: Opened, report: Path) -> None:
    page = opened.open(report)

    def get_lightness() -> int:
        return int(
            page.evaluate("Number(getComputedStyle(document.body.parentElement).backgroundColor.match(/\\d+/)[0])")
        )

    assert get_lightness() > 200
    page.emulate_media(color_scheme="dark")
    assert get_lightness() < 50
    page.get_by_role("button", name="Switch to light colors").click()
    assert get_lightness() > 200
    # Chromium stores what a page asked it to a moment later.
    for _ in range(100):
        page.reload()
        if get_lightness() > 200:
            return
    pytest.fail("a reload forgets the choice")


def test_a_phone(opened: Opened, report: Path) -> None:
    opened.page.set_viewport_size({"width": 390, "height": 800})
    page = opened.open(report)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not page.locator("#facets").is_visible()
    page.get_by_role("button", name="Filters").click()
    get_checkbox(page, "Right or wrong", "Wrong").check()
    page.get_by_role("button", name="Show 2 explanations").click()
    assert count_tiles(page) == 2
    page.locator(".tile").first.click()
    assert page.evaluate("document.getElementById('viewer').scrollWidth") <= 390
    assert page.locator("#picture").bounding_box()["width"] > 300


def test_everything_that_can_be_used_has_a_name(opened: Opened, report: Path) -> None:
    page = opened.open(report)
    page.locator(".tile").nth(2).click()
    unnamed = page.evaluate("""() => [...document.querySelectorAll('button, a, input, select, img, dialog, summary')]
        .filter((each) => each.tagName === 'IMG' ? !each.alt : !(each.ariaLabel || each.textContent.trim()
            || each.getAttribute('aria-labelledby') || each.closest('label')?.textContent.trim()))
        .map((each) => each.outerHTML)""")
    assert unnamed == []
    assert page.locator("html").get_attribute("lang") == "en"
    for live in ("#count", "#position"):
        assert page.locator(live).get_attribute("aria-live") == "polite"


def test_without_motion_nothing_moves(opened: Opened, report: Path) -> None:
    opened.page.emulate_media(reduced_motion="reduce")
    page = opened.open(report)
    moving = page.evaluate("""() => [...document.querySelectorAll('*')].filter((each) => {
        const style = getComputedStyle(each);
        return style.animationName !== 'none'
            || (style.transitionProperty !== 'none' && style.transitionDuration !== '0s');
    }).length""")
    assert moving == 0
