"""Attention capture: the matrices, their graph, and an unchanged model."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import camtool
from camtool.errors import CamtoolError
from camtool.hooks.attention.capture import AttentionCall, CapturedAttention, capture_attention, visit_attention
from camtool.hooks.structures.nested_tensors import find_main_tensor
from tests.helpers.nets import Apply
from tests.helpers.vision_transformers import (
    ATTENTION_FUNCTIONS,
    CHANNELS,
    CLASSES,
    HEADS,
    HUGGING_FACE_MODELS,
    POOLINGS,
    SMALL_TIMM,
    TIMM_MODELS,
    TinyViT,
    attend_to_itself,
    build_oracle,
    build_timm,
    make_images,
    make_tiny_vit,
    randomize_parameters,
)
from tests.hooks.state.test_no_trace import unchanged

# -------------------------------------------------------------------------------------------------- captured calls


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("how", ATTENTION_FUNCTIONS)
def test_captured_tensors_equal_those_computed_by_hand(how: str, pooling: str) -> None:
    net, x = make_tiny_vit(how, pooling), make_images()
    captured = capture_attention(net, x)
    assert_close(captured.output, net(x), rtol=1e-12, atol=1e-12)
    score = captured.output[:, 3].sum()
    gradients = torch.autograd.grad(score, [call.matrix for call in captured.calls], retain_graph=True)
    (at_output,) = torch.autograd.grad(score, captured.calls[-1].output)
    for image in range(2):
        case = build_oracle(net, x[image : image + 1], 3)
        assert len(captured.calls) == len(case.A) == (4 if pooling == "attention" else 3)
        for layer, call in enumerate(captured.calls):
            assert_equal_to_numbers(call.matrix[image], case.A[layer])
            assert_equal_to_numbers(call.logits()[image], case.Z[layer])
            assert_equal_to_numbers(gradients[layer][image], case.g[layer])
        last = captured.calls[-1]
        is_scaled = how in ("written", "in one batch", "einsum, ellipsis") and pooling != "attention"
        assert_equal_to_numbers(last.queries[image] * (math.sqrt(CHANNELS / HEADS) if is_scaled else 1), case.q)
        assert_equal_to_numbers(last.keys[image], case.k)
        assert_equal_to_numbers(last.values[image], case.v)
        assert_equal_to_numbers(last.output[image], (last.matrix @ last.values)[image].tolist())
        assert_equal_to_numbers(at_output[image], case.w)


def assert_equal_to_numbers(ours: Tensor, numbers: list[Any]) -> None:
    assert_close(ours.detach(), torch.tensor(numbers, dtype=torch.float64), rtol=1e-10, atol=1e-12)


def test_calls_and_blocks_have_names() -> None:
    captured = capture_attention(make_tiny_vit(pooling="attention"), make_images())
    assert [call.name for call in captured.calls] == [*(f"blocks.{i}.attention" for i in range(3)), "pool"]
    assert [call.source for call in captured.calls] == [*(f"blocks.{i}.norm1" for i in range(3)), "norm"]
    assert [block.name for block in captured.blocks] == ["blocks.0", "blocks.1", "blocks.2", "pool"]


def test_each_call_of_a_shared_block_is_captured() -> None:
    net, x = make_tiny_vit(), make_images()
    net.blocks = nn.Sequential(*[net.blocks[0]] * 3)
    captured = capture_attention(net, x)
    assert [(block.name, block.call_index) for block in captured.blocks] == [("blocks.0", nth) for nth in range(3)]
    with torch.no_grad():
        assert_close(captured.blocks[1].output, net.blocks[0](net.blocks[0](net.embed(x))))


def test_the_graph_begins_at_the_first_attention() -> None:
    captured = capture_attention(make_tiny_vit(), make_images())
    assert [call.matrix.is_leaf for call in captured.calls] == [True, False, False]
    assert captured.output.requires_grad


@pytest.mark.parametrize("how", ["fused", "written", "einsum, heads third"])
def test_visited_calls_are_those_that_are_captured_without_a_graph(how: str) -> None:
    net, x, visited = make_tiny_vit(how, "attention").train(), make_images(), []
    with unchanged(net):
        output = visit_attention(net, x, visited.append)
    captured = capture_attention(net, x)
    assert_close(output, captured.output.detach())
    for ours, expected in zip(visited, captured.calls, strict=True):
        assert (ours.name, ours.matrix.requires_grad) == (expected.name, False)
        assert_close(ours.matrix, expected.matrix.detach())
        assert_close(ours.keys, expected.keys)


def test_attention_that_does_not_depend_on_the_image_is_ignored() -> None:
    class TwoTowers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision, self.text = TinyViT(), TinyViT().blocks

        def forward(self, x: Tensor, words: Tensor) -> Tensor:
            return self.vision(x) @ self.text(words).mean(1)[:, :CLASSES].T

    net, x = TwoTowers().double(), make_images()
    names = [call.name for call in capture_attention(net, [x, torch.randn(2, 13, CHANNELS, dtype=torch.float64)]).calls]
    assert names == [f"vision.blocks.{i}.attention" for i in range(3)]


def test_a_softmax_outside_attention_is_ignored() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.gate = TinyViT(), nn.Linear(CLASSES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            logits = self.net(x)
            return torch.softmax(logits @ self.gate.weight, -1) * logits.softmax(-1)

    assert len(capture_attention(Gated().double(), make_images()).calls) == 3


class RunsInGradMode(nn.Module):
    """Runs a block in another grad mode."""

    def __init__(self, block: nn.Module, mode: Any) -> None:
        super().__init__()
        self.block, self.mode = block, mode

    def forward(self, x: Tensor) -> Tensor:
        with self.mode():
            return self.block(x)


def test_a_model_that_disables_gradients_in_a_part_keeps_one_graph() -> None:
    net, x = make_tiny_vit(), make_images()
    expected = compute_gradients_of_matrices(capture_attention(net, x))
    net.blocks[0] = RunsInGradMode(net.blocks[0], torch.no_grad)
    assert_close(compute_gradients_of_matrices(capture_attention(net, x)), expected)


def compute_gradients_of_matrices(captured: CapturedAttention) -> tuple[Tensor, ...]:
    return torch.autograd.grad(captured.output[:, 1].sum(), [call.matrix for call in captured.calls])


def test_a_block_output_is_captured_before_in_place_changes() -> None:
    net, x = make_tiny_vit(), make_images()
    expected = [block.output.detach() for block in capture_attention(net, x).blocks]
    net.blocks.insert(1, Apply(lambda tokens: tokens.mul_(2)))
    assert_close(capture_attention(net, x).blocks[0].output.detach(), expected[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_capture_works_in_every_grad_mode_of_the_caller(mode: Any) -> None:
    net, x = make_tiny_vit(), make_images()
    plain = camtool.explain(net, x, 1, method="chefer")[0].raw
    with mode():
        again = camtool.explain(net, x.clone(), 1, method="chefer")[0].raw
    assert (plain == again).all()


def test_a_model_built_in_inference_mode_raises_an_error() -> None:
    with torch.inference_mode():
        net = TinyViT().double()
    with pytest.raises(CamtoolError, match=r"parameters were made in torch\.inference_mode"):
        capture_attention(net, make_images())


def test_capture_in_low_precision_is_as_exact_as_the_precision() -> None:
    net, x = make_tiny_vit().float(), make_images().float()
    expected = capture_attention(net, x).calls[-1].matrix
    with torch.autocast("cpu", torch.bfloat16):
        captured, plain = capture_attention(net, x), net(x)
    for seen, output in ((captured, plain), (capture_attention(net.bfloat16(), x.bfloat16()), net(x.bfloat16()))):
        assert seen.calls[-1].matrix.dtype == torch.float32
        assert seen.output.dtype == output.dtype == torch.bfloat16
        assert_close(seen.output, output, rtol=0.05, atol=0.05)
        assert_close(seen.calls[-1].matrix, expected, rtol=0, atol=0.05)


def test_attention_of_another_thread_is_not_captured() -> None:
    other = make_tiny_vit(seed=1)

    class Elsewhere(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: other(make_images()))
            thread.start()
            thread.join()
            return x

    net = make_tiny_vit()
    expected = len(capture_attention(net, make_images()).calls)
    net.blocks.insert(1, Elsewhere())
    assert len(capture_attention(net, make_images()).calls) == expected


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyboardInterrupt


@pytest.mark.parametrize("fails", [False, True])
def test_capture_leaves_the_model_and_the_modes_unchanged(fails: bool) -> None:
    net, x = make_tiny_vit().train(), make_images()
    net.blocks[1].eval()
    net.head.weight.grad = torch.ones_like(net.head.weight)
    net.patches.weight.requires_grad_(False)
    if fails:
        net.blocks.insert(2, Fails())
    with unchanged(net):
        if fails:
            with pytest.raises(KeyboardInterrupt):
                capture_attention(net, x)
        else:
            capture_attention(net, x)
    assert torch.overrides._len_torch_function_stack() == 0


# ---------------------------------------------------------------------------------- scaled_dot_product_attention


def capture_one_call(**options: Any) -> tuple[Tensor, AttentionCall]:
    """Return the output of the fused function, by the math kernel, and its captured call."""
    heads, keys = options.pop("heads", 4), options.pop("keys", 5)
    q, k, v = (torch.randn(2, *shape, 6, dtype=torch.float64) for shape in ((4, 5), (heads, keys), (heads, keys)))
    net = Apply(lambda q, k, v: scaled_dot_product_attention(q, k, v, **options))
    net.forward = net.function  # three arguments
    with sdpa_kernel(SDPBackend.MATH):
        plain = scaled_dot_product_attention(q, k, v, **options)
    captured = capture_attention(net, [q, k, v])
    (call,) = captured.calls
    assert_close(captured.output, plain, rtol=1e-10, atol=1e-12)
    return plain, call


MASK = torch.tensor([[True, False, True, True, False]] * 4 + [[False, True, False, False, False]])

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "booleans": {"attn_mask": MASK},
    "numbers": {"attn_mask": torch.randn(2, 1, 5, 5, dtype=torch.float64)},
    "causal": {"is_causal": True},
    "causal, more keys": {"is_causal": True, "keys": 7},
    "heads share": {"enable_gqa": True, "heads": 2},
    "a mask, and heads share": {"enable_gqa": True, "heads": 1, "attn_mask": MASK},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options_of_the_fused_function_are_applied(options: str) -> None:
    _, call = capture_one_call(**OPTIONS[options])
    assert_close(call.matrix.sum(-1), torch.ones_like(call.matrix[..., 0]))
    assert_close(call.output, call.matrix @ call.values)
    assert_close(call.logits().softmax(-1), call.matrix.detach())
    if "attn_mask" in OPTIONS[options] and OPTIONS[options]["attn_mask"].dtype == torch.bool:
        assert (call.matrix.detach() > 0).equal(MASK.expand_as(call.matrix))
    if options == "causal":
        assert not call.matrix.detach().triu(1).any()


def test_a_query_with_all_keys_masked_gets_zeros_and_a_finite_gradient() -> None:
    mask = MASK.clone()
    mask[1] = False
    plain, call = capture_one_call(attn_mask=mask)
    assert not plain[:, :, 1].any()
    assert not call.matrix[:, :, 1].any()
    q = torch.randn(1, 1, 5, 6, requires_grad=True)
    net = Apply(lambda q: scaled_dot_product_attention(q, q, q, attn_mask=mask))
    captured = capture_attention(nn.Sequential(Apply(attend_to_itself), net), q)
    (gradient,) = torch.autograd.grad(captured.output.sum(), captured.calls[0].matrix)
    assert gradient.isfinite().all()


# ------------------------------------------------------------------------------------------------- torch's own modules


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"dropout": 0.5}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str
)
def test_multihead_attention_is_captured(options: dict[str, Any], batch_first: bool, asked: bool) -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options).double()

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            given = x if batch_first else x.transpose(0, 1)
            out = self.module(given, given, given, need_weights=asked)[0]
            return out if batch_first else out.transpose(0, 1)

    net, x = Uses(), torch.randn(3, 5, 8, dtype=torch.float64)
    (call,) = (captured := capture_attention(net, x)).calls
    module.eval()
    given = x if batch_first else x.transpose(0, 1)
    with torch.no_grad():
        _, expected = module(given, given, given, average_attn_weights=False)
        assert_close(captured.output, net(x), rtol=1e-10, atol=1e-12)
    assert_close(call.matrix.detach(), expected)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_the_native_encoder_layer_is_captured(norm_first: bool, masked: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if masked else None
    x, expected = torch.randn(3, 5, 8), []
    with torch.no_grad():
        plain = net(x, mask=mask)
        tokens = x
        for each in net.layers:
            given = each.norm1(tokens) if norm_first else tokens
            expected.append(each.self_attn(given, given, given, attn_mask=mask, average_attn_weights=False)[1])
            tokens = each(tokens, src_mask=mask)
    captured = capture_attention(net, {0: x, "mask": mask} if masked else x)
    assert_close(captured.output.detach(), plain)
    for call, each in zip(captured.calls, expected, strict=True):
        assert_close(call.matrix.detach(), each)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", TIMM_MODELS)
def test_attention_of_timm_models_is_captured(name: str, fused: bool) -> None:
    settings = SMALL_TIMM | TIMM_MODELS[name]
    net = randomize_parameters(build_timm(name, **settings))
    seen: list[Tensor] = []
    for module in net.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    handles = [  # behind the softmax there is a dropout, but for the pooling; or it is given what comes of talking
        each.register_forward_hook(lambda module, args, output: seen.append(output))
        for module_name, each in net.named_modules()
        if module_name.endswith("attn_drop")
    ]
    x = torch.randn(2, 3, settings["img_size"], settings["img_size"])
    with torch.no_grad():
        plain = net(x)
    for handle in handles:
        handle.remove()
    for module in net.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    captured = capture_attention(net, x)
    assert_close(captured.output.detach(), plain, rtol=1e-4, atol=1e-5)
    assert len(captured.calls) >= len(seen) >= 2
    if name.startswith("cait"):  # heads talk between the softmax and the dropout
        assert_close(captured.calls[0].matrix.sum(-1), torch.ones_like(captured.calls[0].matrix[..., 0]))
        return
    for call, matrix in zip(captured.calls, seen, strict=False):
        assert_close(call.matrix.detach(), matrix)


def test_attention_of_torchvision_models_is_captured() -> None:
    net = randomize_parameters(torchvision.models.VisionTransformer(48, 16, 2, 4, 32, 64, num_classes=7))
    x, expected = torch.randn(2, 3, 48, 48), []

    def add_weights(module: nn.Module, args: Any, output: Any) -> None:
        expected.append(module.forward(*args, average_attn_weights=False)[1])

    modules = [module for module in net.modules() if isinstance(module, nn.MultiheadAttention)]
    handles = [module.register_forward_hook(add_weights) for module in modules]
    with torch.no_grad():
        plain = net(x)
    for handle in handles:
        handle.remove()
    captured = capture_attention(net, x)
    assert_close(captured.output.detach(), plain)
    for call, matrix in zip(captured.calls, expected, strict=True):
        assert_close(call.matrix.detach(), matrix)
    assert [block.name for block in captured.blocks] == [f"encoder.layers.encoder_layer_{i}" for i in range(2)]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", HUGGING_FACE_MODELS)
def test_attention_of_hugging_face_models_is_captured(name: str, implementation: str) -> None:
    net, x = randomize_parameters(HUGGING_FACE_MODELS[name]()), torch.randn(2, 3, 48, 48)
    net.set_attn_implementation("eager")
    with torch.no_grad():
        plain = net(x, output_attentions=True)
    net.set_attn_implementation(implementation)
    captured = capture_attention(net, x)
    assert_close(find_main_tensor(captured.output).detach(), find_main_tensor(plain), rtol=1e-4, atol=1e-5)
    for call, matrix in zip(captured.calls, plain.attentions, strict=False):
        assert_close(call.matrix.detach(), matrix)
    assert len(captured.calls) == len(plain.attentions) + (name == "SigLIP")  # which pools by attention
