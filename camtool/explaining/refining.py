"""Refine explanations by further forward passes: :func:`refine`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch

from camtool.errors import CamtoolError
from camtool.evidence.evidence import gather_evidence
from camtool.explaining.explanation import Explanation
from camtool.hooks.observation import observe
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard
from camtool.methods.refinement import check_passes, refine_maps
from camtool.trust.map_warnings import OF_VALUES, find_value_warnings
from camtool.warning_codes import MapWarning

_SAME_SCORE = 0.02
"""Share of a score by which engines and precisions may differ."""


def refine(result: Explanation, passes: int = 64) -> Explanation:
    """Return an explanation whose map is corrected by what the score loses under masks, with its uncertainty.

        result = camtool.explain(model, "photo.jpg", method="faithcam")
        refined = camtool.refine(result, passes=64)
        refined.uncertainty  # standard deviation of each cell
        refined.uncertainty_overlay()
        refined.drop_in("bottom-left")  # how much the score drops without this region, with an interval

    It works for any method. The map of the explanation is the prior; with few passes, or contradictory ones, little
    changes. The masks are the same in each call, and no global generator is used. The model runs as it is, without an
    engine, and is left as it was. See docs/refine.md for what was measured.

    Args:
        result: What :func:`camtool.explain` returned. It holds the model and the image.
        passes: The number of forward passes; 16 correct large errors, 64 to 128 single cells.

    Returns:
        A new explanation. Its ``raw`` is how much the score drops without one of 14 x 14 cells of the image, 0 where it
        rises, on a grid of at least as many cells; ``uncertainty`` is its standard deviation.

    Raises:
        MethodError: ``passes`` is not a whole number from 4 to 1024, or the model resizes its images itself.
        CamtoolError: The result is no explanation; it was pickled, trimmed or refined, so its model is unknown; or the
            model has changed.
    """
    check_passes(passes)
    if not isinstance(result, Explanation):
        got = f"a {type(result).__name__}"
        raise CamtoolError(f"result must be one explanation, got {got}; call refine() on each that explain() returned.")
    if result.checker is None or result.uncertainty is not None:
        reason = "was pickled, changed or not made by explain()" if result.uncertainty is None else "is refined already"
        raise CamtoolError(f"this explanation {reason}; call refine() on what explain() returns.")
    # The checker is a method of the explainer of the batch, with the arguments that say which row of it this is.
    checker = cast("partial[object]", result.checker)
    explainer, (_, _, batch, image, target) = checker.func.__self__, checker.args  # type: ignore[attr-defined]
    with Cleanup(), guard(explainer.model), torch.no_grad():
        at_input = replace(explainer, methods=(), engines=())
        forward_pass = at_input.run_forward_pass(observe, batch.select(slice(image, image + 1)))
        (evidence,) = gather_evidence(forward_pass, [target], [0], at_input=True)
        _check_score(float(evidence.scores[0]), result.score)
        maps = torch.from_numpy(np.ascontiguousarray(result.raw))[None]
        with torch.autocast(evidence.scores.device.type, enabled=False):
            refined = refine_maps(evidence, maps, result.centers, passes)
    notes = [MapWarning(note, "method-note") for note in evidence.notes.get(0, ())]
    if refined.posteriors[0] is None:
        return replace(result, warnings=(*result.warnings, *notes))
    raw = refined.maps[0].numpy()
    kept = [warning for warning in result.warnings if warning.code not in OF_VALUES]
    return replace(
        result,
        raw=raw,
        uncertainty=refined.uncertainty[0].numpy(),
        passes=passes,
        posterior=refined.posteriors[0],
        centers=refined.centers,
        warnings=(*kept, *find_value_warnings(raw), *notes),
        checker=None,
    )


def _check_score(now: float, before: float) -> None:
    """Check that the model still gives the score of the explanation, up to what an engine or precision changes.

    Raises:
        CamtoolError: It does not.
    """
    if abs(now - before) > _SAME_SCORE * max(abs(now), abs(before)):
        raise CamtoolError(
            f"the model has changed: the score was {before:.4g} when it was explained, and is {now:.4g} now; explain "
            "the image again."
        )
