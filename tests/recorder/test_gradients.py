"""Recorded gradients: equal to those of torch, separate for each module, call and forward pass."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from camtool import LayerError, Recorder
from camtool.hooks.structures.nested_tensors import find_main_tensor, find_tensors, map_tensors
from camtool.recorder import (
    SeveralCallsWarning,
    scale,
)
from tests.helpers.nets import Apply
from tests.recorder.models import (
    Residual,
    identity_layer,
    net,
    record_with_module_hooks,
)


def test_what_was_not_recorded_is_an_error_that_names_the_option() -> None:
    with Recorder(nn.Sequential(nn.ReLU()), "0", outputs=False) as recorder:
        pass
    for kind, option in (
        ("grad_outputs", "gradients"),
        ("grad_inputs", "gradients"),
        ("inputs",) * 2,
        ("outputs",) * 2,
    ):
        with pytest.raises(
            LayerError, match=rf"'0': its {kind} were not recorded; use Recorder\(\.\.\., {option}=True\)"
        ):
            getattr(recorder["0"], kind)


# ---------------------------------------------------------------------------------------------- the classic exercises


def test_the_recorded_gradient_of_an_inner_tensor_is_a_quarter() -> None:
    x = torch.arange(4.0, requires_grad=True)
    square = Apply(torch.square)
    with Recorder(square, gradients=True) as recorder:
        square(x).mean().backward()
    assert recorder[""].grad_outputs[0].tolist() == [0.25] * 4
    assert recorder[""].grad_inputs[0].tolist() == [0.0, 0.5, 1.0, 1.5]

    y, kept = x**2, []  # the same by a plain tensor hook
    y.register_hook(kept.append)
    y.mean().backward()
    assert kept[0].tolist() == [0.25] * 4


class Times(nn.Module):
    """``c = a * b``, where the arguments come by position or by name."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


def test_a_hook_that_adds_two_to_the_gradient_of_a_product() -> None:
    a, b = torch.tensor(7.0, requires_grad=True), torch.tensor(13.0, requires_grad=True)
    times = Times()
    with Recorder(times, inputs=True, gradients=True, edit_gradients={"": lambda gradient: gradient + 2}) as recorder:
        times(a, b).backward()
    record = recorder[""]
    assert (record.inputs, record.outputs) == ([(7, 13)], [91])
    assert (record.grad_outputs, record.grad_inputs) == ([3], [(39, 21)])
    assert (a.grad, b.grad) == (39, 21)

    a.grad = b.grad = None
    c = a * b  # the same by a plain tensor hook
    c.register_hook(lambda gradient: gradient + 2)
    c.backward()
    assert (a.grad, b.grad) == (39, 21)


def doubled_in_place_and_returned_three_times(tensor: Tensor) -> Tensor:
    tensor.mul_(2)
    return 3 * tensor


def test_a_hook_that_doubles_in_place_and_returns_three_times_that() -> None:
    x, layer = torch.tensor([5.0], requires_grad=True), identity_layer(1)
    with Recorder(layer, edit={"": doubled_in_place_and_returned_three_times}) as recorder:
        assert layer(x).tolist() == [30]
    assert recorder[""].outputs[0].tolist() == [30]

    with Recorder(layer, gradients=True, edit_gradients={"": doubled_in_place_and_returned_three_times}) as recorder:
        output = layer(x)
        output.backward(gradient := torch.tensor([5.0]))
    assert recorder[""].grad_outputs[0].tolist() == [30]
    assert x.grad.tolist() == [30]
    assert gradient.tolist() == [5]  # what is not ours was not written to


@pytest.mark.parametrize(("channels", "value"), [(1, 9), (2, 18)])
def test_a_convolution_of_ones_over_ones_and_the_way_of_its_gradient_through_max_pooling(channels, value) -> None:
    conv = nn.Conv2d(channels, 2, 3, bias=False)
    nn.init.ones_(conv.weight)
    model = nn.Sequential(conv, nn.MaxPool2d(2))
    with Recorder(model, inputs=True, gradients=True) as recorder:
        nn.functional.l1_loss(model(torch.ones(1, channels, 4, 4)), torch.zeros(1, 2, 1, 1)).backward()
    assert recorder["0"].inputs[0].shape == (1, channels, 4, 4)
    assert torch.equal(recorder["0"].outputs[0], torch.full((1, 2, 2, 2), float(value)))
    gradient = recorder["0"].grad_outputs[0]
    assert gradient.flatten(2).abs().sort().values.tolist() == [[[0, 0, 0, 0.5]] * 2]  # one position a channel
    assert torch.equal(recorder["1"].grad_inputs[0], gradient)
    assert recorder["1"].grad_outputs[0].flatten().tolist() == [0.5, 0.5]


# ---------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layer", ["0", "1", "2", "3", "4", "5"])
def test_gradients_equal_those_of_module_hooks_even_with_in_place_operations(layer, inplace, x) -> None:
    plain, model = net(inplace=False), net(inplace=inplace)
    model.load_state_dict(plain.state_dict())
    grad_input, grad_output = record_with_module_hooks(plain, layer, x)
    with Recorder(model, layer, gradients=True) as recorder:
        model(x.clone().requires_grad_())[:, 1].sum().backward()
    torch.testing.assert_close(recorder[layer].grad_inputs, [grad_input], rtol=1e-12, atol=0)
    torch.testing.assert_close(recorder[layer].grad_outputs, [grad_output], rtol=1e-12, atol=0)


def test_module_hooks_of_torch_fail_with_in_place_operations(x) -> None:
    """Why the recorder has its own: should torch mend this, it can go."""
    with pytest.raises(RuntimeError, match="modified inplace"):
        record_with_module_hooks(net(inplace=True), "0", x)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("what", [{}, {"gradients": True}, {"gradients": True, "inputs": True, "graph": True}])
def test_the_model_runs_and_learns_as_without_a_recorder(what, training, inplace, x) -> None:
    alone = net(inplace=inplace)
    alone.insert(1, nn.BatchNorm2d(4).double())
    alone.insert(2, nn.Dropout(0.4))
    alone.train(training)
    recorded = copy.deepcopy(alone)
    outputs = []
    for model, block in ((alone, nullcontext()), (recorded, Recorder(recorded, **what))):
        torch.manual_seed(5)
        with block:
            outputs.append(model(x))
            outputs[-1][:, 1].sum().backward()
    assert torch.equal(*outputs)
    assert all(map(torch.equal, alone.state_dict().values(), recorded.state_dict().values()))
    both = zip(alone.parameters(), recorded.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in both)
    assert {module.training for module in recorded.modules()} == {training}


class Reuses(nn.Module):
    """Goes on with the very tensor that an in-place module was given."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.relu(x) + x


@pytest.mark.parametrize("what", [{}, {"inputs": True}, {"gradients": True}, {"gradients": True, "keep": "mean"}])
def test_the_output_is_unchanged_if_the_input_of_an_in_place_module_is_used_again(what) -> None:
    model, x = Reuses(), torch.randn(1, 3, 5, 5)
    expected = model(x)
    with Recorder(model, **what):
        assert torch.equal(model(x), expected)


def test_gradients_are_separate_if_the_input_of_an_in_place_module_is_used_again() -> None:
    model = Reuses()
    model.conv = identity_layer(3)
    with Recorder(model, inputs=True, gradients=True) as recorder:
        model(torch.tensor([[-1.0, 2.0, 3.0]])).sum().backward()
    record = recorder["relu"]
    assert record.inputs[0].tolist() == [[-1, 2, 3]]
    assert record.outputs[0].tolist() == [[0, 2, 3]]
    assert record.grad_outputs[0].tolist() == [[2, 2, 2]]  # the sum uses the tensor twice
    assert record.grad_inputs[0].tolist() == [[0, 2, 2]]
    assert recorder["conv"].grad_outputs[0].tolist() == [[0, 2, 2]]


def test_each_module_has_its_own_part_of_a_gradient() -> None:
    block = Residual(Apply(lambda x: 3 * x))
    model = nn.Sequential(block)
    x = torch.ones(2, requires_grad=True)
    with Recorder(model, gradients=True) as recorder:
        (model(x) + 10 * x).sum().backward()
    parts = {name: record.grad_inputs[0].tolist() for name, record in recorder}
    assert parts == {"": [5, 5], "0": [5, 5], "0.branch": [2, 2], "0.shortcut": [3, 3]}
    assert x.grad.tolist() == [15, 15]


def test_a_module_that_returns_its_input_has_the_whole_gradient() -> None:
    model = Residual(nn.Identity())
    x = torch.ones(2, requires_grad=True)
    with Recorder(model, "*", gradients=True, edit_gradients={"branch": scale(5)}) as recorder:
        model(x).sum().backward()
    assert recorder["branch"].grad_inputs[0].tolist() == [10, 10]
    assert recorder["shortcut"].grad_outputs[0].tolist() == [11, 11]  # torch's module hook would tell 1
    assert recorder["shortcut"].grad_inputs[0].tolist() == [11, 11]


def test_an_input_returned_beside_a_new_tensor_has_its_gradient_once() -> None:
    model, x = Apply(lambda x: (x, 2 * x)), torch.ones(2, requires_grad=True)
    with Recorder(model, gradients=True, keep="mean") as recorder:
        sum(model(x)).sum().backward()
    assert recorder[""].grad_inputs[0] == 3  # of one gradient, not of two


def test_an_identity_sends_back_its_edited_gradient() -> None:
    model = nn.Sequential(Apply(lambda x: 2 * x), nn.Identity())
    x = torch.ones(2, requires_grad=True)
    with Recorder(model, gradients=True, edit_gradients={"1": scale(5)}) as recorder:
        model(x).sum().backward()
    assert recorder["1"].grad_inputs[0].tolist() == recorder["1"].grad_outputs[0].tolist() == [5, 5]
    assert x.grad.tolist() == [10, 10]


def test_a_tensor_passed_twice_has_its_gradient_at_both_places() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    with Recorder(Times(), gradients=True) as recorder:
        recorder._model(x, x).backward()
    assert recorder[""].grad_inputs == [(6, 6)]


class Remembers(nn.Module):
    """Adds what it was given once, which it has kept with its graph, to what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x + self.memory


def test_earlier_results_from_an_input_are_not_part_of_the_module() -> None:
    x, model = torch.tensor([1.0], requires_grad=True), Remembers()
    y = x * 1
    model.memory = 100 * y
    with Recorder(model, gradients=True) as recorder:
        model(y).backward()
    assert recorder[""].grad_inputs[0].tolist() == [2]
    assert x.grad.tolist() == [102]


def test_each_backward_pass_is_recorded_without_summation() -> None:
    model, x = Residual(Apply(lambda x: 3 * x)), torch.ones(2, requires_grad=True)
    with Recorder(model, gradients=True) as recorder:
        output = model(x).sum()
        output.backward(retain_graph=True)
        first = recorder[""].grad_inputs[0], recorder[""].grad_outputs[0]
        (10 * output).backward(retain_graph=True)
        second = recorder[""].grad_inputs[0]
        torch.autograd.grad(7 * output, x)
    assert [first[0].tolist(), first[1].tolist()] == [[5, 5], [1, 1]]
    assert second.tolist() == [50, 50]
    assert recorder[""].grad_inputs[0].tolist() == [35, 35]
    assert x.grad.tolist() == [55, 55]


class Careless(torch.autograd.Function):
    """``3 x w``, which computes the gradient of ``x`` also where nobody asks for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return 3 * x * w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return 3 * gradient * w, 3 * gradient * x


def test_a_backward_pass_that_stops_early_does_not_affect_the_next() -> None:
    x, w = torch.tensor(2.0, requires_grad=True), torch.tensor(5.0, requires_grad=True)
    model = Apply(lambda x: Careless.apply(x, w))
    with Recorder(model, gradients=True) as recorder:
        output = model(1 * x)
        assert torch.autograd.grad(output, w, retain_graph=True) == (6,)
        assert recorder[""].grad_inputs == [None]
        output.backward()
    assert recorder[""].grad_inputs == [15]


def test_later_writes_to_a_gradient_do_not_change_the_record() -> None:
    model, gradient = identity_layer(2), torch.ones(2)
    with Recorder(model, gradients=True) as recorder:
        model(torch.ones(2)).backward(gradient)
    gradient.zero_()
    assert recorder[""].grad_outputs[0].tolist() == [1, 1]


def test_later_accumulation_does_not_change_the_recorded_gradient() -> None:
    weight = nn.Parameter(torch.ones(2))
    returns_it = Apply(lambda _: weight)
    with Recorder(returns_it, gradients=True) as recorder:
        for _ in range(2):
            (3 * returns_it(torch.ones(1))).sum().backward()  # torch adds the second to the first, in place
    assert [gradient.tolist() for gradient in recorder[""].grad_outputs] == [[3, 3], [3, 3]]
    assert weight.grad.tolist() == [6, 6]


@pytest.mark.parametrize(("keep", "gradients"), [("all", [2, 4, 6]), ("mean", [4])])
def test_a_returned_leaf_does_not_get_gradients_of_later_forward_passes(keep, gradients) -> None:
    model, x = nn.Sequential(nn.Identity(), Apply(lambda x: 2 * x)), torch.ones(1, requires_grad=True)
    with Recorder(model, "0", gradients=True, keep=keep) as recorder:
        for factor in (1, 2, 3):
            (factor * model(x)).sum().backward()
    for entries in (recorder["0"].grad_outputs, recorder["0"].grad_inputs):
        assert [gradient.item() for gradient in entries] == gradients


def test_each_of_several_inputs_has_its_gradient() -> None:
    layer = nn.Bilinear(2, 3, 1, bias=False)
    nn.init.ones_(layer.weight)
    one, two = torch.tensor([[1.0, 2.0]], requires_grad=True), torch.tensor([[3.0, 4.0, 5.0]])
    with Recorder(layer, "", inputs=True, gradients=True) as recorder:
        (2 * layer(one, two)).sum().backward()
    (record,) = (record for _, record in recorder)
    assert [tensor.tolist() for tensor in record.inputs[0]] == [[[1, 2]], [[3, 4, 5]]]
    assert record.grad_inputs[0][0].tolist() == [[24, 24]]
    assert record.grad_inputs[0][1] is None
    assert record.grad_outputs[0].tolist() == [[2]]
    assert record.outputs[0].tolist() == [[36]]


@pytest.mark.parametrize("keep", ["all", "last", "concat"])
def test_each_gradient_of_several_forward_passes_belongs_to_its_output(keep) -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    ones = torch.ones(1, 1, requires_grad=True)
    with Recorder(layer, gradients=True, keep=keep) as recorder:
        total = sum(factor * layer(factor * ones) for factor in (2, 3, 4))
        total.backward()  # which goes through them from the last to the first
    factors = [4] if keep == "last" else [2, 3, 4]
    record = recorder[""]
    for entries in (record.outputs, record.grad_outputs, record.grad_inputs):
        assert torch.cat(entries).flatten().tolist() == factors
        assert len(entries) == (1 if keep == "concat" else len(factors))
    assert record.shape == (1, 1)
    assert len(recorder) == 1


def test_a_checkpointed_part_is_recorded_again_in_the_backward_pass(x) -> None:
    model = net(inplace=False)
    with Recorder(model, "2", gradients=True) as recorder:
        checkpoint(model, x.requires_grad_(), use_reentrant=True).sum().backward()
    assert torch.equal(*recorder["2"].outputs)
    assert recorder["2"].grad_outputs[0] is None  # the first run had no graph
    assert recorder["2"].grad_outputs[1].shape == (2, 5, 4, 4)


def test_a_view_written_to_in_place_has_no_gradient_as_in_torch() -> None:
    model, x = nn.Sequential(identity_layer(2), nn.Unflatten(1, (2, 1)), nn.ReLU(True)), torch.tensor([[1.0, -1.0]])
    with Recorder(model, gradients=True) as recorder:
        model(x.requires_grad_()).sum().backward()
    assert recorder["1"].grad_outputs == recorder["1"].grad_inputs == recorder["2"].grad_inputs == [None]
    assert recorder["0"].grad_outputs[0].tolist() == [[1, 0]]
    view, seen = (x * 1).view(2), []
    view.register_hook(seen.append)
    view.relu_().sum().backward()
    assert seen == []


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda model: torch.func.grad(lambda x: model(x).sum())])
def test_models_run_under_function_transforms_of_torch(transform) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(2, 3)
    expected = transform(model)(x)
    with Recorder(model, inputs=True, gradients=True):
        assert torch.equal(transform(model)(x), expected)


def test_inference_mode_gives_no_gradients_and_no_error(x) -> None:
    model = net(inplace=True)
    x.requires_grad_()
    with torch.inference_mode(), Recorder(model, inputs=True, gradients=True) as recorder:
        model(x)
    assert recorder["0"].grad_inputs == recorder["0"].grad_outputs == [None]
    assert torch.equal(recorder["0"].inputs[0], x)


def watched(structure: Any) -> tuple[Any, dict[int, Tensor]]:
    """A copy of a structure, and where a backward pass will put the gradients at its tensors, by place."""
    copied, gradients = map_tensors(structure, torch.clone), {}
    for place, tensor in enumerate(find_tensors(copied)):
        if tensor.requires_grad:
            tensor.register_hook(partial(gradients.__setitem__, place))
    return copied, gradients


class Copying:
    """The gradients at every layer in the simple way: each works on copies of what it is given, and hands on a copy."""

    def __init__(self, model: nn.Module) -> None:
        self.sent: dict[str, list[dict[int, Tensor]]] = {name: [] for name, _ in model.named_modules()}
        self.got: dict[str, list[dict[int, Tensor]]] = copy.deepcopy(self.sent)
        for name, module in model.named_modules():
            module.register_forward_pre_hook(partial(self.before, name), with_kwargs=True)
            module.register_forward_hook(partial(self.after, name))

    def before(self, name: str, _: nn.Module, args: Any, kwargs: Any) -> Any:
        given, gradients = watched((args, kwargs))
        self.sent[name].append(gradients)
        return given

    def after(self, name: str, _: nn.Module, args: Any, output: Any) -> Any:
        returned, gradients = watched(output)
        self.got[name].append(gradients)
        return map_tensors(returned, torch.clone)


def small_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=64, patch_size=16))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "convnext_tiny", "vit"])
def test_gradients_of_real_models_equal_those_at_copies_and_the_model_is_unchanged(name) -> None:
    import torchvision

    model = (small_vit() if name == "vit" else torchvision.models.get_model(name)).eval().double()
    twin, x = copy.deepcopy(model), torch.randn(1, 3, 64, 64, dtype=torch.float64)
    copying = Copying(twin)
    find_main_tensor(twin(x.clone().requires_grad_()))[:, 1].sum().backward()
    expected = find_main_tensor(model(x))
    with warnings.catch_warnings(), Recorder(model, inputs=True, gradients=True) as recorder:
        warnings.simplefilter("ignore", SeveralCallsWarning)
        output = find_main_tensor(model(x.clone().requires_grad_()))
        output[:, 1].sum().backward()
    assert torch.equal(output, expected)
    seen = [find_tensors((record.grad_inputs, record.grad_outputs)) for _, record in recorder]
    wanted = [find_tensors((by_place(copying.sent[name]), by_place(copying.got[name]))) for name, _ in recorder]
    assert sum(map(len, seen)) > 50
    torch.testing.assert_close(seen, wanted, rtol=1e-9, atol=1e-14)


def by_place(calls: list[dict[int, Tensor]]) -> list[list[Tensor]]:
    return [[gradients[place] for place in sorted(gradients)] for gradients in calls]
