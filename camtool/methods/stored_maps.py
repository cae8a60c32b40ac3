"""The maps that an exported file returns beside its scores, read as a method."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.geometry.resampling import resample
from camtool.hooks.chunks import get_most_rows
from camtool.models.sources.runtime_files import FileModel


def find_stored_maps(name: str, model: nn.Module) -> tuple[str, Callable[[Evidence], Tensor]] | None:
    """Return the name of a method whose maps are in the model's file, and what reads them; ``None`` if none are.

    In the place of ``"gradcam"``, which is asked for where no method is named, any method of the file counts.
    """
    outputs = model.description.get("outputs", {}) if isinstance(model, FileModel) else {}
    stored = name if name in outputs or name != "gradcam" else next(iter(outputs), "")
    return (f"{stored} of the file", partial(_read_maps, output=outputs[stored])) if stored in outputs else None


def _read_maps(evidence: Evidence, *, output: str) -> Tensor:
    """Return the maps ``(R, *size)`` that the file holds for the rows' classes.

    Raises:
        MethodError: A target is not the score of a class, the only kind that the file explains.
    """
    model, size = evidence.model, evidence.inputs.shape[2:]
    assert isinstance(model, FileModel)
    classes = [target.get_class_index() for target in evidence.targets if target.traits.is_class_score]
    if len(classes) < len(evidence.targets):
        raise MethodError("the file holds maps of class scores alone; pass a class, or load the model it was made of.")
    indices = torch.tensor(classes, device="cpu")
    parts = min(model.fixed or len(classes), get_most_rows())
    pairs = zip(evidence.select_rows(evidence.inputs).split(parts), indices.split(parts), strict=True)
    maps = torch.cat([model.read_maps(*pair, output) for pair in pairs])
    offsets, strides = (axis[0] for axis in model.description["centers"]), model.description["strides"]
    centers = CellCenters(tuple(size), tuple(map(AxisCenters, offsets, strides)))
    return resample(maps, centers, size, CellCenters.stretch(size, size))
