"""The chat of a thread in a cluster: pages at each node, and a kill of the owner in the middle of an answer."""

import asyncio
import json
import signal
from pathlib import Path

import httpx
from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import open_cluster
from tests.integration.socket_client import TIMEOUT
from tests.integration.usechat.app import words
from tests.integration.usechat.playing import TARGET

pytestmark = each_engine("redis")

ANSWER = " ".join([*words("story"), "(to: a story; )"])


def read_answer(said: str) -> str:
    """Return the text of a stream that has ended."""
    assert said.endswith("data: [DONE]\n\n"), said
    chunks = [json.loads(line.removeprefix("data: ")) for line in said.split("\n\n")[:-2] if line.startswith("data:")]
    resets = [number for number, each in enumerate(chunks) if each["type"] in ("reset-step", "start")]
    return "".join(each.get("delta", "") for each in chunks[resets[-1] :])


async def resume(address: str, chat: str) -> str:
    """Ask for the rest of an answer until there is a server that has it; return its text."""
    async with asyncio.timeout(TIMEOUT), httpx.AsyncClient(timeout=TIMEOUT) as client:
        while True:
            try:
                answer = await client.get(f"http://{address}{chat}/x/stream")
            except httpx.TransportError:
                continue
            if answer.status_code == 200:
                return read_answer(answer.text)
            await asyncio.sleep(0.05)


async def test_pages_at_two_nodes_show_one_answer_and_it_survives_its_owner(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path, target=TARGET) as cluster:
        (name,) = cluster.find_names("a", "room", 1, kind="support")
        chat, (first, second) = f"/threads/support/{name}/chat", cluster.addresses
        message = {"id": "q", "role": "user", "parts": [{"type": "text", "text": "a story"}]}
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            asked = asyncio.create_task(client.post(f"http://{second}{chat}", json={"messages": [message]}))
            answers = [await asked, await client.get(f"http://{first}{chat}/x/stream")]
            assert [read_answer(each.text) for each in answers] == [ANSWER, ANSWER]
            body = {"messages": [{**message, "id": "again"}]}
            async with client.stream("POST", f"http://{second}{chat}", json=body) as stream:
                async for line in stream.aiter_lines():
                    if "word7" in line:
                        cluster.nodes["a"].signal(signal.SIGKILL)
                        break
            assert await resume(second, chat) == ANSWER
            page = (await client.get(f"http://{second}{chat}")).json()
        cluster.nodes["a"].wait()
    assert page["status"] == "idle"
    texts = ["".join(part.get("text", "") for part in each["parts"]) for each in page["messages"]]
    assert texts == ["a story", ANSWER, "a story", ANSWER]
