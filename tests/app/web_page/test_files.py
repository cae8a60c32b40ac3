"""How files come into the page: while it loads, one by one, many at once, and in folders."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import camtool
from camtool.models import Loaded
from tests.app.web_page.page_tab import Opened, check_picture, draw, encode, serve

pytestmark = pytest.mark.filterwarnings("ignore:.*unclosed.*:ResourceWarning")

# The page's script runs before, and has no model yet.
_EARLY = """addEventListener('DOMContentLoaded', () => {
  window.loadedBefore = document.querySelector('#model-name').textContent;
  ACT
});"""

_DROP = """
  const files = new DataTransfer(), happened = new Event('drop', {bubbles: true, cancelable: true});
  files.items.add(new File([Uint8Array.from(atob('CONTENT'), (one) => one.charCodeAt(0))], 'early.png'));
  happened.dataTransfer = files;
  document.body.dispatchEvent(happened);
"""

_CONTROLS = """
  for (const id of ['method', 'view', 'colormap', 'other', 'alpha', 'class']) {
    if (id === 'class') document.getElementById(id).value = 'fish';
    document.getElementById(id).dispatchEvent(new Event(id === 'alpha' ? 'input' : 'change', {bubbles: true}));
  }
"""

_KEEP_STATUS = """addEventListener('DOMContentLoaded', () => {
  window.said = [];
  new MutationObserver(() => said.push(document.querySelector('#status').textContent))
    .observe(document.querySelector('#status'), {childList: true});
});"""

_COUNT_DECODED = """() => {
  const decode = self.createImageBitmap;
  self.decoded = 0;
  self.createImageBitmap = (...given) => { decoded += given[0] instanceof Blob; return decode(...given); };
}"""


_READ_OUTLINED = """[...document.querySelectorAll('label, button')]
  .filter((one) => getComputedStyle(one).outlineStyle !== 'none').map((one) => one.textContent)"""


def test_an_image_that_is_dropped_while_the_model_loads_is_explained_then(
    browser: Any, address: str, demo: Loaded
) -> None:
    scene = draw(7, size=128)
    drop = _DROP.replace("CONTENT", base64.b64encode(encode(scene)).decode())
    opened = Opened(browser, address, _EARLY.replace("ACT", drop))
    assert opened.tab.evaluate("loadedBefore") == ""
    opened.tab.locator("#thumbnails [aria-label='early.png'][aria-pressed=true]").wait_for()
    opened.wait()
    check_picture(opened, demo, scene)
    assert opened.tab.locator("#status").inner_text() == ""
    assert opened.problems == []
    opened.tab.close()


def test_controls_that_are_used_while_the_model_loads_have_effect_then(
    browser: Any, address: str, demo: Loaded, sample: Image.Image
) -> None:
    opened = Opened(browser, address, _EARLY.replace("ACT", _CONTROLS))
    opened.tab.locator("#first h2", has_text="fish").wait_for()
    opened.wait()
    check_picture(opened, demo, sample, "fish")
    assert opened.problems == []
    opened.tab.close()


@pytest.mark.parametrize("is_compressed", [False, True])
def test_progress_tells_the_total_only_where_it_is_known(
    is_compressed: bool, browser: Any, folder: Path, tmp_path: Path
) -> None:
    for file in folder.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(gzip.compress(content, 1) if is_compressed else content)
    with serve(tmp_path, {"Content-Encoding": "gzip"} if is_compressed else {}) as address:
        opened = Opened(browser, address, _KEEP_STATUS)
        said = [text for text in opened.tab.evaluate("said") if text.startswith("Loading runtime.wasm")]
        opened.tab.close()
    size = (folder / "runtime.wasm").stat().st_size
    total = "" if is_compressed else f" of {size / 1e6:.1f}"
    assert said[-1] == f"Loading runtime.wasm: {size / 1e6:.1f}{total} MB ..."
    assert all((" of " in text) == (not is_compressed) for text in said)


def test_a_bad_file_has_a_sentence_in_its_row_and_the_others_are_explained(
    opened: Opened, retrained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    scenes = {f"{number}.png": encode(draw(number, size=96)) for number in range(4)}
    files = {"bad.png": b"no image", **scenes, "cut.png": scenes["0.png"][:200], "last.png": scenes["1.png"]}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (worker,) = opened.tab.workers
    worker.evaluate(_COUNT_DECODED)
    opened.tab.set_input_files("#files", [str(tmp_path / name) for name in files])
    opened.tab.locator("#status.bad", has_text="2 of 8 images could not be explained").wait_for()
    opened.wait()
    rows = opened.tab.locator("#rows tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows] == ["sample.png", *files]
    bad = {row.split("\t")[0]: row.split("\t")[1] for row in rows if len(row.split("\t")) == 2}
    assert bad == dict.fromkeys(("bad.png", "cut.png"), "This file is no image that the browser can read.")
    assert not opened.tab.locator("#stop").is_visible()
    assert opened.tab.locator("#thumbnails button:visible").count() == 6
    # The first bad file and the first image are read before the table begins, and each other file once for it.
    assert worker.evaluate("decoded") <= len(files) + 2
    opened.tab.locator("#thumbnails [aria-label='0.png'][aria-pressed=true]").wait_for()
    # A file that is gone, when another model explains all images again.
    (tmp_path / "2.png").unlink()
    loaded, path = retrained
    opened.tab.set_input_files("#files", str(path))
    opened.tab.locator("#status.bad", has_text="3 of 8 images could not be explained").wait_for()
    assert opened.tab.locator("#rows td.bad").count() == 3
    assert not opened.tab.locator("#stop").is_visible()
    # An image that cannot be shown leaves the former one.
    opened.tab.locator("#thumbnails [aria-label='2.png']").click()
    opened.tab.locator("#status.bad", has_text="no image that the browser can read").wait_for()
    opened.tab.locator("#thumbnails [aria-label='0.png'][aria-pressed=true]").wait_for()
    opened.tab.fill("#class", "fish")
    opened.tab.press("#class", "Enter")
    opened.tab.locator("#first h2", has_text="fish").wait_for()
    check_picture(opened, loaded, draw(0, size=96), "fish")


def choose_folder(opened: Opened, path: Path) -> None:
    opened.tab.set_input_files("#folder", str(path))


def drop_folder(opened: Opened, path: Path) -> None:
    """Drop a folder as a file manager does."""
    session = opened.tab.context.new_cdp_session(opened.tab)
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": 300, "y": 300, "data": data})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with more files than a browser lists at a time, hidden ones, and others than images."""
    photos, content = tmp_path / "photos", encode(draw(12, size=32))
    names = ["z.png", "B.jpg", ".hidden.png", ".git/objects.png", "cats/.thumbnails/a.png"]
    names += [f"cats/{number:03}.png" for number in range(110)]
    for name in names:
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(content)
    for name in ("notes.txt", "cats/model.onnx", "labels"):
        (photos / name).write_text("no image", encoding="utf-8")
    return photos


@pytest.mark.parametrize("give", [choose_folder, drop_folder])
def test_a_folder_gives_its_images_in_the_order_of_their_paths(
    give: Callable[[Opened, Path], None], opened: Opened, photos: Path
) -> None:
    give(opened, photos)
    names = ["B.jpg", *(f"cats/{number:03}.png" for number in range(110)), "z.png"]
    opened.tab.locator("#rows tr").nth(len(names)).wait_for()
    opened.wait()
    shown = opened.tab.locator("#rows td:first-child").all_inner_texts()
    assert shown == ["sample.png", *(f"photos/{name}" for name in names)]
    with opened.tab.expect_download() as download:
        opened.tab.click("#save")
    assert download.value.suggested_filename == f"photos_B_{opened.label()}.png"


@pytest.mark.parametrize("give", [choose_folder, drop_folder])
def test_a_folder_without_images_gets_a_sentence(
    give: Callable[[Opened, Path], None], opened: Opened, tmp_path: Path
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "notes.txt").write_text("no image", encoding="utf-8")
    give(opened, folder)
    opened.tab.locator("#status.bad", has_text="The folder has no images.").wait_for()


def test_a_page_of_one_file_says_how_folders_come_into_it(
    browser: Any, demo: Loaded, runtime: Path, photos: Path, tmp_path: Path
) -> None:
    page = camtool.export_page(demo, tmp_path / "page.html", "gradcam", runtime=runtime)
    opened = Opened(browser, page.as_uri())
    drop_folder(opened, photos)
    opened.tab.locator("#status.bad", has_text="choose it by the button Folder").wait_for()
    choose_folder(opened, photos / "cats")
    opened.tab.locator("#rows tr").nth(2).wait_for()
    opened.tab.close()


def test_files_are_chosen_by_the_keyboard_and_models_where_nothing_can_be_dropped(opened: Opened) -> None:
    assert opened.tab.get_attribute("#files", "accept") == "image/*,.onnx"
    opened.tab.locator("#theme").focus()
    for name in ("Choose images or an .onnx model", "Folder"):
        opened.tab.keyboard.press("Tab")
        (label,) = opened.tab.evaluate("[...document.activeElement.labels].map((label) => label.textContent)")
        assert label == name
        assert opened.tab.evaluate(_READ_OUTLINED) == [name]
