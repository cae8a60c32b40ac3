"""How files come into the page: while it loads, and its own files."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from camtool.models import Loaded
from tests.app.web_page.page_tab import Opened, check_picture, draw, encode, serve

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*unclosed.*:ResourceWarning")]

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
