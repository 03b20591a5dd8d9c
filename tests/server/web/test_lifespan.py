"""What holds while an app is served by any ASGI server."""

import gc
from collections.abc import Iterator

import pytest
from tests.cases import each_case
from tests.running import running

from plait import MemoryStore, Plait, Thread

SERVED = (50_000, 5, 200)


class Note(Thread[None]):
    pass


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    former = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*former)


def state_of_collector() -> tuple[tuple[int, int, int], bool]:
    return gc.get_threshold(), gc.get_freeze_count() > 0


async def test_under_any_server_the_collector_runs_rarely_until_the_end() -> None:
    app = Plait(Note, store=MemoryStore())
    async with running(app, ws="auto"):
        assert state_of_collector() == (SERVED, True)
    assert state_of_collector() == ((700, 10, 10), False)


async def test_of_two_apps_in_one_process_the_outer_one_restores_the_collector() -> None:
    one, two = (Plait(Note, store=MemoryStore()) for _ in range(2))
    async with one.lifespan():
        async with two.lifespan():
            assert state_of_collector() == (SERVED, True)
        assert state_of_collector() == (SERVED, True)
    assert state_of_collector() == ((700, 10, 10), False)


@each_case("own", [(0, 10, 10), (100_000, 10, 10)])
async def test_a_process_that_has_set_its_own_thresholds_keeps_them(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    async with Plait(Note, store=MemoryStore()).lifespan():
        assert state_of_collector() == (own, False)
    assert state_of_collector() == (own, False)


async def test_an_app_without_a_server_leaves_the_collector_as_it_is() -> None:
    async with Plait(Note, store=MemoryStore()):
        assert state_of_collector() == ((700, 10, 10), False)
