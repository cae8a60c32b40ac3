"""Distribution of the tests to processes: the dearest file first, so that no process works alone at the end.

A process keeps the libraries that tests import. When it has grown, it ends, and a new one goes on.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.helpers.proc_files import read_own_mib
from tests.helpers.slow_cases import read_slow_cases

MOST_MIB = 1600
"""A process that has more memory of its own gets no more files: 2 GB is what a small machine has for each processor.

The libraries' files, which all processes share, take 650 on top, once. A new process has 940 after half a minute of
imports, so a complete run, ``make test-all``, allows more.
"""

QUICK_SECONDS = 0.05
"""What a case that is not listed as slow costs on average."""

SHARED = {
    "tests/app/test_browser.py": "browser",
    "tests/app/panels/test_page.py": "browser",
    **{f"tests/app/web_page/test_{name}.py": "page" for name in ("devices", "files", "models", "networks", "page")},
    "tests/engines/test_engines.py": "compiled graphs",
    "tests/engines/test_refusals.py": "compiled graphs",
}
"""Files that share what is expensive or cannot run twice at the same time → what it is."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that limits the memory of a process."""
    text = f"replace a process whose own memory has grown beyond MIB (default: {MOST_MIB})"
    parser.getgroup("camtool").addoption("--most-mib", metavar="MIB", type=int, default=MOST_MIB, help=text)


class Scheduler(LoadScopeScheduling):
    """Gives each process one file, or the files that share something, at a time."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._slow_cases = read_slow_cases()
        self._most_mib: int = config.getoption("--most-mib")

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED.get(file, file)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give the work that a crashed process has left to others, and return the case that it ran, if there is one.

        xdist would give back all that the process ever had, also that case, which would crash the next one, and files
        whose cases have all run, of which no report comes, so that it would wait for ever.
        """
        left = [case for unit in self.assigned_work.pop(node).values() for case, is_done in unit.items() if not is_done]
        if not left:
            return None
        crashed, *others = left
        for case in others:
            self.workqueue.setdefault(self._split_scope(case), {})[case] = False
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def schedule(self) -> None:
        """Give work to all processes."""
        super().schedule()
        for node in self.nodes:
            # A process begins a test when it knows the next one, and the first file may have one test only.
            self._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self.config.pluginmanager.hasplugin("randomly"):
            self.workqueue.move_to_end(max(self.workqueue, key=self._estimate_seconds), last=False)
        # A process that just crashed takes nothing; remove_node, which is called next, gives its work to others.
        with suppress(OSError):
            super()._assign_work_unit(node)

    def _estimate_seconds(self, scope: str) -> float:
        return sum(self._slow_cases.get(case, QUICK_SECONDS) for case in self.workqueue[scope])

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:  # a new process that has not yet collected
            return
        needs_work = self._pending_of(self.assigned_work[node]) <= 2 and self.workqueue and not node.shutting_down
        if needs_work and getattr(node, "own_mib", 0) > self._most_mib:
            node.shutdown()  # when it has run what it was given
            self.config.pluginmanager.getplugin("dsession")._clone_node(node)
        else:
            super()._reschedule(node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send the memory of the process along with the last report of a test."""
    report = yield
    if report.when == "teardown":
        report.own_mib = read_own_mib()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the memory of the process that a report came from, where the scheduler finds it."""
    if hasattr(report, "node") and hasattr(report, "own_mib"):  # a case that ended its process has no memory
        report.node.own_mib = report.own_mib


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """End the process whose tests have ended, which xdist would keep, with its memory, until the last test."""
    node.gateway.exit()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    """Let the scheduler of this module distribute the tests."""
    return Scheduler(config, log)
