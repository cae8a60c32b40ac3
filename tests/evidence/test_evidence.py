"""Evidence: activations, gradients and rows, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import ForwardError, LayerError
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import PassSettings, run_forward_pass
from camtool.evidence.rescoring import run_forward, run_tail, score_with_graph
from camtool.layers.selection import find_layers
from camtool.targets import ClassScore, Contrast, Custom, Probability
from tests.evidence.small_models import BlockRunTwice, gather_one, make_cnn, observe_layers

# ---------------------------------------------------------------------------------------- activations and gradients


def test_activations_and_gradients_equal_plain_autograd() -> None:
    model, targets = make_cnn(), [ClassScore(1), Contrast(2, 0), ClassScore(4)]
    forward_pass = observe_layers(model, "2")
    (evidence,) = gather_evidence(forward_pass, targets)
    activations = model[:3](forward_pass.inputs).detach().requires_grad_()
    output = model[3:](activations.clone())
    scores = torch.stack([output[0, 1], output[1, 2] - output[1, 0], output[2, 4]])
    (expected,) = torch.autograd.grad(scores.sum(), activations)
    assert torch.equal(evidence.activations, activations)
    assert_close(evidence.gradients, expected)
    assert_close(evidence.scores, scores.detach())


class WithoutGraph(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()  # type: ignore[no-any-return]


def test_a_missing_gradient_is_looked_into_when_it_is_asked_for() -> None:
    model, passes = WithoutGraph(*make_cnn()), list[int]()
    (evidence,) = gather_evidence(forward_pass := observe_layers(model, "2"), [ClassScore(1)] * 3)
    model.register_forward_hook(lambda *_: passes.append(1))
    forward_pass.score_rows([ClassScore(2)] * 3, [0, 1, 2])
    assert passes == []
    with pytest.raises(LayerError, match="detaches the output"):
        _ = evidence.gradients
    assert passes == [1]


def test_a_method_may_do_without_a_missing_gradient() -> None:
    def weigh(evidence: Evidence) -> Tensor:
        try:
            return evidence.gradients.sum(1)
        except LayerError:
            return evidence.activations.mean(1)

    model = WithoutGraph(*make_cnn())
    (result,) = camtool.explain(model, torch.randn(1, 3, 32, 32), 1, method=weigh, layer="2")
    assert result.raw.any()


def test_a_method_that_changes_the_depths_changes_no_later_call() -> None:
    def empty(evidence: Evidence, depths: int = 4) -> Tensor:
        evidence.depths.clear()
        evidence.forward_pass.layers.clear()
        return evidence.activations.mean(1)

    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(3 if not i else 4, 4, 3, 1 + i % 2, 1), nn.ReLU()) for i in range(4)]
    model, x = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)), torch.randn(1, 3, 32, 32)
    (before,) = camtool.explain(model, x, 1, method="faithcam")
    camtool.explain(model, x, 1, method=empty)
    (after,) = camtool.explain(model, x, 1, method="faithcam")
    assert before.raw.shape == after.raw.shape
    assert (before.raw == after.raw).all()


def test_a_hook_that_fails_in_a_second_derivative_is_named() -> None:
    model = make_cnn()
    model[6].register_full_backward_hook(lambda *_: 1 / 0)
    evidence = gather_one(model, "0")
    with pytest.raises(ForwardError, match=r"a backward hook on .* failed with ZeroDivisionError"):
        evidence.hessian_vector_product(torch.ones_like(evidence.activations))


def test_evidence_is_detached_from_the_graph() -> None:
    evidence = gather_one(make_cnn(), "2")
    shown = [evidence.activations, evidence.gradients, evidence.scores, run_tail(evidence, evidence.activations[:1])]
    assert not any(tensor.requires_grad for tensor in shown)


def test_reading_gradients_runs_one_backward_pass(backward_passes: list[int]) -> None:
    forward_pass = observe_layers(make_cnn(), "0", "2")
    backward_passes.clear()  # finding the layers ran one
    first, second = gather_evidence(forward_pass, [ClassScore(0)] * 3)
    assert run_tail(first, first.activations[:1]).shape == run_forward(first, forward_pass.inputs[:1]).shape == (1,)
    assert (first.uses_gradients, backward_passes) == (False, [])
    assert first.gradients.shape == (3, 4, 8, 8)
    assert second.gradients.shape == (3, 6, 4, 4)
    assert (first.uses_gradients, second.uses_gradients, backward_passes) == (True, True, [2])


def test_gradients_at_several_layers_equal_those_at_each_layer_alone() -> None:
    model, targets = make_cnn(), [ClassScore(3)]
    inputs = torch.randn(1, 3, 32, 32)
    together = gather_evidence(run_forward_pass(model, inputs, find_layers(model, inputs, ["0", "2"])), targets)
    alone = [
        gather_evidence(run_forward_pass(model, inputs, find_layers(model, inputs, [name])), targets)[0]
        for name in ("0", "2")
    ]
    for one, other in zip(together, alone, strict=True):
        assert_close(one.gradients, other.gradients)
        assert one.gradients.any()


def test_targets_are_scored_on_one_forward_pass_in_any_order() -> None:
    forward_pass = observe_layers(make_cnn(), "2")
    (first,) = gather_evidence(forward_pass, [ClassScore(0)] * 3)
    (second,) = gather_evidence(forward_pass, [Probability(1)] * 3)
    (fresh,) = gather_evidence(forward_pass, [ClassScore(0)] * 3)
    assert not torch.equal(second.gradients, first.gradients)
    assert_close(fresh.gradients, first.gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_upcast(dtype: torch.dtype) -> None:
    evidence = gather_one(make_cnn().to(dtype), "2", dtype=dtype)
    assert evidence.activations.dtype == evidence.gradients.dtype == torch.float32
    assert_close(run_tail(evidence, evidence.activations[:1]), evidence.scores[:1])  # cast back to the model's type
    assert evidence.scores.dtype == dtype


def test_double_precision_is_kept() -> None:
    evidence = gather_one(make_cnn().double(), "2", dtype=torch.float64)
    assert evidence.activations.dtype == evidence.gradients.dtype == torch.float64


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_computed_when_the_caller_disabled_them(mode: Any) -> None:
    model = make_cnn()
    with mode():
        evidence = gather_one(model, "2")
        assert evidence.gradients.any()
        assert_close(run_tail(evidence, evidence.activations[:1]), evidence.scores[:1])


def test_gradients_of_a_target_that_detaches_raise_an_error() -> None:
    evidence = gather_one(make_cnn(), "2", [Custom(lambda one: one.detach()[0])] * 3)
    assert evidence.scores.shape == (3,)
    with pytest.raises(LayerError, match=r"does not depend on the layers \['2'\].* target that does not detach"):
        _ = evidence.gradients


def test_a_layer_that_runs_twice_is_observed_at_its_last_call() -> None:
    model = BlockRunTwice().eval()
    forward_pass = observe_layers(model, "block")
    (evidence,) = gather_evidence(forward_pass, [ClassScore(0)] * 3)
    last = model.block(model.block(model.stem(forward_pass.inputs)).relu())
    assert (evidence.layer, evidence.call_count) == ("block", 2)
    assert torch.equal(evidence.activations, last)


def test_evidence_leaves_the_model_unchanged(model_and_layer: tuple[nn.Module, str]) -> None:
    model, layer = model_and_layer
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evidence = gather_one(model, layer)
    _ = evidence.gradients, run_tail(evidence, evidence.activations[:1])
    _ = run_forward(evidence, torch.randn(1, 3, 32, 32))
    assert all(module.training and not module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# ------------------------------------------------------------------------------- rows, other targets, other inputs


def test_rows_of_one_image_equal_the_evidence_of_each_row_alone(
    model_and_layer: tuple[nn.Module, str], backward_passes: list[int]
) -> None:
    model, layer = model_and_layer
    forward_pass = observe_layers(model, layer)
    wanted, images = [ClassScore(2), ClassScore(0), Contrast(1, 3), ClassScore(2)], [1, 1, 2, 0]
    backward_passes.clear()
    (together,) = gather_evidence(forward_pass, wanted, images)
    assert together.gradients.shape[0] == 4
    assert len(backward_passes) == 1
    for row, (target, image) in enumerate(zip(wanted, images, strict=True)):
        (alone,) = gather_evidence(forward_pass, [target], [image])
        assert_close(together.gradients[row : row + 1], alone.gradients)
        assert torch.equal(together.activations[row : row + 1], alone.activations)
        assert_close(together.scores[row : row + 1], alone.scores)
        assert_close(run_tail(together, together.activations[row : row + 1], row), together.scores[row : row + 1])
    assert together.rows_by_image == [[0, 1], [2], [3]]


def test_gradients_are_equal_if_the_tail_does_not_support_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    forward_pass = observe_layers(make_cnn(), "2")
    wanted, images = [ClassScore(2), ClassScore(0)], [1, 1]
    batched = gather_evidence(forward_pass, wanted, images)[0].gradients
    real = torch.autograd.grad

    def fail_if_batched(*args: Any, is_grads_batched: bool = False, **options: Any) -> Any:
        if is_grads_batched:
            raise RuntimeError("no batching rule")
        return real(*args, **options)

    monkeypatch.setattr(torch.autograd, "grad", fail_if_batched)
    assert_close(
        gather_evidence(run_forward_pass(forward_pass.model, forward_pass.inputs, forward_pass.layers), wanted, images)[
            0
        ].gradients,
        batched,
    )


def test_equal_targets_share_a_backward_pass(backward_passes: list[int]) -> None:
    forward_pass = observe_layers(make_cnn(), "0", "2")
    backward_passes.clear()
    for _ in range(2):
        first, second = gather_evidence(forward_pass, [ClassScore(1)] * 3)
        _ = first.gradients, second.gradients, first.for_targets([ClassScore(1)] * 3, [0, 1, 2]).gradients
    assert backward_passes == [2]


def test_for_inputs_observes_other_images_at_the_same_layer(model_and_layer: tuple[nn.Module, str]) -> None:
    model, layer = model_and_layer
    evidence, make_images = gather_one(model, layer, [ClassScore(1)] * 3), torch.randn(3, 3, 32, 32)
    (expected,) = gather_evidence(
        run_forward_pass(model, make_images, find_layers(model, make_images, [layer])), [ClassScore(1)] * 3
    )
    assert torch.equal(evidence.for_inputs(make_images).activations, expected.activations)
    assert_close(evidence.for_inputs(make_images).gradients, expected.gradients)
    on_graph = score_with_graph(evidence, make_images.requires_grad_())
    assert_close(on_graph.detach(), expected.scores)
    assert torch.autograd.grad(on_graph.sum(), make_images)[0].any()


def test_at_layer_observes_the_same_images_at_another_layer(model_and_layer: tuple[nn.Module, str]) -> None:
    model, layer = model_and_layer
    forward_pass = observe_layers(model, layer)
    (expected,) = gather_evidence(forward_pass, [ClassScore(1)] * 2, [2, 0])
    (blind,) = gather_evidence(run_forward_pass(model, forward_pass.inputs, []), [ClassScore(1)] * 2, [2, 0])
    assert_close(blind.at_layer(layer).activations, expected.activations)
    assert_close(blind.at_layer(layer).gradients, expected.gradients)
    with pytest.raises(LayerError, match="no layer 'nowhere'"):
        blind.at_layer("nowhere")


def test_black_inputs_hold_the_models_value_of_black() -> None:
    model, inputs = make_cnn(), torch.randn(2, 3, 32, 32)
    layers, black = find_layers(model, inputs, ["2"]), torch.tensor([-2.0, -1.0, -3.0])
    (known,) = gather_evidence(run_forward_pass(model, inputs, layers, PassSettings(black)), [ClassScore(1)] * 2)
    (unknown,) = gather_evidence(run_forward_pass(model, inputs, layers), [ClassScore(1)] * 2)
    assert torch.equal(known.black_inputs, black[None, :, None, None].expand(2, 3, 32, 32))
    assert not unknown.black_inputs.any()


def test_a_model_that_writes_to_its_input_changes_no_image() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), make_cnn()).eval()
    inputs = torch.randn(2, 3, 32, 32)
    before = inputs.clone()
    evidence = gather_evidence(
        run_forward_pass(model, inputs, find_layers(model, inputs, ["1.2"])), [ClassScore(1)] * 2
    )[0]
    _ = evidence.for_inputs(inputs).gradients
    _ = run_forward(evidence, inputs), run_tail(evidence, evidence.activations[:1])
    assert torch.equal(inputs, before)
    assert torch.equal(evidence.inputs, before)
