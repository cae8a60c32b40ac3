"""The maps that an exported file returns beside its scores, read as a method."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from camtool.errors import MethodError, ModelError
from camtool.evidence.evidence import Evidence
from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.geometry.resampling import resample
from camtool.hooks.chunks import get_most_rows
from camtool.models.sources.runtime_files import FileModel


def find_stored_maps(name: str, model: nn.Module) -> tuple[str, Callable[[Evidence], Tensor]] | None:
    """Return the name of a method whose maps are in the model's file, and what reads them; ``None`` if none are.

    In the place of ``"gradcam"``, which is asked for where no method is named, any method of the file counts.

    Raises:
        ModelError: What the file says of its maps is damaged.
    """
    if not isinstance(model, FileModel):
        return None
    try:
        description = json.loads(model.program.metadata.get("camtool", "{}"))
        outputs = dict(description.get("outputs", {}))
        stored = name if name in outputs or name != "gradcam" else next(iter(outputs), "")
        if stored not in outputs:
            return None
        names = {port.name: port.name for port in model.program.outputs if port is not model.scores}
        return f"{stored} of the file", partial(_read_maps, model, names[outputs[stored]], _read_centers(description))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{model.path}: what it says of its maps is damaged ({error!r}); export it again.") from error


def _read_centers(description: Mapping[str, Any]) -> tuple[AxisCenters, ...]:
    """Return the centers of the cells, from the description of a file."""
    axes = zip(description["centers"], description["strides"], strict=True)
    centers = tuple(AxisCenters(float(first), float(stride)) for (first, *_), stride in axes)
    if len(centers) != 2 or not all(math.isfinite(axis.stride + axis.offset / axis.stride) for axis in centers):
        raise ValueError(f"centers {centers}")
    return centers


def _read_maps(model: FileModel, output: str, centers: tuple[AxisCenters, ...], evidence: Evidence) -> Tensor:
    """Return the maps ``(R, *size)`` that the file holds for the rows' classes.

    Raises:
        MethodError: A target is not the score of a class, the only kind that the file explains.
    """
    classes = [target.get_class_index() for target in evidence.targets if target.traits.is_class_score]
    if len(classes) < len(evidence.targets):
        raise MethodError("the file holds maps of class scores alone; pass a class, or load the model it was made of.")
    indices, size = torch.tensor(classes, device="cpu"), evidence.inputs.shape[2:]
    parts = min(model.fixed or len(classes), get_most_rows())
    pairs = zip(evidence.select_rows(evidence.inputs).split(parts), indices.split(parts), strict=True)
    maps = torch.cat([model.read_maps(*pair, output) for pair in pairs])
    return resample(maps, CellCenters(tuple(size), centers), size, CellCenters.stretch(size, size))
