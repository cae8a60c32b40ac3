"""Preprocessing beside a file of weights: ``preprocessor_config.json`` of Hugging Face, ``config.json`` of timm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from camtool.arguments.regular_files import read_regular
from camtool.errors import CamtoolError, ModelError
from camtool.geometry.transform_output import Transform, unwrap_image
from camtool.models.sources.hugging_face import read_processor
from camtool.models.sources.source import get_first_line
from camtool.models.sources.timm import build_configured_transform

if TYPE_CHECKING:
    from os import PathLike

_HUGGING_FACE, _TIMM = "preprocessor_config.json", "config.json"
_MAX_BYTES = 2**24
"""Bytes of a file of settings; they have a few thousand."""

_TRIAL_PHOTOS = (320, 256), (200, 300)
"""Sizes (W, H) of the photos with which two transforms are compared."""


def read_transform_beside(weights: str | PathLike[str]) -> tuple[Transform, Path] | None:
    """Return the transform that a file in the folder of a weights file describes, and the file; None without one.

    No code in the folder is run, and nothing is downloaded.

    Raises:
        ModelError: The file is damaged, the library that reads it is missing, or two files disagree.
    """
    folder = Path(weights).parent
    timm = _read_timm(folder)
    found = [each for each in (_read_hugging_face(folder, is_alone=timm is not None), timm) if each is not None]
    if len(found) == 2 and not _agree(found[0][0], found[1][0]):
        raise ModelError(
            f"{found[0][1]} and {found[1][1]} describe different preprocessing; remove the one that does not belong to "
            "the weights, or state the preprocessing: --size, --mean and --std, or --transform."
        )
    return found[0] if found else None


def _read_hugging_face(folder: Path, *, is_alone: bool) -> tuple[Transform, Path] | None:
    """Return the transform of Hugging Face's file; ``is_alone`` if the folder's ``config.json`` is not its."""
    path = folder / _HUGGING_FACE
    if not path.is_file():
        return None
    _read_json(path)
    if not is_alone:
        return read_processor(path), path
    # transformers would prefer timm's settings in config.json.
    with TemporaryDirectory(prefix="camtool-") as copies:
        return read_processor(Path(copy(path, copies))), path


def _read_timm(folder: Path) -> tuple[Transform, Path] | None:
    path = folder / _TIMM
    # Hugging Face's own config.json has no such entry.
    settings = _read_json(path).get("pretrained_cfg") if path.is_file() else None
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        raise ModelError(f"{path}: 'pretrained_cfg' is a {type(settings).__name__}; it must be an object of JSON.")
    return build_configured_transform(settings, path), path


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path, _MAX_BYTES).decode("utf-8-sig"))
    except CamtoolError as error:
        raise ModelError(str(error)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {get_first_line(error)}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a JSON {type(content).__name__}, not an object with settings.")
    return content


def _agree(first: Transform, second: Transform) -> bool:
    """Return True if two transforms make inputs of one size and one normalization of the same photos."""
    for size in _TRIAL_PHOTOS:
        photo = Image.linear_gradient("L").resize(size).convert("RGB")
        one, other = (torch.as_tensor(unwrap_image(each(photo))) for each in (first, second))
        # Their resampling may differ by a few levels.
        if one.shape != other.shape or (one - other).abs().max() > 0.1:
            return False
    return True
