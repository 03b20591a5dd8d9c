"""Conversations in which people say more while an agent answers, on a server that is killed again and again."""

import asyncio
import random
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from tests.integration.socket_client import http
from tests.running import Process

__all__ = ["talk_over_kills"]

SAID = ["first", "second"]


async def call(web: httpx.AsyncClient, kind: str, name: str, method: str, *args: Any) -> Any:
    """Call a method until the server answers."""
    while True:
        with suppress(httpx.HTTPError):
            answer = await web.post(f"/threads/{kind}/{name}/rpc/{method}", json={"args": args})
            if answer.status_code == 200:
                return answer.json()["result"]
            assert answer.status_code == 503, answer.text
        await asyncio.sleep(0.05)


async def run_page(web: httpx.AsyncClient, name: str, *texts: str) -> None:
    """Run the agent of a page as its client does: again after a lost connection."""
    said = [{"id": text, "role": "user", "content": text} for text in texts]
    body = {"threadId": name, "runId": texts[-1], "messages": said, "tools": [], "context": [], "state": {}}
    while True:
        with suppress(httpx.HTTPError):
            answer = await web.post(f"/ag-ui/page/{name}", json={**body, "forwardedProps": {}})
            if "RUN_FINISHED" in answer.text:
                return
        await asyncio.sleep(0.05)


async def talk(web: httpx.AsyncClient, kind: str, name: str, chance: random.Random) -> None:
    """Ask something, and say more while the agent works."""
    if kind == "page":
        first = asyncio.create_task(run_page(web, name, SAID[0]))
        await asyncio.sleep(chance.uniform(0.02, 0.15))
        await asyncio.gather(first, run_page(web, name, *SAID))
        return
    await call(web, kind, name, "say", SAID[0])
    await asyncio.sleep(chance.uniform(0.02, 0.15))
    await call(web, kind, name, "say", SAID[1])


async def until_answered(web: httpx.AsyncClient, kind: str, name: str) -> list[Any]:
    """Wait until nothing is queued or written, and the last message is an answer to all."""
    while True:
        items = await call(web, kind, name, "items")
        done = [each for each in items if each[1] == "completed"]
        is_over = all(each[1] in ("completed", "failed") for each in items)
        if is_over and done[-1:] == [["assistant", "completed", f"You said {SAID}."]]:
            return done
        await asyncio.sleep(0.05)


async def talk_over_kills(folder: Path, app: Path, kinds: Sequence[str], kills: int) -> None:
    """Talk in a thread of each kind during each kill; at the end, all that was said must be there once, in order."""
    shutil.copy(app, folder)
    chance = random.Random(7)
    with Process(f"{app.stem}:app", cwd=folder) as server:
        for number in range(kills):
            async with http(server.address) as web, asyncio.timeout(60):
                talks = [asyncio.create_task(talk(web, kind, f"r{number}", chance)) for kind in kinds]
                await asyncio.sleep(chance.uniform(0.05, 0.6))
                server.end(signal.SIGKILL)
                server.start()
                await asyncio.gather(*talks)
                for kind in kinds:  # Three crashes in a row would give a message up.
                    await until_answered(web, kind, f"r{number}")
        server.end()
        server.start()
        async with http(server.address) as web, asyncio.timeout(60):
            for kind in kinds:
                for number in range(kills):
                    items = await until_answered(web, kind, f"r{number}")
                    assert [text for role, _, text in items if role == "user"] == SAID, (kind, number)
                    if kind == "graph":
                        assert await call(web, kind, f"r{number}", "asked") == SAID
