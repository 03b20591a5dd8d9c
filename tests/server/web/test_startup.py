"""The functions that an app runs when it starts."""

import asyncio
from pathlib import Path

import pytest
from tests.server.nodes import Nodes, make_node

from plait import MemoryStore, Plait, Thread, Unavailable
from plait.cluster.owners import Worker


class Room(Thread[dict[str, int]]):
    """Keeps a number."""

    initial_state = {"n": 0}  # noqa: RUF012


async def test_functions_run_in_order_at_each_start_and_may_use_threads() -> None:
    app, ran = Plait(Room, store=MemoryStore()), list[str]()

    @app.on_startup
    async def first() -> None:
        await app.thread(Room, "one").set_state({"n": 5})
        ran.append("first")

    @app.on_startup(once=True)
    def second() -> None:
        ran.append("second")

    app.on_startup(lambda: ran.append("third"), once=False)
    assert ran == []
    for _ in range(2):
        async with app:
            assert ran == ["first", "second", "third"]
            assert await app.thread(Room, "one").state() == {"n": 5}
        ran.clear()
    assert (first.__name__, second.__name__) == ("first", "second")


async def test_an_app_does_not_start_if_a_function_raises_and_can_be_started_again() -> None:
    app, errors = Plait(Room, store=MemoryStore()), [LookupError("not there")]

    @app.on_startup
    def fail() -> None:
        if errors:
            raise errors.pop()

    with pytest.raises(LookupError, match="not there"):
        async with app:
            pass
    with pytest.raises(Unavailable):
        await app.thread(Room, "one").state()
    async with app:
        assert await app.thread(Room, "one").state() == {"n": 0}


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        (Worker(0, 2, "{}"), ["each", "once"]),
        (Worker(0, 2, "{}", is_restart=True), ["each"]),
        (Worker(1, 2, "{}"), ["each"]),
    ],
)
async def test_of_several_workers_only_the_first_process_runs_a_function_once(
    worker: Worker, expected: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = str(tmp_path_factory.mktemp("l"))
    for name, value in Worker(worker.number, worker.count, folder, worker.is_restart).to_environment().items():
        monkeypatch.setenv(name, value)
    app, ran = Plait(Room, store="memory://"), list[str]()
    app.on_startup(lambda: ran.append("each"))
    app.on_startup(lambda: ran.append("once"), once=True)
    async with app:
        assert ran == expected


async def test_other_nodes_use_the_threads_of_a_node_after_its_functions(tmp_path: Path) -> None:
    here, there = (make_node(lambda: Plait(Room, store="memory://"), number, 2, tmp_path) for number in range(2))
    begun, gate = asyncio.Event(), asyncio.Event()

    @there.on_startup
    async def prepare() -> None:
        begun.set()
        await gate.wait()

    async with here:
        starting = asyncio.create_task(there.__aenter__())
        await begun.wait()
        here._context.links.hold = 0.1
        with pytest.raises(Unavailable):
            await Nodes([here, there]).handle(Room, 1).state()
        gate.set()
        await starting
        assert await Nodes([here, there]).handle(Room, 1).state() == {"n": 0}
        await there.__aexit__(None, None, None)


def test_what_is_no_function_is_refused() -> None:
    app = Plait(Room, store=MemoryStore())
    with pytest.raises(TypeError, match="on_startup takes a function, not 3"):
        app.on_startup(3)  # type: ignore[type-var]
