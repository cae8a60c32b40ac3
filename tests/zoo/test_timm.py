"""timm models are explained without a named layer or reshaping."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import pytest

from tests.zoo.catalogue import BY_MODULE, FURTHER, SMALLEST, UNFIT, Entry
from tests.zoo.check import hold

timm = pytest.importorskip("timm", reason="timm is not installed: pip install 'camtool[test]'")


_ONE_OF_EACH_KIND = """
    densenet121 efficientvim_m1 lambda_resnet26t mobilenetv2_035 resnet10t sequencer2d_s
    test_byobnet test_convnext test_efficientnet_ln test_mambaout test_nfnet
    beit_base_patch16_224 deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 eva02_tiny_patch14_224
    naflexvit_base_patch16_map qwen3_vit_88m_merge samvit_base_patch16 test_vit test_vit2 test_vit_relpos
    vit_base_patch16_siglip_224 vit_base_patch16_siglip_gap_224 vit_dpwee_patch16_reg1_gap_256
    vit_little_patch16_reg4_gap_256 vit_pe_core_tiny_patch16_384 vit_small_patch8_224 vit_srelpos_small_patch16_224
    vit_tiny_patch16_dinov3_qkvb vit_tiny_r_s16_p8_224
    cait_xxs24_224 coat_tiny convit_tiny crossvit_tiny_240 davit_tiny gcvit_xxtiny hiera_tiny_224 hieradet_small
    mvitv2_small_cls mvitv2_tiny nest_tiny pit_ti_224 pvt_v2_b0 swin_tiny_patch4_window7_224 swinv2_cr_tiny_224
    tnt_s_legacy_patch16_224 twins_svt_small volo_d1_224 xcit_nano_12_p8_224
    bat_resnext26ts botnet26t_256 edgenext_xx_small efficientformer_l1 fastvit_t8 levit_128s levit_conv_128s
    mobilevit_xxs mobilevitv2_050 poolformerv2_s12 resnet50_clip test_coatnet test_maxvit
    gmlp_ti16_224 resmlp_12_224
"""
"""Convolutions; transformers of one grid; those of several grids and tokens; hybrids; mixers. The other networks are
made of the same parts; ``python -m benchmarks coverage`` explains them all."""

_FEWER_BLOCKS: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": {"depth": 4},
    "cait_xxs24_224": {"depth": 4},
    "coat_tiny": {"parallel_depth": 2},
    "crossvit_tiny_240": {"depth": [[1, 1, 0], [1, 1, 0], [1, 1, 0]]},
    "davit_tiny": {"depths": (1, 1, 1, 1)},
    "fastvit_t8": {"layers": (1, 1, 2, 1)},
    "hieradet_small": {"stages": (1, 2, 3, 2), "global_att_blocks": (4,)},
    "qwen3_vit_88m_merge": {"depth": 4},
    "samvit_base_patch16": {"depth": 4, "global_attn_indexes": [1, 3]},
    "sequencer2d_s": {"layers": (1, 1, 2, 1)},
    "swin_tiny_patch4_window7_224": {"depths": (2, 2, 2, 2)},
    "swinv2_cr_tiny_224": {"depths": (2, 2, 2, 2)},
    "tnt_s_legacy_patch16_224": {"depth": 4},
    "twins_svt_small": {"depths": (1, 1, 2, 1)},
    "vit_tiny_patch16_dinov3_qkvb": {"depth": 4},
    "xcit_nano_12_p8_224": {"depth": 4},
}
"""Options of large networks that repeat their blocks, which are alike."""

_FIXED_BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "gmlp_ti16_224": ("mlp_mixer._create_mixer", {"num_blocks": 4}),
    "nest_tiny": ("nest._create_nest", {"depths": (2, 2, 2)}),
    "resmlp_12_224": ("mlp_mixer._create_mixer", {"num_blocks": 4}),
    "volo_d1_224": ("volo._create_volo", {"layers": (1, 1, 2, 1)}),
}
"""Functions of timm that build other large networks, and their options, which the user cannot choose."""

_FEWER_STAGES = {"mvitv2_small_cls": (1, 1, 2, 1), "mvitv2_tiny": (1, 1, 2, 1)}
"""Blocks of each stage of networks whose settings timm keeps in a table."""

_SMALLER_PICTURES: dict[str, tuple[int, dict[str, Any]]] = {
    "hieradet_small": (128, {"window_spec": (8, 4, 8, 4)}),  # as many windows in the last grids as 256 pixels have
    "lambda_resnet26t": (128, {}),
    "resnet50_clip": (128, {}),
    "samvit_base_patch16": (128, {"img_size": 128, "window_size": 7}),  # likewise
    "vit_dpwee_patch16_reg1_gap_256": (128, {"img_size": 128}),
    "vit_little_patch16_reg4_gap_256": (128, {"img_size": 128}),
    "vit_srelpos_small_patch16_224": (128, {"img_size": 128}),
}
"""Sides of the pictures, and options, of large networks beside others of their modules that keep theirs."""


def shrink(entry: Entry) -> Entry:
    """Return a large network with fewer blocks or a smaller picture, as the rules are about grids and not sizes."""
    size, options = _SMALLER_PICTURES.get(entry.name, (entry.size, {}))
    return replace(entry, size=size, options=entry.options | _FEWER_BLOCKS.get(entry.name, {}) | options)


_ENTRIES = [shrink(entry) for entry in [*SMALLEST, *FURTHER] if entry.name in _ONE_OF_EACH_KIND.split()]


@pytest.mark.parametrize("entry", _ENTRIES, ids=lambda entry: f"{entry}-{entry.size}")
def test_model_is_explained_without_configuration(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    if entry.name in _FIXED_BLOCKS:
        path, fewer = _FIXED_BLOCKS[entry.name]
        build = operator.attrgetter(path)(timm.models)
        monkeypatch.setattr(f"timm.models.{path}", lambda *args, **options: build(*args, **options | fewer))
    if entry.name in _FEWER_STAGES:
        settings = timm.models.mvitv2.model_cfgs
        fewer_stages = replace(settings[entry.name], depths=_FEWER_STAGES[entry.name])
        monkeypatch.setitem(settings, entry.name, fewer_stages)
    hold(entry, UNFIT)


def test_the_list_for_the_benchmark_names_each_module() -> None:
    assert {*BY_MODULE} == {*timm.list_modules()}
    assert [m for m, entry in BY_MODULE.items() if entry.name not in timm.list_models(module=m)] == []
    assert {entry.name for entry in _ENTRIES} == {*_ONE_OF_EACH_KIND.split()} >= _FEWER_BLOCKS.keys()
    assert {*_ONE_OF_EACH_KIND.split()} >= _SMALLER_PICTURES.keys() | _FIXED_BLOCKS.keys() | _FEWER_STAGES.keys()
