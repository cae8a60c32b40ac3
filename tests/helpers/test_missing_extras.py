"""The end of a run names the extras that are not installed, and how much each of them would run."""

from __future__ import annotations

import pytest

from tests.helpers.missing_extras import find_extra, list_extras, summarize

REQUIREMENTS = [
    "numpy",
    "nowhere-io>=2; extra == 'io'",
    "nowhere-io>=2; extra == 'far'",
    "nowhere_cluster[data]; python_version >= '3.10' and extra == 'far'",
    "torch; extra == 'far'",
    "both; extra == 'both'",
    "more; extra == 'both'",
    "both; extra == 'one'",
]
EXTRAS = list_extras(REQUIREMENTS)


def skipped(kind: type, nodeid: str, reason: str) -> pytest.TestReport | pytest.CollectReport:
    report = kind.__new__(kind)
    report.nodeid, report.longrepr = nodeid, ("file.py", 1, reason)
    return report


def test_a_package_belongs_to_the_extra_of_its_name_or_else_to_the_smallest() -> None:
    assert EXTRAS["nowhere-io"] == EXTRAS["nowhere_io"] == "io"
    assert EXTRAS["nowhere_cluster"] == "far"
    assert EXTRAS["both"] == "both"
    assert "numpy" not in EXTRAS


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Skipped: could not import 'nowhere_io.sub': No module named 'nowhere_io'", "io"),
        ("Skipped: Nowhere-IO is not installed: pip install 'camtool[dev]'", "io"),
        ("Skipped: torch has no CUDA here", None),  # it is installed
        ("Skipped: real weights are not beside the project: pip install nowhere_io", None),
    ],
)
def test_the_extra_is_that_of_the_library_which_is_missing(reason: str, expected: str | None) -> None:
    assert find_extra(reason, EXTRAS) == expected


NAMES_NO_LIBRARY = """
import pytest

def import_late():
    import nowhere_io

def test_an_import(): import_late()

def test_a_refusal_because_of_an_import():
    with pytest.raises(ValueError):
        try:
            import_late()
        except ImportError as error:
            raise TypeError("it is needed") from error

def test_a_failure(): assert 1 == 2

def test_a_module_that_is_ours(): import camtool.nowhere
"""


@pytest.mark.parametrize(
    ("selected", "expected"), [("not slow", {"skipped": 2, "failed": 2}), ("not nightly", {"failed": 4})]
)
def test_a_case_without_its_library_is_skipped_unless_slow_ones_run(
    pytester: pytest.Pytester, selected: str, expected: dict[str, int]
) -> None:
    pytester.makepyfile(NAMES_NO_LIBRARY)
    pytester.mkdir("camtool")
    (pytester.path / "camtool" / "__init__.py").touch()
    result = pytester.runpytest("-p", "tests.helpers.missing_extras", "-p", "no:xdist", "-m", selected)
    result.assert_outcomes(**expected)


def test_cases_and_files_are_counted_by_extra_and_each_file_once() -> None:
    missing = "could not import 'nowhere_io'"
    reports = [
        *(skipped(pytest.CollectReport, "tests/test_a.py", missing) for _ in range(2)),  # by two processes
        skipped(pytest.CollectReport, "tests/helpers/files.py", missing),
        skipped(pytest.TestReport, "tests/test_b.py::test_one[1]", missing),
        skipped(pytest.TestReport, "tests/test_b.py::test_one[2]", missing),
        skipped(pytest.TestReport, "tests/test_b.py::test_two", "nowhere_cluster is not installed"),
        skipped(pytest.TestReport, "tests/test_b.py::test_gpu", "needs an NVIDIA GPU"),
    ]
    counts = "far 1 case, io 2 cases and 1 file"
    advice = "pip install -e '.[far,io]'"
    assert summarize(reports, EXTRAS) == f"Skipped, as extras are not installed: {counts}. To run them: {advice}"
    assert summarize(reports[-1:], EXTRAS) == ""


def test_a_file_that_imports_what_is_missing_is_skipped_by_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="import nowhere_at_all")
    pytester.makeconftest("pytest_plugins = ['tests.helpers.missing_extras']")
    options = "-p", "no:xdist", "-p", "no:doctest", "-rs"
    named = pytester.runpytest_inprocess(*options, "-m", "not slow")
    named.stdout.fnmatch_lines(["SKIPPED*nowhere_at_all is not installed*"])
    assert pytester.runpytest_inprocess(*options, "-m", "").parseoutcomes() == {"errors": 1}
