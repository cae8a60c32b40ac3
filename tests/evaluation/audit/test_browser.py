"""The page of an audit in a browser: Chromium without a window opens it from disk. Nothing is downloaded."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from camtool.evaluation.audit import read_verdicts
from camtool.evaluation.audit.result import Audit
from tests.evaluation.audit.results import build_audit, build_finding, write_pictures
from tests.runs.report.test_browser import (
    CHROMIUM,
    MARKUP,
    Opened,
    browser,  # noqa: F401  a fixture
    has_pixels,
    opened,  # noqa: F401  a fixture
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

KEYS = ["heart: place: the lower right corner", "star: patch: a patch"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_pictures(tmp_path, *KEYS)
    return build_audit().save(tmp_path)


def open_page(opened: Opened, folder: Path) -> Any:  # noqa: F811
    return opened.open(folder / "index.html")


def list_pressed(page: Any) -> list[str]:
    return [str(text) for text in page.locator(".verdicts [aria-pressed=true]").all_inner_texts()]


def get_verdict_button(page: Any, number: int, verdict: str) -> Any:
    return page.get_by_role("group", name=f"Verdict on finding {number}").get_by_role("button", name=verdict)


def download(page: Any, folder: Path) -> dict[str, str]:
    """Save the verdicts in a browser that writes no files in place, and return them as the next audit reads them."""
    page.evaluate("delete window.showDirectoryPicker")
    with page.expect_download() as waited:
        page.get_by_role("button", name="Save verdicts").click()
    assert waited.value.suggested_filename == "verdicts.json"
    waited.value.save_as(folder / "verdicts.json")
    return {**read_verdicts(folder / "verdicts.json")}


def test_verdicts_are_marked_kept_and_downloaded(opened: Opened, folder: Path) -> None:  # noqa: F811
    page = open_page(opened, folder)
    assert page.locator("#judged").inner_text() == "0 of 2 findings judged"
    get_verdict_button(page, 1, "Object").click()
    get_verdict_button(page, 2, "Unsure").click()
    get_verdict_button(page, 2, "Shortcut").click()
    assert list_pressed(page) == ["Object", "Shortcut"]
    assert page.locator("#judged").inner_text() == "2 of 2 findings judged"
    assert page.locator("#note").inner_text() == "Not saved to a file yet"
    page.reload()
    assert list_pressed(page) == ["Object", "Shortcut"]
    assert download(page, folder) == dict(zip(KEYS, ["object", "shortcut"], strict=True))
    assert "move verdicts.json into the folder of this page" in page.locator("#note").inner_text()
    # The page was written before, but the file is saved.
    page.reload()
    assert list_pressed(page) == ["Object", "Shortcut"]
    assert page.locator("#note").inner_text() == ""
    # A second click takes a verdict back.
    get_verdict_button(page, 1, "Object").click()
    assert list_pressed(page) == ["Shortcut"]
    assert download(page, folder) == {KEYS[1]: "shortcut"}


def test_a_verdict_that_was_given_elsewhere_counts_more(opened: Opened, folder: Path) -> None:  # noqa: F811
    page = open_page(opened, folder)
    get_verdict_button(page, 1, "Object").click()
    get_verdict_button(page, 2, "Object").click()
    (folder / "verdicts.json").write_text(json.dumps({"of another finding": "unsure"}))
    build_audit().mark(KEYS[0], "shortcut").save(folder)
    page.reload()
    assert list_pressed(page) == ["Shortcut", "Object"]
    assert download(page, folder) == {KEYS[0]: "shortcut", KEYS[1]: "object", "of another finding": "unsure"}


FOLDER = """window.files = %s; window.showDirectoryPicker = async () => ({
    name: 'audit',
    getFileHandle: async (name, options = {}) => {
        if (!(name in files) && !options.create) throw new DOMException('none', 'NotFoundError');
        files[name] ??= '';
        return { getFile: async () => new Blob([files[name]]),
                 createWritable: async () => ({ close: async () => {},
                                                write: async (text) => { files[name] = text; } }) };
    } })"""


def test_verdicts_are_saved_in_place(opened: Opened, folder: Path) -> None:  # noqa: F811
    page = open_page(opened, folder)
    page.keyboard.press("j")
    page.keyboard.press("2")
    page.evaluate(FOLDER % json.dumps({"audit.json": "", "verdicts.json": '{"other": "unsure"}'}))
    page.get_by_role("button", name="Save verdicts").click()
    page.get_by_text("Saved in audit/verdicts.json").wait_for()
    assert json.loads(page.evaluate("files['verdicts.json']")) == {"other": "unsure", KEYS[0]: "shortcut"}
    page.reload()
    page.evaluate(FOLDER % "{}")
    page.get_by_role("button", name="Save verdicts").click()
    page.get_by_text("There is no audit.json in that folder").wait_for()
    assert page.evaluate("Object.keys(files)") == []


def test_keys_walk_and_mark(opened: Opened, folder: Path) -> None:  # noqa: F811
    page = open_page(opened, folder)

    def name_focus() -> str:
        return str(page.evaluate("document.activeElement.id"))

    page.keyboard.press("1")
    assert list_pressed(page) == []
    places = []
    for key in "jjjkk":
        page.keyboard.press(key)
        places.append(name_focus())
    assert places == ["finding-1", "finding-2", "finding-2", "finding-1", "finding-1"]
    for key, verdict in zip("123", ("Object", "Shortcut", "Unsure"), strict=True):
        page.keyboard.press(key)
        assert list_pressed(page) == [verdict]
    page.keyboard.press("Control+1")
    assert list_pressed(page) == ["Unsure"]


def test_the_tab_key_goes_from_top_to_bottom(opened: Opened, folder: Path) -> None:  # noqa: F811
    page, names = open_page(opened, folder), []
    for _ in range(10):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent.trim()"))
    one = ["Object", "Shortcut", "Unsure"]
    table = "Accuracy with the cue and without it, finding"
    first = ["Skip to the findings", "Switch to dark colors", "Save verdicts"]
    assert names == [*first, *one, f"{table} 1", *one]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert list_pressed(page) == ["Shortcut"]


def test_names_and_roles_tell_what_is_drawn(opened: Opened, folder: Path) -> None:  # noqa: F811
    page = open_page(opened, folder)
    card = page.get_by_role("article", name="heart: the lower right corner")
    name = "Covering it changes the answer: 75 %, 95 % interval 50 to 90, controls 10 %"
    assert card.get_by_role("img", name=name, exact=True).count() == 1
    bar = card.get_by_role("img", name="Pasting it makes others 'heart': 50 %").bounding_box()
    mean = card.locator(".effect-bar .mean").nth(1).bounding_box()
    interval = card.locator(".effect-bar .interval").nth(1).bounding_box()
    assert mean["width"] / bar["width"] == pytest.approx(0.5, abs=0.01)
    assert (interval["x"] - bar["x"]) / bar["width"] == pytest.approx(0.33, abs=0.01)
    assert interval["width"] / bar["width"] == pytest.approx(0.34, abs=0.01)
    control = card.locator(".effect-bar .control").first.bounding_box()
    assert (control["x"] + control["width"] / 2 - bar["x"]) / bar["width"] == pytest.approx(0.1, abs=0.01)
    assert card.get_by_role("listitem").filter(has_text="same place in all images").is_visible()
    rows = [text.split("\t") for text in card.locator(".accuracies tr").all_inner_texts()]
    assert [[cell.replace("\n", " ").strip() for cell in row] for row in rows] == [
        ["Accuracy", "with it", "without it"],
        ["All of the class", "90 % 20 images", "60 % 5 images"],
        ["site b", "60 % 5 images worst group", "60 % 5 images"],
        ["site a", "100 % 15 images", "0 images"],
    ]
    assert page.locator("img:not([alt]), img[alt='']").count() == 0
    page.set_viewport_size({"width": 1280, "height": 4000})  # pictures far below the window are not loaded
    assert all(has_pixels(page, "img"))
    levels = page.eval_on_selector_all("h1, h2, h3", "(all) => all.map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    page.get_by_text("Tested, not confirmed").click()
    table = page.get_by_role("region", name="Candidates that were not confirmed")
    row = "drop\tthe lower right corner\tplace\t75 % controls 10 %\t50 % controls 0 %\t0.3\t0.4\tq is above 0.02\t"
    assert f"{row}–" in table.inner_text()  # noqa: RUF001
    assert "20 of 25 'heart' images" in card.inner_text()


def shrink(page: Any, width: int) -> list[int]:
    page.set_viewport_size({"width": width, "height": 800})
    sizes: list[int] = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    return sizes


@pytest.mark.parametrize("width", [320, 390, 900, 1440])
def test_nothing_is_wider_than_the_window(opened: Opened, folder: Path, width: int) -> None:  # noqa: F811
    long = "a_long_name_of_a_file_without_any_place_to_break_it" * 3
    finding = build_finding(key=KEYS[0], name=long, label=long, facts=(long,), also=(long,), images=(long,))
    build_audit(finding, notes=(long,), not_tested=(long,), command=long).save(folder)
    page = open_page(opened, folder)
    page.eval_on_selector_all("details", "(all) => all.forEach((one) => { one.open = true; })")
    assert shrink(page, width) == [width, width]


def test_names_with_markup_do_not_run(opened: Opened, folder: Path) -> None:  # noqa: F811
    bad = f"</script>{MARKUP.format('a')}"
    write_pictures(folder, bad, name=bad)
    finding = build_finding(
        key=bad, name=bad, label=bad, facts=(bad,), by_group={bad: (2, 1)}, accuracy_by_group={bad: (1.0, 0.0)}
    )
    build_audit(finding, notes=(bad,), not_tested=(bad,), command=bad).save(folder)
    page = open_page(opened, folder)
    assert page.locator("article h2").first.inner_text() == f"1\n{bad}: {bad}"
    get_verdict_button(page, 1, "Object").click()
    assert download(page, folder) == {bad: "object"}
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x]").count() == 0


def test_an_audit_without_findings_says_what_that_means(opened: Opened, folder: Path) -> None:  # noqa: F811
    audit: Audit = build_audit(findings=(), false_discovery_rate=None)
    audit.save(folder)
    page = open_page(opened, folder)
    assert page.locator("h1").inner_text() == "0 suspicious findings in 100 images"
    assert "No finding does not mean no shortcut" in page.locator(".subtitle").inner_text()
    assert page.get_by_role("region", name="Candidates that were not confirmed").is_visible()
    page.keyboard.press("j")
    page.get_by_role("button", name="Switch to dark colors").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
