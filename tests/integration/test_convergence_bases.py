"""A push may name an older base than the one before it: where its place is gone from what its client knows."""

import json
from pathlib import Path
from typing import Any

from tests.integration.convergence_app import LivePad
from tests.integration.native_client import NativeClient, add, put
from tests.running import running
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from plait import Plait
from plait_schemas.messages import SUBPROTOCOL


async def test_a_push_with_an_older_base_than_the_one_before_it_is_refused_and_hits_no_other_element(
    tmp_path: Path,
) -> None:
    async with running(Plait(LivePad, store=f"sqlite:///{tmp_path}/pads.db")) as address:
        one = NativeClient(address, "/threads/live-pad/a", "one")
        await one.join()
        for op in (add("/list/0", "b"), add("/list/0", "a"), put("/list/1", "c")):
            await one.push(op)
        await one.until(lambda client: client.version == 3)
        url = f"ws://{address}/threads/live-pad/a"
        async with connect(url, subprotocols=[Subprotocol(SUBPROTOCOL)], proxy=None) as other:
            await other.send(json.dumps({"type": "join", "client": "other"}))
            # The first knows of all; the second was made on ["b"], which has become ["a", "c"].
            for ref, base, op in ((1, 3, put("/n", 1)), (2, 1, put("/list/0", "d"))):
                await other.send(json.dumps({"type": "push", "ref": ref, "base": [one.epoch, base], "ops": [op]}))
            answers = [await _answer(other), await _answer(other)]
        await one.until(lambda client: client.version == 4)
        assert one.state == {"list": ["a", "c"], "by": {}, "n": 1}
        assert [(answer["type"], answer.get("code")) for answer in answers] == [("ack", None), ("nack", "conflict")]
        await one.close()


async def _answer(socket: ClientConnection) -> Any:
    while (frame := json.loads(await socket.recv()))["type"] not in ("ack", "nack"):
        pass
    return frame
