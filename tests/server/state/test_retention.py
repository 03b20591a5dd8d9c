"""How much of a thread's history is kept."""

from typing import Any

import pytest
from tests.cases import each_case

from plait.limits import DEFAULT_LIMITS
from plait.state.retention import DEFAULT_RETENTION, Retention
from plait.state.revision import Revision
from plait.state.state_history import StateHistory
from plait.state.types import StateType
from plait.store.thread_rows import Prune, ThreadKey

NUMBER = StateType(int)


def first_prune(retention: Retention, changes: int) -> tuple[Prune, int]:
    """Return the prune of the first snapshot after this many changes, and the time of its change."""
    history = StateHistory(ThreadKey("room", "one"), NUMBER, None, retention=retention)
    history.start(0, b"0")
    history.put(())
    for n in range(1, 10_000):
        state, data = NUMBER.from_value(n, DEFAULT_LIMITS)
        ops = history.diff(history.current, state, data, DEFAULT_LIMITS)
        write = history.append(ops, "server", Revision(NUMBER, json=data, tree=state))
        assert (write.prune is None) == (not write.snapshots)
        if write.prune is not None and n >= changes:
            assert len(write.changes) == 1
            return write.prune, write.changes[0].at
    raise AssertionError("there was no snapshot")


def test_a_thousand_changes_are_kept_by_default() -> None:
    assert Retention() == DEFAULT_RETENTION == Retention(changes=1000, age=None, bytes=None)


@each_case("name", ["changes", "age", "bytes"])
@each_case("bound", [0, -1])
def test_a_bound_is_positive(name: str, bound: int) -> None:
    options: dict[str, Any] = {name: bound}
    with pytest.raises(ValueError, match=rf"{name}={bound}\b"):
        Retention(**options)


def test_the_store_is_told_to_keep_so_many_changes() -> None:
    prune, _ = first_prune(Retention(changes=30), 100)
    assert prune.at == 0
    assert prune.bytes is None
    assert prune.version % 1 == 0
    again, _ = first_prune(Retention(changes=50), 100)
    assert prune.version - again.version == 20


def test_nothing_is_to_be_forgotten_before_there_is_more_than_is_kept() -> None:
    assert first_prune(Retention(changes=9_000), 1)[0] == Prune()
    assert first_prune(Retention(changes=None), 1)[0] == Prune()


def test_the_store_is_told_to_keep_what_is_not_older_than_so_many_seconds() -> None:
    prune, at = first_prune(Retention(changes=None, age=1.5), 1)
    assert prune == Prune(at=at - 1_500_000)


def test_the_store_is_told_to_keep_so_many_bytes() -> None:
    assert first_prune(Retention(changes=None, bytes=5_000), 1)[0] == Prune(bytes=5_000)
