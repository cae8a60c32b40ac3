"""Results on disk, so that an evaluation that was interrupted goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from camtool.arguments.regular_files import iterate_lines
from camtool.errors import MetricError
from camtool.hooks.structures.nested_tensors import get_bytes


class Checkpoint:
    """A file with one result per line, as JSON: ``{"key": ..., "value": ...}``. A line that was cut off is ignored.

    Args:
        path: The file; it is made with the first result. ``None`` keeps the results in memory only.

    Raises:
        MetricError: The file holds something else.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Any] = {} if path is None or not path.exists() else _read(path)

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Any:
        return self._known[key]

    def add(self, results: Mapping[str, Any]) -> None:
        """Keep results, and write them to the file."""
        self._known.update(results)
        if self._path is None or not results:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"key": key, "value": value}) for key, value in results.items()]
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n".join(["", *lines, ""]))  # an empty line ends one that was cut off


def hash_tensors(tensors: Sequence[Tensor], *settings: object) -> str:
    """Return a hash of the values of tensors and of settings."""
    digest = hashlib.blake2b(digest_size=10)
    digest.update(repr(settings).encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(get_bytes(tensor))
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Any]:
    known, is_empty = {}, True
    for line in filter(bytes.strip, iterate_lines(path)):
        is_empty = False
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not _is_entry(entry):
            raise MetricError(f"checkpoint: {path} is not a checkpoint of camtool, or is damaged; give another file.")
        known[entry["key"]] = entry["value"]
    if not is_empty and not known:
        raise MetricError(f"checkpoint: {path} is not a checkpoint of camtool; give another file.")
    return known


def _is_entry(entry: Any) -> bool:
    """Return True for a key with what is kept of it: layer and time, values of the images, or an error."""
    if not isinstance(entry, dict) or entry.keys() != {"key", "value"} or not isinstance(entry["key"], str):
        return False
    value = entry["value"]
    if not isinstance(value, dict):
        return False
    numbers = [*value.get("values", ()), value.get("ms", 0)] if isinstance(value.get("values", []), list) else [None]
    texts = [value.get("layer", ""), value.get("error", "")]
    is_known = value.keys() in ({"layer", "ms"}, {"values"}, {"error"})
    return (
        is_known
        and all(isinstance(each, (int, float)) for each in numbers)
        and all(isinstance(each, str) for each in texts)
    )
