"""Scripted, traced, exported and quantised models: what works does, and what cannot ends in a sentence."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from comparison import assert_same_raw
from nets import staged
from torch import fx, nn

import camtool
from camtool import LayerError, MethodError
from camtool.sealed import is_for_one_picture, is_quantised, sealed_as

BATCH = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
OUTSIDE = ["rise", "inputxgradient", "integrated-gradients", "smoothgrad"]
"""The methods that ask only what goes into a model and what comes out of it."""


def quietly(make: Callable[[], nn.Module]) -> nn.Module:
    """Torch announces that these ways to change a model will go one day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def scripted() -> nn.Module:
    return quietly(lambda: torch.jit.script(staged()))


def traced() -> nn.Module:
    return quietly(lambda: torch.jit.trace(staged(), BATCH))


def frozen() -> nn.Module:
    return quietly(lambda: torch.jit.freeze(torch.jit.script(staged())))


def exported() -> nn.Module:
    count = torch.export.Dim("count", min=1, max=4096)
    return torch.export.export(staged(), (BATCH,), dynamic_shapes=({0: count},)).module()


def quantised() -> nn.Module:
    kinds = {nn.Linear}
    return quietly(lambda: torch.ao.quantization.quantize_dynamic(staged(), kinds, dtype=torch.qint8))


SEALED = {"TorchScript": [scripted, traced, frozen], "an exported graph": [exported]}
CASES = [(make, kind) for kind, makers in SEALED.items() for make in makers]


@pytest.mark.parametrize(("make", "kind"), CASES, ids=lambda each: getattr(each, "__name__", ""))
@pytest.mark.parametrize("method", OUTSIDE)
def test_methods_that_ask_from_outside_give_the_map_of_the_model_it_was_made_of(make, kind, method):
    options = {"samples": 40} if method == "rise" else {}
    expected = camtool.explain(staged(), BATCH, [1, 2], method=method, **options)
    results = camtool.explain(make(), BATCH, [1, 2], method=method, **options)
    for result, other in zip(results, expected, strict=True):
        assert_same_raw(result.raw, other.raw)
        assert result.score == pytest.approx(other.score, rel=1e-5)
        assert result.raw.std() > 0


@pytest.mark.parametrize(("make", "kind"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_every_other_method_is_refused_by_name(make, kind):
    model = make()
    for method in camtool.METHODS.keys() - {*OUTSIDE}:
        refusal = rf"the model is {kind}, .* method '{re.escape(method)}' cannot look into it"
        with pytest.raises(MethodError, match=refusal) as error:
            camtool.Explainer(model, method)
        assert all(name in str(error.value) for name in OUTSIDE)


def test_an_exported_graph_for_one_picture_is_asked_for_one_at_a_time():
    model = torch.export.export(staged(), (BATCH[:1],)).module()
    assert is_for_one_picture(model)
    (result,) = camtool.explain(model, BATCH[:1], 1, method="rise", samples=20)
    (expected,) = camtool.explain(staged(), BATCH[:1], 1, method="rise", samples=20, chunk=1)
    assert_same_raw(result.raw, expected.raw)


def test_other_graphs_take_as_many_as_there_are():
    assert not any(map(is_for_one_picture, [staged(), exported(), scripted(), fx.symbolic_trace(staged())]))


@pytest.mark.parametrize(("make", "kind"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_there_are_no_candidates_in_what_runs_in_one_piece(make, kind):
    with pytest.raises(LayerError, match=f"the model is {kind}, which runs in one piece, so none of its layers"):
        camtool.candidate_layers(make(), BATCH)


def test_a_layer_of_a_scripted_model_changes_nothing_for_those_who_ask_from_outside():
    with pytest.raises(MethodError, match="TorchScript"):
        camtool.explain(scripted(), BATCH, 1, layer="body.1")
    result = camtool.explain(scripted(), BATCH, 1, method="rise", layer="body.1", samples=10)[0]
    assert any("layer= makes no difference" in warning for warning in result.warnings)
    with pytest.raises(LayerError, match=r"no layer 'body\.9'"):
        camtool.explain(scripted(), BATCH, 1, layer="body.9")


def test_a_layer_inside_a_scripted_part_is_refused():
    model = staged()
    model.stem = quietly(lambda: torch.jit.script(model.stem))
    with pytest.raises(LayerError, match=r"'stem\.0' did not run"):
        camtool.explain(model, BATCH, 1, layer="stem.0")


@pytest.mark.parametrize("make", [scripted, traced])
def test_a_scripted_model_is_left_as_it_was(make):
    model = make().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    camtool.explain(model, BATCH, 1, method="rise", samples=10)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_scripted_part_of_a_model_does_not_hide_the_rest():
    model = staged()
    model.stem = quietly(lambda: torch.jit.script(model.stem))
    result, expected = camtool.explain(model, BATCH, 1)[0], camtool.explain(staged(), BATCH, 1)[0]
    assert result.layer == expected.layer == "body"
    assert_same_raw(result.raw, expected.raw)


def test_a_graph_of_modules_is_not_sealed():
    assert sealed_as(staged()) is None
    assert sealed_as(fx.symbolic_trace(staged())) is None
    assert camtool.explain(fx.symbolic_trace(staged()), BATCH, 1)[0].layer == "body.1"


# ---------------------------------------------------------------------------------------------------- quantised


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("method", ["scorecam", "ablationcam", "eigencam", "reciprocam", "rise"])
def test_methods_without_gradients_work_on_a_quantised_model(method):
    options = {"samples": 40} if method == "rise" else {}
    model = quantised()
    result = camtool.explain(model, BATCH, 1, method=method, **options)[0]
    expected = camtool.explain(staged(), BATCH, 1, method=method, **options)[0]
    assert result.layer == expected.layer
    alike = np.corrcoef(result.raw.ravel(), expected.raw.ravel())[0, 1]
    assert alike > 0.95  # its head has a few bits


def test_of_a_quantised_model_the_deepest_layer_that_depends_on_the_picture_is_chosen():
    chosen = camtool.candidate_layers(quantised(), BATCH).chosen
    assert chosen is not None
    assert (chosen.name, chosen.reached, chosen.verdict) == ("body", None, "the deepest that depends on the picture")


@pytest.mark.parametrize(
    "method", ["gradcam", "layercam", "smoothgrad", "guided-backprop", "fullgrad", "noise:gradcam"]
)
def test_methods_with_gradients_are_refused_on_a_quantised_model(method):
    with pytest.raises(MethodError, match=f"is quantised, so no gradient passes .* '{method}' needs; .*scorecam"):
        camtool.explain(quantised(), BATCH, 1, method=method)


def test_only_torchs_quantised_modules_make_a_model_quantised():
    assert not is_quantised(staged())
    assert is_quantised(nn.Sequential(nn.ReLU(), quantised()))
