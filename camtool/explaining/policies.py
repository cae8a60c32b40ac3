"""Policies of robots and games: which view, and which part of it, moved an action. :func:`explain_policy`.

A policy takes several images and a state and returns an action. The policy runs with each subset of its inputs, the
others replaced: Shapley values divide the change of the action among the inputs exactly. Each view gets its own map, at
the call of a layer and in the rows that depend on this view, which :class:`camtool.Inputs` finds by changed images.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from camtool.arguments.explain_arguments import explain_foreign_arguments, to_list
from camtool.arguments.message_parts import add_article, format_percent, suggest_names
from camtool.errors import CamtoolError, ImageError, LayerError, TargetError
from camtool.explaining.explainer import Explainer
from camtool.explaining.explanation import Explanation
from camtool.explaining.refining import refine
from camtool.explaining.types import Layers, Model, OneMethod
from camtool.hooks.model_passes import run_model
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.caches import cached_property
from camtool.inputs.accepted_inputs import choose_device
from camtool.inputs.model_inputs import Inputs
from camtool.models import to_loaded
from camtool.rendering import image_writing
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.rendering.text_drawing import INK, PANEL, SMALL_TEXT_SIZE, draw_text
from camtool.rendering.views import View
from camtool.targets.value_targets import Action, Value
from camtool.trust.metrics.removal import Removal, make_baseline
from camtool.warning_codes import MapWarning

# Runs a policy on an observation and returns its actions.
Call: TypeAlias = Callable[[nn.Module, dict[str, Any]], Any]

# Inputs whose Shapley values are computed, with two to this power passes.
_MOST_INPUTS = 8

# Share of a view that is covered to verify its map.
_HOT = 0.1

_IMAGE_AXES = 4

# Width of each picture, and the colors of effects that raise and that lower the action.
_WIDTH, _BAR = 320, {True: (214, 84, 60), False: (60, 110, 200)}


@dataclass(frozen=True, eq=False)
class PolicyExplanation(image_writing.Displayable):
    """The inputs that moved one dimension of an action: a map for each view, and the effect of each input.

    Attributes:
        label: What is explained, e.g. ``"action 3 at step 0"``.
        action: Its value for the observation.
        action_without: Its value with all inputs replaced.
        effects: Input → its Shapley value, in units of the action. They sum to ``action - action_without``.
        shares: Input → the size of its effect over the sum of all sizes, from 0 to 1.
        without: Input → the action with this input alone replaced.
        views: View → its explanation, of the direction in which the inputs moved the action. Its map is zero if the
            view never changes the action.
        covered: View → how far the action moves back if the hottest tenth of the view is replaced, and if the same
            region at three other places is, on average.
        passes: The forward passes for effects, corrections and covering.
        warnings: Reasons not to trust it.
    """

    label: str
    action: float
    action_without: float
    effects: dict[str, float]
    shares: dict[str, float]
    without: dict[str, float]
    views: dict[str, Explanation] = field(repr=False)
    covered: dict[str, tuple[float, float]]
    passes: int = 0
    warnings: tuple[MapWarning, ...] = ()

    @cached_property
    def maps(self) -> dict[str, NDArray[np.float32]]:
        """View → its heat ``(H, W)`` in [0, 1] on the image, where 1 is the hottest place of all views."""
        placed = {name: _place(shown, shown.view) for name, shown in self.views.items()}
        peak = max(float(heat.max()) for heat in placed.values()) or 1.0
        return {name: heat / peak for name, heat in placed.items()}

    def overlay(self) -> NDArray[np.uint8]:
        """Return all views under their maps, with their shares, and the effects as bars, ``(H, W, 3)`` uint8."""
        images = []
        for name, shown in self.views.items():
            heat, view = _place(shown, shown.view.enlarge()), shown.view.enlarge()
            images.append(view.draw_overlay(heat * np.float32(self.maps[name].max() / (heat.max() or 1))))
        captions = [f"{name.rpartition('.')[2]}: {format_percent(self.shares[name])}" for name in self.views]
        tiles = [*images, _draw_bars(self.effects, images[0].shape)]
        return draw_captioned_images(tiles, [*captions, self.label], columns=len(tiles), width=_WIDTH)

    def to_pixels(self) -> NDArray[np.uint8]:
        """Return :meth:`overlay`, which is saved and shown."""
        return self.overlay()

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {format_percent(self.shares[name])}" for name in self.effects)
        return (
            f"{self.label} is {self.action:.3g}; with all inputs replaced {self.action_without:.3g}. Moved by {shares}."
        )


@explain_foreign_arguments
def explain_policy(
    policy: Model,
    observation: Mapping[str, Any],
    target: Action,
    *,
    method: OneMethod = "layercam",
    layer: Layers = None,
    passes: int = 32,
    inputs: Sequence[str] | None = None,
    fill: Removal = "blur",
    reference: Mapping[str, Any] | None = None,
    call: Call | None = None,
    **options: Any,
) -> PolicyExplanation:
    """Explain which camera, which part of it, and how much of the state moved an action of a policy.

        result = camtool.explain_policy(policy, observation, camtool.targets.Action(3, step=0))
        result.shares  # {"observation.images.top": 0.62, "observation.images.wrist": 0.30, "observation.state": 0.08}
        result.maps["observation.images.top"]  # (H, W), on one scale with the other views
        result.save("moved.png")

    The policy runs with each subset of k inputs, the others replaced: 2^k passes, all with the same random numbers. Of
    these, Shapley values divide the change of the action exactly, and treat inputs that act alike equally. For each
    view 32 passes correct its map, and four verify it. The policy is left as it was. See docs/policies.md.

    Args:
        policy: A module whose ``forward`` takes the observation as one dictionary, or its entries as keyword arguments;
            or with ``predict_action_chunk``, which is then called, with gradients. The actions are ``(1, A)`` or
            ``(1, T, A)``.
        observation: One moment: floating images ``(1, C, H, W)``, vectors ``(1, D)``, and what else the policy takes.
        target: The dimension of the action, and its step.
        method: As for :func:`camtool.explain`. The default weighs each place by itself: a policy that mixes views by
            attention has no one weight for a channel.
        layer: As for :func:`camtool.explain`; by default the best layer for each view.
        passes: Further passes for each view that correct its map, see :func:`camtool.refine`, so that the heat of all
            views is in units of the action; 0 leaves the map of the method, e.g. for a policy that samples.
        inputs: The names of the inputs that are compared, at most 8; by default all floating tensors, or those named
            ``observation...`` if there are such. Those with four axes are the views.
        fill: What replaces a view: ``"blur"``, ``"mean"``, ``"zero"``, or a function from images to images.
        reference: Input → what replaces it, of its shape: an image of the empty scene, the mean of the states. Vectors
            without one are replaced by 0, the mean of those that are normalized.
        call: A function from policy and observation to the actions, for other policies.
        **options: Options of the method, and settings of :func:`camtool.explain`.

    Raises:
        ImageError: No input is a view, or the observation is not one moment.
        TargetError: The policy has no such action.
        LayerError: A view changes the action, but no layer can carry its map.
        CamtoolError: Another argument does not fit.
    """
    if not callable(getattr(target, "with_sign", None)):
        raise TargetError(f"target must be camtool.targets.Action(index, step=None), got {target!r}.")
    module, names = to_loaded(policy).model, _list_inputs(observation, inputs)
    device = choose_device(module, None)
    given = {key: item.to(device) if isinstance(item, Tensor) else item for key, item in observation.items()}
    layers = None if layer is None else [_name_in_scored_policy(choice) for choice in to_list(layer)]
    with guard(module):
        trial = _Trial(_ScoredPolicy(module, call or _run_policy, target.with_sign(1)), given)
        replaced = _replace_inputs(given, names, fill, reference or {})
        scores = _score_subsets(trial, names, replaced)
        result = _divide_change(str(target), scores, names)
        sign = target.sign or (-1 if result.action < result.action_without else 1)
        trial.model.target = target.with_sign(sign)
        for name in _list_views(given, names):
            explainer = Explainer(trial.model, method, layers, image=name, **options)
            is_used = any(scores[kept] != scores[kept - {name}] for kept in scores)
            result.views[name] = _explain_view(explainer, given, name, result.label, is_used=is_used)
            if is_used and passes:
                result.views[name] = refine(result.views[name], passes)
                trial.passes += passes
        score = sign * result.action
        covered = {name: trial.cover(name, heat, replaced[name], score) for name, heat in result.maps.items()}
    return replace(result, covered=covered, passes=trial.passes, warnings=tuple(_find_warnings(result, covered)))


# ------------------------------------------------------------------------------------------------------- the policy


class _ScoredPolicy(nn.Module):
    """A policy as a model of one score, that of an action: an action of six numbers may look like a table of boxes."""

    def __init__(self, policy: nn.Module, call: Call, target: Action) -> None:
        super().__init__()
        self.policy, self.call, self.target, self.training = policy, call, target, policy.training

    def forward(self, /, **observation: Any) -> Tensor:
        """Return the score ``(N, 1)``."""
        return self.target(self.call(self.policy, observation))[:, None]


def _name_in_scored_policy(layer: str | nn.Module) -> str | nn.Module:
    return f"policy.{layer}" if isinstance(layer, str) else layer


def _run_policy(policy: nn.Module, observation: dict[str, Any]) -> Any:
    """Return the actions of a policy, by the way that its methods show."""
    predict = getattr(type(policy), "predict_action_chunk", None)
    if predict is not None:
        # LeRobot decorates it with torch.no_grad; the function inside records a graph.
        return inspect.unwrap(predict)(policy, observation)
    parameters = inspect.signature(policy.forward).parameters
    return policy(**observation) if observation.keys() <= parameters.keys() else policy(observation)


class _Trial:
    """Forward passes of a policy on one observation.

    Attributes:
        model: The policy with its score.
        passes: How many have run.
    """

    def __init__(self, model: _ScoredPolicy, observation: Mapping[str, Any]) -> None:
        self.model, self.passes, self._observation = model, 0, observation

    def run(self, changed: Mapping[str, Any]) -> float:
        """Return the score with some inputs changed."""
        self.passes += 1
        # This guard gives each pass the random numbers of the first, e.g. to a policy that samples its action.
        with guard(self.model), torch.no_grad():
            return float(run_model(self.model, {**self._observation, **changed}))

    def cover(self, name: str, heat: NDArray[np.float32], fill: Tensor, score: float) -> tuple[float, float]:
        """Return how far the score drops with the hottest part of a view replaced, and at three other places."""
        region = torch.from_numpy((heat > 0) & (heat >= np.quantile(heat, 1 - _HOT))).to(fill.device)
        height, width = region.shape[0] // 2, region.shape[1] // 2
        hot, *others = (
            score - self.run({name: torch.where(region.roll(shift, (0, 1)), fill, self._observation[name])})
            for shift in ((0, 0), (height, 0), (0, width), (height, width))
        )
        return hot, sum(others) / len(others)


def _score_subsets(trial: _Trial, names: Sequence[str], replaced: Mapping[str, Tensor]) -> dict[frozenset[str], float]:
    """Return the action for each subset of inputs that are kept, with the others replaced, from no input to all.

    Raises:
        CamtoolError: An action is not finite.
    """
    scores = {}
    for kept in (kept for size in range(len(names) + 1) for kept in combinations(names, size)):
        others = {name: replaced[name] for name in names if name not in kept}
        scores[frozenset(kept)] = score = trial.run(others)
        if not math.isfinite(score):
            raise CamtoolError(
                f"policy: the action is {score} with {', '.join(map(repr, others)) or 'nothing'} replaced, so nothing "
                "can be said of its inputs; another reference={...} may help."
            )
    return scores


def _divide_change(label: str, scores: Mapping[frozenset[str], float], names: Sequence[str]) -> PolicyExplanation:
    """Return an explanation without views: the action, and how much of its change each input causes."""
    effects = _compute_shapley_values(scores, names)
    total = sum(map(abs, effects.values()))
    return PolicyExplanation(
        label=label,
        action=scores[frozenset(names)],
        action_without=scores[frozenset()],
        effects=effects,
        shares={name: abs(effect) / total if total else 0.0 for name, effect in effects.items()},
        without={name: scores[frozenset(names) - {name}] for name in names},
        views={},
        covered={},
    )


def _compute_shapley_values(scores: Mapping[frozenset[str], float], names: Sequence[str]) -> dict[str, float]:
    """Return the Shapley value of each input, from the scores of all subsets of inputs that are not replaced."""
    count = len(names)
    weights = [math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count) for size in range(count)]
    return {
        name: sum(weights[len(kept)] * (scores[kept | {name}] - scores[kept]) for kept in scores if name not in kept)
        for name in names
    }


# ------------------------------------------------------------------------------------------------------ the inputs


def _check_moment(tensors: Mapping[str, Tensor], names: Sequence[str]) -> None:
    """Check that all inputs are there, each for one moment, and one of them a view."""
    for name in names:
        if name not in tensors:
            hint = suggest_names(name, tensors)
            raise CamtoolError(f"inputs: {name!r} is no float tensor of the observation; these are {[*tensors]}.{hint}")
    shapes = {name: tuple(tensors[name].shape) for name in names}
    if not _list_views(tensors, names):
        raise ImageError(f"observation has no view, which is a floating tensor (1, C, H, W); it holds {shapes}.")
    for name, shape in shapes.items():
        if shape[:1] != (1,):
            raise ImageError(
                f"observation[{name!r}] has shape {shape}; one moment (1, ...) is explained at a "
                "time: {key: value[:1] for key, value in observation.items()}."
            )


def _list_inputs(observation: Mapping[str, Any], inputs: Sequence[str] | None) -> list[str]:
    """Return the names of the inputs that are compared.

    Raises:
        ImageError: None is a view, or the observation is not one moment.
        CamtoolError: There are too many, or one does not exist.
    """
    if not isinstance(observation, Mapping):
        raise ImageError(f"observation must be a dictionary of inputs, got {add_article(type(observation).__name__)}.")
    tensors = {key: item for key, item in observation.items() if isinstance(item, Tensor) and item.is_floating_point()}
    observed = [name for name in tensors if name.startswith("observation")] or [*tensors]
    names = observed if inputs is None else [*inputs]
    _check_moment(tensors, names)
    if len(names) > _MOST_INPUTS:
        raise CamtoolError(f"inputs: {len(names)} inputs take 2^{len(names)} passes; name at most {_MOST_INPUTS}.")
    return names


def _list_views(tensors: Mapping[str, Tensor], names: Sequence[str]) -> list[str]:
    return [name for name in names if tensors[name].ndim == _IMAGE_AXES]


def _replace_inputs(
    given: Mapping[str, Any], names: Sequence[str], fill: Removal, reference: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return what each input is replaced by.

    Raises:
        CamtoolError: A reference is of no input, or of another shape.
    """
    replaced = {}
    for name in names:
        value: Tensor = given[name]
        is_view = value.ndim == _IMAGE_AXES
        replaced[name] = make_baseline(value, fill) if is_view else torch.zeros_like(value)
    for name, item in reference.items():
        shape = tuple(given[name].shape) if name in names else None
        new = torch.as_tensor(item).to(given[name]) if shape else torch.empty(0)
        if shape is None or tuple(new.shape) not in (shape, shape[1:]):
            need = f"has shape {tuple(new.shape)}, not {shape}" if shape else f"is of no input; these are {[*names]}"
            raise CamtoolError(f"reference[{name!r}] {need}.")
        replaced[name] = new.reshape(shape)
    return replaced


# -------------------------------------------------------------------------------------------------------- the views


def _explain_view(
    explainer: Explainer[Explanation], given: Mapping[str, Any], name: str, label: str, *, is_used: bool
) -> Explanation:
    """Return the explanation of one view; of zeros if the action never depends on it and no layer does.

    Raises:
        LayerError: No layer can carry the map of a view that changes the action.
    """
    try:
        found: Explanation = explainer(Inputs.from_user(given, name), Value(0, label))[0]
    except LayerError:
        if is_used:
            raise
        view = explainer.prepare(given[name][0]).view
        return Explanation(np.zeros((1, 1), np.float32), view, label, None, 0.0, None, "none", "")
    # Which call of a layer sees this view was found out, so that it has several is no reason for doubt.
    kept = tuple(warning for warning in found.warnings if warning.code != "several-calls")
    layer = " + ".join(part.removeprefix("policy.") for part in found.layer.split(" + "))
    return replace(found, layer=layer, warnings=kept)


def _place(explanation: Explanation, view: View) -> NDArray[np.float32]:
    """Return the positive part of a map on the pixels of its view, in the units of the method."""
    geometry = view.geometry
    if geometry is None:
        raise ImageError(f"a view must be an image; a {view.kind} came.")
    raw = torch.from_numpy(np.ascontiguousarray(explanation.raw)).clamp(min=0)
    return geometry.place_on_photo(raw, explanation.centers).numpy()


def _find_warnings(result: PolicyExplanation, covered: Mapping[str, tuple[float, float]]) -> Iterator[MapWarning]:
    """Yield the warnings of the views, and for each map that covering does not confirm."""
    for name, view in result.views.items():
        yield from (MapWarning(f"{name}: {warning}", warning.code) for warning in view.warnings)
        hot, elsewhere = covered[name]
        if result.maps[name].any() and hot <= elsewhere:
            yield MapWarning(
                f"{name}: the map is not confirmed: the action moves back by {hot:.3g} with its hottest tenth "
                f"replaced, and by {elsewhere:.3g} with as much elsewhere.",
                "unconfirmed-view",
            )
    if not any(result.shares.values()):
        yield MapWarning("No input moved the action: it is the same with all of them replaced.", "unmoved-action")


def _draw_bars(effects: Mapping[str, float], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the effects as bars, red to the right for those that raise the action, of the shape of a picture."""
    height, width = round(_WIDTH * shape[0] / shape[1]), _WIDTH
    page, row, peak = Image.new("RGB", (width, height), PANEL), height / len(effects), max(map(abs, effects.values()))
    for index, (name, effect) in enumerate(effects.items()):
        top, middle = round(index * row), width // 2
        end = middle + round(effect / (peak or 1) * 0.45 * width)
        left, right = sorted((middle, end))
        page.paste(_BAR[effect > 0], (left, round(top + 0.5 * row), right + 1, round(top + 0.85 * row)))
        text = f"{name.rpartition('.')[2]}: {effect:+.3g}"
        draw_text(page, (middle, top + 0.28 * row), text, SMALL_TEXT_SIZE, INK, anchor="mm", max_width=width)
    return np.asarray(page)
