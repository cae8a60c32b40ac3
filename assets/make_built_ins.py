"""Draw ``built-ins.jpg``: ``python assets/make_built_ins.py --photo DOG-AND-CAT.png --weights FOLDER``.

First row: the features of MobileNetV2 that are like those of a place on the cat; mean and spread of the maps of
MobileNetV2 and SqueezeNet 1.1 for the dog. Second row: tiles of which some have a red spot, with the attention of a
model that learned to find bags with one; the keypoint of a drawn figure's head. Third row: what a small diffusion model
draws for two words, and its cross-attention to them; it needs ``camtool[diffusers]``. The models of the last two rows
are trained here, in minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor, nn

import camtool
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.rendering.image_writing import write_image

_OUT = Path(__file__).parent / "built-ins.jpg"
_WIDTH, _SIDE, _DOG, _PLACE = 300, 16, "bull mastiff", (100, 180)


def main(
    photo: Annotated[Path, typer.Option(help="a photo of a dog and a cat")],
    weights: Annotated[Path, typer.Option(help="folder with ImageNet weights of MobileNetV2 and SqueezeNet 1.1")],
    out: Annotated[Path, typer.Option(help="the picture")] = _OUT,
) -> None:
    """Draw the picture."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tiles = [*_draw_places(photo, weights), *_draw_bag(), *_draw_keypoint(), *_draw_words()]
    captions, images = zip(*tiles, strict=True)
    write_image(out, draw_captioned_images(images, captions, columns=3, width=_WIDTH), quality=88)


def _draw_places(photo: Path, weights: Path) -> list[tuple[str, np.ndarray]]:
    mobilenet, squeezenet = (
        camtool.load(name, weights / f"{name}-imagenet.safetensors") for name in ("mobilenet_v2", "squeezenet1_1")
    )
    alike = camtool.patch_similarity(mobilenet, photo, _PLACE, layer="features.16")
    both = camtool.explain_ensemble([mobilenet, squeezenet], photo, _DOG)
    return [
        ("features like those in the box", alike.overlay()),
        ("two models: mean", both.overlay()),
        ("two models: spread", both.uncertainty_overlay()),
    ]


# --------------------------------------------------------------------------------------------------------------- tiles


class _Pooling(nn.Module):
    """Gated attention over tiles, arXiv 1802.04712."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
        self.gate, self.score, self.head = nn.Linear(16, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, bag: Tensor) -> Tensor:
        """Return the logit of a bag ``(T, 3, H, W)`` that has a spot."""
        features = self.encoder(bag).amax((2, 3))
        weights = self.score(self.gate(features).tanh()).softmax(0)
        return self.head((weights * features).sum(0))


def _make_bag(spots: int) -> Tensor:
    """Return 24 tiles of pink noise, some with a dark red spot."""
    bag = (torch.tensor([0.9, 0.75, 0.85])[:, None, None] + 0.06 * torch.randn(24, 3, _SIDE, _SIDE)).clamp(0, 1)
    steps = torch.arange(_SIDE)
    for tile in torch.randperm(24)[:spots]:
        y, x = torch.randint(4, _SIDE - 4, (2,)).tolist()
        inside = (steps[:, None] - y) ** 2 + (steps - x) ** 2 <= 9
        bag[tile] = torch.where(inside, torch.tensor([0.55, 0.1, 0.2])[:, None, None], bag[tile])
    return bag


def _draw_bag() -> list[tuple[str, np.ndarray]]:
    model = _Pooling()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(300):
        loss = nn.functional.binary_cross_entropy_with_logits(model(_make_bag(step % 2)), torch.tensor([step % 2.0]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    result = camtool.bag_attention(
        model.eval(), _make_bag(3), [(row, column) for row in range(4) for column in range(6)]
    )
    print("bag", loss.item(), result.raw.round(3))
    return [("24 tiles, three with a spot", result.photo), ("attention of the pooling", result.overlay())]


# ------------------------------------------------------------------------------------------------------------ keypoints


def _draw_figures(count: int) -> tuple[Tensor, Tensor]:
    """Return images of a head, a trunk and a foot ``(N, 3, 64, 64)``, and the places of head and foot."""
    ends = torch.rand(count, 2, 2) * 44 + 10
    steps = torch.arange(64.0)
    images = (torch.rand(count, 3, 1, 1) * 0.3 + 0.4 + 0.05 * torch.randn(count, 3, 64, 64)).clamp(0, 1)
    for along in torch.linspace(0, 1, 30):
        at = (ends[:, 0] * (1 - along) + ends[:, 1] * along)[..., None, None]
        near = (steps[:, None] - at[:, 0]) ** 2 + (steps - at[:, 1]) ** 2 <= 4
        images = torch.where(near[:, None], torch.tensor([0.2, 0.5, 0.2])[:, None, None], images)
    for end, color in ((0, [0.95, 0.75, 0.6]), (1, [0.3, 0.2, 0.1])):
        at = ends[:, end, :, None, None]
        near = (steps[:, None] - at[:, 0]) ** 2 + (steps - at[:, 1]) ** 2 <= 25
        images = torch.where(near[:, None], torch.tensor(color)[:, None, None], images)
    return images, ends


def _draw_keypoint() -> list[tuple[str, np.ndarray]]:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1),
        nn.ReLU(), nn.Conv2d(32, 2, 3, 1, 1),
    )  # fmt: skip
    optimizer, cells = torch.optim.Adam(model.parameters(), 3e-3), torch.arange(16.0) * 4 + 2
    for _ in range(300):
        images, ends = _draw_figures(16)
        distance = (cells[:, None] - ends[..., :1, None]) ** 2 + (cells - ends[..., 1:, None]) ** 2
        loss = nn.functional.mse_loss(model(images), (-distance / 32).exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    (result,) = camtool.explain(model.eval(), _draw_figures(1)[0], camtool.targets.Keypoint(0), method="layercam")
    print("keypoint", loss.item(), result)
    return [("keypoint: the head", result.overlay(enlarge=True))]


# ----------------------------------------------------------------------------------------------------------- diffusion


def _draw_shapes(count: int) -> tuple[Tensor, Tensor]:
    """Return images ``(N, 3, 16, 16)`` in -1..1, and words ``(N, 2)``: a red disk or none, a blue square or none."""
    places, has = torch.randint(3, 13, (count, 2, 2)), torch.rand(count, 2) < 0.75
    steps = torch.arange(_SIDE)
    images = torch.full((count, 3, _SIDE, _SIDE), 0.8)
    down, across = steps[:, None] - places[..., 0, None, None], steps - places[..., 1, None, None]
    disk, square = down[:, 0] ** 2 + across[:, 0] ** 2 <= 9, down[:, 1].abs().maximum(across[:, 1].abs()) <= 2
    for number, (shape, color) in enumerate(((disk, [0.9, -0.8, -0.8]), (square, [-0.8, -0.6, 0.9]))):
        drawn = (shape & has[:, number, None, None])[:, None]
        images = torch.where(drawn, torch.tensor(color)[:, None, None], images)
    return images, torch.stack([torch.where(has[:, 0], 1, 0), torch.where(has[:, 1], 2, 0)], 1)


def _draw_words() -> list[tuple[str, np.ndarray]]:
    from diffusers import DDIMScheduler, UNet2DConditionModel

    unet = UNet2DConditionModel(
        sample_size=_SIDE, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"), cross_attention_dim=16, norm_num_groups=8,
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=4,
    )  # fmt: skip
    table, scheduler = nn.Embedding(3, 16), DDIMScheduler(num_train_timesteps=200, clip_sample=True)
    optimizer = torch.optim.AdamW([*unet.parameters(), *table.parameters()], 2e-3)
    for step in range(_STEPS):
        images, words = _draw_shapes(24)
        noise, times = torch.randn(images.shape), torch.randint(200, (len(images),))
        loss = nn.functional.mse_loss(
            unet(scheduler.add_noise(images, noise, times), times, table(words)).sample, noise
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print("diffusion", step, loss.item(), flush=True)
    scheduler.set_timesteps(40)
    image, words = torch.randn(1, 3, _SIDE, _SIDE, generator=torch.Generator().manual_seed(4)), torch.tensor([[1, 2]])
    with torch.no_grad(), camtool.word_attention(unet.eval()) as recorded:
        for time in scheduler.timesteps:
            image = scheduler.step(
                unet(image, time, encoder_hidden_states=table(words)).sample, time, image
            ).prev_sample
    pixels = ((image[0].permute(1, 2, 0) + 1) * 127.5).clamp(0, 255).byte().numpy()
    maps = [recorded.map([token], pixels) for token in (0, 1)]
    print(recorded.compute_maps().numpy().round(2))
    shown = pixels.repeat(20, 0).repeat(20, 1)
    return [
        ("a diffusion model's picture", shown),
        *(
            (name, one.overlay(enlarge=True))
            for name, one in zip(("word 1: disk", "word 2: square"), maps, strict=True)
        ),
    ]


_STEPS = 600

if __name__ == "__main__":
    typer.run(main)
