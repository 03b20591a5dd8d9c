"""Where a thread stands, and what is written of it."""

import enum
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import each_case

from plait.errors import CorruptThread
from plait.limits import DEFAULT_LIMITS
from plait.state.revision import Revision
from plait.state.state_history import StateHistory, replay_json
from plait.state.types import UNDECODED, StateType
from plait.store.protocol import StoredThread, Write
from plait.store.thread_rows import ChangeRow, Snapshot, ThreadKey
from plait_schemas.patch import decode_ops

KEY = ThreadKey("room", "one")


class Shelf:
    """Keeps the writes of one thread as a store would."""

    def __init__(self) -> None:
        self.version: int | None = None
        self._epoch = ""
        self._snapshots: dict[int, bytes] = {}
        self.log: list[ChangeRow] = []

    def put(self, write: Write) -> None:
        assert write.after == self.version
        self._epoch, self.version = write.epoch, write.version
        self.log += write.changes
        for snapshot in write.snapshots:
            self._snapshots[snapshot.version] = snapshot.state
        if write.prune is not None:
            oldest = max((at for at in self._snapshots if at <= write.prune.version), default=0)
            self._snapshots = {at: state for at, state in self._snapshots.items() if at >= oldest}
            self.log = [row for row in self.log if row.version > oldest]

    def stored(self, version: int | None = None) -> StoredThread:
        """Return what is needed to have the last version, or another one."""
        assert self.version is not None
        to = self.version if version is None else version
        since = max((at for at in self._snapshots if at <= to), default=0)
        rows = [row for row in self.log if since < row.version <= to]
        return StoredThread(self._epoch, to, self._snapshots.get(since), rows)


def change(history: StateHistory, state_type: StateType, value: object) -> Write | None:
    """Change the state to `value` and return what is to be written, None if nothing has changed."""
    state, data = state_type.from_value(value, DEFAULT_LIMITS)
    ops = history.diff(history.current, state, data, DEFAULT_LIMITS)
    return history.append(ops, "server", Revision(state_type, json=data, tree=state)) if ops else None


def begin(state_type: StateType, value: object) -> tuple[StateHistory, Shelf]:
    """Return a history that begins with `value`, and a shelf that it is on."""
    history, shelf = StateHistory(KEY, state_type, None), Shelf()
    history.start(*state_type.from_value(value, DEFAULT_LIMITS))
    shelf.put(history.put(()))
    history.mark_durable(history.current)
    return history, shelf


# Replay


class Player(msgspec.Struct, frozen=True):
    name: str
    score: int | float = 0


class Game(msgspec.Struct, frozen=True, omit_defaults=True):
    players: tuple[Player, ...] = ()
    tags: frozenset[int] = frozenset()
    status: str = "waiting"


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue/dark"


@dataclass
class Board:
    title: str = ""
    columns: dict[str, list[str]] = field(default_factory=dict)
    votes: dict[Color, int] = field(default_factory=dict)
    members: set[int] = field(default_factory=set)


JSON = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, "", "long enough to be worth a diff " * 4]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["a", "b", "~", "/", ""]), inner),
    max_leaves=15,
)
NAMES = st.sampled_from(["Ada", "Bob", "a name that is long enough to be worth a diff"])
# Small sets of these are kept in an order that depends on how they were made.
MEMBERS = st.lists(st.sampled_from([0, 8, 16, 24, 32, 1, 64, 128, 5, 13]), max_size=10)
GAMES = st.builds(
    Game,
    players=st.lists(st.builds(Player, NAMES, st.sampled_from([0, 1, 1.5])), max_size=5).map(tuple),
    tags=MEMBERS.map(frozenset),
    status=NAMES,
)
BOARDS = st.builds(
    Board,
    title=NAMES,
    columns=st.dictionaries(NAMES, st.lists(NAMES, max_size=4), max_size=3),
    votes=st.dictionaries(st.sampled_from(Color), st.integers(0, 3)),
    members=MEMBERS.map(set),
)
LONG = "a name that is long enough to be worth a diff"
STATES = st.one_of(
    st.tuples(st.just(Any), st.lists(JSON, min_size=1, max_size=8)),
    st.tuples(st.just(Game), st.lists(GAMES, min_size=1, max_size=8)),
    st.tuples(st.just(Board), st.lists(BOARDS, min_size=1, max_size=8)),
)


@given(STATES)
@example((Game, [Game(tags=frozenset([0, 32, 1, 8, 16]), status=LONG), Game(tags=frozenset([0, 32]), status=LONG)]))
@example((Board, [Board(LONG, members={0, 32, 1, 8, 16}), Board(LONG, members={32, 0})]))
def test_what_is_stored_replays_to_the_current_state_after_every_change(states: tuple[Any, list[Any]]) -> None:
    state_type = StateType(states[0])
    history, shelf = begin(state_type, states[1][0])
    for value in states[1][1:]:
        if write := change(history, state_type, value):
            shelf.put(write)
            history.mark_durable(history.current)
        assert history.current.state == value
        assert history.current.json is not None
        again = StateHistory(KEY, state_type, shelf.stored())
        assert (again.epoch, again.current.version) == (history.epoch, history.current.version)
        assert again.current.state == value
        assert same_json(again.current.json, history.current.json, is_typed=states[0] is not Any)


def same_json(one: bytes | None, other: bytes | None, *, is_typed: bool) -> bool:
    """Tell whether two texts say the same; the members of sets have no order."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list):
            is_set = is_typed and all(isinstance(each, int) for each in value)
            return sorted(value) if is_set else [plain(each) for each in value]
        return (type(value), value)

    assert one is not None
    assert other is not None
    return bool(plain(msgspec.json.decode(one)) == plain(msgspec.json.decode(other)))


@given(st.lists(MEMBERS, min_size=2, max_size=6))
@example([[8, 0, 16, 24], [24, 0, 8], [0, 8, 24, 32], [32, 8]])
def test_a_set_replays_whatever_order_its_members_have(states: list[list[int]]) -> None:
    # Long enough that members are added and removed one by one.
    values = [{f"a member with a long name {n}" for n in state} for state in states]
    state_type = StateType(set[str])
    history, shelf = begin(state_type, values[0])
    for value in values[1:]:
        if write := change(history, state_type, value):
            shelf.put(write)
            history.mark_durable(history.current)
            # A set is in another order in each process.
            history = StateHistory(KEY, state_type, shelf.stored())
        assert history.current.state == value


@given(st.lists(JSON, min_size=1, max_size=10))
def test_versions_are_dense_and_each_write_follows_the_one_before(states: list[Any]) -> None:
    state_type = StateType(Any)
    history, shelf = begin(state_type, "the beginning")
    version = 0
    for value in states:
        if write := change(history, state_type, value):
            assert (write.after, write.version) == (version, version + 1)
            assert len(write.changes) == 1
            assert write.changes[0].version == write.version
            version = write.version
            shelf.put(write)
    assert history.current.version == version
    assert [row.version for row in shelf.log] == list(range(1, version + 1))


# Diff


def test_the_same_state_again_is_no_change() -> None:
    state_type = StateType(dict)
    history, _ = begin(state_type, {"a": [1, 2], "b": 1})
    assert change(history, state_type, {"a": [1, 2], "b": 1}) is None
    assert change(history, state_type, {"b": 1, "a": [1, 2]}) is None
    assert history.current.version == 0


@each_case(("old", "new"), [(1, True), (0, False), (None, False), ("1", 1), ([1], [True])])
def test_a_value_that_only_python_holds_equal_is_a_change(old: object, new: object) -> None:
    state_type = StateType(Any)
    history, shelf = begin(state_type, {"value": old})
    write = change(history, state_type, {"value": new})
    assert write is not None
    shelf.put(write)
    assert StateHistory(KEY, state_type, shelf.stored()).current.json == msgspec.json.encode({"value": new})


def test_a_state_that_was_changed_in_place_is_recorded() -> None:
    state_type = StateType(dict)
    history, shelf = begin(state_type, {"cards": [{"title": "one"}]})
    state = history.current.state
    state["cards"][0]["title"] = "two"
    state["cards"].append({"title": "three"})
    write = change(history, state_type, state)
    assert write is not None
    shelf.put(write)
    assert StateHistory(KEY, state_type, shelf.stored()).current.state == {
        "cards": [{"title": "two"}, {"title": "three"}]
    }


@dataclass
class Inner:
    items: list[int]


class Outer(msgspec.Struct, frozen=True):
    inner: Inner


def test_a_frozen_state_whose_parts_were_changed_in_place_is_recorded() -> None:
    state_type = StateType(Outer)
    history, shelf = begin(state_type, Outer(Inner([1])))
    history.current.state.inner.items.append(2)
    write = change(history, state_type, history.current.state)
    assert write is not None
    shelf.put(write)
    assert StateHistory(KEY, state_type, shelf.stored()).current.state == Outer(Inner([1, 2]))


def test_the_first_state_of_a_thread_without_one_is_version_1() -> None:
    state_type = StateType(Any)
    history, shelf = StateHistory(KEY, state_type, None), Shelf()
    assert (history.current.version, history.current.state, history.current.json) == (0, None, None)
    write = change(history, state_type, None)
    assert write is not None
    assert (write.after, write.version, write.snapshots) == (None, 1, (Snapshot(1, b"null"),))
    shelf.put(write)
    again = StateHistory(KEY, state_type, shelf.stored())
    assert (again.current.version, again.current.state, again.current.json) == (1, None, b"null")


# Size


def large_state(n: int) -> dict[str, Any]:
    return {"n": n, "rows": ["x" * 100] * 1_000}


def test_a_small_change_to_a_large_state_costs_its_own_size() -> None:
    state_type = StateType(dict)
    history, _ = begin(state_type, large_state(0))
    for n in range(1, 50):
        write = change(history, state_type, large_state(n))
        assert write is not None
        assert not write.snapshots
        assert len(write.changes) == 1
        assert len(write.changes[0].ops) < 100


def test_a_change_of_a_small_state_keeps_its_operations_and_one_that_moves_elements_up_to_more_of_them() -> None:
    state_type = StateType(list[int])
    for count in (10, 1_000):
        history, _ = begin(state_type, list(range(count)))
        write = change(history, state_type, [])
        assert write is not None
        assert len(write.changes) == 1
        assert [op.op for op in decode_ops(write.changes[0].ops)] == ["remove"] * count


def test_a_change_never_costs_much_more_than_the_state() -> None:
    state_type = StateType(list[int])
    history, shelf = begin(state_type, list(range(1_000)))
    write = change(history, state_type, [n + 1 if n % 2 else n for n in range(1_000)])
    assert write is not None
    assert len(write.changes) == 1
    assert history.current.json is not None
    assert len(write.changes[0].ops) <= len(history.current.json) + 100
    shelf.put(write)
    assert StateHistory(KEY, state_type, shelf.stored()).current.state == history.current.state


def test_the_log_since_the_last_snapshot_does_not_outgrow_the_state_by_far() -> None:
    state_type = StateType(dict)
    history, shelf = begin(state_type, {"text": "x" * 10_000, "n": 0})
    snapshots = 0
    for n in range(1, 1_000):
        write = change(history, state_type, {"text": "x" * 10_000, "n": n})
        assert write is not None
        shelf.put(write)
        snapshots += len(write.snapshots)
        assert sum(len(row.ops) for row in shelf.stored().changes) <= 10_000 + 100
    assert 1 <= snapshots < 20


def test_a_woken_history_goes_on_counting_the_log() -> None:
    state_type = StateType(dict)
    history, shelf = begin(state_type, {"text": "x" * 10_000, "n": 0})
    for n in range(1, 1_000):
        history = StateHistory(KEY, state_type, shelf.stored())
        write = change(history, state_type, {"text": "x" * 10_000, "n": n})
        assert write is not None
        shelf.put(write)
    assert sum(len(row.ops) for row in shelf.stored().changes) <= 10_000 + 100


def test_the_log_is_kept_back_to_a_bound() -> None:
    state_type = StateType(int)
    history, shelf = begin(state_type, 0)
    for n in range(1, 4_000):
        write = change(history, state_type, n)
        assert write is not None
        shelf.put(write)
    assert 1_000 <= len(shelf.log) < 2_000
    assert shelf.log[-1].version == 3_999


# Commit and rollback


def test_only_what_was_committed_is_durable() -> None:
    state_type = StateType(int)
    history, _ = begin(state_type, 0)
    change(history, state_type, 1)
    first = history.current
    change(history, state_type, 2)
    assert (history.durable.state, history.current.state) == (0, 2)
    history.mark_durable(first)
    assert (history.durable.state, history.current.state) == (1, 2)


def test_a_rollback_goes_back_to_what_is_durable_and_counts_on_from_there() -> None:
    state_type = StateType(int)
    history, shelf = begin(state_type, 0)
    first = change(history, state_type, 1)
    assert first is not None
    shelf.put(first)
    history.mark_durable(history.current)
    change(history, state_type, 2)
    change(history, state_type, 3)
    history.rollback()
    assert (history.current.state, history.current.version) == (1, 1)
    again = change(history, state_type, 4)
    assert again is not None
    shelf.put(again)
    assert [row.version for row in shelf.log] == [1, 2]
    assert StateHistory(KEY, state_type, shelf.stored()).current.state == 4


def test_a_rollback_undoes_what_was_changed_in_place() -> None:
    state_type = StateType(dict)
    history, _ = begin(state_type, {"n": 0, "list": [1]})
    state = history.current.state
    state["n"] = 1
    state["list"].append(2)
    assert change(history, state_type, state) is not None
    history.rollback()
    assert history.current.state == {"n": 0, "list": [1]}


def test_after_a_rollback_of_the_beginning_the_next_write_begins_the_thread() -> None:
    state_type = StateType(int)
    history = StateHistory(KEY, state_type, None)
    history.start(5, b"5")
    assert history.put(()).after is None
    history.rollback()
    assert history.current.json == b"5"
    write = change(history, state_type, 6)
    assert write is not None
    assert (write.after, write.version) == (None, 1)


def test_a_rollback_keeps_the_sum_of_the_log() -> None:
    state_type = StateType(dict)
    history, shelf = begin(state_type, {"text": "x" * 10_000, "n": 0})
    for n in range(1, 1_000):
        change(history, state_type, {"text": "x" * 10_000, "n": -n})
        history.rollback()
        write = change(history, state_type, {"text": "x" * 10_000, "n": n})
        assert write is not None
        shelf.put(write)
        history.mark_durable(history.current)
    assert sum(len(row.ops) for row in shelf.stored().changes) <= 10_000 + 100


# The last changes


def change_many(history: StateHistory, numbers: Iterable[int], *, is_committed: bool = True) -> None:
    """Count a state of JSON up, each number a change."""
    for n in numbers:
        assert change(history, ANY, n) is not None
        if is_committed:
            history.mark_durable(history.current)


ANY = StateType(Any)


def since(history: StateHistory, version: int, to: int) -> list[int] | None:
    rows = history.since(version, to)
    return None if rows is None else [row.version for row in rows]


def test_the_changes_since_a_version_are_those_after_it_up_to_another() -> None:
    history, shelf = begin(ANY, 0)
    change_many(history, range(1, 11))
    assert since(history, 0, 10) == list(range(1, 11))
    assert since(history, 4, 7) == [5, 6, 7]
    assert since(history, 9, 10) == [10]
    assert since(history, 10, 10) == since(history, 7, 4) == []
    last = history.since(9, 10)
    assert last == [history.current.change]
    assert last is not None
    assert (last[0].ops, last[0].source) == (b'[{"op":"replace","path":"","value":10}]', "server")
    assert shelf.version == 0


def test_nothing_is_in_memory_of_a_thread_that_has_just_woken() -> None:
    history, shelf = begin(ANY, 0)
    for n in (1, 2, 3):
        write = change(history, ANY, n)
        assert write is not None
        shelf.put(write)
    woken = StateHistory(KEY, ANY, shelf.stored())
    assert since(woken, 3, 3) == []
    assert since(woken, 2, 3) is None
    change_many(woken, [4, 5])
    assert since(woken, 3, 5) == [4, 5]
    assert since(woken, 2, 5) is None


def test_memory_keeps_so_many_changes_and_no_more() -> None:
    history, _ = begin(ANY, 0)
    change_many(history, range(1, 1_001))
    kept = [version for version in range(1_000) if history.since(version, 1_000) is not None]
    assert kept == list(range(1_000 - 256, 1_000))
    assert since(history, kept[0], 1_000) == list(range(kept[0] + 1, 1_001))


def test_memory_keeps_so_many_bytes_and_no_more() -> None:
    history, _ = begin(ANY, "")
    for n in range(100):
        change(history, ANY, f"{n:05}" * 1_000)
        history.mark_durable(history.current)
    kept = [version for version in range(100) if history.since(version, 100) is not None]
    assert kept == list(range(100 - 64 * 1024 // 5_040, 100))
    change(history, ANY, "x" * 100_000)
    assert since(history, 100, 101) == [101]
    history.mark_durable(history.current)
    change(history, ANY, "x")
    assert since(history, 100, 102) is None
    assert since(history, 101, 102) == [102]


def test_changes_that_are_not_durable_yet_stay_in_memory_however_many_they_are() -> None:
    history, _ = begin(ANY, 0)
    change_many(history, range(1, 11))
    change_many(history, range(11, 1_001), is_committed=False)
    assert since(history, 10, 1_000) == list(range(11, 1_001))
    assert since(history, 9, 1_000) is None
    history.mark_durable(history.current)
    assert since(history, 1_000 - 256, 1_000) == list(range(1_000 - 255, 1_001))
    assert since(history, 1_000 - 257, 1_000) is None


def test_a_rollback_takes_back_the_changes_that_were_not_durable() -> None:
    history, _ = begin(ANY, 0)
    change_many(history, range(1, 6))
    change_many(history, [16, 17, 18], is_committed=False)
    assert since(history, 3, 8) == [4, 5, 6, 7, 8]
    history.rollback()
    assert since(history, 3, 8) == [4, 5]
    change_many(history, [26])
    rows = history.since(4, 6)
    assert rows is not None
    assert [row.ops for row in rows] == [b'[{"op":"replace","path":"","value":%d}]' % n for n in (5, 26)]


def test_a_rollback_gives_back_the_room_of_what_it_takes_back() -> None:
    history, _ = begin(ANY, "")
    change_many(history, range(10))
    for _ in range(20):
        change(history, ANY, "x" * 60_000)
        history.rollback()
    change_many(history, range(10, 20))
    assert since(history, 0, 20) == list(range(1, 21))


@given(st.lists(st.sampled_from(["change", "large change", "commit", "rollback"]), max_size=60))
def test_what_is_in_memory_is_the_end_of_what_was_changed(steps: list[str]) -> None:
    history, _ = begin(ANY, 0)
    log: list[ChangeRow] = []
    tentative: list[Revision] = []
    for n, step in enumerate(steps):
        match step:
            case "commit" if tentative:
                history.mark_durable(tentative.pop(0))
            case "rollback":
                history.rollback()
                del log[history.durable.version :]
                tentative.clear()
            case "change" | "large change":
                assert change(history, ANY, f"{n:05}" * (1 if step == "change" else 5_000)) is not None
                assert history.current.change is not None
                log.append(history.current.change)
                tentative.append(history.current)
    version = history.current.version
    assert version == len(log)
    for after in range(version + 1):
        assert history.since(after, version) in (None, log[after:])
    assert history.since(history.durable.version, version) == log[history.durable.version :]


# The form of what is changed


@given(STATES)
def test_json_that_is_made_when_it_is_asked_for_is_what_was_stored_at_once(states: tuple[Any, list[Any]]) -> None:
    state_type = StateType(states[0])
    eager, eager_shelf = begin(state_type, states[1][0])
    lazy, lazy_shelf = begin(state_type, states[1][0])
    for value in states[1][1:]:
        state, data = state_type.from_value(value, DEFAULT_LIMITS)
        ops = eager.diff(eager.current, state, data, DEFAULT_LIMITS)
        if not ops:
            continue
        eager_shelf.put(eager.append(ops, "server", Revision(state_type, json=data, tree=state)))
        later = Revision(state_type, tree=value if state_type.is_plain else state)
        later.size = len(data)
        lazy_shelf.put(lazy.append(ops, "server", later))
        is_typed = not state_type.is_plain
        assert same_json(lazy_shelf.log[-1].ops, eager_shelf.log[-1].ops, is_typed=is_typed)
        assert same_json(lazy.current.json, eager.current.json, is_typed=is_typed)
        assert lazy.current.state == eager.current.state
    for version in range(len(eager_shelf.log) + 1):
        made = (replay_json(KEY, each.stored(version)) for each in (lazy_shelf, eager_shelf))
        assert same_json(*made, is_typed=not state_type.is_plain)


# Epochs


def test_a_thread_keeps_its_epoch_and_a_fresh_one_has_its_own() -> None:
    state_type = StateType(int)
    history, shelf = begin(state_type, 0)
    assert StateHistory(KEY, state_type, shelf.stored()).epoch == history.epoch
    assert StateHistory(KEY, state_type, None).epoch != history.epoch


# Corruption


def rows(*ops: bytes) -> Iterable[ChangeRow]:
    return [ChangeRow(version, each, "server", 0) for version, each in enumerate(ops, 1)]


@each_case(
    ("snapshot", "ops"),
    [
        (b"{", []),
        (b"", []),
        (b'"\xff"', []),
        (b"[" * 100_000, []),
        (b"{", [b"[]"]),
        (b'"\xff"', [b"[]"]),
        (b"{}", [b"nonsense"]),
        (b"{}", [b"{}"]),
        (b"{}", [b"[{}]"]),
        (b"{}", [b'[{"op":"move","path":"/a"}]']),
        (b"{}", [b'[{"op":"replace","path":"/a","value":1}]']),
        (b"{}", [b'[{"op":"add","path":"/a"}]']),
        (b"{}", [b'[{"op":"replace","path":""}]']),
        (b"{}", [b'[{"op":"add","path":"a","value":1}]']),
        (b"[]", [b'[{"op":"add","path":"/5","value":1}]']),
        (b"{}", [b'[{"op":"add","path":"/a","value":"\xff"}]']),
        (b"{}", [b'[{"op":"add","path":"/a","value":' + b"[" * 100_000]),
        (None, [b'[{"op":"add","path":"/a","value":1}]']),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_thread(snapshot: bytes | None, ops: list[bytes]) -> None:
    with pytest.raises(CorruptThread, match="room/one"):
        StateHistory(KEY, StateType(Any), StoredThread("epoch", len(ops), snapshot, list(rows(*ops))))


def test_what_is_stored_as_another_type_is_an_error_and_no_empty_state() -> None:
    with pytest.raises(CorruptThread, match="does not fit its class"):
        StateHistory(KEY, StateType(Game), StoredThread("epoch", 0, b'{"players":[{"name":1}]}', []))


# What is kept in memory of the log


def test_a_log_that_is_forgotten_is_not_in_memory_any_more_but_what_is_on_its_way_to_the_disk() -> None:
    state_type = StateType(int)
    history, _ = begin(state_type, 0)
    for n in (1, 2):
        change(history, state_type, n)
        history.mark_durable(history.current)
    change(history, state_type, 3)
    history.forget()
    assert [row.version for row in history.since(0, 3) or ()] == [1, 2, 3]
    history.mark_durable(history.current)
    history.forget()
    assert history.since(0, 3) is None
    assert history.since(2, 3) is None
    assert history.since(3, 3) == []
    change(history, state_type, 4)
    assert [row.version for row in history.since(3, 4) or ()] == [4]
    assert history.since(2, 4) is None


def test_an_edit_of_every_row_of_a_long_list_is_kept_as_operations_by_which_pushes_find_their_rows() -> None:
    state_type = StateType(Any)
    rows = [{"id": row, "n": 0} for row in range(3000)]
    history, _ = begin(state_type, {"rows": rows})
    write = change(history, state_type, {"rows": [{**row, "n": 1} for row in rows]})
    assert write is not None
    assert len(write.changes) == 1
    assert len(decode_ops(write.changes[0].ops)) == 3000


def test_an_edit_of_every_member_of_a_large_object_is_kept_as_the_whole_state_where_that_is_shorter() -> None:
    state_type = StateType(Any)
    history, _ = begin(state_type, {f"key{number}": 0 for number in range(3000)})
    write = change(history, state_type, {f"key{number}": 1 for number in range(3000)})
    assert write is not None
    assert len(write.changes) == 1
    assert [op.path for op in decode_ops(write.changes[0].ops)] == [""]


def test_an_idle_thread_keeps_its_last_change_neither_as_a_row_nor_in_what_it_compares_with() -> None:
    state = b'"%b"' % (b"x" * 100_000)
    history = StateHistory(KEY, ANY, None)
    tracemalloc.start()
    try:
        after = Revision(ANY, json=state)
        history.append(history.diff(history.current, UNDECODED, state, DEFAULT_LIMITS), "server", after)
        history.mark_durable(after)
        assert tracemalloc.get_traced_memory()[0] > 100_000
        history.forget()
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()
    assert history.current.json == state
