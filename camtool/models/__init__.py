"""Models: from a name or a file to a model with its preprocessing and its class names.

The three travel together, as the libraries publish them: none of it is copied into camtool.
"""

from __future__ import annotations

from camtool.geometry.transform_output import Transform as Transform
from camtool.models.declared_properties import count_input_channels as count_input_channels
from camtool.models.declared_properties import find_input_size as find_input_size
from camtool.models.declared_properties import find_text_processor as find_text_processor
from camtool.models.declared_properties import find_transform as find_transform
from camtool.models.declared_properties import read_input_size as read_input_size
from camtool.models.declared_properties import resolve_labels as resolve_labels
from camtool.models.declared_properties import resolve_phrases as resolve_phrases
from camtool.models.loaded import Loaded as Loaded
from camtool.models.loaded import TextEncoder as TextEncoder
from camtool.models.loading import build_untrained as build_untrained
from camtool.models.loading import is_model_name as is_model_name
from camtool.models.loading import is_offline as is_offline
from camtool.models.loading import load as load
from camtool.models.loading import load_with_preprocessing as load_with_preprocessing
from camtool.models.loading import may_run_code as may_run_code
from camtool.models.loading import to_loaded as to_loaded
from camtool.models.loading import unwrap_layer as unwrap_layer
from camtool.models.loading import unwrap_model as unwrap_model
from camtool.models.preprocessing import Preprocessing as Preprocessing
from camtool.models.preprocessing import StatedPreprocessing as StatedPreprocessing
from camtool.models.preprocessing import build_preprocessing as build_preprocessing
from camtool.models.preprocessing import check_fits_model as check_fits_model
from camtool.models.preprocessing import scale_statistics as scale_statistics
from camtool.models.sources import Source as Source
from camtool.models.sources import register_source as register_source
from camtool.models.sources.torchvision import build_default_transform as build_default_transform
from camtool.models.two_towers import ImageTower as ImageTower
from camtool.models.user_code import load_transform as load_transform
from camtool.models.weights import read_state as read_state
