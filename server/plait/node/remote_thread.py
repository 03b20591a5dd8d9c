"""The methods of handles for a thread that another node owns."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import msgspec

from plait.actor.kind import Kind
from plait.actor.relatives import wait_for_birth
from plait.actor.rpc import Method
from plait.agents.agent import AgentMethod, Given
from plait.backoff import Backoff
from plait.errors import Conflict, NotFound
from plait.limits import Limits
from plait.node.json_calls import EncodedArguments, encode_arguments, find_method_result
from plait.node.local_thread import THREAD_METHODS, find_part
from plait.node.remote_nodes import RemoteNodes
from plait.node.remote_requests import (
    CallMethod,
    CallPart,
    CallThread,
    ReadState,
    RunAgent,
    SetState,
    StateReply,
    StreamPart,
)
from plait.node.remote_values import decode_result, encode_attributes, find_part_result, is_end
from plait.parts.encoding import encode_key, encode_named
from plait.parts.env.app_env import AppEnv
from plait.parts.env.env import Env
from plait.parts.env.user_env import UserEnv
from plait.parts.files.file import CHUNK, cut_content
from plait.parts.part import Part
from plait.parts.sql.database import read_arguments
from plait.parts.sql.reading import convert_rows, pack, unpack
from plait.parts.sql.sql import Sql
from plait.parts.values import Values
from plait.parts.values_ops import call_change
from plait.store.protocol import ThreadKey
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.encoding import encode_crossing

__all__ = ["RemoteThread"]

# Seconds for which a function is called again and again for a value that others change, and the longest pauses.
_PATIENCE: Final = 8.0
_BACKOFF: Final = Backoff(0.001, 0.05)

_decode_state: Final = msgspec.msgpack.Decoder(StateReply).decode


class RemoteThread:
    """Uses a thread of another node."""

    def __init__(self, nodes: RemoteNodes, kind: Kind, key: ThreadKey, limits: Limits, *, env: AppEnv) -> None:
        self._nodes = nodes
        self._kind = kind
        self._key = key
        self._limits = limits
        self._env = env

    # The state

    async def state(self) -> Any:
        return self._decode_state(await self._ask_state(ReadState(self._key), reads=True))

    async def set_state(self, value: Any) -> int:
        if not callable(value):
            return (await self._ask_state(SetState(self._key, self._encode_state(value)))).version
        found = await self._ask_state(ReadState(self._key), reads=True)
        retries = _Retries(f"the state of {self._key}")
        while True:
            data = self._encode_state(value(self._decode_state(found)))
            found = await self._ask_state(SetState(self._key, data, found.epoch, found.version))
            if found.is_set:
                return found.version
            await retries.wait()

    async def call_thread(self, method: str, *args: Any, **kwargs: Any) -> Any:
        result, reads = THREAD_METHODS[method]
        request = CallThread(self._key, method, encode_arguments(method, args, kwargs))
        return decode_result(await self._nodes.ask(self._key, request, reads=reads), result, method)

    # Calls

    async def call(self, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        answer = await self._nodes.ask(self._key, self._make_call(method, args, kwargs))
        return decode_result(answer, find_method_result(method), method.name)

    async def stream(self, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AsyncGenerator[Any]:
        type_ = find_method_result(method)
        await wait_for_birth(self._key)
        async with aclosing(self._nodes.stream(self._key, self._make_call(method, args, kwargs))) as chunks:
            async for chunk in chunks:
                if is_end(chunk):
                    return
                yield decode_result(chunk, type_, method.name)

    async def call_part(self, part: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        found = find_part(self._kind, part)
        if isinstance(found, Values) and method == "update":
            return await self._update(part, *args, **kwargs)
        if isinstance(found, Values) and method == "get":
            return await self._get(part, *args, **kwargs)
        if (stream := found.gathering.get(method)) is not None:
            return await self._gather(self.stream_part(part, stream, args, kwargs))
        if (place := found.uploading.get(method)) is not None and len(args) > place:
            return await self._upload(found, method, args, kwargs)
        if isinstance(found, Sql) and method in ("__call__", "read"):
            return await self._run_sql(part, "run_packed" if method == "__call__" else "read_packed", *args, **kwargs)
        if isinstance(found, Env) and method not in found.inner:
            return await getattr(UserEnv(self._env, partial(self._ask_part, found)), method)(*args, **kwargs)
        return await self._ask_part(found, method, *args, **kwargs)

    async def stream_part(
        self, part: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AsyncGenerator[bytes]:
        await wait_for_birth(self._key)
        request = StreamPart(self._key, part, method, encode_arguments(f"{part}.{method}", args, kwargs))
        async with aclosing(self._nodes.stream(self._key, request, reads=True)) as chunks:
            async for chunk in chunks:
                yield chunk

    # Inside

    async def _ask_part(self, part: Part[Any], method: str, *args: Any, **kwargs: Any) -> Any:
        what = f"{part.name}.{method}"
        request = CallPart(self._key, part.name, method, encode_arguments(what, args, kwargs))
        answer = await self._nodes.ask(self._key, request, reads=method in part.reading)
        return decode_result(answer, find_part_result(part, method), what)

    async def _gather(self, stream: AsyncGenerator[bytes]) -> bytes | None:
        """Return what is streamed as a whole; None after NotFound."""
        try:
            async with aclosing(stream) as chunks:
                return b"".join([chunk async for chunk in chunks])
        except NotFound:
            return None

    async def _upload(self, part: Part[Any], method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a method one of whose arguments is sent as a stream."""
        what, place = f"{part.name}.{method}", part.uploading[method]
        arguments = encode_arguments(what, [*args[:place], *args[place + 1 :]], kwargs)
        request = CallPart(self._key, part.name, method, arguments, upload=place)
        answer = await self._nodes.ask(self._key, request, upload=cut_content(args[place], CHUNK))
        return decode_result(answer, find_part_result(part, method), what)

    async def _get(self, part: str, key: str, default: Any = None) -> Any:
        """Do what `ThreadValues.get` does, with a default that stays here."""
        found = await self._call_values(part, "read_json", bytes | None, key)
        return default if found is None else decode_json(found)

    async def _update(self, part: str, key: str, change: Callable[[Any], Any], default: Any = None) -> Any:
        """Do what `ThreadValues.update` does, with a function that runs here."""
        encode_key(key)
        found = await self._call_values(part, "read_json", bytes | None, key)
        retries = _Retries(f"the value {key!r} of {self._key}")
        while True:
            value = call_change(change, found, default)
            data = encode_named(key, value)
            is_set, found = await self._call_values(part, "exchange", tuple[bool, bytes | None], key, found, data)
            if is_set:
                return value
            await retries.wait()

    async def _call_values(self, part: str, method: str, type_: Any, *args: str | bytes | None) -> Any:
        request = CallPart(self._key, part, method, EncodedArguments([encode_json(each) for each in args]))
        answer = await self._nodes.ask(self._key, request, reads=method == "read_json")
        return decode_result(answer, type_, f"{part}.{method}")

    async def _run_sql(
        self, part: str, method: str, statement: str, *args: object, into: type[Any] | None = None
    ) -> Any:
        """Do what `ThreadSql` does, with rows that become objects of `into` here."""
        given = EncodedArguments([encode_json(statement), encode_json(pack(read_arguments(args, statement)))])
        request = CallPart(self._key, part, method, given)
        answer = await self._nodes.ask(self._key, request, reads=method == "read_packed")
        rows = decode_result(answer, bytes, f"{part}.{method}")
        return await asyncio.to_thread(lambda: convert_rows(unpack(rows), into, statement))

    def _make_call(self, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallMethod | RunAgent:
        if not isinstance(method, AgentMethod):
            return CallMethod(self._key, method.name, encode_arguments(method.name, args, kwargs))
        (given,) = args
        assert isinstance(given, Given)
        agent = method.agent
        data = encode_crossing(f"the input of {agent.name}", given.input) if agent.takes_input else b""
        named, typed = encode_attributes(given.attributes)
        return RunAgent(self._key, agent.name, data, given.session_id, given.user_id, named, typed)

    async def _ask_state(self, request: ReadState | SetState, *, reads: bool = False) -> StateReply:
        return _decode_state(await self._nodes.ask(self._key, request, reads=reads))

    def _encode_state(self, value: object) -> bytes:
        return self._kind.state_type.from_value(value, self._limits)[1]

    def _decode_state(self, reply: StateReply) -> Any:
        return None if reply.json is None else self._kind.state_type.decode(reply.json)


class _Retries:
    """Waits before a function is called again for a value that has changed."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + _PATIENCE
        self._failures = 0

    async def wait(self) -> None:
        """Wait a random time, which grows. Raises Conflict after 8 seconds in all."""
        if self._clock() > self._until:
            raise Conflict(f"{self._what}, in another process, changes too often for a function of it: use an rpc")
        self._failures += 1
        await asyncio.sleep(random.uniform(0, _BACKOFF.delay(self._failures)))
