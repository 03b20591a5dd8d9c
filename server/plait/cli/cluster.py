"""`plait cluster`: shows the nodes of a cluster."""

import asyncio
from collections import Counter
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from plait.cli.awake_commands import print_table
from plait.cli.options import fail
from plait.cluster.cell_directory import find_directory
from plait.cluster.directory import DirectoryView, NodeRecord
from plait.cluster.member import SINGLE
from plait.errors import PlaitError, operator_message
from plait.spelling import count
from plait.store.urls import open_store

__all__ = ["cluster_commands"]

cluster_commands = App(name="cluster", help="Show the nodes of a cluster.")

_HEAD = ("node", "address", "state", "beats", "shards", "epochs", "links to")


@cluster_commands.command
def status(
    url: Annotated[str, Parameter(name="URL", help="The URL of the nodes' store.", env_var="PLAIT_STORE")],
    *,
    json: Annotated[bool, Parameter(help="Print JSON, with the owner of each shard.", negative="")] = False,
) -> None:
    """Show which nodes use a store, whether they are alive, and how many of the 1,024 shards each of them owns."""
    try:
        view = asyncio.run(_read(url))
    except (PlaitError, ValueError) as error:
        fail(operator_message(error) if isinstance(error, PlaitError) else str(error))
    if json:
        print(msgspec.json.format(msgspec.json.encode(_describe(view)), indent=2).decode())
        return
    print_table([_HEAD, *_make_rows(view)])
    free = len(view.shards) - sum(each.node in view.alive() for each in view.shards)
    print(f"{count(len(view.alive()), 'node')}, {count(len(view.shards), 'shard')}, {free} without an owner")


async def _read(url: str) -> DirectoryView:
    if (directory := find_directory(open_store(url))) is None:
        fail("this store is for one machine, and has no nodes")
    async with directory:
        return await directory.read()


def _make_rows(view: DirectoryView) -> list[tuple[str, ...]]:
    shards = Counter(each.node for each in view.shards)
    epochs = {each.id: [shard.epoch for shard in view.shards if shard.node == each.id] for each in view.nodes}
    return [
        (
            "(one process, no cluster)" if each.name == SINGLE else each.name,
            each.address,
            _find_state(each),
            str(each.beats),
            str(shards[each.id]),
            f"{min(epochs[each.id])}-{max(epochs[each.id])}" if epochs[each.id] else "-",
            ", ".join(each.links) or "-",
        )
        for each in view.nodes
    ]


def _find_state(node: NodeRecord) -> str:
    return "dead" if node.is_dead else "starting or leaving" if node.is_leaving else "alive"


def _describe(view: DirectoryView) -> dict[str, Any]:
    names = {id: each.name for id, each in view.alive().items()}
    return {
        "nodes": [
            {
                "name": each.name,
                "id": each.id,
                "address": each.address,
                "state": _find_state(each),
                "beats": each.beats,
                "shards": sum(shard.node == each.id for shard in view.shards),
                "links": each.links,
                "versions": each.versions,
            }
            for each in view.nodes
        ],
        "shards": [{"node": names.get(each.node), "epoch": each.epoch} for each in view.shards],
    }
