"""The cues of an audit as a file: what a repair needs to remove them from images, and to give them to others."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from camtool.arguments.regular_files import read_regular
from camtool.evaluation.audit.cues.candidates import CueCandidate
from camtool.evaluation.audit.cues.mark import MarkCandidate
from camtool.evaluation.audit.cues.patch import PatchCandidate
from camtool.evaluation.audit.cues.place import FrameCandidate, PlaceCandidate, PositionCandidate
from camtool.evaluation.audit.cues.property import ColorCandidate, PropertyCandidate
from camtool.evaluation.audit.cues.sameness import UsualImage
from camtool.runs.stored_files import parse_object

CUES_NAME = "cues.json"

# Candidates that change activations are not stored: they hold a part of the model.
_REGIONS = (PlaceCandidate, FrameCandidate, MarkCandidate, PatchCandidate, ColorCandidate)
_OTHERS = (PositionCandidate, PropertyCandidate, UsualImage)
_STORED: Mapping[str, type[Any]] = {stored.__name__: stored for stored in (*_REGIONS, *_OTHERS)}


@dataclass(frozen=True)
class AuditSettings:
    """The settings of an audit on which its split of the images, and its tests, depend.

    Attributes:
        controls: Control regions in each image.
        method: The method of the maps.
        seed: The seed.
        batch_size: Images in a forward pass.
        engine: The engine of the answers.
        group: The column of what belongs together; None if each image is on its own.
    """

    controls: int
    method: str
    seed: int
    batch_size: int
    engine: str
    group: str | None


def select_stored(candidates: Mapping[str, CueCandidate]) -> dict[str, CueCandidate]:
    """Return the candidates, by the key of a finding, that can be stored."""
    return {key: candidate for key, candidate in candidates.items() if type(candidate).__name__ in _STORED}


def encode_cues(settings: AuditSettings, cues: Mapping[str, CueCandidate]) -> str:
    """Return settings and candidates as JSON, see :func:`read_cues`."""
    entries = {key: _encode(cue) for key, cue in cues.items()}
    return json.dumps({"settings": asdict(settings), "cues": entries}) + "\n"


def read_cues(folder: Path) -> tuple[AuditSettings | None, dict[str, CueCandidate]]:
    """Return the settings and the candidates in the folder of an audit; none if it has no such file.

    Raises:
        OSError, ValueError, KeyError, TypeError: The file cannot be read, or holds something else.
    """
    path = folder / CUES_NAME
    if not path.exists():
        return None, {}
    content = parse_object(read_regular(path))
    return AuditSettings(**content["settings"]), {key: _decode(entry) for key, entry in content["cues"].items()}


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        content = {each.name: _encode(getattr(value, each.name)) for each in fields(value)}
        return {"class": type(value).__name__, **content}
    if not isinstance(value, (Tensor, np.ndarray)):
        return value
    values = value.cpu().numpy() if isinstance(value, Tensor) else value
    kind = "tensor" if isinstance(value, Tensor) else "array"
    return {kind: b64encode(values.tobytes()).decode(), "type": str(values.dtype), "shape": values.shape}


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "class" in value:
        stored = _STORED[value["class"]]
        return stored(**{each.name: _decode(value[each.name]) for each in fields(stored)})
    kind = "tensor" if "tensor" in value else "array"
    values = np.frombuffer(b64decode(value[kind]), value["type"]).reshape(value["shape"]).copy()
    return torch.from_numpy(values) if kind == "tensor" else values
