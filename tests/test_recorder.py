"""The recorder: inputs, outputs and gradients as they were, and nothing of it left behind."""

from __future__ import annotations

import copy
import threading
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from camtool import Recorder
from camtool.errors import LayerError


def net(*, inplace: bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace), nn.Conv2d(4, 5, 3), nn.ReLU(inplace), nn.Flatten(), nn.Linear(80, 2)
    ).double()


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


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layer", ["0", "1", "2", "3", "4", "5"])
def test_gradients_are_those_of_torchs_module_hooks_also_around_in_place_operations(layer, inplace, x) -> None:
    plain, model = net(inplace=False), net(inplace=inplace)
    model.load_state_dict(plain.state_dict())
    grad_input, grad_output = torchs_own_gradients(plain, layer, x)
    with Recorder(model, layer, gradients=True) as recorder:
        model(x.clone().requires_grad_())[:, 1].sum().backward()
    torch.testing.assert_close(recorder[layer].grad_inputs, [[grad_input]], rtol=1e-12, atol=0)
    torch.testing.assert_close(recorder[layer].grad_outputs, [grad_output], rtol=1e-12, atol=0)


def test_torchs_own_module_hooks_fail_around_in_place_operations(x) -> None:
    """Why the recorder has its own: should torch mend this, it can go."""
    with pytest.raises(RuntimeError, match="modified inplace"):
        torchs_own_gradients(net(inplace=True), "0", x)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_runs_and_learns_as_without_it(training, inplace, x) -> None:
    alone = net(inplace=inplace)
    alone.insert(1, nn.BatchNorm2d(4).double())
    alone.insert(2, nn.Dropout(0.4))
    alone.train(training)
    recorded = copy.deepcopy(alone)
    outputs = []
    for model, block in ((alone, nullcontext()), (recorded, Recorder(recorded, inputs=True, gradients=True))):
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


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"inputs": True},
        pytest.param({"gradients": True}, marks=pytest.mark.xfail(strict=True, reason="the layer is handed copies")),
    ],
)
def test_the_output_is_the_same_where_the_input_of_an_in_place_module_is_used_again(what) -> None:
    model, x = Reuses(), torch.randn(1, 3, 5, 5)
    expected = model(x)
    with Recorder(model, "relu", **what):
        assert torch.equal(model(x), expected)


def test_inputs_and_outputs_are_what_the_layer_got_and_gave(x) -> None:
    model = net(inplace=True)
    with Recorder(model, ["2", "3"], inputs=True) as recorder:
        model(x)
    convolved = model[2](model[:2](x))
    assert [len(args) for args in recorder["3"].inputs] == [1]
    torch.testing.assert_close(recorder["2"].inputs[0][0], model[:2](x))
    assert torch.equal(recorder["2"].outputs[0], convolved)
    assert torch.equal(recorder["3"].inputs[0][0], convolved)
    assert torch.equal(recorder["3"].outputs[0], convolved.relu())
    assert not recorder["2"].outputs[0].requires_grad


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


@pytest.mark.parametrize("last_only", [False, True])
def test_of_several_forwards_each_gradient_stands_beside_its_own_output(last_only) -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    ones = torch.ones(1, 1, requires_grad=True)
    with Recorder(layer, gradients=True, last_only=last_only) as recorder:
        total = sum(factor * layer(factor * ones) for factor in (2, 3, 4))
        total.backward()
    factors = [4] if last_only else [2, 3, 4]
    record = recorder[""]
    assert [value.item() for value in record.outputs] == factors
    assert [value.item() for value in record.grad_outputs] == factors
    assert [value.item() for (value,) in record.grad_inputs] == factors
    assert record.shape == (1, 1)
    assert len(recorder) == 1


def test_of_a_module_used_twice_every_call_is_recorded(x) -> None:
    same = nn.Linear(2, 2)
    with Recorder(model := nn.Sequential(same, nn.Tanh(), same), gradients=True) as recorder:
        model(torch.ones(1, 2)).sum().backward()
    assert [len(record.outputs) for _, record in recorder] == [1, 2, 1]  # the model, the layer, the tanh
    assert recorder["0"].grad_outputs[1].tolist() == [[1, 1]]


def test_records_are_kept_on_the_device_asked_for() -> None:
    layer = nn.Linear(2, 2)
    with Recorder(layer, inputs=True, gradients=True, device="meta") as recorder:
        layer(torch.ones(1, 2, requires_grad=True)).sum().backward()
    record = recorder[""]
    kept = [record.inputs[0][0], record.outputs[0], record.grad_inputs[0][0], record.grad_outputs[0]]
    assert [tensor.device.type for tensor in kept] == ["meta"] * 4


def test_only_what_is_asked_for_is_recorded() -> None:
    layer = nn.Linear(2, 2)
    with Recorder(layer, inputs=True, outputs=False) as recorder:
        layer(torch.ones(1, 2)).sum().backward()
    record = recorder[""]
    assert (len(record.inputs), record.outputs, record.grad_inputs, record.grad_outputs) == (1, [], [], [])
    assert record.shape is None


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_leaving_removes_every_hook_also_after_an_exception(error, x) -> None:
    model = net(inplace=True)
    with pytest.raises(error), Recorder(model, inputs=True, gradients=True) as recorder:  # noqa: PT012
        assert hooks_on(model) == 2 * len(recorder)
        model(x)
        raise error
    assert hooks_on(model) == 0


def test_what_happens_after_the_block_is_not_recorded(x) -> None:
    model = net(inplace=True)
    with Recorder(model, "2", gradients=True) as recorder:
        output = model(x)
    output.sum().backward()
    model(x)
    assert recorder["2"].grad_outputs == [None]
    assert recorder["2"].grad_inputs == [[None]]


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
    torch.testing.assert_close(outer["2"].grad_inputs[0], inner["2"].grad_inputs[0], rtol=0, atol=0)


def test_a_recorder_may_be_entered_again_and_adds_to_its_records(x) -> None:
    model = net(inplace=True)
    recorder = Recorder(model, "2")
    for _ in range(2):
        with recorder:
            model(x)
    assert len(recorder["2"].outputs) == 2
    assert hooks_on(model) == 0


def test_entered_twice_at_once_it_leaves_no_hook(x) -> None:
    model = net(inplace=True)
    with (recorder := Recorder(model, "2")), recorder:
        model(x)
    assert hooks_on(model) == 0


def test_unknown_layers_are_named_with_near_ones() -> None:
    model = nn.Sequential()
    model.add_module("layer4", nn.ReLU())
    with pytest.raises(LayerError, match=r"no layer 'layer5'\. Did you mean 'layer4'\?"):
        Recorder(model, ["layer4", "layer5"])
    with pytest.raises(LayerError, match=r"'layer' is not recorded\. Did you mean 'layer4'\?"):
        Recorder(model, "layer4")["layer"]
    assert hooks_on(model) == 0


def test_a_forward_in_another_thread_is_not_recorded(x) -> None:
    model = net(inplace=True)
    outputs: list[Tensor] = []
    with Recorder(model, inputs=True, gradients=True) as recorder:
        thread = threading.Thread(target=lambda: outputs.append(model(x)))
        thread.start()
        thread.join()
    assert torch.equal(outputs[0], model(x))
    assert all(not record.outputs and not record.inputs for _, record in recorder)
