"""Branches of conversations that clients of several nodes use, while a node is killed."""

import asyncio
import random
import signal
from pathlib import Path

import pytest
from tests.branches_play import Conversation, play
from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import open_cluster
from tests.schedules import SEED


@each_engine("postgres")
@pytest.mark.timeout(180)
async def test_branches_survive_the_loss_of_a_node(engine: Engine, tmp_path: Path) -> None:
    conversations = [Conversation(kind, f"{number}") for kind in ("chat", "desk") for number in range(2)]
    chance, done = random.Random(SEED), asyncio.Event()
    async with open_cluster(engine, tmp_path, target="tests.branches_app:app") as cluster:
        playing = asyncio.create_task(play(cluster.addresses, conversations, chance, until=done))
        await asyncio.sleep(2)
        cluster.nodes["b"].end(signal.SIGKILL)
        await asyncio.sleep(2)
        done.set()
        await playing
        for conversation in conversations:
            await conversation.check(cluster.nodes["a"].address, chance)
