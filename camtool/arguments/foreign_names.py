"""Classes and functions of grad-cam, torchcam and captum, and how to write the same with camtool.

This module imports nothing heavy: ``camtool.__getattr__`` asks it about a name that camtool does not have.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NoReturn


def read_foreign_names(kind: str) -> dict[str, str]:
    """Return name → what to write here, of a table in ``foreign_names.json``, which lists the names of each."""
    tables = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {name: answer for answer, names in tables[kind].items() for name in names}


# A name of another library → the method that computes the same, or what comes closest.
METHOD_NAMES = read_foreign_names("methods")

# A name of another library → what to write here.
_OTHERS = read_foreign_names("others")


def describe_foreign_name(name: str) -> str | None:
    """Return how camtool writes what another library calls ``name``; None for any other name."""
    folded = re.sub(r"[^a-z0-9]", "", name.casefold())
    if folded in METHOD_NAMES:
        return f'camtool.explain(model, img, method="{METHOD_NAMES[folded]}")'
    return _OTHERS.get(folded)


def raise_missing_name(module: str, name: str) -> NoReturn:
    """Raise the error for a name that a module does not have; it says what to write for one of another library.

    Raises:
        AttributeError: Always, but in a ``from`` import of a foreign name, which hides the text of that error.
        ImportError: In such an import.
    """
    hint = None if name.startswith("_") else describe_foreign_name(name)
    missing = f"module {module!r} has no attribute {name!r}"
    if hint is None:
        raise AttributeError(missing)
    # The function of importlib that looks a name up for `from module import name`.
    caller = sys._getframe(1)
    callers = [frame.f_code.co_name for frame in (caller, caller.f_back) if frame is not None]
    is_import = "_handle_fromlist" in callers
    kind = ImportError if is_import else AttributeError
    raise kind(f"{missing}. Use {hint}.")
