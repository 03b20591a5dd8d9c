"""The methods of handles for a thread that another node owns."""

from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from plait.actor.kind import Kind
from plait.actor.rpc import Method
from plait.actor.turn import wait_for_birth
from plait.agents.agent import AgentMethod, Given
from plait.limits import Limits
from plait.node.json_calls import encode_arguments, find_method_result
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
)
from plait.node.remote_values import decode_result, encode_attributes, find_part_result, is_end
from plait.parts.part import Part
from plait.parts.remote import Retries
from plait.store.thread_rows import ThreadKey
from plait_schemas.encoding import encode_crossing

__all__ = ["RemoteThread"]

_decode_state: Final = msgspec.msgpack.Decoder(StateReply).decode


class RemoteThread:
    """Uses a thread of another node."""

    def __init__(
        self, nodes: RemoteNodes, kind: Kind, key: ThreadKey, limits: Limits, *, services: Mapping[type, Any]
    ) -> None:
        self._nodes = nodes
        self._kind = kind
        self._key = key
        self._limits = limits
        # The services that the parts of this process share, by class.
        self._services = services

    # The state

    async def state(self) -> Any:
        return self._decode_state(await self._ask_state(ReadState(self._key), reads=True))

    async def set_state(self, value: Any) -> int:
        if not callable(value):
            return (await self._ask_state(SetState(self._key, self._encode_state(value)))).version
        found = await self._ask_state(ReadState(self._key), reads=True)
        retries = Retries(f"the state of {self._key}")
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
        remote = _RemotePart(self._nodes, self._key, find_part(self._kind, part), self._services)
        own = None if method in remote.part.inner else getattr(remote.part.bind_remote(remote), method, None)
        return await (partial(remote.call, method) if own is None else own)(*args, **kwargs)

    def stream_part(
        self, part: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AsyncGenerator[bytes]:
        remote = _RemotePart(self._nodes, self._key, find_part(self._kind, part), self._services)
        return remote.stream(method, *args, **kwargs)

    # Inside

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


class _RemotePart:
    """Calls the methods of a part of a thread of another node."""

    def __init__(self, nodes: RemoteNodes, key: ThreadKey, part: Part[Any], services: Mapping[type, Any]) -> None:
        self._nodes = nodes
        self.key = key
        self.part = part
        self.services = services

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await self._ask(self._make(method, args, kwargs), None)

    async def upload(self, body: AsyncIterable[bytes], method: str, *args: Any, **kwargs: Any) -> Any:
        return await self._ask(replace(self._make(method, args, kwargs), has_body=True), body)

    async def stream(self, method: str, *args: Any, **kwargs: Any) -> AsyncGenerator[bytes]:
        await wait_for_birth(self.key)
        async with aclosing(self._nodes.stream(self.key, self._make(method, args, kwargs), reads=True)) as chunks:
            async for chunk in chunks:
                yield chunk

    # Inside

    def _make(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallPart:
        name = self.part.name
        return CallPart(self.key, name, method, encode_arguments(f"{name}.{method}", args, kwargs))

    async def _ask(self, request: CallPart, body: AsyncIterable[bytes] | None) -> Any:
        part, method = self.part, request.method
        answer = await self._nodes.ask(self.key, request, reads=method in part.reading, upload=body)
        return decode_result(answer, find_part_result(part, method), f"{part.name}.{method}")
