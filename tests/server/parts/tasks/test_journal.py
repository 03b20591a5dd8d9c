"""The journal of a run, and its rows, without a thread."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schedules import schedules

from plait.errors import CorruptThread
from plait.parts.tasks.journal import MOST_STEPS, Journal, ReplayDiverged
from plait.parts.tasks.rows import JournalEntry, TaskRow, decode_row
from plait.state.thread_records import Changes, apply
from plait.store.thread_rows import Record, ThreadKey
from plait_schemas.codec import encode_json

KEY = ThreadKey("room", "one")
NAMES = st.sampled_from("abc")


def make_row(**fields: Any) -> TaskRow:
    return TaskRow(id="1", effect="work", args=msgspec.Raw(b"[]"), created_at=1, at=2, due=2, **fields)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


class Stored:
    """The records of one run, and its row, as a store has them."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.row = make_row()

    def write(self, changes: Changes) -> None:
        for record in apply(changes)[0]:
            self.records.pop(record.key, None)
            if record.value is not None:
                self.records[record.key] = record.value

    def open(self) -> Journal:
        journal = Journal("tasks", "1")
        journal.load([Record("tasks", key, value) for key, value in self.records.items()], KEY)
        journal.is_unread = False
        return journal


def finish(value: object) -> JournalEntry:
    return JournalEntry("do", is_done=True, value=raw(value))


def test_a_name_twice_since_the_checkpoint_diverges_and_both_kinds_are_named() -> None:
    journal = Journal("tasks", "1")
    journal.call("a", "do")
    with pytest.raises(ReplayDiverged, match="the step 'a' is called twice as do since the last checkpoint"):
        journal.call("a", "do")
    with pytest.raises(ReplayDiverged, match="the step 'a' is called as do and as sleep"):
        journal.call("a", "sleep")
    journal.make_checkpoint(b"1")
    assert journal.call("a", "sleep") is None


def test_a_step_of_another_kind_than_stored_diverges_and_both_kinds_are_named() -> None:
    stored = Stored()
    stored.write(stored.open().put("a", finish(1)))
    with pytest.raises(ReplayDiverged, match="the step 'a' was called as do before, and now as event"):
        stored.open().call("a", "event")


def test_steps_in_another_order_and_added_steps_do_not_diverge() -> None:
    stored = Stored()
    for name in "ab":
        stored.write(stored.open().put(name, finish(name)))
    journal = stored.open()
    assert journal.call("b", "do") == finish("b")
    assert journal.call("new", "do") is None
    assert journal.call("a", "do") == finish("a")


def test_there_are_at_most_1000_steps_since_a_checkpoint() -> None:
    journal = Journal("tasks", "1")
    for number in range(MOST_STEPS):
        journal.call(str(number), "do")
    with pytest.raises(RuntimeError, match=r"1,000 steps since the last checkpoint: call step\.checkpoint"):
        journal.call("more", "do")
    journal.make_checkpoint(b"1")
    journal.call("more", "do")


def test_a_checkpoint_removes_what_it_forgets_with_the_next_write() -> None:
    stored = Stored()
    journal = stored.open()
    for name in "ab":
        journal.call(name, "do")
        stored.write(journal.put(name, finish(name)))
    journal.make_checkpoint(b'"here"')
    assert sorted(stored.records) == ["j/1/s/a", "j/1/s/b"]
    journal.call("b", "do")
    stored.write(journal.put("b", finish("again")))
    assert sorted(stored.records) == ["j/1/c", "j/1/s/b"]
    found = stored.open()
    assert (found.checkpoint.number, bytes(found.checkpoint.value)) == (1, b'"here"')
    assert found.call("b", "do") == finish("again")


def test_events_that_were_not_asked_for_stay_over_a_checkpoint() -> None:
    stored = Stored()
    journal = stored.open()
    for name in ("asked", "early"):
        stored.write(journal.receive(name, raw(name)))
        stored.row = stored.row.receive(name, 9)
    journal.call("asked", "event")
    journal.make_checkpoint(b"1")
    assert not journal.has_come("asked", stored.row)
    assert journal.has_come("early", stored.row)
    assert journal.advance(stored.row).events == ("early",)
    stored.write(journal.flush())
    assert sorted(stored.records) == ["j/1/c", "j/1/e/early"]


def test_an_event_of_the_name_of_a_step_leaves_the_step_alone() -> None:
    stored = Stored()
    journal = stored.open()
    journal.call("a", "do")
    stored.write(journal.put("a", finish(1)))
    stored.write(journal.receive("a", raw(2)))
    assert stored.open().call("a", "do") == finish(1)


@each_case("key", ["j/1/s/a", "j/1/c"])
def test_a_damaged_record_is_an_error_that_names_it(key: str) -> None:
    stored = Stored()
    stored.records[key] = b'{"kind":'
    with pytest.raises(CorruptThread, match=f"tasks/{key} of room/one cannot be read"):
        stored.open()


def test_an_event_that_comes_before_the_journal_is_read_is_kept() -> None:
    journal = Journal("tasks", "1")
    apply(journal.receive("a", raw("first")))
    journal.load([], KEY)
    assert journal.events == {"a": raw("first")}


def test_a_write_that_is_undone_is_made_again_with_its_checkpoint() -> None:
    stored = Stored()
    journal = stored.open()
    journal.call("a", "do")
    stored.write(journal.put("a", finish(1)))
    journal.make_checkpoint(b"1")
    _, undo = apply(journal.put("b", finish(2)))
    undo()
    assert journal.entries == {}
    stored.write(journal.put("c", finish(3)))
    assert sorted(stored.records) == ["j/1/c", "j/1/s/c"]


def test_what_removes_a_journal_removes_all_of_it() -> None:
    stored = Stored()
    journal = stored.open()
    for name in "ab":
        journal.call(name, "do")
        stored.write(journal.put(name, finish(name)))
    stored.write(journal.receive("e", raw(1)))
    journal.make_checkpoint(b"1")
    stored.write(journal.flush())
    journal.call("c", "do")
    stored.write(journal.put("c", finish(1)))
    journal.make_checkpoint(b"2")
    stored.write(journal.clear())
    assert stored.records == {}


@settings(max_examples=schedules(50), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["do", "send", "ask", "checkpoint", "replay", "undo"]), NAMES), max_size=30))
def test_a_journal_that_is_read_is_the_one_that_was_written(actions: list[tuple[str, str]]) -> None:
    stored = Stored()
    journal = stored.open()
    called: set[str] = set()
    for number, (action, name) in enumerate(actions):
        if action == "do" and name not in called:
            called.add(name)
            if (entry := journal.call(name, "do")) is None:
                entry = finish(number)
                stored.row = journal.advance(stored.row)
                stored.write(journal.put(name, entry))
        elif action == "undo":
            before = dict(journal.entries)
            apply(journal.put("x", finish(number)))[1]()
            assert journal.entries == before
        elif action == "send" and not journal.has_come(f"e{name}", stored.row):
            row = journal.advance(stored.row)
            stored.write(journal.receive(f"e{name}", raw(number)))
            stored.row = row.receive(f"e{name}", number)
        elif action == "ask" and f"e{name}" not in called:
            called.add(f"e{name}")
            journal.call(f"e{name}", "event")
        elif action == "checkpoint" and journal.has_called:
            called.clear()
            journal.make_checkpoint(raw(number))
        elif action == "replay":
            stored.row = journal.advance(stored.row)
            stored.write(journal.flush())
            found = stored.open()
            assert found.entries == journal.entries
            assert found.events == journal.events
            assert found.checkpoint == journal.checkpoint
            assert sorted(found.events) == sorted(stored.row.events)
            journal, called = found, set()


# Rows


def test_a_crash_of_a_run_whose_calls_wait_does_not_count() -> None:
    row = make_row().begin("p1")
    assert row.recover("p2").crashes == 1
    resting = msgspec.structs.replace(row, is_resting=True)
    assert (resting.recover("p2").crashes, resting.recover("p2").process) == (0, "")
    assert resting.recover("p1") is resting


def test_a_run_is_given_up_after_ten_crashes() -> None:
    assert not make_row(crashes=9).has_crashed_out
    assert make_row(crashes=9).is_suspect
    assert make_row(crashes=10).has_crashed_out


def test_an_event_that_came_while_the_run_was_leaving_the_memory_makes_it_due() -> None:
    row = make_row().begin("p1").receive("go", 7)
    assert row.sleep(99, ["go"], now=8).due == 8
    assert row.sleep(99, ["other"], now=8).due == 99
    assert row.sleep(99, ["other"], now=8).receive("other", 50).due == 50
    assert row.sleep(99, ["other"], now=8).receive("third", 50).due == 99


def test_rows_are_read_as_they_were_written() -> None:
    row = make_row(key="k", events=("a",), value=raw({"n": 1}), told=2).sleep(5, ["b"], 4)
    assert decode_row(encode_json(row)) == row
    assert (row.status, row.begin("p").status, make_row().status) == ("sleeping", "running", "waiting")
