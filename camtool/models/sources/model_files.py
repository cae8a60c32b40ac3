"""Source of files of other runtimes: what opens them, and the preprocessing and labels in their metadata."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from torch import nn

from camtool.errors import ModelError
from camtool.geometry.plain_transforms import PlainTransform
from camtool.geometry.transform_output import Transform
from camtool.models.loaded import Loaded
from camtool.models.sources.onnx_layers import OnnxModel
from camtool.models.sources.runtime_files import FileModel, OnnxProgram, OpenVinoProgram, Program, TfLiteProgram
from camtool.models.sources.source import Source, get_first_line

if TYPE_CHECKING:
    from os import PathLike

_RUNTIMES: dict[str, tuple[Callable[[str], Program], str]] = {
    ".onnx": (OnnxProgram, "pip install 'camtool[onnxruntime]'"),
    ".xml": (OpenVinoProgram, "pip install 'camtool[openvino]'"),
    ".tflite": (TfLiteProgram, "pip install 'camtool[tflite]'"),
}
"""Suffix to what opens the file, and to how its package is installed."""


class ModelFileSource(Source):
    """Files of other runtimes: ``"model.onnx"``, ``"model.xml"`` of OpenVINO, ``"model.tflite"``."""

    usage = "a file 'model.onnx', 'model.xml' or 'model.tflite'"
    has_own_weights = True

    def is_file(self, name: str) -> bool:
        """Return True if a name has the suffix of such a file."""
        return PurePath(name).suffix.lower() in _RUNTIMES

    def load(self, name: str, weights: str | PathLike[str] | None, **settings: Any) -> Loaded:
        """Open a file, with the preprocessing and the labels that its metadata give.

        Raises:
            ModelError: It cannot be read, its package is missing, or it takes no images.
        """
        if weights is not None:
            raise ModelError(f"weights: {name} holds its own weights; leave weights= (--weights) out.")
        path = Path(name)
        if not path.is_file():
            raise ModelError(f"model {name!r}: there is no such file.")
        open_program, command = _RUNTIMES[path.suffix.lower()]
        try:
            program = open_program(str(path))
            make = OnnxModel if isinstance(program, OnnxProgram) else FileModel
            model = make(path, program, **settings)
        except ImportError as error:
            raise ModelError(f"{name}: {error.name} is not installed; run {command}.") from error
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{name} cannot be read: {get_first_line(error)}.") from error
        return Loaded(model, *_read_metadata(path, program.metadata, model.input_size))

    def is_offline(self, name: str, weights: str | None) -> bool:
        """Return True: a file is read."""
        return True

    def build_untrained(self, name: str) -> nn.Module:
        """Return the model of the file, with its own weights."""
        return self.load(name, None).model


def _read_metadata(
    path: Path, metadata: Mapping[str, str], size: tuple[int, int] | None
) -> tuple[Transform | None, Sequence[str] | None]:
    """Return the preprocessing and the labels that the metadata of a file give; ``None`` for what they do not say.

    Raises:
        ModelError: It is a detector or segmenter of Ultralytics, whose output is no scores yet.
    """
    if "camtool" in metadata:
        described = json.loads(metadata["camtool"])
        stated = described.get("preparation")
        return stated and PlainTransform.from_dict(stated), described.get("labels")
    if "task" in metadata and "names" in metadata:  # Ultralytics
        if metadata["task"] != "classify":
            raise ModelError(
                f"{path}: a file of Ultralytics for the task {metadata['task']!r} returns boxes before they are "
                "selected; load its .pt file, or write a function that returns boxes, labels and scores."
            )
        names = literal_eval(metadata["names"])
        labels = [names[index] for index in sorted(names)] if isinstance(names, dict) else list(names)
        transform = size and PlainTransform(min(size), None, size, "bilinear", (0.0,) * 3, (1.0,) * 3)
        return transform, labels
    return None, metadata["labels"].strip().splitlines() if "labels" in metadata else None
