"""The JavaScript client in Deno, which gets it from the server as a page does."""

import asyncio
import os
import subprocess
import sysconfig
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.integration.native_client import joined, put
from tests.running import running

from plait import MemoryStore, Plait, Thread, rpc

PATIENCE = 60.0
PROGRAM = """
import { PlaitError, ThreadClient } from "http://%(address)s/plait/client.js";

const room = new ThreadClient({ host: "%(address)s", kind: "deno-room", name: "one" });
await room.ready;
room.setPresence({ name: "Deno" });
const version = await room.edit((draft) => void draft.list.push("from Deno"));
console.log(JSON.stringify([version, room.state]));

console.log(JSON.stringify(await room.rpc.addUp(20, 22)));
const chunks = [];
for await (const chunk of room.stream("count", 3)) chunks.push(chunk);
console.log(JSON.stringify(chunks));

const refused = await room.update("/score", -1).catch((error) => error);
console.log(JSON.stringify([refused instanceof PlaitError, refused.code, room.state.score]));

console.log(JSON.stringify(await room.waitFor((state) => state.list.length === 2)));
room.close();
"""


class DenoRoom(Thread[dict[str, Any]]):
    initial_state = {"list": [], "score": 0}  # noqa: RUF012

    def validate_state_change(self, next_state: Any, source: object) -> None:
        if next_state["score"] < 0:
            raise ValueError("negative")

    @rpc
    def add_up(self, a: int, b: int) -> int:
        return a + b

    @rpc
    async def count(self, upto: int) -> Any:
        for n in range(upto):
            yield n


@pytest.mark.timeout(PATIENCE * 2)
async def test_a_program_in_deno_edits_calls_streams_and_is_refused_like_any_other(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(running(Plait(DenoRoom, store=MemoryStore())))
        other = await stack.enter_async_context(joined(address, "/threads/deno-room/one", "python"))
        process = await begin(PROGRAM % {"address": address}, tmp_path, address)
        try:
            await other.until(lambda client: client.state["list"] == ["from Deno"], PATIENCE)
            await other.until(lambda client: {"name": "Deno"} in shown(client.frames), PATIENCE)
            assert process.stdout is not None
            async with asyncio.timeout(PATIENCE):
                # It has printed its own state before another change can come.
                edited = await process.stdout.readline()
                await other.push({"op": "add", "path": "/list/-", "value": "from Python"}, put("/score", 7))
                out, errors = await process.communicate()
        except BaseException:
            process.kill()
            raise
    assert (process.returncode, errors.decode()) == (0, "")
    called, streamed, refused, state = out.decode().splitlines()
    assert edited.decode().strip() == '[1,{"list":["from Deno"],"score":0}]'
    assert (called, streamed) == ("42", "[0,1,2]")
    assert refused.startswith('[true,"rejected",')
    assert state == '{"list":["from Deno","from Python"],"score":7}'


async def begin(program: str, folder: Path, address: str) -> asyncio.subprocess.Process:
    """Start a program that may connect to this server only."""
    path = folder / "main.js"
    path.write_text(program)
    return await asyncio.create_subprocess_exec(
        str(Path(sysconfig.get_path("scripts")) / "deno"),
        *("run", "--no-config", "--no-lock", "--quiet", f"--allow-net={address}", f"--allow-import={address}"),
        str(path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "DENO_DIR": str(folder / "deno"), "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"},
    )


def shown(frames: list[Any]) -> list[Any]:
    """Return all that anybody has shown."""
    diffs = [frame for frame in frames if isinstance(frame, dict) and frame["type"] == "presence"]
    kinds = ("snapshot", "joined", "updated")
    return [data for diff in diffs for kind in kinds for data in diff.get(kind, {}).values()]
