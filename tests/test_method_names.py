"""Names of methods: they are matched without case and punctuation, and no two of them are the same then."""

from __future__ import annotations

import pytest
import torch
from nets import staged
from torch import Tensor
from torch.testing import assert_close

import camtool
from camtool import MethodError
from camtool.evidence import Evidence
from camtool.methods import METHODS, WRAPPERS, find, method, wrapped, wrapper

BATCH = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of the registries, so that a test may register what it likes."""
    monkeypatch.setattr("camtool.methods.registry.METHODS", dict(METHODS))
    monkeypatch.setattr("camtool.methods.registry.WRAPPERS", dict(WRAPPERS))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("GradCAM", "gradcam"),
        ("grad-cam", "gradcam"),
        ("Grad CAM", "gradcam"),
        ("GradCAMPlusPlus", "gradcam++"),
        ("Grad-CAM++", "gradcam++"),
        ("grad_cam_plus_plus", "gradcam++"),
        ("GradCAMpp", "gradcam++"),
        ("SmoothGradCAMpp", "smoothgradcam++"),
        ("XGradCAM", "xgradcam"),
        ("score_cam", "scorecam"),
        ("SSCAM", "sscam"),
        ("KPCA_CAM", "kpcacam"),
        ("GradCAMElementWise", "gradcam-elementwise"),
        ("IntegratedGradients", "integrated-gradients"),
        ("guided_backprop", "guided-backprop"),
        ("tta:Grad-CAM", "tta:gradcam"),
        ("TTA:GradCAMPlusPlus", "tta:gradcam++"),
        ("noise: tta: Score-CAM", "noise:tta:scorecam"),
        ("Eigen:EigenCAM", "eigen:eigencam"),
    ],
)
def test_a_name_is_matched_without_case_and_punctuation(written: str, name: str) -> None:
    assert find(written).name == name
    assert find(written).needs == find(name).needs


@pytest.mark.parametrize("name", METHODS)
def test_each_name_means_its_own_method(name: str) -> None:
    assert find(name) is METHODS[name]
    assert find(name.upper()) is METHODS[name]
    assert find(f" {name} ") is METHODS[name]


def test_an_explanation_has_the_registered_name() -> None:
    (result,) = camtool.explain(staged(), BATCH, 1, method="TTA:Grad-CAM++")
    assert result.method == "tta:gradcam++"
    ours, theirs = (camtool.explain(staged(), BATCH, 1, method=name)[0].raw for name in ("XGradCAM", "xgradcam"))
    assert (ours == theirs).all()


@pytest.mark.parametrize("name", ["", "-", "++", "gradcam+", "gradcam+++", "plusplus", "gradcampp2"])
def test_what_is_none_of_them_is_unknown(name: str) -> None:
    with pytest.raises(MethodError, match=r"method '.*' is unknown; known are"):
        find(name)


@pytest.mark.parametrize("name", ["Grad-CAM", "GRADCAM++", "GradCAMPlusPlus", "score cam", "TTA"])
def test_a_method_that_differs_from_another_in_case_and_punctuation_alone_is_refused(
    registries: None, name: str
) -> None:
    with pytest.raises(MethodError, match=rf"method '{name.replace('+', '.')}' is registered already, as '\w+"):
        method(name)(lambda evidence: evidence.activations.sum(1))
    with pytest.raises(MethodError, match=r"wrapper .* is registered already, as '\w+"):
        wrapper(name)(lambda evidence, method: method(evidence))


def test_a_name_without_a_letter_is_refused(registries: None) -> None:
    for name in ("", "--"):
        with pytest.raises(MethodError, match=r"needs a letter or a digit"):
            method(name)(lambda evidence: evidence.activations.sum(1))


def test_names_in_other_scripts_stay_apart(registries: None) -> None:
    for name in ("мой", "твой"):
        method(name)(lambda evidence: evidence.activations.sum(1))
    assert find("МОЙ").name == "мой"
    assert find("Твой").name == "твой"


def test_a_wrapper_is_named_with_a_method_of_its_own() -> None:
    with pytest.raises(MethodError, match="method 'TTA' wraps another: ask for 'tta:gradcam'"):
        find("TTA")


# -------------------------------------------------------------------------------------- every wrapper, every method


def test_the_pattern_in_a_pattern_is_that_pattern() -> None:
    def raw(name: str) -> Tensor:
        return torch.from_numpy(camtool.explain(staged(), BATCH, 1, method=name, layer="body")[0].raw)

    assert_close(raw("eigen:eigencam"), raw("eigencam").relu())
    assert_close(raw("eigen:eigengradcam"), raw("eigengradcam"))
    assert_close(raw("eigen:segeigencam"), raw("segeigencam"))
    assert_close(raw("eigen:eigen:gradcam"), raw("eigen:gradcam"))


CHEAP = {"samples": 3, "max_channels": 3, "steps": 2, "groups": 2, "cells": 3}
"""Options that make slow methods quick."""


@pytest.mark.parametrize("by", WRAPPERS)
@pytest.mark.parametrize("name", [name for name, each in METHODS.items() if "attention" not in each.needs])
def test_every_wrapper_takes_every_method_or_says_why_it_does_not(by: str, name: str) -> None:
    options = {option: value for option, value in CHEAP.items() if option in METHODS[name].options}
    if WRAPPERS[by].of_weights and METHODS[name].weights is None:
        with pytest.raises(MethodError, match=rf"wrapper '{by}' needs a method that weighs activations, which '{name}"):
            camtool.explain(staged(), BATCH, 1, method=f"{by}:{name}", **options)
        return
    (result,) = camtool.explain(staged(), BATCH, 1, method=f"{by}:{name}", **options)
    assert result.method == f"{by}:{name}"
    assert torch.from_numpy(result.raw).isfinite().all()


def test_what_weighs_no_longer_says_where_the_wrapper_belongs() -> None:
    with pytest.raises(MethodError, match=r"which 'tta:gradcam' is not; ask for 'tta:eigen:gradcam'\."):
        find("eigen:tta:gradcam")
    with pytest.raises(MethodError, match=r"which 'tta:kpcacam' is not: ablationcam, "):
        find("eigen:tta:kpcacam")
    with pytest.raises(MethodError, match="which 'tta:<lambda>' is not: ablationcam, "):
        wrapped("eigen", wrapped("tta", lambda evidence: evidence.inputs[:, 0]))


def test_a_users_own_weights_are_taken(registries: None) -> None:
    @method("mine", weights=lambda evidence: evidence.gradients.relu())
    def mine(evidence: Evidence) -> Tensor:
        return evidence.activations.mean(1)

    ours, theirs = (camtool.explain(staged(), BATCH, 1, method=f"eigen:{name}")[0].raw for name in ("mine", "layercam"))
    assert (ours == theirs).all()
