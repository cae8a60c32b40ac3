"""Models of the zoo and how to build them: random weights, no downloads.

The lists are data, so that whoever reads them need not build every variant to learn which is the smallest; a test holds
them against the libraries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Entry:
    """A model of a library, as the zoo builds it.

    Attributes:
        name: The library's name for it.
        size: The side of the square pictures it is asked about: small where the model lets us.
        options: What its builder is given: a smaller picture for a transformer, fewer blocks for a giant.
        library: ``"timm"`` or ``"torchvision"``.
    """

    name: str
    size: int = 128
    options: dict[str, Any] = field(default_factory=dict)
    library: str = "timm"

    def build(self) -> nn.Module:
        """The model with calibrated random weights, the same each time."""
        torch.manual_seed(0)
        model = _from_torchvision(self) if self.library == "torchvision" else _from_timm(self)
        return calibrated(model.eval(), self.size)

    def __str__(self) -> str:
        return self.name


def _from_torchvision(entry: Entry) -> nn.Module:
    import torchvision.models as zoo

    # These two warn, and fill themselves slowly, unless told that weights come.
    options = {"init_weights": False} if entry.name in ("googlenet", "inception_v3") else {}
    model: nn.Module = zoo.get_model(entry.name, weights=None, **options, **entry.options)
    return model


def _from_timm(entry: Entry) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(entry.name, pretrained=False, **entry.options)
    return model


# ------------------------------------------------------------------------------------------------- random weights


def picture(seed: int, height: int, width: int, *, count: int = 1) -> Tensor:
    """Pictures ``(count, 3, height, width)`` of about unit variance: blobs of several sizes, as photos have them."""
    dice = torch.Generator().manual_seed(seed)
    scales = [torch.randn(count, 3, cells, cells, generator=dice) for cells in (4, 8, 16, 32)]
    layers = [F.interpolate(scale, (height, width), mode="bilinear", align_corners=False) for scale in scales]
    return torch.stack(layers).sum(0)


def calibrated(model: nn.Module, size: int) -> nn.Module:
    """Return the model with the properties that training gives it, so that its output depends on the input.

    Layer scales and the last norms of residual blocks start at nothing, so every block would hand on what it got; some
    heads start at zero; and a batch norm that has seen no picture lets activations fade or explode.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if _starts_at_nothing(name, parameter):
                _fill(name, parameter)
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if norms:
        _see_pictures(model, norms, size)
    return model


def _starts_at_nothing(name: str, parameter: Tensor) -> bool:
    first = parameter.flatten()[0]
    return not name.endswith("bias") and bool(first.abs() <= 0.1) and bool((parameter == first).all())


def _fill(name: str, parameter: Tensor) -> None:
    if name.endswith("attention_biases"):  # LeViT's sense of place (heads, steps down x steps across): near is dear
        side, steps = math.isqrt(parameter.shape[1]), torch.arange(parameter.shape[1])
        parameter.copy_((-(steps // side + steps % side)).expand_as(parameter))
    elif "token" in name or "embed" in name or sum(length > 1 for length in parameter.shape) > 1:
        nn.init.normal_(parameter, std=max(0.02, parameter[0].numel() ** -0.5))
    else:  # a factor for each channel
        nn.init.ones_(parameter)


def _see_pictures(model: nn.Module, norms: list[nn.Module], size: int) -> None:
    for norm in norms:
        norm.momentum = None  # the mean of what is seen, from now on
        norm.reset_running_stats()  # type: ignore[operator]
        norm.training = True
    with torch.no_grad():
        model(picture(1, size, size, count=4))
    for norm in norms:
        norm.training = False


# -------------------------------------------------------------------------------------------------- torchvision

_PLAIN = """
    convnext_base convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201 efficientnet_b0
    efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7
    efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3
    mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf
    regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_16gf regnet_y_1_6gf regnet_y_3_2gf regnet_y_400mf
    regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d resnext101_64x4d
    resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0
    squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t wide_resnet50_2
"""
"""Those that take pictures of any size; 32 pixels lie between two positions of their last grid."""

TORCHVISION = sorted(
    [
        *(Entry(name, library="torchvision") for name in _PLAIN.split()),
        Entry("alexnet", 224, library="torchvision"),
        Entry("inception_v3", 160, library="torchvision"),
        Entry("maxvit_t", 224, library="torchvision"),
        Entry("vit_b_16", 128, {"image_size": 128}, library="torchvision"),
        Entry("vit_b_32", 128, {"image_size": 128}, library="torchvision"),
    ],
    key=str,
)
"""All of torchvision's classifiers with at most 120 million parameters."""


# --------------------------------------------------------------------------------------------------------- timm

BY_MODULE = {
    "beit": Entry("beit_base_patch16_224", 128, {"img_size": 128}),
    "byoanet": Entry("halonet_h1", 256),
    "byobnet": Entry("mobileone_s1", 224),
    "cait": Entry("cait_xxs24_224", 224),
    "coat": Entry("coat_tiny", 224),
    "convit": Entry("convit_tiny", 224),
    "convmixer": Entry("convmixer_768_32", 112),
    "convnext": Entry("convnext_zepto_rms", 224),
    "cpubone": Entry("cpubone_nano", 224),
    "crossvit": Entry("crossvit_tiny_240", 240),
    "csatv2": Entry("csatv2", 256),
    "cspnet": Entry("cs3darknet_focus_s", 256),
    "cspnext": Entry("cspnext_tiny", 224),
    "davit": Entry("davit_tiny"),
    "deepseek_vit": Entry("deepseek_vit_412m", 112, {"depth": 3, "img_size": 112}),
    "deit": Entry("deit_tiny_patch16_224", 224),
    "densenet": Entry("densenet121", 128),
    "dla": Entry("dla46x_c", 224),
    "dpn": Entry("dpn48b", 224),
    "edgenext": Entry("edgenext_xx_small", 256),
    "efficientformer": Entry("efficientformer_l1", 224),
    "efficientformer_v2": Entry("efficientformerv2_s0", 224),
    "efficientnet": Entry("mobilenetv2_035", 224),
    "efficientvim": Entry("efficientvim_m1", 224),
    "efficientvit_mit": Entry("efficientvit_b0", 224),
    "efficientvit_msra": Entry("efficientvit_m0", 224),
    "eva": Entry("vit_tiny_patch16_dinov3_qkvb", 256),
    "fasternet": Entry("fasternet_t0", 224),
    "fastvit": Entry("fastvit_t8", 256),
    "focalnet": Entry("focalnet_tiny_srf"),
    "gcvit": Entry("gcvit_xxtiny", 224),
    "gemma4_vit": Entry("gemma4_vit_167m", 128, {"depth": 3}),
    "ghostnet": Entry("ghostnet_050", 224),
    "hardcorenas": Entry("hardcorenas_b", 224),
    "hgnet": Entry("hgnetv2_b0", 224),
    "hiera": Entry("hiera_tiny_224", 128, {"img_size": 128}),
    "hieradet_sam2": Entry("sam2_hiera_tiny"),
    "hrnet": Entry("hrnet_w18_small", 224),
    "iformer": Entry("iformer_t", 224),
    "inception_next": Entry("inception_next_atto", 224),
    "inception_resnet_v2": Entry("inception_resnet_v2", 160),
    "inception_v3": Entry("inception_v3", 160),
    "inception_v4": Entry("inception_v4", 224),
    "lcnetv2": Entry("lcnetv2_small", 224),
    "levit": Entry("levit_128s", 224),
    "lowformer": Entry("lowformer_b0", 224),
    "mambaout": Entry("mambaout_femto", 224),
    "maxxvit": Entry("maxvit_pico_rw_256", 256),
    "metaformer": Entry("poolformerv2_s12", 128),
    "mlp_mixer": Entry("gmlp_ti16_224", 224),
    "mobilenetv3": Entry("mobilenetv3_small_050", 224),
    "mobilenetv5": Entry("mobilenetv5_base"),
    "mobilevit": Entry("mobilevit_xxs", 256),
    "mvitv2": Entry("mvitv2_tiny", 128),
    "naflexvit": Entry("naflexvit_base_patch16_parfac_gap"),
    "nasnet": Entry("nasnetalarge"),
    "nest": Entry("nest_tiny", 224),
    "nextvit": Entry("nextvit_small"),
    "nfnet": Entry("nf_regnet_b0", 224),
    "pit": Entry("pit_ti_224", 224),
    "pnasnet": Entry("pnasnet5large"),
    "pvt_v2": Entry("pvt_v2_b0", 224),
    "qwen3_vit": Entry("qwen3_vit_88m"),
    "rdnet": Entry("rdnet_tiny"),
    "regnet": Entry("regnetx_002", 224),
    "repghost": Entry("repghostnet_050", 224),
    "repvit": Entry("repvit_m1", 224),
    "res2net": Entry("res2next50"),
    "resnest": Entry("resnest14d", 224),
    "resnet": Entry("resnet10t", 224),
    "resnetv2": Entry("resnetv2_18", 224),
    "rexnet": Entry("rexnet_100", 224),
    "selecsls": Entry("selecsls42", 160),
    "senet": Entry("legacy_seresnet18", 224),
    "sequencer": Entry("sequencer2d_s"),
    "shvit": Entry("shvit_s1", 224),
    "sknet": Entry("skresnet18", 224),
    "starnet": Entry("starnet_s050", 224),
    "swiftformer": Entry("swiftformer_xs", 224),
    "swin_transformer": Entry("swin_tiny_patch4_window7_224", 224),
    "swin_transformer_v2": Entry("swinv2_tiny_window8_256", 256),
    "swin_transformer_v2_cr": Entry("swinv2_cr_tiny_224", 224),
    "tiny_vit": Entry("tiny_vit_5m_224", 224),
    "tnt": Entry("tnt_s_legacy_patch16_224", 224),
    "tresnet": Entry("tresnet_m"),
    "twins": Entry("twins_svt_small", 224),
    "vgg": Entry("vgg11"),
    "visformer": Entry("visformer_tiny", 224),
    "vision_transformer": Entry("vit_tiny_patch16_224", 224),
    "vision_transformer_hybrid": Entry("vit_tiny_r_s16_p8_224", 224),
    "vision_transformer_relpos": Entry("vit_srelpos_small_patch16_224", 224),
    "vision_transformer_sam": Entry("samvit_base_patch16_224"),
    "vitamin": Entry("vitamin_small_224", 224),
    "volo": Entry("volo_d1_224", 224),
    "vovnet": Entry("ese_vovnet19b_slim_dw", 224),
    "xception": Entry("legacy_xception", 160),
    "xception_aligned": Entry("xception41p", 160),
    "xcit": Entry("xcit_nano_12_p8_224", 224),
}
"""For each of timm's modules the model with the fewest parameters, but for those it keeps for its own tests."""

SMALLEST = list(BY_MODULE.values())

FURTHER = [
    Entry("bat_resnext26ts", 256),
    Entry("deit_tiny_patch16_224", 128, {"img_size": 128}),
    Entry("vit_tiny_patch16_224", 128, {"img_size": 128}),
    Entry("vit_xsmall_patch16_clip_224", 224),
    Entry("vit_wee_patch16_reg1_gap_256", 256),
    Entry("vit_dwee_patch16_reg1_gap_256", 256),
    Entry("vit_dpwee_patch16_reg1_gap_256", 256),
    Entry("vit_pwee_patch16_reg1_gap_256", 256),
    Entry("vit_small_patch8_224", 64, {"img_size": 64}),
    Entry("vit_small_patch14_dinov2", 224, {"img_size": 224}),
    Entry("vit_small_patch14_reg4_dinov2", 224, {"img_size": 224}),
    Entry("flexivit_small", 240),
    Entry("vit_little_patch16_reg4_gap_256", 256),
    Entry("vit_small_patch32_224", 224),
    Entry("vit_medium_patch16_gap_240", 240, {"depth": 4}),
    Entry("vit_small_patch16_36x1_224", 128, {"img_size": 128}),
    Entry("vit_small_patch16_18x2_224", 128, {"img_size": 128}),
    Entry("vit_base_patch16_siglip_224", 128, {"img_size": 128, "depth": 4}),
    Entry("vit_base_patch16_siglip_gap_224", 128, {"img_size": 128, "depth": 4}),
    Entry("vit_base_patch14_reg1_tipsv2", 224, {"img_size": 224, "depth": 4}),
    Entry("vit_base_patch16_radio_v3", 224, {"img_size": 224, "depth": 4}),
    Entry("vit_base_patch16_clip_quickgelu_224", 128, {"img_size": 128, "depth": 4}),
    Entry("eva02_tiny_patch14_224", 224),
    Entry("vit_pe_spatial_tiny_patch16_512", 128, {"img_size": 128}),
    Entry("vit_pe_core_tiny_patch16_384", 192, {"img_size": 192}),
    Entry("vit_small_patch16_dinov3", 256),
    Entry("vit_small_patch16_lingbot", 128, {"img_size": 128}),
    Entry("vit_small_patch16_rope_mixed_ape_224", 224),
    Entry("vit_medium_patch16_rope_reg1_gap_256", 256, {"depth": 4}),
    Entry("deit_tiny_distilled_patch16_224", 224),
    Entry("deit3_small_patch16_224", 224),
    Entry("beitv2_base_patch16_224", 128, {"img_size": 128, "depth": 4}),
    Entry("vit_small_r26_s32_224", 224, {"depth": 4}),
    Entry("vit_small_resnet26d_224", 224, {"depth": 4}),
    Entry("vit_base_mci_224", 224, {"depth": 4}),
    Entry("vit_relpos_small_patch16_rpn_224", 224, {"depth": 4}),
    Entry("vit_relpos_medium_patch16_cls_224", 224, {"depth": 4}),
    Entry("vit_relpos_base_patch16_clsgap_224", 224, {"depth": 4}),
    Entry("xcit_nano_12_p16_224", 224),
    Entry("cait_xxs36_224", 128, {"img_size": 128}),
    Entry("convit_small", 128, {"img_size": 128}),
    Entry("coat_lite_tiny", 224),
    Entry("crossvit_9_dagger_240", 240),
    Entry("pit_ti_distilled_224", 224),
    Entry("levit_conv_128s", 224),
    Entry("twins_pcpvt_small", 224),
    Entry("mvitv2_small_cls", 128, {"img_size": 128}),
    Entry("tnt_s_patch16_224", 224, {"depth": 4}),
    Entry("caformer_s18"),
    Entry("poolformer_s12", 224),
    Entry("coatnet_pico_rw_224", 224),
    Entry("coatnext_nano_rw_224", 224),
    Entry("maxxvitv2_nano_rw_256", 256),
    Entry("coatnet_0_224", 128, {"img_size": 128}),
    Entry("gmixer_12_224", 224),
    Entry("resmlp_12_224", 224),
    Entry("mixer_s16_224", 224),
    Entry("mixer_s32_224", 224),
    Entry("nest_tiny_jx", 224),
    Entry("hiera_small_abswin_256", 256),
    Entry("fastvit_sa12", 256),
    Entry("fastvit_mci0", 256),
    Entry("resnet50_clip", 224),
    Entry("resnet50_clip_gap", 224),
    Entry("botnet26t_256", 256),
    Entry("sebotnet33ts_256", 256),
    Entry("lambda_resnet26t", 256),
    Entry("lambda_resnet26rpt_256", 256),
    Entry("naflexvit_base_patch16_map", 128, {"depth": 4}),
    Entry("naflexvit_base_patch16_siglip", 128, {"depth": 4}),
    Entry("swinv2_cr_tiny_ns_224", 224),
    Entry("visformer_small", 224),
    Entry("efficientformerv2_s1", 224),
    Entry("mobilevitv2_050", 256),
    Entry("hieradet_small", 256),
    Entry("qwen3_vit_88m_merge", 128, {"depth": 4}),
    Entry("pvt_v2_b2_li"),
    Entry("edgenext_x_small", 256),
    Entry("vitamin_small_224", 256, {"img_size": 256}),
    Entry("samvit_base_patch16", 256, {"img_size": 256, "depth": 4}),
    Entry("test_byobnet", 160),
    Entry("test_convnext", 160),
    Entry("test_convnext2", 160),
    Entry("test_convnext3", 160),
    Entry("test_efficientnet", 160),
    Entry("test_efficientnet_evos", 160),
    Entry("test_efficientnet_gn", 160),
    Entry("test_efficientnet_ln", 160),
    Entry("test_mambaout", 160),
    Entry("test_coatnet", 160),
    Entry("test_maxvit", 160),
    Entry("test_nfnet", 160),
    Entry("test_resnet", 160),
    Entry("test_vit", 160),
    Entry("test_vit2", 160),
    Entry("test_vit3", 160),
    Entry("test_vit4", 160),
    Entry("test_vit_relpos", 160),
]
"""More of timm's transformers, mixers and hybrids, in each variant of what stands in a layer's way: class tokens,
registers, distillation, none of them; pooling by mean, by attention, by a token; positions added, rotated, relative; as
many tokens as channels; blocks side by side. And the toys that timm keeps for its own tests, which run fast."""

UNFIT: dict[str, str] = {}
"""Models that cannot be explained at a layer, each with the reason: asking must end in a LayerError."""

EARLIER = {
    "efficientvim_m1": "its hidden states are as many as cells of some grid, and each grid takes a pass to tell",
    "resmlp_12_224": "its dense mixing over positions hides their places as long as its weights are random",
}
"""Models of which an earlier layer than in the last third is explained, as no later one shows places on the image, or
whose layer takes more passes to find, each with the reason."""

UNTOLD = {"bat_resnext26ts": "its bilinear attention mixes all positions as long as its weights are random"}
"""Models of which nobody can say whether the layer follows the picture, each with the reason; all else must hold."""
