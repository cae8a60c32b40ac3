"""The list of slow cases: plain `pytest` leaves them out, but for one of each subject.

``slow_cases.txt`` beside the tests is written from the costs that a complete run has measured (:mod:`.case_costs`):
``make test-all``, then ``make slow-cases``. A complete run tells what became slow and is not in the list,
and fails if that is far too slow.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "slow_cases.txt"
HEADER = "# Processor seconds of the cases that plain `pytest` leaves out. `make slow-cases` writes this file.\n"

SLOW_SECONDS = 1.0
"""A case that takes longer must be listed: a complete run says so."""

FAILING_SECONDS = 2.0
"""A complete run fails if a case takes longer and is not listed; between the two a busy machine would decide."""

LISTED_SECONDS = 0.3
"""A case that takes longer is listed: 3 % of the other cases took a fifth of the time of plain `pytest`.

Far below SLOW_SECONDS, as no case takes the same time twice.
"""

REPRESENTATIVE_SECONDS = 1.5
"""The slow case that plain `pytest` runs of each subject is the dearest that takes at most so long, or the cheapest."""


def read_slow_cases(path: Path = LIST) -> dict[str, float]:
    """Return the node id of each listed case → its processor seconds."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split(maxsplit=1) for line in lines if not line.startswith("#")]
    return {case: float(seconds) for seconds, case in rows}


def write_slow_cases(costs: dict[str, float], path: Path = LIST) -> None:
    """Write the list from the costs of the cases that ran; cases of files that did not run here stay in it.

    What is listed stays until it takes less than half of LISTED_SECONDS, so that the list does not change by chance.
    """
    listed = read_slow_cases(path)
    gone = list_missing_cases(listed, costs)
    kept = {case: seconds for case, seconds in listed.items() if case not in costs and case not in gone}
    least = {case: LISTED_SECONDS / 2 if case in listed else LISTED_SECONDS for case in costs}
    kept |= {case: seconds for case, seconds in costs.items() if seconds > least[case]}
    rows = [f"{seconds:6.1f} {case}\n" for case, seconds in sorted(kept.items())]
    path.write_text(HEADER + "".join(rows), encoding="utf-8")


def get_subject(case: str) -> str:
    """Return what a case is about: its folder in tests, e.g. "layers"; "tests" for files beside the folders."""
    parts = case.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 else parts[0]


def choose_representatives(slow: dict[str, float], collected: Iterable[str]) -> set[str]:
    """Return one slow case of each subject that was collected."""
    subjects = defaultdict(list)
    for case in collected:
        if case in slow:
            subjects[get_subject(case)].append(case)
    chosen = set()
    for cases in subjects.values():
        by_cost = sorted(cases, key=lambda case: (slow[case], case))
        affordable = [case for case in by_cost if slow[case] <= REPRESENTATIVE_SECONDS]
        chosen.add(affordable[-1] if affordable else by_cost[0])
    return chosen


def list_missing_cases(listed: Iterable[str], ran: Collection[str]) -> list[str]:
    """Return the listed cases that did not run though others of their file did: they have another name, or are gone."""
    files = {case.partition("::")[0] for case in ran}
    return [case for case in listed if case.partition("::")[0] in files and case not in ran]


@pytest.hookimpl(tryfirst=True)  # before cases are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the listed cases as slow, but for one of each subject."""
    slow = read_slow_cases()
    kept = choose_representatives(slow, [item.nodeid for item in items])
    for item in items:
        if item.nodeid in slow and item.nodeid not in kept:
            item.add_marker(pytest.mark.slow)


if __name__ == "__main__":
    write_slow_cases(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
