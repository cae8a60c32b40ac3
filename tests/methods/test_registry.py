"""Names of methods: matched without case and punctuation, and unique."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool import MethodError
from camtool.evidence.evidence import Evidence
from camtool.methods import METHODS, WRAPPERS, find_method, method, wrap_method, wrapper
from tests.helpers.method_lists import FOR_CLASSIFIERS
from tests.helpers.nets import staged

BATCH = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def registries() -> Iterator[None]:
    """Restore both registries after the test, so that a test can register methods and wrappers."""
    with patch.dict(METHODS), patch.dict(WRAPPERS):
        yield


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
def test_name_is_matched_without_case_and_punctuation(written: str, name: str) -> None:
    assert find_method(written).name == name
    assert find_method(written).needs == find_method(name).needs


@pytest.mark.parametrize("name", METHODS)
def test_each_name_finds_its_own_method(name: str) -> None:
    assert find_method(name) is METHODS[name]
    assert find_method(name.upper()) is METHODS[name]
    assert find_method(f" {name} ") is METHODS[name]


def test_explanation_has_the_registered_name() -> None:
    (result,) = camtool.explain(staged(), BATCH, 1, method="TTA:Grad-CAM++")
    assert result.method == "tta:gradcam++"
    ours, theirs = (camtool.explain(staged(), BATCH, 1, method=name)[0].raw for name in ("XGradCAM", "xgradcam"))
    assert (ours == theirs).all()


@pytest.mark.parametrize("name", ["", "-", "++", "gradcam+", "gradcam+++", "plusplus", "gradcampp2"])
def test_other_names_are_unknown(name: str) -> None:
    with pytest.raises(MethodError, match=r"method '.*' is unknown\..* Known methods: "):
        find_method(name)


@pytest.mark.parametrize("name", ["Grad-CAM", "GRADCAM++", "GradCAMPlusPlus", "score cam", "TTA"])
def test_name_that_differs_only_in_case_and_punctuation_is_rejected(registries: None, name: str) -> None:
    with pytest.raises(MethodError, match=rf"method '{name.replace('+', '.')}' is registered already, as '\w+"):
        method(name)(lambda evidence: evidence.activations.sum(1))
    with pytest.raises(MethodError, match=r"wrapper .* is registered already, as '\w+"):
        wrapper(name)(lambda evidence, method: method(evidence))


def test_name_without_a_letter_is_rejected(registries: None) -> None:
    for name in ("", "--"):
        with pytest.raises(MethodError, match=r"needs a letter or a digit"):
            method(name)(lambda evidence: evidence.activations.sum(1))


def test_names_in_other_scripts_are_distinct(registries: None) -> None:
    for name in ("мой", "твой"):
        method(name)(lambda evidence: evidence.activations.sum(1))
    assert find_method("МОЙ").name == "мой"
    assert find_method("Твой").name == "твой"


def test_wrapper_name_alone_suggests_a_method() -> None:
    with pytest.raises(MethodError, match=r"method 'TTA' is a wrapper; .* 'tta:gradcam'"):
        find_method("TTA")


# -------------------------------------------------------------------------------------- every wrapper, every method


def test_eigen_of_an_eigen_method_is_that_method() -> None:
    def raw(name: str) -> Tensor:
        return torch.from_numpy(camtool.explain(staged(), BATCH, 1, method=name, layer="body")[0].raw)

    assert_close(raw("eigen:eigencam"), raw("eigencam").relu())
    assert_close(raw("eigen:eigengradcam"), raw("eigengradcam"))
    assert_close(raw("eigen:segeigencam"), raw("segeigencam"))
    assert_close(raw("eigen:eigen:gradcam"), raw("eigen:gradcam"))


CHEAP = {"samples": 3, "max_channels": 3, "steps": 2, "groups": 2, "cells": 3}
"""Options that make slow methods quick."""


KINDS = list({(METHODS[name].needs, METHODS[name].ignores_layer): name for name in FOR_CLASSIFIERS}.values())
"""One method of each kind: a wrapper of any method knows no more of it."""


@pytest.mark.parametrize(
    ("by", "name"),
    [(by, name) for by in WRAPPERS for name in (FOR_CLASSIFIERS if WRAPPERS[by].needs_weights else KINDS)],
)
def test_every_wrapper_accepts_every_method_or_explains_why_not(by: str, name: str) -> None:
    options = {option: value for option, value in CHEAP.items() if option in METHODS[name].options}
    if WRAPPERS[by].needs_weights and METHODS[name].weight_function is None:
        with pytest.raises(MethodError, match=rf"wrapper '{by}' needs a method that weighs activations, but '{name}"):
            camtool.explain(staged(), BATCH, 1, method=f"{by}:{name}", **options)
        return
    if WRAPPERS[by].needs and not any("gradients" in need or need == "ReLUs" for need in METHODS[name].needs):
        with pytest.raises(MethodError, match=rf"wrapper '{by}' changes gradients, which '{name}' does not read; use "):
            camtool.explain(staged(), BATCH, 1, method=f"{by}:{name}", **options)
        return
    model = nn.Sequential(staged(), nn.SiLU()) if WRAPPERS[by].needs else staged()
    if by == "conservative" and name == "liftcam":  # captum's rules and the wrapper's exclude each other
        with pytest.raises(MethodError, match="captum's DeepLIFT does not explain"):
            camtool.explain(model, BATCH, 1, method=f"{by}:{name}", **options)
        return
    (result,) = camtool.explain(model, BATCH, 1, method=f"{by}:{name}", **options)
    assert result.method == f"{by}:{name}"
    assert torch.from_numpy(result.raw).isfinite().all()


def test_eigen_of_another_wrapper_suggests_the_right_order() -> None:
    with pytest.raises(MethodError, match=r"but 'tta:gradcam' does not; use 'tta:eigen:gradcam'\."):
        find_method("eigen:tta:gradcam")
    with pytest.raises(MethodError, match=r"but 'tta:kpcacam' does not; use one of ablationcam, "):
        find_method("eigen:tta:kpcacam")
    with pytest.raises(MethodError, match="but 'tta:<lambda>' does not; use one of ablationcam, "):
        wrap_method("eigen", wrap_method("tta", lambda evidence: evidence.inputs[:, 0]))


def test_eigen_uses_a_users_own_weights(registries: None) -> None:
    @method("mine", weights=lambda evidence: evidence.gradients.relu())
    def mine(evidence: Evidence) -> Tensor:
        return evidence.activations.mean(1)

    ours, theirs = (camtool.explain(staged(), BATCH, 1, method=f"eigen:{name}")[0].raw for name in ("mine", "layercam"))
    assert (ours == theirs).all()
