"""The two models that come with the package."""

from __future__ import annotations

from pathlib import Path

from camtool.demo.camnet import LABELS, camnet, transform
from camtool.errors import ModelError, near
from camtool.models import Loaded, read_state

__all__ = ["BUNDLED", "WEIGHTS", "bundled", "cheat", "honest"]

BUNDLED = {"demo": "camnet", "demo-cheat": "camnet-cheat"}
"""What a person asks for → the name of its weights and its model card."""

WEIGHTS = Path(__file__).parent / "weights"
"""The folder with the weights and the model cards."""


def bundled(name: str) -> Loaded:
    """A model of the demo, with its transform and its labels; nothing is fetched.

    Args:
        name: ``"demo"``, or ``"demo-cheat"``, which was trained to be right for the wrong reason.

    Raises:
        ModelError: The name is neither.
    """
    if name not in BUNDLED:
        raise ModelError(f"model {name!r} is not bundled; {' and '.join(BUNDLED)} are.{near(name, BUNDLED)}")
    model = camnet()
    model.load_state_dict(read_state(WEIGHTS / f"{BUNDLED[name]}.safetensors"))
    return Loaded(model.eval(), transform(), LABELS, name)


def honest() -> Loaded:
    """What ``camtool.load("demo")`` gives."""
    return bundled("demo")


def cheat() -> Loaded:
    """What ``camtool.load("demo-cheat")`` gives."""
    return bundled("demo-cheat")
