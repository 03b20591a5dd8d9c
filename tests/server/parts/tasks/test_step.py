"""Steps of tasks."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.clocks import Clock
from tests.server.parts.tasks.desks import Desk, find_row, keys, open_desk, rest_at_once, sleeps
from tests.server.parts.workshop import FlakyMemory, FlakyStore, until

from plait.parts.schedule.rules import LATEST
from plait.parts.tasks.step import Step
from plait.parts.tasks.step_errors import GiveUp, StepFailed, Unknown
from plait.store.protocol import Write


async def run(desk: Desk, name: str = "work") -> Any:
    """Run a task to its end, and return the result, or the error."""
    ended = await desk.tasks.wait((await desk.tasks.run(name)).id)
    return ended.result if ended.status == "done" else ended.error


async def test_a_step_is_tried_again_with_pauses_and_its_result_is_stored(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        def fetch() -> int:
            desk.seen.append("fetch")
            if len(desk.seen) < 3:
                raise ConnectionError("away")
            return 5

        return await step.do("fetch", fetch, base=10)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        for number in (1, 2):
            await until(lambda number=number: len(desk.seen) == number)
            await sleeps(desk, id)
            assert clock.now < find_row(desk, id).due <= clock.now + 10_000_000 * number
            clock.move(20)
        assert (await desk.tasks.wait(id)).result == 5
        assert desk.errors == []


async def test_a_def_is_stored_in_one_write_with_its_result(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        def show() -> None:
            desk.set_state(7)
            desk.values.set("shown", True)

        await step.do("show", show)
        await step.do("set", lambda: desk.set_state(lambda state: state + 1))

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) is None
        show, set_ = [write for write in store.writes if write.changes][-2:]
        assert [record.key.split("/")[-1] for record in show.records if record.part == "tasks"] == ["show"]
        assert any(record.part == "values" for record in show.records)
        assert [record.key.split("/")[-1] for record in set_.records] == ["set"]
        assert desk.state == 8


async def test_a_status_is_shown_while_the_run_goes_on(store: FlakyStore) -> None:
    gate = asyncio.Event()

    async def script(desk: Desk, step: Step) -> None:
        step.status({"done": 1, "of": 2})
        await step.do("wait", gate.wait)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: bytes(find_row(desk, id).value) == b'{"done":1,"of":2}')
        found = await desk.tasks.get(id)
        assert found is not None
        assert (found.status, found.value) == ("running", {"done": 1, "of": 2})
        gate.set()
        assert (await desk.tasks.wait(id)).value == {"done": 1, "of": 2}


async def test_an_event_counts_once_and_may_come_before_it_is_asked_for(store: FlakyStore) -> None:
    gate = asyncio.Event()

    async def script(desk: Desk, step: Step) -> Any:
        await step.do("wait", gate.wait)
        return [await step.event("early"), await step.event("late")]

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        assert await desk.tasks.send(id, "early", [1])
        assert not await desk.tasks.send(id, "early", [2])
        gate.set()
        assert await desk.tasks.send(id, "late", {"a": 1})
        assert (await desk.tasks.wait(id)).result == [[1], {"a": 1}]
        assert not await desk.tasks.send(id, "early")
        assert not await desk.tasks.send(id, "other")
        assert not await desk.tasks.send("none", "other")
        assert await keys(store) == ["e", "x"]


async def test_a_replay_begins_with_the_value_of_the_last_checkpoint_without_the_steps_before_it(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        first = step.value or 0
        for number in range(first, 3):
            await step.do("page", lambda number=number: desk.seen.append(f"page {number}"))
            step.checkpoint(number + 1)
        desk.seen.append(f"from {first}")
        await step.sleep("rest", 60)
        return step.value

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        assert await keys(store) == ["j/c", "j/s/rest", "r"]
        clock.move(61)
        assert (await desk.tasks.wait(id)).result == 3
        assert desk.seen == ["page 0", "page 1", "page 2", "from 0", "from 3"]


class EarlierStore(FlakyMemory):
    """A store of an earlier version, whose checkpoints do not say whether they must be read."""

    def submit(self, write: Write) -> asyncio.Future[int]:
        records = [
            msgspec.structs.replace(each, value=each.value.replace(b',"must_be_read":true', b""))
            if each.value
            else each
            for each in write.records
        ]
        return super().submit(msgspec.structs.replace(write, records=records))


@pytest.mark.parametrize(
    ("value", "make_store", "error"),
    [
        (1, FlakyMemory, "ReplayDiverged: the step 'pay' would be repeated: read `step.value`"),
        (None, FlakyMemory, None),  # It polls.
        (1, EarlierStore, None),
    ],
)
async def test_a_replay_that_does_not_read_the_value_of_its_checkpoint_fails(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, value: Any, make_store: type[FlakyMemory], error: str | None
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> None:
        await step.do("pay", lambda: desk.seen.append("pay"), once=True)
        step.checkpoint(value)
        await step.sleep("rest", 60)

    async with make_store() as store, open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        clock.move(61)
        found = (await desk.tasks.wait(id)).error
        assert found == error if error is None else str(found).startswith(error)
        assert len(desk.seen) == (2 if error is None else 1)


async def test_a_step_that_has_failed_raises_the_same_in_a_replay(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        async def charge() -> None:
            desk.seen.append("charge")
            raise ValueError("no money")

        try:
            await step.do("charge", charge, attempts=1)
        except StepFailed as error:
            desk.seen.append(str(error))
        await step.sleep("rest", 60)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        clock.move(61)
        assert (await desk.tasks.wait(id)).status == "done"
        assert desk.seen == ["charge", "ValueError: no money", "ValueError: no money"]


async def test_the_last_attempt_fails_the_step_with_its_error_as_the_cause(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        try:
            await step.do("fail", lambda: 1 / 0, attempts=2, base=0.001)
        except StepFailed as error:
            return [str(error), type(error.__cause__).__name__]

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) == ["ZeroDivisionError: division by zero", "ZeroDivisionError"]


async def test_giving_up_ends_the_attempts(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        async def fetch() -> None:
            desk.seen.append("fetch")
            raise GiveUp("gone for good")

        await step.do("fetch", fetch)

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) == "StepFailed: GiveUp: gone for good"
        assert desk.seen == ["fetch"]


async def test_an_attempt_that_takes_too_long_fails(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        await step.do("hang", asyncio.Event().wait, timeout=0.001, attempts=1)

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) == "StepFailed: TurnTimeout: it has taken longer than 0.001 s"


async def test_a_step_that_has_returned_none_is_finished(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        await step.do("note", lambda: desk.seen.append("note"))
        await step.sleep("rest", 60)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        clock.move(61)
        await desk.tasks.wait(id)
        assert desk.seen == ["note"]


class Point(msgspec.Struct):
    x: int


async def test_a_value_is_its_json_in_the_first_pass_and_in_a_replay(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        plain = await step.do("plain", lambda: (1, Point(2)))
        typed = await step.do("typed", lambda: Point(3), type=Point)
        desk.seen.append(f"{plain} {typed}")
        await step.sleep("rest", 60)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        clock.move(61)
        await desk.tasks.wait(id)
        assert desk.seen == ["[1, {'x': 2}] Point(x=3)"] * 2


async def test_a_value_that_is_not_json_fails_the_step(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        await step.do("odd", object, attempts=1)

    async with open_desk(store, script) as (_, desk):
        assert str(await run(desk)).startswith("StepFailed: TypeError: the value 'odd' is not JSON")


async def test_names_that_cannot_be_stored_are_refused(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        for name in ("", "a\n", "a" * 401):
            with pytest.raises(ValueError, match="the name of a step must have 1 to 400 bytes"):
                await step.sleep(name, 0)
        await step.sleep("a" * 400, 0)

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) is None


async def test_retries_that_make_no_sense_are_refused_before_the_step_is_called(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        with pytest.raises(ValueError, match="attempts must be an integer of at least 1, not 0"):
            await step.do("a", lambda: desk.seen.append("a"), attempts=0)
        with pytest.raises(ValueError, match="base and most must be above 0, and base finite, not -1"):
            await step.do("a", lambda: desk.seen.append("a"), base=-1)

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) is None
        assert desk.seen == []


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), "x"])
async def test_seconds_must_be_a_finite_number(store: FlakyStore, seconds: Any) -> None:
    async def script(desk: Desk, step: Step) -> None:
        with pytest.raises((ValueError, TypeError), match="seconds must be"):
            await step.sleep("a", seconds)
        with pytest.raises((ValueError, TypeError), match="timeout must be"):
            await step.event("b", timeout=seconds)
        with pytest.raises((ValueError, TypeError), match="timeout must be"):
            await step.do("c", lambda: desk.seen.append("c"), timeout=seconds)
        with pytest.raises((ValueError, TypeError)):
            await step.do("d", lambda: desk.seen.append("d"), base=seconds)

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) is None
        assert desk.seen == []


async def test_a_step_in_the_function_of_another_one_is_refused(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        async def work() -> None:
            await step.sleep("inner", 0)

        with pytest.raises(StepFailed, match="the step 'inner' is in the function of another one"):
            await step.do("outer", work, attempts=1)
        await step.sleep("inner", 0)

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) is None


async def test_a_run_sleeps_until_a_time_which_must_have_a_zone(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)
    when = datetime.fromtimestamp(clock.now / 1e6, UTC) + timedelta(hours=1)

    async def script(desk: Desk, step: Step) -> str:
        with pytest.raises(ValueError, match="has no time zone"):
            await step.sleep_until("naive", datetime(2030, 1, 1))  # noqa: DTZ001
        await step.sleep_until("past", when - timedelta(hours=2))
        await step.sleep_until("when", when)
        return "awake"

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        assert abs(find_row(desk, id).due - clock.now - 3600_000_000) <= 2
        clock.move(3601)
        assert (await desk.tasks.wait(id)).result == "awake"


# Once


async def test_a_step_that_was_cut_off_and_is_done_once_is_not_repeated(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        async def pay() -> None:
            desk.seen.append("pay")
            await asyncio.Event().wait()

        try:
            await step.do("pay", pay, once=True)
        except Unknown as error:
            return str(error)

    async with open_desk(store, script) as (shop, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: desk.seen == ["pay"])
        await shop.crash()
    async with open_desk(store) as (_, desk):
        assert (await desk.tasks.wait(id)).result == "the step 'pay' was cut off, and is done at most once"
        assert desk.seen == ["pay"]


class HeldStart(FlakyMemory):
    """A store that stores the start of a step when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.has_come, self.go = asyncio.Event(), asyncio.Event()

    def submit(self, write: Write) -> asyncio.Future[int]:
        if self.go.is_set() or not any(each.key.endswith("/s/pay") for each in write.records):
            return super().submit(write)
        self.has_come.set()
        return asyncio.ensure_future(self._wait(write))

    async def _wait(self, write: Write) -> int:
        await self.go.wait()
        Desk.seen.append("stored")
        return await super().submit(write)


async def test_a_step_that_is_done_once_begins_when_its_start_is_stored() -> None:
    async def script(desk: Desk, step: Step) -> Any:
        await step.do("pay", lambda: desk.seen.append("pay"), once=True)

    async with HeldStart() as store, open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await store.has_come.wait()
        for _ in range(100):  # Time enough for a step that does not wait.
            await asyncio.sleep(0)
        store.go.set()
        assert (await desk.tasks.wait(id)).status == "done"
        assert desk.seen == ["stored", "pay"]


async def test_a_step_that_is_done_once_has_one_attempt(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        def pay() -> None:
            desk.seen.append("pay")
            raise ConnectionError

        await step.do("pay", pay, once=True)

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) == "StepFailed: ConnectionError: "
        assert desk.seen == ["pay"]


# Writes


async def test_the_writes_of_a_step_that_raises_are_dropped_and_those_of_the_method_kept(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        async def write() -> None:
            await desk.values.push("log", "step")
            if len(desk.seen) < 2:
                desk.seen.append("raise")
                raise ValueError

        def write_at_once() -> None:
            desk.set_state(9)
            desk.values.set("dropped", True)
            raise ValueError

        await desk.values.push("log", "method")
        await step.do("write", write, base=0.001)
        with pytest.raises(StepFailed):
            await step.do("refused", write_at_once, attempts=1)

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) is None
        assert sorted(await desk.values.get("log")) == ["method", "step"]
        assert await desk.values.get("dropped") is None
        assert desk.state == 0


async def test_what_a_method_writes_to_parts_is_stored_once_with_its_end(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> str:
        await desk.values.push("log", "method")
        await step.sleep("rest", 60)
        return "end"

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        assert await desk.values.get("log") is None
        clock.move(61)
        await desk.tasks.wait(id)
        assert await desk.values.get("log") == ["method"]
        (last,) = (write for write in store.writes if any(record.key.startswith("e/") for record in write.records))
        assert any(record.part == "values" for record in last.records)


async def test_each_step_is_one_write(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        async def write() -> None:
            await desk.values.set("a", 1)

        async def read() -> int:
            return 1

        before = len(store.writes)
        await step.do("def", lambda: desk.set_state(1))
        await step.do("write", write)
        await step.do("read", read)
        await step.do("call", lambda: asyncio.sleep(0))
        step.checkpoint(1)
        await step.do("def", lambda: None)
        await step.sleep("sleep", 0)
        assert len(store.writes) - before == 6

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) is None


async def test_a_function_that_writes_and_returns_an_awaitable_is_refused(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        def odd() -> Any:
            desk.set_state(1)
            return asyncio.sleep(0)

        await step.do("odd", odd, attempts=1)

    async with open_desk(store, script) as (_, desk):
        assert "the function of the step 'odd' writes, and returns an awaitable" in await run(desk)
        assert desk.state == 0


async def test_a_def_returns_the_value_of_its_write(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        state = await step.do("state", lambda: desk.set_state(1))
        return [state, (await step.do("run", lambda: desk.tasks.run("add", 1)))["name"]]

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) == [None, "add"]


# Events


@pytest.mark.parametrize("method", ["event", "approval"])
async def test_an_event_that_only_plait_sends_cannot_be_waited_for(store: FlakyStore, method: str) -> None:
    async def script(desk: Desk, step: Step) -> None:
        await getattr(step, method)("plait:x", timeout=0.01)

    async with open_desk(store, script) as (_, desk):
        what = "the event 'plait:x' cannot be used: plait itself sends those that begin with plait:"
        assert await run(desk) == f"ValueError: {what}"


async def test_an_event_that_does_not_come_in_time_raises_also_in_a_replay(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        with pytest.raises(TimeoutError, match="the event 'go' has not come in time"):
            await step.event("go", timeout=60)
        desk.seen.append("late")
        await step.sleep("rest", 60)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        assert find_row(desk, id).due == clock.now + 60_000_000
        clock.move(61)
        await until(lambda: desk.seen == ["late"])
        await sleeps(desk, id)
        assert not await desk.tasks.send(id, "go")
        clock.move(61)
        assert (await desk.tasks.wait(id)).error is None
        assert desk.seen == ["late", "late"]


async def test_an_event_continues_a_run_that_has_left_the_memory(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        return await step.event("go")

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        assert find_row(desk, id).due == LATEST
        assert await desk.tasks.send(id, "other", 1)
        assert find_row(desk, id).due == LATEST
        assert await desk.tasks.send(id, "go", 2)
        assert (await desk.tasks.wait(id)).result == 2


async def test_an_approval_has_an_answer_a_reason_and_metadata(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        answer = await step.approval("publish")
        return [answer.approved, answer.reason, answer.metadata]

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await desk.tasks.send(id, "publish", {"approved": False, "reason": "no", "metadata": {"by": "Ada"}})
        assert (await desk.tasks.wait(id)).result == [False, "no", {"by": "Ada"}]


async def test_a_name_of_an_event_counts_again_after_a_checkpoint(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        found = list(step.value or ())
        while len(found) < 2:
            found.append(await step.event("go"))
            step.checkpoint(found)
            desk.seen.append("checkpoint")
        return found

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        assert await desk.tasks.send(id, "go", 1)
        await until(lambda: desk.seen == ["checkpoint"])
        assert await desk.tasks.send(id, "go", 2)
        assert (await desk.tasks.wait(id)).result == [1, 2]


# Side by side


async def test_steps_side_by_side_are_finished_once_each(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        async def work(name: str) -> str:
            desk.seen.append(f"{name} {step.key.split('/', 1)[1]}")
            await desk.values.push(name, 1)
            await asyncio.sleep(0)
            return name

        found = await asyncio.gather(
            step.do("a", lambda: work("a")), step.do("b", lambda: work("b")), step.sleep("c", 60)
        )
        return [*found, await desk.values.get("a"), await desk.values.get("b")]

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        clock.move(61)
        assert (await desk.tasks.wait(id)).result == ["a", "b", None, [1], [1]]
        assert sorted(desk.seen) == ["a 0/a", "b 0/b"]


async def test_a_run_stays_in_memory_while_one_of_its_steps_works(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)
    gate = asyncio.Event()

    async def script(desk: Desk, step: Step) -> Any:
        async def work() -> None:
            desk.seen.append("work")
            await gate.wait()

        await asyncio.gather(step.sleep("sleep", 3600), step.do("work", work))

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: desk.seen == ["work"])
        for _ in range(20):
            await asyncio.sleep(0)
        assert find_row(desk, id).status == "running"
        gate.set()
        await sleeps(desk, id)
        assert desk.seen == ["work"]


# Keys and checkpoints


async def test_the_key_of_a_step_is_the_same_in_each_attempt_and_has_the_number_of_the_checkpoint(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        def call() -> None:
            desk.seen.append(step.key.split("/", 1)[1])
            raise ConnectionError

        if step.value is None:
            await step.do("call", lambda: desk.seen.append(step.key.split("/", 1)[1]))
        step.checkpoint("here")
        with pytest.raises(StepFailed):
            await step.do("call", call, base=60, attempts=2)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: len(desk.seen) == 2)
        await sleeps(desk, id)
        clock.move(61)
        assert (await desk.tasks.wait(id)).error is None
        assert desk.seen == ["0/call", "1/call", "1/call"]


async def test_the_key_is_that_of_a_step(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        with pytest.raises(RuntimeError, match=r"step\.key is the key of a step"):
            _ = step.key
        assert await step.do("a", lambda: step.key) == f"{step.id}/0/a"

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) is None


async def test_a_checkpoint_without_a_step_since_the_last_one_changes_nothing(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        step.checkpoint("none")
        assert step.value is None
        await step.do("a", lambda: 1)
        step.checkpoint("first")
        step.checkpoint("second")
        return [step.value, await step.do("key", lambda: step.key.split("/")[1])]

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) == ["first", "1"]


async def test_a_checkpoint_while_a_step_runs_is_refused(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        with pytest.raises(StepFailed, match="a checkpoint cannot be made while a step runs or waits"):
            await step.do("a", lambda: step.checkpoint(1), attempts=1)

    async with open_desk(store, script) as (_, desk):
        assert await run(desk) is None


async def test_a_second_step_of_a_name_ends_the_run(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        await step.do("a", lambda: 1)
        await step.sleep("a", 1)

    async with open_desk(store, script) as (_, desk):
        what = "the step 'a' is called as do and as sleep since the last checkpoint"
        assert await run(desk) == f"ReplayDiverged: {what}"


# Status


async def test_a_replay_shows_no_status_again(store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    rest_at_once(monkeypatch)
    shown: list[Any] = []

    async def script(desk: Desk, step: Step) -> Any:
        if step.value is None:
            step.status("begin")
            await step.do("a", lambda: step.status("in a"))
            step.status("a")
            step.checkpoint(1)
        step.status("b")
        await step.event("early")
        step.status("c")
        await step.sleep("rest", 60)
        step.status("d")

    async with open_desk(store, script) as (_, desk):
        desk.tasks.watch(lambda run: shown.append(run.value))
        id = (await desk.tasks.run("work")).id
        await desk.tasks.send(id, "early")
        await sleeps(desk, id)
        clock.move(61)
        await desk.tasks.wait(id)
        assert [*dict.fromkeys(shown)] == [None, "begin", "in a", "a", "b", "c", "d"]
        assert [shown[at] for at in range(1, len(shown)) if shown[at] != shown[at - 1]] == [
            "begin",
            "in a",
            "a",
            "b",
            "c",
            "d",
        ]
