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

Networks of ImageNet have the cues of ``python -m benchmarks known_cues`` on photos. As nobody trained them with these,
a new last layer is fitted to three tenths of the photos as a user would do it: it tells animals from things, by what
the network itself answers to the clean photos, and 90 % of the things have the cue. Half of the photos are audited, and
the rest are those by which is measured; the parts are drawn three times. Only the ways that change the last layer alone
are compared.

    python -m benchmarks repair --photos PHOTOS --weights mobilenet_v2=FILE
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import camtool
from benchmarks.audit_worlds import CACHE, USED, Network, load, measure_use, plan_networks, stack, write_entries
from benchmarks.audit_worlds_scenes import CUES, SIZE, Mask
from benchmarks.known_cues import CUES as PHOTO_CUES
from benchmarks.known_cues import AnimalOrNot, read_photos
from benchmarks.paired import describe_machine
from camtool.errors import MetricError
from camtool.evaluation.audit import Audit
from camtool.evaluation.audit.setup import prepare_run
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


_LABELS = ("animal", "thing")

# Shares of the photos for a new last layer and for the audit, and of the things that have a cue; and the kinds of
# findings that may name it.
_TRAINED, _SHOWN, _PREVALENCE = 0.3, 0.5, 0.9
_KINDS = {"bars": ("place", "mark", "color"), "black frame": ("border",), "text": ("place", "mark", "color")}


@dataclass(frozen=True)
class PhotoNetwork(Network):
    """A network of ImageNet with a new last layer, and photos.

    Attributes:
        photos: The photos with their classes, in an order drawn at random.
    """

    photos: Sequence[tuple[Image.Image, int]]

    def draw(
        self, purpose: str, count: int, *, planted: bool | None = None, labels: Sequence[int] | None = None
    ) -> tuple[list[np.ndarray[Any, Any]], list[int], list[Mask | None]]:
        """Return at most a number of the photos for a purpose, of one of the classes if they are given."""
        first, last = (round(share * len(self.photos)) for share in (_TRAINED, _TRAINED + _SHOWN))
        part = {"training": slice(first), "audit": slice(first, last), "truth": slice(last, None)}[purpose]
        chosen = [pair for pair in self.photos[part] if labels is None or pair[1] in labels][:count]
        random = np.random.default_rng(self.number)
        has_cue = [random.random() < _PREVALENCE * label if planted is None else planted for _, label in chosen]
        pairs = zip(chosen, has_cue, strict=True)
        images = [np.asarray(PHOTO_CUES[self.cue](photo) if has else photo) for (photo, _), has in pairs]
        return images, [label for _, label in chosen], [None] * len(chosen)


class _Features(nn.Module):
    """What the last layer of a network of ImageNet receives for images in [-1, 1], averaged over the grid."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.features = network.features
        self.mean, self.deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]

    def forward(self, images: Tensor) -> Tensor:
        """Return features ``(N, C)`` of images ``(N, 3, H, W)``."""
        features: Tensor = self.features(((images + 1) / 2 - self.mean) / self.deviation)
        return features.mean((2, 3))


def build_photo_networks(name: str, file: str, folder: Path, draws: int) -> Iterator[tuple[PhotoNetwork, Loaded]]:
    """Yield a network of ImageNet with a last layer that learned each cue, on some draws of the parts of the photos."""
    photos, loaded = read_photos(folder), camtool.load(name, file)
    joined, transform = AnimalOrNot(loaded.model).eval(), loaded.transform
    assert transform is not None
    with torch.inference_mode():
        labels = [int(joined(transform(photo)[None]).argmax()) for photo in photos]
    for number, (draw, cue) in enumerate(product(range(draws), PHOTO_CUES)):
        pairs = [(photos[row], labels[row]) for row in np.random.default_rng(draw).permutation(len(photos))]
        network = PhotoNetwork("ImageNet", number, cue, _PREVALENCE, 1, name, pairs)
        yield network, _fit_last_layer(network, loaded.model)


def _fit_last_layer(network: PhotoNetwork, trained: nn.Module) -> Loaded:
    images, labels, _ = network.draw("training", len(network.photos))
    trunk = _Features(trained).eval()
    with torch.no_grad():
        features = torch.cat([trunk(part) for part in stack(images).split(_BATCH)]).double()
    one_hot = nn.functional.one_hot(torch.tensor(labels), len(_LABELS)).double()
    new = Linear(torch.zeros(len(_LABELS), features.shape[1]).double(), torch.zeros(len(_LABELS)).double())
    fitted = refit(new, Examples(features, one_hot, features[:0], is_independent=False))
    model = nn.Sequential(trunk, nn.Linear(features.shape[1], len(_LABELS))).eval()
    ScoreHead("1", "logits").write(model, fitted)
    return Loaded(model, lambda photo: stack([np.asarray(photo)])[0], _LABELS, f"{network.architecture} {network.cue}")


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


def _prepare(network: Network, loaded: Loaded) -> Case:
    """Raise MetricError if an audit finds nothing suspicious."""
    images, labels, regions = network.draw("audit", _AUDITED)
    present = network.draw("audit", _AUDITED, planted=False)[0]
    has_cue = torch.tensor([bool((with_it != without).any()) for with_it, without in zip(images, present, strict=True)])
    masks = torch.from_numpy(np.stack([np.zeros((SIZE, SIZE)) if each is None else each for each in regions])).float()
    audit = _audit_photos(loaded, images, labels, network) if isinstance(network, PhotoNetwork) else None
    audit = audit or camtool.audit(loaded, images, labels, kinds=CUES[network.cue].kinds)
    chosen, _ = choose_cues(audit)
    assert audit.settings is not None
    run = prepare_run(Subject(loaded), images, labels, None, audit.settings, passes=1, level=audit.level)
    run.open_state(None)
    repairing = RepairRun.start(run, chosen, audit)
    variants = [*chain.from_iterable(cue.list_variants("learned", 2, repairing.cues) for cue in repairing.cues)]
    batches = [*iterate_batches(repairing.images, variants)]
    changed = torch.cat([batch for batch, _ in batches])
    targets = torch.tensor([variant.record.target for _, kept in batches for variant in kept])
    half = [variant.record.index for variant in repairing.learned]
    return Case(loaded, network, images, labels, masks, has_cue, audit, half, (changed, targets))


def _audit_photos(loaded: Loaded, images: Sequence[Any], labels: Sequence[int], network: Network) -> Audit:
    """Return an audit with few controls, in which a user calls findings of the class with the cue a shortcut."""
    audit = camtool.audit(loaded, images, labels, kinds=_KINDS[network.cue], controls=5, passes=4_000)
    if not audit.suspects:
        for finding in audit.findings:
            audit = audit.mark(finding.key, "shortcut" if finding.target == network.label else "object")
    return audit


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


_WAYS_OF_LAST_LAYER = ("nothing", "camtool.repair", "same images", "balanced groups", "projection")


@torch.inference_mode()
def measure_class(model: nn.Module, network: Network) -> dict[str, float]:
    """Return which share of the class is recognized, without the cue and with it."""
    shares = {}
    for name, planted in (("hits without", False), ("hits with", True)):
        images = network.draw("truth", _CLASS_IMAGES, planted=planted, labels=[network.label] * _CLASS_IMAGES)[0]
        shares[name] = round(float((model(stack(images)).argmax(1) == network.label).double().mean()), 3)
    return shares


def measure_ways(network: Network, loaded: Loaded, ways: Sequence[str]) -> dict[str, Any] | None:
    """Return what each way does to a network; None for one that does not use its cue."""
    use = measure_use(loaded.model, network)
    if max(use["removal"], use["transplant"]) < USED:
        return None
    entry = {each.name: getattr(network, each.name) for each in fields(Network)} | {"ways": {}}
    try:
        case = _prepare(network, loaded)
    except MetricError as error:
        return entry | {"not repaired": str(error)}
    for name, mend in ((name, _WAYS[name]) for name in ways):
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
    photos: Annotated[Path | None, typer.Option(help="Folder with photos, for networks of ImageNet alone.")] = None,
    weights: Annotated[list[str] | None, typer.Option(help="NAME=FILE of a network of ImageNet.")] = None,
    draws: Annotated[int, typer.Option(help="Draws of the photos that are learned from, audited and answered.")] = 3,
    cache: Annotated[Path, typer.Option(help="Folder of the weights.")] = CACHE,
    out: Annotated[Path, typer.Option(help="The JSON file. Networks in it are not mended again.")] = RESULTS,
) -> None:
    """Mend the networks that use a cue in each way, and write what this did."""
    torch.set_num_threads(1)
    planned: Iterator[tuple[Network, Loaded]]
    if photos is None:
        planned = ((each, load(each, cache)) for each in plan_networks(worlds.split(","), honest, planted) if each.cue)
    else:
        pairs = (each.split("=", 1) for each in weights or ())
        planned = chain.from_iterable(build_photo_networks(name, file, photos, draws) for name, file in pairs)
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"networks": []}
    entries = result["networks"]
    done = {(entry["world"], entry["number"], entry["architecture"]) for entry in entries}
    for network, loaded in planned:
        if (network.world, network.number, network.architecture) in done:
            continue
        entry = measure_ways(network, loaded, [*_WAYS] if photos is None else _WAYS_OF_LAST_LAYER)
        if entry is None:
            continue
        entries.append(entry)
        parts = {"summary": [one for one in entries if one["world"] != "ImageNet"]}
        parts["summary of ImageNet"] = [one for one in entries if one["world"] == "ImageNet"]
        summaries = {name: summarize(part) for name, part in parts.items() if part}
        write_entries(out, {"machine": describe_machine(1), **summaries, "networks": entries})
        print(network.name, network.cue, json.dumps(entry), flush=True)


if __name__ == "__main__":
    typer.run(main)
