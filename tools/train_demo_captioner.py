"""Train the captioner of the demo: ``python tools/train_demo_captioner.py``.

Its vision tower is the demo's network, whose weights stay as they are. The projector, the language model and the
embedding of positions learn from scratch. All images are drawn from seeds. Two losses are added: the cross-entropy of
the caption's words, and that of the word at each token of the image, read from the token by the language model's head
in front of the first layer, between the layers, and behind the last one. On an idle CPU core this takes a few minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.demo.camnet import SIZE, WEIGHTS, prepare_images
from camtool.demo.captioner import (
    BACKGROUND,
    GRID,
    NETWORK,
    PROMPT,
    build_captioner,
    build_processor,
    load_captioner,
    write_caption,
)
from camtool.demo.scenes import Scene, draw_scene
from camtool.demo.shapes import LABELS
from tools import demo_accuracy as measure

FIRST_SEED = 100_000
"""First seed of the training scenes. The demo's network was trained on smaller ones, so its features there are not
those of scenes that it has never seen."""

METHODS = ("tam", "odam", "gradcam-elementwise", "hirescam", "layercam", "gradcam", "xgradcam", "raw-attention")
"""Methods whose pointing is measured for the card."""

_BATCH, _RATE, _DECAY, _WEIGHT = 32, 2e-3, 0.05, 0.5
"""Images in a step, the highest learning rate, weight decay, and the weight of the loss at the image's tokens."""

_CHUNK = 100
"""Number of scenes in a forward pass of the tower."""

_NO_OBJECT = len(LABELS)
"""Number of the class that a token without an object has."""


@dataclass(frozen=True)
class Examples:
    """The training set.

    Attributes:
        features: Of the tower, without positions, ``(S, 16, 16, 96)`` bfloat16.
        captions: Tokens of the captions, ``(S, 6)``, filled up with 0.
        words: The word at each token of the image, ``(S, 256)``.
    """

    features: Tensor
    captions: Tensor
    words: Tensor


# ------------------------------------------------------------------------------------------------------- the data


def describe_scene(scene: Scene) -> str:
    """Return the caption of a scene: its objects from left to right, by the middles of their boxes."""
    return write_caption([item.label for item in sorted(scene.objects, key=lambda item: item.box[0] + item.box[2])])


def label_tokens(scene: Scene) -> NDArray[np.int64]:
    """Return the class at each token ``(256,)``: of the object that covers half of its pixels or more, or none."""
    side = SIZE // GRID
    covers = [item.mask.reshape(GRID, side, GRID, side).mean((1, 3)) for item in scene.objects]
    classes = np.full((GRID, GRID), _NO_OBJECT, np.int64)
    for item, cover in zip(scene.objects, covers, strict=True):
        classes[cover >= 0.5] = item.index
    return classes.flatten()


def draw_examples(model: Any, count: int) -> Examples:
    """Draw the training set. One scene of four has a single object, the others two."""
    network, tokenizer = model.model.vision_tower.eval(), build_processor().tokenizer
    network.to(memory_format=torch.channels_last)
    numbers = torch.tensor(tokenizer.convert_tokens_to_ids([*LABELS, BACKGROUND]))
    features, captions, words = [], [], []
    for scenes in _draw_chunks(count):
        images = prepare_images(np.stack([scene.image for scene in scenes]))
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            grid = network.features(network.stem(images.contiguous(memory_format=torch.channels_last)))
        features.append(grid.permute(0, 2, 3, 1).bfloat16())
        captions += [_encode_caption(tokenizer, describe_scene(scene)) for scene in scenes]
        words.append(numbers[torch.from_numpy(np.stack([label_tokens(scene) for scene in scenes]))])
    return Examples(torch.cat(features), torch.tensor(captions), torch.cat(words))


def _draw_chunks(count: int) -> Iterator[list[Scene]]:
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    for start in range(0, count, _CHUNK):
        yield [draw_scene(seed, objects=1 if seed % 4 == 0 else 2) for seed in seeds[start : start + _CHUNK]]


def _encode_caption(tokenizer: Any, caption: str) -> list[int]:
    """Return the caption's tokens and the end, filled up to the length of a caption of two objects."""
    found = [*tokenizer(caption)["input_ids"], tokenizer.eos_token_id]
    return [*found, *[tokenizer.pad_token_id] * (6 - len(found))]


# --------------------------------------------------------------------------------------------------- the training


class _StoredFeatures(nn.Module):
    """The tower, but for its network: its input is what the network returned."""

    def __init__(self, tower: Any) -> None:
        super().__init__()
        self.rows, self.columns, self.embed = tower.rows, tower.columns, tower.embed

    def forward(self, pixel_values: Tensor, **_: Any) -> Any:
        """Return the output of the tower, with the tokens where LLaVA reads them."""
        return self.embed(pixel_values)


def train(model: Any, examples: Examples, steps: int) -> None:
    """Train the projector, the language model and the positions."""
    tower = model.model.vision_tower
    model.model.vision_tower = _StoredFeatures(tower)
    prompt = torch.tensor(build_processor().tokenizer(PROMPT.replace("<image>", "<image> " * GRID**2))["input_ids"])
    parameters = [*model.parameters()]
    optimizer = torch.optim.AdamW(parameters, weight_decay=_DECAY, betas=(0.9, 0.98))
    generator, started, mean = torch.Generator().manual_seed(0), time.perf_counter(), torch.zeros(2)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * _compute_rate_factor(step / steps)
        chosen = torch.randint(len(examples.features), (_BATCH,), generator=generator)
        losses = _compute_losses(model, examples, chosen, prompt)
        optimizer.zero_grad()
        (losses[0] + _WEIGHT * losses[1]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        mean += (losses.detach() - mean) / min(step + 1, 100)
        if step % 100 == 99:
            caption, words = mean.tolist()
            seconds = time.perf_counter() - started
            _print_line(f"{(step + 1) / steps:4.0%}  caption {caption:.3f}, image tokens {words:.3f}, {seconds:.0f} s")
    model.model.vision_tower = tower
    model.eval()


def _compute_losses(model: Any, examples: Examples, chosen: Tensor, prompt: Tensor) -> Tensor:
    """Return the cross-entropy of the caption's words, and that of the words at the image's tokens, ``(2,)``."""
    captions, words = examples.captions[chosen], examples.words[chosen].flatten()
    ids = torch.cat([prompt.expand(len(chosen), -1), captions], 1)
    output = model(
        input_ids=ids,
        attention_mask=(ids != 0).long(),
        pixel_values=examples.features[chosen].float(),
        output_hidden_states=True,
    )
    behind = output.logits[:, len(prompt) - 1 : -1].flatten(0, 1)
    caption = nn.functional.cross_entropy(behind, captions.flatten(), ignore_index=0)
    image, norm = slice(GRID**2), model.model.language_model.norm
    # The last hidden state is already normalized.
    read = [model.lm_head(norm(hidden[:, image])) for hidden in output.hidden_states[:-1]] + [output.logits[:, image]]
    return torch.stack(
        [caption, torch.stack([nn.functional.cross_entropy(each.flatten(0, 1), words) for each in read]).mean()]
    )


def _compute_rate_factor(progress: float) -> float:
    """Return the share of the highest learning rate: linear over the first twentieth, then a cosine to 0."""
    return progress / 0.05 if progress < 0.05 else 0.5 + 0.5 * math.cos(math.pi * (progress - 0.05) / 0.95)


def _print_line(text: str) -> None:
    """Write a line of progress to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


# ------------------------------------------------------------------------------------------------ what is written


def measure_captioner(model: Any, scenes: int) -> dict[str, measure.WordPointing]:
    """Return for each method how well the words point to their objects, on unseen scenes."""
    processor, seeds = build_processor(), range(measure.UNSEEN, measure.UNSEEN + scenes)
    return {
        method: measure.play_word_pointing_game(
            model, processor, seeds, method=method, prompt=PROMPT, token=SIZE // GRID
        )
        for method in METHODS
    }


def format_card(model: Any, history: dict[str, str], scenes: int) -> str:
    """Return the model card in Markdown, with figures that are measured on unseen scenes."""
    found = measure_captioner(model, scenes)
    rows = [f"| `{method}` | {each.hits:.1%} | {each.near:.1%} | {each.energy:.1%} |" for method, each in found.items()]
    first = next(iter(found.values()))
    stored = [value for name, value in model.state_dict().items() if not name.startswith(NETWORK)]
    count, last = int(history["scenes"]), FIRST_SEED + int(history["scenes"]) - 1
    return _CARD.format(
        grid=GRID,
        parameters=sum(value.numel() for value in stored),
        count=count,
        first=FIRST_SEED,
        last=last,
        background=BACKGROUND,
        rate=_RATE,
        decay=_DECAY,
        weight=_WEIGHT,
        batch=_BATCH,
        steps=history["steps"],
        images=int(history["steps"]) * _BATCH,
        minutes=history["minutes"],
        tests=scenes,
        unseen=measure.UNSEEN,
        named=first.named,
        wrong=first.wrong,
        words=first.words,
        share=first.share,
        table="\n".join(rows),
    )


_CARD = """\
# captioner

A small vision-language model for the scenes of `camtool.demo.scenes`, to try `camtool.tokens` on images whose objects
are known: a LLaVA of Hugging Face with a {grid} x {grid} grid of image tokens and a Llama of two layers. Its
vision tower is the network of the model `camnet`, with its weights, and an embedding of rows and columns. {parameters}
more parameters are stored in half precision. It answers the prompt `<image> what is shown ?`, e.g. "one fish and one
lightning", from left to right. It knows nothing else.

## Data

{count} scenes, seeds {first} to {last}. One of four shows one object, the others two.

## Recipe

`python tools/train_demo_captioner.py`: AdamW, learning rate {rate} (linear over the first twentieth, then a cosine to
0), weight decay {decay}, batches of {batch}, seed 0. {steps} steps, {images} images with repeats,
{minutes} minutes of one CPU core. The weights of `camnet` stay as they are. Rounding differs between machines, so a
second training gives other weights of the same quality.

**The loss has two parts.** The first is the cross-entropy of the caption's words. The second, times {weight}, is that
of the word at each token of the image: the token must predict the name of the object that covers half of it or more,
else the word "{background}". It is read by the language model's last norm and its head, in front of the first layer,
between the layers and behind the last one. So **the model was told where the objects are**, at the tokens of the
image, and maps that read words there (`tam`) show what was trained, on scenes that were not. Nothing was trained on
attention, on gradients or on maps.

## Figures

Measured by the training script on {tests} unseen scenes of two objects, seeds from {unseen}, with the stored
weights. The model names {named:.1%} of the objects; {wrong} words name others. The map of each of the {words}
right words is compared with the object: its highest pixel is on the object; it is there or at most one token
(8 pixels) beside it; the share of the heatmap's sum on the object, which is {share:.1%} of the image.

| method | peak on the object | within one token | heat on the object |
| --- | --- | --- | --- |
{table}
"""


def save_weights(model: Any, history: dict[str, str], path: Path) -> None:
    """Write the weights in half precision, without those of the demo's network."""
    from safetensors.torch import save_file

    state = {name: value.half() for name, value in model.state_dict().items() if not name.startswith(NETWORK)}
    save_file({name: value.contiguous() for name, value in state.items()}, path, metadata=history)
    path.chmod(0o644)


def read_history(path: Path) -> dict[str, str]:
    """Return the numbers of a training from its weights: scenes, steps, minutes."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        found: dict[str, str] = file.metadata()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and evaluate the model, and write its weights and model card."""
    parser = argparse.ArgumentParser(prog="train_demo_captioner.py", description=__doc__)
    parser.add_argument("--card", action="store_true", help="do not train; evaluate the stored weights")
    parser.add_argument("--scenes", type=int, default=12_000, help="training scenes (%(default)s)")
    parser.add_argument("--steps", type=int, default=1_200, help="training steps (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU cores to use (%(default)s)")
    parser.add_argument("--tests", type=int, default=500, help="unseen scenes for the evaluation (%(default)s)")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="folder to write to")
    given = parser.parse_args(arguments)
    path = given.out / "captioner.safetensors"
    if not given.card:
        torch.set_num_threads(given.threads)
        torch.manual_seed(0)
        model = build_captioner()
        _print_line(f"drawing {given.scenes} scenes")
        examples, started = draw_examples(model, given.scenes), time.perf_counter()
        train(model, examples, given.steps)
        minutes = f"{(time.perf_counter() - started) / 60:.0f}"
        save_weights(model, {"scenes": f"{given.scenes}", "steps": f"{given.steps}", "minutes": minutes}, path)
    _print_line("evaluating")
    model, _ = load_captioner(path)  # the weights in half precision, as they are stored
    text = format_card(model, read_history(path), given.tests)
    (given.out / "captioner.md").write_text(text, encoding="utf-8")
    _print_line(text)


if __name__ == "__main__":
    main()
