"""Differences from the authors' released code, in numbers: see ``tests/helpers/released_code_differences.py``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from camtool.methods import METHODS
from camtool.methods.families.scorecam import blur_input
from camtool.targets import ClassScore, Probability
from tests.helpers.vision_transformers import build_oracle, close_to_peak, gather_rows, make_images, make_tiny_vit
from tests.methods.test_all_methods import IMAGES, deep_net, fake, look
from tests.oracles import ORACLES


def far_apart(one: Tensor, other: Tensor, by: float = 0.02) -> None:
    """Check that two maps, each at a peak of 1, differ by more than this."""
    assert (one / one.abs().amax() - other / other.abs().amax()).abs().amax() > by


def test_grad_cam_plus_plus_divides_alphas_by_their_sum() -> None:
    A, g = torch.rand(1, 6, 3, 4, dtype=torch.float64), torch.randn(1, 6, 3, 4, dtype=torch.float64)
    alphas = g**2 / (2 * g**2 + g**3 * A.sum((2, 3), keepdim=True)) * (g > 0)

    def weighed(alphas: Tensor) -> Tensor:
        return ((alphas * g.relu()).sum((2, 3), keepdim=True) * A).sum(1).relu()

    ours = METHODS["gradcam++"](fake(A, g))
    close_to_peak(ours, weighed(alphas), 1e-12)
    far_apart(ours, weighed(alphas / alphas.sum((2, 3), keepdim=True)))


def test_recipro_cam_scores_by_the_softmax() -> None:
    net, layer = deep_net()
    net, x = net.double(), torch.randn(1, *IMAGES, dtype=torch.float64)
    A = net.trunk(x).detach()
    logits = torch.stack([net.tail(A * alone) for alone in torch.eye(12, dtype=A.dtype).reshape(12, 1, 1, 3, 4)])[:, 0]
    score, probability = (
        METHODS["reciprocam"](look(net, layer, x, target)) for target in (ClassScore(2), Probability(2))
    )
    close_to_peak(score, logits[:, 2].detach().reshape(1, 3, 4), 1e-12)
    close_to_peak(probability, logits.softmax(1)[:, 2].detach().reshape(1, 3, 4), 1e-12)
    far_apart(score, probability)


def test_group_cam_keeps_low_positions_and_sums_unscaled_masks() -> None:
    net, layer = deep_net()
    net, x = net.double(), torch.randn(1, *IMAGES, dtype=torch.float64)
    seen = look(net, layer, x, ClassScore(1))
    weighed = seen.gradients.mean((2, 3), keepdim=True) * seen.activations
    masks = torch.stack([part.sum(1) for part in weighed.tensor_split(2, 1)], 1).relu()
    masks = interpolate(masks, IMAGES[1:], mode="bilinear")[0][:, None]
    low, high = masks.amin((2, 3), keepdim=True), masks.amax((2, 3), keepdim=True)
    scaled = ((masks - low) / (high - low)).nan_to_num(0)  # a group may be empty
    blurred = blur_input(x[0], 25, 50.0)[None]
    gains = (net(scaled * x + (1 - scaled) * blurred).softmax(1) - net(blurred).softmax(1))[:, 1, None, None].detach()
    ours = METHODS["groupcam"](seen, groups=2, denoise=0)
    close_to_peak(ours, (gains * scaled[:, 0]).sum(0, keepdim=True).relu(), 1e-9)
    far_apart(METHODS["groupcam"](seen, groups=2), (gains.relu() * masks[:, 0]).sum(0, keepdim=True))


def test_odam_does_not_smooth_gradients() -> None:
    A, g = torch.rand(1, 6, 3, 4), torch.randn(1, 6, 3, 4)
    program = (g * A).sum(1).relu()
    close_to_peak(METHODS["odam"](fake(A, g), smoothing=0), program, 1e-6)
    far_apart(METHODS["odam"](fake(A, g)), program)


def test_legrad_uses_the_last_two_layers() -> None:
    net, x = make_tiny_vit(depth=6), make_images(1)
    case = build_oracle(net, x, 2)
    every, last_two = (torch.tensor([ORACLES["legrad"](each)]) for each in (case, replace(case, early=case.early[-2:])))
    ours = METHODS["legrad"](gather_rows(net, x, [ClassScore(2)]))
    close_to_peak(ours, every, 1e-6)
    far_apart(ours, last_two)
    close_to_peak(METHODS["legrad"](gather_rows(net, x, [ClassScore(2)]), layers=2), last_two, 1e-6)


@pytest.mark.parametrize("steps", [1, 20])
def test_integrated_grad_cam_uses_zeros_for_black(steps: int) -> None:
    net, layer = deep_net()
    net, x = net.double(), torch.randn(1, *IMAGES, dtype=torch.float64)

    def at(t: float) -> Tensor:
        seen = look(net, layer, t * x, ClassScore(2))
        change = seen.activations - net.trunk(0 * x).detach()
        return (seen.gradients.mean((2, 3), keepdim=True) * change).sum(1).relu()

    ours = METHODS["integratedgradcam"](look(net, layer, x, ClassScore(2)), steps=steps)
    close_to_peak(ours, sum(at((step + 1) / steps) for step in range(steps)) / steps, 1e-10)
    program = sum(at(step / 50) for step in range(50)) / 50
    assert (ours - program).abs().amax() > 1e-3 * ours.abs().amax()
