"""Train small networks of several families on scenes: ``python tools/train_scene_models.py vit --out FOLDER``.

Rules about maps that hold on ImageNet's convolutional networks may not hold for others, and weights of others cannot
be had without a network. These learn the honest task of ``tools/train_demo_models.py``, from images drawn from seeds.
900 steps took 7 to 8 minutes on a busy CPU core. ``build`` makes the networks that the weights fit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from camtool.demo.camnet import SIZE, CamNet, load_honest_model, prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.demo.shapes import LABELS
from tools.train_demo_models import _vary, compute_rate_factor, draw_example

_BATCH, _DECAY, _SMOOTHING, _SEED = 64, 0.05, 0.05, 0
_TESTS = 500
"""Number of unseen scenes on which the accuracy is measured."""


class _OnDemo(nn.Module):
    """A network behind the first convolutions of the demo's network, whose 16 x 16 cells it reads.

    So few images do not teach a transformer to see edges, but soon what to do with them.

    Args:
        body: From ``(N, 96, 16, 16)`` to logits.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        demo = cast("CamNet", load_honest_model().model)
        self.stem = nn.Sequential(demo.stem, demo.features[0])
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images ``(N, 3, 128, 128)``."""
        logits: Tensor = self.body(self.stem(x))
        return logits


def _build_convnext() -> nn.Module:
    from timm.layers import LayerNorm2d
    from timm.models.convnext import ConvNeXtBlock

    def build_stage(channels: int) -> list[nn.Module]:
        return [LayerNorm2d(channels), *(ConvNeXtBlock(channels) for _ in range(3))]

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(160), nn.Linear(160, len(LABELS))]
    return _OnDemo(nn.Sequential(*build_stage(96), nn.Conv2d(96, 160, 2, stride=2), *build_stage(160), *head))


def _build_vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return _OnDemo(
        VisionTransformer(
            img_size=16, patch_size=2, in_chans=96, embed_dim=144, depth=4, num_heads=3, num_classes=len(LABELS)
        )
    )


def _build_swin() -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    return _OnDemo(
        SwinTransformer(
            img_size=16,
            patch_size=1,
            in_chans=96,
            embed_dim=96,
            depths=(2, 2),
            num_heads=(3, 6),
            window_size=4,
            num_classes=len(LABELS),
        )
    )


def _build_resnet() -> nn.Module:
    import timm

    model: nn.Module = timm.create_model("resnet10t", num_classes=len(LABELS))
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convnext": _build_convnext,
    "resnet": _build_resnet,
    "swin": _build_swin,
    "vit": _build_vit,
}


def build(name: str, weights: Path) -> nn.Module:
    """Return a trained network in evaluation mode."""
    from safetensors.torch import load_file

    model = NETWORKS[name]()
    model.load_state_dict({key: value.float() for key, value in load_file(weights).items()})
    return model.eval()


def train(name: str, scenes: int, steps: int, rate: float) -> nn.Module:
    """Draw the images and train a network; return it in evaluation mode."""
    images, targets = zip(*(draw_example(seed) for seed in range(scenes)), strict=True)
    images_array, truths = np.stack(images), torch.from_numpy(np.stack(targets))
    torch.manual_seed(_SEED)
    model = NETWORKS[name]().train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=_DECAY)
    generator, mean_loss, start = torch.Generator().manual_seed(_SEED), 0.0, time.monotonic()
    for step in range(steps):
        chosen = torch.randint(scenes, (_BATCH,), generator=generator)
        inputs = _vary(prepare_images(images_array[chosen.numpy()]), generator)
        for group in optimizer.param_groups:
            group["lr"] = rate * compute_rate_factor(step / steps)
        with torch.autocast("cpu", torch.bfloat16):
            logits: Tensor = model(inputs)
        loss = nn.functional.cross_entropy(logits.float(), truths[chosen], label_smoothing=_SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean_loss += (float(loss.detach()) - mean_loss) / min(step + 1, 100)
        if step % 100 == 99:
            _print_line(f"{(step + 1) / steps:4.0%}  loss {mean_loss:.3f}  {time.monotonic() - start:.0f} s")
    return model.eval()


def measure_accuracy(model: nn.Module) -> float:
    """Return the share of unseen scenes of one object that the network recognizes."""
    hits = 0
    with torch.no_grad():
        for first in range(UNSEEN, UNSEEN + _TESTS, 50):
            scenes = [draw_scene(seed, size=SIZE) for seed in range(first, first + 50)]
            tops = model(prepare_images(np.stack([scene.image for scene in scenes]))).argmax(1).tolist()
            hits += sum(scene.objects[0].index == top for scene, top in zip(scenes, tops, strict=True))
    return hits / _TESTS


def _print_line(text: str) -> None:
    """Write a line of progress to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train a network and write its weights in half precision."""
    from safetensors.torch import save_file

    parser = argparse.ArgumentParser(prog="train_scene_models.py", description=__doc__)
    parser.add_argument("name", choices=[*NETWORKS], help="family of the network")
    parser.add_argument("--out", type=Path, required=True, help="folder to write NAME.safetensors to")
    parser.add_argument("--scenes", type=int, default=20_000, help="training scenes (%(default)s)")
    parser.add_argument("--steps", type=int, default=3_000, help="training steps (%(default)s)")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate (%(default)s)")
    given = parser.parse_args(arguments)
    model = train(given.name, given.scenes, given.steps, given.rate)
    accuracy = measure_accuracy(model)
    _print_line(f"{given.name}: {accuracy:.1%} of {_TESTS} unseen scenes")
    given.out.mkdir(parents=True, exist_ok=True)
    state = {key: value.half() if value.is_floating_point() else value for key, value in model.state_dict().items()}
    save_file(
        {key: value.contiguous() for key, value in state.items()},
        given.out / f"{given.name}.safetensors",
        metadata={"steps": f"{given.steps}", "scenes": f"{given.scenes}", "accuracy": f"{accuracy:.3f}"},
    )


if __name__ == "__main__":
    main()
