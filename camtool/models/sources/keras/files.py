"""``.keras`` files: what is checked before Keras reads one. Anybody may have written it, and its names build objects.

A file is a ZIP archive of a configuration in JSON, of weights in HDF5 and of the version of Keras. Nothing is unpacked
under a name of the archive. What Keras gets is the configuration that was checked, and a copy of the weights.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any

from packaging.version import Version

from camtool.arguments.regular_files import open_regular
from camtool.models.sources.keras.model import OTHER_BACKEND, KerasModel

_CONFIG, _VERSION, _WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
_BACKEND = "KERAS_BACKEND"

# Most bytes of each file in an archive. The configuration of the largest network of keras.applications has 2 MB.
_MAX_BYTES = {_CONFIG: 2**26, _VERSION: 2**16, _WEIGHTS: 2**35}

# Most bytes that a byte in the archive may unpack to, beyond a megabyte. Keras packs nothing.
_MAX_RATIO = 100

# Where the classes and functions must be defined that a file may name: in modules that compute, and read no files.
_LAYERS = (
    *("activations", "attention", "convolutional", "core", "merging", "normalization", "pooling", "regularization"),
    *("reshaping", "rnn", "preprocessing.image_preprocessing", "preprocessing.normalization"),
    "preprocessing.rescaling",
)
_HOMES = {
    FunctionType: ("keras.src.activations.activations.",),
    type: (
        *(f"keras.src.{home}." for home in ("models.functional", "models.sequential", "initializers", "regularizers")),
        *(f"keras.src.{home}." for home in ("constraints", "dtype_policies", "random")),
        *(f"keras.src.applications.{home}." for home in ("convnext", "inception_resnet_v2")),
        *(f"keras.src.layers.{home}." for home in _LAYERS),
        *(f"keras.src.ops.{home}." for home in ("core", "image", "linalg", "math", "nn", "numpy")),
    ),
}

# Arrays in a configuration, and what else stands for values there. ``__lambda__``, which has code, is not among them.
_ARRAYS, _VALUES = ("__tensor__", "__numpy__"), ("__keras_tensor__", "__ellipsis__", "__slice__")

_REMEDY = "Build the model in Python, or use keras.saving.load_model there if you trust the file, and pass the model."
_OLD = "build the architecture in Keras 3, model.load_weights(file), and pass the model."


def load_keras_file(path: str) -> KerasModel:
    """Return the model in a file, which is checked before: it runs no code, and names Keras' own layers alone.

    Raises:
        ValueError: It names something else or is of another kind, or Keras is too old, or on another backend.
        ImportError: Keras is not installed.
    """
    keras = _import_keras()
    with TemporaryDirectory(prefix="camtool-") as folder:
        weights = Path(folder, _WEIGHTS)
        config = _read_checked(Path(path), weights)
        model = keras.saving.deserialize_keras_object(config, safe_mode=True)
        model.load_weights(weights)
    return KerasModel(model)


def _import_keras() -> Any:
    """Return Keras on its torch backend, also if the environment names another one.

    Raises:
        ValueError: It is too old, or was imported with another backend.
        ImportError: It is not installed.
    """
    chosen = os.environ.get(_BACKEND)
    os.environ[_BACKEND] = "torch"
    try:
        import keras
    finally:  # other programs that this one starts may want another
        os.environ.pop(_BACKEND)
        os.environ |= {} if chosen is None else {_BACKEND: chosen}

    # From this release on, the known ways to run code from a file are closed.
    if Version(keras.__version__) < Version("3.12"):
        raise ValueError(f"Keras {keras.__version__} is too old to read files of others: pip install -U keras")
    if keras.config.backend() != "torch":
        raise ValueError(f"Keras runs on {keras.config.backend()} in this Python, {OTHER_BACKEND}")
    return keras


def _read_checked(path: Path, weights: Path) -> dict[str, Any]:
    """Return the configuration in a file, and copy its weights to another path.

    Raises:
        ValueError: The file is of another kind, too large, or names anything but Keras' own layers and their parts.
    """
    with open_regular(path, sum(_MAX_BYTES.values())) as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"it is no ZIP archive as Keras 3 writes it. If it is an HDF5 file of Keras 2, {_OLD}")
        with zipfile.ZipFile(file) as archive:
            _check_members(archive.infolist())
            version = str(json.loads(archive.read(_VERSION))["keras_version"])
            if not version.startswith("3."):
                raise ValueError(f"it was saved by Keras {version[:20]}, and files of Keras 3 are read; {_OLD}")
            config: dict[str, Any] = json.loads(archive.read(_CONFIG))
            for node in _iterate_objects([config]):
                _check_object(node)
            with archive.open(_WEIGHTS) as packed, weights.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    _check_size(config, _count_numbers(weights))
    return config


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    """Check that an archive has the three files, each once and of a size that its own size allows."""
    names = sorted(member.filename for member in members)
    if names != sorted(_MAX_BYTES):
        raise ValueError(f"the archive holds {str(names)[:200]}, not {', '.join(_MAX_BYTES)}, each once. {_REMEDY}")
    for member in members:
        if member.file_size > min(_MAX_BYTES[member.filename], _MAX_RATIO * member.compress_size + 2**20):
            raise ValueError(f"{member.filename} in the archive is too large, or more than {_MAX_RATIO} times packed.")


def _iterate_objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield what is built from JSON, each object before those inside of it, without how the model was trained."""
    if isinstance(value, dict):
        value.pop("compile_config", None)
        if "class_name" in value:
            yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _iterate_objects(part)


def _check_object(node: dict[str, Any]) -> None:
    """Check what an object in the configuration stands for.

    Raises:
        ValueError: That is no layer, operation, initializer, regularizer, constraint or type of Keras' own.
    """
    name, module, config = node["class_name"], node.get("module"), node.get("config", {})
    if module is None and name in (*_VALUES, *_ARRAYS):
        # An array of texts of a length, such as S999999999, would take any memory.
        dtype = str(config["dtype"]) if name in _ARRAYS else "float32"
        is_allowed = dtype.rstrip("0123456789") in ("float", "bfloat", "int", "uint", "bool")
    elif name == "function":
        name, module = config, "keras.activations" if module == "builtins" else module
        is_allowed = _is_known(FunctionType, module, name)
    else:
        is_allowed = _is_known(type, module, name) and name != "Lambda"
    if not is_allowed or node.get("registered_name") not in (None, name):
        named = f"{str(module)[:60]}.{str(name)[:60]}"
        raise ValueError(f"it names {named}, which is none of Keras' own layers for images or their parts. {_REMEDY}")


def _is_known(kind: type, module: Any, name: Any) -> bool:
    """Return True for a class or a function of a module that is loaded, if it is defined where those may be."""
    if not isinstance(module, str) or not isinstance(name, str) or module not in sys.modules:
        return False
    value = vars(sys.modules[module]).get(name)
    return isinstance(value, kind) and f"{value.__module__}.".startswith(_HOMES[kind])


def _check_size(config: dict[str, Any], count: int) -> None:
    """Check that a model has no more weights than its file, by building it without memory for them."""
    import keras

    with keras.device("meta"):
        # Of a copy: Keras empties the configurations of nested models.
        needed = keras.saving.deserialize_keras_object(copy.deepcopy(config), safe_mode=True).count_params()
    if needed > count:
        raise ValueError(f"its layers have {needed} weights, and the file has {count}.")


def _count_numbers(path: Path) -> int:
    """Return how many numbers a file of weights holds.

    Raises:
        ValueError: It holds links, anything but numbers, or more of them than its size.
    """
    import h5py

    # Others are packed, virtual or in another file. Keras writes numbers as they are.
    plain = h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS
    links: dict[str, Any] = {}
    size = count = 0
    with h5py.File(path, "r") as file:
        file.visititems_links(links.__setitem__)
        for name, link in links.items():
            entry: Any = file[name] if isinstance(link, h5py.HardLink) else None
            if isinstance(entry, h5py.Group):
                continue
            is_plain = isinstance(entry, h5py.Dataset) and entry.id.get_create_plist().get_layout() in plain
            if not is_plain or entry.external or entry.dtype.kind not in "biufV" or entry.dtype.names:
                raise ValueError(f"{name[:60]!r} in its weights is a link, or not plain numbers.")
            size, count = size + entry.nbytes, count + entry.size
    if size > path.stat().st_size:
        raise ValueError("its weights are more than the file.")
    return int(count)
