"""Towers with registers, and SigLIP 2 behind a module that cuts images into patches: Grad-CAM by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

import camtool
from camtool.errors import ImageError
from camtool.targets import Similarity
from tests.zoo.hugging_face import TOWERS

PATCH = 8
_BLOCKS: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}


class Patchify(nn.Module):
    """The image tower of SigLIP 2 for images ``(N, 3, H, W)`` without padding."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        rows, columns = (side // PATCH for side in images.shape[2:])
        cells = images.reshape(len(images), 3, rows, PATCH, columns, PATCH).permute(0, 2, 4, 3, 5, 1)
        patches = cells.reshape(len(images), rows * columns, -1)
        mask, shapes = torch.ones(patches.shape[:2]), torch.tensor([[rows, columns]] * len(images))
        outputs = self.model.get_image_features(
            pixel_values=patches, pixel_attention_mask=mask.long(), spatial_shapes=shapes
        )
        return outputs.pooler_output


def build_siglip2() -> Any:
    import transformers

    torch.manual_seed(0)
    words = _BLOCKS | {"num_hidden_layers": 1, "vocab_size": 50, "max_position_embeddings": 16}
    patches = _BLOCKS | {"num_hidden_layers": 3, "patch_size": PATCH, "num_patches": 64}
    config = transformers.Siglip2Config(
        text_config=words | {"bos_token_id": 1, "eos_token_id": 2}, vision_config=patches
    )
    model = transformers.Siglip2Model(config)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


MODELS = {
    "dinov2": (lambda: TOWERS["dinov2"].build(), 1),
    "dinov2_with_registers": (lambda: TOWERS["dinov2_with_registers"].build(), 5),
    "dinov3_vit": (lambda: TOWERS["dinov3_vit"].build(), 5),
    "siglip2": (lambda: Patchify(build_siglip2()), 0),
}
"""Name → how it is built, and the number of tokens before the patches."""


@pytest.mark.parametrize("size", [(64, 64), (48, 80)])
@pytest.mark.parametrize("name", MODELS)
def test_the_map_equals_a_gradcam_by_hand(name: str, size: tuple[int, int]) -> None:
    build, prefix = MODELS[name]
    model, images = build(), torch.randn(1, 3, *size)
    target = Similarity(torch.randn(64))
    (result,) = camtool.explain(model, images, target)
    kept: list[Tensor] = []
    handle = model.get_submodule(result.layer).register_forward_hook(lambda _module, _given, out: kept.append(out))
    with torch.enable_grad():
        output = model(images)
    handle.remove()
    embedding = output if isinstance(output, Tensor) else output.pooler_output
    (gradient,) = torch.autograd.grad(torch.cosine_similarity(embedding[0], target.embedding, dim=0), kept[-1])
    activations, gradient = kept[-1][0, prefix:], gradient[0, prefix:]
    grid = size[0] // PATCH, size[1] // PATCH
    by_hand = (activations * gradient.mean(0)).sum(-1).relu().reshape(grid).detach().numpy()
    assert by_hand.any()
    assert np.abs(result.raw - by_hand).max() <= 1e-5 * by_hand.max()


@pytest.mark.parametrize("batch", [1, 3])
def test_patches_instead_of_images_are_refused(batch: int) -> None:
    inputs = {
        "pixel_values": torch.randn(batch, 24, 3 * PATCH**2),
        "pixel_attention_mask": torch.ones(batch, 24, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 6]] * batch),
    }
    for make in (dict, camtool.Inputs):
        with pytest.raises(ImageError, match=r"NaFlex model, e\.g\. SigLIP 2, .* Wrap the model"):
            camtool.explain(build_siglip2(), make(**inputs), 3)
