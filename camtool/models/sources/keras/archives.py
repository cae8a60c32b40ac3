"""Checks of a ``.keras`` file before Keras reads it: anybody may have written it, and its names decide what is built.

The file is a ZIP archive of a configuration in JSON, of weights in HDF5 and of its version. What Keras gets is a new
archive of these three: the weights as they are, and the configuration written again from what was read and checked.
"""

from __future__ import annotations

import json
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from camtool.arguments.regular_files import open_regular
from camtool.errors import ModelError, raise_interrupt
from camtool.models.sources.source import get_first_line

_CONFIG, _VERSION, _WEIGHTS = "config.json", "metadata.json", "model.weights.h5"

# Most bytes of each file in an archive. The configuration of the largest network of keras.applications has 2 MB.
_MAX_BYTES = {_CONFIG: 2**26, _VERSION: 2**16, _WEIGHTS: 2**35}

# Most bytes that a byte in the archive, or in its weights, may unpack to. Keras packs nothing.
_MAX_RATIO = 100

# Most levels of nested lists and objects: each nested model has about ten.
_MAX_DEPTH = 100

# Largest number in a configuration: more units, or pixels, than any layer has. Memory is taken before weights are read.
_MAX_NUMBER = 2**24

# Keys whose numbers may be larger.
_ANY_NUMBER = ("seed", "shared_object_id")

# Most entries in the file of weights, two or three for each weight.
_MAX_ENTRIES = 200_000

# Modules that a file may name: public ones, and those that Keras writes for models and operations.
_OPERATIONS = tuple(f"keras.src.ops.{home}" for home in ("core", "image", "linalg", "math", "nn", "numpy"))
_MODELS = ("keras.src.models.functional", "keras.src.models.sequential")
_PARTS = ("initializers", "regularizers", "constraints", "dtype_policies", "random")
_MODULES = (*_OPERATIONS, *_MODELS, "keras", "keras.layers", "keras.models", *(f"keras.{part}" for part in _PARTS))

# Where the classes must be defined: layers there compute on images and vectors, and read no files.
_LAYERS = (
    *("activations", "attention", "convolutional", "core", "merging", "normalization", "pooling", "regularization"),
    *("reshaping", "rnn", "preprocessing.image_preprocessing", "preprocessing.normalization"),
    "preprocessing.rescaling",
)
_HOMES = (
    *(f"{home}." for home in (*_OPERATIONS, *_MODELS)),
    *(f"keras.src.{part}." for part in (*_PARTS, *(f"layers.{home}" for home in _LAYERS))),
)

# Layers and operations there that run a function, or code of another library.
_REFUSED = (
    *("Lambda", "AssociativeScan", "Cond", "CustomGradient", "ForiLoop", "Map", "Scan", "Switch", "VectorizedMap"),
    "WhileLoop",
)

# Types of arrays in a configuration.
_NUMBERS = [f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)] + ["bool", "bfloat16"]

# What stands for values instead of objects. A function in place of them, ``__lambda__``, is not among them.
_VALUES = ("__keras_tensor__", "__tensor__", "__numpy__", "__ellipsis__", "__slice__", "__bytes__")

_REMEDY = (
    "Build the model in Python, or load it there with keras.saving.load_model if you trust the file, and pass the "
    "model instead of the file."
)


def copy_checked(path: Path, folder: Path) -> Path:
    """Return a new ``.keras`` file in a folder with what Keras may read of another one.

    Raises:
        ModelError: The file is damaged, too large, or names anything but Keras' own layers and their parts.
        FileNotFoundError: There is no such file.
    """
    checked = folder / "checked.keras"
    try:
        with open_regular(path, sum(_MAX_BYTES.values())) as file, zipfile.ZipFile(file) as archive:
            _check_members(archive)
            _check_version(_read_json(archive, _VERSION))
            config = _check_config(_read_json(archive, _CONFIG))
            with archive.open(_WEIGHTS) as packed, (folder / _WEIGHTS).open("wb") as weights:
                shutil.copyfileobj(packed, weights)
        _check_size(config, _count_numbers(folder / _WEIGHTS))
        with zipfile.ZipFile(checked, "w") as archive:
            archive.writestr(_VERSION, "{}")
            archive.writestr(_CONFIG, json.dumps(config))
            archive.write(folder / _WEIGHTS, _WEIGHTS)
        return checked
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    except zipfile.BadZipFile as error:
        raise ModelError(
            f"{path} is no ZIP archive as Keras 3 writes it ({get_first_line(error)}). An HDF5 file of Keras 2 is not "
            "read: build the architecture in Keras 3, model.load_weights(file), and pass the model."
        ) from error
    except (OSError, ValueError, KeyError, RecursionError, NotImplementedError, RuntimeError, EOFError) as error:
        raise_interrupt(error, FileNotFoundError)
        raise ModelError(f"{path} cannot be read: {get_first_line(error)}.") from error


# ------------------------------------------------------------------------------------------------------- the archive


def _check_members(archive: zipfile.ZipFile) -> None:
    members = archive.infolist()
    names = [member.filename for member in members]
    others = {*names} - {*_MAX_BYTES}
    if others:
        raise ModelError(
            f"the archive holds {min(others)!r}; only {', '.join(_MAX_BYTES)} are read, as layers for images "
            f"need no other files. {_REMEDY}"
        )
    if len(names) != len(_MAX_BYTES):
        missing = [name for name in _MAX_BYTES if name not in names]
        raise ModelError(f"the archive {f'lacks {missing[0]}' if missing else 'holds a file twice'}.")
    for member in members:
        wrong = {
            "a link": stat.S_ISLNK(member.external_attr >> 16),
            "encrypted": member.flag_bits & 1,
            "too large": member.file_size > _MAX_BYTES[member.filename],
            f"more than {_MAX_RATIO} times its size": member.file_size > _MAX_RATIO * member.compress_size + 2**20,
        }
        for kind in (kind for kind, is_so in wrong.items() if is_so):
            raise ModelError(f"{member.filename} in the archive is {kind}.")


def _read_json(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    """Return an object in JSON, without names that stand twice, and not nested too deeply."""
    content = json.loads(archive.read(name).decode("utf-8"), object_pairs_hook=_build_object)
    if not isinstance(content, dict):
        raise ModelError(f"{name} in the archive holds no JSON object.")
    return content


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        raise ModelError("an object in its JSON has a name twice.")
    return built


def _check_version(metadata: Mapping[str, Any]) -> None:
    version = metadata.get("keras_version")
    if not isinstance(version, str) or version.partition(".")[0] != "3":
        raise ModelError(
            f"it was saved by Keras {str(version)[:20]}, and files of Keras 3 are read; build the architecture in "
            "Keras 3, model.load_weights(file), and pass the model."
        )


# ------------------------------------------------------------------------------------------------- the configuration


def _check_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without how the model was trained, if it names nothing but what may be built."""
    if not isinstance(config.get("class_name"), str):
        raise ModelError("its configuration names no class.")
    for node in _iterate_objects(config, 0):
        node.pop("compile_config", None)
        if "class_name" in node:
            _check_object(node)
    return config


def _iterate_objects(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Yield all objects in JSON, each before those inside of it."""
    if depth > _MAX_DEPTH:
        raise ModelError(f"its configuration is nested more than {_MAX_DEPTH} levels deep.")
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        raise ModelError(f"its configuration has the number {value:g}, and none of a layer is above {_MAX_NUMBER}.")
    if isinstance(value, dict):
        yield value
        parts = [part for key, part in value.items() if key not in _ANY_NUMBER]
    else:
        parts = value if isinstance(value, list) else []
    for part in parts:
        yield from _iterate_objects(part, depth + 1)


def _check_object(node: Mapping[str, Any]) -> None:
    """Check what an object in the configuration stands for.

    Raises:
        ModelError: That is no layer, operation, initializer, regularizer, constraint or type of Keras' own.
    """
    name, module, config = node["class_name"], node.get("module"), node.get("config")
    if name in _VALUES and module is None:
        _check_values(config)
        return
    if name == "function":
        is_allowed = _is_function(module, config) and node.get("registered_name") in (None, config)
        name = config
    else:
        is_own_name = node.get("registered_name") in (None, name) and isinstance(config, dict)
        is_allowed = is_own_name and _is_class(module, name)
    if not is_allowed:
        raise ModelError(
            f"it names {str(module)[:60]}.{str(name)[:60]}, and only Keras' own layers, operations, initializers, "
            f"regularizers, constraints and types are built from a file. {_REMEDY}"
        )


def _check_values(config: Any) -> None:
    """Check that the type of an array in the configuration is one of numbers, which have a known size."""
    dtype = config.get("dtype") if isinstance(config, Mapping) else None
    if dtype is not None and dtype not in _NUMBERS:
        raise ModelError(f"it holds an array of the type {str(dtype)[:60]!r}; only numbers are read.")


def _is_function(module: Any, name: Any) -> bool:
    """Return True for an activation function of Keras, which is all that layers name by a function."""
    from keras import activations

    is_home = module in ("builtins", "keras.activations") and isinstance(name, str) and not name.startswith("_")
    return is_home and name in vars(activations) and name not in ("get", "serialize", "deserialize")


def _is_class(module: Any, name: Any) -> bool:
    """Return True for a class of Keras that a file may name."""
    if module not in _MODULES or not isinstance(name, str) or name in _REFUSED:
        return False
    import keras

    kind = vars(import_module(module)).get(name)
    parts = keras.initializers.Initializer, keras.regularizers.Regularizer, keras.constraints.Constraint
    bases = keras.Operation, keras.dtype_policies.DTypePolicy, keras.random.SeedGenerator, *parts
    return isinstance(kind, type) and issubclass(kind, bases) and f"{kind.__module__}.".startswith(_HOMES)


# ------------------------------------------------------------------------------------------------------- the weights


def _check_size(config: dict[str, Any], count: int) -> None:
    """Check that a model has no more weights than its file, by building it without memory for them."""
    import keras

    with keras.device("meta"):
        needed = keras.saving.deserialize_keras_object(config, safe_mode=True).count_params()
    if needed > count:
        raise ModelError(f"its layers have {needed} weights, and the file has {count}.")


def _count_numbers(path: Path) -> int:
    """Return how many numbers a file of weights holds: numbers alone, in this file, and no more than it is large.

    Raises:
        ModelError: It does not.
    """
    import h5py

    size = count = 0
    with h5py.File(path, "r") as file:
        seen, stack = {h5py.h5o.get_info(file.id).addr}, [file]
        while stack:
            group = stack.pop()
            for name in group:
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise ModelError(f"{name[:60]!r} in its weights is a link to another place.")
                entry = group[name]
                address = h5py.h5o.get_info(entry.id).addr
                if address in seen or len(seen) > _MAX_ENTRIES:
                    raise ModelError(f"its weights hold {name[:60]!r} twice, or too many entries.")
                seen.add(address)
                if isinstance(entry, h5py.Group):
                    stack.append(entry)
                else:
                    _check_data(entry, name)
                    size, count = size + entry.nbytes, count + entry.size
    if size > _MAX_RATIO * path.stat().st_size + 2**20:
        raise ModelError(f"its weights unpack to more than {_MAX_RATIO} times their size.")
    return int(count)


def _check_data(data: Any, name: str) -> None:
    """Check that what a name in a file of weights stands for is numbers in that file."""
    import h5py

    is_plain = isinstance(data, h5py.Dataset) and data.dtype.kind in "biufV" and not data.dtype.names
    if not is_plain or data.external or data.is_virtual:
        raise ModelError(f"{name[:60]!r} in its weights is not plain numbers.")
    filters = data.id.get_create_plist()
    own = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)
    if any(filters.get_filter(index)[0] not in own for index in range(filters.get_nfilters())):
        raise ModelError(f"{name[:60]!r} in its weights is packed by a filter that Keras does not use.")
