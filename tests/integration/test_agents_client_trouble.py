"""The published client, AgentClient: refused writes, lost sockets, and servers that go away."""

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agents_client.app import Room
from tests.integration.agents_client.playing import Agents, playing
from tests.integration.socket_client import TIMEOUT
from tests.running import Process, running

from plait import Connection, MemoryStore, Plait
from plait.store.protocol import Write

pytest_plugins = ["tests.integration.agents_client.fixtures"]

APP = "tests.integration.agents_client.app:app"


class HeldStore(MemoryStore):
    """Stores nothing between `hold` and `resume`."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[tuple[Write, asyncio.Future[int]]] | None = None

    def hold(self) -> None:
        """Keep back what comes from here on."""
        self._held = []

    def resume(self) -> None:
        """Store what was kept back, in order."""
        held, self._held = self._held, None
        for write, future in held or ():
            super().submit(write).add_done_callback(partial(_pass_on, future))

    def submit(self, write: Write) -> asyncio.Future[int]:
        if self._held is None:
            return super().submit(write)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._held.append((write, future))
        return future


def _pass_on(future: asyncio.Future[int], stored: asyncio.Future[int]) -> None:
    future.set_result(stored.result())


# Refused writes


async def test_a_rejected_write_is_reported_to_its_sender_and_rolled_back_there(agents: Agents) -> None:
    result = await agents.play("rejections", "rejected")
    assert result == {
        "shown": {"n": 2, "forbidden": True},
        "errors": ["State update rejected"],
        "frames": [
            {"type": "cf_agent_state_error", "error": "State update rejected"},
            {"type": "cf_agent_state", "state": {"n": 1}},
        ],
        "sender": {"n": 1},
        "rollback": {"state": {"n": 1}, "source": "server"},
        "other": {"n": 1},
        "toOther": [],
        "stored": {"n": 1},
    }


async def test_accepted_and_rejected_writes_in_one_go_leave_nobody_wrong(agents: Agents) -> None:
    last = {"n": 19, "forbidden": False}
    result = await agents.play("rejections", "mixed")
    assert result == {"errors": ["State update rejected"] * 7, "sender": last, "other": last, "stored": last}


async def test_a_write_or_call_with_an_emoji_that_is_cut_in_two_is_refused_and_both_ends_are_equal(
    agents: Agents,
) -> None:
    whole = {"text": "whole \U0001f600"}
    result = await agents.play("rejections", "cut_emoji")
    assert "half a surrogate pair" in result.pop("call")
    assert result == {
        "rejected": {"errors": ["State update rejected"], "sender": whole, "other": whole},
        "sender": {**whole, "n": 1},
        "other": {**whole, "n": 1},
        "stored": {**whole, "n": 1},
        "closes": [],
    }


async def test_a_write_of_another_type_is_rejected_and_rolled_back(agents: Agents) -> None:
    state = {"points": 0}
    result = await agents.play("rejections", "mistyped")
    assert result == {"errors": ["State update rejected"], "sender": state, "stored": state}


async def test_a_readonly_connection_receives_and_calls_but_does_not_write(agents: Agents) -> None:
    result = await agents.play("rejections", "readonly")
    assert result == {
        "afterWrite": {"errors": ["Connection is readonly"], "state": {"n": 0}, "stored": {"n": 0}},
        "writing": "Connection is readonly",
        "reading": {"resolved": 0},
        "received": {"n": 7},
        "stored": {"n": 7},
    }


async def test_a_connection_can_be_made_readonly_while_it_is_open(agents: Agents) -> None:
    result = await agents.play("rejections", "switched")
    assert result == {
        "before": {"errors": [], "state": {"n": 1}, "other": {"n": 1}},
        "during": {"errors": ["Connection is readonly"], "state": {"n": 1}, "other": {"n": 1}},
        "after": {"errors": ["Connection is readonly"], "state": {"n": 3}, "other": {"n": 3}},
    }


async def test_a_connection_without_protocol_gets_none_of_its_frames_and_may_write_and_call(agents: Agents) -> None:
    result = await agents.play("rejections", "without_protocol")
    assert result == {
        "called": 2,
        "written": {"n": 50},
        "types": [],
        "messages": [{"type": "shout", "text": "to all"}, "to all", {"binary": list(b"to all")}],
        "errors": ["State update rejected"],
        # The error frame, and no state after it.
        "afterRejection": ["cf_agent_state_error"],
        "stored": {"n": 60},
    }


# Restarts


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
async def test_clients_come_back_after_a_restart_and_find_the_state(
    agents_package: Path, tmp_path: Path, by: signal.Signals
) -> None:
    with Process(APP, cwd=tmp_path) as server:
        async with playing(server.address, "reconnecting", "restart") as play:
            await play.reach("restart")
            await asyncio.to_thread(server.end, by)
            await asyncio.to_thread(server.start)
            play.go_on()
            result = await play.result()
    assert result["before"] == result["after"]
    assert len(set(result["after"])) == 2
    assert result["kept"] == [{"text": "before"}] * 3
    assert result["stored"] == {"text": "from the right"}
    if by is signal.SIGTERM:
        assert result["closed"] == [1001, 1001]


async def test_a_write_made_while_the_server_is_down_reaches_everybody(agents_package: Path, tmp_path: Path) -> None:
    with Process(APP, cwd=tmp_path) as server:
        async with playing(server.address, "reconnecting", "write_while_down") as play:
            await play.reach("stop")
            await asyncio.to_thread(server.end, signal.SIGKILL)
            play.go_on()
            await play.reach("start")
            await asyncio.to_thread(server.start)
            play.go_on()
            result = await play.result()
    assert result == {"writer": {"n": 42}, "other": {"n": 42}, "stored": {"n": 42}}


# Lost sockets


async def test_calls_under_way_fail_when_the_socket_is_lost_and_later_ones_are_answered(agents: Agents) -> None:
    assert await agents.play("reconnecting", "calls") == {"lost": "Connection closed", "queued": "queued"}


async def test_a_write_made_offline_does_not_overwrite_a_newer_state(agents: Agents) -> None:
    assert_refused(await agents.play("reconnecting", "offline_over_newer", how="cut"))


async def test_a_write_made_offline_does_not_overwrite_a_newer_state_while_the_old_socket_seems_open(
    agents: Agents,
) -> None:
    assert_refused(await agents.play("reconnecting", "offline_over_newer", how="lose"))


def assert_refused(result: Any) -> None:
    newer = {"text": "newer"}
    assert [state for state in result.pop("seen") if state != newer] == []
    assert result == {"away": newer, "here": newer, "stored": newer, "errors": ["State update rejected"] * 2}


async def test_a_write_made_offline_does_not_overwrite_what_the_server_set(agents: Agents) -> None:
    state = {"n": 10}
    result = await agents.play("reconnecting", "offline_over_server")
    assert result == {
        "away": state, "here": state, "stored": state, "errors": ["State update rejected"], "seen": [state],
    }  # fmt: skip


@pytest.mark.parametrize("how", ["cut", "lose"])
async def test_writes_made_offline_reach_everybody_when_nobody_else_wrote(agents: Agents, how: str) -> None:
    result = await agents.play("reconnecting", "offline_alone", how=how)
    assert_accepted(result, [{"text": "one"}, {"text": "two"}])


async def test_a_write_made_offline_is_accepted_when_only_its_sender_wrote_before(agents_package: Path) -> None:
    left = asyncio.Event()

    class Watched(Room):
        """Tells when a connection has left."""

        kind = "room"

        def on_close(self, connection: Connection, code: int, reason: str) -> None:
            left.set()

    store = HeldStore()
    async with (
        running(Plait(Watched, store=store)) as address,
        playing(address, "reconnecting", "offline_after_own_write") as play,
    ):
        await play.reach("hold")
        store.hold()
        play.go_on()
        await play.reach("release")
        await asyncio.wait_for(left.wait(), TIMEOUT)
        store.resume()
        play.go_on()
        assert_accepted(await play.result(), [{"text": "sent"}, {"text": "queued"}])


def assert_accepted(result: Any, states: list[Any]) -> None:
    last = states[-1]
    assert result == {"away": last, "here": last, "stored": last, "errors": [], "seen": states}


async def test_a_client_that_writes_on_after_an_offline_write_is_not_left_wrong(agents: Agents) -> None:
    result = await agents.play("reconnecting", "offline_then_on")
    assert result["stored"] in ({"text": "newer"}, {"text": "after"})
    assert result["away"] == result["here"] == result["stored"]


async def test_a_write_made_offline_does_not_overwrite_a_newer_state_of_a_thread_that_slept(
    agents_package: Path, tmp_path: Path
) -> None:
    slept = asyncio.Event()

    class Sleeper(Room):
        """Falls asleep soon after the last connection has left."""

        idle_timeout = 0.05

        def on_stop(self) -> None:
            slept.set()

    async with (
        running(Plait(Sleeper, store=f"sqlite:///{tmp_path}/plait.db")) as address,
        playing(address, "reconnecting", "offline_over_asleep") as play,
    ):
        await play.reach("asleep")
        await asyncio.wait_for(slept.wait(), TIMEOUT)
        play.go_on()
        result = await play.result()
    newer = {"text": "newer"}
    assert result == {"away": newer, "stored": newer, "errors": ["State update rejected"]}


async def test_a_write_that_crosses_a_state_on_its_way_into_a_busy_page_leaves_nobody_wrong(agents: Agents) -> None:
    result = await agents.play("reconnecting", "busy_page")
    assert result["busy"] == result["stored"]


async def test_a_write_of_a_busy_page_over_a_state_that_it_has_not_read_doubles_nothing(agents: Agents) -> None:
    result = await agents.play("reconnecting", "busy_page_crossing", rounds=20)
    # Its browser has answered the ping, so the page undoes the other's element; what both wrote is never doubled.
    assert result == {"wrong": [], "lost": 20}
