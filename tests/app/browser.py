"""A page in a browser, for tests: Chromium without a window, cut off from all but this machine."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_WAIT = 600_000
"""Milliseconds. It ends a test that hangs; nothing is measured."""

_HOME = re.compile(r"(https?|wss?)://127\.0\.0\.1[:/]|data:|blob:")


class Opened:
    """The page in the browser, with everything that went wrong in it.

    Attributes:
        page: Playwright's page.
        errors: Errors of scripts and on the console.
        foreign: Addresses outside of this machine that the page asked for; none of them is reached.
    """

    def __init__(self, context: Any, url: str) -> None:
        self.context, self.url = context, url
        self.errors: list[str] = []
        self.foreign: list[str] = []
        context.set_default_timeout(_WAIT)
        context.route(lambda address: not _HOME.match(address), self._refuse)
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)

    def _refuse(self, route: Any) -> None:
        self.foreign.append(route.request.url)
        route.abort()

    def open(self) -> Opened:
        """Open the page, and wait for its first picture."""
        self.page.goto(self.url)
        self.page.wait_for_selector("#map")
        return self

    def read_source(self, selector: str = "#map") -> str:
        """Return the address of an image, which holds its data."""
        return str(self.page.locator(selector).first.get_attribute("src"))

    def read_pixels(self, selector: str = "#map") -> np.ndarray[Any, Any]:
        """Return the pixels of an image."""
        data = self.read_source(selector).partition(",")[2]
        return np.asarray(Image.open(BytesIO(base64.b64decode(data))), np.float32)

    def change(self, act: Callable[[], Any], selector: str = "#map") -> np.ndarray[Any, Any]:
        """Do something, wait until the image differs, and return its new pixels."""
        before = self.read_source(selector)
        act()
        self.page.wait_for_function(
            "([selector, before]) => { const found = document.querySelector(selector);"
            " return found && found.src !== before; }",
            arg=[selector, before],
        )
        return self.read_pixels(selector)

    def choose(self, name: str, option: str, *, typed: str = "") -> None:
        """Choose an option of a list by its text, after typing a part of it."""
        field = self.page.locator(f"#{name} input").first
        field.click()
        if typed:
            field.fill("")
            field.press_sequentially(typed)
        self.page.get_by_role("option", name=option, exact=True).click()

    def list_options(self, name: str, typed: str, count: int) -> list[str]:
        """Return the options that are left after typing; wait until there are so many."""
        field = self.page.locator(f"#{name} input").first
        field.fill("")
        # The list is filtered at each key.
        field.press_sequentially(typed)
        self.page.wait_for_function("(n) => document.querySelectorAll('[role=option]').length === n", arg=count)
        found = self.page.get_by_role("option").all_text_contents()
        field.press("Escape")
        return [text.replace("✓", "").strip() for text in found]

    def move_slider(self, name: str, value: float) -> None:
        """Set a slider, as dragging its handle does."""
        self.page.locator(f"#{name} input[type=range]").evaluate(
            "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true}));"
            " slider.dispatchEvent(new Event('change', {bubbles: true})); }",
            value,
        )

    def upload(self, path: Path) -> None:
        """Give a file to the page."""
        self.page.locator("#image-box input[type=file]").set_input_files(path)

    def wait_for_status(self, pattern: str) -> str:
        """Wait for a sentence in the status line, and return it."""
        line = self.page.locator("#status .status").filter(has_text=re.compile(pattern))
        line.wait_for()
        return str(line.text_content())
