"""Random maps, the control of every metric, and an order of pixels without a preference among equal ones."""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.maps import resize, scale_min_max, upcast


def draw_random_maps(images: Tensor, *, seed: int, grid: int | None = 7) -> Tensor:
    """Return a random map in [0, 1] for each image, on the images' device.

    Args:
        images: ``(N, C, H, W)``.
        seed: The seed of the maps. The maps are the same on every device.
        grid: Values are drawn on a grid of this many cells per side, and resized: 7 cells are as smooth as the maps of
            common networks. None draws each pixel on its own.

    Returns:
        ``(N, H, W)``.
    """
    size = tuple(images.shape[2:])
    cells = size if grid is None else (grid, grid)
    # Drawn on the CPU, as generators differ between devices.
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand((len(images), *cells), generator=generator, device="cpu")
    return scale_min_max(resize(values, size)).to(upcast(images))


def rank_pixels(maps: Tensor, *, seed: int = 0) -> Tensor:
    """Return the rank of each pixel of maps ``(N, H, W)``: 0 for the hottest. Equal pixels are in random order.

    In the order of memory, the rows at the top of a constant map would come first, which is a preference for the upper
    part of the image. The random order is the same for all maps.

    Returns:
        ``(N, H * W)``.
    """
    values = maps.flatten(1)
    shuffled = torch.randperm(values.shape[1], generator=torch.Generator().manual_seed(seed), device="cpu").to(
        maps.device
    )
    order = shuffled[values[:, shuffled].argsort(stable=True, dim=1, descending=True)]
    return order.argsort(1)
