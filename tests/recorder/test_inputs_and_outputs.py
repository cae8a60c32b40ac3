"""Recorded inputs and outputs: their values at the time, in their structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from camtool import LayerError, Recorder
from tests.helpers.nets import Apply
from tests.recorder.models import (
    Pair,
    Structured,
    net,
    record_with_module_hooks,
)


def test_inputs_and_outputs_are_recorded_as_received_and_returned(x) -> None:
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
def test_writes_to_a_record_or_a_tensor_do_not_affect_each_other(write: Callable[[Tensor], Any], whose) -> None:
    model = nn.Sequential(Apply(lambda x: x + 1), nn.Identity())
    with torch.no_grad(), Recorder(model, "0") as recorder:
        output = model(torch.ones(1, 3))
    kept = recorder["0"].outputs[0]
    write(output if whose == "model" else kept)
    assert output.tolist() == [[0 if whose == "model" else 2] * 3]
    assert kept.tolist() == [[2 if whose == "model" else 0] * 3]


def test_an_input_refilled_through_numpy_is_recorded_with_each_value() -> None:
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


def test_a_returned_parameter_is_recorded_with_its_value_at_the_time() -> None:
    model = nn.Sequential(Apply(lambda _: model.weight))
    model.register_parameter("weight", nn.Parameter(torch.ones(2)))
    with Recorder(model, "0") as recorder:
        for _ in range(2):
            model(torch.zeros(1))
            assert not torch._C._is_cow_tensor(model.weight)
            model.weight.data.add_(1)
    assert [tensor.tolist() for tensor in recorder["0"].outputs] == [[1, 1], [2, 2]]


def test_structures_are_kept() -> None:
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


def test_an_lstm_is_recorded_with_its_structure() -> None:
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


def test_a_custom_mapping_is_recorded_and_passed_on_unchanged() -> None:
    model = nn.Sequential(Apply(lambda x: Bag(image=x, size=2)), Apply(lambda bag: bag["image"] * bag["size"]))
    with Recorder(model, inputs=True) as recorder:
        assert model(torch.ones(1)).tolist() == [2]
    (kept,) = recorder["0"].outputs
    assert isinstance(kept, Bag)
    assert dict(kept) == dict(recorder["1"].inputs[0]) == {"image": 1, "size": 2}


def test_packed_sequences_and_their_gradients_are_recorded() -> None:
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
def test_nested_tensors_of_a_transformer_are_recorded() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 4, 8)
    mask = torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.no_grad(), Recorder(encoder) as recorder:
        output = encoder(x, src_key_padding_mask=mask)
    kept = recorder["layers.0"].outputs[0]
    assert kept.is_nested
    assert torch.equal(kept.to_padded_tensor(0.0), output)
    assert recorder["layers.0"].shape is None


def test_lazy_modules_are_recorded_from_their_first_forward_pass() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    with Recorder(model, inputs=True) as recorder:
        output = model(x := torch.ones(1, 2))
    assert torch.equal(recorder["1"].outputs[0], output)
    assert torch.equal(recorder["0"].inputs[0], x)


def test_a_recorded_part_of_a_tensor_does_not_keep_the_whole_in_memory() -> None:
    first_token = Apply(lambda tokens: tokens[:, 0])
    model = nn.Sequential(nn.Linear(4, 4), first_token, nn.Linear(4, 4))
    with torch.no_grad(), Recorder(model, "2", inputs=True) as recorder:
        model(torch.randn(2, 50, 4))
    kept = recorder["2"].inputs[0]
    assert kept.untyped_storage().nbytes() == kept.nbytes


def test_the_inputs_of_a_failed_call_are_recorded() -> None:
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
def test_records_are_kept_on_the_requested_device_and_in_the_requested_dtype(kept) -> None:
    layer = nn.Linear(2, 2)
    with Recorder(layer, inputs=True, gradients=True, **kept) as recorder:
        layer(torch.ones(1, 2, requires_grad=True)).sum().backward()
    record = recorder[""]
    tensors = [record.inputs[0], record.outputs[0], record.grad_inputs[0], record.grad_outputs[0]]
    assert {tensor.device.type for tensor in tensors} == {kept.get("device", "cpu")}
    assert {tensor.dtype for tensor in tensors} == {kept.get("dtype", torch.float32)}


def test_integer_tensors_keep_their_dtype() -> None:
    model = Apply(lambda x: (x, x.long(), x > 0))
    with Recorder(model, dtype=torch.float16) as recorder:
        model(torch.ones(2))
    assert [tensor.dtype for tensor in recorder[""].outputs[0]] == [torch.float16, torch.int64, torch.bool]


@pytest.mark.parametrize("inplace", [False, True])
def test_gradients_can_be_taken_at_records_with_a_graph(inplace, x) -> None:
    model = net(inplace=inplace)
    with Recorder(model, ["2", "5"], inputs=True, gradients=True, graph=True) as recorder:
        score = model(x)[:, 1].sum()
        (gradient,) = torch.autograd.grad(score, recorder["2"].outputs[0], create_graph=True)
        assert torch.equal(recorder["2"].grad_outputs[0], gradient)
    plain = net(inplace=False)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(gradient, record_with_module_hooks(plain, "2", x)[1], rtol=1e-12, atol=0)
    assert gradient.requires_grad
    torch.autograd.grad(recorder["5"].inputs[0].sum(), model[0].weight)  # from a layer's input to a weight before it


def test_only_requested_kinds_are_recorded() -> None:
    layer = nn.Linear(2, 2)
    with Recorder(layer, inputs=True, outputs=False) as recorder:
        layer(torch.ones(1, 2)).sum().backward()
    record = recorder[""]
    assert len(record.inputs) == 1
    assert record.shape == (1, 2)
    for kind in ("outputs", "grad_inputs", "grad_outputs"):
        with pytest.raises(LayerError, match=kind):
            getattr(record, kind)
