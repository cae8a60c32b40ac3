"""Audits and repairs of a Keras model give what those of the same network in torch give."""

from __future__ import annotations

import pytest

import camtool
from tests.evaluation.repair.conftest import LABELS, NAMES, SIDE, SINGLE, build_net, draw_images, run_audit
from tests.helpers.keras_models import keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # Keras copies weights so


def test_a_keras_model_is_audited_and_mended_as_the_same_network_in_torch():
    net, images = build_net(), draw_images(LABELS)
    convolution, head = keras.layers.Conv2D(6, 4, 4, activation="relu", use_bias=False), keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((SIDE, SIDE, 3)), convolution, keras.layers.GlobalAveragePooling2D(), head])
    convolution.set_weights([net[0].weight.detach().permute(2, 3, 1, 0).numpy()])
    head.set_weights([net[-1].weight.detach().T.numpy(), net[-1].bias.detach().numpy()])
    before = [variable.value.detach().clone() for variable in model.weights]
    audits = [run_audit(each) for each in (model, net)]
    assert [[finding.sentence for finding in audit.findings] for audit in audits] == [
        [finding.sentence for finding in audits[1].findings]
    ] * 2
    repairs = [
        camtool.repair(each, images, SINGLE, audit, class_names=NAMES)
        for each, audit in zip((model, net), audits, strict=True)
    ]
    assert [repair.is_better for repair in repairs] == [True, True]
    assert [repair.without_cue.after.mean for repair in repairs] == [1, 1]
    assert all((old == new.value).all() for old, new in zip(before, model.weights, strict=True)), "the user's own"
