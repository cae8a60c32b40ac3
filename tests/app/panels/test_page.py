"""The panels in a browser: each control is used once, on small models of every kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import camtool
from camtool.demo.captioner import build_processor
from camtool.models import Loaded
from tests.app.panels.page_models import ARROW, KINDS, STAR, build_for_page

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("gradio")

CHROMIUM = next((path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(path).exists()), None)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium"),
    # Of Gradio and of the libraries of its server.
    pytest.mark.filterwarnings("ignore"),
]

WAIT = 600_000
"""Milliseconds. It ends a test that hangs; nothing is measured."""


WATCH_PROGRESS = """() => {
  window.seen = [];
  const read = () => {
    const bar = document.querySelector('#trust-curves .ct-progress');
    if (bar) window.seen.push(Number(bar.getAttribute('aria-valuenow')));
  };
  new MutationObserver(read).observe(document.querySelector('#trust-curves'), { childList: true, subtree: true });
}"""
"""Notes each value of the progress bar, as some are shown for a moment only."""


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    from camtool.app.server import AppServer, ServerSettings

    # Before a browser waits: the first import of their library takes half a minute on a busy machine.
    prepared, processor = {name: build_for_page(name) for name in KINDS}, build_processor()

    def load(name: str, *arguments: Any, **options: Any) -> Loaded:
        return prepared[name] if name in prepared else camtool.load(name, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("camtool.app.server.load", load)
        patch.setattr("camtool.app.panels.texts_and_answers.find_text_processor", lambda _: processor)
        with AppServer(ServerSettings(port=0, models=["demo", *KINDS])) as started:
            yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(server: Any, browser: Any) -> Iterator[Any]:
    """The page with the first scene of the demo, explained; in the end the console must be free of errors."""
    opened, errors = browser.new_page(viewport={"width": 1440, "height": 900}), list[str]()
    opened.set_default_timeout(WAIT)
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(server.url)
    opened.wait_for_selector("#bars .bar")
    # The tabs of the panels come last; a choice before them could be overwritten.
    opened.get_by_role("tab", name="Can I trust it?").wait_for()
    yield opened
    opened.close()
    assert errors == []


def choose_model(page: Any, name: str, tab: str) -> None:
    """Choose a model, and open the tab that it must get."""
    page.locator("#model input").click()
    page.locator("#model input").fill(name)
    page.get_by_role("option", name=name, exact=True).click()
    open_tab(page, tab)


def open_tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def list_tabs(page: Any) -> list[str]:
    return [each.inner_text() for each in page.get_by_role("tab").all() if each.is_visible()]


def read_picture(page: Any, selector: str) -> np.ndarray[Any, Any]:
    """Return the pixels of what an element of the page shows."""
    shown = page.locator(selector).screenshot()
    return np.asarray(Image.open(BytesIO(shown)).convert("RGB")).astype(int)


def click_share(page: Any, selector: str, across: float, down: float) -> None:
    """Click at a share of the width and the height of an element."""
    box = page.locator(selector).bounding_box()
    page.locator(selector).click(position={"x": across * box["width"], "y": down * box["height"]})


def click_middle(page: Any, selector: str, box: tuple[float, float, float, float]) -> None:
    """Click at the middle of a box on the photo of 640 x 640 pixels."""
    click_share(page, selector, (box[0] + box[2]) / 1280, (box[1] + box[3]) / 1280)


def paint(page: Any, box: tuple[float, float, float, float]) -> None:
    """Paint over a box on the photo of 640 x 640 pixels, in zigzag."""
    canvas = page.locator("#paint-photo canvas")
    canvas.scroll_into_view_if_needed()
    place = canvas.bounding_box()

    def move(x: float, y: float) -> None:
        page.mouse.move(place["x"] + x / 640 * place["width"], place["y"] + y / 640 * place["height"])

    left, top, right, bottom = box
    move(left, top)
    page.mouse.down()
    for step in range(9):
        move(right if step % 2 == 0 else left, top + (bottom - top) * step / 8)
    page.mouse.up()


# -------------------------------------------------------------------------------------------------------- classifiers


def test_a_place_that_is_clicked_on_speaks(page: Any) -> None:
    assert list_tabs(page)[-3:] == ["Click a place", "Paint over", "Can I trust it?"]
    open_tab(page, "Click a place")
    for box, label in ((ARROW, "arrow"), (STAR, "star")):
        click_middle(page, "#place-photo img", box)
        page.wait_for_function(f"document.querySelector('#place-classes .ct-name')?.textContent === '{label}'")
    assert page.locator("#place-channels figure").count() == 6
    assert "all cells and the bias add up" in page.locator("#place-classes").inner_text()


def test_a_click_on_the_map_opens_the_place(page: Any) -> None:
    page.locator("#picture img").click()
    page.wait_for_selector("#place-channels figure")
    assert page.get_by_role("tab", name="Click a place").get_attribute("aria-selected") == "true"


def test_painting_over_the_object_changes_the_answer(page: Any) -> None:
    open_tab(page, "Paint over")
    page.locator("#paint-photo canvas").wait_for()
    before = read_picture(page, "#paint-photo canvas")
    paint(page, STAR)
    page.wait_for_selector("#paint-result table")
    assert "changes from star to arrow" in page.locator("#paint-result .ct-lead").inner_text()
    painted = read_picture(page, "#paint-photo canvas")
    assert (before != painted).any(2).mean() > 0.05, "the strokes can be seen"
    filled = page.locator("#paint-result img").get_attribute("src")
    page.get_by_label("mean color").check()
    page.wait_for_function("old => document.querySelector('#paint-result img').src !== old", arg=filled)
    page.get_by_role("button", name="Start again").click()
    page.wait_for_selector("#paint-result table", state="detached")
    assert (read_picture(page, "#paint-photo canvas") == before).all()


def test_another_image_clears_what_was_painted_and_checked(page: Any) -> None:
    open_tab(page, "Paint over")
    page.locator("#paint-photo canvas").wait_for()
    paint(page, STAR)
    page.wait_for_selector("#paint-result table")
    page.locator("#thumbnails button").nth(1).click()
    page.wait_for_selector("#paint-result table", state="detached")
    paint(page, STAR)
    page.wait_for_selector("#paint-result table")


def test_the_map_is_checked_with_progress(page: Any) -> None:
    open_tab(page, "Can I trust it?")
    page.evaluate(WATCH_PROGRESS)
    page.locator("#trust-button").click()
    page.wait_for_selector("#trust-verdict .ct-verdict")
    page.wait_for_selector("#trust-curves polyline.ct-random")
    seen = page.evaluate("window.seen")
    assert len(seen) >= 2
    assert seen == sorted(seen)
    assert page.locator("#trust-curves .ct-progress").count() == 0
    sentences = page.locator("#trust-curves .ct-chart p").all_inner_texts()
    numbers = [re.fullmatch(r"(\w+) (\d\.\d\d), random maps (\d\.\d\d) .*", each) for each in sentences]
    assert [each[1] for each in numbers if each] == ["Deletion", "Insertion"]
    # The look of the map has changed, and the map has not.
    open_tab(page, "Map")
    page.get_by_label("Opacity").last.press("ArrowLeft")
    open_tab(page, "Can I trust it?")
    assert page.locator("#trust-curves polyline.ct-random").count() == 2


def test_a_part_that_is_enough_is_a_picture_with_a_sentence(page: Any) -> None:
    open_tab(page, "Can I trust it?")
    page.locator("#enough-button").click()
    page.wait_for_selector("#enough img[alt='Enough alone']")
    assert re.search(r"\d+% of the photo alone, the rest blurred, gives \d+%", page.locator("#enough").inner_text())


# -------------------------------------------------------------------------------------------------------- other kinds


def test_the_boxes_of_a_detector_are_clicked_on(page: Any) -> None:
    choose_model(page, "boxes", "Objects")
    assert not {"Click a place", "Paint over", "Segments", "Texts", "Answer"} & {*list_tabs(page)}
    page.locator("#objects-photo img").wait_for()
    assert [each.split() for each in page.locator("#objects-list button").all_inner_texts()] == [
        ["cat", "91%"],
        ["dog", "64%"],
    ]
    click_middle(page, "#objects-photo img", ARROW)
    page.wait_for_selector("#objects-map img[alt='the map of dog']")
    arrow = page.locator("#objects-map img").get_attribute("src")
    page.locator("#objects-list button").first.click()
    page.wait_for_selector("#objects-map img[alt='the map of cat']")
    assert page.locator("#objects-map img").get_attribute("src") != arrow
    assert page.locator("#objects-list button[aria-pressed=true]").inner_text().startswith("cat")
    click_share(page, "#objects-photo img", 0.95, 0.95)
    page.get_by_text("No box is here").wait_for()


def test_a_detector_that_finds_nothing_says_so(page: Any) -> None:
    choose_model(page, "empty", "Objects")
    page.get_by_text("lower the confidence").wait_for()
    assert "finds no object" in page.locator("#bars").inner_text()
    assert page.locator("#picture img").count() == 1


def test_the_classes_of_a_segmenter_are_clicked_on(page: Any) -> None:
    choose_model(page, "segments", "Segments")
    page.locator("#segments-legend button").first.wait_for()
    names = [each.split()[0] for each in page.locator("#segments-legend button").all_inner_texts()]
    assert names == ["red", "blue", "__background__"]
    page.locator("#segments-legend button").nth(1).click()
    page.wait_for_selector("#segments-map img[alt='the map of blue']")
    click_middle(page, "#segments-photo img", ARROW)
    page.wait_for_selector("#segments-map img[alt='the map of red']")
    assert page.locator("#segments-legend button[aria-pressed=true]").inner_text().startswith("red")


def test_texts_are_compared_with_the_photo(page: Any) -> None:
    choose_model(page, "texts", "Texts")
    assert page.locator("#picture img").count() == 1, "the photo is shown before a text is there"
    page.locator("#texts-button").click()
    page.get_by_text("write a text to compare").wait_for()
    page.locator("#texts-field textarea").fill("a star\nan arrow")
    page.locator("#texts-button").click()
    page.wait_for_selector("#texts-maps img")
    assert {*page.locator("#texts-maps b").all_inner_texts()} == {"a star", "an arrow"}
    values = [float(each.split()[-1]) for each in page.locator("#texts-maps figcaption span").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    assert page.locator("#status").inner_text() == ""


def test_the_words_of_an_answer_are_clicked_on(page: Any) -> None:
    choose_model(page, "answer", "Answer")
    page.locator("#answer-field :is(input, textarea)").fill("<image> what is shown ?")
    page.locator("#answer-button").click()
    page.wait_for_selector("#answer-map img")
    assert page.locator("#answer-words p").inner_text() == "one star and one arrow"
    assert page.locator("#answer-words button[aria-pressed=true]").inner_text() == "arrow"
    arrow = read_picture(page, "#answer-map img")
    page.get_by_role("button", name="star", exact=True).click()
    page.wait_for_selector("#answer-map img[alt='the map of star']")
    star = read_picture(page, "#answer-map img")
    hotter = (star - arrow)[..., 0] - (star - arrow)[..., 2]  # redder, and less blue
    rows, columns = (np.array(hotter.shape) / 640)[:, None] * [[STAR[1], STAR[3]], [STAR[0], STAR[2]]]
    on_star = hotter[int(rows[0]) : int(rows[1]), int(columns[0]) : int(columns[1])]
    assert on_star.mean() > 20
    assert hotter.sum() - on_star.sum() < 0


def test_a_mask_that_is_none_is_refused_with_a_sentence(page: Any) -> None:
    open_tab(page, "Paint over")
    page.locator("#paint-photo canvas").wait_for()
    # Of all canvases, as the page may draw this one anew.
    page.evaluate("HTMLCanvasElement.prototype.toDataURL = () => 'data:image/png;base64,AAAA'")
    paint(page, STAR)
    page.get_by_text("the painted mask cannot be read").wait_for()
