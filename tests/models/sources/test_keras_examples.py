"""The documented examples of libraries for Keras, literally by torch in place of TensorFlow, against camtool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import camtool
from tests.helpers.keras_models import keras

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # Keras reads weights so


def build_classifier() -> Any:
    keras.utils.set_random_seed(3)
    image = keras.Input((32, 32, 3))
    x = L.Conv2D(12, 3, 2, activation="relu", name="block1_conv")(image)
    x = L.Conv2D(16, 3, activation="relu", name="block2_conv")(x)
    return keras.Model(image, L.Dense(5, activation="softmax")(L.GlobalAveragePooling2D()(x)))


def make_gradcam_heatmap(images: Tensor, model: Any, last_conv_layer_name: str, pred_index: int) -> Any:
    """Grad-CAM as in https://keras.io/examples/vision/grad_cam/, which removes the softmax first."""
    model.layers[-1].activation = None
    layer = model.get_layer(last_conv_layer_name)
    last_conv_layer_output, preds = keras.Model(model.inputs, [layer.output, model.output])(images)
    (grads,) = torch.autograd.grad(preds[:, pred_index].sum(), last_conv_layer_output)
    pooled_grads = grads.mean((0, 1, 2))
    heatmap = (last_conv_layer_output[0] @ pooled_grads[..., None]).squeeze(-1)
    return (heatmap.relu() / heatmap.max()).detach().numpy()


def explain_as_tf_explain(images: Tensor, model: Any, layer_name: str, class_index: int) -> Any:
    """``GradCAM().explain((images, None), model, class_index, layer_name, use_guided_grads=False)`` before its colors.

    It takes the model as it is, so the documentation asks for one without a softmax.
    """
    model.layers[-1].activation = None
    outputs, predictions = keras.Model(model.inputs, [model.get_layer(layer_name).output, model.output])(images)
    (grads,) = torch.autograd.grad(predictions[:, class_index].sum(), outputs)
    cam = (grads.mean((1, 2), keepdim=True) * outputs).sum(-1)[0].detach().numpy()
    return np.maximum(cam, 0) / cam.max()


def explain_as_tf_keras_vis(images: Tensor, model: Any, layer_name: str, index: int, *, is_layercam: bool) -> Any:
    """``Gradcam(model, model_modifier=ReplaceToLinear())(CategoricalScore(index), images)``, or ``Layercam``."""
    model.layers[-1].activation = keras.activations.linear
    penultimate, scores = keras.Model(model.inputs, [model.get_layer(layer_name).output, model.output])(images)
    (grads,) = torch.autograd.grad(scores[:, index].sum(), penultimate)
    weights = grads.relu() if is_layercam else grads.mean((1, 2), keepdim=True)
    cam = (penultimate * weights).sum(-1).relu()[0]
    return ((cam - cam.min()) / (cam.max() - cam.min())).detach().numpy()


def of_tf_keras_vis(name: str) -> Callable[..., Any]:
    return lambda *args: explain_as_tf_keras_vis(*args, is_layercam=name == "Layercam")


EXAMPLES: dict[str, tuple[Callable[..., Any], str]] = {
    "keras.io": (make_gradcam_heatmap, "gradcam"),
    "tf-explain": (explain_as_tf_explain, "gradcam"),
    "tf-keras-vis, Gradcam": (of_tf_keras_vis("Gradcam"), "gradcam"),
    "tf-keras-vis, Layercam": (of_tf_keras_vis("Layercam"), "layercam"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_its_map(name: Any) -> None:
    example, method = EXAMPLES[name]
    model, images = build_classifier(), torch.rand(1, 32, 32, 3, generator=torch.Generator().manual_seed(1))
    raw = camtool.explain(model, images[0].permute(2, 0, 1), 2, method=method).raw
    low = 0 if "Gradcam" not in name and "Layercam" not in name else raw.min()
    expected = example(images, model, "block2_conv", 2)
    assert (raw - low) / (raw.max() - low) == pytest.approx(expected, abs=1e-4)
