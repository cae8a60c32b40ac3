"""Observation, resume and trace: results of autograd, on a model that runs as without hooks."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from camtool import Recorder
from camtool.errors import CamtoolError, ForwardError, LayerError
from camtool.hooks.model_passes import ASSUMED_SIZES, run_model
from camtool.hooks.observation import resume, run_with_hooks
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.structures.nested_tensors import find_main_tensor
from camtool.hooks.tracing import add_module_hooks, trace

Pair = namedtuple("Pair", ["ids", "features"])


def named(**modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules)).double().eval()


def net(*, inplace: bool = True) -> nn.Sequential:
    return named(
        conv1=nn.Conv2d(3, 4, 3),
        relu1=nn.ReLU(inplace),
        conv2=nn.Conv2d(4, 5, 3),
        relu2=nn.ReLU(inplace),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(5, 3),
    )


class Net(nn.Module):
    """Two convolutions and a linear layer, put together by ``way(self, x)``."""

    def __init__(self, way, **modules: nn.Module) -> None:
        super().__init__()
        self.way = way
        self.conv, self.again, self.fc = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Linear(4, 2)
        for name, module in modules.items():
            self.add_module(name, module)
        self.double().eval()

    def forward(self, *args, **kwargs):
        return self.way(self, *args, **kwargs)

    def classify(self, maps: Tensor) -> Tensor:
        return self.fc(maps.tanh().mean((2, 3)))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 8, 8, dtype=torch.float64)


def gradients(observation, *layers: str) -> list[Tensor]:
    return torch.autograd.grad(observation.output[:, 1].sum(), [observation.calls[name][-1] for name in layers])


def reference(model: nn.Sequential, inputs: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """A layer's output and the gradient there, by cutting the chain in two."""
    stages = list(model._modules)
    cut = stages.index(layer) + 1
    kept = model[:cut](inputs).detach().requires_grad_()
    score = model[cut:](kept.clone())[:, 1].sum()
    return kept.detach(), torch.autograd.grad(score, kept)[0]


# --------------------------------------------------------------------------------------------------- observing


@pytest.mark.parametrize("layers", [["conv1"], ["conv2", "conv1"], ["fc", "relu1", "conv2", "pool"]])
def test_gradients_equal_those_of_plain_autograd_for_any_layers_in_any_order(layers, x) -> None:
    model = net()
    found = run_with_hooks(model, layers, x)
    for layer, gradient in zip(layers, gradients(found, *layers), strict=True):
        activation, expected = reference(model, x, layer)
        assert torch.equal(found.calls[layer][0], activation)
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)
    assert torch.equal(found.output, model(x))


def test_the_trunk_saves_nothing_for_a_backward_pass(x) -> None:
    sizes: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: sizes.append(tuple(tensor.shape)) or tensor, id):
        found = run_with_hooks(net(), ["conv2"], x)
    kept = found.calls["conv2"][0]
    assert kept.is_leaf
    assert kept.requires_grad
    assert sizes
    assert (2, 4, 6, 6) not in sizes
    assert tuple(x.shape) not in sizes


def test_an_in_place_relu_after_the_layer_does_not_change_the_activation(x) -> None:
    model = net()
    kept = run_with_hooks(model, ["conv1"], x).calls["conv1"][0]
    assert torch.equal(kept, model.conv1(x))
    assert (kept < 0).any()


def test_a_module_used_twice_keeps_both_calls_and_the_gradient_is_at_the_last(x) -> None:
    model = Net(lambda self, x: self.classify(self.again(self.again(self.conv(x)).tanh())))
    found = run_with_hooks(model, ["again"], x)
    first = model.again(model.conv(x))
    second = model.again(first.tanh()).detach().requires_grad_()
    (expected,) = torch.autograd.grad(model.classify(second)[:, 1].sum(), second)
    assert len(found.calls["again"]) == 2
    assert all(map(torch.equal, found.calls["again"], (first, second)))
    torch.testing.assert_close(gradients(found, "again")[0], expected, rtol=1e-12, atol=0)


class Pooling(nn.Module):
    """Hands on its maps and, besides, a summary of them."""

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        return maps, maps.tanh().mean((2, 3))


@pytest.mark.parametrize("layers", [["pooled"], ["conv", "pooled"]])
def test_maps_get_no_gradient_from_a_pooled_output_beside_them(layers, x) -> None:
    model = Net(lambda self, x: self.fc(self.pooled(self.conv(x))[1]), pooled=Pooling())
    found = run_with_hooks(model, layers, x)
    gradient = torch.autograd.grad(found.output.sum(), found.calls["pooled"], materialize_grads=True)[0]
    assert not gradient.any()


@pytest.mark.parametrize("layer", ["conv", "again"])
def test_outputs_that_hooks_of_the_model_collect_belong_to_the_tail(layer, x) -> None:
    collected: list[Tensor] = []

    def way(self, x: Tensor) -> Tensor:
        collected.clear()
        self.again(self.conv(x))
        return self.classify(sum(collected))

    model = Net(way)
    for block in (model.conv, model.again):
        block.register_forward_hook(lambda module, args, output: collected.append(output))
    found = run_with_hooks(model, [layer], x)
    kept = found.calls[layer][-1]
    maps = kept.detach().requires_grad_()
    both = maps + model.again(maps) if layer == "conv" else model.conv(x).detach() + maps
    (expected,) = torch.autograd.grad(model.classify(both).sum(), maps)
    assert torch.equal(torch.autograd.grad(found.output.sum(), kept)[0], expected)
    resumed = resume(model, layer, kept.detach()[:1] * 2, x[:1])
    assert torch.equal(resumed, model.classify(_doubled(model, layer, x[:1])))


def _doubled(model: Net, layer: str, x: Tensor) -> Tensor:
    """The sum of both convolutions' maps where those of one are twice what they were."""
    first = model.conv(x) * (2 if layer == "conv" else 1)
    return first + model.again(first) * (2 if layer == "again" else 1)


def test_frozen_parameters_and_a_missing_grad_mode_do_not_matter(x) -> None:
    model = net().requires_grad_(False)
    expected = reference(model, x, "conv2")[1]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            found = run_with_hooks(model, ["conv2"], x)
        torch.testing.assert_close(gradients(found, "conv2")[0], expected, rtol=1e-12, atol=0)


def test_an_input_made_in_inference_mode_is_accepted(x) -> None:
    model = net()
    with torch.inference_mode():
        made_there = x.clone()
    found = run_with_hooks(model, ["conv1"], made_there)
    torch.testing.assert_close(gradients(found, "conv1")[0], reference(model, x, "conv1")[1])


def test_a_model_built_in_inference_mode_raises_an_error(x) -> None:
    with torch.inference_mode():
        model = net()
    with pytest.raises(CamtoolError, match=r"made in torch\.inference_mode.*build or load the model outside"):
        run_with_hooks(model, ["conv1"], x)


def backbone_without_grad(self: Net, x: Tensor) -> Tensor:
    x = self.stem(x)
    with torch.no_grad():
        x = self.again(self.conv(x).tanh())
    return self.classify(self.neck(x))


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("layers", [["conv"], ["neck"], ["again", "conv"], ["conv", "neck"], ["neck", "stem", "conv"]])
def test_a_backbone_wrapped_in_no_grad_still_has_a_gradient(layers, trainable, x) -> None:
    model = Net(backbone_without_grad, stem=nn.Conv2d(3, 3, 1), neck=nn.Conv2d(4, 4, 1)).requires_grad_(trainable)
    conv = model.conv(model.stem(x)).detach().requires_grad_()
    again = model.again(conv.tanh())
    neck = model.neck(again)
    score = model.classify(neck)[:, 1].sum()
    expected = dict(zip(["conv", "again", "neck"], torch.autograd.grad(score, [conv, again, neck]), strict=True))
    inside = [name for name in layers if name != "stem"]  # the block parts it from the output: it has no gradient
    for name, gradient in zip(inside, gradients(run_with_hooks(model, layers, x), *inside), strict=True):
        torch.testing.assert_close(gradient, expected[name], rtol=1e-12, atol=0)


def test_without_grad_it_is_plain_inference(x) -> None:
    model = net()
    found = run_with_hooks(model, ["conv2"], x, grad=False)
    assert not found.output.requires_grad
    assert not found.calls["conv2"][0].requires_grad
    assert torch.equal(found.output, model(x))


@pytest.mark.parametrize("wrap", [lambda x: (x, 2.0), lambda x: [x, 2.0], lambda x: {"x": x, "scale": 2.0}, UserDict])
def test_inputs_come_as_a_sequence_or_a_mapping(wrap, x) -> None:
    model = Net(lambda self, x, scale=2.0: self.classify(self.conv(scale * x)))
    inputs = wrap({"x": x}) if wrap is UserDict else wrap(x)
    assert torch.equal(run_with_hooks(model, ["conv"], inputs).output, model(x))
    assert torch.equal(run_model(model, inputs), model(x))


class Wrapped(nn.Module):
    """Returns its input in a structure."""

    def __init__(self, into) -> None:
        super().__init__()
        self.into = into

    def forward(self, x: Tensor):
        return self.into(x)


STRUCTURES = {
    "tuple": (lambda x: (x, None), lambda out: out[0]),
    "list": (lambda x: [x], lambda out: out[0]),
    "dict": (lambda x: {"ids": torch.arange(3), "maps": x}, lambda out: out["maps"]),
    "ordered": (lambda x: OrderedDict(maps=x), lambda out: out["maps"]),
    "user dict": (lambda x: UserDict(maps=x), lambda out: out["maps"]),
    "named tuple": (lambda x: Pair(torch.arange(3), x), lambda out: out.features),
    "nested": (lambda x: (torch.arange(2), {"deep": (x,)}), lambda out: out[1]["deep"][0]),
}


@pytest.mark.parametrize("kind", STRUCTURES)
def test_a_layer_may_return_any_structure(kind, x) -> None:
    into, out_of = STRUCTURES[kind]
    model = Net(lambda self, x: self.classify(out_of(self.wrapped(self.conv(x)))), wrapped=Wrapped(into))
    model.requires_grad_(False)
    found = run_with_hooks(model, ["wrapped", "conv"], x)
    at_wrapped, at_conv = gradients(found, "wrapped", "conv")
    assert torch.equal(at_wrapped, at_conv)
    assert at_conv.any()
    assert torch.equal(found.output, model(x))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("spare", r"layer 'spare' did not run"),
        ("ints", r"layer 'ints' returned no floating tensor but a Tensor"),
        ("nothing", r"layer 'nothing' returned no floating tensor but a NoneType"),
        ("convv", r"the model has no layer 'convv'\. Did you mean 'conv'"),
    ],
)
def test_the_error_for_an_unobservable_layer_names_the_layer(layer, message, x) -> None:
    def way(self: Net, x: Tensor) -> Tensor:
        self.ints(x), self.nothing(x)
        return self.classify(self.conv(x))

    ints, nothing = Wrapped(lambda x: x.argmax(1)), Wrapped(lambda _: None)
    with pytest.raises(LayerError, match=message):
        run_with_hooks(Net(way, ints=ints, nothing=nothing, spare=nn.ReLU()), [layer], x)


@pytest.mark.parametrize(
    "look", [lambda model, x: run_with_hooks(model, ["conv1"], x), trace], ids=["observe", "trace"]
)
def test_the_error_for_refused_inputs_contains_the_reason_of_the_model(look) -> None:
    refused = torch.randn(2, 9, 8, 8, dtype=torch.float64)
    with pytest.raises(ForwardError, match=r"cannot run on an input of shape \(2, 9, 8, 8\): RuntimeError: .*") as told:
        look(net(), refused)
    with pytest.raises(RuntimeError) as own:
        net()(refused)
    assert type(told.value.__cause__) is RuntimeError
    assert str(own.value).split("\n")[0] in str(told.value)


@pytest.mark.parametrize(
    ("given", "end"), [((torch.tensor(0.7),), "1 was given"), ((torch.rand(2),) * 2, "batch_size=1")]
)
def test_inputs_of_few_axes_do_not_hide_the_reason(given: tuple[Tensor, ...], end: str) -> None:
    class Look(nn.Module):
        def forward(self, *args: Tensor) -> Tensor:
            raise ValueError(f"{len(args)} was given.")

    with pytest.raises(ForwardError, match=f"{end}$"):
        Recorder(Look()).run(given)


def test_the_note_on_an_assumed_size_begins_a_sentence() -> None:
    net = nn.Sequential(nn.Identity())
    net[0].register_forward_hook(lambda *_: 1 / 0)
    ASSUMED_SIZES[net] = (4, 6), "The size was assumed."
    with pytest.raises(ForwardError, match=r"while explaining\. The size was assumed\.$"):
        run_model(net, torch.rand(1, 3, 4, 6))


def test_an_out_of_memory_error_is_not_wrapped(x) -> None:
    def exhausted(*_) -> None:
        raise torch.OutOfMemoryError("no room")

    model = net()
    model.conv2.register_forward_hook(exhausted)
    with pytest.raises(torch.OutOfMemoryError, match=r"^no room$"):
        run_with_hooks(model, ["conv1"], x)


def test_hooks_that_a_model_adds_at_its_first_forward_pass_stay(x) -> None:
    def counting(self: Net, x: Tensor) -> Tensor:
        if not hasattr(self, "seen"):  # as Hugging Face's models collect their blocks' outputs
            self.seen = []
            self.conv.register_forward_hook(lambda *call: self.seen.append(call[-1]))
        return self.classify(self.conv(x)) + self.seen.pop().mean()

    model = Net(counting)
    run_with_hooks(model, ["conv"], x)
    assert len(model.conv._forward_hooks) == 1  # the model's own
    assert torch.equal(run_with_hooks(model, ["conv"], x).output, model(x))


# ---------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("layer", ["conv1", "relu1", "conv2", "pool", "flatten", "fc"])
def test_resume_with_observed_activations_returns_the_output_of_the_model(layer, x) -> None:
    model = net()
    found = run_with_hooks(model, [layer], x[:1], grad=False)
    assert torch.equal(resume(model, layer, found.calls[layer][0], x[:1]), found.output)


@pytest.mark.parametrize("variants", [1, 2, 7])
def test_the_tail_runs_on_each_variant(variants, x) -> None:
    model = net()
    activations = torch.randn(variants, 5, 4, 4, dtype=torch.float64)
    with Recorder(model, ["conv1", "fc"]) as recorder:
        output = resume(model, "conv2", activations.clone(), x[:1])
        runs = [len(tensor) for _, record in recorder for tensor in record.outputs]
    torch.testing.assert_close(output, model[3:](activations.clone()))
    assert runs == [1, variants]  # the trunk on one image, the tail on all


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_the_tail_can_have_a_graph(mode, x) -> None:
    model = net()
    kept, expected = reference(model, x[:1], "conv2")
    leaf = kept.requires_grad_()
    with mode():
        output = resume(model, "conv2", leaf, x[:1], grad=True)
    assert torch.equal(torch.autograd.grad(output[:, 1].sum(), leaf)[0], expected)
    assert not resume(model, "conv2", leaf, x[:1]).requires_grad


def expands_a_class_token(self: Net, x: Tensor) -> Tensor:
    token = self.token.expand(x.shape[0], -1, -1)
    tokens = self.conv(x).flatten(2).transpose(1, 2)
    return self.fc(torch.cat([token, tokens], 1).tanh().mean(1))


def views_the_batch(self: Net, x: Tensor) -> Tensor:
    batch = x.shape[0]
    return self.fc(self.conv(x).view(batch, 4, -1).tanh().mean(-1))


def folds_variants_into_positions(self: Net, x: Tensor) -> Tensor:
    """A larger batch here raises nothing: it gives one image's output, wrongly."""
    return self.fc(self.conv(x).tanh().movedim(1, -1).reshape(x.shape[0], -1, 4).mean(1))


@pytest.mark.parametrize("way", [expands_a_class_token, views_the_batch, folds_variants_into_positions])
@pytest.mark.parametrize("as_mapping", [False, True])
def test_resume_repeats_the_input_if_the_trunk_fixes_the_batch_size(way, as_mapping, x) -> None:
    model = Net(way)
    model.token = nn.Parameter(torch.randn(1, 1, 4, dtype=torch.float64))
    five = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    variants = model.conv(five).detach()
    output = resume(model, "conv", variants, UserDict(x=x[:1]) if as_mapping else x[:1])
    torch.testing.assert_close(output, model(five))


def test_a_vision_transformer_can_be_resumed_at_its_patches_and_blocks() -> None:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=8, num_classes=3
    )
    nn.init.normal_(model.heads.head.weight)
    model.double().eval()
    x = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    for layer in ("conv_proj", "encoder.layers.encoder_layer_1.ln_1", "encoder.layers.encoder_layer_0"):
        own = run_with_hooks(model, [layer], x, grad=False).calls[layer][0]
        variants = own * torch.rand(5, *own.shape[1:], dtype=torch.float64)
        one_by_one = torch.cat([resume(model, layer, variant[None], x) for variant in variants])
        torch.testing.assert_close(resume(model, layer, variants, x), one_by_one)


@pytest.mark.parametrize("nth", [0, 1])
def test_the_call_to_replace_can_be_chosen(nth, x) -> None:
    model = Net(lambda self, x: self.classify(self.again(self.again(self.conv(x)).tanh())))
    other = torch.randn(3, 4, 8, 8, dtype=torch.float64)
    expected = model.classify(other if nth else model.again(other.tanh()))
    torch.testing.assert_close(resume(model, "again", other, x[:1], call_index=nth), expected)


@pytest.mark.parametrize("variants", [1, 3])
def test_resume_raises_an_error_for_a_missing_layer_or_call(variants, x) -> None:
    other = torch.randn(variants, 4, 6, 6, dtype=torch.float64)
    with pytest.raises(LayerError, match="'conv1' ran 1 time, so there is no call 1"):
        resume(net(), "conv1", other, x[:1], call_index=1)
    with pytest.raises(LayerError, match=r"no layer 'conv9'\. Did you mean 'conv"):
        resume(net(), "conv9", other, x[:1])


def test_resume_passes_on_errors_of_the_model(x) -> None:
    with pytest.raises(RuntimeError, match="expected input"):
        resume(net(), "conv1", torch.randn(3, 9, 6, 6, dtype=torch.float64), x[:1])


# ----------------------------------------------------------------------------------------------------- tracing


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_trace_lists_calls_with_shapes_and_unchanged_outputs(mode, x) -> None:
    model = named(
        block=named(conv=nn.Conv2d(3, 4, 3), relu=nn.ReLU(inplace=True)),
        same=nn.Identity(),
        flatten=nn.Flatten(),
        ints=Wrapped(lambda x: (x * 9).long()),
    )
    with mode():
        calls = trace(model, x)
    assert [(c.name, c.shape, c.passes_through) for c in calls] == [
        ("block.conv", (2, 4, 6, 6), False),
        ("block.relu", (2, 4, 6, 6), False),  # the same memory, but written to
        ("block", (2, 4, 6, 6), True),
        ("same", (2, 4, 6, 6), True),
        ("flatten", (2, 144), True),
        ("ints", None, False),
        ("", None, False),
    ]
    assert calls[0].module is model.block.conv


def test_a_trace_finds_the_source_of_each_input(x) -> None:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.left, self.right, self.joined = (nn.Conv2d(3, 3, 1) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(x)
            return self.joined(self.left(x) + self.right(input=x))  # by name, as many libraries hand things on

    calls = trace(Forked().to(x), x)
    assert [(c.name, c.follows_previous, c.source) for c in calls] == [
        ("norm", False, None),
        ("left", True, 0),
        ("right", False, 0),
        ("joined", False, None),
        ("", False, None),
    ]


def test_a_part_of_the_previous_output_is_not_an_unchanged_output(x) -> None:
    calls = trace(named(conv=nn.Conv2d(3, 4, 1), part=Wrapped(lambda x: x[:, :2])), x)
    assert [c.passes_through for c in calls] == [False, False, True]


# --------------------------------------------------------------------------------------------------- watching


def test_module_hooks_act_in_this_thread_until_the_block_ends(x) -> None:
    model, met = net(), []

    def before(name: str, _: nn.Module, *given: object) -> None:
        met.append(("before", name, find_main_tensor(given).shape))

    def after(name: str, _: nn.Module, output: object) -> None:
        met.append(("after", name, find_main_tensor(output).shape))

    with Cleanup() as cleanup, ThreadPoolExecutor(1) as pool:
        add_module_hooks(cleanup, model, before, after)
        pool.submit(model, x).result()
        assert met == []
        model(input=x)  # by name
    model(x)
    assert met[:3] == [("before", "", x.shape), ("before", "conv1", x.shape), ("after", "conv1", (2, 4, 6, 6))]
    assert met[-2:] == [("after", "fc", (2, 3)), ("after", "", (2, 3))]
    assert len(met) == 16
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
