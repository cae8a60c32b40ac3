"""Records of several forward passes: all, the last, concatenated or reduced; several calls of one layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from camtool import Recorder
from camtool.errors import CamtoolError, LayerError
from camtool.recorder import (
    Max,
    Mean,
    SeveralCallsWarning,
)
from tests.helpers.nets import Apply
from tests.recorder.models import (
    hooks_on,
    net,
)

LOADER = [torch.tensor([[1.0, -1.0], [2.0, -2.0]]), torch.tensor([[6.0, 3.0]])]


def over_the_loader(model: nn.Module, **options: Any) -> Recorder:
    with torch.inference_mode(), Recorder(model, **options) as recorder:
        for batch in LOADER:
            model(batch)
    return recorder


def largest_norm(so_far: float | None, tensor: Tensor) -> float:
    return max(so_far or 0, *tensor.norm(dim=1).tolist())


def test_keep_selects_all_the_last_a_concatenation_or_a_reduction() -> None:
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


def test_each_layer_and_each_tensor_has_its_own_reducer() -> None:
    reducer = Mean()
    model = nn.Sequential(nn.ReLU(), Apply(lambda x: (x, 10 * x)))
    recorder = over_the_loader(model, layers=["0", "1"], keep=reducer, inputs=True)
    assert recorder["0"].outputs[0].tolist() == recorder["1"].inputs[0].tolist() == [3, 1]
    assert recorder["0"].inputs[0].tolist() == [3, 0]
    assert [tensor.tolist() for tensor in recorder["1"].outputs[0]] == [[3, 1], [30, 10]]
    assert reducer.result() is None


def test_gradients_are_reduced() -> None:
    model = nn.Sequential(nn.ReLU())
    with Recorder(model, "0", gradients=True, keep="mean") as recorder:
        assert recorder["0"].grad_inputs == []
        for batch in LOADER:
            output = model(batch.clone().requires_grad_())
            assert len(recorder["0"].grad_inputs) == 1
            (output * torch.tensor([1.0, 5.0])).sum().backward()
    assert recorder["0"].grad_outputs[0].tolist() == [1, 5]
    torch.testing.assert_close(recorder["0"].grad_inputs[0], torch.tensor([1.0, 5 / 3]))


def test_a_concatenation_is_cached_until_there_are_more_tensors() -> None:
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


def test_gradients_are_concatenated_when_all_have_arrived() -> None:
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
def test_every_call_in_a_forward_pass_has_an_entry_and_a_warning_says_so(keep, entries) -> None:
    with pytest.warns(
        SeveralCallsWarning, match=r"layer 'relu' ran 2 times in one forward pass; the record has an entry for each"
    ):
        recorder = over_the_loader(Shared(), layers="relu", keep=keep)
    assert [entry.tolist() for entry in recorder["relu"].outputs] == entries
    assert (recorder["relu"].calls, recorder["relu"].most_calls) == (4, 2)


def test_every_call_of_a_module_used_twice_is_recorded(x) -> None:
    same = nn.Linear(2, 2)
    with (
        pytest.warns(SeveralCallsWarning, match="layer '0' ran 2 times"),
        Recorder(model := nn.Sequential(same, nn.Tanh(), same), gradients=True) as recorder,
    ):
        model(torch.ones(1, 2)).sum().backward()
    assert [len(record.outputs) for _, record in recorder] == [1, 2, 1]  # the model, the layer, the tanh
    assert recorder["0"].grad_outputs[1].tolist() == [[1, 1]]


def test_the_warning_points_to_the_line_of_the_user_and_appears_once() -> None:
    model = nn.Sequential(Shared(), Shared())
    recorder = Recorder(model)
    message = "'0.relu' ran 2 times in one forward pass, and 1 more ran several times"
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


def test_a_part_of_the_model_called_alone_is_a_separate_forward_pass() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    with Recorder(model, keep="mean") as recorder:
        for batch in LOADER:
            model[0](batch)
    assert recorder["0"].outputs[0].tolist() == [3, 1]


def test_the_error_for_tensors_that_do_not_fit_names_the_layer() -> None:
    unequal = Apply(lambda x: x[:, : len(x)])
    with pytest.raises(LayerError, match=r"layer '': its outputs do not have the same shape in each forward.*'all'"):
        over_the_loader(unequal, keep="concat")[""].outputs  # noqa: B018
    several = Apply(lambda x: list(x))
    with pytest.raises(LayerError, match=r"layer '': its outputs were 2 tensors in one forward pass and 1 in another"):
        over_the_loader(several, keep="mean")
    with pytest.raises(LayerError, match="do not have the same shape"):
        over_the_loader(several, keep="concat")[""].outputs  # noqa: B018
    with pytest.raises(
        LayerError, match=r"layer '', outputs: Mean: a tensor gives \(1,\) values, but those before gave \(2,\)"
    ):
        over_the_loader(unequal, keep="mean")


def test_a_record_has_a_repr_even_if_it_cannot_be_concatenated() -> None:
    recorder = over_the_loader(Apply(lambda x: x[:, : len(x)]), keep="concat")
    assert repr(recorder[""]) == "Record('', calls=2, shape=(1, 1), outputs=1)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "maen"}, r"no 'maen'; choose one of all, last, .*Did you mean 'mean'"),
        ({"keep": 3}, "keep must be a name, a reducer or a function, not 3"),
        ({"keep": "mean", "graph": True}, "graph=True keeps the graph of each pass"),
        ({"edit": {"": 0}}, "edit: 0 is no function"),
        ({"edit_inputs": ["0"]}, r"edit_inputs must map layers to functions, .* not \['0'\]"),
        ({"dtype": "half"}, "dtype must be a dtype of torch, e.g. torch.float16, not 'half'"),
        ({"device": "gpu"}, "device='gpu' is not a device of torch: .*gpu"),
    ],
)
def test_invalid_options_raise_an_error(options, message) -> None:
    with pytest.raises(CamtoolError, match=message):
        Recorder(nn.ReLU(), **options)


def test_a_value_that_is_not_a_model_raises_an_error() -> None:
    with pytest.raises(CamtoolError, match=r"model is a str, not a torch\.nn\.Module; .* The model comes first"):
        Recorder("layer4", nn.ReLU())


def test_a_recorder_entered_again_adds_to_its_records(x) -> None:
    model = net(inplace=True)
    recorder = Recorder(model, "2")
    for _ in range(2):
        with recorder:
            model(x)
    assert len(recorder["2"].outputs) == 2
    assert hooks_on(model) == 0


def test_a_recorder_entered_twice_records_once_and_leaves_no_hook(x) -> None:
    model = net(inplace=True)
    with (recorder := Recorder(model, "2")), recorder:
        model(x)
    assert len(recorder["2"].outputs) == 1
    assert hooks_on(model) == 0
