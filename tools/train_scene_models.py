"""Train small networks of several families on scenes: ``python tools/train_scene_models.py vit swin --out FOLDER``.

Rules about maps that hold on ImageNet's convolutional networks may not hold for others, and weights of others cannot
be had without a network. All stand on the first half of the demo's honest network, which stays as it is, and learn its
task from images drawn from seeds, from the classes and from its logits. The U-Net learns the class of each pixel
instead, from the masks. 1,000 steps took 1 to 4 minutes on a busy CPU core; ``build`` makes the networks that the
weights fit. Share of 500 unseen scenes that they recognize: ResNet 98.6 %, ConvNeXt 98.0 %, ViT 97.8 %, Swin 97.4 %;
the U-Net gives the right class to most pixels of the object in 99.2 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.demo.camnet import SIZE, CamNet, load_honest_model, prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.demo.shapes import LABELS
from tools.train_demo_models import compute_rate_factor

BACKGROUND = len(LABELS)
"""Index of the U-Net's logit of pixels that show no object."""

_BATCH, _DECAY, _SMOOTHING, _SEED = 64, 0.05, 0.05, 0
_TEACHING = 0.05
"""Weight of the squared distance to the logits of the demo's network, beside the cross-entropy."""
_BACKGROUND_WEIGHT = 0.3
"""Weight of background pixels in the U-Net's cross-entropy; they are about 95 % of all."""
_STRIDE = 4
"""The U-Net learns from each fourth pixel of each fourth row."""
_TESTS = 500
"""Number of unseen scenes on which the accuracy is measured."""

# ------------------------------------------------------------------------------------------------------- the networks


class OnDemo(nn.Module):
    """A network behind the first half of the demo's network, whose 16 x 16 cells it reads; each sees 47 x 47 pixels.

    So few images do not teach a transformer to see edges and corners, but soon what to do with them.

    Args:
        body: From ``(N, 96, 16, 16)`` to the network's output.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        demo = cast("CamNet", load_honest_model().model)
        self.stem = nn.Sequential(demo.stem, *demo.features[:2])
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for images ``(N, 3, 128, 128)``."""
        output: Tensor = self.body(self.stem(x))
        return output


class UNet(nn.Module):
    """A U-Net of three levels: 16 x 16, 8 x 8 and 4 x 4 cells down, and up again to 32 x 32.

    Args:
        channels: Number of channels of the cells it reads.
    """

    def __init__(self, channels: int = 96) -> None:
        super().__init__()
        self.outer, self.middle, self.inner = (
            _double_convolution(*sides) for sides in ((channels, 64), (64, 96), (96, 160))
        )
        self.pool = nn.MaxPool2d(2)
        self.raise_inner = nn.ConvTranspose2d(160, 96, 2, stride=2)
        self.raise_middle = nn.ConvTranspose2d(96, 64, 2, stride=2)
        self.merge_middle, self.merge_outer = _double_convolution(192, 96), _double_convolution(128, 64)
        self.head = nn.Sequential(nn.ConvTranspose2d(64, 32, 2, stride=2), nn.ReLU(), nn.Conv2d(32, BACKGROUND + 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(N, 11, 128, 128)`` of cells ``(N, channels, 16, 16)``; the last class is background."""
        outer = self.outer(x)
        middle = self.middle(self.pool(outer))
        raised = self.raise_inner(self.inner(self.pool(middle)))
        raised = self.raise_middle(self.merge_middle(torch.cat([middle, raised], 1)))
        logits = self.head(self.merge_outer(torch.cat([outer, raised], 1)))
        return nn.functional.interpolate(logits, (SIZE, SIZE), mode="bilinear", align_corners=False)


def _double_convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    """Return two 3 x 3 convolutions, each with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for channels in (channels_in, channels_out):
        layers += [nn.Conv2d(channels, channels_out, 3, padding=1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU()]
    return nn.Sequential(*layers)


def _build_convnext() -> nn.Module:
    from timm.layers import LayerNorm2d
    from timm.models.convnext import ConvNeXtBlock

    def build_stage(channels: int) -> list[nn.Module]:
        return [LayerNorm2d(channels), *(ConvNeXtBlock(channels) for _ in range(2))]

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(160), nn.Linear(160, len(LABELS))]
    return OnDemo(nn.Sequential(*build_stage(96), nn.Conv2d(96, 160, 2, stride=2), *build_stage(160), *head))


def _build_vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return OnDemo(
        VisionTransformer(
            img_size=16, patch_size=2, in_chans=96, embed_dim=96, depth=4, num_heads=3, num_classes=len(LABELS)
        )
    )


def _build_swin() -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    return OnDemo(
        SwinTransformer(
            img_size=16,
            patch_size=1,
            in_chans=96,
            embed_dim=64,
            depths=(2, 2),
            num_heads=(2, 4),
            window_size=4,
            num_classes=len(LABELS),
        )
    )


def _build_resnet() -> nn.Module:
    """Return a ResNet of bottlenecks whose last layer has 8 x 8 cells."""
    from timm.models.resnet import Bottleneck

    def build_block(channels_in: int, width: int, stride: int = 1) -> nn.Module:
        shortcut = [nn.Conv2d(channels_in, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)]
        is_same = channels_in == 4 * width and stride == 1
        return Bottleneck(channels_in, width, stride, None if is_same else nn.Sequential(*shortcut))

    blocks = [(96, 32), (128, 32), (128, 64, 2), (256, 64), (256, 64)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, len(LABELS))]
    return OnDemo(nn.Sequential(*(build_block(*block) for block in blocks), *head))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convnext": _build_convnext,
    "resnet": _build_resnet,
    "swin": _build_swin,
    "unet": lambda: OnDemo(UNet()),
    "vit": _build_vit,
}


def build(name: str, weights: Path) -> nn.Module:
    """Return a trained network in evaluation mode."""
    from safetensors.torch import load_file

    model = NETWORKS[name]()
    model.load_state_dict({key: value.float() for key, value in load_file(weights).items()})
    return model.eval()


# ------------------------------------------------------------------------------------------------------- the training


@dataclass(frozen=True)
class Examples:
    """Training scenes.

    Attributes:
        images: ``(scenes, 128, 128, 3)`` uint8.
        classes: ``(scenes, classes)``, each object's share of the target; sums are 1.
        pixels: ``(scenes, 128, 128)`` uint8, the class of each pixel, or :data:`BACKGROUND`.
    """

    images: NDArray[np.uint8]
    classes: NDArray[np.float32]
    pixels: NDArray[np.uint8]


def draw_examples(count: int) -> Examples:
    """Draw scenes, three of five with one object, the others with two."""
    images = np.empty((count, SIZE, SIZE, 3), np.uint8)
    classes = np.zeros((count, len(LABELS)), np.float32)
    pixels = np.full((count, SIZE, SIZE), BACKGROUND, np.uint8)
    for seed in range(count):
        scene = draw_scene(seed, objects=1 if seed % 5 < 3 else 2, size=SIZE)
        images[seed] = scene.image
        for item in scene.objects:
            classes[seed, item.index] = 1 / len(scene.objects)
            pixels[seed][item.mask] = item.index
    return Examples(images, classes, pixels)


def train(name: str, examples: Examples, steps: int, rate: float) -> nn.Module:
    """Train a network; return it in evaluation mode."""
    torch.manual_seed(_SEED)
    model = cast("OnDemo", NETWORKS[name]()).train().to(memory_format=torch.channels_last)
    model.stem.requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(model.body.parameters(), weight_decay=_DECAY)
    generator, mean_loss, start = torch.Generator().manual_seed(_SEED), 0.0, time.monotonic()
    compute_loss = _compute_pixel_loss if name == "unet" else _ClassLoss()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * compute_rate_factor(step / steps)
        chosen = torch.randint(len(examples.images), (_BATCH,), generator=generator).numpy()
        loss = compute_loss(model, examples, chosen, generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.body.parameters(), 1.0)
        optimizer.step()
        mean_loss += (float(loss.detach()) - mean_loss) / min(step + 1, 100)
        if step % 100 == 99:
            _print_line(f"{(step + 1) / steps:4.0%}  loss {mean_loss:.3f}  {time.monotonic() - start:.0f} s")
    return model.to(memory_format=torch.contiguous_format).eval()


class _ClassLoss:
    """Cross-entropy with the classes of the scenes, plus the distance to the logits of the demo's network."""

    def __init__(self) -> None:
        demo = cast("CamNet", load_honest_model().model)
        self.rest, self.head = demo.features[2:].to(memory_format=torch.channels_last), demo.head

    def __call__(
        self, model: OnDemo, examples: Examples, chosen: NDArray[np.int64], generator: torch.Generator
    ) -> Tensor:
        """Return the loss of chosen scenes."""
        inputs, _ = _vary(examples, chosen, generator)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                cells = model.stem(inputs)
                taught = self.head(self.rest(cells).mean((2, 3))).float()
            logits = model.body(cells).float()
        truths = torch.from_numpy(examples.classes[chosen])
        loss = nn.functional.cross_entropy(logits, truths, label_smoothing=_SMOOTHING)
        return loss + _TEACHING * nn.functional.mse_loss(logits, taught)


def _compute_pixel_loss(
    model: OnDemo, examples: Examples, chosen: NDArray[np.int64], generator: torch.Generator
) -> Tensor:
    """Return the cross-entropy of chosen scenes with the class of each pixel."""
    inputs, pixels = _vary(examples, chosen, generator)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            cells = model.stem(inputs)
        logits = model.body(cells)
    weights = torch.ones(BACKGROUND + 1)
    weights[BACKGROUND] = _BACKGROUND_WEIGHT
    middle = _STRIDE // 2
    fewer = logits[..., middle::_STRIDE, middle::_STRIDE].float()
    return nn.functional.cross_entropy(fewer, pixels[..., middle::_STRIDE, middle::_STRIDE].long(), weights)


def _vary(examples: Examples, chosen: NDArray[np.int64], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return inputs and classes of pixels, rotated by quarter turns, mirrored, with permuted colors, at random."""
    turns, mirror = (int(torch.randint(n, (), generator=generator)) for n in (4, 2))
    inputs = prepare_images(examples.images[chosen])[:, torch.randperm(3, generator=generator)]
    both = [values.rot90(turns, (-2, -1)) for values in (inputs, torch.from_numpy(examples.pixels[chosen]))]
    inputs, pixels = (values.flip(-1) if mirror else values for values in both)
    return inputs.contiguous(memory_format=torch.channels_last), pixels


def measure_accuracy(model: nn.Module) -> float:
    """Return the share of unseen scenes of one object that the network recognizes.

    A network with a class for each pixel recognizes an object if most of its pixels get its class.
    """
    hits = 0
    with torch.no_grad():
        for first in range(UNSEEN, UNSEEN + _TESTS, 50):
            items = [draw_scene(seed, size=SIZE) for seed in range(first, first + 50)]
            tops = model(prepare_images(np.stack([scene.image for scene in items]))).argmax(1).numpy()
            for top, (item,) in zip(tops, (scene.objects for scene in items), strict=True):
                hits += bool((top[item.mask] == item.index).mean() > 0.5) if top.ndim else bool(top == item.index)
    return hits / _TESTS


def _print_line(text: str) -> None:
    """Write a line of progress to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train networks and write their weights in half precision."""
    from safetensors.torch import save_file

    parser = argparse.ArgumentParser(prog="train_scene_models.py", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*NETWORKS], help="families of the networks")
    parser.add_argument("--out", type=Path, required=True, help="folder to write NAME.safetensors to")
    parser.add_argument("--scenes", type=int, default=10_000, help="training scenes (%(default)s)")
    parser.add_argument("--steps", type=int, default=1_000, help="training steps (%(default)s)")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate (%(default)s)")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    examples = draw_examples(given.scenes)
    for name in given.names:
        model = train(name, examples, given.steps, given.rate)
        state = {key: value.half() if value.is_floating_point() else value for key, value in model.state_dict().items()}
        accuracy = measure_accuracy(model)
        _print_line(f"{name}: {accuracy:.1%} of {_TESTS} unseen scenes")
        save_file(
            {key: value.contiguous() for key, value in state.items()},
            given.out / f"{name}.safetensors",
            metadata={"steps": f"{given.steps}", "scenes": f"{given.scenes}", "accuracy": f"{accuracy:.3f}"},
        )


if __name__ == "__main__":
    main()
