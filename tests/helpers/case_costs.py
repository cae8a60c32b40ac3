"""Costs of the cases in processor seconds: ``pytest --case-costs=FILE``.

The cost of a case is what it would take alone in a warm process: its own set-up and call, with the processes that it
started, and the fixtures of wider scope that it uses, whichever case set them up. The first import of a module does
not count, as it falls on whichever case comes first. Processors are not equally fast, and not at all times: a cost is
divided by that of a fixed piece of work, measured right after the case.

Another run leaves out the cases that passed and are in such a file: ``pytest --passed-before=FILE``.

A run tells which cases cost more than a second and are not in the list of slow cases. With ``--check-costs`` it fails
if one costs more than two, or if a listed one did not run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from os import getpid
from os import times as read_times
from pathlib import Path
from statistics import median
from time import process_time
from types import ModuleType
from typing import Any

import pytest

from tests.helpers.proc_files import list_children, read_proc
from tests.helpers.slow_cases import (
    FAILING_SECONDS,
    LISTED_SECONDS,
    SLOW_SECONDS,
    list_missing_cases,
    read_slow_cases,
)
from tests.helpers.warm_processes import SERVERS

REFERENCE_SECONDS = 0.0043
"""What the fixed piece of work costs on the machine whose seconds are meant: two quiet cores of a server."""

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that measure and check costs."""
    group = parser.getgroup("camtool")
    group.addoption("--case-costs", metavar="FILE", help="write the processor seconds of each case to FILE")
    text = "leave out the cases in FILE, which an earlier run with --case-costs wrote"
    group.addoption("--passed-before", metavar="FILE", help=text)
    text = "with --case-costs: fail if a slow case is not listed, or a listed one is gone"
    group.addoption("--check-costs", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Measure in each process that runs tests; gather in the one that reports."""
    if config.getoption("--case-costs"):
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(CostReport(config))
        if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
            config.pluginmanager.register(CostMeter())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed before."""
    passed = read_passed(config)
    if passed:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
        items[:] = [item for item in items if item.nodeid not in passed]


def read_passed(config: pytest.Config) -> dict[str, float]:
    """Return the cases that passed in an earlier run → their costs."""
    path = config.getoption("--passed-before")
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}


class CostMeter:
    """Measures each case of this process."""

    def __init__(self) -> None:
        self.fixtures: dict[Any, float] = {}
        self.shared: float = 0.0
        self.imports = ImportMeter()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Measure a fixture that several cases share."""
        if fixturedef.scope == "function":
            return (yield)
        start, within = self.read_seconds(), self.shared
        try:
            return (yield)
        finally:
            # What another shared fixture took meanwhile is that fixture's.
            own = self.read_seconds() - start - (self.shared - within)
            self.fixtures[fixturedef] = own
            self.shared += own

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Begin with a case."""
        item.stash[STARTED] = self.read_seconds() - self.shared
        yield

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Add up what a case took."""
        try:
            yield
        finally:
            own = self.read_seconds() - self.shared - item.stash[STARTED]
            definitions = item._fixtureinfo.name2fixturedefs.values()
            cost = own + sum(self.fixtures.get(each, 0.0) for several in definitions for each in several)
            if cost > LISTED_SECONDS:
                cost *= REFERENCE_SECONDS / measure_reference()
            item.user_properties.append(("cost", cost))

    def read_seconds(self) -> float:
        """Return the processor seconds of this process and those that it started, without imports."""
        return read_processor_seconds() - self.imports.seconds


STARTED = pytest.StashKey[float]()


class ImportMeter:
    """Measures the first import of each module, from when it is made."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_importing = False
        for loader, name in (
            (SourceFileLoader, "exec_module"),
            (ExtensionFileLoader, "create_module"),
            (ExtensionFileLoader, "exec_module"),
        ):
            setattr(loader, name, self._measure(getattr(loader, name)))

    def _measure(self, load: Any) -> Any:
        def measured(loader: Any, module: ModuleType) -> Any:
            with self._count():
                return load(loader, module)

        return measured

    @contextmanager
    def _count(self) -> Iterator[None]:
        if self._is_importing:  # by a module that is being imported
            yield
            return
        self._is_importing, start = True, process_time()
        try:
            yield
        finally:
            self.seconds += process_time() - start
            self._is_importing = False


def read_processor_seconds() -> float:
    """Return the processor seconds of this process and of all that it started, also of those that still run.

    What a warm process imports does not count, as that serves all cases.
    """
    ended = read_times()
    live = sum(_read_live(process) for process in list_children(getpid()) if process not in SERVERS)
    return process_time() + ended.children_user + ended.children_system + live


def _read_live(process: int) -> float:
    fields = read_proc(f"{process}/stat").rpartition(")")[2].split()
    own = sum(map(int, fields[11:15])) / _CLOCK_TICKS
    return own + sum(map(_read_live, list_children(process)))


def measure_reference() -> float:
    """Return the processor seconds of a fixed piece of work: the median of three, as any may be interrupted."""

    def work() -> float:
        start = process_time()
        sum(number * number for number in range(100_000))
        return process_time() - start

    return median(work() for _ in range(3))


class CostReport:
    """Gathers the costs of all processes, writes them, and tells what is slow and not listed."""

    def __init__(self, config: pytest.Config) -> None:
        self.path = Path(config.getoption("--case-costs"))
        self.is_checked: bool = config.getoption("--check-costs")
        self.passed_before = read_passed(config)
        self.costs: dict[str, float] = {}
        self.complaints: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the cost of a case that passed."""
        if report.when == "call" and report.passed:
            self.costs[report.nodeid] = dict(report.user_properties)["cost"]

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Write the file; a far too slow case that is not listed fails the run."""
        yield
        self.path.parent.mkdir(parents=True, exist_ok=True)
        costs = self.passed_before | self.costs
        self.path.write_text(json.dumps(dict(sorted(costs.items())), indent=0), encoding="utf-8")
        judged, listed = judge_costs(self.costs, self.passed_before), read_slow_cases()
        # Only a run that is checked has all slow cases.
        gone = [*describe_gone(listed, judged)] if self.is_checked else []
        self.complaints = [*describe_slow(judged, listed, SLOW_SECONDS), *gone]
        fails = self.is_checked and (gone or any(describe_slow(judged, listed, FAILING_SECONDS)))
        if fails and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the processor minutes."""
        minutes = sum(self.costs.values()) / 60
        note = "what several share is counted for each of them"
        terminalreporter.write_line(
            f"{len(self.costs)} cases take {minutes:.1f} processor minutes; {note}: {self.path}"
        )

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Print what must be listed, behind all others, as a log is often read from its end."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        for complaint in self.complaints if reporter else ():
            reporter.write_line(complaint, red=True)


def judge_costs(costs: dict[str, float], passed_before: Iterable[str]) -> dict[str, float]:
    """Return the case of each run → the cost that is judged: 0 for those of the earlier run and of the same tests.

    That run had other libraries, and other work beside it. Further cases of its tests may pay now for what all cases
    of a test share, e.g. an exported file.
    """
    before = dict.fromkeys(passed_before, 0.0)
    tests = {_name_test(case) for case in before}
    return before | {case: 0.0 if _name_test(case) in tests else cost for case, cost in costs.items()}


def _name_test(case: str) -> str:
    return case.partition("[")[0]


def describe_slow(costs: dict[str, float], listed: dict[str, float], most_seconds: float) -> Iterator[str]:
    """Return a sentence for each case above ``most_seconds`` that is not listed."""
    for case, seconds in costs.items():
        if seconds > most_seconds and case not in listed:
            yield f"{case} took {seconds:.1f} s of processor time: make it faster, or list it by `make slow-cases`."


def describe_gone(listed: dict[str, float], costs: dict[str, float]) -> Iterator[str]:
    """Return a sentence for each listed case that is gone."""
    for case in list_missing_cases(listed, costs):
        yield f"{case} is in tests/slow_cases.txt, but did not run: list the cases anew by `make slow-cases`."
