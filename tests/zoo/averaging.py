"""Networks as averages of pixels: the exact centers of their cells, without chance."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from camtool.geometry.cell_centers import CellCenters
from camtool.layers.centers import read_centers


class Average(nn.Module):
    """A window that averages, with the strides and the padding of a convolution or a pooling; padded cells are 0."""

    def __init__(self, window: nn.Module) -> None:
        super().__init__()
        self.geometry = {name: _pair(getattr(window, name)) for name in ("kernel_size", "stride", "padding")}
        self.dilation = _pair(getattr(window, "dilation", 1))
        self.pads_as_tensorflow = type(window).__name__.endswith("Same")
        self.channels = window.out_channels if isinstance(window, nn.Conv2d) else None

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride, padding = self.geometry.values()
        if self.pads_as_tensorflow:
            x = functional.pad(x, self._list_pads(x))
        channels = self.channels or x.shape[1]
        weight = torch.full((1, 1, *kernel), 1 / (kernel[0] * kernel[1]), dtype=x.dtype)
        means = x.mean(1, keepdim=True) if self.channels else x.flatten(0, 1)[:, None]
        y = functional.conv2d(means, weight, None, stride, padding, self.dilation)
        # Torchvision adds to it in place.
        return y.repeat(1, channels, 1, 1) if self.channels else y.unflatten(0, (len(x), channels))[:, :, 0]

    def _list_pads(self, x: Tensor) -> list[int]:
        """Return what TensorFlow's "same" padding adds at the left, right, top and bottom."""
        pads = []
        for axis in (1, 0):  # the last axis comes first
            cells, stride = x.shape[2 + axis], self.geometry["stride"][axis]
            reach = self.dilation[axis] * (self.geometry["kernel_size"][axis] - 1) + 1
            missing = max((-(-cells // stride) - 1) * stride + reach - cells, 0)
            pads += [missing // 2, missing - missing // 2]
        return pads


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def average(model: nn.Module) -> nn.Module:
    """Replace what a convolutional network is made of, so that each cell is a weighted mean of pixels.

    Convolutions and poolings average what they see, norms and activations return what they get, gates are open. The
    weights of the mean are positive, those of all filters are equal, and branches of a sum count alike.
    """
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            kind = type(child).__name__
            if isinstance(child, nn.Conv2d) or kind.startswith(("MaxPool2d", "AvgPool2d")):
                setattr(parent, name, Average(child))
            elif kind.startswith(_KEPT):
                setattr(parent, name, nn.Identity())
    return model.eval()


_KEPT = ("BatchNorm", "FrozenBatchNorm", "Hardswish", "ReLU", "SiLU", "SqueezeExcit", "StochasticDepth")
"""Beginnings of the names of norms, activations and gates, which do not change which pixels a cell sees."""


class ExactCenter(NamedTuple):
    """The centers of the middle cells of an averaging network along the last axis.

    Attributes:
        difference: The distance of the centroid of a cell's pixels from the read center, in cells.
        reach: Standard deviation of the places of these pixels, as a share of the image; 0.29 if they count alike.
    """

    difference: float
    reach: float


def find_exact_center(trunk: nn.Module, side: int) -> ExactCenter:
    """Return the exact center of the cell that is nearest to the middle of a square image, or the mean of two.

    Args:
        trunk: A network of :func:`average` that returns ``(1, C, h, w)``.
        side: Side of the image in pixels.
    """
    image = torch.ones(1, 3, side, side, dtype=torch.float64, requires_grad=True)
    output = trunk(image)
    (centers,) = read_centers([(output, output.shape[2:])], image)
    assert isinstance(centers, CellCenters)
    rows, columns = (axis.list_centers(cells) for axis, cells in zip(centers.axes, output.shape[2:], strict=True))
    row, stride = int(abs(rows - side / 2).argmin()), centers.axes[1].stride
    distances = abs(columns - side / 2) / stride
    places = torch.arange(side, dtype=torch.float64) + 0.5
    differences, reaches = [], []
    for column in (distances <= distances.min() + _NEAREST).nonzero()[0].tolist():
        (weights,) = torch.autograd.grad(output[0, :, row, column].mean(), image, retain_graph=True)
        shares = weights.sum((0, 1, 2)) / weights.sum()
        center = float(shares @ places)
        differences.append((center - float(columns[column])) / stride)
        reaches.append(float(shares @ (places - center).square()) ** 0.5 / side)
    return ExactCenter(fmean(differences), fmean(reaches))


_NEAREST = 0.1
"""Difference in cells up to which two cells are equally near to the middle."""


def build_trunk(name: str, **options: int) -> nn.Module:
    """Return a network of timm or torchvision up to its last map, without weights.

    Args:
        name: The library's name for it.
        options: For timm's builder, e.g. fewer channels.
    """
    import timm
    import torchvision

    with torch.device("meta"):
        if name in torchvision.models.list_models():
            trunk: nn.Module = torchvision.models.get_model(name, weights=None).features
            return trunk
        model: nn.Module = timm.create_model(name, pretrained=False, **options)
    if hasattr(model, "conv_head"):  # MobileNetV3 pools before it
        return nn.Sequential(model.conv_stem, model.bn1, model.blocks)
    return _Features(model)


class _Features(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.model.forward_features(x)
        return output
