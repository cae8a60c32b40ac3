"""What computes: threads where the web server allows them, and WebGPU where the browser has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import camtool
from camtool.models import Loaded
from tests.app.web_page.conftest import open_browser
from tests.app.web_page.page_tab import ISOLATED, Opened, check_picture, serve

pytestmark = pytest.mark.filterwarnings("ignore:.*unclosed.*:ResourceWarning")


@pytest.fixture(scope="module")
def browser(playwright: Any) -> Iterator[Any]:
    """Chromium with WebGPU on the processor."""
    yield from open_browser(playwright, "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")


def check_answer(opened: Opened, demo: Loaded, sample: Image.Image, index: int | None = None) -> None:
    """Check the maps of all methods."""
    _, maps = opened.read_answer()
    for method, raw in maps.items():
        expected = camtool.explain(demo, sample, index, method=method).raw
        assert np.abs(raw - expected).max() <= 1e-3 * np.abs(expected).max(), method


def test_threads_compute_the_same(browser: Any, folder: Path, demo: Loaded, sample: Image.Image) -> None:
    with serve(folder, ISOLATED) as address:
        opened = Opened(browser, f"{address}?device=wasm")
        count = min(4, opened.tab.evaluate("navigator.hardwareConcurrency"))
        assert f"WebAssembly, {count} thread" in opened.tab.locator("#device").inner_text()
        check_picture(opened, demo, sample)
        check_answer(opened, demo, sample)
        assert opened.problems == []
        opened.tab.close()


def test_webgpu_computes_the_same(browser: Any, folder: Path, demo: Loaded, sample: Image.Image) -> None:
    with serve(folder) as address:
        opened = Opened(browser, f"{address}?device=webgpu")
        if not opened.tab.evaluate("navigator.gpu?.requestAdapter().then((adapter) => adapter !== null)"):
            pytest.skip("this browser has no WebGPU, not even on the processor")
        assert opened.tab.locator("#device").inner_text() == "Computed by WebGPU. Use WebAssembly"
        assert {request.removeprefix(address) for request in opened.requests} > {"webgpu.js", "webgpu.wasm"}
        assert not any("runtime." in request for request in opened.requests)
        check_answer(opened, demo, sample)
        opened.tab.locator("#bars .bar").nth(1).click()
        opened.wait()
        assert demo.labels is not None
        check_answer(opened, demo, sample, demo.labels.index(opened.label()))
        assert opened.problems == []
        opened.tab.close()


# Adapters on the processor are slower than WebAssembly.
def test_webassembly_is_chosen_where_webgpu_is_slow(browser: Any, folder: Path) -> None:
    with serve(folder) as address:
        opened = Opened(browser, address)
        assert opened.tab.locator("#device").inner_text().startswith("Computed by WebAssembly, 1 thread.")
        assert not any("webgpu" in request for request in opened.requests)
        opened.tab.close()


@pytest.mark.parametrize("broken", ["GPU.prototype.requestAdapter", "GPUAdapter.prototype.requestDevice"])
def test_webassembly_follows_where_webgpu_fails(
    broken: str, browser: Any, folder: Path, demo: Loaded, sample: Image.Image, tmp_path: Path
) -> None:
    """The files of WebGPU are there, and the device fails in the worker."""
    page = tmp_path / "page"
    page.mkdir()
    for file in folder.iterdir():
        (page / file.name).symlink_to(file)
    code = (page / "webgpu.js").read_text(encoding="utf-8")
    (page / "webgpu.js").unlink()
    (page / "webgpu.js").write_text(f"{broken} = async () => {{ throw new Error('lost') }};\n{code}", encoding="utf-8")
    with serve(page) as address:
        opened = Opened(browser, f"{address}?device=webgpu")
        shown = opened.tab.locator("#device").inner_text()
        assert shown.startswith("Computed by WebAssembly, 1 thread. WebGPU failed: ")
        assert shown.endswith(("lost", "perhaps for lack of memory."))
        check_answer(opened, demo, sample)
        assert opened.problems == []
        opened.tab.close()
