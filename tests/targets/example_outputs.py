"""Outputs of two images that the tests of targets share."""

from __future__ import annotations

import torch

LOGITS = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
"""Two images, three classes."""

PLANES = torch.arange(16.0).reshape(2, 2, 2, 2)
"""Two images, two classes, 2 x 2 pixels."""

LABELS = ["tabby, tabby cat", "Crane", "crane"]
