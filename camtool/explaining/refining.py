"""Further forward passes for an explanation: :func:`refine`, and the regions that are sufficient or necessary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.arguments.checks import check_choice, check_count, check_number
from camtool.arguments.message_parts import format_percent
from camtool.engines.comparison import ComparedOutput, run_by_engines
from camtool.errors import CamtoolError
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import run_forward, score_inputs
from camtool.explaining.explanation import SAME_SCORE, Explanation, Source
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.resampling import resample
from camtool.hooks.chunks import iterate_chunks
from camtool.hooks.observation import Observation, Runner
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.maps import upcast
from camtool.methods.options import prefer_probability
from camtool.methods.refinement import check_passes, refine_maps
from camtool.outputs import predictions
from camtool.outputs.class_scores import find_logits
from camtool.trust.map_warnings import OF_VALUES, find_value_warnings
from camtool.trust.metrics.removal import REMOVALS, Fill, Removal, Removals, start_removal
from camtool.trust.sufficiency import FEWEST_PASSES, VerifiedRegion, find_part
from camtool.warning_codes import MapWarning


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
    if result.uncertainty is not None:
        raise CamtoolError("this explanation is refined already; call refine() on what explain() returns.")
    source = result.get_source("refine()")
    with Cleanup(), guard(source.model), torch.no_grad():
        evidence, _ = _gather_again(result, source)
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
        source=None,
    )


def _gather_again(result: Explanation, source: Source) -> tuple[Evidence, PreparedInput]:
    """Return the evidence of a result at the input, from a new forward pass of its image, and the image.

    Raises:
        CamtoolError: The score is not what it was.
    """
    evidence, item = source.gather_at_input()
    _check_score(float(evidence.scores[0]), result.score)
    return evidence, item


def _check_score(now: float, before: float) -> None:
    """Check that the model still gives the score of the explanation, up to what an engine or precision changes.

    Raises:
        CamtoolError: It does not.
    """
    if abs(now - before) > SAME_SCORE * max(abs(now), abs(before)):
        raise CamtoolError(
            f"the model has changed: the score was {before:.4g} when it was explained, and is {now:.4g} now; explain "
            "the image again."
        )


# ------------------------------------------------------------------------------- sufficient and necessary regions

_MOST_PASSES = 100_000

# Share of a score by which a region must do better than asked in the search, so that rounding does not decide.
_MARGIN = 1e-4

# The first of these that was not asked for shows how much a claim depends on its fill.
_OTHER_FILLS = ("mean", "blur")


def find_regions(
    result: Explanation, kind: str, share: float, passes: int, fill: Removals, regions: int, cells: int
) -> VerifiedRegion:
    """Return what :meth:`Explanation.sufficient` and :meth:`Explanation.necessary` do.

    Args:
        result: The explanation.
        kind: ``"sufficient"`` or ``"necessary"``.
        share: The share of the score that the region keeps or takes away.
        passes: As for :meth:`Explanation.sufficient`.
        fill: Likewise.
        regions: Likewise.
        cells: Likewise.
    """
    if kind == "sufficient":
        check_number("keep", share, above=0, most=1)
    else:
        check_number("drop", share, above=0, below=1)
    fills = _name_fills(fill)
    check_count("regions", regions)
    check_count("cells", cells, least=2)
    fewest = FEWEST_PASSES * len(fills) + _count_confirming_passes(len(fills))
    check_count("passes", passes, least=fewest * regions + 1)
    if passes > _MOST_PASSES:
        raise CamtoolError(f"passes must be at most {_MOST_PASSES:,}, got {passes!r}.")
    source = result.get_source(f"{kind}()")
    with Cleanup(), guard(source.model), torch.no_grad():
        evidence, item = _gather_again(result, source)
        if item.view.geometry is None or evidence.inputs.ndim != 4:
            raise CamtoolError(f"{kind}() needs a photo, and this explanation is of a {item.view.kind}.")
        with torch.autocast(evidence.scores.device.type, enabled=False):
            trial = _Trial(source.engines, evidence, fills, cells, is_sufficient=kind == "sufficient")
            heat = trial.average_heat(torch.from_numpy(np.ascontiguousarray(result.raw))[None], result.centers)
            found, used = list[VerifiedRegion](), np.zeros(heat.shape, bool)
            while len(found) < regions:
                verified = trial.find_region(heat, share, (passes - 1) // regions, ~used)
                if verified is None:
                    break
                found.append(_describe_region(trial, result, item, verified, kind))
                used |= verified.cells
                if not verified.cells.any():
                    break
    if not found:
        left = format_percent(trial.score_without_all / trial.whole)
        raise CamtoolError(
            f"no part is necessary for {result.label!r}: with all of the photo replaced by fill={fill!r}, {left} of "
            "its score is left; give another fill or a smaller drop."
        )
    first, *others = [replace(region, passes=trial.passes) for region in found]
    return replace(first, others=tuple(others))


@dataclass(frozen=True, eq=False)
class _Verified:
    """A region as cells, with scores of the model itself, by fill."""

    cells: NDArray[np.bool_]
    is_minimal: bool
    alone: list[float]
    without: list[float]
    other_fill: tuple[str, float] | None


class _Trial:
    """Passes of an image whose cells are replaced by fills.

    Args:
        engines: The engines that run the search, in order; none to run the model as it is.
        evidence: The evidence about the target at the input.
        fills: Name to fill.
        cells: Cells along each side.
        is_sufficient: Search what is sufficient, and not what is necessary.

    Attributes:
        fills: Name to what fills cells.
        whole: The score of the whole image.
        is_probability: True if scores are probabilities.
        numbers: ``(H, W)``, the cell of each pixel.
        passes: The forward passes so far.
        score_without_all: The highest score with every pixel replaced.
    """

    def __init__(
        self, engines: Sequence[str], evidence: Evidence, fills: dict[str, Removal], cells: int, *, is_sufficient: bool
    ) -> None:
        target = prefer_probability(evidence.targets[0])
        self._engines, self._evidence = engines, evidence.for_targets([target], [0])
        self.is_probability = evidence.targets[0].to_probability() is not None
        self.whole, self.passes, self.score_without_all = float(self._evidence.scores[0]), 1, math.nan
        if not self.whole > 0:
            raise CamtoolError(f"the score must be above 0 to keep a share of it, got {self.whole:g}; explain a class.")
        inputs, self._is_sufficient = evidence.inputs, is_sufficient
        self.fills: dict[str, Fill] = {name: start_removal(inputs, fill) for name, fill in fills.items()}
        side = min(cells, *inputs.shape[2:])
        rows, columns = (torch.arange(length, device=inputs.device) * side // length for length in inputs.shape[2:])
        self.numbers, self._grid = rows[:, None] * side + columns, (side, side)

    def average_heat(self, raw: Tensor, centers: CellCenters | None) -> NDArray[np.float64]:
        """Return the mean of a map ``(1, *grid)`` in each cell, ``(h, w)``."""
        size = tuple(self.numbers.shape)
        maps = resample(raw.double(), centers, size, None).nan_to_num(0).flatten()
        numbers = self.numbers.cpu().flatten()
        return (torch.bincount(numbers, maps) / torch.bincount(numbers)).reshape(self._grid).numpy()

    def find_region(
        self, heat: NDArray[np.float64], share: float, passes: int, allowed: NDArray[np.bool_]
    ) -> _Verified | None:
        """Return a region that the model itself confirms; ``None`` if the allowed cells do not suffice."""
        end, holding, count = self.passes + passes, list[NDArray[np.bool_]](), len(self.fills)
        goal = min(share * (1 + _MARGIN), 1) if self._is_sufficient else 1 - (1 - share) * (1 - _MARGIN)

        def measure(parts: NDArray[np.bool_]) -> NDArray[np.float64]:
            scores = self.score(parts if self._is_sufficient else ~parts) / self.whole
            values = scores.amin(0).numpy() if self._is_sufficient else 1 - scores.amax(0).numpy()
            values[self._is_sufficient & parts.all((1, 2))] = math.inf  # the whole image has its own score
            holding.extend(parts[values >= goal])
            return cast("NDArray[np.float64]", values)

        to_confirm = _count_confirming_passes(count)
        part = find_part(measure, heat, goal, (passes - to_confirm) // count, allowed)
        if part is None:
            self.score_without_all = self.whole if self._is_sufficient else float(self.score(~allowed[None]).amax())
            return None
        cells, is_minimal, _ = part
        for tried in [cells, *sorted(holding, key=np.sum)[1:]]:
            if self.passes + to_confirm > end:
                break
            alone, without = self.score(np.stack([tried, ~tried]), by_model=True).unbind(1)
            suffices = tried.all() or alone.amin() >= share * self.whole
            is_needed = without.amax() <= (1 - share) * self.whole
            is_confirmed = suffices if self._is_sufficient else is_needed
            if is_confirmed:
                other = self._score_with_other_fill(tried)
                return _Verified(tried, is_minimal and tried is cells, alone.tolist(), without.tolist(), other)
        raise CamtoolError(
            "the model did not confirm what its engine or prepared copy found; it may be random, or round coarsely."
        )

    def score(self, kept: NDArray[np.bool_], *, by_model: bool = False) -> Tensor:
        """Return the scores ``(fills, M)``, float64 on the CPU, of the image with all but some cells replaced.

        Args:
            kept: ``(M, h, w)``.
            by_model: Run the model itself, and no engine and no copy.
        """
        return torch.stack([self._score_filled(kept, fill, by_model=by_model) for fill in self.fills.values()])

    def _score_with_other_fill(self, region: NDArray[np.bool_]) -> tuple[str, float] | None:
        """Return the name of a fill that was not asked for, and the model's own score with it: alone, or without."""
        if len(self.fills) > 1:
            return None
        # A region that is enough with one fill may be worth nothing with another.
        name = next(name for name in _OTHER_FILLS if name not in self.fills)
        kept, fill = region if self._is_sufficient else ~region, start_removal(self._evidence.inputs, name)
        return name, float(self._score_filled(kept[None], fill, by_model=True))

    def _score_filled(self, kept: NDArray[np.bool_], fill: Fill, *, by_model: bool) -> Tensor:
        """Return the scores ``(M,)`` of the image with all but some cells replaced by a fill, see :meth:`score`."""
        self.passes += len(kept)
        cells = torch.from_numpy(kept.reshape(len(kept), -1)).to(self.numbers.device)

        def make(part: slice) -> Tensor:
            removed = ~cells[part][:, self.numbers]
            return fill(torch.zeros(len(removed), dtype=torch.long, device=removed.device), removed)

        if by_model or self._is_in_engine:
            forward_pass = self._evidence.forward_pass
            with forward_pass.restore_autocast():
                size = forward_pass.fold_model().chunk_size
            run = partial(run_forward, self._evidence) if by_model else self._run_engine
            values = torch.cat([run(make(part)) for part in iterate_chunks(len(kept), size)])
        else:
            values = score_inputs(self._evidence, [0], len(kept), make)[:, 0]
        return upcast(values).double().cpu()

    @property
    def _is_in_engine(self) -> bool:
        return bool(self._engines) and isinstance(self._evidence.forward_pass.predictions, Tensor)

    def _run_engine(self, variants: Tensor) -> Tensor:
        """Return the scores of inputs by the first engine that gives the model's own results."""
        model, inputs = self._evidence.model, self._evidence.forward_pass.select_inputs(0, variants)

        def run(runner: Runner) -> Observation:
            return runner(model, (), inputs, grad=False)

        def list_rows(observed: Observation) -> list[ComparedOutput]:
            return [ComparedOutput(upcast(find_logits(observed.output).detach()).cpu().numpy())]

        observed = run_by_engines(self._engines, model, ("regions", len(variants) == 1), run, list_rows)
        return self._evidence.targets[0](predictions.to_batch(observed.output, len(variants)))


def _count_confirming_passes(fills: int) -> int:
    """Return the passes that confirm a region: two by each fill; if there is only one, one more by another fill."""
    return 3 if fills == 1 else 2 * fills


def _describe_region(
    trial: _Trial, result: Explanation, item: PreparedInput, verified: _Verified, kind: str
) -> VerifiedRegion:
    """Return a region on the photo, with its scores."""
    chosen = torch.from_numpy(verified.cells.flatten())[trial.numbers.cpu()]
    has_other_answer = result.index is not None and result.index != result.predicted_index
    return VerifiedRegion(
        kind=kind,
        mask=(item.geometry.place_on_photo(chosen.float()) >= 0.5).numpy(),
        cells=verified.cells,
        share=float(chosen.double().mean()),
        score=trial.whole,
        score_alone=min(verified.alone),
        score_without=max(verified.without),
        by_fill=dict(zip(trial.fills, zip(verified.alone, verified.without, strict=True), strict=True)),
        other_fill=verified.other_fill,
        passes=trial.passes,
        is_minimal=verified.is_minimal,
        label=result.label,
        answer=result.predicted_label if has_other_answer else None,
        is_probability=trial.is_probability,
        view=item.view,
    )


def _name_fill(fill: Removal) -> str:
    return getattr(fill, "__name__", type(fill).__name__) if callable(fill) else fill


def _name_fills(fill: Removals) -> dict[str, Removal]:
    """Return name to fill; a name that a function shares with one before it gets a number.

    Raises:
        CamtoolError: A name is unknown, or there is none.
    """
    fills = [fill] if isinstance(fill, str) or callable(fill) else list(fill)
    if not fills:
        raise CamtoolError(f"fill asks for nothing; give one or more of {', '.join(map(repr, REMOVALS))}.")
    for each_fill in fills:
        if not callable(each_fill):
            check_choice("fill", each_fill, REMOVALS)
    named: dict[str, Removal] = {}
    for each_fill in dict.fromkeys(fills):
        name = _name_fill(each_fill)
        numbered = (f"{name} {number}" for number in count(2))
        named[next(free for free in chain([name], numbered) if free not in named)] = each_fill
    return named
