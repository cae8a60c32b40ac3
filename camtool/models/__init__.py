"""Models: from a name or a file to a model with its preprocessing and its class names.

The three travel together, as the libraries publish them: none of it is copied into camtool.
"""

from __future__ import annotations

from camtool.geometry.plain_transforms import Preprocessing as Preprocessing
from camtool.geometry.transform_output import Transform as Transform
from camtool.models.declared_properties import find_input_size as find_input_size
from camtool.models.declared_properties import find_text_processor as find_text_processor
from camtool.models.declared_properties import resolve_labels as resolve_labels
from camtool.models.declared_properties import resolve_phrases as resolve_phrases
from camtool.models.loaded import Loaded as Loaded
from camtool.models.loaded import TextEncoder as TextEncoder
from camtool.models.loading import build_untrained as build_untrained
from camtool.models.loading import load as load
from camtool.models.loading import load_with_preprocessing as load_with_preprocessing
from camtool.models.loading import to_loaded as to_loaded
from camtool.models.loading import unwrap_layer as unwrap_layer
from camtool.models.loading import unwrap_model as unwrap_model
from camtool.models.preprocessing import StatedPreprocessing as StatedPreprocessing
from camtool.models.preprocessing import scale_statistics as scale_statistics
from camtool.models.sources import Source as Source
from camtool.models.sources import register_source as register_source
from camtool.models.weights import read_state as read_state
