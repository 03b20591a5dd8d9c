"""How many files of the server ordinary operations go through, counted by `benchmarks.walk`."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from benchmarks.walk import LIMITS, MOST_CALLS, Walk, walk_all


@pytest.fixture(scope="module")
def walks() -> dict[str, Walk]:
    # A process of its own has no garbage of other tests, whose collection would take longer than a run.
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        return processes.submit(walk_all).result()


def test_ordinary_operations_go_through_few_files(walks: dict[str, Walk]) -> None:
    too_many = {name: walks[name].server for name, most in LIMITS.items() if len(walks[name].server) > most}
    assert too_many == {}


def test_large_operations_make_few_calls(walks: dict[str, Walk]) -> None:
    assert {name: walks[name].calls for name, most in MOST_CALLS.items() if walks[name].calls > most} == {}


def test_a_push_with_nothing_concurrent_and_no_text_is_not_rebased_and_costs_no_budget(walks: dict[str, Walk]) -> None:
    push = walks["push"]
    assert {"state/budget.py", "state/concurrent.py", "state/conflicts.py"}.isdisjoint(push.server)
    assert {"rebase.py", "trace.py", "step.py", "shape.py"}.isdisjoint(push.schemas)


def test_the_join_of_a_client_that_the_thread_has_never_seen_reads_nothing_from_the_store(
    walks: dict[str, Walk],
) -> None:
    assert [file for file in walks["join"].server if file.startswith("store/sqlite")] == []
    assert walks["join"].beside == []
