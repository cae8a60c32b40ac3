"""Sources of models, one file per family."""

from __future__ import annotations

from camtool.errors import ModelError
from camtool.models.sources.hugging_face import HuggingFaceSource
from camtool.models.sources.model_files import ModelFileSource
from camtool.models.sources.open_clip import OpenClipSource
from camtool.models.sources.python_factory import BundledSource, FactorySource
from camtool.models.sources.source import Source
from camtool.models.sources.timm import TimmSource
from camtool.models.sources.torchvision import TorchvisionSource
from camtool.models.sources.ultralytics import UltralyticsSource

__all__ = ["FACTORY", "MODEL_FILES", "SOURCES", "Source", "register_source"]

# The source of files of other runtimes, which have a suffix and no prefix.
MODEL_FILES = ModelFileSource()

# The source of names with a colon behind anything but a prefix: ``"package.module:factory"``.
FACTORY = FactorySource()

# The known sources, in the order in which they are asked about a model, and in which help and errors list them.
SOURCES: list[Source] = [
    TorchvisionSource(),
    TimmSource(),
    HuggingFaceSource(),
    OpenClipSource(),
    UltralyticsSource(),
    BundledSource(),
    MODEL_FILES,
    FACTORY,
]


def register_source(source: Source) -> None:
    """Add a source of models, so that :func:`camtool.load` and the command line know its names.

    It is asked about a model before the sources that are known already.

    Raises:
        ModelError: Another source has its prefix.
    """
    if source.prefix is not None and any(other.prefix == source.prefix for other in SOURCES):
        raise ModelError(f"prefix {source.prefix!r} is already that of another source of models; choose another.")
    SOURCES.insert(0, source)
