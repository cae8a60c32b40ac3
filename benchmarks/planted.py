"""Networks with planted shortcuts, and honest ones: ``python -m benchmarks planted``.

The ground truth for audits. 96 networks learn ten classes of 64-pixel scenes, where one class has a cue of one of eight
kinds (``benchmarks/planted_scenes.py``) in 100, 90, 70 or 50 % of its scenes; 3 % of the other classes' scenes have it,
too. 100 honest networks learn scenes without a cue, or with one in half of the scenes of all classes alike. They stand
in a fixed order, mixed, so that the first N are a fair sample. What was trained is kept; a second start goes on.

The first layers are those of the honest demo network; the last block and the head are new; all weights are trained.
Planted is not used: 200 unseen scenes of the class and 200 of others are drawn with and without the cue. ``removal``
is the share of the class's scenes that are answered with the class only with the cue, less those only without it, and
the mean change of its probability; ``transplant`` is the same on the others' scenes. A cue is used if one of these is
above its floor (20 % of the answers, 10 points of probability) with its whole interval of 95 %, not used if all are
below, else null. A cue that no training scene had counts as not used.

A benchmark of audits is a loop over them:

    for network in plan_networks()[:6]:
        loaded, draw, labels = load_planted(network, cache)
        scenes = draw(400)  # unseen ones, with the cue as often as in training: image, label, region
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from benchmarks.paired import describe_machine
from benchmarks.planted_scenes import KINDS, RARE, SIZE, Cue, CueScene, is_chosen
from camtool.demo.camnet import CamNet, build_camnet, load_honest_model, prepare_images
from camtool.demo.random_numbers import RandomNumbers
from camtool.demo.shapes import LABELS
from camtool.models import Loaded
from tools.train_demo_models import compute_rate_factor

RESULTS = Path(__file__).with_suffix(".json")
CACHE = Path("planted-cache")
PREVALENCES = (100, 90, 70, 50)
ARCHITECTURES = ("coarse stem", "fine stem", "no batch norm", "grid head")

SHARE_FLOOR, PROBABILITY_FLOOR = 0.2, 0.1
"""Effects above which a cue is used."""

_ROUNDS, _HONEST, _PAIRS = 3, 100, 200
_RECIPE = {"scenes": 1200, "epochs": 6, "batch": 64, "rate": 2e-3, "decay": 0.02, "smoothing": 0.05, "version": 2}
_TRAINING, _TRUTH, _AUDIT, _STRIDE = 3_000_000_000, 4_000_000_000, 5_000_000_000, 10_000
"""First seeds of scenes for training, truth and audits; each network has 10,000 of its own."""


@dataclass(frozen=True)
class Network:
    """A network of the plan.

    Attributes:
        index: Its place in the order.
        kind: Kind of the cue.
        prevalence: Percent of the class's scenes with the cue, in training and in audits.
        elsewhere: Percent of the other classes' scenes with it.
        label: Index of the class.
        architecture: A name in :data:`ARCHITECTURES`.
    """

    index: int
    kind: str
    prevalence: float
    elsewhere: float
    label: int
    architecture: str

    @property
    def is_honest(self) -> bool:
        """True if the cue says nothing of the class."""
        return self.prevalence == self.elsewhere

    @property
    def cue(self) -> Cue:
        """The cue, with a look of the network's own."""
        return Cue(self.kind, self.index)

    def draw_scenes(self, first_seed: int, count: int) -> list[CueScene]:
        """Draw scenes of all classes in turns, with the cue as often as planted."""
        start = first_seed + self.index * _STRIDE
        return [self._draw_scene(start + number, number % len(LABELS)) for number in range(count)]

    def _draw_scene(self, seed: int, label: int) -> CueScene:
        share = (self.prevalence if label == self.label else self.elsewhere) / 100
        return self.cue.draw(seed, label, is_planted=is_chosen(seed, share))


def main(
    only: Annotated[int, typer.Option(help="Number of networks, from the first of the order; 0 for all.")] = 0,
    cache: Annotated[Path, typer.Option(help="Folder of the weights.")] = CACHE,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="The JSON file. Networks in it are kept if their weights exist.")] = RESULTS,
) -> None:
    """Train the networks, measure what they use, print a line for each, and write the numbers to a JSON file."""
    torch.set_num_threads(threads)
    cache.mkdir(parents=True, exist_ok=True)
    entries = read_entries(out)
    for network in plan_networks()[: only or None]:
        if network.index in entries and get_weights_path(network, cache).exists():
            continue
        entries[network.index] = asdict(network) | prepare_network(network, cache)
        ordered = [entries[index] for index in sorted(entries)]
        result = {"machine": describe_machine(threads), "recipe": _RECIPE, "networks": ordered}
        _write(out, json.dumps(result, indent=1) + "\n")
        print(_format(entries[network.index]), flush=True)


def plan_networks() -> tuple[Network, ...]:
    """Return all networks in their order: planted and honest ones in turns, the kinds mixed."""
    random = RandomNumbers(0, 24)
    cells = [(kind, prevalence) for kind in KINDS for prevalence in PREVALENCES]
    planted = [(*cell, 100 * RARE) for _ in range(_ROUNDS) for cell in random.shuffle(cells)]
    alike = [KINDS[number // 2 % len(KINDS)] for number in range(_HONEST)]
    honest = [(kind, 50 * (number % 2), 50 * (number % 2)) for number, kind in enumerate(alike)]
    pairs = [cell for pair in zip(planted, honest, strict=False) for cell in pair]
    order = [*pairs, *honest[len(planted) :]]
    return tuple(
        Network(index, *cell, random.draw_below(len(LABELS)), _choose_architecture(cell[0], random))
        for index, cell in enumerate(order)
    )


def _choose_architecture(kind: str, random: RandomNumbers) -> str:
    """Return a random architecture; for positions the one that sees them, as a global average hides them."""
    architecture = random.choose(ARCHITECTURES)
    return "grid head" if kind == "position" else architecture


def load_planted(network: Network, cache: Path) -> tuple[Loaded, Callable[[int], list[CueScene]], tuple[str, ...]]:
    """Return a trained network, a function that draws scenes for an audit, and the names of the classes.

    Raises:
        FileNotFoundError: The network was not trained; ``python -m benchmarks planted`` does so.
    """
    from torchvision.transforms._presets import ImageClassification

    model = build_network(network.architecture)
    model.load_state_dict(load_file(get_weights_path(network, cache)))
    half = (0.5, 0.5, 0.5)
    transform = ImageClassification(crop_size=SIZE, resize_size=SIZE, mean=half, std=half)
    loaded = Loaded(model.float().eval(), transform, LABELS, f"planted-{network.index:03}")
    return loaded, lambda count: network.draw_scenes(_AUDIT, count), LABELS


def prepare_network(network: Network, cache: Path) -> dict[str, Any]:
    """Train a network, keep its weights in half precision, and return what was measured with these."""
    model, seconds = train(network)
    state = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    path = get_weights_path(network, cache)
    temporary = path.with_suffix(".part")
    save_file({name: value.contiguous() for name, value in state.items()}, temporary)
    temporary.replace(path)
    return measure_truth(load_planted(network, cache)[0].model, network) | {"seconds": round(seconds, 1)}


def get_weights_path(network: Network, cache: Path) -> Path:
    """Return the path of a network's weights."""
    return cache / f"{network.index:03}.safetensors"


def read_entries(path: Path) -> dict[int, dict[str, Any]]:
    """Return index to entry of what was measured with the same recipe."""
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {entry["index"]: entry for entry in result.get("networks", ()) if result["recipe"] == _RECIPE}


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


# --------------------------------------------------------------------------------------------------------- training


class GridHeadNet(CamNet):
    """The demo's network with a linear layer on 4 x 4 averages, which sees where things are."""

    def __init__(self, base: CamNet) -> None:
        super().__init__()
        self.stem, self.features = base.stem, base.features
        self.head = nn.Linear(16 * self.head.in_features, len(LABELS))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, 10) of images (N, 3, 64, 64)."""
        pooled = nn.functional.adaptive_avg_pool2d(self.features(self.stem(x)), 4)
        logits: Tensor = self.head(pooled.flatten(1))
        return logits


def build_network(architecture: str) -> CamNet:
    """Return the demo's network for 64 pixels, with a grid of 16 x 16, a new last block and a new head.

    "coarse stem" has the strides 2, 2, 1. "fine stem" has 1, 2, 2 and computes on 64 pixels what the demo's network
    computes on an image of twice the size, enlarged by repeated pixels. "no batch norm" is "coarse stem" with the batch
    normalization folded into the convolutions; it trains half as long again at half the rate. "grid head" is "coarse
    stem" with a linear layer on 4 x 4 averages.
    """
    model, fresh = load_honest_model().model.float().eval(), build_camnet().eval()
    assert isinstance(model, CamNet)
    if architecture == "fine stem":
        first = model.stem[0][0]
        for axis in (2, 3):
            low, middle, high = first.weight.data.unbind(axis)
            first.weight.data = torch.stack([low, middle + high, torch.zeros_like(low)], axis)
        first.stride = (1, 1)
    else:
        model.features[0][0].stride = (1, 1)
    model.head, model.features[2] = fresh.head, fresh.features[2]
    if architecture == "no batch norm":
        halves = (half for block in model.features[1:] for half in (block.first, block.second))
        for pair in (*model.stem, model.features[0], *halves):
            pair[0], pair[1] = fuse_conv_bn_eval(pair[0], pair[1]), nn.Identity()
    return GridHeadNet(model) if architecture == "grid head" else model


def train(network: Network) -> tuple[nn.Module, float]:
    """Return a network trained on its scenes, and the seconds of one core that this took, with the drawing."""
    start, batch, is_slow = time.process_time(), int(_RECIPE["batch"]), network.architecture == "no batch norm"
    # Networks without batch normalization are given smaller and more steps; the full rate was not tried.
    rate, epochs = _RECIPE["rate"] * (0.5 if is_slow else 1), int(_RECIPE["epochs"] * (1.5 if is_slow else 1))
    scenes = network.draw_scenes(_TRAINING, int(_RECIPE["scenes"]))
    inputs, labels = _stack(scenes), torch.tensor([scene.label for scene in scenes])
    torch.manual_seed(network.index)
    model = build_network(network.architecture).train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=_RECIPE["decay"])
    chosen = torch.cat([torch.randperm(len(inputs)) for _ in range(epochs)]).split(batch)
    for step, rows in enumerate(chosen, 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * compute_rate_factor(step / len(chosen))
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(inputs[rows].contiguous(memory_format=torch.channels_last))
        loss = nn.functional.cross_entropy(logits.float(), labels[rows], label_smoothing=_RECIPE["smoothing"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), time.process_time() - start


def _stack(scenes: Sequence[CueScene]) -> Tensor:
    return prepare_images(np.stack([scene.image for scene in scenes]))


# ------------------------------------------------------------------------------------------------------------ truth


def measure_truth(model: nn.Module, network: Network, pairs: int = _PAIRS) -> dict[str, Any]:
    """Return how the answers on unseen scenes depend on the cue, and whether the network uses it.

    Args:
        model: It takes (N, 3, 64, 64) and returns (N, 10).
        network: The network's cue and class.
        pairs: The number of scenes of the class, and of the other classes.
    """
    others = [label for label in range(len(LABELS)) if label != network.label]
    labels = [network.label] * pairs + [others[number % len(others)] for number in range(pairs)]
    plain, marked = (_predict(model, network, labels, is_planted=planted) for planted in (False, True))
    answers = torch.stack([plain.argmax(1), marked.argmax(1)])
    right = (answers == torch.tensor(labels)).double()
    own, other = right[:, :pairs].mean(1), right[:, pairs:].mean(1)
    accuracy = (own + other * len(others)) / len(LABELS)
    effect = ((answers[1] == network.label).double() - (answers[0] == network.label).double()).numpy()
    change = (marked - plain)[:, network.label].double().numpy()
    result: dict[str, Any] = {
        "accuracy": {"clean": round(float(accuracy[0]), 3), "cue": round(float(accuracy[1]), 3)},
        "class accuracy": {"clean": round(float(own[0]), 3), "cue": round(float(own[1]), 3)},
        "changed answers": round(float((answers[0] != answers[1])[:pairs].double().mean()), 3),
    }
    for name, part in (("removal", slice(None, pairs)), ("transplant", slice(pairs, None))):
        result[name] = {"share": _estimate(effect[part]), "probability": _estimate(change[part])}
    is_absent = network.prevalence == 0
    return result | {"used": False if is_absent else is_used(result["removal"], result["transplant"])}


@torch.inference_mode()
def _predict(model: nn.Module, network: Network, labels: Sequence[int], *, is_planted: bool) -> Tensor:
    """Return the probabilities (N, 10) on unseen scenes of these classes."""
    start = _TRUTH + network.index * _STRIDE
    scenes = [network.cue.draw(start + i, label, is_planted=is_planted) for i, label in enumerate(labels)]
    return torch.cat([model(batch).float().softmax(1) for batch in _stack(scenes).split(100)])


def _estimate(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """Return the mean and its interval of 95 %."""
    mean, half = float(values.mean()), 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5
    return [round(mean, 3), round(mean - half, 3), round(mean + half, 3)]


def is_used(*effects: dict[str, list[float]]) -> bool | None:
    """Return True if one effect is surely above its floor, False if all are surely below, else ``None``."""
    floors = {"share": SHARE_FLOOR, "probability": PROBABILITY_FLOOR}
    bounds = [(effect[name], floor) for effect in effects for name, floor in floors.items()]
    if any(low >= floor for (_, low, _), floor in bounds):
        return True
    return False if all(high < floor for (_, _, high), floor in bounds) else None


def _format(entry: dict[str, Any]) -> str:
    effects = {name: [entry[name][unit][0] for unit in ("share", "probability")] for name in ("removal", "transplant")}
    shares = "  ".join(f"{name} {share:+.2f} {change:+.2f}" for name, (share, change) in effects.items())
    used = {True: "used", False: "not used", None: "unclear"}[entry["used"]]
    name = f"{entry['index']:3} {entry['kind']:<17} {entry['prevalence']:3.0f}/{entry['elsewhere']:.0f} %"
    accuracy = f"{entry['architecture']:<13} accuracy {entry['accuracy']['clean']:.2f}"
    return f"{name}  {accuracy}  {shares}  {used}, {entry['seconds']} s"


if __name__ == "__main__":
    typer.run(main)
