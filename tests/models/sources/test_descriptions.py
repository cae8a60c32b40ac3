"""The description in a file of another runtime may come from anybody."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from camtool.errors import ModelError
from camtool.geometry.plain_transforms import PlainTransform
from camtool.models.sources import model_files

GOOD: dict[str, Any] = {
    "shorter_side": 72,
    "resized": None,
    "crop": [64, 64],
    "interpolation": "bilinear",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


class Program:
    def __init__(self, metadata: dict[str, str]) -> None:
        self.metadata = metadata


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Load a file with metadata; its graph is no subject here."""

    class Model:
        input_size = (64, 64)

        def __init__(self, *_: object, **__: object) -> None:
            pass

    def load(metadata: dict[str, str]) -> Any:
        monkeypatch.setattr(model_files, "FileModel", Model)
        monkeypatch.setattr(model_files, "Loaded", lambda module, transform, labels: (transform, labels))
        runtimes = {".tflite": (lambda _: Program(metadata), "pip install it")}
        monkeypatch.setattr(model_files, "_RUNTIMES", runtimes)
        path = tmp_path / "a.tflite"
        path.write_bytes(b"graph")
        return model_files.ModelFileSource().load(str(path), None)

    return load


def test_a_description_is_read(load):
    transform, labels = load({"camtool": json.dumps({"preparation": GOOD, "labels": ["a", "b"]})})
    photo = Image.new("RGB", (80, 90), (255, 0, 51))
    values = np.asarray(transform(photo))
    np.testing.assert_allclose(values[:, 0, 0], [2, -2, (0.2 - 0.5) / 0.25], rtol=1e-6)
    assert (values.shape, labels) == ((3, 64, 64), ["a", "b"])


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("std", [0, 1, 1], "3 numbers above 0"),
        ("std", [math.nan, 1, 1], "3 numbers above 0"),
        ("std", [1e-45, 1, 1], "3 numbers above 0"),
        ("std", [1, 1], "3 numbers above 0"),
        ("mean", [math.inf, 1, 1], "3 numbers"),
        ("mean", [10**400, 1, 1], "3 numbers"),
        ("mean", [True, 1, 1], "3 numbers"),
        ("shorter_side", 20_000, "1 sides in whole pixels from 1 to 4096"),
        ("shorter_side", 0, "1 sides"),
        ("crop", [64.5, 64], "2 sides in whole pixels"),
        ("crop", None, "2 sides in whole pixels"),
        ("resized", [[64, 64]], "2 sides in whole pixels"),
        ("interpolation", ["bilinear"], "one of 'bilinear', 'bicubic', 'lanczos'"),
    ],
)
def test_a_value_out_of_its_range_is_named(load, field, value, wanted):
    with pytest.raises(ModelError, match=rf"preparation\.{field} must be {wanted}"):
        load({"camtool": json.dumps({"preparation": {**GOOD, field: value}})})


@pytest.mark.parametrize(
    "metadata",
    [
        {"camtool": "[" * 100_000},
        {"camtool": "{"},
        {"camtool": "[]"},
        {"camtool": '{"labels": [1, 2]}'},
        {"camtool": '{"preparation": {}}'},
        {"camtool": '{"preparation": 0}'},
        {"task": "classify", "names": "{0: "},
        {"task": "classify", "names": "3"},
        {"task": "classify", "names": "(" * 5_000},
        {"task": "classify", "names": "{0: 'a', 'b': 'c'}"},
    ],
)
def test_a_broken_description_is_an_error_of_the_model(load, metadata):
    with pytest.raises(ModelError, match=r"a\.tflite|preparation"):
        load(metadata)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, "other"]), ANYTHING), st.booleans())
def test_any_preparation_makes_finite_inputs_or_is_refused(values, is_whole):
    try:
        transform = PlainTransform.from_dict({**GOOD, **values} if is_whole else values)
    except ModelError:
        return
    assert np.isfinite(np.asarray(transform(Image.new("RGB", (5, 7), "red")))).all()


@pytest.mark.parametrize(("name", "beside"), [("a.xml", "a.bin"), ("a.onnx", "weights.data")])
def test_a_runtime_waits_for_no_pipe(tmp_path, name, beside):
    (tmp_path / name).write_bytes(b"graph of weights.data")
    os.mkfifo(tmp_path / beside)
    with pytest.raises(ModelError, match="is a pipe or a device; give a file"):
        model_files.ModelFileSource().load(str(tmp_path / name), None)


@pytest.mark.parametrize(("name", "is_pipe"), [("a.onnx", False), ("a.xml", False), ("a.xml", True)])
def test_a_folder_that_cannot_be_listed_may_hold_a_model(tmp_path, monkeypatch, name, is_pipe):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    (tmp_path / name).write_bytes(b"graph")
    if is_pipe:
        os.mkfifo(tmp_path / "a.bin")
    monkeypatch.setattr(model_files.Path, "iterdir", refuse)
    with pytest.raises(ModelError, match="is a pipe" if is_pipe else "cannot be read"):
        model_files.ModelFileSource().load(str(tmp_path / name), None)
