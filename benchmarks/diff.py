"""Pairs of networks with and without a known difference: ``python -m benchmarks diff``.

Four groups of pairs, on scenes that no network was trained on and on which nothing was tuned:

* *cheat*: the demo's honest network and its cheat, in turns as old and new. The heat of hearts has to move to the
  watermark, or from it. Two classes of 20 scenes; the hearts have the watermark.
* *same*: a demo network and itself, exactly or but for rounding: autocast to bfloat16, weights in half precision,
  batch normalization folded into the convolutions, logits of twice the temperature, and int8 (dynamic, of the linear
  layer, with ``reciprocam`` as it has no gradients). Any finding is a false alarm.
* *planted*: a network of ``python -m benchmarks planted`` that uses its cue, and an honest one of the same
  architecture; a finding for the class with the cue counts. Two classes of 40 scenes with the cue as in training.
* *retrained*: two honest networks of one architecture, trained on other scenes. A finding is no false alarm, as these
  networks are different; the share of such pairs is what a retraining does.

What was measured is kept.
"""

from __future__ import annotations

import copy
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import camtool
from benchmarks.networks import write_between
from benchmarks.paired import describe_machine
from benchmarks.planted import CACHE, Network, get_weights_path, load_planted, plan_networks, read_entries
from benchmarks.planted import RESULTS as PLANTED
from camtool.demo.scenes import draw_scene
from camtool.demo.shapes import LABELS
from camtool.evaluation.audit.statistics import compute_share
from camtool.models import Loaded

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "diff.md"

GROUPS = {
    "cheat": "demo and its cheat",
    "same": "equal but for rounding",
    "planted": "planted cue",
    "retrained": "retrained",
}

_PAIRS = 20
_KIND = "planted: "
"""Before the name of a kind of planted cue, a row of its own."""
_FIRST_SCENE = 8_000_000_000
_CLASSES, _SCENES, _PLANTED_SCENES = ("heart", "star"), 20, 40
_VERSION = 2


@dataclass(frozen=True, eq=False)
class Pair:
    """Two models and images for them.

    Attributes:
        group: A key of :data:`GROUPS`.
        name: Its name in the group: a number, or those of the networks.
        kind: What differs.
        build: Returns the models, images, labels and the method.
        label: The class whose heat has to move; empty if none has to.
    """

    group: str
    name: str
    kind: str
    build: Callable[[], tuple[Any, Any, list[Any], list[str], str]]
    label: str = ""

    def measure(self) -> dict[str, Any]:
        """Compare the models, and return the numbers."""
        old, new, images, labels, method = self.build()
        start = time.perf_counter()
        result = camtool.diff(old, new, images, labels, method=method, pictures=0)
        labeled = [one for one in result.findings if one.label == self.label]
        return {
            "group": self.group,
            "name": self.name,
            "kind": self.kind,
            "found": bool(labeled),
            "findings": [one.sentence for one in result.findings],
            "unconfirmed": len(result.unconfirmed),
            "other classes": sum(one.label != self.label for one in result.findings),
            "moved": round(result.moved, 5),
            "correlation": round(result.correlation, 4),
            "other answers": len(result.other_answers),
            "passes": result.passes,
            "seconds": round(time.perf_counter() - start, 1),
        }


def main(
    only: Annotated[int, typer.Option(help="Number of pairs of each group, from the first.")] = _PAIRS,
    cache: Annotated[Path, typer.Option(help="Folder of the weights of python -m benchmarks planted.")] = CACHE,
    planted: Annotated[Path, typer.Option(help="What these networks use.")] = PLANTED,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="The JSON file. Pairs in it are kept.")] = RESULTS,
) -> None:
    """Compare the pairs, print a line for each, and write the numbers to a JSON file and to the page."""
    torch.set_num_threads(threads)
    stored = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    entries = {(one["group"], one["name"]): one for one in stored.get("pairs", ()) if stored["version"] == _VERSION}
    for pair in list_pairs(cache, planted, only):
        if (pair.group, pair.name) in entries:
            continue
        entry = entries[pair.group, pair.name] = pair.measure()
        summary = summarize([*entries.values()])
        content = {
            "machine": describe_machine(threads),
            "version": _VERSION,
            "summary": summary,
            "pairs": [*entries.values()],
        }
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"{pair.group:<9} {pair.name:>7} {pair.kind:<24} {entry['findings']} {entry['seconds']} s", flush=True)
    if out == RESULTS:
        write_between(PAGE, "diff", format_table(summarize([*entries.values()])))


def list_pairs(cache: Path, planted: Path, count: int) -> Iterator[Pair]:
    """Yield the pairs: of the demo, then of planted cues, each in turns with those without a change."""
    truth = read_entries(planted)
    networks = [one for one in plan_networks() if one.index in truth and get_weights_path(one, cache).exists()]
    used = [one for one in networks if truth[one.index]["used"] and not one.is_honest]
    honest = [one for one in networks if one.is_honest and not truth[one.index]["used"]]
    partners = [next((two for two in honest if two.architecture == one.architecture), None) for one in used]
    cheats = [(one, two) for one, two in zip(used, partners, strict=True) if two is not None]
    retrained = [
        (one, two)
        for place, one in enumerate(honest)
        for two in [next((other for other in honest[place + 1 :] if other.architecture == one.architecture), None)]
        if two is not None
    ]
    for number in range(count):
        yield _pair_cheat(number)
        yield _pair_same(number)
    for number in range(count):
        if number < len(cheats):
            yield _pair_planted("planted", number, *cheats[number], cache)
        if number < len(retrained):
            yield _pair_planted("retrained", number, *retrained[number], cache)


def _draw(number: int) -> tuple[list[Any], list[str]]:
    labels = [*_CLASSES] * _SCENES
    first = _FIRST_SCENE + number * len(labels)
    scenes = [draw_scene(first + place, classes=[label], mark=label == "heart") for place, label in enumerate(labels)]
    return [scene.image for scene in scenes], labels


def _pair_cheat(number: int) -> Pair:
    names = ("demo", "demo-cheat")[:: -1 if number % 2 else 1]
    build = lambda: (*map(camtool.load, names), *_draw(number), "faithcam")  # noqa: E731
    return Pair("cheat", str(number), " → ".join(names), build, "heart")


def _pair_same(number: int) -> Pair:
    change, method = [*CHANGES][number % len(CHANGES)], "faithcam"
    method = "reciprocam" if change == "int8" else method

    def build() -> tuple[Any, Any, list[Any], list[str], str]:
        old = camtool.load(("demo", "demo-cheat")[number // len(CHANGES) % 2])
        new = Loaded(CHANGES[change](copy.deepcopy(old.model)).eval(), old.transform, old.labels, change)
        return old, new, *_draw(100 + number), method

    return Pair("same", str(number), change, build)


def _pair_planted(group: str, number: int, one: Network, two: Network, cache: Path) -> Pair:
    def build() -> tuple[Any, Any, list[Any], list[str], str]:
        (first, draw, names), (second, *_) = load_planted(one, cache), load_planted(two, cache)
        chosen = [(one.label + step) % len(names) for step in (0, 1)]
        scenes = [scene for scene in draw(_PLANTED_SCENES * len(names)) if scene.label in chosen]
        models = (second, first) if number % 2 == 0 else (first, second)
        return *models, [scene.image for scene in scenes], [names[scene.label] for scene in scenes], "faithcam"

    kind = f"{one.kind} {one.prevalence} %" if group == "planted" else one.architecture
    return Pair(group, f"{one.index}-{two.index}", kind, build, LABELS[one.label] if group == "planted" else "")


# ------------------------------------------------------------------------------------------- what makes no difference


class _Autocast(nn.Module):
    """A model that runs under autocast to bfloat16."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits in float32."""
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            logits: Tensor = self.model(x)
        return logits.float()


def _round(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda model: model.to(dtype).float()


def _fold(model: Any) -> Any:
    for module in model.modules():
        for left, right in (("0", "1"), ("first", "second")):
            pair = getattr(module, left, None), getattr(module, right, None)
            if isinstance(pair[0], nn.Conv2d) and isinstance(pair[1], nn.BatchNorm2d):
                setattr(module, left, fuse_conv_bn_eval(*pair))
                setattr(module, right, nn.Identity())
    return model


def _heat_up(model: Any) -> Any:
    with torch.no_grad():
        model.head.weight.div_(2)
        model.head.bias.div_(2)
    return model


def _quantize(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda model: model,
    "bfloat16 autocast": _Autocast,
    "bfloat16 weights": _round(torch.bfloat16),
    "int8": _quantize,
    "float16 weights": _round(torch.float16),
    "folded batch norm": lambda model: _fold(model.eval()),
    "twice the temperature": _heat_up,
}
"""Name → changes a model such that it looks at the same."""


# ------------------------------------------------------------------------------------------------------------- tables


def summarize(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the numbers of each group, and of planted cues by kind."""
    rows = [(title, [one for one in entries if one["group"] == group]) for group, title in GROUPS.items()]
    kinds = sorted({one["kind"].rpartition(" ")[0].rpartition(" ")[0] for one in entries if one["group"] == "planted"})
    rows += [
        (
            f"{_KIND}{kind}",
            [one for one in entries if one["group"] == "planted" and one["kind"].startswith(f"{kind} ")],
        )
        for kind in kinds
    ]
    return [{"pairs": title, **_summarize(group)} for title, group in rows if group]


def _summarize(entries: list[dict[str, Any]]) -> dict[str, Any]:
    count = len(entries)
    found, alarms = (sum(bool(one[name]) for one in entries) for name in ("found", "findings"))
    return {
        "count": count,
        "found": [found, *(round(end, 3) for end in compute_share(found, count)[1:])],
        "any finding": [alarms, *(round(end, 3) for end in compute_share(alarms, count)[1:])],
        "moved": round(float(np.mean([one["moved"] for one in entries])), 4),
        "most moved": max(one["moved"] for one in entries),
        "other answers": sum(one["other answers"] for one in entries),
        "seconds": round(float(np.median([one["seconds"] for one in entries])), 1),
    }


def format_table(summary: list[dict[str, Any]]) -> str:
    """Return the numbers as a table in Markdown."""
    lines = [
        f"<!-- numbers: benchmarks/{RESULTS.name} -->",
        "| pairs | count | change found | any finding | heat moved | answers that differ | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    kinds = [row for row in summary if row["pairs"].startswith(_KIND)]
    for row in [row for row in summary if row not in kinds]:
        shares = [f"{k} ({100 * low:.0f} to {100 * high:.0f} %)" for k, low, high in (row["found"], row["any finding"])]
        shares[0] = shares[0] if "planted" in row["pairs"] or "cheat" in row["pairs"] else "-"
        lines.append(
            f"| {row['pairs']} | {row['count']} | {' | '.join(shares)} | {100 * row['moved']:.1f} % | "
            f"{row['other answers']} | {row['seconds']:.0f} |"
        )
    found = [f"{row['pairs'].removeprefix(_KIND)} {row['found'][0]} of {row['count']}" for row in kinds]
    lines += ["", f"Found by kind of planted cue: {', '.join(found)}."] if found else []
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
