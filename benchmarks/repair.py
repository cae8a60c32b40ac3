"""Repairs against other ways to mend a network: ``python -m benchmarks repair``.

Networks of the worlds of ``python -m benchmarks audit_worlds`` that use a cue are audited with 250 new images, by the
kinds that name their cue. Half of these images are what a network is mended with. The ways:

* ``camtool.repair`` of the last layer, and of the norms as well (``norms``).
* ``same images``: the last layer is fitted again to the same images as they are, without changed ones.
* ``balanced groups``: to images as they are in which classes, and within a class those with the cue and those without
  it, count alike (deep feature reweighting, Kirichenko et al. 2022, arXiv 2204.02937). Groups are the true ones. Not
  possible where all images of the class have the cue.
* ``projection``: the direction of the cue in what the last layer receives is projected out (P-ClArC, Anders et al.
  2022, arXiv 1912.11425; the direction by regression of features on the presence of the cue, which is the true one).
* ``right reasons``: the whole network is trained on images as they are, and may not depend on the true region of the
  cue (Ross et al. 2017); not possible for a tint, which has no region.
* ``whole network``: it is trained on the changed images that ``camtool.repair`` learns from.

What counts is measured as in ``audit_worlds``, on 300 new images that are drawn without the cue and with it: *removal*
and *transplant* are the shares of answers of the class and of others that the cue changes, *accuracy* is that without
it. A mended network depends on the cue in no direction, so absolute values are compared. *Hits* are the shares of 100
images of the class that are recognized, without the cue and with it. The settings of ``camtool.repair`` were chosen on
``demo-cheat`` and on four networks of shapes on photos, so that world is not reported.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import camtool
from benchmarks.audit_worlds import CACHE, USED, Network, load, measure_use, plan_networks, stack
from benchmarks.audit_worlds_scenes import CUES, SIZE
from benchmarks.paired import describe_machine
from camtool.errors import MetricError
from camtool.evaluation.audit import Audit
from camtool.evaluation.audit.setup import read_inputs
from camtool.evaluation.repair.head import Examples, Linear, ScoreHead, refit
from camtool.evaluation.repair.running import RepairRun, choose_cues
from camtool.evaluation.repair.variants import iterate_batches
from camtool.evaluation.subject import Subject
from camtool.models import Loaded

RESULTS = Path(__file__).with_suffix(".json")

_REPORTED_ON = ("chests", "faces")

_AUDITED, _CLASS_IMAGES = 250, 100

# Training of the whole network: passes over the images, images of a step, and the step of Adam.
_EPOCHS, _BATCH, _RATE = 10, 50, 3e-4


@dataclass(frozen=True)
class Case:
    """A network that uses a cue, and the images that it is mended with.

    Attributes:
        loaded: The network.
        network: What is known of it.
        images: The audited images.
        labels: Their classes.
        masks: ``(N, H, W)``, 1 in the true region of the cue.
        has_cue: ``(N,)``, True for images with the cue.
        audit: The audit.
        half: The numbers of the images of the half that is learned from.
        changed: The changed images of ``camtool.repair``, ``(M, C, H, W)``, and their classes.
    """

    loaded: Loaded
    network: Network
    images: Sequence[np.ndarray[Any, Any]]
    labels: Sequence[int]
    masks: Tensor
    has_cue: Tensor
    audit: Audit
    half: Sequence[int]
    changed: tuple[Tensor, Tensor]

    @property
    def inputs(self) -> Tensor:
        """The images of the half, ``(H, C, height, width)``."""
        return stack([self.images[index] for index in self.half])

    @property
    def targets(self) -> Tensor:
        """Their classes."""
        return torch.tensor([self.labels[index] for index in self.half])

    def copy_model(self) -> nn.Sequential:
        """Return a copy of the network that may be changed."""
        model: nn.Sequential = copy.deepcopy(self.loaded.model)  # type: ignore[assignment]
        return model


def _prepare(network: Network, cache: Path) -> Case:
    """Raise MetricError if an audit finds nothing suspicious."""
    loaded = load(network, cache)
    images, labels, regions = network.draw("audit", _AUDITED)
    present = network.draw("audit", _AUDITED, planted=False)[0]
    has_cue = torch.tensor([bool((with_it != without).any()) for with_it, without in zip(images, present, strict=True)])
    masks = torch.from_numpy(np.stack([np.zeros((SIZE, SIZE)) if each is None else each for each in regions])).float()
    audit = camtool.audit(loaded, images, labels, kinds=CUES[network.cue].kinds)
    chosen, _ = choose_cues(audit)
    assert audit.settings is not None
    inputs = read_inputs(Subject(loaded), images, labels, None, audit.settings)
    run = inputs.start_run(None, passes=1, level=audit.level)
    repairing = RepairRun.start(run, chosen, audit)
    variants = [*chain.from_iterable(cue.list_variants("learned", 2, repairing.cues) for cue in repairing.cues)]
    batches = [*iterate_batches(repairing.images, variants)]
    changed = torch.cat([batch for batch, _ in batches])
    targets = torch.tensor([variant.record.target for _, kept in batches for variant in kept])
    half = [variant.record.index for variant in repairing.learned]
    return Case(loaded, network, images, labels, masks, has_cue, audit, half, (changed, targets))


def _repair(case: Case, layers: Any) -> nn.Module:
    model = camtool.repair(case.loaded, case.images, case.labels, case.audit, layers=layers).model
    assert isinstance(model, Loaded)
    return model.model


def _refit(case: Case, rows: Tensor) -> nn.Module:
    """Return a network whose last layer is fitted to images of the half as they are, in which classes count alike."""
    model = case.copy_model()
    with torch.no_grad():
        features = model[:-1](case.inputs[rows]).double()
    labels = nn.functional.one_hot(case.targets[rows], len(case.loaded.labels or ())).double()
    head = ScoreHead(str(len(model) - 1), "logits")
    head.write(model, refit(head.read(model), Examples(features, labels, features[:0], is_independent=False)))
    return model


def _fit_same_images(case: Case) -> nn.Module:
    return _refit(case, torch.arange(len(case.half)))


def _fit_balanced_groups(case: Case) -> nn.Module | None:
    is_class, has_cue = case.targets == case.network.label, case.has_cue[case.half]
    groups = [torch.nonzero(is_class & has).flatten() for has in (has_cue, ~has_cue)]
    if not len(groups[1]):
        return None
    # The smaller group is repeated.
    resized = [group[torch.arange(len(groups[0])) % len(group)] for group in groups]
    return _refit(case, torch.cat([torch.nonzero(~is_class).flatten(), *resized]))


def _project(case: Case) -> nn.Module:
    model, has_cue = case.copy_model(), case.has_cue[case.half].double()
    head = ScoreHead(str(len(model) - 1), "logits")
    with torch.no_grad():
        features = model[:-1](case.inputs).double()
    direction = (has_cue - has_cue.mean()) @ (features - features.mean(0))
    direction /= direction.norm()
    old, usual = head.read(model), features[has_cue == 0].mean(0)
    assert old.bias is not None
    effect = old.weight @ direction
    weight = old.weight - effect[:, None] * direction
    head.write(model, Linear(weight, old.bias + effect * (direction @ usual)))
    return model


def _train(case: Case, inputs: Tensor, targets: Tensor, masks: Tensor | None = None) -> nn.Module:
    """Return a network that is trained on images; masks ``(N, H, W)`` are where it must not look."""
    model, random = case.copy_model(), torch.Generator().manual_seed(case.network.number)
    weights = 1 / torch.bincount(targets, minlength=int(targets.max()) + 1).clamp_min(1).float()
    optimizer, scale = torch.optim.Adam(model.parameters(), _RATE), 0.0
    for rows in torch.cat([torch.randperm(len(inputs), generator=random) for _ in range(_EPOCHS)]).split(_BATCH):
        batch = inputs[rows].requires_grad_(masks is not None)
        outputs = model(batch)  # norms keep their statistics
        loss = cross_entropy(outputs, targets[rows], weights)
        if masks is not None:
            reasons = camtool.losses.right_reasons(outputs, batch, masks[rows])
            scale = scale or float(1 / reasons.detach().clamp_min(1e-9))  # at first it counts as a loss of 1
            loss = loss + scale * reasons
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def _train_for_right_reasons(case: Case) -> nn.Module | None:
    masks = case.masks[case.half]
    return _train(case, case.inputs, case.targets, masks) if masks.any() else None


def _train_whole_network(case: Case) -> nn.Module:
    inputs, targets = case.changed
    return _train(case, torch.cat([case.inputs, inputs]), torch.cat([case.targets, targets]))


_WAYS: dict[str, Callable[[Case], nn.Module | None]] = {
    "nothing": Case.copy_model,
    "camtool.repair": lambda case: _repair(case, "last"),
    "camtool.repair, norms": lambda case: _repair(case, "norms"),
    "same images": _fit_same_images,
    "balanced groups": _fit_balanced_groups,
    "projection": _project,
    "right reasons": _train_for_right_reasons,
    "whole network": _train_whole_network,
}


@torch.inference_mode()
def measure_class(model: nn.Module, network: Network) -> dict[str, float]:
    """Return which share of the class is recognized, without the cue and with it."""
    shares = {}
    for name, planted in (("hits without", False), ("hits with", True)):
        images = network.draw("truth", _CLASS_IMAGES, planted=planted, labels=[network.label] * _CLASS_IMAGES)[0]
        shares[name] = round(float((model(stack(images)).argmax(1) == network.label).double().mean()), 3)
    return shares


def measure_ways(network: Network, cache: Path) -> dict[str, Any] | None:
    """Return what each way does to a network; None for one that does not use its cue."""
    use = measure_use(load(network, cache).model, network)
    if max(use["removal"], use["transplant"]) < USED:
        return None
    entry = asdict(network) | {"ways": {}}
    try:
        case = _prepare(network, cache)
    except MetricError as error:
        return entry | {"not repaired": str(error)}
    for name, mend in _WAYS.items():
        start, model = time.process_time(), mend(case)
        if model is not None:
            seconds = round(time.process_time() - start, 1)
            entry["ways"][name] = (
                measure_use(model.eval(), network) | measure_class(model, network) | {"seconds": seconds}
            )
    return entry


def summarize(entries: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each way the number of networks, and how the effects and the accuracy change."""
    summary = {}
    for name in _WAYS:
        pairs = [(entry["ways"]["nothing"], entry["ways"][name]) for entry in entries if name in entry["ways"]]
        if pairs:
            summary[name] = {"networks": len(pairs), "median fall of transplant": _compute_fall(pairs)} | {
                key: _average([abs(after[key]) for _, after in pairs])
                for key in ("transplant", "removal", "hits without", "hits with")
            }
            summary[name]["change of accuracy"] = _average(
                [after["accuracy"] - before["accuracy"] for before, after in pairs]
            )
    return summary


def _compute_fall(pairs: Sequence[tuple[dict[str, float], dict[str, float]]]) -> float:
    """Return by how much the effect on other classes falls, as a share of what it was; the median over networks."""
    falls = [1 - abs(after["transplant"]) / before["transplant"] for before, after in pairs]
    return round(float(np.median(falls)), 3)


def _average(values: Sequence[float]) -> dict[str, float]:
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return {"mean": round(float(np.mean(values)), 3), "error": round(float(error), 3)}


def main(
    worlds: Annotated[str, typer.Option(help="The worlds, by comma.")] = ",".join(_REPORTED_ON),
    honest: Annotated[int, typer.Option(help="Honest networks of each world in the plan; they are not mended.")] = 12,
    planted: Annotated[int, typer.Option(help="Networks of each world and cue.")] = 2,
    cache: Annotated[Path, typer.Option(help="Folder of the weights.")] = CACHE,
    out: Annotated[Path, typer.Option(help="The JSON file. Networks in it are not mended again.")] = RESULTS,
) -> None:
    """Mend the networks that use a cue in each way, and write what this did."""
    torch.set_num_threads(1)
    entries = json.loads(out.read_text(encoding="utf-8"))["networks"] if out.exists() else []
    done = {(entry["world"], entry["number"]) for entry in entries}
    for network in plan_networks(worlds.split(","), honest, planted):
        if not network.cue or (network.world, network.number) in done:
            continue
        entry = measure_ways(network, cache)
        if entry is None:
            continue
        entries.append(entry)
        result = {"machine": describe_machine(1), "summary": summarize(entries), "networks": entries}
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(network.name, network.cue, json.dumps(entry["ways"]))
    print(json.dumps(summarize(entries), indent=1))


if __name__ == "__main__":
    typer.run(main)
