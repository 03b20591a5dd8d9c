"""A checkpoint saver for LangGraph, with the extra `plait[langgraph]`; each thread of a graph is a plait thread."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import wraps
from itertools import takewhile
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.graph import StateGraph
from langgraph.types import Command

from plait import Message, Plait, Thread, ThreadMessages
from plait.actor.thread import ThreadActor
from plait.adapters.checkpoints import LoadedCheckpoint, SavedCheckpoint, SavedValue, SavedWrite, ThreadCheckpoints
from plait.agents.context import find_context
from plait.parts.part import Part, find_role

__all__ = ["Checkpoints", "PlaitSaver", "steer"]

P = ParamSpec("P")
T = TypeVar("T")

# The namespace of a graph that names none.
_ROOT: Final = ""


class Checkpoints(Part[ThreadCheckpoints]):
    """Declares checkpoints: `checkpoints = Checkpoints()` in a Thread class, for a `PlaitSaver`."""

    reading: ClassVar = frozenset({"find", "find_all", "export"})

    def bind(self, actor: ThreadActor) -> ThreadCheckpoints:
        return ThreadCheckpoints(actor, self.name)


def steer(builder: StateGraph[Any, Any, Any, Any], *, channel: str = "messages") -> StateGraph[Any, Any, Any, Any]:
    """Give each node what users queue in the thread of the run; call it before `compile`, and it returns the builder.

    The node gets the messages at the end of a channel that adds lists by the ids of messages, as `add_messages` does.
    A node that carries out a model's calls gets none. They are taken from the queue when the node has ended, and are in
    the graph's state with what the node returns.
    """
    for spec in builder.nodes.values():
        spec.runnable = _make_steered(spec.runnable, channel)
    return builder


def _make_steered(node: Any, channel: str) -> RunnableLambda[Any, Any]:
    async def run(state: Any, config: RunnableConfig) -> Any:
        messages = _find_messages()
        waiting = [*takewhile(_is_said, await messages.pending())] if messages is not None else []
        there = (state.get(channel) or []) if isinstance(state, Mapping) else None
        if messages is None or not waiting or there is None or _has_open_calls(there):
            return await node.ainvoke(state, config)
        known = {getattr(each, "id", None) for each in there}  # A run that was cut off has left some in a checkpoint.
        new = [HumanMessage(each.content or "", id=each.id) for each in waiting if each.id not in known]
        result = await node.ainvoke({**state, channel: [*there, *new]}, config)
        ids = {each.id for each in waiting}
        if taken := [*takewhile(lambda each: each.id in ids, await messages.pending())]:
            messages.take(len(taken))
        return [Command(update={channel: new}), result] if new else result

    return RunnableLambda(_refuse, afunc=run, name=getattr(node, "name", None))


def _has_open_calls(messages: Sequence[Any]) -> bool:
    """Whether the last answer of a model has a call without a result: models refuse a message between the two."""
    answer = next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)
    results = {each.tool_call_id for each in messages if isinstance(each, ToolMessage)}
    return answer is not None and any(call["id"] not in results for call in answer.tool_calls)


def _refuse(_: Any) -> Any:
    raise RuntimeError("a graph that is steered runs in the loop of the app: use `ainvoke` or `astream`")


def _find_messages() -> ThreadMessages | None:
    """Return the messages of the thread in whose run a node is called."""
    context = find_context()
    part = None if context is None else find_role(type(context.thread), "messages")
    return None if context is None or part is None else part.of(context.thread._actor)


def _is_said(message: Message) -> bool:
    return message.role == "user" and not message.silent


def _make_waiting(
    method: Callable[Concatenate["PlaitSaver", P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["PlaitSaver", P], T]:
    """Return a function for other OS threads that runs a method in the loop of the app, and waits for its result."""

    @wraps(method)
    def wait(self: "PlaitSaver", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(method(self, *args, **kwargs))

    return wait


class PlaitSaver(BaseCheckpointSaver[str]):
    """Saves the checkpoints of LangGraph's thread `x` in the thread `x` of a class that has `Checkpoints`.

    Every checkpoint is durable when `aput` returns, even if it is called in a run of an agent that fails later: the
    graph continues from this checkpoint. Call the methods without `a` from other OS threads than that of the app.
    """

    def __init__(self, app: Plait, thread: type[Thread[Any]], *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._app = app
        self._thread = thread
        self._part = _find_part(thread).name

    # Reading

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the last one; None if there is none."""
        thread_id, namespace = _read(config)
        checkpoint_id = get_checkpoint_id(config)
        found = await self._checkpoints(thread_id).find(namespace, checkpoint_id)
        return None if found is None else self._make_tuple(thread_id, found)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Iterate over the checkpoints of a thread, or, without a config, of all; each thread's last ones come first.

        The metadata of a checkpoint must have the members of `filter`. Checkpoints that are deleted during the
        iteration are left out.
        """
        namespace = None if config is None else _configurable(config).get("checkpoint_ns")
        only = None if config is None else get_checkpoint_id(config)
        until = None if before is None else get_checkpoint_id(before)
        left = limit
        async for thread_id in self._thread_ids(config):
            for saved in await self._checkpoints(thread_id).find_all(namespace):
                if (only and saved.id != only) or (until and saved.id >= until):
                    continue
                metadata = self.serde.loads_typed(saved.metadata)
                if filter and any(metadata.get(key) != value for key, value in filter.items()):
                    continue
                if left is not None and left <= 0:
                    return
                if (found := await self._checkpoints(thread_id).find(saved.namespace, saved.id)) is not None:
                    yield self._make_tuple(thread_id, found)
                    left = None if left is None else left - 1

    # Writing

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint with the channels that have new versions, and return its config."""
        thread_id, namespace = _read(config)
        values = checkpoint["channel_values"]
        described = get_checkpoint_metadata(config, metadata)
        found = SavedCheckpoint(
            namespace=namespace,
            id=checkpoint["id"],
            parent=get_checkpoint_id(config),
            run_id=described.get("run_id"),
            versions={channel: str(version) for channel, version in checkpoint["channel_versions"].items()},
            deltas=list(described.get("counters_since_delta_snapshot") or ()),
            checkpoint=self.serde.dumps_typed({**checkpoint, "channel_values": {}}),
            metadata=self.serde.dumps_typed(described),
        )
        changed = [
            SavedValue(channel, str(version), self.serde.dumps_typed(values[channel]))
            for channel, version in new_versions.items()
            if channel in values
        ]
        await self._checkpoints(thread_id).put(found, changed)
        return _make_config(thread_id, namespace, found.id)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save the writes of a task after a checkpoint; writes that are already saved stay."""
        thread_id, namespace = _read(config)
        saved = [
            SavedWrite(
                task_path=task_path,
                task_id=task_id,
                index=WRITES_IDX_MAP.get(channel, index),
                channel=channel,
                value=self.serde.dumps_typed(value),
            )
            for index, (channel, value) in enumerate(writes)
        ]
        checkpoint_id = _configurable(config)["checkpoint_id"]
        await self._checkpoints(thread_id).put_writes(namespace, checkpoint_id, saved)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints of a thread; its other data stays."""
        await self._checkpoints(thread_id).clear()

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of the given runs of LangGraph in all threads, which are woken for that."""
        doomed = list(run_ids)
        if doomed:
            async for thread_id in self._thread_ids(None):
                await self._checkpoints(thread_id).delete_runs(doomed)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to another one."""
        records = await self._checkpoints(source_thread_id).export()
        await self._checkpoints(target_thread_id).load(records)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads, or all except the last of each namespace and those that it is based on."""
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy must be 'keep_latest' or 'delete', not {strategy!r}")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self.adelete_thread(thread_id)
            else:
                await self._checkpoints(thread_id).keep_latest()

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return a version after `current`, which is unique among the branches of the thread."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}.{secrets.token_hex(8)}"

    # For other OS threads: each does the same as the method with an `a`.

    get_tuple = _make_waiting(aget_tuple)
    put = _make_waiting(aput)
    put_writes = _make_waiting(aput_writes)
    delete_thread = _make_waiting(adelete_thread)
    delete_for_runs = _make_waiting(adelete_for_runs)
    copy_thread = _make_waiting(acopy_thread)
    prune = _make_waiting(aprune)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Return an iterator over the checkpoints of `alist`."""

        async def collect() -> Collection[CheckpointTuple]:
            return [each async for each in self.alist(config, filter=filter, before=before, limit=limit)]

        return iter(self._wait(collect()))

    # Inside

    def _checkpoints(self, thread_id: str) -> Any:
        """Return the checkpoints of a thread, wherever it is."""
        return getattr(self._app.thread(self._thread, str(thread_id)), self._part)

    async def _thread_ids(self, config: RunnableConfig | None) -> AsyncIterator[str]:
        if config is not None:
            yield _read(config)[0]
            return
        async for row in self._app.threads(kind=self._thread):
            yield row.key.name

    def _make_tuple(self, thread_id: str, found: LoadedCheckpoint) -> CheckpointTuple:
        saved, load = found.saved, self.serde.loads_typed
        checkpoint: Checkpoint = load(saved.checkpoint)
        checkpoint["channel_values"] = {channel: load(value) for channel, value in found.values.items()}
        return CheckpointTuple(
            config=_make_config(thread_id, saved.namespace, saved.id),
            checkpoint=checkpoint,
            metadata=load(saved.metadata),
            parent_config=_make_config(thread_id, saved.namespace, saved.parent) if saved.parent else None,
            pending_writes=[(each.task_id, each.channel, load(each.value)) for each in found.writes],
        )

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop of the app, and wait for its result."""
        try:
            loop = self._app._node.loop
            if loop is _find_running_loop():
                raise RuntimeError("this call would block the loop of the app: use `ainvoke`, `aget_state` and so on")
        except RuntimeError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop).result()


def _find_part(thread: type[Thread[Any]]) -> Checkpoints:
    for cls in thread.__mro__:
        for attribute in vars(cls).values():
            if isinstance(attribute, Checkpoints):
                return attribute
    raise TypeError(f"{thread.__name__} needs `checkpoints = Checkpoints()`")


def _find_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _read(config: RunnableConfig) -> tuple[str, str]:
    """Return the thread and the namespace of a config."""
    configurable = _configurable(config)
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns", _ROOT)


def _configurable(config: RunnableConfig) -> dict[str, Any]:
    return config.get("configurable", {})


def _make_config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id},
    }
