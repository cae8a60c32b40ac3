"""Names of classes in a text or a file."""

from __future__ import annotations

import ast
import json
from os import PathLike
from pathlib import Path
from typing import Any

from camtool.arguments.message_parts import add_article
from camtool.arguments.regular_files import read_regular
from camtool.errors import CamtoolError

# Bytes of a file of class names: a million names.
_MAX_LABELS_BYTES = 2**26

# Characters of names that are written in Python: its parser takes a hundred bytes for each.
_MAX_PYTHON = 2**22


def read_labels(text: str | PathLike[str]) -> list[str]:
    """Return the class names in ``"cat,dog"``, or in a file: one a line, a JSON list, a dictionary from or to indices.

    Raises:
        CamtoolError: There is no such file, or it cannot be read as any of these.
    """
    path = Path(text)
    if not path.exists() and "," in str(text):
        return [name.strip() for name in str(text).split(",")]
    if not path.exists() or path.is_dir():
        raise CamtoolError(f"labels: {text} is no file; give one, or the names with commas: --labels cat,dog.")
    labels = _parse_labels(path)
    if isinstance(labels, dict):
        labels = _order_labels(path, labels)
    if not isinstance(labels, list):
        raise CamtoolError(f"labels: {path} holds {add_article(type(labels).__name__)}; give a list of names.")
    return [str(label) for label in labels]


def _parse_labels(path: Path) -> Any:
    try:
        # Editors on Windows put a byte order mark at the start of UTF-8 files.
        content = read_regular(path, _MAX_LABELS_BYTES).decode("utf-8-sig").rstrip()
        # ImageNet's names are often a dictionary as Python writes it.
        is_python = path.suffix != ".json" and content.startswith("{") and content.endswith("}")
        if is_python and len(content) > _MAX_PYTHON:
            raise ValueError(f"it is a Python dictionary of more than {_MAX_PYTHON:,} characters; save it as .json")
        read = json.loads if path.suffix == ".json" else ast.literal_eval if is_python else str.splitlines
        return read(content)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # not UTF-8, not JSON, no dictionary
        raise CamtoolError(f"labels: {path} cannot be read: {error}.") from error


def _order_labels(path: Path, labels: dict[Any, Any]) -> list[Any]:
    """Return the names of a dictionary in the order of their indices.

    Raises:
        CamtoolError: The indices are not those from 0 on.
    """
    is_from_names = all(isinstance(value, int) for value in labels.values())  # class_to_idx of torchvision
    pairs = [(index, name) for name, index in labels.items()] if is_from_names else labels.items()
    names = {str(index): name for index, name in pairs}
    order = [str(index) for index in range(len(labels))]
    if names.keys() != {*order}:
        raise CamtoolError(
            f"labels: {path} holds a dictionary whose indices are not 0 to {len(labels) - 1}; give a list of names, "
            '{"0": "cat", "1": "dog"}, or {"cat": 0, "dog": 1}.'
        )
    # Keras writes pairs of an identifier and a name.
    return [name[-1] if isinstance(name, (list, tuple)) and name else name for name in map(names.get, order)]
