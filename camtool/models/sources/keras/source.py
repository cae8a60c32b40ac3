"""Source of Keras models: ``.keras`` files, and the size and the preparation of the photos that a model takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

from packaging.version import Version
from torch import nn

from camtool.arguments.libraries import import_library
from camtool.errors import CamtoolError, ModelError, raise_interrupt
from camtool.geometry.transform_output import Transform
from camtool.models.loaded import Loaded
from camtool.models.sources.keras.archives import copy_checked
from camtool.models.sources.keras.model import KerasModel
from camtool.models.sources.keras.preparation import build_transform, read_image_size
from camtool.models.sources.source import Source, get_first_line

# The first release after the known ways to run code from a file were closed.
_OLDEST = Version("3.12")


class KerasSource(Source):
    """Files of Keras 3, ``"model.keras"``, which run on its torch backend, whichever they were trained on."""

    usage = "a file 'model.keras'"
    has_own_weights = True

    def is_file(self, name: str) -> bool:
        """Return True if a name has the suffix of such a file."""
        return PurePath(name).suffix.lower() == ".keras"

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Load a file, which is checked before: it runs no code, and names Keras' own layers alone.

        Raises:
            ModelError: It cannot be read or names something else, or Keras is missing, too old, or on another backend.
        """
        if weights is not None:
            raise ModelError(f"weights: {name} holds its own weights; leave weights= (--weights) out.")
        if not Path(name).is_file():
            raise ModelError(f"model {name!r}: there is no such file.")
        keras = import_keras()
        with TemporaryDirectory(prefix="camtool-") as folder:
            checked = copy_checked(Path(name), Path(folder))
            try:
                model = KerasModel(keras.saving.load_model(str(checked), compile=False, safe_mode=True))
            except Exception as error:
                raise_interrupt(error, CamtoolError)
                raise ModelError(f"Keras {keras.__version__} cannot read {name}: {get_first_line(error)}.") from error
        return Loaded(model, build_transform(model))

    def is_offline(self, name: str, weights: str | None) -> bool:
        """Return True: a file is read."""
        return True

    def build_untrained(self, name: str) -> nn.Module:
        """Return the model of the file, with its own weights."""
        return self.load(name, None).model

    def find_transform(self, model: nn.Module) -> Transform | None:
        """Return the preparation that the layers of a model show."""
        return build_transform(model) if isinstance(model, KerasModel) else None

    def find_input_size(self, model: nn.Module) -> tuple[int, int] | None:
        """Return the size of the images that a model takes; None if it takes any."""
        return read_image_size(model) if isinstance(model, KerasModel) else None


def import_keras() -> Any:
    """Return Keras on its torch backend.

    Raises:
        ModelError: It is not installed, too old, or was imported with another backend.
    """
    with _choose_torch():
        keras = import_library("keras", ".keras files need Keras", "'camtool[keras]'", ModelError)
    if Version(keras.__version__) < _OLDEST:
        raise ModelError(f"Keras {keras.__version__} is too old to read files of others: pip install -U keras")
    if keras.config.backend() != "torch":
        raise ModelError(
            f"Keras runs on {keras.config.backend()} in this Python, and camtool needs its torch backend: set "
            'os.environ["KERAS_BACKEND"] = "torch" before Keras is imported, or use another Python: python -m camtool '
            "photos/ --model m.keras"
        )
    return keras


@contextmanager
def _choose_torch() -> Iterator[None]:
    """Let Keras choose its torch backend if it is imported in the block for the first time."""
    before = os.environ.get("KERAS_BACKEND")
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "torch"
    try:
        yield
    finally:
        os.environ.pop("KERAS_BACKEND", None)
        if before is not None:
            os.environ["KERAS_BACKEND"] = before
