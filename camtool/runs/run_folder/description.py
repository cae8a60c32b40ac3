"""The description of a run in ``run.json``: all that its results depend on, and what has changed since."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import torch

from camtool import __version__
from camtool.arguments.libraries import read_versions
from camtool.arguments.regular_files import read_regular
from camtool.errors import CamtoolError, RaiseAs
from camtool.geometry.resampling import DRAWING
from camtool.methods import find_method
from camtool.models import Loaded
from camtool.rendering.image_writing import open_atomically
from camtool.runs.file_names import is_encodable
from camtool.runs.run_folder.hashes import hash_file, hash_text, hash_user_code, hash_weights, remove_addresses
from camtool.runs.stored_files import build_check, parse_object

# Name of the file in the output folder that describes the run.
DESCRIPTION = "run.json"

# The part of a description that may differ when a run is continued. Its last bits may then differ, too.
MACHINE = "machine"

# The part of a description with the hashes of the user's own source files.
_CODE = "code"

# The part of a description with the version of camtool.
_VERSION = "camtool"

# The part of a description that tells it from a file of the user's.
_MARK = {"format": "camtool run 1"}

# The rule by which runs were drawn whose description names none.
_OLD_DRAWING = "heat is repeated up to the border"

# Part of a description → its type in JSON.
_PARTS: dict[str, Any] = dict.fromkeys(("directory", "engine", "device", "drawing"), str)
_PARTS |= dict.fromkeys(("command", "model", "seeds", MACHINE, "inputs"), dict)
_PARTS |= dict.fromkeys(("sha256", "versions", _CODE), dict[str, str])
_PARTS |= {"method": list[str], "options": dict[str, dict[str, Any]]}

_REMEDY = "Move it, or give another folder with --out."

# Bytes of a file of labels, which is hashed before it is read.
_MAX_BYTES = 2**28

# Distributions that every result depends on.
_LIBRARIES = ("torch", "torchvision", "numpy", "pillow", "opencv-python", "opencv-python-headless", "scikit-image")

# Engine → distributions that its results depend on.
_ENGINES = {"onnxruntime": ("onnxruntime",), "openvino": ("openvino",), "auto": ("onnxruntime", "openvino")}


# ------------------------------------------------------------------------------------------------------- describing


def describe_run(
    loaded: Loaded, methods: Sequence[str], options: Mapping[str, Any], command: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the description of a run, as values of JSON. It holds no time, so that equal runs have equal ones.

    Args:
        loaded: The model.
        methods: The names of the methods.
        options: Options of the methods, by name.
        command: The options of the command that results depend on, by name, as :func:`describe_command` returns them.
    """
    used = [find_method(name) for name in methods]
    by_method = {method.name: method.options | method.select_options(options) for method in used}
    engine = str(to_plain(command.get("engine", "eager")))
    weight = next(loaded.model.parameters(), None)
    device = "cpu" if weight is None else str(weight.device)
    return {
        _VERSION: __version__,
        **describe_command(command),
        "model": _describe_model(loaded, command.get("weights")),
        _CODE: hash_user_code(command.get(name) for name in ("model", "transform")),
        "method": [method.name for method in used],
        "options": to_plain(by_method),
        "seeds": to_plain({name: own["seed"] for name, own in by_method.items() if "seed" in own}),
        "engine": engine,
        "device": device.partition(":")[0],
        "drawing": DRAWING,
        "versions": list_versions(loaded, engine),
        MACHINE: _describe_machine(device),
    }


def describe_command(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a description that is known before the model is loaded."""
    # Options are hashed that name a file, e.g. of labels. Weights alone may be large; others are then refused.
    texts = {name: value for name, value in command.items() if isinstance(value, (str, Path))}
    files = {name: value for name, value in texts.items() if _is_hashed(value, is_weights=name == "weights")}
    return {
        "directory": str(Path.cwd()),
        # Sorted, as the order of the arguments must not matter.
        "command": to_plain(dict(sorted(command.items()))),
        "sha256": {name: hash_file(Path(path)) for name, path in sorted(files.items())},
    }


def _is_hashed(path: str | Path, *, is_weights: bool) -> bool:
    """Check that a text is the path of a file that is hashed: weights of any size, others up to a limit."""
    if not os.path.isfile(path):  # noqa: PTH113  it takes any text for a path, also a long one
        return False
    status = os.stat(path)  # noqa: PTH116
    # A sparse file may claim any size. Weights are no such file, and loading refuses it.
    is_sparse = 2 * 512 * getattr(status, "st_blocks", math.inf) < status.st_size
    return not is_sparse if is_weights else status.st_size <= _MAX_BYTES


def to_plain(value: Any) -> Any:
    """Return a value as values of JSON; what JSON lacks becomes text."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): to_plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(entry) for entry in value]
    return remove_addresses(repr(value))


def _describe_model(loaded: Loaded, weights: Any) -> dict[str, Any]:
    return {
        "name": loaded.name,
        "class": f"{type(loaded.model).__module__}.{type(loaded.model).__qualname__}",
        "weights": to_plain(weights),
        "weights_sha256": hash_weights(loaded.model),
        "labels_sha256": None if loaded.labels is None else hash_text("\n".join(loaded.labels)),
        "transform": remove_addresses(repr(loaded.transform)),
    }


def list_versions(loaded: Loaded, engine: str) -> dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on."""
    package = type(loaded.model).__module__.partition(".")[0]
    # The module's name is that of the distribution for timm, transformers and ultralytics.
    source = {"open_clip": "open_clip_torch"}.get(package, package)
    names = [*_LIBRARIES, *([source] if source != "camtool" else []), *_ENGINES.get(engine, ())]
    return {"python": platform.python_version(), **read_versions(names)}


def _describe_machine(device: str) -> dict[str, Any]:
    """Return what of the hardware may change the last bits of a result."""
    machine = {
        "processor": _get_processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    if device.startswith("cuda"):
        machine["device"] = torch.cuda.get_device_name(device)
    return machine


def _get_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


# -------------------------------------------------------------------------------------------------------- comparing


def read_description(folder: Path) -> dict[str, Any] | None:
    """Return the description in a run folder; None if there is none.

    Raises:
        CamtoolError: It is damaged, or camtool did not write it.
    """
    path = folder / DESCRIPTION
    with suppress(FileNotFoundError, NotADirectoryError):
        return parse_description(read_regular(path), str(path))
    return None


def parse_description(content: bytes, name: str) -> dict[str, Any]:
    """Return the description in a file's content.

    Args:
        content: The content.
        name: The file, for the message.

    Raises:
        CamtoolError: It is damaged, or camtool did not write it.
    """
    with RaiseAs(lambda error: CamtoolError(f"{name} is damaged, or not of camtool: {error}. {_REMEDY}"), ValueError):
        description = parse_object(content)
    if not isinstance(description.get(_VERSION), str) or not _MARK.items() <= description.items():
        raise CamtoolError(f"{name} was not written by camtool. {_REMEDY}")
    description.setdefault("drawing", _OLD_DRAWING)
    for part, kind in _PARTS.items():
        if part in description and not build_check(kind)(description[part]):
            raise CamtoolError(f"{name} is damaged: its {part!r} is no {kind.__name__}, or holds others. {_REMEDY}")
    if not is_encodable(description.get("directory", "")):
        raise CamtoolError(f"{name} is damaged: its 'directory' is no path. {_REMEDY}")
    return description


def list_methods(description: Mapping[str, Any]) -> list[str]:
    """Return the names of the methods of a described run; none if they are unknown."""
    return [name for name in description.get("method", ()) if isinstance(name, str)]


def encode_description(description: Mapping[str, Any]) -> bytes:
    """Return the content of the file with a description."""
    return f"{json.dumps({**_MARK, _VERSION: __version__, **description}, indent=2)}\n".encode()


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Write the description to a run folder; it survives a power failure."""
    with open_atomically(folder / DESCRIPTION, durable=True) as file:
        file.write(encode_description(description))


def find_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a text for each value that differs, e.g. ``"--method: 'gradcam' then, 'layercam' now"``.

    Parts that one of the descriptions lacks as a whole are not compared.
    """
    parts = [name for name in now if name in then]
    old, new = (dict(flatten({name: description[name] for name in parts})) for description in (then, now))
    if not _has_relative_path(now):
        old.pop("directory", None), new.pop("directory", None)
    names = [*new, *(name for name in old if name not in new)]
    return [_describe_change(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _describe_change(name: str, old: Any, new: Any) -> str:
    part, _, file = name.partition(".")
    if part == _CODE:  # the hashes would tell the user nothing
        what = "is new" if old is None else "is no longer used" if new is None else "has changed since the run"
        return f"code of --model or --transform: the file {file} {what}"
    return f"{_get_title(name)}: {_show(old)} then, {_show(new)} now"


def check_unchanged(folder: Path, description: Mapping[str, Any]) -> None:
    """Check that a run folder holds no run, or one with the same description. The machine may differ.

    Args:
        folder: The folder.
        description: A description, or the parts of it that are known.

    Raises:
        CamtoolError: The folder holds another run; the message names each value that differs.
    """
    then = read_description(folder)
    if then is not None:
        check_same(then, description, str(folder))


def check_same(then: Mapping[str, Any], description: Mapping[str, Any], folder: str) -> None:
    """Check that two descriptions are the same. The machine may differ.

    Args:
        then: The description in a run folder.
        description: A description, or the parts of it that are known.
        folder: The folder, for the message.

    Raises:
        CamtoolError: They differ; the message names each value that does.
    """
    missing = [f"{name} is missing in its {DESCRIPTION}" for name in description if name not in (MACHINE, *then)]
    changes = missing + find_changes(then, {name: value for name, value in description.items() if name != MACHINE})
    if changes:
        listed = "\n".join(changes)
        raise CamtoolError(
            f"out {folder!r} holds a run with other settings:\n{listed}\nGive another folder with --out, or "
            "remove the old results and start anew with --overwrite."
        )


def check_removable(description: Mapping[str, Any] | None, folder: str, *, by_cluster: bool) -> None:
    """Check that the run in a folder, if there is one, is of the command that would remove it.

    Args:
        description: The description in the folder; None if there is no run.
        folder: The folder, for the message.
        by_cluster: True if ``camtool cluster`` would remove the run, False for ``camtool run``.

    Raises:
        CamtoolError: It is of the other command, and some of its files would stay.
    """
    if description is not None and is_cluster_run(description) != by_cluster:
        text = f"holds a run of camtool {'run' if by_cluster else 'cluster'}, which only that command removes"
        raise CamtoolError(f"out {folder!r} {text}; give another folder with --out.")


def is_cluster_run(description: Mapping[str, Any]) -> bool:
    """Return True if a description is that of a run on a cluster, which alone divides its inputs into shards."""
    return "inputs" in description


def list_machine_changes(folder: Path, description: Mapping[str, Any]) -> list[str]:
    """Return a text for each part of the hardware that differs from that of the run in a folder."""
    then = read_description(folder) or {}
    return find_changes({MACHINE: then.get(MACHINE, description[MACHINE])}, {MACHINE: description[MACHINE]})


def check_directory(description: Mapping[str, Any]) -> None:
    """Check that the paths of a described run mean the same files here.

    Raises:
        CamtoolError: Some are relative to another working directory.
    """
    directory = description.get("directory", "")
    if _has_relative_path(description) and directory != str(Path.cwd()):
        raise CamtoolError(f"the paths of the run are relative to {directory!r}; start the command there.")


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is no mapping, with its dotted name."""
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, entry in value.items():
        yield from flatten(entry, f"{name}.{key}" if name else str(key))


def _has_relative_path(description: Mapping[str, Any]) -> bool:
    """Return False if all paths of the command are the same in each working directory."""
    command = description.get("command", {})
    named = [*command.get("paths", ()), *(command.get(name) for name in ("weights", "labels"))]
    # URIs and URLs are the same everywhere.
    return not all(os.path.isabs(path) or "://" in path for path in named if path)  # noqa: PTH117


def _get_title(name: str) -> str:
    """Return what the user calls a value: ``--batch-size``, ``torch``."""
    part, _, rest = name.partition(".")
    if part == "command":
        return "PATH" if rest == "paths" else f"--{rest.replace('_', '-')}"
    if part == "versions":
        return f"version of {rest}"
    return name.replace("_", " ").replace(".", " ")


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return f"{value[:12]}…"  # a hash; more of it tells nobody more
    return "none" if value is None else str(value)
