"""Connecting to one of several servers."""

import asyncio
from typing import Any

import pytest

from plait.store.outcomes import Unreachable
from plait.store.sql.hosts import connect_first


class Line:
    """A connection."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_closed = False

    def terminate(self) -> None:
        self.is_closed = True


class Hosts:
    """Servers that refuse connections, that answer, or that do so only when they are told to."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.lines: list[Line] = []
        self.may_answer = asyncio.Event()

    async def connect(self, host: str) -> Any:
        """Return a connection to a server."""
        self.tried.append(host)
        if host.startswith("refuses"):
            raise Unreachable(f"{host} it")
        if host.startswith("late"):
            try:
                await self.may_answer.wait()
            except asyncio.CancelledError:
                if host == "late":  # It was connected when it was cancelled.
                    self.lines.append(Line(host))
                    return self.lines[-1]
                raise
        self.lines.append(Line(host))
        return self.lines[-1]


async def connect(hosts: Hosts, *names: str) -> Any:
    """Return the first connection to one of the servers."""
    return await connect_first(names, hosts.connect, errors=(), explain=str)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.store.sql.hosts._PATIENCE", 0.01)


async def test_the_first_server_that_can_be_used_is_and_those_after_it_are_not_asked() -> None:
    hosts = Hosts()
    assert (await connect(hosts, "refuses", "answers", "other")).host == "answers"
    assert hosts.tried == ["refuses", "answers"]


async def test_a_server_that_answers_late_is_used_if_no_other_can_be() -> None:
    hosts = Hosts()
    connecting = asyncio.create_task(connect(hosts, "late", "refuses"))
    while hosts.tried != ["late", "refuses"]:  # noqa: ASYNC110
        await asyncio.sleep(0)
    hosts.may_answer.set()
    assert (await connecting).host == "late"


async def test_a_connection_that_comes_too_late_is_closed() -> None:
    hosts = Hosts()
    assert (await connect(hosts, "late", "late2", "answers")).host == "answers"
    assert {line.host: line.is_closed for line in hosts.lines} == {"answers": False, "late": True}


async def test_the_reasons_of_all_servers_are_told() -> None:
    with pytest.raises(Unreachable, match=r"^refuses1 it; refuses2 it$"):
        await connect(Hosts(), "refuses1", "refuses2")
