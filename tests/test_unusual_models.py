"""Models that do what few do: one image at a time, hooks of others, weights that come and go, other tensor classes."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import camtool
from camtool.hooks.model_passes import NEED_GRADIENTS
from camtool.hooks.observation import run_with_hooks
from camtool.hooks.tracing import trace

Forward = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """A small net whose forward pass is a function."""

    def __init__(self, run: Forward) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(inplace=True))
        self.fc = nn.Linear(16, 5)
        self.run = run
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)

    def pool(self, x: Tensor) -> Tensor:
        return self.features(x).mean((2, 3))  # type: ignore[no-any-return]


def run_plainly(net: Net, x: Tensor) -> Tensor:
    return net.fc(net.pool(x))  # type: ignore[no-any-return]


def build_pair(run: Forward) -> tuple[Net, Net]:
    """Return a net with this forward pass, and a plain one with the same weights."""
    torch.manual_seed(0)
    plain = Net(run_plainly)
    nn.init.uniform_(plain.fc.weight)  # all that is there speaks for all classes
    unusual = Net(run)
    unusual.load_state_dict(plain.state_dict())
    return unusual, plain


def assert_same_map(unusual: nn.Module, plain: nn.Module, given: Tensor | None = None, **options: Any) -> None:
    """Check that the heatmap on the image is that of the plain model."""
    image = torch.rand(1, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    (found,) = camtool.explain(unusual, image if given is None else given, 1, **options)
    (expected,) = camtool.explain(plain, image, 1, **options)
    assert expected.heatmap.any()
    np.testing.assert_allclose(found.heatmap, expected.heatmap, atol=1e-5)


# ------------------------------------------------------------------------------------------------- one image at a time


def run_squeezed(net: Net, x: Tensor) -> Tensor:
    return net.fc(net.pool(x).squeeze(0))[None]  # type: ignore[no-any-return]


def run_asserting(net: Net, x: Tensor) -> Tensor:
    assert len(x) == 1
    return run_plainly(net, x)


def run_dividing(net: Net, x: Tensor) -> Tensor:
    if len(x) != 1:
        raise ZeroDivisionError
    return run_plainly(net, x)


@pytest.mark.parametrize(
    "run",
    [
        lambda net, x: net.fc(net.pool(x).view(1, 16)),
        lambda net, x: net.fc(net.pool(x)).view(1, 5),
        run_squeezed,
        run_asserting,
        run_dividing,
    ],
    ids=["view", "view of scores", "squeezed", "assert", "other error"],
)
def test_models_that_take_one_image(run: Forward) -> None:
    unusual, plain = build_pair(run)
    for method in ("gradcam", "occlusion", "scorecam"):
        assert_same_map(unusual, plain, method=method)
    (result,) = camtool.explain(unusual, torch.rand(1, 3, 48, 48), 1, layer="features.2")
    result.check()
    with pytest.raises(camtool.CamtoolError, match=r"batch_size=1|one row per image"):
        camtool.explain(unusual, torch.rand(2, 3, 48, 48), 1)
    assert len(camtool.explain(unusual, torch.rand(2, 3, 48, 48), 1, batch_size=1)) == 2


class Bag(nn.Module):
    """Multiple-instance learning: a batch is one bag with one row of scores."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.ReLU())
        self.weight, self.head = nn.Linear(6, 1), nn.Linear(6, 4)

    def pool(self, maps: Tensor) -> Tensor:
        instances = maps.mean((2, 3))
        scores: Tensor = self.head((self.weight(instances).softmax(0) * instances).sum(0, keepdim=True))
        return scores

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.features(images))


class OneOfBag(nn.Module):
    """The wrapper that the error about a bag describes."""

    def __init__(self, bag: Bag) -> None:
        super().__init__()
        self.bag = bag

    def forward(self, image: Tensor, others: Tensor) -> Tensor:
        return self.bag.pool(torch.cat([self.bag.features(image), self.bag.features(others)]))


def test_a_bag_of_images_is_explained_as_its_error_says() -> None:
    bag, images = Bag().eval(), torch.rand(4, 3, 24, 24)
    with pytest.raises(
        camtool.TargetError, match=r"\(1, 4\) for 4 images.* one bag, wrap .*Inputs\(image, others, shared"
    ):
        camtool.explain(bag, images, 1)
    inputs = camtool.Inputs(images[:1], images[1:], shared=[1], image=0)
    (result,) = camtool.explain(OneOfBag(bag), inputs, 1)
    maps = bag.features(images).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(bag.pool(maps)[0, 1], maps)
    expected = (gradient.mean((2, 3), keepdim=True) * maps).sum(1).relu()[0].detach()
    assert torch.allclose(torch.from_numpy(result.raw), expected, atol=1e-7)


# -------------------------------------------------------------------------------------------------- needs of gradients


def run_with_tensor_hook(net: Net, x: Tensor) -> Tensor:
    features = net.features(x)
    features.register_hook(lambda gradient: None)
    return net.fc(features.mean((2, 3)))  # type: ignore[no-any-return]


def run_retaining(net: Net, x: Tensor) -> Tensor:
    features = net.features(x)
    features.retain_grad()
    return net.fc(features.mean((2, 3)))  # type: ignore[no-any-return]


def run_with_node_hook(net: Net, x: Tensor) -> Tensor:
    features = net.features(x)
    features.grad_fn.register_hook(lambda *_: None)
    return net.fc(features.mean((2, 3)))  # type: ignore[no-any-return]


def run_differentiating(net: Net, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    scores = run_plainly(net, x)
    torch.autograd.grad(scores.max(), x, create_graph=True)
    return scores


@pytest.mark.parametrize("run", [run_with_tensor_hook, run_retaining, run_with_node_hook, run_differentiating])
@pytest.mark.parametrize("method", ["gradcam", "scorecam", "occlusion", "smoothgrad", "fullgrad"])
def test_models_that_need_gradients(run: Forward, method: str) -> None:
    assert_same_map(*build_pair(run), method=method)


def test_a_held_layer_of_a_model_that_needs_gradients() -> None:
    (result,) = camtool.explain(build_pair(run_retaining)[0], torch.rand(1, 3, 48, 48), 1, layer="features")
    result.check()
    for method in ("ablationcam", "shapleycam", "liftcam"):
        assert_same_map(*build_pair(run_retaining), method=method, layer="features")


def run_out_of_memory(net: Net, x: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        raise torch.OutOfMemoryError
    raise ValueError("no class of this name")


def test_the_error_of_a_model_that_has_no_memory_for_gradients_is_its_own() -> None:
    net, x = Net(run_out_of_memory), torch.rand(1, 3, 48, 48)
    for run in (lambda: trace(net, x), lambda: run_with_hooks(net, ["features"], x, grad=False)):
        with pytest.raises(camtool.ForwardError, match="no class of this name"):
            run()
        assert net not in NEED_GRADIENTS


def test_memory_of_a_forward_pass_with_gradients_is_freed() -> None:
    unusual, _ = build_pair(run_with_tensor_hook)
    camtool.explain(unusual, torch.rand(1, 3, 48, 48), 1)
    observed = run_with_hooks(unusual, ["features"], torch.rand(1, 3, 48, 48), grad=False)
    assert observed.output.grad_fn is None
    assert observed.calls["features"][0].grad_fn is None


# ---------------------------------------------------------------------------------------------------- tensor classes


class Tagged(Tensor):
    """A tensor with metadata, as MONAI's and fastai's."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(found, Tagged):
            found.tag = "kept"  # type: ignore[attr-defined]
        return found


class InPlaceBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.side = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 1)
        self.relu, self.fc = nn.ReLU(inplace=True), nn.Linear(8, 5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.side(x)
        y += x
        return self.fc(self.relu(y).mean((2, 3)))  # type: ignore[no-any-return]


class Tagging(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.as_subclass(Tagged))  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["gradcam", "occlusion", "fullgrad"])
def test_subclasses_of_tensors(method: str) -> None:
    net = InPlaceBlock()
    image = torch.rand(1, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    assert_same_map(net, net, image.as_subclass(Tagged), method=method)
    if method != "fullgrad":
        assert_same_map(Tagging(net).eval(), net, method=method)


# ----------------------------------------------------------------------------------------------------- hooks of others


def fail(*_: object) -> None:
    raise ValueError("No activations detected")


@pytest.mark.parametrize(
    ("name", "register", "kind"),
    [
        ("features", "register_forward_hook", "forward"),
        ("features.0", "register_forward_pre_hook", "forward"),
        ("fc", "register_full_backward_hook", "backward"),
        ("fc", "register_full_backward_pre_hook", "backward"),
    ],
)
@pytest.mark.parametrize("method", ["gradcam", "smoothgrad"])
def test_a_hook_that_fails_is_named(name: str, register: str, kind: str, method: str) -> None:
    net, _ = build_pair(run_plainly)
    getattr(net.get_submodule(name), register)(fail)
    expected = f"a {kind} hook on layer '{name}' .* failed with ValueError: No activations detected.*remove or disable"
    with pytest.raises(camtool.ForwardError, match=expected):
        camtool.explain(net, torch.rand(1, 3, 48, 48), 1, method=method)


@pytest.mark.parametrize("method", ["gradcam", "smoothgrad", "eigencam"])
def test_backward_hooks_on_a_net_that_writes_in_place(method: str) -> None:
    net, _ = build_pair(run_plainly)
    net.features[2].register_full_backward_hook(lambda *_: None)
    with pytest.raises(camtool.ForwardError, match=r"'features\.3' \(ReLU\) writes in place .* on: features\.2"):
        camtool.explain(net, torch.rand(1, 3, 48, 48), 1, method=method)


def test_forward_called_by_itself_runs_no_hooks() -> None:
    def run(net: Net, x: Tensor) -> Tensor:
        for layer in net.features:
            x = layer.forward(x)
        return net.fc.forward(x.mean((2, 3)))

    unusual, plain = build_pair(run)
    with pytest.raises(camtool.LayerError, match=r"calls \.forward\(\.\.\.\) of its modules, which runs no hooks"):
        camtool.explain(unusual, torch.rand(1, 3, 48, 48), 1)
    with pytest.raises(camtool.LayerError, match=r"'features\.2' did not run .* do not see calls of \.forward"):
        camtool.explain(unusual, torch.rand(1, 3, 48, 48), 1, layer="features.2")
    assert_same_map(unusual, plain, method="occlusion")


# ------------------------------------------------------------------------------------------- weights that come and go


def offload(net: nn.Module, *, by_hooks: bool) -> nn.Module:
    """Keep the weights on the meta device, and load those of a module while it runs, as accelerate does."""
    for module in net.modules():
        stored = {name: each.detach().clone() for name, each in module.named_parameters(recurse=False)}
        if not stored:
            continue

        def place(module: nn.Module, tensors: dict[str, Tensor]) -> None:
            for name, each in tensors.items():
                module._parameters[name] = nn.Parameter(each, requires_grad=False)

        def free(*_: object, module: nn.Module = module, stored: dict[str, Tensor] = stored) -> None:
            place(module, {name: each.to("meta") for name, each in stored.items()})

        def load(*_: object, module: nn.Module = module, stored: dict[str, Tensor] = stored) -> None:
            place(module, stored)

        def run(*args: Any, load: Any = load, free: Any = free, forward: Any = module.forward) -> Any:
            load()
            output = forward(*args)
            free()
            return output

        free()
        if by_hooks:
            module.register_forward_pre_hook(load)
            module.register_forward_hook(free)
        else:
            module.forward = run  # type: ignore[method-assign]
    return net


@pytest.mark.parametrize("by_hooks", [True, False])
@pytest.mark.parametrize("method", ["gradcam", "ablationcam", "scorecam", "occlusion", "fullgrad"])
def test_offloaded_weights(method: str, *, by_hooks: bool) -> None:
    unusual, plain = build_pair(run_plainly)
    assert_same_map(offload(unusual, by_hooks=by_hooks), plain, method=method)


def test_sharded_weights() -> None:
    """FSDP frees the memory of a parameter after each forward pass; to read it then ends the process."""
    code = """
import copy, tempfile, numpy, torch, camtool, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
plain = nn.Sequential(
    nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU()), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
).eval()
plain[1].weight.data *= torch.tensor([4.0, 1, 0.1])
net, mesh, image = copy.deepcopy(plain), init_device_mesh("cpu", (1,)), torch.rand(1, 3, 64, 64)
fully_shard(net[1], mesh=mesh)
fully_shard(net, mesh=mesh)
net(image)
for method in ("gradcam", "ablationcam", "occlusion", "smoothgrad"):
    found, expected = (camtool.explain(each, image, 1, method=method)[0].heatmap for each in (net, plain))
    numpy.testing.assert_allclose(found, expected, atol=1e-4, err_msg=method)
camtool.explain(net, image, 1, method="fullgrad")
print("done")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stderr


def test_lazy_layers_are_left_as_they_are() -> None:
    first = (nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU())
    net = nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(4)).eval()
    for call in (camtool.explain, camtool.concepts, camtool.candidate_layers):
        with pytest.raises(
            camtool.CamtoolError, match=r"lazy layers that have no weights yet; run it once, model\(x\)"
        ):
            call(net, torch.rand(1, 3, 48, 48))
    lazy = [nn.LazyConv2d, nn.LazyBatchNorm2d, nn.LazyLinear]
    assert [type(net[index]) for index in (0, 1, 5)] == lazy
    net(torch.rand(1, 3, 48, 48))
    camtool.explain(net, torch.rand(1, 3, 48, 48), 1)


# ------------------------------------------------------------------------------------------------ no gradient, and why


def run_partly_in_inference_mode(net: Net, x: Tensor) -> Tensor:
    with torch.inference_mode():
        pooled = net.pool(x)
    return net.fc(pooled)  # type: ignore[no-any-return]


def run_with_checkpointed_end(net: Net, x: Tensor) -> Tensor:
    end = checkpoint(net.features[2:], net.features[:2](x), use_reentrant=True)
    return net.fc(end.mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (torch.inference_mode()(run_plainly), "runs in torch.inference_mode"),
        (run_partly_in_inference_mode, "runs in torch.inference_mode"),
        (
            lambda net, x: net.fc(checkpoint(net.features, x, use_reentrant=True).mean((2, 3))),
            "pass use_reentrant=False",
        ),
        (lambda net, x: checkpoint(run_plainly, net, x, use_reentrant=True), "pass use_reentrant=False"),
        (run_with_checkpointed_end, "model: it uses torch.utils.checkpoint with use_reentrant=True"),
        (lambda net, x: run_plainly(net, x).detach(), "detaches the output"),
    ],
    ids=["inference mode", "partly", "checkpoint", "whole checkpoint", "checkpoint of the end", "detached"],
)
def test_why_no_gradient_passes(run: Forward, reason: str) -> None:
    unusual, plain = build_pair(run)
    with pytest.raises((camtool.LayerError, camtool.ForwardError), match=reason):
        camtool.explain(unusual, torch.rand(1, 3, 48, 48), 1)
    assert_same_map(unusual, plain, method="occlusion")


def test_modules_inside_of_vmap_are_no_layers() -> None:
    def run(net: Net, x: Tensor) -> Tensor:
        return torch.vmap(lambda one: run_plainly(net, one[None])[0])(x)

    unusual, plain = build_pair(run)
    with pytest.raises(camtool.LayerError, match="method='occlusion' needs no layer"):
        camtool.explain(unusual, torch.rand(1, 3, 48, 48), 1)
    assert_same_map(unusual, plain, method="occlusion")


def test_spectrograms_without_channels_get_advice() -> None:
    class Listener(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.unsqueeze(1)).mean((2, 3))  # type: ignore[no-any-return]

    class Wrapped(Listener):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.squeeze(1))

    layers = nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 5, 3)
    with pytest.raises(camtool.ForwardError, match=r"one axis too many: .*pass \(N, 1, T, F\)"):
        camtool.explain(Listener(*layers).eval(), torch.rand(1, 100, 64), 1)
    assert camtool.explain(Wrapped(*layers).eval(), torch.rand(1, 1, 100, 64), 1)


def test_spectrograms_whose_tokens_run_over_frequencies_first_get_advice() -> None:
    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.head = nn.Conv2d(1, 16, 8, 8), nn.Linear(16, 3)
            self.blocks = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2)))

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.patches(x[:, None].mT).flatten(2).mT
            return self.head(self.blocks(tokens).mean(1))  # type: ignore[no-any-return]

    class Wrapped(Transformer):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.squeeze(1).mT)

    with pytest.raises(
        camtool.ForwardError, match=r"as in AST, pass \(N, 1, F, T\) and call it with x.squeeze\(1\).mT"
    ):
        camtool.explain(Transformer().eval(), torch.rand(1, 64, 32), 1)
    assert camtool.explain(Wrapped().eval(), torch.rand(1, 1, 32, 64), 1)[0].raw.shape == (4, 8)


@pytest.mark.parametrize("options", [{}, {"kind": "signal"}, {"kind": "signal", "layer": "net.0"}], ids=str)
def test_a_model_that_makes_its_own_spectrogram_gets_advice(options: dict[str, Any]) -> None:
    class Listener(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            spectrum = torch.stft(x[:, 0], 32, 16, window=torch.hann_window(32), return_complex=True).abs()
            return self.net(spectrum[:, None]).mean((2, 3))  # type: ignore[no-any-return]

    with pytest.raises(camtool.CamtoolError, match="make the spectrogram the input"):
        camtool.explain(Listener().eval(), torch.rand(1, 1, 512), 1, **options)


def test_a_model_that_writes_to_its_own_activations_gets_a_way_out() -> None:
    class Detector(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            output = super().forward(x).sigmoid()
            output[:, :2] = output[:, :2] * 2
            return output.mean((2, 3))  # type: ignore[no-any-return]

    model, image = Detector(nn.Conv2d(3, 4, 3, 2, 1)).eval(), torch.rand(1, 3, 16, 16)
    with pytest.raises(camtool.ForwardError, match=r"allow_mutation_on_saved_tensors\(\), or use method='ablationcam'"):
        camtool.explain(model, image, 1, layer="0")
    assert camtool.explain(model, image, 1, layer="0", method="ablationcam")
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        assert camtool.explain(model, image, 1, layer="0")


# ------------------------------------------------------------------------------------------------------ life of a model


@pytest.mark.parametrize(
    "use",
    [
        lambda net, x: camtool.explain(net, x, 1),
        lambda net, x: camtool.explain(net, x, 1, method="scorecam")[0].check(),
        lambda net, x: camtool.explain(net, x, 99),
        lambda net, x: camtool.explain(net, x[:, :1], 1),
        lambda net, x: camtool.Explainer(net)(x, [0]),
        lambda net, x: camtool.Recorder(net, ["features"]).run(x),
        lambda net, x: camtool.Recorder(net, ["features"]).run(x[:, :1]),
    ],
    ids=["explain", "check", "target error", "forward error", "Explainer", "Recorder", "error in Recorder"],
)
def test_no_reference_cycle_keeps_the_model(use: Callable[[nn.Module, Tensor], object]) -> None:
    net, _ = build_pair(run_plainly)
    reference, image = weakref.ref(net), torch.rand(1, 3, 48, 48)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(camtool.CamtoolError):
            use(net, image)
        del net, _
        assert reference() is None
    finally:
        gc.enable()


def test_another_thread_trains_the_model() -> None:
    net, _ = build_pair(run_plainly)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def take_step() -> None:
        net(torch.rand(2, 3, 48, 48)).sum().backward()
        optimizer.step()

    def score_after_step(output: Tensor) -> Tensor:
        thread = threading.Thread(target=take_step)
        thread.start()
        thread.join()
        return output[1]

    with pytest.raises(camtool.ForwardError, match="If another thread trains the model, explain a copy"):
        camtool.explain(net, torch.rand(1, 3, 48, 48), score_after_step)
    with pytest.raises(camtool.ForwardError, match="If another thread trains the model, explain a copy"):
        camtool.explain(net, torch.rand(1, 3, 48, 48), score_after_step, method="smoothgrad", samples=1)
