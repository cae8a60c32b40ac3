"""The recorder as a whole: no hook and no memory left behind, threads, selected layers, and its repr."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from camtool import Recorder
from camtool.errors import CamtoolError, LayerError
from camtool.hooks.registration import add_forward_hook
from camtool.hooks.state.cleanup import Cleanup
from camtool.recorder import (
    Histogram,
    scale,
    select,
    zero,
)
from tests.helpers.memory import assert_memory_stays, live_tensors
from tests.helpers.nets import Apply
from tests.recorder.models import (
    hooks_on,
    identity_layer,
    net,
)

# --------------------------------------------------------------------------------------------- nothing is left behind


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_every_hook_is_removed_at_the_end_even_after_an_exception(error, x) -> None:
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
def test_no_hook_is_left_when_something_fails_midway(where, x) -> None:
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


def test_no_hook_is_left_if_one_cannot_be_registered(monkeypatch) -> None:
    model = net(inplace=True)
    monkeypatch.setattr(model[5], "register_forward_hook", lambda *_, **__: fails())
    with pytest.raises(ZeroDivisionError), Recorder(model, inputs=True):
        pytest.fail("the block was entered")
    assert hooks_on(model) == 0


def test_events_after_the_block_are_not_recorded(x) -> None:
    model = net(inplace=True)
    with Recorder(model, "2", gradients=True) as recorder:
        output = model(x)
    output.sum().backward()
    model(x)
    assert recorder["2"].grad_outputs == [None]
    assert recorder["2"].grad_inputs == [None]


def test_a_copy_of_the_model_made_in_the_block_is_not_recorded_or_edited(x) -> None:
    model = net(inplace=True)
    with Recorder(model, "2", inputs=True, edit={"5": zero()}, edit_inputs={"2": zero()}) as recorder:
        copied = copy.deepcopy(model)
    assert torch.equal(copied(x), model(x))
    assert copied(x).any()
    assert recorder["2"].calls == 0


@pytest.mark.parametrize(
    "options", [{}, {"gradients": True}, {"gradients": True, "inputs": True, "graph": True}, {"keep": "mean"}]
)
def test_a_recorder_frees_its_memory_without_the_garbage_collector(options, x) -> None:
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


def test_hooks_on_inputs_disappear_with_the_inputs(x) -> None:
    model = net(inplace=True)
    with Recorder(model, gradients=True, keep="mean") as recorder:
        for _ in range(3):
            model(x.clone().requires_grad_()).sum().backward()
            assert not recorder._gradients._leaf_hooks


def test_nested_recorders_keep_the_hooks_of_each_other(x) -> None:
    model = net(inplace=True)
    with Recorder(model, "2", gradients=True) as outer:
        with Recorder(model, ["2", "3"], gradients=True) as inner:
            model(x).sum().backward()
        model(x)
    assert hooks_on(model) == 0
    assert len(outer["2"].outputs) == 2
    assert len(inner["2"].outputs) == 1
    torch.testing.assert_close(outer["2"].grad_outputs[0], inner["2"].grad_outputs[0], rtol=0, atol=0)


def test_an_outer_recorder_records_the_edits_of_an_inner_one() -> None:
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


def test_forward_passes_in_another_thread_are_not_recorded_or_edited(x) -> None:
    model = net(inplace=True)
    outputs: list[Tensor] = []
    with Recorder(model, inputs=True, gradients=True, edit={"2": zero()}) as recorder:
        thread = threading.Thread(target=lambda: outputs.append(model(x)))
        thread.start()
        thread.join()
    assert torch.equal(outputs[0], model(x))
    assert all(not record.outputs and not record.inputs for _, record in recorder)


def test_each_thread_can_have_its_own_recorder_on_one_model() -> None:
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


def test_a_second_thread_cannot_enter_an_open_block() -> None:
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


def test_layers_are_selected_by_name_wildcard_type_function_module_or_list() -> None:
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
        (lambda name, module: False, "the function returns True for no layer"),
        (nn.ReLU(), "this ReLU is not a module of the model"),
        (3, "3 is no name, wildcard, type, module, or function"),
    ],
)
def test_an_unknown_layer_raises_an_error_with_similar_names(which, message) -> None:
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


def test_torchscript_modules_are_skipped_or_raise_an_error_by_name() -> None:
    model = with_a_script(nn.Linear(2, 2))
    with Recorder(model, inputs=True, gradients=True) as recorder:
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert [name for name, _ in recorder] == ["", "0", "2"]
    assert recorder["0"].grad_outputs[0].shape == recorder["2"].grad_inputs[0].shape == (1, 2)
    for which in ("1", model[1], torch.jit.ScriptModule, ["0", "1"]):
        with pytest.raises(LayerError, match="layer '1' is TorchScript, whose modules accept no hooks; record the"):
            select(model, which)


def test_a_record_can_be_found_by_its_module() -> None:
    model = stages()
    recorder = Recorder(model, nn.Conv2d)
    assert recorder[model.layer2.conv1] is recorder["layer2.conv1"]
    assert model.layer2.conv1 in recorder
    assert model.layer2 not in recorder
    with pytest.raises(LayerError, match="layer 'layer2' is not recorded"):
        recorder[model.layer2]
    with pytest.raises(LayerError, match="this ReLU is not a module of the model"):
        recorder[nn.ReLU()]


def test_an_unknown_record_raises_an_error_with_similar_names() -> None:
    recorder = Recorder(stages(), "layer1")
    with pytest.raises(LayerError, match=r"'layer' is not recorded\. Did you mean 'layer1'\?"):
        recorder["layer"]
    assert "layer1" in recorder
    assert "layer2" not in recorder


def test_the_repr_of_a_recorder_is_a_table() -> None:
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


@pytest.mark.parametrize("keep", ["mean", Histogram(per=1), "last"])
def test_memory_does_not_grow_over_a_thousand_batches(keep) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3))
    dice = torch.Generator().manual_seed(0)

    def run() -> None:
        model(torch.randn(4, 3, 16, 16, generator=dice).requires_grad_()).sum().backward()

    with Recorder(model, inputs=True, gradients=True, keep=keep) as recorder:
        assert_memory_stays(run)
    assert recorder["2"].calls == 1100


def test_a_running_forward_pass_can_be_inspected() -> None:
    model, seen = nn.Sequential(identity_layer(2), nn.Tanh()), []
    with Recorder(model) as recorder:
        with Cleanup() as cleanup:
            add_forward_hook(cleanup, model[1], lambda *_: seen.append(recorder["0"].outputs[0].tolist()))
            model(torch.ones(1, 2))
        assert seen == [[[1, 1]]]
        assert [record.calls for _, record in recorder] == [1, 1, 1]


@pytest.mark.parametrize("options", [{}, {"inputs": True}])
def test_the_latest_forward_pass_has_no_entry_for_a_layer_that_did_not_run(options) -> None:
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


def test_a_list_that_the_model_changes_later_is_recorded_unchanged() -> None:
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


def test_only_edited_layers_are_recorded_by_default() -> None:
    model = nn.Sequential(identity_layer(2), relu := nn.ReLU(), relu, identity_layer(2))
    edits = {"edit": {"3": scale(2)}, "edit_inputs": {nn.Linear: scale(3)}, "edit_gradients": {"0": zero()}}
    with Recorder(model, **edits) as recorder:  # and no word of the ReLU that runs twice
        model(torch.ones(1, 2))
    assert [name for name, _ in recorder] == ["3", "0"]
    assert recorder["3"].outputs[0].tolist() == [[18, 18]]
    assert len(Recorder(model, "*", **edits)) == len(Recorder(model)) == 4


def test_another_thread_can_read_finished_forward_passes_without_losing_any() -> None:
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
