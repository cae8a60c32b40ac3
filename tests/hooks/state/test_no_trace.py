"""The state of model and process after an explanation, also after one that failed: unchanged."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.evidence.evidence import gather_evidence
from camtool.evidence.forward_pass import run_forward_pass
from camtool.evidence.rescoring import run_forward, run_tail
from camtool.hooks.observation import resume, run_with_hooks
from camtool.hooks.private_torch import save_function_modes
from camtool.hooks.registration import add_forward_hook
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import BufferSnapshot, guard
from camtool.hooks.structures.modules import list_queues, list_weights, read_tree
from camtool.hooks.tracing import trace
from camtool.layers.layouts import Layer, Layout
from camtool.targets import ClassScore
from tests.helpers.memory import assert_memory_stays, live_tensors
from tests.helpers.nets import Attend
from tests.helpers.warm_processes import run_program

LAYER = "relu2"
HOOKS = [name for name in vars(nn.Module()) if "hooks" in name and name != "_is_full_backward_hook"]


class Draws(nn.Module):
    """Draws from every global generator."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-3 * (torch.rand(1) + float(np.random.rand()) + random.random())  # noqa: NPY002


class Counts(nn.Module):
    """Writes to its buffers in evaluation mode too: in place, by another tensor, into an empty one, into a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("in_place", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("turned", torch.zeros(3, 2).t())
        self.register_buffer("empty", None)
        self.part = nn.Module()  # torch's own class, yet somebody's buffer
        self.part.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.in_place += 1
        self.turned += 1
        self.replaced = self.replaced + 1
        self.empty = torch.ones(1)
        self.part.mean.mul_(0.9).add_(0.1)
        self.register_buffer("late", torch.ones(3), persistent=False)
        return x


class Fails(nn.Module):
    """Lets ``calm`` forwards pass and raises in the next."""

    def __init__(self, error: type[BaseException], calm: int) -> None:
        super().__init__()
        self.error, self.calm = error, calm

    def forward(self, x: Tensor) -> Tensor:
        self.calm -= 1
        if self.calm < 0:
            raise self.error("midway")
        return x


def net(**between: nn.Module) -> nn.Sequential:
    """A network with average pooling and a linear layer, so that every method works; ``between`` lies in its middle."""
    modules = OrderedDict(
        conv1=nn.Conv2d(3, 4, 3, padding=1),
        norm=nn.BatchNorm2d(4),
        relu1=nn.ReLU(inplace=True),
        drop=nn.Dropout(0.5),
        **between,
        conv2=nn.Conv2d(4, 6, 3, padding=1, stride=2),
        relu2=nn.ReLU(inplace=True),
        after=nn.Identity(),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(6, 3),
    )
    model = nn.Sequential(modules).eval()
    model.conv1.weight.grad = torch.ones_like(model.conv1.weight)
    model.conv2.bias.requires_grad_(False)
    return model


ON_CLASSIFIERS = [name for name, each in camtool.METHODS.items() if not each.needs & {"text", "a detector"}]

SAMPLE = ["gradcam", "scorecam", "fullgrad"]
"""Methods that are tried in all modes and with all kinds of errors, which no method sees anything of."""


def suited(method: str, **between: nn.Module) -> nn.Sequential:
    """The network that the method works on: some need attention."""
    needs = camtool.METHODS[method].needs
    if "one head on all tokens" in needs:
        return with_block(net(**between))
    attention = {"attend": Attend(4)} if "attention" in needs else {}
    return net(**attention, **between)


class Join(nn.Module):
    """Returns ``(N, C, h, w)`` as tokens ``(N, T, C)``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


def with_block(model: nn.Sequential) -> nn.Sequential:
    """Return the network with the block of a transformer before its pooling, over tokens ``(N, T, C)``."""
    attend = nn.TransformerEncoderLayer(6, 2, 8, norm_first=True, batch_first=True)
    inserted = {"tokens": Join(), "block": attend, "mean": nn.AdaptiveAvgPool2d((1, None)), "flatten": nn.Flatten()}
    modules = OrderedDict(model.named_children())
    parts = [(name, each) for name, each in modules.items() if name not in ("after", "pool", "flatten", "fc")]
    return nn.Sequential(OrderedDict([*parts, *inserted.items(), ("after", model.after), ("fc", model.fc)])).eval()


def rand(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers that leave the global generator alone."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def pictures() -> Tensor:
    return rand(2, 3, 16, 16)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """All that an explanation must not change. Tensors stand beside their identity: the same ones must be there."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    modules = dict(model.named_modules())
    return {
        "hooks": {(name, kind): dict(getattr(m, kind)) for name, m in modules.items() for kind in HOOKS},
        "training": {name: module.training for name, module in modules.items()},
        "modules": {name: id(module) for name, module in modules.items()},
        "tensors": {name: id(tensor) for name, tensor in (parameters | buffers).items()},
        "values": {name: tensor.detach().clone() for name, tensor in (parameters | buffers).items()},
        "buffers": {name: set(module._buffers) for name, module in modules.items()},
        "state": list(model.state_dict()),
        "requires_grad": {name: tensor.requires_grad for name, tensor in parameters.items()},
        "grads": {name: p.grad if p.grad is None else p.grad.clone() for name, p in parameters.items()},
        "random": (torch.get_rng_state(), np.random.get_state(), random.getstate()),  # noqa: NPY002
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "function modes": save_function_modes(),
        "global hooks": [dict(v) for k, v in vars(torch.nn.modules.module).items() if k.endswith("_hooks")],
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (Tensor, np.ndarray)):
        return type(one) is type(other) and bool((one == other).all())
    return one is other or one == other


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    before = snapshot(model)
    try:
        yield
    finally:
        after = snapshot(model)
        assert [key for key in before if not same(before[key], after[key])] == []


# -------------------------------------------------------------------------------------------- the helper itself


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda model: model.conv1.register_forward_hook(print), "hooks"),
        (lambda model: model.norm.train(), "training"),
        (lambda model: model.norm.running_mean.add_(1), "values"),
        (lambda model: setattr(model.norm, "running_mean", torch.zeros(4)), "tensors"),
        (lambda model: model.register_buffer("late", torch.ones(1), persistent=False), "buffers"),
        (lambda model: model.conv1.requires_grad_(False), "requires_grad"),
        (lambda model: model.conv1.weight.grad.add_(1), "grads"),
        (lambda model: Draws()(torch.ones(1)), "random"),
    ],
)
def test_the_snapshot_notices_each_kind_of_change(change: Callable[[nn.Module], object], key: str) -> None:
    model = net()
    with pytest.raises(AssertionError, match=f"'{key}'"), unchanged(model):
        change(model)


# --------------------------------------------------------------------------------------------------- no trace


@pytest.mark.parametrize(
    ("method", "layer", "mode"),
    [
        *product(ON_CLASSIFIERS, [LAYER, None], [torch.enable_grad]),
        *product(SAMPLE, [LAYER, None], [torch.no_grad, torch.inference_mode]),
    ],
)
def test_a_model_that_draws_random_numbers_and_counts_calls_is_not_changed(method, layer, mode) -> None:
    model, x = suited(method, draws=Draws(), counts=Counts()), pictures()
    with mode(), unchanged(model):
        results = camtool.explain(model, x, [[0, 2], [1, 1]], method=method, layer=layer)
    assert [len(each) for each in results] == [2, 2]


PLACES = [(LAYER, 0), (LAYER, 1), (None, 0), (None, 1), (None, 2)]
"""A layer, and the calls of the model that go well."""


@pytest.mark.parametrize(
    ("method", "place", "error"),
    [
        *product(ON_CLASSIFIERS, PLACES, [KeyboardInterrupt]),
        *product(SAMPLE, PLACES, [ZeroDivisionError, RuntimeError]),
    ],
)
def test_a_model_that_fails_midway_is_not_changed(method, place, error) -> None:
    layer, calm = place
    model = suited(method, draws=Draws(), counts=Counts())
    # A method that looks at no layer has none found for it, so it runs the model less often.
    model.after = Fails(error, min(calm, 1) if camtool.METHODS[method].ignores_layer else calm)
    raised = (error, camtool.ForwardError) if issubclass(error, Exception) else error
    with unchanged(model), pytest.raises(raised, match="midway"):
        camtool.explain(model, pictures(), 1, method=method, layer=layer)


@pytest.mark.parametrize(
    ("method", "error"), [*product(ON_CLASSIFIERS, [KeyboardInterrupt]), *product(SAMPLE, [ZeroDivisionError])]
)
def test_the_model_is_not_changed_if_the_target_fails(method, error) -> None:
    def target(output: Tensor) -> Tensor:
        raise error("no such thing")

    model = suited(method, draws=Draws())
    raised = (error, camtool.TargetError) if issubclass(error, Exception) else error
    with unchanged(model), pytest.raises(raised, match="no such thing"):
        camtool.explain(model, pictures(), target, method=method)


def test_the_model_is_not_changed_if_the_method_fails() -> None:
    def method(evidence: camtool.Evidence) -> Tensor:
        return evidence.gradients / run_tail(evidence, evidence.activations[:1]) + undefined  # noqa: F821

    model = net(draws=Draws())
    with unchanged(model), pytest.raises(NameError):
        camtool.explain(model, pictures(), 0, method=method)


@pytest.mark.parametrize("method", ON_CLASSIFIERS)
def test_mixed_training_flags_and_frozen_parameters_are_kept(method) -> None:
    model = suited(method).train()
    model.norm.eval().requires_grad_(False)
    with unchanged(model):
        trained = camtool.explain(model, x := pictures(), 1, method=method)
    still = camtool.explain(model.eval(), x, 1, method=method)
    assert all(rounded_alike(one.raw, other.raw) for one, other in zip(trained, still, strict=True))


def test_a_batch_norm_in_training_mode_does_not_update_its_statistics() -> None:
    model = net().train()
    with unchanged(model):
        camtool.explain(model, pictures())
    assert model.norm.num_batches_tracked == 0


def test_train_of_the_model_is_not_called() -> None:
    model = net()
    model.norm.train()
    model.train = lambda mode=True: pytest.fail("train() was called")
    with unchanged(model):
        camtool.explain(model, pictures())


ROADS = {
    "run_with_hooks": lambda model, x: run_with_hooks(model, [LAYER], x),
    "run_with_hooks without grad": lambda model, x: run_with_hooks(model, [LAYER], x, grad=False),
    "trace": trace,
    "resume": lambda model, x: resume(model, LAYER, rand(5, 6, 8, 8), x[:1]),
    "score": lambda model, x: run_forward(evidence(model, x), rand(4, 3, 16, 16)),
    "tail": lambda model, x: run_tail(evidence(model, x), rand(4, 6, 8, 8)),
}


def evidence(model: nn.Module, x: Tensor) -> camtool.Evidence:
    forward_pass = run_forward_pass(model, x, [Layer(LAYER, Layout("channels first", (8, 8)))])
    return gather_evidence(forward_pass, [ClassScore(0)] * len(x))[0]


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("training", [True, False])
def test_each_way_to_run_the_model_leaves_no_change(road, mode, training) -> None:
    model, x = net(draws=Draws(), counts=Counts()).train(training), pictures()
    with mode(), unchanged(model):
        ROADS[road](model, x)


class SetsItsNormTraining(nn.Module):
    """Normalizes by the batch's own statistics whatever its mode, as some style networks do; three ways to write it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.bn, self.way = nn.BatchNorm2d(4), way
        self.bn.running_mean.add_(rand(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "flag":
            self.bn.training = True
            return self.bn(x)
        if self.way == "function":
            return nn.functional.batch_norm(x, self.bn.running_mean, self.bn.running_var, training=True)
        self.bn.running_mean.mul_(0.9)
        self.bn.num_batches_tracked += 1
        return self.bn(x)


@pytest.mark.parametrize("method", ["gradcam", "scorecam", "smoothgrad", "fullgrad"])
@pytest.mark.parametrize("way", ["flag", "function", "written"])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norms_that_the_model_switches_to_training_are_restored(method, way, training) -> None:
    model = net(sets=SetsItsNormTraining(way)).train(training)
    with unchanged(model):
        camtool.explain(model, pictures(), [[0, 2], [1, 1]], method=method, layer=LAYER)


class RandomBackward(torch.autograd.Function):
    """Draws random numbers in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + torch.rand(1)


def random_target(output: Tensor) -> Tensor:
    return output[0] + torch.rand(1)[0] + random.random()


def random_method(evidence: camtool.Evidence) -> Tensor:
    return (evidence.activations * torch.rand(1)).sum(1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"target_class": random_target},
        {"method": random_method},
        {"merge": lambda stacked: stacked.mean(0) + torch.rand(1), "layer": ["relu1", "relu2"]},
        {"target_class": lambda output: RandomBackward.apply(output)[0]},
    ],
    ids=["target", "method", "merge", "backward"],
)
def test_random_generators_are_restored_after_functions_of_the_user(arguments) -> None:
    model = net()
    with unchanged(model):
        camtool.explain(model, pictures(), **arguments)


def test_the_input_is_not_changed() -> None:
    x = pictures().requires_grad_()
    before = x.detach().clone()
    camtool.explain(net(), x)
    assert torch.equal(x, before)
    assert x.grad is None
    assert x.requires_grad


# ---------------------------------------------------------------------------------------------------- threads


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(interval)


def rounded_alike(one: Any, other: Any) -> bool:
    """Return whether two arrays differ by no more than rounding, as sums may be of another order under load."""
    one, other = np.asarray(one), np.asarray(other)
    # Of maps that are differences of scores, the scores are rounded: 1e-6 is much for these and little for a wrong map.
    return bool(np.allclose(one, other, rtol=0, atol=1e-6 + 1e-5 * np.abs(other).max()))


@pytest.mark.parametrize("method", ON_CLASSIFIERS)
def test_two_threads_explain_one_model_with_the_results_of_one(method, eager_switching) -> None:
    model, batches = suited(method), [rand(1, 3, 16, 16, seed=seed) for seed in range(2)]
    explainer = camtool.Explainer(model, method, LAYER)
    alone = [explainer(x, 1)[0].raw for x in batches]
    together, count = threading.Barrier(2), 60 if method == "gradcam" else 4

    def rounds(i: int) -> list[float]:
        """Return the largest difference of each map that is not that of one thread alone."""
        together.wait()
        found = [explainer(batches[i], 1)[0].raw for _ in range(count)]
        return [float(np.abs(raw - alone[i]).max()) for raw in found if not rounded_alike(raw, alone[i])]

    with unchanged(model), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(rounds, range(2))) == [[], []]


def test_another_thread_that_runs_the_model_gets_its_usual_output(eager_switching) -> None:
    model, x, other = net(), pictures(), rand(1, 3, 16, 16, seed=1)
    explainer = camtool.Explainer(model, "gradcam", LAYER)
    expected, alone = model(x).detach(), explainer(other, 1)[0].raw
    done = threading.Event()

    def run() -> list[bool]:
        seen = []
        while not done.is_set():
            output = model(x)
            seen.append(rounded_alike(output.detach(), expected) and output.requires_grad)
        return seen

    with unchanged(model), ThreadPoolExecutor(1) as pool:
        runs = pool.submit(run)
        try:
            explained = [rounded_alike(explainer(other, 1)[0].raw, alone) for _ in range(150)]
        finally:
            done.set()
        assert all(explained)
        assert len(runs.result()) >= 1
        assert all(runs.result())


def test_a_pass_of_another_thread_begins_with_the_buffers_as_they_were() -> None:
    model, ran, seen = Counts().eval(), threading.Event(), threading.Event()

    def run() -> None:
        with guard(model):
            model(torch.ones(1))
            ran.set()
            seen.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    assert ran.wait(10)
    with guard(model):
        begin = model.in_place.tolist()
    seen.set()
    thread.join()
    assert begin == [0, 0]


class Policy(nn.Module):
    """Returns actions from a queue, and runs its layers only where that is empty, as policies of robots do."""

    def __init__(self, *, by_name: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head, actions = nn.Linear(4, 6), deque[Tensor]()
        self.queue: Any = {"actions": actions} if by_name else actions

    def forward(self, x: Tensor) -> Tensor:
        actions = self.queue["actions"] if isinstance(self.queue, dict) else self.queue
        if not actions:
            actions.extend(self.head(self.net(x)).chunk(2, 1))
        return actions.popleft()


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("method", ["gradcam", "scorecam", "occlusion", "inputxgradient"])
def test_a_queue_of_actions_is_as_it_was(method: str, by_name: bool) -> None:
    policy, photo = Policy(by_name=by_name).eval(), torch.rand(1, 3, 16, 16)
    usual = nn.Sequential(*policy.net, policy.head).eval()
    expected = camtool.explain(usual, photo, 1, method=method)[0].raw
    assert np.allclose(camtool.explain(policy, photo, 1, method=method)[0].raw, expected, atol=1e-5)
    assert not any(list_queues(policy.queue))


@pytest.mark.parametrize("options", [{}, {"layer": "net.1"}, {"method": "occlusion"}, {"method": "scorecam"}], ids=str)
def test_actions_of_an_earlier_pass_are_no_result_and_are_not_used_up(options: dict[str, Any]) -> None:
    policy, photo = Policy(by_name=True).eval(), torch.rand(1, 3, 16, 16)
    policy(photo)
    kept = [*policy.queue["actions"]]
    with pytest.raises(camtool.ForwardError, match="earlier forward pass kept in its queue 'queue'"):
        camtool.explain(policy, photo, 1, **options)
    assert len(kept) == 1
    assert policy.queue["actions"][0] is kept[0]


class Averages(nn.Module):
    """Writes the statistics of a batch norm, which no version counter counts, beside a buffer of the same kind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(2))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("variance", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, self.mean, self.variance, training=True)


def test_a_buffer_that_grows_leaves_the_others_preserved() -> None:
    model = Averages().eval()
    for size in (2, 5000, 3):
        model.table.data = torch.zeros(size)
        with guard(model):
            model(torch.rand(4, 2))
            assert model.mean.any()
        assert model.mean.tolist() == [0, 0]
        assert model.variance.tolist() == [1, 1]


def test_no_buffer_is_referred_to_after_a_call() -> None:
    """Torch swaps no tensor that has a weak reference, e.g. in ``load_state_dict``."""
    model = net(counts=Counts()).eval()
    camtool.predict(model, pictures()[0])
    assert [weakref.getweakrefcount(buffer) for buffer in model.buffers()] == [0] * len([*model.buffers()])


def test_buffers_whose_data_were_replaced_are_preserved() -> None:
    model = Counts().eval()
    for values in (torch.zeros(2), torch.ones(2, 2, dtype=torch.float64), torch.full((), 3), torch.zeros(5000)):
        model.in_place.data = values.clone()
        with guard(model):
            model(torch.ones(1))
            assert not torch.equal(model.in_place, values)
        assert model.in_place.dtype == values.dtype
        assert torch.equal(model.in_place, values)


def test_modules_and_buffers_may_be_added_at_any_moment_while_they_are_read() -> None:
    """As by the forward pass of another thread."""
    model, added = net(counts=Counts()), list[str]()

    def add(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_name not in ("__init__", "_read", "list_weights", "<listcomp>", "<genexpr>"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and len(added) < 400:
            added.append(f"new{len(added)}")
            model.counts.register_buffer(added[-1], None)
            model.counts.register_module(f"module{added[-1]}", None)
        return add

    before = sys.gettrace()
    sys.settrace(add)
    try:
        BufferSnapshot(read_tree(model)).restore()
        list_weights(model)
    finally:
        sys.settrace(before)
    assert added
    assert added[-1] in model.counts._buffers


@pytest.mark.parametrize("counting", [True, False])
def test_threads_leave_a_model_in_training_mode(counting, eager_switching) -> None:
    model = (net(counts=Counts()) if counting else net()).train()
    model.norm.eval()
    explainer = camtool.Explainer(model, "gradcam", LAYER)
    batches = [rand(1, 3, 16, 16, seed=seed) for seed in range(4)]
    alone, together = [explainer(x, 1)[0].raw for x in batches], threading.Barrier(4)

    def rounds(i: int) -> int:
        together.wait()
        return sum(rounded_alike(explainer(batches[i], 1)[0].raw, alone[i]) for _ in range(30))

    with unchanged(model), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(rounds, range(4))) == [30] * 4


@pytest.fixture
def in_another_thread() -> Iterator[Callable[[nn.Module], None]]:
    with explaining_in_another_thread() as start:
        yield start


@contextmanager
def explaining_in_another_thread() -> Iterator[Callable[[nn.Module], None]]:
    """Lets another thread explain on a model until the test ends, and waits until it is at it."""
    done, pool = threading.Event(), ThreadPoolExecutor(1)
    at_it = threading.Event()

    def start(model: nn.Module) -> None:
        # In the cheapest of the tests' nets an explanation has hooks on the model for a tenth of its time.
        def target(output: Tensor) -> Tensor:
            at_it.set()
            return output[0]

        def run() -> None:
            while not done.is_set():
                camtool.explain(model, pictures(), target, method="scorecam", layer=LAYER)

        runs.append(pool.submit(run))
        assert at_it.wait(30)

    runs: list[Any] = []
    try:
        yield start
    finally:
        done.set()
        pool.shutdown()
    for each in runs:
        each.result()


@pytest.mark.parametrize("copied", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy])
def test_a_model_is_copied_and_pickled_while_another_thread_explains(copied, in_another_thread) -> None:
    model, x = net().eval(), pictures()
    expected = model(x).detach()
    seen = []

    def copy_model() -> nn.Module:
        # Torch keeps hooks in a dictionary, which cannot be read just as any hook is added, also of other libraries.
        while True:
            try:
                return copied(model)
            except RuntimeError as error:  # noqa: PERF203  a moment later it works
                if "mutated during iteration" not in str(error):
                    raise

    def look(_: nn.Module, output: Tensor) -> None:
        seen.append(copy_model())

    with Cleanup() as cleanup:  # with hooks of this thread, as the other's come and go
        add_forward_hook(cleanup, model.conv1, look)
        in_another_thread(model)
        assert rounded_alike(model(x).detach(), expected)
        copies = [*seen, *(copy_model() for _ in range(50))]
        assert len(seen) == 1
        assert all(rounded_alike(each(x).detach(), expected) for each in copies)
    assert len(seen) == 1  # copies hold no hook that looks
    assert not any("camtool" in type(hook).__module__ for each in copies for hook in each.conv1._forward_hooks.values())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.parametrize("method", ["gradcam", "scorecam"])
def test_a_process_forked_while_another_thread_explains_can_explain(method) -> None:
    """In a process of its own: once autograd has started threads, as other tests let it, torch refuses it in a fork."""
    run_program(f"from tests.hooks.state.test_no_trace import fork_while_another_thread_explains as f; f({method!r})")


def fork_while_another_thread_explains(method: str) -> None:
    torch.set_num_threads(1)  # OpenMP's own pool does not survive a fork
    model, x = net().train(), pictures()
    expected = camtool.explain(model, x, 1, method=method, layer=LAYER)[0].raw
    with explaining_in_another_thread() as start:
        start(model)
        for _ in range(4):
            ended = run_in_child(
                lambda: (
                    rounded_alike(camtool.explain(model, x, 1, method=method, layer=LAYER)[0].raw, expected)
                    and all(module.training for module in model.modules())
                )
            )
            assert ended == "succeeded"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_process_forked_while_another_thread_restores_flags_has_them_restored() -> None:
    run_program("from tests.hooks.state.test_no_trace import fork_while_flags_are_restored as run; run()")


def fork_while_flags_are_restored() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "training" and value and threading.current_thread() is thread:
                inside.set()
                go_on.wait(60)
            super().__setattr__(name, value)

    def use() -> None:
        with guard(model):
            pass

    thread = threading.Thread(target=use)
    model = nn.Sequential(nn.ReLU(), Waits(), nn.BatchNorm1d(1)).train()
    thread.start()
    inside.wait(60)

    def succeeds() -> bool:
        are_restored = all(module.training for module in model)
        model[2].running_mean.fill_(7)
        with guard(model):
            pass
        return are_restored and model[2].running_mean.item() == 7

    ended = run_in_child(succeeds)
    go_on.set()
    thread.join()
    assert ended == "succeeded"


def run_in_child(succeeds: Callable[[], bool]) -> str:
    """Fork, and say how the child ended: "succeeded", "hung" after 60 s, or its exit code."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if succeeds() else 3)
        finally:
            traceback.print_exc()
            os._exit(4)
    for _ in range(6000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return f"exit code {code}" if code else "succeeded"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


# ----------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("method", ON_CLASSIFIERS)
def test_an_explanation_frees_its_memory_without_the_garbage_collector(method) -> None:
    explainer, x = camtool.Explainer(suited(method), method, LAYER), pictures()
    explainer(x)
    gc.collect()
    before = live_tensors()
    gc.disable()
    try:
        for _ in range(3):
            explainer(x)
        assert live_tensors() <= before
    finally:
        gc.enable()


def test_memory_does_not_grow_over_a_thousand_explanations() -> None:
    explainer, x = camtool.Explainer(net(), ["gradcam", "cam"]), rand(1, 3, 16, 16)
    assert_memory_stays(lambda: explainer(x, 1))
