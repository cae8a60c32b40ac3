"""Source of open_clip models: names, files of weights, transforms, texts and errors."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import camtool
from camtool import ModelError
from camtool.geometry.measured_transforms import probe_geometry
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.models import build_untrained, find_input_size
from camtool.models.declared_properties import find_transform
from camtool.targets import Similarity

open_clip = pytest.importorskip("open_clip", reason="open_clip is not part of what the tests need")

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 140, 3), np.uint8))
CONFIG = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
NAME = "tiny"
TEXT = "a photo of a dog"


@pytest.fixture(autouse=True)
def _register_architecture(tmp_path, monkeypatch):
    """Register a tiny architecture in open_clip."""
    (tmp_path / f"{NAME}.json").write_text(json.dumps(CONFIG))
    factory = sys.modules["open_clip.factory"]
    monkeypatch.setattr(factory, "_MODEL_CONFIGS", dict(factory._MODEL_CONFIGS))
    monkeypatch.setattr(factory, "_MODEL_CONFIG_PATHS", list(factory._MODEL_CONFIG_PATHS))
    open_clip.add_model_config(tmp_path / f"{NAME}.json")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return open_clip.create_model(NAME, pretrained=None).eval()


def test_the_score_of_a_text_equals_open_clips_similarity(model, tmp_path):
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    loaded = camtool.load(f"open_clip:{NAME}", tmp_path / "weights.safetensors")
    result = camtool.explain(loaded, PHOTO, TEXT)
    with torch.no_grad():
        images = model.encode_image(loaded.transform(PHOTO)[None], normalize=True)
        texts = model.encode_text(open_clip.get_tokenizer(NAME)([TEXT]), normalize=True)
    assert result.score == pytest.approx(float(images @ texts.T), abs=1e-6)
    assert (result.label, loaded.name) == (TEXT, f"open_clip:{NAME}")
    assert result.layer.startswith("visual.")
    assert result.raw.std() > 0


def test_a_bare_model_has_its_transform_and_clips_tokenizer(model):
    result = camtool.explain(model, PHOTO, [TEXT, "a cat"])
    with torch.no_grad():
        images = model.encode_image(find_transform(model)(PHOTO)[None], normalize=True)
        texts = model.encode_text(open_clip.get_tokenizer(NAME)([TEXT, "a cat"]), normalize=True)
    assert [each.score for each in result] == pytest.approx((images @ texts.T)[0].tolist(), abs=1e-6)
    assert not any("transform" in warning for each in result for warning in each.warnings)


@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("size", [(300, 413), (413, 300)], ids=str)
def test_the_transform_equals_open_clips_and_its_geometry_is_read(model, mode, size):
    model.visual.preprocess_cfg = {**model.visual.preprocess_cfg, "resize_mode": mode}
    transform = find_transform(model)
    theirs = open_clip.image_transform(64, is_train=False, resize_mode=mode)
    torch.testing.assert_close(transform(PHOTO), theirs(PHOTO), rtol=0, atol=0)
    read, probed = read_geometry(transform, size), probe_geometry(transform, size)
    assert read.size == probed.size == find_input_size(model)
    np.testing.assert_allclose(read.box, probed.box, rtol=0, atol=0.5)


def test_another_vocabulary_than_clips_needs_a_text_encoder(model):
    model.vocab_size = 7
    with pytest.raises(ModelError, match=r"does not say which tokenizer it has\. Pass camtool\.Loaded"):
        camtool.explain(model, PHOTO, TEXT)
    assert camtool.explain(model, PHOTO, Similarity(torch.rand(24))).label == "similarity"


def test_open_clip_loads_pretrained_weights(monkeypatch):
    requested, real = [], open_clip.create_model

    def create_model(name, *, pretrained, **options):
        requested.append((name, pretrained))
        return real(NAME, pretrained=None)

    monkeypatch.setattr(open_clip, "create_model", create_model)
    loaded = camtool.load("open_clip:ViT-B-32/laion2b_s34b_b79k")
    assert requested == [("ViT-B-32", "laion2b_s34b_b79k")]
    assert loaded.model(torch.rand(2, 3, 64, 64)).shape == (2, 24)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("ViT-B-33", r"unknown\. Did you mean 'ViT-B-32'"),
        ("ViT-B-32", "add a tag of weights: ViT-B-32/openai, "),
        ("ViT-B-32/opneai", r"add a tag of weights: .*Did you mean 'openai'"),
        (NAME, "it has no weights"),
    ],
)
def test_an_unknown_name_suggests_similar_names(name, match):
    with pytest.raises(ModelError, match=match):
        camtool.load(f"open_clip:{name}")


def test_the_error_without_internet_says_what_to_do(monkeypatch):
    def create_model(*args, **kwargs):
        raise RuntimeError("no route\nto host")

    monkeypatch.setattr(open_clip, "create_model", create_model)
    with pytest.raises(ModelError, match=r"could not be downloaded \(no route\)\. .*--weights FILE") as error:
        camtool.load("open_clip:ViT-B-32/openai")
    assert error.value.__suppress_context__


def test_the_error_without_open_clip_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ModelError, match="pip install open_clip_torch"):
        camtool.load("open_clip:ViT-B-32")


def test_an_untrained_model_returns_embeddings_of_images():
    assert build_untrained(f"open_clip:{NAME}")(torch.rand(2, 3, 64, 64)).shape == (2, 24)
