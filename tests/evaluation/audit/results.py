"""Results of audits that are made by hand, and pictures for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from camtool.evaluation.audit.result import Audit, Finding
from camtool.evaluation.audit.trials import Effect
from camtool.evaluation.leaderboard.table import Interval
from camtool.rendering.image_writing import write_image


def build_finding(**changes: Any) -> Finding:
    """Return a finding: covering changes 75 % of the answers, controls 10 %; pasting 50 % of 30 images."""
    removal = Effect(20, 16, Interval(0.75, 0.5, 0.9), 0.1, Interval(0.4, 0.3, 0.5), 0.0002)
    transplant = Effect(30, 30, Interval(0.5, 0.33, 0.67), 0.0, Interval(0.3, 0.2, 0.4), 0.001)
    finding = Finding(
        key="heart: place: the lower right corner",
        kind="place",
        label="heart",
        target=5,
        name="the lower right corner",
        area=0.09,
        present=20,
        class_count=25,
        removal=removal,
        transplant=transplant,
        p=0.0004,
        q=0.002,
        smallest_share=0.2,
        facts=("same place in all images", "small"),
        sameness=0.9,
        suspicions=("the same pixels in all images",),
        images=("a.png", "b.png"),
        without=("c.png",),
        accuracy=(0.9, 0.6),
        by_group={"site a": (15, 15), "site b": (10, 5)},
        accuracy_by_group={"site a": (1.0, float("nan")), "site b": (0.6, 0.6)},
    )
    return replace(finding, **changes)


def build_audit(*findings: Finding, **changes: Any) -> Audit:
    """Return an audit with two findings, or these."""
    second = build_finding(key="star: patch: a patch", kind="patch", label="star", target=8, name="a patch")
    rejected = build_finding(key="drop: place: the center", label="drop", p=0.3, q=0.4, smallest_share=float("inf"))
    audit = Audit(
        findings or (build_finding(), second),
        (rejected, replace(rejected, removal=None, accuracy=(float("nan"), 0.5), accuracy_by_group={})),
        (build_finding(key="decoy", p=0.7, accuracy=None, accuracy_by_group={}, area=None),),
        0,
        0.5,
        ("'cross': too few images.",),
        ("100 images are 90 independent groups.",),
        100,
        0.02,
        12345,
        0,
        "camtool audit photos --model demo",
    )
    return replace(audit, **changes)


def write_pictures(folder: Path, *keys: str, name: str = "a.png") -> None:
    """Write pictures for findings as an audit does: a pair of red, then blue, and a single one."""
    files = [f"index_files/{number}.jpg" for number in range(3)]
    for number, file in enumerate(files):
        write_image(folder / file, np.full((48, 64, 3), (255 * (number == 0), 0, 200), np.uint8))
    answers = [{"label": "heart", "probability": 0.9}, {"label": "drop", "probability": 0.4}]
    pair = {"name": name, "label": "heart", "files": files[:2], "answers": answers}
    single = {"name": name, "label": "heart", "files": files[2:], "answers": [{"label": "star", "probability": None}]}
    content = {key: {"covered": [pair], "otherwise": [single], "similar": []} for key in keys}
    (folder / "index_files/pictures.json").write_text(json.dumps(content), encoding="utf-8")
