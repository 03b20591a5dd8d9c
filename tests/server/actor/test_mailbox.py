"""Turns: one at a time, a party after the other."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from tests.cases import each_case
from tests.schedules import play_seeds

from plait.actor.mailbox import EVERYONE, Mailbox
from plait.actor.outcome import Done, make_resolver
from plait.actor.turn import Turn, current_turn
from plait.author_code import Interrupted
from plait.errors import TurnTimeout
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments
from plait.limits import DEFAULT_LIMITS
from plait.store.thread_rows import ThreadKey

PATIENCE = 10.0


class Owner:
    """The part of an actor that turns use."""

    def __init__(self) -> None:
        self.key = ThreadKey("room", "one")
        self.limits = DEFAULT_LIMITS
        self.instruments: Instruments = NO_INSTRUMENTS
        self.thread: object = None
        self.is_shutting_down = False

    def check_shown(self, turn: Turn) -> None:
        pass


ACTOR = Owner()


def make_mailbox() -> Mailbox:
    return Mailbox(asyncio.get_running_loop())


def post(mailbox: Mailbox, work: Callable[[], Any], *, name: str = "turn") -> tuple[Turn, asyncio.Future[Any]]:
    """Post a turn and return it, with a future of its outcome."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    turn = Turn(name, work, actor=ACTOR, parent=current_turn())
    turn.on_end(make_resolver(future))
    mailbox.post(turn)
    return turn, future


def post_then(mailbox: Mailbox, work: Callable[[], Any], *callbacks: Done) -> Turn:
    """Post a turn, and add callbacks for its end."""
    turn = Turn("turn", work, actor=ACTOR, parent=current_turn())
    for callback in callbacks:
        turn.on_end(callback)
    mailbox.post(turn)
    return turn


async def call(mailbox: Mailbox, work: Callable[[], Any]) -> Any:
    """Post a turn that the running one waits for, and return its outcome."""
    return await post(mailbox, work)[1]


async def outcome(future: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await future


class Log:
    """Records which turns begin and end, and fails a turn that begins before another has ended."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.running: str | None = None

    def work(self, name: str, *waits: Awaitable[Any]) -> Callable[[], Awaitable[str]]:
        """Return work that waits for something between its beginning and its end."""

        async def work() -> str:
            assert self.running is None, f"{name} overlaps {self.running}"
            self.running = name
            self.lines.append(f"{name} begins")
            try:
                for wait in waits:
                    await wait
            finally:
                self.lines.append(f"{name} ends")
                self.running = None
            return name

        return work


# Order


async def test_the_outcome_of_a_turn_is_what_its_work_returns_or_raises() -> None:
    mailbox = make_mailbox()

    async def answer() -> int:
        return 42

    async def fail() -> None:
        raise LookupError("later")

    def fail_at_once() -> None:
        raise LookupError("at once")

    assert await outcome(post(mailbox, answer)[1]) == 42
    assert await outcome(post(mailbox, lambda: 43)[1]) == 43
    with pytest.raises(LookupError, match="later"):
        await outcome(post(mailbox, fail)[1])
    with pytest.raises(LookupError, match="at once"):
        await outcome(post(mailbox, fail_at_once)[1])


@pytest.mark.parametrize("is_nested", [False, True])
async def test_the_end_of_a_turn_calls_everybody_once_in_order_though_one_of_them_fails(
    is_nested: bool, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox, told, ended = make_mailbox(), list[Any](), asyncio.Event()

    def fail(*_: object) -> None:
        raise LookupError("nobody takes it")

    async def run() -> None:
        callbacks = (lambda *each: told.append((1, *each)), fail, lambda *each: told.append((2, *each)))
        post_then(mailbox, lambda: "result", *callbacks, lambda *_: ended.set())
        if is_nested:
            await outcome(ended.wait())

    if is_nested:
        await call(mailbox, run)
    else:
        await run()
    assert await outcome(post(mailbox, lambda: "later")[1]) == "later"
    assert told == [(1, "result", None), (2, "result", None)]
    assert [record.exc_text is not None and "nobody takes it" in record.exc_text for record in caplog.records] == [True]


def fail_at_once(error: BaseException) -> Callable[[], Any]:
    def work() -> None:
        raise error

    return work


def fail_later(error: BaseException) -> Callable[[], Any]:
    async def work() -> None:
        await asyncio.sleep(0)
        raise error

    return work


@each_case("is_concurrent", [False, True])
@each_case(
    ("work", "outcome_is"),
    [
        (fail_at_once(Interrupted()), Interrupted),
        (fail_later(Interrupted()), Interrupted),
        (fail_at_once(StopIteration()), RuntimeError),
        (fail_at_once(SystemExit()), RuntimeError),
        (fail_later(KeyboardInterrupt()), RuntimeError),
        (fail_later(GeneratorExit()), RuntimeError),
        (fail_later(asyncio.CancelledError()), RuntimeError),
    ],
)
async def test_a_turn_ends_whatever_it_raises_and_the_next_one_begins(
    work: Callable[[], Any], outcome_is: type[BaseException], is_concurrent: bool
) -> None:
    mailbox, future = make_mailbox(), asyncio.get_running_loop().create_future()
    turn = Turn("turn", work, actor=ACTOR)
    turn.on_end(make_resolver(future))
    if is_concurrent:
        turn.start(asyncio.get_running_loop())
    else:
        mailbox.post(turn)
    with pytest.raises(outcome_is):
        await outcome(future)
    assert await outcome(call(mailbox, lambda: "next")) == "next"


async def test_a_turn_that_is_skipped_or_closed_tells_everybody_once_in_order() -> None:
    mailbox, gate, told = make_mailbox(), asyncio.Event(), list[Any]()

    def note(number: int) -> Done:
        return lambda result, error: told.append((number, result, type(error)))

    post(mailbox, gate.wait)
    skipped = post_then(mailbox, lambda: "skipped", note(1), note(2))
    _, after = post(mailbox, lambda: "after")
    skipped.cancel()
    gate.set()
    await outcome(after)
    assert told == [(1, None, asyncio.CancelledError), (2, None, asyncio.CancelledError)]
    gate.clear()
    _, running = post(mailbox, gate.wait)
    post_then(mailbox, lambda: "closed", note(3), note(4))
    await asyncio.sleep(0)
    mailbox.close()
    with pytest.raises(asyncio.CancelledError):
        await outcome(running)
    await outcome(until_idle(mailbox))
    assert told[2:] == [(3, None, asyncio.CancelledError), (4, None, asyncio.CancelledError)]


async def test_turns_run_in_order_of_arrival_and_never_overlap() -> None:
    mailbox, log, gate = make_mailbox(), Log(), asyncio.Event()
    futures = [post(mailbox, log.work("a", gate.wait()))[1], post(mailbox, lambda: log.lines.append("b"))[1]]
    futures += [post(mailbox, log.work("c", asyncio.sleep(0)))[1], post(mailbox, lambda: log.lines.append("d"))[1]]
    gate.set()
    await outcome(asyncio.gather(*futures))
    assert log.lines == ["a begins", "a ends", "b", "c begins", "c ends", "d"]


@each_case(
    ("posted", "expected"),
    [
        ("a1 a2 a3 b1 b2", "a1 b1 a2 b2 a3"),
        ("a1 a2 a3 b1 c1 b2 c2", "a1 b1 c1 a2 b2 c2 a3"),
        ("a1 a2 a3 *1 a4 b1", "a1 b1 a2 a3 *1 a4"),
        ("a1 b1 b2 *1 c1 c2 c3 *2", "a1 b1 c1 b2 c2 *1 c3 *2"),
        ("*1 *2 a1", "*1 a1 *2"),
        ("a1 a2 -1 -2 b1 -3 b2", "a1 -1 -2 -3 b1 a2 b2"),
        ("-1 a1 -2 *1 a2 -3", "-1 -2 -3 a1 *1 a2"),
    ],
)
async def test_parties_take_turns_and_each_has_its_own_in_order(posted: str, expected: str) -> None:
    mailbox, begun = make_mailbox(), list[str]()
    mailbox.is_held = True
    for name in posted.split():
        party = {"*": EVERYONE, "-": None}.get(name[0], name[0])
        mailbox.post(Turn(name, partial(begun.append, name), actor=ACTOR, party=party), party)
    mailbox.is_held = False
    post(mailbox, lambda: None)
    await outcome(until_idle(mailbox))
    assert begun == expected.split()


@play_seeds(2)
async def test_turns_of_any_kind_never_overlap(seed: int) -> None:
    chance = random.Random(seed)
    mailbox, log = make_mailbox(), Log()
    futures: list[asyncio.Future[Any]] = []
    turns: list[Turn] = []
    expected: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError

    for number in range(60):
        match chance.randrange(5):
            case 0:
                _, future = post(mailbox, partial(log.lines.append, f"{number} at once"))
            case 1:
                _, future = post(mailbox, fail)
            case 2:
                work = log.work(str(number))
                turn, future = post(mailbox, work)
                if not turn.is_running and not future.done():
                    turn.is_abandoned = True
                    continue
            case _:
                waits = [asyncio.sleep(0) for _ in range(chance.randrange(4))]
                turn, future = post(mailbox, log.work(str(number), *waits))
                turns.append(turn)
        futures.append(future)
        expected.append(str(number))
        if not chance.randrange(4):
            await asyncio.sleep(0)
    await outcome(asyncio.gather(*futures, return_exceptions=True))
    await outcome(until_idle(mailbox))
    begun = [line.split()[0] for line in log.lines if not line.endswith("ends")]
    assert begun == [number for number in expected if number in set(begun)]
    assert len(begun) > 10
    assert not any(isinstance(each.exception(), AssertionError) for each in futures)


async def test_a_turn_that_is_posted_by_the_end_of_another_waits_for_those_that_came_before() -> None:
    mailbox, lines, gate = make_mailbox(), list[str](), asyncio.Event()

    def ended(*_: object) -> None:
        post(mailbox, lambda: lines.append("posted last"))

    post_then(mailbox, gate.wait, ended)
    _, second = post(mailbox, lambda: lines.append("posted first"))
    gate.set()
    await outcome(second)
    assert lines == ["posted first", "posted last"]


async def test_a_turn_posted_by_a_turn_that_does_not_wait_for_it_has_its_place_once_that_one_has_ended() -> None:
    mailbox, log, gate = make_mailbox(), Log(), asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def later() -> Any:
        await gate.wait()
        return await post(mailbox, log.work("later"))[1]

    async def spawn() -> None:
        tasks.append(asyncio.create_task(later()))

    await outcome(post(mailbox, spawn)[1])
    _, other = post(mailbox, log.work("other", gate.wait(), asyncio.sleep(0), asyncio.sleep(0)))
    gate.set()
    await outcome(asyncio.gather(other, *tasks))
    assert log.lines == ["other begins", "other ends", "later begins", "later ends"]


async def test_a_long_queue_of_turns_that_need_not_wait_does_not_recurse() -> None:
    mailbox, gate, count = make_mailbox(), asyncio.Event(), 20_000
    ran: list[int] = []
    post(mailbox, gate.wait)
    futures = [post(mailbox, partial(ran.append, number))[1] for number in range(count)]
    gate.set()
    await outcome(futures[-1])
    assert ran == list(range(count))


async def test_a_turn_that_posts_the_next_one_for_ever_does_not_recurse() -> None:
    mailbox, left = make_mailbox(), 5_000
    over = asyncio.Event()

    def again(*_: object) -> None:
        nonlocal left
        left -= 1
        if left:
            post_then(mailbox, lambda: None, again)
        else:
            over.set()

    again()
    await outcome(over.wait())


async def test_an_outcome_that_nobody_waits_for_any_more_is_dropped() -> None:
    mailbox = make_mailbox()
    gate = asyncio.Event()
    _, future = post(mailbox, gate.wait)
    future.cancel()
    gate.set()
    assert await outcome(post(mailbox, lambda: "next")[1]) == "next"


# Callers that went away


async def test_an_abandoned_turn_that_has_not_begun_is_skipped() -> None:
    mailbox, log, gate = make_mailbox(), Log(), asyncio.Event()
    post(mailbox, log.work("a", gate.wait()))
    abandoned, skipped = post(mailbox, log.work("b"))
    _, last = post(mailbox, log.work("c"))
    abandoned.is_abandoned = True
    gate.set()
    await outcome(last)
    assert log.lines == ["a begins", "a ends", "c begins", "c ends"]
    with pytest.raises(asyncio.CancelledError):
        skipped.result()


async def test_abandoning_a_turn_does_not_let_the_next_overlap_the_one_that_runs() -> None:
    mailbox, log, runs, goes_on = make_mailbox(), Log(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        runs.set()
        await log.work("a", goes_on.wait())()

    running, first = post(mailbox, work)
    queued, _ = post(mailbox, log.work("b"))
    await outcome(runs.wait())
    queued.is_abandoned = True
    running.is_abandoned = True
    _, last = post(mailbox, log.work("c"))
    goes_on.set()
    await outcome(first)
    assert await outcome(last) == "c"
    assert log.lines == ["a begins", "a ends", "c begins", "c ends"]


async def test_a_queue_of_nothing_but_abandoned_turns_leaves_the_mailbox_idle() -> None:
    mailbox, gate = make_mailbox(), asyncio.Event()
    _, first = post(mailbox, gate.wait)
    for _ in range(3):
        post(mailbox, lambda: pytest.fail("ran"))[0].is_abandoned = True
    gate.set()
    await outcome(first)
    await outcome(until_idle(mailbox))


# Call chains


async def test_a_call_that_comes_back_through_another_thread_runs_at_once() -> None:
    one, two = make_mailbox(), make_mailbox()

    async def first() -> str:
        return "first, " + str(await call(two, second))

    async def second() -> str:
        return "second, " + str(await call(one, third))

    async def third() -> str:
        await asyncio.sleep(0)
        return "third"

    _, future = post(one, first)
    _, following = post(one, lambda: "following")
    assert await outcome(future) == "first, second, third"
    assert await outcome(following) == "following"


async def test_a_call_that_comes_back_goes_before_those_that_wait() -> None:
    one, two, lines = make_mailbox(), make_mailbox(), list[str]()

    async def first() -> None:
        await call(two, second)
        lines.append("first")

    async def second() -> None:
        await asyncio.sleep(0)
        await call(one, lambda: lines.append("came back"))

    post(one, first)
    _, following = post(one, lambda: lines.append("following"))
    await outcome(following)
    assert lines == ["came back", "first", "following"]


async def test_a_call_from_another_thread_waits_when_it_is_no_call_chain() -> None:
    one, two, log, gate = make_mailbox(), make_mailbox(), Log(), asyncio.Event()
    post(one, log.work("a", gate.wait()))

    async def other() -> Any:
        return await call(one, log.work("b"))

    _, future = post(two, other)
    gate.set()
    assert await outcome(future) == "b"


@each_case("by_itself", [False, True])
async def test_a_call_that_came_back_holds_the_thread_when_its_caller_was_cancelled(by_itself: bool) -> None:
    one, two, gate, log = make_mailbox(), make_mailbox(), asyncio.Event(), Log()
    third_runs = asyncio.Event()

    async def first() -> None:
        await call(two, second)

    async def second() -> None:
        await call(one, third)

    async def third() -> None:
        third_runs.set()
        await log.work("third", gate.wait())()

    turn, future = post(one, first)
    await outcome(third_runs.wait())
    _, following = post(one, log.work("following"))
    assert turn.task is not None
    (turn.task if by_itself else turn).cancel()
    with pytest.raises(RuntimeError if by_itself else asyncio.CancelledError):
        await outcome(future)
    gate.set()
    await outcome(following)
    assert log.lines == ["third begins", "third ends", "following begins", "following ends"]


async def test_a_call_whose_first_caller_has_ended_waits_like_any_other() -> None:
    one, two, calls_back, gate, log = make_mailbox(), make_mailbox(), asyncio.Event(), asyncio.Event(), Log()
    runs, posted, came_back = asyncio.Event(), asyncio.Event(), list[Any]()

    async def first() -> None:
        await call(two, second)

    async def second() -> None:
        runs.set()
        await calls_back.wait()
        _, future = post(one, log.work("came back"))
        posted.set()
        came_back.append(await future)

    turn, future = post(one, first)
    await outcome(runs.wait())
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outcome(future)
    _, other = post(one, log.work("other", gate.wait()))
    _, last = post(two, lambda: "last")
    calls_back.set()
    await outcome(posted.wait())
    for _ in range(5):
        await asyncio.sleep(0)
    gate.set()
    await outcome(last)
    await outcome(other)
    assert came_back == ["came back"]
    assert log.lines == ["other begins", "other ends", "came back begins", "came back ends"]


# Turns that run too long


def for_ever(runs: asyncio.Event) -> Callable[[], Awaitable[None]]:
    """Return work that never ends; `runs` says that it has begun."""

    async def work() -> None:
        runs.set()
        await asyncio.Event().wait()

    return work


async def test_an_expired_turn_ends_with_a_turn_timeout() -> None:
    mailbox, runs = make_mailbox(), asyncio.Event()
    turn, future = post(mailbox, for_ever(runs), name="on_message")
    await outcome(runs.wait())
    turn.time_out()
    with pytest.raises(TurnTimeout, match="on_message"):
        await outcome(future)
    assert await outcome(post(mailbox, lambda: "next")[1]) == "next"


async def test_the_next_turn_begins_only_when_an_expired_one_has_really_ended() -> None:
    mailbox, log, tidied = make_mailbox(), Log(), asyncio.Event()
    runs, tidies = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        try:
            runs.set()
            await asyncio.Event().wait()
        finally:
            tidies.set()
            await log.work("tidying up", tidied.wait())()

    turn, first = post(mailbox, slow)
    _, second = post(mailbox, log.work("next"))
    await outcome(runs.wait())
    turn.time_out()
    await outcome(tidies.wait())
    assert not first.done()
    tidied.set()
    with pytest.raises(TurnTimeout):
        await outcome(first)
    await outcome(second)
    assert log.lines == ["tidying up begins", "tidying up ends", "next begins", "next ends"]


async def test_a_cancelled_turn_is_no_timeout() -> None:
    mailbox, runs = make_mailbox(), asyncio.Event()
    turn, future = post(mailbox, for_ever(runs))
    await outcome(runs.wait())
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outcome(future)
    assert await outcome(post(mailbox, lambda: "next")[1]) == "next"


async def test_an_expired_turn_that_comes_to_an_end_all_the_same_has_its_outcome() -> None:
    mailbox, runs = make_mailbox(), asyncio.Event()

    async def stubborn() -> str:
        try:
            runs.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "ended"
        raise AssertionError

    turn, future = post(mailbox, stubborn)
    await outcome(runs.wait())
    turn.time_out()
    assert await outcome(future) == "ended"


async def test_a_turn_that_shrugs_off_its_cancellation_leaves_nothing_of_it_to_the_next() -> None:
    mailbox, runs = make_mailbox(), asyncio.Event()

    async def stubborn() -> None:
        runs.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    async def fail() -> None:
        raise LookupError

    turn, future = post(mailbox, stubborn)
    _, following = post(mailbox, group)
    await outcome(runs.wait())
    turn.time_out()
    await outcome(future)
    with pytest.raises(ExceptionGroup):
        await outcome(following)


async def test_a_cancellation_that_is_not_the_turns_own_does_not_stop_the_thread() -> None:
    mailbox = make_mailbox()

    async def wait_for_what_was_cancelled() -> None:
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task

    _, future = post(mailbox, wait_for_what_was_cancelled)
    _, following = post(mailbox, lambda: "following")
    with pytest.raises(RuntimeError, match="was cancelled, by its own code or with work it awaited") as raised:
        await outcome(future)
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
    assert await outcome(following) == "following"


async def test_the_stack_of_a_turn_says_where_it_is() -> None:
    mailbox, runs = make_mailbox(), asyncio.Event()

    async def inner_function() -> None:
        runs.set()
        await asyncio.Event().wait()

    async def outer_function() -> None:
        await inner_function()

    turn, future = post(mailbox, outer_function)
    await outcome(runs.wait())
    assert turn.task is not None
    assert "in outer_function" in turn.task.stack()
    assert "in inner_function" in turn.task.stack()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outcome(future)


# The running turn


async def test_code_knows_the_turn_that_it_runs_in() -> None:
    mailbox = make_mailbox()
    seen: list[Turn | None] = []

    async def deep() -> None:
        await asyncio.sleep(0)
        seen.append(current_turn())

    async def work() -> None:
        seen.append(current_turn())
        await asyncio.gather(deep(), deep())

    turn, future = post(mailbox, work)
    await outcome(future)
    assert seen == [turn, turn, turn]
    assert current_turn() is None


async def test_what_goes_on_after_a_turn_is_not_in_it_any_more() -> None:
    mailbox, gate = make_mailbox(), asyncio.Event()
    tasks: list[asyncio.Task[Turn | None]] = []

    async def later() -> Turn | None:
        await gate.wait()
        return current_turn()

    async def work() -> None:
        tasks.append(asyncio.create_task(later()))

    await outcome(post(mailbox, work)[1])
    gate.set()
    assert await outcome(tasks[0]) is None


async def test_a_turn_sees_nothing_that_another_turn_or_its_caller_left_in_context_variables() -> None:
    user: ContextVar[str] = ContextVar("user", default="default")
    mailbox, gate = make_mailbox(), asyncio.Event()

    async def ask(name: str) -> str:
        user.set(f"{name}'s caller")

        async def work() -> str:
            await gate.wait()
            before = user.get()
            user.set(name)
            return before

        return str(await post(mailbox, work)[1])

    tasks = [asyncio.create_task(ask(name)) for name in ("Ada", "Bob", "Cleo")]
    gate.set()
    assert await outcome(asyncio.gather(*tasks)) == ["default"] * 3


async def test_a_mailbox_is_idle_when_nothing_runs_and_nothing_waits() -> None:
    mailbox, first_gate, second_gate, idle = make_mailbox(), asyncio.Event(), asyncio.Event(), list[bool]()

    async def second_work() -> None:
        idle.append(mailbox.is_idle)
        await second_gate.wait()

    assert mailbox.is_idle
    _, first = post(mailbox, first_gate.wait)
    _, second = post(mailbox, second_work)
    assert not mailbox.is_idle
    first_gate.set()
    await outcome(first)
    assert not mailbox.is_idle
    second_gate.set()
    await outcome(second)
    await outcome(until_idle(mailbox))
    assert idle == [False]


async def until_idle(mailbox: Mailbox) -> None:
    while not mailbox.is_idle:  # noqa: ASYNC110
        await asyncio.sleep(0)
