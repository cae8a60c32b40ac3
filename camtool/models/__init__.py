"""Models: from a name or a file to a model with its own preprocessing and its own labels.

These are the only rooms that know where models come from. Weights, the transform they were trained with and the names
of their classes travel together, as torchvision, timm and Hugging Face publish them: nothing of it is typed in by hand.
"""

from __future__ import annotations

from camtool.models.base import Loaded, TextEncoder, Transform
from camtool.models.registry import architecture, as_loaded, is_model_name, load
from camtool.models.torchvision_zoo import usual_transform
from camtool.models.towers import ImageTower, TextTower
from camtool.models.usual import labels_for, own_transform, usual_labels, usual_size
from camtool.models.weights import read_state
from camtool.models.wrappers import layer_inside, unwrapped_model

__all__ = [
    "ImageTower",
    "Loaded",
    "TextEncoder",
    "TextTower",
    "Transform",
    "architecture",
    "as_loaded",
    "is_model_name",
    "labels_for",
    "layer_inside",
    "load",
    "own_transform",
    "read_state",
    "unwrapped_model",
    "usual_labels",
    "usual_size",
    "usual_transform",
]
