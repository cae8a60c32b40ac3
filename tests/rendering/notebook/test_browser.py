"""Cards in a browser, as nbconvert writes them and in JupyterLab: answers, opacity, and heat below a pointer."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.runs.report.test_browser import (
    CHROMIUM,
    Opened,
    browser,  # noqa: F401  a fixture
    opened,  # noqa: F401  a fixture
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

CODE = """
import camtool
from camtool.demo.scenes import draw_scene
model = camtool.load("demo")
result = camtool.explain(model, draw_scene(1_000_000_000, classes=["heart"]).image)
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a notebook that was run: its second cell shows an explanation, the third two of them."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    sources = [CODE, "result", "camtool.explain(model, [result.photo, result.photo])"]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nbclient.NotebookClient(made, timeout=120, kernel_name="python3").execute()
    path = tmp_path_factory.mktemp("notebook") / "result.ipynb"
    nbformat.write(made, path)
    return path


def use_card(page: Any) -> None:
    """Click the second answer, change the opacity, and point at the photo."""
    card = page.locator(".camtool-card[data-ready]").first
    card.wait_for()
    heat, answers = card.locator(".camtool-heat"), card.locator(".camtool-answers button")
    assert answers.count() == 5
    assert heat.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 100
    assert heat.evaluate("(image) => getComputedStyle(image).opacity") == "0.7"
    first = heat.get_attribute("src")
    answers.nth(1).click()
    assert heat.get_attribute("src") != first
    assert [answer.get_attribute("aria-pressed") for answer in answers.all()][:2] == ["false", "true"]
    card.get_by_label("Opacity").fill("30")
    assert heat.evaluate("(image) => getComputedStyle(image).opacity") == "0.3"
    answers.nth(0).focus()
    page.keyboard.press("Enter")
    assert heat.get_attribute("src") == first
    card.locator(".camtool-picture").hover()
    assert "% of the most heat here" in card.locator(".camtool-pointer").inner_text()


def test_a_card_from_disk(opened: Opened, notebook: Path, tmp_path: Path) -> None:  # noqa: F811
    exporters = pytest.importorskip("nbconvert.exporters")
    body, _ = exporters.HTMLExporter(template_name="basic").from_filename(str(notebook))
    path = tmp_path / "result.html"
    path.write_text(f'<!doctype html><meta charset="utf-8"><title>result</title>{body}', encoding="utf-8")
    page = opened.open(path)
    use_card(page)
    assert page.locator(".camtool-sheet img").count() == 2
    page.set_viewport_size({"width": 390, "height": 800})
    rights = "(cards) => cards.map((card) => card.getBoundingClientRect().left + card.scrollWidth)"
    assert max(page.eval_on_selector_all(".camtool-card", rights)) <= 390


def test_without_scripts_a_card_is_a_picture_with_answers(browser: Any, notebook: Path, tmp_path: Path) -> None:  # noqa: F811
    nbformat = pytest.importorskip("nbformat")
    shown = nbformat.read(notebook, 4).cells[1].outputs[0].data
    path = tmp_path / "result.html"
    path.write_text(shown["text/html"], encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator(".camtool-picture > img").count() == 1
    assert page.locator(".camtool-answers button").first.is_visible()
    assert not page.locator(".camtool-opacity").is_visible()
    context.close()


@pytest.mark.nightly
def test_a_card_in_jupyterlab(browser: Any, notebook: Path) -> None:  # noqa: F811
    if shutil.which("jupyter-lab", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("needs jupyterlab")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--IdentityProvider.token="]
    command += [f"--ServerApp.port={port}", f"--ServerApp.root_dir={notebook.parent}"]
    # Outputs of others are shown without scripts until a user trusts the notebook.
    subprocess.run([sys.executable, "-m", "jupyter", "trust", str(notebook)], check=True, capture_output=True)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = _open_when_ready(context.new_page(), f"http://127.0.0.1:{port}/lab/tree/{notebook.name}")
            use_card(page)
            context.close()
        finally:
            server.terminate()


def _open_when_ready(page: Any, url: str) -> Any:
    for _ in range(240):
        try:
            urlopen(url).close()
            break
        except OSError:
            time.sleep(0.5)
    page.set_default_timeout(600_000)
    page.goto(url, wait_until="domcontentloaded")
    return page
