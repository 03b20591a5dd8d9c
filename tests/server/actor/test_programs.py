"""The programs of a thread belong to it: they end with it, and it outlives them."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.server.parts.workshop import until

from plait import CodeResult, CodeRun, Plait, StoreError, Thread, rpc
from plait.actor.actor import Actor
from plait.store.thread_rows import ThreadKey

ENDLESS = "for (;;) {}"
PHASES = {
    "running": ENDLESS,
    "in microtasks": "const f = () => Promise.resolve().then(f); await f()",
    "in a regular expression": "export default /(a+)+$/.test('a'.repeat(40) + 'b')",
    "while a call waits": "await wait()",
    "while a call waits and it runs": "wait(); for (;;) {}",
    "waiting for nothing": "await new Promise(() => {})",
}


class Room(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012
    idle_timeout = 0.05

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.cancelled = 0
        self.run: CodeRun | None = None

    async def wait(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1

    def begin(self, source: str, **options: Any) -> CodeRun:
        self.run = self.run_code(source, globals={"wait": self.wait, "add": self.add}, **options)
        return self.run

    def add(self) -> int:
        self.set_state(lambda state: {"n": state["n"] + 1})
        return int(self.state["n"])

    @rpc
    async def execute(self, source: str, timeout: float | None = None) -> str:
        return (await self.begin(source, timeout=timeout)).status

    @rpc
    async def calculate(self, source: str) -> Any:
        return (await self.run_python(source, globals={"add": self.add})).value

    @rpc
    def leave(self, source: str) -> None:
        self.begin(source)

    @rpc
    def nothing(self) -> None: ...

    @rpc
    def end(self) -> None:
        self.terminate()


class Flat:
    """One awake thread, its handle and its processes."""

    def __init__(self, app: Plait, actor: Actor) -> None:
        self.handle: Any = app.thread(Room, "one")
        self.actor = actor
        self.room: Any = actor.thread


@asynccontextmanager
async def open_flat(store: Any = "memory://") -> AsyncIterator[Flat]:
    app = Plait(Room, store=store, shutdown_timeout=0.1)
    async with app:
        yield Flat(app, await app._node.actor(ThreadKey("room", "one")))
    assert not any("runner.js" in each for each in find_children())
    await until(lambda: not find_children())  # Monty's library ends its process a little later.


def find_children() -> list[str]:
    """Return the commands of the processes that this one has started, and that have not ended."""
    threads = Path(f"/proc/{os.getpid()}/task").iterdir()
    children = " ".join(_read(thread / "children") for thread in threads).split()
    commands = [_read(Path(f"/proc/{child}/cmdline")).replace("\0", " ") for child in children]
    return [command for command in commands if "runner.js" in command or "monty" in command]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:  # The process has ended.
        return ""


async def until_begun(flat: Flat) -> CodeRun:
    """Wait until the process of the program is there."""
    await until(lambda: bool(find_children()))
    run: CodeRun = flat.room.run
    return run


async def test_a_thread_runs_programs_in_python() -> None:
    async with open_flat() as flat:
        assert await flat.handle.call(Room.calculate, "a = await add()\na + await add()") == 3
        assert await flat.handle.state() == {"n": 2}


async def test_functions_run_as_the_code_that_has_begun_the_program() -> None:
    async with open_flat() as flat:
        assert await flat.handle.call(Room.execute, "await add(); await add(); export default 1") == "success"
        assert await flat.handle.state() == {"n": 2}


@each_case("phase", PHASES)
async def test_a_program_is_terminated_in_each_phase_and_the_thread_goes_on(phase: str) -> None:
    async with open_flat() as flat:
        running = asyncio.create_task(flat.handle.call(Room.execute, PHASES[phase]))
        run = await until_begun(flat)
        if "call" in phase:
            await flat.room.began.wait()
        run.terminate("enough")
        run.terminate("again")
        assert await running == "terminated"
        assert (await run).error == "enough"
        assert find_children() == []
        assert flat.room.cancelled == phase.startswith("while")
        assert await flat.handle.call(Room.execute, "export default await add()") == "success"


async def test_a_program_is_terminated_before_it_begins() -> None:
    async with open_flat() as flat:
        await flat.handle.call(Room.nothing)
        run = flat.room.begin(ENDLESS)
        run.terminate("enough")
        assert await run == CodeResult("terminated", error="enough")
        assert run.duration == 0
        run = flat.room.begin("export default 1")
        assert (await run).value == 1
        run.terminate()
        assert (await run).value == 1


async def test_a_program_that_takes_too_long_is_terminated() -> None:
    async with open_flat() as flat:
        assert await flat.handle.call(Room.execute, ENDLESS, 0.2) == "terminated"
        assert flat.room.run is not None
        assert (await flat.room.run).error == "the program took longer than 0.2 s"


async def test_a_program_is_cancelled_with_the_code_that_awaits_it() -> None:
    async with open_flat() as flat:
        running = asyncio.create_task(flat.handle.call(Room.execute, "wait(); for (;;) {}"))
        run = await until_begun(flat)
        flat.actor.turns.cancel()
        with pytest.raises(Exception, match="shutting down"):
            await running
        assert (await run).status == "terminated"
        assert find_children() == []


async def test_a_thread_stays_awake_while_a_program_runs_that_no_code_awaits() -> None:
    async with open_flat() as flat:
        await flat.handle.call(Room.leave, "wait(); export default 1")
        await flat.room.began.wait()
        assert not flat.actor.is_unused
        flat.room.run.terminate()
        await flat.room.run
        await until(lambda: flat.actor.is_idle)


async def test_a_program_ends_when_its_thread_is_terminated() -> None:
    async with open_flat() as flat:
        await flat.handle.call(Room.leave, ENDLESS)
        run = await until_begun(flat)
        await flat.handle.call(Room.end)
        assert await run == CodeResult("terminated", error="the thread was terminated")


async def test_a_program_ends_when_its_thread_is_destroyed() -> None:
    async with open_flat() as flat:
        await flat.handle.call(Room.leave, ENDLESS)
        run = await until_begun(flat)
        await flat.handle.destroy()
        assert await run == CodeResult("terminated", error="the thread has stopped")


async def test_a_program_ends_when_the_node_stops() -> None:
    async with open_flat() as flat:
        await flat.handle.call(Room.leave, ENDLESS)
        run = await until_begun(flat)
    assert await run == CodeResult("terminated", error="the thread has stopped")


async def test_a_program_in_python_ends_when_the_node_stops() -> None:
    async with open_flat() as flat:
        run = flat.room.run = flat.room.run_python("while True: pass")
        await until_begun(flat)
    assert await run == CodeResult("terminated", error="the thread has stopped")


async def test_a_program_ends_when_its_thread_restarts_in_place(tmp_path: Path) -> None:
    async with open_flat(f"sqlite:///{tmp_path / 'plait.db'}") as flat:
        await flat.handle.call(Room.leave, ENDLESS)
        run = await until_begun(flat)
        flat.actor.turns.cut(StoreError("the disk is full"), ())
        assert await run == CodeResult("terminated", error="the thread has stopped")


async def test_a_stopped_thread_begins_no_program() -> None:
    async with open_flat() as flat:
        await flat.handle.call(Room.nothing)
        await flat.handle.destroy()
        with pytest.raises(Exception, match="destroyed"):
            flat.room.begin("export default 1")
