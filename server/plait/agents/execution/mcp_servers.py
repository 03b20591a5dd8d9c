"""The MCP servers that lend tools to a run: a server is connected when one of its tools is first needed."""

import asyncio
import logging
import re
import secrets
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from mimetypes import guess_extension
from typing import Any, Final, Self

import msgspec

from plait.actor.thread import Thread
from plait.agents.execution.definitions import AnyTool, Mcp, find_tool
from plait.agents.execution.mcp import LentTool, McpFailed, McpResult
from plait.agents.execution.tools import NO_ARGUMENTS, Refused, Tool, ToolResult, ToolSpec, fail
from plait.errors import InvalidArguments, PlaitError
from plait.limits import Limits, check_json
from plait.parts.env.secret import Secret
from plait.parts.files.thread_files import find_files
from plait.parts.part import find_role, require_role
from plait.spelling import suggest
from plait_schemas.codec import NOT_JSON, encode_json

__all__ = ["McpServers"]

# Seconds in which a server must connect and list its tools.
_SECONDS: Final = 30.0
# Characters of a result.
_LONGEST: Final = 100_000
# Tools of a server, and characters of their descriptions.
_MOST_TOOLS: Final = 200
_MOST_DESCRIBED: Final = 1024 * 1024
# Characters of a name, for all providers.
_MOST_LETTERS: Final = 64

log = logging.getLogger("plait.agents")

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class McpServers:
    """The sessions of a run in memory with MCP servers, which end with `close`."""

    def __init__(self, thread: Thread[Any]) -> None:
        self._thread = thread
        self._sessions: dict[str, Any] = {}
        # The tools of each session, by the names that models call.
        self._lent: dict[str, dict[str, LentTool]] = {}
        # Why servers are away: a run tries again only if its model asks for that.
        self._away: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions.values():  # The sessions end even if this task is cancelled.
            session.end()
        for name in [*self._sessions]:
            await self._close(name)

    async def describe(self, tools: Mapping[str, Any]) -> list[ToolSpec]:
        """Return the tools of servers as a model sees them; for an unreachable server, a tool that connects again."""
        async with asyncio.TaskGroup() as group:
            found = [group.create_task(self._describe(each)) for each in tools.values() if isinstance(each, Mcp)]
        return [spec for each in found for spec in each.result()]

    async def find(self, tools: Mapping[str, AnyTool], name: str) -> AnyTool:
        """Return a tool by the name that models call, also one of a server. Raises Refused."""
        if (found := find_tool(tools, name)) is None:
            raise Refused(f"there is no tool {name!r}{suggest(name, tools)}")
        return await self._find(found, name) if isinstance(found, Mcp) else found

    # Inside

    async def _find(self, mcp: Mcp, name: str) -> Tool:
        """Return a tool of a server, or one that fails if the server does not have it."""
        if name == mcp.connect:
            self._away.pop(mcp.name, None)
        try:
            lent = self._lent.get(mcp.name) or await self._list(mcp)
        except McpFailed as failure:
            result = fail(f"the tools of {mcp.name} are away: {failure}")
        else:
            if (found := lent.get(name)) is not None:
                return _ServerTool(self, mcp, name, found)
            result = fail(f"there is no tool {name!r}{suggest(name, lent)}")
            if name == mcp.connect:
                result = ToolResult(f"{mcp.name} is connected. Its tools: {', '.join(lent)}")
        return _ServerTool(self, mcp, name, result)

    async def _describe(self, mcp: Mcp) -> list[ToolSpec]:
        try:
            lent = await self._list(mcp)
        except McpFailed as failure:
            told = f"The tools of {mcp.name} are away: {failure}. Call this to try again."
            return [ToolSpec(mcp.connect, told, NO_ARGUMENTS)]
        return [ToolSpec(name, each.description, each.schema) for name, each in lent.items()]

    async def _list(self, mcp: Mcp) -> dict[str, LentTool]:
        """Return the tools that a server lends now. Raises McpFailed."""
        if (why := self._away.get(mcp.name)) is not None:
            raise McpFailed(why)
        try:
            async with asyncio.timeout(_SECONDS):
                if (session := self._sessions.get(mcp.name)) is not None:
                    with suppress(McpFailed):
                        named = self._lent[mcp.name] = _name(mcp, await session.list())
                        return named
                    await self._close(mcp.name)
                lent = await (await self._open(mcp)).list()
                if missing := {*mcp.tools}.difference(names := [each.name for each in lent]):
                    why = " and ".join(f"{each!r}{suggest(each, names)}" for each in sorted(missing))
                    log.error("the MCP server %s has no tools with these names in tools=[…]: %s", mcp.name, why)
                    raise McpFailed(f"it has no tools with these names: {why}")
                named = self._lent[mcp.name] = _name(mcp, lent)
                if len(named) < len(lent) and not mcp.tools:
                    log.warning("%s of %s tools of the MCP server %s are lent", len(named), len(lent), mcp.name)
                return named
        except (McpFailed, TimeoutError) as failure:
            await self._close(mcp.name)
            why = f"no answer within {_SECONDS:g} s" if isinstance(failure, TimeoutError) else str(failure)
            why = self._away[mcp.name] = await self._redact(why)
            raise McpFailed(why) from None

    async def _open(self, mcp: Mcp) -> Any:
        make = await asyncio.to_thread(_import_session)
        try:
            variables = {name: await self._reveal(name) for name in mcp.variables}
        except PlaitError as error:
            raise McpFailed(str(error)) from None
        session = self._sessions[mcp.name] = make(mcp, variables)
        return session

    async def _close(self, name: str) -> None:
        self._lent.pop(name, None)
        if (session := self._sessions.pop(name, None)) is not None:
            await session.close()

    async def call(self, mcp: Mcp, tool: LentTool, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool of a server."""
        try:
            result: McpResult = await self._sessions[mcp.name].call(tool.name, arguments)
        except McpFailed as failure:
            await self._close(mcp.name)  # The next use of the server opens another session.
            return fail(await self._redact(str(failure)))
        text, size = await self._redact(result.text), len(result.text)
        if size > _LONGEST:
            text = f"{text}\n\n[The result has {size} characters; these are the first {_LONGEST}.]"
        paths = [path for mime, data in result.files if (path := await self._store(mime, data))]
        if len(paths) < len(result.files):
            text = f"{text}\n\n[{len(result.files) - len(paths)} files could not be kept.]".strip()
        return ToolResult(text, paths, is_error=result.is_error)

    async def _store(self, mime: str, data: str) -> str | None:
        """Store a file and return its path; None if the thread has no Files, or refuses this file."""
        if (files := find_files(type(self._thread))) is None:
            return None
        path = f"attachments/{secrets.token_hex(16)}{guess_extension(mime) or ''}"
        try:
            await files.of(self._thread._actor).write(path, b64decode(data), mime=mime)
        except (PlaitError, ValueError):
            return None
        return path

    async def _reveal(self, variable: str) -> str:
        secret: Secret = await require_role(type(self._thread), "env").of(self._thread._actor).get(variable)
        return secret.reveal()

    async def _redact(self, text: str) -> str:
        """Return the beginning of a text without secrets."""
        env = find_role(type(self._thread), "env")
        redacted: str = text if env is None else await env.of(self._thread._actor).redact(text, most=_LONGEST)
        return redacted[:_LONGEST]


class _ServerTool(Tool):
    """A tool of a server, or the result of every call of a tool that is missing."""

    def __init__(self, servers: McpServers, mcp: Mcp, name: str, lent: LentTool | ToolResult) -> None:
        self.name = name
        self.idempotent = isinstance(lent, LentTool) and lent.is_idempotent
        self.needs_approval = isinstance(lent, LentTool) and mcp.needs_approval
        self.approval_timeout = mcp.approval_timeout
        self.timeout = mcp.timeout
        self._servers = servers
        self._mcp = mcp
        self._lent = lent

    def decode(self, arguments: str | bytes, *, limits: Limits) -> dict[str, Any]:
        given = arguments.encode() if isinstance(arguments, str) else arguments
        check_json(f"{self.name}: the arguments", given, limits)
        try:
            return _decode_object(given or b"{}")
        except NOT_JSON as error:
            raise InvalidArguments(f"{self.name}: the arguments are no JSON object: {error}") from None

    async def run(self, thread: Any, arguments: Mapping[str, Any]) -> ToolResult:
        lent = self._lent
        return lent if isinstance(lent, ToolResult) else await self._servers.call(self._mcp, lent, arguments)


def _name(mcp: Mcp, lent: Sequence[LentTool]) -> dict[str, LentTool]:
    """Return tools by the names that models call.

    A name that is taken or too long ends with a hash of the server's own name. Tools beyond the limits are left out.
    """
    named: dict[str, LentTool] = {}
    size = 0
    for each in lent:
        if mcp.tools and each.name not in mcp.tools:
            continue
        name = mcp.prefix + re.sub(r"[^a-zA-Z0-9_-]", "_", each.name)
        if name in named or len(name) > _MOST_LETTERS:
            name = f"{name[: _MOST_LETTERS - 9]}_{blake2b(each.name.encode(), digest_size=4).hexdigest()}"
        size += len(each.description) + len(encode_json(each.schema))
        if len(named) == _MOST_TOOLS or size > _MOST_DESCRIBED:
            break
        named[name] = each
    return named


def _import_session() -> Callable[..., Any]:
    """Import MCP for the first server, as that takes a second."""
    from plait.agents.execution.mcp_session import McpSession  # noqa: PLC0415

    return McpSession
