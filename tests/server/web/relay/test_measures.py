"""What a node tells of its links while others are called, and while they are away."""

import asyncio
from typing import Any

from tests.server.nodes import open_nodes
from tests.server.session.guests import until

from plait import Plait, Thread
from plait.web.relay.measures import measure

PATIENCE = 20.0
LARGE = "x" * 100_000


class Note(Thread[dict[str, Any]]):
    initial_state = {"text": ""}  # noqa: RUF012


async def test_links_are_measured_with_their_bytes_and_what_is_held() -> None:
    async with asyncio.timeout(PATIENCE), open_nodes(lambda: Plait(Note, store="memory://")) as nodes:
        here, there = nodes.apps
        note = nodes.handle(Note, 1)
        assert set(measure(here._context).values()) == {0}
        await note.set_state({"text": LARGE})
        found, other = measure(here._context), measure(there._context)
        assert (found["plait_links"], found["plait_held"]) == (1, 0)
        assert found["plait_link_bytes_sent_total"] > len(LARGE) > found["plait_link_bytes_received_total"] > 0
        assert other["plait_link_bytes_received_total"] == found["plait_link_bytes_sent_total"]
        await there.__aexit__(None, None, None)
        asked = asyncio.create_task(note.state())
        await until(lambda: measure(here._context)["plait_held"] == 1)
        assert measure(here._context)["plait_links"] == 0
        # What was counted on links that have ended is not lost.
        assert measure(here._context)["plait_link_bytes_sent_total"] >= found["plait_link_bytes_sent_total"]
        await there.__aenter__()
        await asked
        assert measure(here._context)["plait_held"] == 0
