"""Many passes in a row: chunks, memory, the bar, and the twin, which answers as the model does or is not used."""

from __future__ import annotations

import gc
import io
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision.models as zoo
from nets import Apply
from torch import Tensor, nn
from torch.testing import assert_close

from camtool import streaming
from camtool.errors import MethodError
from camtool.hooks import trace
from camtool.streaming import Twin, in_chunks, quiet, room_for


def norm(channels: int, kind: Callable[..., nn.Module] = nn.BatchNorm2d, **options: Any) -> Any:
    """A batch norm with statistics and weights of its own, so that leaving it out shows."""
    module: Any = kind(channels, **options)
    for name, low in (("running_mean", -1.0), ("running_var", 0.5), ("weight", 0.5), ("bias", -1.0)):
        if getattr(module, name) is not None:
            getattr(module, name).data.uniform_(low, low + 2)
    return module


def block(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3, **options), norm(4), nn.ReLU())


def with_head(trunk: nn.Module) -> nn.Sequential:
    return nn.Sequential(trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()


def picture(count: int = 1) -> Tensor:
    return torch.randn(count, 3, 8, 8)


def answer(model: nn.Module, x: Any) -> Any:
    with torch.no_grad():
        return model(x)


def norms_that_run(twin: Twin, x: Any) -> int:
    return sum(isinstance(seen.module, streaming._NORMS) for seen in trace(twin._model, x))


def state(model: nn.Module) -> dict[str, Any]:
    """All that can be seen of a model from outside: its modules, tensors, gradients, modes and hooks."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "modules": [(name, id(module), type(module), module.training) for name, module in model.named_modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "tensors": [(n, id(t), t.data_ptr(), t.stride(), t.requires_grad, t._version) for n, t in tensors.items()],
        "values": [tensor.clone() for tensor in tensors.values()],
        "grads": [None if p.grad is None else id(p.grad) for p in model.parameters()],
    }


def assert_untouched(model: nn.Module, before: dict[str, Any]) -> None:
    after = state(model)
    assert all(map(torch.equal, after.pop("values"), before["values"]))
    assert after == {name: value for name, value in before.items() if name != "values"}


# ------------------------------------------------------------------------------------------------------------ chunks


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (3, 3), (7, 3), (7, 1), (7, 99)])
def test_chunks_cover_what_there_is_once_and_in_order(count: int, size: int) -> None:
    parts = list(in_chunks(count, size))
    assert [index for part in parts for index in range(count)[part]] == list(range(count))
    assert [part.stop - part.start for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert all(0 < part.stop - part.start <= size for part in parts)


@pytest.mark.parametrize("size", [0, -2])
def test_a_chunk_of_nothing_is_refused(size: int) -> None:
    with pytest.raises(MethodError, match=rf"chunk must be 1 or more, got {size}; leave it out"):
        next(in_chunks(3, size))


def test_the_room_shrinks_with_what_a_variant_takes_and_is_never_none() -> None:
    like, wide = torch.empty(0), torch.empty(0, dtype=torch.float64)
    assert room_for(1024, like) == 2 * room_for(2048, like) == 2 * room_for(1024, wide)
    assert room_for(1000, like) * 1000 * 4 * streaming._COPIES <= streaming._BUDGET["cpu"]
    assert room_for(10**12, like) == 1
    assert room_for(0, like) > 1


def test_a_twin_has_room_for_the_largest_tensor_on_the_way_the_picture_included() -> None:
    x = picture()
    for model, largest in ((with_head(block(padding=1)), 4 * 8 * 8), (nn.Sequential(nn.Flatten()), 3 * 8 * 8)):
        assert Twin(model, x).most_at_once == room_for(largest, x)
    wider = Twin(with_head(block(padding=1)).double(), x.double())
    assert wider.most_at_once == room_for(4 * 8 * 8, x.double())


# --------------------------------------------------------------------------------------------------------------- bar


class Screen(io.StringIO):
    """A stream that says whether a person sees it."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Screen]:
    """Puts a screen in the place of the standard error, and lets the bar show at once."""
    monkeypatch.setattr(streaming, "_PATIENCE", 1e-9)
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # no thread that watches over the bar

    def put(terminal: bool) -> Screen:
        screen = Screen(terminal=terminal)
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return put


def walk() -> None:
    for _ in in_chunks(40, 4):
        threading.Event().wait(0.02)  # tqdm draws ten times a second


def test_a_bar_shows_at_a_terminal_and_leaves_nothing_behind(impatient: Callable[[bool], Screen]) -> None:
    screen = impatient(True)
    walk()
    assert "/40" in screen.getvalue()
    assert "pass" in screen.getvalue()
    assert screen.getvalue().rpartition("\r")[0].rpartition("\r")[2].strip() == ""


def test_no_bar_where_nobody_looks_or_who_calls_shows_progress_of_their_own(
    impatient: Callable[[bool], Screen],
) -> None:
    screen = impatient(False)
    walk()
    assert screen.getvalue() == ""
    screen = impatient(True)
    with quiet():
        walk()
        with quiet():
            walk()
        walk()
    assert screen.getvalue() == ""
    walk()
    assert screen.getvalue() != ""


def test_no_bar_for_what_is_soon_done(impatient: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_PATIENCE", 60.0)
    screen = impatient(True)
    walk()
    assert screen.getvalue() == ""


def test_a_fault_on_the_way_ends_the_bar_and_the_quiet(impatient: Callable[[bool], Screen]) -> None:
    screen = impatient(True)
    with pytest.raises(ZeroDivisionError), quiet():
        1 / 0  # noqa: B018
    with pytest.raises(ZeroDivisionError):
        [1 / part.start for part in in_chunks(40, 4)]
    from tqdm import tqdm

    gc.collect()
    assert not list(tqdm._instances)
    walk()
    assert screen.getvalue() != ""


# ----------------------------------------------------------------------------------------------- what the twin answers


class Residual(nn.Module):
    """A convolution whose output goes through a norm and also around it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), norm(4)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.convolution(x)
        return self.norm(seen) + seen


class Largest(Residual):
    """As above, and for some pictures it makes no difference."""

    def forward(self, x: Tensor) -> Tensor:
        seen = self.convolution(x)
        return self.norm(seen) + seen * (x.sum() > 0)


class Twice(nn.Module):
    """A convolution that runs twice, with a norm for each time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.norms = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.ModuleList([norm(4), norm(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for each in self.norms:
            x = each(self.again(x))
        return x


class Aliased(nn.Module):
    """What runs has a second name, and a third that torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), norm(4)
        self.steps = nn.Sequential(self.convolution, self.norm)
        self.plain = [self.convolution, self.norm]

    def forward(self, x: Tensor) -> Tensor:
        for step in self.plain:
            x = step(x)
        return x


class SharedNorm(nn.Module):
    """Two convolutions, one norm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), norm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.two(self.norm(self.one(x)).relu()))


class Reader(nn.Module):
    """It reads the norm's statistics besides running it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), norm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolution(x)) * self.convolution.weight.norm()


class Standardised(nn.Conv2d):
    """Its weights are standardised when it runs, so they must not be scaled before."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight / weight.std((1, 2, 3), keepdim=True), self.bias)


class Activated(nn.BatchNorm2d):
    """A norm with an activation inside."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def listened_to(forward: bool) -> nn.Module:
    model = with_head(block())
    if forward:
        model[0][0].register_forward_hook(lambda module, args, output: output * 2)
    else:
        model[0][1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return model


FOLDED = {  # norms that run in the model, and in its twin
    "with and without a bias": (lambda: with_head(nn.Sequential(block(bias=False), nn.Conv2d(4, 4, 1), norm(4))), 2, 0),
    "grouped, strided, dilated": (
        lambda: with_head(nn.Sequential(nn.Conv2d(3, 6, 2, groups=3, stride=2), norm(6), nn.Conv2d(6, 4, 2, 1, 1, 2))),
        1,
        0,
    ),
    "without weights": (lambda: with_head(nn.Sequential(nn.Conv2d(3, 4, 3), norm(4, affine=False))), 1, 0),
    "by other names": (lambda: with_head(Aliased()), 1, 0),
    "resnet": (lambda: zoo.resnet18(num_classes=7).eval(), 20, 0),
    "no convolution before": (lambda: with_head(nn.Sequential(norm(3), nn.Conv2d(3, 4, 3))), 1, 1),
    "an activation between": (lambda: with_head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), norm(4))), 1, 1),
    "no statistics": (
        lambda: with_head(nn.Sequential(nn.Conv2d(3, 4, 3), norm(4, track_running_stats=False))),
        1,
        1,
    ),
    "the convolution runs twice": (lambda: with_head(Twice()), 2, 2),
    "the norm runs twice": (lambda: with_head(SharedNorm()), 2, 2),
    "used twice": (lambda: with_head(Residual()), 1, 1),
    "used twice for some pictures": (lambda: with_head(Largest()), 1, 1),
    "weights read elsewhere": (lambda: with_head(Reader()), 1, 1),
    "a convolution of its own kind": (lambda: with_head(nn.Sequential(Standardised(3, 4, 3), norm(4))), 1, 1),
    "a norm of its own kind": (lambda: with_head(nn.Sequential(nn.Conv2d(3, 4, 3), norm(4, Activated))), 1, 1),
    "a hook on the convolution": (lambda: listened_to(True), 1, 1),
    "a hook on the norm": (lambda: listened_to(False), 1, 1),
    "parametrised": (
        lambda: with_head(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), norm(4), nn.ReLU())),
        1,
        1,
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_a_twin_answers_as_the_model_and_leaves_it_as_it_was(name: str) -> None:
    make, norms, left = FOLDED[name]
    model, x = make(), torch.randn(1, 3, 33, 33)
    assert sum(isinstance(seen.module, streaming._NORMS) for seen in trace(model, x)) == norms
    before = state(model)
    twin = Twin(model, x)
    assert norms_that_run(twin, x) == left
    many = torch.randn(5, 3, 33, 33)
    expected = answer(model, many)
    assert_close(twin(many), expected, rtol=0, atol=1e-5 * float(expected.abs().amax()))
    assert not twin(many).requires_grad
    assert_untouched(model, before)


@pytest.mark.parametrize(
    ("convolution", "kind", "size"),
    [(nn.Conv1d, nn.BatchNorm1d, (9,)), (nn.Conv3d, nn.BatchNorm3d, (5, 6, 7))],
)
def test_other_ranks_are_folded_too(convolution: Any, kind: Any, size: tuple[int, ...]) -> None:
    model = nn.Sequential(convolution(2, 4, 3), norm(4, kind), nn.ReLU(), nn.Flatten()).eval()
    x = torch.randn(3, 2, *size)
    twin = Twin(model, x[:1])
    assert norms_that_run(twin, x) == 0
    assert_close(twin(x), answer(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_trains_is_asked_in_evaluation_mode_and_trains_on(training: bool) -> None:
    model, x = with_head(nn.Sequential(block(), nn.Dropout(0.9))), picture(4)
    expected = answer(model, x)
    model.train(training)
    model[0][0].eval()  # a part is frozen
    before = state(model)
    assert_close(Twin(model, x[:1])(x), expected, rtol=1e-4, atol=1e-5)
    assert_untouched(model, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_not_folded_and_answers_the_same(dtype: torch.dtype) -> None:
    model, x = with_head(block()).to(dtype), picture(3).to(dtype)
    twin = Twin(model, x[:1])
    assert norms_that_run(twin, x) == 1
    expected = answer(model, x)
    assert_close(twin(x), expected, rtol=0, atol=2 * torch.finfo(dtype).eps * float(expected.abs().amax()))


def test_double_precision_is_folded() -> None:
    model, x = with_head(block()).double(), picture(3).double()
    twin = Twin(model, x[:1])
    assert norms_that_run(twin, x) == 0
    assert_close(twin(x), answer(model, x), rtol=1e-12, atol=1e-12)


def test_a_model_that_needs_its_own_order_in_memory_is_folded_and_keeps_it() -> None:
    model = nn.Sequential(block(), Apply(lambda a: a.view(len(a), -1)), nn.Linear(4 * 36, 2)).eval()
    x = picture(3)
    twin = Twin(model, x[:1])
    assert norms_that_run(twin, x) == 0
    assert_close(twin(x), answer(model, x), rtol=1e-4, atol=1e-5)


def test_inputs_and_outputs_of_any_structure() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.table = block(), nn.Embedding(3, 4)

        def forward(self, *, images: Tensor, kind: Tensor) -> dict[str, Any]:
            maps = self.trunk(images)
            return {"maps": (maps, kind), "logits": maps.mean((2, 3)) + self.table(kind)}

    model, kind = Scaled().eval(), torch.tensor([2])
    twin = Twin(model, {"images": picture(), "kind": kind})
    inputs = {"images": picture(4), "kind": kind.expand(4)}
    came, expected = twin(inputs), model(**inputs)
    assert twin._model is not model
    assert_close(came["logits"], expected["logits"].detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(came["maps"][1], kind.expand(4))


# ------------------------------------------------------------------------------------------ where there can be no twin


class Uncopied(nn.Sequential):
    """A model that cannot be copied, in one way or another."""

    def __init__(self, held: Any) -> None:
        super().__init__(*with_head(block()))
        self.held = held


def on_a_graph() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2


@pytest.mark.parametrize("held", [threading.Lock, on_a_graph, lambda: (n for n in range(3))])
def test_a_model_that_cannot_be_copied_is_asked_itself(held: Callable[[], Any]) -> None:
    model, x = Uncopied(held()).eval(), picture(3)
    before = state(model)
    twin = Twin(model, x[:1])
    assert twin._model is model
    assert torch.equal(twin(x), answer(model, x))
    assert_untouched(model, before)


def test_a_model_that_answers_otherwise_each_time_is_asked_itself_and_the_generator_stays() -> None:
    model, x = with_head(nn.Sequential(block(), Apply(lambda a: a + torch.randn_like(a)))), picture(3)
    drawn = torch.get_rng_state()
    twin = Twin(model, x[:1])
    assert torch.equal(twin(x), twin(x))
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_fault_of_the_model_is_the_models() -> None:
    twin = Twin(with_head(block()), picture())
    with pytest.raises(RuntimeError, match="channels"):
        twin(torch.randn(1, 5, 8, 8))


# ------------------------------------------------------------------------------------------------ what is the user's


class Counting(nn.Module):
    """It counts its calls in a buffer, and its answer depends on them."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = block()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.trunk(x) * self.calls


def test_a_twin_does_not_remember_earlier_passes() -> None:
    model, x = Counting().eval(), picture(2)
    twin = Twin(model, x[:1])
    first = twin(x)
    assert torch.equal(twin(x), first)
    assert model.calls == 0


class Remembering(nn.Module):
    """It keeps a table that it makes when it first runs, and trains with it later."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.table = nn.Parameter(torch.ones(8)), None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(8.0)
        return x * self.table * self.weight


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_a_model_keeps_of_its_own_accord_can_be_trained_with(mode: Any) -> None:
    model = nn.Sequential(Remembering(), Apply(torch.rand_like)).eval()  # no twin can be equal
    with mode():
        Twin(model, picture())(picture(2))
    model[0](picture()).sum().backward()
    assert model[0].weight.grad is not None


def test_a_model_can_go_while_its_twin_stays() -> None:
    model, x = with_head(block()), picture(2)
    expected, gone = answer(model, x), weakref.ref(model)
    twin = Twin(model, x[:1])
    del model
    gc.collect()
    assert gone() is None
    assert_close(twin(x), expected, rtol=1e-4, atol=1e-5)


def test_gradients_are_neither_used_nor_made() -> None:
    model, x = with_head(block()), picture(2)
    model(x).sum().backward()
    before = state(model)
    with torch.enable_grad():
        assert not Twin(model, x[:1])(x.requires_grad_()).requires_grad
    assert_untouched(model, before)


def test_threads_may_each_have_a_twin_of_one_model() -> None:
    model, x = with_head(block()), picture(3)
    expected, answers = answer(model, x), []

    def ask() -> None:
        answers.extend(Twin(model, x[:1])(x) for _ in range(5))

    before = state(model)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    assert_close(torch.stack(answers), expected.expand(20, -1, -1), rtol=1e-4, atol=1e-5)
    assert_untouched(model, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_the_twin_stays_there() -> None:
    model, x = with_head(block()).cuda(), picture(3).cuda()
    twin = Twin(model, x[:1])
    assert twin(x).device == x.device
    assert_close(twin(x), answer(model, x), rtol=1e-4, atol=1e-4)
    assert twin.most_at_once > Twin(with_head(block()), picture()).most_at_once


def test_a_copy_that_fails_in_any_way_is_not_used() -> None:
    class Asks(nn.Module):
        """Asks its norm for what only a norm has."""

        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.convolution(x)
            self.norm._check_input_dim(y)
            return self.norm(y).mean((2, 3))

    model, x = Asks().eval(), torch.randn(1, 3, 8, 8)
    assert torch.equal(Twin(model, x)(x), model(x))
