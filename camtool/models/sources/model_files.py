"""Source of files of other runtimes: what opens them, and the preprocessing and labels in their metadata."""

from __future__ import annotations

import json
import warnings
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO
from os import PathLike
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import nn

from camtool.errors import ModelError, RaiseAs, raise_interrupt
from camtool.geometry.plain_transforms import PlainTransform
from camtool.geometry.transform_output import Transform
from camtool.models.loaded import Loaded
from camtool.models.sources.keras.files import load_keras_file
from camtool.models.sources.keras.model import KerasModel, is_keras
from camtool.models.sources.keras.preparation import build_transform, read_image_size
from camtool.models.sources.onnx_layers import OnnxModel
from camtool.models.sources.runtime_files import FileModel, OnnxProgram, OpenVinoProgram, Program, TfLiteProgram
from camtool.models.sources.source import Source, describe_errors, get_first_line

# Suffix to what opens the file, and to how its package is installed.
_RUNTIMES: dict[str, tuple[Callable[[str], Program | KerasModel], str]] = {
    ".onnx": (OnnxProgram, "pip install 'camtool[onnxruntime]'"),
    ".xml": (OpenVinoProgram, "pip install 'camtool[openvino]'"),
    ".tflite": (TfLiteProgram, "pip install 'camtool[tflite]'"),
    ".keras": (load_keras_file, "pip install 'camtool[keras]'"),
}

_CONVERTER = "pip install 'camtool[onnx2pytorch]'"
# Largest difference between the scores of a converted graph and the file's, as a share of the largest; usual is 1e-6.
_EXACT = 1e-4


class ModelFileSource(Source):
    """Files of other runtimes: ``"model.onnx"``, ``"model.xml"`` of OpenVINO, ``"model.tflite"``, ``"model.keras"``."""

    usage = "a file 'model.onnx', 'model.xml', 'model.tflite' or 'model.keras'"
    has_own_weights = True

    def is_file(self, name: str) -> bool:
        """Return True if a name has the suffix of such a file."""
        return PurePath(name).suffix.lower() in _RUNTIMES

    def load(
        self, name: str, weights: str | PathLike[str] | None, *, gradients: bool = False, **settings: Any
    ) -> Loaded:
        """Open a file, with the preprocessing and the labels that its metadata give.

        Args:
            name: The path.
            weights: None, as the file has its own.
            gradients: Convert a graph of ONNX to a module of torch, which has gradients.
            **settings: Those of :class:`FileModel`.

        Raises:
            ModelError: It cannot be read, its package is missing, it takes no images, or its conversion is not exact.
        """
        if weights is not None:
            raise ModelError(f"weights: {name} holds its own weights; leave weights= (--weights) out.")
        path = Path(name)
        if not path.is_file():
            raise ModelError(f"model {name!r}: there is no such file.")
        open_program, command = _RUNTIMES[path.suffix.lower()]

        def name_package(error: ImportError) -> ModelError:
            return ModelError(f"{name}: {error}; run {_CONVERTER if error.name == 'onnx2pytorch' else command}.")

        _check_files_beside(path)
        with describe_errors(f"{name} cannot be read"), RaiseAs(name_package, ImportError):
            program = open_program(str(path))
            if isinstance(program, KerasModel):
                return Loaded(program, build_transform(program.whole))
            make = OnnxModel if isinstance(program, OnnxProgram) else FileModel
            model = make(path, program, **settings)
            module = _convert(model) if gradients else model
            return Loaded(module, *_read_metadata(path, program.metadata, model.input_size))

    def is_offline(self, name: str, weights: str | None) -> bool:
        """Return True: a file is read."""
        return True

    def build_untrained(self, name: str) -> nn.Module:
        """Return the model of the file, with its own weights."""
        return self.load(name, None).model

    def find_transform(self, model: nn.Module) -> Transform | None:
        """Return the preparation that the layers of a Keras model show."""
        return build_transform(model) if is_keras(model) else None

    def find_input_size(self, model: nn.Module) -> tuple[int, int] | None:
        """Return the size of the images that a Keras model takes; None if it takes any."""
        return read_image_size(model) if is_keras(model) else None


def _check_files_beside(path: Path) -> None:
    """Check that what a runtime may open beside a file is a regular file: it would wait for a pipe for ever.

    Raises:
        ModelError: The weights of a graph of OpenVINO, or a file that a graph of ONNX names, are something else.
    """
    siblings = [path.with_suffix(".bin")]
    with suppress(OSError):  # a folder may be entered that cannot be listed; only this name is known then, of OpenVINO
        siblings = [*path.parent.iterdir()]
    others = [sibling for sibling in siblings if not (sibling.is_file() or sibling.is_dir()) and sibling.exists()]
    content = path.read_bytes() if others else b""
    for each in others:
        if each == path.with_suffix(".bin") or each.name.encode() in content:
            raise ModelError(f"model {str(path)!r}: {str(each)!r}, which it needs, is a pipe or a device; give a file.")


def _convert(model: FileModel) -> nn.Module:
    """Return a graph of ONNX as a module of torch with gradients, which gives the file's own scores.

    Raises:
        ModelError: The file is none of ONNX or takes no float32 images ``(N, C, H, W)``, or the scores are others.
    """
    if not isinstance(model, OnnxModel) or not model.has_channels_first or model.image.dtype != np.float32:
        raise ModelError(f"{model.path}: gradients=True is for ONNX files that take float32 images (N, C, H, W).")
    from onnx2pytorch import ConvertModel

    count, channels, *size = (model.fixed or 2), model.image.shape[1] or 3, *(model.input_size or (224, 224))
    coarse = torch.randn(count, channels, 8, 8, generator=torch.Generator().manual_seed(0), device="cpu")
    images = nn.functional.interpolate(coarse, size, mode="bilinear")
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            # Experimental is what takes several images.
            module: nn.Module = ConvertModel(model.cut_graph((), [model.scores.name]), experimental=True).eval()
            scores, expected = module(images), model(images)
        is_equal = scores.shape == expected.shape and (scores - expected).abs().max() <= _EXACT * expected.abs().max()
        reason = "its scores are not those of the file"
    except Exception as error:  # noqa: BLE001  the converter may fail in any way
        raise_interrupt(error)
        is_equal, reason = False, f"{type(error).__name__}: {get_first_line(error)}"
    if not is_equal:
        raise ModelError(f"{model.path} cannot be converted to torch: {reason}; load it without gradients=True.")
    return module


def _read_description(path: Path, described: Any) -> tuple[PlainTransform | None, list[str] | None]:
    """Return the transform and the labels that camtool wrote into a file; they may have been changed since."""
    stated, labels = described.get("preparation"), described.get("labels")
    if labels is not None and not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise ModelError(f"{path}: the file's labels must be a list of texts, got {str(labels)[:60]}.")
    return None if stated is None else PlainTransform.from_dict(stated), labels


def _read_metadata(
    path: Path, metadata: Mapping[str, str], size: tuple[int, int] | None
) -> tuple[Transform | None, Sequence[str] | None]:
    """Return the preprocessing and the labels that the metadata of a file give; ``None`` for what they do not say.

    Raises:
        ModelError: It is a detector or segmenter of Ultralytics, whose output is no scores yet.
    """
    if "camtool" in metadata:
        return _read_description(path, json.loads(metadata["camtool"]))
    if "task" in metadata and "names" in metadata:  # Ultralytics
        if metadata["task"] != "classify":
            raise ModelError(
                f"{path}: a file of Ultralytics for the task {metadata['task']!r} returns boxes before they are "
                "selected; load its .pt file, or write a function that returns boxes, labels and scores."
            )
        names = literal_eval(metadata["names"])
        labels = [str(names[index]) for index in sorted(names)] if isinstance(names, dict) else [*map(str, names)]
        transform = size and PlainTransform(min(size), None, size, "bilinear", (0.0,) * 3, (1.0,) * 3)
        return transform, labels
    return None, metadata["labels"].strip().splitlines() if "labels" in metadata else None
