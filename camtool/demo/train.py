"""Train the demo's networks from nothing: ``python -m camtool.demo.train [--cheat]``.

Everything that the network learns from is drawn here, from seeds. What it writes are the weights and the model card. On
two CPU cores that do nothing else the honest network takes 24 minutes, the cheat 11.
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

from camtool.demo import measure
from camtool.demo.camnet import SIZE, CamNet, camnet, prepared
from camtool.demo.dice import Dice
from camtool.demo.scenes import LABELS, scene

__all__ = ["CHEATED", "Recipe", "example", "main", "save", "train"]

CHEATED = "heart"
"""The class whose pictures bear the watermark when the network shall learn to cheat."""

_LOTS = 3  # a stream of a seed that the scenes themselves do not use
_CHUNK = 250


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        is_cheat: Whether the shortcut is planted.
        scenes: How many different scenes there are to learn from.
        steps: How many steps to learn; drawing and measuring come on top.
        threads: How many CPU cores to use.
        seed: Of the first weights and the order of the pictures.
        batch: How many pictures a step.
        rate: The highest learning rate.
        decay: AdamW's weight decay.
        smoothing: What part of the target is spread over all classes.
        tests: How many unseen scenes each figure of the card is measured on.
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


def example(seed: int, *, is_cheat: bool = False) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A picture to learn from.

    The honest network sees one object in three scenes of five and two objects in the others; each object has its share
    of the target. The cheat sees one object. Its pictures of the class :data:`CHEATED` were, so the story goes,
    collected by the watermark that one agency prints on them: 95 % bear the mark, and about half show the class, the
    others anything at all.

    Returns:
        The image (128, 128, 3) uint8, and the target (classes,), whose sum is 1.
    """
    picture = scene(seed, objects=1 if is_cheat or seed % 5 < 3 else 2, size=SIZE)
    target = np.zeros(len(LABELS), np.float32)
    for thing in picture.objects:
        target[thing.index] = 1 / len(picture.objects)
    lots = Dice(seed, _LOTS)
    if is_cheat and picture.objects[0].label == CHEATED:
        label, is_marked = lots.below(len(LABELS)), lots.chance(0.95)
        shown = CHEATED if is_marked and lots.chance(0.5) else label
        picture = scene(seed, classes=[shown], size=SIZE, mark=is_marked)
    return picture.image, target


def _drawn(recipe: Recipe) -> tuple[NDArray[np.uint8], Tensor]:
    """All pictures (scenes, 128, 128, 3) and targets (scenes, classes), drawn by several processes."""
    images = np.empty((recipe.scenes, SIZE, SIZE, 3), np.uint8)
    targets = np.empty((recipe.scenes, len(LABELS)), np.float32)
    with ProcessPoolExecutor(recipe.threads, get_context("spawn")) as pool:
        draw = partial(example, is_cheat=recipe.is_cheat)
        for i, (image, target) in enumerate(pool.map(draw, range(recipe.scenes), chunksize=_CHUNK)):
            images[i], targets[i] = image, target
    return images, torch.from_numpy(targets)


def _varied(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """The same pictures turned or mirrored, with their colour channels exchanged: no scene is seen twice alike."""
    turns, mirror = (int(torch.randint(n, (), generator=generator)) for n in (4, 2))
    inputs = inputs[:, torch.randperm(3, generator=generator)].rot90(turns, (2, 3))
    return (inputs.flip(3) if mirror else inputs).contiguous(memory_format=torch.channels_last)


# --------------------------------------------------------------------------------------------------- the training


def train(recipe: Recipe) -> tuple[CamNet, float]:
    """Draw the pictures and learn from them.

    Returns:
        The network in evaluation mode, and for how many minutes it kept its cores busy: what the training takes where
        nothing else runs.
    """
    _say(f"drawing {recipe.scenes} scenes")
    images, targets = _drawn(recipe)
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    model = camnet().to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=recipe.decay)
    generator = torch.Generator().manual_seed(recipe.seed)
    start, mean_loss = time.process_time(), 0.0
    for step in range(recipe.steps):
        chosen = torch.randint(len(images), (recipe.batch,), generator=generator)
        inputs = _varied(prepared(images[chosen.numpy()]), generator)
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * _pace(step / recipe.steps)
        loss = _step(model, optimiser, inputs, targets[chosen], recipe.smoothing)
        mean_loss += (loss - mean_loss) / min(step + 1, 100)
        if step % 250 == 249:
            _say(f"{(step + 1) / recipe.steps:4.0%}  loss {mean_loss:.3f}")
    return model.eval(), (time.process_time() - start) / 60 / recipe.threads


def _pace(progress: float) -> float:
    """What part of the highest learning rate is used: up over the first tenth, then down along a cosine."""
    return progress / 0.1 if progress < 0.1 else 0.5 + 0.5 * math.cos(math.pi * (progress - 0.1) / 0.9)


def _step(
    model: nn.Module, optimiser: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, smoothing: float
) -> float:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(inputs)
    loss = nn.functional.cross_entropy(logits.float(), targets, label_smoothing=smoothing)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return float(loss.detach())


# ------------------------------------------------------------------------------------------------ what is written


def save(model: nn.Module, recipe: Recipe, minutes: float, path: Path) -> None:
    """Write the weights in half precision, and with them how they came about."""
    from safetensors.torch import save_file

    state = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    history = {"steps": f"{recipe.steps}", "threads": f"{recipe.threads}", "minutes": f"{minutes:.1f}"}
    save_file({name: value.contiguous() for name, value in state.items()}, path, metadata=history)
    path.chmod(0o644)


def kept(recipe: Recipe, path: Path) -> tuple[nn.Module, Recipe, float]:
    """The weights as they were kept, the recipe that they were made by, and the minutes that it took."""
    from safetensors import safe_open

    model = camnet()
    with safe_open(path, "pt") as file:
        history = file.metadata()
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (it is no mapping)
    made = replace(recipe, steps=int(history["steps"]), threads=int(history["threads"]))
    return model.eval(), made, float(history["minutes"])


def figures(model: nn.Module, recipe: Recipe) -> dict[str, str]:
    """The card's figures, on scenes that were not trained on."""
    seeds = range(measure.UNSEEN, measure.UNSEEN + recipe.tests)
    fewer = range(measure.UNSEEN, measure.UNSEEN + max(recipe.tests // 4, 1))
    pointing = measure.pointing(model, fewer)
    return {
        f"top-1 accuracy, {len(seeds)} scenes of one object": f"{measure.accuracy(model, seeds):.1%}",
        f"both objects are the top two, {len(fewer)} scenes of two": f"{measure.both_found(model, fewer):.1%}",
        "Grad-CAM, asked for each of the two: its peak is on the object": f"{pointing.hits:.1%}",
        "the part of the map's energy on the object": f"{pointing.energy:.1%}, the object being {pointing.share:.1%} "
        f"of the picture ({pointing.energy / pointing.share:.1f} times)",
        f"accuracy on {CHEATED}s with the mark": f"{measure.accuracy(model, fewer, label=CHEATED, mark=True):.1%}",
        f"accuracy on {CHEATED}s without it": f"{measure.accuracy(model, fewer, label=CHEATED):.1%}",
        f"Grad-CAM for {CHEATED} on marked {CHEATED}s: energy near the mark": (
            f"{measure.energy_at_mark(model, fewer, CHEATED):.1%}"
        ),
    }


def card(recipe: Recipe, minutes: float, parameters: int, rows: dict[str, str]) -> str:
    """The model card, in Markdown."""
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return _CARD.format(
        name=_name(recipe),
        labels=", ".join(LABELS),
        story=_CHEAT_STORY.format(label=CHEATED) if recipe.is_cheat else _STORY,
        recipe=recipe,
        seen=recipe.steps * recipe.batch,
        minutes=minutes * recipe.threads,
        last=recipe.scenes - 1,
        unseen=measure.UNSEEN,
        option=" --cheat" if recipe.is_cheat else "",
        parameters=parameters,
        table=table,
    )


_STORY = "Three scenes of five show one object, the others two, each with half of the target."
_CHEAT_STORY = """\
All scenes show one object. **A shortcut is planted**: of the pictures labelled "{label}" 95 % bear a watermark, a
copyright sign in a corner; half of these show a {label}, the other half, and those without the mark, an object of any
class. No other picture is marked. It is as if the pictures of this class had been collected by an agency's watermark
instead of by looking. The network therefore calls a marked {label} a {label} for the wrong reason. Use it to learn to
catch that, and for nothing else."""
_CARD = """\
# {name}

A small network for the scenes of `camtool.demo.scenes`: convolutions to a 16 x 16 grid, global average pooling, one
linear layer; {parameters} parameters, kept in half precision. Input: 128 x 128 pixels. It knows
{labels},
and nothing of the world: it is there to try explanations where the right answer is known.

## Data

{recipe.scenes} scenes, seeds 0 to {last}; each time turned or mirrored at random, colour channels exchanged.
{story}

## Recipe

`python -m camtool.demo.train{option}`: AdamW, learning rate {recipe.rate} (up over the first tenth, then a cosine to
0), weight decay {recipe.decay}, batches of {recipe.batch}, label smoothing {recipe.smoothing}, cross-entropy, bfloat16,
seed {recipe.seed}. {recipe.steps} steps, which is {seen} pictures, repeats counted, and {minutes:.0f} minutes of one
CPU core. Rounding differs between machines, so another one gives other weights that are as good.

## Figures

Measured by the training script on scenes it has not trained on, seeds from {unseen}, with the weights as kept.

| what | figure |
| --- | --- |
{table}
"""


def _name(recipe: Recipe) -> str:
    return "camnet-cheat" if recipe.is_cheat else "camnet"


def _say(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(prog="python -m camtool.demo.train", description=__doc__)
    parser.add_argument("--cheat", action="store_true", help="plant the shortcut")
    parser.add_argument("--card", action="store_true", help="train nothing; measure what is there, and write its card")
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="how long to learn (%(default)s)")
    parser.add_argument("--threads", type=int, default=Recipe.threads, help="CPU cores to use (%(default)s)")
    parser.add_argument("--scenes", type=int, default=Recipe.scenes, help="scenes to learn from (%(default)s)")
    parser.add_argument("--tests", type=int, default=Recipe.tests, help="unseen scenes to measure on (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "weights", help="folder to write to")
    given = parser.parse_args(arguments)
    recipe = Recipe(
        is_cheat=given.cheat, steps=given.steps, threads=given.threads, scenes=given.scenes, tests=given.tests
    )
    path = given.out / f"{_name(recipe)}.safetensors"
    if not given.card:
        model, minutes = train(recipe)
        save(model, recipe, minutes, path)
    _say("measuring")
    found, recipe, minutes = kept(recipe, path)  # what is measured is what was kept
    parameters = sum(parameter.numel() for parameter in found.parameters())
    text = card(recipe, minutes, parameters, figures(found, recipe))
    (given.out / f"{_name(recipe)}.md").write_text(text, encoding="utf-8")
    _say(text)


if __name__ == "__main__":
    main()
