"""Vision architectures of Hugging Face: small, built from configurations, with random weights, without a network.

Each is named as its folder in the library is. The sizes follow from the families: a plain transformer has a grid of
8 x 8 patches over 64 pixels, a pyramid one of 4 x 4 over 128.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.zoo.catalogue import calibrated

_CLASSES: dict[str, Any] = {"num_labels": 10}

_BLOCKS: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}

_VIT: dict[str, Any] = _BLOCKS | {"intermediate_size": 128, "image_size": 64, "patch_size": 8}

_PYRAMID: dict[str, Any] = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 2]}

_LIVELY = {"initializer_range": 0.1}
"""Weights that do not let the signal of a narrow and deep network fade below the small constant of its norms."""

_LEVIT: dict[str, Any] = {
    "image_size": 128,
    "hidden_sizes": [32, 48, 64],
    "num_attention_heads": [2, 3, 4],
    "depths": [1, 1, 2],
}

_MOBILEVIT: dict[str, Any] = {"hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 16, 32, 32, 48, 64]}

_SWIN: dict[str, Any] = {
    "image_size": 128,
    "embed_dim": 16,
    "depths": [1, 1, 2, 2],
    "num_heads": [1, 2, 2, 4],
    "window_size": 4,
}


@dataclass(frozen=True)
class Small:
    """A small model of one architecture.

    Attributes:
        kind: The model's class.
        options: What its configuration is made of.
        size: The side of its pictures.
        parts: Configurations within the configuration: for each the class and what it is made of.
    """

    kind: str
    options: dict[str, Any]
    size: int = 64
    parts: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """The model with calibrated random weights, the same each time."""
        import transformers

        parts = {name: getattr(transformers, config)(**options) for name, (config, options) in self.parts.items()}
        kind = getattr(transformers, self.kind)
        torch.manual_seed(0)
        model: nn.Module = kind(kind.config_class(**self.options, **parts))
        return calibrated(model.eval(), self.size)


CLASSIFIERS: dict[str, Small] = {
    "beit": Small("BeitForImageClassification", _CLASSES | _VIT | {"use_relative_position_bias": True}),
    "beit-class-token": Small(
        "BeitForImageClassification",
        _CLASSES | _VIT | {"use_shared_relative_position_bias": True, "use_mean_pooling": False},
    ),
    "bit": Small("BitForImageClassification", _CLASSES | _PYRAMID | {"embedding_size": 16, "num_groups": 4}, 128),
    "clip": Small("CLIPForImageClassification", _CLASSES, parts={"vision_config": ("CLIPVisionConfig", _VIT)}),
    "convnext": Small("ConvNextForImageClassification", _CLASSES | _PYRAMID, 128),
    "convnextv2": Small("ConvNextV2ForImageClassification", _CLASSES | _PYRAMID, 128),
    "cvt": Small(
        "CvtForImageClassification",
        _CLASSES | {"embed_dim": [16, 32, 64], "num_heads": [1, 2, 4], "depth": [1, 2, 3]},
        64,
    ),
    "data2vec": Small("Data2VecVisionForImageClassification", _CLASSES | _VIT | {"use_relative_position_bias": True}),
    "deit": Small("DeiTForImageClassification", _CLASSES | _VIT),
    "deit-teacher": Small("DeiTForImageClassificationWithTeacher", _CLASSES | _VIT),
    "dinov2": Small("Dinov2ForImageClassification", _CLASSES | _VIT),
    "dinov2_with_registers": Small("Dinov2WithRegistersForImageClassification", _CLASSES | _VIT),
    "donut": Small("DonutSwinForImageClassification", _CLASSES | _SWIN, 128),
    "efficientnet": Small(
        "EfficientNetForImageClassification",
        _CLASSES | {"width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640} | _LIVELY,
        192,
    ),
    "focalnet": Small(
        "FocalNetForImageClassification",
        _CLASSES | {"image_size": 128, "embed_dim": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 2, 2]},
        128,
    ),
    "hgnet_v2": Small(
        "HGNetV2ForImageClassification",
        _CLASSES
        | {
            "stem_channels": [3, 8, 16],
            "stage_in_channels": [16, 32, 64, 64],
            "stage_mid_channels": [8, 16, 32, 32],
            "stage_out_channels": [32, 64, 64, 64],
            "hidden_sizes": [32, 64, 64, 64],
            "stage_num_blocks": [1, 1, 2, 1],
            "stage_numb_of_layers": [2, 2, 2, 2],
        },
        192,
    ),
    "hiera": Small(
        "HieraForImageClassification",
        _CLASSES
        | {
            "image_size": [128, 128],
            "embed_dim": 16,
            "depths": [1, 1, 2, 2],
            "num_heads": [1, 2, 2, 4],
        },
        128,
    ),
    "ijepa": Small("IJepaForImageClassification", _CLASSES | _VIT),
    "levit": Small("LevitForImageClassification", _CLASSES | _LEVIT, 128),
    "levit-teacher": Small("LevitForImageClassificationWithTeacher", _CLASSES | _LEVIT, 128),
    "metaclip_2": Small(
        "MetaClip2ForImageClassification", _CLASSES, parts={"vision_config": ("MetaClip2VisionConfig", _VIT)}
    ),
    "mobilenet_v1": Small("MobileNetV1ForImageClassification", _CLASSES | _LIVELY | {"depth_multiplier": 0.25}, 192),
    "mobilenet_v2": Small("MobileNetV2ForImageClassification", _CLASSES | _LIVELY | {"depth_multiplier": 0.35}, 192),
    "mobilevit": Small(
        "MobileViTForImageClassification",
        _CLASSES | _LIVELY | _MOBILEVIT,
        192,
    ),
    "mobilevitv2": Small(
        "MobileViTV2ForImageClassification", _CLASSES | {"width_multiplier": 0.25, "image_size": 128}, 128
    ),
    "poolformer": Small("PoolFormerForImageClassification", _CLASSES | _PYRAMID, 128),
    "pp_lcnet": Small(
        "PPLCNetForImageClassification",
        _CLASSES
        | {
            "scale": 0.25,
            "class_expand": 64,
            "block_configs": [
                [[3, 16, 32, 1, False]],
                [[3, 32, 64, 2, False]],
                [[3, 64, 128, 2, False]],
                [[5, 128, 256, 2, False]],
                [[5, 256, 512, 2, True]],
            ],
        },
        192,
    ),
    "pvt": Small(
        "PvtForImageClassification",
        _CLASSES | _PYRAMID | {"num_attention_heads": [1, 2, 2, 4], "image_size": 128},
        128,
    ),
    "pvt_v2": Small(
        "PvtV2ForImageClassification",
        _CLASSES | _PYRAMID | {"num_attention_heads": [1, 2, 2, 4], "image_size": 128},
        128,
    ),
    "regnet": Small("RegNetForImageClassification", _CLASSES | _PYRAMID | {"groups_width": 8}, 128),
    "resnet": Small("ResNetForImageClassification", _CLASSES | _PYRAMID | {"embedding_size": 16}, 128),
    "segformer": Small(
        "SegformerForImageClassification", _CLASSES | _PYRAMID | {"num_attention_heads": [1, 2, 2, 4]}, 128
    ),
    "siglip": Small("SiglipForImageClassification", _CLASSES, parts={"vision_config": ("SiglipVisionConfig", _VIT)}),
    "swiftformer": Small(
        "SwiftFormerForImageClassification",
        _CLASSES | {"depths": [1, 1, 2, 2], "embed_dims": [16, 32, 48, 64], "image_size": 128},
        128,
    ),
    "swin": Small("SwinForImageClassification", _CLASSES | _SWIN, 128),
    "swinv2": Small("Swinv2ForImageClassification", _CLASSES | _SWIN, 128),
    "textnet": Small(
        "TextNetForImageClassification", _CLASSES | {"hidden_sizes": [16, 16, 32, 48, 64], "stem_out_channels": 16}, 128
    ),
    "timm_wrapper": Small("TimmWrapperForImageClassification", _CLASSES | {"architecture": "resnet10t"}, 128),
    "vit": Small("ViTForImageClassification", _CLASSES | _VIT),
    "vit_msn": Small("ViTMSNForImageClassification", _CLASSES | _VIT),
}

TOWERS: dict[str, Small] = {
    "aimv2": Small("Aimv2VisionModel", _VIT),
    "altclip": Small("AltCLIPVisionModel", _VIT),
    "beit": Small("BeitModel", _VIT | {"use_relative_position_bias": True}),
    "blip": Small("BlipVisionModel", _VIT | {"initializer_range": 0.02}),
    "chinese_clip": Small("ChineseCLIPVisionModel", _VIT),
    "clip": Small("CLIPVisionModel", _VIT),
    "clip-projection": Small("CLIPVisionModelWithProjection", _VIT | {"projection_dim": 32}),
    "convnext": Small("ConvNextModel", _PYRAMID, 128),
    "deit": Small("DeiTModel", _VIT),
    "dinov2": Small("Dinov2Model", _VIT),
    "dinov2_with_registers": Small("Dinov2WithRegistersModel", _VIT),
    "dinov3_convnext": Small("DINOv3ConvNextModel", _PYRAMID, 128),
    "dinov3_vit": Small("DINOv3ViTModel", _VIT | {"num_register_tokens": 4}),
    "flava": Small("FlavaImageModel", _VIT),
    "metaclip_2": Small("MetaClip2VisionModel", _VIT),
    "mlcd": Small("MLCDVisionModel", _VIT),
    "pixio": Small("PixioModel", _VIT),
    "resnet": Small("ResNetModel", _PYRAMID | {"embedding_size": 16}, 128),
    "siglip": Small("SiglipVisionModel", _VIT),
    "swin": Small("SwinModel", _SWIN, 128),
    "tipsv2": Small("Tipsv2VisionModel", _VIT),
    "vit": Small("ViTModel", _VIT),
}

_WORDS: dict[str, Any] = {"intermediate_size": 64, "vocab_size": 50, "hidden_size": 64, "num_attention_heads": 4}

_WORDS |= {"num_hidden_layers": 1, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}


def _pair(kind: str, **options: Any) -> Small:
    """A model of two towers, one for words and one for pictures."""
    parts = {"text_config": (f"{kind}TextConfig", _WORDS | options), "vision_config": (f"{kind}VisionConfig", _VIT)}
    return Small(f"{kind}Model", {} if kind == "Siglip" else {"projection_dim": 64}, parts=parts)


PAIRS: dict[str, Small] = {
    "altclip": _pair("AltCLIP", project_dim=64),
    "chinese_clip": _pair("ChineseCLIP"),
    "clip": _pair("CLIP"),
    "metaclip_2": _pair("MetaClip2"),
    "siglip": _pair("Siglip"),
}

_FEATURES = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}

_RESNET: dict[str, Any] = _PYRAMID | {"embedding_size": 16, "layer_type": "basic"}

_DETR: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_queries": 10,
}

_MASKS: dict[str, Any] = _CLASSES | {
    "hidden_dim": 32,
    "encoder_feedforward_dim": 64,
    "dim_feedforward": 64,
    "encoder_layers": 2,
    "decoder_layers": 4,
    "num_attention_heads": 4,
    "num_queries": 10,
}

SEGMENTERS: dict[str, Small] = {
    "beit": Small(
        "BeitForSemanticSegmentation",
        _CLASSES | _VIT | {"out_indices": [1, 2, 3, 4], "auxiliary_channels": 16, "use_relative_position_bias": True},
    ),
    "data2vec": Small(
        "Data2VecVisionForSemanticSegmentation",
        _CLASSES | _VIT | {"out_indices": [1, 2, 3, 4], "auxiliary_channels": 16, "use_relative_position_bias": True},
    ),
    "dpt": Small(
        "DPTForSemanticSegmentation",
        _CLASSES
        | _VIT
        | {"neck_hidden_sizes": [16, 16, 32, 32], "fusion_hidden_size": 32, "backbone_out_indices": [0, 1, 2, 3]},
    ),
    "eomt": Small(
        "EomtForUniversalSegmentation",
        _CLASSES | _VIT | {"mlp_ratio": 2, "num_blocks": 1, "num_upscale_blocks": 1, "num_queries": 6},
    ),
    "mask2former": Small(
        "Mask2FormerForUniversalSegmentation",
        _MASKS | {"feature_size": 32, "mask_feature_size": 32},
        128,
        {"backbone_config": ("SwinConfig", _SWIN | _FEATURES)},
    ),
    "maskformer": Small(
        "MaskFormerForInstanceSegmentation",
        _CLASSES | {"fpn_feature_size": 32, "mask_feature_size": 32},
        128,
        {"backbone_config": ("ResNetConfig", _RESNET | _FEATURES), "decoder_config": ("DetrConfig", _DETR)},
    ),
    "mobilenet_v2": Small(
        "MobileNetV2ForSemanticSegmentation", _CLASSES | {"depth_multiplier": 0.35, "output_stride": 16}, 128
    ),
    "mobilevit": Small(
        "MobileViTForSemanticSegmentation",
        _CLASSES | _LIVELY | _MOBILEVIT | {"aspp_out_channels": 32, "output_stride": 16},
        192,
    ),
    "mobilevitv2": Small(
        "MobileViTV2ForSemanticSegmentation",
        _CLASSES | {"width_multiplier": 0.25, "image_size": 128, "aspp_out_channels": 32},
        128,
    ),
    "segformer": Small(
        "SegformerForSemanticSegmentation",
        _CLASSES | _PYRAMID | {"num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 32},
        128,
    ),
    "upernet-convnext": Small(
        "UperNetForSemanticSegmentation",
        _CLASSES | {"hidden_size": 32, "auxiliary_channels": 16, "auxiliary_in_channels": 48},
        128,
        {"backbone_config": ("ConvNextConfig", _PYRAMID | _FEATURES)},
    ),
    "upernet-swin": Small(
        "UperNetForSemanticSegmentation",
        _CLASSES | {"hidden_size": 32, "auxiliary_channels": 16, "auxiliary_in_channels": 64},
        128,
        {"backbone_config": ("SwinConfig", _SWIN | _FEATURES)},
    ),
}

_RT_DETR: dict[str, Any] = {
    "d_model": 32,
    "decoder_layers": 2,
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [32, 48, 64],
    "decoder_in_channels": [32, 32, 32],
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_queries": 10,
}

_LW_DETR: dict[str, Any] = _CLASSES | {
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_ffn_dim": 64,
    "decoder_self_attention_heads": 4,
    "decoder_cross_attention_heads": 4,
    "num_queries": 10,
    "group_detr": 2,
}

_WINDOWS: dict[str, Any] = _BLOCKS | {"image_size": 128, "patch_size": 16, "out_indices": [2, 4]}

_LAST = {"backbone_config": ("ResNetConfig", _RESNET | {"out_features": ["stage4"]})}

_THREE = {"backbone_config": ("RTDetrResNetConfig", _RESNET | {"out_features": ["stage2", "stage3", "stage4"]})}

DETECTORS: dict[str, Small] = {
    "conditional_detr": Small("ConditionalDetrForObjectDetection", _CLASSES | _DETR, 128, _LAST),
    "dab_detr": Small(
        "DabDetrForObjectDetection",
        _CLASSES | {key: value for key, value in _DETR.items() if key != "d_model"} | {"hidden_size": 32},
        128,
        _LAST,
    ),
    "d_fine": Small("DFineForObjectDetection", _CLASSES | _RT_DETR, 128, _THREE),
    "deformable_detr": Small(
        "DeformableDetrForObjectDetection",
        _CLASSES | _DETR | {"num_feature_levels": 3, "disable_custom_kernels": True},
        128,
        {"backbone_config": ("ResNetConfig", _RESNET | {"out_features": ["stage2", "stage3", "stage4"]})},
    ),
    "deformable_detr-two-stage": Small(
        "DeformableDetrForObjectDetection",
        _CLASSES | _DETR | {"num_feature_levels": 3, "two_stage": True, "with_box_refine": True},
        128,
        {"backbone_config": ("ResNetConfig", _RESNET | {"out_features": ["stage2", "stage3", "stage4"]})},
    ),
    "detr": Small("DetrForObjectDetection", _CLASSES | _DETR, 128, _LAST),
    "lw_detr": Small(
        "LwDetrForObjectDetection",
        _LW_DETR | {"projector_scale_factors": [1.0]},
        128,
        {"backbone_config": ("LwDetrViTConfig", _WINDOWS | {"pretrain_image_size": 128, "num_windows": 4})},
    ),
    "lw_detr-two-levels": Small(
        "LwDetrForObjectDetection",
        _LW_DETR | {"projector_scale_factors": [2.0, 0.5]},
        128,
        {"backbone_config": ("LwDetrViTConfig", _WINDOWS | {"pretrain_image_size": 128, "num_windows": 4})},
    ),
    "rf_detr": Small(
        "RfDetrForObjectDetection",
        _LW_DETR,
        128,
        {"backbone_config": ("RfDetrDinov2Config", _WINDOWS | {"num_windows": 2})},
    ),
    "rt_detr": Small("RTDetrForObjectDetection", _CLASSES | _RT_DETR, 128, _THREE),
    "rt_detr_v2": Small("RTDetrV2ForObjectDetection", _CLASSES | _RT_DETR, 128, _THREE),
    "table_transformer": Small("TableTransformerForObjectDetection", _CLASSES | _DETR, 128, _LAST),
    "yolos": Small("YolosForObjectDetection", _CLASSES | _VIT | {"image_size": [64, 64], "num_detection_tokens": 10}),
}

_PERCEIVER: dict[str, Any] = _CLASSES | {
    "num_latents": 20,
    "d_latents": 32,
    "d_model": 32,
    "num_self_attends_per_block": 2,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 1,
    "image_size": 64,
}

OF_LATENTS: dict[str, Small] = {
    "perceiver-conv": Small("PerceiverForImageClassificationConvProcessing", _PERCEIVER),
    "perceiver-learned": Small("PerceiverForImageClassificationLearned", _PERCEIVER),
}
"""Classifiers that read the picture once, into latents of no place: after that no layer can carry a map."""

UNFIT: dict[str, tuple[Small, str]] = {
    "ijepa": (Small("IJepaModel", _VIT), "it says something of each patch and nothing of the picture"),
    "vit_mae": (Small("ViTMAEModel", _VIT), "likewise; and it hides most patches and shuffles the rest, at random"),
    "vit_mae-pretraining": (
        Small(
            "ViTMAEForPreTraining",
            _VIT
            | {
                "decoder_hidden_size": 32,
                "decoder_num_hidden_layers": 1,
                "decoder_num_attention_heads": 2,
                "decoder_intermediate_size": 32,
            },
        ),
        "it paints the picture's patches",
    ),
}
"""What cannot be explained unasked, each with the reason: a function from the output to a number says what to explain.

Not here at all are models that are given no picture: ImageGPT (clusters of colors), SigLIP 2 (patches and a mask;
``test_prefix_tokens.py`` has it behind a module that takes pictures).
"""
