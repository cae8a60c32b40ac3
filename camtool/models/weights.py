"""Files of weights: reading them, without running code in them, and loading them into a model."""

from __future__ import annotations

import pickle
import pickletools
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from camtool.arguments.checks import check_not_url
from camtool.arguments.message_parts import add_article, format_count
from camtool.errors import Forgive, ModelError, RaiseAs, raise_interrupt
from camtool.hooks.private_torch import set_state_version
from camtool.models.model_wrappers import NAME_PREFIXES

# Bytes of a pickle beside its tensors that are looked at.
_MAX_PICKLE = 2**24

# Beginnings of what a pickle of tensors names.
_OF_TENSORS = ("torch ", "torch._", "torch.storage", "torch.serialization", "collections ", "numpy")

# Kind of a file that was given as the name of a model → the end of its error message.
FILE_KINDS = {
    "missing": "is the name of no file that exists; give the name of a model, and a file of weights as weights= "
    "(--weights)",
    "weights": "is a file of weights; give it as weights= (--weights), together with the name of its model",
    "TorchScript": "is TorchScript; pass torch.jit.load(FILE), on the command line by package.module:factory",
    "model": "is a pickle of a whole model, which could run any code; save its state_dict(), and give that as weights= "
    "(--weights), together with the name of the model",
}


class WeightsWarning(UserWarning):
    """Weights that were loaded in another way than they are in the file."""


def read_state(path: str | PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors in a ``.safetensors``, ``.pt`` or ``.pth`` file by name. No code in the file is run.

    Checkpoints are unpacked: the tensors may be under ``state_dict``, ``model_state_dict`` or ``model``.

    Raises:
        ModelError: The file does not exist, is damaged, holds no tensors, or would run code.
    """
    check_not_url("weights", path, ModelError)
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"weights {str(path)!r}: no such file.")
    if not path.stat().st_size:  # a file of the system claims to be empty, and reading it may never end
        raise ModelError(f"weights {str(path)!r}: the file is empty.")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    state = _select_tensors(content)
    if not state:
        kind = add_article(type(content).__name__)
        raise ModelError(f"weights {str(path)!r} hold {kind}, not tensors by name; save model.state_dict().")
    return state


def _select_tensors(content: object) -> dict[str, Tensor]:
    pairs = content.items() if isinstance(content, Mapping) else ()
    return {key: value for key, value in pairs if isinstance(key, str) and isinstance(value, Tensor)}


def find_file_kind(path: Path) -> str:
    """Return what a file is that torch writes: a key of :data:`FILE_KINDS`. No code in it is run.

    A file that cannot be read is taken for one of weights, whose reader says what is wrong with it.
    """
    if not path.is_file():
        return "missing"
    faults = zipfile.BadZipFile, LookupError, OSError, ValueError, RuntimeError, NotImplementedError
    with Forgive(*faults), zipfile.ZipFile(path) as archive:
        folder, _, _ = archive.namelist()[0].partition("/")
        if f"{folder}/constants.pkl" in archive.namelist():
            return "TorchScript"
        with archive.open(f"{folder}/data.pkl") as stream:
            pickled = stream.read(_MAX_PICKLE)
        names = [str(argument) for code, argument, _ in pickletools.genops(pickled) if code.name == "GLOBAL"]
        if any(name.startswith("ultralytics.") for name in names):
            return "ultralytics"
        return "model" if any(not name.startswith(_OF_TENSORS) for name in names) else "weights"
    return "weights"


def match_names(
    state: Mapping[str, Tensor], path: str | PathLike[str], names: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return the tensors without the prefixes of wrappers that all their names have; a warning says so.

    Args:
        state: The tensors in a file by name.
        path: The file.
        names: The names in the model, which keep a prefix that they have.
    """
    matched, removed = dict(state), ""
    extra = [prefix for prefix in NAME_PREFIXES if not any(name.startswith(prefix) for name in names)]
    while prefix := next((candidate for candidate in extra if all(name.startswith(candidate) for name in matched)), ""):
        matched, removed = {name[len(prefix) :]: tensor for name, tensor in matched.items()}, removed + prefix
    if removed:
        text = f"weights {str(path)!r}: the prefix {removed!r} of the names is left out."
        warnings.warn(text, WeightsWarning, stacklevel=2)
    return matched


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    text = f"weights {str(path)!r} are not a complete safetensors file"
    with RaiseAs(lambda error: ModelError(f"{text}: {error}."), SafetensorError):
        return load_file(path)


def _read_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"weights {str(path)!r} are damaged, or a pickle with more than tensors. Reading it could run any code, "
            "so it is refused. Save model.state_dict(), best as .safetensors; if you trust it, load it yourself with "
            "torch.load, and pass the model."
        ) from error
    except Exception as error:  # torch's safe unpickler lets anything through when a file is damaged
        raise_interrupt(error, ImportError, MemoryError)
        # The first sentence alone: torch's next one says how to run the code in the file.
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__
        raise ModelError(f"weights {str(path)!r} are damaged: {reason}.") from error


def encode_state(model: nn.Module, suffix: str) -> bytes:
    """Return the file of a model's weights, by its suffix: ``.safetensors``, ``.pt`` or ``.pth``."""
    if suffix != ".safetensors":
        stream = BytesIO()
        torch.save(model.state_dict(), stream)
        return stream.getvalue()
    from safetensors.torch import save

    # Tensors that share memory, which the format refuses, are written once for each name.
    return save({name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()})


def load_state(model: nn.Module, state: Mapping[str, Tensor], path: str | PathLike[str]) -> None:
    """Load the tensors of a file into a model.

    Raises:
        ModelError: They do not fit. The message has two lines: a summary, and what to do.
    """
    state = OrderedDict(match_names(state, path, model.state_dict()))
    set_state_version(state, model)
    text = f"weights {str(path)!r} do not fit the model"
    with RaiseAs(lambda error: ModelError(f"{text}: {_describe_mismatch(model, state, error)}"), RuntimeError):
        model.load_state_dict(state)


def _list_reshaped(expected: Mapping[str, Any], state: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in expected.items():
        if name in state and isinstance(tensor, Tensor) and tensor.shape != state[name].shape:
            yield f"{name} {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"


def _describe_mismatch(model: nn.Module, state: Mapping[str, Tensor], error: RuntimeError) -> str:
    """Return how a state differs from that of a model, and what to do, in two lines."""
    expected = model.state_dict()
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    kinds = {"missing": missing, "unexpected": unexpected, "with another shape": [*_list_reshaped(expected, state)]}
    counts = [
        f"{format_count(len(names), 'tensor')} {kind} ({_join_first(names)})" for kind, names in kinds.items() if names
    ]
    if not counts:
        return str(error).splitlines()[-1].strip()
    return f"{'; '.join(counts)}.\n{_suggest_fix(expected.keys(), state.keys())}"


def _join_first(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names, separated by commas."""
    return ", ".join([*names[:most], "..."] if len(names) > most else names)


def _suggest_fix(expected: Set[str], names: Set[str]) -> str:
    """Return what to do about names that do not match: they have another prefix, or are of another architecture."""
    prefix = _find_prefix(names, expected)
    if prefix:
        return f"The names in the file start with {prefix!r}; save them without it."
    prefix = _find_prefix(expected, names)
    if prefix:
        return f"The names of the model start with {prefix!r}, those in the file do not; save them with it."
    if expected == names:
        return "The names agree: build the model with the size and the number of classes of the file."
    return "The file may be of another architecture. Give the name of the model that it was saved from."


def _find_prefix(longer: Set[str], plain: Set[str]) -> str:
    """Return the prefix that explains the difference between two sets of names; empty if there is none.

    With the prefix, at least half of the larger set of names must agree: heads and buffers often differ.
    """
    # Prefixes such as "module." or "model.backbone." have up to three parts.
    starts = {".".join(name.split(".")[:depth]) + "." for name in longer for depth in (1, 2, 3)}
    shared = {start: sum(f"{start}{name}" in longer for name in plain) for start in starts}
    best = max(shared, key=lambda start: shared[start], default="")
    return best if best and 2 * shared[best] >= max(len(plain), len(longer)) else ""


def count_classes(state: Mapping[str, Tensor], model: nn.Module) -> int | None:
    """Return the number of classes of the weights; None if unknown.

    It is the length of the tensor for the model's last weight matrix, which is nearly always the classifier's.
    """
    matrices = [name for name, parameter in model.named_parameters() if parameter.ndim > 1]
    return len(state[matrices[-1]]) if matrices and matrices[-1] in state else None
