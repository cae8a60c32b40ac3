"""A page in a tab of Chromium, with what it computed, what it asked for, and what went wrong."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from PIL import Image

import camtool
from camtool.app.web_page.building import WARNINGS
from camtool.demo.scenes import draw_scene
from camtool.models import Loaded
from camtool.warning_codes import WARNING_KINDS

ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
"""Headers of a web server whose pages may use threads."""

_WAIT = 600_000
"""Milliseconds. It ends a test that hangs; nothing is measured."""

# Keeps the answers of the worker that have logits, and how many seconds they took.
_RECORD = """
window.answers = [];
window.Worker = class extends Worker {
  constructor(...given) {
    super(...given);
    this.addEventListener('message', ({data: {answer}}) => {
      if (answer?.logits) answers.push({...answer, seconds: (performance.now() - this.start) / 1000});
    });
  }
  postMessage(...given) {
    this.start = performance.now();
    super.postMessage(...given);
  }
};
"""

_READ_SOME = """
(step) => {
  const canvas = document.querySelector('#first canvas'), context = canvas.getContext('2d'), values = [];
  const [width, height] = [canvas.width, canvas.height].map((length) => Math.ceil(length / step));
  for (let row = 0; row < height; row++) {
    const {data} = context.getImageData(0, row * step, canvas.width, 1);
    for (let column = 0, at = 0; column < width; column++, at += 4 * step) values.push(...data.subarray(at, at + 3));
  }
  return [width, height, btoa(values.map((value) => String.fromCharCode(value)).join(''))];
}
"""


def draw(seed: int, **settings: Any) -> Image.Image:
    return Image.fromarray(draw_scene(seed, **settings).image)


@contextmanager
def serve(folder: Path, headers: dict[str, str] | None = None) -> Iterator[str]:
    """Serve a folder on this machine, with headers; yield its address."""

    class Handler(SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            super().end_headers()

        def log_message(self, *_: Any) -> None:
            """Write nothing to the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:  # else a browser that does not open leaves the thread, which keeps the process of the tests alive
        server.shutdown()
        thread.join()
        server.server_close()


class Opened:
    """The page in a tab, with what it asked for and what went wrong; a script may run before the page's own."""

    def __init__(self, browser: Any, address: str, script: str = "", **settings: Any) -> None:
        self.tab = browser.new_page(**settings)
        self.tab.set_default_timeout(_WAIT)
        self.tab.add_init_script(_RECORD + script)
        self.requests, self.problems = list[str](), list[str]()
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        self.tab.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.tab.goto(address)
        self.wait()
        self.loaded = len(self.requests)
        self.tab.context.set_offline(True)

    def wait(self) -> None:
        """Wait for the end of the work."""
        self.tab.locator("#status").filter(has_text="...").wait_for(state="hidden")
        self.tab.locator("#first h2:not(:empty)").wait_for()
        self.tab.locator("#stage[aria-busy=false]").wait_for()

    def read(self, which: str = "first") -> np.ndarray:
        """Return the pixels of a figure, RGB."""
        data = self.tab.evaluate(f"document.querySelector('#{which} canvas').toDataURL()")
        return np.asarray(Image.open(BytesIO(base64.b64decode(data.partition(",")[2]))).convert("RGB"))

    def choose(self, *images: tuple[str, bytes]) -> None:
        """Choose files as a user does, and wait until the first of them is explained, then for the end of the work."""
        files = [{"name": name, "mimeType": "", "buffer": content} for name, content in images]
        before = self.tab.evaluate("answers.length")
        self.tab.set_input_files("#files", files)
        self.tab.wait_for_function("(before) => answers.length > before", arg=before)
        self.wait()

    def drop(self, path: Path, name: str) -> None:
        """Give another model to the page, and wait until it explains."""
        self.tab.set_input_files("#files", str(path))
        self.tab.locator("#model-name", has_text=f"{name}, explained").wait_for()
        self.wait()

    def read_answer(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the logits and the raw maps of the last explanation, ``(K,)`` and ``(h, w)`` of each method."""
        found = self.tab.evaluate(
            "(({logits, maps}) => ({logits: [...logits], maps: Object.fromEntries(Object.entries(maps).map("
            "([name, {values, grid}]) => [name, [[...values], grid]]))}))(answers.at(-1))"
        )
        maps = {name: np.reshape(values, grid) for name, (values, grid) in found["maps"].items()}
        return np.array(found["logits"]), maps

    def read_pixels(self, step: int) -> np.ndarray:
        """Return every so many rows and columns of a large figure, RGB."""
        width, height, data = self.tab.evaluate(_READ_SOME, step)
        return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 3)

    def label(self) -> str:
        text: str = self.tab.locator("#first h2").inner_text()
        return text


def encode(image: Image.Image, kind: str = "PNG", **settings: Any) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()


def check_picture(opened: Opened, loaded: Loaded, image: Any, target: Any = None, method: str = "gradcam") -> None:
    """Check a figure against Python's: the label, the probability, and each pixel up to a gray level."""
    explanation = camtool.explain(loaded, image, target, method=method)
    assert opened.label() == explanation.label
    assert explanation.probability is not None
    shown = float(opened.tab.locator("#first .facts").inner_text().partition("%")[0])
    assert shown == pytest.approx(100 * explanation.probability, abs=0.06)
    known = {warning.code for warning in explanation.warnings if warning.code in WARNINGS}
    sentences = [f"{WARNING_KINDS[code].condition} {WARNING_KINDS[code].remedy}" for code in sorted(known)]
    assert sorted(opened.tab.locator("#first .warnings li").all_inner_texts()) == sorted(sentences)
    overlay = explanation.overlay()
    assert np.abs(opened.read().astype(int) - overlay).max() <= 1
