"""Keras models, and Grad-CAM by hand with Keras' own means; the tests are skipped where Keras is not installed."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

os.environ.setdefault("KERAS_BACKEND", "torch")
keras: Any = pytest.importorskip("keras", reason="Keras is not installed: pip install 'camtool[keras]'")


def compute_logits(model: Any, last_input: Tensor) -> Tensor:
    """Return what the last layer of a model computes before its softmax, from its weights."""
    last = model.layers[-1]
    return keras.ops.matmul(last_input, last.kernel) + last.bias if hasattr(last, "kernel") else last_input


def explain_by_hand(model: Any, layer: Any, images: Tensor, index: int) -> Tensor:
    """Return Grad-CAM ``(h, w)`` of the first image ``(N, H, W, C)``, from a model with two outputs."""
    part = keras.Model(model.inputs, [layer.output, model.layers[-1].input])
    grid, last = part(images, training=False)
    return weigh(grid, compute_logits(model, last)[0, index])


def explain_nested_by_hand(model: Any, base: Any, layer: Any, images: Tensor, index: int) -> Tensor:
    """Return the same for a layer of a nested model, which is run in two parts, as the graph is disconnected."""
    grid, features = keras.Model(base.inputs, [layer.output, base.outputs[0]])(images, training=False)
    steps = model.layers[model.layers.index(base) + 1 : -1]
    for step in steps:
        features = step(features, training=False)
    return weigh(grid, compute_logits(model, features)[0, index])


def weigh(grid: Tensor, score: Tensor) -> Tensor:
    """Return Grad-CAM of a grid ``(N, h, w, C)``, of the first image."""
    (gradient,) = torch.autograd.grad(score, grid)
    return (grid * gradient.mean((1, 2), keepdim=True)).sum(-1)[0].relu().detach()
