"""Which process runs which tests, and when: the dearest file first, so that no process works alone at the end."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.helpers.slow_cases import read_slow_cases

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


class Scheduler(LoadScopeScheduling):
    """Gives each process one file, or the files that share something, at a time."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._slow_cases = read_slow_cases()

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED.get(file, file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self.config.pluginmanager.hasplugin("randomly"):
            self.workqueue.move_to_end(max(self.workqueue, key=self._estimate_seconds), last=False)
        super()._assign_work_unit(node)

    def _estimate_seconds(self, scope: str) -> float:
        return sum(self._slow_cases.get(case, QUICK_SECONDS) for case in self.workqueue[scope])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    """Let the scheduler of this module distribute the tests."""
    return Scheduler(config, log)
