"""Networks on small volumes whose last grid is a single cell: channels must not be taken for slices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import camtool
from camtool.errors import LayerError


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv3d(1, 8, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv3d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv3d(16, 32, 4), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32, 3)),
    ).eval()


def test_the_deepest_layer_with_a_grid_is_explained() -> None:
    model, volume = build(), torch.randn(1, 1, 16, 16, 16)
    (found,) = camtool.explain(model, volume, 1)
    assert (found.layer, found.raw.shape) == ("3", (4, 4, 4))
    activations = model[:4](volume).detach().requires_grad_()
    model[4:](activations)[0, 1].backward()
    weights = activations.grad.mean((2, 3, 4), keepdim=True)
    by_hand = (activations.detach() * weights).sum(1).relu()[0].numpy()
    assert by_hand.any()
    assert np.abs(found.raw - by_hand).max() <= 1e-6 * by_hand.max()


def test_a_single_cell_is_no_grid() -> None:
    with pytest.raises(LayerError, match="no grid over the 16 x 16 x 16 input"):
        camtool.explain(build(), torch.randn(1, 1, 16, 16, 16), 1, layer="5")
