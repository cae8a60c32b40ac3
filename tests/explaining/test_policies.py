"""Policies: each view's map belongs to this view, effects are exact Shapley values, and a planted lamp is found."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool import CamtoolError, ImageError, LayerError, TargetError
from camtool.demo.scenes import draw_scene
from camtool.targets import Action
from tests.hooks.state.test_no_trace import unchanged

TOP, WRIST, STATE = "observation.images.top", "observation.images.wrist", "observation.state"
CHANNELS, STEPS, ACTIONS = 4, 3, 6  # an action of six numbers looks like a box, its confidence and its class


def make_observation(seed: int = 0, **changed: Tensor) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    views = {name: torch.rand(1, 3, 12, 12, generator=generator, dtype=torch.float64) for name in (TOP, WRIST)}
    return {**views, STATE: torch.randn(1, 2, generator=generator, dtype=torch.float64), "task": ["lift it"], **changed}


class Arm(nn.Module):
    """A linear head on the mean of each channel of two views and on the state."""

    def __init__(self, views: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.views = views
        self.encoder, self.other = (nn.Sequential(nn.Conv2d(3, CHANNELS, 3, 2, 1), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(2 * CHANNELS + 2, STEPS * ACTIONS)
        self.double().eval()

    def encode(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        top, wrist = batch[TOP], batch[WRIST]
        if self.views == "wrist first":
            second = self.encoder(wrist)
            return self.encoder(top), second
        if self.views == "own encoders":
            return self.encoder(top), self.other(wrist)
        if self.views == "behind each other":
            second, first = self.encoder(torch.cat([wrist, top])).chunk(2)
            return first, second
        return self.encoder(torch.stack([top, wrist], 1).flatten(0, 1)).unflatten(0, (-1, 2)).unbind(1)

    def forward(self, batch: dict[str, Any]) -> Any:
        pooled = [maps.mean((2, 3)) for maps in self.encode(batch)]
        actions = self.head(torch.cat([*pooled, batch[STATE]], 1)).unflatten(1, (STEPS, ACTIONS))
        return {"action": actions, "hidden": pooled[0]}


VIEWS = ("wrist first", "own encoders", "behind each other", "side by side")


def compute_gradcam(policy: Arm, observation: dict[str, Any], name: str, target: Action) -> list[list[float]]:
    """Grad-CAM by its definition: channels weighted by the mean gradient, which is w / (h w) for a mean and a head."""
    encoder = policy.other if policy.views == "own encoders" and name == WRIST else policy.encoder
    maps = encoder(observation[name])[0].tolist()
    first = 0 if name == TOP else CHANNELS
    row = policy.head.weight.unflatten(0, (STEPS, ACTIONS))[target.step, target.index].tolist()
    height, width = len(maps[0]), len(maps[0][0])
    return [
        [
            max(0.0, sum(target.sign * row[first + k] / (height * width) * maps[k][i][j] for k in range(CHANNELS)))
            for j in range(width)
        ]
        for i in range(height)
    ]


@pytest.mark.parametrize("views", VIEWS)
def test_each_view_has_its_own_grad_cam(views: str) -> None:
    policy, observation = Arm(views), make_observation()
    for target in (Action(5, step=1, sign=1), Action(0, step=2, sign=-1)):
        result = camtool.explain_policy(policy, observation, target, method="gradcam", passes=0)
        peak = max(float(view.raw.max()) for view in result.views.values())
        for name in (TOP, WRIST):
            expected = compute_gradcam(policy, observation, name, target)
            np.testing.assert_allclose(result.views[name].raw, expected, rtol=1e-5, atol=1e-9)
            # The map of the view at the places of its cells, on the scale of both.
            at_centers = result.maps[name][::2, ::2]
            np.testing.assert_allclose(at_centers, np.array(expected) / peak, atol=0.02)
        assert max(float(heat.max()) for heat in result.maps.values()) == 1


@pytest.mark.parametrize("views", VIEWS)
def test_a_changed_view_leaves_the_map_of_the_other(views: str) -> None:
    policy, target = Arm(views), Action(1, step=0, sign=1)
    before = camtool.explain_policy(policy, make_observation(), target, passes=0)
    for changed, other in ((TOP, WRIST), (WRIST, TOP)):
        noise = torch.rand(1, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
        after = camtool.explain_policy(policy, make_observation(**{changed: noise}), target, passes=0)
        np.testing.assert_allclose(after.views[other].raw, before.views[other].raw, rtol=1e-6, atol=0)
        assert not np.allclose(after.views[changed].raw, before.views[changed].raw, rtol=0.1)


class Product(nn.Module):
    """Action 0 is top x wrist + 2 state, for views of one value; action 1 is the state alone."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(1, 1, 1, bias=False)
        nn.init.ones_(self.encoder.weight)

    def forward(self, top: Tensor, wrist: Tensor, state: Tensor) -> Tensor:
        first, second = (self.encoder(view).mean((1, 2, 3)) for view in (top, wrist))
        return torch.stack([first * second + 2 * state[:, 0], state[:, 0]], 1)


def make_constant(**values: float) -> dict[str, Tensor]:
    return {
        name: torch.full((1, 1), float(value)) if name == "state" else torch.full((1, 1, 4, 4), float(value))
        for name, value in values.items()
    }


def test_effects_are_the_shapley_values_by_hand() -> None:
    """With references 1, 2 and 0 for 3, 5 and 0.5, the product grows from 2 to 15.

    Top first: (3 - 1) x 2 = 4, and 3 x 3 = 9 for the wrist; wrist first: 1 x 3 = 3, and 2 x 5 = 10 for the top.
    """
    observation, reference = make_constant(top=3, wrist=5, state=0.5), make_constant(top=1, wrist=2)
    result = camtool.explain_policy(Product(), observation, Action(0), fill="zero", reference=reference)
    assert (result.action, result.action_without) == (16, 2)
    assert result.effects == pytest.approx({"top": 7, "wrist": 6, "state": 1})
    assert result.shares == pytest.approx({"top": 0.5, "wrist": 6 / 14, "state": 1 / 14})
    assert result.without == {"top": 6, "wrist": 7, "state": 15}
    assert result.passes == 8 + 2 * (32 + 4)
    assert str(result) == "action 0 is 16; with all inputs replaced 2. Moved by top 50%, wrist 43%, state 7%."
    only = camtool.explain_policy(Product(), observation, Action(0), fill="zero", inputs=["top", "state"])
    assert only.effects == pytest.approx({"top": 15, "state": 1})  # the wrist stays


def test_the_direction_is_that_of_the_action() -> None:
    observation = make_constant(top=-3, wrist=5, state=0.0)
    lowered = camtool.explain_policy(Product(), observation, Action(0), fill="zero")
    assert lowered.action == -15
    assert lowered.views["top"].score == 15
    # What covers the half of the top view that is hot moves the action up, as much as its share of the cells.
    raised = camtool.explain_policy(Product(), observation, Action(0, sign=1), fill="zero")
    assert raised.views["top"].score == -15


def test_views_that_never_matter_have_no_heat() -> None:
    result = camtool.explain_policy(Product(), make_constant(top=3, wrist=5, state=0.5), Action(1), fill="zero")
    assert result.shares == {"top": 0, "wrist": 0, "state": 1}
    assert not any(heat.any() for heat in result.maps.values())
    unmoved = camtool.explain_policy(Product(), make_constant(top=3, wrist=5, state=0.0), Action(1))
    assert [warning.code for warning in unmoved.warnings] == ["unmoved-action"]
    assert unmoved.overlay().shape[2] == 3


class Half(nn.Module):
    """The action is the value of one corner of the only view, so covering it alone takes the action back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(1, 1, 1, bias=False)
        nn.init.ones_(self.encoder.weight)

    def forward(self, image: Tensor) -> Tensor:
        return self.encoder(image)[:, :, :2, :2].sum((2, 3))


def test_covering_compares_the_hot_region_with_others() -> None:
    image = torch.zeros(1, 1, 8, 8)
    image[..., :2, :2] = 1.5
    result = camtool.explain_policy(Half(), {"image": image}, Action(0), fill="zero", passes=0)
    # The hottest tenth of 64 pixels are all four that are hot; elsewhere nothing is.
    assert result.covered == {"image": (6, 0)}
    assert result.warnings == ()
    wrong = camtool.explain_policy(Half(), {"image": image}, Action(0), fill="zero", method=point_elsewhere, passes=0)
    assert [warning.code for warning in wrong.warnings] == ["unconfirmed-view"]


def point_elsewhere(evidence: camtool.Evidence) -> Tensor:
    return evidence.activations[:, 0].flip(1, 2)


class Chunker(Product):
    """A policy as LeRobot writes them: a method without gradients beside a forward pass that returns a loss."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        raise AssertionError("this is the loss")

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(**batch)[:, None]


def test_ways_to_call_a_policy_agree() -> None:
    observation = make_constant(top=3, wrist=5, state=0.5)
    direct = camtool.explain_policy(Product(), observation, Action(0), fill="zero")
    chunk = camtool.explain_policy(Chunker(), observation, Action(0, step=0), fill="zero")
    called = camtool.explain_policy(
        Chunker(), observation, Action(0), fill="zero", call=lambda policy, batch: Product.forward(policy, **batch)
    )
    for result in (chunk, called):
        assert result.effects == direct.effects
        for name, heat in direct.maps.items():
            np.testing.assert_array_equal(result.maps[name], heat)
    named = camtool.explain_policy(Product(), observation, Action(0), fill="zero", layer="encoder")
    assert {view.layer for view in named.views.values()} == {"encoder"}


class Sampler(Arm):
    """A policy that samples its action, keeps count of its passes, and drops units in training."""

    def __init__(self) -> None:
        super().__init__("own encoders")
        self.register_buffer("passes", torch.zeros(()))
        self.drop = nn.Dropout(0.5)

    def forward(self, batch: dict[str, Any]) -> Any:
        self.passes += 1
        actions = super().forward(batch)["action"]
        return self.drop(actions) + torch.randn(actions.shape, dtype=actions.dtype)


def test_all_passes_see_the_same_random_numbers_and_leave_no_trace() -> None:
    policy, observation = Sampler().train(), make_observation()
    kept = {name: value.clone() for name, value in observation.items() if isinstance(value, Tensor)}
    with unchanged(policy):
        result = camtool.explain_policy(policy, observation, Action(2, step=0))
    plain = camtool.explain_policy(Arm("own encoders"), observation, Action(2, step=0))
    assert result.effects == pytest.approx(plain.effects, abs=1e-12)  # the noise is a constant of all passes
    assert all(torch.equal(observation[name], value) for name, value in kept.items())
    with unchanged(policy), pytest.raises(TargetError):
        camtool.explain_policy(policy, observation, Action(9, step=0))


@pytest.mark.parametrize(
    ("changed", "arguments", "error", "message"),
    [
        ({}, {"target": Action(0)}, TargetError, "action 0 needs actions (N, A); for a chunk (N, T, A) give step="),
        ({}, {"target": Action(6, step=0)}, TargetError, "action 6 at step 0 does not exist: the model returned"),
        ({}, {"target": 3}, TargetError, "target must be camtool.targets.Action(index, step=None), got 3."),
        ({}, {"inputs": [STATE]}, ImageError, "observation has no view, which is a floating tensor (1, C, H, W)"),
        ({}, {"inputs": ["observation.images.tip"]}, CamtoolError, "'observation.images.tip' is no float tensor"),
        ({TOP: torch.rand(3, 3, 12, 12)}, {}, ImageError, "one moment (1, ...) is explained at a time"),
        ({}, {"reference": {STATE: torch.ones(3)}}, CamtoolError, "has shape (3,), not (1, 2)."),
        ({}, {"reference": {"state": torch.ones(2)}}, CamtoolError, "reference['state'] is of no input"),
        ({}, {"layer": "enc"}, LayerError, "enc"),
        ({f"observation.{i}": torch.rand(1, 2) for i in range(6)}, {}, CamtoolError, "9 inputs take 2^9 passes"),
    ],
)
def test_errors_name_what_came(
    changed: dict[str, Any], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        camtool.explain_policy(
            Arm("side by side"), make_observation(**changed), **{"target": Action(0, step=0), **arguments}
        )


def test_an_action_that_is_not_finite_is_told_with_what_was_replaced() -> None:
    class Divided(Product):
        def forward(self, top: Tensor, wrist: Tensor, state: Tensor) -> Tensor:
            return super().forward(top, wrist, state) / state.norm()

    observation = make_constant(top=3, wrist=5, state=0.5)
    with pytest.raises(CamtoolError, match=r"the action is (inf|nan) with .*'state' replaced, .* reference=\{\.\.\.\}"):
        camtool.explain_policy(Divided(), observation, Action(0))
    result = camtool.explain_policy(Divided(), observation, Action(0), reference=make_constant(state=1))
    assert np.isfinite([*result.shares.values()]).all()


def test_an_observation_is_a_dictionary() -> None:
    with pytest.raises(ImageError, match="observation must be a dictionary of inputs, got a Tensor"):
        camtool.explain_policy(Product(), torch.rand(1, 3, 8, 8), Action(0))


def test_layers_have_the_names_of_the_policy() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = Product()

        def forward(self, top: Tensor, wrist: Tensor, state: Tensor) -> Tensor:
            return self.policy(top, wrist, state)

    observation = make_constant(top=3, wrist=5, state=0.5)
    result = camtool.explain_policy(Outer(), observation, Action(0), layer="policy.encoder", passes=0)
    assert {view.layer for view in result.views.values()} == {"policy.encoder"}


def test_action_is_a_target_of_explain_as_well() -> None:
    output = torch.arange(24.0).reshape(2, 3, 4)
    assert Action(1, step=2)(output).tolist() == [9, 21]
    assert Action(1, step=2, sign=-1)({"loss": output[0], "action": output}).tolist() == [-9, -21]
    assert Action(3)((output[:, 0], None)).tolist() == [3, 15]
    assert str(Action(1, step=2)) == "action 1 at step 2"
    with pytest.raises(TargetError, match="sign must be 1, -1 or None, got 2"):
        Action(0, sign=2)
    image = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    (result,) = camtool.explain(Half(), image, Action(0))
    assert result.score == pytest.approx(float(image[..., :2, :2].sum()))
    assert result.label == "action 0"


def test_a_model_of_photos_as_a_policy() -> None:
    """The bundled model in both cameras: the action is the logit of an object that one camera alone sees."""
    seen, other = draw_scene(7), draw_scene(8)
    loaded = camtool.load("demo")
    index = list(loaded.labels).index(seen.objects[0].label)
    assert other.objects[0].label != seen.objects[0].label

    class Camera(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = loaded.model

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.network(left) + self.network(right)

    for names in (("left", "right"), ("right", "left")):
        images = (loaded.transform(Image.fromarray(scene.image))[None] for scene in (seen, other))
        result = camtool.explain_policy(Camera(), dict(zip(names, images, strict=True)), Action(index, sign=1))
        assert result.effects[names[0]] > result.effects[names[1]]
        assert max(result.maps, key=lambda name: result.maps[name].max()) == names[0]
        peak = np.array(np.unravel_index(result.maps[names[0]].argmax(), result.maps[names[0]].shape))
        places = np.argwhere(seen.objects[0].mask) * result.maps[names[0]].shape[0] / seen.objects[0].mask.shape[0]
        assert np.hypot(*(places - peak).T).min() < 8  # within a cell of the last grid


@pytest.mark.nightly
def test_a_planted_lamp_is_found() -> None:
    from benchmarks.policies import POLICIES, measure, train_policy

    policy, loss = train_policy(POLICIES["views stacked"])
    assert loss < 0.02  # it has learned what it is asked about
    assert measure(policy, 20)["found"][0] >= 0.9
