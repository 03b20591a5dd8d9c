"""The runs of tasks that clients open: pages, changes, slow readers, and what is not durable."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.server.parts.tasks.desks import rest_at_once
from tests.server.parts.workshop import Workshop, make_store, open_workshop
from tests.server.session.guests import Guest, joined

from plait.actor.actor import Actor
from plait.actor.thread import Thread
from plait.errors import StoreError
from plait.parts.tasks.ended import ENDED
from plait.parts.tasks.rows import TaskRun
from plait.parts.tasks.step import Step
from plait.parts.tasks.task import task
from plait.parts.tasks.thread_tasks import Tasks
from plait.session.native import live_tasks
from plait.store.thread_rows import Record


class Board(Thread[int]):
    """Has tasks that tell each event that they get, until that is None."""

    initial_state = 0
    tasks = Tasks(live=True)

    @task(clients=True)
    async def listen(self, step: Step, most: int) -> str:
        for number in range(most):
            step.status(await step.event(f"{number}"))
        return "x" * 100


@pytest.fixture
async def shop(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workshop]:
    rest_at_once(monkeypatch)
    async with make_store("memory", tmp_path) as store, open_workshop(store, Board) as shop:
        yield shop


async def next_of(guest: Guest, type: str) -> Any:
    while (frame := await guest.transport.next())["type"] != type:
        pass
    return frame


async def viewer(board: Board) -> Guest:
    """Return a guest that has opened the tasks, and was sent the page."""
    guest = await join(board)
    guest.send("open", part="tasks")
    return guest


async def join(board: Board) -> Guest:
    assert isinstance(board._actor, Actor)
    return await joined(board._actor, "ada")


async def begin_run(board: Board, most: int = 1) -> str:
    """Begin a run, and return its id when it sleeps until the first event."""
    sleeping, is_told = set[str](), asyncio.Event()

    def look(run: TaskRun) -> None:
        if run.status == "sleeping":
            sleeping.add(run.id)
            is_told.set()

    stop = board.tasks.watch(look)
    run = board.tasks.run("listen", most)
    while run.id not in sleeping:
        is_told.clear()
        await is_told.wait()
    stop()
    return run.id


async def end(board: Board, id: str) -> None:
    assert await board.tasks.send(id, "0", "told")
    await board.tasks.wait(id)


async def test_a_page_has_the_runs_and_changes_have_the_next_revisions(shop: Workshop) -> None:
    board = await shop.thread(Board)
    id = await begin_run(board)
    guest = await viewer(board)
    page = await next_of(guest, "page")
    assert (page["reset"], page["revision"]) == (True, 0)
    assert [(run["id"], run["status"]) for run in page["runs"]] == [(id, "sleeping")]
    await end(board, id)
    changes = guest.frames
    assert [(each["type"], each["op"]) for each in changes] == [("part", "update")] * len(changes)
    assert [each["revision"] for each in changes] == [*range(1, len(changes) + 1)]
    shown = [(each["run"]["status"], each["run"].get("value"), each["run"].get("result")) for each in changes]
    assert shown[-3:] == [("running", None, None), ("running", "told", None), ("done", "told", "x" * 100)]
    guest.send("open", part="tasks", since=1)
    page = await next_of(guest, "page")
    assert (page["reset"], page["revision"], page["runs"]) == (True, len(changes), [changes[-1]["run"]])


async def test_a_slow_reader_is_told_that_it_has_missed_changes(shop: Workshop) -> None:
    board = await shop.thread(Board)
    guest = await viewer(board)
    await next_of(guest, "page")
    guest.transport.is_backed_up = True
    ids = [await begin_run(board) for _ in range(10)]
    assert guest.frames == []
    guest.transport.catch_up()
    (missed,) = guest.frames
    assert (missed["op"], missed["revision"]) == ("missed", 30)  # Each has waited, run and gone to sleep.
    guest.send("open", part="tasks", since=0)
    page = await next_of(guest, "page")
    assert ([run["id"] for run in page["runs"]], page["revision"]) == (ids, 30)


async def test_a_page_is_bounded_and_runs_that_have_not_ended_come_first(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = await shop.thread(Board)
    waiting = await begin_run(board)
    ended = [await begin_run(board) for _ in range(4)]
    for id in ended:
        await end(board, id)

    async def read(limit: int) -> list[str]:
        return [run.id for run in await live_tasks.read_newest(board.tasks, limit)]

    assert await read(50) == [waiting, *ended]
    assert await read(2) == [waiting, *ended[2:]]
    monkeypatch.setattr(live_tasks, "_MOST_ON_PAGE", 2)
    assert await read(50) == [waiting, ended[3]]
    monkeypatch.setattr(live_tasks, "_MOST_ON_PAGE", 500)
    monkeypatch.setattr(live_tasks, "_MOST_BYTES", 700)
    assert await read(50) == [waiting, *ended[2:]]
    monkeypatch.setattr(live_tasks, "_MOST_BYTES", 1)
    assert await read(50) == [waiting]


async def test_only_the_runs_of_a_page_are_read(shop: Workshop) -> None:
    board = await shop.thread(Board)
    ids = [await begin_run(board) for _ in range(4)]
    for id in ids[:3]:
        await end(board, id)
    broken = [Record("tasks", ENDED + id, b"cannot be read") for id in ids[:2]]
    assert isinstance(board._actor, Actor)
    await board._actor.records.write(broken)
    assert [run.id for run in await live_tasks.read_newest(board.tasks, 1)] == ids[2:]


async def test_what_changes_while_a_page_is_read_is_told_after_it(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = await shop.thread(Board)
    id = await begin_run(board)
    guest = await join(board)
    is_read, may_go_on, read = asyncio.Event(), asyncio.Event(), shop.store.record

    async def read_later(key: Any, part: str, name: str) -> bytes | None:
        found = await read(key, part, name)
        is_read.set()
        await may_go_on.wait()
        return found

    monkeypatch.setattr(shop.store, "record", read_later)
    guest.send("open", part="tasks")
    await is_read.wait()
    assert await board.tasks.send(id, "0", "told")
    told = await next_of(guest, "part")
    may_go_on.set()
    page = await next_of(guest, "page")
    # So the client applies it to the page.
    assert told["revision"] > page["revision"]


async def test_a_run_that_could_not_be_stored_is_not_shown(shop: Workshop) -> None:
    board = await shop.thread(Board)
    guest = await viewer(board)
    await next_of(guest, "page")
    shop.store.refuses = lambda _: True
    begun = board.tasks.run("listen", 1)
    guest.send("open", part="tasks")
    with pytest.raises(StoreError):
        await begun
    page = await next_of(guest, "page")
    assert "runs" not in page
    assert guest.frames == []


async def test_a_run_of_a_transaction_is_told_after_its_state(shop: Workshop) -> None:
    board = await shop.thread(Board)
    guest = await viewer(board)
    await next_of(guest, "page")
    with board.transaction():
        run = board.tasks.run("listen", 1)
        board.set_state(1)
    await run
    assert [each["type"] for each in guest.frames][:2] == ["change", "part"]
