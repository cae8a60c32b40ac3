"""Source of Hugging Face models: folders, image processors, labels, texts and errors.

All models are tiny, have random weights, and are read from folders.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from typer.testing import CliRunner

import camtool
from camtool import Loaded, ModelError, TargetError
from camtool.cli.app import app
from camtool.geometry.measured_transforms import probe_geometry
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.models import build_untrained, find_input_size, resolve_labels, to_loaded
from camtool.models.declared_properties import find_transform
from camtool.models.sources.hugging_face import ProcessorTransform
from camtool.models.two_towers import ImageTower
from camtool.targets import Similarity
from tests.helpers.photos import unseen

SIZE = 64
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 140, 3), np.uint8))
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
VISION = {**TINY, "image_size": SIZE, "patch_size": 16}
WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "a", "photo", "of", "dog", "cat"]
LANGUAGE = {**TINY, "vocab_size": len(WORDS), "max_position_embeddings": 16}
LANGUAGE |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = "a photo of a dog"


def vit(**options) -> nn.Module:
    config = transformers.ViTConfig(**VISION, id2label={0: "cat", 1: "dog", 2: "cow"}, **options)
    return transformers.ViTForImageClassification(config).eval()


def clip() -> nn.Module:
    return transformers.CLIPModel(
        transformers.CLIPConfig(text_config=LANGUAGE, vision_config=VISION, projection_dim=24)
    ).eval()


def siglip() -> nn.Module:
    return transformers.SiglipModel(transformers.SiglipConfig(text_config=LANGUAGE, vision_config=VISION)).eval()


def build_tokenizer() -> transformers.PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    special = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "unk")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=16, **special)


def build_processor(kind: str, **options):
    return getattr(transformers, f"{kind}ImageProcessor")(**options)


def save_model(folder: Path, *parts) -> str:
    for part in parts:
        part.save_pretrained(folder)
    return f"hf:{folder}"


def square(side: int = SIZE) -> dict[str, int]:
    return {"height": side, "width": side}


def load_clip(folder: Path) -> Loaded:
    parts = clip(), build_processor("CLIP", **PROCESSORS["CLIP"]), build_tokenizer()
    return camtool.load(save_model(folder, *parts))


# ------------------------------------------------------------------------------------------------------- models


def test_a_classifier_in_a_folder_has_its_transform_and_labels(tmp_path):
    original, prepare = vit(), build_processor("ViT", size=square())
    loaded = camtool.load(save_model(tmp_path, original, prepare))
    prepared = loaded.transform(PHOTO)
    torch.testing.assert_close(prepared, prepare(PHOTO, return_tensors="pt")["pixel_values"][0], rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(prepared[None]).logits, original(prepared[None]).logits)
    assert loaded.labels == ["cat", "dog", "cow"]
    assert (loaded.text, loaded.name) == (None, f"hf:{tmp_path}")
    result = camtool.explain(loaded, PHOTO, "dog")
    assert (result.label, result.index, result.heatmap.shape) == ("dog", 1, (90, 140))
    assert result.raw.std() > 0


def test_a_path_of_a_folder_needs_no_prefix(tmp_path):
    save_model(tmp_path, vit(), build_processor("ViT", size=square()))
    loaded = camtool.load(tmp_path)
    assert (loaded.labels, loaded.name) == (["cat", "dog", "cow"], f"hf:{tmp_path}")
    with pytest.raises(ModelError, match=r"is unknown\. It is a folder: put hf: before it if save_pretrained of"):
        camtool.load(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"'hf:.*empty' could not be loaded: .*config\.json"):
        camtool.load(tmp_path / "empty")


def test_a_file_of_weights_replaces_those_of_the_folder(tmp_path):
    other = vit()
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    loaded = camtool.load(save_model(tmp_path, vit()), tmp_path / "other.safetensors", labels=["x", "y", "z"])
    assert torch.equal(loaded.model.classifier.weight, other.classifier.weight)
    assert loaded.labels == ["x", "y", "z"]


def test_a_pickle_with_more_than_tensors_in_a_folder_is_refused(tmp_path):
    name = save_model(tmp_path, vit())
    (tmp_path / "model.safetensors").unlink()
    torch.save(nn.Linear(2, 2), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin.*could run any code, so it is refused"):
        camtool.load(name)


def test_half_precision_weights_of_a_folder_become_single_precision(tmp_path):
    assert {p.dtype for p in camtool.load(save_model(tmp_path, vit().half())).model.parameters()} == {torch.float32}


def test_a_model_without_a_processor_gets_the_default_transform_and_a_warning(tmp_path):
    loaded = camtool.load(save_model(tmp_path, vit()))
    assert loaded.transform is None
    (warning,) = (each for each in camtool.explain(loaded, PHOTO, 0).warnings if "transform" in each)
    assert f"a size of {SIZE} x {SIZE}, on which the model runs, and the normalization of ImageNet" in warning


BUILDERS = {
    "segmenter": lambda: transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(
            depths=[1] * 4, hidden_sizes=[8, 16, 16, 32], decoder_hidden_size=16, num_attention_heads=[1, 1, 2, 2]
        )
    ),
    "detector": lambda: transformers.YolosForObjectDetection(
        transformers.YolosConfig(**{**VISION, "image_size": [SIZE, SIZE]}, num_detection_tokens=4)
    ),
    "backbone": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**VISION)),
    "tower": lambda: transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**VISION)),
}


@pytest.mark.parametrize("kind", BUILDERS)
def test_the_configuration_selects_the_class_of_the_model(tmp_path, kind):
    original = BUILDERS[kind]().eval()
    loaded = camtool.load(save_model(tmp_path, original))
    assert type(loaded.model) is type(original)
    images = torch.rand(1, 3, SIZE, SIZE)
    with torch.no_grad():
        theirs, ours = original(images).to_tuple(), loaded.model(images).to_tuple()
    torch.testing.assert_close(ours, theirs)
    assert loaded.labels is None  # LABEL_0, LABEL_1 are placeholders
    assert type(build_untrained(f"hf:{tmp_path}")) is type(original)


def test_a_timm_model_wrapped_by_transformers_has_timms_transform(tmp_path):
    wrapped = transformers.TimmWrapperForImageClassification(
        transformers.TimmWrapperConfig(
            architecture="test_resnet",
            num_labels=4,
            pretrained_cfg={"input_size": (3, 96, 96), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 0.9},
        )
    ).eval()
    loaded = camtool.load(save_model(tmp_path, wrapped))
    assert loaded.transform(PHOTO).shape == (3, 96, 96)
    assert read_geometry(loaded.transform, PHOTO).size == (96, 96)


# ------------------------------------------------------------------------------------------------- preprocessing

PROCESSORS = {
    "ViT": {"size": square()},
    "CLIP": {"size": {"shortest_edge": 70}, "crop_size": square()},
    "CLIP wide": {"size": {"shortest_edge": 71}, "crop_size": {"height": 60, "width": 121}},
    "CLIP larger than the photo": {"size": {"shortest_edge": 50}, "crop_size": square(101)},
    "CLIP not resized": {"do_resize": False, "crop_size": square(81)},
    "Siglip": {"size": square()},
    "DeiT": {"size": square(73), "crop_size": square()},
    "Bit": {"size": {"shortest_edge": 72}, "crop_size": square(65)},
    "ConvNext": {"size": {"shortest_edge": 128}},
    "ConvNext large": {"size": {"shortest_edge": 384}},
    "PoolFormer": {"size": {"shortest_edge": 100}, "crop_size": square(100), "crop_pct": 0.9},
    "Beit": {"size": square(70), "crop_size": square(), "do_center_crop": True},
    "Segformer": {"size": square(96)},
    "MobileViT": {"size": {"shortest_edge": 80}, "crop_size": square()},
    "EfficientNet": {"size": square(80)},
    "Levit": {"size": {"shortest_edge": 112}, "crop_size": square(112)},
    "DINOv3ViT": {"size": square()},
    "Detr": {"size": {"shortest_edge": 80, "longest_edge": 133}},
    "Yolos": {"size": {"shortest_edge": 80, "longest_edge": 100}},
    "RTDetr": {"size": square(160)},
    "Owlv2": {"size": square(160)},
    "Pvt": {"size": square(96)},
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("size", [(300, 413), (413, 300), (211, 211)], ids=str)
def test_the_geometry_of_an_image_processor_equals_a_probe(name, size):
    prepare = build_processor(name.partition(" ")[0], **PROCESSORS[name])
    read = read_geometry(ProcessorTransform(prepare), size)
    probed = probe_geometry(lambda photo: prepare(photo, return_tensors="pt")["pixel_values"][0], size)
    assert read.size == probed.size
    np.testing.assert_allclose(read.box, probed.box, rtol=0, atol=0.75)
    assert read_geometry(prepare, size) == read  # the user may pass the processor itself


SCALED = {"CLIP wide": (71, 97), "ViT": (64, 64), "Detr": (80, 110), "ConvNext": (146, 200), "Levit": (128, 176)}
SCALED |= {"PoolFormer": (111, 152), "ConvNext large": (384, 384)}
"""Size (h, w) that some processors scale a photo of 300 x 413 to."""


@pytest.mark.parametrize("name", SCALED)
def test_a_geometry_that_is_read_is_exact(name):
    """If the scale and the crop are known in whole pixels, so are the edges of the box."""
    prepare, scaled = build_processor(name.partition(" ")[0], **PROCESSORS[name]), SCALED[name]
    geometry = read_geometry(prepare, (300, 413))
    height, width = geometry.size
    top, left = int((scaled[0] - height) / 2), int((scaled[1] - width) / 2)
    down, across = 300 / scaled[0], 413 / scaled[1]
    expected = (top * down, left * across, (top + height) * down, (left + width) * across)
    np.testing.assert_allclose(geometry.box, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@pytest.mark.parametrize("cut", [(41, 57), (96, 57), (41, 150), (97, 151)], ids=str)
def test_the_center_crop_equals_that_of_the_processor(backend, cut):
    name = "CLIPImageProcessorPil" if backend == "pil" else "CLIPImageProcessor"
    crop = {"height": cut[0], "width": cut[1]}
    prepare = getattr(transformers, name)(do_resize=False, do_normalize=False, crop_size=crop)
    top, left, bottom, right = map(int, read_geometry(prepare, PHOTO).box)
    padded = np.pad(np.asarray(PHOTO), ((99, 99), (99, 99), (0, 0)))
    made = np.asarray(prepare(PHOTO, return_tensors="np")["pixel_values"][0])
    np.testing.assert_array_equal(
        np.rint(made * 255).transpose(1, 2, 0), padded[99 + top : 99 + bottom, 99 + left : 99 + right]
    )


def test_the_geometry_of_a_padding_processor_is_read():
    prepare = build_processor("ViT", size=square(50), do_pad=True, pad_size={"height": 60, "width": 75})
    geometry = read_geometry(prepare, (100, 200))
    assert (geometry.size, geometry.box) == ((60, 75), (0.0, 0.0, 120.0, 300.0))


@pytest.mark.parametrize("name", ["ViT", "CLIP", "EfficientNet", "MobileViT", "ConvNext"])
def test_mean_and_std_follow_from_black_and_white(name):
    prepare = ProcessorTransform(build_processor(name, **PROCESSORS[name]))
    for level in (0, 255):
        made = prepare(Image.new("RGB", (70, 70), (level,) * 3))[:, 30, 30]
        torch.testing.assert_close(made, (level / 255 - torch.tensor(prepare.mean)) / torch.tensor(prepare.std))


def assert_equals_processor(name, photo):
    prepare = build_processor(name)
    theirs = prepare(photo, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(ProcessorTransform(prepare)(photo), theirs, rtol=0, atol=1e-6)


PROCESSOR_NAMES = ["ViT", "CLIP", "Siglip", "ConvNext", "EfficientNet"]


@pytest.mark.parametrize("name", PROCESSOR_NAMES)
def test_real_photos_are_processed_as_the_library_does(shared, name):
    for path in sorted((shared / "images").glob("n*.jpg"))[:3]:
        assert_equals_processor(name, Image.open(path).convert("RGB"))


@pytest.mark.parametrize("name", PROCESSOR_NAMES)
@pytest.mark.parametrize("size", [(500, 375), (281, 500)], ids=["wide", "tall"])
def test_scenes_are_processed_as_the_library_does(size, name):
    assert_equals_processor(name, Image.fromarray(unseen(0, size=500).image).crop((0, 0, *size)))


def test_a_bare_model_has_the_transform_of_its_folder(tmp_path):
    save_model(tmp_path, vit(), build_processor("ViT", size=square()))
    bare = transformers.ViTForImageClassification.from_pretrained(tmp_path)
    result, loaded = camtool.explain(bare, PHOTO, "dog"), camtool.explain(camtool.load(f"hf:{tmp_path}"), PHOTO, "dog")
    np.testing.assert_allclose(result.raw, loaded.raw, rtol=1e-5, atol=1e-9)
    assert result.warnings == loaded.warnings
    assert resolve_labels(bare, None, 3) == ["cat", "dog", "cow"]
    assert resolve_labels(bare, None, 4) is None
    assert find_input_size(bare) == (SIZE, SIZE)


def test_a_model_made_from_a_configuration_has_no_transform():
    assert find_transform(vit()) is None
    assert find_transform(nn.Linear(2, 2)) is None


@pytest.mark.parametrize(("size", "expected"), [(96, (96, 96)), ([96, 128], (96, 128)), (square(), (64, 64))])
def test_the_input_size_is_read_from_any_form_of_configuration(size, expected):
    model = nn.Linear(2, 2)
    model.config = SimpleNamespace(image_size=size)
    assert find_input_size(model) == expected
    assert find_input_size(nn.Linear(2, 2)) == (224, 224)


# ------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize("name", ["CLIP", "Siglip"])
def test_the_score_of_a_text_equals_the_librarys_similarity(tmp_path, name):
    model, prepare = {"CLIP": clip, "Siglip": siglip}[name](), build_processor(name, **PROCESSORS[name])
    words = build_tokenizer()
    loaded = camtool.load(save_model(tmp_path, model, prepare, words))
    texts = [TEXT, "cat"]
    results = camtool.explain(loaded, PHOTO, texts)
    tokens = words(texts, return_tensors="pt", padding="max_length" if name == "Siglip" else True)
    if name == "Siglip":
        # SigLIP was trained without an attention mask.
        tokens = {"input_ids": tokens["input_ids"]}
    with torch.no_grad():
        output = model(**tokens, pixel_values=loaded.transform(PHOTO)[None])
    expected = output.image_embeds @ output.text_embeds.T
    assert [result.score for result in results] == pytest.approx(expected[0].tolist(), abs=1e-6)
    assert [(result.label, result.index, result.probability) for result in results] == [(t, None, None) for t in texts]
    assert all(result.layer.startswith("vision_model.") for result in results)
    assert abs(results[0].raw - results[1].raw).max() > 0


def test_the_map_of_a_text_equals_that_of_the_similarity(tmp_path):
    whole = clip()
    loaded = camtool.load(save_model(tmp_path, whole, build_processor("CLIP", **PROCESSORS["CLIP"]), build_tokenizer()))
    with torch.no_grad():
        embedding = whole.get_text_features(**build_tokenizer()([TEXT], return_tensors="pt")).pooler_output[0]

    class ImageModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.whole = whole

        def forward(self, pixels):
            return self.whole.visual_projection(self.whole.vision_model(pixels).pooler_output)

    batch = loaded.transform(PHOTO)[None]
    expected_map = camtool.explain(ImageModel(), batch, Similarity(embedding))[0]
    result = camtool.explain(loaded, batch, TEXT)[0]
    np.testing.assert_allclose(result.raw, expected_map.raw, rtol=1e-4, atol=1e-8)
    assert f"whole.{result.layer}" == expected_map.layer


def test_several_images_take_one_or_several_texts(tmp_path):
    loaded = load_clip(tmp_path)
    upright, flipped = PHOTO, PHOTO.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    one_each = camtool.explain(loaded, [upright, flipped], [TEXT, "cat"])
    several = camtool.explain(loaded, [upright, flipped], [[TEXT, "cat"], "cat"])
    assert [result.label for result in one_each] == [TEXT, "cat"]
    assert [result.label for result in several[0]] == [TEXT, "cat"]
    np.testing.assert_allclose(several[1].raw, one_each[1].raw, rtol=1e-4, atol=1e-8)
    assert one_each[0].score == pytest.approx(several[0][0].score)


@pytest.mark.parametrize("target", [None, 3, camtool.targets.Top(2)])
def test_a_class_index_for_a_model_without_classes_is_refused(tmp_path, target):
    loaded = load_clip(tmp_path)
    with pytest.raises(TargetError, match=r"has no classes; pass a text, e\."):
        camtool.explain(loaded, PHOTO, target)


def test_labels_of_a_model_without_classes_are_refused():
    with pytest.raises(TargetError, match="give the texts as target_class"):
        camtool.Explainer(clip(), labels=["a cat", "a dog"])


def test_a_bare_model_reads_the_tokenizer_of_its_folder(tmp_path):
    save_model(tmp_path, clip(), build_processor("CLIP", **PROCESSORS["CLIP"]), build_tokenizer())
    bare = transformers.CLIPModel.from_pretrained(tmp_path)
    result, loaded = camtool.explain(bare, PHOTO, TEXT), camtool.explain(camtool.load(f"hf:{tmp_path}"), PHOTO, TEXT)
    np.testing.assert_allclose(result.raw, loaded.raw, rtol=1e-5, atol=1e-9)
    assert (result.label, result.layer, result.warnings) == (TEXT, loaded.layer, loaded.warnings)
    assert camtool.explain(bare, PHOTO, TEXT, layer=result.layer).layer == result.layer
    module = bare.get_submodule(result.layer)
    assert camtool.explain(bare, PHOTO, TEXT, layer=module).layer == result.layer


def test_a_model_without_a_tokenizer_takes_embeddings_or_a_text_encoder():
    whole = clip()
    batch = torch.rand(1, 3, SIZE, SIZE)
    with pytest.raises(ModelError, match=r"tokenizer of CLIPModel could not be read .*text=.*Similarity\(embedding\)"):
        camtool.explain(whole, batch, TEXT)
    embedding = torch.rand(24)
    (by_target,) = camtool.explain(whole, batch, Similarity(embedding, "a thing"))
    (by_text,) = camtool.explain(Loaded(whole, text=lambda texts: embedding.expand(len(texts), -1)), batch, TEXT)
    np.testing.assert_array_equal(by_target.raw, by_text.raw)
    assert (by_target.label, by_text.label) == ("a thing", TEXT)


def test_an_explainer_keeps_the_whole_model_alive():
    explainer = camtool.Explainer(Loaded(clip(), text=lambda texts: torch.ones(len(texts), 24)))
    gc.collect()
    assert explainer(torch.rand(1, 3, SIZE, SIZE), TEXT)[0].label == TEXT


def test_an_embedding_with_another_length_is_refused():
    with pytest.raises(TargetError, match=r"embedding has shape \(5,\), but the model's embeddings have shape \(24,\)"):
        camtool.explain(clip(), torch.rand(1, 3, SIZE, SIZE), Similarity(torch.rand(5)))


def test_with_texts_as_inputs_the_whole_model_runs():
    whole, tokens = clip(), build_tokenizer()([TEXT, "cat"], return_tensors="pt", padding=True)
    tower = to_loaded(whole).model
    images = torch.rand(1, 3, SIZE, SIZE)
    with torch.no_grad():
        theirs = whole(pixel_values=images, **tokens).logits_per_image
        torch.testing.assert_close(tower(images, **tokens).logits_per_image, theirs)


def test_a_model_with_two_towers_is_unchanged_and_not_kept_alive():
    whole = clip().train()
    before = {name: parameter.clone() for name, parameter in whole.state_dict().items()}
    camtool.explain(whole, torch.rand(1, 3, SIZE, SIZE), Similarity(torch.rand(24)))
    assert all(module.training for module in whole.modules())
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())
    assert all(parameter.grad is None for parameter in whole.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in whole.modules())
    reference = weakref.ref(whole)
    del whole
    gc.collect()
    assert reference() is None


def test_the_layer_of_a_bare_model_is_searched_once():
    whole = clip()
    tower = to_loaded(whole).model
    assert to_loaded(whole).model is tower
    whole.visual_projection = nn.Linear(32, 7)
    other = to_loaded(whole).model
    assert other is not tower
    assert other(torch.rand(1, 3, SIZE, SIZE)).shape == (1, 7)


def test_both_towers_of_a_loaded_model_move_together(tmp_path):
    loaded = camtool.load(save_model(tmp_path, clip()))
    assert isinstance(loaded.model, ImageTower)
    loaded.model.to("meta")
    assert {p.device.type for p in loaded.model.whole.parameters()} == {"meta"}
    assert build_untrained(f"hf:{tmp_path}")(torch.rand(1, 3, SIZE, SIZE)).shape == (1, 24)


def test_an_output_without_embeddings_raises_an_error():
    class WrongEmbeddings(nn.Module):
        def get_image_features(self, pixel_values):
            return torch.rand(1, 4, 5)

        def get_text_features(self):
            return None

    whole = WrongEmbeddings()
    with pytest.raises(ModelError, match=r"embeddings came as \(1, 4, 5\), not as a tensor \(N, D\)"):
        to_loaded(whole).model(torch.rand(1, 3, 8, 8))


# ------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "a/b/c", "", "org/", "name with spaces"])
def test_an_invalid_name_raises_an_error(name):
    with pytest.raises(ModelError, match="there is no such folder, and a name on the hub is 'org/name'"):
        camtool.load(f"hf:{name}")


def test_the_error_without_internet_says_what_to_do(monkeypatch, caplog):
    def from_pretrained(*args, **kwargs):
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 8s")
        raise OSError("We couldn't connect.\nCheck your connection.")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", from_pretrained)
    with pytest.raises(ModelError, match=r"be loaded: We couldn't connect\. Without internet, .*'hf:FOLDER'") as error:
        camtool.load("hf:google/vit-base-patch16-224")
    assert error.value.__suppress_context__
    assert caplog.text == ""


def test_the_error_without_transformers_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"pip install 'camtool\[hf\]'"):
        camtool.load("hf:org/name")


def test_incomplete_weights_are_refused(tmp_path):
    name = save_model(tmp_path, vit())
    state = load_file(tmp_path / "model.safetensors")
    save_file({key: value for key, value in state.items() if "classifier" not in key}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"has no weights for classifier.bias, classifier.weight .* would be random"):
        camtool.load(name)


def test_an_untrained_pooler_is_removed(tmp_path):
    name = save_model(tmp_path, transformers.ViTModel(transformers.ViTConfig(**VISION)))
    state = load_file(tmp_path / "model.safetensors")
    save_file({key: value for key, value in state.items() if "pooler" not in key}, tmp_path / "model.safetensors")
    assert camtool.load(name).model(torch.rand(1, 3, SIZE, SIZE)).pooler_output is None


@pytest.mark.parametrize(
    ("architectures", "match"),
    [
        (["MyOwnModel"], r"of no class of transformers [\d.]+ \(it is a MyOwnModel\)"),
        (None, "its configuration names none"),
        (["BertModel"], "is a BertModel, which takes 'input_ids', not images"),
    ],
)
def test_a_model_that_cannot_be_used_raises_an_error(tmp_path, architectures, match):
    name = save_model(tmp_path, vit())
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": architectures}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=match):
        camtool.load(name)


@pytest.mark.parametrize("damage", ["config", "weights", "no weights"])
def test_a_damaged_folder_raises_an_error(tmp_path, damage):
    name = save_model(tmp_path, vit())
    if damage == "no weights":
        (tmp_path / "model.safetensors").unlink()
    else:
        (tmp_path / {"config": "config.json", "weights": "model.safetensors"}[damage]).write_bytes(b"<html>")
    with pytest.raises(ModelError, match="could not be loaded") as error:
        camtool.load(name)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------- the command line


def test_the_command_line_explains_photos_with_a_folder_and_a_text(tmp_path, monkeypatch):
    monkeypatch.setattr("camtool.cli.terminal.out.width", 200)
    save_model(tmp_path / "clip", clip(), build_processor("CLIP", **PROCESSORS["CLIP"]), build_tokenizer())
    PHOTO.save(tmp_path / "photo.png")
    arguments = ["--model", f"hf:{tmp_path / 'clip'}", "--target", TEXT, "--out", tmp_path / "out"]
    said = CliRunner().invoke(app, ["run", str(tmp_path / "photo.png"), *map(str, arguments)])
    assert said.exit_code == 0, said.output
    (line,) = (tmp_path / "out" / "explanations.jsonl").read_text().splitlines()
    assert json.loads(line)["label"] == TEXT
    listed = CliRunner().invoke(app, ["layers", f"hf:{tmp_path / 'clip'}"])
    assert (listed.exit_code, "4 x 4" in listed.output, "chosen" in listed.output) == (0, True, True)
