"""The app whose threads hand variables down: by default on a file, else on the store of PLAIT_STORE."""

import asyncio
from itertools import pairwise
from pathlib import Path

import httpx
from tests.integration.socket_client import TIMEOUT, http

from plait import Env, Family, NotFound, Plait, Thread, rpc

__all__ = ["VALUE", "app", "check_handed_down", "read_files"]

VALUE = "sk-7f3Qx0Zz9leak"


class Member(Thread[None]):
    env = Env(scoped={"OWN"})
    family = Family()

    @rpc
    async def spawn(self, name: str) -> None:
        await self.family.spawn(Member, name)

    @rpc
    async def set(self, name: str, value: str) -> None:
        await self.env.set(name, value)

    @rpc
    async def read(self, name: str) -> str | None:
        try:
            return (await self.env.get(name)).reveal()
        except NotFound:
            return None


app = Plait(Member, store="sqlite:///members.db", secret="x" * 32)


async def check_handed_down(address: str, names: list[str]) -> None:
    """Check that all threads have what the first one sets, if each is the parent of the next one."""
    async with http(address) as client:
        first, *others = names
        await call(client, first, "set", "EARLY", VALUE)
        for name, child in pairwise(names):
            await call(client, name, "spawn", child)
        assert [await call(client, name, "read", "EARLY") for name in names] == [VALUE] * len(names)
        for number in range(20):
            for key in ("OWN", "LATE"):
                await call(client, first, "set", key, f"{VALUE} {number}")
        for name in names:
            async with asyncio.timeout(TIMEOUT):
                while await call(client, name, "read", "LATE") != f"{VALUE} 19":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        assert [await call(client, name, "read", "OWN") for name in others] == [None] * len(others)


async def call(client: httpx.AsyncClient, name: str, method: str, *args: str) -> object:
    """Call an rpc of a thread."""
    answer = await client.post(f"/threads/member/{name}/rpc/{method}", json={"args": args})
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def read_files(folder: Path) -> bytes:
    """Return the content of all files of a folder: of a store, and logs."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
