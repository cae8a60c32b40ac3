"""Models of Ultralytics: YOLO of any version, and RT-DETR."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from camtool.arguments.checks import check_plain_yaml
from camtool.arguments.libraries import import_library
from camtool.errors import ModelError, raise_interrupt
from camtool.geometry.transform_output import Transform
from camtool.models.loaded import Loaded
from camtool.models.sources.source import Source, get_first_line, limit_silence, to_height_and_width
from camtool.models.sources.torchvision import build_resize
from camtool.models.weights import load_state, read_state

# Gray level with which YOLO models are trained to see padding.
_PADDING = 114

_YAML = (".yaml", ".yml")

# The letter of a model's size in the name of a file, as Ultralytics removes it.
_SCALE = re.compile(r"(\d+)([nslmx])(.+)?$")

_SAFE_LOAD = "SAFE_LOAD"


class Letterbox:
    """The preparation of YOLO models: scale to a longest side, and pad both sides up to a multiple of the stride.

    The model then sees the whole photo in its own proportions. Values are RGB from 0 to 1.

    Args:
        size: Longest side of the input in pixels.
        stride: Largest stride of the model; the input's sides are multiples of it.
    """

    def __init__(self, size: int, stride: int) -> None:
        self.size, self.stride = size, stride

    def __call__(self, photo: Image.Image) -> Tensor:
        """Return the input ``(3, h, w)``."""
        import cv2

        pixels = np.asarray(photo.convert("RGB"))
        (height, width), (left, top, right, bottom) = self.plan(*pixels.shape[:2])
        if pixels.shape[:2] != (height, width):
            pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
        gray = (_PADDING,) * 3
        padded = cv2.copyMakeBorder(pixels, top, bottom, left, right, cv2.BORDER_CONSTANT, value=gray)
        return torch.from_numpy(padded).permute(2, 0, 1).float() / 255

    def plan(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
        """Return the size (h, w) that a photo is scaled to, and its padding (left, top, right, bottom)."""
        scale = self.size / max(height, width)
        scaled = max(1, round(height * scale)), max(1, round(width * scale))
        below, beside = ((self.size - side) % self.stride for side in scaled)
        # An odd row or column of padding is below or on the right.
        return scaled, (beside // 2, below // 2, beside - beside // 2, below - below // 2)


class UltralyticsSource(Source):
    """Models of Ultralytics, by the name of a file: ``"ultralytics:yolov8n.pt"``, ``"ultralytics:yolo11n-seg.yaml"``.

    A ``.pt`` file has weights, and is downloaded if Ultralytics publishes it. It is a pickle, of which only the known
    classes of Ultralytics and torch are built. A ``.yaml`` file describes a model without weights.
    """

    prefix = "ultralytics"
    usage = "'ultralytics:FILE'"

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Load a model, with the weights of a file if one is given.

        Raises:
            ModelError: Ultralytics is not installed, the file is unknown, or the weights do not fit.
        """
        model = self.build_untrained(name)
        if weights is not None:
            load_state(model, read_state(weights), weights)
        return Loaded(model, self.find_transform(model), self.find_labels(model))

    def runs_code(self, name: str) -> bool:
        """Return True for a pickle that this version of Ultralytics cannot load without running code in it.

        It evaluates expressions in a YAML file. Those that it brings along are not in a folder of the user's.
        """
        if name.lower().endswith(_YAML):
            return _find_own_yaml(name) is not None
        return not _can_load_safely()

    def build_untrained(self, name: str) -> nn.Module:
        """Build the model that a file describes."""
        import yaml

        library = _import_ultralytics()
        kind = library.RTDETR if "rtdetr" in name.lower() else library.YOLO
        try:
            if (path := _find_own_yaml(name)) is not None:
                check_plain_yaml(path.read_text(encoding="utf-8", errors="ignore"))
            with _load_safely(), limit_silence():
                model = kind(name).model
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, pickle.PickleError, yaml.YAMLError) as error:
            raise_interrupt(error)
            raise ModelError(
                f"model 'ultralytics:{name}' cannot be loaded: {get_first_line(error)}. Give a file of Ultralytics, "
                "e.g. 'ultralytics:yolo11n.pt', or 'ultralytics:yolo11n.yaml' for random weights."
            ) from None
        if not isinstance(model, nn.Module):
            raise ModelError(f"'ultralytics:{name}' is an exported file without PyTorch modules; give the .pt file.")
        return model

    def find_transform(self, model: nn.Module) -> Transform | None:
        """Return the preparation that Ultralytics applies to photos for this kind of model."""
        if not _is_of_ultralytics(model):
            return None
        size = _read_size(model)
        kind = type(model).__name__
        if kind == "ClassificationModel":
            return build_resize(size, crop=True)
        if kind.startswith("RTDETR"):
            return build_resize((size, size))  # it sees photos stretched to a square
        strides: Any = model.stride
        return Letterbox(size, max(32, int(max(strides))))  # at least 32, as Ultralytics does

    def find_labels(self, model: nn.Module) -> Sequence[str] | None:
        """Return the names of the classes; models without training have numbers instead."""
        names = getattr(model, "names", None) if _is_of_ultralytics(model) else None
        if not isinstance(names, Mapping):
            return None
        labels = [str(names[index]) for index in sorted(names)]
        return None if labels == [str(index) for index in range(len(labels))] else labels

    def find_input_size(self, model: nn.Module) -> tuple[int, int] | None:
        """Return the image size that the model was trained with."""
        return to_height_and_width(_read_size(model)) if _is_of_ultralytics(model) else None


def _find_own_yaml(name: str) -> Path | None:
    """Return the YAML file of the user's that Ultralytics reads; None if it reads one that it brings along.

    If there is no ``yolo11n.yaml``, it looks for ``yolo11.yaml``, also in the working directory.
    """
    if not name.lower().endswith(_YAML):
        return None
    newer = re.sub(r"(\d+[nslmx])6(?=\.[^.]*$)", r"\1-p6", name)  # it renames "yolov8n6.yaml"
    names = (name, newer, *(_SCALE.sub(r"\1\3", spelling) for spelling in (name, newer)))
    return next((Path(file) for file in names if Path(file).is_file()), None)


def _import_ultralytics() -> Any:
    return import_library("ultralytics", "'ultralytics:' models need ultralytics", "'camtool[ultralytics]'", ModelError)


def _can_load_safely() -> bool:
    """Return True if this version of Ultralytics can restrict pickles to the classes that it knows."""
    _import_ultralytics()
    return hasattr(import_module("ultralytics.nn.tasks"), _SAFE_LOAD)


@contextmanager
def _load_safely() -> Iterator[None]:
    """Load pickles during the block with ``weights_only=True``, as the variable ULTRALYTICS_SAFE_LOAD does."""
    if not _can_load_safely():
        yield
        return
    tasks = import_module("ultralytics.nn.tasks")
    with ExitStack() as undo:
        undo.callback(setattr, tasks, _SAFE_LOAD, getattr(tasks, _SAFE_LOAD))
        setattr(tasks, _SAFE_LOAD, True)
        yield


def _is_of_ultralytics(model: nn.Module) -> bool:
    return type(model).__module__.startswith("ultralytics.nn.")


def _read_size(model: Any) -> int:
    """Return the longest side of the images that the model was trained with."""
    settings = getattr(model, "args", None) or {}
    size = settings.get("imgsz") if isinstance(settings, Mapping) else getattr(settings, "imgsz", None)
    return int(max(size) if isinstance(size, (list, tuple)) else size or 640)
