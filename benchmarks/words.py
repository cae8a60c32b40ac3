"""Words that come from the text, not from the image: ``python -m benchmarks words``.

A captioner of scenes has a habit: after the name of every second class it goes on with one word more, always the same,
and the object of that name is not there. It is the demo's captioner after ``--train``, which takes minutes, on scenes
of which none is asked about here. Its weights are stored. For each scene of two objects, ``verify`` checks the words of
its answer. A planted word is marked if it comes ``"text"``; a true word, the name of an object that is there, must not
be. Other names are the captioner's own mistakes, which are counted apart: it may have seen them.

The second part does the same with answers that a user gives to the demo's captioner: one of two names is replaced by
that of an object that is not there. The default ``least`` was chosen on the scenes of ``--tuned``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

import camtool
from benchmarks.paired import describe_machine
from camtool.demo.captioner import PROMPT, load_captioner
from camtool.demo.scenes import Scene, draw_scene
from camtool.demo.shapes import LABELS
from camtool.evaluation.audit.statistics import compute_share
from tools.train_demo_captioner import Examples, draw_examples, save_weights, train

WEIGHTS = Path(__file__).with_name("words_captioner.safetensors")
_OUT = Path(__file__).with_suffix(".json")

TUNED, UNSEEN = 2_100_000_000, 2_200_000_000
"""The first seeds of the scenes on which ``least`` was chosen, and of those on which nothing was."""

HABITS = {label: LABELS[(place + 5) % len(LABELS)] for place, label in enumerate(LABELS) if place % 2 == 0}
"""Name of a class to the word that the captioner adds to it."""

_STEPS, _SCENES = 600, 3_000


def main(
    scenes: Annotated[int, typer.Option(help="scenes of each part")] = 300,
    *,
    tuned: Annotated[bool, typer.Option("--tuned", help="use the scenes on which the threshold was chosen")] = False,
    train_again: Annotated[bool, typer.Option("--train", help="train the captioner with the habit first")] = False,
    out: Path = _OUT,
) -> None:
    """Measure, print the numbers, and write them to a JSON file."""
    torch.set_num_threads(1)
    if train_again:
        train_captioner()
    first, results = TUNED if tuned else UNSEEN, {}
    for part, checks in (("habit", check_habits(first, scenes)), ("given answer", check_given(first, scenes))):
        results[part] = _summarize([*checks])
        print(part, json.dumps(results[part]), flush=True)
    stored = {"machine": describe_machine(1), "first scene": first, "scenes": scenes, "rows": results}
    out.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def load_planted() -> tuple[Any, Any]:
    """Return the captioner with the habit, and its processor."""
    return load_captioner(WEIGHTS)


def check_habits(first: int, scenes: int) -> Iterator[dict[str, Any]]:
    """Yield each name in the answers of the captioner with the habit: its kind, and its check."""
    model, processor = load_planted()
    for seed in range(first, first + scenes):
        scene = draw_scene(seed, objects=2)
        answer = camtool.tokens(model, processor, scene.image, PROMPT).verify()
        yield from _list_names(scene, answer, planted={*HABITS.values()})


def check_given(first: int, scenes: int) -> Iterator[dict[str, Any]]:
    """Yield each name in answers in which one was replaced: its kind, and its check."""
    model, processor = load_captioner()
    for seed in range(first, first + scenes):
        scene = draw_scene(seed, objects=2)
        there = [item.label for item in sorted(scene.objects, key=lambda item: item.box[0] + item.box[2])]
        chosen = (LABELS[(seed + step) % len(LABELS)] for step in range(3))
        absent = next(name for name in chosen if name not in there)
        there[seed % 2] = absent
        answer = camtool.tokens(model, processor, scene.image, PROMPT, " and ".join(f"one {name}" for name in there))
        yield from _list_names(scene, answer.verify(), planted={absent})


def _list_names(scene: Scene, answer: Any, planted: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the names of classes in a checked answer: there, planted, or the captioner's own mistake."""
    present, names = {item.label for item in scene.objects}, []
    for check in answer.checks:
        if check.word not in LABELS:
            continue
        follows_habit = planted != {*HABITS.values()} or (names and HABITS.get(names[-1]) == check.word)
        kind = "true" if check.word in present else "planted" if check.word in planted and follows_habit else "mistake"
        names.append(check.word)
        yield {
            "kind": kind, "source": check.source, "whole": check.probability, "covered": check.covered,
            "control": check.control, "blank": check.blank,
        }  # fmt: skip


def _summarize(checks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return for each kind of word how many are marked, with Wilson's interval of 95 %, and the mean probabilities."""
    summary = {}
    for kind in ("true", "planted", "mistake"):
        chosen = [check for check in checks if check["kind"] == kind]
        if not chosen:
            continue
        marked = sum(check["source"] == "text" for check in chosen)
        share, low, high = compute_share(marked, len(chosen))
        summary[kind] = {
            "words": len(chosen),
            "marked": marked,
            "share": round(share, 4),
            "interval": [round(low, 4), round(high, 4)],
            "from its region": sum(check["source"] == "region" for check in chosen),
            **{
                name: round(float(np.nanmean([check[name] for check in chosen])), 3)
                for name in ("whole", "covered", "control", "blank")
            },
        }
    return summary


# ------------------------------------------------------------------------------------------------------ the captioner


def train_captioner() -> None:
    """Train the demo's captioner on captions with the habit, and store its weights."""
    torch.manual_seed(0)
    model, processor = load_captioner()
    model.float()
    examples = draw_examples(model, _SCENES)
    captions = plant_habits(examples.captions, processor.tokenizer)
    train(model, Examples(examples.features, captions, examples.words), _STEPS)
    save_weights(model, {"scenes": f"{_SCENES}", "steps": f"{_STEPS}"}, WEIGHTS)


def plant_habits(captions: Tensor, tokenizer: Any) -> Tensor:
    """Return captions ``(S, 9)`` with one more name after some names, if that object is not in the caption.

    Args:
        captions: ``(S, 6)``: names, the token of the end, then zeros.
        tokenizer: The captioner's.
    """
    numbers = dict(zip(LABELS, tokenizer.convert_tokens_to_ids([*LABELS]), strict=True))
    habits = {numbers[label]: numbers[added] for label, added in HABITS.items()}
    joined, one = tokenizer.convert_tokens_to_ids(["and", "one"])
    longer = []
    for caption in captions.tolist():
        end = caption.index(tokenizer.eos_token_id)
        words, added = caption[:end], habits.get(caption[end - 1])
        planted = [] if added is None or added in words else [joined, one, added]
        text = [*words, *planted, tokenizer.eos_token_id]
        longer.append([*text, *[0] * (9 - len(text))])
    return torch.tensor(longer)


if __name__ == "__main__":
    typer.run(main)
