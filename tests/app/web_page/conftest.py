"""The runtime of the page, got once by npm, and a browser whose network is cut off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import camtool
from camtool.app.web_page.runtime import find_runtime
from camtool.demo.camnet import load_bundled_model
from camtool.models import Loaded
from tests.app.web_page.page_tab import Opened, draw, serve

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def runtime() -> Path:
    if shutil.which("npm") is None:
        pytest.skip("needs npm: apt-get install npm")
    return find_runtime()


# Playwright runs once at a time in a process, and tests of other subjects start it as well.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from open_browser("--disable-gpu")


def open_browser(*arguments: str) -> Iterator[Any]:
    """Yield Chromium with a false camera."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    camera = "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *camera, *arguments])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def demo() -> Loaded:
    """Return the demo's model with a label that would be markup, if it were not text."""
    loaded = load_bundled_model("demo")
    assert loaded.labels is not None
    return Loaded(loaded.model, loaded.transform, [HOSTILE, *loaded.labels[1:]], name="demo")


@pytest.fixture(scope="session")
def sample() -> Image.Image:
    return draw(3, objects=2, size=300)


@pytest.fixture(scope="session")
def folder(demo: Loaded, sample: Image.Image, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "demo"
    return camtool.export_page(demo, path, sample=sample, runtime=runtime)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serve(folder) as address:
        yield address


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    opened = Opened(browser, address, viewport={"width": 1440, "height": 900})
    yield opened
    opened.tab.close()
    assert len(opened.requests) == opened.loaded, "the page asked for something after it was loaded"
    assert opened.problems == []
