"""Photos with known content, for tests that would otherwise need a folder of them: scenes that the demo draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from camtool.demo.scenes import UNSEEN, Scene, draw_scene

_FIRST = UNSEEN + 200_000  # neither trained on nor counted in the model cards


def unseen(number: int, classes: Sequence[str] | None = None, **settings: int) -> Scene:
    """Return a scene that the bundled models were not trained on."""
    return draw_scene(_FIRST + number, classes=classes, **settings)


def save(each: Scene, path: Path) -> Path:
    """Write a scene's image to a file."""
    Image.fromarray(each.image).save(path)
    return path
