"""Checkpoints of LangGraph in a thread that another node owns."""

from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from tests.server.nodes import open_nodes

from plait import Plait, Thread
from plait.adapters.langgraph import Checkpoints, PlaitSaver


class Graph(Thread[None]):
    checkpoints = Checkpoints()


async def test_checkpoints_are_kept_where_their_thread_is_owned() -> None:
    async with open_nodes(lambda: Plait(Graph, store="memory://")) as nodes:
        saver, name = PlaitSaver(nodes.apps[0], Graph), nodes.name(Graph, 1)
        config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"a": {"bytes": b"\x00\xff"}}
        version = saver.get_next_version(None, None)
        checkpoint["channel_versions"] = {"a": version}
        saved = await saver.aput(config, checkpoint, {"source": "input"}, {"a": version})
        await saver.aput_writes(saved, [("b", [1, "x"])], "task")
        found = await saver.aget_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == checkpoint["channel_values"]
        assert found.pending_writes == [("task", "b", [1, "x"])]
        assert [each.config async for each in saver.alist(None)] == [saved]
        other = nodes.name(Graph, 0)
        await saver.acopy_thread(name, other)
        copied = await saver.aget_tuple({"configurable": {"thread_id": other}})
        assert copied is not None
        await saver.adelete_thread(name)
        assert await saver.aget_tuple(config) is None
        assert nodes.sent > 0
