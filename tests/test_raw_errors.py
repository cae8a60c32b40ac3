"""Errors for wrong arguments: an exception of the package with argument, value and remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool import Inputs
from camtool.errors import CamtoolError, ImageError, TargetError
from camtool.targets import Region, Similarity

IMAGE = torch.randn(3, 16, 16)
PHOTO = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)


class Net(nn.Module):
    """Five classes from photos."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.body, self.relu, self.head = nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Linear(4, 5)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        scores = self.head(self.relu(self.body(x)).mean((2, 3)))
        return scores if scale is None else scores * scale.reshape(-1, 1)


# --------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize("method", ["gradcam", "guided-backprop"])
@pytest.mark.parametrize("image", [IMAGE, IMAGE[None]], ids=["one", "batch"])
def test_an_input_that_is_not_an_image_raises_an_error(method: str, image: Tensor) -> None:
    with pytest.raises(ImageError, match=r"img: 1 has shape \(1,\); an image is \(C, H, W\).*image="):
        camtool.explain(Net(), Inputs(image, torch.ones(1), image=1), method=method)
    assert camtool.explain(Net(), Inputs(image, torch.ones(1), image=0), method=method)


@pytest.mark.parametrize(
    ("image", "advice"),
    [
        (torch.randn(2, 16, 16, 3), "img.permute(0, 3, 1, 2)"),
        (torch.randn(16, 16, 3), "img.permute(2, 0, 1)"),
        (torch.from_numpy(PHOTO), "img.permute(2, 0, 1)"),
    ],
    ids=["batch", "one", "uint8"],
)
def test_the_error_for_channels_last_shows_how_to_permute(image: Tensor, advice: str) -> None:
    with pytest.raises(ImageError) as failed:
        camtool.explain(Net(), image)
    assert f"img has shape {tuple(image.shape)} with its channels last" in str(failed.value)
    assert advice in str(failed.value)
    assert camtool.explain(Net(), eval(advice, {"img": image}))


@pytest.mark.parametrize("image", [torch.randn(1, 3, 16, 3), torch.randn(3, 3, 3), PHOTO, PHOTO[:, :3], PHOTO[None]])
def test_an_input_that_only_looks_like_channels_last_is_accepted(image: Any) -> None:
    assert camtool.explain(Net(), image)


def test_a_narrow_image_with_many_channels_is_accepted() -> None:
    assert camtool.explain(Net(13), torch.randn(1, 13, 16, 3))


@pytest.mark.parametrize(
    "image",
    [torch.rand(1, 3, 0, 16), torch.rand(2, 3, 16, 0), torch.rand(3, 0, 0), torch.rand(1, 0, 16, 16)],
    ids=lambda image: str(tuple(image.shape)),
)
def test_an_image_of_size_zero_raises_an_error(image: Tensor) -> None:
    with pytest.raises(ImageError, match=r"img has shape \(.*0.*\), which holds no values"):
        camtool.explain(Net(), image)


def test_an_empty_signal_raises_an_error() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    for signal in (torch.rand(1, 2, 0), np.zeros((2, 0))):
        with pytest.raises(ImageError, match="holds no values"):
            camtool.explain(model, signal)


def test_an_empty_batch_gives_no_results() -> None:
    assert camtool.explain(Net(), torch.rand(0, 3, 16, 16)) == []


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (IMAGE.to_sparse(), r"sparse tensor \(3, 16, 16\).*to_dense"),
        (IMAGE[None].to_sparse(), r"sparse tensor.*to_dense"),
        (IMAGE.to("meta"), "meta device"),
        (IMAGE.to(torch.float8_e4m3fn), r"float8.*tensor\.float\(\)"),
        (IMAGE.to(torch.complex64), "complex64"),
        (IMAGE[None].to(torch.complex64), "complex64"),
        (IMAGE[None] > 0, r"torch\.bool.*tensor\.float\(\)"),
        (IMAGE[None].byte(), r"torch\.uint8.*tensor\.float\(\)"),
        (torch.randn(16, 16), r"range from .* \[0, 1\] is allowed"),
        (torch.rand(16), r"shape \(16,\)"),
        (torch.tensor(1.0), r"shape \(\)"),
        (None, "NoneType came"),
        ("", "the path is empty"),
        (" ", "the path is empty"),
        (np.array([None]), "dtype object"),
        (np.array(["a.png"]), "dtype <U5"),
    ],
)
def test_a_value_that_is_not_an_image_raises_an_error(image: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        camtool.explain(Net(), image)


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
def test_a_nested_tensor_raises_an_error() -> None:
    with pytest.raises(ImageError, match=r"nested tensor; give a list"):
        camtool.explain(Net(), torch.nested.nested_tensor([IMAGE, IMAGE], layout=torch.strided))


def test_a_model_without_weights_raises_an_error() -> None:
    with pytest.raises(CamtoolError, match=r"model is on the meta device.*to_empty.*load_state_dict"):
        camtool.explain(Net().to("meta"), IMAGE)


def test_a_transform_with_an_empty_result_raises_an_error() -> None:
    with pytest.raises(CamtoolError, match=r"transform '<lambda>' must return a tensor.*\(3, 0, 8\)"):
        camtool.explain(Net(), PHOTO, transform=lambda image: torch.ones(3, 0, 8))


# -------------------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize("mask", ["x", None, torch.ones(4, 4, dtype=torch.complex64), [["a"]]], ids=str)
def test_a_mask_without_numbers_raises_an_error(mask: Any) -> None:
    with pytest.raises(TargetError, match="Region's mask must"):
        Region(0, mask)


def test_an_embedding_may_be_an_array_of_numbers_only() -> None:
    with pytest.raises(TargetError, match="Similarity's embedding must be a tensor or an array of numbers, got str"):
        Similarity("a dog")  # type: ignore[arg-type]
    array, tensor = np.ones(5, np.float32), torch.ones(5)
    ours, expected = (camtool.explain(Net().eval(), IMAGE, Similarity(each)).label for each in (array, tensor))
    assert ours == expected


def test_a_complex_score_raises_an_error() -> None:
    with pytest.raises(TargetError, match="complex"):
        camtool.explain(Net(), IMAGE, lambda output: output[0] * 1j)


def test_labels_may_be_numbers() -> None:
    assert camtool.explain(Net(), IMAGE, "3", labels=[1, 2, 3, 4, 5]).index == 2


# --------------------------------------------------------------------------------- a mapping for each image


class Rows(Net):
    """A list with a dictionary for each image."""

    def forward(self, x: Tensor) -> list[dict[str, Any]]:  # type: ignore[override]
        return [{"sex": row[:2], "age": row[2], "name": "a face"} for row in super().forward(x)]


class Ragged(Net):
    """The same with as many numbers as the image is bright."""

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:  # type: ignore[override]
        scores = super().forward(x)
        return [{"found": row[: 1 + int(one.mean() > 0)]} for row, one in zip(scores, x, strict=True)]


class Finds(Net):
    """A detector that tells more than what it found."""

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:  # type: ignore[override]
        boxes, labels = torch.tensor([[1.0, 1, 5, 5], [3, 3, 9, 9]]), torch.tensor([1, 2])
        rows = super().forward(x)
        return [{"boxes": boxes, "labels": labels, "scores": row[:2].sigmoid(), "age": row[2]} for row in rows]


@pytest.mark.parametrize("kind", [Rows, Finds])
@pytest.mark.parametrize("method", ["gradcam", "scorecam", "ablationcam", "guided-backprop", "tta:layercam"])
def test_a_callable_target_gets_a_mapping_for_each_image(kind: type[Net], method: str) -> None:
    model = kind().eval()
    batch = torch.randn(2, 3, 16, 16)
    plain = Net().eval()
    plain.load_state_dict(model.state_dict())
    ours = camtool.explain(model, batch, lambda output: output["age"], method=method)
    expected = camtool.explain(plain, batch, lambda output: output[2], method=method)
    for one, other in zip(ours, expected, strict=True):
        assert one.score == pytest.approx(other.score)
        np.testing.assert_allclose(one.heatmap, other.heatmap, atol=1e-3)


def test_mappings_of_different_shapes_are_scored_one_by_one() -> None:
    batch = torch.stack([IMAGE + 5, IMAGE - 5])
    with pytest.raises(TargetError, match=r"'found' in several shapes; pass batch_size=1"):
        camtool.explain(Ragged(), batch, lambda output: output["found"][0])
    results = camtool.explain(Ragged(), batch, lambda output: output["found"][0], batch_size=1)
    assert len(results) == 2


class Asked(nn.Module):
    """A detector that compares photos with the same texts each time."""

    def __init__(self, model: nn.Module, texts: Tensor) -> None:
        super().__init__()
        self.model, self.texts = model, texts

    def forward(self, photos: Tensor) -> Any:
        return self.model(pixel_values=photos, input_ids=self.texts.repeat(len(photos), 1))


def owl(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    config = getattr(transformers, f"{name}Config")(
        text_config={**sizes, **ends, "vocab_size": 50, "max_position_embeddings": 8},
        vision_config={**sizes, "image_size": 64, "patch_size": 8},
        projection_dim=16,
    )
    model: nn.Module = getattr(transformers, f"{name}ForObjectDetection")(config).eval()
    return model


@pytest.mark.parametrize("name", ["OwlViT", "Owlv2"])
@pytest.mark.parametrize("texts", [1, 2, 3])
def test_a_detector_may_get_any_number_of_texts(name: str, texts: int) -> None:
    torch.manual_seed(1)
    model, photo, ids = owl(name), torch.randn(1, 3, 64, 64), torch.randint(2, 50, (texts, 6))
    with torch.no_grad():
        logits = model(pixel_values=photo, input_ids=ids).logits[0]
    # A query finds the text that fits it best; a text that fits no query best is explained by its surest one.
    own = logits.masked_fill(logits < logits.amax(1, keepdim=True), -torch.inf).amax(0)
    confidences = own.where(own.isfinite(), logits.amax(0)).sigmoid()
    for text in range(texts):
        (result,) = camtool.explain(Asked(model, ids), photo, text)
        assert result.index == text
        assert result.probability == pytest.approx(float(confidences[text]), abs=1e-5)


@pytest.mark.parametrize("name", ["OwlViT", "Owlv2"])
def test_a_single_text_may_come_with_the_photo(name: str) -> None:
    inputs = {"pixel_values": torch.randn(1, 3, 64, 64), "input_ids": torch.randint(2, 50, (1, 6))}
    (result,) = camtool.explain(owl(name), inputs)
    assert result.index == 0


@pytest.mark.parametrize("texts", [2, 3, 5])
def test_texts_beside_one_photo_are_not_dealt_out_to_variants(texts: int) -> None:
    torch.manual_seed(0)
    model, photo, ids = owl("OwlViT"), torch.randn(1, 3, 64, 64), torch.randint(2, 50, (texts, 6))
    counts = []
    model.register_forward_pre_hook(lambda _, __, given: counts.append(len(given["pixel_values"])), with_kwargs=True)
    inputs = camtool.Inputs(pixel_values=photo, input_ids=ids, shared=["input_ids"])
    layer = model.owlvit.vision_model.encoder.layers[1].layer_norm1
    ((gradcam, scorecam),) = camtool.explain(model, inputs, 0, method=["gradcam", "scorecam"])
    assert gradcam.layer == scorecam.layer == "owlvit.vision_model.encoder.layers.1.layer_norm1"
    kept = []
    layer.register_forward_hook(lambda _, args, output: kept.append(output))
    logits = model(pixel_values=photo, input_ids=ids).logits[0]
    confidences, labels = logits.max(1)
    query = confidences.masked_fill(labels != 0, -torch.inf).argmax()
    (gradient,) = torch.autograd.grad(logits[query, 0], kept)
    weights = gradient[:, 1:].mean(1, keepdim=True)
    expected = (kept[0] * weights)[0, 1:].sum(-1).relu().reshape(8, 8)
    assert torch.allclose(torch.tensor(gradcam.raw), expected, rtol=1e-3, atol=1e-5)
    assert {*counts} == {1}
    camtool.explain(model, inputs, method="rollout")
