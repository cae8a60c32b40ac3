"""Blocks of language models that are computed again in the backward pass: same gradients, less memory, no trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

from camtool.errors import ForwardError
from camtool.hooks.observation import Observation, run_with_hooks
from tests.hooks.state.test_no_trace import unchanged
from tests.zoo.vision_language import SIDE, WITH_GRID

PROJECTOR, FIRST, LAST = (
    "model.multi_modal_projector",
    "model.language_model.layers.0",
    "model.language_model.layers.2",
)


@pytest.fixture
def inputs() -> dict[str, Any]:
    return WITH_GRID["llava"].make_inputs(torch.randn(1, 3, SIDE, SIDE, dtype=torch.float64))


@pytest.fixture
def llava() -> nn.Module:
    return WITH_GRID["llava"].build().double()


def differentiate(observation: Observation, token: int) -> list[Tensor]:
    """Return the gradients of a token's score at all layers."""
    tensors = [calls[-1] for calls in observation.calls.values()]
    return list(torch.autograd.grad(observation.output.logits[0, -1, token], tensors, retain_graph=True))


def count_saved_bytes(model: nn.Module, layers: list[str], inputs: dict[str, Any], **options: Any) -> int:
    """Count what autograd keeps between the forward and the backward pass, parameters left out."""
    saved: dict[int, int] = {}
    kept: list[Tensor] = []  # alive, so that no address is used twice
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run_with_hooks(model, layers, {**inputs, **options})
    return sum(saved.values())


def build_deep(blocks: int) -> nn.Module:
    """Build a LLaVA whose language model has some number of blocks."""
    small = WITH_GRID["llava"]
    name, options = small.parts["text_config"]
    parts = {**small.parts, "text_config": (name, {**options, "num_hidden_layers": blocks})}
    return replace(small, parts=parts).build().double()


@pytest.mark.parametrize("layers", [[PROJECTOR], [FIRST], [PROJECTOR, f"{FIRST}.self_attn", LAST]])
def test_gradients_are_those_without_recomputation(llava: nn.Module, inputs: dict[str, Any], layers: list[str]) -> None:
    kept = run_with_hooks(llava, layers, inputs)
    recomputed = run_with_hooks(llava, layers, {**inputs, "use_cache": False})
    for token in (5, 17, 5):  # several backward passes over one graph
        for own, other in zip(differentiate(recomputed, token), differentiate(kept, token), strict=True):
            assert other.any()
            torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-15)


def test_a_further_block_keeps_its_input_alone(inputs: dict[str, Any]) -> None:
    def count(blocks: int, **options: Any) -> int:
        return count_saved_bytes(build_deep(blocks), [PROJECTOR], inputs, **options)

    of_input = inputs["input_ids"].shape[1] * 32 * 8
    assert count(5, use_cache=False) - count(3, use_cache=False) == 2 * of_input
    assert count(5) - count(3) > 2 * 8 * of_input


def test_a_block_with_a_layer_inside_keeps_its_activations(llava: nn.Module, inputs: dict[str, Any]) -> None:
    def count(layer: str) -> int:
        return count_saved_bytes(llava, [layer], inputs, use_cache=False)

    of_input = inputs["input_ids"].shape[1] * 32 * 8
    assert count(f"{FIRST}.self_attn") > count(FIRST) + 2 * of_input


def test_nothing_is_left_behind(llava: nn.Module, inputs: dict[str, Any]) -> None:
    llava(**inputs)  # at its first forward pass Hugging Face registers hooks of its own
    with unchanged(llava):
        observation = run_with_hooks(llava, [PROJECTOR], {**inputs, "use_cache": False})
        differentiate(observation, 5)


class Failing(nn.Module):
    """Fail, as e.g. for lack of memory."""

    def forward(self, *_: Any, **__: Any) -> Tensor:
        raise RuntimeError("no memory")


@pytest.mark.parametrize("failing", [f"{FIRST}.mlp", LAST])
def test_nothing_is_left_behind_after_a_failure(llava: nn.Module, inputs: dict[str, Any], failing: str) -> None:
    llava(**inputs)
    parent, _, name = failing.rpartition(".")
    setattr(llava.get_submodule(parent), name, Failing())
    with unchanged(llava), pytest.raises(ForwardError, match="no memory"):
        run_with_hooks(llava, [PROJECTOR], {**inputs, "use_cache": False})
    # Autograd saves tensors themselves again, and computes nothing again.
    x = torch.ones(2, requires_grad=True)
    y = (x * 3).exp()
    assert y.grad_fn is not None
    assert y.grad_fn._saved_result.data_ptr() == y.data_ptr()  # type: ignore[attr-defined]
