"""Folded models: equal to the model, or not used."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torchvision.models as zoo
from torch import Tensor, nn
from torch.testing import assert_close

from camtool.hooks import fast_repeated_passes
from camtool.hooks.chunks import compute_chunk_size
from camtool.hooks.fast_repeated_passes import FoldedModel, rounds_to_tf32
from camtool.hooks.tracing import trace
from tests.helpers.nets import Apply


def make_norm(channels: int, kind: Callable[..., nn.Module] = nn.BatchNorm2d, **options: Any) -> Any:
    """Return a batch norm with random statistics and weights, so that leaving it out changes the output."""
    module: Any = kind(channels, **options)
    for name, low in (("running_mean", -1.0), ("running_var", 0.5), ("weight", 0.5), ("bias", -1.0)):
        if getattr(module, name) is not None:
            getattr(module, name).data.uniform_(low, low + 2)
    return module


def make_block(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3, **options), make_norm(4), nn.ReLU())


def add_head(trunk: nn.Module) -> nn.Sequential:
    return nn.Sequential(trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()


def make_images(count: int = 1) -> Tensor:
    return torch.randn(count, 3, 8, 8)


def run_plain(model: nn.Module, x: Any) -> Any:
    with torch.no_grad():
        return model(x)


def count_norms(folded: FoldedModel, x: Any) -> int:
    return sum(isinstance(seen.module, fast_repeated_passes._BATCH_NORMS) for seen in trace(folded._model, x))


def describe_state(model: nn.Module) -> dict[str, Any]:
    """Return what the user can see of a model: its modules, tensors, gradients, modes and hooks."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "modules": [(name, id(module), type(module), module.training) for name, module in model.named_modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "tensors": [(n, id(t), t.data_ptr(), t.stride(), t.requires_grad, t._version) for n, t in tensors.items()],
        "values": [tensor.clone() for tensor in tensors.values()],
        "grads": [None if p.grad is None else id(p.grad) for p in model.parameters()],
    }


def assert_unchanged(model: nn.Module, before: dict[str, Any]) -> None:
    after = describe_state(model)
    assert all(map(torch.equal, after.pop("values"), before["values"]))
    assert after == {name: value for name, value in before.items() if name != "values"}


def test_the_chunk_size_follows_the_largest_tensor_including_the_input() -> None:
    x = make_images()
    for model, largest in ((add_head(make_block(padding=1)), 4 * 8 * 8), (nn.Sequential(nn.Flatten()), 3 * 8 * 8)):
        assert FoldedModel(model, x).chunk_size == compute_chunk_size(largest, x)
    wider = FoldedModel(add_head(make_block(padding=1)).double(), x.double())
    assert wider.chunk_size == compute_chunk_size(4 * 8 * 8, x.double())


# -------------------------------------------------------------------------------------------------- folded copies


class Residual(nn.Module):
    """A convolution whose output goes through a norm and also around it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), make_norm(4)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.convolution(x)
        return self.norm(seen) + seen


class ResidualForSomeInputs(Residual):
    """The same, but for some inputs the second path adds nothing."""

    def forward(self, x: Tensor) -> Tensor:
        seen = self.convolution(x)
        return self.norm(seen) + seen * (x.sum() > 0)


class ConvolutionRunTwice(nn.Module):
    """A convolution that runs twice, with a norm for each time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.norms = (
            nn.Conv2d(3, 4, 1),
            nn.Conv2d(4, 4, 1),
            nn.ModuleList([make_norm(4), make_norm(4)]),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for each in self.norms:
            x = each(self.again(x))
        return x


class Aliased(nn.Module):
    """The modules that run have a second name, and a third one that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), make_norm(4)
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
        self.one, self.two, self.norm = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), make_norm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.two(self.norm(self.one(x)).relu()))


class Reader(nn.Module):
    """Reads the convolution's weight outside the convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), make_norm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolution(x)) * self.convolution.weight.norm()


class WeightStandardized(nn.Conv2d):
    """Standardizes its weights when it runs, so they must not be scaled before."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight / weight.std((1, 2, 3), keepdim=True), self.bias)


class Activated(nn.BatchNorm2d):
    """A norm with an activation inside."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def add_hook(forward: bool) -> nn.Module:
    model = add_head(make_block())
    if forward:
        model[0][0].register_forward_hook(lambda module, args, output: output * 2)
    else:
        model[0][1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return model


# name → (model, batch norms that run in the model, batch norms that run in the copy)
MODELS = {
    "with and without a bias": (
        lambda: add_head(nn.Sequential(make_block(bias=False), nn.Conv2d(4, 4, 1), make_norm(4))),
        2,
        0,
    ),
    "grouped, strided, dilated": (
        lambda: add_head(
            nn.Sequential(nn.Conv2d(3, 6, 2, groups=3, stride=2), make_norm(6), nn.Conv2d(6, 4, 2, 1, 1, 2))
        ),
        1,
        0,
    ),
    "without weights": (lambda: add_head(nn.Sequential(nn.Conv2d(3, 4, 3), make_norm(4, affine=False))), 1, 0),
    "modules with several names": (lambda: add_head(Aliased()), 1, 0),
    "resnet": (lambda: zoo.resnet18(num_classes=7).eval(), 20, 0),
    "no convolution before": (lambda: add_head(nn.Sequential(make_norm(3), nn.Conv2d(3, 4, 3))), 1, 1),
    "an activation between": (lambda: add_head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), make_norm(4))), 1, 1),
    "no statistics": (
        lambda: add_head(nn.Sequential(nn.Conv2d(3, 4, 3), make_norm(4, track_running_stats=False))),
        1,
        1,
    ),
    "the convolution runs twice": (lambda: add_head(ConvolutionRunTwice()), 2, 2),
    "the norm runs twice": (lambda: add_head(SharedNorm()), 2, 2),
    "used twice": (lambda: add_head(Residual()), 1, 1),
    "used twice for some inputs": (lambda: add_head(ResidualForSomeInputs()), 1, 1),
    "weights read elsewhere": (lambda: add_head(Reader()), 1, 1),
    "a subclass of convolution": (lambda: add_head(nn.Sequential(WeightStandardized(3, 4, 3), make_norm(4))), 1, 1),
    "a subclass of batch norm": (lambda: add_head(nn.Sequential(nn.Conv2d(3, 4, 3), make_norm(4, Activated))), 1, 1),
    "a hook on the convolution": (lambda: add_hook(True), 1, 1),
    "a hook on the norm": (lambda: add_hook(False), 1, 1),
    "parametrized": (
        lambda: add_head(
            nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), make_norm(4), nn.ReLU())
        ),
        1,
        1,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_copy_equals_the_model_and_leaves_it_unchanged(name: str) -> None:
    make, norms, remaining = MODELS[name]
    model, x = make(), torch.randn(1, 3, 33, 33)
    assert sum(isinstance(seen.module, fast_repeated_passes._BATCH_NORMS) for seen in trace(model, x)) == norms
    before = describe_state(model)
    folded = FoldedModel(model, x)
    assert count_norms(folded, x) == remaining
    many = torch.randn(5, 3, 33, 33)
    expected = run_plain(model, many)
    assert_close(folded(many), expected, rtol=0, atol=1e-5 * float(expected.abs().amax()))
    assert not folded(many).requires_grad
    assert_unchanged(model, before)


@pytest.mark.parametrize(
    ("convolution", "kind", "size"),
    [(nn.Conv1d, nn.BatchNorm1d, (9,)), (nn.Conv3d, nn.BatchNorm3d, (5, 6, 7))],
)
def test_1d_and_3d_convolutions_are_folded(convolution: Any, kind: Any, size: tuple[int, ...]) -> None:
    model = nn.Sequential(convolution(2, 4, 3), make_norm(4, kind), nn.ReLU(), nn.Flatten()).eval()
    x = torch.randn(3, 2, *size)
    folded = FoldedModel(model, x[:1])
    assert count_norms(folded, x) == 0
    assert_close(folded(x), run_plain(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_in_training_mode_runs_in_evaluation_mode_and_returns_to_it(training: bool) -> None:
    model, x = add_head(nn.Sequential(make_block(), nn.Dropout(0.9))), make_images(4)
    expected = run_plain(model, x)
    model.train(training)
    model[0][0].eval()  # a frozen part
    before = describe_state(model)
    assert_close(FoldedModel(model, x[:1])(x), expected, rtol=1e-4, atol=1e-5)
    assert_unchanged(model, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_not_folded(dtype: torch.dtype) -> None:
    model, x = add_head(make_block()).to(dtype), make_images(3).to(dtype)
    folded = FoldedModel(model, x[:1])
    assert count_norms(folded, x) == 1
    expected = run_plain(model, x)
    assert_close(folded(x), expected, rtol=0, atol=2 * torch.finfo(dtype).eps * float(expected.abs().amax()))


def test_double_precision_is_folded() -> None:
    model, x = add_head(make_block()).double(), make_images(3).double()
    folded = FoldedModel(model, x[:1])
    assert count_norms(folded, x) == 0
    assert_close(folded(x), run_plain(model, x), rtol=1e-12, atol=1e-12)


def test_a_model_that_fails_in_channels_last_is_folded_in_contiguous_format() -> None:
    model = nn.Sequential(make_block(), Apply(lambda a: a.view(len(a), -1)), nn.Linear(4 * 36, 2)).eval()
    x = make_images(3)
    folded = FoldedModel(model, x[:1])
    assert count_norms(folded, x) == 0
    assert_close(folded(x), run_plain(model, x), rtol=1e-4, atol=1e-5)


def test_inputs_and_outputs_may_be_nested() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.table = make_block(), nn.Embedding(3, 4)

        def forward(self, *, images: Tensor, kind: Tensor) -> dict[str, Any]:
            maps = self.trunk(images)
            return {"maps": (maps, kind), "logits": maps.mean((2, 3)) + self.table(kind)}

    model, kind = Scaled().eval(), torch.tensor([2])
    folded = FoldedModel(model, {"images": make_images(), "kind": kind})
    inputs = {"images": make_images(4), "kind": kind.expand(4)}
    came, expected = folded(inputs), model(**inputs)
    assert folded._model is not model
    assert_close(came["logits"], expected["logits"].detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(came["maps"][1], kind.expand(4))


# ------------------------------------------------------------------------------------------ models without a copy


class NotCopyable(nn.Sequential):
    """A model with an attribute that cannot be copied."""

    def __init__(self, attribute: Any) -> None:
        super().__init__(*add_head(make_block()))
        self.attribute = attribute


def make_tensor_on_a_graph() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2


@pytest.mark.parametrize("attribute", [threading.Lock, make_tensor_on_a_graph, lambda: (n for n in range(3))])
def test_a_model_that_cannot_be_copied_runs_itself(attribute: Callable[[], Any]) -> None:
    model, x = NotCopyable(attribute()).eval(), make_images(3)
    before = describe_state(model)
    folded = FoldedModel(model, x[:1])
    assert folded._model is model
    assert torch.equal(folded(x), run_plain(model, x))
    assert_unchanged(model, before)


def test_a_random_model_runs_itself_and_the_generator_is_unchanged() -> None:
    model, x = add_head(nn.Sequential(make_block(), Apply(lambda a: a + torch.randn_like(a)))), make_images(3)
    drawn = torch.get_rng_state()
    folded = FoldedModel(model, x[:1])
    assert torch.equal(folded(x), folded(x))
    assert torch.equal(torch.get_rng_state(), drawn)


def test_an_error_of_the_model_is_raised() -> None:
    folded = FoldedModel(add_head(make_block()), make_images())
    with pytest.raises(RuntimeError, match="channels"):
        folded(torch.randn(1, 5, 8, 8))


# ------------------------------------------------------------------------------------------------- the user's model


class CountsCalls(nn.Module):
    """Counts its calls in a buffer, and its output depends on them."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = make_block()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.trunk(x) * self.calls


def test_the_copy_does_not_keep_buffers_of_earlier_passes() -> None:
    model, x = CountsCalls().eval(), make_images(2)
    folded = FoldedModel(model, x[:1])
    first = folded(x)
    assert torch.equal(folded(x), first)
    assert model.calls == 0


class CachesTable(nn.Module):
    """Makes a table in its first forward pass, and uses it in training later."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.table = nn.Parameter(torch.ones(8)), None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(8.0)
        return x * self.table * self.weight


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_tensor_that_the_model_caches_can_be_trained_with(mode: Any) -> None:
    model = nn.Sequential(CachesTable(), Apply(torch.rand_like)).eval()  # random, so no copy is equal
    with mode():
        FoldedModel(model, make_images())(make_images(2))
    model[0](make_images()).sum().backward()
    assert model[0].weight.grad is not None


def test_the_copy_does_not_keep_the_model_alive() -> None:
    model, x = add_head(make_block()), make_images(2)
    expected, gone = run_plain(model, x), weakref.ref(model)
    folded = FoldedModel(model, x[:1])
    del model
    gc.collect()
    assert gone() is None
    assert_close(folded(x), expected, rtol=1e-4, atol=1e-5)


def test_the_copy_uses_and_makes_no_gradients() -> None:
    model, x = add_head(make_block()), make_images(2)
    model(x).sum().backward()
    before = describe_state(model)
    with torch.enable_grad():
        assert not FoldedModel(model, x[:1])(x.requires_grad_()).requires_grad
    assert_unchanged(model, before)


def test_threads_may_each_fold_the_same_model() -> None:
    model, x = add_head(make_block()), make_images(3)
    expected, answers = run_plain(model, x), []

    def ask() -> None:
        answers.extend(FoldedModel(model, x[:1])(x) for _ in range(5))

    before = describe_state(model)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    assert_close(torch.stack(answers), expected.expand(20, -1, -1), rtol=1e-4, atol=1e-5)
    assert_unchanged(model, before)


def test_tf32_is_noticed_whichever_names_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = cast(Tensor, SimpleNamespace(is_cuda=True, dtype=torch.float32, device="cuda:0"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert not rounds_to_tf32(torch.zeros(1))
    assert not rounds_to_tf32(cast(Tensor, SimpleNamespace(is_cuda=True, dtype=torch.float64)))
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        assert not rounds_to_tf32(on_gpu)
        torch.backends.cuda.matmul.allow_tf32 = True
        assert rounds_to_tf32(on_gpu)
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
        assert rounds_to_tf32(on_gpu)
        with monkeypatch.context() as older:  # V100 and T4 have no TF32
            older.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
            assert not rounds_to_tf32(on_gpu)
        if hasattr(torch.backends.cudnn, "conv"):  # from torch 2.9 on, and then the old name is an error
            torch.backends.cudnn.conv.fp32_precision = "ieee"
            assert rounds_to_tf32(on_gpu)
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_the_copy_stays_on_the_gpu() -> None:
    model, x = add_head(make_block()).cuda(), make_images(3).cuda()
    folded = FoldedModel(model, x[:1])
    assert folded(x).device == x.device
    assert_close(folded(x), run_plain(model, x), rtol=1e-4, atol=1e-4)
    assert folded.chunk_size > FoldedModel(add_head(make_block()), make_images()).chunk_size


def test_a_copy_that_fails_is_not_used() -> None:
    class CallsPrivateMethod(nn.Module):
        """Calls a method that only a batch norm has."""

        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.convolution(x)
            self.norm._check_input_dim(y)
            return self.norm(y).mean((2, 3))

    model, x = CallsPrivateMethod().eval(), torch.randn(1, 3, 8, 8)
    assert torch.equal(FoldedModel(model, x)(x), model(x))
