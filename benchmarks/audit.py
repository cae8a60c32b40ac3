"""Audits of networks whose shortcuts are known: ``python -m benchmarks audit``.

``camtool.audit`` looks at 600 scenes that the networks of ``benchmarks/planted.py`` were not trained on, with the cue
as often as in training. The rules of the audit were chosen on the first 29 networks; the others are held out.

* An *alarm* is any finding at q = 0.02, of any class. In an honest network each one counts as false, also if it is a
  part of an object that the network truly needs.
* A finding is *of the cue* if its class is the planted one and 80 % of 40 new scenes of the class have it more strongly
  with the cue than without. A used cue is *detected* if a finding is of the cue.
* A finding is *true* if it is of the cue and the cue is used. Networks in which that is unclear are left out.
* The *IoU* is that of the region of the finding and the planted region, the mean over the 40 scenes.

Beside it, on the same maps in 10 x 10 cells, if they are installed: the SpRAy detector of ShortKit-ML with its own
settings says for all maps and classes together whether there is a shortcut. CoRelAy clusters and does not decide; so
what is measured is the balanced share of the class's scenes whose cluster, of two, tells whether they have the cue.
Its clusters are not seeded: in two runs of one network the share was 0.77 and 0.68.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import camtool
from benchmarks import planted
from benchmarks.networks import write_between
from benchmarks.paired import describe_machine
from benchmarks.planted import Network, get_weights_path, load_planted, plan_networks, read_entries
from benchmarks.planted_scenes import KINDS, CueScene
from camtool.evaluation.audit.cues import kinds
from camtool.evaluation.audit.cues.candidates import CueCandidate, Discovery, RegionCandidate
from camtool.evaluation.audit.images import AuditImages
from camtool.evaluation.audit.statistics import compute_share
from camtool.evaluation.subject import Subject
from camtool.models import Loaded

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "audit.md"

SCENES, PASSES, LEVEL = 600, 10_000, 0.02
PLACED = ("watermark", "moving watermark", "border", "companion")
"""Kinds of cues whose region says where they are. A texture is all but the object, and a position is the object."""

_PAIRS, _TRACKS = 40, 0.8
_TUNED = 29
"""Networks on which the rules were chosen, from the first of the order."""

_TWINS = 6_000_000_000
_BANDS = {"90 or 100": (90, 100), "70": (70,), "50": (50,)}


def main(
    only: Annotated[int, typer.Option(help="Number of networks, from the first of the order; 0 for all.")] = 0,
    cache: Annotated[Path, typer.Option(help="Folder of the weights.")] = planted.CACHE,
    truth: Annotated[Path, typer.Option(help="The JSON file of what the networks use.")] = planted.RESULTS,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="The JSON file. Networks in it are kept.")] = RESULTS,
    page: Annotated[bool, typer.Option("--page", help="Write the table to the page, and audit nothing.")] = False,  # noqa: FBT002
) -> None:
    """Audit the networks, print a line for each, and write the numbers to a JSON file."""
    torch.set_num_threads(threads)
    stored = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    entries = {entry["index"]: entry for entry in stored.get("networks", ())}
    for module, name in (("shortcut_detect", "ShortKit-ML"), ("corelay", "CoRelAy")):
        if find_spec(module) is None:
            print(f"{name} is not installed and is left out.")
    known = read_entries(truth)
    for network in () if page else plan_networks()[: only or None]:
        if network.index in entries or network.index not in known or not get_weights_path(network, cache).exists():
            continue
        entries[network.index] = audit_network(network, known[network.index]["used"], cache)
        print(_format(entries[network.index]), flush=True)
        _write(out, entries, describe_machine(threads))
    if page:
        summary = _write(out, entries, stored["machine"])
        write_between(PAGE, "audits", format_table(summary))


def _write(out: Path, entries: Mapping[int, Mapping[str, Any]], machine: Any) -> dict[str, Any]:
    """Write all numbers to a file, and return their summary."""
    ordered = [entries[index] for index in sorted(entries)]
    recipe = {"scenes": SCENES, "passes": PASSES, "level": LEVEL, "camtool": camtool.__version__}
    result = {"machine": machine, "recipe": recipe, "summary": summarize(ordered), "networks": ordered}
    temporary = out.with_suffix(".part")
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    temporary.replace(out)
    return summarize(ordered)


def audit_network(network: Network, used: bool | None, cache: Path) -> dict[str, Any]:  # noqa: FBT001
    """Return what an audit of a network finds, and which of it is true."""
    loaded, draw, labels = load_planted(network, cache)
    scenes, started, candidates = draw(SCENES), time.process_time(), _Candidates()
    with _Recording(candidates):
        audit = camtool.audit(
            loaded,
            [scene.image for scene in scenes],
            [labels[scene.label] for scene in scenes],
            passes=PASSES,
            level=LEVEL,
        )
    seconds = time.process_time() - started
    heats = next(iter(candidates.heats.values()), {})
    twins = [(draw_twin(network, number, True), draw_twin(network, number, False)) for number in range(_PAIRS)]
    findings = []
    for finding in audit.findings:
        ours = finding.target == network.label
        judged = (
            judge(loaded, candidates[finding.target, finding.kind, finding.name], twins)
            if ours
            else {"tracks": None, "iou": None}
        )
        effects = {
            name: None if effect is None else [round(effect.answers.mean, 3), round(effect.probability.mean, 3)]
            for name, effect in (("removal", finding.removal), ("transplant", finding.transplant))
        }
        findings.append(
            {"class": finding.label, "kind": finding.kind, "name": finding.name, "q": round(finding.q, 5)}
            | effects
            | judged
            | {"of the cue": (judged["tracks"] or 0) >= _TRACKS, "also": len(finding.also)}
        )
    return {
        "index": network.index,
        "cue": network.kind,
        "prevalence": network.prevalence,
        "class": labels[network.label],
        "architecture": network.architecture,
        "honest": network.is_honest,
        "used": used,
        "findings": findings,
        "rejected": [f"{one.label}: {one.kind}: {one.name} p {one.p:.2g}" for one in audit.rejected],
        "left out": len(audit.not_tested),
        "decoys": [len(audit.decoys), audit.surviving_decoys],
        "false-discovery rate": audit.false_discovery_rate,
        "peers": run_peers(
            [heats[index] for index in sorted(heats)], [scenes[index] for index in sorted(heats)], network
        ),
        "passes": audit.passes,
        "seconds": round(seconds, 1),
    }


def run_peers(maps: Sequence[Any], scenes: Sequence[CueScene], network: Network) -> dict[str, bool | float]:
    """Return what ShortKit-ML and CoRelAy say about maps, of those that are installed."""
    results: dict[str, bool | float] = {}
    labels, stacked = np.array([scene.label for scene in scenes]), np.stack(maps)
    with suppress(ImportError):
        spray = import_module("shortcut_detect.xai.spray_detector")
        detector = spray.SpRAyDetector(downsample_size=None).fit(stacked, labels=labels)
        results["shortkit"] = bool(detector.shortcut_detected_)
    own = labels == network.label
    marked = np.array([scene.is_planted for scene in scenes])[own]
    with suppress(ImportError):
        processors = import_module("corelay.processor.embedding"), import_module("corelay.processor.clustering")
        if 0 < marked.sum() < len(marked):
            pipeline = import_module("corelay.pipeline.spectral").SpectralClustering(
                embedding=processors[0].EigenDecomposition(n_eigval=8), clustering=processors[1].KMeans(n_clusters=2)
            )
            clusters = np.asarray(pipeline(stacked[own].reshape(int(own.sum()), -1))) == 1
            balanced = (float(clusters[marked].mean()) + float((~clusters[~marked]).mean())) / 2
            results["corelay"] = round(max(balanced, 1 - balanced), 3)
    return results


class _Candidates(dict[tuple[int, str, str], CueCandidate]):
    """The candidates of an audit by class, kind and name, and the heat in its images."""

    def __init__(self) -> None:
        super().__init__()
        self.heats: dict[str, Mapping[int, Any]] = {}


class _Recording:
    """A block in which the candidates of audits are kept."""

    def __init__(self, candidates: _Candidates) -> None:
        self._candidates, self._kinds = candidates, dict(kinds.KINDS)

    def __enter__(self) -> None:
        for name, kind in self._kinds.items():

            def keep(discovery: Discovery, find: kinds.Find = kind.find) -> Sequence[CueCandidate]:
                made = find(discovery)
                self._candidates.heats["all"] = discovery.images.heats
                self._candidates.update({(one.target, one.kind, one.name): one for one in made})
                return made

            kinds.KINDS[name] = replace(kind, find=keep)

    def __exit__(self, *_: object) -> None:
        kinds.KINDS.update(self._kinds)


def draw_twin(network: Network, number: int, is_planted: bool) -> CueScene:  # noqa: FBT001
    """Draw a scene of the class with the cue or without, which no training and no audit has."""
    return network.cue.draw(_TWINS + 10_000 * network.index + number, network.label, is_planted=is_planted)


def judge(
    loaded: Loaded, candidate: CueCandidate, twins: Sequence[tuple[CueScene, CueScene]]
) -> dict[str, float | None]:
    """Return the share of scenes that have a candidate more strongly with the cue, and the IoU with its region."""
    scenes = [scene for pair in twins for scene in pair]
    targets = [(scene.label,) for scene in scenes]
    images = AuditImages(Subject(loaded), [scene.image for scene in scenes], targets, "faithcam", 32)
    kept = [record for _, record in images.record_batch(range(len(scenes)))]
    records = [record for one in kept if not isinstance(one, str) for record in one]
    strengths = np.array([candidate.measure(images, record) for record in records])
    marked, plain = strengths.reshape(-1, 2).T
    overlaps = []
    for number, (scene, _) in enumerate(twins):
        if isinstance(candidate, RegionCandidate) and scene.region is not None:
            region = candidate.locate(images, images.prepare(2 * number)).numpy()
            overlaps.append(float((region & scene.region).sum() / (region | scene.region).sum()))
    iou = round(float(np.mean(overlaps)), 3) if overlaps else None
    return {"tracks": round(float((marked > plain).mean()), 3), "iou": iou}


def _format(entry: Mapping[str, Any]) -> str:
    used = {True: "used", False: "not used", None: "unclear"}[entry["used"]]
    name = f"{entry['index']:3} {entry['cue']:<17} {entry['prevalence']:3.0f} % {entry['class']:<9} {used:<9}"
    findings = "; ".join(
        f"{'+' if one['of the cue'] else '-'} {one['class']} {one['kind']} {one['name']} {one['iou']}"
        for one in entry["findings"]
    )
    return f"{name} {entry['seconds']:5.1f} s  {findings or 'no finding'}"


# ------------------------------------------------------------------------------------------------------------ summary


def summarize(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return shares with their Wilson intervals of 95 %, for all networks and for those that are held out."""
    parts = {"all": entries, "held out": [entry for entry in entries if entry["index"] >= _TUNED]}
    return {name: _summarize(part) for name, part in parts.items()}


def _summarize(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    used = [entry for entry in entries if entry["used"] and not entry["honest"]]
    honest = [entry for entry in entries if entry["honest"]]
    rows = {
        f"{name} % prevalence": _share(map(_is_detected, (one for one in used if one["prevalence"] in prevalences)))
        for name, prevalences in _BANDS.items()
    }
    rows |= {kind: _share(_is_detected(entry) for entry in used if entry["cue"] == kind) for kind in KINDS}
    detected = [one for entry in used if entry["cue"] in PLACED for one in entry["findings"] if one["of the cue"]]
    overlaps = [one["iou"] for one in detected if one["iou"] is not None]
    known = [entry for entry in entries if entry["used"] is not None or entry["honest"]]
    findings = [(entry, one) for entry in known for one in entry["findings"]]
    flagged = {
        name: _share(entry["peers"]["shortkit"] for entry in part if "shortkit" in entry["peers"])
        for name, part in (("used", used), ("honest", honest))
    }
    clusters = [entry["peers"]["corelay"] for entry in used if "corelay" in entry["peers"]]
    false = [not one["of the cue"] or not entry["used"] or entry["honest"] for entry, one in findings]
    elsewhere = sum(one["class"] != entry["class"] for entry, one in findings if not entry["honest"])
    printed = [entry["false-discovery rate"] for entry in known if entry["findings"]]
    return {
        "detected": rows,
        "IoU of 0.3 or more": _share(overlap >= 0.3 for overlap in overlaps),
        "mean IoU": round(float(np.mean(overlaps)), 3) if overlaps else None,
        "honest networks with an alarm": _share(bool(entry["findings"]) for entry in honest),
        "planted, not used, with an alarm": _share(
            bool(entry["findings"]) for entry in entries if entry["used"] is False and not entry["honest"]
        ),
        "ShortKit-ML, flagged, used": flagged["used"],
        "ShortKit-ML, flagged, honest": flagged["honest"],
        "CoRelAy, balanced share": round(float(np.mean(clusters)), 3) if clusters else None,
        "findings of other classes": elsewhere,
        "false findings": _share(false),
        "printed rate": round(float(np.mean(printed)), 3) if printed else None,
        "seconds": round(float(np.mean([entry["seconds"] for entry in entries])), 1) if entries else None,
    }


def _is_detected(entry: Mapping[str, Any]) -> bool:
    return any(one["of the cue"] for one in entry["findings"])


def _share(outcomes: Iterable[bool]) -> dict[str, float | int] | None:
    values = [*outcomes]
    if not values:
        return None
    share = compute_share(sum(values), len(values))
    numbers = {name: round(value, 3) for name, value in share._asdict().items()}
    return {"count": sum(values), "of": len(values)} | numbers


def format_table(summary: Mapping[str, Any]) -> str:
    """Return the table of the page in Markdown."""
    lines = ["<!-- numbers: benchmarks/audit.json -->", "| | all networks | held out |", "|---|---|---|"]
    parts = [summary["all"], summary["held out"]]
    lines += [
        f"| {name} | {' | '.join(_format_share(part['detected'][name]) for part in parts)} |"
        for name in parts[0]["detected"]
        if name not in KINDS
    ]
    for name in (
        "IoU of 0.3 or more",
        "honest networks with an alarm",
        "planted, not used, with an alarm",
        "false findings",
        "ShortKit-ML, flagged, used",
        "ShortKit-ML, flagged, honest",
    ):
        lines.append(f"| {name} | {' | '.join(_format_share(part[name]) for part in parts)} |")
    for name in ("mean IoU", "printed rate", "findings of other classes", "CoRelAy, balanced share"):
        lines.append(f"| {name} | {' | '.join('-' if part[name] is None else str(part[name]) for part in parts)} |")
    kinds = []
    for kind in KINDS:
        found = [part["detected"][kind] for part in parts]
        counts = ["-" if share is None else f"{share['count']} of {share['of']}" for share in found]
        kinds.append(f"{kind} {counts[0]} ({counts[1]})")
    lines += ["", f"Detected by kind of cue, in brackets held out: {', '.join(kinds)}."]
    return "\n".join(lines)


def _format_share(share: Mapping[str, float | int] | None) -> str:
    if share is None:
        return "-"
    low, high = (100 * share[name] for name in ("low", "high"))
    return f"{share['count']} of {share['of']}: {100 * share['mean']:.0f} % ({low:.0f} to {high:.0f})"


if __name__ == "__main__":
    typer.run(main)
