"""Branches of conversations on a server that is killed, and at several workers."""

import asyncio
import random
import signal
from pathlib import Path

import pytest
from tests.branches_play import Conversation, play
from tests.running import Process
from tests.schedules import SEED, TIMES, schedules
from tests.workers.group import Group

APP = "tests.branches_app:app"
ROUNDS = schedules() if TIMES > 1 else 3


def begin(kind: str) -> list[Conversation]:
    return [Conversation(kind, f"{number}") for number in range(2)]


async def play_for(seconds: float, addresses: list[str], conversations: list[Conversation]) -> None:
    done, chance = asyncio.Event(), random.Random(SEED)
    asyncio.get_running_loop().call_later(seconds, done.set)
    await play(addresses, conversations, chance, until=done)


@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
async def test_no_branch_loses_a_message_on_a_server_that_is_killed(tmp_path: Path) -> None:
    conversations, chance = [*begin("chat"), *begin("desk")], random.Random(SEED)
    options = {"cwd": tmp_path, "environment": {"PLAIT_STORE": "sqlite:///chats.db"}}
    for _ in range(ROUNDS):
        with Process(APP, **options) as server:  # type: ignore[arg-type]
            playing = asyncio.create_task(play([server.address], conversations, chance, until=asyncio.Event()))
            await asyncio.sleep(0.5 + chance.random())  # The moment at which it is killed.
            server.end(signal.SIGKILL)
            await playing
        with Process(APP, **options) as server:  # type: ignore[arg-type]
            for conversation in conversations:
                await conversation.check(server.address, chance)
    assert all(len(each.told) > 2 * ROUNDS for each in conversations)


@pytest.mark.timeout(120)
async def test_branches_are_the_same_at_all_workers(tmp_path: Path) -> None:
    conversations = [*begin("chat"), *begin("desk")]
    with Group(APP, cwd=tmp_path, environment={"PLAIT_STORE": "sqlite:///chats.db"}) as group:
        await play_for(2.0, [group.address], conversations)
        for conversation in conversations:
            await conversation.check(group.address, random.Random(SEED))
