"""Random work over a store that fails at random, judged: nothing answered is lost, nothing refused is there.

`python -m tests.server.actor.loss_judge ROUNDS SEED` prints how often each outcome was judged.
"""

import asyncio
import itertools
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from tests.server.fakes import TroubledStore

from plait import Context, Indeterminate, Plait, StoreError, Thread, Values, rpc
from plait.actor.actor import Actor
from plait.store.protocol import Write

__all__ = ["judge"]

PATIENCE = 20
THREADS = ("a", "b", "c")
# Steps of a program that a turn goes through: most change something, by a mark that no other change has.
STEPS = (
    *("change", "await", "catch", "block", "wait", "value", "call", "call beside", "catch call", "both", "other state"),
    *("other value", "read", "swallow", "task", "broadcast"),
)


class Program(msgspec.Struct):
    """What one turn does: its steps, with the marks that they make and the programs that they call."""

    thread: str
    steps: list[tuple[str, int, list["Program"]]]

    def marks(self) -> set[int]:
        """Return all marks that it makes in any thread."""
        own = {mark for _, mark, _ in self.steps}
        return own.union(*(program.marks() for _, _, called in self.steps for program in called))


class Told:
    """What the turns of one request were told."""

    def __init__(self, *, is_run: bool = False) -> None:
        # Whether values may be staged, so that only the answer of the whole run tells of them.
        self.is_run = is_run
        # Marks of changes that were awaited, and are durable, or lost.
        self.durable: set[int] = set()
        self.lost: set[int] = set()
        # Marks that the request says nothing about: those of a call whose error was caught, or of a task.
        self.unknown: set[int] = set()
        # Marks of changes that were not awaited, by thread.
        self.made: dict[str, set[int]] = {}

    def note_loss(self, thread: str) -> None:
        """Note that a turn was told of a loss, and so that what it has not awaited there may be lost, too."""
        self.unknown |= self.made.get(thread, set()) - self.durable


class Judged(Thread[dict[str, list[int]]]):
    """Keeps marks in its state and its values."""

    initial_state: Any = {"marks": []}  # noqa: RUF012
    values = Values()
    kind = "judged"
    idle_timeout = None
    # Tasks that outlive the turns that have begun them.
    tasks: Sequence[asyncio.Future[Any]] = ()
    # Given by the round.
    works: dict[int, tuple[Program, Told]] = {}  # noqa: RUF012

    def mark(self, mark: int) -> Any:
        return self.set_state(lambda state: {"marks": [*state["marks"], mark]})

    async def on_state_changed(self, state: Any, source: Any) -> None:
        if (last := state["marks"][-1]) > 0 and last % 7 == 0:
            self.mark(-last)
        await asyncio.sleep(0)

    def on_error(self, error: BaseException, connection: Any) -> None:
        assert isinstance(error, StoreError), error

    @rpc
    async def work(self, number: int) -> str:
        return await go_on(self, *self.works[number])

    @rpc(concurrent=True)
    async def work_beside(self, number: int) -> str:
        return await go_on(self, *self.works[number])

    @rpc
    async def stream(self, number: int) -> AsyncIterator[list[int]]:
        program, told = self.works[number]
        for step in program.steps:
            await go_on(self, Program(program.thread, [step]), told)
            if step[0] == "change" and step[1] not in told.unknown:
                yield [step[1]]


async def go_on(thread: Judged, program: Program, told: Told) -> str:
    """Go through the steps of a program in a turn of its thread."""
    for what, mark, called in program.steps:
        try:
            await take_step(thread, what, mark, called, told)
        except asyncio.CancelledError:
            if what != "swallow":
                raise
    return "done"


async def take_step(  # noqa: PLR0912
    thread: Judged, what: str, mark: int, called: list[Program], told: Told
) -> None:
    if what in ("change", "block", "broadcast"):
        told.made.setdefault(thread.name, set()).add(mark)
    numbers = [number_of(program, told) for program in called]
    others = [thread.thread(Judged, program.thread) for program in called]
    match what:
        case "change":
            thread.mark(mark)
        case "block":
            with thread.transaction():
                thread.mark(mark)
                thread.update("/block", [mark])
        case "await":
            await thread.mark(mark)
            told.durable.add(mark)
        case "catch":
            try:
                await thread.mark(mark)
                told.durable.add(mark)
            except StoreError:
                told.lost.add(mark)
                told.note_loss(thread.name)
        case "value":
            await thread.values.push("marks", mark)
        case "wait" | "swallow":
            told.unknown.add(mark)  # It makes none.
            for _ in range(mark % 9):
                await asyncio.sleep(0)
        case "read":
            told.unknown.add(mark)
            await others[0].state()
        case "broadcast":
            thread.mark(mark)
            thread.broadcast({"mark": mark})
        case "task":
            told.unknown.add(mark)
            thread.tasks = [*thread.tasks, asyncio.ensure_future(mark_later(thread, mark))]
        case "other state":
            await others[0].set_state(lambda state: {"marks": [*state["marks"], mark]})
            told.durable.add(mark)
        case "other value":
            await others[0].part(Judged.values).push("marks", mark)
            if not told.is_run:
                told.durable.add(mark)
        case "call":
            told.unknown.add(mark)
            await others[0].call(Judged.work, numbers[0])
            told.durable |= answered(called[0], told)
        case "call beside":
            told.unknown.add(mark)
            await others[0].call(Judged.work_beside, numbers[0])
            told.durable |= answered(called[0], told)
        case "both":
            told.unknown.add(mark)
            await asyncio.gather(
                *(other.call(Judged.work_beside, number) for other, number in zip(others, numbers, strict=True))
            )
        case "catch call":
            told.unknown.add(mark)
            try:
                await others[0].call(Judged.work, numbers[0])
            except StoreError as error:
                marks = called[0].marks() - told.unknown
                if type(error) is StoreError:
                    told.lost |= marks
                else:
                    told.unknown |= marks


def answered(program: Program, told: Told) -> set[int]:
    return set() if told.is_run else program.marks() - told.unknown - told.lost


async def mark_later(thread: Judged, mark: int) -> None:
    with suppress(StoreError):
        await asyncio.sleep(0)
        await thread.mark(mark)


_numbers = itertools.count(1)


def number_of(program: Program, told: Told) -> int:
    number = next(_numbers)
    Judged.works[number] = program, told
    return number


class FailingStore(TroubledStore):
    """A store whose writes take some time, and fail at random while it `is_failing`."""

    def __init__(self, random_: random.Random, rate: float) -> None:
        super().__init__()
        self._random = random_
        self._rate = rate
        self.is_failing = False

    async def store(self, write: Write) -> int:
        for _ in range(self._random.randrange(6)):
            await asyncio.sleep(0)
        if self.is_failing and self._random.random() < self._rate:
            raise StoreError("the disk is full")
        return await super().store(write)


class Round:
    """One app, the requests that it got, and their outcomes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._marks = itertools.count(seed * 100_000 + 1)
        self.store = FailingStore(self.random, self.random.choice((0.03, 0.1, 0.3)))
        self.app = Plait(Judged, store=self.store, secret="for tests")
        self.counts: Counter[str] = Counter()
        # What must be there, and what must not, with the request for which.
        self.present: dict[int, str] = {}
        self.absent: dict[int, str] = {}
        self._add_agents()

    def _add_agents(self) -> None:
        @self.app.agent("run", thread=Judged)
        async def run(ctx: Context[Judged], number: int) -> str:
            program, told = Judged.works[number]
            for step in program.steps:
                await go_on(ctx.thread, Program(program.thread, [step]), told)
                if step[1] % 5 == 0:
                    try:
                        await ctx.flush()
                    except StoreError:  # What is staged is stored at the end.
                        told.note_loss(program.thread)
            return "done"

        @self.app.agent("behind", thread=Judged)
        async def behind(ctx: Context[Judged], number: int) -> str:
            program, told = Judged.works[number]
            first, *rest = program.steps
            told.unknown |= Program(program.thread, rest).marks()
            ctx.wait_until(lambda: go_on(ctx.thread, Program(program.thread, rest), Told()))
            return await go_on(ctx.thread, Program(program.thread, [first]), told)

    def program(self, held: tuple[int, ...] = (), *, is_beside: bool = False, depth: int = 0) -> Program:
        """Return a random program, which calls others at most 3 deep; its callers hold the mailboxes of some threads.

        A call that would wait for a mailbox goes to a later thread than those, so that no two requests wait for each
        other, or back to one of them.
        """
        free = [place for place in range(len(THREADS)) if place in held or place > max(held, default=-1)]
        place = self.random.choice(range(len(THREADS)) if is_beside else free)
        held = held if is_beside else (*held, place)
        steps = []
        for _ in range(self.random.randint(1, 5)):
            what = self.random.choice(STEPS)
            if depth == 3 and ("call" in what or what == "both"):
                what = "await"
            called = list[Program]()
            if "call" in what or what == "both":
                is_apart = what not in ("call", "catch call")
                called = [self.program(held, is_beside=is_apart, depth=depth + 1) for _ in range(1 + (what == "both"))]
            elif "other" in what or what == "read":
                called = [Program(self.random.choice(THREADS), [])]
            steps.append((what, next(self._marks), called))
        return Program(THREADS[place], steps)

    async def ask(self, delay: int) -> None:
        """Make one request, and note what its answer says."""
        for _ in range(delay):
            await asyncio.sleep(0)
        how = self.random.choice(("work", "work beside", "stream", "run", "behind", "set"))
        program, told = self.program(is_beside=how != "work"), Told(is_run=how in ("run", "behind"))
        number = number_of(program, told)
        handle, chunks = self.app.thread(Judged, program.thread), list[int]()
        if how in ("stream", "behind", "set"):  # What they call would have no answer of its own.
            program.steps = [step for step in program.steps if not step[2]] or [("await", next(self._marks), [])]
        if how == "set":
            program.steps = [("await", next(self._marks), [])]
        error: BaseException | None = None
        try:
            async with asyncio.timeout(PATIENCE):
                match how:
                    case "work":
                        await handle.call(Judged.work, number)
                    case "work beside":
                        await handle.call(Judged.work_beside, number)
                    case "stream":
                        async for chunk in handle.stream(Judged.stream, number):
                            chunks += chunk
                    case "set":
                        mark = program.steps[0][1]
                        await handle.set_state(lambda state: {"marks": [*state["marks"], mark]})
                    case _:
                        await self.app.run(how, number, thread=program.thread)
        except StoreError as failure:
            error = failure
        self._note(f"{how} {number}", program, told, error, chunks)

    def _note(self, who: str, program: Program, told: Told, error: StoreError | None, chunks: list[int]) -> None:
        marks = program.marks() - told.unknown
        self.present |= dict.fromkeys(told.durable, f"{who}, awaited")
        self.absent |= dict.fromkeys(told.lost - told.unknown, f"{who}, lost")
        self.present |= dict.fromkeys(chunks, f"{who}, streamed")
        how = who.rpartition(" ")[0]
        if error is None:
            self.counts[f"{how} ok"] += 1
            self.present |= dict.fromkeys(marks - told.lost, f"{who}, ok")
        elif isinstance(error, Indeterminate):
            self.counts[f"{how} in doubt"] += 1
        else:
            self.counts[f"{how} refused"] += 1
            # A stream has sent what it had stored before; a task and what follows a run are no part of the answer.
            self.absent |= dict.fromkeys(marks, f"{who}, refused")

    async def play(self, requests: int) -> list[str]:
        """Make requests, and return what is wrong with their answers."""
        async with self.app:
            for name in THREADS:
                await self.app.thread(Judged, name).set_state({"marks": [-1]})
            self.store.is_failing = True
            await asyncio.gather(*(self.ask(self.random.randrange(40)) for _ in range(requests)))
            self.store.is_failing = False
            actors: list[Actor] = [await self.app._node.actor(self.app.thread(Judged, name)._key) for name in THREADS]
            async with asyncio.timeout(PATIENCE):
                for actor in actors * 2:
                    await asyncio.gather(*getattr(actor.thread, "tasks", ()), return_exceptions=True)
                    await actor.wait_until_idle()
            shown = [actor.thread.state for actor in actors]
        found = set[int]()
        async with self.app:
            for name, state in zip(THREADS, shown, strict=True):
                handle = self.app.thread(Judged, name)
                stored = await handle.state()
                assert stored == state, "the state that was shown is not the one that is stored"
                found.update(stored["marks"], await handle.part(Judged.values).get("marks", []))
        wrong = [f"lost: {mark}, {who}" for mark, who in self.present.items() if mark not in found]
        wrong += [f"there: {mark}, {who}" for mark, who in self.absent.items() if mark in found]
        self.counts["marks judged"] += len(self.present) + len(self.absent)
        return wrong


async def judge(seed: int, requests: int = 25) -> tuple[list[str], Counter[str]]:
    """Play one round; return what is wrong, and how often each outcome was judged."""
    Judged.works.clear()
    round_ = Round(seed)
    return await round_.play(requests), round_.counts


def main() -> None:
    """Play many rounds."""
    rounds, seed = int(sys.argv[1]), int(sys.argv[2])
    counts: Counter[str] = Counter()
    failed = 0
    for number in range(seed, seed + rounds):
        wrong, found = asyncio.run(judge(number))
        counts += found
        if wrong:
            failed += 1
            print(number, wrong[:5], flush=True)  # noqa: T201
    print(f"{rounds} rounds, {failed} of them wrong: {dict(sorted(counts.items()))}")  # noqa: T201


if __name__ == "__main__":
    main()
