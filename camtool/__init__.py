"""See, and check, what an image model looked at.

``camtool.explain(model, "photo.jpg").save("where.png")`` is the whole of it; the README tells more.
"""

# Import only what Python has loaded already: `python -m camtool` looks in the working directory first, until
# camtool.__main__ stops that, which runs after this module. So no typing, and no __future__.
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from camtool.candidates import Candidates, candidate_layers
    from camtool.comparing import Comparison, compare
    from camtool.errors import (
        CamtoolError,
        ForwardError,
        GeometryError,
        ImageError,
        LayerError,
        MethodError,
        ModelError,
        NothingFoundError,
        TargetError,
    )
    from camtool.evidence import Evidence
    from camtool.explanation import Explainer, Explanation, explain
    from camtool.factorisation import Concepts, concepts
    from camtool.inputs import Inputs
    from camtool.methods import METHODS, method
    from camtool.models import Loaded, load
    from camtool.recorder import Record, Recorder

_HOMES = {
    "METHODS": "methods",
    "CamtoolError": "errors",
    "Candidates": "candidates",
    "Comparison": "comparing",
    "Concepts": "factorisation",
    "Evidence": "evidence",
    "Explainer": "explanation",
    "Explanation": "explanation",
    "ForwardError": "errors",
    "GeometryError": "errors",
    "ImageError": "errors",
    "Inputs": "inputs",
    "LayerError": "errors",
    "Loaded": "models",
    "MethodError": "errors",
    "ModelError": "errors",
    "NothingFoundError": "errors",
    "Record": "recorder",
    "Recorder": "recorder",
    "TargetError": "errors",
    "candidate_layers": "candidates",
    "compare": "comparing",
    "concepts": "factorisation",
    "explain": "explanation",
    "load": "models",
    "method": "methods",
}
"""Where each public name lives. A room is opened when a name of it is first used: `import camtool` costs nothing."""

_ROOMS = ("errors", "figures", "hooks", "maps", "overlay", "recorder", "targets")
"""The rooms that people reach into by name: ``camtool.targets.Top(3)``."""

__all__ = [
    "METHODS",
    "CamtoolError",
    "Candidates",
    "Comparison",
    "Concepts",
    "Evidence",
    "Explainer",
    "Explanation",
    "ForwardError",
    "GeometryError",
    "ImageError",
    "Inputs",
    "LayerError",
    "Loaded",
    "MethodError",
    "ModelError",
    "NothingFoundError",
    "Record",
    "Recorder",
    "TargetError",
    "candidate_layers",
    "compare",
    "concepts",
    "explain",
    "load",
    "method",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> "Any":
    if name in _ROOMS:
        return import_module(f"camtool.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'camtool' has no attribute {name!r}")
    value = getattr(import_module(f"camtool.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
