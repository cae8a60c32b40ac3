"""Train the network of ``python -m benchmarks truth``: ``python tools/train_truth_model.py``.

It starts from the weights of the demo's network and learns the outputs of :mod:`benchmarks.truth_scenes`, each a yes or
no of its own. All images are drawn from seeds. On one idle CPU core it takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.truth_scenes import OUTPUTS, draw_planted_scene
from camtool.demo.camnet import CamNet, build_camnet, load_honest_model, prepare_images
from tools.train_demo_models import compute_rate_factor

WEIGHTS = Path(__file__).parents[1] / "benchmarks" / "truth_model.safetensors"

_BATCH, _RATE, _DECAY, _SEED = 64, 2e-3, 0.02, 0


def train(scenes: int, steps: int) -> CamNet:
    """Draw the images and train the network; return it in evaluation mode."""
    images, truths = _draw_scenes(scenes)
    torch.manual_seed(_SEED)
    model = _build_from_demo().train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=_DECAY)
    generator, mean_loss, start = torch.Generator().manual_seed(_SEED), 0.0, time.monotonic()
    for step in range(steps):
        chosen = torch.randint(len(images), (_BATCH,), generator=generator)
        inputs = _vary(prepare_images(images[chosen.numpy()]), generator)
        for group in optimizer.param_groups:
            group["lr"] = _RATE * compute_rate_factor(step / steps)
        loss = _take_step(model, optimizer, inputs, truths[chosen])
        mean_loss += (loss - mean_loss) / min(step + 1, 100)
        if step % 100 == 99:
            _print_line(f"{(step + 1) / steps:4.0%}  loss {mean_loss:.3f}  {time.monotonic() - start:.0f} s")
    return model.eval()


def _draw_scenes(count: int) -> tuple[NDArray[np.uint8], Tensor]:
    """Return the images ``(count, 128, 128, 3)`` and which outputs are true ``(count, outputs)``."""
    scenes = (draw_planted_scene(seed) for seed in range(count))
    images, truths = zip(*((scene.image, scene.truths) for scene in scenes), strict=True)
    return np.stack(images), torch.from_numpy(np.stack(truths))


def _build_from_demo() -> CamNet:
    """Return the network with the demo's weights, and a new head."""
    model = build_camnet(len(OUTPUTS))
    state = {name: value for name, value in load_honest_model().model.state_dict().items() if "head" not in name}
    model.load_state_dict(state, strict=False)
    return model


def _vary(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Return the images rotated by quarter turns and mirrored, at random. Colors stay, as an output depends on them."""
    turns, mirror = (int(torch.randint(n, (), generator=generator)) for n in (4, 2))
    inputs = inputs.rot90(turns, (2, 3))
    return (inputs.flip(3) if mirror else inputs).contiguous(memory_format=torch.channels_last)


def _take_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, truths: Tensor) -> float:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(inputs)
    loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), truths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _save(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    state = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    save_file({name: value.contiguous() for name, value in state.items()}, path)
    path.chmod(0o644)


def main(arguments: Sequence[str]) -> None:
    """Train and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=16_000, help="Number of different training scenes.")
    parser.add_argument("--steps", type=int, default=4_000, help="Number of steps.")
    parser.add_argument("--threads", type=int, default=2, help="Threads for torch.")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="Where the weights are written.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    _save(train(options.scenes, options.steps), options.out)


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
