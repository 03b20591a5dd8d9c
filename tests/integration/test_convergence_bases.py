"""A push may have an older base than the one before it, where its place is gone from what its client knows."""

from pathlib import Path

from tests.integration.convergence_app import LivePad
from tests.integration.native_client import NativeClient, add, put
from tests.running import running

from plait import Plait


async def test_a_push_with_an_older_base_than_the_one_before_it_is_brought_behind_all_since_its_own(
    tmp_path: Path,
) -> None:
    async with running(Plait(LivePad, store=f"sqlite:///{tmp_path}/pads.db")) as address:
        one, other = (NativeClient(address, "/threads/live-pad/a", client) for client in ("one", "other"))
        await one.join()
        await other.join()
        for version, op in enumerate([add("/list/0", "b"), add("/list/0", "a"), put("/list/1", "c")], 1):
            await one.push(op)
            await one.until(lambda client, version=version: client.version == version)
        await other.until(lambda client: client.version == 3)
        # The first knows of all; the second was made on ["b"], which has become ["a", "c"].
        await other.send("push", ref=1, base=[other.epoch, 3], ops=[put("/n", 1)])
        await other.send("push", ref=2, base=[other.epoch, 1], ops=[put("/list/0", "d")])
        await one.until(lambda client: client.version == 5)
        assert one.state["list"] == ["a", "d"]
        await one.close()
        await other.close()
