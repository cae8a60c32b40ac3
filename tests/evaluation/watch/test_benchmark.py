"""The benchmark of the watch: one training that begins to cheat, and an honest one."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.watch import find_alarm, find_fall, format_table, run_training, summarize


def make_run(kind: str, alarms: list[list[int]], accuracy: list[list[float]]) -> dict:
    time = {"training": 100.0, "looks": 2.0}
    return {"kind": kind, "alarms": alarms, "target": 3, "accuracy": accuracy, "time": time, "looks": 5, "postponed": 0}


def test_lead_and_false_alarms_are_counted() -> None:
    gaps = [0.0, 0.02, 0.1, 0.05, 0.2]
    cheat = make_run("cheat", [[1, 7], [2, 3]], [[0.95, 0.95 - gap] for gap in gaps])
    assert (find_alarm(cheat), find_fall(cheat)) == (2, 3)
    table = summarize([cheat, make_run("honest", [], [[0.9, 0.9]]), make_run("honest", [[4, 1]], [[0.9, 0.9]])])
    assert table["cheat"]["lead"] == [1.0]
    assert (table["cheat"]["lead of 3"], table["cheat"]["other class"], table["cheat"]["right class"]) == (0, 1, 1)
    assert table["honest"]["with an alarm"] == 1
    assert table["honest"]["time in percent"] == [2.0, 0.0]
    assert "| honest | 2 | 1 |" in format_table(table)


@pytest.mark.nightly
def test_a_training_that_begins_to_cheat_is_flagged_and_an_honest_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each reading of the clock takes a second, so looks come at the same steps; a busy machine would postpone them.
    ticks = itertools.count()
    monkeypatch.setattr("benchmarks.watch.time", SimpleNamespace(process_time=lambda: float(next(ticks))))
    cheat, honest = (run_training(kind, 0, tmp_path) for kind in ("cheat", "honest"))
    alarm, fall = find_alarm(cheat), find_fall(cheat)
    assert alarm is not None
    assert fall is None or alarm < fall  # by how many epochs differs from one processor to another: the benchmark
    assert honest["alarms"] == []
