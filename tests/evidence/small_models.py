"""Small models of every layout, and the evidence about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torchvision.models as zoo
from torch import Tensor, nn

from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import ForwardPass, run_forward_pass
from camtool.layers.selection import find_layers
from camtool.targets import ClassScore, Target
from tests.helpers.nets import Apply

CLASSES = 5


class BlockRunTwice(nn.Module):
    """A block that runs twice in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 6, 3, stride=4, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.tail = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.block(self.block(self.stem(x)).relu()))


def make_cnn() -> nn.Module:
    trunk = [nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, padding=1)]
    tail = [nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 6), nn.GELU()]
    return nn.Sequential(*trunk, *tail, nn.Linear(6, CLASSES)).eval()


def make_vit() -> nn.Module:
    model = zoo.VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=CLASSES)
    nn.init.normal_(model.heads.head.weight)  # torchvision initializes it with zeros
    return model.eval()


def make_swin() -> nn.Module:
    make_swin = zoo.swin_transformer.SwinTransformer
    return make_swin([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=CLASSES).eval()


MODELS = {
    "channels first": (make_cnn, "2"),
    "tokens": (make_vit, "encoder.layers.encoder_layer_0"),
    "channels last": (make_swin, "features.1"),
    "run twice": (lambda: BlockRunTwice().eval(), "block"),
}


def observe_layers(model: nn.Module, *layers: str, images: int = 3, dtype: torch.dtype = torch.float32) -> ForwardPass:
    inputs = torch.randn(images, 3, 32, 32, dtype=dtype)
    return run_forward_pass(model, inputs, find_layers(model, inputs, layers or None))


def gather_one(model: nn.Module, layer: str, targets: Sequence[Target] | None = None, **options: Any) -> Evidence:
    forward_pass = observe_layers(model, layer, **options)
    wanted = targets or [ClassScore(i % CLASSES) for i in range(len(forward_pass.logits))]
    return gather_evidence(forward_pass, wanted)[0]


# ----------------------------------------------------------------------------------------------------- linear head

Conv2d = nn.Conv2d


def make_model(*tail: nn.Module) -> nn.Module:
    """Return a stem of six channels, some of them negative, followed by a tail."""
    return nn.Sequential(Conv2d(3, 6, 3, stride=4, padding=1), *tail).eval()


def make_tail(*tail: nn.Module) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *tail]


def average_positions(maps: Tensor) -> Tensor:
    return maps.flatten(2).mean(2)


HEADS = {
    "pool, linear": lambda: make_model(*make_tail(nn.Linear(6, CLASSES))),
    "no bias": lambda: make_model(*make_tail(nn.Linear(6, CLASSES, bias=False))),
    "dropout between": lambda: make_model(*make_tail(nn.Dropout(), nn.Linear(6, CLASSES))),
    "mean, linear": lambda: make_model(Apply(average_positions), nn.Linear(6, CLASSES)),
    "1 x 1 convolution, pool": lambda: make_model(Conv2d(6, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    "ReLU, pool, linear": lambda: make_model(nn.ReLU(), *make_tail(nn.Linear(6, CLASSES))),
    "as many channels as classes": lambda: make_model(Conv2d(6, CLASSES, 1), *make_tail(nn.Linear(CLASSES, CLASSES))),
}
