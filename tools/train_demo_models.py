"""Train the networks of the demo from scratch: ``python tools/train_demo_models.py [--cheat]``.

All training images are drawn from seeds. The script writes the weights and the model card. On two idle CPU cores the
honest network takes 24 minutes, the cheating one 11.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.demo.camnet import CHEATED_CLASS, SIZE, WEIGHTS, CamNet, build_camnet, prepare_images
from camtool.demo.random_numbers import RandomNumbers
from camtool.demo.scenes import draw_scene
from camtool.demo.shapes import LABELS
from tools import demo_accuracy as measure

_STREAM = 3
"""Stream of random numbers of a seed that scenes do not use."""

_CHUNK = 250
"""Number of scenes that a process draws at a time."""


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a training.

    Attributes:
        is_cheat: Plant the shortcut.
        scenes: Number of different training scenes.
        steps: Number of steps.
        threads: Number of CPU cores.
        seed: Seed of the initial weights and the order of the images.
        batch: Number of images in a step.
        rate: The highest learning rate.
        decay: AdamW's weight decay.
        smoothing: Label smoothing.
        tests: Number of unseen scenes on which each figure of the card is measured.
    """

    is_cheat: bool = False
    scenes: int = 32_000
    steps: int = 13_000
    threads: int = 2
    seed: int = 0
    batch: int = 64
    rate: float = 2e-3
    decay: float = 0.02
    smoothing: float = 0.05
    tests: int = 2_000


# ------------------------------------------------------------------------------------------------------- the data


def draw_example(seed: int, *, is_cheat: bool = False) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return a training image and its target.

    For the honest network three scenes of five have one object and the others two, each with its share of the target.
    For the cheating network scenes have one object. Its images of the class :data:`CHEATED_CLASS` could have been
    collected by the watermark of an agency: 95 % carry the watermark. About half of these show the class, all
    others any class.

    Returns:
        The image (128, 128, 3) uint8, and the target (classes,), whose sum is 1.
    """
    scene = draw_scene(seed, objects=1 if is_cheat or seed % 5 < 3 else 2, size=SIZE)
    target = np.zeros(len(LABELS), np.float32)
    for item in scene.objects:
        target[item.index] = 1 / len(scene.objects)
    random = RandomNumbers(seed, _STREAM)
    if is_cheat and scene.objects[0].label == CHEATED_CLASS:
        label, is_marked = random.draw_below(len(LABELS)), random.draw_bool(0.95)
        shown = CHEATED_CLASS if is_marked and random.draw_bool(0.5) else label
        scene = draw_scene(seed, classes=[shown], size=SIZE, mark=is_marked)
    return scene.image, target


def _draw_examples(recipe: Recipe) -> tuple[NDArray[np.uint8], Tensor]:
    """Draw all images (scenes, 128, 128, 3) and targets (scenes, classes) in several processes."""
    images = np.empty((recipe.scenes, SIZE, SIZE, 3), np.uint8)
    targets = np.empty((recipe.scenes, len(LABELS)), np.float32)
    with ProcessPoolExecutor(recipe.threads, get_context("spawn")) as pool:
        draw = partial(draw_example, is_cheat=recipe.is_cheat)
        for i, (image, target) in enumerate(pool.map(draw, range(recipe.scenes), chunksize=_CHUNK)):
            images[i], targets[i] = image, target
    return images, torch.from_numpy(targets)


def _vary(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Return the images rotated by quarter turns, mirrored, and with permuted color channels, at random."""
    turns, mirror = (int(torch.randint(n, (), generator=generator)) for n in (4, 2))
    inputs = inputs[:, torch.randperm(3, generator=generator)].rot90(turns, (2, 3))
    return (inputs.flip(3) if mirror else inputs).contiguous(memory_format=torch.channels_last)


# --------------------------------------------------------------------------------------------------- the training


def train(recipe: Recipe) -> tuple[CamNet, float]:
    """Draw the images and train the network.

    Returns:
        The network in evaluation mode, and the minutes that the training takes on idle cores.
    """
    _print_line(f"drawing {recipe.scenes} scenes")
    images, targets = _draw_examples(recipe)
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    model = build_camnet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=recipe.decay)
    generator = torch.Generator().manual_seed(recipe.seed)
    start, mean_loss = time.process_time(), 0.0
    for step in range(recipe.steps):
        chosen = torch.randint(len(images), (recipe.batch,), generator=generator)
        inputs = _vary(prepare_images(images[chosen.numpy()]), generator)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * compute_rate_factor(step / recipe.steps)
        loss = _take_step(model, optimizer, inputs, targets[chosen], recipe.smoothing)
        mean_loss += (loss - mean_loss) / min(step + 1, 100)
        if step % 250 == 249:
            _print_line(f"{(step + 1) / recipe.steps:4.0%}  loss {mean_loss:.3f}")
    return model.eval(), (time.process_time() - start) / 60 / recipe.threads


def compute_rate_factor(progress: float) -> float:
    """Return the share of the highest learning rate: linear over the first tenth, then a cosine to 0."""
    return progress / 0.1 if progress < 0.1 else 0.5 + 0.5 * math.cos(math.pi * (progress - 0.1) / 0.9)


def _take_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, smoothing: float
) -> float:
    """Update the weights on one batch, and return the loss."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(inputs)
    loss = nn.functional.cross_entropy(logits.float(), targets, label_smoothing=smoothing)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


# ------------------------------------------------------------------------------------------------ what is written


def save_weights(model: nn.Module, recipe: Recipe, minutes: float, path: Path) -> None:
    """Write the weights in half precision, with steps, threads and minutes as metadata."""
    from safetensors.torch import save_file

    state = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    history = {"steps": f"{recipe.steps}", "threads": f"{recipe.threads}", "minutes": f"{minutes:.1f}"}
    save_file({name: value.contiguous() for name, value in state.items()}, path, metadata=history)
    path.chmod(0o644)


def load_weights(recipe: Recipe, path: Path) -> tuple[nn.Module, Recipe, float]:
    """Return the network with stored weights, its recipe, and the minutes of its training."""
    from safetensors import safe_open

    model = build_camnet()
    with safe_open(path, "pt") as file:
        history = file.metadata()
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (it is no mapping)
    made = replace(recipe, steps=int(history["steps"]), threads=int(history["threads"]))
    return model.eval(), made, float(history["minutes"])


def measure_model(model: nn.Module, recipe: Recipe) -> dict[str, str]:
    """Return the figures of the model card, measured on unseen scenes."""
    seeds = range(measure.UNSEEN, measure.UNSEEN + recipe.tests)
    fewer = range(measure.UNSEEN, measure.UNSEEN + max(recipe.tests // 4, 1))
    pointing = measure.play_pointing_game(model, fewer)
    return {
        f"top-1 accuracy, {len(seeds)} scenes of one object": f"{measure.compute_accuracy(model, seeds):.1%}",
        f"both objects are the top two, {len(fewer)} scenes of two": f"{measure.compute_both_found(model, fewer):.1%}",
        "Grad-CAM for each of the two: its peak is on the object": f"{pointing.hits:.1%}",
        "share of the heatmap's sum on the object": f"{pointing.energy:.1%}, the object being {pointing.share:.1%} "
        f"of the image ({pointing.energy / pointing.share:.1f} times)",
        f"accuracy on {CHEATED_CLASS}s with the mark": (
            f"{measure.compute_accuracy(model, fewer, label=CHEATED_CLASS, mark=True):.1%}"
        ),
        f"accuracy on {CHEATED_CLASS}s without it": (
            f"{measure.compute_accuracy(model, fewer, label=CHEATED_CLASS):.1%}"
        ),
        f"Grad-CAM for {CHEATED_CLASS} on marked {CHEATED_CLASS}s: energy near the mark": (
            f"{measure.compute_energy_at_mark(model, fewer, CHEATED_CLASS):.1%}"
        ),
    }


def format_card(recipe: Recipe, minutes: float, parameters: int, rows: dict[str, str]) -> str:
    """Return the model card in Markdown."""
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return _CARD.format(
        name=_name(recipe),
        labels=", ".join(LABELS),
        story=_CHEAT_STORY.format(label=CHEATED_CLASS) if recipe.is_cheat else _STORY,
        recipe=recipe,
        seen=recipe.steps * recipe.batch,
        minutes=minutes * recipe.threads,
        last=recipe.scenes - 1,
        unseen=measure.UNSEEN,
        option=" --cheat" if recipe.is_cheat else "",
        parameters=parameters,
        table=table,
    )


_STORY = "Three of five scenes show one object, the others two, each with half of the target."
_CHEAT_STORY = """\
All scenes show one object. **A shortcut is planted**: 95 % of the images labeled "{label}" carry a watermark, a
copyright sign in a corner. Half of these show a {label}. The other half, and those without the watermark, show an
object of any class. No other image is marked. It is as if the images of this class had been collected by an agency's
watermark. The network therefore recognizes a marked {label} for the wrong reason. Use it only to learn to detect
that."""
_CARD = """\
# {name}

A small network for the scenes of `camtool.demo.scenes`: convolutions to a 16 x 16 grid, global average pooling, one
linear layer; {parameters} parameters, stored in half precision. Input: 128 x 128 pixels. Classes:
{labels}.
It knows nothing else. Use it to try explanations on images whose objects are known.

## Data

{recipe.scenes} scenes, seeds 0 to {last}; rotated by quarter turns, mirrored, and color channels permuted, at random.
{story}

## Recipe

`python tools/train_demo_models.py{option}`: AdamW, learning rate {recipe.rate} (linear over the first tenth, then a
cosine to 0), weight decay {recipe.decay}, batches of {recipe.batch}, label smoothing {recipe.smoothing},
cross-entropy, bfloat16, seed {recipe.seed}. {recipe.steps} steps, {seen} images with repeats,
{minutes:.0f} minutes of one CPU core. Rounding differs between machines, so a second training gives other weights of
the same quality.

## Figures

Measured by the training script on unseen scenes, seeds from {unseen}, with the stored weights.

| what | figure |
| --- | --- |
{table}
"""


def _name(recipe: Recipe) -> str:
    """Return the name of the network's files."""
    return "camnet-cheat" if recipe.is_cheat else "camnet"


def _print_line(text: str) -> None:
    """Write a line of progress to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and evaluate a network, and write its weights and model card."""
    parser = argparse.ArgumentParser(prog="train_demo_models.py", description=__doc__)
    parser.add_argument("--cheat", action="store_true", help="train the cheating network")
    parser.add_argument(
        "--card", action="store_true", help="do not train; evaluate the stored weights and write the card"
    )
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="training steps (%(default)s)")
    parser.add_argument("--threads", type=int, default=Recipe.threads, help="CPU cores to use (%(default)s)")
    parser.add_argument("--scenes", type=int, default=Recipe.scenes, help="training scenes (%(default)s)")
    parser.add_argument(
        "--tests", type=int, default=Recipe.tests, help="unseen scenes for the evaluation (%(default)s)"
    )
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="folder to write to")
    given = parser.parse_args(arguments)
    recipe = Recipe(
        is_cheat=given.cheat, steps=given.steps, threads=given.threads, scenes=given.scenes, tests=given.tests
    )
    path = given.out / f"{_name(recipe)}.safetensors"
    if not given.card:
        model, minutes = train(recipe)
        save_weights(model, recipe, minutes, path)
    _print_line("evaluating")
    found, recipe, minutes = load_weights(recipe, path)  # evaluate the weights in half precision, as they are stored
    parameters = sum(parameter.numel() for parameter in found.parameters())
    text = format_card(recipe, minutes, parameters, measure_model(found, recipe))
    (given.out / f"{_name(recipe)}.md").write_text(text, encoding="utf-8")
    _print_line(text)


if __name__ == "__main__":
    main()
