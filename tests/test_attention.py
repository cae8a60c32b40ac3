"""Attention as it is seen, and the methods that are made of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from nets import Apply
from oracles import ORACLES
from oracles.attention import Transformer
from test_no_trace import unchanged
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import camtool
from camtool.attention import Attention, Captured, capture
from camtool.errors import CamtoolError, MethodError
from camtool.evidence import Evidence, Scene
from camtool.methods import METHODS
from camtool.structures import main_tensor
from camtool.targets import ClassScore, Contrast, Custom, Probability, Target

OF_ATTENTION = [name for name, each in METHODS.items() if each.needs.startswith("attention")]
FROM_GRADIENTS = [name for name in OF_ATTENTION if "gradients" in METHODS[name].needs]

GRID, CHANNELS, HEADS, CLASSES = (3, 4), 8, 2, 7
IMAGES = (3, 6, 8)


# ------------------------------------------------------------------------------------------------ a tiny transformer


class SelfAttention(nn.Module):
    """The same attention, fused or written out in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.qkv, self.proj = nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(WAYS[self.how](q, k, v).transpose(1, 2).flatten(2))


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v)


def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As in timm."""
    attention = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    attention = functional.dropout(attention.softmax(dim=-1), 0.5, training=False)
    return attention @ v


def in_one_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads and images in one axis, with a mask that is added with the product."""
    flat = [each.flatten(0, 1) for each in (q, k, v)]
    logits = torch.baddbmm(q.new_zeros(1, 1, k.shape[2]), flat[0] * q.shape[-1] ** -0.5, flat[1].mT)
    return torch.bmm(torch.softmax(logits, -1), flat[2]).unflatten(0, q.shape[:2])


def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads last before the softmax, as where they talk."""
    logits = torch.matmul(q, k.mT).permute(0, 2, 3, 1) / math.sqrt(q.shape[-1])
    weights = nn.Softmax(dim=3)(logits.permute(0, 3, 1, 2))
    return torch.matmul(weights.to(v.dtype), v)


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What comes out is written to."""
    out = scaled_dot_product_attention(q, k, v)
    out.mul_(2)
    return out / 2


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "fused": fused,
    "written": written,
    "in one batch": in_one_batch,
    "turned": turned,
    "in place": in_place,
}


class Block(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(CHANNELS), SelfAttention(how), nn.LayerNorm(CHANNELS)
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 12), nn.GELU(), nn.Linear(12, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Pool(nn.Module):
    """Pooling by a query of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.latent, self.kv = nn.Parameter(torch.randn(1, 1, CHANNELS)), nn.Linear(CHANNELS, 2 * CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q = self.latent.expand(len(x), -1, -1).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)[:, 0]


POOLINGS: dict[str, Callable[[], nn.Module]] = {
    "class token": lambda: Apply(lambda x: x[:, 0]),
    "mean": lambda: Apply(lambda x: x[:, 1:].mean(1)),
    "two tokens": lambda: Apply(lambda x: (x[:, 0] + x[:, 1]) / 2),
    "attention": Pool,
}


READ = {"class token": [0], "mean": list(range(1, 13)), "two tokens": [0, 1], "attention": list(range(12))}
"""Pooling → the tokens of the last block that it looks at."""


class TinyViT(nn.Module):
    """A few blocks over 3 x 4 patches and, before them, a class token and, where two are read, another."""

    def __init__(self, how: str = "fused", pooling: str = "class token", depth: int = 3) -> None:
        super().__init__()
        self.pooling = pooling
        self.patches = nn.Conv2d(3, CHANNELS, 2, stride=2)
        self.prefix = {"attention": 0, "two tokens": 2}.get(pooling, 1)
        self.first = nn.Parameter(torch.randn(1, self.prefix, CHANNELS))
        self.position = nn.Parameter(torch.randn(1, self.prefix + 12, CHANNELS))
        self.blocks = nn.Sequential(*(Block(how) for _ in range(depth)))
        self.norm, self.pool, self.head = nn.LayerNorm(CHANNELS), POOLINGS[pooling](), nn.Linear(CHANNELS, CLASSES)
        for block in self.blocks:  # so that the attention is not all but uniform
            block.attention.qkv.weight.data.mul_(3)

    def embed(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.position

    def answer(self, tokens: Tensor) -> Tensor:
        return self.head(self.pool(self.norm(tokens)))

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(self.blocks(self.embed(x)))


def tiny(how: str = "fused", pooling: str = "class token", seed: int = 0, depth: int = 3) -> TinyViT:
    torch.manual_seed(seed)
    return TinyViT(how, pooling, depth).double().eval()


def pictures(count: int = 2) -> Tensor:
    return torch.randn(count, *IMAGES, dtype=torch.float64)


def from_timm(name: str, **settings: Any) -> nn.Module:
    model: nn.Module = pytest.importorskip("timm").create_model(name, **settings)
    return model


def hugging_face() -> Any:
    return pytest.importorskip("transformers")


def ask(net: nn.Module, x: Tensor, wanted: list[Target], images: list[int] | None = None) -> Evidence:
    (evidence,) = Scene(net, x, []).evidence(wanted, images)
    return evidence


def close_to_peak(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert theirs.abs().amax() > 0, "an empty map proves nothing"
    assert_close(ours, theirs.to(ours), rtol=0, atol=tolerance * float(theirs.abs().amax()))


# --------------------------------------------------------------------------------------- by hand, without the package


def by_hand(block: nn.Module, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """What a block returns for tokens that entered its norm, and the parts of its attention."""
    q, k, v = block.attention.qkv(tokens).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    logits = q @ k.mT / math.sqrt(CHANNELS / HEADS)
    weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
    out = weights @ v
    return block.attention.proj(out.transpose(1, 2).flatten(2)), {
        "A": weights, "Z": logits, "q": q, "k": k, "v": v, "o": out,
    }  # fmt: skip


def pooled_by_hand(pool: Pool, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    k, v = pool.kv(tokens).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
    q = pool.latent.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    logits = q @ k.mT / math.sqrt(CHANNELS / HEADS)
    weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
    out = weights @ v
    return out.transpose(1, 2).flatten(2)[:, 0], {"A": weights, "Z": logits, "q": q, "k": k, "v": v, "o": out}


def after(block: nn.Module, tokens: Tensor, mixed: Tensor) -> Tensor:
    """What a block returns: the tokens with what its attention adds, and what its MLP adds to them."""
    tokens = tokens + mixed
    return tokens + block.mlp(block.norm2(tokens))


def added_by_hand(block: nn.Module, weights: Tensor, values: Tensor) -> Tensor:
    """What an attention adds to the tokens."""
    return block.attention.proj((weights @ values).transpose(1, 2).flatten(2))


def held_by_hand(net: TinyViT, streams: list[Tensor], layers: list[dict[str, Tensor]], n: int, index: int) -> Tensor:
    """The gradient towards the n-th attention where what all later ones add is a constant."""
    weights = layers[n]["A"].detach().requires_grad_()
    tokens = streams[n]
    for m, block in enumerate(net.blocks[n:], n):
        own = layers[m]["A"].detach() if m > n else weights
        tokens = after(block, tokens, added_by_hand(block, own, layers[m]["v"].detach()))
    return torch.autograd.grad(net.answer(tokens)[0, index], weights)[0]


def case_of(net: TinyViT, x: Tensor, index: int) -> Transformer:
    """What an oracle is told about one picture ``(1, C, H, W)``; nothing here is the package's."""

    def masked(entry: list[list[float]]) -> float:
        mixed, _ = by_hand(last, torch.tensor([entry], dtype=torch.float64))
        return float(net.answer(after(last, into_last, mixed))[0, index].detach())

    tokens, layers, ends, streams, last = net.embed(x), [], [], [], net.blocks[-1]
    for block in net.blocks:
        streams.append(into_last := tokens.detach())
        entry = block.norm1(tokens)
        mixed, seen = by_hand(block, entry)
        tokens = after(block, tokens, mixed)
        layers.append(seen)
        ends.append(net.answer(tokens)[0, index])
    early = [
        torch.autograd.grad(end, seen["A"], retain_graph=True)[0][0].tolist()
        for end, seen in zip(ends, layers, strict=True)
    ]
    read, score = [READ[net.pooling]] * len(net.blocks), ends[-1]
    if isinstance(net.pool, Pool):
        vector, seen = pooled_by_hand(net.pool, net.norm(tokens))
        layers, read, score = [*layers, seen], [*read, [0]], net.head(vector)[0, index]
    g = torch.autograd.grad(score, [seen["A"] for seen in layers], retain_graph=True)
    held = [held_by_hand(net, streams, layers, n, index)[0].tolist() for n in range(len(net.blocks))]
    if isinstance(net.pool, Pool):  # a pooling is followed by no other attention
        held.append(g[-1][0].tolist())
    (w,) = torch.autograd.grad(score, [layers[-1]["o"]])
    return Transformer(
        A=[seen["A"][0].detach().tolist() for seen in layers],
        Z=[seen["Z"][0].detach().tolist() for seen in layers],
        g=[each[0].tolist() for each in g],
        held=held,
        early=early,
        q=layers[-1]["q"][0].detach().tolist(),
        k=layers[-1]["k"][0].detach().tolist(),
        v=layers[-1]["v"][0].detach().tolist(),
        w=w[0].tolist(),
        read=read,
        prefix=net.prefix,
        grid=GRID,
        entry=entry[0].detach().tolist(),
        masked=masked,
    )


# ------------------------------------------------------------------------------------------------------ what is seen


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("how", WAYS)
def test_what_is_seen_is_what_was_computed(how: str, pooling: str) -> None:
    net, x = tiny(how, pooling), pictures()
    captured = capture(net, x)
    assert_close(captured.output, net(x), rtol=1e-12, atol=1e-12)
    score = captured.output[:, 3].sum()
    gradients = torch.autograd.grad(score, [call.matrix for call in captured.calls], retain_graph=True)
    (at_output,) = torch.autograd.grad(score, captured.calls[-1].output)
    for image in range(2):
        case = case_of(net, x[image : image + 1], 3)
        assert len(captured.calls) == len(case.A) == (4 if pooling == "attention" else 3)
        for layer, call in enumerate(captured.calls):
            same(call.matrix[image], case.A[layer])
            same(call.logits()[image], case.Z[layer])
            same(gradients[layer][image], case.g[layer])
        last = captured.calls[-1]
        is_scaled = how in ("written", "in one batch") and pooling != "attention"
        same(last.queries[image] * (math.sqrt(CHANNELS / HEADS) if is_scaled else 1), case.q)
        same(last.keys[image], case.k)
        same(last.values[image], case.v)
        same(last.output[image], (last.matrix @ last.values)[image].tolist())
        same(at_output[image], case.w)


def same(ours: Tensor, numbers: list[Any]) -> None:
    assert_close(ours.detach(), torch.tensor(numbers, dtype=torch.float64), rtol=1e-10, atol=1e-12)


def test_calls_and_blocks_have_names() -> None:
    captured = capture(tiny(pooling="attention"), pictures())
    assert [call.name for call in captured.calls] == [*(f"blocks.{i}.attention" for i in range(3)), "pool"]
    assert [call.source for call in captured.calls] == [*(f"blocks.{i}.norm1" for i in range(3)), "norm"]
    assert [block.name for block in captured.blocks] == ["blocks.0", "blocks.1", "blocks.2", "pool"]


def test_a_block_that_runs_again_and_again_is_a_layer_each_time() -> None:
    net, x = tiny(), pictures()
    net.blocks = nn.Sequential(*[net.blocks[0]] * 3)
    captured = capture(net, x)
    assert [(block.name, block.nth) for block in captured.blocks] == [("blocks.0", nth) for nth in range(3)]
    with torch.no_grad():
        assert_close(captured.blocks[1].output, net.blocks[0](net.blocks[0](net.embed(x))))


def test_the_graph_begins_at_the_first_attention() -> None:
    captured = capture(tiny(), pictures())
    assert [call.matrix.is_leaf for call in captured.calls] == [True, False, False]
    assert captured.output.requires_grad


def test_what_does_not_depend_on_the_picture_is_not_kept() -> None:
    class TwoTowers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision, self.text = TinyViT(), TinyViT().blocks

        def forward(self, x: Tensor, words: Tensor) -> Tensor:
            return self.vision(x) @ self.text(words).mean(1)[:, :CLASSES].T

    net, x = TwoTowers().double(), pictures()
    names = [call.name for call in capture(net, [x, torch.randn(2, 13, CHANNELS, dtype=torch.float64)]).calls]
    assert names == [f"vision.blocks.{i}.attention" for i in range(3)]


def test_a_softmax_that_is_no_attention_is_passed_over() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.gate = TinyViT(), nn.Linear(CLASSES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            logits = self.net(x)
            return torch.softmax(logits @ self.gate.weight, -1) * logits.softmax(-1)

    assert len(capture(Gated().double(), pictures()).calls) == 3


class Between(nn.Module):
    """Runs a block in a grad mode of its own."""

    def __init__(self, block: nn.Module, mode: Any) -> None:
        super().__init__()
        self.block, self.mode = block, mode

    def forward(self, x: Tensor) -> Tensor:
        with self.mode():
            return self.block(x)


def test_a_model_that_switches_gradients_off_for_a_part_has_them_in_one_piece() -> None:
    net, x = tiny(), pictures()
    expected = slopes_of(capture(net, x))
    net.blocks[0] = Between(net.blocks[0], torch.no_grad)
    assert_close(slopes_of(capture(net, x)), expected)


def slopes_of(captured: Captured) -> tuple[Tensor, ...]:
    return torch.autograd.grad(captured.output[:, 1].sum(), [call.matrix for call in captured.calls])


def test_a_block_is_kept_as_it_was_whatever_is_written_to_it_later() -> None:
    net, x = tiny(), pictures()
    expected = [block.output.detach() for block in capture(net, x).blocks]
    net.blocks.insert(1, Apply(lambda tokens: tokens.mul_(2)))
    assert_close(capture(net, x).blocks[0].output.detach(), expected[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_matter(mode: Any) -> None:
    net, x = tiny(), pictures()
    plain = camtool.explain(net, x, 1, method="chefer")[0].raw
    with mode():
        again = camtool.explain(net, x.clone(), 1, method="chefer")[0].raw
    assert (plain == again).all()


def test_a_model_made_in_inference_mode_is_refused() -> None:
    with torch.inference_mode():
        net = TinyViT().double()
    with pytest.raises(CamtoolError, match=r"parameters were made in torch\.inference_mode"):
        capture(net, pictures())


def test_autocast_and_half_precision_cost_no_more_than_their_precision() -> None:
    net, x = tiny().float(), pictures().float()
    expected = capture(net, x).calls[-1].matrix
    with torch.autocast("cpu", torch.bfloat16):
        captured, plain = capture(net, x), net(x)
    for seen, output in ((captured, plain), (capture(net.bfloat16(), x.bfloat16()), net(x.bfloat16()))):
        assert seen.calls[-1].matrix.dtype == torch.float32
        assert seen.output.dtype == output.dtype == torch.bfloat16
        assert_close(seen.output, output, rtol=0.05, atol=0.05)
        assert_close(seen.calls[-1].matrix, expected, rtol=0, atol=0.05)


def test_another_threads_attention_is_its_own() -> None:
    other = tiny(seed=1)

    class Elsewhere(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: other(pictures()))
            thread.start()
            thread.join()
            return x

    net = tiny()
    expected = len(capture(net, pictures()).calls)
    net.blocks.insert(1, Elsewhere())
    assert len(capture(net, pictures()).calls) == expected


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyboardInterrupt


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_and_the_modes_are_left_as_they_were(fails: bool) -> None:
    net, x = tiny().train(), pictures()
    net.blocks[1].eval()
    net.head.weight.grad = torch.ones_like(net.head.weight)
    net.patches.weight.requires_grad_(False)
    if fails:
        net.blocks.insert(2, Fails())
    with unchanged(net):
        if fails:
            with pytest.raises(KeyboardInterrupt):
                capture(net, x)
        else:
            capture(net, x)
    assert torch.overrides._len_torch_function_stack() == 0


# ------------------------------------------------------------------------------------------- the fused function itself


def a_call(**options: Any) -> tuple[Tensor, Attention]:
    """The fused function's output, by the mathematical kernel, and what is seen of it."""
    heads, keys = options.pop("heads", 4), options.pop("keys", 5)
    q, k, v = (torch.randn(2, *shape, 6, dtype=torch.float64) for shape in ((4, 5), (heads, keys), (heads, keys)))
    net = Apply(lambda q, k, v: scaled_dot_product_attention(q, k, v, **options))
    net.forward = net.function  # three arguments
    with sdpa_kernel(SDPBackend.MATH):
        plain = scaled_dot_product_attention(q, k, v, **options)
    captured = capture(net, [q, k, v])
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
def test_the_fused_functions_options(options: str) -> None:
    _, call = a_call(**OPTIONS[options])
    assert_close(call.matrix.sum(-1), torch.ones_like(call.matrix[..., 0]))
    assert_close(call.output, call.matrix @ call.values)
    assert_close(call.logits().softmax(-1), call.matrix.detach())
    if "attn_mask" in OPTIONS[options] and OPTIONS[options]["attn_mask"].dtype == torch.bool:
        assert (call.matrix.detach() > 0).equal(MASK.expand_as(call.matrix))
    if options == "causal":
        assert not call.matrix.detach().triu(1).any()


def test_a_query_that_may_look_at_no_key_gets_zeros_and_has_a_gradient() -> None:
    mask = MASK.clone()
    mask[1] = False
    plain, call = a_call(attn_mask=mask)
    assert not plain[:, :, 1].any()
    assert not call.matrix[:, :, 1].any()
    q = torch.randn(1, 1, 5, 6, requires_grad=True)
    net = Apply(lambda q: scaled_dot_product_attention(q, q, q, attn_mask=mask))
    captured = capture(nn.Sequential(Apply(fully), net), q)
    (gradient,) = torch.autograd.grad(captured.output.sum(), captured.calls[0].matrix)
    assert gradient.isfinite().all()


def fully(x: Tensor) -> Tensor:
    return scaled_dot_product_attention(x, x, x)


# ------------------------------------------------------------------------------------------------- torch's own modules


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"dropout": 0.5}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str
)
def test_multihead_attention(options: dict[str, Any], batch_first: bool, asked: bool) -> None:
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
    (call,) = (captured := capture(net, x)).calls
    module.eval()
    given = x if batch_first else x.transpose(0, 1)
    with torch.no_grad():
        _, expected = module(given, given, given, average_attn_weights=False)
        assert_close(captured.output, net(x), rtol=1e-10, atol=1e-12)
    assert_close(call.matrix.detach(), expected)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_the_native_encoder_layer(norm_first: bool, masked: bool) -> None:
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
    captured = capture(net, {0: x, "mask": mask} if masked else x)
    assert_close(captured.output.detach(), plain)
    for call, each in zip(captured.calls, expected, strict=True):
        assert_close(call.matrix.detach(), each)


# --------------------------------------------------------------------------------------------------------- real models

SMALL = {"img_size": 48, "depth": 2, "embed_dim": 32, "num_heads": 4, "num_classes": 7}
"""For timm; one block less would hide mistakes in the order."""

SMALL_HF = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 48,
    "patch_size": 16,
    "num_labels": 7,
}

TIMM = {
    "vit_tiny_patch16_224": {},
    "deit_tiny_distilled_patch16_224": {},
    "vit_small_patch14_reg4_dinov2": {"img_size": 56},
    "eva02_tiny_patch14_224": {"img_size": 56},
    "beit_base_patch16_224": {},
    "vit_base_patch16_siglip_224": {},
    "vit_relpos_small_patch16_224": {},
    "cait_xxs24_224": {},
}


def shaken(net: nn.Module) -> nn.Module:
    """With weights of which none is as it was set at first, which is zero for many a bias and scale."""
    for parameter in net.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return net.eval()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str, fused: bool) -> None:
    settings = SMALL | TIMM[name]
    net = shaken(from_timm(name, **settings))
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
    captured = capture(net, x)
    assert_close(captured.output.detach(), plain, rtol=1e-4, atol=1e-5)
    assert len(captured.calls) >= len(seen) >= 2
    if name.startswith("cait"):  # heads talk between the softmax and the dropout
        assert_close(captured.calls[0].matrix.sum(-1), torch.ones_like(captured.calls[0].matrix[..., 0]))
        return
    for call, matrix in zip(captured.calls, seen, strict=False):
        assert_close(call.matrix.detach(), matrix)


def test_torchvision() -> None:
    net = shaken(torchvision.models.VisionTransformer(48, 16, 2, 4, 32, 64, num_classes=7))
    x, expected = torch.randn(2, 3, 48, 48), []

    def ask_again(module: nn.Module, args: Any, output: Any) -> None:
        expected.append(module.forward(*args, average_attn_weights=False)[1])

    modules = [module for module in net.modules() if isinstance(module, nn.MultiheadAttention)]
    handles = [module.register_forward_hook(ask_again) for module in modules]
    with torch.no_grad():
        plain = net(x)
    for handle in handles:
        handle.remove()
    captured = capture(net, x)
    assert_close(captured.output.detach(), plain)
    for call, matrix in zip(captured.calls, expected, strict=True):
        assert_close(call.matrix.detach(), matrix)
    assert [block.name for block in captured.blocks] == [f"encoder.layers.encoder_layer_{i}" for i in range(2)]


HUGGING_FACE: dict[str, Callable[[], nn.Module]] = {
    "ViT": lambda: hugging_face().ViTForImageClassification(hugging_face().ViTConfig(**SMALL_HF)),
    "DeiT": lambda: hugging_face().DeiTForImageClassificationWithTeacher(hugging_face().DeiTConfig(**SMALL_HF)),
    "DINOv2": lambda: hugging_face().Dinov2ForImageClassification(hugging_face().Dinov2Config(**SMALL_HF)),
    "DINOv2 with registers": lambda: hugging_face().Dinov2WithRegistersForImageClassification(
        hugging_face().Dinov2WithRegistersConfig(**SMALL_HF)
    ),
    "CLIP": lambda: hugging_face().CLIPVisionModelWithProjection(
        hugging_face().CLIPVisionConfig(**SMALL_HF, projection_dim=7)
    ),
    "SigLIP": lambda: hugging_face().SiglipVisionModel(hugging_face().SiglipVisionConfig(**SMALL_HF)),
}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face(name: str, implementation: str) -> None:
    net, x = shaken(HUGGING_FACE[name]()), torch.randn(2, 3, 48, 48)
    net.set_attn_implementation("eager")
    with torch.no_grad():
        plain = net(x, output_attentions=True)
    net.set_attn_implementation(implementation)
    captured = capture(net, x)
    assert_close(main_tensor(captured.output).detach(), main_tensor(plain), rtol=1e-4, atol=1e-5)
    for call, matrix in zip(captured.calls, plain.attentions, strict=False):
        assert_close(call.matrix.detach(), matrix)
    assert len(captured.calls) == len(plain.attentions) + (name == "SigLIP")  # which pools by attention


# ---------------------------------------------------------------------------------------------------------- the methods


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", OF_ATTENTION)
def test_a_method_is_its_oracle(name: str, pooling: str, seed: int) -> None:
    net, classes = tiny(pooling=pooling, seed=seed), [4, 1, 0]
    x = pictures(3)
    expected = [ORACLES[name](case_of(net, x[n : n + 1], classes[n])) for n in range(3)]
    ours = METHODS[name](ask(net, x, [ClassScore(index) for index in classes]))
    close_to_peak(ours, torch.tensor(expected, dtype=torch.float64), 1e-9)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(
            ("rollout", {"fusion": fusion, "discard": discard})
            for fusion in ("mean", "max", "min")
            for discard in (0, 0.6)
        ),
        ("vitreciprocam", {"gaussian": False}),
    ],
)
def test_options_are_those_of_the_oracle(name: str, options: dict[str, Any]) -> None:
    net, x = tiny(), pictures(1)
    ours = METHODS[name](ask(net, x, [ClassScore(2)]), **options)
    close_to_peak(ours, torch.tensor([ORACLES[name](case_of(net, x, 2), **options)], dtype=torch.float64), 1e-9)


@pytest.mark.parametrize("name", OF_ATTENTION)
def test_how_the_model_writes_its_attention_does_not_matter(name: str) -> None:
    x = pictures()
    expected = METHODS[name](ask(tiny(), x, [ClassScore(3)] * 2))
    for how in WAYS:
        close_to_peak(METHODS[name](ask(tiny(how), x, [ClassScore(3)] * 2)), expected, 1e-9)


@pytest.mark.parametrize("target", [ClassScore(3), Contrast(2, (0, 5)), Probability(6), Custom(lambda y: y[2] ** 2)])
@pytest.mark.parametrize("name", OF_ATTENTION)
def test_rows_are_what_each_is_alone(name: str, target: Target) -> None:
    net, x, images = tiny(), pictures(3), [2, 0, 2, 2]
    wanted: list[Target] = [ClassScore(1), target, target, ClassScore(6)]
    together = METHODS[name](ask(net, x, wanted, images))
    alone = [METHODS[name](ask(net, x[n : n + 1], [each])) for each, n in zip(wanted, images, strict=True)]
    close_to_peak(together, torch.cat(alone), 1e-9)


@pytest.mark.parametrize("name", OF_ATTENTION)
def test_the_same_picture_has_the_same_map_and_wrappers_take_it(name: str) -> None:
    net, x = tiny(), pictures()
    first, again = (camtool.explain(net, x, 3, method=name)[0].raw for _ in range(2))
    assert (first == again).all()
    assert first.shape == GRID
    for wrapper in ("noise", "tta"):
        assert camtool.explain(net, x, 3, method=f"{wrapper}:{name}")[0].raw.shape == GRID


def test_rollout_knows_no_class_and_the_others_do() -> None:
    net, x = tiny(), pictures(1)
    for name in OF_ATTENTION:
        one, other = METHODS[name](ask(net, x, [ClassScore(1), ClassScore(5)], [0, 0]))
        assert torch.allclose(one, other) == (name == "rollout"), name


@pytest.mark.parametrize("name", ["agcam", "legrad", "gradeclip"])
def test_gradients_scale_with_the_score(name: str) -> None:
    net, x = tiny(), pictures(1)
    one, ten = METHODS[name](ask(net, x, [ClassScore(1), Custom(lambda y: 10 * y[1])], [0, 0]))
    close_to_peak(ten, 10 * one, 1e-9)


# A class token and two patches, one head. The values are the tokens' own first numbers, the head reads the class token.
HAND_MATRIX = [[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]


class ByHand(nn.Module):
    """One layer, whose logits are given, so that every number can be worked out on paper."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([x.new_tensor([[[4.0]]]).expand(len(x), 1, 1), x.flatten(2).transpose(1, 2)], 1)[:, None]
        weights = (tokens @ torch.ones_like(tokens).mT * 0 + x.new_tensor(HAND_MATRIX).log()).softmax(-1)
        out = tokens + weights @ tokens  # (N, 1, 3, 1)
        return torch.cat([out[:, 0, 0], -out[:, 0, 0]], 1)


@pytest.mark.parametrize(
    ("name", "index", "expected"),
    [
        ("rollout", 0, [0.5 / 2, 0.3 / 2]),
        ("chefer", 0, [0.5 * 10, 0.0]),  # the gradients are the values, 10 and -20
        ("chefer", 1, [0.0, 0.3 * 20]),
        ("agcam", 0, [10 / 3, 0.0]),  # sigmoid(log a) = a / (1 + a)
        ("agcam", 1, [0.0, 20 * 0.3 / 1.3]),
        ("legrad", 1, [0.0, 20 / 3]),  # the mean over three queries
    ],
)
def test_three_tokens_by_hand(name: str, index: int, expected: list[float]) -> None:
    x = torch.tensor([[[[10.0, -20.0]]]])
    evidence = ask(ByHand(), x, [ClassScore(index)])
    assert_close(METHODS[name](evidence), torch.tensor([[expected]]))


# ----------------------------------------------------------------------------------------- what a model cannot serve


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize("name", OF_ATTENTION)
def test_a_model_without_attention_is_told_so(name: str) -> None:
    with pytest.raises(MethodError, match=r"runs no attention that can be seen.*method='gradcam'"):
        camtool.explain(convolutional(), torch.randn(1, 3, 16, 16), 0, method=name)


SEVERAL_SETS: dict[str, Callable[[], nn.Module]] = {
    "windows, torchvision": lambda: torchvision.models.SwinTransformer(
        [4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=3
    ),
    "windows, timm": lambda: from_timm(
        "swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 2)
    ),
    "stages": lambda: from_timm("pvt_v2_b0", depths=(1, 1, 1, 1)),
    "a class token that comes late": lambda: from_timm("cait_xxs24_224", img_size=64, depth=2, embed_dim=48),
}


@pytest.mark.parametrize("kind", SEVERAL_SETS)
@pytest.mark.parametrize("name", OF_ATTENTION)
def test_attention_over_several_sets_of_tokens_is_refused(name: str, kind: str) -> None:
    with pytest.raises(MethodError, match=r"not over one common set of tokens.*its matrices are \(.*for 1 picture\."):
        camtool.explain(SEVERAL_SETS[kind]().eval(), torch.randn(1, 3, 64, 64), 0, method=name)


def test_windows_that_stand_where_heads_do_are_refused_too() -> None:
    """Nine windows of 2 x 2 tokens, in one axis with the images, as two heads were: (2 · 9, 4, 4)."""

    class Windowed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            windows = x.unflatten(1, (9, 4)).flatten(0, 1)
            return x + in_one_batch(windows[:, None], windows[:, None], windows[:, None])[:, 0].reshape(x.shape)

    tokens = Apply(lambda x: x.flatten(2).transpose(1, 2))
    net = nn.Sequential(tokens, Windowed(), Windowed(), Apply(lambda x: x.mean(1)))
    x = torch.randn(2, 3, 6, 6)
    assert capture(net, x).calls[0].matrix.shape == (2, 9, 4, 4)
    with pytest.raises(MethodError, match="not over one common set of tokens"):
        METHODS["chefer"](ask(net, x, [ClassScore(0)] * 2))


@pytest.mark.parametrize("axes", [1, 3])
def test_signals_and_volumes_are_refused(axes: int) -> None:
    positions = Apply(lambda x: x.flatten(2).transpose(1, 2))
    net = nn.Sequential(positions, Apply(fully), Apply(lambda x: x.mean(1)))
    with pytest.raises(MethodError, match="not over one common set of tokens"):
        METHODS["rollout"](ask(net, torch.randn(1, 3, *[4] * axes), [ClassScore(0)]))


@pytest.mark.parametrize("name", OF_ATTENTION)
def test_where_no_gradient_comes_what_needs_none_still_works(name: str) -> None:
    net, x = tiny(), pictures(1)
    expected = METHODS[name](ask(net, x, [ClassScore(1)]))
    frozen = nn.Sequential(net, Apply(Tensor.detach))
    if name in FROM_GRADIENTS:
        with pytest.raises(MethodError, match=r"no gradient passes from the score to the attention.*'rollout'"):
            METHODS[name](ask(frozen, x, [ClassScore(1)]))
    else:
        assert_close(METHODS[name](ask(frozen, x, [ClassScore(1)])), expected)


def test_a_pooling_that_the_head_does_not_read_is_left_out() -> None:
    class Unused(TinyViT):
        def answer(self, tokens: Tensor) -> Tensor:
            self.pool(self.norm(tokens))
            return self.head(self.norm(tokens).mean(1))

    torch.manual_seed(0)
    net = Unused(pooling="attention").double()
    evidence = ask(net, x := pictures(), [ClassScore(1)] * 2)
    assert len(capture(net, x).calls) == 4
    assert len(evidence.attention.matrices) == 3
    assert METHODS["chefer"](evidence).any()


def test_blocks_that_return_no_tokens_are_refused_by_the_one_that_needs_them() -> None:
    class Folds(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x.transpose(0, 1)).transpose(0, 1)

    net = tiny()
    net.blocks[0] = nn.Sequential(net.blocks[0], Apply(lambda x: x.flatten(1)))
    net.blocks.insert(1, Apply(lambda x: x.unflatten(1, (13, CHANNELS))))
    evidence = ask(net, pictures(), [ClassScore(1)] * 2)
    with pytest.raises(MethodError, match=r"must return tokens \(N, tokens, C\) of one shape.*'chefer'"):
        METHODS["legrad"](evidence)
    assert METHODS["chefer"](evidence).any()


def test_an_attention_that_no_layer_leads_to_is_refused_by_the_one_that_masks() -> None:
    net = tiny()
    block = net.blocks[-1]
    block.norm1 = Apply(block.norm1.forward)
    block.forward = lambda x: x + block.attention(block.norm1(x) + 0)
    with pytest.raises(MethodError, match=r"no layer of the model returns just what its last attention is given"):
        METHODS["vitreciprocam"](ask(net, pictures(1), [ClassScore(1)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fusion": "mena"}, r"fusion must be one of 'mean', 'max', 'min', got 'mena'\. Did you mean 'mean'"),
        ({"discard": 1.0}, r"discard must be a finite number at least 0 and below 1, got 1\.0"),
        ({"discard": -0.1}, "discard must be"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        camtool.explain(tiny(), pictures(1), 1, method="rollout", **options)


# ------------------------------------------------------------------------------------------------ do they say something


@pytest.mark.parametrize("name", HUGGING_FACE)
@pytest.mark.parametrize("method", OF_ATTENTION)
def test_real_architectures_get_maps_on_their_patches(method: str, name: str) -> None:
    net, x = shaken(HUGGING_FACE[name]()), torch.randn(2, 3, 48, 48)
    results = camtool.explain(net, x, [1, 2], method=method)
    for result in results:
        assert result.raw.shape == (3, 3)
        assert torch.from_numpy(result.raw).isfinite().all()
    assert not (results[0].raw == results[1].raw).all()


@pytest.mark.parametrize("method", OF_ATTENTION)
def test_pictures_need_not_be_square(method: str) -> None:
    net = shaken(from_timm("vit_tiny_patch16_224", **SMALL | {"img_size": (48, 80)}))
    (result,) = camtool.explain(net, torch.randn(1, 3, 48, 80), 0, method=method)
    assert result.raw.shape == (3, 5)


def lit(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures of 3 x 4 noisy patches, in which each of three colours lights one up, or does not.

    Returns:
        The pictures, which colours are there ``(count, 3)``, and at which patch each of them is or would be.
    """
    generator = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(count, *IMAGES, generator=generator)
    places = torch.rand(count, 12, generator=generator).argsort(1)[:, :3]
    is_there = torch.rand(count, 3, generator=generator) < 0.5
    for picture, colour in is_there.nonzero().tolist():
        row, column = divmod(int(places[picture, colour]), GRID[1])
        x[picture, colour, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] += 2
    return x, is_there, places


@pytest.fixture(scope="module")
def trained() -> TinyViT:
    """A transformer of one block that has learned to tell which colours are there."""
    torch.manual_seed(0)
    net = TinyViT(depth=1)
    net.norm = nn.Identity()  # behind which a score that is high enough has hardly a gradient left
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for step in range(300):
        x, is_there, _ = lit(64, step)
        loss = functional.binary_cross_entropy_with_logits(net(x)[:, :3], is_there.float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.05
    return net.eval()


@pytest.mark.parametrize("method", OF_ATTENTION)
def test_the_peak_is_on_the_patch_that_decides(trained: TinyViT, method: str) -> None:
    """Of each colour that is there, among up to two others; rollout, which knows no class, finds any of them."""
    x, is_there, places = lit(100, 1000)
    rows = is_there.nonzero().tolist()
    wanted: list[Target] = [ClassScore(colour) for _, colour in rows]
    images = [image for image, _ in rows]
    peaks = METHODS[method](ask(trained, x, wanted, images)).flatten(1).argmax(1).tolist()
    found = [
        peak in (places[image][is_there[image]] if method == "rollout" else places[image, colour])
        for (image, colour), peak in zip(rows, peaks, strict=True)
    ]
    assert sum(found) / len(found) > 0.9
