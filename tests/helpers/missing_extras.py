"""A plugin: a file or a case whose library is absent is skipped by name; the end says which extras would run more.

Where slow cases run, too, all extras are expected, so what is absent is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator, Iterable
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

IMPORTED_AS = {"grad-cam": "pytorch_grad_cam", "open-clip-torch": "open_clip", "openslide-python": "openslide"}
"""Packages that are imported by another name."""

BROUGHT_BY = {"anyio": "mcp", "fsspec": "lightning", "httpx": "gradio", "nbformat": "nbclient", "sklearn": "quantus"}
"""Libraries that tests import, and that no extra lists → the package that brings them."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that imports a library that is not installed."""
    report = yield
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)", str(report.longrepr))
    if missing:
        _skip(report, collector, missing[1])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a case that imports a library that is not installed, itself or in what it calls."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    while error and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__ or error.__context__
    if isinstance(error, ModuleNotFoundError) and error.name:
        _skip(report, item, error.name.partition(".")[0])
    return report


def _skip(report: pytest.TestReport | pytest.CollectReport, node: pytest.Item | pytest.Collector, library: str) -> None:
    is_expected = "not slow" not in node.config.option.markexpr or (node.config.rootpath / library).exists()
    if report.failed and not is_expected and find_spec(library) is None:
        reason = f"Skipped: {library} is not installed: pip install -e '.[dev]'"
        report.outcome, report.longrepr = "skipped", (str(node.path), 0, reason)


def needs(library: str) -> pytest.MarkDecorator:
    """Return a mark that skips a case without a library of an extra, for a case that would fail by what it asserts."""
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed: pip install -e '.[dev]'")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost, so below all that others say
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Say which extras would run how many of the skipped tests."""
    yield
    line = summarize(terminalreporter.stats.get("skipped", []), list_extras(requires("camtool") or []))
    if line:
        terminalreporter.write_line(line)


def list_extras(requirements: Iterable[str]) -> dict[str, str]:
    """Return the extra that lists a package, for each name by which tests may call what they miss.

    Of several extras it is the one of the same name, or the smallest: ``parquet`` for pyarrow, though ``ray`` lists it.
    """
    listed = defaultdict(set)
    for requirement in map(Requirement, requirements):
        for extra in re.findall(r"extra == ['\"]([\w-]+)", str(requirement.marker)):
            listed[extra].add(canonicalize_name(requirement.name))
    extras = {}
    for package in set().union(*listed.values()):
        holders = [extra for extra in listed if package in listed[extra]]
        best = min(holders, key=lambda extra: (extra != package, len(listed[extra]), extra))
        extras |= dict.fromkeys((package, package.replace("-", "_"), IMPORTED_AS.get(package, package)), best)
    return extras | {library: extras[package] for library, package in BROUGHT_BY.items() if package in extras}


def summarize(skipped: Iterable[pytest.TestReport | pytest.CollectReport], extras: dict[str, str]) -> str:
    """Return a line with the number of cases and files by extra, or an empty one if no library is missing.

    The cases of a file that is skipped as a whole are not known. Each process reports such a file; it counts once.
    """
    cases, files = defaultdict(set), defaultdict(set)
    for report in skipped:
        extra = find_extra(str(report.longrepr[2]), extras)
        file = report.nodeid.partition("::")[0]
        if extra and isinstance(report, pytest.TestReport):
            cases[extra].add(report.nodeid)
        elif extra and Path(file).name.startswith("test_"):  # the others are what tests share, and modules of camtool
            files[extra].add(file)
    found = sorted({*cases, *files})
    if not found:
        return ""
    counts = ", ".join(f"{extra} {_tell(len(cases[extra]), len(files[extra]))}" for extra in found)
    return f"Skipped, as extras are not installed: {counts}. To run them: pip install -e '.[{','.join(found)}]'"


def find_extra(reason: str, extras: dict[str, str]) -> str | None:
    """Return the extra of the first library that a reason to skip names and that is not installed."""
    for word in re.findall(r"[\w-]+", reason.partition("pip install")[0].lower()):
        if word in extras and find_spec(IMPORTED_AS.get(word, word).replace("-", "_")) is None:
            return extras[word]
    return None


def _tell(cases: int, files: int) -> str:
    counts = ((cases, "case"), (files, "file"))
    return " and ".join(f"{number} {noun}{'s' * (number > 1)}" for number, noun in counts if number)
