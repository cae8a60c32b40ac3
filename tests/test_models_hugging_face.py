"""Models of Hugging Face: folders, image processors, labels, texts, and the faults that people meet.

All models are tiny, made here with random weights, and read from folders.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from photos import unseen
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from typer.testing import CliRunner

import camtool
from camtool import Loaded, ModelError, TargetError
from camtool.cli import app
from camtool.geometry import geometry_of, probe
from camtool.models import ImageTower, architecture, as_loaded, own_transform, usual_labels, usual_size
from camtool.targets import Similarity

SIZE = 64
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 140, 3), np.uint8))
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SIGHT = {**TINY, "image_size": SIZE, "patch_size": 16}
WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "a", "photo", "of", "dog", "cat"]
SPEECH = {**TINY, "vocab_size": len(WORDS), "max_position_embeddings": 16}
SPEECH |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = "a photo of a dog"


def vit(**options) -> nn.Module:
    config = transformers.ViTConfig(**SIGHT, id2label={0: "cat", 1: "dog", 2: "cow"}, **options)
    return transformers.ViTForImageClassification(config).eval()


def clip() -> nn.Module:
    return transformers.CLIPModel(
        transformers.CLIPConfig(text_config=SPEECH, vision_config=SIGHT, projection_dim=24)
    ).eval()


def siglip() -> nn.Module:
    return transformers.SiglipModel(transformers.SiglipConfig(text_config=SPEECH, vision_config=SIGHT)).eval()


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    special = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "unk")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=16, **special)


def processor_of(kind: str, **options):
    return getattr(transformers, f"{kind}ImageProcessor")(**options)


def saved(folder: Path, *parts) -> str:
    for part in parts:
        part.save_pretrained(folder)
    return f"hf:{folder}"


def squares(side: int = SIZE) -> dict[str, int]:
    return {"height": side, "width": side}


# ------------------------------------------------------------------------------------------------------- models


def test_a_classifier_of_a_folder_comes_with_its_preparation_and_its_labels(tmp_path):
    original, prepare = vit(), processor_of("ViT", size=squares())
    loaded = camtool.load(saved(tmp_path, original, prepare))
    prepared = loaded.transform(PHOTO)
    torch.testing.assert_close(prepared, prepare(PHOTO, return_tensors="pt")["pixel_values"][0], rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(prepared[None]).logits, original(prepared[None]).logits)
    assert loaded.labels == ["cat", "dog", "cow"]
    assert (loaded.text, loaded.name) == (None, f"hf:{tmp_path}")
    result = camtool.explain(loaded, PHOTO, "dog")
    assert (result.label, result.index, result.heatmap.shape) == ("dog", 1, (90, 140))
    assert result.raw.std() > 0


def test_a_file_of_weights_is_taken_in_the_place_of_the_folders(tmp_path):
    other = vit()
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    loaded = camtool.load(saved(tmp_path, vit()), tmp_path / "other.safetensors", labels=["x", "y", "z"])
    assert torch.equal(loaded.model.classifier.weight, other.classifier.weight)
    assert loaded.labels == ["x", "y", "z"]


def test_weights_in_half_precision_become_single(tmp_path):
    assert {p.dtype for p in camtool.load(saved(tmp_path, vit().half())).model.parameters()} == {torch.float32}


def test_a_model_without_a_processor_is_told_to_be_prepared_as_usual(tmp_path):
    loaded = camtool.load(saved(tmp_path, vit()))
    assert loaded.transform is None
    (warning,) = (each for each in camtool.explain(loaded, PHOTO, 0).warnings if "transform" in each)
    assert "torchvision's usual preparation" in warning


BUILDERS = {
    "segmenter": lambda: transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(
            depths=[1] * 4, hidden_sizes=[8, 16, 16, 32], decoder_hidden_size=16, num_attention_heads=[1, 1, 2, 2]
        )
    ),
    "detector": lambda: transformers.YolosForObjectDetection(
        transformers.YolosConfig(**{**SIGHT, "image_size": [SIZE, SIZE]}, num_detection_tokens=4)
    ),
    "backbone": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**SIGHT)),
    "tower": lambda: transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**SIGHT)),
}


@pytest.mark.parametrize("kind", BUILDERS)
def test_the_configuration_decides_what_kind_of_model_it_is(tmp_path, kind):
    original = BUILDERS[kind]().eval()
    loaded = camtool.load(saved(tmp_path, original))
    assert type(loaded.model) is type(original)
    picture = torch.rand(1, 3, SIZE, SIZE)
    with torch.no_grad():
        theirs, ours = original(picture).to_tuple(), loaded.model(picture).to_tuple()
    torch.testing.assert_close(ours, theirs)
    assert loaded.labels is None  # LABEL_0, LABEL_1 are no names
    assert type(architecture(f"hf:{tmp_path}")) is type(original)


def test_a_model_of_timm_wrapped_by_transformers_has_timms_preparation(tmp_path):
    wrapped = transformers.TimmWrapperForImageClassification(
        transformers.TimmWrapperConfig(
            architecture="test_resnet",
            num_labels=4,
            pretrained_cfg={"input_size": (3, 96, 96), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 0.9},
        )
    ).eval()
    loaded = camtool.load(saved(tmp_path, wrapped))
    assert loaded.transform(PHOTO).shape == (3, 96, 96)
    assert geometry_of(loaded.transform, PHOTO).size == (96, 96)


# ------------------------------------------------------------------------------------------------- preparation

PROCESSORS = {
    "ViT": {"size": squares()},
    "CLIP": {"size": {"shortest_edge": 70}, "crop_size": squares()},
    "CLIP wide": {"size": {"shortest_edge": 71}, "crop_size": {"height": 60, "width": 121}},
    "CLIP larger than the photo": {"size": {"shortest_edge": 50}, "crop_size": squares(101)},
    "CLIP not resized": {"do_resize": False, "crop_size": squares(81)},
    "Siglip": {"size": squares()},
    "DeiT": {"size": squares(73), "crop_size": squares()},
    "Bit": {"size": {"shortest_edge": 72}, "crop_size": squares(65)},
    "ConvNext": {"size": {"shortest_edge": 128}},
    "ConvNext large": {"size": {"shortest_edge": 384}},
    "PoolFormer": {"size": {"shortest_edge": 100}, "crop_size": squares(100), "crop_pct": 0.9},
    "Beit": {"size": squares(70), "crop_size": squares(), "do_center_crop": True},
    "Segformer": {"size": squares(96)},
    "MobileViT": {"size": {"shortest_edge": 80}, "crop_size": squares()},
    "EfficientNet": {"size": squares(80)},
    "Levit": {"size": {"shortest_edge": 112}, "crop_size": squares(112)},
    "DINOv3ViT": {"size": squares()},
    "Detr": {"size": {"shortest_edge": 80, "longest_edge": 133}},
    "Yolos": {"size": {"shortest_edge": 80, "longest_edge": 100}},
    "RTDetr": {"size": squares(160)},
    "Owlv2": {"size": squares(160)},
    "Pvt": {"size": squares(96)},
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("size", [(300, 413), (413, 300), (211, 211)], ids=str)
def test_the_geometry_of_an_image_processor_is_what_a_probe_finds(name, size):
    prepare = processor_of(name.partition(" ")[0], **PROCESSORS[name])
    read = geometry_of(camtool.models.hugging_face.Preparation(prepare), size)
    probed = probe(lambda photo: prepare(photo, return_tensors="pt")["pixel_values"][0], size)
    assert read.size == probed.size
    np.testing.assert_allclose(read.box, probed.box, rtol=0, atol=0.75)
    assert geometry_of(prepare, size) == read  # a person may give the processor itself


SCALED = {"CLIP wide": (71, 97), "ViT": (64, 64), "Detr": (80, 110), "ConvNext": (146, 200), "Levit": (128, 176)}
SCALED |= {"PoolFormer": (111, 152), "ConvNext large": (384, 384)}
"""To what size (h, w) some processors scale a photo of 300 x 413."""


@pytest.mark.parametrize("name", SCALED)
def test_a_geometry_that_is_read_has_no_error_of_a_probe(name):
    """Where a scale and a crop are known in whole pixels, so are the box's edges."""
    prepare, scaled = processor_of(name.partition(" ")[0], **PROCESSORS[name]), SCALED[name]
    geometry = geometry_of(prepare, (300, 413))
    height, width = geometry.size
    top, left = int((scaled[0] - height) / 2), int((scaled[1] - width) / 2)
    down, across = 300 / scaled[0], 413 / scaled[1]
    expected = (top * down, left * across, (top + height) * down, (left + width) * across)
    np.testing.assert_allclose(geometry.box, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@pytest.mark.parametrize("cut", [(41, 57), (96, 57), (41, 150), (97, 151)], ids=str)
def test_the_middle_is_cut_out_where_the_processor_cuts_it(backend, cut):
    name = "CLIPImageProcessorPil" if backend == "pil" else "CLIPImageProcessor"
    crop = {"height": cut[0], "width": cut[1]}
    prepare = getattr(transformers, name)(do_resize=False, do_normalize=False, crop_size=crop)
    top, left, bottom, right = map(int, geometry_of(prepare, PHOTO).box)
    padded = np.pad(np.asarray(PHOTO), ((99, 99), (99, 99), (0, 0)))
    made = np.asarray(prepare(PHOTO, return_tensors="np")["pixel_values"][0])
    np.testing.assert_array_equal(
        np.rint(made * 255).transpose(1, 2, 0), padded[99 + top : 99 + bottom, 99 + left : 99 + right]
    )


def test_a_processor_that_pads_is_read():
    prepare = processor_of("ViT", size=squares(50), do_pad=True, pad_size={"height": 60, "width": 75})
    geometry = geometry_of(prepare, (100, 200))
    assert (geometry.size, geometry.box) == ((60, 75), (0.0, 0.0, 120.0, 300.0))


@pytest.mark.parametrize("name", ["ViT", "CLIP", "EfficientNet", "MobileViT", "ConvNext"])
def test_what_black_and_white_become_is_known(name):
    prepare = camtool.models.hugging_face.Preparation(processor_of(name, **PROCESSORS[name]))
    for level in (0, 255):
        made = prepare(Image.new("RGB", (70, 70), (level,) * 3))[:, 30, 30]
        torch.testing.assert_close(made, (level / 255 - torch.tensor(prepare.mean)) / torch.tensor(prepare.std))


def assert_prepared_as_the_library_does(name, photo):
    prepare = processor_of(name)
    theirs = prepare(photo, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(camtool.models.hugging_face.Preparation(prepare)(photo), theirs, rtol=0, atol=1e-6)


PREPARING = ["ViT", "CLIP", "Siglip", "ConvNext", "EfficientNet"]


@pytest.mark.parametrize("name", PREPARING)
def test_real_photos_are_prepared_as_the_library_does(shared, name):
    for path in sorted((shared / "images").glob("n*.jpg"))[:3]:
        assert_prepared_as_the_library_does(name, Image.open(path).convert("RGB"))


@pytest.mark.parametrize("name", PREPARING)
@pytest.mark.parametrize("size", [(500, 375), (281, 500)], ids=["wide", "tall"])
def test_scenes_are_prepared_as_the_library_does(size, name):
    assert_prepared_as_the_library_does(name, Image.fromarray(unseen(0, size=500).image).crop((0, 0, *size)))


def test_a_bare_model_brings_the_preparation_of_its_folder(tmp_path):
    saved(tmp_path, vit(), processor_of("ViT", size=squares()))
    bare = transformers.ViTForImageClassification.from_pretrained(tmp_path)
    result, loaded = camtool.explain(bare, PHOTO, "dog"), camtool.explain(camtool.load(f"hf:{tmp_path}"), PHOTO, "dog")
    np.testing.assert_allclose(result.raw, loaded.raw, rtol=1e-5, atol=1e-9)
    assert result.warnings == loaded.warnings
    assert usual_labels(bare, 3) == ["cat", "dog", "cow"]
    assert usual_labels(bare, 4) is None
    assert usual_size(bare) == (SIZE, SIZE)


def test_a_model_made_from_a_configuration_has_no_preparation_of_its_own():
    assert own_transform(vit()) is None
    assert own_transform(nn.Linear(2, 2)) is None


@pytest.mark.parametrize(("size", "expected"), [(96, (96, 96)), ([96, 128], (96, 128)), (squares(), (64, 64))])
def test_a_configuration_tells_the_size_in_any_form(size, expected):
    model = nn.Linear(2, 2)
    model.config = SimpleNamespace(image_size=size)
    assert usual_size(model) == expected
    assert usual_size(nn.Linear(2, 2)) == (224, 224)


# ------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize("name", ["CLIP", "Siglip"])
def test_a_text_is_explained_by_its_similarity_which_is_the_librarys_own(tmp_path, name):
    model, prepare = {"CLIP": clip, "Siglip": siglip}[name](), processor_of(name, **PROCESSORS[name])
    words = tokenizer()
    loaded = camtool.load(saved(tmp_path, model, prepare, words))
    texts = [TEXT, "cat"]
    results = camtool.explain(loaded, PHOTO, texts)
    tokens = words(texts, return_tensors="pt", padding="max_length" if name == "Siglip" else True)
    if name == "Siglip":  # it was trained without a mask
        tokens = {"input_ids": tokens["input_ids"]}
    with torch.no_grad():
        output = model(**tokens, pixel_values=loaded.transform(PHOTO)[None])
    expected = output.image_embeds @ output.text_embeds.T
    assert [result.score for result in results] == pytest.approx(expected[0].tolist(), abs=1e-6)
    assert [(result.label, result.index, result.probability) for result in results] == [(t, None, None) for t in texts]
    assert all(result.layer.startswith("vision_model.") for result in results)
    assert abs(results[0].raw - results[1].raw).max() > 0


def test_the_map_of_a_text_is_that_of_the_similarity_by_hand(tmp_path):
    whole = clip()
    loaded = camtool.load(saved(tmp_path, whole, processor_of("CLIP", **PROCESSORS["CLIP"]), tokenizer()))
    with torch.no_grad():
        embedding = whole.get_text_features(**tokenizer()([TEXT], return_tensors="pt")).pooler_output[0]

    class Pictures(nn.Module):
        def __init__(self):
            super().__init__()
            self.whole = whole

        def forward(self, pixels):
            return self.whole.visual_projection(self.whole.vision_model(pixels).pooler_output)

    batch = loaded.transform(PHOTO)[None]
    by_hand = camtool.explain(Pictures(), batch, Similarity(embedding))[0]
    result = camtool.explain(loaded, batch, TEXT)[0]
    np.testing.assert_allclose(result.raw, by_hand.raw, rtol=1e-4, atol=1e-8)
    assert f"whole.{result.layer}" == by_hand.layer


def test_several_pictures_may_be_asked_for_a_text_each_or_for_several(tmp_path):
    loaded = camtool.load(saved(tmp_path, clip(), processor_of("CLIP", **PROCESSORS["CLIP"]), tokenizer()))
    upright, flipped = PHOTO, PHOTO.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    one_each = camtool.explain(loaded, [upright, flipped], [TEXT, "cat"])
    several = camtool.explain(loaded, [upright, flipped], [[TEXT, "cat"], "cat"])
    assert [result.label for result in one_each] == [TEXT, "cat"]
    assert [result.label for result in several[0]] == [TEXT, "cat"]
    np.testing.assert_allclose(several[1].raw, one_each[1].raw, rtol=1e-4, atol=1e-8)
    assert one_each[0].score == pytest.approx(several[0][0].score)


@pytest.mark.parametrize("want", [None, 3, camtool.targets.Top(2)])
def test_a_class_of_a_model_that_has_none_is_refused(tmp_path, want):
    loaded = camtool.load(saved(tmp_path, clip(), processor_of("CLIP", **PROCESSORS["CLIP"]), tokenizer()))
    with pytest.raises(TargetError, match=r"has no classes; say in words what to look for"):
        camtool.explain(loaded, PHOTO, want)


def test_labels_of_a_model_without_classes_are_refused():
    with pytest.raises(TargetError, match="give these as target_class"):
        camtool.Explainer(clip(), labels=["a cat", "a dog"])


def test_a_bare_model_is_recognised_and_reads_the_tokenizer_of_its_folder(tmp_path):
    saved(tmp_path, clip(), processor_of("CLIP", **PROCESSORS["CLIP"]), tokenizer())
    bare = transformers.CLIPModel.from_pretrained(tmp_path)
    result, loaded = camtool.explain(bare, PHOTO, TEXT), camtool.explain(camtool.load(f"hf:{tmp_path}"), PHOTO, TEXT)
    np.testing.assert_allclose(result.raw, loaded.raw, rtol=1e-5, atol=1e-9)
    assert (result.label, result.layer, result.warnings) == (TEXT, loaded.layer, loaded.warnings)
    assert camtool.explain(bare, PHOTO, TEXT, layer=result.layer).layer == result.layer
    module = bare.get_submodule(result.layer)
    assert camtool.explain(bare, PHOTO, TEXT, layer=module).layer == result.layer


def test_a_model_without_a_tokenizer_takes_embeddings_or_a_function_that_makes_them():
    whole = clip()
    batch = torch.rand(1, 3, SIZE, SIZE)
    with pytest.raises(ModelError, match=r"tokenizer of CLIPModel could not be read .*text=.*Similarity\(embedding\)"):
        camtool.explain(whole, batch, TEXT)
    embedding = torch.rand(24)
    (by_target,) = camtool.explain(whole, batch, Similarity(embedding, "a thing"))
    (by_text,) = camtool.explain(Loaded(whole, text=lambda texts: embedding.expand(len(texts), -1)), batch, TEXT)
    np.testing.assert_array_equal(by_target.raw, by_text.raw)
    assert (by_target.label, by_text.label) == ("a thing", TEXT)


def test_an_explainer_keeps_a_model_of_which_it_uses_one_tower():
    explainer = camtool.Explainer(Loaded(clip(), text=lambda texts: torch.ones(len(texts), 24)))
    gc.collect()
    assert explainer(torch.rand(1, 3, SIZE, SIZE), TEXT)[0].label == TEXT


def test_an_embedding_of_another_length_is_refused():
    with pytest.raises(TargetError, match=r"embedding has shape \(5,\), but the model's embeddings are \(24,\)"):
        camtool.explain(clip(), torch.rand(1, 3, SIZE, SIZE), Similarity(torch.rand(5)))


def test_with_texts_beside_the_picture_the_whole_model_answers():
    whole, tokens = clip(), tokenizer()([TEXT, "cat"], return_tensors="pt", padding=True)
    tower = as_loaded(whole).model
    picture = torch.rand(1, 3, SIZE, SIZE)
    with torch.no_grad():
        theirs = whole(pixel_values=picture, **tokens).logits_per_image
        torch.testing.assert_close(tower(picture, **tokens).logits_per_image, theirs)


def test_a_model_of_two_towers_is_left_as_it_was_and_not_kept_alive():
    whole = clip().train()
    before = {name: parameter.clone() for name, parameter in whole.state_dict().items()}
    camtool.explain(whole, torch.rand(1, 3, SIZE, SIZE), Similarity(torch.rand(24)))
    assert all(module.training for module in whole.modules())
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())
    assert all(parameter.grad is None for parameter in whole.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in whole.modules())
    remembered = weakref.ref(whole)
    del whole
    gc.collect()
    assert remembered() is None


def test_the_layers_of_a_bare_model_are_looked_for_once():
    whole = clip()
    tower = as_loaded(whole).model
    assert as_loaded(whole).model is tower
    whole.visual_projection = nn.Linear(32, 7)
    other = as_loaded(whole).model
    assert other is not tower
    assert other(torch.rand(1, 3, SIZE, SIZE)).shape == (1, 7)


def test_both_towers_of_a_loaded_model_go_to_a_device_together(tmp_path):
    loaded = camtool.load(saved(tmp_path, clip()))
    assert isinstance(loaded.model, ImageTower)
    loaded.model.to("meta")
    assert {p.device.type for p in loaded.model.whole.parameters()} == {"meta"}
    assert architecture(f"hf:{tmp_path}")(torch.rand(1, 3, SIZE, SIZE)).shape == (1, 24)


def test_embeddings_that_are_none_are_named():
    class Odd(nn.Module):
        def get_image_features(self, pixel_values):
            return torch.rand(1, 4, 5)

        def get_text_features(self):
            return None

    whole = Odd()
    with pytest.raises(ModelError, match=r"embeddings came as \(1, 4, 5\), not as a tensor \(N, D\)"):
        as_loaded(whole).model(torch.rand(1, 3, 8, 8))


# ------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "a/b/c", "", "org/", "name with spaces"])
def test_what_is_no_folder_and_no_name_is_a_sentence(name):
    with pytest.raises(ModelError, match="there is no such folder, and a name on the hub is 'org/name'"):
        camtool.load(f"hf:{name}")


def test_without_internet_the_sentence_says_what_to_do(monkeypatch):
    def from_pretrained(*args, **kwargs):
        raise OSError("We couldn't connect.\nCheck your connection.")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", from_pretrained)
    with pytest.raises(ModelError, match=r"could not be had: We couldn't connect\. Without internet, .*'hf:FOLDER'"):
        camtool.load("hf:google/vit-base-patch16-224")


def test_without_transformers_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"pip install 'camtool\[hf\]'"):
        camtool.load("hf:org/name")


def test_weights_that_lack_a_part_are_refused_not_filled_with_noise(tmp_path):
    name = saved(tmp_path, vit())
    state = load_file(tmp_path / "model.safetensors")
    save_file({key: value for key, value in state.items() if "classifier" not in key}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"has no weights for classifier.bias, classifier.weight .* would be random"):
        camtool.load(name)


def test_a_pooler_that_nobody_trained_is_left_out(tmp_path):
    name = saved(tmp_path, transformers.ViTModel(transformers.ViTConfig(**SIGHT)))
    state = load_file(tmp_path / "model.safetensors")
    save_file({key: value for key, value in state.items() if "pooler" not in key}, tmp_path / "model.safetensors")
    assert camtool.load(name).model(torch.rand(1, 3, SIZE, SIZE)).pooler_output is None


@pytest.mark.parametrize(
    ("architectures", "match"),
    [
        (["MyOwnModel"], r"of no class of transformers [\d.]+ \(it is a MyOwnModel\)"),
        (None, "it does not say"),
        (["BertModel"], "is a BertModel, which is called with 'input_ids', not with pictures"),
    ],
)
def test_a_model_of_no_use_is_named(tmp_path, architectures, match):
    name = saved(tmp_path, vit())
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": architectures}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=match):
        camtool.load(name)


@pytest.mark.parametrize("damage", ["config", "weights", "no weights"])
def test_a_damaged_folder_is_a_sentence(tmp_path, damage):
    name = saved(tmp_path, vit())
    if damage == "no weights":
        (tmp_path / "model.safetensors").unlink()
    else:
        (tmp_path / {"config": "config.json", "weights": "model.safetensors"}[damage]).write_bytes(b"<html>")
    with pytest.raises(ModelError, match="could not be had") as error:
        camtool.load(name)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------- the command line


def test_the_command_line_explains_photos_by_a_folder_and_by_a_text(tmp_path, monkeypatch):
    monkeypatch.setattr("camtool.cli._out.width", 200)
    saved(tmp_path / "clip", clip(), processor_of("CLIP", **PROCESSORS["CLIP"]), tokenizer())
    PHOTO.save(tmp_path / "photo.png")
    arguments = ["--model", f"hf:{tmp_path / 'clip'}", "--target", TEXT, "--out", tmp_path / "out"]
    said = CliRunner().invoke(app, ["run", str(tmp_path / "photo.png"), *map(str, arguments)])
    assert said.exit_code == 0, said.output
    (line,) = (tmp_path / "out" / "explanations.jsonl").read_text().splitlines()
    assert json.loads(line)["label"] == TEXT
    listed = CliRunner().invoke(app, ["layers", f"hf:{tmp_path / 'clip'}"])
    assert (listed.exit_code, "4 x 4" in listed.output, "chosen" in listed.output) == (0, True, True)
