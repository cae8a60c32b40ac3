"""Image classifiers of KerasHub, small and with random weights: the default layer, and the map against Keras by hand.

KerasHub requires TensorFlow for texts; its image models run without: pip install --no-deps keras-hub.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import camtool
from tests.helpers.keras_models import keras

hub: Any = pytest.importorskip("keras_hub", reason="KerasHub is not installed: pip install --no-deps keras-hub")

SHAPE = (64, 64, 3)
TRANSFORMER = {"image_shape": SHAPE, "num_layers": 2, "num_heads": 2, "hidden_dim": 32}

# The arguments of each backbone, as small as it allows.
BACKBONES: dict[str, dict[str, Any]] = {
    "CSPNet": {
        "stem_filters": 16,
        "stem_kernel_size": 3,
        "stem_strides": 1,
        "stackwise_depth": [1, 2],
        "stackwise_strides": [1, 2],
        "stackwise_num_filters": [16, 24],
        "block_type": "dark_block",
        "stage_type": "dark",
    },
    "DeiT": {**TRANSFORMER, "patch_size": 16, "intermediate_dim": 64},
    "DenseNet": {"stackwise_num_repeats": [2, 2, 2], "growth_rate": 8},
    "EfficientNet": {
        "stackwise_width_coefficients": [1.0, 1.0],
        "stackwise_depth_coefficients": [1.0, 1.0],
        "stackwise_kernel_sizes": [3, 3],
        "stackwise_num_repeats": [1, 1],
        "stackwise_input_filters": [16, 16],
        "stackwise_output_filters": [16, 24],
        "stackwise_expansion_ratios": [1, 6],
        "stackwise_strides": [1, 2],
        "stackwise_squeeze_and_excite_ratios": [0.25, 0.25],
        "stackwise_block_types": ["v1", "v1"],
        "stackwise_force_input_filters": [0, 0],
        "stackwise_nores_option": [False, False],
    },
    "HGNetV2": {
        "depths": [1, 1],
        "embedding_size": 16,
        "hidden_sizes": [32, 48],
        "stem_channels": [3, 8, 16],
        "hidden_act": "relu",
        "use_learnable_affine_block": False,
        "stackwise_stage_filters": [(16, 8, 32, 1, 1, 3), (32, 16, 48, 1, 1, 3)],
        "apply_downsample": [False, True],
        "use_lightweight_conv_block": [False, False],
    },
    "MiT": {
        "layerwise_depths": [1, 1],
        "hidden_dims": [8, 16],
        "num_layers": 2,
        "layerwise_num_heads": [1, 2],
        "layerwise_sr_ratios": [2, 1],
        "max_drop_path_rate": 0.1,
        "layerwise_patch_sizes": [7, 3],
        "layerwise_strides": [4, 2],
    },
    "MobileNet": {
        "stackwise_expansion": [[16, 24], [24, 32]],
        "stackwise_num_blocks": [2, 2],
        "stackwise_num_filters": [[16, 16], [24, 24]],
        "stackwise_kernel_size": [[3, 3], [5, 5]],
        "stackwise_num_strides": [[2, 1], [2, 1]],
        "stackwise_se_ratio": [[None, None], [0.25, 0.25]],
        "stackwise_activation": [["relu", "relu"], ["hard_swish", "hard_swish"]],
        "stackwise_padding": [[1, 1], [2, 2]],
        "output_num_filters": 64,
        "depthwise_filters": 8,
        "depthwise_stride": 2,
        "depthwise_residual": False,
        "last_layer_filter": 48,
        "squeeze_and_excite": 0.5,
    },
    "MobileNetV5": {
        "stackwise_block_types": [["er"], ["uir", "uir"]],
        "stackwise_num_blocks": [1, 2],
        "stackwise_num_filters": [[16], [24, 24]],
        "stackwise_strides": [[2], [2, 1]],
        "stackwise_act_layers": [["relu"], ["relu", "relu"]],
        "stackwise_exp_ratios": [[4.0], [6.0, 6.0]],
        "stackwise_se_ratios": [[0.0], [0.0, 0.0]],
        "stackwise_dw_kernel_sizes": [[0], [5, 5]],
        "stackwise_dw_start_kernel_sizes": [[0], [0, 0]],
        "stackwise_dw_end_kernel_sizes": [[0], [0, 0]],
        "stackwise_exp_kernel_sizes": [[3], [0, 0]],
        "stackwise_pw_kernel_sizes": [[1], [0, 0]],
        "stackwise_num_heads": [[0], [0, 0]],
        "stackwise_key_dims": [[0], [0, 0]],
        "stackwise_value_dims": [[0], [0, 0]],
        "stackwise_kv_strides": [[0], [0, 0]],
        "stackwise_use_cpe": [[False], [False, False]],
        "use_msfa": False,
    },
    "ResNet": {
        "input_conv_filters": [64],
        "input_conv_kernel_sizes": [7],
        "stackwise_num_filters": [64, 64],
        "stackwise_num_blocks": [1, 1],
        "stackwise_num_strides": [1, 2],
        "block_type": "basic_block",
    },
    "SwinTransformer": {"embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2), "window_size": 4},
    "VGG": {"stackwise_num_repeats": [1, 1, 2], "stackwise_num_filters": [8, 16, 16]},
    "ViT": {**TRANSFORMER, "patch_size": (16, 16), "mlp_dim": 64},
    "Xception": {"stackwise_conv_filters": [[8, 8], [16, 16]], "stackwise_pooling": [True, False]},
}


def build(name: str) -> Any:
    keras.utils.set_random_seed(0)
    backbone = getattr(hub.models, f"{name}Backbone")(**{"image_shape": SHAPE, **BACKBONES[name]})
    return getattr(hub.models, f"{name}ImageClassifier")(backbone=backbone, num_classes=4, preprocessor=None)


# Where the default layer is not the output of the backbone: its name, and the tokens before those of the cells.
LAYERS = {
    "DeiT": ("dei_t_backbone.deit_encoder.transformer_block_2.ln_1", 2),
    "HGNetV2": ("head_last", 0),
    "VGG": ("head.fc2", 0),
    "ViT": ("vi_t_backbone.vit_encoder.transformer_block_2.ln_1", 1),
}


def find_layer(model: Any, path: str) -> Any:
    """Return the layer at a path of names."""
    for name in path.split("."):
        model = next(layer for layer in model._flatten_layers(include_self=False) if layer.name == name)
    return model


def explain_by_hand(model: Any, layer: Any, images: Tensor, prefix: int = 0) -> Tensor:
    """Return Grad-CAM of class 1, at a layer anywhere inside a model; of a segmenter, for the pixels of this class."""
    outputs, call = list[Tensor](), layer.call

    def call_and_note(*inputs: Any, **options: Any) -> Tensor:
        outputs.append(call(*inputs, **options))
        return outputs[-1]

    layer.call = call_and_note
    scores = model(images, training=False)[0]
    layer.call = call
    is_explained = scores.argmax(-1) == 1 if scores.ndim == 3 else torch.tensor(True)
    (gradient,) = torch.autograd.grad(scores[..., 1][is_explained].sum(), outputs)
    grid, gradient = (to_grid(each, prefix) for each in (outputs[0], gradient))
    return (grid * gradient.mean((1, 2), keepdim=True)).sum(-1)[0].relu().detach()


def to_grid(values: Tensor, prefix: int) -> Tensor:
    """Return a grid ``(N, h, w, C)``, also of tokens ``(N, prefix + h * w, C)`` of a square image."""
    if values.ndim == 4:
        return values
    side = int((values.shape[1] - prefix) ** 0.5)
    return values[:, prefix:].reshape(len(values), side, side, -1)


# The others take half a minute of processor time.
IN_EACH_RUN = ("DeiT", "SwinTransformer", "VGG")
CASES = [pytest.param(name, marks=() if name in IN_EACH_RUN else pytest.mark.nightly) for name in BACKBONES]


@pytest.mark.parametrize("name", CASES)
def test_the_default_layer_is_explained_as_by_hand(name: str) -> None:
    model, images = build(name), torch.rand(1, *SHAPE)
    path, prefix = LAYERS.get(name, (model.backbone.name, 0))
    result = camtool.explain(model, images[0].permute(2, 0, 1), 1)
    expected = explain_by_hand(model, find_layer(model, path), images, prefix)
    assert result.layer == path
    assert result.raw == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-4 * float(expected.max()))
    assert float(expected.max()) > 0 or "constant-map" in [warning.code for warning in result.warnings]


def test_a_segmenter_is_explained_behind_its_decoder() -> None:
    keras.utils.set_random_seed(0)
    encoder = hub.models.MiTBackbone(image_shape=SHAPE, **BACKBONES["MiT"])
    backbone = hub.models.SegFormerBackbone(image_encoder=encoder, projection_filters=16)
    model, images = hub.models.SegFormerImageSegmenter(backbone=backbone, num_classes=3), torch.rand(1, *SHAPE)
    result, expected = camtool.explain(model, images[0].permute(2, 0, 1), 1), explain_by_hand(model, backbone, images)
    assert result.layer == backbone.name
    assert result.raw == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-4 * float(expected.max()))


def test_each_classifier_of_images_is_tested() -> None:
    names = {name.removesuffix("ImageClassifier") for name in dir(hub.models) if name.endswith("ImageClassifier")}
    assert names - {""} == {*BACKBONES}
