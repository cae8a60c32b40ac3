"""The recorder: inputs, outputs and gradients as they were, edits on the way, and nothing of it left behind."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from nets import Apply
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from camtool import Recorder
from camtool.cleanup import Cleanup
from camtool.errors import CamtoolError, LayerError
from camtool.hooks import add_forward_hook
from camtool.recorder import (
    Histogram,
    Max,
    Mean,
    SeveralCallsWarning,
    add_noise,
    clip,
    replace,
    scale,
    select,
    zero,
)
from camtool.structures import main_tensor, map_tensors, tensors_in


def net(*, inplace: bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace), nn.Conv2d(4, 5, 3), nn.ReLU(inplace), nn.Flatten(), nn.Linear(80, 2)
    ).double()


def identity_layer(size: int) -> nn.Linear:
    """A linear layer that returns what it is given; unlike ``nn.Identity``, as another tensor."""
    layer = nn.Linear(size, size, bias=False)
    nn.init.eye_(layer.weight)
    return layer


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 8, 8, dtype=torch.float64)


def hooks_on(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def torchs_own_gradients(model: nn.Module, layer: str, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
    """What torch's full backward hook is given: the gradients at the module's input and output."""
    seen: list[tuple[Tensor | None, Tensor]] = []
    hook = model.get_submodule(layer).register_full_backward_hook(lambda _, gi, go: seen.append((gi[0], go[0])))
    model(inputs.clone().requires_grad_())[:, 1].sum().backward()
    hook.remove()
    return seen[0]


# -------------------------------------------------------------------------------------------- the classic exercises


def test_the_gradient_kept_at_an_inner_tensor_is_a_quarter() -> None:
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
def test_gradients_are_those_of_torchs_module_hooks_also_around_in_place_operations(layer, inplace, x) -> None:
    plain, model = net(inplace=False), net(inplace=inplace)
    model.load_state_dict(plain.state_dict())
    grad_input, grad_output = torchs_own_gradients(plain, layer, x)
    with Recorder(model, layer, gradients=True) as recorder:
        model(x.clone().requires_grad_())[:, 1].sum().backward()
    torch.testing.assert_close(recorder[layer].grad_inputs, [grad_input], rtol=1e-12, atol=0)
    torch.testing.assert_close(recorder[layer].grad_outputs, [grad_output], rtol=1e-12, atol=0)


def test_torchs_own_module_hooks_fail_around_in_place_operations(x) -> None:
    """Why the recorder has its own: should torch mend this, it can go."""
    with pytest.raises(RuntimeError, match="modified inplace"):
        torchs_own_gradients(net(inplace=True), "0", x)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("what", [{}, {"gradients": True}, {"gradients": True, "inputs": True, "graph": True}])
def test_the_model_runs_and_learns_as_without_it(what, training, inplace, x) -> None:
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
def test_the_output_is_the_same_where_the_input_of_an_in_place_module_is_used_again(what) -> None:
    model, x = Reuses(), torch.randn(1, 3, 5, 5)
    expected = model(x)
    with Recorder(model, **what):
        assert torch.equal(model(x), expected)


def test_where_the_input_of_an_in_place_module_is_used_again_the_gradients_are_told_apart() -> None:
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


class Residual(nn.Module):
    """``2 x + 3 x`` by two branches, the second a module, or without one: the input itself."""

    def __init__(self, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = Apply(lambda x: 2 * x), shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x) + self.shortcut(x)


def test_each_module_sends_back_its_own_part_of_a_gradient() -> None:
    block = Residual(Apply(lambda x: 3 * x))
    model = nn.Sequential(block)
    x = torch.ones(2, requires_grad=True)
    with Recorder(model, gradients=True) as recorder:
        (model(x) + 10 * x).sum().backward()
    parts = {name: record.grad_inputs[0].tolist() for name, record in recorder}
    assert parts == {"": [5, 5], "0": [5, 5], "0.branch": [2, 2], "0.shortcut": [3, 3]}
    assert x.grad.tolist() == [15, 15]


def test_a_module_that_returns_its_very_input_sends_back_all_that_arrives_there() -> None:
    model = Residual(nn.Identity())
    x = torch.ones(2, requires_grad=True)
    with Recorder(model, "*", gradients=True, edit_gradients={"branch": scale(5)}) as recorder:
        model(x).sum().backward()
    assert recorder["branch"].grad_inputs[0].tolist() == [10, 10]
    assert recorder["shortcut"].grad_outputs[0].tolist() == [11, 11]  # torch's module hook would tell 1
    assert recorder["shortcut"].grad_inputs[0].tolist() == [11, 11]


def test_what_is_handed_through_beside_something_new_has_its_gradient_once() -> None:
    model, x = Apply(lambda x: (x, 2 * x)), torch.ones(2, requires_grad=True)
    with Recorder(model, gradients=True, keep="mean") as recorder:
        sum(model(x)).sum().backward()
    assert recorder[""].grad_inputs[0] == 3  # of one gradient, not of two


def test_of_an_identity_too_the_edited_gradient_is_what_it_sends_back() -> None:
    model = nn.Sequential(Apply(lambda x: 2 * x), nn.Identity())
    x = torch.ones(2, requires_grad=True)
    with Recorder(model, gradients=True, edit_gradients={"1": scale(5)}) as recorder:
        model(x).sum().backward()
    assert recorder["1"].grad_inputs[0].tolist() == recorder["1"].grad_outputs[0].tolist() == [5, 5]
    assert x.grad.tolist() == [10, 10]


def test_a_tensor_given_at_two_places_has_its_gradient_at_both() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    with Recorder(Times(), gradients=True) as recorder:
        recorder._model(x, x).backward()
    assert recorder[""].grad_inputs == [(6, 6)]


class Remembers(nn.Module):
    """Adds what it was given once, which it has kept with its graph, to what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x + self.memory


def test_what_was_made_of_an_input_before_the_call_is_not_the_modules_part() -> None:
    x, model = torch.tensor([1.0], requires_grad=True), Remembers()
    y = x * 1
    model.memory = 100 * y
    with Recorder(model, gradients=True) as recorder:
        model(y).backward()
    assert recorder[""].grad_inputs[0].tolist() == [2]
    assert x.grad.tolist() == [102]


def test_each_backward_pass_brings_its_own_gradients_and_sums_nothing_up() -> None:
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


def test_a_backward_pass_that_ends_ahead_of_the_input_leaves_nothing_for_the_next() -> None:
    x, w = torch.tensor(2.0, requires_grad=True), torch.tensor(5.0, requires_grad=True)
    model = Apply(lambda x: Careless.apply(x, w))
    with Recorder(model, gradients=True) as recorder:
        output = model(1 * x)
        assert torch.autograd.grad(output, w, retain_graph=True) == (6,)
        assert recorder[""].grad_inputs == [None]
        output.backward()
    assert recorder[""].grad_inputs == [15]


def test_a_gradient_that_somebody_writes_to_stays_in_the_record_as_it_was() -> None:
    model, gradient = identity_layer(2), torch.ones(2)
    with Recorder(model, gradients=True) as recorder:
        model(torch.ones(2)).backward(gradient)
    gradient.zero_()
    assert recorder[""].grad_outputs[0].tolist() == [1, 1]


def test_a_gradient_that_is_later_added_to_stays_in_the_record_as_it_was() -> None:
    weight = nn.Parameter(torch.ones(2))
    returns_it = Apply(lambda _: weight)
    with Recorder(returns_it, gradients=True) as recorder:
        for _ in range(2):
            (3 * returns_it(torch.ones(1))).sum().backward()  # torch adds the second to the first, in place
    assert [gradient.tolist() for gradient in recorder[""].grad_outputs] == [[3, 3], [3, 3]]
    assert weight.grad.tolist() == [6, 6]


@pytest.mark.parametrize(("keep", "gradients"), [("all", [2, 4, 6]), ("mean", [4])])
def test_of_a_leaf_that_a_layer_hands_on_later_forwards_gradients_stay_out(keep, gradients) -> None:
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
def test_of_several_forwards_each_gradient_stands_beside_its_own_output(keep) -> None:
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


def test_a_part_that_is_run_again_in_the_backward_pass_is_recorded_again(x) -> None:
    model = net(inplace=False)
    with Recorder(model, "2", gradients=True) as recorder:
        checkpoint(model, x.requires_grad_(), use_reentrant=True).sum().backward()
    assert torch.equal(*recorder["2"].outputs)
    assert recorder["2"].grad_outputs[0] is None  # the first run had no graph
    assert recorder["2"].grad_outputs[1].shape == (2, 5, 4, 4)


def test_a_view_that_is_written_to_in_place_has_no_gradient_as_in_torch_itself() -> None:
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
def test_models_run_under_torchs_transforms(transform) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(2, 3)
    expected = transform(model)(x)
    with Recorder(model, inputs=True, gradients=True):
        assert torch.equal(transform(model)(x), expected)


def test_in_inference_mode_there_are_no_gradients_and_no_complaints(x) -> None:
    model = net(inplace=True)
    x.requires_grad_()
    with torch.inference_mode(), Recorder(model, inputs=True, gradients=True) as recorder:
        model(x)
    assert recorder["0"].grad_inputs == recorder["0"].grad_outputs == [None]
    assert torch.equal(recorder["0"].inputs[0], x)


def watched(structure: Any) -> tuple[Any, dict[int, Tensor]]:
    """A copy of a structure, and where a backward pass will put the gradients at its tensors, by place."""
    copied, gradients = map_tensors(structure, torch.clone), {}
    for place, tensor in enumerate(tensors_in(copied)):
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "convnext_tiny", "vit"])
def test_on_real_models_the_gradients_are_those_at_copies_and_the_model_is_as_without(name) -> None:
    import torchvision

    model = (small_vit() if name == "vit" else torchvision.models.get_model(name)).eval().double()
    twin, x = copy.deepcopy(model), torch.randn(1, 3, 64, 64, dtype=torch.float64)
    copying = Copying(twin)
    main_tensor(twin(x.clone().requires_grad_()))[:, 1].sum().backward()
    expected = main_tensor(model(x))
    with warnings.catch_warnings(), Recorder(model, inputs=True, gradients=True) as recorder:
        warnings.simplefilter("ignore", SeveralCallsWarning)
        output = main_tensor(model(x.clone().requires_grad_()))
        output[:, 1].sum().backward()
    assert torch.equal(output, expected)
    seen = [tensors_in((record.grad_inputs, record.grad_outputs)) for _, record in recorder]
    wanted = [tensors_in((by_place(copying.sent[name]), by_place(copying.got[name]))) for name, _ in recorder]
    assert sum(map(len, seen)) > 50
    torch.testing.assert_close(seen, wanted, rtol=1e-9, atol=1e-14)


def by_place(calls: list[dict[int, Tensor]]) -> list[list[Tensor]]:
    return [[gradients[place] for place in sorted(gradients)] for gradients in calls]


# ------------------------------------------------------------------------------------------------ inputs and outputs


def test_inputs_and_outputs_are_what_the_layer_got_and_gave(x) -> None:
    model = net(inplace=True)
    with Recorder(model, ["2", "3"], inputs=True) as recorder:
        model(x)
    convolved = model[2](model[:2](x))
    torch.testing.assert_close(recorder["2"].inputs[0], model[:2](x))
    assert torch.equal(recorder["2"].outputs[0], convolved)
    assert torch.equal(recorder["3"].inputs[0], convolved)
    assert torch.equal(recorder["3"].outputs[0], convolved.relu())
    assert not recorder["2"].outputs[0].requires_grad


def test_a_copy_is_made_only_when_a_tensor_is_written_to() -> None:
    handed_on = []
    model = nn.Sequential(Apply(lambda x: x + 1), Apply(lambda x: handed_on.append(x) or x), Apply(lambda x: x + 1))
    with torch.no_grad(), Recorder(model, ["0", "2"]) as recorder:
        model(torch.ones(3))
        kept, same = recorder["0"].outputs[0], handed_on[0]
        assert torch._C._is_cow_tensor(kept)
        assert torch._C._is_cow_tensor(same)
        same.mul_(10)
    assert same.tolist() == [20, 20, 20]
    assert kept.tolist() == recorder["0"].outputs[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("write", [lambda t: t.zero_(), lambda t: t.numpy().fill(0), lambda t: t[0].fill_(0)])
@pytest.mark.parametrize("whose", ["model", "record"])
def test_whoever_writes_to_a_tensor_writes_to_his_own(write: Callable[[Tensor], Any], whose) -> None:
    model = nn.Sequential(Apply(lambda x: x + 1), nn.Identity())
    with torch.no_grad(), Recorder(model, "0") as recorder:
        output = model(torch.ones(1, 3))
    kept = recorder["0"].outputs[0]
    write(output if whose == "model" else kept)
    assert output.tolist() == [[0 if whose == "model" else 2] * 3]
    assert kept.tolist() == [[2 if whose == "model" else 0] * 3]


def test_an_input_that_is_filled_anew_from_numpy_is_recorded_as_it_was_each_time() -> None:
    frame = torch.zeros(2)
    pixels = frame.numpy()
    model = nn.Sequential(nn.Identity(), nn.Flatten(0))
    with Recorder(model, inputs=True) as recorder:
        for value in (1, 2):
            pixels[:] = value
            model(frame)
    assert [tensor.tolist() for tensor in recorder["0"].outputs] == [[1, 1], [2, 2]]
    assert [tensor.tolist() for tensor in recorder["1"].inputs] == [[1, 1], [2, 2]]
    with Recorder(model, inputs=True) as recorder:
        for value in (3, 4):
            pixels[:] = value
            model[1](frame)  # a part of the model, by itself
    assert [tensor.tolist() for tensor in recorder["1"].inputs] == [[3, 3], [4, 4]]


def test_a_layer_that_returns_its_parameter_is_recorded_as_it_was_then() -> None:
    model = nn.Sequential(Apply(lambda _: model.weight))
    model.register_parameter("weight", nn.Parameter(torch.ones(2)))
    with Recorder(model, "0") as recorder:
        for _ in range(2):
            model(torch.zeros(1))
            assert not torch._C._is_cow_tensor(model.weight)
            model.weight.data.add_(1)
    assert [tensor.tolist() for tensor in recorder["0"].outputs] == [[1, 1], [2, 2]]


class Pair(NamedTuple):
    one: Tensor
    other: Any


class Structured(nn.Module):
    def forward(self, x: Tensor, /, *, mask: Tensor, factor: int) -> dict[str, Any]:
        return {"pair": Pair(factor * x, [x.long(), None]), "text": "as it is", "sum": (x * mask).sum()}


def test_structures_stay_as_they_are() -> None:
    model, x, mask = Structured(), torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([True, False])
    with Recorder(model, inputs=True, gradients=True) as recorder:
        output = model(x, mask=mask, factor=3)
        (output["pair"].one.sum() + 10 * output["sum"]).backward()
    record = recorder[""]
    assert record.inputs[0].keys() == {0, "mask", "factor"}
    assert record.inputs[0][0].tolist() == [1, 2]
    assert record.inputs[0]["mask"].tolist() == [True, False]
    assert record.inputs[0]["factor"] == 3
    kept = record.outputs[0]
    assert isinstance(kept["pair"], Pair)
    assert kept["pair"].one.tolist() == [3, 6]
    assert kept["pair"].other[0].tolist() == [1, 2]
    assert (kept["pair"].other[1], kept["text"], kept["sum"]) == (None, "as it is", 1)
    assert not kept["pair"].one.requires_grad
    assert record.shape == (2,)
    gradients = record.grad_outputs[0]
    assert gradients["pair"].one.tolist() == [1, 1]
    assert (gradients["pair"].other, gradients["sum"]) == ([None, None], 10)
    assert record.grad_inputs[0][0].tolist() == [13, 3]
    assert record.grad_inputs[0]["mask"] is None


def test_an_lstm_is_recorded_as_it_is() -> None:
    lstm = nn.LSTM(2, 3)
    with Recorder(lstm, inputs=True, gradients=True) as recorder:
        output, (h, c) = lstm(x := torch.randn(4, 1, 2, requires_grad=True))
        (output[0].sum() + h.sum()).backward()
    record = recorder[""]
    kept, (kept_h, kept_c) = record.outputs[0]
    assert all(map(torch.equal, (kept, kept_h, kept_c), (output, h, c)))
    assert torch.equal(record.inputs[0], x)
    gradient, (gradient_h, gradient_c) = record.grad_outputs[0]
    assert gradient[0].tolist() == gradient_h[0].tolist() == [[1, 1, 1]]
    assert gradient_c is None
    torch.testing.assert_close(record.grad_inputs[0], x.grad)


class Bag(MutableMapping[str, Any]):
    """A mapping whose shallow copy shares what it holds."""

    def __init__(self, **items: Any) -> None:
        self._items = items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, item: Any) -> None:
        self._items[key] = item

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def test_a_mapping_of_somebodys_own_is_recorded_and_handed_on_untouched() -> None:
    model = nn.Sequential(Apply(lambda x: Bag(image=x, size=2)), Apply(lambda bag: bag["image"] * bag["size"]))
    with Recorder(model, inputs=True) as recorder:
        assert model(torch.ones(1)).tolist() == [2]
    (kept,) = recorder["0"].outputs
    assert isinstance(kept, Bag)
    assert dict(kept) == dict(recorder["1"].inputs[0]) == {"image": 1, "size": 2}


def test_packed_sequences_are_recorded_and_so_are_their_gradients() -> None:
    lstm, x = nn.LSTM(2, 3), torch.randn(5, 2, requires_grad=True)
    packed = nn.utils.rnn.pack_sequence([x[:3], x[3:]])
    with Recorder(lstm, inputs=True, gradients=True) as recorder:
        lstm(packed)[0].data.sum().backward()
    assert torch.equal(recorder[""].inputs[0].batch_sizes, packed.batch_sizes)
    gradient = recorder[""].grad_inputs[0]
    assert type(gradient) is type(packed)
    torch.testing.assert_close(gradient.data, x.grad[[0, 3, 1, 4, 2]])
    assert gradient.batch_sizes is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_where_a_transformer_works_on_nested_tensors_these_are_recorded() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 4, 8)
    mask = torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.no_grad(), Recorder(encoder) as recorder:
        output = encoder(x, src_key_padding_mask=mask)
    kept = recorder["layers.0"].outputs[0]
    assert kept.is_nested
    assert torch.equal(kept.to_padded_tensor(0.0), output)
    assert recorder["layers.0"].shape is None


def test_lazy_modules_are_recorded_from_their_first_forward_on() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    with Recorder(model, inputs=True) as recorder:
        output = model(x := torch.ones(1, 2))
    assert torch.equal(recorder["1"].outputs[0], output)
    assert torch.equal(recorder["0"].inputs[0], x)


def test_of_a_tensor_a_small_part_keeps_no_more_than_itself_in_memory() -> None:
    first_token = Apply(lambda tokens: tokens[:, 0])
    model = nn.Sequential(nn.Linear(4, 4), first_token, nn.Linear(4, 4))
    with torch.no_grad(), Recorder(model, "2", inputs=True) as recorder:
        model(torch.randn(2, 50, 4))
    kept = recorder["2"].inputs[0]
    assert kept.untyped_storage().nbytes() == kept.nbytes


def test_what_a_layer_was_given_when_it_failed_is_there() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 1))
    with Recorder(model, inputs=True, gradients=True) as recorder:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(torch.ones(1, 2))
        model[1](torch.ones(1, 4))
    assert [tensor.shape[1] for tensor in recorder["1"].inputs] == [3, 4]
    assert recorder["1"].outputs[0] is None
    assert recorder["1"].outputs[1].shape == (1, 1)


@pytest.mark.parametrize(
    "kept", [{"device": "meta"}, {"dtype": torch.float16}, {"dtype": torch.float16, "keep": "max"}]
)
def test_records_are_kept_on_the_device_and_in_the_type_asked_for(kept) -> None:
    layer = nn.Linear(2, 2)
    with Recorder(layer, inputs=True, gradients=True, **kept) as recorder:
        layer(torch.ones(1, 2, requires_grad=True)).sum().backward()
    record = recorder[""]
    tensors = [record.inputs[0], record.outputs[0], record.grad_inputs[0], record.grad_outputs[0]]
    assert {tensor.device.type for tensor in tensors} == {kept.get("device", "cpu")}
    assert {tensor.dtype for tensor in tensors} == {kept.get("dtype", torch.float32)}


def test_what_counts_or_indexes_keeps_its_type() -> None:
    model = Apply(lambda x: (x, x.long(), x > 0))
    with Recorder(model, dtype=torch.float16) as recorder:
        model(torch.ones(2))
    assert [tensor.dtype for tensor in recorder[""].outputs[0]] == [torch.float16, torch.int64, torch.bool]


@pytest.mark.parametrize("inplace", [False, True])
def test_on_their_graph_gradients_can_be_taken_at_what_was_kept(inplace, x) -> None:
    model = net(inplace=inplace)
    with Recorder(model, ["2", "5"], inputs=True, gradients=True, graph=True) as recorder:
        score = model(x)[:, 1].sum()
        (gradient,) = torch.autograd.grad(score, recorder["2"].outputs[0], create_graph=True)
        assert torch.equal(recorder["2"].grad_outputs[0], gradient)
    plain = net(inplace=False)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(gradient, torchs_own_gradients(plain, "2", x)[1], rtol=1e-12, atol=0)
    assert gradient.requires_grad
    torch.autograd.grad(recorder["5"].inputs[0].sum(), model[0].weight)  # from a layer's input to a weight before it


def test_only_what_is_asked_for_is_recorded() -> None:
    layer = nn.Linear(2, 2)
    with Recorder(layer, inputs=True, outputs=False) as recorder:
        layer(torch.ones(1, 2)).sum().backward()
    record = recorder[""]
    assert (len(record.inputs), record.outputs, record.grad_inputs, record.grad_outputs) == (1, [], [], [])
    assert record.shape == (1, 2)


# --------------------------------------------------------------------------------------------------- several forwards


LOADER = [torch.tensor([[1.0, -1.0], [2.0, -2.0]]), torch.tensor([[6.0, 3.0]])]


def over_the_loader(model: nn.Module, **options: Any) -> Recorder:
    with torch.inference_mode(), Recorder(model, **options) as recorder:
        for batch in LOADER:
            model(batch)
    return recorder


def largest_norm(so_far: float | None, tensor: Tensor) -> float:
    return max(so_far or 0, *tensor.norm(dim=1).tolist())


def test_of_a_loader_there_may_be_kept_each_the_last_all_in_one_or_a_reduction() -> None:
    model = nn.ReLU()

    def kept(keep: Any) -> Any:
        (entry,) = over_the_loader(model, keep=keep)[""].outputs
        return entry if keep in ("histogram", largest_norm) else entry.tolist()

    assert [entry.tolist() for entry in over_the_loader(model)[""].outputs] == [[[1, 0], [2, 0]], [[6, 3]]]
    assert kept("last") == [[6, 3]]
    assert kept("concat") == [[1, 0], [2, 0], [6, 3]]
    assert kept("mean") == kept(Mean) == kept(Mean()) == [3, 1]
    assert kept("max") == [6, 3]
    assert kept(Max(per=1)) == [6, 3]
    counts, edges, missed = kept("histogram")
    assert (counts.sum(), counts[0], missed) == (6, 2, 0)
    assert edges[0] <= 0 <= 6 <= edges[-1]
    assert kept(largest_norm) == pytest.approx(45**0.5)


def test_each_layer_and_each_tensor_has_a_reducer_of_its_own() -> None:
    reducer = Mean()
    model = nn.Sequential(nn.ReLU(), Apply(lambda x: (x, 10 * x)))
    recorder = over_the_loader(model, layers=["0", "1"], keep=reducer, inputs=True)
    assert recorder["0"].outputs[0].tolist() == recorder["1"].inputs[0].tolist() == [3, 1]
    assert recorder["0"].inputs[0].tolist() == [3, 0]
    assert [tensor.tolist() for tensor in recorder["1"].outputs[0]] == [[3, 1], [30, 10]]
    assert reducer.result() is None


def test_gradients_are_reduced_too() -> None:
    model = nn.Sequential(nn.ReLU())
    with Recorder(model, "0", gradients=True, keep="mean") as recorder:
        assert recorder["0"].grad_inputs == []
        for batch in LOADER:
            output = model(batch.clone().requires_grad_())
            assert len(recorder["0"].grad_inputs) == 1
            (output * torch.tensor([1.0, 5.0])).sum().backward()
    assert recorder["0"].grad_outputs[0].tolist() == [1, 5]
    torch.testing.assert_close(recorder["0"].grad_inputs[0], torch.tensor([1.0, 5 / 3]))


def test_what_is_concatenated_is_joined_once_and_again_when_there_is_more() -> None:
    model = Apply(lambda x: {"itself": x, "sum": x.sum(), "text": "same"})
    recorder = over_the_loader(model, keep="concat")
    joined = recorder[""].outputs[0]
    assert joined["itself"].shape == (3, 2)
    assert joined["sum"].tolist() == [0, 9]
    assert joined["text"] == "same"
    assert recorder[""].outputs[0]["itself"] is joined["itself"]
    with recorder:
        model(LOADER[0])
    assert recorder[""].outputs[0]["itself"].shape == (5, 2)


def test_gradients_are_concatenated_when_all_have_come() -> None:
    model = nn.Sequential(nn.ReLU())
    with Recorder(model, "0", gradients=True, keep="concat") as recorder:
        outputs = [model(batch.clone().requires_grad_()) for batch in LOADER]
        outputs[1].sum().backward()
        assert recorder["0"].grad_outputs == [None]
        (2 * outputs[0]).sum().backward()
    assert recorder["0"].grad_outputs[0].tolist() == [[2, 2], [2, 2], [1, 1]]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x) + self.relu(-x[:, :1])


@pytest.mark.parametrize(
    ("keep", "entries"),
    [
        ("all", [[[1, 0], [2, 0]], [[0], [0]], [[6, 3]], [[0]]]),
        ("last", [[[6, 3]], [[0]]]),
        ("concat", [[[1, 0], [2, 0], [6, 3]], [[0], [0], [0]]]),
        ("max", [[6, 3], [0]]),
    ],
)
def test_every_call_in_a_forward_has_an_entry_and_a_person_is_told(keep, entries) -> None:
    with pytest.warns(
        SeveralCallsWarning, match=r"layer 'relu' ran 2 times in one forward; the record has an entry for each"
    ):
        recorder = over_the_loader(Shared(), layers="relu", keep=keep)
    assert [entry.tolist() for entry in recorder["relu"].outputs] == entries
    assert (recorder["relu"].calls, recorder["relu"].most_calls) == (4, 2)


def test_of_a_module_used_twice_every_call_is_recorded(x) -> None:
    same = nn.Linear(2, 2)
    with (
        pytest.warns(SeveralCallsWarning, match="layer '0' ran 2 times"),
        Recorder(model := nn.Sequential(same, nn.Tanh(), same), gradients=True) as recorder,
    ):
        model(torch.ones(1, 2)).sum().backward()
    assert [len(record.outputs) for _, record in recorder] == [1, 2, 1]  # the model, the layer, the tanh
    assert recorder["0"].grad_outputs[1].tolist() == [[1, 1]]


def test_the_warning_names_the_line_and_comes_once() -> None:
    model = nn.Sequential(Shared(), Shared())
    recorder = Recorder(model)
    message = "'0.relu' ran 2 times in one forward, and 1 more ran several times"
    with pytest.warns(SeveralCallsWarning, match=message) as caught, recorder:
        model(torch.ones(1, 2))
    assert [warning.filename for warning in caught] == [__file__]
    recorder.run(torch.ones(1, 2))  # where a second warning would be an error
    with pytest.warns(SeveralCallsWarning, match=message) as caught:
        Recorder(model).run(torch.ones(1, 2))
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_does_not_hide_an_error() -> None:
    model = Shared()
    with pytest.raises(KeyError, match="mine"), Recorder(model):  # noqa: PT012
        model(torch.ones(1, 2))
        raise KeyError("mine")


def test_a_part_of_the_model_called_by_itself_is_a_forward_of_its_own() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    with Recorder(model, keep="mean") as recorder:
        for batch in LOADER:
            model[0](batch)
    assert recorder["0"].outputs[0].tolist() == [3, 1]


def test_what_cannot_be_joined_or_reduced_is_named() -> None:
    unequal = Apply(lambda x: x[:, : len(x)])
    with pytest.raises(LayerError, match=r"layer '': its outputs do not have the same shape in each forward.*'all'"):
        over_the_loader(unequal, keep="concat")[""].outputs  # noqa: B018
    several = Apply(lambda x: list(x))
    with pytest.raises(LayerError, match=r"layer '': its outputs were 2 tensors in one forward and 1 in another"):
        over_the_loader(several, keep="mean")
    with pytest.raises(LayerError, match="do not have the same shape"):
        over_the_loader(several, keep="concat")[""].outputs  # noqa: B018
    with pytest.raises(
        LayerError, match=r"layer '', outputs: Mean: a tensor came that gives \(1,\) values, after .* \(2,\)"
    ):
        over_the_loader(unequal, keep="mean")


def test_a_record_shows_itself_also_where_it_cannot_be_joined() -> None:
    recorder = over_the_loader(Apply(lambda x: x[:, : len(x)]), keep="concat")
    assert repr(recorder[""]) == "Record('', calls=2, shape=(1, 1), outputs=1)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "maen"}, r"no 'maen'; choose one of all, last, .*Did you mean 'mean'"),
        ({"keep": 3}, "keep must be a name, a reducer or a function, not 3"),
        ({"keep": "mean", "graph": True}, "graph=True keeps every forward's graph"),
        ({"edit": {"": 0}}, "edit: 0 is no function"),
        ({"edit_inputs": ["0"]}, r"edit_inputs must map layers to functions, .* not \['0'\]"),
        ({"dtype": "half"}, "dtype must be one of torch's, torch.float16 say, not 'half'"),
        ({"device": "gpu"}, "torch knows no 'gpu'; give 'cpu', 'cuda' or"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message) -> None:
    with pytest.raises(CamtoolError, match=message):
        Recorder(nn.ReLU(), **options)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(CamtoolError, match=r"model is a str, no torch\.nn\.Module; .* The model comes first"):
        Recorder("layer4", nn.ReLU())


def test_a_recorder_may_be_entered_again_and_adds_to_its_records(x) -> None:
    model = net(inplace=True)
    recorder = Recorder(model, "2")
    for _ in range(2):
        with recorder:
            model(x)
    assert len(recorder["2"].outputs) == 2
    assert hooks_on(model) == 0


def test_entered_twice_at_once_it_records_once_and_leaves_no_hook(x) -> None:
    model = net(inplace=True)
    with (recorder := Recorder(model, "2")), recorder:
        model(x)
    assert len(recorder["2"].outputs) == 1
    assert hooks_on(model) == 0


# -------------------------------------------------------------------------------------------------------------- edits


def one_more_in_place(tensor: Tensor) -> None:
    tensor += 1


def test_edits_change_what_goes_on_and_the_record_shows_it() -> None:
    model = nn.Sequential(identity_layer(2), nn.ReLU(), identity_layer(2))
    x = torch.tensor([[1.0, -1.0]], requires_grad=True)
    with Recorder(
        model,
        inputs=True,
        gradients=True,
        edit_inputs={"0": scale(3)},
        edit={"1": lambda tensor: tensor + 1, nn.Linear: scale(2)},
        edit_gradients={"2": scale(10)},
    ) as recorder:
        output = model(x)
        output.sum().backward()
    assert recorder["0"].inputs[0].tolist() == [[3, -3]]
    assert recorder["0"].outputs[0].tolist() == [[6, -6]]
    assert recorder["1"].outputs[0].tolist() == [[7, 1]]
    assert output.tolist() == recorder["2"].outputs[0].tolist() == [[14, 2]]
    assert recorder["2"].grad_outputs[0].tolist() == [[10, 10]]
    assert recorder["2"].grad_inputs[0].tolist() == [[20, 20]]
    assert recorder["0"].grad_inputs[0].tolist() == [[40, 0]]  # the layer's own part of ...
    assert x.grad.tolist() == [[120, 0]]


@pytest.mark.parametrize(
    ("edit", "output", "gradient"),
    [
        (scale(3), [3, -6, 9], [3, 3, 3]),
        (clip(-1, 2), [1, -1, 2], [1, 0, 0]),
        (clip(low=0), [1, 0, 3], [1, 0, 1]),
        (zero(), [0, 0, 0], [0, 0, 0]),
        (replace(4), [4, 4, 4], [0, 0, 0]),
        (replace(torch.tensor([7, 8, 9])), [7, 8, 9], [0, 0, 0]),
        (one_more_in_place, [2, -1, 4], [1, 1, 1]),
    ],
)
def test_ready_made_edits_of_an_output(edit, output, gradient) -> None:
    model, x = identity_layer(3), torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    with Recorder(model, edit={"": edit}) as recorder:
        returned = model(x)
        returned.sum().backward()
    assert returned.tolist() == recorder[""].outputs[0].tolist() == output
    assert x.grad.tolist() == gradient


@pytest.mark.parametrize(
    ("edit", "gradient"),
    [(scale(3), [3, -6]), (clip(-1, 2), [1, -1]), (zero(), [0, 0]), (replace(4), [4, 4])],
)
def test_ready_made_edits_of_a_gradient(edit, gradient) -> None:
    model, x = identity_layer(2), torch.ones(2, requires_grad=True)
    with Recorder(model, gradients=True, edit_gradients={"": edit}) as recorder:
        model(x).backward(torch.tensor([1.0, -2.0]))
    assert recorder[""].grad_outputs[0].tolist() == x.grad.tolist() == gradient


def test_noise_is_other_noise_at_each_call_and_the_same_for_each_seed() -> None:
    model, x = nn.Identity(), torch.ones(5, dtype=torch.float64)
    state = torch.get_rng_state()

    def outputs(seed: int) -> list[Tensor]:
        with Recorder(model, edit={"": add_noise(0.1, seed)}) as recorder:
            model(x), model(x)
        return recorder[""].outputs

    first, second = outputs(3)
    dice = torch.Generator().manual_seed(3)
    assert torch.equal(first, x + 0.1 * torch.randn(5, generator=dice).double())
    assert torch.equal(second, x + 0.1 * torch.randn(5, generator=dice).double())
    assert not torch.equal(first, second)
    assert all(map(torch.equal, outputs(3), [first, second]))
    assert not torch.equal(outputs(4)[0], first)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_edit_is_given_the_first_floating_tensor_and_the_others_stay() -> None:
    lstm = nn.LSTM(2, 3)
    x, alone = torch.randn(4, 1, 2), nn.LSTM(2, 3)
    alone.load_state_dict(lstm.state_dict())
    output, (h, _) = alone(x)
    with Recorder(lstm, edit={"": scale(2)}):
        doubled, (same, _) = lstm(x)
    assert torch.equal(doubled, 2 * output)
    assert torch.equal(same, h)
    model = Structured()
    with Recorder(model, edit_inputs={"": replace(5)}):
        assert model(torch.ones(2), mask=torch.tensor([True, True]), factor=1)["sum"] == 10


def test_edits_need_no_records_and_act_in_the_block_alone() -> None:
    model, x = nn.Sequential(identity_layer(2), nn.Tanh()), torch.ones(2, requires_grad=True)
    with Recorder(model, [], edit={"*": zero()}, edit_gradients={"0": scale(2)}) as recorder:
        assert model(x).tolist() == [0, 0]
        output = model[0](x)
    output.sum().backward()
    assert len(recorder) == 0
    assert torch.equal(model(x), x.tanh())
    assert not x._backward_hooks
    assert hooks_on(model) == 0


def test_a_gradient_is_not_edited_after_the_block() -> None:
    model, x = identity_layer(1), torch.ones(1, requires_grad=True)
    with Recorder(model, edit_gradients={"": scale(2)}):
        output = model(x)
    output.backward()
    assert x.grad.tolist() == [1]


def test_an_edit_of_a_gradient_is_one_of_the_gradient_at_that_output_alone() -> None:
    model, x = Residual(nn.Identity()), torch.ones(2, requires_grad=True)
    with Recorder(model, edit_gradients={"shortcut": scale(5)}):
        model(x).sum().backward()
    assert x.grad.tolist() == [7, 7]  # 2 by the other branch


def test_where_a_layer_returns_its_parameter_the_gradient_is_edited_once_in_each_pass() -> None:
    weight = nn.Parameter(torch.ones(1))
    returns_it = Apply(lambda _: weight)
    with Recorder(returns_it, gradients=True, edit_gradients={"": scale(10)}) as recorder:
        for factor in (1, 2, 3):
            (factor * returns_it(torch.ones(1))).sum().backward()
    assert [gradient.tolist() for gradient in recorder[""].grad_outputs] == [[10], [20], [30]]
    assert weight.grad.tolist() == [60]


@pytest.mark.parametrize("layer", ["0", "1", "2"])
def test_a_gradient_is_edited_also_where_a_view_is_written_to_in_place(layer) -> None:
    model, x = nn.Sequential(identity_layer(2), nn.Unflatten(1, (2, 1)), nn.ReLU(True)), torch.tensor([[1.0, -1.0]])
    with Recorder(model, edit_gradients={layer: scale(3)}):
        model(x.requires_grad_()).sum().backward()
    assert x.grad.tolist() == [[3, 0]]


def test_an_edited_gradient_keeps_its_shape() -> None:
    model = nn.Sequential(identity_layer(2))
    with Recorder(model, edit_gradients={"0": lambda gradient: gradient[:, :1]}):
        output = model(torch.ones(1, 2)).sum()
        with pytest.raises(CamtoolError, match=r"edit_gradients of layer '0': it returned .* \(1, 1\) for .* \(1, 2\)"):
            output.backward()


def test_an_edit_that_returns_no_tensor_is_named() -> None:
    model = nn.Sequential(nn.ReLU())
    with pytest.raises(CamtoolError, match=r"edit of layer '0': it returned int; return a tensor, or nothing"):
        Recorder(model, edit={"0": lambda _: 3}).run(torch.ones(1))
    counts = Apply(lambda x: x.long())
    with pytest.raises(LayerError, match="layer '' has no floating tensor there that could be edited"):
        Recorder(counts, edit={"": zero()}).run(torch.ones(1))
    assert hooks_on(model) == hooks_on(counts) == 0


# ------------------------------------------------------------------------------------------------------ ending early


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return x + 1


def test_a_run_may_end_as_soon_as_the_last_recorded_layer_has_run() -> None:
    model = nn.Sequential(Counted(), nn.Sequential(Counted(), Counted()), Counted())
    recorder = Recorder(model, ["1.0", "0"], stop_after_last=True)
    assert recorder.run(torch.zeros(1)) is None
    assert [record.outputs[0].item() for _, record in recorder] == [2, 1]
    assert [module.runs for module in model.modules() if isinstance(module, Counted)] == [1, 1, 0, 0]
    with recorder:
        assert model(torch.zeros(1)).item() == 4  # the model's own call is not cut short
        assert recorder.run([torch.zeros(1)]) is None
    assert len(recorder["0"].outputs) == 3
    assert hooks_on(model) == 0


def test_without_it_a_run_gives_the_output() -> None:
    model = nn.Sequential(Counted(), Counted())
    recorder = Recorder(model, "0")
    assert recorder.run(torch.zeros(1)).item() == 2
    whole = Recorder(model, stop_after_last=True)
    assert whole.run(torch.zeros(1)).item() == 2  # as the model itself is recorded
    assert whole["1"].outputs[0].item() == 2


class Guarded(nn.Module):
    """Goes on where a part of it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.rest = Counted(), Counted()

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.part(x)
        except Exception:  # noqa: BLE001
            return x
        return self.rest(x)


def test_a_model_that_catches_errors_does_not_catch_the_end() -> None:
    model = Guarded()
    assert Recorder(model, "part", stop_after_last=True).run(torch.zeros(1)) is None
    assert model.rest.runs == 0


def test_of_nested_recorders_each_ends_its_own_run() -> None:
    model = nn.Sequential(Counted(), Counted(), Counted())
    outer, inner = Recorder(model, "1", stop_after_last=True), Recorder(model, ["0"], stop_after_last=True)
    with outer:
        assert inner.run(torch.zeros(1)) is None
        assert outer["1"].calls == 0
        assert inner["0"].calls == 1
        with inner:
            assert outer.run(torch.zeros(1)) is None
    assert (outer["1"].calls, inner["0"].calls, model[2].runs) == (1, 2, 0)


class Runs(nn.Module):
    """Has a part of it run by a recorder."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.recorder = part, Recorder(part, "1", stop_after_last=True)

    def forward(self, x: Tensor) -> Tensor:
        assert self.recorder.run(x) is None
        return x + 1


def test_a_run_inside_another_lets_the_others_end_pass() -> None:
    model = Runs(nn.Sequential(Counted(), Counted(), Counted()))
    assert Recorder(model, "part.0", stop_after_last=True).run(torch.zeros(1)) is None
    assert [module.runs for module in model.part] == [1, 0, 0]
    assert model(torch.zeros(1)).item() == 1
    assert [module.runs for module in model.part] == [2, 1, 0]


def test_calls_that_never_ended_hold_nothing() -> None:
    model = nn.Sequential(nn.Sequential(identity_layer(2), nn.ReLU()), Counted())
    outer = Recorder(model, ["0", ""], gradients=True, keep="last")
    inner = Recorder(model, "0.0", stop_after_last=True)

    def run(times: int) -> int:
        for _ in range(times):
            inner.run(torch.ones(1, 2, requires_grad=True))
        inner["0.0"]._seen.clear()
        gc.collect()
        return live_tensors()

    with outer:
        assert run(2) == run(5)
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert outer["0"].grad_inputs[-1].tolist() == [[1, 1]]
    assert (outer["0"].calls, outer[""].calls) == (8, 8)


def test_an_error_in_a_run_comes_out() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(2, 1))
    recorder = Recorder(model, "1", stop_after_last=True)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        recorder.run(torch.ones(1, 3))
    assert hooks_on(model) == 0
    assert recorder.run(torch.ones(1, 2)) is None


# --------------------------------------------------------------------------------------------- nothing is left behind


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_leaving_removes_every_hook_also_after_an_exception(error, x) -> None:
    model = net(inplace=True)
    x.requires_grad_()
    with pytest.raises(error), Recorder(model, inputs=True, gradients=True) as recorder:  # noqa: PT012
        assert hooks_on(model) >= 2 * len(recorder)
        model(x)
        assert x._backward_hooks
        raise error
    assert hooks_on(model) == 0
    assert not x._backward_hooks


def fails(*_: Any) -> Any:
    raise ZeroDivisionError("midway")


@pytest.mark.parametrize("where", ["edit", "edit_inputs", "edit_gradients", "the model", "a reducer"])
def test_nothing_is_left_when_something_fails_midway(where, x) -> None:
    model = net(inplace=True)
    options: dict[str, Any] = {where: {"3": fails}} if where.startswith("edit") else {}
    if where == "the model":
        model.insert(3, Apply(fails))
    if where == "a reducer":
        options["keep"] = fails
    x.requires_grad_()
    with pytest.raises(ZeroDivisionError, match="midway"), Recorder(model, gradients=True, **options):
        model(x).sum().backward()
    assert hooks_on(model) == 0
    assert not x._backward_hooks


def test_when_a_hook_cannot_be_registered_none_is_left(monkeypatch) -> None:
    model = net(inplace=True)
    monkeypatch.setattr(model[5], "register_forward_hook", lambda *_, **__: fails())
    with pytest.raises(ZeroDivisionError), Recorder(model, inputs=True):
        pytest.fail("the block was entered")
    assert hooks_on(model) == 0


def test_what_happens_after_the_block_is_not_recorded(x) -> None:
    model = net(inplace=True)
    with Recorder(model, "2", gradients=True) as recorder:
        output = model(x)
    output.sum().backward()
    model(x)
    assert recorder["2"].grad_outputs == [None]
    assert recorder["2"].grad_inputs == [None]


def test_a_copy_of_the_model_made_in_the_block_is_neither_recorded_nor_edited_after_it(x) -> None:
    model = net(inplace=True)
    with Recorder(model, "2", inputs=True, edit={"5": zero()}, edit_inputs={"2": zero()}) as recorder:
        copied = copy.deepcopy(model)
    assert torch.equal(copied(x), model(x))
    assert copied(x).any()
    assert recorder["2"].calls == 0


def live_tensors() -> int:
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize(
    "options", [{}, {"gradients": True}, {"gradients": True, "inputs": True, "graph": True}, {"keep": "mean"}]
)
def test_what_a_recorder_held_goes_with_it_and_without_the_garbage_collector(options, x) -> None:
    model = net(inplace=True)
    x.requires_grad_()

    def record() -> None:
        with Recorder(model, edit_gradients={"2": scale(2)}, **options) as recorder:
            score = model(x).sum()
            torch.autograd.grad(score, [x, *model.parameters()], create_graph="graph" in options)
        assert recorder["2"].outputs[0].requires_grad is ("graph" in options)

    record()
    gc.collect()
    before = live_tensors()
    gc.disable()
    try:
        for _ in range(5):
            record()
        assert live_tensors() <= before
    finally:
        gc.enable()


def test_hooks_on_inputs_go_with_these(x) -> None:
    model = net(inplace=True)
    with Recorder(model, gradients=True, keep="mean") as recorder:
        for _ in range(3):
            model(x.clone().requires_grad_()).sum().backward()
            assert not recorder._leaf_hooks


def test_recorders_may_be_nested_and_leave_each_others_hooks_alone(x) -> None:
    model = net(inplace=True)
    with Recorder(model, "2", gradients=True) as outer:
        with Recorder(model, ["2", "3"], gradients=True) as inner:
            model(x).sum().backward()
        model(x)
    assert hooks_on(model) == 0
    assert len(outer["2"].outputs) == 2
    assert len(inner["2"].outputs) == 1
    torch.testing.assert_close(outer["2"].grad_outputs[0], inner["2"].grad_outputs[0], rtol=0, atol=0)


def test_what_an_inner_recorder_edits_an_outer_one_records() -> None:
    model = nn.Sequential(identity_layer(1))
    with Recorder(model, "0") as outer, Recorder(model, "0", edit={"0": scale(2)}) as inner:
        model(torch.ones(1))
    assert outer["0"].outputs[0].item() == inner["0"].outputs[0].item() == 2
    with (
        Recorder(model, "0", inputs=True, edit_inputs={"0": lambda tensor: tensor + 1}) as outer,
        Recorder(model, [], edit_inputs={"0": scale(5)}),
    ):
        model(torch.ones(1))
    assert outer["0"].inputs[0].item() == outer["0"].outputs[0].item() == 6  # the inner one's comes first


def test_a_forward_in_another_thread_is_neither_recorded_nor_edited(x) -> None:
    model = net(inplace=True)
    outputs: list[Tensor] = []
    with Recorder(model, inputs=True, gradients=True, edit={"2": zero()}) as recorder:
        thread = threading.Thread(target=lambda: outputs.append(model(x)))
        thread.start()
        thread.join()
    assert torch.equal(outputs[0], model(x))
    assert all(not record.outputs and not record.inputs for _, record in recorder)


def test_each_thread_has_a_recorder_of_its_own_on_one_model() -> None:
    model = nn.Sequential(identity_layer(2), nn.ReLU(), identity_layer(2))
    together, wrong = threading.Barrier(2), []

    def rounds(value: float) -> None:
        together.wait()
        for _ in range(100):
            with Recorder(model, "*", keep="max", edit={"0": scale(value)}) as recorder:
                for _ in range(3):
                    model(torch.ones(1, 2))
            if recorder["2"].outputs[0].tolist() != [value, value] or recorder["1"].calls != 3:
                wrong.append(value)

    threads = [threading.Thread(target=rounds, args=(value,)) for value in (2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert hooks_on(model) == 0


def test_in_the_block_of_one_thread_another_is_turned_away() -> None:
    model, refused = nn.Sequential(nn.ReLU()), []
    recorder = Recorder(model)

    def enter() -> None:
        with pytest.raises(CamtoolError, match="give each thread a Recorder of its own"):
            recorder.run(torch.ones(1))
        refused.append(True)

    with recorder:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        model(torch.ones(1))
    assert refused == [True]
    assert recorder["0"].calls == 1
    assert hooks_on(model) == 0


# -------------------------------------------------------------------------------------------------- choosing, showing


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.conv1(x))


def stages() -> nn.Sequential:
    model = nn.Sequential()
    for name in ("layer1", "layer2", "head"):
        model.add_module(name, Stage())
    model.add_module("again", model.layer1.conv1)
    return model


def test_layers_are_chosen_by_name_wildcard_type_function_module_or_a_list_of_these() -> None:
    model = stages()
    convolutions = [f"{stage}.{conv}" for stage in ("layer1", "layer2", "head") for conv in ("conv1", "conv2")]
    assert select(model, None) == list(dict(model.named_modules()))
    assert select(model, "layer1") == ["layer1"]
    assert select(model, "") == [""]
    assert select(model, "layer*.conv1") == ["layer1.conv1", "layer2.conv1"]
    assert select(model, "layer?") == ["layer1", "layer2"]
    assert select(model, nn.Conv2d) == convolutions
    assert select(model, lambda name, module: name.startswith("head") and isinstance(module, nn.Conv2d)) == [
        "head.conv1",
        "head.conv2",
    ]
    assert select(model, model.layer2.conv1) == ["layer2.conv1"]
    assert select(model, ["head", "layer?", nn.Conv2d, model.head]) == ["head", "layer1", "layer2", *convolutions]
    assert select(model, "again") == select(model, "ag*") == ["again"]  # a second name of a layer
    assert select(model, []) == []


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("layer3", r"no layer 'layer3'\. Did you mean 'layer[12]'"),
        (["layer1", "layer3"], "no layer 'layer3'"),
        ("layr*.conv1", r"no layer 'layr\*\.conv1'\. Did you mean 'layer[12]\.conv1'"),
        ("LAYER*", r"no layer 'LAYER\*'"),
        (nn.Conv3d, r"no layer of type Conv3d\. Did you mean 'Conv2d'\?"),
        (lambda name, module: False, "the function is true of no layer"),
        (nn.ReLU(), "this ReLU is not a module of the model"),
        (3, "3 is no name, wildcard, type, module, or function"),
    ],
)
def test_what_matches_no_layer_is_an_error_with_near_names(which, message) -> None:
    model = stages()
    with pytest.raises(LayerError, match=message):
        Recorder(model, which)
    with pytest.raises(LayerError, match=message):
        Recorder(model, edit={which if not isinstance(which, list) else which[1]: zero()})
    assert hooks_on(model) == 0


def with_a_script(part: nn.Module) -> nn.Sequential:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.ReLU(), torch.jit.script(part), nn.Tanh())


def test_modules_of_torchscript_are_left_out_or_refused_by_name() -> None:
    model = with_a_script(nn.Linear(2, 2))
    with Recorder(model, inputs=True, gradients=True) as recorder:
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert [name for name, _ in recorder] == ["", "0", "2"]
    assert recorder["0"].grad_outputs[0].shape == recorder["2"].grad_inputs[0].shape == (1, 2)
    for which in ("1", model[1], torch.jit.ScriptModule, ["0", "1"]):
        with pytest.raises(LayerError, match="layer '1' is TorchScript, whose modules take no hooks; record the"):
            select(model, which)


def test_a_record_is_found_by_its_module_too() -> None:
    model = stages()
    recorder = Recorder(model, nn.Conv2d)
    assert recorder[model.layer2.conv1] is recorder["layer2.conv1"]
    assert model.layer2.conv1 in recorder
    assert model.layer2 not in recorder
    with pytest.raises(LayerError, match="layer 'layer2' is not recorded"):
        recorder[model.layer2]
    with pytest.raises(LayerError, match="this ReLU is not a module of the model"):
        recorder[nn.ReLU()]


def test_a_record_that_is_not_there_is_named_with_near_ones() -> None:
    recorder = Recorder(stages(), "layer1")
    with pytest.raises(LayerError, match=r"'layer' is not recorded\. Did you mean 'layer1'\?"):
        recorder["layer"]
    assert "layer1" in recorder
    assert "layer2" not in recorder


def test_it_shows_as_a_table() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    with Recorder(model, inputs=True, gradients=True) as recorder:
        model(torch.ones(1, 1, 4, 4))
        model[0](torch.ones(1, 1, 5, 5))
    assert repr(recorder).splitlines() == [
        "Recorder of Sequential, 3 layers",
        "  layer    module      calls  shape",
        "  (model)  Sequential  1      (1, 2, 2, 2)",
        "  0        Conv2d      2      (1, 2, 3, 3)",
        "  1        ReLU        1      (1, 2, 2, 2)",
    ]
    assert repr(recorder["0"]) == (
        "Record('0', calls=2, shape=(1, 2, 3, 3), inputs=2, outputs=2, grad_inputs=2, grad_outputs=2)"
    )
    assert "-" in repr(Recorder(model, "0"))


# ------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["mean", "max", Histogram(per=1), "last"])
def test_memory_is_flat_over_a_thousand_batches(keep) -> None:
    from test_no_trace import resident_mib

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3))
    dice = torch.Generator().manual_seed(0)

    def run(times: int) -> tuple[int, float]:
        for _ in range(times):
            model(torch.randn(4, 3, 16, 16, generator=dice).requires_grad_()).sum().backward()
        gc.collect()
        return live_tensors(), resident_mib()

    with Recorder(model, inputs=True, gradients=True, keep=keep) as recorder:
        (tensors_before, mib_before), (tensors, mib) = run(100), run(1000)
    assert recorder["2"].calls == 1100
    assert tensors <= tensors_before
    assert mib - mib_before < 4


def test_a_running_forward_can_be_looked_at_too() -> None:
    model, seen = nn.Sequential(identity_layer(2), nn.Tanh()), []
    with Recorder(model) as recorder:
        with Cleanup() as cleanup:
            add_forward_hook(cleanup, model[1], lambda *_: seen.append(recorder["0"].outputs[0].tolist()))
            model(torch.ones(1, 2))
        assert seen == [[[1, 1]]]
        assert [record.calls for _, record in recorder] == [1, 1, 1]


@pytest.mark.parametrize("options", [{}, {"inputs": True}])
def test_of_the_latest_forward_there_is_nothing_from_a_layer_that_did_not_run_in_it(options) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.at_times = identity_layer(2), identity_layer(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.at_times(self.always(x)) if x.sum() > 0 else self.always(x)

    with Recorder(model := Branching(), keep="last", **options) as recorder:
        model(torch.ones(1, 2))
        assert len(recorder["at_times"].outputs) == 1
        model(-torch.ones(1, 2))
    assert recorder["at_times"].outputs == []
    assert recorder["always"].outputs[0].tolist() == [[-1, -1]]


def test_a_list_that_the_model_changes_later_on_is_recorded_as_it_was() -> None:
    class Listing(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [x, x + 1]

    class Popping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.listing = Listing()

        def forward(self, x: Tensor) -> Tensor:
            both = self.listing(x)
            both.pop().mul_(0)
            return both[0]

    with Recorder(model := Popping(), "listing") as recorder:
        model(torch.ones(2))
    assert [each.tolist() for each in recorder["listing"].outputs[0]] == [[1, 1], [2, 2]]


def test_where_edits_are_all_that_is_asked_for_the_edited_layers_are_recorded() -> None:
    model = nn.Sequential(identity_layer(2), relu := nn.ReLU(), relu, identity_layer(2))
    edits = {"edit": {"3": scale(2)}, "edit_inputs": {nn.Linear: scale(3)}, "edit_gradients": {"0": zero()}}
    with Recorder(model, **edits) as recorder:  # and no word of the ReLU that runs twice
        model(torch.ones(1, 2))
    assert [name for name, _ in recorder] == ["3", "0"]
    assert recorder["3"].outputs[0].tolist() == [[18, 18]]
    assert len(Recorder(model, "*", **edits)) == len(Recorder(model)) == 4


def test_another_thread_that_looks_on_sees_the_forwards_that_have_ended_and_loses_nothing() -> None:
    model, seen = nn.Sequential(identity_layer(2), nn.Tanh()), []
    with Recorder(model, "0") as recorder:

        def let_another_look_on(*_: object) -> None:
            thread = threading.Thread(target=lambda: seen.append(recorder["0"].calls))
            thread.start()
            thread.join()

        with Cleanup() as cleanup:
            add_forward_hook(cleanup, model[1], let_another_look_on)
            model(torch.ones(1, 2))
    assert seen == [0]
    assert len(recorder["0"].outputs) == recorder["0"].calls == 1
