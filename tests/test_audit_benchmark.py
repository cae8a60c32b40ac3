"""The benchmark of audits: its shares by hand, and stored numbers that are measured again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.torch import save_file

from benchmarks import audit, planted
from benchmarks.planted import plan_networks
from camtool.evaluation.audit.cues.place import PlaceCandidate
from camtool.evaluation.audit.images import GRID

AGAIN = (33, 36, 40)
"""An honest network, one that uses a tint and one that uses a position: six would take over three minutes."""


def make_entry(index, *, honest=False, used=True, cue="watermark", prevalence=90, findings=(), rate=None):
    made = [{"class": label, "iou": iou, "of the cue": is_cue} for label, iou, is_cue in findings]
    return {
        "index": index,
        "cue": cue,
        "prevalence": prevalence,
        "class": "heart",
        "honest": honest,
        "used": used,
        "findings": made,
        "peers": {},
        "false-discovery rate": rate,
        "seconds": 2.0,
    }


def test_the_summary_by_hand():
    summary = audit.summarize(
        [
            make_entry(0, findings=[("heart", 0.5, True), ("star", None, False)], rate=0.1),
            make_entry(2, findings=[("heart", 0.2, True)], rate=0.3),
            make_entry(4),
            make_entry(6, used=None, findings=[("heart", None, False)], rate=0.9),
            make_entry(31, honest=True, used=False, findings=[("star", None, False)], rate=0.2),
            make_entry(33, honest=True, used=False),
        ]
    )["all"]
    counts = {
        name: (share["count"], share["of"])
        for name, share in summary.items()
        if isinstance(share, dict) and "of" in share
    }
    assert (summary["detected"]["90 or 100 % prevalence"]["count"], summary["detected"]["watermark"]["of"]) == (2, 3)
    assert summary["detected"]["50 % prevalence"] is None
    assert counts["honest networks with an alarm"] == (1, 2)
    assert counts["IoU of 0.3 or more"] == (1, 2)
    assert counts["false findings"] == (2, 4)  # the network whose use is unclear is left out
    assert summary["findings of other classes"] == 1
    assert summary["printed rate"] == pytest.approx(0.2)
    assert audit.summarize([make_entry(0), make_entry(40)])["held out"]["detected"]["watermark"]["of"] == 1


def test_a_corner_is_judged_by_the_scenes_with_and_without_the_mark(tmp_path):
    network = next(one for one in plan_networks() if one.kind == "watermark" and not one.is_honest)
    twins = [(audit.draw_twin(network, number, True), audit.draw_twin(network, number, False)) for number in range(4)]
    rows, columns = np.nonzero(twins[0][0].region)
    cells = np.zeros((GRID, GRID), bool)
    cells[int(rows.min() * GRID / 64) : int(rows.max() * GRID / 64) + 1, int(columns.min() * GRID / 64) :][
        :, : int(np.ptp(columns) * GRID / 64) + 1
    ] = True
    state = planted.build_network(network.architecture).state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, planted.get_weights_path(network, tmp_path))
    loaded = planted.load_planted(network, tmp_path)[0]
    judged = audit.judge(loaded, PlaceCandidate(network.label, "", 1.0, cells), twins)
    assert judged["iou"] > 0.3
    assert 0 <= judged["tracks"] <= 1


@pytest.mark.nightly
@pytest.mark.parametrize("index", AGAIN)
def test_stored_numbers_are_measured_again(index, tmp_path):
    stored = {entry["index"]: entry for entry in json.loads(audit.RESULTS.read_text(encoding="utf-8"))["networks"]}
    network = plan_networks()[index]
    truth = planted.prepare_network(network, tmp_path)
    entry = audit.audit_network(network, truth["used"], tmp_path)
    assert truth["used"] == stored[index]["used"]
    # Another processor trains a network that differs a little.
    found, known = ({(one["class"], one["of the cue"]) for one in each["findings"]} for each in (entry, stored[index]))
    assert found == known
