"""Which rows a thread's head in NATS keeps, and which are messages of their own."""

from collections.abc import Sequence

from plait.store.nats.layout import Known, ThreadHead
from plait.store.nats.planning import Plan, Room, make_plan
from plait.store.protocol import Write
from plait.store.thread_rows import ChangeRow, Record, Snapshot, ThreadKey

KEY = ThreadKey("room", "one")
ROOM = Room(4_000, 64_000)


class Thread:
    """A thread that is written."""

    def __init__(self) -> None:
        self.known = Known(7, ThreadHead("room", "one", 1, "stream"))
        self.version = 0
        self.write(Write(KEY, "e", None, 0))

    def write(self, write: Write) -> Plan:
        plan = make_plan(self.known, [write], now=0, room=ROOM)
        self.known = Known(self.known.sequence + 1, plan.head)
        return plan

    def change(self, size: int, *, snapshot: bytes | None = None) -> Plan:
        self.version += 1
        row = ChangeRow(self.version, b"x" * size, "server", 0)
        snapshots = () if snapshot is None else (Snapshot(self.version, snapshot),)
        return self.write(Write(KEY, "e", self.version - 1, self.version, (row,), snapshots))

    def put(self, *sizes: int, first: int = 0) -> Plan:
        records = [Record("sql", f"p/{number}", b"x" * size) for number, size in enumerate(sizes, first)]
        return self.write(Write(KEY, "e", self.version, self.version, records=records))

    @property
    def kept(self) -> Sequence[int]:
        """How many changes and rows the head has."""
        thread = self.known.head.thread
        assert thread is not None
        return len(thread.changes), len(thread.rows)


def test_small_writes_stay_in_the_head_until_they_are_4_kib() -> None:
    thread = Thread()
    plans = [thread.change(100) for _ in range(100)]
    assert 3 <= sum(bool(plan.rows) for plan in plans) <= 5
    assert thread.kept[0] < 27


def test_a_write_of_some_pages_is_the_head_alone_and_so_are_those_after_it() -> None:
    thread = Thread()
    assert not thread.put(4096, 4096, 4096).rows
    assert thread.kept == (0, 3)
    for _ in range(50):
        assert not thread.put(4096, 4096).rows
        assert not thread.change(100).rows
    assert thread.kept == (50, 3)


def test_a_head_never_has_more_than_64_kib() -> None:
    thread = Thread()
    assert len(thread.put(*[4096] * 16).rows) == 16
    assert thread.kept == (0, 0)
    for number in range(15):
        assert not thread.put(4096, first=number).rows
    assert len(thread.put(4096, first=99).rows) == 16
    assert thread.kept == (0, 0)
    assert thread.change(100_000).rows


def test_a_head_is_small_again_after_its_large_rows_have_left_it() -> None:
    thread = Thread()
    thread.put(*[4096] * 16)
    plans = [thread.change(100) for _ in range(100)]
    assert 3 <= sum(bool(plan.rows) for plan in plans) <= 5


def test_a_large_state_that_is_rewritten_is_a_large_write() -> None:
    thread = Thread()
    assert not thread.change(100, snapshot=b"x" * 20_000).rows
    assert thread.kept == (1, 1)
