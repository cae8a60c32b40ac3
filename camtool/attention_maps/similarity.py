"""Features of one place compared with those of all others: :func:`patch_similarity`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from camtool.arguments.checks import check_number_tuple
from camtool.arguments.explain_arguments import explain_foreign_arguments
from camtool.attention_maps.maps import Queries
from camtool.errors import ImageError, TargetError
from camtool.evidence.evidence import Evidence
from camtool.explaining.explainer import explain
from camtool.explaining.explanation import Explanation
from camtool.explaining.types import Layers, Model
from camtool.hooks.structures.nested_tensors import find_main_tensor
from camtool.layers.layouts import Layout
from camtool.targets.user_functions import Custom


@explain_foreign_arguments
def patch_similarity(
    model: Model, img: Any, place: Sequence[float], *, layer: Layers = None, **settings: Any
) -> Explanation:
    """Return how similar the features of all places of an image are to those of one place, as a map.

        camtool.patch_similarity(dino, "dog.jpg", (120, 80)).save("similar.png")

    The features are the activations of a layer, ``(C, h, w)``; the value of a cell is the cosine of the angle between
    its features and those of the cell at the place: 1 there, 0 for features that share no direction. It shows what the
    layer takes for alike, e.g. parts of an object in DINO, and knows no class.

    Args:
        model: As for :func:`camtool.explain`.
        img: One image.
        place: ``(x, y)`` in pixels of the photo.
        layer: One layer, as for :func:`camtool.explain`; by default the best one for the whole output.
        **settings: Settings of :func:`camtool.explain`.

    Raises:
        ImageError: ``img`` is not one image.
        TargetError: The place is outside of what reaches the model.
        CamtoolError: As for :func:`camtool.explain`.
    """
    check_number_tuple("place", place, 2, error=TargetError)
    features: list[Tensor] = []

    def keep_features(evidence: Evidence) -> Tensor:
        features.append(evidence.activations.detach())
        return evidence.activations.detach().mean(1)

    output = Custom(_sum_squares, label="output")
    found: Any = explain(model, img, output, method=keep_features, layer=layer, **settings)
    results: list[Explanation] = found if isinstance(found, list) else [found]
    if len(results) != 1 or len(features) != 1 or results[0].geometry is None:
        raise ImageError(f"img, layer: one image and one layer are compared; {len(results)} images came.")
    result, (cells,) = results[0], features
    rows, columns = cells.shape[2:]
    geometry = result.geometry
    assert geometry is not None
    queries = Queries(rows * columns, "tokens", Layout("channels first", (rows, columns)), geometry, result.centers)
    try:
        row, column = divmod(queries.select(place)[0], columns)
    except TargetError as error:
        raise TargetError(str(error).replace("query", "place", 1)) from None
    vectors = torch.nn.functional.normalize(cells[0].double(), dim=0)
    raw = (vectors * vectors[:, row, column, None, None]).sum(0)
    label = f"like ({place[0]:g}, {place[1]:g})"
    values = np.asarray(raw.float().cpu().numpy())
    box = queries.find_box([row * columns + column])
    # Warnings about the map or the score are about what was left out here.
    notes = tuple(warning for warning in result.warnings if warning.code not in ("constant-map", "method-note"))
    changed: Any = {"label": label, "score": 1.0, "method": "patch-similarity", "box": box, "warnings": notes}
    return replace(result, raw=values, checker=None, **changed)


def _sum_squares(output: Any) -> Tensor:
    """Return the sum of the squares of an output, which depends on every layer before it."""
    tensor = find_main_tensor(output)
    return torch.zeros(()) if tensor is None else tensor.float().square().sum()
