"""The unread messages that two devices of a user list, while the server is killed again and again."""

import asyncio
import json
import random
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
from tests.running import Process
from tests.schedules import SEED, schedules

from plait_client import ClientError, connect

ADA = {"authorization": "Bearer ada"}
PLACES = [(kind, name) for kind in ("chat", "desk") for name in ("a", "b", "c")]
TIMEOUT = 30


class Device:
    """A device of Ada, which holds the last page of each live list."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.rows: dict[str, list[Any]] = {}

    async def follow(self, kind: str) -> None:
        """Read a live list, again after each kill."""
        headers = {**ADA, "accept": "text/event-stream"}
        while True:
            with suppress(httpx.HTTPError):
                async with self._client.stream("GET", f"/threads/{kind}?mine", headers=headers) as answer:
                    async for line in answer.aiter_lines():
                        if line.startswith("data: "):
                            self.rows[kind] = json.loads(line.removeprefix("data: "))["threads"]
            await asyncio.sleep(0.01)


class Ada:
    """A user who writes and reads in some conversations, and what her lists must say of each."""

    def __init__(self, address: str, client: httpx.AsyncClient) -> None:
        self._address = address
        self._client = client
        self._count = 0
        # What she did last in each conversation, a text or nothing if she read, and whether she knows that it is done.
        self._acts: dict[tuple[str, str], tuple[str, bool]] = {}
        # The unread messages before that.
        self._unread = dict.fromkeys(PLACES, 0)

    def _open(self, place: tuple[str, str]) -> Any:
        return connect(f"ws://{self._address}/threads/{place[0]}/{place[1]}", token="ada")

    async def act(self, place: tuple[str, str], choice: random.Random) -> None:
        """Write, or read everything, while the server may be killed; find out afterwards what is so."""
        self._count += 1
        text = f"{choice.choice(('hi', 'pay'))} {self._count}" if choice.random() < 0.7 else ""
        is_done = False
        try:
            async with asyncio.timeout(1), self._open(place) as room:
                await (room.messages.send(text) if text else room.messages.mark_read())
                is_done = True
        except (ClientError, TimeoutError, OSError):
            pass
        self._acts[place] = text, is_done

    async def row(self, place: tuple[str, str]) -> dict[str, Any] | None:
        """Return the row of a conversation, None if there is none."""
        page = (await self._client.get(f"/threads/{place[0]}?mine", headers=ADA)).json()
        return next((row for row in page["threads"] if row["name"] == place[1]), None)

    async def settle(self, place: tuple[str, str]) -> None:
        """Approve what waits, until nothing is to be done."""
        async with asyncio.timeout(TIMEOUT):
            while (row := await self.row(place)) is not None and row["card"]["status"] != "idle":
                if row["card"]["status"] == "waiting":
                    async with self._open(place) as room:
                        for run in await room.tasks.open():
                            for item in await room.messages.open():
                                for call in item.tool_calls or ():
                                    await room.tasks.approve(run.id, f"approval:{call['id']}")
                await asyncio.sleep(0.01)

    async def check(self, place: tuple[str, str]) -> None:
        """Compare the row of a settled conversation with its messages, and with what Ada did in it last."""
        row, (text, is_done) = await self.row(place), self._acts[place]
        if row is None:
            assert not is_done
            return
        async with self._open(place) as room:
            await room.messages.open(500)
            while room.messages.has_more:
                await room.messages.older(500)
            told = [each for each in room.messages.items if each.role in ("user", "assistant") and not each.tool_calls]
        told = [each for each in told if not each.depth and (each.role == "user" or each.status == "completed")]
        texts = [(each.content or "").strip() for each in told]
        assert row["card"]["told"] == len(told), (place, row, texts)
        assert (row["card"]["last"] or {}).get("text", "").strip() == (texts[-1] if texts else "")
        before, self._unread[place] = self._unread[place], row["unread"]
        if text in texts:
            assert row["unread"] == len(told) - 1 - texts.index(text) == 1, (place, row, texts)
        elif not text and is_done:
            assert row["unread"] == 0, (place, row)
        else:
            assert not is_done
            assert row["unread"] in ({before} if text else {before, 0}), (place, row)


async def test_unread_messages_are_exact_on_two_devices_however_often_the_server_is_killed(tmp_path: Path) -> None:
    with Process("tests.integration.unread_app:app", cwd=tmp_path) as server:
        async with AsyncExitStack() as stack:
            base = f"http://{server.address}"
            client, *others = [
                await stack.enter_async_context(httpx.AsyncClient(base_url=base, timeout=TIMEOUT)) for _ in range(3)
            ]
            ada, devices = Ada(server.address, client), [Device(each) for each in others]
            tasks = [asyncio.create_task(each.follow(kind)) for each in devices for kind in ("chat", "desk")]
            stack.callback(lambda: [task.cancel() for task in tasks])
            for seed in range(SEED, SEED + schedules(8)):
                choice = random.Random(seed)
                acts = [asyncio.create_task(ada.act(place, choice)) for place in PLACES]
                await asyncio.sleep(choice.uniform(0, 0.4))
                await asyncio.to_thread(server.end, signal.SIGKILL)
                await asyncio.gather(*acts)
                await asyncio.to_thread(server.start)
                await asyncio.gather(*map(ada.settle, PLACES))
                for place in PLACES:
                    await ada.check(place)
                async with asyncio.timeout(TIMEOUT):
                    for kind in ("chat", "desk"):
                        page = (await client.get(f"/threads/{kind}?mine", headers=ADA)).json()["threads"]
                        while any(strip(each.rows.get(kind, [])) != strip(page) for each in devices):  # noqa: ASYNC110
                            await asyncio.sleep(0.01)


def strip(rows: list[Any]) -> list[Any]:
    """Return rows without the people, who come and go."""
    return [{**row, "people": 0} for row in rows]
