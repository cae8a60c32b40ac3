"""Statically quantized models: the methods that need no gradients equal their oracles, the others are refused.

Quantization makes steps of rounding: a mask that differs in its last bit may change the score by a whole step. So
where a method masks the image, the oracle asks for the scores of the very images that the model got, which must be its
own masked images up to rounding. Each of them runs alone, through torch's own hooks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn

import camtool
from camtool import MethodError
from camtool.hooks.observation import run_with_hooks
from camtool.hooks.structures.modules import lacks_gradients
from camtool.methods import METHODS
from tests.helpers.quantized_nets import ENGINES, SmallNet, quantize_eager, quantize_fx, use_engine
from tests.oracles import ORACLES, Case
from tests.oracles.base import Maps

WORKING = ["ablationcam", "reciprocam", "eigencam", "activation-map", "kpcacam", "fem", "random"]
WORKING += ["scorecam", "sscam", "iscam", "polycam", "rise", "occlusion"]
"""The methods that work on any quantized model."""

OPTIONS: dict[str, dict[str, Any]] = {"rise": {"samples": 30}, "sscam": {"samples": 3}, "iscam": {"samples": 3}}

MODES = {"eager": quantize_eager, "fx": quantize_fx}

LAYERS = {"eager": "body", "fx": "body.convolution"}
"""The deepest layer. In an FX graph the sum behind the convolution is an operator, which no hook sees."""


def make_images(count: int, size: int, seed: int = 1) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def build_small() -> nn.Module:
    torch.manual_seed(4)
    return SmallNet()


def build_torchvision(name: str, mode: str) -> nn.Module:
    torch.manual_seed(0)
    if mode == "fx":
        return getattr(torchvision.models, name)(num_classes=5)
    return getattr(torchvision.models.quantization, name)(quantize=False, num_classes=5)


def quantize_torchvision(name: str, mode: str, engine: str) -> nn.Module:
    return MODES[mode](partial(build_torchvision, name, mode), make_images(8, 64, seed=9), engine)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    with use_engine(request.param):
        yield request.param


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def quantize_small(mode: str, engine: str) -> nn.Module:
    return MODES[mode](build_small, make_images(8, 10, seed=9), engine)


@pytest.fixture
def small(mode: str, engine: str) -> nn.Module:
    return quantize_small(mode, engine)


# ------------------------------------------------------------------------------------------------- literal runs


def run(model: nn.Module, x: Tensor, layer: str, change: Callable[[Tensor], Tensor] | None = None) -> Any:
    """Return the scores of one image and what the layer returned, quantized; ``change`` gets and returns its values."""
    returned = []

    def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor | None:
        returned.append(output)
        if change is None:
            return None
        values = change(output.dequantize())
        return torch.quantize_per_tensor(values, output.q_scale(), output.q_zero_point(), output.dtype)

    handle = model.get_submodule(layer).register_forward_hook(hook, prepend=True)
    try:
        with torch.no_grad():
            return model(x)[0], returned[-1]
    finally:
        handle.remove()


def leave_out(values: Tensor, channel: int) -> Tensor:
    values = values.clone()
    values[:, channel] = 0
    return values


def show(values: Tensor, at: tuple[int, int]) -> Tensor:
    shown = torch.zeros_like(values)
    shown[:, :, at[0], at[1]] = values[:, :, at[0], at[1]]
    return shown


def explain_recorded(model: nn.Module, x: Tensor, index: int, method: str, **options: Any) -> tuple[Any, Tensor]:
    """Return the explanation, and all images that the model got for it."""
    got: list[Tensor] = []
    handle = model.register_forward_pre_hook(lambda _, given: got.append(given[0].clone()))
    try:
        result = camtool.explain(model, x, index, method=method, **options)[0]
    finally:
        handle.remove()
    return result, torch.cat(got)


def make_case(model: nn.Module, x: Tensor, layer: str, index: int, got: Tensor) -> Case:
    """Return the case of one image ``(1, 3, H, W)``."""
    A = run(model, x, layer)[1].dequantize()

    def tail(activations: Maps) -> list[float]:
        # The clone keeps the memory format of the layer's output.
        return run(model, x, layer, lambda values: values.clone().copy_(torch.tensor([activations])))[0].tolist()

    def score(picture: Maps) -> list[float]:
        wanted = torch.tensor([picture])
        nearest = (got - wanted).abs().flatten(1).amax(1).argmin()
        image = got[nearest : nearest + 1] if wanted.any() else wanted
        assert torch.allclose(image, wanted, rtol=0, atol=1e-5), "the model did not get this image"
        return run(model, image, layer)[0].tolist()

    none: Any = None
    return Case(A[0].tolist(), none, none, x[0].tolist(), index, tail, score, none, none, none)


# ------------------------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("method", WORKING)
def test_each_method_equals_its_oracle(small: nn.Module, mode: str, method: str) -> None:
    x, options = make_images(1, 10), OPTIONS.get(method, {})
    for index in (1, 3):
        result, got = explain_recorded(small, x, index, method, **options)
        expected = np.array(ORACLES[method](make_case(small, x, LAYERS[mode], index, got), **options))
        assert result.layer == ("" if method in ("rise", "occlusion") else LAYERS[mode])
        np.testing.assert_allclose(result.raw, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))
        assert np.ptp(expected) > 0 or method in ("ablationcam", "polycam", "random")  # these may be empty


@pytest.mark.parametrize("method", WORKING)
def test_a_batch_gives_the_maps_of_its_images_one_by_one(small: nn.Module, method: str) -> None:
    x, options = make_images(3, 10, seed=2), OPTIONS.get(method, {})
    together = camtool.explain(small, x, 2, method=method, **options)
    for n, result in enumerate(together):
        alone = camtool.explain(small, x[n : n + 1], 2, method=method, **options)[0]
        assert result.score == alone.score
        np.testing.assert_allclose(result.raw, alone.raw, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["ablationcam", "reciprocam"])
def test_the_size_of_a_chunk_makes_no_difference(small: nn.Module, method: str) -> None:
    at_once = camtool.explain(small, make_images(1, 10), 1, method=method)[0].raw
    for chunk in (1, 4):
        parts = camtool.explain(small, make_images(1, 10), 1, method=method, chunk=chunk)[0].raw
        np.testing.assert_array_equal(parts, at_once)


TORCHVISION = [
    ("resnet18", "eager", "layer4"),
    ("mobilenet_v2", "fx", "features.18.2"),
]
"""Model, mode, and the deepest layer. Its 2 x 2 cells have means with many ties."""


@pytest.mark.parametrize(("name", "mode", "layer"), TORCHVISION[:1])
def test_ablation_of_a_model_of_torchvision_equals_a_loop(engine: str, name: str, mode: str, layer: str) -> None:
    model, x = quantize_torchvision(name, mode, engine), make_images(1, 64)
    scores, activations = run(model, x, layer)
    index = int(scores.argmax())
    y, A = float(scores[index]), activations.dequantize()[0].double().numpy()
    losses = [y - float(run(model, x, layer, partial(leave_out, channel=k))[0][index]) for k in range(len(A))]
    assert len({*losses}) > 2
    expected = np.maximum(np.tensordot(np.array(losses) / abs(y), A, 1), 0)

    result = camtool.explain(model, x, index, method="ablationcam")[0]
    assert (result.layer, result.score) == (layer, y)
    np.testing.assert_allclose(result.raw, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "mode", "layer"), TORCHVISION)
def test_reciprocam_of_a_model_of_torchvision_equals_a_loop(engine: str, name: str, mode: str, layer: str) -> None:
    model, x = quantize_torchvision(name, mode, engine), make_images(1, 64)
    for index in range(5):
        scores = [[float(run(model, x, layer, partial(show, at=(i, j)))[0][index]) for j in (0, 1)] for i in (0, 1)]
        result = camtool.explain(model, x, index, method="reciprocam")[0]
        assert result.layer == layer
        assert result.raw.tolist() == scores
    assert np.ptp(scores) > 0


# ------------------------------------------------------------------------------------------------------ refusals


def test_the_error_lists_the_methods_that_work(small: nn.Module) -> None:
    with pytest.raises(MethodError, match="is quantized and has no gradients, which method 'gradcam' needs") as error:
        camtool.explain(small, make_images(1, 10), 1)
    listed = re.search(r"use one of (.*), or pass the model from before quantization", str(error.value))
    assert listed is not None
    assert sorted(listed[1].split(", ")) == sorted(WORKING)


def test_every_method_that_needs_gradients_raises_an_error(small: nn.Module) -> None:
    refused = [
        name
        for name, each in METHODS.items()
        if any("gradients" in need for need in each.needs) or "ReLUs" in each.needs
    ]
    assert len(refused) > 20
    for name in [*refused, "noise:gradcam", "tta:layercam"]:
        with pytest.raises(MethodError, match="is quantized and has no gradients"):
            camtool.Explainer(small, name)


def test_cam_needs_a_head_that_is_not_quantized(small: nn.Module) -> None:
    with pytest.raises(MethodError, match=r"this model does not. Use method='ablationcam' or 'scorecam'"):
        camtool.explain(small, make_images(1, 10), 1, method="cam")


def test_attention_methods_find_no_attention_and_suggest_methods_that_work(small: nn.Module) -> None:
    for method in ("rollout", "vitreciprocam"):
        with pytest.raises(MethodError, match="no attention") as raised:
            camtool.explain(small, make_images(1, 10), 1, method=method)
        suggested = re.findall(r"'(\w+)'", str(raised.value))
        assert len(suggested) == 2
        for other in suggested:
            assert camtool.explain(small, make_images(1, 10), 1, method=other)[0].raw.any(), other


def test_cam_reads_a_head_of_floats_behind_a_quantized_trunk(engine: str) -> None:
    class FloatHead(SmallNet):
        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.dequant(self.body(self.stem(self.quant(x)))).mean((2, 3)))
            return scores

    def build() -> nn.Module:
        torch.manual_seed(4)
        return FloatHead()

    model, x = quantize_eager(build, make_images(8, 10, seed=9), engine), make_images(2, 10)
    model.head = build().head  # type: ignore[attr-defined]
    activations = run(model, x, "body")[1].dequantize()
    results = camtool.explain(model, x, 3, method="cam")
    for result, A in zip(results, activations, strict=True):
        expected = torch.tensordot(model.head.weight[3].detach(), A, 1)  # type: ignore[union-attr, index, operator]
        np.testing.assert_allclose(result.raw, expected.numpy(), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("engine")
def test_a_model_that_is_prepared_for_quantization_has_gradients() -> None:
    """Its sums are modules of torch.ao.nn.quantized, but compute with floats."""
    model = build_torchvision("resnet18", "eager").eval()
    assert not lacks_gradients(model)
    x = make_images(1, 64)
    plain = torchvision.models.resnet18(num_classes=5).eval()
    plain.load_state_dict(model.state_dict())
    result, expected = camtool.explain(model, x, 1)[0], camtool.explain(plain, x, 1)[0]
    np.testing.assert_allclose(result.raw, expected.raw, rtol=1e-4, atol=1e-6)
    assert lacks_gradients(quantize_small("eager", ENGINES[0]))


# ------------------------------------------------------------------------------------------------- probabilities


class EndNet(SmallNet):
    """A net that ends in a function of its scores."""

    end: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(self.stem(self.quant(x)))
        scores: Tensor = self.dequant(self.end(self.head(self.pool(features).flatten(1))))
        return scores


@pytest.mark.parametrize("end", [nn.Sigmoid(), nn.Hardsigmoid()], ids=["sigmoid", "hardsigmoid"])
@pytest.mark.parametrize("method", ["reciprocam", "rise"])
def test_probabilities_that_a_quantized_model_returns_are_known(
    mode: str, engine: str, end: nn.Module, method: str
) -> None:
    """Such a model has no graph that shows the sigmoid."""

    def build() -> nn.Module:
        torch.manual_seed(4)
        net = EndNet()
        net.end = end
        return net

    model, x = MODES[mode](build, make_images(8, 10, seed=9), engine), make_images(2, 10)
    with torch.no_grad():
        probabilities = model(x)[:, 3].tolist()
    results = camtool.explain(model, x, 3, method=method, **OPTIONS.get(method, {}))
    assert [each.probability for each in results] == probabilities
    assert all("The score is a probability" in " ".join(each.warnings) for each in results)


def test_logits_of_a_quantized_model_between_0_and_1_stay_logits(mode: str, engine: str) -> None:
    def build() -> nn.Module:
        model = build_small()
        with torch.no_grad():
            model.head.bias.fill_(0.5)  # type: ignore[union-attr, operator]
            model.head.weight.mul_(0.3)  # type: ignore[union-attr, operator]
        return model

    model, x = MODES[mode](build, make_images(8, 10, seed=9), engine), make_images(1, 10)
    with torch.no_grad():
        scores = model(x)[0]
    assert 0 < scores.min() < scores.max() < 1
    (result,) = camtool.explain(model, x, 3, method="reciprocam")
    assert result.probability == pytest.approx(scores.softmax(0)[3].item())
    assert not any("probabilit" in each for each in result.warnings)


# ------------------------------------------------------------------------------------------------- layers, traces


def test_observed_outputs_are_the_real_values_and_leave_the_model_as_it_is(small: nn.Module, mode: str) -> None:
    x, layer = make_images(2, 10), LAYERS[mode]
    with torch.no_grad():
        expected = small(x)
    observed = run_with_hooks(small, [layer], x)
    assert torch.equal(observed.output, expected)
    assert torch.equal(observed.calls[layer][-1], run(small, x, layer)[1].dequantize())
    assert not observed.calls[layer][-1].is_quantized


def test_the_model_runs_once_for_an_observation(small: nn.Module, mode: str) -> None:
    """A second forward pass, with a graph from the image on, could not find a gradient either."""
    runs = []
    small.register_forward_hook(lambda *_: runs.append(1))
    run_with_hooks(small, [LAYERS[mode]], make_images(1, 10))
    assert len(runs) == 1


def test_no_trace_is_left(small: nn.Module, mode: str, engine: str) -> None:
    x = make_images(1, 10)
    before, kinds = small(x), [(type(module), module.training) for module in small.modules()]
    for method in WORKING:
        camtool.explain(small, x, 1, method=method, **OPTIONS.get(method, {}))
    assert torch.equal(small(x), before)
    assert [(type(module), module.training) for module in small.modules()] == kinds
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in small.modules())
    assert torch.backends.quantized.engine == engine


def test_an_edit_of_the_recorder_gets_real_values_and_is_quantized_again(small: nn.Module, mode: str) -> None:
    x, layer = make_images(1, 10), LAYERS[mode]
    expected = run(small, x, layer, lambda values: leave_out(values, 2))[0]
    with camtool.Recorder(small, edit={layer: lambda values: leave_out(values, 2)}):
        assert torch.equal(small(x)[0], expected)
