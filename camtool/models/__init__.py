"""Models: from a name or a file to a model with its preprocessing and its class names.

The three travel together, as the libraries publish them: none of it is copied into camtool.
"""

from __future__ import annotations

from camtool.geometry.transform_output import Transform
from camtool.models.declared_properties import (
    count_input_channels,
    find_input_size,
    find_text_processor,
    find_transform,
    read_input_size,
    resolve_labels,
    resolve_phrases,
)
from camtool.models.loaded import Loaded, TextEncoder
from camtool.models.loading import (
    build_untrained,
    is_model_name,
    is_offline,
    load,
    load_with_preprocessing,
    may_run_code,
)
from camtool.models.preprocessing import (
    Channels,
    Preprocessing,
    StatedPreprocessing,
    build_preprocessing,
    check_fits_model,
    scale_statistics,
)
from camtool.models.sources import Source, register_source
from camtool.models.sources.torchvision import build_default_transform
from camtool.models.two_towers import ImageTower, TextTower
from camtool.models.unwrapping import to_loaded, unwrap_layer, unwrap_model
from camtool.models.user_code import load_transform
from camtool.models.weights import read_state

__all__ = [
    "Channels",
    "ImageTower",
    "Loaded",
    "Preprocessing",
    "Source",
    "StatedPreprocessing",
    "TextEncoder",
    "TextTower",
    "Transform",
    "build_default_transform",
    "build_preprocessing",
    "build_untrained",
    "check_fits_model",
    "count_input_channels",
    "find_input_size",
    "find_text_processor",
    "find_transform",
    "is_model_name",
    "is_offline",
    "load",
    "load_transform",
    "load_with_preprocessing",
    "may_run_code",
    "read_input_size",
    "read_state",
    "register_source",
    "resolve_labels",
    "resolve_phrases",
    "scale_statistics",
    "to_loaded",
    "unwrap_layer",
    "unwrap_model",
]
