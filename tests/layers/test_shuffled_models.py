"""Thirty transformers whose tokens are in any order, after any prefix: the map is right, or there is none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.errors import LayerError

Order = Callable[[int, int], Tensor]

PATCH, WIDTH = 8, 32

SIZES = [(64, 64), (64, 96), (128, 64)]


def number(height: int, width: int) -> Tensor:
    return torch.arange(height * width).reshape(height, width)


ORDERS: dict[str, Order] = {
    "by rows": lambda height, width: number(height, width).flatten(),
    "backwards": lambda height, width: number(height, width).flatten().flip(0),
    "by columns": lambda height, width: number(height, width).T.flatten(),
    "mirrored": lambda height, width: number(height, width).flip(1).flatten(),
    "upside down": lambda height, width: number(height, width).flip(0).flatten(),
    "by windows": lambda height, width: (
        number(height, width).reshape(height // 4, 4, width // 4, 4).permute(0, 2, 1, 3).flatten()
    ),
    "row and column in turns": lambda height, width: torch.cat(
        [number(height, width)[:, ::2].flatten(), number(height, width)[:, 1::2].flatten()]
    ),
    "rows in turns": lambda height, width: (
        number(height, width).reshape(2, height // 2, width).transpose(0, 1).flatten()
    ),
    "at random": lambda height, width: torch.randperm(height * width, generator=torch.Generator().manual_seed(3)),
    "at random, otherwise": lambda height, width: torch.randperm(
        height * width, generator=torch.Generator().manual_seed(4)
    ),
}
"""Name → for each token its cell in the grid."""


class ShuffledViT(nn.Module):
    """A transformer whose blocks work on its tokens in another order, after prefix tokens."""

    def __init__(self, order: Tensor, prefix: int, positions: int) -> None:
        super().__init__()
        self.order = order
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.prefix = nn.Parameter(torch.randn(1, prefix, WIDTH))
        self.places = nn.Parameter(torch.randn(1, positions, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        tokens = torch.cat([self.prefix.expand(len(x), -1, -1), tokens[:, self.order]], 1)
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def make(name: str, size: tuple[int, int], prefix: int) -> tuple[ShuffledViT, Tensor, tuple[int, int]]:
    torch.manual_seed(0)
    grid = size[0] // PATCH, size[1] // PATCH
    model = ShuffledViT(ORDERS[name](*grid), prefix, grid[0] * grid[1]).eval()
    return model, torch.randn(1, 3, *size), grid


def compute_gradcam(model: ShuffledViT, layer: str, x: Tensor, grid: tuple[int, int]) -> np.ndarray:
    """Compute the Grad-CAM of class 1, with the tokens put back to their cells."""
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(
        lambda _module, _given, output: kept.append(output if isinstance(output, Tensor) else output[0])
    )
    with torch.enable_grad():
        score = model(x)[0, 1]
    handle.remove()
    (gradient,) = torch.autograd.grad(score, kept[-1])
    output = kept[-1]
    if output.ndim == 4:  # the patches, in the order of the image
        return (output * gradient.mean((2, 3), keepdim=True)).sum(1).relu()[0].detach().numpy()
    prefix = model.prefix.shape[1]
    cells = torch.empty(grid[0] * grid[1])
    weights = gradient[0, prefix:].mean(0)
    cells[model.order] = (output[0, prefix:] * weights).sum(-1).relu().detach()
    return cells.reshape(grid).numpy()


def assert_right_or_refused(model: ShuffledViT, x: Tensor, grid: tuple[int, int], layer: str | None) -> str:
    try:
        found = camtool.explain(model, x[0], 1, layer=layer)
    except LayerError as error:
        return str(error)
    expected = compute_gradcam(model, found.layer, x, grid)
    assert expected.any()
    assert np.abs(found.raw - expected).max() <= 1e-5 * expected.max()
    return found.layer


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", ORDERS)
def test_the_map_is_right_or_there_is_none(name: str, size: tuple[int, int]) -> None:
    model, x, grid = make(name, size, prefix=list(ORDERS).index(name) % 5)
    assert assert_right_or_refused(model, x, grid, None) == ("norm" if name == "by rows" else "patches")
    refusal = assert_right_or_refused(model, x, grid, "norm")
    assert refusal == "norm" if name == "by rows" else "not in the order of the image's rows" in refusal
