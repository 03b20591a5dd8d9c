"""A session of the OpenAI Agents SDK in a thread's values or messages, with the extra `plait[openai-agents]`."""

import copy
from collections.abc import Sequence
from typing import Any, Final

from plait import ThreadMessages, ThreadValues
from plait.adapters.message_history import Fields, Format, call_tool, load_history, read_call

__all__ = ["ThreadSession"]


class ThreadSession:
    """A `Session` whose items are one of a thread's values: `Runner.run(agent, input, session=ThreadSession(values))`.

    With `messages`, they are the thread's messages instead. In a run of an agent, the items are stored with the run;
    outside of one, at once. With `max_items`, only approximately that many of the last items are kept, beginning with a
    message of the user; messages are all kept, and the agent gets that many of the last. Raises what `ThreadValues` and
    `ThreadMessages` raise.
    """

    def __init__(
        self,
        values: ThreadValues | None = None,
        *,
        messages: ThreadMessages | None = None,
        session_id: str = "",
        session_settings: Any = None,
        key: str = "openai_agents",
        max_items: int | None = None,
    ) -> None:
        if max_items is not None and max_items < 1:
            raise ValueError(f"max_items must be at least 1, not {max_items!r}")
        if (values is None) == (messages is None):
            raise TypeError("a session is in the values of a thread, or in its messages: pass one of them")
        self.session_id = session_id
        # The SDK's SessionSettings, or None.
        self.session_settings: Any = session_settings
        self._items: _ValuesItems | _MessagesItems
        if messages is not None:
            self._items = _MessagesItems(messages, max_items)
        else:
            assert values is not None
            self._items = _ValuesItems(values, key, max_items)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items in order; with a limit, only the last ones."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        items = await self._items.load()
        return items if limit is None else items[max(len(items) - limit, 0) :]

    async def add_items(self, items: Sequence[Any]) -> None:
        """Add items at the end."""
        if items:
            await self._items.add(items)

    async def pop_item(self) -> Any:
        """Remove the last item and return it, None if there is none."""
        return await self._items.pop()

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._items.clear()


class _ValuesItems:
    """Items that are one value."""

    def __init__(self, values: ThreadValues, key: str, most: int | None) -> None:
        self._values = values
        self._key = key
        self._most = most

    async def load(self) -> list[Any]:
        # Return a copy, as changes inside of a value would be stored.
        return copy.deepcopy(list(await self._values.get(self._key, [])))

    async def add(self, items: Sequence[Any]) -> None:
        await self._values.update(self._key, lambda before: self._cut([*before, *items]), [])

    async def pop(self) -> Any:
        popped: list[Any] = []

        def pop(items: list[Any]) -> list[Any]:
            popped[:] = items[-1:]
            return items[:-1]

        if await self._values.get(self._key):
            await self._values.update(self._key, pop, [])
        return popped[0] if popped else None

    async def clear(self) -> None:
        await self._values.delete(self._key)

    def _cut(self, items: list[Any]) -> list[Any]:
        """Return the last items, beginning with a message of the user, so that every result of a tool has its call."""
        if self._most is None or len(items) <= self._most:
            return items
        starts = [at for at, item in enumerate(items) if isinstance(item, dict) and item.get("role") == "user"]
        return items[next((at for at in starts if at >= len(items) - (self._most or 0)), starts[-1] if starts else 0) :]


class _MessagesItems:
    """Items that are messages, one each."""

    def __init__(self, messages: ThreadMessages, most: int | None) -> None:
        self._messages = messages
        self._most = most

    async def load(self) -> list[Any]:
        return [item for each in await load_history(self._messages, self._most) for item in _FORMAT.read(each)]

    async def add(self, items: Sequence[Any]) -> None:
        results = [self._messages.inject(**_FORMAT.write(item)) for item in items]
        for result in results:
            await result

    async def pop(self) -> Any:
        items: list[Any] = []
        found = await load_history(self._messages, 1)
        while found and not items:
            message = found.pop()
            items = _FORMAT.read(message)
            await self._messages.delete(message.id)
        await self.add(items[:-1])
        return items[-1] if items else None

    async def clear(self) -> None:
        for each in await load_history(self._messages):
            await self._messages.delete(each.id)


def _tell(item: dict[str, Any]) -> Fields:
    """Return what an item is as a message; one that only models read is silent."""
    match item:
        case {"type": "function_call", "call_id": str(id), "name": str(name), "arguments": str(arguments)}:
            return Fields("assistant", tool_calls=[call_tool(id, name, arguments)])
        case {"type": "function_call_output", "call_id": str(id)}:
            return Fields("tool", _read_text(item.get("output")), tool_call_id=id)
        case {"role": "user" | "assistant" | "system" | "developer" as role} if item.get("type") in (None, "message"):
            return Fields("system" if role == "developer" else role, _read_text(item.get("content")))
    return Fields("assistant", silent=True)


def _make(fields: Fields) -> list[dict[str, Any]]:
    """Return the items of a message that others may have written."""
    if fields.role == "tool":
        return [{"type": "function_call_output", "call_id": fields.tool_call_id or "", "output": fields.content or ""}]
    items: list[dict[str, Any]] = [] if fields.content is None else [{"role": fields.role, "content": fields.content}]
    for id, name, arguments in map(read_call, fields.tool_calls or ()):
        items.append({"type": "function_call", "call_id": id, "name": name, "arguments": arguments})
    return items


def _read_text(content: Any) -> str | None:
    """Return the text of what may be a text or a list of parts."""
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts) if texts else None


_FORMAT: Final = Format("openai_agents", _tell, _make)
