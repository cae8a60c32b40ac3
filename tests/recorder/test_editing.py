"""Edits of inputs, outputs and gradients in a forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from camtool import Recorder
from camtool.errors import CamtoolError, LayerError
from camtool.recorder import (
    add_noise,
    clip,
    replace,
    scale,
    zero,
)
from tests.helpers.nets import Apply
from tests.recorder.models import (
    Residual,
    Structured,
    hooks_on,
    identity_layer,
)


def one_more_in_place(tensor: Tensor) -> None:
    tensor += 1


def test_an_edit_that_fails_is_named_and_no_hook_is_blamed() -> None:
    recorder = Recorder(nn.Sequential(nn.Linear(2, 3)), edit={"0": lambda tensor: tensor @ torch.eye(2)})
    expected = "edit of layer '0' failed with RuntimeError: mat1 and mat2"
    with pytest.raises(CamtoolError, match=expected):
        recorder.run(torch.rand(1, 2))


def test_edits_change_the_forward_pass_and_the_record() -> None:
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
def test_common_edits_of_an_output(edit, output, gradient) -> None:
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
def test_common_edits_of_a_gradient(edit, gradient) -> None:
    model, x = identity_layer(2), torch.ones(2, requires_grad=True)
    with Recorder(model, gradients=True, edit_gradients={"": edit}) as recorder:
        model(x).backward(torch.tensor([1.0, -2.0]))
    assert recorder[""].grad_outputs[0].tolist() == x.grad.tolist() == gradient


def test_noise_differs_between_calls_and_is_determined_by_the_seed() -> None:
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


def test_an_edit_gets_the_first_floating_tensor_only() -> None:
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


def test_edits_need_no_records_and_act_only_inside_the_block() -> None:
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


def test_an_edit_of_a_gradient_affects_that_output_only() -> None:
    model, x = Residual(nn.Identity()), torch.ones(2, requires_grad=True)
    with Recorder(model, edit_gradients={"shortcut": scale(5)}):
        model(x).sum().backward()
    assert x.grad.tolist() == [7, 7]  # 2 by the other branch


def test_the_gradient_of_a_returned_parameter_is_edited_once_per_backward_pass() -> None:
    weight = nn.Parameter(torch.ones(1))
    returns_it = Apply(lambda _: weight)
    with Recorder(returns_it, gradients=True, edit_gradients={"": scale(10)}) as recorder:
        for factor in (1, 2, 3):
            (factor * returns_it(torch.ones(1))).sum().backward()
    assert [gradient.tolist() for gradient in recorder[""].grad_outputs] == [[10], [20], [30]]
    assert weight.grad.tolist() == [60]


@pytest.mark.parametrize("layer", ["0", "1", "2"])
def test_a_gradient_is_edited_even_if_a_view_is_written_to_in_place(layer) -> None:
    model, x = nn.Sequential(identity_layer(2), nn.Unflatten(1, (2, 1)), nn.ReLU(True)), torch.tensor([[1.0, -1.0]])
    with Recorder(model, edit_gradients={layer: scale(3)}):
        model(x.requires_grad_()).sum().backward()
    assert x.grad.tolist() == [[3, 0]]


def test_an_edit_that_changes_the_shape_of_a_gradient_raises_an_error() -> None:
    model = nn.Sequential(identity_layer(2))
    with Recorder(model, edit_gradients={"0": lambda gradient: gradient[:, :1]}):
        output = model(torch.ones(1, 2)).sum()
        with pytest.raises(CamtoolError, match=r"edit_gradients of layer '0': it returned .* \(1, 1\) for .* \(1, 2\)"):
            output.backward()


def test_the_error_for_an_edit_that_returns_no_tensor_names_the_layer() -> None:
    model = nn.Sequential(nn.ReLU())
    with pytest.raises(CamtoolError, match=r"edit of layer '0': it returned int; return a tensor, or nothing"):
        Recorder(model, edit={"0": lambda _: 3}).run(torch.ones(1))
    counts = Apply(lambda x: x.long())
    with pytest.raises(LayerError, match="layer '' has no floating tensor there that could be edited"):
        Recorder(counts, edit={"": zero()}).run(torch.ones(1))
    assert hooks_on(model) == hooks_on(counts) == 0
