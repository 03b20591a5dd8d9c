"""Values of authors' code leave as equal JSON, or not at all, on every way."""

import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.running import running

from plait import Context, Plait, Schedule, Thread, Values, effect, endpoint, rpc
from plait_client import CallError, connect


def make_cycle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


# What JSON does not have, and its place.
FAULTS: dict[str, tuple[Any, str]] = {
    "nan": ({"a": [1, math.nan]}, "/a/1"),
    "infinity": ({"a": [1, -math.inf]}, "/a/1"),
    "keys": ({"a": {1: "int", "1": "str"}}, "/a"),
    "cycle": ({"a": make_cycle()}, "/a/0"),
    "half": ({"a": "\ud83d"}, "/a"),
    "object": ({"a": object()}, "/a"),
}


class Room(Thread[Any]):
    initial_state = 0
    values = Values()
    schedule = Schedule()

    @effect()
    def ring(self, value: Any) -> None: ...

    @rpc
    def give(self, fault: str) -> Any:
        return FAULTS[fault][0]

    @rpc
    async def chunks(self, fault: str) -> AsyncIterator[Any]:
        yield FAULTS[fault][0]

    @endpoint("GET", "/given")
    def given(self, fault: str) -> Any:
        return FAULTS[fault][0]

    async def on_request(self, request: Request) -> Any:
        return FAULTS[request.query_params["fault"]][0]

    @rpc
    async def hand_over(self, way: str, fault: str) -> str:
        """Return why a way does not take a value; empty if it takes it."""
        value = FAULTS[fault][0]
        ways: dict[str, Any] = {
            "emit": lambda: self.emit("event", value),
            "broadcast": lambda: self.broadcast(value),
            "send": lambda: self.connections()[0].send(value),
            "presence": lambda: self.set_presence("agent", value),
            "state": lambda: self.set_state(value),
            "update": lambda: self.update("", value),
            "values": lambda: self.values.set("key", value),
            "schedule": lambda: self.schedule.after(60, "ring", value),
            "program": lambda: self.run_python("1", globals={"given": value}),
        }
        try:
            made = ways[way]()
        except (TypeError, ValueError) as error:
            return str(error)
        except Exception as error:
            return f"{error}, at {getattr(error, 'path', None)}"
        return str((await made).error) if way == "program" else ""


WAYS = ("emit", "broadcast", "send", "presence", "state", "update", "values", "schedule", "program")


def make_app() -> Plait:
    app = Plait(Room, store="memory://", secret="s")

    @app.agent("give", thread=Room)
    async def give(ctx: Context[Room], fault: str) -> Any:
        return FAULTS[fault][0]

    @app.agent("chunks", thread=Room)
    async def chunks(ctx: Context[Room], fault: str) -> AsyncIterator[Any]:
        yield FAULTS[fault][0]

    return app


@pytest.mark.parametrize("way", WAYS)
async def test_a_way_refuses_what_json_does_not_have_whether_sockets_are_open_or_not(way: str) -> None:
    app = make_app()
    async with running(app) as address:
        for fault, (_, place) in FAULTS.items():
            told = [await app.thread(Room, "one").call(Room.hand_over, way, fault)] if way != "send" else []
            async with connect(f"ws://{address}/threads/room/one") as room:
                told.append(await room.call("hand_over", way, fault))
            for each in told:
                assert each.endswith(place)


@each_case("fault", FAULTS)
async def test_no_answer_has_what_json_does_not_have(fault: str) -> None:
    place = FAULTS[fault][1]
    async with running(make_app()) as address, connect(f"ws://{address}/threads/room/one") as room:
        with pytest.raises(CallError, match=f", at {place}"):
            await room.call("give", fault)
        with pytest.raises(CallError):
            async for _ in room.stream("chunks", fault):
                pass
        async with httpx.AsyncClient(base_url=f"http://{address}/threads/room/one/") as web:
            for path in ("rpc/give", "rpc/chunks", "run/give", "run/chunks"):
                told = (await web.post(path, json={"args": [fault]} if path.startswith("rpc") else fault)).text
                assert "null" not in told
                assert "error" in told
            for path in (f"given?fault={fault}", f"own?fault={fault}"):
                assert (await web.get(path)).status_code == 500
