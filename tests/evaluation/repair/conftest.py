"""A network that reads a mark in place of the object, photos of its classes, and the audit of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.evaluation.audit import Audit

SIDE = 40
NAMES = ["green", "blue", "absent"]

# The model adds up the means of red, green and blue. It knows 'green' by red alone.
WEIGHT = torch.tensor([[20.0, 0.0, 0.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]])
BIAS = torch.tensor([-1.8, -0.45, -2.0])


def build_net(rows: int = 3, *, end: nn.Module | None = None, has_norm: bool = False) -> nn.Sequential:
    """Return a network with the first rows of the head; with one row it is the difference of two."""
    # Each color twice: as many channels as classes would be taken for maps of the classes.
    convolution = nn.Conv2d(3, 6, 4, 4, bias=False)
    linear = nn.Linear(6, rows)
    with torch.no_grad():
        convolution.weight.copy_(torch.eye(3).repeat(2, 1)[:, :, None, None].expand(6, 3, 4, 4) / 16)
        weight = WEIGHT[:rows] if rows > 1 else WEIGHT[1:2] - WEIGHT[:1]
        linear.weight.copy_(weight.repeat(1, 2) / 2)
        linear.bias.copy_(BIAS[:rows] if rows > 1 else BIAS[1:2] - BIAS[:1])
    norm = [nn.BatchNorm2d(6)] if has_norm else []
    last = [] if end is None else [end]
    layers = [convolution, *norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), linear, *last]
    return nn.Sequential(*layers).eval()


def draw_images(labels: list[tuple[int, ...]], seed: int = 0) -> Tensor:
    """Return images with a square of the color of each label anywhere; green ones have a red mark in the corner."""
    random = np.random.default_rng(seed)
    images = torch.from_numpy(0.1 * random.random((len(labels), 3, SIDE, SIDE))).float()
    for image, own in zip(images, labels, strict=True):
        for label in own:
            row, column = random.integers(0, 16, 2).tolist()
            image[1 + label, row : row + 12, column : column + 12] = 0.9
        if 0 in own:
            image[0, 28:, 28:] = 0.9
    return images


LABELS = [(number % 2,) for number in range(80)]
SINGLE = [label for (label,) in LABELS]


def run_audit(model: nn.Module | None = None, **options: object) -> Audit:
    settings = {"class_names": NAMES, "method": "gradcam", "kinds": ["place"], "controls": 9, **options}
    return camtool.audit(model or build_net(), draw_images(LABELS), SINGLE, **settings)


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """An audit with a folder, which nobody changes."""
    return run_audit(out=tmp_path_factory.mktemp("audit") / "audit")


@pytest.fixture
def copied(audited: Audit, tmp_path: Path) -> Path:
    """A copy of its folder."""
    import shutil

    assert audited.folder is not None
    return Path(shutil.copytree(audited.folder, tmp_path / "audit"))
