"""Networks of torchvision with random weights, and files of their weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision.models as zoo
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from camtool import ModelError

NAME = "shufflenet_v2_x0_5"
"""Name of the smallest classifier of torchvision with an ordinary head."""

OPTIONS = {
    "googlenet": {"init_weights": False},
    "inception_v3": {"init_weights": False},
    "deeplabv3_mobilenet_v3_large": {"weights_backbone": None, "aux_loss": True},
}
"""Name → options of models whose published weights have more parameters than the default model."""

BATCH = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
PHOTO = Image.radial_gradient("L").convert("RGB")


def build_net(name: str = NAME, **options) -> nn.Module:
    return zoo.get_model(name, weights=None, **options).eval()


def save_weights(folder: Path, content: object, name: str = "weights.pth") -> Path:
    path = folder / name
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    return path


def assert_one_line(error: pytest.ExceptionInfo[ModelError]) -> None:
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 500
