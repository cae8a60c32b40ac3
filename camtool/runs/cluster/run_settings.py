"""``run.json`` of a cluster run: what makes its rows. A second start continues only with the same settings."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from camtool.errors import CamtoolError
from camtool.runs.cluster.output_folder import OutputFolder

__all__ = ["RUN_FILE", "describe_run", "get_versions", "hash_weights", "hold_settings"]

RUN_FILE = "run.json"
"""Name of the file in the output folder."""

_OWN_FIELDS = frozenset({"model", "weights", "labels", "method", "target", "engine", "device", "batch_size"})
"""Settings that are no options: they have fields of their own, and the target is recorded as the command's text."""

_LIBRARIES = ("camtool", "torch", "torchvision", "numpy", "pillow")
"""Libraries whose version may change a row."""


def get_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that may change a row."""
    return {"python": platform.python_version()} | {name: _find_version(name) for name in _LIBRARIES}


def _find_version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # e.g. camtool from a checkout
        return ""


def hash_weights(model: nn.Module) -> str:
    """Return a hash of all parameters and buffers of a model, and of their names."""
    digest = sha256()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            # Numpy has no bfloat16, so bytes are taken.
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def describe_run(
    model: nn.Module, *, name: str, settings: Mapping[str, Any], command: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what ``run.json`` says.

    Args:
        model: The model.
        name: Its name.
        settings: The settings of :class:`camtool.runs.cluster.explain_batch.ExplainBatch`.
        command: The options of the command by name.
        inputs: What is explained: numbers and a hash.
    """
    from camtool import __version__

    labels = settings.get("labels")
    return {
        "camtool": __version__,
        "command": dict(command),
        "model": {
            "name": name,
            "weights": settings.get("weights"),
            "sha256": hash_weights(model),
            "labels_sha256": None if labels is None else sha256("\n".join(labels).encode()).hexdigest(),
        },
        "method": settings.get("method"),
        "options": {key: value for key, value in settings.items() if key not in _OWN_FIELDS},
        "engine": settings.get("engine", "eager"),
        "device": settings.get("device", "auto"),
        "batch_size": settings.get("batch_size"),
        "seeds": {"method": settings["seed"]} if "seed" in settings else {},
        "versions": get_versions(),
        "inputs": dict(inputs),
    }


def hold_settings(folder: OutputFolder, wanted: Mapping[str, Any]) -> None:
    """Write ``run.json``, or check that the one of an earlier start has the same content.

    Raises:
        CamtoolError: The earlier run had other settings or inputs, or ``run.json`` is damaged.
        OSError: The file cannot be written.
    """
    text = json.dumps(wanted, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    found = folder.read(RUN_FILE)
    if found is None:
        folder.write(RUN_FILE, text.encode("utf-8", "backslashreplace"))
        return
    try:
        earlier = json.loads(found)
    except ValueError as error:
        raise CamtoolError(
            f"out {folder.name!r}: its {RUN_FILE} is damaged; give another folder with --out."
        ) from error
    differing = _list_differences(earlier, json.loads(text))
    if differing:
        raise CamtoolError(
            f"out {folder.name!r} holds a run with other settings or photos: {'; '.join(differing)}. Give another "
            "folder with --out, or start the earlier command again to continue it."
        )


def _list_differences(earlier: Any, now: Any, name: str = "") -> list[str]:
    """Return what differs, e.g. ``"method was ['gradcam'], is ['layercam']"``."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        keys = list(dict.fromkeys([*earlier, *now]))
        nested = [_list_differences(earlier.get(key), now.get(key), f"{name}.{key}" if name else key) for key in keys]
        return [each for found in nested for each in found]
    return [] if earlier == now else [f"{name} was {earlier!r}, is {now!r}"]
