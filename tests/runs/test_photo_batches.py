"""Threads beside the model: order, bounds, faults, and torch's threads."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from camtool.runs.executor import Workers, count_workers

COUNTS = (0, 1, 3)


@pytest.mark.parametrize("count", COUNTS)
def test_results_come_in_the_order_of_the_items(count: int) -> None:
    def work(item: int) -> int:
        time.sleep(0.002 * (item % 3))  # later items are often done first
        return item * item

    with Workers(count) as workers:
        assert list(workers.map_ahead(work, range(20), 5)) == [item * item for item in range(20)]
        assert list(workers.map_ahead(work, [], 5)) == []


@pytest.mark.parametrize("count", COUNTS)
def test_few_items_are_taken_before_they_are_asked_for(count: int) -> None:
    taken: list[int] = []
    items = (taken.append(item) or item for item in range(50))  # type: ignore[func-returns-value]
    with Workers(count) as workers:
        results = workers.map_ahead(lambda item: item, items, 4)
        for asked in range(1, 10):
            next(results)
            assert len(taken) == (asked + 4 if count else asked)


def test_items_are_worked_on_while_the_caller_does_something_else() -> None:
    done = threading.Event()
    with Workers(1) as workers:
        results = workers.map_ahead(lambda item: done.set() if item == 1 else None, range(3), 1)
        next(results)
        assert done.wait(30)  # the second item, which nobody has asked for


@pytest.mark.parametrize("count", COUNTS)
def test_an_error_is_raised_when_its_turn_comes(count: int) -> None:
    def work(item: int) -> int:
        if item == 2:
            raise KeyError("two")
        return item

    found: list[int] = []
    with Workers(count) as workers:
        results = workers.map_ahead(work, range(9), 4)
        found += [next(results), next(results)]
        with pytest.raises(KeyError, match="two"):
            next(results)
    assert found == [0, 1]


def test_what_has_not_begun_is_cancelled_when_the_caller_stops() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item:
            time.sleep(0.2)

    with Workers(1) as workers:
        results = workers.map_ahead(work, range(9), 8)
        next(results)
        results.close()
    assert len(begun) <= 3  # the first, and one or two that had begun; not all nine


def test_torch_uses_one_thread_in_workers_and_as_many_as_before_elsewhere() -> None:
    def count_in_new_thread() -> int:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        return found[0]

    before = torch.get_num_threads(), count_in_new_thread()
    with Workers(2) as workers:
        assert {*workers.map_ahead(lambda _: torch.get_num_threads(), range(8), 4)} == {1}
        assert torch.get_num_threads() == before[0]
    assert (torch.get_num_threads(), count_in_new_thread()) == before


def test_the_number_of_workers_is_that_of_the_cores() -> None:
    assert 1 <= count_workers() <= 16
