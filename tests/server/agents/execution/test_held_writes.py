"""What an execution does, and must not do, while one of its writes is not durable yet."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.server.agents.execution.lab import Desk, Lab, Script, call, open_lab

from plait import SqliteStore
from plait.agents.execution.tools import tool
from plait.parts.tasks.ended import ENDED
from plait.store.protocol import Write


class HeldStore(SqliteStore):
    """Holds the first write with a record that a test names by its key, and all writes after it."""

    def __init__(self, path: Path, is_held: Callable[[str], bool]) -> None:
        super().__init__(path)
        self._is_held = is_held
        self._held: list[tuple[Write, asyncio.Future[int]]] = []
        self._has_begun, self._is_let_through = asyncio.Event(), False

    def submit(self, write: Write) -> asyncio.Future[int]:
        if any(self._is_held(each.key) for each in write.records):
            self._has_begun.set()
        if self._is_let_through or not self._has_begun.is_set():
            return super().submit(write)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._held.append((write, future))
        return future

    async def until_held(self) -> None:
        async with asyncio.timeout(10):
            await self._has_begun.wait()

    def open_gate(self) -> None:
        self._is_let_through = True
        for write, future in self._held:
            self.submit(write).add_done_callback(partial(_copy, future))


def _copy(future: asyncio.Future[int], done: asyncio.Future[int]) -> None:
    if not future.done():
        future.set_result(done.result())


async def pass_time(lab: Lab) -> None:
    """Have other threads do something, as what calls this one waits for its writes."""
    await asyncio.gather(*(lab.app.thread(Desk, f"{number}").call(Desk.nothing) for number in range(20)))


async def test_a_tool_does_not_begin_before_it_is_durable_that_it_has(tmp_path: Path) -> None:
    calls = list[str]()

    @tool
    def pay(desk: Desk) -> str:
        """Pay."""
        calls.append("pay")
        return "paid"

    store = HeldStore(tmp_path / "plait.db", lambda key: "/s/call:" in key)
    async with open_lab(tmp_path, Script(call("pay"), "Done."), tools=[pay], store=store) as lab:
        await lab.ask("Pay.")
        await store.until_held()
        await pass_time(lab)
        assert calls == []
        store.open_gate()
        await lab.rest()
        assert (await lab.texts())[2:] == ["tool paid", "assistant Done."]
        assert calls == ["pay"]


async def test_a_message_that_comes_while_the_end_of_a_run_is_stored_is_answered_once(tmp_path: Path) -> None:
    script, store = Script("One.", "Two."), HeldStore(tmp_path / "plait.db", lambda key: key.startswith(ENDED))
    async with open_lab(tmp_path, script, store=store) as lab:
        await lab.ask("1?")
        await store.until_held()
        asking = asyncio.create_task(lab.ask("2?"))
        await pass_time(lab)
        assert len(script.seen) == 1
        store.open_gate()
        await asking
        await lab.rest("done", "done")
        assert await lab.texts() == ["user 1?", "assistant One.", "user 2?", "assistant Two."]
        assert len(script.seen) == 2
