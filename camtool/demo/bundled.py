"""The two models that come with the package."""

from __future__ import annotations

from pathlib import Path

from camtool.arguments.messages import suggest_names
from camtool.demo.camnet import build_camnet, build_transform
from camtool.demo.shapes import LABELS
from camtool.errors import ModelError
from camtool.models import Loaded, read_state

BUNDLED = {"demo": "camnet", "demo-cheat": "camnet-cheat"}
"""Name for :func:`camtool.load` → name of the weights and the model card."""

CHEATED_CLASS = "heart"
"""Class whose training images carried a watermark, from which the cheating model recognizes it."""

WEIGHTS = Path(__file__).parent / "weights"
"""The folder with the weights and the model cards."""


def load_bundled_model(name: str) -> Loaded:
    """Return a model of the demo with its transform and labels. Nothing is downloaded.

    Args:
        name: ``"demo"``, or ``"demo-cheat"``, which was trained to recognize one class by a watermark.

    Raises:
        ModelError: The name is neither of them.
    """
    if name not in BUNDLED:
        raise ModelError(f"model {name!r} is not bundled; {' and '.join(BUNDLED)} are.{suggest_names(name, BUNDLED)}")
    model = build_camnet()
    model.load_state_dict(read_state(WEIGHTS / f"{BUNDLED[name]}.safetensors"))
    return Loaded(model.eval(), build_transform(), LABELS, name)


def load_honest_model() -> Loaded:
    """Return the model that ``camtool.load("demo")`` returns."""
    return load_bundled_model("demo")


def load_cheating_model() -> Loaded:
    """Return the model that ``camtool.load("demo-cheat")`` returns."""
    return load_bundled_model("demo-cheat")
