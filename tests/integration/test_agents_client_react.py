"""The published client, useAgent, with React in jsdom."""

import asyncio
import signal
from pathlib import Path

import pytest
from tests.integration.agents_client.playing import Agents, playing
from tests.running import Process
from tests.schedules import in_soak

pytest_plugins = ["tests.integration.agents_client.fixtures"]

# In strict mode, React runs each effect twice.
both = pytest.mark.parametrize("strict", [True, *in_soak([False])], ids=["strict", "plain"])


@both
async def test_a_page_shows_the_states_of_the_server_its_own_and_the_others(agents: Agents, *, strict: bool) -> None:
    result = await agents.play("react", "states", strict=strict)
    assert result == {
        "identity": {"name": "one", "agent": "room", "identified": True},
        "result": 2,
        "members": 2,
        "stored": {"n": 4},
    }


@both
async def test_a_page_that_writes_states_in_turn_shows_and_stores_the_last_one(agents: Agents, *, strict: bool) -> None:
    words = ["first", "second", "third"]
    initial = {"count": 0, "items": [], "lastUpdated": None}
    states = [{"count": n, "items": [word], "lastUpdated": n} for n, word in enumerate(words, 1)]
    result = await agents.play("react", "sequential", initial=initial, states=states, strict=strict)
    assert result == {"shown": states[-1], "stored": states[-1]}


async def test_a_page_calls_and_streams(agents: Agents) -> None:
    assert await agents.play("react", "calls") == {
        "chunks": [0, 1, 2],
        "stub": ["Ada", 2],
        "missing": "Method missing does not exist",
        "failed": "as it was said",
    }


@both
async def test_a_page_shows_the_state_again_when_its_write_is_rejected(agents: Agents, *, strict: bool) -> None:
    result = await agents.play("react", "rejected", strict=strict)
    assert result == {"errors": ["State update rejected"], "state": {"n": 1}, "stored": {"n": 1}}


async def test_a_page_in_strict_mode_has_one_connection_and_none_when_it_is_left(agents: Agents) -> None:
    assert await agents.play("react", "strict") == {"mounted": 1, "left": 0, "text": ""}


@both
async def test_a_page_that_lost_its_socket_comes_back_to_the_state(agents: Agents, *, strict: bool) -> None:
    result = await agents.play("react", "reconnect", strict=strict)
    assert result["before"] == result["after"]


async def test_a_page_that_wrote_offline_shows_the_newer_state(agents: Agents) -> None:
    newer = {"text": "newer"}
    result = await agents.play("react", "offline")
    assert result == {"errors": ["State update rejected"], "other": newer, "stored": newer}


async def test_a_page_comes_back_after_a_restart(agents_package: Path, tmp_path: Path) -> None:
    with Process("tests.integration.agents_client.app:app", cwd=tmp_path) as server:
        async with playing(server.address, "react", "restart") as play:
            await play.reach("restart")
            await asyncio.to_thread(server.end, signal.SIGKILL)
            await asyncio.to_thread(server.start)
            play.go_on()
            result = await play.result()
    assert result == {"text": '{"text":"goes on"}', "stored": {"text": "goes on"}}


async def test_a_page_does_not_flicker_while_somebody_types(agents: Agents) -> None:
    rendered = await agents.play("react", "typing", count=50)
    assert rendered == sorted(rendered)
    assert rendered[-1] == 50
