"""The runtime of the page, got once by npm, and a browser whose network is cut off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import camtool
from camtool.app.web_page.building import find_runtime
from camtool.demo.camnet import load_bundled_model
from camtool.models import Loaded
from tests.app.web_page.page_tab import Opened, draw, serve
from tests.helpers.exporter import describe_operators_once

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def runtime() -> Path:
    if shutil.which("npm") is None:
        pytest.skip("needs npm: apt-get install npm")
    return find_runtime()


@pytest.fixture(autouse=True, scope="package")
def _operators_are_described_once() -> Iterator[None]:
    with describe_operators_once():
        yield


# Playwright runs once at a time in a process, and tests of other subjects start it as well.
@pytest.fixture(scope="package")
def playwright() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="package")
def browser(playwright: Any) -> Iterator[Any]:
    """One Chromium for all files; each test opens a page in a context of its own."""
    yield from open_browser(playwright, "--disable-gpu")


def open_browser(playwright: Any, *arguments: str) -> Iterator[Any]:
    """Yield Chromium with a false camera."""
    camera = "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"
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


@pytest.fixture(scope="package")
def retrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, Path]:
    """Return a model with other weights, the same classes and the same methods, and its file."""
    loaded = load_bundled_model("demo-cheat")
    path = tmp_path_factory.mktemp("retrained") / "retrained.onnx"
    return loaded, camtool.export(loaded, path, ["gradcam", "hirescam"], dynamic_batch=False)


@pytest.fixture(scope="package")
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
