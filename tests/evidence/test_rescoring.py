"""Rescoring: the tail, the model and the folded model give the scores of variants."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from camtool.evidence.evidence import gather_evidence
from camtool.evidence.rescoring import run_forward, run_tail, score_activations, score_inputs
from camtool.hooks import chunks
from camtool.targets import ClassScore, Contrast, Probability
from tests.evidence.small_models import (
    CLASSES,
    BlockRunTwice,
    gather_one,
    make_cnn,
    make_tail,
    make_vit,
    observe_layers,
)


def test_run_tail_gives_the_score_for_an_images_own_activations(model_and_layer: tuple[nn.Module, str]) -> None:
    model, layer = model_and_layer
    evidence = gather_one(model, layer, [ClassScore(1), Contrast(2, 0), Probability(4)])
    for image in range(3):
        own = evidence.activations[image : image + 1]
        assert_close(run_tail(evidence, own, image), evidence.scores[image : image + 1])


def test_run_tail_scores_each_variant_independently(model_and_layer: tuple[nn.Module, str]) -> None:
    evidence = gather_one(*model_and_layer)
    variants = torch.randn(4, *evidence.activations.shape[1:])
    together = run_tail(evidence, variants, row=2)
    assert together.unique().numel() == 4
    assert_close(together, torch.cat([run_tail(evidence, variant[None], row=2) for variant in variants]))


def test_run_tail_keeps_the_prefix_tokens_of_the_image() -> None:
    model = make_vit()
    evidence = gather_one(model, "encoder.layers.encoder_layer_0", [ClassScore(0)] * 3)
    blank = torch.zeros_like(evidence.activations[:1])
    by_image = torch.cat([run_tail(evidence, blank, image) for image in range(3)])
    assert by_image.unique().numel() == 3  # the patches are equal, so only the class tokens differ


def test_run_tail_keeps_the_skip_connection_of_the_image() -> None:
    class Around(BlockRunTwice):
        def forward(self, x: Tensor) -> Tensor:
            stem = self.stem(x)
            return self.tail(stem + self.block(stem))

    model = Around().eval()
    evidence = gather_one(model, "block", [ClassScore(0)] * 3)
    for image in range(3):
        own = evidence.activations[image : image + 1]
        assert_close(run_tail(evidence, own.expand(2, -1, -1, -1), image), evidence.scores[image].expand(2))


def test_run_tail_of_an_ablated_channel_equals_running_the_tail_by_hand() -> None:
    model = make_cnn()
    forward_pass = observe_layers(model, "2")
    (evidence,) = gather_evidence(forward_pass, [ClassScore(2)] * 3)
    ablated = evidence.activations[1:2].clone()
    ablated[:, 3] = 0
    assert_close(run_tail(evidence, ablated, row=1), model[3:](ablated.clone())[:, 2].detach())


def test_run_forward_equals_the_model(model_and_layer: tuple[nn.Module, str]) -> None:
    model, layer = model_and_layer
    evidence = gather_one(model, layer, [ClassScore(1), Contrast(2, 0), ClassScore(4)])
    make_images = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        output = model(make_images)
    assert_close(run_forward(evidence, make_images), output[:, 1])
    assert_close(run_forward(evidence, make_images, row=1), output[:, 2] - output[:, 0])


def test_the_chunk_size_of_tails_depends_on_the_largest_tensor_after_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder after the layer enlarges 4 x 4 to 64 x 64."""
    decoder = nn.Sequential(
        nn.Upsample(scale_factor=16), nn.Conv2d(6, 6, 3, padding=1), *make_tail(nn.Linear(6, CLASSES))
    )
    model = nn.Sequential(nn.Conv2d(3, 6, 3, stride=8, padding=1), decoder).eval()
    evidence = gather_one(model, "0")
    monkeypatch.setitem(chunks._BUDGETS, "cpu", 3 * chunks._LIVE_COPIES * 6 * 64 * 64 * 4)
    sizes: list[int] = []

    def make(part: slice) -> Tensor:
        sizes.append(part.stop - part.start)
        return evidence.activations[:1].expand(sizes[-1], -1, -1, -1)

    score_activations(evidence, [0], 7, make)
    assert sizes == [3, 3, 1]


def test_further_passes_run_in_the_autocast_mode_of_the_forward_pass() -> None:
    model = make_cnn()
    with torch.autocast("cpu", torch.bfloat16):
        evidence = gather_one(model, "2", [ClassScore(1)] * 3)
    own, picture = evidence.activations[:1], evidence.inputs[:1]
    assert run_tail(evidence, own).dtype == evidence.scores.dtype == torch.bfloat16
    assert torch.equal(run_tail(evidence, own), evidence.scores[:1])
    assert torch.equal(run_forward(evidence, picture), evidence.scores[:1])
    assert_close(score_inputs(evidence, [0], 1, lambda _: picture)[:, 0], evidence.scores[:1], rtol=0.02, atol=0.02)
