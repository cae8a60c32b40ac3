"""Which cases run, in which process, and what they cost: small suites that run in a process of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers.case_costs import describe_gone, describe_slow, judge_costs
from tests.helpers.slow_cases import choose_representatives, read_slow_cases, write_slow_cases

ROOT = Path(__file__).parents[2]

CONFTEST = """
import sys

sys.path.insert(0, {root!r})
from tests.helpers import case_costs

case_costs.LISTED_SECONDS = 0.1
case_costs.SLOW_SECONDS = 0.2
case_costs.FAILING_SECONDS = {failing}
pytest_plugins = ["tests.helpers.case_costs", "tests.helpers.scheduling"]
"""

BURN = """
def burn(seconds):
    # An amount of work, as that of the reference is: seconds of the processor that the list is about.
    sum(number * number for number in range(int(seconds * 400_000 / 0.017)))
"""

COSTS = """
import subprocess
import sys

import pytest
from burning import burn


@pytest.fixture(scope="module")
def shared():
    burn(0.2)


def test_an_import():
    import expensive


def test_a_fixture_that_is_made_here(shared): ...


def test_a_fixture_that_was_made_before(shared): ...


def test_a_process():
    subprocess.run([sys.executable, "-c", "from burning import burn; burn(0.3)"], check=True)


def test_a_call():
    burn(0.8)


def test_files_that_cannot_be_opened(monkeypatch):
    def refuse(*_, **__):
        raise ZeroDivisionError

    for name in ("builtins.open", "io.open", "os.scandir", "os.times", "pathlib.Path.open", "time.process_time"):
        monkeypatch.setattr(name, refuse)
"""


def run_suite(
    folder: Path, files: dict[str, str], *arguments: str, seconds: float | None = None, failing: float = 0.5
) -> subprocess.CompletedProcess[str]:
    for name, text in (files | {"conftest.py": CONFTEST.format(root=str(ROOT), failing=failing)}).items():
        (folder / name).write_text(text, encoding="utf-8")
    # Without the options of the run that this test is in.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=seconds
    )


def test_a_case_costs_what_it_would_alone_without_imports(tmp_path: Path) -> None:
    files = {"burning.py": BURN, "expensive.py": "from burning import burn\nburn(0.4)\n", "test_costs.py": COSTS}
    finished = run_suite(tmp_path, files, "--case-costs", "costs.json", "--check-costs")
    costs = json.loads((tmp_path / "costs.json").read_text(encoding="utf-8"))
    costs = {case.partition("::test_")[2]: seconds for case, seconds in costs.items()}
    # The others are compared with it, as processors are not equally fast; a busy one takes up to twice as long for one.
    call = costs["a_call"]
    assert costs["an_import"] < 0.2 * call
    assert 0.05 * call < costs["a_fixture_that_is_made_here"] < 0.8 * call
    assert 0.05 * call < costs["a_fixture_that_was_made_before"] < 0.8 * call
    assert costs["a_process"] > 0.05 * call
    assert finished.returncode == 1, "a slow case that is not listed fails the run"
    assert re.search(TOOK.format("test_a_call"), finished.stdout)


def test_a_case_that_a_busy_machine_makes_slow_is_named_and_does_not_fail(tmp_path: Path) -> None:
    files = {"burning.py": BURN, "test_cost.py": "from burning import burn\ndef test_some(): burn(0.8)"}
    finished = run_suite(tmp_path, files, "--case-costs", "costs.json", "--check-costs", failing=90)
    assert finished.returncode == 0
    assert re.search(TOOK.format("test_some"), finished.stdout.splitlines()[-1]), "a log is often read from its end"


TOOK = r"{} took [\d.]+ s of processor time: make it faster, or list it"

SOME_PASS = """
import pytest


def test_that_passes(): ...


def test_that_is_skipped(): pytest.skip("its library is absent")


@pytest.mark.skipif("True", reason="its library is absent")
def test_that_is_marked(): ...
"""


def test_a_case_that_passed_before_does_not_run_again(tmp_path: Path) -> None:
    before = run_suite(tmp_path, {"test_some.py": SOME_PASS}, "--case-costs", "before.json")
    assert "1 passed, 2 skipped" in before.stdout
    (case,) = json.loads((tmp_path / "before.json").read_text(encoding="utf-8"))
    (tmp_path / "before.json").write_text(json.dumps({case: 9.0}), encoding="utf-8")
    (tmp_path / "test_more.py").write_text("def test_that_is_slow(): ...", encoding="utf-8")
    files = {"test_some.py": SOME_PASS.replace("pytest.skip", "print").replace('"True"', '"False"')}
    options = ("--passed-before=before.json", "--case-costs=both.json", "--check-costs")
    after = run_suite(tmp_path, files, "-v", *options)
    assert after.returncode == 0, "what an earlier run cost is not judged"
    assert "3 passed, 1 deselected" in after.stdout
    assert "test_that_passes" not in after.stdout
    assert len(json.loads((tmp_path / "both.json").read_text(encoding="utf-8"))) == 4, "the costs of both runs"


def test_a_case_is_not_judged_if_another_of_its_test_passed_before() -> None:
    costs = {"a.py::shares[2]": 3.0, "a.py::alone": 2.0}
    assert judge_costs(costs, ["a.py::shares[1]"]) == {"a.py::shares[1]": 0, "a.py::shares[2]": 0, "a.py::alone": 2.0}


LISTS_PROCESSES = """
import os
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("case", range({count}))
def test_it(case):
    Path(f"{{os.getpid()}}.process").touch()


def test_processes_before_this_one_have_ended():
    last = time.monotonic() + 30
    others = {{int(path.stem) for path in Path().glob("*.process")}} - {{os.getpid()}}
    while len(alive := [each for each in others if Path(f"/proc/{{each}}/exe").exists()]) > 1:
        assert time.monotonic() < last, alive  # beside this one, one more works at a time
        time.sleep(0.01)
"""


def test_a_process_that_has_grown_is_replaced_and_no_test_is_lost(tmp_path: Path) -> None:
    files = {f"test_{number}.py": LISTS_PROCESSES.format(count=number % 4 + 1) for number in range(6)}
    finished = run_suite(tmp_path, files, "-n", "2", "-v", "--most-mib", "0")
    assert finished.returncode == 0
    assert "19 passed" in finished.stdout
    assert len({*re.findall(r"^\[(gw\d+)\]", finished.stdout, re.MULTILINE)}) > 2


CRASHES = """
import os


def test_before(): ...


def test_it(): os._exit(1)


def test_after(): ...
"""


def test_a_case_that_ends_its_process_runs_once_and_no_other_is_lost(tmp_path: Path) -> None:
    files = {f"test_{number}.py": "def test_it(): ..." for number in range(8)}
    finished = run_suite(tmp_path, files | {"test_crash.py": CRASHES}, "-n", "1", seconds=60)
    # Its report, and not the short summary, which servers of CI print whole.
    reports = re.findall(r"^worker '\w+' crashed while running '(.+)'$", finished.stdout, re.MULTILINE)
    assert reports == ["test_crash.py::test_it"], finished.stdout
    assert "1 failed, 10 passed" in finished.stdout


def test_one_slow_case_of_each_subject_is_quick_enough_for_everyone() -> None:
    layers = {"tests/layers/test_a.py::a": 0.5, "tests/layers/test_a.py::b": 1.4, "tests/layers/test_b.py::c": 9.0}
    slow = layers | {"tests/zoo/test_a.py::a": 5.0, "tests/zoo/test_a.py::b": 4.0, "tests/hooks/test_a.py::a": 1.5}
    collected = [case for case in slow if "hooks" not in case] + ["tests/zoo/test_a.py::quick"]
    assert choose_representatives(slow, collected) == {"tests/layers/test_a.py::b", "tests/zoo/test_a.py::b"}


def test_the_list_follows_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "slow_cases.txt"
    write_slow_cases({"a.py::slow": 2.0, "a.py::other": 0.7, "a.py::quick[x y]": 0.1, "b.py::slow [1]": 3.0}, path)
    assert read_slow_cases(path) == {"a.py::slow": 2.0, "a.py::other": 0.7, "b.py::slow [1]": 3.0}
    write_slow_cases({"a.py::slow": 0.2, "a.py::quick[x y]": 0.25}, path)
    assert read_slow_cases(path) == {"a.py::slow": 0.2, "b.py::slow [1]": 3.0}, "b.py did not run; a.py::other is gone"


def test_the_list_must_name_what_is_slow_and_nothing_that_is_gone() -> None:
    listed = {"a.py::slow": 2.0, "a.py::gone": 2.0, "c.py::of a file that did not run": 2.0}
    costs = {"a.py::slow": 9.0, "a.py::new": 1.5, "a.py::quick": 0.9}
    complaints = [*describe_slow(costs, listed, 1.0), *describe_gone(listed, costs)]
    assert [complaint.split()[0] for complaint in complaints] == ["a.py::new", "a.py::gone"]
