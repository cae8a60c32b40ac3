"""Weights: what a file holds, and whether it fits. No code in a file is ever run."""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from camtool.errors import ModelError, format_count, refuse_url

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["classes_in", "fill", "read_state"]


def read_state(path: str | PathLike[str]) -> dict[str, Tensor]:
    """The tensors in a ``.safetensors``, ``.pt`` or ``.pth`` file, by name; no code in the file is ever run.

    A checkpoint that keeps them under ``state_dict`` or ``model``, or under ``module.`` as ``DataParallel`` does, is
    unpacked.

    Raises:
        ModelError: There is no such file, it is damaged, it holds no tensors, or reading it would run code.
    """
    refuse_url("weights", path, ModelError)
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"weights {str(path)!r}: there is no such file.")
    found = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not any(isinstance(value, Tensor) for value in found.values()):
        raise ModelError(f"weights {str(path)!r} hold no tensors by name ({type(found).__name__}); save a state_dict.")
    tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    wrapped = all(key.startswith("module.") for key in tensors)
    return {key.removeprefix("module.") if wrapped else key: value for key, value in tensors.items()}


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ModelError(f"weights {str(path)!r} are no whole safetensors file: {error}.") from error


# What torch's safe unpickler lets through on damaged files.
_UNPICKLER_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)


def _read_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"weights {str(path)!r} are damaged, or a pickle that holds more than tensors; reading it could run any "
            "code, so it is refused. Save model.state_dict(), best as .safetensors."
        ) from error
    except _UNPICKLER_FAULTS as error:
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise ModelError(f"weights {str(path)!r} are damaged: {reason}") from error


def fill(model: nn.Module, state: Mapping[str, Tensor], path: str | PathLike[str]) -> None:
    """Load the tensors of a file into a model.

    Raises:
        ModelError: They do not fit. The message has two lines: a summary, and what may be done.
    """
    state = OrderedDict(state)
    # A file of tensors alone does not say which version of the model wrote it. Some models ask: the present one did.
    state._metadata = {"": {"version": getattr(model, "_version", None)}}  # type: ignore[attr-defined]
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(f"weights {str(path)!r} do not fit the model: {_misfit(model, state, error)}") from error


def _misfit(model: nn.Module, state: Mapping[str, Tensor], error: RuntimeError) -> str:
    """Return how a state differs from that of a model, and what may be done, in two lines."""
    expected = model.state_dict()
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    shapes = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in state and isinstance(tensor, Tensor) and tensor.shape != state[name].shape
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    told = [f"{format_count(len(names), 'tensor')} {kind} ({_first(names)})" for kind, names in kinds.items() if names]
    if not told:
        return str(error).splitlines()[-1].strip()
    return f"{'; '.join(told)}.\n{_remedy(expected.keys(), state.keys())}"


def _first(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names as a list."""
    return ", ".join([*names[:most], "..."] if len(names) > most else names)


def _remedy(expected: Set[str], found: Set[str]) -> str:
    """Return what may be done about names that do not match: another prefix, or another architecture."""
    prefix = _prefix(found, expected)
    if prefix:
        return f"The names in the file start with {prefix!r}; save them without it."
    prefix = _prefix(expected, found)
    if prefix:
        return f"The names of the model start with {prefix!r}, those in the file do not; save them with it."
    if expected == found:
        return "The names agree: build the model in the size, and with the number of classes, of the file."
    return "Is the file of another architecture? Give the model that it was saved from."


def _prefix(longer: Set[str], plain: Set[str]) -> str:
    """Return the prefix that turns at least half of the plain names into half of the longer ones; else nothing."""
    starts = {".".join(name.split(".")[:depth]) + "." for name in longer for depth in (1, 2, 3)}
    shared = {start: sum(f"{start}{name}" in longer for name in plain) for start in starts}
    best = max(shared, key=lambda start: shared[start], default="")
    return best if best and 2 * shared[best] >= max(len(plain), len(longer)) else ""


def classes_in(state: Mapping[str, Tensor], model: nn.Module) -> int | None:
    """How many classes the weights have: the length of what fills the model's last weight matrix."""
    matrices = [name for name, parameter in model.named_parameters() if parameter.ndim > 1]
    return len(state[matrices[-1]]) if matrices and matrices[-1] in state else None
