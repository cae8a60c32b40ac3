"""Scripted, traced, exported and quantized models: methods that work, and errors for those that cannot."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import fx, nn

import camtool
from camtool import LayerError, MethodError
from camtool.hooks.structures.modules import describe_unhookable, is_exported_for_one_image, lacks_gradients
from tests.helpers.comparison import assert_same_raw
from tests.helpers.nets import staged

BATCH = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
METHODS_WITHOUT_LAYER = ["rise", "occlusion", "inputxgradient", "integrated-gradients", "smoothgrad"]
"""Methods that need only the inputs and outputs of the model."""


def build_without_warnings(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model, without the deprecation warnings of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def build_scripted() -> nn.Module:
    return build_without_warnings(lambda: torch.jit.script(staged()))


def build_traced() -> nn.Module:
    return build_without_warnings(lambda: torch.jit.trace(staged(), BATCH))


def build_frozen() -> nn.Module:
    return build_without_warnings(lambda: torch.jit.freeze(torch.jit.script(staged())))


def build_exported() -> nn.Module:
    count = torch.export.Dim("count", min=1, max=4096)
    return torch.export.export(staged(), (BATCH,), dynamic_shapes=({0: count},)).module()


def build_quantized() -> nn.Module:
    kinds = {nn.Linear}
    return build_without_warnings(lambda: torch.ao.quantization.quantize_dynamic(staged(), kinds, dtype=torch.qint8))


UNHOOKABLE = {"TorchScript": [build_scripted, build_traced, build_frozen], "an exported graph": [build_exported]}
CASES = [(make, kind) for kind, makers in UNHOOKABLE.items() for make in makers]


@pytest.mark.parametrize(("make", "kind"), CASES, ids=lambda each: getattr(each, "__name__", ""))
@pytest.mark.parametrize("method", METHODS_WITHOUT_LAYER)
def test_methods_that_need_no_layer_give_the_map_of_the_original_model(make, kind, method):
    options = {"samples": 40} if method == "rise" else {}
    expected = camtool.explain(staged(), BATCH, [1, 2], method=method, **options)
    results = camtool.explain(make(), BATCH, [1, 2], method=method, **options)
    for result, other in zip(results, expected, strict=True):
        assert_same_raw(result.raw, other.raw)
        assert result.score == pytest.approx(other.score, rel=1e-5)
        assert result.raw.std() > 0


@pytest.mark.parametrize(("make", "kind"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_every_other_method_raises_an_error_that_names_it(make, kind):
    model = make()
    for method in camtool.METHODS.keys() - {*METHODS_WITHOUT_LAYER, "drise"}:
        refusal = rf"the model is {kind}, .* method '{re.escape(method)}' cannot read a layer"
        with pytest.raises(MethodError, match=refusal) as error:
            camtool.Explainer(model, method)
        assert all(name in str(error.value) for name in METHODS_WITHOUT_LAYER)


def test_a_graph_exported_for_one_image_runs_on_one_image_at_a_time():
    model = torch.export.export(staged(), (BATCH[:1],)).module()
    assert is_exported_for_one_image(model)
    (result,) = camtool.explain(model, BATCH[:1], 1, method="rise", samples=20)
    (expected,) = camtool.explain(staged(), BATCH[:1], 1, method="rise", samples=20, chunk=1)
    assert_same_raw(result.raw, expected.raw)


def test_other_graphs_run_on_whole_batches():
    assert not any(
        map(is_exported_for_one_image, [staged(), build_exported(), build_scripted(), fx.symbolic_trace(staged())])
    )


@pytest.mark.parametrize(("make", "kind"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_an_unhookable_model_has_no_candidate_layers(make, kind):
    with pytest.raises(LayerError, match=f"the model is {kind} and exposes no submodules to hook"):
        camtool.candidate_layers(make(), BATCH)


def test_a_layer_of_a_scripted_model_does_not_change_methods_that_need_no_layer():
    with pytest.raises(MethodError, match="TorchScript"):
        camtool.explain(build_scripted(), BATCH, 1, layer="body.1")
    result = camtool.explain(build_scripted(), BATCH, 1, method="rise", layer="body.1", samples=10)[0]
    assert any("layer= makes no difference" in warning for warning in result.warnings)
    with pytest.raises(LayerError, match=r"no layer 'body\.9'"):
        camtool.explain(build_scripted(), BATCH, 1, layer="body.9")


def test_a_layer_inside_a_scripted_part_raises_an_error():
    model = staged()
    model.stem = build_without_warnings(lambda: torch.jit.script(model.stem))
    with pytest.raises(LayerError, match=r"'stem\.0' did not run"):
        camtool.explain(model, BATCH, 1, layer="stem.0")


@pytest.mark.parametrize("make", [build_scripted, build_traced])
def test_a_scripted_model_is_not_changed(make):
    model = make().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    camtool.explain(model, BATCH, 1, method="rise", samples=10)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_scripted_part_of_a_model_does_not_hide_the_rest():
    model = staged()
    model.stem = build_without_warnings(lambda: torch.jit.script(model.stem))
    result, expected = camtool.explain(model, BATCH, 1)[0], camtool.explain(staged(), BATCH, 1)[0]
    assert result.layer == expected.layer == "body"
    assert_same_raw(result.raw, expected.raw)


def test_a_graph_that_calls_modules_can_be_hooked():
    assert describe_unhookable(staged()) is None
    assert describe_unhookable(fx.symbolic_trace(staged())) is None
    assert camtool.explain(fx.symbolic_trace(staged()), BATCH, 1)[0].layer == "body.1"


# --------------------------------------------------------------------------------------------------- quantized


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("method", ["scorecam", "ablationcam", "eigencam", "reciprocam", "rise"])
def test_methods_without_gradients_work_on_a_quantized_model(method):
    options = {"samples": 40} if method == "rise" else {}
    model = build_quantized()
    result = camtool.explain(model, BATCH, 1, method=method, **options)[0]
    expected = camtool.explain(staged(), BATCH, 1, method=method, **options)[0]
    assert result.layer == expected.layer
    alike = np.corrcoef(result.raw.ravel(), expected.raw.ravel())[0, 1]
    assert alike > 0.95  # its head has a few bits


def test_the_deepest_layer_that_depends_on_the_image_is_chosen_in_a_quantized_model():
    chosen = camtool.candidate_layers(build_quantized(), BATCH).chosen
    assert chosen is not None
    assert (chosen.name, chosen.reached, chosen.verdict) == ("body", None, "the deepest that depends on the image")


@pytest.mark.parametrize(
    "method", ["gradcam", "layercam", "smoothgrad", "guided-backprop", "fullgrad", "noise:gradcam"]
)
def test_methods_with_gradients_raise_an_error_on_a_quantized_model(method):
    with pytest.raises(MethodError, match=f"is quantized and has no gradients, .* '{method}' needs; .*scorecam"):
        camtool.explain(build_quantized(), BATCH, 1, method=method)


def test_only_quantized_modules_of_torch_make_a_model_quantized():
    assert not lacks_gradients(staged())
    assert lacks_gradients(nn.Sequential(nn.ReLU(), build_quantized()))
