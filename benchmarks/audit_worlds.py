"""Audits of networks in small worlds: ``python -m benchmarks audit_worlds``.

What tells a shortcut from a part of the object was chosen in seven worlds, is reported on two others, and checked on
one that was drawn after them (``benchmarks/audit_worlds_scenes.py``). In each world networks of three architectures
learn classes from 1,200 images: honest ones, and ones in which 90 or 100 % of one class has a cue, and no other image.
``camtool.audit`` then looks at 250 new images of each network with its default options.

* An *alarm* is a suspicious finding, of any class.
* Whether a cue is *used* is measured on 300 new images that are drawn without and with it: ``removal`` is the share of
  the class's images that are answered with the class only with the cue, ``transplant`` that of the others'. It is used
  if one of them is above 20 %.
* A used cue is *found* if there is an alarm of its class, and *named* if one has the kind of the cue and, for a mark or
  a tag, its corner. *Beside* it are the other alarms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import camtool
from benchmarks.audit_worlds_scenes import CHECKED_ON, CHOSEN_ON, CUES, FIXED, REPORTED_ON, SIZE, WORLDS, Mask
from benchmarks.paired import describe_machine
from camtool.evaluation.audit import Finding
from camtool.evaluation.audit.statistics import compute_share
from camtool.models import Loaded

RESULTS = Path(__file__).with_suffix(".json")
CACHE = Path("worlds-cache")

_TRAINING, _EPOCHS, _AUDITED, _TRUTH = 1200, 10, 250, 300
USED = 0.2
_SEEDS = {"training": 0, "audit": 1, "truth": 2}


@dataclass(frozen=True)
class Network:
    """A network of the plan.

    Attributes:
        world: Its world.
        number: Its number in the world.
        cue: The cue, empty for an honest network.
        prevalence: Share of the class that has it.
        label: The class that has it.
        architecture: Its architecture.
    """

    world: str
    number: int
    cue: str
    prevalence: float
    label: int
    architecture: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.world.replace(' ', '-')}-{self.number:03}"

    def draw(
        self, purpose: str, count: int, *, planted: bool | None = None, labels: Sequence[int] | None = None
    ) -> tuple[list[np.ndarray[Any, Any]], list[int], list[Mask | None]]:
        """Return images as uint8, their labels, and where the cue is.

        Args:
            purpose: Training, audit or truth: they have no image in common.
            count: The number of images.
            planted: Whether the cue is drawn; by default as often as in training.
            labels: The classes; by default all in turns.
        """
        world, images, regions = WORLDS[self.world], list[np.ndarray[Any, Any]](), list[Mask | None]()
        targets = [*labels] if labels is not None else [number % len(world.labels) for number in range(count)]
        for number, label in enumerate(targets):
            random = np.random.default_rng([[*WORLDS].index(self.world), self.number, _SEEDS[purpose], number])
            image, region = world.draw(label, random), None
            has_cue = random.random() < (self.prevalence if label == self.label else 0)
            if self.cue and (has_cue if planted is None else planted):
                look = np.random.default_rng([[*WORLDS].index(self.world), self.number])
                image, region = CUES[self.cue].draw(image, look, random)
            images.append((np.clip(image, 0, 1) * 255).round().astype(np.uint8))
            regions.append(region)
        return images, targets, regions


def plan_networks(worlds: Sequence[str], honest: int, planted: int) -> Iterator[Network]:
    """Yield the networks of each world: honest ones, then as many of each cue."""
    for world in worlds:
        classes, architectures = len(WORLDS[world].labels), [*ARCHITECTURES]
        cues = [""] * honest + [cue for _ in range(planted) for cue in CUES]
        for number, cue in enumerate(cues):
            prevalence = (0.9, 1.0)[number // len(CUES) % 2] if cue else 0.0
            yield Network(world, number, cue, prevalence, (3 * number + 1) % classes, architectures[number % 3])


# --------------------------------------------------------------------------------------------------------- training


def _build_block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            _build_block(width, width, 1), nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.relu(x + self.block(x))
        return output


def _build_head(width: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]


def _build_plain(classes: int) -> nn.Sequential:
    blocks = [_build_block(*sizes) for sizes in ((3, 24, 2), (24, 48, 2), (48, 64, 1), (64, 96, 2), (96, 96, 1))]
    return nn.Sequential(*blocks, *_build_head(96, classes))


def _build_residual(classes: int) -> nn.Sequential:
    layers = [_build_block(3, 24, 2), _Residual(24), _build_block(24, 48, 2), _Residual(48), _build_block(48, 96, 2)]
    return nn.Sequential(*layers, _Residual(96), *_build_head(96, classes))


def _build_pooled(classes: int) -> nn.Sequential:
    layers = list[nn.Module]()
    for inputs, outputs in ((3, 24), (24, 48), (48, 96)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, *_build_head(96, classes))


ARCHITECTURES = {"plain": _build_plain, "residual": _build_residual, "pooled": _build_pooled}


def stack(images: Sequence[np.ndarray[Any, Any]]) -> Tensor:
    """Return images as the input of a network, in [-1, 1]."""
    return (torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous()


def train(network: Network) -> nn.Module:
    """Return a trained network."""
    images, labels, _ = network.draw("training", _TRAINING)
    inputs, targets = stack(images), torch.tensor(labels)
    torch.manual_seed(network.number)
    model = (
        ARCHITECTURES[network.architecture](len(WORLDS[network.world].labels))
        .train()
        .to(memory_format=torch.channels_last)
    )
    steps = torch.cat([torch.randperm(len(inputs)) for _ in range(_EPOCHS)]).split(50)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, len(steps))
    for rows in steps:
        batch = torch.where(torch.rand(len(rows), 1, 1, 1) < 0.5, inputs[rows], inputs[rows].roll(1, 3))
        logits = model(batch.contiguous(memory_format=torch.channels_last))
        loss = nn.functional.cross_entropy(logits, targets[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def load(network: Network, cache: Path) -> Loaded:
    """Return a network that is trained once."""
    from torchvision.transforms._presets import ImageClassification

    path = cache / f"{network.name}.safetensors"
    model = ARCHITECTURES[network.architecture](len(WORLDS[network.world].labels)).eval()
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        state = {name: value.contiguous() for name, value in train(network).state_dict().items()}
        save_file(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    model.load_state_dict(load_file(path))
    half = (0.5, 0.5, 0.5)
    transform = ImageClassification(crop_size=SIZE, resize_size=SIZE, mean=half, std=half)
    return Loaded(model, transform, WORLDS[network.world].labels, network.name)


# ------------------------------------------------------------------------------------------------------------ truth


@torch.inference_mode()
def measure_use(model: nn.Module, network: Network) -> dict[str, float]:
    """Return the accuracy on images without a cue, and the shares of answers that the cue changes."""
    images, labels, _ = network.draw("truth", _TRUTH, planted=False)
    plain, targets = model(stack(images)).argmax(1), torch.tensor(labels)
    result = {"accuracy": float((plain == targets).double().mean())}
    if network.cue:
        marked = model(stack(network.draw("truth", _TRUTH, planted=True)[0])).argmax(1)
        gained = (marked == network.label).double() - (plain == network.label).double()
        is_class = targets == network.label
        result |= {"removal": float(gained[is_class].mean()), "transplant": float(gained[~is_class].mean())}
    return {name: round(value, 3) for name, value in result.items()}


# ----------------------------------------------------------------------------------------------------------- audits


def audit_network(network: Network, cache: Path) -> dict[str, Any]:
    """Return what is known of a network, and what an audit of it says."""
    loaded, start = load(network, cache), time.process_time()
    images, labels, regions = network.draw("audit", _AUDITED)
    audit = camtool.audit(loaded, images, labels)
    label = WORLDS[network.world].labels[network.label]
    entry = asdict(network) | measure_use(loaded.model, network) | {"label": label}
    entry |= {"seconds": round(time.process_time() - start, 1), "passes": audit.passes}
    entry["findings"] = [_describe(finding) for finding in audit.findings]
    if not network.cue:
        return entry
    region = next((one for one in regions if one is not None), None)
    right = [_names_cue(finding, network, region) for finding in audit.suspects if finding.label == label]
    used = max(entry["removal"], entry["transplant"]) >= USED
    return entry | {"used": used, "found": bool(right), "named": any(right), "beside": len(audit.suspects) - sum(right)}


def _describe(finding: Finding) -> dict[str, Any]:
    sameness = None if finding.sameness is None else round(finding.sameness, 2)
    return {
        "key": finding.key,
        "is_suspicious": finding.is_suspicious,
        "sentence": finding.sentence,
        "sameness": sameness,
        "suspicions": [*finding.suspicions],
        "facts": [*finding.facts],
    }


def _names_cue(finding: Finding, network: Network, region: Mask | None) -> bool:
    """Return True if a finding of the class has the kind and the place of the cue."""
    if finding.kind not in CUES[network.cue].kinds:
        return False
    if network.cue not in FIXED or region is None:
        return True
    rows, columns = np.nonzero(region)
    words = ("upper", "lower")[int(rows.mean() > SIZE / 2)], ("left", "right")[int(columns.mean() > SIZE / 2)]
    return " ".join(words) in finding.name


def summarize(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the shares of honest networks with an alarm, and of used cues that are found and named."""
    honest = [any(finding["is_suspicious"] for finding in entry["findings"]) for entry in entries if not entry["cue"]]
    used = [entry for entry in entries if entry["cue"] and entry["used"]]
    summary = {"honest networks with an alarm": _share(honest)}
    summary |= {f"used cues that are {name}": _share([entry[name] for entry in used]) for name in ("found", "named")}
    beside = sum(entry["beside"] for entry in used)
    return summary | {"other alarms beside a cue": round(beside / len(used), 2) if used else None}


def _share(outcomes: Sequence[bool]) -> str:
    mean, low, high = (100 * share for share in compute_share(sum(outcomes), len(outcomes)))
    return f"{sum(outcomes)} of {len(outcomes)}: {mean:.0f} % ({low:.0f} to {high:.0f})"


def write_entries(path: Path, result: Mapping[str, Any]) -> None:
    """Write what was measured so far."""
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main(
    worlds: Annotated[str, typer.Option(help="The worlds, by comma.")] = ",".join(REPORTED_ON),
    honest: Annotated[int, typer.Option(help="Honest networks of each world.")] = 12,
    planted: Annotated[int, typer.Option(help="Networks of each world and cue.")] = 2,
    cache: Annotated[Path, typer.Option(help="Folder of the weights.")] = CACHE,
    out: Annotated[Path, typer.Option(help="The JSON file. Networks in it are not audited again.")] = RESULTS,
) -> None:
    """Train the networks, audit them, and write what was found."""
    torch.set_num_threads(1)
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"networks": []}
    entries = result["networks"]
    done = {(entry["world"], entry["number"]) for entry in entries}
    for network in plan_networks(worlds.split(","), honest, planted):
        if (network.world, network.number) in done:
            continue
        entries.append(audit_network(network, cache))
        sets = {"chosen on": CHOSEN_ON, "reported on": REPORTED_ON, "checked on": CHECKED_ON}
        parts = {name: [entry for entry in entries if entry["world"] in worlds] for name, worlds in sets.items()}
        summary = {name: summarize(part) for name, part in parts.items() if part}
        result = {"machine": describe_machine(1), "summary": summary, "networks": entries}
        write_entries(out, result)
        print(network.name, network.cue or "honest", *(finding["sentence"] for finding in entries[-1]["findings"]))
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    typer.run(main)
