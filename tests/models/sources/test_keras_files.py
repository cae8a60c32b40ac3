"""Files of Keras: what is loaded, and hostile ones, which are refused before Keras sees them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import camtool
from camtool import ModelError
from tests.helpers.keras_models import keras

h5py: Any = pytest.importorskip("h5py")
L = keras.layers
CONFIG, WEIGHTS, VERSION = "config.json", "model.weights.h5", "metadata.json"


def build() -> Any:
    keras.utils.set_random_seed(0)
    steps = [keras.Input((24, 24, 3)), L.Rescaling(1 / 255), L.Conv2D(4, 3, 2, activation="relu", name="grid")]
    return keras.Sequential([*steps, L.GlobalAveragePooling2D(), L.Dense(3, activation="softmax")])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, path = build(), tmp_path_factory.mktemp("keras") / "model.keras"
    model.compile("adam", "sparse_categorical_crossentropy")
    with pytest.warns(DeprecationWarning, match="__array__"):  # Keras reads weights so
        model.save(path)
    return path


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The path of a file that hostile code creates."""
    return tmp_path / "was-run"


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, members: dict[str, bytes], **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


# ---------------------------------------------------------------------------------------------------------- loading


def test_a_file_is_loaded_with_its_preparation(saved: Any, tmp_path: Any) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\nc\n", encoding="utf-8")
    model = build()
    loaded: Any = camtool.load(str(saved), labels=str(labels))
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 24, 3), np.uint8))
    expected = model(torch.tensor(np.asarray(photo), dtype=torch.float32)[None])
    assert loaded(loaded.transform(photo)[None]).softmax(1).detach() == pytest.approx(expected.detach(), abs=1e-6)
    result = camtool.explain(loaded, photo)
    assert (result.layer, result.raw.shape) == ("grid", (11, 11))
    assert result.label in ("a", "b", "c")
    result.save(tmp_path / "where.png")


def nest_functional() -> Any:
    """Return a head on a network, as fine-tuning makes it."""
    image = keras.Input((24, 24, 3))
    base = keras.Model(image, L.Conv2D(4, 3, 2, activation="relu", name="grid")(L.Rescaling(1 / 255)(image)))
    return keras.Sequential([keras.Input((24, 24, 3)), base, L.GlobalAveragePooling2D(), L.Dense(3)])


def nest_sequential() -> Any:
    image = keras.Input((24, 24, 3))
    base = keras.Sequential([keras.Input((24, 24, 3)), L.Rescaling(1 / 255), L.Conv2D(4, 3, activation="relu")])
    return keras.Model(image, L.Dense(3, activation="softmax")(L.GlobalAveragePooling2D()(base(image))))


def nest_twice() -> Any:
    image = keras.Input((24, 24, 3))
    return keras.Model(image, nest_functional()(image))


def call_twice() -> Any:
    """Return a model that calls a nested one, and a layer of its own, twice."""
    image, shared = keras.Input((24, 24, 3)), L.Conv2D(3, 3, padding="same", activation="relu")
    features = keras.Sequential([keras.Input((24, 24, 3)), L.Conv2D(3, 3, padding="same")])
    grid = features(shared(features(shared(L.Rescaling(1 / 255)(image)))))
    return keras.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(grid)))


def scale_as_applications() -> Any:
    """Return a model with layers that networks of keras.applications define themselves."""
    from keras.src.applications.convnext import LayerScale
    from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

    image = keras.Input((24, 24, 3))
    grid = LayerScale(0.5, 4)(L.Conv2D(4, 3, activation="relu")(L.Rescaling(1 / 255)(image)))
    grid = CustomScaleLayer(0.3)([grid, L.Conv2D(4, 3, padding="same")(grid)])
    return keras.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(grid)))


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
@pytest.mark.parametrize(
    "make", [build, nest_functional, nest_sequential, nest_twice, call_twice, scale_as_applications]
)
def test_a_file_gives_the_model_that_was_saved(make: Any, tmp_path: Any) -> None:
    keras.utils.set_random_seed(0)
    model, image = make(), 255 * torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(0))
    model.save(tmp_path / "model.keras")
    loaded = camtool.load(tmp_path / "model.keras")
    found, expected = (camtool.explain(each, image, 1) for each in (loaded.model, model))
    assert found.layer == expected.layer
    np.testing.assert_array_equal(found.raw, expected.raw)
    assert found.probability == pytest.approx(expected.probability)


RUN_ONCE = """import os, runpy
try:
    runpy.run_module("camtool", run_name="__main__")
except SystemExit as end:
    assert not end.code
assert os.environ["KERAS_BACKEND"] == "jax"
"""


def test_the_command_line_explains_with_a_file_where_another_backend_is_usual(saved: Any, tmp_path: Any) -> None:
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 30), "red").save(tmp_path / "photos" / "red.png")
    command = [sys.executable, "-c", RUN_ONCE, "photos", "--model", str(saved), "--out", "run"]
    settings: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "KERAS_BACKEND": "jax"}, "timeout": 300}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    assert done.returncode == 0, done.stderr
    assert [*(tmp_path / "run").rglob("*.png")] or [*(tmp_path / "run").rglob("*.jpg")]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"weights": "a.pt"}, "holds its own weights"), ({"batch": 2}, "batch= is no setting of model")],
)
def test_what_does_not_belong_to_a_file_is_refused(saved: Any, options: Any, words: Any) -> None:
    with pytest.raises(ModelError, match=words):
        camtool.load(str(saved), **options)


def test_a_file_that_is_missing_or_no_file(tmp_path: Any) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        camtool.load(tmp_path / "none.keras")
    with pytest.raises(ModelError, match=r"a URL|download"):
        camtool.load("https://example.org/model.keras")


def test_another_backend_and_an_old_keras_are_refused(saved: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(keras.config, "backend", lambda: "tensorflow")
    with pytest.raises(ModelError, match=r"Keras runs on tensorflow in this Python.*KERAS_BACKEND"):
        camtool.load(str(saved))
    monkeypatch.setattr(keras, "__version__", "3.11.3")
    with pytest.raises(ModelError, match=r"Keras 3\.11\.3 is too old.*pip install -U keras"):
        camtool.load(str(saved))


# ------------------------------------------------------------------------------------------ names in the configuration

LAMBDA = {"class_name": "__lambda__", "config": {"value": "4wAAAA==", "defaults": None, "closure": None}}


def make_layer(module: Any, name: Any, config: Any = None, **others: Any) -> dict[str, Any]:
    return {"module": module, "class_name": name, "config": config or {}, "registered_name": None, **others}


def make_function(module: Any, name: str) -> dict[str, Any]:
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def in_lambda(function: Any, **config: Any) -> dict[str, Any]:
    return make_layer("keras.layers", "Lambda", {"name": "x", "function": function, **config})


# What a layer of the configuration is replaced by.
HOSTILE_LAYERS = {
    # CVE-2025-1550: a module and a function by their names.
    "CVE-2025-1550, os.system": in_lambda(make_function("os", "system"), arguments={"command": "touch MARK"}),
    "CVE-2025-1550, subprocess": make_layer("subprocess", "Popen", {"args": ["touch", "MARK"]}),
    "CVE-2025-1550, builtins": in_lambda(make_function("builtins", "exec"), arguments={"x": "open('MARK', 'w')"}),
    "CVE-2025-1550, a function alone": make_function("subprocess", "run"),
    # CVE-2025-8747: functions of Keras itself that download, write or load.
    "CVE-2025-8747, get_file": in_lambda(make_function("keras.utils", "get_file"), arguments={"origin": "http://x/y"}),
    "CVE-2025-8747, src": in_lambda(make_function("keras.src.utils.file_utils", "get_file")),
    "CVE-2025-8747, load_model": make_function("keras.saving", "load_model"),
    "CVE-2025-8747, func_load": make_function("keras.src.utils.python_utils", "func_load"),
    # CVE-2025-9906: a configuration that switches the safe mode off, and then has a lambda.
    "CVE-2025-9906": make_function("keras.config", "enable_unsafe_deserialization"),
    "CVE-2025-9906, as a class": make_layer("keras.config", "enable_unsafe_deserialization"),
    "CVE-2025-9906, src": make_function("keras.src.saving.serialization_lib", "enable_unsafe_deserialization"),
    # Code in the file.
    "Lambda": in_lambda(LAMBDA),
    "Lambda of a public function": in_lambda(make_function("builtins", "relu")),
    "Lambda, legacy": make_layer("keras.layers", "Lambda", {"function": ["4wAAAA==", None, None]}),
    "Lambda by its own module": make_layer("keras.src.layers.core.lambda_layer", "Lambda", {"function": LAMBDA}),
    "Lambda inside of TimeDistributed": make_layer("keras.layers", "TimeDistributed", {"layer": in_lambda(LAMBDA)}),
    "a lambda as an activation": make_layer("keras.layers", "Dense", {"units": 2, "activation": LAMBDA}),
    "a lambda as an initializer": make_layer("keras.layers", "Dense", {"units": 2, "kernel_initializer": LAMBDA}),
    "a lambda in the arguments of a call": make_layer("keras.layers", "Dense", {"units": 2}, inbound_nodes=[LAMBDA]),
    "a lambda in the build": make_layer("keras.layers", "Dense", {"units": 2}, build_config={"a": [LAMBDA]}),
    # Other modules.
    "a module of the user": make_layer("my_layers", "Mine", registered_name="pack>Mine"),
    "a registered name on a layer of Keras": make_layer(
        "keras.layers", "Dense", {"units": 2}, registered_name="x>Dense"
    ),
    "no module": {"class_name": "Dense", "config": {"units": 2}},
    "an empty module": make_layer("", "Dense", {"units": 2}),
    "a number as a module": make_layer(3, "Dense"),
    "a list as a name": make_layer("keras.layers", ["Dense"]),
    "a name with a dot": make_layer("keras", "layers.Lambda"),
    "a name of a module": make_layer("keras.layers", "__builtins__"),
    "a private name": make_layer("keras.layers", "__loader__"),
    "a class that is no layer": make_layer("keras", "Optimizer"),
    "a callback that writes": make_layer("keras.callbacks", "CSVLogger", {"filename": "MARK"}),
    "a model of TensorFlow": make_layer("keras.layers", "TFSMLayer", {"filepath": "MARK"}),
    "a module of torch": make_layer("keras.layers", "TorchModuleWrapper", {"module": "gASV"}),
    "a function of JAX": make_layer("keras.layers", "JaxLayer", {"call_fn": LAMBDA}),
    "a vocabulary in a file": make_layer("keras.layers", "StringLookup", {"vocabulary": "/etc/passwd"}),
    "a vocabulary by a URL": make_layer("keras.layers", "TextVectorization", {"vocabulary": "http://x/y"}),
    "an operation that runs functions": make_layer("keras.src.ops.core", "Map", {"f": make_function("os", "system")}),
    "a layer that calls itself a model": make_layer("keras.src.models.functional", "Model"),
    "KerasHub": make_layer("keras_hub.src.models.backbone", "Backbone"),
    "a typespec": {
        "class_name": "__typespec__",
        "config": [],
        "spec_name": "x",
        "module": "os",
        "registered_name": "x",
    },
    "an unknown value": {"class_name": "__code__", "config": {"value": "x"}},
    "an array of objects": {"class_name": "__numpy__", "config": {"value": [1], "dtype": "object"}},
    "an array of long texts": {"class_name": "__numpy__", "config": {"value": ["a"], "dtype": "S2000000000"}},
    "a function of Keras as a class": make_layer("keras.src.models.functional", "functional_from_config"),
}


@pytest.mark.parametrize("name", HOSTILE_LAYERS)
@pytest.mark.parametrize("place", ["as a layer", "as the model", "deep inside"])
def test_a_hostile_configuration_is_refused(
    name: Any, place: Any, saved: Any, tmp_path: Any, mark: Any, monkeypatch: Any
) -> None:
    members = read(saved)
    hostile = json.loads(json.dumps(HOSTILE_LAYERS[name]).replace("MARK", str(mark)))
    config = json.loads(members[CONFIG])
    if place == "as the model":
        config = hostile
    elif place == "as a layer":
        config["config"]["layers"].insert(1, hostile)
    else:
        config["config"]["layers"][2]["config"]["kernel_regularizer"] = {"of": [[{"x": hostile}]]}
    path = write(tmp_path / "model.keras", {**members, CONFIG: json.dumps(config).encode()})
    monkeypatch.setattr(keras.saving, "deserialize_keras_object", lambda *_, **__: pytest.fail("Keras saw the file"))
    with pytest.raises(ModelError, match=r"model\.keras cannot be read: it names"):
        camtool.load(str(path))
    assert not mark.exists()


def test_what_a_compiled_model_names_is_not_built(saved: Any, tmp_path: Any) -> None:
    members = read(saved)
    config = json.loads(members[CONFIG])
    config["compile_config"]["loss"] = make_function("os", "system")
    config["config"]["layers"][2]["compile_config"] = {"optimizer": in_lambda(LAMBDA)}
    path = write(tmp_path / "model.keras", {**members, CONFIG: json.dumps(config).encode()})
    assert camtool.load(str(path)).model.get_submodule("grid") is not None


@pytest.mark.parametrize("units", [2**24, 10**12])
def test_layers_that_the_file_has_no_weights_for_take_no_memory(units: Any, saved: Any, tmp_path: Any) -> None:
    members = read(saved)
    config = json.loads(members[CONFIG])
    config["config"]["layers"][-1]["config"]["units"] = units
    path = write(tmp_path / "model.keras", {**members, CONFIG: json.dumps(config).encode()})
    with pytest.raises(ModelError, match=r"its layers have \d{8,} weights, and the file has \d{3}\."):
        camtool.load(str(path))


# ------------------------------------------------------------------------------------------------------- the archive


def change(name: str, content: bytes) -> Callable[[Path, dict[str, bytes]], Any]:
    return lambda path, members: write(path, {**members, name: content})


def write_twice(path: Path, members: dict[str, bytes]) -> None:
    write(path, members)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(CONFIG, members[CONFIG])


def write_link(path: Path, members: dict[str, bytes]) -> None:
    info = zipfile.ZipInfo(CONFIG)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, "/etc/passwd")
        for name in (VERSION, WEIGHTS):
            archive.writestr(name, members[name])


def write_bomb(path: Path, members: dict[str, bytes]) -> None:
    write(path, {**members, WEIGHTS: bytes(2**24)}, compression=zipfile.ZIP_DEFLATED)


def write_false_size(path: Path, members: dict[str, bytes]) -> None:
    """Write an archive whose directory says that its weights are smaller than they are."""
    content = write(path, members).read_bytes()
    size = len(members[WEIGHTS]).to_bytes(4, "little")
    path.write_bytes(content.replace(size, (100).to_bytes(4, "little")))


def write_hdf5(path: Path, _: dict[str, bytes]) -> None:
    """Write a file of Keras 2 under the name of one of Keras 3, whose lambda no safe mode stops (CVE-2025-9905)."""
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": [in_lambda(LAMBDA)]})


def write_encrypted(path: Path, members: dict[str, bytes]) -> None:
    content = bytearray(write(path, members).read_bytes())
    place = content.rindex(b"PK\x01\x02")
    content[place + 8] |= 1
    path.write_bytes(content)


def nest(depth: int) -> bytes:
    return (
        b'{"class_name": "function", "module": "builtins", "config": "relu", "a": ' + b"[" * depth + b"]" * depth + b"}"
    )


HOSTILE_ARCHIVES: dict[str, tuple[Callable[[Path, dict[str, bytes]], Any], str]] = {
    "CVE-2025-9905, HDF5": (write_hdf5, "no ZIP archive.*load_weights"),
    "a text": (lambda path, _: path.write_text("no archive"), "no ZIP archive"),
    "nothing": (lambda path, _: path.write_bytes(b""), "no ZIP archive"),
    "half an archive": (lambda path, m: path.write_bytes(write(path, m).read_bytes()[:-200]), "no ZIP archive"),
    "a path above": (change("../evil.py", b"1"), r"holds \['\.\./evil\.py'"),
    "an absolute path": (change("/evil/evil.py", b"1"), r"holds \['/evil/evil\.py'"),
    "a path of Windows": (change("..\\evil.py", b"1"), r"holds \['\.\."),
    "assets": (change("assets/layers/lookup/vocabulary.txt", b"a"), r"holds \['assets/"),
    "a pickle": (change("model.pkl", b"\x80\x04."), "holds .*'model.pkl'"),
    "a name twice": (write_twice, r"holds \['config\.json', 'config\.json'"),
    "a link": (write_link, "cannot be read: Expecting value"),
    "an encrypted file": (write_encrypted, "is encrypted"),
    "a bomb": (write_bomb, "more than 100 times packed"),
    "a false size": (write_false_size, "cannot be read|no ZIP archive|File size|Bad CRC"),
    "no weights": (
        lambda path, m: write(path, {n: m[n] for n in (CONFIG, VERSION)}),
        r"'metadata\.json'\], not .*model\.weights\.h5",
    ),
    "a configuration that is too large": (change(CONFIG, b" " * (2**26 + 1)), "is too large"),
    "a configuration that is no JSON": (change(CONFIG, b"{"), "cannot be read"),
    "a configuration in another code": (change(CONFIG, b"\xff\xfe"), "cannot be read"),
    "a name twice in an object": (change(CONFIG, b'{"class_name": "A", "class_name": "B"}'), r"names None\.B"),
    "deep JSON": (change(CONFIG, nest(90_000)), "cannot be read|deep"),
    "a number of a million digits": (change(CONFIG, b'{"a": ' + b"9" * 10**6 + b"}"), "cannot be read"),
    "Keras 2": (change(VERSION, b'{"keras_version": "2.15.0"}'), "saved by Keras 2.15.0.*load_weights"),
    "no version": (change(VERSION, b"{}"), "cannot be read"),
    "weights that are none": (change(WEIGHTS, b"no weights"), "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE_ARCHIVES)
def test_a_hostile_archive_is_refused(name: Any, saved: Any, tmp_path: Any, monkeypatch: Any) -> None:
    make, words = HOSTILE_ARCHIVES[name]
    path = tmp_path / "model.keras"
    make(path, read(saved))
    monkeypatch.setattr(keras.saving, "deserialize_keras_object", lambda *_, **__: pytest.fail("Keras saw the file"))
    with pytest.raises(ModelError, match=words):
        camtool.load(str(path))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.keras"]


@pytest.mark.parametrize("content", [b"[]", b"{}", b"3", b'"keras"', b"null"])
def test_a_configuration_of_no_model_is_refused(content: Any, saved: Any, tmp_path: Any) -> None:
    path = write(tmp_path / "model.keras", {**read(saved), CONFIG: content})
    with pytest.raises(ModelError, match="cannot be read"):
        camtool.load(str(path))


# ------------------------------------------------------------------------------------------------------- the weights


def add_external_link(file: Any) -> None:
    file["evil"] = h5py.ExternalLink("/etc/passwd", "/")


def add_soft_link(file: Any) -> None:
    file["evil"] = h5py.SoftLink("/layers")


def add_names(file: Any) -> None:
    file["evil"] = np.zeros(1000)
    for index in range(100):
        file[f"evil{index}"] = file["evil"]


def add_external_data(file: Any) -> None:
    file.create_dataset("evil", (8,), "u1", external=[("/etc/passwd", 0, 8)])


def add_virtual_data(file: Any) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4,))
    file.create_virtual_dataset("evil", layout)


def add_empty_giant(file: Any) -> None:
    file.create_dataset("evil", (10**10,), "f4", chunks=(10**5,))


def add_packed_giant(file: Any) -> None:
    file.create_dataset("evil", data=np.zeros(2**22, "f4"), compression="gzip")


def add_texts(file: Any) -> None:
    file.create_dataset("evil", data=["a", "b"], dtype=h5py.string_dtype())


def add_references(file: Any) -> None:
    file.create_dataset("evil", (1,), h5py.ref_dtype)


def add_type(file: Any) -> None:
    file["evil"] = np.dtype("f4")


def add_other_filter(file: Any) -> None:
    file.create_dataset("evil", data=np.zeros(100), chunks=(100,), compression="lzf")


HOSTILE_WEIGHTS = {
    "a link to another file": (add_external_link, "is a link, or not plain numbers"),
    "a soft link": (add_soft_link, "is a link, or not plain numbers"),
    "a hundred names of the same numbers": (add_names, "its weights are more than the file"),
    "data in another file": (add_external_data, "is a link, or not plain numbers"),
    "virtual data": (add_virtual_data, "is a link, or not plain numbers"),
    "data of 40 GB that is not there": (add_empty_giant, "is a link, or not plain numbers"),
    "packed zeros": (add_packed_giant, "is a link, or not plain numbers"),
    "texts": (add_texts, "is a link, or not plain numbers"),
    "references": (add_references, "is a link, or not plain numbers"),
    "a type": (add_type, "is a link, or not plain numbers"),
    "another filter": (add_other_filter, "is a link, or not plain numbers"),
}


@pytest.mark.parametrize("name", HOSTILE_WEIGHTS)
def test_hostile_weights_are_refused(name: Any, saved: Any, tmp_path: Any, monkeypatch: Any) -> None:
    add, words = HOSTILE_WEIGHTS[name]
    members, weights = read(saved), tmp_path / "weights.h5"
    weights.write_bytes(members[WEIGHTS])
    with h5py.File(weights, "a") as file:
        add(file)
    path = write(tmp_path / "model.keras", {**members, WEIGHTS: weights.read_bytes()})
    monkeypatch.setattr(keras.saving, "deserialize_keras_object", lambda *_, **__: pytest.fail("Keras saw the file"))
    with pytest.raises(ModelError, match=words):
        camtool.load(str(path))
