"""All networks of keras.applications that Keras builds on torch, with random weights: layer and map, also nested."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import camtool
from tests.helpers.keras_models import explain_by_hand, explain_nested_by_hand, keras

# Keras pads by another rule in NASNet's cells on torch, and does not build it.
NETWORKS = sorted(name for name in vars(keras.applications) if name[0].isupper() and not name.startswith("NASNet"))

# One of each kind of block; the others take six minutes of processor time.
IN_EACH_RUN = ("DenseNet121", "MobileNetV2", "MobileNetV3Small")
CASES = [pytest.param(name, marks=() if name in IN_EACH_RUN else pytest.mark.nightly) for name in NETWORKS]


def choose_shape(name: str) -> tuple[int, int, int]:
    """Return a shape of images, with which the last grid has more than one cell."""
    return (160, 160, 3) if name.startswith("Inception") else (96, 96, 3)


@pytest.fixture(autouse=True)
def free_memory() -> Any:
    """Free the model of a case, which has cycles, before the next one is built."""
    yield
    gc.collect()


def build(name: str, **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    return getattr(keras.applications, name)(weights=None, input_shape=choose_shape(name), **options)


def find_last_grid(model: Any) -> Any:
    """Return the last layer, or addition, whose output is a grid, but for one that only pools."""
    steps = [step for step in model.operations if len(step.output.shape) == 4 and step.output.shape[1] > 1]
    return [step for step in steps if "pool" not in step.name][-1]


@pytest.mark.parametrize("name", CASES)
def test_the_last_grid_is_explained_as_by_hand(name: Any) -> None:
    model, images = build(name, classes=5), torch.rand(1, *choose_shape(name))
    result = camtool.explain(model, images[0].permute(2, 0, 1), 1)
    layer = find_last_grid(model)
    expected = explain_by_hand(model, layer, images, 1)
    assert result.layer == layer.name
    assert result.raw == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-4 * float(expected.max()))
    assert float(expected.max()) > 0 or "constant-map" in [warning.code for warning in result.warnings]


@pytest.mark.parametrize("name", CASES)
def test_so_is_that_of_a_network_nested_in_a_tuned_head(name: Any) -> None:
    base, images = build(name, include_top=False), torch.rand(1, *choose_shape(name))
    model = keras.Sequential(
        [
            keras.Input(choose_shape(name)),
            base,
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    layer = find_last_grid(base)
    named = camtool.explain(model, images[0].permute(2, 0, 1), 1, layer=layer.name)
    default = camtool.explain(model, images[0].permute(2, 0, 1), 1)
    expected = explain_nested_by_hand(model, base, layer, images, 1)
    tolerance: dict[str, Any] = {"rel": 1e-4, "abs": 1e-4 * float(expected.max())}
    assert named.raw == pytest.approx(expected.numpy(), **tolerance)
    whole = explain_nested_by_hand(model, base, base.layers[-1], images, 1)
    assert default.raw == pytest.approx(whole.numpy(), **tolerance) or default.layer == named.layer
