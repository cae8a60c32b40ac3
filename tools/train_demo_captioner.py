"""Train the captioner of the demo: ``python tools/train_demo_captioner.py``.

Its vision tower is the demo's network, whose weights stay as they are. The language model and the projector learn
captions from scratch, in which the objects are named from left to right. All images are drawn from seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.demo.bundled import WEIGHTS
from camtool.demo.camnet import prepare_images
from camtool.demo.captioner import GRID, PROMPT, build_captioner, build_processor, write_caption
from camtool.demo.scenes import Scene, draw_scene

__all__ = ["compute_features", "describe_scene", "main", "train"]

_CHUNK = 250
"""Scenes that a process draws at a time, and images in a forward pass of the tower."""


def describe_scene(scene: Scene) -> str:
    """Return the caption of a scene: its objects from left to right, by the middles of their boxes."""
    return write_caption([item.label for item in sorted(scene.objects, key=lambda item: item.box[0] + item.box[2])])


def _draw_example(seed: int) -> tuple[NDArray[np.uint8], str]:
    """Return a scene and its caption. One scene of four has a single object, the others two."""
    scene = draw_scene(seed, objects=1 if seed % 4 == 0 else 2)
    return scene.image, describe_scene(scene)


def compute_features(model: Any, count: int, processes: int) -> tuple[Tensor, list[str]]:
    """Return the tower's tokens ``(S, 64, 96)`` of scenes, in half precision, and their captions."""
    tower, features, captions = model.model.vision_tower.eval(), [], []
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool, torch.no_grad():
        images = []
        for image, caption in pool.map(_draw_example, range(count), chunksize=_CHUNK):
            images.append(image)
            captions.append(caption)
            if len(images) == _CHUNK or len(captions) == count:
                features.append(tower(prepare_images(np.stack(images))).hidden_states[0].half())
                images = []
    return torch.cat(features), captions


def train(model: Any, features: Tensor, captions: Sequence[str], steps: int, batch: int, rate: float) -> None:
    """Train the language model and the projector on the tower's tokens and captions."""
    tower, tokenizer = model.model.vision_tower, build_processor().tokenizer
    model.model.vision_tower = _StoredTokens()
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer, generator = torch.optim.AdamW(parameters, weight_decay=0.05), torch.Generator().manual_seed(0)
    prompt = tokenizer(PROMPT.replace("<image>", "<image> " * GRID**2))["input_ids"]
    texts = [prompt + tokenizer(caption)["input_ids"] + [tokenizer.eos_token_id] for caption in captions]
    mean, started = 0.0, time.perf_counter()
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * _compute_rate_factor(step / steps)
        chosen = torch.randint(len(features), (batch,), generator=generator)
        some = [texts[number] for number in chosen.tolist()]
        loss = _compute_loss(model, features[chosen].float(), some, len(prompt))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        mean += (float(loss.detach()) - mean) / min(step + 1, 100)
        if step % 100 == 99:
            _print_line(f"{(step + 1) / steps:4.0%}  loss {mean:.3f}, {time.perf_counter() - started:.0f} s")
    model.model.vision_tower = tower
    model.eval()


class _StoredTokens(nn.Module):
    """A tower whose input is its output."""

    def forward(self, pixel_values: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(hidden_states=(pixel_values,), pooler_output=None)


def _compute_loss(model: Any, features: Tensor, texts: Sequence[Sequence[int]], prompt: int) -> Tensor:
    """Return the cross-entropy of the captions' words, which follow a prompt of a number of tokens."""
    length = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (length - len(text))] for text in texts])
    targets = ids.masked_fill(ids == 0, -100)
    targets[:, :prompt] = -100
    output = model(input_ids=ids, attention_mask=(ids != 0).long(), pixel_values=features)
    return nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


def _compute_rate_factor(progress: float) -> float:
    """Return the share of the highest learning rate: linear over the first twentieth, then a cosine to 0."""
    return progress / 0.05 if progress < 0.05 else 0.5 + 0.5 * math.cos(math.pi * (progress - 0.05) / 0.95)


def _print_line(text: str) -> None:
    """Write a line of progress to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the model, and write its weights without those of the tower."""
    from safetensors.torch import save_file

    parser = argparse.ArgumentParser(prog="train_demo_captioner.py", description=__doc__)
    parser.add_argument("--scenes", type=int, default=16_000, help="training scenes (%(default)s)")
    parser.add_argument("--steps", type=int, default=4_000, help="training steps (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images in a step (%(default)s)")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU cores to use (%(default)s)")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="folder to write to")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    model = build_captioner()
    _print_line(f"drawing {given.scenes} scenes")
    features, captions = compute_features(model, given.scenes, given.threads)
    train(model, features, captions, given.steps, given.batch, given.rate)
    state = {name: value.half().contiguous() for name, value in model.state_dict().items() if "tower" not in name}
    path = given.out / "captioner.safetensors"
    save_file(state, path)
    path.chmod(0o644)


if __name__ == "__main__":
    main()
